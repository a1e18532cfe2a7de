"""Recurrences to test with."""

from __future__ import annotations

from typing import Any, Final, cast

from duewheel.core.model import Recurrence

PLAIN: Final[Recurrence] = {
    "kind": "EVERY",
    "every_ms": 0,
    "expression": "",
    "zone": "UTC",
    "start_ms": 0,
    "end_ms": 0,
    "runs_max": 0,
    "jitter_ms": 0,
    "misfire": "ONCE",
    "misfire_max": 0,
    "grace_ms": 0,
    "overlap": "SKIP",
    "overlap_max": 0,
}


def cron(expression: str, zone: str = "UTC", **fields: Any) -> Recurrence:
    return cast(Recurrence, PLAIN | {"kind": "CRON", "expression": expression, "zone": zone} | fields)


def every(every_ms: int, **fields: Any) -> Recurrence:
    return cast(Recurrence, PLAIN | {"every_ms": every_ms} | fields)


def every_after(every_ms: int, **fields: Any) -> Recurrence:
    return cast(Recurrence, PLAIN | {"kind": "EVERY_AFTER", "every_ms": every_ms} | fields)
