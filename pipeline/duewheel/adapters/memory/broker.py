"""Kafka in memory: topics, and what their partitions, transactions and groups promise.

    broker = Broker(World())
    broker.create("jobs", 4)
    broker.topic("jobs")[0].append(b"key", b"value", None, now_ms=1)

What it keeps of Kafka is what the rest of Duewheel relies on or must survive; see `logs` for visibility, `coordinator` for transactions,
`groups` for membership. It never fails by itself: faults come from the world's hook, on the way of a call.
"""

from __future__ import annotations

from typing import Final

from duewheel.adapters.memory.coordinator import Coordinator
from duewheel.adapters.memory.groups import Group
from duewheel.adapters.memory.logs import Log
from duewheel.adapters.memory.world import World

# As the brokers' default for a topic with our largest record.
RECORD_BYTES_MAX: Final = 1_200_000


class Broker:
    """The cluster. There is one; replication and elections show only as faults.

    Attributes:
        record_bytes_max: what topics take at most of a value, where it is less than the default.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, list[Log]] = {}
        self.groups: dict[str, Group] = {}
        self.transactions = Coordinator(world)
        self.record_bytes_max: dict[str, int] = {}

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = [Log(topic, partition) for partition in range(partitions)]

    def delete(self, topic: str) -> None:
        """Deletes a topic, and what groups have committed of it; one of the same name made afterwards has nothing to do with it."""
        del self.topics[topic]
        for group in self.groups.values():
            group.forget(topic)

    def topic(self, name: str) -> list[Log]:
        """Raises KeyError where there is none."""
        return self.topics[name]

    def find(self, topic: str, partition: int) -> Log | None:
        logs = self.topics.get(topic)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def group(self, name: str) -> Group:
        """The group of that name, which begins to exist when somebody asks."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self.world, name)
        return group
