"""The client over a log in memory: what is sent, what is not, and what the caller is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import pytest

from duewheel.adapters.avro import codec
from duewheel.client import Client, Job, JobFailed, JobHandle, Scheduled
from duewheel.core.errors import BrokerUnavailable, EnvironmentFailure, Reason, RejectedJob, TopicMissing
from duewheel.core.limits import PAYLOAD_BYTES_MAX
from duewheel.core.model import State
from duewheel.core.retry import RetryPolicy
from duewheel.core.step import Defined, Step
from duewheel.ports import Receipt

NOW_MS = 1_900_000_000_000


class Log:
    """Keeps what it is given; fails the records whose keys are in `failing`."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.failing: dict[bytes, EnvironmentFailure] = {}
        self.closed = 0

    def append(self, key: bytes, value: bytes) -> Receipt:
        if key in self.failing:
            raise self.failing[key]
        self.records.append((key, value))
        return Receipt(3, len(self.records) - 1)

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        try:
            for tag, key, value in records:
                if key in self.failing:
                    failed(tag, self.failing[key])
                    return
                self.records.append((key, value))
        finally:
            progressed(len(self.records))

    def close(self) -> None:
        self.closed += 1


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return 0


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(log: Log, clock: Clock) -> Client:
    encoders = (codec.encode_schedule, codec.encode_cancel, codec.encode_redrive, codec.encode_drop, codec.encode_change)
    return Client(log, clock, *encoders, lambda now_ms: f"made-{now_ms}")


def test_schedule_sends_the_command_under_its_id_and_says_where_it_lies(client: Client, log: Log) -> None:
    handle = client.schedule("send_email", {"to": "ada"}, delay=10, job_id="welcome", headers={"trace": "7"})
    assert handle == JobHandle("welcome", NOW_MS + 10_001, 3, 0)
    [(key, value)] = log.records
    kind, command = codec.decode_command(value)[:2]
    assert (key, kind, command["job_id"]) == (b"welcome", "schedule", "welcome")
    assert handle == eval(repr(handle))


class Partition:
    """What was committed of a partition."""

    def __init__(self) -> None:
        self.definitions: dict[str, Defined | None] = {}
        self.states: dict[str, State | None] = {}

    def defined(self, job_id: str) -> Defined | None:
        return self.definitions.get(job_id)

    def state(self, job_id: str) -> State | None:
        return self.states.get(job_id)


@pytest.mark.parametrize("on_conflict, runs", [("ignore", 1), ("replace", 2)])
def test_a_call_repeated_after_an_unknown_outcome_runs_the_job_again_only_if_it_replaces(
    client: Client, log: Log, clock: Clock, on_conflict: Literal["ignore", "replace"], runs: int
) -> None:
    for _ in range(2):
        client.schedule("t", at=NOW_MS, job_id="j", on_conflict=on_conflict)
        clock.now_ms += 30_000
    partition, dispatches = Partition(), 0
    for _, value in log.records:
        decoded = codec.decode_command(value)
        assert decoded[0] == "schedule"
        step = Step(partition, 0, dispatches, clock.now_ms)
        step.schedule(decoded[1], decoded[2], value)
        step.fire([])
        partition.definitions |= step.definitions
        partition.states |= step.states
        dispatches += len(step.dispatches)
    assert dispatches == runs


def test_an_id_is_made_where_none_is_given(client: Client, log: Log) -> None:
    assert client.schedule("t").job_id == f"made-{NOW_MS}"
    assert log.records[0][0] == f"made-{NOW_MS}".encode()


def test_cancel_sends_the_command_under_the_id(client: Client, log: Log) -> None:
    for number, (reach, symbol) in enumerate(((None, "DEFAULT"), ("job", "JOB"), ("running", "RUNNING"))):
        assert client.cancel("jöb", reach=reach) == Receipt(3, number)  # type: ignore[arg-type]
        key, value = log.records[-1]
        assert (key, codec.decode_command(value)[:2]) == (
            "jöb".encode(),
            ("cancel", {"job_id": "jöb", "created_ms": NOW_MS, "reach": symbol}),
        )


@pytest.mark.parametrize("word", ["redrive", "drop"])
def test_redrive_and_drop_send_the_command_under_the_id(client: Client, log: Log, word: str) -> None:
    assert getattr(client, word)("jöb", 7) == Receipt(3, 0)
    [(key, value)] = log.records
    command = {"job_id": "jöb", "token": 7, "created_ms": NOW_MS}
    assert (key, codec.decode_command(value)[:2]) == ("jöb".encode(), (word, command))


@pytest.mark.parametrize("word", ["redrive", "drop"])
def test_many_dead_runs_are_told_in_their_order(client: Client, log: Log, word: str) -> None:
    progress: list[int] = []
    assert getattr(client, f"{word}_many")(((f"j{n}", n + 1) for n in range(100)), on_progress=progress.append) == 100
    told = [(key.decode(), *codec.decode_command(value)[:2]) for key, value in log.records]
    assert told == [(f"j{n}", word, {"job_id": f"j{n}", "token": n + 1, "created_ms": NOW_MS}) for n in range(100)]
    assert progress[-1] == 100


def test_the_first_dead_run_that_cannot_be_ends_it(client: Client, log: Log) -> None:
    with pytest.raises(
        RejectedJob, match=r"redrive number 1 was rejected: .*nor was any redrive after it; 1 redrives are durable"
    ) as caught:
        client.redrive_many([("a", 1), ("b", 0), ("c", 3)])
    assert caught.value.reason == Reason.BAD_TOKEN
    assert [key for key, _ in log.records] == [b"a"]


def test_a_broker_that_is_away_ends_it_for_dead_runs_too(client: Client, log: Log) -> None:
    log.failing[b"b"] = BrokerUnavailable("127.0.0.1:1 is away")
    with pytest.raises(BrokerUnavailable, match=r"No further drop was sent; 1 drops are durable, 1 were not acknowledged"):
        client.drop_many([("a", 1), ("b", 2), ("c", 3)])


def test_limits_and_a_policy_travel_with_a_job_scheduled_alone_or_among_many(client: Client, log: Log) -> None:
    retry = RetryPolicy.fixed(5, attempts=3, retry_on=[OSError])
    said: dict[str, Any] = {"expires_at": NOW_MS + 9, "retry": retry, "timeout": 2, "total_timeout": 60, "crash_limit": 1}
    client.schedule("t", job_id="j", **said)
    client.schedule_many([Job("t", job_id="j", **said)])
    commands = [codec.decode_command(value)[1] for _, value in log.records]
    assert commands[0] == commands[1]
    assert commands[0].get("limits") == {"expires_ms": NOW_MS + 9, "total_timeout_ms": 60_000, "crashes_max": 1}
    work: Any = commands[0].get("work")
    assert work["policy"] == retry.to_record(2_000)


def test_schedule_says_all_that_a_job_can_say() -> None:
    assert list(inspect.signature(Client.schedule).parameters)[1:] == list(Job._fields)


def test_W11_payload_over_the_limit_sends_nothing(client: Client, log: Log) -> None:
    with pytest.raises(RejectedJob, match=r"1.?000.?001.*1.?000.?000"):
        client.schedule("t", bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(RejectedJob, match=r"1.?000.?001.*1.?000.?000"):
        client.schedule_many([Job("t", bytes(PAYLOAD_BYTES_MAX + 1))])
    assert log.records == []
    client.schedule("t", bytes(PAYLOAD_BYTES_MAX))
    assert len(log.records) == 1


def test_T4_seconds_as_milliseconds_send_nothing(client: Client, log: Log) -> None:
    with pytest.raises(RejectedJob) as caught:
        client.schedule("t", at=1_893_456_000)
    assert caught.value.reason == Reason.DUE_TOO_EARLY
    with pytest.raises(RejectedJob) as caught:
        client.schedule("t", delay=2**63 - 1)
    assert caught.value.reason == Reason.DUE_TOO_LATE
    assert log.records == []


def test_closing_closes_the_log(client: Client, log: Log) -> None:
    with client as same:
        assert same is client
    assert log.closed == 1


# ------------------------------------------------------------------------------------------------------------------ schedule_many


def test_many_jobs_are_sent_in_their_order(client: Client, log: Log) -> None:
    progress: list[int] = []
    jobs = (Job("t", n, job_id=f"j{n}") for n in range(100))
    assert client.schedule_many(jobs, on_progress=progress.append) == Scheduled(100, 0)
    assert [key for key, _ in log.records] == [b"j%d" % n for n in range(100)]
    assert progress[-1] == 100


def test_the_first_job_that_breaks_a_rule_ends_it(client: Client, log: Log) -> None:
    with pytest.raises(RejectedJob, match=r"job number 2 .*2 jobs are durable") as caught:
        client.schedule_many([Job("a"), Job("b"), Job(""), Job("d")])
    assert caught.value.reason == Reason.BAD_TASK
    assert len(log.records) == 2


def test_with_on_failure_the_others_go_on(client: Client, log: Log) -> None:
    failures: list[JobFailed] = []
    jobs = [Job("a"), Job(""), Job("c"), Job("d", at=5)]
    assert client.schedule_many(jobs, on_failure=failures.append) == Scheduled(2, 2)
    assert [(failure.position, failure.job) for failure in failures] == [(1, jobs[1]), (3, jobs[3])]
    assert [error.reason for error in (failure.error for failure in failures) if isinstance(error, RejectedJob)] == [
        Reason.BAD_TASK,
        Reason.DUE_TOO_EARLY,
    ]
    assert len(log.records) == 2


def test_a_broker_that_is_away_ends_it_and_names_what_is_unknown(client: Client, log: Log) -> None:
    log.failing[f"made-{NOW_MS}".encode()] = BrokerUnavailable("127.0.0.1:1 is away")
    failures: list[JobFailed] = []
    taken: list[int] = []

    def jobs() -> Iterator[Job]:
        for n, job_id in enumerate(["a", "b", None, "d"]):
            taken.append(n)
            yield Job("t", job_id=job_id)

    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 is away.*2 jobs are durable, 1 were not acknowledged"):
        client.schedule_many(jobs(), on_failure=failures.append)
    assert taken == [0, 1, 2]
    [failure] = failures
    assert (failure.position, failure.job.job_id) == (2, f"made-{NOW_MS}")  # with its id, so that the same job can be sent again


def test_a_missing_topic_keeps_its_type(client: Client, log: Log) -> None:
    log.failing[b"a"] = TopicMissing("no topic")
    with pytest.raises(TopicMissing):
        client.schedule_many([Job("t", job_id="a")])


def test_an_error_of_the_iterable_comes_through(client: Client, log: Log) -> None:
    def jobs() -> Iterator[Job]:
        yield Job("t")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.schedule_many(jobs())
    assert len(log.records) == 1
