"""Follows whole topics without a group: everything committed in them from some point on, and topics that appear later.

Being no member of a group, a follower disturbs nobody and commits nothing; any number of them may watch.

What a topic held when following began is its past. `ended` tells which partitions' pasts are read, so that a reader can put old
records in order or end by itself. A past ends at the offset that was the log's end at the start, or, because markers and aborted
records at an end are never handed out, where librdkafka says that there is nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from duewheel.adapters.kafka.ends import offsets
from duewheel.adapters.kafka.settings import QUEUE_FULL_BACKOFF_MS, KafkaConfig
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.ports import Record

log = structlog.get_logger(__name__)

_REQUEST_S_MAX: Final = 5.0
_BACKOFF_S: Final = 0.2
_BACKOFF_MAX_S: Final = 2.0
_TOPICS_EVERY_S: Final = 3.0  # how soon a topic that was just made is noticed

# Dozens of partitions are followed at once; these keep librdkafka's own buffers near 16 MB.
_QUEUE: Final = {
    "enable.partition.eof": True,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": QUEUE_FULL_BACKOFF_MS,
}

Partition = tuple[str, int]
T = TypeVar("T")


class Follower:
    """Reads the topics that `wanted` picks.

    Args:
        kafka: where the cluster is.
        wanted: says of a topic's name whether to follow it.
        since_ms: from records of this time on; 0 for all that is there, None for what comes from now on.
        patience_s: for how long the cluster may be away before that is an error.

    Raises:
        BrokerUnavailable: nobody answered for `patience_s`.
        TopicMissing: there is nothing to follow.
    """

    def __init__(self, kafka: KafkaConfig, wanted: Callable[[str], bool], since_ms: int | None, patience_s: float) -> None:
        self._kafka = kafka
        self._wanted = wanted
        self._patience_s = patience_s
        self._request_s = min(patience_s, _REQUEST_S_MAX)
        quiet: dict[str, Any] = {"error_cb": lambda _error: None}  # an absent broker is ours to report, once
        self._admin = AdminClient({**kafka.common(), **quiet})
        self._consumer = Consumer({**kafka.reader(**_QUEUE), **quiet})
        self._ends: dict[Partition, int] = {}  # partitions whose past is being read
        self._ended: list[Partition] = []
        self.partitions: set[Partition] = set()
        self._assign(self._patiently(self._existing), since_ms)
        if not self.partitions:
            self.close()
            raise TopicMissing(f"there is no topic to follow at {kafka.bootstrap_servers}; make them with: duewheel topics apply")
        self._topics_at = time.monotonic() + _TOPICS_EVERY_S

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        """The next records, at most `count_max`, waiting for the first at most `timeout_s`.

        Raises:
            BrokerUnavailable: the cluster went away for longer than `patience_s`.
        """
        if time.monotonic() >= self._topics_at:
            self._assign(self._patiently(self._existing) - self.partitions, 0)  # made after we began: all of it is new
            self._topics_at = time.monotonic() + _TOPICS_EVERY_S
        # consume(n, timeout) waits for all n, or the whole time; so wait for one, then take what is there.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages: list[Any] = [first, *self._consumer.consume(count_max - 1, 0)] if count_max > 1 else [first]
        return [message for message in messages if self._is_record(message)]

    def ended(self) -> list[Partition]:
        """The partitions whose past was read to its end since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._consumer.close()

    def _is_record(self, message: Any) -> bool:
        partition: Partition = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            end = self._ends.get(partition)
            if end is not None and message.offset() + 1 >= end:
                self._end(partition)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._end(partition)
        elif error.fatal():
            raise KafkaException(error)
        else:
            log.warning("follower.error", topic=partition[0], partition=partition[1], error=str(error))
        return False

    def _end(self, partition: Partition) -> None:
        if self._ends.pop(partition, None) is not None:
            self._ended.append(partition)

    def _assign(self, partitions: set[Partition], since_ms: int | None) -> None:
        if not partitions:
            return
        ends = self._patiently(lambda: self._offsets(partitions, OffsetSpec.latest()))
        if since_ms is None:
            starts = ends
        elif since_ms == 0:
            starts = self._patiently(lambda: self._offsets(partitions, OffsetSpec.earliest()))
        else:
            found = self._patiently(lambda: self._offsets(partitions, OffsetSpec.for_timestamp(since_ms)))
            starts = {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}
        self._consumer.incremental_assign([TopicPartition(topic, p, starts[topic, p]) for topic, p in partitions])
        self.partitions |= partitions
        self._ends.update(ends)
        for partition in partitions:
            if starts[partition] >= ends[partition]:
                self._end(partition)
        log.info("follower.assigned", topics=sorted({topic for topic, _ in partitions}), partitions=len(partitions))

    def _existing(self) -> set[Partition]:
        topics = self._admin.list_topics(timeout=self._request_s).topics
        return {(name, p) for name, topic in topics.items() if self._wanted(name) for p in topic.partitions}

    def _offsets(self, partitions: set[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        request = {TopicPartition(topic, p): spec for topic, p in partitions}
        return offsets(self._admin, request, IsolationLevel.READ_COMMITTED, self._request_s)

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience_s
        backoff_s = _BACKOFF_S
        while True:
            try:
                return ask()
            except (KafkaException, TimeoutError) as error:
                if time.monotonic() + backoff_s >= deadline:
                    raise BrokerUnavailable(
                        f"no Kafka broker answered at {self._kafka.bootstrap_servers} for {self._patience_s:g} s: {error}; "
                        "is it running, and is --bootstrap-servers right?"
                    ) from error
                log.warning("follower.broker_away", bootstrap_servers=self._kafka.bootstrap_servers, error=str(error))
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
