"""What the members of a group may ask of their consumer while others, dead or alive, are in the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer, TopicPartition

from duewheel.adapters.kafka.readers import KafkaGroupReader
from duewheel.ports import CommitRefused, GroupPosition, Record
from tests.conftest import Installation

WAIT_S = 20


class Member:
    """A member of the processors' group that is told what it got."""

    def __init__(self, installation: Installation) -> None:
        kafka, topology = installation
        self.reader = KafkaGroupReader(kafka, topology.intake, topology.processor_group)
        self.partitions: list[int] = []
        self.reader.join(self)
        deadline = time.monotonic() + WAIT_S
        while not self.partitions:
            assert time.monotonic() < deadline, "no partition was assigned"
            self.reader.poll(0.05, 10)

    def assigned(self, partitions: Sequence[int]) -> None:
        self.partitions.extend(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        pass

    def lost(self, partitions: Sequence[int]) -> None:
        pass

    def read(self) -> list[Record]:
        deadline = time.monotonic() + WAIT_S
        while not (records := self.reader.poll(0.05, 10)):
            assert time.monotonic() < deadline, "nothing was read"
        return records


@pytest.fixture
def open_transaction(installation: Installation) -> Iterator[None]:
    """A member left, and its transaction, which would commit intake's partition 0 at offset 5, is still open."""
    kafka, topology = installation
    member = Member(installation)
    producer = Producer(kafka.transactional(f"{topology.prefix}.dead"))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    offsets = [TopicPartition(topology.intake, 0, 5, metadata="dead")]
    producer.send_offsets_to_transaction(offsets, member.reader.consumer.consumer_group_metadata(), WAIT_S)
    member.reader.close()
    yield
    producer.abort_transaction(WAIT_S)


@pytest.mark.usefixtures("open_transaction")
def test_a_partition_can_be_read_while_a_dead_members_transaction_is_open(installation: Installation) -> None:
    kafka, topology = installation
    producer = Producer(kafka.producer(WAIT_S * 1_000, 0))
    producer.produce(topology.intake, b"value", b"key", partition=0)
    assert producer.flush(WAIT_S) == 0
    member = Member(installation)
    member.reader.read_from(0, 0)
    assert [(record.partition(), record.offset(), record.value()) for record in member.read()] == [(0, 0, b"value")]
    member.reader.close()


@pytest.mark.usefixtures("open_transaction")
def test_a_position_that_an_open_transaction_may_change_is_not_told(installation: Installation) -> None:
    member = Member(installation)
    with pytest.raises(CommitRefused):
        member.reader.committed([0], 1.0)
    assert member.reader.committed([1], WAIT_S) == {1: GroupPosition(None, "")}
    member.reader.close()


def test_another_thread_gets_an_answer_while_this_one_polls_all_the_time(installation: Installation) -> None:
    member = Member(installation)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as aside:
        answer = aside.submit(member.reader.committed, [0], float(WAIT_S))
        while not answer.done():
            member.reader.poll(0.005, 10)
            assert time.monotonic() - started < WAIT_S, "the polling thread left it no gap"
    # Where both take turns on one consumer it takes many seconds; beside it, under one.
    assert time.monotonic() - started < 4
    assert answer.result() == {0: GroupPosition(None, "")}
    member.reader.close()
