"""What people and programs type: payloads of jobs, times, command lines, lines of JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Literal, NotRequired, TypedDict

import click
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.cli.times import duration, instant
from duewheel.core.errors import CallerError
from duewheel.worker.payloads import PayloadMismatch, reader
from tests.fuzz.target import Target, demand

# --- payloads ---


class Color(Enum):
    RED = "red"
    ONE = 1


@dataclass
class Node:
    name: str
    weight: float = 0.0
    children: list[Node] = field(default_factory=list)
    color: Color | None = None


class Email(TypedDict):
    to: str
    cc: NotRequired[list[str]]
    size: NotRequired[int | float | None]


ANNOTATIONS: Final[Sequence[Any]] = (
    *(Any, bytes, None, bool, int, float, str, list, dict, list[int], list[list[float]], dict[str, dict[str, int]]),
    *(int | str | None, list[int] | dict[str, Any], Literal["a", 1, None, True], Color, Node, Email, Node | Email, list[Node]),
)
_READERS: Final[Sequence[Callable[[bytes, str], Any]]] = [reader(annotation) for annotation in ANNOTATIONS]
_CONTENT_TYPES: Final = ("application/json", "application/octet-stream", "Application/JSON ; charset=utf-8", "")


def _read_payload(value: bytes) -> Any:
    """The first byte chooses the annotation, the second the content type."""
    chosen, content_type = (value[0], value[1] if value[1:2] else 0) if value else (0, 0)
    content_type = 0 if content_type >= len(_CONTENT_TYPES) else content_type
    return _READERS[chosen % len(_READERS)](value[2:], _CONTENT_TYPES[content_type])


def _payloads() -> Sequence[bytes]:
    node = b'{"name":"a","weight":1,"children":[{"name":"b","children":[]}],"color":"red","new":[1,2.5,null,true,"\xc3\xa9\\n"]}'
    email = b'{"to":"ada@example.org","cc":["x"],"size":7}'
    texts = [node, email, b"[" + node + b"," + node + b"]", b"[1,2,3]", b"[[1.5],[]]", b'{"a":{"b":1}}', b'"a"', b"1", b"1.0", b"null", b""]
    return [bytes((chosen, 0)) + text for chosen in range(len(ANNOTATIONS)) for text in texts] + [b"\1\1" + bytes(range(256))]


# --- times ---

_SPAN_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")  # as arguments of a command are


def _check_duration(value: bytes, found: Any) -> None:
    if isinstance(found, timedelta):
        exact = sum((Fraction(number) * _SPAN_US[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhd])", _text(value))), Fraction(0))
        rounded_us = found // timedelta(microseconds=1)
        demand(exact <= rounded_us < exact + 1, f"not rounded up: {_text(value)!r} is {found!r}")


def _check_instant(value: bytes, found: Any) -> None:
    if isinstance(found, datetime):
        demand(found.utcoffset() is not None, f"no time zone: {_text(value)!r}")
    demand(isinstance(found, (int, datetime, click.BadParameter)), f"neither a time nor a number: {found!r}")


_DURATIONS: Final = (b"10s", b"1h30m", b"250ms", b"1.5d", b"0.0000001s", b"999999999d", b"1d2h3m4s5ms", b"0s")
_INSTANTS: Final = (
    *(b"2030-01-31T18:00:00Z", b"2030-01-31T19:00:00.1234567+01:00", b"1790000000000", b"-62135596800000", b"20300131T180000Z"),
    *(b"2030-W05-4T18:00Z", b"9999-12-31T23:59:59.9999999Z", b"0001-01-01T00:00:00+23:59", b"2030-01-31 18:00:00,5-00:30:15.5"),
)


# --- command lines ---


def _encode(value: bytes) -> int:
    """`duewheel encode schedule`, with an argument a line. Our front door makes one line of a CallerError."""
    arguments = _text(value).split("\n")
    result = CliRunner().invoke(cli, ["encode", "schedule", *arguments])
    if result.exception is not None and not isinstance(result.exception, (SystemExit, CallerError)):
        raise result.exception
    return result.exit_code


def _check_exit(_value: bytes, code: int) -> None:
    demand(code in (0, 1, 2), f"no exit code of ours: {code}")


_LINES: Final = (
    b't\n{"to":"ada","n":[1,2.5,null]}\n--job-id\nj\n--hex',
    b"t\n--job-id\nj\n--at\n2030-01-31T18:00:00Z\n--expires-at\n2030-02-01T00:00:00+01:00\n-H\na=b\n--hex",
    b"t\n7\n--job-id\nj\n--delay\n1.5h\n--retention\n2d\n--attempts\n3\n--retry-delay\n2s\n--retry-factor\n1.5\n--retry-jitter\n0.5",
    b'charge\n"x"\n--job-id\nj\n--run-timeout\n10s\n--total-timeout\n1d\n--crash-limit\n2\n--on-conflict\nreplace\n-q\nmail\n--key',
)
_OPTIONS: Final = (
    b"--at",
    b"--delay",
    b"--retry-factor",
    b"--retry-delay",
    b"--attempts",
    b"--",
    b"--help",
    b"-H",
    b"=",
    b"nan",
    b"inf",
    b"1e999",
)

TARGETS: Final = [
    Target(
        name="payloads",
        call=_read_payload,
        legal=(PayloadMismatch,),
        seeds=_payloads,
        dialect="json",
        # Conversion takes time by the item, in the handler's own thread: a payload of a megabyte may take longer than 50 ms.
        bytes_max=65_536,
        weight=30,
    ),
    Target(
        name="durations",
        call=lambda value: duration(_text(value)),
        legal=(click.BadParameter,),
        seeds=lambda: _DURATIONS,
        check=_check_duration,
        dialect="text",
        tokens=(b"ms", b"s", b"d", b".", b"-", b"1e9", b"\xd9\xa3", b"\xc2\xb2", b"0." + b"0" * 40 + b"1s"),
        weight=5,
    ),
    Target(
        name="instants",
        call=lambda value: instant(_text(value)),
        legal=(click.BadParameter,),
        seeds=lambda: _INSTANTS,
        check=_check_instant,
        dialect="text",
        tokens=(b"Z", b"+", b"-", b"T", b":", b"W53", b".9999999", b"24:00", b"\xd9\xa3", b"0000", b"9999"),
        weight=5,
    ),
    Target(
        name="command_lines",
        call=_encode,
        seeds=lambda: _LINES,
        check=_check_exit,
        dialect="json",
        tokens=(*_OPTIONS, b"\n", b"\nj\n"),
        bytes_max=20_000,
        weight=3,
    ),
]
