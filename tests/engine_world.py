"""The surroundings of a timer processor without Kafka or a disk: logs are lists, the store is a dict, and each turn is 20 ms.

world = World()
instance = Instance(world, 0, 1)                    a real processor that has two partitions
schedule(world, "job-1", world.now_ms + 500)
instance.turn(100)
dispatched(world)                                   [b"job-1"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from duewheel.adapters.avro import codec
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.core.model import Delivery, Dispatch, Limits, OnConflict, Outcome, Recurrence, Result, Schedule
from duewheel.core.topology import Topology, partition_of
from duewheel.engine.partition import Stage
from duewheel.engine.processor import Processor
from duewheel.ports import GroupPosition, Mark, Offset, TransactionAborted

TOPOLOGY = Topology("x")
START_MS = 1_900_000_000_000


class World:
    """The cluster: logs by topic and partition, the group's offsets, topics, those that refuse records, and names that cannot be fenced.

    Attributes:
        refusing: topics that take no records.
        takes: whether a topic takes this record, by topic, key and value.
        hanging: so many transactions to come cannot send their offsets.
        aborted: how many transactions were.
        fenced: names that were, in order.
    """

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.logs: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = {}
        self.group: dict[tuple[str, int], GroupPosition] = {}
        self.topics = dict.fromkeys((TOPOLOGY.intake, TOPOLOGY.state, TOPOLOGY.outcomes, TOPOLOGY.dispatch("default")), 2)
        self.topics |= dict.fromkeys((TOPOLOGY.dead_letter, TOPOLOGY.control), 1)
        self.unfenceable: set[str] = set()
        self.fenced: list[str] = []
        self.refusing: set[str] = set()
        self.takes: Callable[[str, bytes | None, bytes | None], bool] = lambda topic, key, value: True
        self.transaction_bytes: list[int] = []
        self.hanging = self.aborted = 0
        # Of each of two producers, partitions where the sequence numbers that it will go on with lie behind those that were refused.
        self.gaps: tuple[set[tuple[str, int]], set[tuple[str, int]]] = (set(), set())

    def log(self, topic: str, partition: int) -> list[tuple[bytes, bytes | None]]:
        return self.logs.setdefault((topic, partition), [])

    # --- ports.Clock ---

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms

    # --- ports.Cluster ---

    def partition_count(self, topic: str) -> int:
        try:
            return self.topics[topic]
        except KeyError:
            raise TopicMissing(topic) from None

    def partition_counts(self) -> dict[str, int]:
        return dict(self.topics)

    def watermarks(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return {p: (0, len(self.log(topic, p))) for p in partitions}

    visible = watermarks

    def owners(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        return {p: self.group.get((topic, p), GroupPosition(None, "")) for p in partitions}

    def fence(self, name: str) -> None:
        if name in self.unfenceable:
            raise BrokerUnavailable(f"the coordinator of {name} has no leader")
        self.fenced.append(name)


class Consumed:
    def __init__(self, topic: str, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        self._where, self._key, self._value = (topic, partition, offset), key, value

    def topic(self) -> str:
        return self._where[0]

    def partition(self) -> int:
        return self._where[1]

    def offset(self) -> int:
        return self._where[2]

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


class Reader:
    """`ports.PartitionReader` and `ports.GroupReader`; rebalances are scripted by `events`."""

    def __init__(self, world: World, topic: str) -> None:
        self._world, self._topic = world, topic
        self._positions: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self.events: list[Callable[[], None]] = []

    def join(self, listener: object) -> None:
        pass

    def assign(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset
        self._reached[partition] = -1

    read_from = assign

    def release(self, partition: int) -> None:
        self._positions.pop(partition, None)

    pause = release

    def resume(self, partition: int) -> None:
        raise NotImplementedError

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        while self.events:
            self.events.pop(0)()
        records: list[Any] = []
        for partition, offset in self._positions.items():
            log = self._world.log(self._topic, partition)
            for at in range(offset, min(len(log), offset + count_max - len(records))):
                records.append(Consumed(self._topic, partition, at, *log[at]))
                self._positions[partition] = at + 1
            self._reached[partition] = self._positions[partition]
        return records

    def reached(self, partition: int) -> int:
        return self._reached.get(partition, -1)

    def commit(self, offsets: Sequence[Offset]) -> None:
        for topic, partition, offset, metadata in offsets:
            self._world.group[topic, partition] = GroupPosition(offset, metadata)

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        return self._world.owners("", self._topic, partitions)

    def close(self) -> None:
        pass


class Output:
    """`ports.TransactionalOutput`, its transaction and its pending commit in one: commits take effect when they are settled."""

    def __init__(self, world: World) -> None:
        self.name = "me"
        self._world = world
        self._records: list[tuple[str, bytes | None, bytes, int]] = []
        self._offsets: Mapping[str, Sequence[Offset]] = {}

    def begin(self) -> Output:
        return Output(self._world)

    def produce(self, topic: str, value: bytes | None, key: bytes, partition: int = 0, headers: object = None) -> None:
        self._records.append((topic, value, key, partition))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def commit(self, offsets: Mapping[str, Sequence[Offset]]) -> None:
        self.commit_later(offsets).settle()

    def commit_later(self, offsets: Mapping[str, Sequence[Offset]]) -> Output:
        self._offsets = offsets
        return self

    def settle(self) -> None:
        world = self._world
        if world.hanging:
            world.hanging -= 1
            world.aborted += 1
            raise TransactionAborted("sending offsets took longer than 2 s", is_by_offsets=True)
        gaps = world.gaps[(len(world.transaction_bytes) + world.aborted) % 2]
        touched = {(topic, partition) for topic, _, _, partition in self._records}
        if found := gaps & touched:
            gaps -= found
            world.aborted += 1
            raise TransactionAborted(f"out of order sequence number at {min(found)}")
        refused = [
            (r[0], r[3], r[0] not in world.refusing) for r in self._records if r[0] in world.refusing or not world.takes(r[0], r[2], r[1])
        ]
        if refused:
            topic, partition, is_by_value = refused[0]
            gaps.add((topic, partition))
            world.aborted += 1
            raise TransactionAborted(f"a record for {topic} failed", is_by_value=is_by_value)
        self._world.transaction_bytes.append(sum(len(value or b"") + len(key or b"") for _, value, key, _ in self._records))
        for topic, value, key, partition in self._records:
            self._world.log(topic, partition).append((key, value))
        for offsets in self._offsets.values():
            Reader(self._world, "").commit(offsets)

    def recover(self) -> bool:
        return True

    def take_new_name(self) -> None:
        self.name += ".2"

    def close(self) -> None:
        pass


class Memory:
    """`ports.Store`."""

    def __init__(self) -> None:
        self.mark: Mark | None = None
        self.damaged = False
        self.jobs: dict[bytes, bytes] = {}
        self.timer_keys: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        return self.jobs.get(key)

    def write(self, records: Any, timers_unset: Any, timers_set: Any, timers_done: bytes, mark: Mark) -> None:
        for key, value in records:
            if value is None:
                self.jobs.pop(key, None)
            else:
                self.jobs[key] = value
        self.timer_keys = {key for key in (self.timer_keys - set(timers_unset)) | set(timers_set) if key >= timers_done}
        self.mark = mark

    def timers(self, start: bytes, end: bytes, count_max: int) -> list[bytes]:
        return sorted(key for key in self.timer_keys if start <= key < end)[:count_max]

    def records(self, start: bytes, end: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.jobs.items() if start <= key < end)[:count_max]

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def close(self) -> None:
        pass


class Instance:
    """A processor with empty stores that is given partitions, and driven."""

    def __init__(
        self,
        world: World,
        *partitions: int,
        open_store: Callable[[int], Memory] = lambda number: Memory(),
        may_deliver_to: Callable[[str], bool] = lambda topic: False,
        avro: Any = codec,
    ) -> None:
        self.world = world
        self.stores: dict[int, Memory] = {}
        self._open_store = open_store
        self.intake = Reader(world, TOPOLOGY.intake)
        self.processor = Processor(
            topology=TOPOLOGY,
            clock=world,
            codec=avro,
            cluster=world,
            intake=self.intake,
            outcomes=Reader(world, TOPOLOGY.outcomes),
            changelog=Reader(world, TOPOLOGY.state),
            output=cast(Any, Output(world)),
            open_store=self._open,
            close_stores=lambda: None,
            partition_of=partition_of,
            sleep=lambda seconds: None,
            broker_timeout_ms=300_000,
            may_deliver_to=may_deliver_to,
        )
        if partitions:
            self.assign(*partitions)
            assert set(self.processor.stages.values()) == {Stage.ACTIVE}

    def _open(self, number: int) -> Memory:
        store = self.stores[number] = self._open_store(number)
        return store

    def assign(self, *partitions: int, turns: int = 10) -> None:
        self.intake.events.append(lambda: self.processor.assigned(partitions))
        self.turn(turns)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.processor.turn()
            self.world.now_ms += 20


def schedule(
    world: World,
    job_id: str,
    due_ms: int,
    queue: str = "default",
    payload: bytes = b"1",
    limits: Limits | None = None,
    recurrence: Recurrence | None = None,
    on_conflict: OnConflict = OnConflict.IGNORE,
    delivery: Delivery | None = None,
) -> None:
    """Puts a schedule into the intake log."""
    record: Schedule = {
        "job_id": job_id,
        "due_ms": due_ms,
        "created_ms": world.now_ms,
        "on_conflict": on_conflict,
        "retention_ms": 86_400_000,
        "queue": queue,
        "limits": limits,
        "recurrence": recurrence,
        "delivery": delivery,
        "work": {"task": "t", "content_type": "application/octet-stream", "payload": payload, "headers": {}, "policy": None},
    }
    command(world, job_id, codec.encode_schedule(record))


def command(world: World, job_id: str, value: bytes) -> None:
    """Puts an encoded command into the intake log."""
    world.log(TOPOLOGY.intake, partition_of(job_id.encode(), 2)).append((job_id.encode(), value))


def job_of(partition: int) -> str:
    return next(f"j{n}" for n in range(99) if partition_of(f"j{n}".encode(), 2) == partition)


def dispatched(world: World, queue: str = "default") -> list[bytes]:
    return sorted(key for partition in (0, 1) for key, _ in world.log(TOPOLOGY.dispatch(queue), partition))


def dispatches(world: World, queue: str = "default") -> list[Dispatch]:
    """All dispatches of a queue, by token within a timer partition."""
    values = [value for partition in (0, 1) for _, value in world.log(TOPOLOGY.dispatch(queue), partition)]
    found = [codec.decode_dispatch(value) for value in values]
    return sorted(found, key=lambda d: (d["timer_partition"], d["token"]))


def answer(world: World, d: Dispatch, result: str = Result.SUCCEEDED, **fields: Any) -> None:
    """Puts what a worker says of a dispatch into the outcomes log."""
    record: dict[str, Any] = {
        "token": d["token"],
        "job_id": d["job_id"],
        "slot_ms": d["slot_ms"],
        "attempt": d["attempt"],
        "result": result,
        "started_ms": 0,
        "finished_ms": world.now_ms,
        "worker": "w",
        "error": None,
        "retry_after_ms": 0,
        "lease_ms": 0,
        "output": None,
    }
    value = codec.encode_outcome(cast(Outcome, record | fields))
    world.log(TOPOLOGY.outcomes, d["timer_partition"]).append((d["job_id"].encode(), value))
