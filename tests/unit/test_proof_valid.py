"""The checker finds nothing wrong with faithful systems, whatever was done to them."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from duewheel.core.model import Phase, Result
from duewheel.core.step import Reason
from duewheel.proof.history import Committed, Delivered, Event, OffsetsReset, OutcomeRecorded, RunDied, StateWritten, from_line, to_line
from duewheel.proof.report import Report, judge
from tests.faithful import PLAN, Faithful

SEEDS = st.integers(0, 2**32)


def _found(report: Report) -> list[str]:
    return [*map(str, report.violations), *report.shortcomings]


@given(SEEDS, st.integers(1, 25), st.integers(1, 3), st.booleans(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_a_faithful_history_passes(seed: int, jobs: int, partitions: int, faults: bool, recurring: int) -> None:
    report = judge(Faithful(Random(seed), jobs, partitions, faults, recurring).run(), PLAN)
    # A few jobs may all have been refused, or cancelled: then the run proves nothing, rightly.
    assert [str(violation) for violation in report.violations] == []
    assert set(report.shortcomings) <= {"no handler ever began"}


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_only_the_order_within_a_witness_counts(seed: int) -> None:
    def witness(event: Event) -> str:
        return "offsets" if isinstance(event, Committed | OffsetsReset) else type(event).__name__

    history = Faithful(Random(seed)).run()
    assert _found(judge(sorted(history, key=witness), PLAN)) == []


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_history_from_a_file_is_judged_alike(seed: int) -> None:
    history = Faithful(Random(seed)).run()
    read = [from_line(to_line(event)) for event in history]
    assert read == history
    assert judge(read, PLAN).as_dict() == judge(history, PLAN).as_dict()


def test_faithful_histories_have_everything_in_them() -> None:
    """Else the tests above would say little, and the mutations would find nothing to mutate."""
    phases: Counter[str] = Counter()
    results: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    reports = []
    for seed in range(40):
        history = Faithful(Random(seed)).run()
        phases.update(event.phase for event in history if isinstance(event, StateWritten))
        delivered.update(event.job_id for event in history if isinstance(event, Delivered))
        refused = [event for event in history if isinstance(event, RunDied) and event.reason == Reason.REFUSED]
        delivered["refused"] += len(refused)
        results.update(event.result for event in history if isinstance(event, OutcomeRecorded))
        reports.append(judge(history, PLAN))
    assert set(phases) == set(Phase)
    assert set(results) == set(Result)
    assert delivered.total() - delivered["refused"] > 40 < 10 * delivered["refused"]
    assert sum(report.effects_refused for report in reports) > 10
    assert sum(report.outcomes_stale for report in reports) > 10
    assert sum(report.repeated for report in reports) > 100
    assert all(report.caught_transactions == 1 for report in reports)
