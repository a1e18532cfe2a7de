"""Who owns a timer partition, as written beside the group's committed offset.

An owner names itself there before its first transaction and takes its name away with its last word. A successor that finds a name knows
that somebody died holding the partition, perhaps in the middle of a transaction, and fences it by that name before it reads anything.

Whoever may commit for the group may write anything there. What no process of ours is called is not taken for a name: nobody could be fenced
by it, and the partition would wait for that for ever.
"""

from __future__ import annotations

import re
from typing import Final

from duewheel.core.limits import CLAIM_OWNER_CHARS_MAX

_MARK: Final = "dw1 "
# A prefix, what kind of process it is, and 32 digits.
_OWNED: Final = re.compile(rf"{_MARK}([A-Za-z0-9._-]{{1,{CLAIM_OWNER_CHARS_MAX}}})")
RELEASED: Final = _MARK + "-"
"""The metadata of a partition that was let go in good order."""


def owned_by(name: str) -> str:
    """The metadata that says: `name` owns this partition; its transactional ids begin with this."""
    return _MARK + name


def owner_of(metadata: str) -> str | None:
    """The name in the metadata; None where nobody holds the partition, or the metadata is not ours."""
    match = _OWNED.fullmatch(metadata)
    return None if match is None or metadata == RELEASED else match[1]
