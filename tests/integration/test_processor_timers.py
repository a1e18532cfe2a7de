"""Jobs at their time, on a real broker."""

from __future__ import annotations

import time
from typing import Any

from duewheel.adapters.kafka.topics import ensure
from duewheel.core.errors import Reason
from duewheel.core.model import OnConflict, Phase, Result
from duewheel.core.topology import partition_of
from duewheel.engine.partition import Stage
from tests.foreign import publish_with_librdkafka
from tests.integration.desk import (
    DAY_MS,
    PARTITIONS,
    Desk,
    HandClock,
    home,
    job_ids,
    now_ms,
    raw_cancel,
    raw_schedule,
)

HOUR_MS = 3_600_000


def test_T1_a_cancel_by_another_partitioner_cancels(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(40)
    due_ms = now_ms() + 2_000
    desk.publish(raw_schedule(job_id, due_ms) for job_id in ids)
    cancels = [raw_cancel(job_id) for job_id in ids[:20]]
    receipts = publish_with_librdkafka(desk.kafka, desk.topology.intake, [(r.key or b"", r.value or b"") for r in cancels])
    assert any(receipt.partition != home(job_id) for receipt, job_id in zip(receipts, ids, strict=False)), "none went astray"
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 20)
    desk.drive_for(processor, seconds=0.3)
    assert desk.dispatched() == sorted(ids[20:])
    assert {job_id: desk.phases()[job_id] for job_id in ids[:20]} == dict.fromkeys(ids[:20], Phase.CANCELLED)


def test_T1_a_job_on_the_wrong_partition_is_forwarded_and_runs_once(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(40)
    records = [raw_schedule(job_id, now_ms()) for job_id in ids]
    receipts = publish_with_librdkafka(desk.kafka, desk.topology.intake, [(r.key or b"", r.value or b"") for r in records])
    assert any(receipt.partition != home(job_id) for receipt, job_id in zip(receipts, ids, strict=True))
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 40)
    desk.leave(processor)
    assert desk.dispatched() == sorted(ids)
    assert {d["timer_partition"] == partition_of(d["job_id"].encode(), PARTITIONS) for d in desk.all_dispatches()} == {True}


def test_T2_a_past_due_job_fires_once_and_not_again_after_a_restart(desk: Desk) -> None:
    processor = desk.active()
    desk.publish(raw_schedule(job_id, now_ms() - DAY_MS) for job_id in job_ids(8))
    published = time.monotonic()
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 8)
    assert time.monotonic() - published < 2.0, "at once"
    desk.leave(processor)
    again = desk.active()
    desk.drive_for(again, seconds=0.5)
    assert desk.dispatched() == job_ids(8)


def test_T2_a_past_due_job_published_while_nobody_ran_fires_once(desk: Desk) -> None:
    """Whether it was due when it was made, or had to wait at first."""
    due_ms = now_ms() - DAY_MS
    desk.publish(raw_schedule(job_id, due_ms, created_ms=due_ms) for job_id in job_ids(8, prefix="at-once"))
    desk.publish(raw_schedule(job_id, due_ms, created_ms=due_ms - 1) for job_id in job_ids(8, prefix="waited"))
    processor = desk.processor()
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 16)
    desk.leave(processor)
    again = desk.active("b")
    desk.drive_for(again, seconds=0.3)
    assert desk.dispatched() == job_ids(8, prefix="at-once") + job_ids(8, prefix="waited")


def test_T3_a_cancel_behind_its_due_job_in_one_batch_wins(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(200, partition=0)
    desk.publish(record for job_id in ids for record in (raw_schedule(job_id, now_ms()), raw_cancel(job_id)))
    desk.drive(processor, until=lambda: len(desk.seen(desk.topology.state)) > 200)
    desk.leave(processor)
    assert desk.phases() == dict.fromkeys(ids, Phase.CANCELLED)
    assert desk.dispatched() == []


def test_T3_a_cancel_in_a_later_batch_stops_what_comes_after_the_dispatch(desk: Desk) -> None:
    processor = desk.active()
    desk.schedule("job", now_ms())
    desk.drive(processor, until=desk.dispatches)
    desk.cancel("job")
    desk.drive(processor, until=lambda: desk.phases() == {"job": Phase.CANCELLING})
    desk.answer(desk.dispatches(), Result.LOST)
    desk.drive(processor, until=lambda: desk.phases() == {"job": Phase.CANCELLED})
    desk.leave(processor)
    assert desk.dispatched() == ["job"]


def test_T3_catching_up_no_job_fires_whose_cancel_lies_batches_further_on(desk: Desk) -> None:
    """Jobs came due while nobody ran; their cancels lie behind thousands of other commands, and behind a restart half-way."""
    waited, others = job_ids(50, partition=1), job_ids(9_000, partition=1, prefix="other")
    due_ms, created_ms = now_ms() - 1_000, now_ms() - 2_000
    desk.publish(raw_schedule(job_id, due_ms, created_ms=created_ms) for job_id in waited)
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in others)
    desk.publish(raw_cancel(job_id) for job_id in waited[10:])
    first = desk.processor("a")
    desk.drive(first, until=lambda: desk.seen(desk.topology.state))
    assert first.stages[1] < Stage.ACTIVE, "nothing was left to catch up with"
    desk.leave(first)
    second = desk.active("b")
    desk.drive(second, until=lambda: len(desk.dispatches()) >= 10)
    desk.leave(second)
    assert desk.dispatched() == sorted(waited[:10])
    assert desk.phases() == dict.fromkeys(waited[:10], Phase.DISPATCHED) | dict.fromkeys(waited[10:], Phase.CANCELLED)


def test_T4_wrong_units_become_one_dead_letter_each_and_nothing_fires(desk: Desk) -> None:
    processor = desk.active()
    in_seconds = now_ms() // 1_000
    wrong = {
        "seconds": ("due_ms", in_seconds, Reason.DUE_TOO_EARLY, f"{in_seconds * 1_000}"),
        "microseconds": ("due_ms", in_seconds * 1_000_000, Reason.DUE_TOO_LATE, f"{in_seconds * 1_000}"),
        "endless": ("due_ms", 2**63 - 1, Reason.DUE_TOO_LATE, str(2**63 - 1)),
        "before-time": ("due_ms", -(2**63), Reason.DUE_TOO_EARLY, str(-(2**63))),
        "zero": ("due_ms", 0, Reason.DUE_TOO_EARLY, "1970"),
        "kept-for-ever": ("retention_ms", 2**63 - 1, Reason.BAD_RETENTION, str(2**63 - 1)),
    }
    fields: dict[str, Any]
    for job_id, (field, value, _, _) in wrong.items():
        fields = {"due_ms": now_ms(), field: value}
        desk.publish([raw_schedule(job_id, **fields)])
    desk.publish(raw_schedule(f"good-{job_id}", now_ms()) for job_id in job_ids(8))
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 8)
    desk.drive(processor, until=lambda: len(desk.seen(desk.topology.dead_letter)) >= len(wrong))
    desk.leave(processor)
    assert desk.dispatched() == [f"good-{job_id}" for job_id in job_ids(8)]
    letters = {(letter["key"] or b"").decode(): letter for letter in desk.dead_letters()}
    assert {job_id: letter["reason"] for job_id, letter in letters.items()} == {
        job_id: reason for job_id, (_, _, reason, _) in wrong.items()
    }
    assert len(desk.dead_letters()) == len(wrong)
    for job_id, (_, _, _, said) in wrong.items():
        assert said in letters[job_id]["message"]


def test_T5_thirty_thousand_due_at_once_hold_up_nothing(desk: Desk) -> None:
    """While the backlog drains, new jobs are dispatched before its end, and cancels of its last jobs are obeyed."""
    backlog, due_ms = [f"backlog-{n:05}" for n in range(30_000)], now_ms()
    yesterday = HandClock()
    yesterday.ahead_ms = -DAY_MS
    first = desk.active(clock=yesterday)
    desk.publish(raw_schedule(job_id, due_ms) for job_id in backlog)
    desk.drive(first, until=lambda: sum(m.key() != b"p" for m in desk.seen(desk.topology.state)) >= len(backlog))
    desk.leave(first)
    urgent: list[str] = []

    def drained() -> bool:
        seen = len(desk.dispatches())
        if not urgent and seen:
            desk.publish(raw_cancel(job_id) for job_id in backlog[-400:])
        if 0 < seen < 20_000:
            urgent.append(f"urgent-{len(urgent)}")
            desk.schedule(urgent[-1], now_ms())
        return seen > 29_000 and is_quiet(desk)

    second = desk.active()
    desk.drive(second, until=drained, timeout_s=60)
    desk.leave(second)
    dispatches = desk.all_dispatches()
    cancelled = {job_id for job_id, phase in desk.phases().items() if phase == Phase.CANCELLED}
    assert len(cancelled) >= 200
    assert sorted(d["job_id"] for d in dispatches) == sorted((*(set(backlog) - cancelled), *urgent))
    began_ms = min(d["dispatched_ms"] for d in dispatches)
    drained_ms = max(d["dispatched_ms"] for d in dispatches if d["job_id"] not in set(urgent))
    waits_ms = [d["dispatched_ms"] - d["slot_ms"] for d in dispatches if d["job_id"] in set(urgent)]
    assert min(waits_ms) < (drained_ms - began_ms) / 2, "new jobs wait for the whole backlog"
    assert max(waits_ms) < 2_000


def is_quiet(desk: Desk) -> bool:
    """Whether every job that is known has been dispatched or cancelled."""
    defined: set[bytes] = set()
    decided: set[bytes] = set()
    for message in desk.seen(desk.topology.state):
        key = message.key()
        assert isinstance(key, bytes)
        (defined if key[:1] == b"d" else decided).add(key[1:])
    return defined <= decided


def test_T6_the_clock_steps_back_an_hour(desk: Desk) -> None:
    clock = HandClock()
    processor = desk.active(clock=clock)
    desk.schedule("unknown-queue", now_ms(), queue="later")
    desk.drive(processor, until=lambda: desk.seen(desk.topology.dead_letter))
    desk.schedule("waits", now_ms() + 300)
    clock.ahead_ms = -HOUR_MS
    desk.drive_for(processor, seconds=0.8)
    assert desk.dispatched() == [], "early"
    ensure(desk.kafka, desk.topology, {"default": 4, "later": 1})
    desk.schedule("at-once", now_ms() - HOUR_MS, retention_ms=1)
    desk.schedule("soon", now_ms() - HOUR_MS + 500)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    desk.answer(d for d in desk.dispatches() if d["job_id"] == "at-once")
    desk.drive(processor, until=lambda: desk.fold()[home("at-once")].get(b"dat-once") is None)  # housekeeping goes on
    desk.schedule("to-new-queue", now_ms() - HOUR_MS, queue="later")
    desk.drive(processor, until=lambda: desk.dispatches("later"))
    clock.ahead_ms = 0  # corrected: what waited may go
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 3)
    desk.leave(processor)
    assert desk.dispatched() == ["at-once", "soon", "waits"]


def test_T6_the_clock_leaps_ahead_an_hour(desk: Desk) -> None:
    clock = HandClock()
    processor = desk.active(clock=clock)
    ids = job_ids(200)
    desk.publish(raw_schedule(job_id, now_ms() + 60_000 + 10_000 * n) for n, job_id in enumerate(ids))
    desk.schedule("soon", now_ms() + 1_000)
    clock.ahead_ms = HOUR_MS
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 1)
    desk.schedule("at-once", now_ms())
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    desk.drive_for(processor, seconds=0.3)
    clock.ahead_ms = 0
    desk.schedule("afterwards", now_ms())
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 3)
    desk.leave(processor)
    assert desk.dispatched() == ["afterwards", "at-once", "soon"]
    assert max(d["dispatched_ms"] for d in desk.all_dispatches()) <= now_ms()


def test_T7_nothing_is_early_by_a_millisecond(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(1_000)
    start_ms = now_ms() + 500
    desk.publish(raw_schedule(job_id, start_ms + n) for n, job_id in enumerate(ids))
    handed_out: dict[str, int] = {}

    def all_out() -> bool:
        for d in desk.dispatches()[len(handed_out) :]:
            handed_out[d["job_id"]] = now_ms()
        return len(handed_out) == len(ids)

    desk.drive(processor, until=all_out)
    desk.leave(processor)
    for n, job_id in enumerate(ids):
        assert handed_out[job_id] >= start_ms + n, "by our own clock"
    for d in desk.all_dispatches():
        assert d["slot_ms"] <= d["dispatched_ms"]


def test_T8_redefined_while_the_old_definition_fires(desk: Desk) -> None:
    """Jobs due just now are redefined at that very moment: the old run may or may not have left, but nothing is mixed."""
    processor = desk.active()
    ids = job_ids(400)
    due_ms = now_ms() + 700
    desk.publish(raw_schedule(job_id, due_ms, payload=b"old") for job_id in ids)
    desk.drive(processor, until=lambda: now_ms() >= due_ms - 20)
    again_ms = now_ms() + 1_000
    for at in range(0, len(ids), 100):
        replacing = [raw_schedule(job_id, again_ms, payload=b"new", on_conflict=OnConflict.REPLACE) for job_id in ids[at : at + 100]]
        desk.publish(replacing)
        processor.turn()
    desk.drive(processor, until=lambda: sum(d["generation"] == 2 for d in desk.dispatches()) >= len(ids))
    desk.answer(desk.dispatches())  # the old ones' too: they must not finish the new ones
    desk.drive(processor, until=lambda: set(desk.phases().values()) == {Phase.SUCCEEDED})
    desk.leave(processor)
    dispatches = desk.all_dispatches()
    assert {(d["generation"], d["slot_ms"], d["work"]["payload"]) for d in dispatches} <= {(1, due_ms, b"old"), (2, again_ms, b"new")}
    newest = {d["job_id"]: d["token"] for d in dispatches if d["generation"] == 2}
    assert sorted(newest) == sorted(ids)
    for d in dispatches:
        assert d["token"] <= newest[d["job_id"]], "an old definition fired after the new one"


def test_T8_cancelled_and_then_the_same_id_again(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(40)
    due_ms = now_ms() + 1_500
    desk.publish(raw_schedule(job_id, due_ms, payload=b"old") for job_id in ids)
    desk.publish(raw_cancel(job_id) for job_id in ids)
    desk.publish(raw_schedule(job_id, due_ms, payload=b"new", on_conflict=OnConflict.REPLACE) for job_id in ids[:20])
    desk.drive(processor, until=lambda: now_ms() > due_ms and len(desk.dispatches()) >= 20)
    desk.drive_for(processor, seconds=0.3)
    desk.leave(processor)
    assert desk.dispatched() == sorted(ids[:20])
    assert {(d["generation"], d["work"]["payload"]) for d in desk.all_dispatches()} == {(2, b"new")}


def test_W1_a_job_in_two_years_is_one_definition_and_no_dispatch(desk: Desk) -> None:
    processor = desk.active()
    desk.schedule("far", now_ms() + 2 * 365 * DAY_MS)
    desk.drive(processor, until=lambda: desk.seen(desk.topology.state))
    desk.leave(processor)
    again = desk.active()
    desk.drive_for(again, seconds=0.3)
    desk.leave(again)
    assert [message.key() for message in desk.read(desk.topology.state) if message.key() != b"p"] == [b"dfar"]
    assert desk.dispatched() == []


def test_W1_a_job_in_two_years_runs_once_when_they_are_over(desk: Desk) -> None:
    """The processor that fires it starts two years later."""
    processor = desk.active()
    desk.schedule("far", now_ms() + 2 * 365 * DAY_MS)
    desk.drive(processor, until=lambda: desk.seen(desk.topology.state))
    desk.leave(processor)
    clock = HandClock()
    clock.ahead_ms = 2 * 365 * DAY_MS
    again = desk.active(clock=clock)
    desk.drive(again, until=desk.dispatches)
    desk.drive_for(again, seconds=0.3)
    desk.leave(again)
    assert desk.dispatched() == ["far"]


def test_W2_a_hundred_thousand_future_jobs_put_nothing_on_the_dispatch_topic(desk: Desk) -> None:
    processor = desk.active()
    for start in range(0, 100_000, 20_000):
        desk.publish(raw_schedule(f"future-{n}", now_ms() + HOUR_MS + n) for n in range(start, start + 20_000))
        processor.turn()
    desk.drive(processor, until=lambda: sum(m.key() != b"p" for m in desk.seen(desk.topology.state)) >= 100_000, timeout_s=60)
    desk.leave(processor)
    assert desk.dispatched() == []
    assert sum(len(records) for records in desk.fold().values()) == 100_000 + PARTITIONS
