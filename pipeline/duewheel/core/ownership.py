"""Who owns a timer partition, as written beside the group's committed offset.

An owner names itself there before its first transaction and takes its name away with its last word. A successor that finds a name knows
that somebody died holding the partition, perhaps in the middle of a transaction, and fences it by that name before it reads anything.
"""

from __future__ import annotations

from typing import Final

_MARK: Final = "dw1 "
RELEASED: Final = _MARK + "-"
"""The metadata of a partition that was let go in good order."""


def owned_by(name: str) -> str:
    """The metadata that says: `name` owns this partition; its transactional ids begin with this."""
    return _MARK + name


def owner_of(metadata: str) -> str | None:
    """The name in the metadata; None where nobody holds the partition, or the metadata is not ours."""
    if not metadata.startswith(_MARK) or metadata == RELEASED:
        return None
    return metadata[len(_MARK) :]
