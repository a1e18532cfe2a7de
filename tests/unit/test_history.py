"""What records say happened to a job, and in which order it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duewheel.core import history
from duewheel.core.errors import Reason
from duewheel.core.history import Entry, Happening, Memory, Merge, Source
from duewheel.core.model import Definition, Dispatch, Failure, Outcome, Phase, Result, Schedule, State, Work

SOURCE = Source(topic="duewheel.some", partition=3, offset=42, written_ms=1_000)
WORK = Work(task="mail.send", content_type="application/json", payload=b"{}", headers={})
SCHEDULE = Schedule(job_id="a", due_ms=5_000, created_ms=900, on_conflict="IGNORE", retention_ms=1, queue="mail", work=WORK)
STATE = State(generation=2, phase=Phase.SUCCEEDED, attempt=1, crashes=0, token=7, slot_ms=5_000, changed_ms=5_030, error=None)
DISPATCH = Dispatch(
    token=7, job_id="a", generation=2, slot_ms=5_000, attempt=1, timer_partition=3, dispatched_ms=5_003, work=WORK
)  # fmt: skip
OUTCOME = Outcome(
    token=7, job_id="a", slot_ms=5_000, attempt=1, result=Result.SUCCEEDED, started_ms=5_010, finished_ms=5_022, worker="w1", error=None
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
    entry = history.definition_entry(SOURCE, Definition(generation=2, schedule=SCHEDULE))
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


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.DISPATCHED])
def test_every_phase_has_an_event_of_its_name(phase: Phase) -> None:
    entry = history.state_entry(SOURCE, "a", State(**{**STATE, "phase": phase}))
    assert entry is not None
    assert entry.event == phase.lower()
    assert entry.at_ms == 5_030


def test_the_dispatched_phase_is_left_to_the_dispatch_to_tell() -> None:
    assert history.state_entry(SOURCE, "a", State(**{**STATE, "phase": Phase.DISPATCHED})) is None


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
