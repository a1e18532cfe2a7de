"""How an entry of a job's history looks: one line for people, or one JSON object with always the same keys for programs.

    12:00:00.003  dispatched         welcome-42  mail.send @default  attempt 1  token 77  +3 ms
    12:00:00.015  attempt_succeeded  welcome-42  mail.send @default  attempt 1  token 77  in 11 ms on worker-1
    12:00:00.018  succeeded          welcome-42  mail.send @default  attempt 1  token 77

or, where it goes wrong:

    12:00:00.015  attempt_retry      welcome-42  mail.send @default  attempt 1  token 77  in 11 ms on worker-1  again in 920 ms  OSError: …
    12:00:00.018  waiting            welcome-42  mail.send @default  attempt 1  token 77  until 2026-03-01T12:00:00.938Z

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

_ASKED: Final = {"dim": True}
_TROUBLE: Final = {"fg": "yellow"}
_BAD_END: Final = {"fg": "red", "bold": True}
_STOPPED: Final = {"fg": "magenta"}

_STYLES: Final[Mapping[Happening, Mapping[str, Any]]] = {
    Happening.SCHEDULE: _ASKED,
    Happening.CANCEL: _ASKED,
    Happening.REDRIVE: _ASKED,
    Happening.DROP: _ASKED,
    Happening.ATTEMPT_HEARTBEAT: _ASKED,
    Happening.DISPATCHED: {"fg": "blue"},
    Happening.REDRIVEN: {"fg": "blue"},
    Happening.SUCCEEDED: {"fg": "green"},
    Happening.ATTEMPT_RETRY: _TROUBLE,
    Happening.ATTEMPT_FAILED: _TROUBLE,
    Happening.ATTEMPT_DISCARDED: _TROUBLE,
    Happening.ATTEMPT_EXPIRED: _TROUBLE,
    Happening.ATTEMPT_LOST: _TROUBLE,
    Happening.ATTEMPT_INTERRUPTED: _TROUBLE,
    Happening.FAILED: _BAD_END,
    Happening.DEAD: _BAD_END,
    Happening.DEAD_LETTER: _BAD_END,
    Happening.UNREADABLE: _BAD_END,
    Happening.EXPIRED: _BAD_END,
    Happening.DISCARDED: _STOPPED,
    Happening.CANCELLING: _STOPPED,
    Happening.STOP: _STOPPED,
    Happening.CANCELLED: _STOPPED,
    Happening.DROPPED: _STOPPED,
}
_PHRASES: Final = {"attempt": "attempt {}", "crashes": "crashes {}", "token": "token {}", "late_ms": "{:+d} ms"}
_GOING_ON: Final = (Happening.ATTEMPT_STARTED, Happening.ATTEMPT_HEARTBEAT)
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
    return [
        *_place(entry),
        *(phrase.format(value) for name, phrase in _PHRASES.items() if (value := getattr(entry, name)) is not None),
        *_course(entry),
    ]


def _place(entry: Entry) -> list[str]:
    """Which work it is, and when its time is."""
    details = []
    if entry.queue is not None:
        details.append(printable(f"@{entry.queue}" if entry.task is None else f"{entry.task} @{entry.queue}"))
    if entry.wake_ms is not None:
        details.append(f"until {moment(entry.wake_ms)}")
    elif entry.event in (Happening.SCHEDULE, Happening.SCHEDULED, Happening.WAITING) and entry.due_ms is not None:
        details.append(f"due {moment(entry.due_ms)}")
    if entry.generation is not None and entry.generation > 1:
        details.append(f"generation {entry.generation}")
    return details


def _course(entry: Entry) -> list[str]:
    """How an attempt went, and what follows."""
    details = []
    if entry.took_ms is not None:
        details.append(f"{'for' if entry.event in _GOING_ON else 'in'} {entry.took_ms} ms")
    if entry.worker is not None:
        details.append(printable(f"on {entry.worker}"))
    if entry.wait_ms is not None:
        details.append(f"again in {entry.wait_ms} ms")
    if entry.lease_ms is not None:
        details.append(f"lease {entry.lease_ms} ms")
    if entry.output is not None:
        details.append(shortened(printable(entry.output)))
    if entry.reason is not None:
        details.append(click.style(printable(entry.reason), fg="red"))
    if entry.error is not None:
        details.append(click.style(shortened(printable(f"{entry.error}: {entry.message}")), fg="red"))
    return details


def json_line(entry: Entry) -> str:
    """One JSON object. Every key is always there; null where the event says nothing of it."""
    return json.dumps(
        {
            "time": moment(entry.at_ms),
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
            "wait_ms": entry.wait_ms,
            "wake_ms": entry.wake_ms,
            "lease_ms": entry.lease_ms,
            "crashes": entry.crashes,
            "worker": entry.worker,
            "reason": entry.reason,
            "error": entry.error,
            "message": entry.message,
            "output": entry.output,
            "topic": entry.source.topic,
            "partition": entry.source.partition,
            "offset": entry.source.offset,
        },
        separators=(",", ":"),
    )


def printable(text: str) -> str:
    """`text` with everything escaped that is not plainly visible."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """`text`, or as much of it as fits on a line for people."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def moment(at_ms: int) -> str:
    """ISO 8601 in UTC, or the bare number where no calendar has that day: commands from outside may hold any 64 bits."""
    try:
        return datetime.fromtimestamp(at_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1_000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _clock(at_ms: int) -> str:
    return moment(at_ms)[11:-1] if 0 <= at_ms < 253_402_300_800_000 else f"{at_ms} ms"
