"""What the simulator saw, as a history for the checker.

Producers, handlers and faults say at once what happens. What the topics hold is read from them afterwards: the logs keep every record that
ever was committed, whatever compaction and retention have made of them since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.logs import MemoryRecord
from duewheel.adapters.memory.store import Disk
from duewheel.core.topology import Topology
from duewheel.proof.history import Backlog, Event, LogEnd
from tests.witness import event_of, snapshots


def of_topics(broker: Broker, topology: Topology) -> Iterator[Event]:
    """All that owners and workers ever committed."""
    for logs in broker.topics.values():
        for log in logs:
            for record in sorted(log.kept, key=MemoryRecord.offset):
                event = event_of(record, topology)
                if event is not None:
                    yield event


def of_ends(broker: Broker, topology: Topology, at_ms: int) -> Iterator[Event]:
    """How far the logs go, and what their groups have not passed."""
    reads = [(topology.processor_group, topology.intake), (topology.processor_group, topology.outcomes)]
    queues = [topic.removeprefix(topology.dispatch("")) for topic in broker.topics if topic.startswith(topology.dispatch(""))]
    reads += [(topology.worker_group(queue), topology.dispatch(queue)) for queue in queues]
    for topic, logs in broker.topics.items():
        for log in logs:
            yield LogEnd(at_ms, topic, log.partition, log.stable, log.end)
    for name, topic in reads:
        group = broker.group(name)
        for log in broker.topic(topic):
            position = group.committed(topic, [log.partition], stable=False)[log.partition].offset or 0
            left = sum(record.offset() >= position for record in log.kept)
            yield Backlog(at_ms, name, topic, log.partition, left)


def of_stores(broker: Broker, topology: Topology, disk: Disk, partitions: Sequence[int], at_ms: int) -> Iterator[Event]:
    """What the stores of a machine hold, what the changelog says, and what the engine makes of it in an empty store."""
    for number in partitions:
        log = broker.topic(topology.state)[number]
        changelog = sorted(log.kept, key=MemoryRecord.offset)
        yield from snapshots(number, changelog, log.start, log.end, {"store": disk.contents[number].jobs}, at_ms)
