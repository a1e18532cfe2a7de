"""Questions to the cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.logs import Log
from duewheel.adapters.memory.transactions import fence_producer
from duewheel.adapters.memory.world import Fault, Process
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.ports import GroupPosition

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryCluster:
    """`ports.Cluster` in memory."""

    def __init__(self, process: Process, broker: Broker) -> None:
        self._process = process
        self._broker = broker

    def partition_count(self, topic: str) -> int:
        with self._asking("cluster.topics"):
            return len(self._logs(topic))

    def partition_counts(self) -> dict[str, int]:
        with self._asking("cluster.topics"):
            return {name: len(logs) for name, logs in self._broker.topics.items()}

    def watermarks(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        with self._asking("cluster.watermarks"):
            logs = self._found(topic)
            return {p: (logs[p].start, logs[p].end) for p in partitions}

    def visible(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        with self._asking("cluster.visible"):
            logs = self._found(topic)
            return {p: (logs[p].start, logs[p].stable) for p in partitions}

    def owners(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        with self._asking("cluster.owners"):
            return self._broker.group(group).committed(topic, partitions, stable=False)

    def fence(self, name: str) -> None:
        with self._asking("cluster.fence"):
            for index in (0, 1):
                fence_producer(self._process, self._broker, name, index)

    def _found(self, topic: str) -> list[Log]:
        try:
            return self._logs(topic)
        except TopicMissing as error:
            raise BrokerUnavailable(str(error)) from error

    def _logs(self, topic: str) -> list[Log]:
        logs = self._broker.topics.get(topic)
        if logs is None:
            raise TopicMissing(f"topic {topic} does not exist")
        return logs

    @contextmanager
    def _asking(self, where: str) -> Iterator[None]:
        try:
            self._process.reach(where)
            yield
            self._process.answer(where)
        except Fault as fault:
            raise BrokerUnavailable(f"the cluster did not answer: {fault}") from fault
