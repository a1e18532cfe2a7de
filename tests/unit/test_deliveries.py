"""Records that are put on topics at their time: the rules, and what a processor makes of them."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from duewheel.adapters.avro import codec
from duewheel.client.commands import Delivery, deliver_command
from duewheel.core.allowed import Allowed
from duewheel.core.commands import check_schedule
from duewheel.core.errors import BadConfiguration, RejectedJob, UndecodableRecord
from duewheel.core.errors import Reason as Reasons
from duewheel.core.limits import DELIVERY_KEY_BYTES_MAX, HOUR_MS, PARKED_MS
from duewheel.core.model import Action, Change, OnConflict, Phase
from duewheel.core.step import Reason, Step
from duewheel.core.topology import keyed_partition
from duewheel.core.wheel import timer_key
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


def dead(world: World) -> list[Any]:
    found = [codec.decode_dead_letter_topic(value) for _, value in world.log(TOPOLOGY.dead_letter, 0)]
    return [content for name, content in found if name == "dead_run"]


def written(world: World, job_id: str) -> int:
    """How many records of the changelog are of a job."""
    return sum((key or b"")[1:] == job_id.encode() for p in (0, 1) for key, _ in world.log(TOPOLOGY.state, p))


def pass_time(world: World, processor: Instance, span_ms: int, each_ms: int = 1_000) -> None:
    """In steps, as far as anything could happen in them."""
    until_ms = world.now_ms + span_ms
    while world.now_ms < until_ms:
        processor.turn(3)
        world.now_ms += each_ms


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
    processor = Instance(cluster, 0, 1, may_deliver_to=Allowed(("orders", "?.*", "_*"), TOPOLOGY.prefix))
    schedule(cluster, "a", START_MS, delivery=to_orders(topic=topic))
    schedule(cluster, "b", START_MS)
    processor.turn(3)
    (letter,) = letters(cluster)
    assert (letter["reason"], letter["key"]) == (Reasons.TOPIC_NOT_ALLOWED, b"a")
    assert "--deliver-to" in letter["message"]
    assert topic in letter["message"]
    assert phases(cluster, "a") == []
    assert phases(cluster, "b") == [Phase.DISPATCHED]


def test_a_record_waits_for_a_topic_that_is_made_later() -> None:
    cluster, processor = world()
    schedule(cluster, "a", START_MS, delivery=TO_ORDERS)
    processor.turn(5)
    assert (phases(cluster, "a"), delivered(cluster)) == ([], [])
    cluster.topics["orders"] = 1
    cluster.now_ms += PARKED_MS
    processor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"1")]
    assert phases(cluster, "a") == [Phase.SUCCEEDED]


def test_records_that_wait_for_a_topic_are_written_once_and_looked_at_the_less_often_the_longer_they_wait() -> None:
    cluster, processor = world()
    for n in range(20):
        schedule(cluster, f"a-{n}", START_MS, delivery=TO_ORDERS)
    pass_time(cluster, processor, HOUR_MS)
    assert [written(cluster, f"a-{n}") for n in range(20)] == [1] * 20, "the definition, and nothing for each look"
    assert len(cluster.transaction_bytes) < 50
    cluster.topics["orders"] = 1
    pass_time(cluster, processor, 32 * PARKED_MS)
    assert len(delivered(cluster)) == 20


def test_of_a_record_that_waits_and_is_defined_anew_again_and_again_one_timer_is_left() -> None:
    cluster, processor = world()
    for n in range(30):
        schedule(cluster, "a", START_MS, payload=b"%d" % n, on_conflict=OnConflict.REPLACE, delivery=TO_ORDERS)
        pass_time(cluster, processor, 20_000)
    assert sum(len(store.timer_keys) for store in processor.stores.values()) == 1
    cluster.topics["orders"] = 1
    pass_time(cluster, processor, 32 * PARKED_MS)
    assert delivered(cluster) == [(0, b"k", b"29")]


def test_a_record_that_waits_expires_at_its_time() -> None:
    cluster, processor = world()
    limits: Any = {"expires_ms": START_MS + 601_000, "total_timeout_ms": 0, "crashes_max": 0}
    schedule(cluster, "a", START_MS, limits=limits, delivery=TO_ORDERS)
    pass_time(cluster, processor, 600_000)
    assert phases(cluster, "a") == []
    pass_time(cluster, processor, 2_000, each_ms=100)
    assert phases(cluster, "a") == [Phase.EXPIRED]


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


Takes = Callable[[bytes | None, bytes | None], bool]
REFUSALS: dict[str, tuple[Any, bytes, Takes]] = {
    "too large": ({"key": b"k"}, b"x" * 2_000, lambda key, value: len(value or b"") < 1_000),
    "no key, and the topic is compacted": ({"key": None}, b"1", lambda key, value: key is not None),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("others", [0, 1, 40])
@pytest.mark.parametrize("bad", [1, 5])
def test_records_that_a_topic_refuses_hold_up_nobody_and_die_with_the_reason(kind: str, others: int, bad: int) -> None:
    fields, payload, takes = REFUSALS[kind]
    cluster, processor = world(orders=2)
    cluster.takes = lambda topic, key, value: topic != "orders" or takes(key, value)
    good = [f"good-{n}" for n in range(others)]
    for n in range(max(others, bad)):
        if n < bad:
            schedule(cluster, f"bad-{n}", START_MS, payload=payload, delivery=to_orders(**fields))
        if n < others:
            schedule(cluster, good[n], START_MS, delivery=to_orders(key=good[n].encode()))
    schedule(cluster, "worked", START_MS)
    with capture_logs() as logs:
        pass_time(cluster, processor, 8_000, each_ms=40)
        assert {key for _, key, _ in delivered(cluster)} == {job_id.encode() for job_id in good}
        assert phases(cluster, "worked")[-1] == Phase.DISPATCHED
        assert dead(cluster) == [], "the topic may be changed meanwhile"
        pass_time(cluster, processor, 60_000, each_ms=40)
    doubted = {line["job_id"] for line in logs if line["event"] == "processor.queue_doubted"}
    assert doubted == {f"bad-{n}" for n in range(bad)}
    assert cluster.aborted < 16 * bad + 20, "four times three, and the way there"
    assert {(run["job_id"], run["reason"]) for run in dead(cluster)} == {(f"bad-{n}", Reason.REFUSED) for n in range(bad)}
    assert "'orders' does not take this record: a record for orders failed" in dead(cluster)[0]["state"]["error"]["message"]
    assert len(delivered(cluster)) == others


def test_a_record_that_died_of_a_refusal_is_delivered_when_the_topic_takes_it_and_it_is_redriven() -> None:
    cluster, processor = world(orders=1)
    cluster.takes = lambda topic, key, value: topic != "orders" or value != b"bad"
    schedule(cluster, "a", START_MS, payload=b"bad", delivery=TO_ORDERS)
    pass_time(cluster, processor, 60_000, each_ms=100)
    (death,) = dead(cluster)
    cluster.takes = lambda topic, key, value: True
    redrive = codec.encode_redrive({"job_id": "a", "token": death["token"], "created_ms": cluster.now_ms})
    command(cluster, "a", redrive)
    pass_time(cluster, processor, 2_000, each_ms=100)
    assert delivered(cluster) == [(0, b"k", b"bad")]
    assert phases(cluster, "a")[-1] == Phase.SUCCEEDED
    schedule(cluster, "b", cluster.now_ms, payload=b"bad", delivery=TO_ORDERS)
    pass_time(cluster, processor, 2_000, each_ms=100)
    assert len(delivered(cluster)) == 2, "nothing is held against anybody any more"


def test_where_a_topic_refuses_everything_nobody_dies_however_long_it_takes() -> None:
    cluster, processor = world(orders=2)
    cluster.refusing.add("orders")
    for n in range(30):
        schedule(cluster, f"a-{n}", START_MS, delivery=to_orders(key=b"%d" % n))
    pass_time(cluster, processor, 2 * HOUR_MS)
    assert (delivered(cluster), dead(cluster)) == ([], [])
    assert cluster.aborted < 400, "about three a minute"
    cluster.refusing.clear()
    pass_time(cluster, processor, 33 * PARKED_MS)
    assert len(delivered(cluster)) == 30
    assert dead(cluster) == []


def test_what_is_kept_of_a_record_and_cannot_be_read_is_dead_and_stops_nobody() -> None:
    def read(work: bytes) -> Any:
        if b"damaged" in work:
            raise UndecodableRecord(Reasons.MALFORMED, "it ends in the middle")
        return codec.decode_content(work)

    cluster = World()
    cluster.topics |= {"orders": 1}
    processor = Instance(cluster, 0, 1, may_deliver_to=ORDERS, avro=SimpleNamespace(**vars(codec) | {"decode_content": read}))
    schedule(cluster, "a", cluster.now_ms, payload=b"damaged", delivery=TO_ORDERS)
    schedule(cluster, "b", cluster.now_ms, delivery=TO_ORDERS)
    processor.turn(5)
    assert delivered(cluster) == [(0, b"k", b"1")]
    (death,) = dead(cluster)
    assert (death["job_id"], death["reason"], death["state"]["error"]["message"]) == ("a", Reason.DAMAGED, "it ends in the middle")


@pytest.mark.parametrize("recurrence", [None, every(1_000)])
def test_all_that_a_record_brings_along_is_weighed_so_that_a_transaction_stays_within_its_limit(recurrence: Any) -> None:
    key, headers, none = (
        bytes(DELIVERY_KEY_BYTES_MAX),
        {"h": "x" * 16_000},
        SimpleNamespace(defined=lambda job_id: None, state=lambda job_id: None),
    )
    record = deliver_command(
        Delivery("orders", bytes(1_000), key=key, headers=headers, at=START_MS, job_id="a"), START_MS, lambda now_ms: "a"
    )
    record["recurrence"] = recurrence
    value = codec.encode_schedule(record)
    step = Step(none, 0, 0, START_MS, splice_schedule=codec.splice_schedule, read_content=codec.decode_content)
    step.schedule(record, codec.decode_command(value)[2], value)
    asked_bytes = step.size_bytes
    step.fire([timer_key(START_MS, "a")])
    (sent,) = step.deliveries
    copies = 1 if recurrence is None else 2  # a run is defined, too
    assert step.size_bytes - asked_bytes >= copies * sum(map(len, (sent.payload, key, *sent.headers, *sent.headers.values())))


def test_a_cancelled_and_an_expired_record_are_not_delivered() -> None:
    cluster, processor = world()  # so both wait
    limits: Any = {"expires_ms": START_MS + 1_000, "total_timeout_ms": 0, "crashes_max": 0}
    schedule(cluster, "expires", START_MS, limits=limits, delivery=TO_ORDERS)
    schedule(cluster, "cancelled", START_MS, delivery=TO_ORDERS)
    processor.turn(3)
    command(cluster, "cancelled", codec.encode_cancel({"job_id": "cancelled", "created_ms": START_MS, "reach": "DEFAULT"}))
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


def change(cluster: World, job_id: str, action: Action, **fields: Any) -> None:
    record: Any = dict.fromkeys(Change.__annotations__) | {"job_id": job_id, "created_ms": cluster.now_ms, "action": action}
    command(cluster, job_id, codec.encode_change(record | fields))


@pytest.mark.parametrize("made_ms", [START_MS + 5_000, START_MS - 1])
def test_a_record_that_is_paused_and_updated_is_delivered_once_when_it_is_resumed(made_ms: int) -> None:
    cluster, processor = world()  # it waits for its time, or for its topic
    schedule(cluster, "a", made_ms, payload=b"old", delivery=TO_ORDERS)
    processor.turn(3)
    change(cluster, "a", Action.PAUSE)
    processor.turn(3)
    cluster.topics["orders"] = 1
    pass_time(cluster, processor, 60_000)
    assert delivered(cluster) == []
    change(cluster, "a", Action.UPDATE, payload=b"new", content_type="application/octet-stream")
    change(cluster, "a", Action.RESUME)
    pass_time(cluster, processor, 60_000)
    assert delivered(cluster) == [(0, b"k", b"new")]
    assert phases(cluster, "a")[-1] == Phase.SUCCEEDED


def test_a_record_can_be_had_at_once_and_a_recurring_one_beside_its_slots() -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS + HOUR_MS, payload=b"once", delivery=TO_ORDERS)
    schedule(cluster, "r", START_MS + HOUR_MS, payload=b"tick", recurrence=every(HOUR_MS), delivery=TO_ORDERS)
    processor.turn(3)
    for job_id in "ar":
        change(cluster, job_id, Action.RUN_NOW)
    processor.turn(5)
    assert sorted(value or b"" for _, _, value in delivered(cluster)) == [b"once", b"tick"]


def test_an_update_that_would_make_no_sense_of_a_record_is_refused() -> None:
    cluster, processor = world(orders=1)
    schedule(cluster, "a", START_MS + HOUR_MS, payload=b"", delivery=to_orders(tombstone=True))
    processor.turn(3)
    change(cluster, "a", Action.UPDATE, payload=b"v", content_type="application/octet-stream")
    processor.turn(3)
    assert [letter["reason"] for letter in letters(cluster)] == [Reasons.BAD_DELIVERY]
    change(cluster, "a", Action.RUN_NOW)
    processor.turn(5)
    assert delivered(cluster) == [(0, b"k", None)]


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
    assert caught.value.reason == Reasons.BAD_DELIVERY


@pytest.mark.parametrize("part", ["value", "key"])
def test_what_is_neither_bytes_nor_text_is_refused(part: str) -> None:
    with pytest.raises(RejectedJob, match=f"the {part} of a record to deliver is a dict"):
        asked(**{part: {}})


@pytest.mark.parametrize(
    "pattern,said",
    [
        ("", "is empty"),
        ("a b", "has ' '"),
        ("orders,late", "has ','"),
        ("orders[", r"has '\['"),
        ("orders[,;]", "has '.,;.'"),
        ("orders[!a-zA-Z0-9._-]*", "where a topic's name has"),
        ("orders]", "has ']'"),
        ("x" * 250, "names of 250 characters"),
        ("?" * 250 + "*", "names of 250 characters"),
        (".", "no name of a topic"),
        ("..", "no name of a topic"),
        ("__*", "of Kafka itself"),
        ("[_]_consumer_*", "of Kafka itself"),
        ("x.*", "of this installation"),
        ("x.intake", "of this installation"),
        ("x[.]*", "of this installation"),
    ],
)
def test_a_pattern_that_can_match_no_topic_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(BadConfiguration, match=f"of topics to deliver to .*{said}"):
        Allowed((pattern,), "x")


def test_patterns() -> None:
    allowed = Allowed(("orders.*", "day-?", "[ab]", "[!a-z]9", "[]a]-*", "xx*", "._", "_*"), "x")
    good = ("orders.late", "orders.", "day-1", "a", "A9", "a-z", "xx.intake", "._", "_a")
    others = ("orders", "day-10", "c", "x.state", "Orders.late", "__a", "a9", "x")
    assert [topic for topic in (*good, *others) if allowed(topic)] == list(good)
    assert not Allowed((), "x")("orders")


@given(st.text("ab._-*?[]!,", max_size=8))
def test_a_pattern_is_refused_only_where_it_matches_no_name(pattern: str) -> None:
    try:
        Allowed((pattern,), "a")
    except BadConfiguration:
        names = ["".join(name) for count in range(1, 5) for name in product("ab._-", repeat=count)]
        matching = [name for name in names if fnmatchcase(name, pattern) and not name.startswith(("a.", "__")) and name not in (".", "..")]
        assert matching == []
