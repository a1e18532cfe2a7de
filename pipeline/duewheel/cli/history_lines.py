"""How an entry of a job's history looks: one line for people, or one JSON object with always the same keys for programs.

    12:00:00.003  dispatched         welcome-42  mail.send @default  attempt 1  token 77  +3 ms
    12:00:00.015  attempt_succeeded  welcome-42  mail.send @default  attempt 1  token 77  in 11 ms on worker-1
    12:00:00.018  succeeded          welcome-42  mail.send @default  attempt 1  token 77

Job ids, task names and messages come from outside: whatever a terminal would obey (control characters, escape sequences, marks that
turn the direction of writing) is shown escaped, so that a line stays one line and says what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from duewheel.core.history import Entry, Happening

MESSAGE_CHARS_MAX: Final = 200  # on a line for people; JSON has all of it

_STYLES: Final[Mapping[Happening, Mapping[str, Any]]] = {
    Happening.SCHEDULE: {"dim": True},
    Happening.CANCEL: {"dim": True},
    Happening.DISPATCHED: {"fg": "blue"},
    Happening.SUCCEEDED: {"fg": "green"},
    Happening.ATTEMPT_FAILED: {"fg": "yellow"},
    Happening.ATTEMPT_LOST: {"fg": "yellow"},
    Happening.ATTEMPT_INTERRUPTED: {"fg": "yellow"},
    Happening.FAILED: {"fg": "red", "bold": True},
    Happening.DEAD_LETTER: {"fg": "red", "bold": True},
    Happening.UNREADABLE: {"fg": "red", "bold": True},
    Happening.CANCELLING: {"fg": "magenta"},
    Happening.CANCELLED: {"fg": "magenta"},
}
_EVENT_WIDTH: Final = max(len(happening) for happening in Happening)


def text_line(entry: Entry) -> str:
    """The line for people, with colours; `click.echo` takes them out where nobody sees them."""
    words = [
        _clock(entry.at_ms),
        click.style(f"{entry.event:<{_EVENT_WIDTH}}", **_STYLES.get(entry.event, {})),
        click.style(printable(entry.job_id if entry.job_id is not None else "(no key)"), bold=True),
        *_details(entry),
    ]
    return "  ".join(words)


def _details(entry: Entry) -> list[str]:
    details = []
    if entry.task is not None:
        details.append(printable(f"{entry.task} @{entry.queue}"))
    if entry.event in (Happening.SCHEDULE, Happening.SCHEDULED, Happening.WAITING) and entry.due_ms is not None:
        details.append(f"due {_moment(entry.due_ms)}")
    if entry.generation is not None and entry.generation > 1:
        details.append(f"generation {entry.generation}")
    if entry.attempt is not None:
        details.append(f"attempt {entry.attempt}")
    if entry.token is not None:
        details.append(f"token {entry.token}")
    if entry.late_ms is not None:
        details.append(f"{entry.late_ms:+d} ms")
    if entry.took_ms is not None:
        details.append(f"in {entry.took_ms} ms")
    if entry.worker is not None:
        details.append(printable(f"on {entry.worker}"))
    if entry.error is not None:
        details.append(click.style(_shortened(printable(f"{entry.error}: {entry.message}")), fg="red"))
    return details


def json_line(entry: Entry) -> str:
    """One JSON object. Every key is always there; null where the event says nothing of it."""
    return json.dumps(
        {
            "time": _moment(entry.at_ms),
            "at_ms": entry.at_ms,
            "event": entry.event,
            "job_id": entry.job_id,
            "task": entry.task,
            "queue": entry.queue,
            "generation": entry.generation,
            "attempt": entry.attempt,
            "token": entry.token,
            "due_ms": entry.due_ms,
            "late_ms": entry.late_ms,
            "took_ms": entry.took_ms,
            "worker": entry.worker,
            "error": entry.error,
            "message": entry.message,
            "topic": entry.source.topic,
            "partition": entry.source.partition,
            "offset": entry.source.offset,
        },
        separators=(",", ":"),
    )


def printable(text: str) -> str:
    """`text` with everything escaped that is not plainly visible."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


def _moment(at_ms: int) -> str:
    """ISO 8601 in UTC, or the bare number where no calendar has that day: commands from outside may hold any 64 bits."""
    try:
        return datetime.fromtimestamp(at_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1_000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _clock(at_ms: int) -> str:
    return _moment(at_ms)[11:-1] if 0 <= at_ms < 253_402_300_800_000 else f"{at_ms} ms"
