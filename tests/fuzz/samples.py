"""Good records to begin with, and bad ones that are bad as records, not as bytes.

The good ones are the golden ones, what earlier releases wrote, and what the strategies of `tests/records.py` make from a fixed seed.
`Breeder` takes one of them, makes its parts short, puts extremes into some or very many items into one, and writes it with a slip of the
pen here and there (`SloppyWriter`): so it reaches what cutting bytes does not, such as a count of 400,000 with 400,000 items behind it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from duewheel.adapters.avro.schemas import CURRENT
from duewheel.adapters.avro.strict import encode
from tests import malformed
from tests.records import RECORDS, TYPES, SloppyWriter

_GOLDEN: Final = Path(__file__).parents[1] / "golden"
_SAMPLES: Final = 40  # of each kind
_SEED: Final = 7

_INTEGERS: Final = (*(sign * 2**power + step for power in (0, 7, 31, 41, 63) for sign in (1, -1) for step in (-1, 0)), 1_790_000_000_000)
_DOUBLES: Final = (nan, inf, -inf, -0.0, 0.0, 1.0, -1.0, 1e308, 5e-324)
_TEXTS: Final = ("", "\0", "a" * 300, "é", "\U0010ffff", "\u202e", "\x1b[2J", "a/b", "\n", "a\r\nb", "'", "{0}", "%s", "x" * 70_000)
_ENUMS: Final = frozenset({"action", "reach", "on_conflict", "phase", "result", "how", "kind", "misfire", "overlap"})

Place: TypeAlias = tuple[Any, Any]
"""A list or dict, and the index or name of one of its parts."""


def drawn(strategy: SearchStrategy[Any], count: int = _SAMPLES) -> list[Any]:
    """What a strategy makes, the same each time."""
    found: list[Any] = []

    @seed(_SEED)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


@cache
def records(kind: str) -> Sequence[Any]:
    """Good records of a kind."""
    return drawn(RECORDS[kind])


@cache
def _golden() -> Sequence[tuple[str, bytes]]:
    pages = [_GOLDEN / "records.json", *sorted((_GOLDEN / "released").glob("*.json"))]
    cases = [case for page in pages for case in json.loads(page.read_text(encoding="utf-8"))]
    return [(case["kind"], bytes.fromhex(case["encoded"])) for case in cases]


@cache
def encoded(*kinds: str) -> Sequence[bytes]:
    """Good values of these kinds, and a few of all others."""
    own = [encode(kind, record) for kind in kinds for record in records(kind)]
    golden = [value for kind, value in _golden() if kind in kinds]
    others = [value for kind, value in _golden() if kind not in kinds][::3]
    return [*own, *golden * 3, *others]


@cache
def malformed_values() -> Sequence[bytes]:
    """What the unit tests know to be wrong with commands, but for what is wrong by its size."""
    return [each.value for each in malformed.CORPUS if each.value is not None and len(each.value) < 2_000]


class Breeder:
    """Breeds bad records of some kinds. Calling it gives the next one's value.

    Args:
        bytes_max: how many bytes a list that is made long may take.
    """

    def __init__(self, kinds: Sequence[str], bytes_max: int) -> None:
        self._kinds = kinds
        self._bytes_max = bytes_max

    def __call__(self, pick: Random) -> bytes:
        kind = pick.choice(self._kinds)
        record = copy.deepcopy(pick.choice(records(kind)))
        if pick.random() < 0.3:
            for place in reversed(list(_places(record))):  # what is inside first, as lists may be emptied
                _put_small(pick, *place)
        places = list(_places(record))
        for _ in range(pick.randrange(3)):
            _put_extreme(pick, *pick.choice(places))
        if pick.random() < 0.1:
            self._lengthen(pick, places)
            with suppress(Exception):  # whatever fastavro says to extremes
                return encode(kind, record)  # a hundred times as fast as the sloppy writer
        odds = pick.choice((0, 0, 60, 20))
        slip: Callable[[str], bool] = (lambda _: pick.randrange(odds) == 0) if odds else (lambda _: False)
        return CURRENT[kind].header + SloppyWriter(slip).body(TYPES[kind], record)

    def _lengthen(self, pick: Random, places: Sequence[Place]) -> None:
        """Many items where there was one, or a few: up to as many as a value can hold, but mostly fewer."""
        long = [place for place in places if place[0][place[1]].__class__ in (list, dict, str, bytes) and place[0][place[1]]]
        parts = [place for place in long if not _is_record(place[0][place[1]]) and place[1] not in _ENUMS]
        if not parts:
            return
        holder, name = pick.choice(parts)
        part = holder[name]
        count = int(self._bytes_max ** pick.random())
        if part.__class__ is dict:
            holder[name] = {format(number, "x"): "" for number in range(count // 6)}
        elif part.__class__ is list:
            smallest = min((json.dumps(item, default=str), index) for index, item in enumerate(part))[1]
            holder[name] = [_emptied(part[smallest])] * (count // 20 if part[0].__class__ is dict else count)
        else:
            holder[name] = part * (count // len(part) // 4)


def _places(part: Any) -> Iterator[Place]:
    if part.__class__ is dict:
        for name, inner in part.items():
            yield part, name
            yield from _places(inner)
    elif part.__class__ is list:
        for index, inner in enumerate(part):
            yield part, index
            yield from _places(inner)


def _is_record(part: Any) -> bool:
    return part.__class__ is dict and any(frozenset(part) == frozenset(_fields(kind)) for kind in TYPES)


@cache
def _fields(kind: str) -> tuple[str, ...]:
    return tuple(field["name"] for field in TYPES[kind].get("fields", ()))


def _emptied(item: Any) -> Any:
    """An item that takes as few bytes as it can."""
    if item.__class__ is dict:
        return {name: _emptied(inner) for name, inner in item.items()}
    if item.__class__ in (bytes, type(None)):
        return None
    return item.__class__()


def _put_small(pick: Random, holder: Any, name: Any) -> None:
    """Often the shortest there is. Where all parts of a record are short, one is most easily taken for another."""
    part = holder[name]
    if name in _ENUMS or pick.random() < 0.2:
        return
    if part.__class__ is int:
        holder[name] = pick.choice((0, 0, 1, 63, 64, 8_191, 8_192, 1_790_000_000_000))
    elif part.__class__ is str:
        holder[name] = pick.choice(("", "", "a", "application/json"))
    elif part.__class__ is bytes:
        holder[name] = pick.choice((b"", b"", b"1"))
    elif part.__class__ in (list, dict) and not _is_record(part):
        part.clear()


def _put_extreme(pick: Random, holder: Any, name: Any) -> None:
    part = holder[name]
    if part.__class__ is bool:
        holder[name] = not part
    elif part.__class__ is int:
        holder[name] = pick.choice(_INTEGERS)
    elif part.__class__ is float:
        holder[name] = pick.choice(_DOUBLES)
    elif part.__class__ is str and name not in _ENUMS:
        holder[name] = pick.choice(_TEXTS)
    elif part.__class__ is bytes:
        holder[name] = pick.choice((b"", b"\0", b"\xff" * 70, bytes(70_000)))
