"""`ports.PartitionReader` and `ports.StateLog`: what is visible, in order, and how far everything was seen."""

from __future__ import annotations

import pytest

from duewheel.core.errors import TopicMissing
from duewheel.ports import PartitionReader, Record, TransactionalOutput
from tests.contract.grounds import STEP_S, Grounds, eventually, values


@pytest.fixture
def topic(grounds: Grounds) -> str:
    return grounds.topic(2)


@pytest.fixture
def output(grounds: Grounds) -> TransactionalOutput:
    output = grounds.output(grounds.name("owner"), {})
    eventually(grounds, output.recover)
    return output


def read(grounds: Grounds, reader: PartitionReader, count: int) -> list[Record]:
    """Exactly so many records."""
    found: list[Record] = []
    eventually(grounds, lambda: len(found) >= count, lambda: found.extend(reader.poll(STEP_S, 100)))
    return found


def test_records_come_in_order_with_all_that_belongs_to_them(grounds: Grounds, topic: str) -> None:
    grounds.append(topic, 1, b"a", b"b")
    reader = grounds.reader(topic)
    reader.assign(1, 0)
    found = read(grounds, reader, 2)
    assert [(r.topic(), r.partition(), r.offset(), r.key(), r.value()) for r in found] == [
        (topic, 1, 0, b"key", b"a"),
        (topic, 1, 1, b"key", b"b"),
    ]
    assert all(r.timestamp()[1] > 0 for r in found)


def test_reading_begins_where_it_is_told_to_and_again_where_it_is_told_again(grounds: Grounds, topic: str) -> None:
    grounds.append(topic, 0, b"a", b"b", b"c")
    reader = grounds.reader(topic)
    reader.assign(0, 1)
    assert [r.value() for r in read(grounds, reader, 2)] == [b"b", b"c"]
    reader.assign(0, 2)
    assert reader.reached(0) == -1
    assert [r.value() for r in read(grounds, reader, 1)] == [b"c"]


def test_no_more_are_given_than_were_asked_for(grounds: Grounds, topic: str) -> None:
    grounds.append(topic, 0, *(b"%d" % n for n in range(10)))
    reader = grounds.reader(topic)
    reader.assign(0, 0)
    found: list[Record] = []
    while len(found) < 10:
        some = reader.poll(1.0, 3)
        assert len(some) <= 3
        found += some
    assert [r.value() for r in found] == [b"%d" % n for n in range(10)]


def test_what_is_released_is_read_no_longer(grounds: Grounds, topic: str) -> None:
    reader = grounds.reader(topic)
    reader.assign(0, 0)
    reader.assign(1, 0)
    reader.release(0)
    grounds.append(topic, 0, b"a")
    grounds.append(topic, 1, b"b")
    assert [r.value() for r in read(grounds, reader, 1)] == [b"b"]
    reader.release(0)  # of what is not read, nothing


def test_a_record_of_a_transaction_is_seen_when_that_is_committed(grounds: Grounds, topic: str, output: TransactionalOutput) -> None:
    reader = grounds.reader(topic)
    reader.assign(0, 0)
    with output.begin() as transaction:
        transaction.produce(topic, b"a", b"key", 0)
        # It is there and may not be read, nor what lies behind it.
        eventually(grounds, lambda: grounds.cluster().watermarks(topic, [0])[0][1] == 1)
        grounds.append(topic, 0, b"plain")
        for _ in range(10):
            assert reader.poll(STEP_S, 10) == []
        transaction.commit({})
    assert [r.value() for r in read(grounds, reader, 2)] == [b"a", b"plain"]


def test_what_was_aborted_is_passed_over(grounds: Grounds, topic: str, output: TransactionalOutput) -> None:
    with output.begin() as transaction:
        transaction.produce(topic, b"no", b"key", 0)
        eventually(grounds, lambda: grounds.cluster().watermarks(topic, [0])[0][1] == 1)
    grounds.append(topic, 0, b"yes")
    reader = grounds.reader(topic)
    assert values(reader, grounds, 0, 3) == [b"yes"]


def test_everything_is_seen_though_a_log_ends_in_markers(grounds: Grounds, topic: str, output: TransactionalOutput) -> None:
    with output.begin() as transaction:
        transaction.produce(topic, b"a", b"key", 0)
        transaction.commit({})
    eventually(grounds, lambda: grounds.cluster().visible(topic, [0])[0] == (0, 2))  # a marker takes an offset
    assert values(grounds.reader(topic), grounds, 0, 2) == [b"a"]


def test_of_an_empty_partition_everything_is_seen_at_once(grounds: Grounds, topic: str) -> None:
    assert values(grounds.reader(topic), grounds, 0, 0) == []


@pytest.mark.parametrize("offset", [0, 99], ids=["below the start", "beyond the end"])
def test_an_offset_that_is_not_there_means_the_logs_start(grounds: Grounds, topic: str, offset: int) -> None:
    grounds.append(topic, 0, b"a", b"b", b"c")
    grounds.delete_before(topic, 0, 1)
    reader = grounds.reader(topic)
    reader.assign(0, offset)
    assert [r.value() for r in read(grounds, reader, 2)] == [b"b", b"c"]


def test_a_key_has_its_partition(grounds: Grounds) -> None:
    states = grounds.states(grounds.topic(4))
    assert [states.partition_of(key) for key in (b"job-1", b"job-2", b"job-3", b"job-4")] == [0, 2, 0, 3]


def test_where_to_begin_is_never_behind_what_is_sought(grounds: Grounds, topic: str) -> None:
    grounds.append(topic, 0, b"a", b"b")
    states = grounds.states(topic)
    for since_ms in (0, 1, 4_000_000_000_000):
        found = states.find(0, since_ms)
        assert (found.offset, found.since_ms, found.end) == (0, 0, 2)
    states.assign(0, 0)
    assert [r.value() for r in read(grounds, states, 2)] == [b"a", b"b"]


def test_a_topic_that_is_missing_is_named(grounds: Grounds) -> None:
    states = grounds.states(grounds.name("missing"))
    with pytest.raises(TopicMissing, match="missing"):
        states.find(0, 0)
