"""`duewheel tail` on a real broker: what is committed is told, in order, from where one asked; nothing else is."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from duewheel.adapters.avro import codec
from duewheel.adapters.history import Historian
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.cli.main import cli
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.core.model import (
    Cancel,
    DeadRun,
    DeadRunClosed,
    Definition,
    Dispatch,
    Failure,
    Outcome,
    Phase,
    Redrive,
    Schedule,
    State,
    Stop,
    Trail,
    Work,
)
from duewheel.core.model import (
    Result as Ended,
)
from duewheel.core.topology import Topology
from tests.conftest import Installation

DEADLINE_S = 20.0
T0_MS = 1_772_366_400_000

Written = tuple[str, bytes | None, bytes | None, int]  # topic, key, value, timestamp


def _create(kafka: KafkaConfig, topic: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient(kafka.common())  # kept until it has answered
    admin.create_topics([NewTopic(topic, 2, 1, config=config or {})])[topic].result(10)


@pytest.fixture
def topology(installation: Installation) -> Topology:
    return installation.topology


def _produce(kafka: KafkaConfig, records: Sequence[Written]) -> None:
    """Writes one after the other, as they would come to be: brokers note when each arrives, in milliseconds, and no two in the same."""
    producer = Producer({**kafka.common(), "linger.ms": 0})
    for topic, key, value, timestamp in records:
        producer.produce(topic, value=value, key=key, timestamp=timestamp)
        assert producer.flush(10) == 0
        arrived_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == arrived_ms:
            pass


def _schedule(job_id: str) -> Schedule:
    work = Work(task="mail.send", content_type="application/json", payload=b"{}", headers={}, policy=None)
    return Schedule(
        job_id=job_id, due_ms=T0_MS, created_ms=T0_MS, on_conflict="IGNORE", retention_ms=1_000, queue="default", limits=None,
        recurrence=None, delivery=None, work=work,
    )  # fmt: skip


def _command(topology: Topology, job_id: str, at_ms: int = T0_MS) -> Written:
    return topology.intake, job_id.encode(), codec.encode_schedule(_schedule(job_id)), at_ms


def _life(topology: Topology, job_id: str) -> list[Written]:
    """All that a job leaves behind which runs, fails and is forgotten, a millisecond apart."""
    key = job_id.encode()
    failure = Failure(type="ValueError", message="no such address", traceback="…")
    work = _schedule(job_id)["work"]
    dispatch = Dispatch(
        token=7, job_id=job_id, generation=1, slot_ms=T0_MS, attempt=1, timer_partition=0, dispatched_ms=T0_MS + 2, terms=None, work=work
    )  # fmt: skip
    outcome = Outcome(
        token=7, job_id=job_id, slot_ms=T0_MS, attempt=1, result="FAILED", started_ms=T0_MS + 2, finished_ms=T0_MS + 3,
        worker="w1", error=failure, retry_after_ms=0, lease_ms=0, output=None,
    )  # fmt: skip

    def state(phase: Phase, error: Failure | None) -> bytes:
        return codec.encode_state(
            State(generation=1, phase=phase, attempt=1, crashes=0, token=7, slot_ms=T0_MS, changed_ms=T0_MS + 4, error=error, trail=None)
        )

    return [
        (topology.intake, key, codec.encode_schedule(_schedule(job_id)), T0_MS),
        (topology.state, b"d" + key, codec.encode_definition(Definition(generation=1, offset=0, schedule=_schedule(job_id))), T0_MS + 1),
        (topology.state, b"s" + key, state(Phase.DISPATCHED, None), T0_MS + 2),
        (topology.dispatch("default"), key, codec.encode_dispatch(dispatch), T0_MS + 2),
        (topology.outcomes, key, codec.encode_outcome(outcome), T0_MS + 3),
        (topology.state, b"s" + key, state(Phase.FAILED, failure), T0_MS + 4),
        (topology.state, b"s" + key, None, T0_MS + 5),
        (topology.state, b"d" + key, None, T0_MS + 5),
    ]


def _tail(kafka: KafkaConfig, topology: Topology, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["tail", "-b", kafka.bootstrap_servers, "--prefix", topology.prefix, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def _told(kafka: KafkaConfig, topology: Topology, *arguments: str) -> list[dict[str, Any]]:
    result = _tail(kafka, topology, "--json", "--until-idle", "500ms", *arguments)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_life_of_a_job_is_told_in_order(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, _life(topology, "welcome-42"))
    told = _told(broker, topology, "--from-beginning")
    assert [entry["event"] for entry in told] == ["schedule", "scheduled", "dispatched", "attempt_failed", "failed", "forgotten"]
    assert {entry["job_id"] for entry in told} == {"welcome-42"}
    assert {(entry["task"], entry["queue"]) for entry in told} == {("mail.send", "default")}
    assert told[2]["late_ms"] == 2
    assert (told[4]["error"], told[4]["message"]) == ("ValueError", "no such address")


def test_the_lines_for_people_say_the_same(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, _life(topology, "welcome-42"))
    lines = _tail(broker, topology, "--from-beginning", "--max-events", "6").stdout.splitlines()
    assert lines[2] == "12:00:00.002  dispatched           welcome-42  mail.send @default  attempt 1  token 7  +2 ms"
    assert "ValueError: no such address" in lines[4]


def _troubles(topology: Topology, job_id: str) -> list[Written]:
    """A job whose second attempt is long, says so, and dies; which is redriven, cancelled and stopped; a millisecond apart."""
    key, work = job_id.encode(), _schedule(job_id)["work"]
    definition = Definition(generation=1, offset=0, schedule=_schedule(job_id))
    failure = Failure(type="OSError", message="away", traceback="…")
    trail = Trail(
        wake_ms=T0_MS + 1_000, lease_ms=0, first_ms=T0_MS, output=None, endings=[], runs=[], queued_ms=0, answers=[], is_quiet=False
    )
    written: list[Written] = []

    def write(topic: str, value: bytes | None, state: bool = False) -> None:
        written.append((topic, b"s" + key if state else key, value, T0_MS + len(written)))

    def dispatch(token: int, attempt: int) -> None:
        record = Dispatch(
            token=token, job_id=job_id, generation=1, slot_ms=T0_MS, attempt=attempt, timer_partition=0, dispatched_ms=T0_MS + token,
            terms=None, work=work,
        )  # fmt: skip
        write(topology.dispatch("default"), codec.encode_dispatch(record))

    def outcome(token: int, attempt: int, result: Ended, **fields: Any) -> None:
        record = Outcome(
            token=token, job_id=job_id, slot_ms=T0_MS, attempt=attempt, result=result, started_ms=T0_MS, finished_ms=T0_MS + 3,
            worker="w1", error=None, retry_after_ms=0, lease_ms=0, output=None,
        )  # fmt: skip
        write(topology.outcomes, codec.encode_outcome(cast(Outcome, {**record, **fields})))

    def state(phase: Phase, token: int, attempt: int) -> State:
        return State(
            generation=1, phase=phase, attempt=attempt, crashes=0, token=token, slot_ms=T0_MS, changed_ms=T0_MS + 4,
            error=failure if phase == Phase.FAILED else None, trail=trail if phase == Phase.WAITING else None,
        )  # fmt: skip

    dispatch(7, 1)
    outcome(7, 1, Ended.RETRY, retry_after_ms=1_000, error=failure)
    write(topology.state, codec.encode_state(state(Phase.WAITING, 7, 1)), state=True)
    dispatch(8, 2)
    outcome(8, 2, Ended.STARTED, lease_ms=30_000)
    write(topology.state, codec.encode_state(state(Phase.RUNNING, 8, 2)), state=True)
    outcome(8, 2, Ended.HEARTBEAT, lease_ms=30_000, output=b'{"done":3}')
    outcome(8, 2, Ended.FAILED, error=failure)
    write(topology.state, codec.encode_state(state(Phase.FAILED, 8, 2)), state=True)
    dead = DeadRun(
        job_id=job_id, token=8, timer_partition=0, died_ms=T0_MS, reason="failed", state=state(Phase.FAILED, 8, 2), definition=definition
    )  # fmt: skip
    write(topology.dead_letter, codec.encode_dead_run(dead))
    write(topology.intake, codec.encode_redrive(Redrive(job_id=job_id, token=8, created_ms=T0_MS)))
    write(topology.dead_letter, codec.encode_dead_run_closed(DeadRunClosed(job_id=job_id, token=8, closed_ms=T0_MS, how="REDRIVEN")))
    dispatch(9, 1)
    write(topology.intake, codec.encode_cancel(Cancel(job_id=job_id, created_ms=T0_MS, reach="DEFAULT")))
    write(topology.state, codec.encode_state(state(Phase.CANCELLING, 9, 1)), state=True)
    write(topology.control, codec.encode_stop(Stop(job_id=job_id, token=9, queue="default")))
    return written


def test_what_goes_wrong_is_told_in_order_and_without_every_heartbeat(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, _troubles(topology, "welcome-42"))
    told = _told(broker, topology, "--from-beginning")
    assert [entry["event"] for entry in told] == [
        "dispatched", "attempt_retry", "waiting", "dispatched", "attempt_started", "attempt_failed", "failed", "dead", "redrive",
        "redriven", "dispatched", "cancel", "cancelling", "stop",
    ]  # fmt: skip
    by_event = {entry["event"]: entry for entry in told}
    assert (by_event["attempt_retry"]["wait_ms"], by_event["waiting"]["wake_ms"]) == (1_000, T0_MS + 1_000)
    assert (by_event["dead"]["reason"], by_event["dead"]["error"], by_event["redriven"]["token"]) == ("failed", "OSError", 8)
    beats = _told(broker, topology, "--from-beginning", "--heartbeats")
    assert len(beats) == len(told) + 1
    assert [(e["lease_ms"], e["output"]) for e in beats if e["event"] == "attempt_heartbeat"] == [(30_000, '{"done":3}')]
    assert len(_told(broker, topology, "--from-beginning", "--event", "attempt_heartbeat")) == 1


def test_what_was_aborted_is_not_told(broker: KafkaConfig, topology: Topology) -> None:
    producer = Producer(broker.transactional(f"{topology.prefix}-test"))
    producer.init_transactions(10)
    for job_id, commit in (("kept", True), ("dropped", False)):
        producer.begin_transaction()
        topic, key, value, _ = _command(topology, job_id)
        producer.produce(topic, value=value, key=key)
        producer.flush(10)
        if commit:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
    assert [entry["job_id"] for entry in _told(broker, topology, "--from-beginning")] == ["kept"]


def test_a_record_that_cannot_be_read_is_told_and_hides_nothing(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, [(topology.intake, None, b"\xc3\x01" + 20 * b"?", T0_MS), _command(topology, "after", T0_MS + 1)])
    told = _told(broker, topology, "--from-beginning")
    # Two partitions, perhaps within one millisecond: then neither comes first.
    assert {(entry["event"], entry["job_id"]) for entry in told} == {("unreadable", None), ("schedule", "after")}
    assert [entry["error"] for entry in told if entry["event"] == "unreadable"] == ["unknown_schema"]


def test_filters_choose(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, [*_life(topology, "a"), *_life(topology, "b")])
    only_a = _told(broker, topology, "--from-beginning", "--job", "a")
    assert {entry["job_id"] for entry in only_a} == {"a"}
    assert len(only_a) == 6
    assert [e["event"] for e in _told(broker, topology, "--from-beginning", "--event", "dispatched")] == ["dispatched", "dispatched"]
    assert len(_told(broker, topology, "--from-beginning", "--queue", "default")) == 12
    assert _told(broker, topology, "--from-beginning", "--queue", "other") == []
    assert len(_told(broker, topology, "--from-beginning", "--max-events", "5")) == 5


def test_since_begins_in_the_past(broker: KafkaConfig) -> None:
    topology = Topology(f"tail-{uuid.uuid4().hex[:12]}")
    # With the producer's times, so that a record can be an hour old.
    _create(broker, topology.intake, config={"message.timestamp.type": "CreateTime"})
    now_ms = time.time_ns() // 1_000_000
    _produce(broker, [_command(topology, "old", now_ms - 3_600_000)])
    _produce(broker, [_command(topology, "recent", now_ms - 60_000)])
    assert [entry["job_id"] for entry in _told(broker, topology, "--since", "10m")] == ["recent"]


def _next(follower: Follower, historian: Historian) -> tuple[str, str | None]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for record in follower.poll(0.1, 1):
            entry = historian.entry(record)
            assert entry is not None
            return entry.event, entry.job_id
    raise AssertionError("nothing came")


def test_by_default_it_begins_now_and_notices_topics_made_later(broker: KafkaConfig, topology: Topology) -> None:
    _produce(broker, [_command(topology, "before")])
    historian = Historian(topology)
    follower = Follower(broker, historian.reads, None, DEADLINE_S)
    try:
        assert set(follower.ended()) == follower.partitions
        _produce(broker, [_command(topology, "after")])
        assert _next(follower, historian) == ("schedule", "after")
        later = topology.dispatch("later")
        _create(broker, later)
        dispatch = next(value for topic, _, value, _ in _life(topology, "new") if topic == topology.dispatch("default"))
        _produce(broker, [(later, b"new", dispatch, T0_MS)])
        assert _next(follower, historian) == ("dispatched", "new")
    finally:
        follower.close()


def test_ctrl_c_is_a_good_end(broker: KafkaConfig, topology: Topology) -> None:
    command = [sys.executable, "-m", "duewheel.cli.main", "tail", "-b", broker.bootstrap_servers, "--prefix", topology.prefix, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert "follower.assigned" in process.stderr.readline()
            _produce(broker, [_command(topology, "a")])
            assert json.loads(process.stdout.readline())["job_id"] == "a"
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_an_installation_without_topics_is_said_to_have_none(broker: KafkaConfig) -> None:
    with pytest.raises(TopicMissing, match="duewheel topics apply"):
        _tail(broker, Topology(f"none-{uuid.uuid4().hex[:12]}"))


def test_a_broker_that_is_away_is_named_after_the_time_that_was_given() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=address):
            _tail(KafkaConfig(address), Topology(), "--timeout", "1s")
        assert time.monotonic() - began < 10
