"""Slots: strictly rising, the same from wherever they are asked for; and of missed slots none is forgotten, fired twice, or early."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from itertools import islice
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from duewheel.core.errors import RejectedJob
from duewheel.core.limits import (
    DAY_MS,
    DUE_MS_MAX,
    DUE_MS_MIN,
    GRACE_MS_DEFAULT,
    HOUR_MS,
    MINUTE_MS,
    MISFIRE_MAX_DEFAULT,
    SLOTS_COUNTED_MAX,
    SLOTS_ON_TIME_MAX,
)
from duewheel.core.overlap import look
from duewheel.core.recurrence import BadExpression, first_slot_ms, jittered_ms, missed, next_slot_ms, slots
from duewheel.core.recurrence_rules import check_recurrence
from tests.recurring import cron, every, every_after

RUNS_MAX = 10**9

dues = st.integers(DUE_MS_MIN, DUE_MS_MAX - 100 * 365 * DAY_MS // 2)


def fields(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.one_of(st.just("*"), spans), st.integers(1, most)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.one_of(st.just("*"), number.map(str), steps, spans, st.lists(number.map(str), min_size=1, max_size=3).map(",".join))


lines = st.one_of(
    st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 6)).map(" ".join),
    st.tuples(fields(0, 59), fields(0, 23)).map(lambda time: f"{' '.join(time)} * * *"),
    st.tuples(fields(0, 59), fields(0, 59), fields(0, 23)).map(lambda time: f"{' '.join(time)} * * *"),
    st.sampled_from(["@hourly", "@daily", "@weekly", "0 12 L * *", "30 2 * * 0L", "0 0 * * 1#2"]),
)
zones = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Kolkata"])
ends = st.one_of(st.just(0), st.integers(DUE_MS_MIN, DUE_MS_MAX))
jobs = st.one_of(
    st.builds(every, st.integers(1_000, 10**9), start_ms=st.one_of(st.just(0), dues), end_ms=ends),
    st.builds(every_after, st.integers(1_000, 10**9), start_ms=st.one_of(st.just(0), dues), end_ms=ends),
    st.builds(cron, lines, zones, start_ms=st.one_of(st.just(0), dues), end_ms=ends),
)


@given(jobs, dues)
def test_slots_rise_from_the_start_to_the_end(job: Any, due_ms: int) -> None:
    found = list(islice(slots(job, due_ms, 0), 20))
    assert found == sorted(set(found))
    assert first_slot_ms(job, due_ms) == (found[0] if found else 0)
    for slot_ms in found:
        assert max(due_ms, job["start_ms"]) <= slot_ms < (job["end_ms"] or DUE_MS_MAX + 1)


@given(jobs, dues, st.integers(-DAY_MS, DAY_MS))
def test_the_first_slot_will_do_as_the_anchor(job: Any, due_ms: int, after_ms: int) -> None:
    first_ms = first_slot_ms(job, due_ms)
    assume(first_ms)
    assert next_slot_ms(job, first_ms, first_ms + after_ms) == next_slot_ms(job, due_ms, first_ms + after_ms)


@given(jobs, dues, st.integers(0, 10**10))
def test_between_a_moment_and_the_next_slot_the_answer_is_the_same(job: Any, due_ms: int, later_ms: int) -> None:
    assume(job["kind"] != "EVERY_AFTER")
    slot_ms = next_slot_ms(job, due_ms, due_ms + later_ms)
    assume(slot_ms)
    for after_ms in (slot_ms - 1, (due_ms + later_ms + slot_ms) // 2):
        assert next_slot_ms(job, due_ms, min(after_ms, slot_ms - 1)) == slot_ms
    assert next_slot_ms(job, due_ms, slot_ms) != slot_ms


@given(
    jobs,
    dues,
    st.sampled_from(["ONCE", "SKIP", "ALL"]),
    st.sampled_from(["SKIP", "ALLOW", "QUEUE", "REPLACE"]),
    st.integers(0, 30),
    st.one_of(st.integers(-10, 2 * MINUTE_MS), st.integers(0, 2 * HOUR_MS)),
    st.booleans(),
)
def test_the_look_at_one_slot_on_time_is_no_other(
    job: Any, due_ms: int, misfire: str, overlap: str, skip: int, late_ms: int, is_run: bool
) -> None:
    """There is a shorter way for it, which a limit of runs bars."""
    pending_ms = next(islice(slots(job, due_ms, 0), skip, None), 0)
    assume(pending_ms)
    found = [
        look(
            job | {"misfire": misfire, "overlap": overlap, "runs_max": runs_max},
            due_ms,
            pending_ms=pending_ms,
            queued_ms=0,
            going=[],
            handed_out=7,
            now_ms=pending_ms + late_ms,
            fits=200,
            has_run=lambda slot_ms: is_run and slot_ms == pending_ms,
        )
        for runs_max in (0, RUNS_MAX)
    ]
    assert found[0] == found[1]


@given(st.builds(every, st.integers(1_000, 10**9), jitter_ms=st.integers(0, 10**9)), st.text(max_size=9), dues)
def test_jitter_keeps_its_bounds(job: Any, job_id: str, slot_ms: int) -> None:
    assert slot_ms <= jittered_ms(job, job_id, slot_ms) <= slot_ms + job["jitter_ms"]


@given(
    jobs,
    dues,
    st.sampled_from(["ONCE", "SKIP", "ALL"]),
    st.integers(0, 100),
    st.one_of(st.just(0), st.integers(1, HOUR_MS)),
    st.one_of(st.just(0), st.integers(1, HOUR_MS)),
    st.one_of(st.integers(0, 2 * HOUR_MS), st.integers(0, 30 * DAY_MS)),
    st.integers(0, 3),
)
def test_what_was_missed(job: Any, due_ms: int, misfire: str, most: int, grace_ms: int, jitter_ms: int, late_ms: int, skip: int) -> None:
    assume(job["kind"] != "EVERY_AFTER")
    job |= {"misfire": misfire, "misfire_max": most, "grace_ms": grace_ms, "jitter_ms": jitter_ms}
    pending_ms = next(islice(slots(job, due_ms, 0), skip, None), 0)
    assume(pending_ms)
    now_ms = pending_ms + late_ms
    due = [pending_ms]
    for slot_ms in slots(job, due_ms, pending_ms):
        if slot_ms > now_ms or len(due) > 3_000:
            break
        due.append(slot_ms)
    assume(len(due) <= 3_000)

    found = missed(job, due_ms, pending_ms, now_ms)

    late_before_ms = now_ms - (grace_ms or GRACE_MS_DEFAULT) - jitter_ms
    on_time = due[max(bisect_left(due, late_before_ms), len(due) - SLOTS_ON_TIME_MAX) :]
    late = due[: len(due) - len(on_time)]
    count = {"SKIP": 0, "ONCE": 1, "ALL": most or MISFIRE_MAX_DEFAULT}[misfire]
    assert list(found.fire) == [*(late[-count:] if count else []), *on_time]
    assert found.next_ms == next_slot_ms(job, due_ms, now_ms)
    assert found.fire[bisect_right(found.fire, now_ms) :] == ()
    skipped = len(due) - len(found.fire)
    assert found.skipped == (SLOTS_COUNTED_MAX if job["kind"] == "CRON" and len(due) > SLOTS_COUNTED_MAX else skipped)


@given(st.one_of(lines, st.text("0123456789*/,-#L @amondyJUN", max_size=20), st.text(max_size=20)), zones, dues)
def test_any_text_is_a_line_or_refused(text: str, zone: str, due_ms: int) -> None:
    with suppress(BadExpression):
        slot_ms = first_slot_ms(cron(text, zone), due_ms)
        assert slot_ms == 0 or slot_ms >= due_ms


@given(jobs, dues)
def test_what_keeps_the_rules_has_a_slot(job: Any, due_ms: int) -> None:
    with suppress(RejectedJob):
        check_recurrence(job, due_ms)
        assert first_slot_ms(job, due_ms) > 0
