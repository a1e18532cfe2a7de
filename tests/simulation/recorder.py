"""What the simulator saw, as a history for the checker.

Producers, handlers and faults say at once what happens. What the topics hold is read from them afterwards: the logs keep every record that
ever was committed, whatever compaction and retention have made of them since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.logs import MemoryRecord
from duewheel.adapters.memory.store import Disk
from duewheel.core.errors import Reason
from duewheel.core.model import Action
from duewheel.core.run_ids import parse
from duewheel.core.topology import Topology, partition_of
from duewheel.engine.partition import DEFINITION
from duewheel.proof.history import (
    Acknowledged,
    Backlog,
    BadRecordWritten,
    ChangeInvoked,
    DeadLettered,
    Dispatched,
    EnqueueInvoked,
    Event,
    LogEnd,
    Snapshot,
    StateWritten,
)
from tests.simulation.site import TOPOLOGY, Site
from tests.witness import actions_of, answers_of, definition_of, definitions, event_of, snapshots

_REMEMBERED_MS: Final = 60_000


def of_topics(site: Site, bad: Mapping[str, Collection[tuple[int, int]]]) -> Iterator[Event]:
    """All that owners and workers ever committed; `bad` says where records lie, by topic, that others wrote and nobody can read."""
    logs = [(site.log_name(topic), log) for topic, logs in site.broker.topics.items() for log in logs]
    actions = actions_of(record for log in site.broker.topic(TOPOLOGY.intake) for record in log.kept)
    for name, log in [*logs, *site.deleted]:
        unreadable = bad.get(log.topic, ())
        for record in sorted(log.kept, key=MemoryRecord.offset):
            event = None if (log.partition, record.offset()) in unreadable else event_of(record, TOPOLOGY)
            if isinstance(event, Dispatched) and name != event.topic:
                event = event._replace(topic=name)
            if isinstance(event, StateWritten):
                event = event._replace(left_out=site.left_out.get(id(record.value()), (b"", 0))[1])
            if event is not None:
                yield event
            if isinstance(event, StateWritten):
                yield from answers_of(record, TOPOLOGY, actions)


def turned_away(site: Site, bad: Mapping[str, Collection[tuple[int, int]]]) -> dict[tuple[int, int], MemoryRecord]:
    """Commands that were refused since their queue had no topic just then, by partition and offset on the intake topic.

    Such a refusal is right while the queue is gone, and for as long as owners remember that, or take to say it.
    """
    if not site.queueless:
        return {}
    found = {}
    intake = site.broker.topic(TOPOLOGY.intake)
    for event in of_topic(site, TOPOLOGY.dead_letter):
        if isinstance(event, DeadLettered) and event.reason == Reason.UNKNOWN_QUEUE and event.topic == TOPOLOGY.intake:
            place = event.partition, event.offset
            in_time = any(from_ms <= event.at_ms <= to_ms + _REMEMBERED_MS for from_ms, to_ms in site.queueless)
            if in_time and place not in bad.get(TOPOLOGY.intake, ()):
                found[place] = next(record for record in intake[event.partition].kept if record.offset() == event.offset)
    return found


def without(history: Sequence[Event], turned: Mapping[tuple[int, int], MemoryRecord]) -> list[Event]:
    """A history in which nobody asked for what was turned away: it is told as bad records, of which nothing may come but a dead letter."""
    keys = Counter((record.key(), record.value()) for record in turned.values())
    calls: set[str] = set()
    asked = {event.call: event for event in history if isinstance(event, EnqueueInvoked)}
    answers = [event for event in history if isinstance(event, Acknowledged) and event.call in asked]
    # Where the record lies that was answered for; or, of one that was forwarded, which command it is.
    calls |= {answer.call for answer in answers if (answer.partition, answer.offset) in turned}
    left = Counter((event.job_id, event.created_ms) for event in asked.values() if event.call in calls)
    for (_, value), count in keys.items():
        command = codec.decode_command(value)[1]
        name = command["job_id"], command["created_ms"]
        for call in [a.call for a in answers if (asked[a.call].job_id, asked[a.call].created_ms) == name and a.call not in calls]:
            if left[name] < count:
                left[name] += 1
                calls.add(call)
    bad = [BadRecordWritten(record.timestamp()[1], TOPOLOGY.intake, *place) for place, record in turned.items()]
    kept = [event for event in history if not (isinstance(event, EnqueueInvoked | Acknowledged) and event.call in calls)]
    return [*kept, *bad]


def of_topic(site: Site, topic: str) -> Iterator[Event]:
    """What the records of one topic say."""
    for log in site.broker.topic(topic):
        for record in sorted(log.kept, key=MemoryRecord.offset):
            event = event_of(record, TOPOLOGY)
            if event is not None:
                yield event


def not_forwarded(site: Site, strays: Collection[str]) -> list[str]:
    """Jobs whose command lies on a wrong partition, and not on its own, or more than once."""
    counts = Counter[str]()
    for log in site.broker.topic(TOPOLOGY.intake):
        counts.update((record.key() or b"").decode() for record in log.kept)
    return [job_id for job_id in strays if counts[job_id] != 2]


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


def of_inputs(site: Site, at_ms: int) -> Iterator[Event]:
    """How each job is defined, as its commands say, and as the changelog does; but for those that were changed: when, commands do not
    tell.
    """
    changed = {
        event.job_id for event in site.history if isinstance(event, ChangeInvoked) and event.action in (Action.UPDATE, Action.RUN_NOW)
    }
    refused: set[tuple[int, int]] = set()
    for letter in of_topic(site, TOPOLOGY.dead_letter):
        if isinstance(letter, DeadLettered) and letter.topic == TOPOLOGY.intake:
            refused.add((letter.partition, letter.offset))
    fold = site.fold()
    intake = site.broker.topic(TOPOLOGY.intake)
    for log in intake:
        commands = [r for r in sorted(log.kept, key=MemoryRecord.offset) if (log.partition, r.offset()) not in refused]
        defined = definitions(commands, len(intake))
        jobs = {job_id: job for job_id, job in defined.items() if not site.times_forgotten(job_id) and job_id not in changed}
        yield Snapshot(at_ms, "the end, by inputs", log.partition, "model", jobs)
        said = {key[1:].decode(): value for key, value in fold.items() if key[:1] == DEFINITION and value is not None}
        said = {job_id: value for job_id, value in said.items() if parse(job_id) is None}  # of runs no command tells
        mine = {job_id: value for job_id, value in said.items() if partition_of(job_id.encode(), len(intake)) == log.partition}
        told = {
            job_id: definition_of(value) for job_id, value in mine.items() if not site.times_forgotten(job_id) and job_id not in changed
        }
        yield Snapshot(at_ms, "the end, by inputs", log.partition, "fold", told)
