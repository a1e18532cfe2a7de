"""The words of a refusal: what was given, what is allowed, what to do. Shared by the rules for commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NoReturn

from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import DUE_MS_MAX, DUE_MS_MIN


def check_number(reason: Reason, name: str, number: object, most: int, meaning: str) -> None:
    """Refuses what is no int from 0 to `most`."""
    if type(number) is not int:
        refuse(reason, f"{name} {show(number)} is of type {type(number).__name__}; give an int")
    if not 0 <= number <= most:
        refuse(reason, f"{name} {show(number)} is outside 0 to {most}; {meaning}")


def utf8_bytes(text: str, thing: str, reason: Reason) -> int:
    """How many bytes it has; text that UTF-8 cannot say is refused."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        refuse(reason, f"the {thing} cannot be written in UTF-8: a lone surrogate at {error.start}; leave it out")


def refuse(reason: Reason, message: str) -> NoReturn:
    """Raises `RejectedJob`."""
    raise RejectedJob(reason, message)


def show(value: object) -> str:
    """The value, cut to what a message can hold."""
    if isinstance(value, (str, bytes)):
        value = value[:101]
    elif isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def instant(ms: int) -> str:
    """The time as people read it."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="seconds")
    except OverflowError:
        return "beyond any calendar"


def remedy(due_ms: int) -> str:
    """Guesses the unit that was meant."""
    for unit, to_ms in (("seconds", due_ms * 1_000), ("microseconds", due_ms // 1_000), ("nanoseconds", due_ms // 1_000_000)):
        if DUE_MS_MIN <= to_ms <= DUE_MS_MAX:
            return f"it looks like {unit}: in milliseconds it is {to_ms}"
    return "give milliseconds since the epoch, UTC"
