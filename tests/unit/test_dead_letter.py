"""What is kept of a refused record always fits into a dead letter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.avro import codec
from duewheel.core.errors import Reason, UndecodableRecord
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, FOREIGN_KEY_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.refusals import refuse

SIZES = st.sampled_from([0, 1, 1_000, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX, 3 * RECORD_BYTES_MAX])


class Refused:
    def __init__(self, key: int, value: int, headers: list[tuple[int, int]]) -> None:
        self._key, self._value, self._headers = key, value, headers

    def topic(self) -> str:
        return "t" * 249

    def partition(self) -> int:
        return 1

    def offset(self) -> int:
        return 2**40

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> bytes | None:
        return b"k" * self._key or None

    def value(self) -> bytes | None:
        return b"v" * self._value or None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h" * name, b"c" * content) for name, content in self._headers]


@given(SIZES, SIZES, st.lists(st.tuples(SIZES, SIZES), max_size=3))
def test_K7_a_dead_letter_is_never_too_large(key: int, value: int, headers: list[tuple[int, int]]) -> None:
    error = UndecodableRecord(Reason.TOO_LARGE, "m" * 10_000)
    letter = refuse(Refused(key, value, headers), error).letter(0)
    assert len(codec.encode_dead_letter(letter)) <= DEAD_LETTER_BYTES_MAX
    assert len(letter["value"] or b"") == min(value, RECORD_BYTES_MAX)
    assert len(letter["key"] or b"") == min(key, FOREIGN_KEY_BYTES_MAX)
