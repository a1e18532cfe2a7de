"""What `TransactionalOutput` promises: what is committed is there once, what is not is not there, also when a broker is killed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from duewheel.adapters.kafka.positions import settled
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.transactions import KafkaTransactions, fence_producer
from duewheel.devbroker import Broker, DevCluster
from duewheel.ports import Offset, TransactionAborted, TransactionUnknown
from tests.integration.desk import TIMEOUT_S, TopicLog

PARTITIONS: Final = 3
RECORDS: Final = 15_000
BATCH: Final = 200


class Copier:
    """Copies one topic to another as the ports say that it must be done: it stands for processor and worker."""

    def __init__(self, kafka: KafkaConfig, replication: int) -> None:
        admin = AdminClient(kafka.common())
        name = f"t{uuid.uuid4().hex[:12]}"
        self.source, self.target, self.group = f"{name}.source", f"{name}.target", f"{name}.copier"
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, replication) for topic in (self.source, self.target)]).values():
            future.result(TIMEOUT_S)
        self.kafka = kafka
        self.consumer = Consumer(kafka.member(self.group))
        self.consumer.subscribe([self.source])
        self.output = KafkaTransactions(kafka, f"{name}.output", {self.group: self.consumer})
        self.position: dict[int, int] = {}
        self.unknown = self.aborted = 0

    def publish(self, count: int) -> None:
        producer = Producer({**self.kafka.common(), "enable.idempotence": True, "linger.ms": 20})
        for n in range(count):
            producer.produce(self.source, b"%d" % n, b"%d" % n, n % PARTITIONS)
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0

    def copy(self, upto: int, timeout_s: float = TIMEOUT_S) -> None:
        """Copies until so many records are done."""
        deadline = time.monotonic() + timeout_s
        while sum(self.position.values()) < upto:
            self.turn()
            assert time.monotonic() < deadline, f"{self.position}, aborted {self.aborted}, unknown {self.unknown}"

    def turn(self) -> None:
        messages = [m for m in self.consumer.consume(BATCH, 0.05) if m.error() is None]
        if len(self.position) < PARTITIONS:
            self.position = {p.partition: 0 for p in self.consumer.assignment()}
        if not messages:
            return
        after = self.position | {m.partition() or 0: (m.offset() or 0) + 1 for m in messages}
        try:
            with self.output.begin() as transaction:
                for m in messages:
                    transaction.produce(self.target, m.value(), m.key(), m.partition())
                transaction.commit({self.group: [Offset(self.source, p, offset) for p, offset in after.items()]})
        except TransactionAborted:
            self.aborted += 1
            self._read_from(self.position)
        except TransactionUnknown:
            self.unknown += 1
            self._read_from(self.committed())
        else:
            self.position = after

    def committed(self) -> dict[int, int]:
        """What the cluster says, once nothing of ours is undecided any more."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.output.recover():
            assert time.monotonic() < deadline
        answers = settled(self.kafka, self.group, [TopicPartition(self.source, p) for p in range(PARTITIONS)], TIMEOUT_S)
        return {answer.partition: max(answer.offset, 0) for answer in answers}

    def _read_from(self, position: dict[int, int]) -> None:
        self.position = position
        for partition, offset in position.items():
            self.consumer.seek(TopicPartition(self.source, partition, offset))

    def close(self) -> None:
        self.output.close()
        self.consumer.close()


def values(copier: Copier) -> list[int]:
    """What was copied, sorted."""
    log = TopicLog(copier.kafka, copier.target)
    log.to_end()
    log.close()
    return sorted(int(m.value() or b"-1") for m in log.messages)


@pytest.fixture
def copier(broker: KafkaConfig) -> Iterator[Copier]:
    copier = Copier(broker, replication=1)
    copier.publish(300)
    copier.copy(150)
    yield copier
    copier.close()


def fail_within(copier: Copier) -> None:
    with copier.output.begin() as transaction:
        transaction.produce(copier.target, b"-8", b"k", 0)
        raise ZeroDivisionError


def produce_too_much(copier: Copier) -> None:
    with copier.output.begin() as transaction:
        transaction.produce(copier.target, b"-7", b"k", 0)
        transaction.produce(copier.target, bytes(20_000_000), b"k", 0)


def be_fenced_within(copier: Copier) -> None:
    with copier.output.begin() as transaction:
        transaction.produce(copier.target, b"-7", b"k", 0)
        for index in (0, 1):
            fence_producer(copier.kafka, copier.output.name, index)
        transaction.commit({copier.group: [Offset(copier.source, 0, 99)]})


def leave_within(copier: Copier) -> None:
    with copier.output.begin() as transaction:
        transaction.produce(copier.target, b"-7", b"k", 0)
        copier.consumer.unsubscribe()
        deadline = time.monotonic() + TIMEOUT_S
        while copier.consumer.assignment():
            copier.consumer.poll(0.05)
            assert time.monotonic() < deadline
        transaction.commit({copier.group: [Offset(copier.source, 0, 99)]})


def test_what_was_not_committed_is_not_seen_and_the_next_transaction_is_not_disturbed(copier: Copier) -> None:
    for _ in range(3):  # both producers of the pair
        with copier.output.begin() as transaction:
            transaction.produce(copier.target, b"-7", b"k", 0)
        with pytest.raises(ZeroDivisionError):
            fail_within(copier)
    copier.copy(300)
    assert values(copier) == list(range(300))
    assert (copier.aborted, copier.unknown) == (0, 0)


def test_what_the_output_refuses_inside_the_block_becomes_an_abort(copier: Copier) -> None:
    with pytest.raises(TransactionAborted, match="MSG_SIZE_TOO_LARGE"):
        produce_too_much(copier)
    copier.copy(300)
    assert values(copier) == list(range(300))


def test_a_producer_that_was_fenced_does_not_know_what_became_of_its_transaction(copier: Copier) -> None:
    """As when a successor takes us for dead. Whoever asks the cluster afterwards learns that nothing was committed."""
    for _ in range(2):
        with pytest.raises(TransactionUnknown):
            be_fenced_within(copier)
        assert copier.committed() == copier.position
    copier.copy(300)
    assert values(copier) == list(range(300))


def test_a_member_that_has_left_commits_nothing(copier: Copier) -> None:
    with pytest.raises(TransactionAborted):
        leave_within(copier)
    assert copier.committed() == copier.position
    assert min(values(copier)) >= 0


def test_after_one_of_the_pair_was_fenced_both_are_replaced(copier: Copier) -> None:
    """Whoever fences does so by name. The other one would fail only later, at the price of a second doubt."""
    with pytest.raises(TransactionUnknown):
        be_fenced_within(copier)
    assert copier.committed() == copier.position
    copier.copy(300)
    assert (copier.aborted, copier.unknown) == (0, 0)


@pytest.fixture
def copier3(cluster3: DevCluster) -> Iterator[Copier]:
    copier = Copier(KafkaConfig(cluster3.bootstrap_servers, {"log_level": 0}), replication=3)
    yield copier
    copier.close()
    for each in cluster3.brokers:
        each.start()
    cluster3.await_ready()


def coordinator_of(copier: Copier, cluster: DevCluster) -> Broker:
    admin = AdminClient(copier.kafka.common())
    described = admin.describe_consumer_groups([copier.group])[copier.group].result(TIMEOUT_S)
    [coordinator] = [each for each in cluster.brokers if each.node_id == described.coordinator.id]
    return coordinator


def test_outputs_equal_inputs_when_the_coordinators_broker_is_killed_in_mid_stream(cluster3: DevCluster, copier3: Copier) -> None:
    copier3.publish(RECORDS)
    copier3.copy(RECORDS // 3)
    coordinator_of(copier3, cluster3).kill()
    copier3.copy(RECORDS, timeout_s=80)
    assert values(copier3) == list(range(RECORDS))


@pytest.mark.parametrize("takes_new_name", [False, True])
def test_where_sending_offsets_hangs_there_is_no_doubt_and_nothing_stays_open(
    cluster3: DevCluster, copier3: Copier, takes_new_name: bool
) -> None:
    """What hangs goes on when the broker does, and must come upon a gate that is shut."""
    copier3.publish(300)
    copier3.copy(150)
    done = dict(copier3.position)
    coordinator = coordinator_of(copier3, cluster3)

    def hang() -> None:
        with copier3.output.begin() as transaction:
            transaction.produce(copier3.target, b"-7", b"k", 0)
            coordinator.pause()
            transaction.commit({copier3.group: [Offset(copier3.source, 0, 99)]})

    began_s = time.monotonic()
    with pytest.raises(TransactionAborted, match="sending offsets took longer than 2 s") as aborted:
        hang()
    assert aborted.value.is_by_offsets
    assert time.monotonic() - began_s < 5.0
    coordinator.resume()
    if takes_new_name:
        copier3.output.take_new_name()
    assert copier3.committed() == done
    ended_s = time.monotonic()
    assert min(values(copier3)) >= 0
    assert time.monotonic() - ended_s < 15.0, "what was left open was ended, and not by its timeout of 30 s"
    copier3.copy(300)
    assert values(copier3) == list(range(300))
