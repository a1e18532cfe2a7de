"""Which jobs the demo schedules. A pure function of their number, so that two runs do the same.

A quarter is for now. The rest is spread evenly over SPREAD_MS. Half-way through it processes are killed. Two sorts of jobs are
cancelled, none of them close to its time: EARLY at the start, and LATE just after the kills, when nobody owns some of the partitions,
so that a successor has to read the cancel before it may fire.

    0 s              5 s                    10 s
    |--now           x kills                |
    |  · · · · · · · · · · · · · · · · · · · · |       one job every few milliseconds
       cancel EARLY    cancel LATE
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

SPREAD_MS: Final = 10_000
SPREAD_FROM_MS: Final = 500
KILL_MS: Final = SPREAD_MS // 2

# How long before its time a job is cancelled at least, with the time that hundreds of cancels take to be acknowledged.
CANCEL_AHEAD_MS: Final = 2_500

# A twenty-fifth of the spread jobs work longer, so that a worker is killed in the middle of some.
WORK_MS: Final = 5
WORK_LONG_MS: Final = 400


class Cancelling(Enum):
    NEVER = "never"
    EARLY = "early"
    LATE = "late"


class PlannedJob(NamedTuple):
    """A job of the demo.

    Attributes:
        job_id: its id.
        after_ms: when it is due, counted from the start; None is now.
        work_ms: how long its handler works.
        cancelling: when it is cancelled.
    """

    job_id: str
    after_ms: int | None
    work_ms: int
    cancelling: Cancelling


def plan(jobs: int) -> list[PlannedJob]:
    """The demo's jobs, `jobs` in number."""
    immediate = jobs // 4
    planned = [PlannedJob(f"now-{index:05}", None, WORK_MS, Cancelling.NEVER) for index in range(immediate)]
    spread = jobs - immediate
    for index in range(spread):
        after_ms = SPREAD_FROM_MS + index * (SPREAD_MS - SPREAD_FROM_MS) // spread
        work_ms = WORK_LONG_MS if index % 25 == 3 else WORK_MS
        planned.append(PlannedJob(f"later-{index:05}", after_ms, work_ms, _cancelling(index, after_ms)))
    return planned


def _cancelling(index: int, after_ms: int) -> Cancelling:
    if index % 10 == 0 and after_ms >= CANCEL_AHEAD_MS:
        return Cancelling.EARLY
    if index % 10 == 5 and after_ms >= KILL_MS + CANCEL_AHEAD_MS:
        return Cancelling.LATE
    return Cancelling.NEVER
