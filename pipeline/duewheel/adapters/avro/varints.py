"""Avro's integers, fast.

Avro writes an integer n as 2n, or as -2n - 1 where n is negative, and that in groups of seven bits, the lowest first; every byte but
the last has its top bit set. So 3 is 06, -1 is 01, 200 is 90 03, and a time in milliseconds takes six bytes, until the year 2039:

    1_790_000_000_000  →  2n = 3_580_000_000_000  →  80 b0  83 c5  98 68
                                                     └14 bits, three times┘

Byte by byte, Python takes half a microsecond for a time. Pair by pair, with a table for each place, it takes 0.15 in either direction:
fourteen bits pick two bytes, two bytes pick their share of the number. The tables take 4 MB, and 15 ms to make.

Tables for reading hold None where the bytes are not what a writer writes in that place: a pair without its top bits, a last byte of
zero, a negative number. Adding None raises TypeError, and the reader turns to the strict way. Nothing is checked twice.
"""

from __future__ import annotations

import struct
from typing import Any, Final

_BYTES: Final = [bytes((byte,)) for byte in range(256)]
_ENDING, _GOING_ON = _BYTES[:128], _BYTES[128:]

# Fourteen bits, more to come.
MORE: Final = [low + high for high in _GOING_ON for low in _GOING_ON]
# The last one to fourteen bits.
LAST: Final = _ENDING + [low + high for high in _ENDING[1:] for low in _GOING_ON]

_SIX_BYTES_END: Final = 1 << 41
_FOUR_BYTES_END: Final = 1 << 27
_TWO_BYTES_END: Final = 1 << 13


def long(number: int) -> bytes:
    """The encoding of `number`.

    Raises:
        OverflowError: it does not fit 64 bits.
    """
    if 0 <= number < _SIX_BYTES_END:
        if number < _TWO_BYTES_END:
            return LAST[number << 1]
        if number < _FOUR_BYTES_END:
            return MORE[number << 1 & 16383] + LAST[number >> 13]
        return MORE[number << 1 & 16383] + MORE[number >> 13 & 16383] + LAST[number >> 27]
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} does not fit 64 bits")
    zigzag = number << 1 ^ number >> 63
    encoded = bytearray()
    while zigzag > 127:
        encoded.append(zigzag & 127 | 128)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def long_at(value: bytes, at: int) -> tuple[int, int]:
    """The number encoded at `at`, at least 0 and below 2^41, and where it ends.

    Raises:
        ValueError: it is negative, larger, or padded.
        IndexError: the bytes end before it does.
    """
    low = value[at]
    if low & 1:
        raise ValueError("negative")
    if low < 128:
        return low >> 1, at + 1
    byte = value[at + 1]
    if 0 < byte < 128:
        return (low & 127 | byte << 7) >> 1, at + 2
    number = low & 127 | (byte & 127) << 7
    shift = 14
    at += 2
    while byte > 127:
        byte = value[at]
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    if byte == 0 or shift > 42:
        raise ValueError("padded" if byte == 0 else "larger than is read here")
    return number >> 1, at


def _shares(place: int, pairs: list[bytes], begin: int = 0, step: int = 1) -> list[Any]:
    """What each pair of bytes, read as a little-endian integer, adds to a number where it stands at `place`: 0, 1 or 2.

    Args:
        pairs: the encodings of 0, 1, 2 … there; those at `begin` and every `step` from it are taken.
    """
    table: list[Any] = [None] * (1 << 16)
    bits = begin
    for (pair,) in struct.iter_unpack("<H", b"".join(pairs[begin::step])):
        table[pair] = bits << 14 * place >> 1
        bits += step
    return table


# A time, as struct's "<HHH" gives it, is FIRST[a] + SECOND[b] + THIRD[c]. Odd would be negative; a last byte of zero would be padding.
FIRST: Final = _shares(0, MORE, step=2)
SECOND: Final = _shares(1, MORE)
THIRD: Final = _shares(2, LAST, begin=128)
