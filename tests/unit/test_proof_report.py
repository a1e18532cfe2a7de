"""The verdict's figures, and when lateness is excused."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.proof.faults import FOREVER_MS, Excuses, Fault, faults_of
from duewheel.proof.history import (
    Acknowledged,
    Defined,
    Dispatched,
    Effect,
    EnqueueInvoked,
    Event,
    FaultBegan,
    FaultEnded,
    Healed,
    OutcomeRecorded,
    Started,
    StateWritten,
    Stopped,
)
from duewheel.proof.plan import Plan
from duewheel.proof.report import judge
from tests.faithful import PLAN, Faithful

TOKEN = 77


def _asked(job_id: str, due_ms: int) -> list[Event]:
    return [
        EnqueueInvoked(10, job_id, job_id, due_ms),
        Acknowledged(14, job_id, 3, 41),
        Defined(16, 3, 90, job_id, 1, due_ms),
    ]


def _dispatched(job_id: str, due_ms: int, at_ms: int, token: int = TOKEN, attempt: int = 1) -> list[Event]:
    return [
        Dispatched(at_ms, "d", 0, token, 3, job_id, 1, token, attempt, due_ms, attempt - 1),
        Started(at_ms + 1, job_id, token, "d", 0, token),
        Effect(at_ms + 2, job_id, token, True),
    ]


def _succeeded(job_id: str, due_ms: int, at_ms: int, token: int = TOKEN) -> list[Event]:
    return [
        OutcomeRecorded(at_ms, 3, token, job_id, token, "SUCCEEDED"),
        StateWritten(at_ms + 1, 3, 100 + token, job_id, 1, "SUCCEEDED", token, due_ms),
    ]


def _job(job_id: str, due_ms: int, dispatched_ms: int, token: int = TOKEN) -> list[Event]:
    return [
        *_asked(job_id, due_ms),
        *_dispatched(job_id, due_ms, dispatched_ms, token),
        *_succeeded(job_id, due_ms, dispatched_ms + 5, token),
    ]


def _killed(at_ms: int, name: str = "f") -> list[Event]:
    return [FaultBegan(at_ms, name, "kill", "worker-1"), FaultEnded(at_ms, name)]


def test_the_story_of_the_docstring_is_proven() -> None:
    report = judge(_job("a", due_ms=100, dispatched_ms=102))
    assert report.proven
    assert (report.jobs, report.acknowledged, report.executions, report.repeated) == (1, 1, 1, 0)
    assert report.recoveries_ms == []
    assert dict(report.rows())["recovery max"] == "–"


def test_figures_of_a_run_with_a_crash() -> None:
    history = _asked("a", 1_000) + _dispatched("a", 1_000, 1_002) + _killed(1_500)
    history += [OutcomeRecorded(6_000, 3, 1, "a", TOKEN, "LOST")]
    history += _dispatched("a", 1_000, 6_010, token=78, attempt=2)
    history += [Effect(6_020, "a", TOKEN, False), OutcomeRecorded(6_021, 3, 2, "a", TOKEN, "SUCCEEDED")]
    history += _succeeded("a", 1_000, 6_030, token=78)
    history += _job("b", due_ms=2_000, dispatched_ms=2_001, token=80)
    report = judge(history, Plan(faults={"kill": 1}))
    assert report.proven, report.violations
    assert (report.jobs, report.executions, report.repeated) == (2, 3, 1)
    assert (report.effects_refused, report.outcomes_stale) == (1, 1)
    assert report.faults == {"kill": 1}
    assert report.recoveries_ms == [6_011 - 1_500]
    rows = dict(report.rows())
    assert rows["jobs"] == "2"
    assert rows["faults: kill"] == "1"
    assert rows["stale refused"] == "2"
    assert rows["recovery p50"] == rows["recovery max"] == "4,511 ms"
    assert (rows["lost"], rows["accepted twice"], rows["early"]) == ("0", "0", "0")


def test_a_fault_that_delayed_nothing_has_no_recovery() -> None:
    history = _job("a", due_ms=1_000, dispatched_ms=1_001) + _killed(5_000, "late") + _killed(500, "soon")
    assert judge(history).recoveries_ms == []


def test_a_waiting_retry_does_not_count_as_recovery() -> None:
    history = _asked("a", 1_000) + _dispatched("a", 1_000, 1_001) + _killed(2_000)
    history += [OutcomeRecorded(1_010, 3, 1, "a", TOKEN, "RETRY"), StateWritten(1_011, 3, 95, "a", 1, "WAITING", TOKEN, 1_000, 1, 0, 9_000)]
    history += _dispatched("a", 1_000, 9_001, token=78) + _succeeded("a", 1_000, 9_010, token=78)
    assert judge(history).recoveries_ms == []


def test_broken_promises_are_counted_and_told() -> None:
    history = _job("a", due_ms=100, dispatched_ms=99) + _asked("b", 100)
    report = judge(history)
    assert not report.proven
    assert report.broken["early"] == 1
    assert report.broken["lost"] == 1
    assert sum(report.broken.values()) == 2
    told = json.loads(json.dumps(report.as_dict()))
    assert told["broken"]["early"] == 1
    assert told["proven"] is False
    early = next(violation for violation in told["violations"] if violation["invariant"] == "NeverEarly")
    assert early["job_id"] == "a"
    assert early["events"][1]["event"] == "Dispatched"
    assert "1 ms before it was due" in early["sentence"]


def test_as_dict_is_json_whatever_the_history() -> None:
    report = judge(Faithful(Random(1)).run(), PLAN)
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


def test_jobs_that_are_due_after_the_end_are_not_lost() -> None:
    plan = Plan(punctual_ms=100)
    run = _job("a", due_ms=100, dispatched_ms=102)
    assert judge([*run, *_asked("b", 5_000), Stopped(4_999)], plan).proven
    assert judge([*run, *_asked("b", 5_000), Stopped(5_100)], plan).broken["lost"] == 1
    assert judge([*run, *_asked("b", 5_000)], plan).broken["lost"] == 1


# --- excuses


def _excuses(*faults: tuple[int, int]) -> Excuses:
    return Excuses([Fault(began, ended, "f", "kill", "t") for began, ended in faults], recovery_ms=100)


@pytest.mark.parametrize(
    "ready_ms, deadline_ms",
    [
        (0, 10),  # long before
        (989, 999),
        (990, 2_100),  # the fault begins in its last millisecond
        (1_500, 2_100),
        (2_000, 2_100),
        (2_095, 2_105),  # the usual time ends later than the excuse
        (2_101, 2_111),  # after
    ],
)
def test_what_was_ready_before_all_was_whole_has_until_r_after_that(ready_ms: int, deadline_ms: int) -> None:
    assert _excuses((1_000, 2_000)).deadline_ms(ready_ms, 10) == deadline_ms


def test_faults_that_meet_are_one_stretch() -> None:
    excuses = _excuses((1_000, 1_000), (1_100, 1_500), (5_000, 5_000))
    assert excuses.deadline_ms(1_050, 10) == 1_600
    assert excuses.deadline_ms(1_700, 10) == 1_710
    assert [excuses.overlap(*span) for span in [(0, 999), (0, 1_000), (1_600, 1_700), (1_601, 4_999)]] == [False, True, True, False]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50))), st.integers(0, 600), st.integers(0, 20))
def test_excuses_are_those_of_the_plain_definition(spans: list[tuple[int, int]], ready_ms: int, allowed_ms: int) -> None:
    faults = [(began, began + length) for began, length in spans]
    deadline_ms = ready_ms + allowed_ms
    excused = set[int]()
    for began, ended in faults:
        excused.update(range(began, ended + 101))
    touched = [ms for ms in range(ready_ms, deadline_ms + 1) if ms in excused]
    expected = deadline_ms
    if touched:
        expected = touched[-1]
        while expected + 1 in excused:
            expected += 1
        expected = max(expected, deadline_ms)
    assert _excuses(*faults).deadline_ms(ready_ms, allowed_ms) == expected
    assert _excuses(*faults).overlap(ready_ms, deadline_ms) == bool(touched)


def test_a_fault_without_an_end_lasts_until_all_was_healed() -> None:
    began = [FaultBegan(5, "a", "kill", "x"), FaultBegan(3, "b", "pause", "y")]
    assert faults_of(began, [FaultEnded(7, "a")], 20) == [Fault(3, 20, "b", "pause", "y"), Fault(5, 7, "a", "kill", "x")]
    assert faults_of(began, [], None)[0].ended_ms == FOREVER_MS


def test_recovery_of_a_pause_counts_from_its_end() -> None:
    history = _job("a", due_ms=1_000, dispatched_ms=8_000)
    history += [FaultBegan(500, "f", "pause", "processor-1"), FaultEnded(7_000, "f"), Healed(7_000)]
    report = judge(history)
    assert report.proven
    assert report.recoveries_ms == [1_001]
