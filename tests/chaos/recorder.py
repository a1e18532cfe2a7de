"""What was seen in a fault test on real processes, as a history for the checker: read from the beginning of every topic when all is over,
from what processes wrote down, from the sink, from their logs, and from the stores on disk.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from duewheel.adapters.kafka.follower import Follower, Partition
from duewheel.adapters.rocks.snapshot import Snapshot as StoreSnapshot
from duewheel.core.errors import EnvironmentFailure, StoreDamaged
from duewheel.core.model import Phase
from duewheel.core.topology import QUEUE_DEFAULT
from duewheel.fleet import Child
from duewheel.ports import Record
from duewheel.proof.history import Backlog, BadRecordWritten, Event, LogEnd, StateWritten, TransactionFailed
from tests.chaos.offsets import TOPIC as OFFSETS
from tests.chaos.offsets import offset_event
from tests.chaos.site import TOPOLOGY, Site
from tests.witness import event_of, snapshots

READ_S: Final = 120.0
_RECORDS_MAX: Final = 5_000

Records = Mapping[Partition, list[Record]]

READS: Final = (
    (TOPOLOGY.processor_group, TOPOLOGY.intake),
    (TOPOLOGY.processor_group, TOPOLOGY.outcomes),
    (TOPOLOGY.worker_group(QUEUE_DEFAULT), TOPOLOGY.dispatch(QUEUE_DEFAULT)),
)

# Which lines of a log tell that a transaction came to nothing, and how.
_FAILED: Final = {
    "processor.batch_aborted": "aborted",
    "processor.batch_unknown": "unknown",
    "worker.commit_refused": "aborted",
    "worker.transaction_in_doubt": "unknown",
}
# What a coordinator answers whose group has gone on to another generation meanwhile.
_CAUGHT: Final = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED")


def read_all(site: Site) -> Records:
    """Every committed record there is in the installation's topics, and in Kafka's log of offsets.

    Raises:
        EnvironmentFailure: it took too long.
    """
    follower = Follower(site.kafka, lambda topic: topic == OFFSETS or topic.startswith(f"{TOPOLOGY.prefix}."), 0, READ_S)
    found: defaultdict[Partition, list[Record]] = defaultdict(list)
    try:
        deadline = time.monotonic() + READ_S
        unread = set(follower.partitions)
        while unread := unread.difference(follower.ended()):
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"reading the topics took longer than {READ_S:g} s; {len(unread)} partitions are left: {unread}")
            for record in follower.poll(0.1, _RECORDS_MAX):
                found[record.topic(), record.partition()].append(record)
    finally:
        follower.close()
    return found


def of_topics(records: Records) -> Iterator[Event]:
    """What owners, workers and coordinators committed, and what producers wrote that nobody can read."""
    for (topic, _), log in records.items():
        for record in log:
            event = _event(topic, record)
            if event is not None:
                yield event


def _event(topic: str, record: Record) -> Event | None:
    if topic == OFFSETS:
        return offset_event(record, f"{TOPOLOGY.prefix}.")
    if topic == TOPOLOGY.intake:
        is_bad = (record.key() or b"").startswith(b"bad-")
        return BadRecordWritten(record.timestamp()[1], topic, record.partition(), record.offset()) if is_bad else None
    event = event_of(record, TOPOLOGY)
    if isinstance(event, StateWritten) and event.phase == Phase.RUNNING:
        return event._replace(wake_ms=0)  # a record is stamped when it is written; when it could be read, nobody knows
    return event


def of_ends(site: Site, records: Records) -> Iterator[Event]:
    """How far the logs go, and what groups have not passed."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, count in site.questions.partition_counts().items():
        if topic.startswith(f"{TOPOLOGY.prefix}."):
            topics[topic] += range(count)
    at_ms = _now_ms()
    for topic, partitions in topics.items():
        ends, visible = site.questions.watermarks(topic, partitions), site.questions.visible(topic, partitions)
        for partition in partitions:
            yield LogEnd(at_ms, topic, partition, visible[partition][1], ends[partition][1])
    for group, topic in READS:
        positions = site.questions.owners(group, topic, topics[topic])
        for partition in topics[topic]:
            position = positions[partition].offset or 0
            left = sum(record.offset() >= position for record in records.get((topic, partition), ()))
            yield Backlog(at_ms, group, topic, partition, left)


def of_stores(site: Site, records: Records, owners: Mapping[str, Iterable[int]], damaged: Iterable[str]) -> Iterator[Event]:
    """Each timer partition as its last owner's store knows it, as its changelog says, and as the engine restores it from that.

    Args:
        owners: which processor held which partitions in the end.
        damaged: processors whose stores were damaged on purpose: where nobody came upon the damage, this reader may.
    """
    owner_of = {partition: name for name, partitions in owners.items() for partition in partitions}
    ends = site.questions.watermarks(TOPOLOGY.state, sorted(owner_of))
    for partition, name in sorted(owner_of.items()):
        stores: dict[str, dict[bytes, bytes]] = {}
        try:
            store = StoreSnapshot(site.stores(site.machines[name]) / TOPOLOGY.prefix / str(partition))
            try:
                stores["store"] = dict(store.records())
            finally:
                store.close()
        except StoreDamaged:
            if name not in damaged:
                raise
        yield from snapshots(partition, records.get((TOPOLOGY.state, partition), []), *ends[partition], stores, _now_ms())


def of_logs(site: Site) -> Iterator[Event]:
    """Transactions that came to nothing, as processes say themselves."""
    for machine in site.machines.values():
        if isinstance(machine.child, Child):
            for name, how in _FAILED.items():
                for line in machine.child.logged(name):
                    at_ms = round(datetime.fromisoformat(line["time"]).timestamp() * 1_000)
                    caught = any(sign in str(line.get("error", "")) for sign in _CAUGHT)
                    yield TransactionFailed(at_ms, machine.name, how, caught)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
