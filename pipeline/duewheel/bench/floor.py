"""The floor: what Kafka itself costs for the work of the timer path, so that what Duewheel adds can be told from it.

A loop over bare confluent-kafka calls that does what any processor of this design must do: read the records of intake, and write for
each a definition, a state and a dispatch, in transactions that carry the offset. It decodes nothing, decides nothing, stores nothing.

Neither handicapped nor favoured:

- The same records are read, by a consumer with the settings of the processor's own (it is made by the same class).
- What is written are bytes that the processor wrote, so sizes and compressibility are the same; they lie ready in memory. 4,096
  different ones of each kind are used in turn: more than the window of the compression can see.
- As many to a transaction as the processor had on average, topic after topic as it does, with two producers of its settings in turn, to
  topics with the same settings and as many partitions.
- Each produce() is a plain call, as the processor's are.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from duewheel.adapters.kafka.readers import KafkaGroupReader
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.bench.report import Progress
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.topology import QUEUE_DEFAULT, Topology

SAMPLES: Final = 4_096
_TIMEOUT_S: Final = 30.0


class Samples(NamedTuple):
    """(value, key) of records that the processor wrote, of each kind up to `SAMPLES`."""

    definitions: Sequence[tuple[bytes, bytes]]
    states: Sequence[tuple[bytes, bytes]]
    dispatches: Sequence[tuple[bytes, bytes]]


class FloorRun(NamedTuple):
    """How long the loop took, and how much CPU time of this process, for how many transactions."""

    seconds: float
    cpu_s: float
    transactions: int


def run(
    kafka: KafkaConfig, source: Topology, target: Topology, count: int, batch: int, samples: Samples, progress: Progress, what: str
) -> FloorRun:
    """Reads `count` records of `source`'s intake, and writes to `target`'s topics, `batch` jobs a transaction."""
    group = f"{target.prefix}.floor"
    reader = KafkaGroupReader(kafka, source.intake, group)
    _join(reader)
    consumer = reader.consumer
    producers = [Producer(kafka.transactional(f"{group}.{uuid.uuid4().hex}-{index}")) for index in (0, 1)]
    for producer in producers:
        producer.init_transactions(_TIMEOUT_S)
    prepared = batches(samples, count, batch)
    progress(what, 0, count)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    reader.read_from(0, 0)
    transactions = _loop(consumer, producers, source, target, prepared)
    run = FloorRun(time.monotonic() - began_s, time.process_time() - began_cpu_s, transactions)
    progress(what, count, count)
    reader.close()
    return run


class Batch(NamedTuple):
    """(value, key) of what one transaction writes."""

    definitions: list[tuple[bytes, bytes]]
    states: list[tuple[bytes, bytes]]
    dispatches: list[tuple[bytes, bytes]]


def batches(samples: Samples, count: int, batch: int) -> list[Batch]:
    """What each transaction writes. Lists of references to the same few thousand records."""
    sources = [cycle(kind) for kind in samples]
    sizes = [min(batch, count - at) for at in range(0, count, batch)]
    return [Batch(*(list(islice(source, size)) for source in sources)) for size in sizes]


def _loop(consumer: Consumer, producers: Sequence[Producer], source: Topology, target: Topology, prepared: Sequence[Batch]) -> int:
    intake, state, dispatch = source.intake, target.state, target.dispatch(QUEUE_DEFAULT)
    turn = 0
    for definitions, states, dispatches in prepared:
        messages = consumer.consume(len(definitions), _TIMEOUT_S)
        if len(messages) < len(definitions):
            raise EnvironmentFailure(f"the floor's loop got {len(messages)} records of {len(definitions)} within {_TIMEOUT_S:g} s")
        turn ^= 1
        producer = producers[turn]
        produce = producer.produce
        member = consumer.consumer_group_metadata()
        producer.begin_transaction()
        for value, key in definitions:
            produce(state, value, key, 0)
        for value, key in states:
            produce(state, value, key, 0)
        for value, key in dispatches:
            produce(dispatch, value, key, 0)
        last = messages[-1].offset()
        assert last is not None
        position = TopicPartition(intake, 0, last + 1)
        producer.send_offsets_to_transaction([position], member, _TIMEOUT_S)
        producer.commit_transaction(_TIMEOUT_S)
    return len(prepared)


class _Joined:
    """Hears that the partition is ours."""

    def __init__(self) -> None:
        self.partitions: list[int] = []

    def assigned(self, partitions: Sequence[int]) -> None:
        self.partitions += partitions

    def revoked(self, partitions: Sequence[int]) -> None:
        """Nothing is open when it happens: the loop has ended."""

    def lost(self, partitions: Sequence[int]) -> None:
        """As above; were it to happen in the loop, the broker would refuse the transaction."""


def _join(reader: KafkaGroupReader) -> None:
    joined = _Joined()
    reader.join(joined)
    deadline = time.monotonic() + _TIMEOUT_S
    while joined.partitions != [0]:
        reader.poll(0.1, 1)  # the partition is paused, so nothing is read yet
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"the floor's consumer got no partition within {_TIMEOUT_S:g} s")
