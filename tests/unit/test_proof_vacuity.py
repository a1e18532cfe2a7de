"""A run that exercised too little fails, however clean it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from duewheel.core.model import Closing
from duewheel.proof.history import (
    Acknowledged,
    Backlog,
    CancelInvoked,
    DeathClosed,
    Dispatched,
    Effect,
    EnqueueInvoked,
    Event,
    FaultBegan,
    Healed,
    LogEnd,
    OutcomeRecorded,
    Snapshot,
    Started,
    TransactionFailed,
    Unknown,
)
from duewheel.proof.plan import Plan
from duewheel.proof.report import judge
from tests.faithful import PLAN, Faithful

HISTORY: Final = Faithful(Random(5), jobs=40).run()
KILLS: Final = [event for event in HISTORY if isinstance(event, FaultBegan) and event.kind == "kill"]
DEMANDING: Final = replace(
    PLAN,
    jobs_min=40,
    acknowledged_percent_min=75,
    faults={"kill": 2, "rebalance": 1},
    caught_transactions_min=1,
    redriven_min=1,
    dropped_min=1,
    snapshots_min=3,
    needs_drain=True,
)


def _shortcomings(history: list[Event], plan: Plan = DEMANDING) -> list[str]:
    report = judge(history, plan)
    assert report.proven == (not report.violations and not report.shortcomings)
    return list(report.shortcomings)


def _without(*kinds: type) -> list[Event]:
    return [event for event in HISTORY if not isinstance(event, kinds)]


def _without_closing(how: Closing) -> list[Event]:
    return [event for event in HISTORY if not (isinstance(event, DeathClosed) and event.how == how)]


def test_a_run_that_exercised_all_that_was_planned_is_not_vacuous() -> None:
    assert _shortcomings(HISTORY) == []
    assert judge(HISTORY, DEMANDING).proven


VACUOUS: Final[dict[str, Callable[[], list[Event]]]] = {
    "jobs were asked for; the plan wants 40": lambda: HISTORY[: len(HISTORY) // 2],
    "jobs were acknowledged; the plan wants 75 %": lambda: [
        Unknown(event.at_ms, event.call) if isinstance(event, Acknowledged) else event for event in HISTORY
    ],
    "no handler ever began": lambda: _without(Started, Effect, OutcomeRecorded, Dispatched),
    "0 faults of the kind 'rebalance' happened; the plan wants 1": lambda: [
        event for event in HISTORY if not (isinstance(event, FaultBegan) and event.kind == "rebalance")
    ],
    "1 faults of the kind 'kill' happened; the plan wants 2": lambda: [event for event in HISTORY if event not in KILLS[1:]],
    "rebalances caught 0 transactions; the plan wants 1": lambda: [
        event._replace(in_rebalance=False) if isinstance(event, TransactionFailed) else event for event in HISTORY
    ],
    "0 deaths were REDRIVEN; the plan wants 1": lambda: _without_closing(Closing.REDRIVEN),
    "0 deaths were DROPPED; the plan wants 1": lambda: _without_closing(Closing.DROPPED),
    "only model, store told of timer partition 1 at 'end'; the plan wants 3 witnesses": lambda: [
        event for event in HISTORY if not (isinstance(event, Snapshot) and event.witness == "fold" and event.partition == 1)
    ],
    "nothing was said to be healed": lambda: _without(Healed),
    "nobody looked at where the logs end after healing": lambda: _without(LogEnd),
    "nobody looked at what groups have left to read after healing": lambda: _without(Backlog),
    "nobody looked at intake [0] after healing": lambda: [
        event._replace(at_ms=0) if isinstance(event, LogEnd) and event.topic == "intake" and event.partition == 0 else event
        for event in HISTORY
    ],
}


@pytest.mark.parametrize("complaint", VACUOUS)
def test_what_is_missing_makes_it_vacuous(complaint: str) -> None:
    found = _shortcomings(VACUOUS[complaint]())
    assert any(complaint in sentence for sentence in found), found
    assert not judge(VACUOUS[complaint](), DEMANDING).proven


def test_89_of_100_acknowledged_are_too_few_and_90_are_enough() -> None:
    history = Faithful(Random(5), jobs=100, faults=False).run()
    asked = [event for event in history if isinstance(event, EnqueueInvoked)]
    calls = {event.call for event in asked}
    jobs = {event.job_id: [other.call for other in asked if other.job_id == event.job_id] for event in asked}

    def shortcomings(acknowledged: int) -> list[str]:
        """Of a history in which so many jobs were acknowledged."""
        told = {calls[0] for calls in list(jobs.values())[:acknowledged]}
        rest = [event for event in history if not (isinstance(event, Acknowledged | Unknown) and event.call in calls)]
        answers: list[Event] = [Acknowledged(0, call, 0, 0) for call in told]
        return list(judge(rest + answers, replace(PLAN, acknowledged_percent_min=90)).shortcomings)

    assert shortcomings(90) == []
    assert shortcomings(89) == ["89 of 100 jobs were acknowledged; the plan wants 90 %"]


def test_a_history_of_nothing_is_vacuous() -> None:
    assert _shortcomings([], Plan()) == ["0 jobs were asked for; the plan wants 1"]


def test_a_death_that_two_witnesses_saw_undone_is_one() -> None:
    undone = next(event for event in HISTORY if isinstance(event, DeathClosed) and event.how == Closing.REDRIVEN)
    history = [*_without_closing(Closing.REDRIVEN), undone, undone]
    assert judge(history, DEMANDING).redriven == 1
    assert "1 deaths were REDRIVEN; the plan wants 2" in _shortcomings(history, replace(DEMANDING, redriven_min=2))


def test_cancels_alone_are_no_jobs() -> None:
    assert _shortcomings([CancelInvoked(1, "c", "a")], Plan()) == ["0 jobs were asked for; the plan wants 1"]
