"""The proof judges runs by their recurring jobs, and finds what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from duewheel.core.model import Recurrence
from duewheel.core.run_ids import run_id
from duewheel.proof.history import (
    Acknowledged,
    Defined,
    Dispatched,
    EnqueueInvoked,
    Event,
    OutcomeRecorded,
    Started,
    StateWritten,
    from_line,
    to_line,
)
from duewheel.proof.report import judge
from tests.faithful import PLAN
from tests.recurring import every, every_after

FIRST_MS = 1_900_000_000_000
STEP_MS = 10_000


def lived(recurrence: Recurrence, runs: int = 3, phase: str = "SUCCEEDED") -> list[Event]:
    """A recurring job with runs that ended so."""
    events: list[Event] = [
        EnqueueInvoked(FIRST_MS - 10, "call", "r", FIRST_MS, FIRST_MS - 10, recurrence=recurrence),
        Acknowledged(FIRST_MS - 9, "call", 0, 0),
        Defined(FIRST_MS - 8, 0, 0, "r", 1, FIRST_MS, FIRST_MS - 10, recurrence),
    ]
    for n in range(runs):
        slot_ms, job_id, token, at = FIRST_MS + n * STEP_MS, run_id("r", FIRST_MS + n * STEP_MS), n + 1, 10 * n + 1
        events += [
            Defined(slot_ms + 1, 0, at, job_id, 1, slot_ms, slot_ms),
            Dispatched(slot_ms + 1, "d", 0, n, 0, job_id, 1, token, 1, slot_ms),
            StateWritten(slot_ms + 1, 0, at + 1, "r", 1, "WAITING", 0, slot_ms + STEP_MS, n + 1, 0, slot_ms + STEP_MS),
            Started(slot_ms + 2, job_id, token, "d", 0, n),
            OutcomeRecorded(slot_ms + 3, 0, n, job_id, token, "SUCCEEDED" if phase == "SUCCEEDED" else "LOST"),
            StateWritten(slot_ms + 4, 0, at + 2, job_id, 1, phase, token, slot_ms, 1),
        ]
    return events


def broken(events: list[Event]) -> set[str]:
    return {violation.invariant for violation in judge(events, PLAN).violations}


@pytest.mark.parametrize(
    "recurrence", [every(STEP_MS, runs_max=3), every_after(STEP_MS, runs_max=3), every(STEP_MS, overlap="REPLACE", runs_max=3)]
)
def test_runs_are_asked_for_by_asking_for_their_job(recurrence: Recurrence) -> None:
    events = lived(recurrence)
    assert broken(events) == set()
    events.append(StateWritten(FIRST_MS + 90_000, 0, 900, "r", 1, "SUCCEEDED", 0, FIRST_MS + 20_000, 3))
    assert broken(events) == set()
    assert [from_line(to_line(event)) for event in events] == events


def test_a_recurring_job_that_ends_though_slots_are_left_is_found() -> None:
    end = StateWritten(FIRST_MS + 90_000, 0, 900, "r", 1, "SUCCEEDED", 0, FIRST_MS + 20_000, 3)
    assert broken([*lived(every(STEP_MS)), end]) == {"EverySlotOnce"}
    assert broken([*lived(every(STEP_MS, runs_max=4)), end]) == {"EverySlotOnce"}


def test_a_run_may_give_way_only_where_that_was_asked_for() -> None:
    assert broken(lived(every(STEP_MS, overlap="REPLACE"), phase="CANCELLED")) == set()
    assert broken(lived(every(STEP_MS), phase="CANCELLED")) == {"NoPhantom"}


@pytest.mark.parametrize("fields", [{"every_ms": 7_000}, {"jitter_ms": 5_000}, {"start_ms": FIRST_MS + 1}, {"end_ms": FIRST_MS + 1}])
def test_a_run_that_stands_for_no_slot_is_found(fields: dict[str, Any]) -> None:
    recurrence: Any = {**every(STEP_MS), **fields}
    assert broken(lived(recurrence)) == {"NoPhantom"}


def test_a_run_of_a_job_that_nobody_asked_for_is_found() -> None:
    events = [event for event in lived(every(STEP_MS)) if getattr(event, "job_id", "") != "r"]
    assert "NoPhantom" in broken(events)


def test_a_run_that_comes_to_no_end_is_found() -> None:
    events = lived(every(STEP_MS))
    assert broken(events[:-2]) == {"NoLoss"}


def test_a_recurring_job_that_is_dispatched_itself_is_found() -> None:
    events = lived(every(STEP_MS))
    events.append(Dispatched(FIRST_MS + 1, "d", 0, 99, 0, "r", 1, 99, 1, FIRST_MS))
    assert "SlotsMatched" in broken(events)
