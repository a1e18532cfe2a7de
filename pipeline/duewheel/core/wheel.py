"""The near horizon of timers, in memory.

The problem: millions of timers lie on disk in time order. Asking the disk at each tick what is due costs a seek among tombstones;
holding them all in memory costs gigabytes. So only the near horizon, the next minute, is held here, and the disk is read once per
horizon. What is here is on disk too: the wheel can be dropped, or its far end evicted, and nothing is lost.

The idea is Varghese and Lauck's hashed timing wheel ("Hashed and Hierarchical Timing Wheels", 1987): time is cut into slots, a timer
is put into the slot of its due time in O(1) and taken out in O(1). Their wheel is a ring that a hand walks round, one slot a tick.
Here a slot is one millisecond, the resolution of due times, so that nothing in a slot is early when the slot is due; the occupied
slots hang in a dict, and a heap of slot numbers says which comes next. An empty minute costs no walk, and a clock that steps back
needs no special case, since the past is a slot like any other.

    now = 1,004

    slot   995 │ c         due: c, then a and b
    slot 1,000 │ a  b
    slot 1,009 │ d         next: at 1,009
               ┊
    horizon ───┴─ keys from here on are on disk only

A timer is named by its key: eight bytes of due time, big-endian, then the job id in UTF-8. Keys therefore sort by time, on disk as in
memory, and the horizon is a key and not a time: a million timers of the same millisecond can lie on both sides of it.

Costs: add and discard are one dict operation each, a new slot one push on the heap; `due` touches only what it returns.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Final

from duewheel.core.limits import HORIZON_TIMERS_MAX

_TIME_BYTES: Final = 8


def time_key(due_ms: int) -> bytes:
    """The key below all timers that are due at `due_ms`, and above all that are due before."""
    return due_ms.to_bytes(_TIME_BYTES, "big")


def timer_key(due_ms: int, job_id: str) -> bytes:
    """The name of a timer; keys sort by due time."""
    return due_ms.to_bytes(_TIME_BYTES, "big") + job_id.encode()


def due_of(key: bytes) -> int:
    """The due time in a timer's key, in milliseconds since the epoch."""
    return int.from_bytes(key[:_TIME_BYTES], "big")


def job_of(key: bytes) -> str:
    """The job id in a timer's key."""
    return key[_TIME_BYTES:].decode()


class Wheel:
    """Timers below the horizon.

    Args:
        capacity: how many timers to hold at most; beyond it the far end is evicted and the horizon drawn in.
    """

    def __init__(self, capacity: int = HORIZON_TIMERS_MAX) -> None:
        self._capacity = capacity
        self._slots: dict[int, dict[bytes, None]] = {}
        self._order: list[int] = []  # heap of slot numbers; may still hold numbers of slots that were emptied
        self._size = 0
        self.horizon = b""
        """Every timer on disk whose key is below this one is here. The first `load` draws it out from nothing."""

    def __len__(self) -> int:
        return self._size

    @property
    def room(self) -> int:
        """How many timers fit before the far end must be evicted."""
        return self._capacity - self._size

    def add(self, key: bytes) -> None:
        """Takes in a timer that was put on disk. One beyond the horizon is left to the disk."""
        if key < self.horizon:
            self._insert(key)
            if self._size > self._capacity:
                self._evict()

    def load(self, keys: Iterable[bytes], horizon: bytes) -> None:
        """Takes in what the disk holds between the old horizon and the new one."""
        for key in keys:
            self._insert(key)
        self.horizon = horizon
        if self._size > self._capacity:
            self._evict()

    def discard(self, key: bytes) -> None:
        """Takes out a timer, if it is here."""
        slot = due_of(key)
        timers = self._slots.get(slot)
        if timers is not None and key in timers:
            del timers[key]
            self._size -= 1
            if not timers:
                del self._slots[slot]

    def due(self, now_ms: int, count_max: int) -> list[bytes]:
        """Timers due at or before `now_ms`, earliest first, at most `count_max`. They stay until they are discarded."""
        found: list[bytes] = []
        looked_at = []
        while len(found) < count_max and (slot := self._first()) is not None and slot <= now_ms:
            found += islice(self._slots[slot], count_max - len(found))
            looked_at.append(heapq.heappop(self._order))
        for slot in looked_at:
            heapq.heappush(self._order, slot)
        return found

    def next_due_ms(self) -> int | None:
        """When the earliest timer here is due, in milliseconds since the epoch; None when the wheel is empty."""
        return self._first()

    def low(self) -> bytes:
        """No timer has a key below this one, neither here nor on disk."""
        slot = self._first()
        return self.horizon if slot is None else time_key(slot)

    def _first(self) -> int | None:
        while self._order:
            if self._order[0] in self._slots:
                return self._order[0]
            heapq.heappop(self._order)
        return None

    def _insert(self, key: bytes) -> None:
        slot = due_of(key)
        timers = self._slots.get(slot)
        if timers is None:
            timers = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        elif key in timers:
            return
        timers[key] = None
        self._size += 1

    def _evict(self) -> None:
        """Leaves the far end to the disk until a tenth of the wheel is free, so that this is rare."""
        excess = self._size - (self._capacity - self._capacity // 10)
        for slot in sorted(self._slots, reverse=True):
            timers = sorted(self._slots[slot])
            for key in timers[-excess:]:
                self.discard(key)
            self.horizon = timers[-excess:][0]
            excess -= len(timers)
            if excess <= 0:
                break
