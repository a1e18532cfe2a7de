"""The verdict on a history: what was broken, whether it proves anything, and the figures.

    report = judge(history, Plan(faults={"kill": 6}))
    report.proven          nothing was broken, and enough was exercised
    report.rows()          [("jobs", "5,000"), ("faults: kill", "6"), ("lost", "0"), …] for a table
    report.as_dict()       the same and more, for --json

A million events take well under a minute, and about 600 MB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Closing, Result
from duewheel.core.percentile import percentile
from duewheel.proof.history import Event
from duewheel.proof.invariants import INVARIANTS, Violation
from duewheel.proof.ledger import Ledger, Run, Story
from duewheel.proof.plan import Plan
from duewheel.proof.vacuity import shortcomings

# So many violations are told whole in a dict; all are counted.
_TOLD_MAX = 100

# Handed out again after these, or after nothing, an attempt was lost; after any other outcome, its time had come anew.
_LOST = frozenset({Result.LOST, Result.INTERRUPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the checker found.

    Attributes:
        violations: every broken promise.
        shortcomings: why the run is vacuous; empty where it is not.
        jobs: that were asked for; `acknowledged` of them for certain.
        faults: how many of each kind.
        executions: how often handlers began; `repeated` of them for a run that had begun before, without a failure that it was retried for.
        effects_refused: how often the sink refused a lower token.
        redriven, dropped: deaths that were undone, and that were dropped.
        outcomes_stale: final outcomes under a token that was not the run's newest, nor accepted.
        recoveries_ms: of each fault that delayed anything, how long after its end the last of it went on; rising.
    """

    violations: Sequence[Violation]
    shortcomings: Sequence[str]
    events: int
    jobs: int
    acknowledged: int
    faults: dict[str, int]
    caught_transactions: int
    executions: int
    repeated: int
    redriven: int
    dropped: int
    effects_refused: int
    outcomes_stale: int
    recoveries_ms: Sequence[int]

    @property
    def proven(self) -> bool:
        """Nothing was broken, and enough was exercised for that to mean something."""
        return not self.violations and not self.shortcomings

    @property
    def recovery_p50_ms(self) -> int | None:
        return percentile(self.recoveries_ms, 50) if self.recoveries_ms else None

    @property
    def recovery_max_ms(self) -> int | None:
        return self.recoveries_ms[-1] if self.recoveries_ms else None

    @property
    def broken(self) -> dict[str, int]:
        """How often each promise was broken, by its title; those that were kept at 0."""
        counts = Counter(violation.invariant for violation in self.violations)
        return {invariant.title: counts[invariant.name] for invariant in INVARIANTS}

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, for a table."""
        unit = "" if self.recovery_p50_ms is None else " ms"
        return [
            ("jobs", f"{self.jobs:,}"),
            ("acknowledged", f"{self.acknowledged:,}"),
            *((f"faults: {kind}", f"{count:,}") for kind, count in sorted(self.faults.items())),
            ("transactions caught by rebalances", f"{self.caught_transactions:,}"),
            ("executions", f"{self.executions:,}"),
            ("repeated", f"{self.repeated:,}"),
            ("redriven", f"{self.redriven:,}"),
            ("dropped", f"{self.dropped:,}"),
            ("stale refused", f"{self.effects_refused + self.outcomes_stale:,}"),
            ("recovery p50", f"{_or_dash(self.recovery_p50_ms)}{unit}"),
            ("recovery max", f"{_or_dash(self.recovery_max_ms)}{unit}"),
            *((title, f"{count:,}") for title, count in self.broken.items()),
        ]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "proven": self.proven,
            "events": self.events,
            "jobs": self.jobs,
            "acknowledged": self.acknowledged,
            "faults": dict(sorted(self.faults.items())),
            "caught_transactions": self.caught_transactions,
            "executions": self.executions,
            "repeated": self.repeated,
            "redriven": self.redriven,
            "dropped": self.dropped,
            "effects_refused": self.effects_refused,
            "outcomes_stale": self.outcomes_stale,
            "recovery_p50_ms": self.recovery_p50_ms,
            "recovery_max_ms": self.recovery_max_ms,
            "broken": self.broken,
            "vacuous": list(self.shortcomings),
            "violations": [_told(violation) for violation in self.violations[:_TOLD_MAX]],
        }


def judge(history: Iterable[Event], plan: Plan | None = None) -> Report:
    """Checks every invariant, and that the run exercised what the plan demands."""
    ledger = Ledger(history, plan)
    stories = ledger.stories.values()
    closed = ledger.deaths_closed()
    repeats = sum(_repeated(story, run) for story in stories for run in story.runs)
    return Report(
        violations=[violation for invariant in INVARIANTS for violation in invariant.check(ledger)],
        shortcomings=shortcomings(ledger),
        events=ledger.events,
        jobs=sum(bool(story.enqueues) for story in stories),
        acknowledged=ledger.jobs_acknowledged(),
        faults=dict(Counter(fault.kind for fault in ledger.faults)),
        caught_transactions=sum(failed.in_rebalance for failed in ledger.failed_transactions),
        executions=sum(len(story.starts) for story in stories),
        repeated=repeats,
        redriven=closed[Closing.REDRIVEN],
        dropped=closed[Closing.DROPPED],
        effects_refused=sum(not effect.accepted for story in stories for effect in story.effects),
        outcomes_stale=sum(_stale(story) for story in stories if len(story.dispatches) > 1),
        recoveries_ms=recoveries_ms(ledger),
    )


def recoveries_ms(ledger: Ledger) -> list[int]:
    """Of each fault that delayed anything, how long after its end the last that it had delayed went on.

    Delayed is whatever was ready, or had been handed out and came to nothing, before the fault's end, and began after it. Rising.
    """
    ends_ms = sorted({fault.ended_ms for fault in ledger.faults})
    if not ends_ms:
        return []
    longest: dict[int, int] = {}
    for story in ledger.stories.values():
        for from_ms, to_ms in _delays(ledger, story):
            place = bisect_left(ends_ms, from_ms)
            while place < len(ends_ms) and ends_ms[place] < to_ms:
                end_ms = ends_ms[place]
                longest[end_ms] = max(to_ms - end_ms, longest.get(end_ms, 0))
                place += 1
    return sorted(longest[fault.ended_ms] for fault in ledger.faults if fault.ended_ms in longest)


def _delays(ledger: Ledger, story: Story) -> Iterator[tuple[int, int]]:
    """From when to when something of a job could have begun and did not."""
    began = {start.token: start.at_ms for start in story.starts}
    for run in story.runs:
        if not run.dispatches or run.defined is None:
            continue
        first = run.dispatches[0]
        answer = ledger.acknowledged(run.asked.call) if run.asked is not None else None
        stored_ms = run.defined.at_ms if answer is None else answer.at_ms
        paused_ms = max((pause.until.at_ms for pause in story.pauses if pause.until is not None and pause.token < first.token), default=0)
        yield max(run.defined.due_ms, stored_ms, paused_ms), began.get(first.token, first.at_ms)
        for dispatches in run.rounds():
            for before, after in pairwise(dispatches):
                outcome = story.deciding.get(before.token)
                if outcome is None or outcome.result in _LOST:
                    yield began.get(before.token, before.at_ms), began.get(after.token, after.at_ms)


def _repeated(story: Story, run: Run) -> int:
    """Executions of a run that followed one which nobody reported on."""
    if len(run.dispatches) < 2:
        return 0
    began = {start.token for start in story.starts}
    unreported = 0
    repeated = 0
    for dispatch in run.dispatches:
        repeated += bool(unreported) and dispatch.token in began
        outcome = story.deciding.get(dispatch.token)
        unreported = dispatch.token in began and (outcome is None or outcome.result in _LOST)
    return repeated


def _stale(story: Story) -> int:
    """Final outcomes that were recorded under a token, and not accepted, since the run had gone on under another."""
    accepted = {end.token for run in story.runs for end in run.ends}
    newest = {id(run): run.dispatches[-1].token for run in story.runs if run.dispatches}
    count = 0
    for outcome in story.outcomes:
        run = story.run_of(outcome.token)
        if run is not None and outcome.result in TERMINAL and outcome.token not in accepted and outcome.token < newest[id(run)]:
            count += 1
    return count


def _told(violation: Violation) -> dict[str, Any]:
    return {
        "invariant": violation.invariant,
        "job_id": violation.job_id,
        "sentence": violation.sentence,
        "events": [{"event": type(event).__name__, **event._asdict()} for event in violation.events],
    }


def _or_dash(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
