"""Counts what a record would become, before it does.

A megabyte holds 400,000 empty headers, or a million waits of a retry policy. To decode that takes up to a second and 100 MB, for a record
that is refused by the rules afterwards: some hundreds of them, and a processor does nothing else for minutes. The counts that Avro writes
before the items of a list say it all, but they lie anywhere in the record. So a large record is skimmed first, by its schema: everything is
stepped over, nothing is made, and what the counts announce is added up.

    array<record of 8 fields>, count 30    stands for 270 values
    map<string>, count 400,000             stands for 800,000: refused, before the first item is looked at

Stepping over 10,000 values takes 2 ms, and over an ordinary record 5 to 10 µs. Small records are not skimmed, since they cannot hold many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

# Ours have 9,000 at most where each list has as many items as the fast ways read (1,000 endings of 9), and 300 where they keep the rules.
VALUES_MAX: Final = 10_000
# A value of ours takes at least a byte, a third of one in the headers of a dead letter, and of foreign writers' a sixteenth (`admission`).
SKIMMED_BYTES_MIN: Final = 2_048

_FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINT_BYTES_MAX: Final = 10

# Steps over a value that begins at the offset, and returns where it ends. The list holds how many values may still come.
Step: TypeAlias = Callable[[bytes, int, list[int]], int]


class TooManyValues(Exception):
    """The record announces more values than are taken; its message is of no use."""


class Skimmer:
    """Skims records of one schema.

    Args:
        schema: as fastavro parsed it.
    """

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, tuple[Step, int]] = {}
        self._step = self._compiled(schema)[0]

    def skim(self, value: bytes, at: int) -> int:
        """Steps over the record that begins at `at`, and returns where it ends.

        Raises:
            TooManyValues: more than VALUES_MAX.
            ValueError, IndexError: it is damaged.
        """
        return self._step(value, at, [VALUES_MAX])

    def _compiled(self, schema: Any) -> tuple[Step, int]:
        """What steps over values of `schema`, and how many values such a one is, lists within it aside."""
        if isinstance(schema, list):
            return _union([self._compiled(branch) for branch in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind.__class__ is not str:
            return self._compiled(kind)
        if kind in ("record", "enum", "fixed"):
            compiled = self._record(schema) if kind == "record" else (_stepping_over(schema["size"]) if kind == "fixed" else _number, 1)
            self._named[schema["name"]] = compiled
            return compiled
        if kind == "array":
            return _blocks(*self._compiled(schema["items"])), 1
        if kind == "map":
            step, values = self._compiled(schema["values"])
            return _blocks(lambda value, at, left: step(value, _string(value, at, left), left), values + 1), 1
        if kind in _FIXED_BYTES:
            return _stepping_over(_FIXED_BYTES[kind]), 1
        if kind in ("int", "long"):
            return _number, 1
        return (_string, 1) if kind in ("bytes", "string") else self._named[kind]

    def _record(self, schema: Any) -> tuple[Step, int]:
        compiled = [self._compiled(field["type"]) for field in schema["fields"]]
        steps = [step for step, _ in compiled]

        def step_over_record(value: bytes, at: int, left: list[int]) -> int:
            for step in steps:
                at = step(value, at, left)
            return at

        return step_over_record, 1 + sum(values for _, values in compiled)


def _union(branches: list[tuple[Step, int]]) -> tuple[Step, int]:
    steps = [step for step, _ in branches]

    def step_over_union(value: bytes, at: int, left: list[int]) -> int:
        branch, at = _long_at(value, at)
        return steps[branch](value, at, left)  # fastavro too counts a negative branch from the end

    return step_over_union, max((values for _, values in branches), default=0)


def _blocks(step: Step, values: int) -> Step:
    def step_over_blocks(value: bytes, at: int, left: list[int]) -> int:
        count, at = _long_at(value, at)
        while count:
            if count < 0:  # a block that says its size
                count = -count
                _, at = _long_at(value, at)
            left[0] -= count * values
            if left[0] < 0:
                raise TooManyValues
            for _ in range(count):
                at = step(value, at, left)
            count, at = _long_at(value, at)
        return at

    return step_over_blocks


def _stepping_over(size: int) -> Step:
    return lambda value, at, left: at + size


def _number(value: bytes, at: int, left: list[int]) -> int:
    while value[at] > 127:
        at += 1
    return at + 1


def _string(value: bytes, at: int, left: list[int]) -> int:
    size, at = _long_at(value, at)
    if size < 0 or at + size > len(value):
        raise ValueError("a length beyond the end")
    return at + size


def _long_at(value: bytes, at: int) -> tuple[int, int]:
    byte = value[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = shift = 0
    for end in range(at, at + _VARINT_BYTES_MAX):
        byte = value[end]
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), end + 1
    raise ValueError("a number without an end")
