"""Times and durations as people type them: `2030-01-01T00:00:00Z`, `1h30m`.

Both keep every digit that was typed. Rounding is left to the rules, which round up; a parser that dropped the seventh digit of a
second would make a job early.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Final

import click

_UNITS_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART: Final = re.compile(r"(\d{1,40}(?:\.\d{1,40})?)(ms|[smhd])")
_FRACTION: Final = re.compile(r"([.,]\d{6})(\d+)")


def duration(text: str) -> timedelta:
    """`10s`, `5m`, `1h30m`, `250ms`, `1.5d`; rounded up to microseconds."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.BadParameter(f"{text!r} is no duration; write a number and a unit (ms, s, m, h, d), as in 10s, 5m or 1h30m")
    microseconds = sum((Fraction(number) * _UNITS_US[unit] for number, unit in parts), Fraction(0))
    try:
        return timedelta(microseconds=ceil(microseconds))
    except OverflowError:
        raise click.BadParameter(f"{text!r} is longer than {timedelta.max.days} days") from None


def instant(text: str) -> datetime | int:
    """ISO 8601 with a time zone as a datetime; digits alone are milliseconds since the epoch."""
    if re.fullmatch(r"-?\d{9,20}", text):  # eight digits are a date in ISO 8601
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write it as 2030-01-31T18:00:00Z or 2030-01-31T19:00:00+01:00") from None
    if time.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone; end it with Z for UTC, or with an offset such as +01:00")
    # fromisoformat drops what lies beyond microseconds.
    dropped = _FRACTION.search(text)
    try:
        return time + timedelta(microseconds=1) if dropped and dropped[2].strip("0") else time
    except OverflowError:
        raise click.BadParameter(f"{text!r} is the end of all years; write an earlier time") from None
