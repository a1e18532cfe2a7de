"""A faithful installation agrees with itself, whatever happened to it, and whatever is left of its logs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from duewheel.core.limits import DAY_MS, MINUTE_MS
from duewheel.core.model import Action, OnConflict, Result
from duewheel.core.step import ADMITTED, Admission
from duewheel.core.store_audit import PROGRESS
from tests.audit_world import START_MS, DictStore, Life, differences, schedule, store_differences

jobs = st.sampled_from(["a", "a", "a", "b"])
spans = st.sampled_from([1, 40, 700, 2 * MINUTE_MS])
limits = st.one_of(
    st.none(),
    st.builds(
        lambda expires, total, crashes: {"expires_ms": expires and START_MS + expires, "total_timeout_ms": total, "crashes_max": crashes},
        st.sampled_from([0, 100, MINUTE_MS]),
        st.sampled_from([0, 300]),
        st.sampled_from([0, 1]),
    ),
)
DELIVERY: Any = {"topic": "orders", "key": b"k", "tombstone": False}
deliveries = st.sampled_from([None, None, DELIVERY])
schedules = st.tuples(st.just("schedule"), jobs, st.sampled_from([-50, 0, 1, 40, 700]), st.sampled_from(OnConflict), limits, deliveries)
often = [Result.RETRY, Result.STARTED, Result.LOST, Result.FAILED]
outcomes = st.tuples(st.just("outcome"), jobs, st.sampled_from([*Result, *often, *often]), st.sampled_from([0, 0, 0, -1]), spans)
waits = st.tuples(st.just("wait"), st.sampled_from([0, 1, 39, 41, 250, 1_000, 3 * MINUTE_MS, 15 * DAY_MS]))
others = st.one_of(
    st.tuples(st.sampled_from(["cancel", "redrive", "drop", "forget", "overdue"]), jobs),
    st.tuples(st.just("queue"), st.booleans()),
    st.tuples(st.just("topic"), st.sampled_from([ADMITTED, Admission(1), Admission(MINUTE_MS), Admission(refused="no")])),
)
changes = st.tuples(
    st.just("change"),
    jobs,
    st.one_of(
        st.tuples(st.sampled_from([Action.PAUSE, Action.RESUME, Action.RUN_NOW]), st.just({})),
        st.tuples(st.just(Action.UPDATE), st.fixed_dictionaries({"payload": st.sampled_from([b"1", b"2", b"3"])})),
        st.tuples(st.just(Action.UPDATE), st.fixed_dictionaries({"due_ms": st.sampled_from([START_MS, START_MS + 700])})),
        st.tuples(
            st.just(Action.UPDATE), st.fixed_dictionaries({"limits": limits.filter(bool), "retention_ms": st.sampled_from([0, 400])})
        ),
    ),
)
histories = st.lists(st.one_of(schedules, schedules, outcomes, outcomes, waits, waits, others, changes, changes), min_size=3, max_size=40)


def live(history: list[tuple[Any, ...]]) -> Life:
    life = Life()
    for number, (kind, *what) in enumerate(history):
        if kind == "schedule":
            job_id, due_in_ms, on_conflict, bounds, delivery = what
            due_ms = life.now_ms + due_in_ms
            fields = {"created_ms": life.now_ms + number, "on_conflict": on_conflict, "limits": bounds, "retention_ms": 50}
            life.command(schedule(job_id, due_ms, delivery=delivery, **fields))
        elif kind == "outcome":
            job_id, result, older, span_ms = what
            life.outcome(job_id, result, token=max(0, life.token(job_id) + older), retry_after_ms=span_ms, lease_ms=span_ms)
        elif kind == "wait":
            life.pass_time(what[0])
        elif kind == "queue":
            life.has_queue = what[0]
        elif kind == "topic":
            life.takes = what[0]
        elif kind == "change":
            job_id, (action, given) = what
            life.modify(action, job_id, **given)
        elif kind == "forget":
            life.forget(what[0])
        elif kind == "overdue":
            job_id = what[0]
            life.step(lambda step, job_id=job_id: step.overdue(job_id, life.token(job_id)))  # type: ignore[misc]
        else:
            life.change(kind, what[0])
    return life


@settings(max_examples=400, deadline=None)
@given(histories)
def test_what_obeys_the_rules_agrees(history: list[tuple[Any, ...]]) -> None:
    life = live(history)
    assert differences(life.logs, life.now_ms) == []


@settings(max_examples=200, deadline=None)
@given(histories, st.integers(0, 40), st.integers(0, 100))
def test_so_does_what_compaction_left_of_the_state_topic(history: list[tuple[Any, ...]], cleaned: int, unseen: int) -> None:
    """Of what was cleaned the newest of each key is left, and deletions may be gone."""
    life = live(history)
    logs = life.logs
    newest = {key: index for index, (_, key, _) in enumerate(logs.state[:cleaned])}
    logs.state = [
        entry
        for index, entry in enumerate(logs.state)
        if index >= cleaned or (newest[entry[1]] == index and (entry[2] is not None or index >= unseen))
    ]
    assert differences(logs, life.now_ms) == []


@settings(max_examples=200, deadline=None)
@given(histories, st.data())
def test_a_store_agrees_at_any_moment_and_its_mark_may_be_older(history: list[tuple[Any, ...]], data: st.DataObject) -> None:
    before = live(history[: data.draw(st.integers(0, len(history)))])
    life = live(history)
    store = DictStore(before)
    ends = [0] + [index + 1 for index, (_, key, _) in enumerate(before.logs.state) if key == PROGRESS]
    found, comparison = store_differences(life.logs, store, data.draw(st.sampled_from(ends)))
    assert found == []
    assert comparison.compared == len(store.values)


@settings(max_examples=300, deadline=None)
@given(histories, st.dictionaries(st.sampled_from(["intake", "outcomes", "dead letters", "dispatch default"]), st.integers(0, 40)))
def test_what_is_not_kept_any_more_is_no_difference(history: list[tuple[Any, ...]], cuts: dict[str, int]) -> None:
    life = live(history)
    for name, index in cuts.items():
        times = [START_MS, *(at_ms for at_ms, _, _ in life.logs.state)]
        life.logs.since_ms[name] = times[min(index, len(times) - 1)]
    assert differences(life.logs, life.now_ms) == []
