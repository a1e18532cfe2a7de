"""Whatever happens to a recurring job and its runs: no slot runs twice, overlaps are as asked for, nothing waits for ever, logs agree."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from duewheel.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from duewheel.core.model import Misfire, OnConflict, Overlap, Phase, Result
from duewheel.core.run_ids import run_id
from duewheel.core.wheel import due_of, job_of
from tests.audit_world import DictStore, Life, differences, schedule, store_differences
from tests.recurring import cron, every, every_after

kinds = st.sampled_from([every(MINUTE_MS), every(10 * SECOND_MS), every_after(MINUTE_MS), cron("* * * * *"), cron("*/20 * * * * *")])
rules = st.fixed_dictionaries(
    {
        "misfire": st.sampled_from(list(Misfire)).map(str),
        "overlap": st.sampled_from(list(Overlap)).map(str),
        "overlap_max": st.sampled_from([0, 1, 2]),
        "runs_max": st.sampled_from([0, 0, 0, 1, 3]),
        "end_ms": st.sampled_from([0, 0, 0, 5 * MINUTE_MS]),  # from when it is defined; one that had passed would be refused
        "jitter_ms": st.sampled_from([0, 0, 9 * SECOND_MS]),
    }
)
recurrences = st.builds(lambda kind, rule: {**kind, **rule}, kinds, rules)
OFTEN = [Result.SUCCEEDED, Result.FAILED, Result.RETRY]
happenings = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 5 * SECOND_MS, 20 * SECOND_MS, MINUTE_MS, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS])),
    st.tuples(st.just("outcome"), st.integers(0, 3), st.sampled_from([*OFTEN, *OFTEN, Result.STARTED, Result.LOST, Result.CANCELLED])),
    st.tuples(st.sampled_from(["cancel run", "redrive run"]), st.integers(0, 3)),
    st.tuples(st.just("define"), recurrences, st.sampled_from([-30 * SECOND_MS, 0, MINUTE_MS, None, None])),
    st.tuples(st.sampled_from(["cancel", "forget"])),
)
histories = st.lists(st.one_of(happenings, happenings.filter(lambda happening: happening[0] in ("wait", "outcome"))), max_size=40)


def begun(life: Life) -> list[str]:
    """Runs that were dispatched, the newest first."""
    return list(dict.fromkeys(d.job_id for d in reversed(life.logs.dispatches)))


def happen(life: Life, kind: str, *what: Any) -> None:
    runs = begun(life)
    if kind == "wait":
        life.pass_time(what[0])
    elif kind == "define":
        recurrence, due_in_ms = what
        known = life.defined("r")
        if due_in_ms is None:  # with the anchor of the one before, so that it goes on with that
            due_in_ms = 0 if known is None else known.due_ms - life.now_ms
        recurrence = {**recurrence, "end_ms": recurrence["end_ms"] and life.now_ms + recurrence["end_ms"]}
        fields = {"created_ms": life.now_ms, "on_conflict": OnConflict.REPLACE, "recurrence": recurrence, "retention_ms": DAY_MS}
        life.command(schedule("r", life.now_ms + due_in_ms, **fields))
    elif kind in ("cancel", "forget"):
        life.change("cancel", "r") if kind == "cancel" else life.forget("r")
    elif what[0] < len(runs):
        if kind == "outcome":
            life.outcome(runs[what[0]], what[1])
        else:
            life.change(kind.removesuffix(" run"), runs[what[0]])


def goes_on(life: Life, slot_ms: int) -> bool:
    job_id = run_id("r", slot_ms)
    state = life.state(job_id)
    return life.defined(job_id) is not None and (state is None or state["phase"] not in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))


def check_waits(life: Life) -> None:
    """A recurring job that goes on waits for a time, or for a run that will end."""
    known, state = life.defined("r"), life.state("r")
    if known is None or known.recurrence is None or state is None or state["phase"] != Phase.WAITING:
        return
    trail = state["trail"]
    assert trail is not None
    going = [slot_ms for slot_ms in trail["runs"] if goes_on(life, slot_ms)]
    assert {due_of(key) for key in life.timers if job_of(key) == "r"} >= ({trail["wake_ms"]} if trail["wake_ms"] else set())
    assert trail["wake_ms"] or going
    if trail["queued_ms"]:
        assert going or trail["wake_ms"] <= life.now_ms


@settings(max_examples=300, deadline=None)
@given(recurrences, histories)
def test_whatever_happens_to_a_recurring_job(recurrence: Any, history: list[tuple[Any, ...]]) -> None:
    life = Life()
    for happening in [("define", recurrence, 0), *history]:
        happen(life, *happening)
        check_waits(life)
    life.pass_time(0)
    firsts = Counter(job_id for job_id, token in {(d.job_id, d.token) for d in life.logs.dispatches})
    told = Counter(record["job_id"] for _, record in life.logs.outcomes)
    redriven = Counter(record["job_id"] for _, name, record in life.logs.intake if name == "redrive")
    assert all(count <= 1 + told[job_id] + redriven[job_id] for job_id, count in firsts.items())
    assert all(d.dispatched_ms >= d.slot_ms >= int(d.job_id.rpartition("@")[2]) for d in life.logs.dispatches)
    assert differences(life.logs, life.now_ms) == []
    assert store_differences(life.logs, DictStore(life))[0] == []


@settings(max_examples=200, deadline=None)
@given(
    kinds,
    st.sampled_from(list(Misfire)),
    st.sampled_from([(Overlap.SKIP, 1), (Overlap.QUEUE, 1), (Overlap.ALLOW, 2)]),
    st.lists(happenings.filter(lambda happening: happening[0] in ("wait", "outcome", "cancel run")), max_size=40),
)
def test_no_more_runs_go_on_than_may(kind: Any, misfire: str, overlap: tuple[str, int], history: list[tuple[Any, ...]]) -> None:
    life = Life()
    rule, most = overlap
    happen(life, "define", {**kind, "misfire": misfire, "overlap": rule, "overlap_max": 2 if rule == Overlap.ALLOW else 0}, 0)
    for happening in history:
        happen(life, *happening)
        slots_ms = {int(job_id.rpartition("@")[2]) for job_id in begun(life)}
        assert sum(goes_on(life, slot_ms) for slot_ms in slots_ms) <= most


def test_a_slot_that_waited_its_turn_is_no_phantom_under_a_definition_that_does_not_have_it() -> None:
    life = Life()
    happen(life, "define", every(10 * SECOND_MS, overlap="QUEUE"), 0)
    happen(life, "wait", 0)
    happen(life, "wait", 15 * SECOND_MS)
    happen(life, "define", every(MINUTE_MS, overlap="QUEUE"), None)
    happen(life, "wait", SECOND_MS)
    happen(life, "outcome", 0, Result.SUCCEEDED)
    happen(life, "wait", SECOND_MS)
    assert len(begun(life)) == 2
    assert differences(life.logs, life.now_ms) == []
