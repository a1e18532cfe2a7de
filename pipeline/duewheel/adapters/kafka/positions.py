"""What a consumer group has committed, asked (or said) by somebody who is not a member.

The obvious call, `AdminClient.list_consumer_group_offsets`, ends the process: librdkafka answers NOT_COORDINATOR by asking the client's
own consumer group to look for its coordinator anew, and an admin client has none (a null pointer; librdkafka #5040, present in 2.16).
That answer is what about every third new cluster gives, and any cluster whose coordinator moves: just when brokers die. A consumer
that subscribes to nothing may ask too. It has the group to ask with, looks for the coordinator by itself, and reports the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from duewheel.adapters.kafka.settings import KafkaConfig

# The coordinator is moving, loading, or being made; the same question will be answered in a moment.
_MOVING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
)
_PAUSE_S: Final = 0.05


def committed(kafka: KafkaConfig, group: str, partitions: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """The committed offset and metadata of each partition; a negative offset where there is none.

    What an open transaction wants to commit does not count, and is not waited for. Takes 60 ms, most of it to find the coordinator,
    and a second on a new cluster.

    Raises:
        KafkaException: nobody answered in time. A single partition's error is in its `error`.
    """
    # Readers of uncommitted records are not made to wait for offsets in open transactions.
    return _ask(kafka, group, "read_uncommitted", partitions, timeout_s)


def settled(kafka: KafkaConfig, group: str, partitions: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """As `committed`, but waits for open transactions that want to commit offsets of these partitions.

    Raises:
        KafkaException: nobody answered in time, or a transaction stayed open for longer.
    """
    return _ask(kafka, group, "read_committed", partitions, timeout_s)


def commit(kafka: KafkaConfig, group: str, positions: Sequence[TopicPartition], timeout_s: float) -> None:
    """Commits offsets and metadata for a group that has no members; one that has takes commits from them alone.

    Raises:
        KafkaException: refused (UNKNOWN_MEMBER_ID: the group has members), or nobody answered in time.
    """
    _patiently(kafka, group, "read_uncommitted", lambda consumer, _left_s: _commit(consumer, positions), timeout_s)


def _commit(consumer: Consumer, positions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return consumer.commit(offsets=list(positions), asynchronous=False)


def _ask(kafka: KafkaConfig, group: str, isolation: str, partitions: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    return _patiently(kafka, group, isolation, lambda consumer, left_s: consumer.committed(list(partitions), timeout=left_s), timeout_s)


def _patiently(
    kafka: KafkaConfig, group: str, isolation: str, call: Callable[[Consumer, float], list[TopicPartition]], timeout_s: float
) -> list[TopicPartition]:
    consumer = Consumer({**kafka.reader(), "group.id": group, "isolation.level": isolation})
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            left_s = max(_PAUSE_S, deadline - time.monotonic())
            try:
                return call(consumer, left_s)
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or left_s <= _PAUSE_S:
                    raise
                time.sleep(_PAUSE_S)
    finally:
        consumer.close()
