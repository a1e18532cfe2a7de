"""What a worker has promised about a partition of dispatches, small enough to live beside the committed offset.

The problem: a dispatch must be started at most once, yet many run at a time and finish in any order, and the worker may die at any
moment. A committed offset alone says only "everything below is finished". So the offset that is committed is the lowest unfinished one,
and its metadata says two things more: how far this worker may have started (the claim), and which offsets up to there are unfinished.

    offsets    10  11  12  13  14  15  16  17        claimed 10 to 15, finished 11, 12 and 14
               ▶   ✓   ✓   ▶   ✓   ▶   ·   ·         committed: offset 10, claimed up to 16, unfinished 10 13 15

The promise is committed before anything below it is started, and only the partition's owner can commit. A successor that reads the above
knows: 16 and 17 were never started and may run; 10, 13 and 15 may have been, and go back to their owners as lost; nothing else matters.

Offsets have gaps, where transactions left their markers, so the ledger never counts on neighbours. The metadata reads

    dw1:<owner>:<base64 of varints: claimed_upto - offset, then each unfinished offset's distance from the one before>

The lowest unfinished offset is the committed one itself, so it is not listed; where nothing is unfinished, claimed_upto is the offset.
`dw1:<owner>:*<…>` claims a whole range of which nobody knows what ran. The owner is the base of the transactional ids of whoever wrote
it, for a successor to fence; it is empty when there is nobody to fence.

Cost: claiming or finishing a dispatch is one dict operation; `position` is linear in what is unfinished. Finishing never makes the
metadata longer: two distances that become one take no more bytes than they took. So it is enough to check the size when claiming.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from duewheel.core.errors import BrokenInvariant
from duewheel.core.limits import CLAIM_DISPATCHES_MAX, CLAIM_METADATA_BYTES_MAX, CLAIM_OWNER_CHARS_MAX

_PREFIX: Final = "dw1:"
_METADATA: Final = re.compile(rf"dw1:([A-Za-z0-9._-]{{0,{CLAIM_OWNER_CHARS_MAX}}}):(\*?)([A-Za-z0-9+/]*)")
_OWNER: Final = re.compile(rf"[A-Za-z0-9._-]{{0,{CLAIM_OWNER_CHARS_MAX}}}")
_VARINT_BYTES_MAX: Final = 9  # 63 bits
_OFFSET_MAX: Final = 2**63 - 1
_BYTES_MAX: Final = (CLAIM_METADATA_BYTES_MAX - len(_PREFIX) - CLAIM_OWNER_CHARS_MAX - len(":*")) * 3 // 4
_DISTANCES_BYTES_MAX: Final = _BYTES_MAX - _VARINT_BYTES_MAX


class Claim(NamedTuple):
    """A claim as committed.

    Attributes:
        owner: what the transactional ids of the claimer begin with; empty where there is nobody to fence.
        claimed_upto: every dispatch below this offset may have been started.
        unfinished: ascending offsets below `claimed_upto` that are not finished; None where nobody knows, which means all of them.
    """

    owner: str
    claimed_upto: int
    unfinished: tuple[int, ...] | None = ()


def encode(claim: Claim, offset: int) -> str:
    """The metadata to commit beside `offset`, which must be the lowest unfinished offset, or `claimed_upto` where none is.

    A topic that is new, of which nothing was ever started, is marked with `encode(Claim("", 0), 0)` at offset 0.

    Raises:
        BrokenInvariant: the claim contradicts the offset, or does not fit; nothing may be committed.
    """
    if not _OWNER.fullmatch(claim.owner):
        raise BrokenInvariant(f"owner {claim.owner!r} must be at most {CLAIM_OWNER_CHARS_MAX} characters of a-z A-Z 0-9 . _ -")
    unfinished = claim.unfinished
    if unfinished is None:
        body, star = _varints([claim.claimed_upto - offset]), "*"
    else:
        lowest = unfinished[0] if unfinished else claim.claimed_upto
        if lowest != offset:
            raise BrokenInvariant(f"offset {offset} cannot be committed: the lowest unfinished one is {lowest}")
        distances = [after - before for before, after in pairwise(unfinished)]
        body, star = _varints([claim.claimed_upto - offset, *distances]), ""
    metadata = f"{_PREFIX}{claim.owner}:{star}{b64encode(body).rstrip(b'=').decode()}"
    if len(metadata) > CLAIM_METADATA_BYTES_MAX:
        raise BrokenInvariant(f"a claim takes {len(metadata):,} bytes; the limit is {CLAIM_METADATA_BYTES_MAX:,}")
    return metadata


def decode(metadata: str | None, offset: int) -> Claim | None:
    """The claim that was committed beside `offset`, or None where the metadata is not ours."""
    match = _METADATA.fullmatch(metadata or "")
    if match is None or len(match[0]) > CLAIM_METADATA_BYTES_MAX:
        return None
    owner, star, text = match.groups()
    try:
        numbers = _from_varints(b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError):
        return None
    if not numbers or 0 in numbers[1:]:
        return None
    claimed_upto = offset + numbers[0]
    if claimed_upto > _OFFSET_MAX:
        return None
    if star:
        return Claim(owner, claimed_upto, None) if len(numbers) == 1 else None
    if numbers[0] == 0:
        return Claim(owner, claimed_upto) if len(numbers) == 1 else None
    unfinished = [offset]
    for distance in numbers[1:]:
        unfinished.append(unfinished[-1] + distance)
    return Claim(owner, claimed_upto, tuple(unfinished)) if unfinished[-1] < claimed_upto else None


class Ledger:
    """What one worker has claimed and finished in one partition that it owns.

    Args:
        claim: what is claimed to begin with; its unfinished dispatches must be known.
    """

    __slots__ = ("_bytes_max", "_finished_max", "_unfinished", "claimed_upto", "owner")

    def __init__(self, claim: Claim) -> None:
        if claim.unfinished is None:
            raise BrokenInvariant("a ledger cannot begin with a range of which nobody knows what ran")
        self.owner = claim.owner
        self.claimed_upto = claim.claimed_upto
        # In ascending order, since claims ascend and a dict remembers.
        self._unfinished: dict[int, None] = dict.fromkeys(claim.unfinished)
        self._finished_max = -1
        self._bytes_max = _VARINT_BYTES_MAX * (len(self._unfinished) + 1)  # at most what the distances take

    @property
    def unfinished(self) -> Collection[int]:
        """Claimed and not finished, ascending."""
        return self._unfinished.keys()

    def room(self, offset: int) -> int:
        """How many dispatches, the last of which lies at `offset`, could be claimed now."""
        free_bytes = _DISTANCES_BYTES_MAX - self._bytes_max
        return max(0, min(CLAIM_DISPATCHES_MAX - len(self._unfinished), free_bytes // self._distance_bytes_max(offset)))

    def claim(self, offsets: Sequence[int]) -> None:
        """Claims ascending offsets at or above `claimed_upto`. They may be started once `position` was committed.

        Raises:
            BrokenInvariant: they do not ascend, or there is no `room`; nothing was claimed.
        """
        if not offsets:
            return
        if offsets[0] < self.claimed_upto or any(after <= before for before, after in pairwise(offsets)):
            raise BrokenInvariant(f"offsets {offsets[0]} to {offsets[-1]} cannot be claimed: {self.claimed_upto} is next")
        if len(offsets) > self.room(offsets[-1]):
            raise BrokenInvariant(f"{len(offsets)} dispatches cannot be claimed: {len(self._unfinished)} are unfinished")
        self._bytes_max += len(offsets) * self._distance_bytes_max(offsets[-1])
        self._unfinished.update(dict.fromkeys(offsets))
        self.claimed_upto = offsets[-1] + 1

    def finish(self, offset: int) -> None:
        """Notes that what was claimed at `offset` is finished.

        Raises:
            KeyError: it is not unfinished.
        """
        del self._unfinished[offset]
        if offset > self._finished_max:
            self._finished_max = offset

    def unclaim(self, offsets: Iterable[int]) -> list[int]:
        """Takes back claims of what was never started, so that a successor runs it.

        Returns:
            those that must be finished instead, because something above them was started.
        """
        never_started = set(offsets)
        started_max = max((offset for offset in self._unfinished if offset not in never_started), default=-1)
        keep_upto = max(started_max, self._finished_max) + 1
        taken_back = [offset for offset in self._unfinished if offset in never_started and offset >= keep_upto]
        for offset in taken_back:
            del self._unfinished[offset]
        if taken_back:
            self.claimed_upto = taken_back[0]
        return sorted(never_started.intersection(self._unfinished))

    def position(self) -> tuple[int, str]:
        """The offset to commit, and its metadata."""
        unfinished = tuple(self._unfinished)
        offset = unfinished[0] if unfinished else self.claimed_upto
        metadata = encode(Claim(self.owner, self.claimed_upto, unfinished), offset)
        self._bytes_max = _VARINT_BYTES_MAX + len(metadata) * 3 // 4
        return offset, metadata

    def _distance_bytes_max(self, offset: int) -> int:
        # New offsets lie between claimed_upto and this one, so no two of them are further apart. The first may lie further from what
        # is unfinished below; `_bytes_max` has one varint in reserve for that.
        return max(1, ((offset - self.claimed_upto + 1).bit_length() + 6) // 7)


def _varints(numbers: Sequence[int]) -> bytes:
    """Unsigned LEB128."""
    if min(numbers) < 0:
        raise BrokenInvariant(f"a claim cannot hold the negative distance {min(numbers)}")
    if max(numbers) < 0x80:
        return bytes(numbers)  # the usual case, and fast
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def _from_varints(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * _VARINT_BYTES_MAX:
            raise ValueError("a varint of more than 63 bits")
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("a varint without an end")
    return numbers
