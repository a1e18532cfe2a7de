"""Bytes that look like a command and must not be taken for one, with what must be said of them.

For the codec's own tests, and to be published by whoever tests that a refused record costs one dead letter and nothing else.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

from duewheel.adapters.avro import codec, varints
from duewheel.core.errors import Reason
from duewheel.core.limits import RECORD_BYTES_MAX
from duewheel.core.model import Limits, Policy, Recurrence, Schedule
from tests.records import TIME_MS


class Malformed(NamedTuple):
    name: str
    value: bytes | None
    reason: Reason


SCHEDULE: Final[Schedule] = {
    "job_id": "j1",
    "due_ms": TIME_MS,
    "created_ms": TIME_MS,
    "on_conflict": "IGNORE",
    "retention_ms": 86_400_000,
    "queue": "default",
    "limits": None,
    "recurrence": None,
    "delivery": None,
    "work": {"task": "t", "content_type": "application/json", "payload": b"{}", "headers": {"a": "b", "c": "d"}, "policy": None},
}
VALUE: Final = codec.encode_schedule(SCHEDULE)

_HEADER: Final = VALUE[:10]
_TIME: Final = bytes.fromhex("80b083c59868")
_HEADERS: Final = b"\x04\x02a\x02b\x02c\x02d\x00\x00"  # and no policy
_BEFORE_HEADERS: Final = VALUE.removesuffix(_HEADERS)
_COUNT_2_62: Final = bytes.fromhex("80808080808080808001")
_COUNT_MINUS_2_63: Final = bytes.fromhex("ffffffffffffffffff01")
_BODY: Final = VALUE[10:]
_POLICY: Final[Policy] = {
    "attempts_max": 5,
    "delays_ms": [1, 2],
    "factor": 1.5,
    "delay_ms_max": 7,
    "jitter": 0.0,
    "give_up_on": ["A", "B"],
    "retry_on": [],
    "run_timeout_ms": 0,
}
_LIMITS: Final[Limits] = {"expires_ms": TIME_MS, "total_timeout_ms": 5, "crashes_max": 2}
GUARDED: Final = codec.encode_schedule({**SCHEDULE, "limits": _LIMITS, "work": {**SCHEDULE["work"], "policy": _POLICY}})
_RECURRENCE: Final[Recurrence] = {
    "kind": "EVERY",
    "every_ms": 5,
    "expression": "e",
    "zone": "z",
    "start_ms": TIME_MS,
    "end_ms": 0,
    "runs_max": 2,
    "jitter_ms": 3,
    "misfire": "ALL",
    "misfire_max": 4,
    "grace_ms": 6,
    "overlap": "ALLOW",
    "overlap_max": 7,
}
RECURRING: Final = codec.encode_schedule({**SCHEDULE, "recurrence": _RECURRENCE})

_FACTOR: Final = struct.pack("<d", 1.5)
_JITTER: Final = b"\x0e" + bytes(8)  # after the 7 of delay_ms_max
_DELAYS: Final = b"\x04\2\4\0" + _FACTOR
_CLASSES: Final = b"\x04\2A\2B\0"
_MANY: Final = b"".join(b"\x08%04d\0" % number for number in range(1_100))
_WITH_SIZE: Final = varints.long(-1_100) + varints.long(len(_MANY)) + _MANY
_LIMITS_BYTES: Final = b"\2" + _TIME + b"\x0a\x04"
_KIND: Final = b"\0\2\0\x0a\2e\2z"  # after limits that are null, and the branch
_MISFIRE: Final = b"\x06\x04\x08\x0c\2\x0e"  # between jitter_ms and the end


def _swap(old: bytes, new: bytes) -> bytes:
    assert old in VALUE
    return VALUE.replace(old, new, 1)


def _guarded(old: bytes, new: bytes) -> bytes:
    assert GUARDED.count(old) == 1
    return GUARDED.replace(old, new)


def _recurring(old: bytes, new: bytes) -> bytes:
    assert RECURRING.count(old) == 1
    return RECURRING.replace(old, new)


CORPUS: Final = [
    Malformed("no value", None, Reason.NO_VALUE),
    Malformed("an empty value", b"", Reason.UNKNOWN_FORMAT),
    Malformed("one byte", b"\xc3", Reason.UNKNOWN_FORMAT),
    Malformed("text", b'{"job_id": "j1"}', Reason.UNKNOWN_FORMAT),
    Malformed("another magic", b"\xc3\x02" + VALUE[2:], Reason.UNKNOWN_FORMAT),
    Malformed("Confluent's format without a registry", b"\0\0\0\0\7" + _BODY, Reason.UNKNOWN_FORMAT),
    Malformed("half a fingerprint", VALUE[:6], Reason.UNKNOWN_FORMAT),
    Malformed("an unknown fingerprint", b"\xc3\x01" + bytes(8) + _BODY, Reason.UNKNOWN_SCHEMA),
    Malformed("a record of another kind", codec.splice_definition(1, 0, VALUE), Reason.UNEXPECTED_RECORD),
    Malformed("a header alone", _HEADER, Reason.MALFORMED),
    *(Malformed(f"cut after {size} bytes", VALUE[:size], Reason.MALFORMED) for size in range(11, len(VALUE))),
    Malformed("a byte left over", VALUE + b"\0", Reason.TRAILING_BYTES),
    Malformed("the record twice", VALUE + VALUE, Reason.TRAILING_BYTES),
    Malformed("a padded length", _swap(b"\x04j1", b"\x84\x00j1"), Reason.NOT_CANONICAL),
    Malformed("a padded time", _swap(_TIME, bytes.fromhex("80b083c598e800")), Reason.NOT_CANONICAL),
    Malformed("a padded zero", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\x80\0"), Reason.NOT_CANONICAL),
    Malformed("a number of 11 bytes", _swap(_TIME, b"\x80" * 10 + b"\1"), Reason.NOT_CANONICAL),
    Malformed("a number without an end", _HEADER + b"\xff" * 1_000, Reason.MALFORMED),
    Malformed("a negative length", _swap(b"\x04j1", b"\x03j1"), Reason.MALFORMED),
    Malformed("a length of 2^62", _swap(b"\x04j1", _COUNT_2_62 + b"j1"), Reason.MALFORMED),
    Malformed("a payload of 2^62", _swap(b"\x04{}", _COUNT_2_62 + b"{}"), Reason.MALFORMED),
    Malformed("a payload of minus 2^63", _swap(b"\x04{}", _COUNT_MINUS_2_63 + b"{}"), Reason.MALFORMED),
    Malformed("2^62 headers", _BEFORE_HEADERS + _COUNT_2_62, Reason.MALFORMED),
    Malformed("minus 2^63 headers", _BEFORE_HEADERS + _COUNT_MINUS_2_63 + b"\0", Reason.MALFORMED),
    Malformed("a header twice", _BEFORE_HEADERS + b"\x04\x02a\x02b\x02a\x02b\x00\x00", Reason.NOT_CANONICAL),
    Malformed("headers in two blocks", _BEFORE_HEADERS + b"\x02\x02a\x02b\x02\x02c\x02d\x00\x00", Reason.NOT_CANONICAL),
    Malformed("headers with their size", _BEFORE_HEADERS + b"\x03\x10\x02a\x02b\x02c\x02d\x00\x00", Reason.NOT_CANONICAL),
    Malformed("a job id that is no UTF-8", _swap(b"j1", b"\xff\xfe"), Reason.MALFORMED),
    Malformed("a surrogate", _swap(b"\x04j1", b"\x06\xed\xa0\x80"), Reason.MALFORMED),
    Malformed("UTF-8 longer than needed", _swap(b"j1", b"\xc0\xaf"), Reason.MALFORMED),
    Malformed("a header that is no UTF-8", _swap(b"\x02b", b"\x02\xff"), Reason.MALFORMED),
    Malformed("on_conflict minus 1", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\1"), Reason.NOT_CANONICAL),
    Malformed("on_conflict 3", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\6"), Reason.MALFORMED),
    Malformed("on_conflict minus 4", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\7"), Reason.MALFORMED),
    Malformed("a bomb of nested ones", _HEADER + b"\2" * 100_000, Reason.TOO_LARGE),
    Malformed("400,000 headers", _BEFORE_HEADERS + varints.long(400_000) + bytes(800_002), Reason.TOO_LARGE),
    Malformed("600,000 delays", _guarded(_DELAYS, varints.long(600_000) + bytes(600_001) + _FACTOR), Reason.TOO_LARGE),
    Malformed("600,000 classes", _guarded(_CLASSES, varints.long(600_000) + bytes(600_001)), Reason.TOO_LARGE),
    Malformed("many headers, cut", _BEFORE_HEADERS + varints.long(1_500) + bytes(2_500), Reason.MALFORMED),
    Malformed("many headers in two blocks", _BEFORE_HEADERS + (varints.long(1_100) + _MANY) * 2 + b"\0\0", Reason.NOT_CANONICAL),
    Malformed("many headers with their size", _BEFORE_HEADERS + _WITH_SIZE + b"\0\0", Reason.NOT_CANONICAL),
    *(Malformed(f"limits and policy cut after {size} bytes", GUARDED[:size], Reason.MALFORMED) for size in range(11, len(GUARDED))),
    Malformed("a byte after the policy", GUARDED + b"\0", Reason.TRAILING_BYTES),
    Malformed("limits of branch minus 1", _guarded(_LIMITS_BYTES, b"\1" + _LIMITS_BYTES[1:]), Reason.NOT_CANONICAL),
    Malformed("limits of branch 2", _guarded(_LIMITS_BYTES, b"\4" + _LIMITS_BYTES[1:]), Reason.MALFORMED),
    Malformed("limits with a padded time", _guarded(_LIMITS_BYTES, b"\2\x80\0" + _LIMITS_BYTES[7:]), Reason.NOT_CANONICAL),
    Malformed("crashes beyond 32 bits", _guarded(_LIMITS_BYTES, _LIMITS_BYTES[:-1] + bytes.fromhex("8080808010")), Reason.MALFORMED),
    *(Malformed(f"a recurrence cut after {size} bytes", RECURRING[:size], Reason.MALFORMED) for size in range(11, len(RECURRING))),
    Malformed("a recurrence of branch minus 1", _recurring(_KIND, b"\0\1" + _KIND[2:]), Reason.NOT_CANONICAL),
    Malformed("a recurrence of branch 2", _recurring(_KIND, b"\0\4" + _KIND[2:]), Reason.MALFORMED),
    Malformed("a recurrence of kind minus 1", _recurring(_KIND, b"\0\2\1" + _KIND[3:]), Reason.NOT_CANONICAL),
    Malformed("a recurrence of kind 3", _recurring(_KIND, b"\0\2\6" + _KIND[3:]), Reason.MALFORMED),
    Malformed("a recurrence with a padded number", _recurring(_KIND, b"\0\2\0\x8a\0" + _KIND[4:]), Reason.NOT_CANONICAL),
    Malformed("a recurrence with misfire 3", _recurring(_MISFIRE, b"\6\6" + _MISFIRE[2:]), Reason.MALFORMED),
    Malformed("a recurrence with a padded misfire", _recurring(_MISFIRE, b"\6\x84\0" + _MISFIRE[2:]), Reason.NOT_CANONICAL),
    Malformed("a recurrence with overlap 4", _recurring(_MISFIRE, _MISFIRE[:-2] + b"\x08\x0e"), Reason.MALFORMED),
    Malformed("overlaps beyond 32 bits", _recurring(_MISFIRE, _MISFIRE[:-1] + bytes.fromhex("8080808010")), Reason.MALFORMED),
    Malformed("a factor of minus 0", _guarded(_FACTOR, struct.pack("<d", -0.0)), Reason.MALFORMED),
    Malformed("an infinite factor", _guarded(_FACTOR, struct.pack("<d", math.inf)), Reason.MALFORMED),
    Malformed("a factor that is no number", _guarded(_FACTOR, struct.pack("<d", math.nan)), Reason.MALFORMED),
    Malformed("a factor that is another no number", _guarded(_FACTOR, b"\1\0\0\0\0\0\xf0\x7f"), Reason.MALFORMED),
    Malformed("a jitter of minus 0", _guarded(_JITTER, b"\x0e" + struct.pack("<d", -0.0)), Reason.MALFORMED),
    Malformed("2^62 delays", _guarded(_DELAYS, _COUNT_2_62 + _DELAYS[1:]), Reason.MALFORMED),
    Malformed("minus 2^63 delays", _guarded(_DELAYS, _COUNT_MINUS_2_63 + b"\0" + _DELAYS[1:]), Reason.NOT_CANONICAL),
    Malformed("delays in two blocks", _guarded(_DELAYS, b"\2\2\2\4\0" + _FACTOR), Reason.NOT_CANONICAL),
    Malformed("delays with their size", _guarded(_DELAYS, b"\3\4\2\4\0" + _FACTOR), Reason.NOT_CANONICAL),
    Malformed("no delays, with a block", _guarded(_DELAYS, b"\0\0" + _FACTOR), Reason.TRAILING_BYTES),
    Malformed("2^62 classes", _guarded(_CLASSES, _COUNT_2_62 + _CLASSES[1:]), Reason.MALFORMED),
    Malformed("classes in two blocks", _guarded(_CLASSES, b"\2\2A\2\2B\0"), Reason.NOT_CANONICAL),
    Malformed("a class that is no UTF-8", _guarded(_CLASSES, b"\4\2\xff\2B\0"), Reason.MALFORMED),
    Malformed("too large", VALUE + bytes(RECORD_BYTES_MAX), Reason.TOO_LARGE),
]
