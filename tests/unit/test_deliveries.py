"""Records that are put on topics at their time: the rules, and what a processor makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.client.commands import Delivery, deliver_command
from duewheel.core.allowed import Allowed
from duewheel.core.commands import check_schedule
from duewheel.core.errors import BadConfiguration, Reason, RejectedJob
from duewheel.core.limits import DELIVERY_KEY_BYTES_MAX, PARKED_MS
from duewheel.core.model import OnConflict, Phase
from duewheel.core.topology import keyed_partition
from tests.engine_world import START_MS, TOPOLOGY, Instance, World, command, schedule
from tests.recurring import every

ORDERS = Allowed(("orders*",), TOPOLOGY.prefix)
TO_ORDERS: Any = {"topic": "orders", "key": b"k", "tombstone": False}


def to_orders(**fields: Any) -> Any:
    return TO_ORDERS | fields


def world(**topics: int) -> tuple[World, Instance]:
    made = World()
    made.topics |= topics
    return made, Instance(made, 0, 1, may_deliver_to=ORDERS)


def delivered(world: World, topic: str = "orders") -> list[tuple[int, bytes | None, bytes | None]]:
    partitions = range(world.topics.get(topic, 0))
    return [(partition, key, value) for partition in partitions for key, value in world.log(topic, partition)]


def letters(world: World) -> list[Any]:
    return [codec.decode_dead_letter(value) for _, value in world.log(TOPOLOGY.dead_letter, 0)]


def phases(world: World, job_id: str) -> list[str]:
    values = [value for p in (0, 1) for key, value in world.log(TOPOLOGY.state, p) if key == b"s" + job_id.encode()]
    return [codec.decode_state(value)["phase"] for value in values]


def test_a_record_is_put_on_its_topic_at_its_time_and_its_job_has_ended() -> None:
    cluster, processor = world(orders=3)
    schedule(cluster, "a", START_MS + 1_000, payload=b"raw", delivery=TO_ORDERS)
    processor.turn(20)
    assert delivered(cluster) == []
    while cluster.now_ms < START_MS + 1_000:
        processor.turn(1)
    processor.turn(3)
    assert delivered(cluster) == [(keyed_partition(b"k", 3), b"k", b"raw")]
    assert phases(cluster, "a") == [Phase.SUCCEEDED]


@pytest.mark.parametrize("tombstone,payload,value", [(True, b"", None), (False, b"", b"")])
def test_a_tombstone_is_not_an_empty_value(tombstone: bool, payload: bytes, value: bytes | None) -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS, payload=payload, delivery=to_orders(tombstone=tombstone))
    processor.turn(3)
    assert delivered(cluster) == [(0, b"k", value)]


@pytest.mark.parametrize("topic", ["invoices", "x.intake", "x.dispatch.default", "__consumer_offsets"])
def test_a_topic_that_is_not_allowed_is_refused_with_the_remedy(topic: str) -> None:
    cluster = World()
    cluster.topics |= {"invoices": 1}
    processor = Instance(cluster, 0, 1, may_deliver_to=Allowed(("orders", "x.*", "__*"), TOPOLOGY.prefix))
    schedule(cluster, "a", START_MS, delivery=to_orders(topic=topic))
    schedule(cluster, "b", START_MS)
    processor.turn(3)
    (letter,) = letters(cluster)
    assert (letter["reason"], letter["key"]) == (Reason.TOPIC_NOT_ALLOWED, b"a")
    assert "--deliver-to" in letter["message"]
    assert topic in letter["message"]
    assert phases(cluster, "a") == []
    assert phases(cluster, "b") == [Phase.DISPATCHED]


def test_a_record_waits_for_a_topic_that_is_made_later() -> None:
    cluster, processor = world()
    schedule(cluster, "a", START_MS, delivery=TO_ORDERS)
    processor.turn(5)
    assert phases(cluster, "a") == [Phase.WAITING]
    cluster.topics["orders"] = 1
    cluster.now_ms += PARKED_MS
    processor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"1")]
    assert phases(cluster, "a")[-1] == Phase.SUCCEEDED


def test_a_topic_that_refuses_records_stops_nobody_else() -> None:
    cluster, processor = world(orders=1, orders2=1)
    cluster.refusing.add("orders")
    schedule(cluster, "a", START_MS, delivery=TO_ORDERS)
    processor.turn(20)
    schedule(cluster, "b", cluster.now_ms, delivery=to_orders(topic="orders2"))
    schedule(cluster, "c", cluster.now_ms)
    processor.turn(100)
    assert delivered(cluster, "orders2") == [(0, b"k", b"1")]
    assert phases(cluster, "c") == [Phase.DISPATCHED]
    cluster.refusing.clear()
    for _ in range(20):
        cluster.now_ms += PARKED_MS
        processor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"1")]


def test_a_cancelled_and_an_expired_record_are_not_delivered() -> None:
    cluster, processor = world()  # so both wait
    limits: Any = {"expires_ms": START_MS + 1_000, "total_timeout_ms": 0, "crashes_max": 0}
    schedule(cluster, "expires", START_MS, limits=limits, delivery=TO_ORDERS)
    schedule(cluster, "cancelled", START_MS, delivery=TO_ORDERS)
    processor.turn(3)
    command(cluster, "cancelled", codec.encode_cancel({"job_id": "cancelled", "created_ms": START_MS}))
    processor.turn(3)
    cluster.topics["orders"] = 1
    cluster.now_ms += PARKED_MS
    processor.turn(5)
    assert delivered(cluster) == []
    assert (phases(cluster, "expires")[-1], phases(cluster, "cancelled")[-1]) == (Phase.EXPIRED, Phase.CANCELLED)


def test_a_record_that_is_defined_anew_is_delivered_as_the_newest_says() -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS + 5_000, payload=b"old", delivery=TO_ORDERS)
    processor.turn(3)
    schedule(cluster, "a", cluster.now_ms, payload=b"new", on_conflict=OnConflict.REPLACE, delivery=TO_ORDERS)
    processor.turn(3)
    cluster.now_ms += 5_000
    processor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"new")]


def test_each_slot_of_a_recurring_delivery_is_delivered_once() -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS + 20, payload=b"tick", recurrence=every(1_000, runs_max=3), delivery=TO_ORDERS)
    for _ in range(10):
        processor.turn(5)
        cluster.now_ms += 500
    assert delivered(cluster) == [(0, b"k", b"tick")] * 3
    assert phases(cluster, f"a@{START_MS + 20}") == [Phase.SUCCEEDED]
    assert phases(cluster, "a")[-1] == Phase.SUCCEEDED


def test_another_owner_reads_from_the_changelog_what_is_to_be_delivered() -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS + 5_000, payload=b"raw", delivery=TO_ORDERS)
    processor.turn(3)
    successor = Instance(cluster, may_deliver_to=ORDERS)
    successor.assign(0, 1)
    cluster.now_ms += 5_000
    successor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"raw")]


# --- the rules ---


def asked(**fields: Any) -> Any:
    return deliver_command(Delivery("orders", fields.pop("value", b"v"), **fields), START_MS, lambda now_ms: "made")


def test_value_and_key_are_bytes_or_text() -> None:
    record = asked(value="é", key="ö", headers={"a": "b"}, delay=1)
    assert (record["work"]["payload"], record["delivery"]["key"], record["work"]["headers"]) == ("é".encode(), "ö".encode(), {"a": "b"})
    assert asked(value=None)["delivery"] == {"topic": "orders", "key": None, "tombstone": True}
    assert asked(value=b"\0")["delivery"] == {"topic": "orders", "key": None, "tombstone": False}


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"delivery": {**TO_ORDERS, "topic": "a b"}}, "is no name of a topic"),
        ({"delivery": {**TO_ORDERS, "topic": ".."}}, "is no name of a topic"),
        ({"delivery": {**TO_ORDERS, "topic": "x" * 250}}, "at most 249"),
        ({"delivery": {**TO_ORDERS, "topic": 7}}, "give a str"),
        ({"delivery": {**TO_ORDERS, "key": "k"}}, "give bytes"),
        ({"delivery": {**TO_ORDERS, "key": b"k" * (DELIVERY_KEY_BYTES_MAX + 1)}}, "at most 4,096"),
        ({"delivery": {**TO_ORDERS, "tombstone": 1}}, "give a bool"),
        ({"delivery": {**TO_ORDERS, "tombstone": True}}, "leave out one"),
        ({"delivery": "orders"}, "is no record of"),
        ({"delivery": TO_ORDERS, "queue": "mail"}, "names workers"),
        ({"delivery": TO_ORDERS, "limits": {"expires_ms": 0, "total_timeout_ms": 1, "crashes_max": 0}}, "limit attempts"),
        ({"delivery": TO_ORDERS, "limits": {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 1}}, "limit attempts"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(RejectedJob, match=said) as caught:
        check_schedule(asked() | changes)
    assert caught.value.reason == Reason.BAD_DELIVERY


@pytest.mark.parametrize("part", ["value", "key"])
def test_what_is_neither_bytes_nor_text_is_refused(part: str) -> None:
    with pytest.raises(RejectedJob, match=f"the {part} of a record to deliver is a dict"):
        asked(**{part: {}})


@pytest.mark.parametrize("pattern", ["", "a b", "orders,late", "x" * 250])
def test_a_pattern_that_can_match_no_topic_is_refused(pattern: str) -> None:
    with pytest.raises(BadConfiguration, match="of topics to deliver to"):
        Allowed((pattern,), "x")


def test_patterns() -> None:
    allowed = Allowed(("orders.*", "day-?", "[ab]"), "x")
    good = ("orders.late", "orders.", "day-1", "a")
    assert [topic for topic in (*good, "orders", "day-10", "c", "x.state", "Orders.late", "__a") if allowed(topic)] == list(good)
    assert not Allowed((), "x")("orders")
