"""The dispatches of all queues, by timer partition, for whoever needs one partition after the other.

They lie on one topic a queue, split as suits the workers, so each is read once, and rows of it are spooled. What is added while partitions
are being looked at is read when the next one is: the rows then hold everything that its state topic can tell of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from duewheel.adapters.audit.spool import Spool
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.scan import Scan
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.audit import Dispatched
from duewheel.core.errors import TopicMissing, UndecodableRecord
from duewheel.core.topology import Topology
from duewheel.ports import Clock, Record


class Dispatches:
    """All dispatch topics of an installation.

    Args:
        codec: reads dispatches.
        patience_s: for how long the cluster may be away, or a transaction open, before that is an error.
        on_progress: told what is read, how many records were passed, and of how many.

    Attributes:
        since_ms: from when on each queue's topic is complete, by queue; 0 for one that was never cut.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topology: Topology,
        codec: Any,
        clock: Clock,
        patience_s: float,
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._kafka = kafka
        self._prefix = topology.dispatch("")
        self._codec = codec
        self._clock = clock
        self._patience_s = patience_s
        self._on_progress = on_progress
        self._cluster = KafkaCluster(kafka)
        self._spool = Spool()
        self._reached: dict[str, dict[int, int]] = {}
        self.since_ms: dict[str, int] = {}

    def catch_up(self) -> None:
        """Reads what was not read before, up to where the topics end now.

        Raises:
            BrokerUnavailable: it could not be read.
        """
        for topic in sorted(topic for topic in self._cluster.partition_counts() if topic.startswith(self._prefix)):
            try:
                self._read(topic, topic.removeprefix(self._prefix))
            except TopicMissing:
                continue  # its queue was removed this moment

    def count(self, partition: int) -> int:
        """How many dispatches of a timer partition were read."""
        return self._spool.count(partition)

    def of(self, partition: int) -> Iterator[Dispatched]:
        """The dispatches of a timer partition."""
        return (Dispatched(*row) for row in self._spool.rows(partition))

    def close(self) -> None:
        self._spool.close()

    def _read(self, topic: str, queue: str) -> None:
        count = self._cluster.partition_count(topic)
        reached = self._reached.get(queue, {})
        starts = {p: reached.get(p, 0) for p in range(count)}
        ends = {p: end for p, (_, end) in self._cluster.watermarks(topic, range(count)).items()}
        if reached and all(starts[p] >= end for p, end in ends.items()):
            return
        firsts: dict[int, int] = {}
        with closing(Scan(self._kafka, topic, self._patience_s, starts)) as scan:
            for records in scan.up_to(ends):
                self._keep(records, queue, firsts)
                self._on_progress(f"dispatches to {queue}", scan.done, scan.count)
            self._reached[queue] = {p: scan.reached(p) for p in starts}
        if not reached:
            cut = [p for p, start in scan.starts.items() if start > 0]
            self.since_ms[queue] = max((firsts.get(p, self._clock.wall_ms()) for p in cut), default=0)

    def _keep(self, records: list[Record], queue: str, firsts: dict[int, int]) -> None:
        rows: dict[int, list[Dispatched]] = {}
        for record in records:
            partition, offset, written_ms = record.partition(), record.offset(), record.timestamp()[1]
            firsts.setdefault(partition, written_ms)
            try:
                d = self._codec.decode_dispatch(record.value())
            except UndecodableRecord:
                continue  # a worker refuses it, and a job that it was for is found to lack it
            row = Dispatched(
                d["job_id"], d["token"], d["generation"], d["slot_ms"], d["dispatched_ms"], written_ms, queue, partition, offset
            )
            rows.setdefault(d["timer_partition"], []).append(row)
        for timer_partition, found in rows.items():
            self._spool.add(timer_partition, found)
