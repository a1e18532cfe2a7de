"""Schedules that should run, compared with those that do: what `duewheel schedules` shows and does.

    in the code   on the cluster                           what to do
    yes           unknown                                  CREATE
    yes           as declared, and goes on                 nothing
    yes           as declared, had its last run            nothing: OVER
    yes           as declared, and cancelled               REVIVE: define it anew
    yes           otherwise                                CHANGE: define it anew
    no            goes on                                  PRUNE: cancel it, where that is asked for

All of this is idempotent, and any number of deployers may do it at once. Who creates a schedule ignores one that is there already; who
defines one anew sends it with the `due_ms` of the one that is there, so that it goes on where that stands, and no slot is lost or doubled
(`core.overlap`). Of two that deploy different code, the later one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from duewheel.client.commands import Job, schedule_command
from duewheel.core.errors import RejectedJob
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Phase, Schedule

# A Monday, at midnight: so that intervals fall on the hour, on midnight, on Mondays, and do not depend on when somebody deployed.
ORIGIN: Final = datetime(2018, 1, 1, tzinfo=UTC)

# Fields of a command that say when and how it was sent, and not what is wanted.
_OF_SENDING: Final = ("created_ms", "due_ms", "on_conflict")


class Action(StrEnum):
    """What becomes of a schedule."""

    CREATE = "create"
    CHANGE = "change"
    REVIVE = "revive"
    PRUNE = "prune"
    SAME = "same"
    OVER = "over"


class Running(NamedTuple):
    """A schedule as the cluster has it.

    Attributes:
        definition: the command that made it.
        phase: WAITING while it goes on.
        next_ms: its next slot, in milliseconds since the epoch; 0 where none is known.
        handed_out: how many runs it has handed out.
    """

    definition: Schedule
    phase: Phase
    next_ms: int
    handed_out: int

    @property
    def goes_on(self) -> bool:
        return self.phase not in TERMINAL


class Change(NamedTuple):
    """What to do about one schedule.

    Attributes:
        job: to be scheduled; None where nothing is.
        differences: (field, what it is, what it should be), as text.
    """

    job_id: str
    action: Action
    job: Job | None
    differences: tuple[tuple[str, str, str], ...] = ()


def wanted_job(job_id: str, task: str, options: Mapping[str, Any]) -> Job:
    """The job that a declaration asks for."""
    job = Job(task, job_id=job_id, **options)
    return job if job.every is None or job.start is not None else job._replace(start=ORIGIN)


def plan(jobs: Iterable[Job], running: Mapping[str, Running], now_ms: int) -> list[Change]:
    """What to do so that these jobs run, and others do not, in the order of their ids.

    Args:
        jobs: as `wanted_job` makes them.
        running: by job id: all of the app's.

    Raises:
        RejectedJob: a job breaks a rule.
    """
    wanted = {str(job.job_id): job for job in jobs}
    changes = [_compare(job_id, job, running.get(job_id), now_ms) for job_id, job in wanted.items()]
    changes += [Change(job_id, Action.PRUNE, None) for job_id, was in running.items() if was.goes_on and job_id not in wanted]
    return sorted(changes, key=lambda change: change.job_id)


def _compare(job_id: str, job: Job, was: Running | None, now_ms: int) -> Change:
    try:
        command = schedule_command(job, now_ms, _no_id)
    except RejectedJob as error:
        raise RejectedJob(error.reason, f"schedule {job_id}: {error}") from error
    if was is None:
        return Change(job_id, Action.CREATE, job)
    differences = tuple(_differences(was.definition, command))
    anew = job._replace(on_conflict="replace", at=was.definition["due_ms"])
    if differences:
        return Change(job_id, Action.CHANGE, anew, differences)
    if was.phase == Phase.CANCELLED:
        return Change(job_id, Action.REVIVE, anew)
    return Change(job_id, Action.OVER if was.phase == Phase.SUCCEEDED else Action.SAME, None)


def _no_id(_now_ms: int) -> str:
    raise AssertionError("a declared schedule has an id")


def _differences(was: Schedule, wanted: Schedule) -> Iterable[tuple[str, str, str]]:
    before, after = dict(_leaves("", was)), dict(_leaves("", wanted))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, _said(before.get(name)), _said(after.get(name))


def _leaves(name: str, value: object) -> Iterable[tuple[str, object]]:
    """Everything that a command says, under names as `recurrence.every_ms`; of the work without `work.`."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        if name or key not in _OF_SENDING:
            yield from _leaves(f"{name}.{key}" if name and name != "work" else key, inner)


def _said(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)
