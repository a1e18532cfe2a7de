"""Whatever order deaths and their closings are read in, the same runs are open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.dead_runs import DeadRuns, DeadRunSummary, DeathName
from duewheel.core.model import Closing, DeadRunClosed

JOBS = st.sampled_from(["a", "b", "c"])
NAMES = st.tuples(JOBS, st.integers(1, 4))


class Topic(NamedTuple):
    """What was written, in some order: deaths, closings with what became of each, and either of them more than once."""

    deaths: frozenset[DeathName]
    closings: Mapping[DeathName, str]
    records: list[tuple[bool, DeathName]]  # whether it is a death


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    deaths = draw(st.frozensets(NAMES))
    closings = draw(st.dictionaries(NAMES, st.sampled_from(list(Closing))))
    records = [(True, name) for name in sorted(deaths)] + [(False, name) for name in sorted(closings)]
    again = draw(st.lists(st.sampled_from(records), max_size=5)) if records else []
    return Topic(deaths, closings, draw(st.permutations(records + again)))


def death(name: DeathName, task: str = "t") -> DeadRunSummary:
    return DeadRunSummary(
        partition=0, offset=name[1], job_id=name[0], token=name[1], died_ms=name[1], reason="failed", task=task, queue="q", slot_ms=0,
        attempts=5, crashes=0, error="OSError", message="away", payload_bytes=0,
    )  # fmt: skip


def folded(topic: Topic, runs: DeadRuns) -> DeadRuns:
    for dies, name in topic.records:
        if dies:
            runs.died(death(name))
        else:
            runs.closed(DeadRunClosed(job_id=name[0], token=name[1], closed_ms=9, how=topic.closings[name]))
    return runs


@given(topics())
def test_a_run_is_open_that_died_and_was_not_closed_under_the_same_token(topic: Topic) -> None:
    runs = folded(topic, DeadRuns())
    assert {run.name for run in runs.runs()} == topic.deaths - topic.closings.keys()
    assert all(run.how is None for run in runs.runs())
    assert runs.open_count == len(runs.runs())


@given(topics())
def test_a_closed_run_is_kept_with_what_became_of_it_where_that_is_asked_for(topic: Topic) -> None:
    runs = folded(topic, DeadRuns(keeps_closed=True))
    assert {run.name: run.how for run in runs.runs()} == {name: topic.closings.get(name) for name in topic.deaths}
    assert runs.open_count == len(topic.deaths - topic.closings.keys())


@given(topics(), JOBS)
def test_what_nobody_wants_is_not_kept_and_hides_nothing(topic: Topic, job_id: str) -> None:
    runs = folded(topic, DeadRuns(lambda run: run.job_id == job_id))
    assert {run.name for run in runs.runs()} == {name for name in topic.deaths - topic.closings.keys() if name[0] == job_id}
