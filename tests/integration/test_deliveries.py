"""Records that are delivered to a topic, as consumers see them who read only what is committed: by processors of which one is killed, and
beside others that the topic refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

import duewheel
from duewheel import Delivery, JobUnknown
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.model import Phase
from duewheel.core.step import Reason
from duewheel.core.topology import keyed_partition
from duewheel.devbroker.runfolder import RunFolder
from duewheel.engine import lanes
from duewheel.fleet import Fleet
from tests.conftest import Installation
from tests.integration.desk import Desk, now_ms, raw_schedule

RECORDS: Final = 2_000
TICKS: Final = 3
PARTITIONS: Final = 3
END_S: Final = 30.0
# As long as a killed processor is waited for; our own broker allows this little, others six seconds.
SESSION_MS: Final = 6_000 if os.environ.get("DUEWHEEL_TEST_BOOTSTRAP_SERVERS") else 1_500
# They come due while the processor is killed: so many in each millisecond, from a moment after the last one was accepted.
A_MILLISECOND: Final = 2

MakeTopic = Callable[..., str]


class Witness:
    """Reads a topic from its beginning, only what is committed, with a client of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "witness", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self.seen: list[Any] = []

    def look(self) -> int:
        """How many records were seen so far."""
        self.seen += self._consumer.consume(5_000, 0.05)
        return len(self.seen)

    def by_job(self) -> dict[str, Any]:
        """The records that were seen, each of a job of its own."""
        found = {dict(record.headers())["duewheel-job-id"].decode(): record for record in self.seen}
        assert len(found) == len(self.seen), "a job was delivered twice"
        return found

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def make_topic(installation: Installation) -> Iterator[MakeTopic]:
    admin, made = AdminClient({"bootstrap.servers": installation.kafka.bootstrap_servers}), []

    def make(name: str, **config: str) -> str:
        topic = f"out.{name}.{installation.topology.prefix}"
        admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(10)
        made.append(topic)
        return topic

    yield make
    for gone in admin.delete_topics(made, operation_timeout=0).values():
        gone.result(10)


def test_each_record_is_there_once_and_none_early_although_a_processor_is_killed(desk: Desk, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic, prefix = make_topic("all"), desk.topology.prefix
    options = {"session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": "300"}
    kafka = KafkaConfig(desk.kafka.bootstrap_servers, options)
    witness = Witness(kafka.bootstrap_servers, topic)
    with RunFolder.take(tmp_path, "run") as run, Fleet(kafka, desk.topology, run) as fleet:
        victim = fleet.start_processor("victim", "--deliver-to", "out.*")
        with duewheel.connect(kafka.bootstrap_servers, prefix=prefix) as client:
            refused = client.deliver("elsewhere", b"v")
            fleet.await_that(lambda: victim.logged("processor.active"), END_S, "the one to be killed is active")
            with pytest.raises(JobUnknown, match="was refused"):
                refused.wait(END_S)
            first_ms = now_ms() + 400
            due_ms = {f"d-{n}": first_ms + n // A_MILLISECOND for n in range(RECORDS)}
            client.schedule_many(
                Delivery(topic, job_id, key=b"k-" + job_id.encode(), headers={"id": job_id}, at=at_ms, job_id=job_id)
                for job_id, at_ms in due_ms.items()
            )
            client.deliver(topic, None, key="k", job_id="tombstone", at=first_ms)
            client.deliver(topic, b"tick", key="t", job_id="ticks", at=first_ms, every=1, max_runs=TICKS, overlap="allow")
            due_ms |= {"tombstone": first_ms} | {f"ticks@{first_ms + n * 1_000}": first_ms + n * 1_000 for n in range(TICKS)}
        fleet.await_that(lambda: witness.look() > RECORDS // 4, END_S, "some were delivered")
        victim.kill()
        assert witness.look() < RECORDS
        successor = desk.processor("successor", kafka=kafka, deliver_to=["out.*"])
        desk.drive(successor, until=lambda: witness.look() >= len(due_ms))
        desk.drive_for(successor, seconds=0.1)
        desk.leave(successor)
        witness.look()
    witness.close()
    found = witness.by_job()
    assert found.keys() == due_ms.keys()
    assert (found["tombstone"].key(), found["tombstone"].value()) == (b"k", None)
    for job_id, record in found.items():
        headers = dict(record.headers())
        assert headers["duewheel-slot-ms"] == b"%d" % due_ms[job_id]
        assert record.partition() == keyed_partition(record.key(), PARTITIONS)
        assert record.timestamp()[1] >= due_ms[job_id]
        if job_id.startswith("d-"):
            assert (record.key(), record.value(), headers["id"]) == (b"k-" + job_id.encode(), job_id.encode(), job_id.encode())
    assert {found[job_id].value() for job_id in found if job_id.startswith("ticks@")} == {b"tick"}


def test_what_a_topic_refuses_holds_up_nobody_and_dies_with_what_the_broker_said(
    desk: Desk, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "PARKED_MS", 100)  # else they rest for 35 s altogether
    monkeypatch.setattr(lanes, "ROUNDS_MAX", 2)
    topic = make_topic("picky", **{"max.message.bytes": "2000", "cleanup.policy": "compact"})
    processor = desk.active(deliver_to=["out.*"])
    witness = Witness(desk.kafka.bootstrap_servers, topic)
    good: dict[str, Any] = {f"good-{n}": (b"k%d" % n, b"x" * 100) for n in range(24)}
    records = [*list(good.items())[:12], ("large", (b"k", os.urandom(5_000))), ("keyless", (None, b"v")), *list(good.items())[12:]]
    due_ms = now_ms() + 300
    with capture_logs() as logs:
        desk.publish(
            raw_schedule(job_id, due_ms, payload=value, delivery={"topic": topic, "key": key, "tombstone": False})
            for job_id, (key, value) in records
        )
        desk.drive(processor, until=lambda: witness.look() >= len(good))
        desk.drive(processor, until=lambda: len(desk.dead_runs()) == 2)
    witness.close()
    assert witness.by_job().keys() == good.keys()
    deaths = {death["job_id"]: death for death in desk.dead_runs()}
    assert {death["reason"] for death in deaths.values()} == {Reason.REFUSED}
    for job_id, said in (("large", "size too large"), ("keyless", "validate record")):
        error = deaths[job_id]["state"]["error"]
        assert error is not None
        assert said in error["message"].lower()
    assert {line["job_id"] for line in logs if line["event"] == "processor.queue_doubted"} == {"large", "keyless"}
    assert desk.phases()["good-0"] == Phase.SUCCEEDED
    desk.leave(processor)
    desk.check_stores("a")
