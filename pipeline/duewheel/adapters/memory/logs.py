"""One partition of a topic: records in order, what of them is visible, and who waits for more.

    offset     0    1    2    3    4    5    6
               a    B1   a    B2   C1   ⊥B   C2      a: plain records; B, C: of transactions; ⊥: the marker that ended B
                                   ▲              ▲
                                   last stable    high watermark

A marker takes an offset, as in Kafka, and is never handed out; so offsets have gaps. Readers of committed records end at the last stable
offset, which is where the first open transaction began. What was deleted, or compacted away, leaves its offset behind too.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from duewheel.adapters.memory.world import Process

OPEN: Final = 0
COMMITTED: Final = 1
ABORTED: Final = 2
MARKER: Final = 3

Headers = list[tuple[str, bytes | None]]


class MemoryRecord:
    """A record that was appended; a `ports.Record`.

    Attributes:
        standing: OPEN, COMMITTED, ABORTED or MARKER.
    """

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp_ms", "_topic", "_value", "standing")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        standing: int,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._key = key
        self._value = value
        self._headers = headers
        self._timestamp_ms = timestamp_ms
        self.standing = standing

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self._timestamp_ms


class Log:
    """One partition.

    Attributes:
        start: the first offset that may be read.
        end: the next offset to be given away: the high watermark.
        stable: the last stable offset.
        kept: every record that ever was visible, also those deleted since; what the checks read.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = 0
        self.end = self.stable = 0
        self.kept: list[MemoryRecord] = []
        self._records: list[MemoryRecord] = []
        self._offsets: list[int] = []
        self._open: dict[str, list[MemoryRecord]] = {}
        self._watchers: dict[Process, int] = {}

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, now_ms: int, transactional_id: str | None = None
    ) -> int:
        """Appends a record, visible at once unless it belongs to a transaction; returns its offset."""
        standing = COMMITTED if transactional_id is None else OPEN
        record = self._add(key, value, headers, now_ms, standing)
        if transactional_id is None:
            self.kept.append(record)
        else:
            self._open.setdefault(transactional_id, []).append(record)
        self._settle()
        return record.offset()

    def end_transaction(self, transactional_id: str, standing: int, now_ms: int) -> None:
        """Writes a transaction's marker, which makes its records visible, or invisible for ever."""
        records = self._open.pop(transactional_id, [])
        for record in records:
            record.standing = standing
        if standing == COMMITTED:
            self.kept += records
        self._add(None, None, None, now_ms, MARKER)
        self._settle()

    def read(self, offset: int, count_max: int) -> tuple[list[MemoryRecord], int]:
        """The next committed records, and where to read on."""
        stable, found = self.stable, []
        for at in range(bisect_left(self._offsets, offset), len(self._records)):
            record = self._records[at]
            if record.offset() >= stable:
                break
            if record.standing == COMMITTED:
                found.append(record)
                if len(found) == count_max:
                    return found, record.offset() + 1
        return found, max(offset, stable)

    def offset_of(self, since_ms: int) -> int | None:
        """The first offset whose record was written at this time or later."""
        return next((record.offset() for record in self._records if record.timestamp()[1] >= since_ms), None)

    def delete_before(self, offset: int) -> None:
        """Deletes what lies below, as retention does."""
        self.start = max(self.start, min(offset, self.end))
        gone = bisect_left(self._offsets, self.start)
        del self._records[:gone], self._offsets[:gone]

    def compact(self) -> None:
        """Keeps of each key the latest record only, as far as everything is decided; and no markers, but for the last."""
        stable = self.stable
        latest = {r.key(): r.offset() for r in self._records if r.standing == COMMITTED and r.offset() < stable}
        last = self._records[-1].offset() if self._records else -1
        self._records = [
            r
            for r in self._records
            if r.offset() >= stable or r.offset() == last or (r.standing == COMMITTED and latest[r.key()] == r.offset())
        ]
        self._offsets = [r.offset() for r in self._records]

    def watch(self, process: Process) -> None:
        """Wakes this process whenever there is more to read."""
        self._watchers[process] = self._watchers.get(process, 0) + 1

    def unwatch(self, process: Process) -> None:
        left = self._watchers.get(process, 0) - 1
        if left > 0:
            self._watchers[process] = left
        else:
            self._watchers.pop(process, None)

    def _settle(self) -> None:
        """Moves the last stable offset on, where the first open transaction allows, and wakes those who wait for that."""
        # In order of their first records, since a dict remembers.
        first = next(iter(self._open.values()), None)
        stable = self.end if first is None else first[0].offset()
        if stable != self.stable:
            self.stable = stable
            for process in list(self._watchers):
                process.wake()

    def _add(self, key: bytes | None, value: bytes | None, headers: Headers | None, now_ms: int, standing: int) -> MemoryRecord:
        record = MemoryRecord(self.topic, self.partition, self.end, key, value, headers, now_ms, standing)
        self._records.append(record)
        self._offsets.append(self.end)
        self.end += 1
        return record
