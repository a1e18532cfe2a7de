"""The floor: what Kafka itself costs for the work of the timer path, so that what Duewheel adds can be told from it.

A loop over bare confluent-kafka calls that does what any processor of this design must do: read the records of intake, and write for
each a definition, a state and a dispatch, in transactions that carry the offset. It decodes nothing, decides nothing, stores nothing.

Neither handicapped nor favoured:

- The same records are read, by a consumer with the settings of the processor's own (it is made by the same class).
- What is written are bytes that the processor wrote, so sizes and compressibility are the same; they lie ready in memory. 4,096
  different ones of each kind are used in turn: more than the window of the compression can see.
- As many to a transaction as the processor had on average, topic after topic as it does, with two producers of its settings in turn, to
  topics with the same settings and as many partitions.
- Offsets and commit go out on a helper thread while the next batch is being read, and are waited for before the next transaction begins.
- Each produce() is a plain call, and the garbage collector stays out of it, as in the processor.

    read 1 ── begin, produce 1 ── read 2 ────────────── begin, produce 2 ── read 3 ── …
                               └─ offsets, commit 1 ─┘                   └─ offsets, commit 2 ─┘

What it leaves out is little: the processor sends a record of its progress and a second offset with each transaction, and looks for
outcomes in between.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

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
    with _spared_garbage_collection():
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        reader.read_from(0, 0)
        transactions = write(consumer, producers, source, target, prepared)
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


def write(consumer: Consumer, producers: Sequence[Producer], source: Topology, target: Topology, prepared: Sequence[Batch]) -> int:
    """The loop itself; how many transactions it committed."""
    state, dispatch = target.state, target.dispatch(QUEUE_DEFAULT)
    pending: Future[None] | None = None
    turn = 0
    with ThreadPoolExecutor(1, "duewheel-floor") as helper:
        for definitions, states, dispatches in prepared:
            messages = consumer.consume(len(definitions), _TIMEOUT_S)
            if len(messages) < len(definitions):
                raise EnvironmentFailure(f"the floor's loop got {len(messages)} records of {len(definitions)} within {_TIMEOUT_S:g} s")
            if pending is not None:
                pending.result()
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
            pending = helper.submit(_commit, producer, TopicPartition(source.intake, 0, last + 1), member)
        if pending is not None:
            pending.result()
    return len(prepared)


def _commit(producer: Producer, position: TopicPartition, member: Any) -> None:
    producer.send_offsets_to_transaction([position], member, _TIMEOUT_S)
    producer.commit_transaction(_TIMEOUT_S)


@contextmanager
def _spared_garbage_collection() -> Iterator[None]:
    """As `adapters.system.spare_garbage_collection`, which in the processor lets none happen for as long as this takes; and undone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
