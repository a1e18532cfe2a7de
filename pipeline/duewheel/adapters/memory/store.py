"""The local stores of one machine, in memory: what a process wrote outlives it, unless something happens to the disk.

disk = Disk()
store = MemoryStore(process, disk, 3, "topic-id/3")      the partition's content, as it was left
disk.lose_writes(3, 5)                                   a power cut: the last five writes are gone
disk.damage(3)                                           from now on it cannot be read, until it is cleared
old = disk.copy(3); disk.put(3, old)                     a folder that was left behind, and came back
disk.full = True                                         nothing can be written
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from duewheel.adapters.memory.world import Fault, Process
from duewheel.core.errors import StoreDamaged
from duewheel.ports import Mark

# As many of the last writes can be lost in a power cut.
_UNDO_MAX: Final = 100

_State = tuple[dict[bytes, bytes | None], set[bytes], set[bytes], Mark | None]


class Content:
    """What one store holds."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.jobs: dict[bytes, bytes] = {}
        self.timers: set[bytes] = set()
        self.mark: Mark | None = None
        self.damaged = False
        self.undo: deque[_State] = deque(maxlen=_UNDO_MAX)  # of each write: records before, timers added and removed, the mark before

    def copy(self) -> Content:
        twin = Content(self.identity)
        twin.jobs, twin.timers, twin.mark, twin.damaged = dict(self.jobs), set(self.timers), self.mark, self.damaged
        return twin

    def undo_last(self) -> None:
        records, added, removed, self.mark = self.undo.pop()
        for key, value in records.items():
            if value is None:
                self.jobs.pop(key, None)
            else:
                self.jobs[key] = value
        self.timers = (self.timers - added) | removed


class Disk:
    """The stores of one machine by partition.

    Attributes:
        full: nothing can be written.
    """

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.full = False

    def copy(self, number: int) -> Content | None:
        content = self.contents.get(number)
        return None if content is None else content.copy()

    def put(self, number: int, content: Content) -> None:
        """While no process has it open."""
        self.contents[number] = content.copy()

    def drop(self, number: int) -> None:
        """While no process has it open."""
        self.contents.pop(number, None)

    def damage(self, number: int) -> None:
        content = self.contents.get(number)
        if content is not None:
            content.damaged = True

    def lose_writes(self, number: int, count: int) -> None:
        """Forgets the last writes, as a power cut does. While no process has it open."""
        content = self.contents.get(number)
        while content is not None and content.undo and count > 0:
            content.undo_last()
            count -= 1


class MemoryStore:
    """`ports.Store` in memory.

    Args:
        disk: where its content outlives the process.
        identity: names the changelog partition that this is a copy of; a content of another identity is emptied.

    Raises:
        StoreDamaged: it cannot even be emptied.
    """

    def __init__(self, process: Process, disk: Disk, number: int, identity: str) -> None:
        self._process = process
        self._disk = disk
        self._number = number
        self._identity = identity
        self.mark: Mark | None = None
        self.damaged = False
        try:
            self._reach("store.open")
            content = disk.contents.get(number)
        except StoreDamaged:
            content = None
        if content is None or content.identity != identity or content.damaged:
            self.clear()
        else:
            self._content = content
            self.mark = content.mark

    def get(self, key: bytes) -> bytes | None:
        if self._content.damaged:
            raise self._damaged("read: its checksums are wrong")
        return self._content.jobs.get(key)

    def write(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timers_unset: Sequence[bytes],
        timers_set: Collection[bytes],
        timers_done: bytes,
        mark: Mark,
    ) -> None:
        self._reach("store.write")
        content = self._content
        if self._disk.full or content.damaged:
            raise self._damaged("written: no space is left on the device" if self._disk.full else "written: its checksums are wrong")
        jobs = content.jobs
        before = {key: jobs.get(key) for key, _ in records}
        timers = {key for key in content.timers.difference(timers_unset) if key >= timers_done}.union(timers_set)
        content.undo.append((before, timers - content.timers, content.timers - timers, content.mark))
        content.timers = timers
        for key, value in records:
            if value is None:
                jobs.pop(key, None)
            else:
                jobs[key] = value
        self.mark = content.mark = mark

    def timers(self, start: bytes, end: bytes, count_max: int) -> list[bytes]:
        self._read()
        return sorted(key for key in self._content.timers if start <= key < end)[:count_max]

    def records(self, start: bytes, end: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        self._read()
        jobs = self._content.jobs
        return [(key, jobs[key]) for key in sorted(key for key in jobs if start <= key < end)[:count_max]]

    def clear(self) -> None:
        self._reach("store.clear")
        if self._disk.full:
            raise self._damaged("opened: no space is left on the device")
        self._content = self._disk.contents[self._number] = Content(self._identity)
        self.mark = None
        self.damaged = False

    def close(self) -> None:
        pass

    def _read(self) -> None:
        self._reach("store.read")
        if self._content.damaged:
            raise self._damaged("read: its checksums are wrong")

    def _reach(self, where: str) -> None:
        try:
            self._process.reach(where)
        except Fault as fault:
            raise self._damaged(str(fault)) from fault

    def _damaged(self, why: str) -> StoreDamaged:
        self.damaged = True
        return StoreDamaged(
            f"the local store of partition {self._number} cannot be {why}. It is a cache: with the processor stopped, delete it"
        )
