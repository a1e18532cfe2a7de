"""What groups committed, in the order in which their coordinators took it: read from Kafka's own log of it, `__consumer_offsets`.

Asking now and then what a group has committed would miss what happens in between. The log keeps every commit, those of transactions too,
which a reader of committed records sees once they are committed; and every generation that a group formed.

The records are Kafka's own, in its binary form, big-endian: a key that says what the value is of, and a value whose beginning is the same
in all versions that brokers of today write.
"""

from __future__ import annotations

import struct
from typing import Final

from duewheel.ports import Record
from duewheel.proof.history import Committed, Event, Rebalanced

TOPIC: Final = "__consumer_offsets"
_OFFSET_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2
_COMPACT_FROM: Final = 4


def offset_event(record: Record, prefix: str) -> Event | None:
    """What a record says of a group whose name begins with `prefix`; None for others, and for what was deleted."""
    key, value = record.key(), record.value()
    if key is None or value is None:
        return None
    version = _short(key, 0)
    if version not in (*_OFFSET_KEYS, _GROUP_KEY):
        return None
    group, at = _text(key, 2)
    if not group.startswith(prefix):
        return None
    at_ms = record.timestamp()[1]
    if version == _GROUP_KEY:
        [generation] = struct.unpack_from(">i", value, _behind_protocol(value))
        return Rebalanced(at_ms, group, generation)
    topic, at = _text(key, at)
    [partition] = struct.unpack_from(">i", key, at)
    [offset] = struct.unpack_from(">q", value, 2)
    return Committed(at_ms, group, topic, partition, offset)


def _behind_protocol(value: bytes) -> int:
    """Where the generation of a group's metadata begins: behind the kind of its protocol, whose length newer versions write in one byte."""
    if _short(value, 0) < _COMPACT_FROM:
        return _text(value, 2)[1]
    return 2 + max(value[2], 1)


def _short(data: bytes, at: int) -> int:
    [number] = struct.unpack_from(">h", data, at)
    return int(number)


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A text with its length before it, and where it ends."""
    length = _short(data, at)
    end = at + 2 + length
    return data[at + 2 : end].decode(), end
