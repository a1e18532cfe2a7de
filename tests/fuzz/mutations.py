"""Makes bad inputs out of good ones, each from its seed and its number alone.

    Maker(target).make(7, 1234)    the same bytes on every machine

Mostly one mutation is applied, sometimes several. There are those that any format deserves (a bit flipped, a piece cut out, doubled, moved
or taken from another input), and those that know where formats hurt: numbers at the edges of their sizes or padded, lengths that are huge
or negative, text that is no UTF-8, doubles that are no numbers, JSON that is nested deeply, Confluent's framing around anything.

A mutant costs 10 to 20 µs, most of it for a random generator of its own; that is what makes it repeatable without its predecessors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import inf, nan
from random import Random
from typing import Final, TypeAlias

from tests.fuzz.target import Target

Mutation: TypeAlias = Callable[["Maker", Random, bytes], bytes]


def _varint(number: int, padding: int = 0) -> bytes:
    """Avro's encoding, and on request one that takes more bytes than it needs."""
    zigzag = number << 1 if number >= 0 else -2 * number - 1
    groups = [zigzag & 127]
    while zigzag := zigzag >> 7:
        groups.append(zigzag & 127)
    groups += [0] * padding
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


_EDGES: Final = [edge + step for power in (6, 7, 13, 14, 20, 27, 31, 32, 41, 48, 62, 63, 64) for edge in (2**power,) for step in (-1, 0)]
VARINTS: Final = (
    *(_varint(sign * edge) for edge in [0, 1, 2, 3, *_EDGES] for sign in (1, -1)),
    *(_varint(number, padding) for number in (0, 1, 1_790_000_000_000) for padding in (1, 4, 9)),
    b"\xff" * 10,
    b"\xff" * 10 + b"\1",
    b"\x80" * 200,
)
BYTES: Final = b"\x00\x01\x02\x03\x04\x40\x7e\x7f\x80\x81\xc0\xc3\xe0\xf0\xfe\xff"
BAD_TEXT: Final = (
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\xef\xbf\xbe",
    b"\0",
)
DOUBLES: Final = tuple(struct.pack("<d", number) for number in (nan, inf, -inf, -0.0, 5e-324, 1.7976931348623157e308, -1.0))
JSON: Final = (
    *(b"NaN", b"-Infinity", b"1e999", b"-0", b"1e-400", b"9" * 400, b"9" * 5_000, b"0.1", b"1E400", b"01", b"null", b"true", b"[]", b"{}"),
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\u0000"',
        b'"\xed\xa0\x80"',
        b'"',
        b"\\",
        b",",
        b":",
        b"\xef\xbb\xbf",
        b"\x1b[31m",
        b'{"":{"":1}}',
    ),
)
NESTS: Final = ((b"[", b"]"), (b'{"a":', b"}"), (b"[{", b"}]"), (b'{"a":[', b"]}"), (b'{"type":', b"}"), (b"[[],", b"]"))
_CHUNK_MAX: Final = 64
# Of all mutants so many grow to any size up to the target's limit; the others stay small, and fast.
_LARGE_ONE_IN: Final = 250
_SMALL_BYTES: Final = 600


def _flip(_maker: Maker, pick: Random, value: bytes) -> bytes:
    if not value:
        return bytes((pick.randrange(256),))
    at = pick.randrange(len(value))
    return value[:at] + bytes((value[at] ^ 1 << pick.randrange(8),)) + value[at + 1 :]


def _set_byte(_maker: Maker, pick: Random, value: bytes) -> bytes:
    at = pick.randrange(len(value) + 1)
    return value[:at] + bytes((pick.choice(BYTES),)) + value[at + 1 :]


def _truncate(_maker: Maker, pick: Random, value: bytes) -> bytes:
    return value[: pick.randrange(len(value) + 1)]


def _cut(_maker: Maker, pick: Random, value: bytes) -> bytes:
    begin, end = _piece(pick, value)
    return value[:begin] + value[end:]


def _double(_maker: Maker, pick: Random, value: bytes) -> bytes:
    begin, end = _piece(pick, value)
    return value[:end] + value[begin:]


def _move(_maker: Maker, pick: Random, value: bytes) -> bytes:
    begin, end = _piece(pick, value)
    rest = value[:begin] + value[end:]
    at = pick.randrange(len(rest) + 1)
    return rest[:at] + value[begin:end] + rest[at:]


def _splice(maker: Maker, pick: Random, value: bytes) -> bytes:
    """The beginning of one good input, the end of another."""
    other = pick.choice(maker.seeds)
    return value[: pick.randrange(len(value) + 1)] + other[pick.randrange(len(other) + 1) :]


def _head(maker: Maker, pick: Random, value: bytes) -> bytes:
    """Another's first bytes, which in a record name its schema."""
    size = pick.choice((1, 2, 5, 10))
    return pick.choice(maker.seeds)[:size] + value[size:]


def _noise(_maker: Maker, pick: Random, value: bytes) -> bytes:
    begin, end = _piece(pick, value)
    return value[:begin] + pick.randbytes(pick.randrange(1, 17)) + value[end:]


def _sprinkle(maker: Maker, pick: Random, value: bytes) -> bytes:
    """Something that hurts, put in or written over what was there."""
    token = pick.choice(maker.tokens)
    at = pick.randrange(len(value) + 1)
    return value[:at] + token + value[at + pick.choice((0, 0, 1, len(token))) :]


def _extreme(_maker: Maker, pick: Random, value: bytes) -> bytes:
    """A number of the edge in place of a number that is there: it ends with the first byte that has no top bit."""
    begin = pick.randrange(len(value) + 1)
    end = begin
    while end < len(value) and value[end] & 128:
        end += 1
    return value[:begin] + pick.choice(VARINTS) + value[end + 1 :]


def _lengthen(_maker: Maker, pick: Random, value: bytes) -> bytes:
    """A byte counted up or down by a little, as wrong lengths are."""
    if not value:
        return value
    at = pick.randrange(len(value))
    return value[:at] + bytes((value[at] + pick.choice((-2, -1, 1, 2)) & 255,)) + value[at + 1 :]


def _repeat(maker: Maker, pick: Random, value: bytes) -> bytes:
    begin, end = _piece(pick, value)
    chunk = value[begin:end] or b"\0"
    return value[:end] + chunk * (maker.size(pick, len(value)) // len(chunk)) + value[end:]


def _frame(_maker: Maker, pick: Random, value: bytes) -> bytes:
    """Confluent's framing, around the record or its body."""
    return b"\0" + pick.choice((pick.randrange(20), pick.randrange(2**32))).to_bytes(4, "big") + value[pick.choice((0, 5, 10)) :]


def _nest(maker: Maker, pick: Random, value: bytes) -> bytes:
    opening, closing = pick.choice(NESTS)
    begin, end = _piece(pick, value)
    # Around the depth at which Python's own stack ends, and any other.
    levels = pick.randrange(850, 1_010) if pick.random() < 0.3 else maker.size(pick, len(value)) // (len(opening) + len(closing))
    return value[:begin] + opening * levels + value[begin:end] + closing * (levels - pick.randrange(2)) + value[end:]


_ANY: Final[Sequence[Mutation]] = (_flip, _set_byte, _truncate, _cut, _double, _move, _splice, _noise, _sprinkle, _sprinkle, _repeat)
_OF_DIALECT: Final[dict[str, Sequence[Mutation]]] = {
    "binary": (*_ANY, _extreme, _extreme, _lengthen, _lengthen, _head, _frame),
    "json": (*_ANY, _nest, _nest, _sprinkle),
    "text": (*_ANY, _sprinkle),
}
_TOKENS: Final = {
    "binary": (*VARINTS, *BAD_TEXT, *DOUBLES),
    "json": (*JSON, *BAD_TEXT),
    "text": (*BAD_TEXT, b"9" * 400, b"\n", b" ", b"\x1b[2J"),
}


class Maker:
    """Makes a target's inputs."""

    def __init__(self, target: Target) -> None:
        self.seeds = target.seeds()
        self.tokens = (*_TOKENS[target.dialect], *target.tokens)
        self._mutations = _OF_DIALECT[target.dialect]
        self._name = target.name
        self._breed = target.breed
        self._bytes_max = target.bytes_max

    def make(self, seed: int, index: int) -> bytes:
        """Input number `index`."""
        pick = Random(f"{seed} {self._name} {index}")
        if self._breed is not None and pick.random() < 0.2:
            value = self._breed(pick)
            if pick.random() < 0.5:
                return value[: self._bytes_max]
        else:
            value = pick.choice(self.seeds)
        while True:
            value = pick.choice(self._mutations)(self, pick, value)
            if pick.random() < 0.55:
                return value[: self._bytes_max]

    def size(self, pick: Random, already: int) -> int:
        """How many bytes to add: small ones as a rule, and now and then as many as there is room for."""
        room = max(0, self._bytes_max - already)
        if pick.randrange(_LARGE_ONE_IN):
            return pick.randrange(min(room, _SMALL_BYTES) + 1)
        return int(room ** pick.random())


def _piece(pick: Random, value: bytes) -> tuple[int, int]:
    begin = pick.randrange(len(value) + 1)
    return begin, min(len(value), begin + pick.randrange(_CHUNK_MAX))
