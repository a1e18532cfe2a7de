"""What the simulator saw, as a history for the checker.

Producers, handlers and faults say at once what happens. What the topics hold is read from them afterwards: the logs keep every record that
ever was committed, whatever compaction and retention have made of them since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.logs import Log, MemoryRecord
from duewheel.adapters.memory.store import Disk, MemoryStore
from duewheel.adapters.memory.world import Process, World
from duewheel.core.topology import Topology
from duewheel.engine.partition import DEFINITION, STATE, Partition
from duewheel.proof.history import (
    Backlog,
    DeadLettered,
    DeathClosed,
    Defined,
    Dispatched,
    Event,
    Forgotten,
    LogEnd,
    OutcomeRecorded,
    RunDied,
    Snapshot,
    StateWritten,
)


def of_topics(broker: Broker, topology: Topology) -> Iterator[Event]:
    """All that owners and workers ever committed."""
    for log in broker.topic(topology.state):
        yield from _of_state(log)
    for topic, logs in broker.topics.items():
        if topic.startswith(topology.dispatch("")):
            for log in logs:
                yield from (_dispatched(record) for record in log.kept)
    for log in broker.topic(topology.outcomes):
        yield from (_outcome(record) for record in log.kept)
    for log in broker.topic(topology.dead_letter):
        yield from (_dead(record) for record in log.kept)


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
        fold: dict[bytes, bytes] = {}
        for record in sorted(log.kept, key=MemoryRecord.offset):
            key, value = record.key(), record.value()
            assert key is not None
            if value is None:
                fold.pop(key, None)
            else:
                fold[key] = value
        rebuilt = MemoryStore(Process(World(), "rebuild"), Disk(), number, "rebuild")
        partition = Partition(number, rebuilt, codec)
        offset = partition.begin_replay(log.start, log.end, None, at_ms)
        partition.replay(log.read(offset, len(log.kept))[0], log.end, at_ms)
        for witness, jobs in (("store", disk.contents[number].jobs), ("fold", fold), ("rebuild", dict(rebuilt.records(b"", b"~", 10**6)))):
            yield Snapshot(at_ms, "the end", number, witness, {f"{key!r}": value.hex() for key, value in jobs.items()})


def _of_state(log: Log) -> Iterator[Event]:
    for record in sorted(log.kept, key=MemoryRecord.offset):
        key, value, at_ms = record.key() or b"", record.value(), record.timestamp()[1]
        kind, job_id = key[:1], key[1:].decode()
        where = (at_ms, log.partition, record.offset(), job_id)
        if kind == DEFINITION and value is not None:
            definition = codec.decode_definition(value)
            schedule = definition["schedule"]
            yield Defined(*where, definition["generation"], schedule["due_ms"], schedule["created_ms"])
        elif kind == STATE and value is None:
            yield Forgotten(*where)
        elif kind == STATE and value is not None:
            s = codec.decode_state(value)
            wake_ms = 0 if s["trail"] is None else s["trail"]["wake_ms"]
            generation, phase, token, slot_ms = s["generation"], s["phase"], s["token"], s["slot_ms"]
            yield StateWritten(*where, generation, phase, token, slot_ms, s["attempt"], s["crashes"], wake_ms)


def _dispatched(record: MemoryRecord) -> Event:
    d = codec.decode_dispatch(record.value())
    crashes = d["terms"]["crashes"] if d["terms"] else 0
    where = (record.timestamp()[1], record.topic(), record.partition(), record.offset())
    return Dispatched(*where, d["timer_partition"], d["job_id"], d["generation"], d["token"], d["attempt"], d["slot_ms"], crashes)


def _outcome(record: MemoryRecord) -> Event:
    o = codec.decode_outcome(record.value())
    return OutcomeRecorded(record.timestamp()[1], record.partition(), record.offset(), o["job_id"], o["token"], o["result"])


def _dead(record: MemoryRecord) -> Event:
    name, content = codec.decode_dead_letter_topic(record.value())
    told: Any = content
    at_ms = record.timestamp()[1]
    if name == "dead_run":
        return RunDied(at_ms, told["job_id"], told["token"], told["reason"], told["state"]["crashes"])
    if name == "closed":
        return DeathClosed(at_ms, told["job_id"], told["token"], told["how"])
    job_id = None if told["key"] is None else told["key"].decode(errors="replace")
    return DeadLettered(at_ms, told["topic"], told["partition"], told["offset"], told["reason"], job_id)
