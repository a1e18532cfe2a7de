"""Which slots a recurring job has, by a reading of its own: whoever checks the engine must not ask the engine's rules.

EVERY is arithmetic, CRON is what cronsim says in the line's zone, EVERY_AFTER has no slots that could be told beforehand.

    slots_between(every(10_000), due_ms=5_000, from_ms=20_000, until_ms=50_000)     25_000, 35_000, 45_000

Where clocks jump, cronsim and the engine differ on purpose in a few cases (`core.recurrence` tells them): keep such lines out of histories
that are to be judged, within a day of a jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from duewheel.core.limits import DUE_MS_MAX
from duewheel.core.model import Recurrence, RecurrenceKind
from duewheel.core.recurrence import NICKNAMES

# Of a cron line no more are looked at in one stretch, which takes 0.1 s.
CRON_SLOTS_MAX: Final = 5_000


def begin_ms(recurrence: Recurrence, due_ms: int) -> int:
    """Before which there is no slot."""
    return max(due_ms, recurrence["start_ms"])


def slots_between(recurrence: Recurrence, due_ms: int, from_ms: int, until_ms: int) -> Sequence[int]:
    """The slots from `from_ms` on and before `until_ms`, rising; none of EVERY_AFTER. Of a cron line `CRON_SLOTS_MAX` at most.

    Args:
        due_ms: of the definition.
    """
    from_ms = max(from_ms, begin_ms(recurrence, due_ms))
    until_ms = min(until_ms, recurrence["end_ms"] or DUE_MS_MAX + 1, DUE_MS_MAX + 1)
    if until_ms <= from_ms or recurrence["kind"] == RecurrenceKind.EVERY_AFTER:
        return ()
    if recurrence["kind"] == RecurrenceKind.EVERY:
        every_ms, origin_ms = recurrence["every_ms"], recurrence["start_ms"] or due_ms
        return range(from_ms + (origin_ms - from_ms) % every_ms, until_ms, every_ms)
    found = []
    before = datetime.fromtimestamp((from_ms - 1) // 1_000, ZoneInfo(recurrence["zone"]))
    line = recurrence["expression"]
    for slot in islice(CronSim(NICKNAMES.get(line, line), before), CRON_SLOTS_MAX):
        slot_ms = round(slot.timestamp()) * 1_000
        if slot_ms >= until_ms:
            break
        found.append(slot_ms)
    return found
