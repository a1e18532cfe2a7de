"""Waiting for jobs over a state topic in memory: what ends a wait, how often the log is read, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from duewheel.adapters.avro import codec
from duewheel.client import Client, JobDidNotSucceed, JobHandle, JobReplaced, JobResult, JobUnknown, reading, results
from duewheel.client.commands import Job, schedule_command
from duewheel.client.reading import MARGIN_MS, ChangeRefused, Decision, Early, JobConflict, JobStatus, Reading, Sought, Waiter, mark
from duewheel.client.results import Results
from duewheel.core.errors import BrokerUnavailable, CallerError, RejectedJob, TopicMissing, UndecodableRecord
from duewheel.core.model import Phase, Schedule, State, Trail
from duewheel.ports import Found

NOW_MS = 1_900_000_000_000
SOON_S = 10


class Written(NamedTuple):
    """A record of the state topic."""

    number: int
    at: int
    named: bytes
    said: bytes | None
    written_ms: int

    def topic(self) -> str:
        return "state"

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return self.named

    def value(self) -> bytes | None:
        return self.said

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, self.written_ms


def command(job_id: str = "a", payload: object = 1, at_ms: int = NOW_MS, **more: Any) -> Schedule:
    return schedule_command(Job("t", payload, job_id=job_id, **more), at_ms, str)


def state(phase: str, generation: int = 1, attempt: int = 1, output: bytes | None = None, error: str | None = None) -> State:
    trail: Trail | None = None
    if output is not None:
        trail = {
            "wake_ms": 0,
            "lease_ms": 0,
            "first_ms": 0,
            "output": output,
            "endings": [],
            "runs": [],
            "queued_ms": 0,
            "answers": [],
            "is_quiet": False,
        }
    return {
        "generation": generation,
        "phase": phase,
        "attempt": attempt,
        "crashes": 0,
        "token": 7,
        "slot_ms": NOW_MS,
        "changed_ms": NOW_MS + 5,
        "error": None if error is None else {"type": "ValueError", "message": error, "traceback": ""},
        "trail": trail,
    }


class Log:
    """What the owners of two partitions wrote, as a broker keeps it."""

    def __init__(self) -> None:
        self.records: dict[int, list[Written]] = {0: [], 1: []}
        self.ends = {0: 0, 1: 0}
        self.now_ms = NOW_MS
        self.changed = threading.Condition()

    def transaction(self, *said: tuple[str, str, Any], taken: int, partition: int = 0) -> None:
        """Writes (kind, job id, Schedule with its generation or State or None), then the owner's progress; a marker takes an offset too.

        What is defined was asked for by the last command that is taken in.
        """
        with self.changed:
            for kind, job_id, what in said:
                value: bytes | None
                if what is None:
                    value = None
                elif kind == "d":
                    value = codec.encode_definition({"generation": what[0], "offset": taken - 1, "schedule": what[1]})
                else:
                    value = codec.encode_state(what)
                self._write(partition, kind.encode() + job_id.encode(), value)
            progress = codec.encode_progress({"token": 1, "intake_offset": taken, "outcomes_offset": 0})
            self._write(partition, b"p", progress)
            self.ends[partition] += 1
            self.changed.notify_all()

    def raw(self, key: bytes, value: bytes | None, partition: int = 0) -> None:
        with self.changed:
            self._write(partition, key, value)
            self.changed.notify_all()

    def compact(self) -> None:
        for number, records in self.records.items():
            newest = {record.named: record for record in records}
            self.records[number] = [record for record in records if newest[record.named] is record]

    def _write(self, partition: int, key: bytes, value: bytes | None) -> None:
        self.records[partition].append(Written(partition, self.ends[partition], key, value, self.now_ms))
        self.ends[partition] += 1


class Readers:
    """Makes readers of a log, and counts what they do."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.opened = 0
        self.closed = 0
        self.found: list[tuple[int, int]] = []
        self.read = 0
        self.failure: Exception | None = None
        self.behind = 0  # how many records a time's offset lies behind where it should: clocks that differ
        self.assigned: dict[int, int] = {}

    def open(self) -> Reader:
        self.opened += 1
        return Reader(self)


class Reader:
    """A `StateLog`."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._log = readers.log
        self._positions: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        readers.assigned = self._positions

    def partition_of(self, key: bytes) -> int:
        self._fail()
        return 1 if key.startswith(b"other") else 0

    def find(self, partition: int, since_ms: int) -> Found:
        self._fail()
        self._readers.found.append((partition, since_ms))
        offsets = [r.at for r in self._log.records[partition] if r.written_ms >= since_ms]
        end = self._log.ends[partition]
        offset = min(end, (offsets[0] if offsets else end) + (self._readers.behind if since_ms else 0))
        return Found(offset, since_ms if offset else 0, end)

    def assign(self, partition: int, offset: int) -> None:
        self._positions[partition], self._reached[partition] = offset, -1

    def release(self, partition: int) -> None:
        del self._positions[partition]

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        self._fail()
        with self._log.changed:
            if not self._next(1):
                self._log.changed.wait(timeout_s)
            found = self._next(count_max)
        for record in found:
            self._positions[record.number] = record.at + 1
        for partition, position in self._positions.items():
            ended = not any(r.at >= position for r in self._log.records[partition])
            self._reached[partition] = self._log.ends[partition] if ended else position
        self._readers.read += len(found)
        return found

    def reached(self, partition: int) -> int:
        return self._reached[partition]

    def close(self) -> None:
        self._readers.closed += 1

    def _next(self, count_max: int) -> list[Written]:
        found = [r for p, position in self._positions.items() for r in self._log.records[p] if r.at >= position]
        return found[:count_max]

    def _fail(self) -> None:
        if self._readers.failure is not None:
            raise self._readers.failure


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return NOW_MS

    def steady_ms(self) -> int:
        return self.now_ms


class Desk:
    """A producer's side."""

    def __init__(self) -> None:
        self.log = Log()
        self.readers = Readers(self.log)
        self.clock = Clock()
        self.results = Results(self.readers.open, codec, self.clock)

    def future(self, asked: Schedule | str, offset: int = 0, partition: int = 0) -> Future[JobResult]:
        return self.results.future(sought(asked, offset, partition))

    def wait(self, asked: Schedule | str, offset: int = 0, timeout: float = SOON_S, partition: int = 0) -> JobResult:
        return self.results.wait(sought(asked, offset, partition), timeout)

    def await_that(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SOON_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)


def sought(asked: Schedule | str, offset: int = 0, partition: int = 0) -> Sought:
    if isinstance(asked, str):
        return Sought(asked)
    return Sought(asked["job_id"], partition, offset, asked["created_ms"], mark(codec.encode_schedule(asked)), asked["on_conflict"])


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.results.close()
    desk.await_that(lambda: not [t for t in threading.enumerate() if t.name == "duewheel-results"])
    assert desk.readers.opened == desk.readers.closed


# --- what ends a wait ---


def test_a_job_that_ends_ends_the_wait_with_all_there_is_to_say(desk: Desk) -> None:
    asked = command()
    future = desk.future(asked)
    desk.log.transaction(("d", "a", (1, asked)), ("s", "a", state("DISPATCHED")), taken=1)
    desk.log.transaction(("s", "a", state("RUNNING", output=b"0.5")), taken=1)
    desk.log.transaction(("s", "b", state("SUCCEEDED")), taken=1)
    desk.log.transaction(("s", "a", state("WAITING", error="once")), taken=1)
    desk.await_that(lambda: desk.readers.read == 9)
    assert not future.done()
    desk.log.transaction(("s", "a", state("SUCCEEDED", attempt=2, output=b'{"x":[1,2]}')), taken=1)
    result = future.result(SOON_S)
    assert result == JobResult("a", Phase.SUCCEEDED, 2, 0, None, (), NOW_MS + 5, 1, 7, b'{"x":[1,2]}')
    assert (result.value, result.succeeded) == ({"x": [1, 2]}, True)


def test_a_result_that_was_not_kept_is_none(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED")), taken=1)
    assert desk.wait(command()).value is None


@pytest.mark.parametrize("phase", ["FAILED", "DISCARDED", "EXPIRED", "CANCELLED"])
def test_a_job_that_did_not_succeed_ends_the_wait_and_has_no_value(desk: Desk, phase: str) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state(phase, attempt=3, error="boom")), taken=1)
    result = desk.wait(command())
    assert (result.phase, result.succeeded) == (phase, False)
    with pytest.raises(JobDidNotSucceed, match=f"job a ended as {phase} at attempt 3: ValueError: boom") as raised:
        _ = result.value
    assert raised.value.result is result


@pytest.mark.parametrize("phase", ["WAITING", "DISPATCHED", "RUNNING", "CANCELLING"])
def test_a_job_that_goes_on_is_waited_for(desk: Desk, phase: str) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state(phase, attempt=4)), taken=1)
    with pytest.raises(TimeoutError, match=rf"^job a had not ended after 0.1 s: it is {phase}, attempt 4$"):
        desk.results.wait(sought(command()), timedelta(milliseconds=100))


def test_a_timeout_says_where_the_job_stands(desk: Desk) -> None:
    with pytest.raises(TimeoutError, match="its command has not been taken in; does a timer processor run"):
        desk.wait(command(), timeout=0.1)
    desk.log.transaction(("d", "a", (1, command())), taken=1)
    with pytest.raises(TimeoutError, match="it waits for its time"):
        desk.wait(command(), timeout=0.1)
    with pytest.raises(TimeoutError, match="nothing is known of it"):
        desk.wait("b", timeout=0.1)
    assert all(each.is_idle for each in desk.results._readings.values())


def test_a_definition_that_follows_ends_the_wait(desk: Desk) -> None:
    asked, again = command(), command(payload=2, on_conflict="replace")
    desk.log.transaction(("d", "a", (1, asked)), ("s", "a", state("RUNNING")), taken=1)
    future = desk.future(asked)
    desk.log.transaction(("d", "a", (2, again)), taken=2)
    with pytest.raises(JobReplaced, match="job a was defined anew, as generation 2"):
        future.result(SOON_S)
    desk.log.transaction(("s", "a", state("SUCCEEDED", generation=2)), taken=2)
    assert desk.wait(again, offset=1).generation == 2
    with pytest.raises(JobReplaced):
        desk.wait(asked)


def test_the_end_of_an_older_generation_is_not_that_of_the_newest(desk: Desk) -> None:
    again = command(payload=2, on_conflict="replace")
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("RUNNING")), taken=1)
    desk.log.transaction(("d", "a", (2, again)), taken=2)
    desk.log.transaction(("s", "a", state("SUCCEEDED", generation=1)), taken=2)
    future = desk.future(again, offset=1)
    desk.await_that(lambda: desk.readers.read == 7)
    assert not future.done()
    desk.log.transaction(("s", "a", state("FAILED", generation=2)), taken=2)
    assert future.result(SOON_S).phase == "FAILED"


@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
def test_a_command_replaced_within_the_batch_that_took_it_in_is_replaced(desk: Desk, on_conflict: str) -> None:
    asked, again = command(on_conflict=on_conflict), command(payload=2, on_conflict="replace")
    future = desk.future(asked)
    desk.log.transaction(("d", "a", (2, again)), ("s", "a", state("SUCCEEDED", generation=2)), taken=2)
    with pytest.raises(JobReplaced):
        future.result(SOON_S)


def test_a_job_that_was_redriven_is_waited_for_again(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("FAILED")), taken=1)
    assert desk.wait(command()).phase == "FAILED"
    desk.log.transaction(("s", "a", state("DISPATCHED")), taken=2)
    desk.await_that(lambda: desk.readers.read == 5)
    future = desk.future(command())
    assert not future.done()
    desk.log.transaction(("s", "a", state("SUCCEEDED")), taken=2)
    assert future.result(SOON_S).succeeded


# --- commands that defined nothing ---


def test_an_id_that_was_known_stands_for_the_job_that_is_known_however_long_ago_it_ended(desk: Desk) -> None:
    desk.log.now_ms = NOW_MS - 1_000_000
    first = command(at_ms=NOW_MS - 1_000_000)
    desk.log.transaction(("d", "a", (1, first)), ("s", "a", state("RUNNING")), taken=1)
    desk.log.transaction(("s", "a", state("SUCCEEDED", output=b"42")), taken=1)
    desk.log.compact()
    desk.log.now_ms = NOW_MS
    desk.log.transaction(("d", "b", (1, command("b"))), taken=2)
    desk.log.transaction(taken=3)
    assert desk.wait(command(payload=2), offset=2).value == 42
    assert desk.readers.found == [(0, NOW_MS - MARGIN_MS), (0, 0)]


def test_an_id_that_is_known_and_waits_stands_for_that_job_and_not_for_one_defined_later(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), taken=1)
    future = desk.future(command(payload=2), offset=1)
    desk.log.transaction(taken=2)
    desk.await_that(lambda: desk.readers.read == 3)
    assert not future.done()
    desk.log.transaction(("d", "a", (2, command(payload=3, on_conflict="replace"))), taken=3)
    with pytest.raises(JobReplaced):
        future.result(SOON_S)


def test_a_command_taken_in_before_reading_began_is_found_further_back(desk: Desk) -> None:
    """Two machines' clocks differ by more than the margin, and the owner has nothing to do since."""
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED", output=b"1")), taken=1)
    desk.readers.behind = 99
    assert desk.wait(command()).value == 1
    assert desk.readers.found == [(0, NOW_MS - MARGIN_MS), (0, 0)]


def test_a_refused_command_and_a_forgotten_job_end_the_wait(desk: Desk) -> None:
    desk.log.transaction(taken=5)
    with pytest.raises(JobUnknown, match="nothing is known of job a: its command was refused"):
        desk.wait(command(), offset=4)
    desk.log.transaction(("d", "b", (1, command("b"))), ("s", "b", state("SUCCEEDED")), taken=6)
    desk.log.transaction(("d", "b", None), ("s", "b", None), taken=6)
    desk.log.compact()
    with pytest.raises(JobUnknown, match="job b was forgotten"):
        desk.wait(command("b"), offset=5)


def test_a_command_that_is_to_be_rejected_where_its_id_is_known_says_so(desk: Desk) -> None:
    first, second = command(on_conflict="reject"), command(payload=2, on_conflict="reject")
    desk.log.transaction(("d", "a", (1, first)), ("s", "a", state("RUNNING")), taken=1)
    future = desk.future(second, offset=1)
    desk.log.transaction(taken=2)
    with pytest.raises(JobConflict, match="job a was known already, so this one was rejected"):
        future.result(SOON_S)
    desk.log.transaction(("s", "a", state("SUCCEEDED")), taken=2)
    assert desk.wait(first).succeeded
    assert desk.wait(first, offset=1).succeeded, "the very same command once more: no conflict with itself"


@pytest.mark.parametrize(
    "on_conflict, decision", [("ignore", Decision.IGNORED), ("reject", Decision.REJECTED), ("replace", Decision.REPLACED)]
)
def test_what_was_decided_about_a_command_is_known_before_the_job_ends(desk: Desk, on_conflict: str, decision: Decision) -> None:
    first, second = command(), command(payload=2, on_conflict=on_conflict)
    with pytest.raises(TimeoutError, match=r"job a was not decided about after 0.05 s: its command has not been taken in"):
        desk.results.decision(sought(first), 0.05)
    desk.log.transaction(("d", "a", (1, first)), taken=1)
    assert desk.results.decision(sought(first), SOON_S) is Decision.CREATED
    defines = [("d", "a", (2, second))] if on_conflict == "replace" else []
    desk.log.transaction(*defines, taken=2)
    assert desk.results.decision(sought(second, 1), SOON_S) is decision
    if on_conflict == "replace":
        with pytest.raises(JobReplaced):
            desk.results.decision(sought(first), SOON_S)


def asked_to_change(desk: Desk, job_id: str = "a", offset: int = 1) -> JobStatus:
    return desk.results.status(Sought(job_id, 0, offset, NOW_MS), SOON_S)


def answering(phase: str, offset: int, reason: str = "", **fields: Any) -> State:
    answered = state(phase, **fields)
    trail: Any = {"wake_ms": 7, "lease_ms": 0, "first_ms": 0, "output": None, "endings": [], "runs": [], "queued_ms": 0, "is_quiet": False}
    trail["answers"] = [{"offset": offset, "taken_ms": NOW_MS, "reason": reason, "message": f"it is {reason}"}]
    return {**answered, "trail": trail}


def test_how_a_job_stands_after_a_change_is_told_by_its_state(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), taken=1)
    with pytest.raises(TimeoutError, match=r"job a had not been changed after 0.05 s: "):
        desk.results.status(Sought("a", 0, 1, NOW_MS), 0.05)
    desk.log.transaction(("s", "a", answering("PAUSED", 1)), taken=2)
    status = asked_to_change(desk)
    assert (status.phase, status.generation, status.wake_ms) == ("PAUSED", 1, 7)


@pytest.mark.parametrize("reason", ["running", "over", "bad_limits"])
def test_a_change_that_was_refused_says_why(desk: Desk, reason: str) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", answering("RUNNING", 1, reason)), taken=2)
    with pytest.raises(ChangeRefused, match=f"it is {reason}") as refusal:
        asked_to_change(desk)
    assert refusal.value.reason == reason


def test_each_change_has_its_own_answer_however_many_there_were_at_once(desk: Desk) -> None:
    answered = answering("WAITING", 1, "bad_limits")
    assert answered["trail"] is not None
    for offset, reason in ((2, ""), (3, "unknown")):
        answered["trail"]["answers"].append({"offset": offset, "taken_ms": NOW_MS, "reason": reason, "message": f"it is {reason}"})
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", answered), taken=4)
    with pytest.raises(ChangeRefused, match="it is bad_limits"):
        asked_to_change(desk)
    assert asked_to_change(desk, offset=2).phase == "WAITING"
    with pytest.raises(JobUnknown, match="it is unknown"):
        asked_to_change(desk, offset=3)


def test_who_waits_late_for_a_change_is_told_what_became_of_it_all_the_same(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", answering("RUNNING", 1, "running")), taken=2)
    assert desk.results.decision(sought(command()), SOON_S) is Decision.CREATED
    desk.log.transaction(("s", "a", state("SUCCEEDED")), taken=2)
    assert desk.wait(command()).succeeded, "by now the newest state says nothing of the change"
    with pytest.raises(ChangeRefused, match="it is running"):
        asked_to_change(desk)
    desk.log.transaction(("d", "a", None), ("s", "a", None), taken=2)
    with pytest.raises(ChangeRefused, match="it is running"):
        asked_to_change(desk)


def test_where_compaction_took_the_answer_the_job_is_told_as_it_is_now(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED")), taken=3)
    assert asked_to_change(desk).phase == "SUCCEEDED"


def test_an_update_changes_nothing_about_what_was_decided(desk: Desk) -> None:
    """Whatever it changes: what tells commands apart, or not."""
    asked = command(on_conflict="replace")
    for generation, updated in ((1, asked), (2, command(on_conflict="ignore")), (3, command(payload=2))):
        desk.log.raw(b"da", codec.encode_definition({"generation": generation, "offset": 0, "schedule": updated}))
        desk.log.transaction(taken=1)
        assert desk.results.decision(sought(asked), SOON_S) is Decision.CREATED
    replacing = command(payload=3, on_conflict="replace")
    for generation in (4, 5):
        desk.log.raw(b"da", codec.encode_definition({"generation": generation, "offset": 1, "schedule": replacing}))
        desk.log.transaction(taken=2)
        assert desk.results.decision(sought(replacing, 1), SOON_S) is Decision.REPLACED


def test_a_change_of_a_job_that_nobody_knows_says_so(desk: Desk) -> None:
    desk.log.transaction(("s", "a", None), taken=2)
    with pytest.raises(JobUnknown, match="job a is not known"):
        asked_to_change(desk)


def test_who_waits_for_a_job_waits_on_through_an_update(desk: Desk) -> None:
    asked, updated = command(), command(payload=2)
    desk.log.transaction(("d", "a", (1, asked)), taken=1)
    future = desk.future(asked)
    desk.log.raw(b"da", codec.encode_definition({"generation": 2, "offset": 0, "schedule": updated}))
    desk.log.transaction(("s", "a", state("SUCCEEDED", generation=2)), taken=2)
    assert future.result(SOON_S).succeeded


@pytest.mark.parametrize("differs", [{"queue": "other"}, {"headers": {"a": "b"}}, {"retention": timedelta(hours=1)}])
def test_commands_of_one_millisecond_are_told_apart_by_all_they_say(desk: Desk, differs: dict[str, Any]) -> None:
    first, second = command(on_conflict="reject"), command(on_conflict="reject", **differs)
    desk.log.transaction(("d", "a", (1, first)), taken=1)
    desk.log.transaction(taken=2)
    assert desk.results.decision(sought(first), SOON_S) is Decision.CREATED
    assert desk.results.decision(sought(second, 1), SOON_S) is Decision.REJECTED


def test_what_0_1_0_defined_may_have_replaced_a_command_or_have_been_there_before(desk: Desk) -> None:
    """It did not say which command it came from."""
    asked = command(payload=2, on_conflict="replace")
    value = codec.encode_definition({"generation": 2, "offset": -1, "schedule": command(payload=3)})
    desk.log.raw(b"da", value)
    desk.log.transaction(("s", "a", state("SUCCEEDED", generation=2)), taken=9)
    with pytest.raises(JobReplaced, match="as generation 2, or the command that was to do it refused"):
        desk.wait(asked, offset=5)


def test_a_command_whose_job_is_gone_was_not_replaced_by_one_that_made_its_id_anew(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command(payload=2))), taken=9)
    with pytest.raises(JobUnknown, match=r"the job a that was asked for is not known.*A later command made another job under its id"):
        desk.wait(command(), offset=5)


def test_a_redefinition_that_was_refused_is_not_taken_for_the_job_that_stays(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("RUNNING")), taken=1)
    future = desk.future(command(payload=2, on_conflict="replace"), offset=1)
    desk.log.transaction(taken=2)
    with pytest.raises(JobUnknown, match=r"the command that was to define job a anew was refused"):
        future.result(SOON_S)


def test_a_job_forgotten_at_once_is_caught_in_its_end(desk: Desk) -> None:
    future = desk.future(command())
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED", output=b"1")), taken=1)
    desk.log.transaction(("d", "a", None), ("s", "a", None), taken=1)
    assert future.result(SOON_S).value == 1


def test_an_id_that_was_forgotten_and_is_used_anew_is_the_new_job(desk: Desk) -> None:
    first, second = command(at_ms=NOW_MS), command(at_ms=NOW_MS + 1)
    desk.log.transaction(("d", "a", (1, first)), ("s", "a", state("FAILED")), taken=1)
    desk.log.transaction(("d", "a", None), ("s", "a", None), taken=1)
    future = desk.future(second, offset=1)
    desk.await_that(lambda: desk.readers.read == 6)
    assert not future.done()
    desk.log.transaction(("d", "a", (1, second)), taken=2)
    desk.log.transaction(("s", "a", state("SUCCEEDED")), taken=2)
    assert future.result(SOON_S).succeeded


# --- of which only the id is known ---


def test_a_handle_by_id_follows_the_newest_definition(desk: Desk) -> None:
    desk.log.now_ms = NOW_MS - 10**9
    desk.log.transaction(("d", "other", (1, command("other"))), ("s", "other", state("SUCCEEDED")), taken=1, partition=1)
    desk.log.transaction(("d", "other", (2, command("other", 2))), taken=2, partition=1)
    future = desk.future("other")
    desk.await_that(lambda: desk.readers.read == 5)
    assert not future.done()
    desk.log.transaction(("s", "other", state("SUCCEEDED", generation=2, output=b"2")), taken=2, partition=1)
    assert future.result(SOON_S).value == 2
    assert desk.wait("other").value == 2


def test_a_handle_by_id_waits_for_a_job_that_is_still_to_come(desk: Desk) -> None:
    future = desk.future("a")
    desk.await_that(lambda: desk.readers.found)
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED")), taken=1)
    assert future.result(SOON_S).succeeded


# --- how often the log is read ---


def test_handles_waited_for_one_after_the_other_read_the_log_once(desk: Desk) -> None:
    for n in range(200):
        asked = command(f"j{n}", n)
        desk.log.transaction(("d", f"j{n}", (1, asked)), ("s", f"j{n}", state("SUCCEEDED", output=str(n).encode())), taken=n + 1)
    assert [desk.wait(command(f"j{n}", n), n).value for n in range(200)] == list(range(200))
    assert (desk.readers.opened, len(desk.readers.found), desk.readers.read) == (1, 1, 600)


def test_only_the_partitions_of_jobs_that_are_waited_for_are_read_and_not_for_ever(desk: Desk) -> None:
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED")), taken=1)
    assert desk.wait(command()).succeeded
    future = desk.future(command("other"), partition=1)
    desk.await_that(lambda: desk.readers.assigned.keys() == {0, 1})
    desk.clock.now_ms += results._REST_MS
    desk.await_that(lambda: desk.readers.assigned.keys() == {1})
    assert desk.results._thread is not None
    desk.log.transaction(("d", "other", (1, command("other"))), ("s", "other", state("SUCCEEDED")), taken=1, partition=1)
    assert future.result(SOON_S).succeeded
    desk.clock.now_ms += results._REST_MS
    desk.await_that(lambda: desk.readers.closed == 1)
    assert desk.results._thread is None
    assert desk.wait(command()).succeeded
    assert desk.readers.opened == 2


def test_what_is_kept_is_bounded_and_what_was_dropped_is_read_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "JOBS_MAX", 10)
    waiting = desk.future(command("j0"))
    for n in range(50):
        desk.log.now_ms = NOW_MS + n
        desk.log.transaction(("d", f"j{n}", (1, command(f"j{n}", at_ms=NOW_MS + n))), taken=n + 1)
    desk.await_that(lambda: desk.readers.read == 100)
    [partition] = desk.results._readings.values()
    assert len(partition._jobs) == 10
    assert partition.since_ms == NOW_MS + 41 - 1 + 1
    desk.log.transaction(*[("s", f"j{n}", state("SUCCEEDED")) for n in range(50)], taken=50)
    assert waiting.result(SOON_S).succeeded  # whoever is waited for is never dropped
    found = len(desk.readers.found)
    assert desk.wait(command("j49", at_ms=NOW_MS + 49), 49).succeeded
    assert len(desk.readers.found) == found
    assert desk.wait(command("j7", at_ms=NOW_MS + 7), 7).succeeded
    assert desk.readers.found[found:] == [(0, NOW_MS + 7 - MARGIN_MS)]


def test_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BYTES_MAX", 50_000)
    one = Reading(0, codec)
    one.begin(0, 0, 0)
    value = codec.encode_definition({"generation": 1, "offset": 0, "schedule": command(payload="x" * 10_000)})
    for n in range(20):
        one.fold([Written(0, n, f"dj{n}".encode(), value, NOW_MS)])
        assert one._bytes <= 50_000
    assert sum(seen.size for seen in one._jobs.values()) == one._bytes
    assert 1 <= len(one._jobs) <= 4


def test_a_job_that_is_heard_of_again_and_again_is_queued_once() -> None:
    one, waiter = Reading(0, codec), Waiter(sought(command(), 5))
    one.begin(0, 0, 0)
    one.add(waiter)
    running = codec.encode_state(state("RUNNING"))
    assert one.fold([Written(0, n, b"sa", running, NOW_MS) for n in range(20)]) == []
    assert len(one._untaken) == 1


def test_a_want_that_comes_while_reading_begins_is_not_forgotten() -> None:
    one = Reading(0, codec)
    late = Waiter(sought(command()))
    assert one.add(late) == Early(NOW_MS - MARGIN_MS)
    one.add(Waiter(Sought("old", 0)))  # from the beginning
    one.begin(NOW_MS - MARGIN_MS, 5, 9)
    assert one.wanted_ms == 0


# --- trouble ---


def test_a_broker_that_is_away_ends_no_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_BACKOFF_S", 0.01)
    desk.log.transaction(("d", "a", (1, command())), taken=1)
    future = desk.future(command())
    desk.await_that(lambda: desk.readers.read == 2)
    desk.readers.failure = BrokerUnavailable("no broker")
    desk.await_that(lambda: desk.readers.closed == 1)
    with pytest.raises(TimeoutError, match=r"it waits for its time \(no broker\)"):
        desk.wait(command(), timeout=0.1)
    desk.log.transaction(("s", "a", state("SUCCEEDED")), taken=1)
    desk.readers.failure = None
    assert future.result(SOON_S).succeeded
    assert len(desk.readers.found) == 1  # reading went on where it was
    with pytest.raises(TimeoutError, match=r"does a timer processor run\?$"):
        desk.wait(command("b"), offset=1, timeout=0.1)


def test_a_missing_topic_ends_all_waits(desk: Desk) -> None:
    desk.readers.failure = TopicMissing("no topic")
    futures = [desk.future(command()), desk.future("b")]
    for future in futures:
        with pytest.raises(TopicMissing):
            future.result(SOON_S)
    desk.readers.failure = None
    desk.log.transaction(("d", "a", (1, command())), ("s", "a", state("SUCCEEDED")), taken=1)
    assert desk.wait(command()).succeeded


def test_a_record_that_cannot_be_read_is_told_to_whom_it_concerns(desk: Desk) -> None:
    futures = desk.future(command()), desk.future(command("b"), offset=1)
    desk.log.raw(b"p", b"garbage")
    desk.log.raw(b"", b"garbage")
    desk.log.raw(b"x?", b"garbage")
    desk.log.transaction(("d", "a", (1, command())), ("d", "b", (1, command("b"))), taken=2)
    desk.log.raw(b"sa", b"garbage")
    desk.log.transaction(("s", "b", state("SUCCEEDED")), taken=2)
    with pytest.raises(UndecodableRecord):
        futures[0].result(SOON_S)
    assert futures[1].result(SOON_S).succeeded


def test_closing_ends_all_waits_and_refuses_more(desk: Desk) -> None:
    futures = [desk.future(command()), desk.future(command("other"), partition=1), desk.future("b")]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.wait, command())
        desk.await_that(lambda: desk.results._readings.get(0) is not None and len(desk.results._readings[0].waiters) >= 2)
        desk.results.close()
        for future in [*futures, waiting]:
            with pytest.raises(CallerError, match="the client was closed while it waited for job"):
                future.result(SOON_S)
    with pytest.raises(CallerError):
        desk.wait(command())
    desk.results.close()


def test_our_own_failure_hangs_nobody(desk: Desk) -> None:
    desk.readers.failure = ZeroDivisionError("ours")
    with pytest.raises(Exception, match="waiting for jobs failed: ZeroDivisionError: ours; please report it"):
        desk.wait(command())
    desk.readers.failure = None


def test_many_threads_wait_for_many_jobs(desk: Desk) -> None:
    asked = {n: command(f"j{n}", n) for n in range(300)}
    with ThreadPoolExecutor(16) as pool:
        found = [pool.submit(desk.wait, asked[n], n) for n in asked]
        for n in asked:
            ended = state("SUCCEEDED", output=str(n).encode())
            desk.log.transaction(("d", f"j{n}", (1, asked[n])), ("s", f"j{n}", ended), taken=n + 1)
        assert [future.result(SOON_S).value for future in found] == list(asked)


# --- handles ---


class Intake:
    """Takes everything."""

    def append(self, key: bytes, value: bytes) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None: ...


@pytest.fixture
def client(desk: Desk) -> Client:
    encoders = (codec.encode_schedule, codec.encode_cancel, codec.encode_redrive, codec.encode_drop, codec.encode_change)
    return Client(Intake(), desk.clock, *encoders, str, desk.results)  # type: ignore[arg-type]


def test_a_handle_waits_and_is_awaited(desk: Desk, client: Client) -> None:
    handle = client.schedule("t", 1, job_id="a", at=NOW_MS)
    asked = command(at=NOW_MS)

    async def main() -> list[JobResult]:
        waiting = [asyncio.ensure_future(_awaited(handle)) for _ in range(3)]
        given_up = asyncio.ensure_future(_awaited(handle))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await handle
        assert len(desk.results._readings[0].waiters) == 3
        await asyncio.to_thread(desk.log.transaction, ("d", "a", (1, asked)), ("s", "a", state("SUCCEEDED", output=b"1")), taken=1)
        return await asyncio.gather(*waiting)

    assert [result.value for result in asyncio.run(main())] == [1, 1, 1]
    assert handle.wait(SOON_S).value == 1
    assert all(each.is_idle for each in desk.results._readings.values())


async def _awaited(handle: JobHandle) -> JobResult:
    return await handle


def test_a_handle_that_left_its_client_says_how_to_wait(client: Client) -> None:
    handle = pickle.loads(pickle.dumps(client.schedule("t", job_id="a")))
    assert handle == client.schedule("t", job_id="a")
    with pytest.raises(CallerError, match=r"client.handle\('a'\)"):
        handle.wait(1)


def test_an_id_that_no_job_can_have_has_no_handle(client: Client) -> None:
    assert client.handle("a").job_id == "a"
    with pytest.raises(RejectedJob):
        client.handle("")


def test_closing_the_client_ends_its_waits(client: Client, desk: Desk) -> None:
    handle = client.schedule("t", job_id="a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.wait)
        desk.await_that(lambda: desk.results._readings)
        client.close()
        with pytest.raises(CallerError, match="the client was closed"):
            waiting.result(SOON_S)
