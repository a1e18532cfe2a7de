"""Decides whether a schema from outside may be decoded with.

A schema is a program for the decoder, and a hostile one exhausts it: a type that contains itself overflows the stack, an array of items
without bytes makes gigabytes of nothing from a count of 2^62, thirty types that each hold the next one twice make a billion values. So
a schema is measured before it is used: how few bytes its smallest record has, and how many Python values the largest piece of it that
comes without a count. What cannot be measured within bounds is refused.

    {"type": "array", "items": "null"}      items of 0 bytes: refused
    record A {b: B, c: B}, record B {…}     its values are those of B, twice: counted, and bounded
    record A {a: [null, A]}                 A is being measured already: refused
"""

from __future__ import annotations

import json
from typing import Any, Final

from fastavro.schema import to_parsing_canonical_form

from duewheel.adapters.avro.schemas import CURRENT, NAMESPACE, Schema, make

# Ours have 65 values at most.
_VALUES_MAX: Final = 500
# Of the items of an array or map, for each byte they take; ours have 2. So a megabyte becomes at most 16 million values.
_VALUES_PER_BYTE_MAX: Final = 16
_DEPTH_MAX: Final = 20
# Of the JSON around it, where each level of schema takes up to three.
_JSON_DEPTH_MAX: Final = 3 * _DEPTH_MAX
# With these in a schema fastavro believes that it has checked it before.
_TRUSTED: Final = ("__fastavro_parsed__", "__named_schemas")
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class Inadmissible(ValueError):
    """A schema that must not be decoded with; the message says why."""


def admit(text: str) -> Schema:
    """The schema in `text`, as JSON, for a record that Duewheel knows; without what a writer's schema does not need.

    Raises:
        Inadmissible: it is of no use here, or could exhaust the decoder.
    """
    try:
        return _admitted(json.loads(text))
    except Inadmissible:
        raise
    except RecursionError:
        raise Inadmissible("it is nested too deeply") from None
    except Exception as error:  # whatever fastavro and json make of a text that is no schema
        said = str(error)[:200].encode(errors="backslashreplace").decode()  # it may quote what no dead letter can hold
        raise Inadmissible(f"it is no Avro schema: {type(error).__name__}: {said}") from error


def _admitted(schema: Any) -> Schema:
    _check_depth(schema)
    if isinstance(schema, dict):
        for mark in _TRUSTED:
            schema.pop(mark, None)
    form = to_parsing_canonical_form(schema)
    form.encode()  # JSON can name half a character (\ud800), which no fingerprint can be made of
    canonical = json.loads(form)
    kinds = {f"{NAMESPACE}.{kind}": kind for kind in CURRENT}
    name = canonical.get("name") if isinstance(canonical, dict) else None
    if canonical.__class__ is not dict or canonical.get("type") != "record" or name not in kinds:
        raise Inadmissible(f"it is not of a record that Duewheel reads: {', '.join(sorted(kinds))}")
    _Measure().of(canonical, 0)
    return make(canonical)


def _check_depth(parsed: Any) -> None:
    """Without recursion, since it is what stands between the text and the recursive readers."""
    level = [parsed] if isinstance(parsed, (dict, list)) else []
    for _ in range(_JSON_DEPTH_MAX):
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each) if isinstance(part, (dict, list))]
        if not level:
            return
    raise Inadmissible(f"it is nested deeper than {_JSON_DEPTH_MAX} levels of JSON")


class _Measure:
    """Measures schemas, as (bytes of the smallest value, Python values of the largest)."""

    def __init__(self) -> None:
        self._done: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, depth: int) -> tuple[int, int]:
        if depth > _DEPTH_MAX:
            raise Inadmissible(f"it is nested deeper than {_DEPTH_MAX} levels")
        measured = self._measured(schema, depth + 1)
        if measured[1] > _VALUES_MAX:
            raise Inadmissible(f"it has more than {_VALUES_MAX} values")
        return measured

    def _measured(self, schema: Any, depth: int) -> tuple[int, int]:
        if isinstance(schema, list):
            branches = [self.of(branch, depth) for branch in schema]
            return 1 + min((size for size, _ in branches), default=0), max((values for _, values in branches), default=0)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            return self._record(schema, depth)
        if kind in ("array", "map"):
            size, values = self.of(schema["items" if kind == "array" else "values"], depth)
            size, values = (size, values) if kind == "array" else (size + 1, values + 1)
            if values > _VALUES_PER_BYTE_MAX * size:
                raise Inadmissible(f"an item of its {kind} makes {values} values from {size} bytes")
            return 1, 1
        if kind in ("enum", "fixed"):
            self._done[schema["name"]] = (schema.get("size", 1), 1)
            return self._done[schema["name"]]
        if kind in self._open:
            raise Inadmissible(f"{kind} contains itself")
        if kind in _PRIMITIVES:
            return (0 if kind == "null" else 1), 1
        if kind not in self._done:
            raise Inadmissible(f"it uses {kind!r}, which is not defined there")
        return self._done[kind]

    def _record(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        name = schema["name"]
        self._open.add(name)
        fields = [self.of(field["type"], depth) for field in schema["fields"]]
        self._open.remove(name)
        self._done[name] = sum(size for size, _ in fields), 1 + sum(values for _, values in fields)
        return self._done[name]
