"""Logging: events with fixed names and keys, on standard error, readable by people or by machines.

Use it from any module, with structlog and nothing else:

    log = structlog.get_logger(__name__)
    log.warning("store.rebuilt", partition=3, records=120_000)

The event's name and its keys must stand in `events.EVENTS`, or a test fails. Log transitions and sums, never single records: a line
costs about 20 µs, as much as a whole job. Levels: `debug` for what only a developer wants, `info` for what happened once and as meant
(started, assigned, restored), `warning` for what was handled but should be rare, `error` for what needs a person.

The command line calls `configure` once, before the command runs (`--log-level`, `--log-format`). On a terminal a line is coloured text;
everywhere else it is one JSON object with, beside the event's own keys:

    {"time": "2026-03-01T12:00:00.000Z", "level": "warning", "event": "store.rebuilt", "logger": "duewheel.engine.restore", "pid": 4711, …}

A program that imports `duewheel.client` or `duewheel.worker` keeps whatever structlog configuration it has itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("auto", "console", "json")


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    format: Literal["auto", "console", "json"] = "auto",
    stream: TextIO | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Sets up logging for this process.

    Args:
        level: the lowest level that is written.
        format: `auto` is `console` where `stream` is a terminal and `json` elsewhere.
        stream: where lines go; standard error by default.
        now: the wall clock, for the time on each line.
    """
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    structlog.configure(
        processors=[*_common(now), *(_console(out) if console else _json())],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: _Line(out, names[0] if names else "duewheel"),
        cache_logger_on_first_use=False,  # tests and the demo configure twice; the hot paths do not log
    )


class _Line(structlog.WriteLogger):
    """Writes whole lines under a lock, and knows which module speaks."""

    def __init__(self, file: TextIO, name: str) -> None:
        super().__init__(file)
        self.name = name


def _common(now: Callable[[], datetime]) -> list[Processor]:
    def stamp(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        time = now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"time": time, "level": method, "event": event.pop("event"), **event}

    return [structlog.contextvars.merge_contextvars, stamp]


def _json() -> list[Processor]:
    def identify(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {**event, "logger": logger.name, "pid": os.getpid()}

    def dumps(value: Any, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), **settings)

    return [identify, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=dumps)]


def _console(out: TextIO) -> list[Processor]:
    # The plain traceback, here as above: the pretty ones show local variables, and those may be somebody's payload.
    plain = structlog.dev.plain_traceback
    return [
        structlog.dev.ConsoleRenderer(
            timestamp_key="time", colors=out.isatty(), sort_keys=False, pad_event_to=32, exception_formatter=plain
        )
    ]
