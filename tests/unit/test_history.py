"""What records say happened to a job, and in which order it is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from duewheel.core import history
from duewheel.core.errors import Reason
from duewheel.core.history import Entry, Happening, Memory, Merge, Source
from duewheel.core.model import (
    DeadRun,
    DeadRunClosed,
    Definition,
    Dispatch,
    Drop,
    Failure,
    Outcome,
    Phase,
    Redrive,
    Result,
    Schedule,
    State,
    Stop,
    Terms,
    Trail,
    Work,
)

SOURCE = Source(topic="duewheel.some", partition=3, offset=42, written_ms=1_000)
WORK = Work(task="mail.send", content_type="application/json", payload=b"{}", headers={}, policy=None)
SCHEDULE = Schedule(
    job_id="a",
    due_ms=5_000,
    created_ms=900,
    on_conflict="IGNORE",
    retention_ms=1,
    queue="mail",
    limits=None,
    recurrence=None,
    delivery=None,
    work=WORK,
)
STATE = State(generation=2, phase=Phase.SUCCEEDED, attempt=1, crashes=0, token=7, slot_ms=5_000, changed_ms=5_030, error=None, trail=None)
TRAIL = Trail(wake_ms=0, lease_ms=0, first_ms=0, output=None, endings=[], runs=[], queued_ms=0, answers=[], is_quiet=False)
DISPATCH = Dispatch(
    token=7, job_id="a", generation=2, slot_ms=5_000, attempt=1, timer_partition=3, dispatched_ms=5_003, terms=None, work=WORK
)  # fmt: skip
OUTCOME = Outcome(
    token=7, job_id="a", slot_ms=5_000, attempt=1, result=Result.SUCCEEDED, started_ms=5_010, finished_ms=5_022, worker="w1", error=None,
    retry_after_ms=0, lease_ms=0, output=None
)  # fmt: skip


def test_a_command_is_told_as_what_was_asked_for() -> None:
    entry = history.schedule_entry(SOURCE, SCHEDULE)
    assert (entry.event, entry.job_id, entry.task, entry.queue, entry.due_ms, entry.at_ms) == (
        "schedule",
        "a",
        "mail.send",
        "mail",
        5_000,
        1_000,
    )


def test_a_definition_is_told_with_its_generation() -> None:
    entry = history.definition_entry(SOURCE, Definition(generation=2, offset=0, schedule=SCHEDULE))
    assert (entry.event, entry.generation, entry.queue) == ("scheduled", 2, "mail")


def test_a_dispatch_is_told_with_its_lateness() -> None:
    entry = history.dispatch_entry(SOURCE, "mail", DISPATCH)
    assert (entry.event, entry.late_ms, entry.attempt, entry.token, entry.queue) == ("dispatched", 3, 1, 7, "mail")


@pytest.mark.parametrize("result", list(Result))
def test_every_result_has_an_event_of_its_name(result: Result) -> None:
    entry = history.outcome_entry(SOURCE, Outcome(**{**OUTCOME, "result": result}))
    assert entry.event == f"attempt_{result.lower()}"
    assert entry.took_ms == 12


def test_an_attempt_that_never_started_took_no_time() -> None:
    entry = history.outcome_entry(SOURCE, Outcome(**{**OUTCOME, "result": Result.LOST, "started_ms": 0}))
    assert entry.took_ms is None


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.DISPATCHED, Phase.RUNNING)])
def test_every_phase_has_an_event_of_its_name(phase: Phase) -> None:
    entry = history.state_entry(SOURCE, "a", State(**{**STATE, "phase": phase}))
    assert entry is not None
    assert entry.event == phase.lower()
    assert entry.at_ms == 5_030


@pytest.mark.parametrize("phase", [Phase.DISPATCHED, Phase.RUNNING])
def test_what_the_dispatch_or_the_worker_says_is_left_to_them_to_tell(phase: Phase) -> None:
    assert history.state_entry(SOURCE, "a", State(**{**STATE, "phase": phase})) is None


def test_a_retry_is_told_with_how_long_it_waits_and_until_when() -> None:
    failure = Failure(type="OSError", message="away", traceback="…")
    retry = history.outcome_entry(SOURCE, Outcome(**{**OUTCOME, "result": Result.RETRY, "retry_after_ms": 920, "error": failure}))
    assert (retry.event, retry.attempt, retry.wait_ms, retry.error, retry.message) == ("attempt_retry", 1, 920, "OSError", "away")
    waiting = history.state_entry(SOURCE, "a", State(**{**STATE, "phase": Phase.WAITING, "trail": {**TRAIL, "wake_ms": 5_942}}))
    assert waiting is not None
    assert (waiting.event, waiting.wake_ms) == ("waiting", 5_942)


@pytest.mark.parametrize("result", [Result.STARTED, Result.HEARTBEAT])
def test_an_attempt_that_goes_on_is_told_with_lease_and_progress(result: Result) -> None:
    entry = history.outcome_entry(SOURCE, Outcome(**{**OUTCOME, "result": result, "lease_ms": 30_000, "output": b'{"done":3}'}))
    assert (entry.took_ms, entry.lease_ms, entry.output, entry.wait_ms) == (12, 30_000, '{"done":3}', None)


def test_a_lease_is_no_time_to_wait_for() -> None:
    running = history.state_entry(SOURCE, "a", State(**{**STATE, "phase": Phase.CANCELLING, "trail": {**TRAIL, "wake_ms": 9_000}}))
    assert running is not None
    assert running.wake_ms is None


def test_crashes_are_told_where_there_were_any() -> None:
    terms = Terms(crashes=2, is_last_life=True, expires_ms=0, deadline_ms=0)
    assert history.dispatch_entry(SOURCE, "mail", DISPATCH).crashes is None
    assert history.dispatch_entry(SOURCE, "mail", Dispatch(**{**DISPATCH, "terms": terms})).crashes == 2


def test_a_second_attempt_is_not_late() -> None:
    assert history.dispatch_entry(SOURCE, "mail", Dispatch(**{**DISPATCH, "attempt": 2})).late_ms is None


def test_a_death_is_told_with_everything_that_identifies_it() -> None:
    failure = Failure(type="OSError", message="away", traceback="…")
    run = DeadRun(
        job_id="a", token=7, timer_partition=3, died_ms=5_040, reason="crash_limit",
        state=State(**{**STATE, "phase": Phase.FAILED, "attempt": 3, "crashes": 2, "error": failure}),
        definition=Definition(generation=2, offset=0, schedule=SCHEDULE),
    )  # fmt: skip
    entry = history.dead_run_entry(SOURCE, run)
    assert (entry.event, entry.at_ms, entry.job_id, entry.token, entry.task, entry.queue) == ("dead", 5_040, "a", 7, "mail.send", "mail")
    assert (entry.reason, entry.attempt, entry.crashes, entry.error, entry.message) == ("crash_limit", 3, 2, "OSError", "away")


@pytest.mark.parametrize("how, event", [("REDRIVEN", "redriven"), ("DROPPED", "dropped"), ("REPLACED", None), ("FORGOTTEN", None)])
def test_the_end_of_a_death_is_told_unless_another_record_tells_it(how: str, event: str | None) -> None:
    entry = history.closed_entry(SOURCE, DeadRunClosed(job_id="a", token=7, closed_ms=6_000, how=how))
    assert (entry and entry.event) == event
    assert entry is None or (entry.at_ms, entry.job_id, entry.token) == (6_000, "a", 7)


def test_commands_and_stops_are_told_with_the_token_they_speak_of() -> None:
    entries = [
        history.redrive_entry(SOURCE, Redrive(job_id="a", token=7, created_ms=900)),
        history.drop_entry(SOURCE, Drop(job_id="a", token=7, created_ms=900)),
        history.stop_entry(SOURCE, Stop(job_id="a", token=7, queue="mail")),
    ]
    assert [entry.event for entry in entries] == ["redrive", "drop", "stop"]
    assert {(entry.job_id, entry.token, entry.at_ms) for entry in entries} == {("a", 7, 1_000)}


def test_a_failure_is_told_with_type_and_message() -> None:
    failure = Failure(type="ValueError", message="no such address", traceback="…")
    for entry in (
        history.outcome_entry(SOURCE, Outcome(**{**OUTCOME, "result": Result.FAILED, "error": failure})),
        history.state_entry(SOURCE, "a", State(**{**STATE, "phase": Phase.FAILED, "error": failure})),
    ):
        assert entry is not None
        assert (entry.error, entry.message) == ("ValueError", "no such address")


def test_memory_completes_what_records_do_not_repeat() -> None:
    memory = Memory()
    before = history.outcome_entry(SOURCE, OUTCOME)
    assert memory.complete(before) == before
    memory.complete(history.dispatch_entry(SOURCE, "mail", DISPATCH))
    assert memory.complete(before) == replace(before, task="mail.send", queue="mail")


def test_memory_is_bounded_and_keeps_the_jobs_seen_last() -> None:
    memory = Memory(jobs_max=2)
    dispatched = history.dispatch_entry(SOURCE, "mail", DISPATCH)
    for job_id in ("a", "b", "a", "c"):
        memory.complete(replace(dispatched, job_id=job_id))
    reported = history.outcome_entry(SOURCE, OUTCOME)
    tasks = {job_id: memory.complete(replace(reported, job_id=job_id)).task for job_id in "abc"}
    assert tasks == {"a": "mail.send", "b": None, "c": "mail.send"}


def _entry(written_ms: int, event: Happening = Happening.SCHEDULE, offset: int = 0) -> Entry:
    source = replace(SOURCE, written_ms=written_ms, offset=offset)
    return replace(history.unreadable_entry(source, None, Reason.MALFORMED, ""), event=event)


def test_merge_holds_back_what_a_slower_partition_may_still_precede() -> None:
    merge = Merge(["a", "b"])
    for written_ms in (10, 20, 30):
        merge.add(_entry(written_ms))
        merge.reach("a", written_ms)
    assert merge.release() == []
    merge.reach("b", 25)
    assert [entry.source.written_ms for entry in merge.release()] == [10, 20]
    merge.add(_entry(28))
    merge.finish("b")
    assert [entry.source.written_ms for entry in merge.release()] == [28]
    merge.finish("a")
    assert merge.past_is_read
    assert [entry.source.written_ms for entry in merge.release()] == [30]


def test_merge_orders_one_millisecond_by_what_leads_to_what() -> None:
    merge = Merge([])
    events = [Happening.DISPATCHED, Happening.SCHEDULED, Happening.SCHEDULE]
    for event in events:
        merge.add(_entry(10, event))
    assert [entry.event for entry in merge.release()] == events[::-1]


def test_merge_keeps_the_order_of_equals() -> None:
    merge = Merge([])
    for offset in (5, 3, 9):
        merge.add(_entry(10, offset=offset))
    assert [entry.source.offset for entry in merge.release()] == [5, 3, 9]


def test_merge_holds_a_bounded_number() -> None:
    merge = Merge(["slow"], held_max=2)
    for written_ms in (30, 10, 20):
        merge.add(_entry(written_ms))
    assert [entry.source.written_ms for entry in merge.release()] == [10]


def test_merge_never_dispatches_a_job_before_it_is_scheduled() -> None:
    merge = Merge([])
    scheduled = replace(_entry(12, Happening.SCHEDULED), job_id="a", generation=1)
    dispatched = replace(_entry(10, Happening.DISPATCHED), job_id="a", generation=1)
    replaced = replace(_entry(14, Happening.SCHEDULED), job_id="a", generation=2)
    other = replace(_entry(11, Happening.DISPATCHED), job_id="b", generation=1)
    for entry in (replaced, dispatched, other, scheduled):
        merge.add(entry)
    assert merge.release() == [scheduled, other, dispatched, replaced]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_merge_never_dispatches_a_run_again_before_it_is_redriven(order: tuple[int, ...]) -> None:
    """Whatever the brokers' times say, within the milliseconds of one transaction."""
    died = replace(_entry(10, Happening.DISPATCHED), job_id="a", generation=1, token=7)
    redriven = replace(_entry(20, Happening.REDRIVEN), job_id="a", token=7)
    again = replace(_entry(19, Happening.DISPATCHED), job_id="a", generation=1, token=9)
    other = replace(_entry(18, Happening.DISPATCHED), job_id="b", generation=1, token=8)
    merge = Merge([])
    for place in order:
        merge.add((died, redriven, again, other)[place])
    assert merge.release() == [died, other, redriven, again]


def test_merge_leaves_a_redriven_run_behind_the_dispatch_that_it_died_with() -> None:
    entries = [
        replace(_entry(10, Happening.DISPATCHED), job_id="a", generation=1, token=7),
        replace(_entry(20, Happening.REDRIVEN), job_id="a", token=7),
        replace(_entry(21, Happening.DISPATCHED), job_id="a", generation=1, token=9),
    ]
    merge = Merge([])
    for entry in entries:
        merge.add(entry)
    assert merge.release() == entries


def test_a_recurring_job_that_waits_has_made_no_attempts() -> None:
    state = State(**{**STATE, "phase": Phase.WAITING, "token": 0, "attempt": 40, "trail": {**TRAIL, "wake_ms": 9_000}})
    waiting = history.state_entry(SOURCE, "nightly", state)
    assert waiting is not None
    assert (waiting.event, waiting.wake_ms, waiting.attempt, waiting.token) == ("waiting", 9_000, None, None)
