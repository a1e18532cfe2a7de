"""What an update makes of a job's definition.

What the command does not give stays as it is, also when the job was asked for, and whose it is to answer. The result is a Schedule as any
other: the same rules hold for it.
"""

from __future__ import annotations

from typing import Final

from duewheel.core.commands import check_schedule
from duewheel.core.errors import Reason
from duewheel.core.model import Change, Schedule, Work
from duewheel.core.wording import refuse, show

_JSON: Final = "application/json"


def updated(schedule: Schedule, change: Change) -> Schedule:
    """The schedule as it is from now on.

    Raises:
        RejectedJob: it would break a rule.
    """
    if change["recurrence"] is not None and schedule["recurrence"] is None:
        refuse(
            Reason.BAD_CHANGE,
            f"job {show(schedule['job_id'])} runs once, and an update cannot make it recur; schedule it anew, with on_conflict REPLACE",
        )
    work: Work = {**schedule["work"]}
    if change["payload"] is not None:
        work["payload"], work["content_type"] = change["payload"], change["content_type"] or _JSON
    if change["headers"] is not None:
        work["headers"] = change["headers"]
    if change["policy"] is not None:
        work["policy"] = change["policy"]
    result: Schedule = {**schedule, "work": work}
    if change["due_ms"] is not None:
        result["due_ms"] = change["due_ms"]
    if change["retention_ms"] is not None:
        result["retention_ms"] = change["retention_ms"]
    if change["limits"] is not None:
        result["limits"] = change["limits"] if any(change["limits"].values()) else None
    if change["recurrence"] is not None:
        result["recurrence"] = change["recurrence"]
    check_schedule(result)
    return result
