"""What a job was at some time, folded from the state topic as far as it is left.

The topic is compacted: a value that was replaced by a newer one disappears some day, and so does the mark of a deletion. What is left is
still exact where it speaks at all. Compaction removes a value only because a newer one of the same key lies in the part that it cleans;
so the newest one that is left from before a time was the newest then. Only where nothing is left from before it is silent, and it cannot be
told whether there was nothing or something that is gone:

    written       a=1     a=2     a=3
    left                  a=2     a=3
    at            ↑                      silent: a=1 was there, and nothing tells
    at                      ↑            a=2
    at            … unless the log is complete from there on: then there was nothing

From where on the log is complete is seen by the owner's Progress, one record at the end of each transaction under always the same key: of
the part that was cleaned the newest is left at most, and all of what follows. That part may end within the transaction that comes next. So
from the second Progress on nothing was removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from duewheel.core.store_audit import DEFINITION, PROGRESS, STATE

_EVER: Final = -1
_BROKEN: Final = -1  # no offset comes next


class Known(StrEnum):
    """What the log tells of one record of a job at a time."""

    IS = "is"  # this was its value
    GONE = "gone"  # it was taken away
    NEVER = "never"  # there was none, or it was forgotten long before
    REMOVED = "removed"  # the log is silent: compaction may have removed it


class Written(NamedTuple):
    """A record of the state topic."""

    offset: int
    written_ms: int
    value: bytes | None


@dataclass(slots=True)
class _Line:
    """One key's records: the newest one up to the time, and the oldest one after it."""

    shown: Written | None = None
    after: Written | None = None


@dataclass(slots=True)
class Past:
    """The fold of one job.

    Args:
        job_id: whose.
        at_ms: up to when, by the brokers' clocks; None for now.

    Attributes:
        complete_from: from this offset on nothing was removed from the log; -1 for all of it, None while nothing is known.
        complete_from_ms: when that was written.
    """

    job_id: str
    at_ms: int | None
    complete_from: int | None = None
    complete_from_ms: int = 0
    _lines: dict[bytes, _Line] = field(default_factory=lambda: {DEFINITION: _Line(), STATE: _Line()})
    _next_offset: int = 0
    _last_ms: int = 0
    _progresses: int = 0

    def take(self, key: bytes, record: Written) -> None:
        """Takes in a record of the job's partition, in the order of the log."""
        self._last_ms = max(self._last_ms, record.written_ms)
        if self.complete_from is None:
            self._look_for_progress(key, record)
        if key[1:] != self.job_id.encode() or key[:1] not in self._lines:
            return
        line = self._lines[key[:1]]
        if self.at_ms is None or record.written_ms <= self.at_ms:
            line.shown = record
        elif line.after is None:
            line.after = record

    def _look_for_progress(self, key: bytes, record: Written) -> None:
        is_whole = record.offset == self._next_offset
        self._next_offset = record.offset + 1 if is_whole else _BROKEN
        if key != PROGRESS:
            return
        self._progresses += 1
        if is_whole:
            self.complete_from = _EVER
        elif self._progresses > 1:
            self.complete_from, self.complete_from_ms = record.offset, record.written_ms

    def known(self, kind: bytes) -> Known:
        """What the log tells of the job's definition, or state."""
        line = self._lines[kind]
        if line.shown is not None:
            return Known.IS if line.shown.value is not None else Known.GONE
        if self.at_ms is None or self._is_complete_at(self.at_ms):
            return Known.NEVER
        return Known.REMOVED

    def _is_complete_at(self, at_ms: int) -> bool:
        if self.complete_from is None:
            is_whole = self._next_offset != _BROKEN  # so far without a gap, perhaps without a record
            return is_whole or self._last_ms <= at_ms
        return min(self.complete_from_ms, self._last_ms) <= at_ms

    def record(self, kind: bytes) -> Written | None:
        """The record that is shown of its definition, or state."""
        return self._lines[kind].shown

    def after(self, kind: bytes) -> Written | None:
        """The oldest record of its definition, or state, that was written later and is left."""
        return self._lines[kind].after
