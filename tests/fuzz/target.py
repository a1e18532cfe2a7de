"""What is fuzzed: a function that takes bytes from outside, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

Dialect: TypeAlias = Literal["binary", "json", "text"]


class Disagreement(Exception):
    """Two ways that must say the same do not."""


def _fine(_value: bytes, _found: Any) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function under attack.

    Attributes:
        name: what it is called on the command line, and its folder in the corpus.
        call: takes an input. It may return, or raise one of `legal`; it may do nothing else, and must do that within the limits.
        seeds: good inputs, which mutants descend from. Asked for once, when the target is first needed.
        legal: the errors that are declared.
        check: looks at what came out (a result, or a legal error), without a limit of time; raises Disagreement.
        breed: makes a bad input by itself, where that takes more than cutting bytes.
        tokens: what to sprinkle over inputs.
        dialect: which mutations make sense.
        bytes_max: how large an input may become.
        weight: its share of all inputs.
    """

    name: str
    call: Callable[[bytes], Any]
    seeds: Callable[[], Sequence[bytes]]
    legal: tuple[type[Exception], ...] = ()
    check: Callable[[bytes, Any], None] = _fine
    breed: Callable[[Random], bytes] | None = None
    tokens: tuple[bytes, ...] = ()
    dialect: Dialect = "binary"
    bytes_max: int = 4_096
    weight: int = 10


def agree(what: str, one: object, other: object) -> None:
    """Raises Disagreement unless both are equal."""
    if one != other:
        raise Disagreement(f"{what}: {_short(one)} is not {_short(other)}")


def demand(holds: bool, what: str) -> None:
    """Raises Disagreement unless it holds."""
    if not holds:
        raise Disagreement(what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
