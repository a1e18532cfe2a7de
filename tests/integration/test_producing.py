"""Producing on a real broker: acknowledged means stored, once, in the right place; and what is said when it is not."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

import duewheel
from duewheel import Client, Job, JobFailed, RetryPolicy
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.intake import KafkaIntake
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.cli.main import cli
from duewheel.core.errors import BadConfiguration, BrokerUnavailable, CallerError, EnvironmentFailure, RejectedJob, TopicMissing
from duewheel.core.limits import (
    ATTEMPTS_MAX,
    CRASHES_MAX,
    DUE_MS_MAX,
    HEADERS_BYTES_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    QUEUE_CHARS_MAX,
    RECORD_BYTES_MAX,
    RETRY_CLASSES_BYTES_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_MAX,
    RUN_TIMEOUT_MS_MAX,
    TASK_BYTES_MAX,
    TOTAL_TIMEOUT_MS_MAX,
)
from duewheel.core.topology import partition_of
from duewheel.devbroker import DevCluster
from duewheel.ports import Receipt
from tests.conftest import FOLDER, Installation
from tests.intake import size, stored

NOWHERE = "127.0.0.1:1"  # a port that nothing listens on


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with duewheel.connect(installation.kafka.bootstrap_servers, prefix=installation.topology.prefix) as client:
        yield client


def read(installation: Installation, receipts: list[Receipt]) -> list[tuple[bytes, bytes]]:
    return stored(installation.kafka, installation.topology.intake, receipts)


def count(installation: Installation) -> int:
    return size(installation.kafka, installation.topology.intake, partitions=4)


def test_a_scheduled_job_is_stored_where_its_owner_looks(client: Client, installation: Installation) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    handles = [client.schedule("send_email", {"n": n}, at=due, job_id=f"jöb-{n}", headers={"trace": str(n)}) for n in range(50)]
    assert [handle.partition for handle in handles] == [partition_of(f"jöb-{n}".encode(), 4) for n in range(50)]
    records = read(installation, [Receipt(handle.partition, handle.offset) for handle in handles])
    for n, (key, value) in enumerate(records):
        decoded = codec.decode_command(value)
        assert decoded[0] == "schedule"
        command = decoded[1]
        assert (key.decode(), command["job_id"], command["due_ms"]) == (f"jöb-{n}", f"jöb-{n}", 1_893_456_000_000)
        assert (json.loads(command["work"]["payload"]), command["work"]["headers"]) == ({"n": n}, {"trace": str(n)})
    assert count(installation) == 50


def test_a_cancel_lies_behind_its_job_in_the_same_partition(client: Client, installation: Installation) -> None:
    handle = client.schedule("t", delay=3_600)
    receipt = client.cancel(handle.job_id)
    assert receipt.partition == handle.partition
    assert receipt.offset > handle.offset
    [(key, value)] = read(installation, [receipt])
    assert (key.decode(), codec.decode_command(value)[:1]) == (handle.job_id, ("cancel",))


def test_limits_and_a_policy_are_stored_with_their_job(client: Client, installation: Installation) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    retry = RetryPolicy.listed([1, timedelta(minutes=1)], give_up_on=[ValueError])
    handle = client.schedule("t", at=due, expires_at=due + timedelta(hours=1), retry=retry, timeout=30, total_timeout=7_200, crash_limit=2)
    [(_, value)] = read(installation, [Receipt(handle.partition, handle.offset)])
    decoded = codec.decode_command(value)
    assert decoded[0] == "schedule"
    assert decoded[1]["limits"] == {"expires_ms": 1_893_459_600_000, "total_timeout_ms": 7_200_000, "crashes_max": 2}
    assert decoded[1]["work"]["policy"] == retry.to_record(30_000)


def test_redrives_and_drops_lie_where_their_job_does(client: Client, installation: Installation) -> None:
    receipts = [client.redrive("jöb-1", 7), client.drop("jöb-1", 8)]
    assert client.redrive_many((f"job-{n}", n + 1) for n in range(2_000)) == 2_000
    assert client.drop_many([("jöb-1", 9)]) == 1
    assert {receipt.partition for receipt in receipts} == {partition_of("jöb-1".encode(), 4)}
    decoded = [codec.decode_command(value)[:2] for _, value in read(installation, receipts)]
    assert [(kind, command["job_id"], command.get("token")) for kind, command in decoded] == [("redrive", "jöb-1", 7), ("drop", "jöb-1", 8)]
    assert count(installation) == 2_003
    with pytest.raises(RejectedJob, match="token 0 is none"):
        client.redrive("jöb-1", 0)
    assert count(installation) == 2_003


def test_W11_the_largest_job_that_is_accepted_is_stored(client: Client, installation: Installation) -> None:
    """Every limit reached at once fits the topic as it is declared."""
    largest = client.schedule(
        "t" * TASK_BYTES_MAX,
        bytes(range(256)) * (PAYLOAD_BYTES_MAX // 256),
        job_id="j" * JOB_ID_BYTES_MAX,
        queue="q" * QUEUE_CHARS_MAX,
        headers={f"{n:02}" + "h" * 126: "v" * (HEADERS_BYTES_MAX // 64 - 128) for n in range(64)},
        expires_at=DUE_MS_MAX,
        retry=RetryPolicy(
            attempts=ATTEMPTS_MAX,
            delays=[timedelta(milliseconds=RETRY_DELAY_MS_MAX)] * RETRY_DELAYS_MAX,
            factor=RETRY_FACTOR_MAX,
            jitter=1.0,
            give_up_on=[f"{n:0{RETRY_CLASSES_BYTES_MAX // 2 // RETRY_CLASSES_MAX}}" for n in range(RETRY_CLASSES_MAX)],
            retry_on=[f"{n:0{RETRY_CLASSES_BYTES_MAX // 2 // RETRY_CLASSES_MAX}}" for n in range(RETRY_CLASSES_MAX)],
        ),
        timeout=timedelta(milliseconds=RUN_TIMEOUT_MS_MAX),
        total_timeout=timedelta(milliseconds=TOTAL_TIMEOUT_MS_MAX),
        crash_limit=CRASHES_MAX,
    )
    [(_, value)] = read(installation, [Receipt(largest.partition, largest.offset)])
    assert codec.decode_command(value)[0] == "schedule"
    assert len(value) <= RECORD_BYTES_MAX


def test_W11_a_payload_over_the_limit_stores_nothing(client: Client, installation: Installation) -> None:
    with pytest.raises(RejectedJob, match=r"1,000,001.*1,000,000"):
        client.schedule("t", bytes(PAYLOAD_BYTES_MAX + 1))
    assert count(installation) == 0


def test_many_jobs_are_stored_once_each_in_order_within_a_partition(client: Client, installation: Installation) -> None:
    progress: list[int] = []
    total = 30_000
    done = client.schedule_many((Job("t", n, job_id=f"job-{n}") for n in range(total)), on_progress=progress.append)
    assert done == (total, 0)
    assert progress == sorted(progress)
    assert progress[-1] == total == count(installation)
    sizes = [0] * 4
    expected = []
    for n in range(total):
        partition = partition_of(b"job-%d" % n, 4)
        expected.append(Receipt(partition, sizes[partition]))
        sizes[partition] += 1
    assert [key for key, _ in read(installation, expected)] == [b"job-%d" % n for n in range(total)]


def test_rejected_jobs_among_many_are_named_and_the_others_stored(client: Client, installation: Installation) -> None:
    failures: list[JobFailed] = []
    jobs = (Job("t", at=1 if n % 1_000 == 7 else None) for n in range(5_000))
    assert client.schedule_many(jobs, on_failure=failures.append) == (4_995, 5)
    assert [failure.position for failure in failures] == [7, 1_007, 2_007, 3_007, 4_007]
    assert count(installation) == 4_995


def test_threads_share_a_client(client: Client, installation: Installation) -> None:
    handles: list[duewheel.JobHandle] = []

    def work(name: int) -> None:
        handles.extend([client.schedule("t", n, job_id=f"{name}-{n}") for n in range(100)])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    threads.append(threading.Thread(target=lambda: client.schedule_many(Job("many", n) for n in range(20_000))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({(handle.partition, handle.offset) for handle in handles}) == 600
    records = read(installation, [Receipt(handle.partition, handle.offset) for handle in handles])
    assert [key.decode() for key, _ in records] == [handle.job_id for handle in handles]
    assert count(installation) == 20_600


def test_a_missing_topic_is_named_and_not_made(broker: KafkaConfig) -> None:
    with duewheel.connect(broker.bootstrap_servers, prefix="nobody-made-this") as client:
        with pytest.raises(TopicMissing, match=r"nobody-made-this\.intake does not exist .*duewheel topics apply"):
            client.schedule("t")
        with pytest.raises(TopicMissing):
            client.schedule_many([Job("t")])
    admin = AdminClient(broker.common())
    assert "nobody-made-this.intake" not in admin.list_topics(timeout=10).topics


def test_a_topic_made_late_is_found_by_the_same_client(broker: KafkaConfig) -> None:
    prefix = f"late-{time.time_ns()}"
    with duewheel.connect(broker.bootstrap_servers, prefix=prefix) as client:
        with pytest.raises(TopicMissing):
            client.schedule("t")
        admin = AdminClient(broker.common())
        admin.create_topics([NewTopic(f"{prefix}.intake", 1, 1)])[f"{prefix}.intake"].result(10)
        assert client.schedule("t").offset == 0


def test_a_topic_that_takes_only_small_records_refuses_and_says_so(broker: KafkaConfig) -> None:
    prefix = f"small-{time.time_ns()}"
    admin = AdminClient(broker.common())
    topic = NewTopic(f"{prefix}.intake", 1, 1, config={"max.message.bytes": "1000"})
    admin.create_topics([topic])[topic.topic].result(10)
    with duewheel.connect(broker.bootstrap_servers, prefix=prefix) as client:
        with pytest.raises(EnvironmentFailure, match=r"job big was refused .*not stored.*duewheel topics plan"):
            client.schedule("t", random.Random(1).randbytes(10_000), job_id="big")  # no compression helps
        assert client.schedule("t", job_id="small").job_id == "small"


def test_nothing_listening_is_said_with_address_and_time() -> None:
    with duewheel.connect(NOWHERE, timeout_s=1.5) as client, capture_logs() as lines:
        start = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 within 1\.5 s .*[Rr]efused.*nothing was sent"):
            client.schedule("t")
        assert 1.4 < time.monotonic() - start < 6
    assert [line["event"] for line in lines] == ["intake.waiting"]


def test_threads_that_wait_for_a_broker_each_wait_their_own_time() -> None:
    waited_s: list[float] = []

    def work(client: Client) -> None:
        start = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"within 1\.5 s .*nothing was sent"):
            client.schedule("t")
        waited_s.append(time.monotonic() - start)

    with duewheel.connect(NOWHERE, timeout_s=1.5) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len(waited_s) == 4
    assert min(waited_s) > 1.4
    assert max(waited_s) < 3  # one after another it would be six


@pytest.mark.parametrize(
    "options, timeout_s, named",
    [({"no.such.setting": "1"}, 30, "no.such.setting"), ({"acks": "1"}, 30, "acks"), ({}, 0, "timeout_s=0"), ({}, -1, "timeout_s=-1")],
)
def test_settings_that_cannot_work_are_refused_at_once(options: dict[str, str], timeout_s: float, named: str) -> None:
    with pytest.raises(BadConfiguration, match=named):
        duewheel.connect(NOWHERE, options=options, timeout_s=timeout_s)


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(CallerError, match="closed"):
        client.schedule("t")


def test_a_broker_that_stops_answering_leaves_the_outcome_unknown_and_the_same_id_safe() -> None:
    with DevCluster(FOLDER) as cluster:
        kafka = KafkaConfig(cluster.bootstrap_servers)
        admin = AdminClient(kafka.common())
        admin.create_topics([NewTopic("duewheel.intake", 4, 1)])["duewheel.intake"].result(20)
        with duewheel.connect(cluster.bootstrap_servers, timeout_s=2) as client:
            client.schedule("t", job_id="before")
            cluster.brokers[0].pause()
            with pytest.raises(BrokerUnavailable) as caught:
                client.schedule("t", job_id="during")
            message = str(caught.value)
            assert f"job during was not acknowledged by {cluster.bootstrap_servers} within 2 s" in message
            assert "unknown" in message
            assert "same job_id is safe, but where it replaces (on_conflict), the job may then run once more" in message

            failures: list[JobFailed] = []
            taken = iter(range(10_000_000))
            with pytest.raises(BrokerUnavailable, match=r"0 jobs are durable, \d+ were not acknowledged"):
                client.schedule_many((Job("t", n) for n in taken), on_failure=failures.append)
            read_in_all = next(taken)
            assert len(failures) == read_in_all  # none is forgotten, and reading stopped
            assert read_in_all <= 100_001
            assert all(failure.job.job_id for failure in failures)

            cluster.brokers[0].resume()
            retried = client.schedule_many(failure.job for failure in failures)
            assert retried == (len(failures), 0)
            assert client.schedule("t", job_id="during").partition == partition_of(b"during", 4)


def test_a_producer_beyond_repair_is_replaced(installation: Installation) -> None:
    log = KafkaIntake(installation.kafka, installation.topology.intake, 10)
    log.append(b"a", b"1")
    before = log._single.producer()
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of sequence", fatal=True)
    assert isinstance(log._failure(log._single, before, fatal, b"a"), BrokerUnavailable)
    assert log._single.producer() is not before
    assert log.append(b"a", b"2").offset == 1
    log.close()


# ------------------------------------------------------------------------------------------------------------------ commands


def duewheel_command(installation: Installation, *arguments: str) -> str:
    name, *rest = arguments
    where = ["-b", installation.kafka.bootstrap_servers, "--prefix", installation.topology.prefix]
    result = CliRunner().invoke(cli, [name, *where, *rest])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_schedule_and_cancel_from_the_command_line(installation: Installation) -> None:
    line = json.loads(
        duewheel_command(installation, "schedule", "send_email", '{"a": 1}', "--job-id", "j", "--at", "2030-01-01T00:00:00Z", "--json")
    )
    assert line == {"job_id": "j", "due_ms": 1_893_456_000_000, "partition": partition_of(b"j", 4), "offset": 0}
    text = duewheel_command(installation, "schedule", "send_email", "--job-id", "k", "--at", "2030-01-01T00:00:00.0001Z")
    assert text.startswith("k due 2030-01-01T00:00:00.001Z (")
    lines = duewheel_command(installation, "cancel", "j", "k", "--json").splitlines()
    assert [json.loads(line)["job_id"] for line in lines] == ["j", "k"]
    assert "cancel requested" in duewheel_command(installation, "cancel", "j")
    assert count(installation) == 5


def test_what_encode_writes_is_what_schedule_sends(installation: Installation) -> None:
    job = ["t", "7", "--job-id", "j", "--at", "1893456000000", "--attempts", "2", "--run-timeout", "5s", "--crash-limit", "1"]
    encoded = CliRunner().invoke(cli, ["encode", "schedule", *job]).stdout_bytes
    duewheel_command(installation, "schedule", *job)
    [(_, sent)] = read(installation, [Receipt(partition_of(b"j", 4), 0)])
    one, other = (codec.decode_command(value)[1] for value in (encoded, sent))
    assert {**one, "created_ms": 0} == {**other, "created_ms": 0}


def test_a_broker_that_is_away_makes_the_command_fail_after_its_time() -> None:
    start = time.monotonic()
    result = CliRunner().invoke(cli, ["schedule", "t", "-b", NOWHERE, "--timeout", "1s"])
    assert isinstance(result.exception, BrokerUnavailable)  # main() makes it one line and exit code 3
    assert NOWHERE in str(result.exception)
    assert 0.9 < time.monotonic() - start < 6
