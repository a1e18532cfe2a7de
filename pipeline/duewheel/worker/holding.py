"""One partition of dispatches while this worker holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from duewheel.core.claims import Claim, Ledger, encode
from duewheel.ports import GroupPosition, Offset, Record


class Standing(Enum):
    """How a partition stands with this worker."""

    TAKING_OVER = "taking over"  # assigned, and nothing of it is read yet
    OPEN = "open"
    GONE = "gone"  # revoked or lost; nothing may be committed for it


class Holding:
    """What this worker knows of a partition that it was assigned. A partition lost and regained is a new holding.

    Args:
        owner: this worker's name in claims.
    """

    def __init__(self, topic: str, partition: int, owner: str) -> None:
        self.topic = topic
        self.partition = partition
        self.owner = owner
        self.standing = Standing.TAKING_OVER
        self.ledger = Ledger(Claim(owner, 0))
        self.records: deque[Record] = deque()
        """Polled and not claimed."""
        self.paused = False
        self.known = False
        """Whether the position is known; before, nothing may be committed."""
        self.changed = False
        """Whether there is something to commit."""
        self.sent: GroupPosition | None = None
        """What was sent last, or found: what may be committed already, without the next transaction."""
        self._range: tuple[int, int] | None = None

    @property
    def held(self) -> bool:
        return self.standing is not Standing.GONE

    def begin(self, claim: Claim) -> None:
        """Goes on from a predecessor's claim, of which every unfinished dispatch is known."""
        self.ledger = Ledger(claim._replace(owner=self.owner))
        self._range = None
        self.known = self.changed = True

    def begin_range(self, offset: int, upto: int) -> None:
        """Goes through a range of which nobody knows what ran. Until `begin`, the position is within it."""
        self._range = (offset, upto)
        self.known = self.changed = True

    def finish(self, offset: int) -> None:
        """Notes that what was claimed at `offset` needs nothing more but to be recorded."""
        self.ledger.finish(offset)
        self.changed = True

    def claim(self, offsets: Sequence[int]) -> None:
        self.ledger.claim(offsets)
        self.changed = True

    def unclaim(self, offsets: Iterable[int]) -> list[int]:
        """As `Ledger.unclaim`."""
        self.changed = True
        return self.ledger.unclaim(offsets)

    def release(self) -> None:
        """From now on, positions are in nobody's name: a successor has nobody to fence."""
        self.ledger.owner = ""
        self.changed = True

    def position(self) -> Offset:
        """What to commit."""
        if self._range is None:
            offset, metadata = self.ledger.position()
        else:
            offset, upto = self._range
            metadata = encode(Claim(self.ledger.owner, upto, None), offset)
        return Offset(self.topic, self.partition, offset, metadata)


NOWHERE: Final = Holding("", -1, "")
"""Where runs belong that were handed over: a partition that is not held, so that they are reported without one."""
NOWHERE.standing = Standing.GONE
