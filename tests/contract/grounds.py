"""Where a port is tried: over the adapters in memory, and over the real ones. A test sees no difference.

grounds.topic(3)                          a new topic of three partitions
grounds.append(topic, 0, b"a", b"b")      two plain records
Member(grounds.group_reader(topic, "g"))   a member of a group, that keeps what it is told
grounds.eventually(lambda: …)             turns whatever must be turned until it is so

In memory nothing happens unless somebody waits, and a minute of waiting takes no time; on Kafka everything happens by itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.intake import KafkaIntake
from duewheel.adapters.kafka.readers import KafkaGroupReader, KafkaReader
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.states import KafkaStates
from duewheel.adapters.kafka.transactions import KafkaTransactions
from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.cluster import MemoryCluster
from duewheel.adapters.memory.intake import MemoryIntake
from duewheel.adapters.memory.readers import MemoryGroupReader, MemoryReader, MemoryStates
from duewheel.adapters.memory.transactions import MemoryTransactions
from duewheel.adapters.memory.transactions import Producer as MemoryProducer
from duewheel.adapters.memory.world import Process, World
from duewheel.ports import Cluster, GroupReader, IntakeLog, Offset, PartitionReader, Record, StateLog, TransactionalOutput

T = TypeVar("T")
WAIT_S = 40.0
STEP_S = 0.02


class Grounds(Protocol):
    """Makes adapters that see the same cluster."""

    def topic(self, partitions: int) -> str: ...

    def name(self, name: str) -> str:
        """A name for a group or an owner that nobody else uses."""

    def append(self, topic: str, partition: int, *values: bytes) -> None: ...
    def delete_before(self, topic: str, partition: int, offset: int) -> None: ...
    def reader(self, topic: str) -> PartitionReader: ...
    def states(self, topic: str) -> StateLog: ...
    def group_reader(self, topic: str, group: str) -> GroupReader: ...
    def output(self, name: str, members: Mapping[str, GroupReader]) -> TransactionalOutput: ...
    def cluster(self) -> Cluster: ...
    def intake(self, topic: str) -> IntakeLog: ...

    def held_open(self, group: str, member: GroupReader, offsets: Sequence[Offset]) -> AbstractContextManager[None]:
        """Keeps a transaction open that would commit these offsets; aborted at the end."""

    def pause(self) -> None:
        """Lets a little time pass."""

    def now_s(self) -> float: ...

    def close(self) -> None: ...


class InMemory:
    """Everything in one world, in good weather."""

    def __init__(self) -> None:
        self._world = World()
        self._broker = Broker(self._world)
        self._process = Process(self._world, "test")

    def topic(self, partitions: int) -> str:
        name = f"t{len(self._broker.topics)}"
        self._broker.create(name, partitions)
        return name

    def name(self, name: str) -> str:
        return name

    def append(self, topic: str, partition: int, *values: bytes) -> None:
        for value in values:
            self._broker.topic(topic)[partition].append(b"key", value, None, self._world.now_ms)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self._broker.topic(topic)[partition].delete_before(offset)

    def reader(self, topic: str) -> PartitionReader:
        return MemoryReader(self._process, self._broker, topic)

    def states(self, topic: str) -> StateLog:
        return MemoryStates(self._process, self._broker, topic)

    def group_reader(self, topic: str, group: str) -> GroupReader:
        return MemoryGroupReader(self._process, self._broker, topic, group)

    def output(self, name: str, members: Mapping[str, GroupReader]) -> TransactionalOutput:
        readers: Any = members
        return MemoryTransactions(self._process, self._broker, name, readers)

    def cluster(self) -> Cluster:
        return MemoryCluster(self._process, self._broker)

    def intake(self, topic: str) -> IntakeLog:
        return MemoryIntake(self._process, self._broker, topic)

    @contextmanager
    def held_open(self, group: str, member: GroupReader, offsets: Sequence[Offset]) -> Iterator[None]:
        reader: Any = member
        producer = MemoryProducer(self._process, self._broker, "held-open")
        deadline_us = self._world.now_us + round(WAIT_S * 1_000_000)
        producer.init(WAIT_S)
        producer.begin()
        producer.send_offsets(group, reader.member, offsets, deadline_us)
        yield
        producer.abort(deadline_us)

    def pause(self) -> None:
        self._process.sleep(STEP_S)

    def now_s(self) -> float:
        return self._world.now_us / 1_000_000

    def close(self) -> None: ...


class OnKafka:
    """A real cluster; topics and groups of one's own on it."""

    def __init__(self, kafka: KafkaConfig, replication: int) -> None:
        self._kafka = kafka
        self._replication = replication
        self._admin = AdminClient(kafka.common())
        self._prefix = f"c{uuid.uuid4().hex[:12]}"
        self._topics: list[str] = []
        self._closing: list[Any] = []

    def topic(self, partitions: int) -> str:
        name = f"{self._prefix}.{len(self._topics)}"
        for future in self._admin.create_topics([NewTopic(name, partitions, self._replication)]).values():
            future.result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while name not in self._admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline
            time.sleep(STEP_S)
        self._topics.append(name)
        return name

    def name(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def append(self, topic: str, partition: int, *values: bytes) -> None:
        producer = Producer(self._kafka.producer(int(WAIT_S * 1000), 0))
        for value in values:
            producer.produce(topic, value, b"key", partition)
        assert producer.flush(WAIT_S) == 0

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        for future in self._admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(WAIT_S)

    def reader(self, topic: str) -> PartitionReader:
        return self._kept(KafkaReader(self._kafka, topic))

    def states(self, topic: str) -> StateLog:
        return self._kept(KafkaStates(self._kafka, topic))

    def group_reader(self, topic: str, group: str) -> GroupReader:
        return self._kept(KafkaGroupReader(self._kafka, topic, group))

    def output(self, name: str, members: Mapping[str, GroupReader]) -> TransactionalOutput:
        readers: Any = members
        consumers = {group: reader.consumer for group, reader in readers.items()}
        return self._kept(KafkaTransactions(self._kafka, name, consumers))

    def cluster(self) -> Cluster:
        return KafkaCluster(self._kafka)

    def intake(self, topic: str) -> IntakeLog:
        return self._kept(KafkaIntake(self._kafka, topic, 5.0))

    @contextmanager
    def held_open(self, group: str, member: GroupReader, offsets: Sequence[Offset]) -> Iterator[None]:
        reader: Any = member
        producer = Producer(self._kafka.transactional(self.name("held-open")))
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        positions = [TopicPartition(o.topic, o.partition, o.offset, metadata=o.metadata) for o in offsets]
        producer.send_offsets_to_transaction(positions, reader.consumer.consumer_group_metadata(), WAIT_S)
        yield
        producer.abort_transaction(WAIT_S)

    def pause(self) -> None:
        time.sleep(STEP_S)

    def now_s(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        for each in self._closing:
            each.close()
        if self._topics:
            for removed in self._admin.delete_topics(self._topics, operation_timeout=0, request_timeout=10).values():
                removed.result(15)

    def _kept(self, adapter: T) -> T:
        self._closing.append(adapter)
        return adapter


class Member:
    """A member of a group: its reader, and what it was told."""

    def __init__(self, reader: GroupReader, reads: bool = True) -> None:
        self.reader = reader
        self.held: list[int] = []
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.records: list[Record] = []
        self.on_revoke: Callable[[Sequence[int]], None] = lambda partitions: None
        self.on_assign: Callable[[Sequence[int]], None] = lambda partitions: None
        self._reads = reads
        reader.join(self)

    def assigned(self, partitions: Sequence[int]) -> None:
        self.told.append(("assigned", tuple(sorted(partitions))))
        self.held = sorted({*self.held, *partitions})
        if self._reads:
            for partition in partitions:
                self.reader.read_from(partition, 0)
        self.on_assign(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        self.told.append(("revoked", tuple(sorted(partitions))))
        self.on_revoke(partitions)
        self.held = [p for p in self.held if p not in partitions]

    def lost(self, partitions: Sequence[int]) -> None:
        self.told.append(("lost", tuple(sorted(partitions))))
        self.held = [p for p in self.held if p not in partitions]

    def poll(self) -> None:
        self.records += self.reader.poll(STEP_S, 100)


def eventually(grounds: Grounds, is_so: Callable[[], object], turn: Callable[[], object] = lambda: None) -> None:
    """Turns until it is so; fails where that takes too long."""
    deadline = grounds.now_s() + WAIT_S
    while not is_so():
        assert grounds.now_s() < deadline, "it did not come about"
        turn()
        grounds.pause()


def joined(grounds: Grounds, *members: Member, partitions: int) -> None:
    """Polls until the members hold everything between them, evenly, and none holds what another does."""

    def is_shared() -> bool:
        held = sorted(p for member in members for p in member.held)
        counts = [len(member.held) for member in members]
        return held == list(range(partitions)) and max(counts) - min(counts) <= 1

    def poll() -> None:
        for member in members:
            member.poll()

    eventually(grounds, is_shared, poll)


def values(reader: PartitionReader, grounds: Grounds, partition: int, upto: int) -> list[bytes | None]:
    """What is visible of a partition, read until it was seen up to `upto`."""
    found: list[Record] = []
    reader.assign(partition, 0)
    eventually(grounds, lambda: reader.reached(partition) >= upto, lambda: found.extend(reader.poll(STEP_S, 100)))
    reader.release(partition)
    return [record.value() for record in found if record.partition() == partition]
