"""Cron lines where clocks jump: every zone there is, the next ten years, against a walk through all minutes around each jump.

The walk knows only what clocks show at each minute, from the zone's own file. A line by real time matches the minutes whose clock time it
names. A line of fixed times has one slot for each clock time: the first minute that shows it, or where none does the first after the jump.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

import pytest

from duewheel.core.recurrence import next_slot_ms, slots
from tests.recurring import cron

BEGIN_S: Final = 1_790_000_000 // 86_400 * 86_400  # in September of 2026
END_S: Final = BEGIN_S + 10 * 365 * 86_400
STEP_S: Final = 6 * 86_400
# On each side of a jump.
AROUND_MINUTES: Final = 270

# What each line names, as minutes of the day; written by hand, so that no cron library has a say.
BY_REAL_TIME: Final = {
    "*/20 * * * *": {60 * hour + minute for hour in range(24) for minute in (0, 20, 40)},
    "*/30 0-3 * * *": {60 * hour + minute for hour in range(4) for minute in (0, 30)},
    "7 * * * *": {60 * hour + 7 for hour in range(24)},
    "*/10 2 * * *": {120 + minute for minute in range(0, 60, 10)},
}
FIXED: Final = {
    "30 2 * * *": {150},
    "0,15 0,1,3 * * *": {60 * hour + minute for hour in (0, 1, 3) for minute in (0, 15)},
    "1-59/29 2-3 * * *": {60 * hour + minute for hour in (2, 3) for minute in (1, 30, 59)},
    "0 0 4 * * *": {240},
}


@cache
def zone(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, name)


def wall_s(name: str, at_s: int) -> int:
    """What clocks show, as seconds since they showed midnight of 1970."""
    offset = datetime.fromtimestamp(at_s, zone(name)).utcoffset()
    assert offset is not None
    return at_s + int(offset.total_seconds())


def jumps(name: str) -> Iterator[int]:
    """The first instants after each jump."""
    for begin_s in range(BEGIN_S, END_S, STEP_S):
        low_s, high_s = begin_s, begin_s + STEP_S
        before_s = wall_s(name, low_s) - low_s
        if wall_s(name, high_s) - high_s == before_s:
            continue
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            low_s, high_s = (middle_s, high_s) if wall_s(name, middle_s) - middle_s == before_s else (low_s, middle_s)
        yield high_s


def fixed_slots(shown: list[tuple[int, int]], minutes: set[int]) -> set[int]:
    first: dict[int, int] = {}
    for at_s, wall in shown:
        first.setdefault(wall, at_s)
    found = {at_s for wall, at_s in first.items() if wall // 60 % 1_440 in minutes}
    for (_, wall), (at_s, later) in pairwise(shown):
        if any(skipped // 60 % 1_440 in minutes for skipped in range(wall + 60, later, 60)):
            found.add(at_s)
    return found


NAMES: Final = sorted(available_timezones() & set(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()))


def test_there_are_zones_enough() -> None:
    assert len(NAMES) > 590
    assert sum(1 for _ in jumps("Europe/Berlin")) == sum(1 for _ in jumps("Australia/Lord_Howe")) == 20


@pytest.mark.parametrize("part", range(8))
def test_slots_around_every_jump_of_every_zone(part: int) -> None:
    for name in NAMES[part::8]:
        for jump_s in jumps(name):
            begin_s = jump_s - 60 * AROUND_MINUTES
            end_s = jump_s + 60 * AROUND_MINUTES
            shown = [(at_s, wall_s(name, at_s)) for at_s in range(begin_s, end_s, 60)]
            for line, minutes in (*BY_REAL_TIME.items(), *FIXED.items()):
                if line in FIXED:
                    expected = sorted(fixed_slots(shown, minutes))
                else:
                    expected = [at_s for at_s, wall in shown if wall // 60 % 1_440 in minutes]
                recurrence = cron(line, name)
                # Minutes that were shown before the walk began have their slots there.
                found = list(takewhile(lambda slot_ms: slot_ms < end_s * 1_000, slots(recurrence, 0, begin_s * 1_000 - 1)))  # noqa: B023
                assert found == [at_s * 1_000 for at_s in expected], (name, jump_s, line)


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo", "Antarctica/Troll"])
def test_the_next_slot_is_the_same_from_wherever_it_is_asked_for(name: str) -> None:
    for jump_s in list(jumps(name))[:2]:
        begin_ms, end_ms = (jump_s - 5 * 3_600) * 1_000, (jump_s + 5 * 3_600) * 1_000
        for line in (*BY_REAL_TIME, *FIXED, "0-59 0-3 * * *", "15/30 30 1,2 * * *"):
            recurrence = cron(line, name)
            all_slots = list(takewhile(lambda slot_ms: slot_ms < end_ms + 2 * 86_400_000, slots(recurrence, 0, begin_ms)))  # noqa: B023
            assert all_slots == sorted(set(all_slots))
            for after_ms in range(begin_ms, end_ms, 7 * 60_000 + 1):
                expected = next(slot_ms for slot_ms in all_slots if slot_ms > after_ms)
                assert next_slot_ms(recurrence, 0, after_ms) == expected, (line, after_ms)
