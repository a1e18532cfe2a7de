"""Readers: of chosen partitions, and as a member of a group.

Both hand out committed records only, and say by `reached` how far everything was seen, markers and aborted records included; but, as with
librdkafka, what lies behind the last record is passed over only when a poll found nothing more to hand out.

A member's heartbeats go on beside what its process does, until that stops. So it learns in the background that a rebalance has begun and
joins, and that it is a member no longer; what it then gains or loses it is told in `poll`, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.groups import NOBODY
from duewheel.adapters.memory.logs import Log, MemoryRecord
from duewheel.adapters.memory.world import Fault, Kind, Process
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.core.topology import partition_of
from duewheel.ports import CommitRefused, Found, GroupPosition, Offset, RebalanceListener, Record

HEARTBEAT_US: Final = 1_000_000
MAX_POLL_INTERVAL_US: Final = 60_000_000
_RETRY_US: Final = 50_000
_LATEST: Final = 1_000


class _Reading:
    """What the readers share: positions, pauses, and how far each partition was seen."""

    def __init__(self, process: Process, broker: Broker, topic: str) -> None:
        self.process = process
        self._broker = broker
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._reached: dict[int, int] = {}

    def reached(self, partition: int) -> int:
        return self._reached.get(partition, -1)

    def _follow(self, partition: int, offset: int) -> None:
        if partition not in self._positions:
            log = self._broker.find(self._topic, partition)
            if log is not None:
                log.watch(self.process)
        self._positions[partition] = offset
        self._reached[partition] = -1

    def _unfollow(self, partition: int) -> None:
        if self._positions.pop(partition, None) is not None:
            log = self._broker.find(self._topic, partition)
            if log is not None:
                log.unwatch(self.process)

    def _read(self, count_max: int) -> list[Record]:
        records: list[Record] = []
        ready = [] if self.process.cut_off else self._ready()
        if ready:
            count_max = self.process.world.hook.portion(self.process, count_max)
        for partition, log in self.process.world.hook.order(ready) if len(ready) > 1 else ready:
            if len(records) >= count_max:
                break
            offset = self._positions[partition]
            if not log.start <= offset <= log.end:
                offset = log.start  # auto.offset.reset=earliest
            found, after = log.read(offset, count_max - len(records))
            self._positions[partition] = after
            self._note(partition, found, after)
            records += found
        return records

    def _ready(self) -> list[tuple[int, Log]]:
        """Partitions of which there is something to tell."""
        logs = self._broker.topics.get(self._topic, ())
        ready = []
        for partition, offset in self._positions.items():
            if partition < len(logs) and partition not in self._paused:
                log = logs[partition]
                if offset != log.stable or self._reached[partition] != offset:
                    ready.append((partition, log))
        return ready

    def _note(self, partition: int, found: Sequence[MemoryRecord], after: int) -> None:
        if found:
            after = found[-1].offset() + 1  # an end-of-partition event comes with a later poll
        if after > self._reached.get(partition, -1):
            self._reached[partition] = after

    def _await_records(self, timeout_s: float, count_max: int) -> list[Record]:
        records = self._read(count_max)
        if not records and timeout_s > 0:
            self.process.wait(round(timeout_s * 1_000_000))
            records = self._read(count_max)
        return records

    def close(self) -> None:
        for partition in list(self._positions):
            self._unfollow(partition)


class MemoryReader(_Reading):
    """`ports.PartitionReader` in memory."""

    def assign(self, partition: int, offset: int) -> None:
        self._follow(partition, offset)

    def release(self, partition: int) -> None:
        self._unfollow(partition)

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        if not self._positions:
            return []
        self.process.reach("reader.poll")
        return self._await_records(timeout_s, count_max)


class MemoryStates(MemoryReader):
    """`ports.StateLog` in memory."""

    def partition_of(self, key: bytes) -> int:
        logs = self._broker.topics.get(self._topic)
        if logs is None:
            raise TopicMissing(f"topic {self._topic} does not exist")
        return partition_of(key, len(logs))

    def find(self, partition: int, since_ms: int) -> Found:
        try:
            self.process.reach("states.find")
        except Fault as fault:
            raise BrokerUnavailable(str(fault)) from fault
        self.partition_of(b"")
        log = self._broker.topics[self._topic][partition]
        if since_ms <= 0:
            return Found(log.start, 0, log.end)
        found = log.offset_of(since_ms)
        offset = min(log.end if found is None else found, log.end - _LATEST)
        return Found(offset, since_ms, log.end) if offset > log.start else Found(log.start, 0, log.end)


class MemoryGroupReader(_Reading):
    """`ports.GroupReader` in memory. A partition gained is not read until `read_from`."""

    def __init__(self, process: Process, broker: Broker, topic: str, group: str) -> None:
        super().__init__(process, broker, topic)
        self._group = broker.group(group)
        self._listener: RebalanceListener | None = None
        self._member = NOBODY
        self._held: dict[int, None] = {}
        self._news: deque[tuple[str, Sequence[int]]] = deque()
        self._serving = False
        self._asks_again = False
        self._closed = False
        self._polled_us = 0

    @property
    def member(self) -> tuple[str, int]:
        """Id and generation, as this end knows them now: what a transaction proves its membership with."""
        return self._member

    def join(self, listener: RebalanceListener) -> None:
        self._listener = listener
        self._polled_us = self.process.world.now_us
        self.process.on_return.append(self._return)
        self.process.world.soon("join", self._beat)

    def read_from(self, partition: int, offset: int) -> None:
        self._paused.discard(partition)
        self._follow(partition, offset)

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        self._polled_us = self.process.world.now_us
        self.process.reach("group.poll")
        if self._news:
            self._serve()
        records = self._await_records(timeout_s, count_max)
        if self._news:
            self._serve()
        self._polled_us = self.process.world.now_us
        return records

    def commit(self, offsets: Sequence[Offset]) -> None:
        try:
            self.process.reach("group.commit")
            self._group.commit(self._member, offsets)
            self.process.answer("group.commit")
        except Fault as fault:
            raise CommitRefused(str(fault)) from fault

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        until_us = self.process.world.now_us + round(timeout_s * 1_000_000)
        while True:
            try:
                self.process.reach("group.committed")
                return self._group.committed(self._topic, partitions, stable=True)
            except Fault as fault:
                if fault.kind is not Kind.RETRIABLE or self.process.world.now_us + _RETRY_US > until_us:
                    raise CommitRefused(str(fault)) from fault
            self.process.sleep(_RETRY_US / 1_000_000)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._listener is not None and self._held:
            self._listener.revoked(list(self._held))
        self._forget(list(self._held))
        super().close()
        if self.process.reachable:
            self._group.leave(self._member[0])

    # --- groups.Client: in the background ---

    def holds(self) -> Sequence[int]:
        return list(self._held)

    def joined(self, generation: int) -> None:
        self._member = (self._member[0], generation)

    def assigned(self, partitions: Sequence[int]) -> None:
        target = set(partitions)
        leaving = [p for p in self._held if p not in target]
        coming = [p for p in partitions if p not in self._held]
        if leaving:
            self._news.append(("revoked", leaving))
            self._asks_again = True
        self._news.append(("assigned", coming))  # also where nothing is new, as librdkafka does
        self.process.wake()

    def _return(self) -> None:
        """The process could not be reached, and can again: its heartbeat is overdue."""
        self.process.world.soon("heartbeat.return", self._beat_once)

    def _beat(self) -> None:
        if self._closed or not self.process.alive:
            return
        self._beat_once()
        self.process.world.later(HEARTBEAT_US, self._beat)

    def _beat_once(self) -> None:
        if self._closed or not self.process.reachable:
            return
        if not self._member[0]:
            if not self._is_busy() and not self._held:
                logs = self._broker.topics.get(self._topic)
                if logs is not None:
                    self._member = (self._group.join(self, len(logs)), self._member[1])
        elif self.process.world.now_us - self._polled_us > MAX_POLL_INTERVAL_US and not self._serving:
            self._group.leave(self._member[0])
            self._reset()
        elif not self._group.heartbeat(*self._member, can_join=not self._is_busy()):
            self._reset()
        elif self._asks_again and not self._is_busy():  # the heartbeat may have brought what is to be let go of first
            self._asks_again = False
            self._group.rejoin(self._member[0])

    def _is_busy(self) -> bool:
        """Whether something is still to be told, or is being told, to its listener."""
        return self._serving or bool(self._news)

    def _reset(self) -> None:
        """Is a member no longer. Until `lost` has been served in a poll, it names no member, and holds what it held.

        Its generation stays (measured with librdkafka 2.16, after SIGSTOP), so that the group refuses what it commits: one that names
        neither member nor generation would be taken for somebody who is no member by choice.
        """
        self._member = ("", self._member[1])
        self._asks_again = False
        self._news.clear()
        if self._held:
            self._news.append(("lost", ()))
            self.process.wake()

    # --- within poll ---

    def _serve(self) -> None:
        self._serving = True
        try:
            while self._news:
                self._tell(*self._news.popleft())
        finally:
            self._serving = False
        if self._asks_again or not self._member[0]:
            self.process.world.soon("join", self._beat_once)

    def _tell(self, kind: str, partitions: Sequence[int]) -> None:
        assert self._listener is not None
        if kind == "assigned":
            self._held.update(dict.fromkeys(partitions))
            self._listener.assigned(list(partitions))
            return
        leaving = list(partitions) if kind == "revoked" else list(self._held)
        try:
            if kind == "revoked":
                self._listener.revoked(leaving)
            else:
                self._listener.lost(leaving)
        finally:
            self._forget(leaving)

    def _forget(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)
            self._unfollow(partition)
            self._paused.discard(partition)
