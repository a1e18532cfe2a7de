"""The state topic as producers read it, who wait for jobs to end: chosen partitions, from a time on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.adapters.kafka.readers import KafkaReader
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.core.topology import making
from duewheel.ports import Found, Record

_TIMEOUT_S: Final = 5.0

# How far reading begins before a log's end at least. The last record of each transaction says how far its partition's owner has come, and
# it is needed; after it come markers, and what was aborted.
_LATEST: Final = 1_000

# A broker answers one request of a connection after the other, and an idle fetch keeps it for so long: librdkafka's default of 500 ms would
# delay each partition that is read for the first time by as much, several times over.
_FETCH_WAIT_MS: Final = 20

T = TypeVar("T")


class KafkaStates:
    """`ports.StateLog` on Kafka. It connects when it is first used."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        heard: deque[str] = deque(maxlen=1)  # librdkafka's last complaint, which says more than that a request timed out
        settings: dict[str, Any] = {"allow.auto.create.topics": False, "fetch.wait.max.ms": _FETCH_WAIT_MS, **kafka.options}
        settings["error_cb"] = lambda error: heard.append(error.str())
        self._heard = heard
        self._address = kafka.bootstrap_servers
        self._topic = topic
        self._reader = KafkaReader(KafkaConfig(kafka.bootstrap_servers, settings), topic)
        self._consumer = self._reader.consumer
        self._partitions = 0

    def partition_of(self, key: bytes) -> int:
        if not self._partitions:
            self._partitions = self._count()
        return partition_of(key, self._partitions)

    def find(self, partition: int, since_ms: int) -> Found:
        self.partition_of(b"")  # a topic that is missing shall be told from a cluster that is away
        where = TopicPartition(self._topic, partition, since_ms)
        ends = self._asked(lambda: self._consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S))
        if ends is None:
            raise self._unavailable(KafkaError(KafkaError._TIMED_OUT))
        first, end = ends
        if since_ms <= 0:
            return Found(first, 0, end)
        [found] = self._asked(lambda: self._consumer.offsets_for_times([where], timeout=_TIMEOUT_S))
        if found.error is not None:
            raise self._unavailable(found.error)
        offset = min(found.offset if found.offset >= 0 else end, end - _LATEST)
        return Found(offset, since_ms, end) if offset > first else Found(first, 0, end)

    def assign(self, partition: int, offset: int) -> None:
        self._asked(lambda: self._reader.assign(partition, offset))

    def release(self, partition: int) -> None:
        self._asked(lambda: self._reader.release(partition))

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        return self._asked(lambda: self._reader.poll(timeout_s, count_max))

    def reached(self, partition: int) -> int:
        return self._reader.reached(partition)

    def close(self) -> None:
        self._reader.close()

    def _count(self) -> int:
        found = self._asked(lambda: self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S)).topics[self._topic]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {self._topic} does not exist at {self._address}; make it with: {making(self._topic)}")
        raise self._unavailable(found.error)

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error

    def _unavailable(self, error: KafkaError) -> BrokerUnavailable:
        why = f"{error.str()}; {self._heard[-1]}" if self._heard else error.str()
        return BrokerUnavailable(f"topic {self._topic} cannot be read at {self._address}: {why}")
