"""Reads a topic from its start to where it ends now, and on from there: for people who look into one.

    scan = Scan(kafka, "duewheel.dead-letter", patience_s=30)
    for records in scan.to_end(): …      all that is there
    for records in scan.to_end(): …      what was added meanwhile
    records = scan.poll(0.1)             what comes next
    record = scan.at(0, 4711)            one again, of which only its place was kept
    for records in scan.up_to({3: 900}): …   or up to a place that somebody else has named
    scan.close()

The end is asked for as readers of committed records see it, so a transaction that somebody left open does not hold it up. It belongs to
no group, disturbs nobody, and holds one batch at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.readers import KafkaReader
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import BrokerUnavailable
from duewheel.ports import Record

_BATCH_RECORDS_MAX: Final = 5_000
_POLL_S: Final = 0.1
_BACKOFF_S: Final = 0.5

# A log that ends in a transaction's marker is known to end when a fetch comes back with nothing: after 500 ms, by librdkafka's default.
_FETCH_WAIT_MS: Final = 20

T = TypeVar("T")


class Scan:
    """One topic, read once.

    Args:
        patience_s: for how long the cluster may be away before that is an error.
        starts: read these partitions only, each from this offset or where its log begins, whichever is later; none for all.

    Attributes:
        starts: where reading began, by partition.
        count: how many records lie, at most, between the start and the end that was asked for last.
        done: how many of these were passed.

    Raises:
        TopicMissing: there is no such topic.
        BrokerUnavailable: nobody answered for `patience_s`.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, patience_s: float, starts: Mapping[int, int] | None = None) -> None:
        self._topic = topic
        self._patience_s = patience_s
        self._cluster = KafkaCluster(kafka)
        count = self._patiently(lambda: self._cluster.partition_count(topic))
        self._partitions = list(range(count)) if starts is None else sorted(starts)
        self._ends = self._patiently(self._watermarks)
        self.starts = {p: max(start, starts[p] if starts else 0) for p, (start, _) in self._ends.items()}
        options = {"fetch.wait.max.ms": _FETCH_WAIT_MS, **kafka.options}
        self._reader = KafkaReader(KafkaConfig(kafka.bootstrap_servers, options), topic)
        for partition, start in self.starts.items():
            self._reader.assign(partition, start)

    @property
    def count(self) -> int:
        return sum(end - self.starts[p] for p, (_, end) in self._ends.items())

    @property
    def done(self) -> int:
        return sum(max(0, self._reader.reached(p) - start) for p, start in self.starts.items())

    def to_end(self) -> Iterator[list[Record]]:
        """Batches of what was not read before, up to where the topic ends now, and perhaps a little beyond.

        Raises:
            BrokerUnavailable: nothing came for `patience_s`.
        """
        self._ends = self._patiently(self._watermarks)
        return self._unread()

    def up_to(self, ends: Mapping[int, int]) -> Iterator[list[Record]]:
        """Batches of what was not read before, up to these offsets, and perhaps a little beyond.

        An offset may lie behind transactions that are open: they are waited for.

        Raises:
            BrokerUnavailable: nothing came for `patience_s`.
        """
        self._ends = {p: (self.starts[p], end) for p, end in ends.items()}
        return self._unread()

    def written(self) -> dict[int, int]:
        """Where each partition ends now, counting what is not committed yet: what was committed before this call lies below."""
        found = self._patiently(lambda: self._cluster.watermarks(self._topic, self._partitions))
        return {p: end for p, (_, end) in found.items()}

    def reached(self, partition: int) -> int:
        """Everything visible below this offset was handed out."""
        return max(self.starts[partition], self._reader.reached(partition))

    def _unread(self) -> Iterator[list[Record]]:
        heard_s, seen = time.monotonic(), -1
        while unread := {p: end for p, (start, end) in self._ends.items() if max(start, self._reader.reached(p)) < end}:
            records = self.poll(_POLL_S)
            if records:
                yield records
            if self.done != seen:
                heard_s, seen = time.monotonic(), self.done
            elif time.monotonic() - heard_s > self._patience_s:
                p, end = unread.popitem()
                raise BrokerUnavailable(
                    f"nothing more could be read of {self._topic} [{p}] for {self._patience_s:g} s, at offset "
                    f"{self._reader.reached(p)} of {end}; is its leader away?"
                )

    def poll(self, timeout_s: float) -> list[Record]:
        """The next records, waiting for the first at most so long."""
        return self._reader.poll(timeout_s, _BATCH_RECORDS_MAX)

    def at(self, partition: int, offset: int) -> Record | None:
        """The record at this offset, or None where it is no more. Afterwards there is nothing to poll.

        Raises:
            BrokerUnavailable: nothing came for `patience_s`.
        """
        for other in self._partitions:
            self._reader.release(other)
        self._reader.assign(partition, offset)
        deadline_s = time.monotonic() + self._patience_s
        while time.monotonic() < deadline_s:
            # What was under way of before comes first, and is not asked for.
            for record in self._reader.poll(_POLL_S, 1):
                if record.partition() == partition and record.offset() >= offset:
                    self._reader.release(partition)
                    return record if record.offset() == offset else None
            if self._reader.reached(partition) >= offset:
                return None
        raise BrokerUnavailable(f"{self._topic} [{partition}] could not be read at offset {offset} for {self._patience_s:g} s")

    def close(self) -> None:
        self._reader.close()

    def _watermarks(self) -> dict[int, tuple[int, int]]:
        return self._cluster.visible(self._topic, self._partitions)

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except BrokerUnavailable:
                if time.monotonic() + _BACKOFF_S >= deadline_s:
                    raise
                time.sleep(_BACKOFF_S)
