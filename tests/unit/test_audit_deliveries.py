"""What an audit makes of records to deliver, of which no worker tells how they ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.core.audit import Audit
from duewheel.core.differences import Kind, Unjudged
from duewheel.core.judgement import judge
from duewheel.core.limits import DAY_MS
from duewheel.core.model import Action
from duewheel.core.step import ADMITTED, Admission
from tests.audit_world import HOUR_MS, START_MS, DictStore, Life, differences, fold, outcome, schedule, store_differences
from tests.recurring import every

TO_ORDERS: Any = {"topic": "orders", "key": b"k", "tombstone": False}
AWAY = Admission(wait_ms=5_000)
REFUSED = Admission(refused="it is too large")


def delivery(job_id: str, due_ms: int = START_MS, **fields: Any) -> Any:
    return schedule(job_id, due_ms, delivery=TO_ORDERS, **({"retention_ms": DAY_MS} | fields))


def lived() -> Life:
    """A partition whose deliveries have met every fate."""
    life = Life()
    life.command(delivery("sent"))
    life.command(delivery("sent later", START_MS + 60_000))
    life.command(delivery("to come", START_MS + 30 * DAY_MS))
    life.command(delivery("gone", retention_ms=0))
    life.command(delivery("cancelled", START_MS + DAY_MS))
    life.command(delivery("was sent", limits={"expires_ms": START_MS + DAY_MS, "total_timeout_ms": 0, "crashes_max": 0}))
    life.command(delivery("was sent", START_MS + DAY_MS, on_conflict="REPLACE"))
    life.command(delivery("ticks", recurrence=every(HOUR_MS)))
    life.change("cancel", "cancelled")
    life.takes = AWAY
    life.command(delivery("waits"))
    life.command(delivery("expired", limits={"expires_ms": START_MS + 1_000, "total_timeout_ms": 0, "crashes_max": 0}))
    life.pass_time(5_000)
    life.takes = REFUSED
    for job_id in ("dead", "redriven"):
        life.command(delivery(job_id))
    life.takes = ADMITTED
    life.change("redrive", "redriven")
    life.pass_time(HOUR_MS)
    life.takes = AWAY
    life.command(delivery("waits on"))
    life.pass_time(1_000)
    life.forget("gone")
    return life


def test_a_faithful_partition_has_no_difference() -> None:
    life = lived()
    expected = {
        "sent": "SUCCEEDED",
        "waits": "SUCCEEDED",
        "expired": "EXPIRED",
        "dead": "FAILED",
        "redriven": "SUCCEEDED",
        "waits on": None,
    }
    assert {job_id: state and state["phase"] for job_id in expected for state in [life.state(job_id)]} == expected
    assert differences(life.logs, life.now_ms) == []
    assert store_differences(life.logs, DictStore(life))[0] == []
    assert differences(life.logs, life.now_ms + 365 * DAY_MS) == []


def test_a_record_that_waits_for_its_topic_has_a_timer_somewhere() -> None:
    life = lived()
    store = DictStore(life)
    store.keys = {key for key in store.keys if key[8:] != b"waits on"}
    assert [(d.kind, d.job_id) for d in store_differences(life.logs, store)[0]] == [(Kind.STORE_TIMER, "waits on")]


def never(job_id: str, due_ms: int = START_MS, **fields: Any) -> Callable[[Life], None]:
    """A delivery is acknowledged, and never taken in."""

    def lose(life: Life) -> None:
        life.logs.intake.append((life.now_ms, "schedule", delivery(job_id, due_ms, **fields)))
        life.step(lambda step: None)

    return lose


def taken_away(job_id: str) -> Callable[[Life], None]:
    def take(life: Life) -> None:
        life.logs.state.append((life.now_ms, b"d" + job_id.encode(), None))
        if life.state(job_id) is not None:
            life.logs.state.append((life.now_ms, b"s" + job_id.encode(), None))

    return take


def in_place_of(first: Any) -> Callable[[Life], None]:
    """What was asked for first is replaced by a job for workers, and that is lost."""

    def lose(life: Life) -> None:
        life.command(first)
        life.command(schedule("new", START_MS + DAY_MS, on_conflict="REPLACE"))
        taken_away("new")(life)

    return lose


@pytest.mark.parametrize(
    "lose, expected",
    [
        (never("never"), (Kind.LOST, "never")),
        (never("never", START_MS + DAY_MS), (Kind.LOST, "never")),
        (taken_away("to come"), (Kind.LOST, "to come")),
        (taken_away("was sent"), (Kind.LOST, "was sent")),
        (taken_away("sent"), (Kind.FORGOTTEN_EARLY, "sent")),
        (taken_away("cancelled"), (Kind.FORGOTTEN_EARLY, "cancelled")),
        (taken_away("waits on"), (Kind.FORGOTTEN_EARLY, "waits on")),
        (in_place_of(delivery("new", START_MS + DAY_MS)), (Kind.LOST, "new")),
        (in_place_of(schedule("new", recurrence=every(HOUR_MS, runs_max=1))), (Kind.LOST, "new")),
    ],
)
def test_a_delivery_that_is_lost_is_found(lose: Callable[[Life], None], expected: tuple[Kind, str]) -> None:
    life = lived()
    lose(life)
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [expected]


def test_a_delivery_that_may_have_been_forgotten_in_time_is_counted_and_not_guessed() -> None:
    life = lived()
    never("never", retention_ms=HOUR_MS)(life)
    audit = Audit(0)
    fold(life.logs, audit)
    assert [*audit.drained(), *judge(audit, life.now_ms + HOUR_MS + 120_000)] == []
    assert audit.unjudged[Unjudged.STATE] >= 1


def test_a_delivery_that_was_brought_forward_and_is_gone_is_counted_and_not_guessed() -> None:
    """Since when it was delivered early, it was forgotten early, too."""
    life = lived()
    life.takes = ADMITTED
    life.command(delivery("soon", START_MS + 30 * DAY_MS, retention_ms=0))
    life.modify(Action.RUN_NOW, "soon")
    life.pass_time(1)
    life.forget("soon")
    assert life.state("soon") is None
    assert differences(life.logs, life.now_ms + DAY_MS) == []


def test_a_delivery_that_ended_before_its_time_is_unfounded() -> None:
    life = lived()
    state: Any = {**(life.state("sent") or {}), "changed_ms": START_MS - 1}
    life.logs.state = [(at, key, codec.encode_state(state) if key == b"ssent" else value) for at, key, value in life.logs.state]
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(Kind.UNFOUNDED, "sent")]


def test_an_end_that_nobody_told_of_is_no_delivery_because_the_job_was_defined_anew() -> None:
    life = lived()
    life.command(schedule("worked"))
    life.outcome("worked", "SUCCEEDED")
    life.command(schedule("worked", START_MS + DAY_MS, on_conflict="REPLACE"))
    assert differences(life.logs, life.now_ms) == []
    life.logs.outcomes = [(at, outcome("nobody", 0, "STARTED") if told["job_id"] == "worked" else told) for at, told in life.logs.outcomes]
    life.logs.dispatches = [row for row in life.logs.dispatches if row.job_id != "worked"]
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(Kind.UNFOUNDED, "worked")]
