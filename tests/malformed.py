"""Bytes that look like a command and must not be taken for one, with what must be said of them.

For the codec's own tests, and to be published by whoever tests that a refused record costs one dead letter and nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duewheel.adapters.avro import codec
from duewheel.core.errors import Reason
from duewheel.core.limits import RECORD_BYTES_MAX
from duewheel.core.model import Schedule
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
    "work": {"task": "t", "content_type": "application/json", "payload": b"{}", "headers": {"a": "b", "c": "d"}},
}
VALUE: Final = codec.encode_schedule(SCHEDULE)

_HEADER: Final = VALUE[:10]
_TIME: Final = bytes.fromhex("80b083c59868")
_HEADERS: Final = b"\x04\x02a\x02b\x02c\x02d\x00"
_BEFORE_HEADERS: Final = VALUE.removesuffix(_HEADERS)
_COUNT_2_62: Final = bytes.fromhex("80808080808080808001")
_COUNT_MINUS_2_63: Final = bytes.fromhex("ffffffffffffffffff01")
_BODY: Final = VALUE[10:]


def _swap(old: bytes, new: bytes) -> bytes:
    assert old in VALUE
    return VALUE.replace(old, new, 1)


CORPUS: Final = [
    Malformed("no value", None, Reason.NO_VALUE),
    Malformed("an empty value", b"", Reason.UNKNOWN_FORMAT),
    Malformed("one byte", b"\xc3", Reason.UNKNOWN_FORMAT),
    Malformed("text", b'{"job_id": "j1"}', Reason.UNKNOWN_FORMAT),
    Malformed("another magic", b"\xc3\x02" + VALUE[2:], Reason.UNKNOWN_FORMAT),
    Malformed("Confluent's format without a registry", b"\0\0\0\0\7" + _BODY, Reason.UNKNOWN_FORMAT),
    Malformed("half a fingerprint", VALUE[:6], Reason.UNKNOWN_FORMAT),
    Malformed("an unknown fingerprint", b"\xc3\x01" + bytes(8) + _BODY, Reason.UNKNOWN_SCHEMA),
    Malformed("a record of another kind", codec.splice_definition(1, VALUE), Reason.UNEXPECTED_RECORD),
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
    Malformed("a header twice", _BEFORE_HEADERS + b"\x04\x02a\x02b\x02a\x02b\x00", Reason.NOT_CANONICAL),
    Malformed("headers in two blocks", _BEFORE_HEADERS + b"\x02\x02a\x02b\x02\x02c\x02d\x00", Reason.NOT_CANONICAL),
    Malformed("headers with their size", _BEFORE_HEADERS + b"\x03\x10\x02a\x02b\x02c\x02d\x00", Reason.NOT_CANONICAL),
    Malformed("a job id that is no UTF-8", _swap(b"j1", b"\xff\xfe"), Reason.MALFORMED),
    Malformed("a surrogate", _swap(b"\x04j1", b"\x06\xed\xa0\x80"), Reason.MALFORMED),
    Malformed("UTF-8 longer than needed", _swap(b"j1", b"\xc0\xaf"), Reason.MALFORMED),
    Malformed("a header that is no UTF-8", _swap(b"\x02b", b"\x02\xff"), Reason.MALFORMED),
    Malformed("on_conflict minus 1", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\1"), Reason.NOT_CANONICAL),
    Malformed("on_conflict 2", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\4"), Reason.MALFORMED),
    Malformed("on_conflict minus 3", _swap(_TIME * 2 + b"\0", _TIME * 2 + b"\5"), Reason.MALFORMED),
    Malformed("a bomb of nested ones", _HEADER + b"\2" * 100_000, Reason.MALFORMED),
    Malformed("too large", VALUE + bytes(RECORD_BYTES_MAX), Reason.TOO_LARGE),
]
