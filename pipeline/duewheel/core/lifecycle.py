"""What may follow what.

A job's phase changes only by an event that this table lists. Any other changes nothing and is counted, since each may happen to a
faithful system: the same outcome once more, a cancel that comes after the end. The table in ARCHITECTURE.md is printed from this one
(`python -m duewheel.core.lifecycle`).

    WAITING ──DUE──► DISPATCHED ──SUCCEEDED──► SUCCEEDED
       │                │  ▲  │
     CANCEL           LOST,│  └──FAILED──────► FAILED
       ▼           INTERRUPTED
    CANCELLED                 (a new dispatch with a higher token)

CANCELLING is a dispatched job that must not be dispatched again: what runs may finish, what is lost stays lost. An attempt of a
FAILED run is final for now; retries will lead from DISPATCHED back to WAITING.

Where the table says DISPATCHED, a new dispatch is to go out, and two things may stand against it. If the job was redefined meanwhile,
this generation is CANCELLED. If its queue has no topic any more, the job is WAITING until there is one. A redefined job begins anew:
its newest generation is WAITING, whatever became of the one before.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duewheel.core.model import Phase, Result


class Event(StrEnum):
    """What can happen to a job. The outcomes bear the same names as in `Result`."""

    DUE = "DUE"
    CANCEL = "CANCEL"
    SUCCEEDED = Result.SUCCEEDED
    FAILED = Result.FAILED
    LOST = Result.LOST
    INTERRUPTED = Result.INTERRUPTED
    OVERDUE = "OVERDUE"  # a dispatch without an outcome for so long that its record may be deleted soon


TRANSITIONS: Final[dict[tuple[str, str], Phase]] = {
    (Phase.WAITING, Event.DUE): Phase.DISPATCHED,
    (Phase.WAITING, Event.CANCEL): Phase.CANCELLED,
    (Phase.DISPATCHED, Event.SUCCEEDED): Phase.SUCCEEDED,
    (Phase.DISPATCHED, Event.FAILED): Phase.FAILED,
    (Phase.DISPATCHED, Event.LOST): Phase.DISPATCHED,
    (Phase.DISPATCHED, Event.INTERRUPTED): Phase.DISPATCHED,
    (Phase.DISPATCHED, Event.OVERDUE): Phase.DISPATCHED,
    (Phase.DISPATCHED, Event.CANCEL): Phase.CANCELLING,
    (Phase.CANCELLING, Event.SUCCEEDED): Phase.SUCCEEDED,
    (Phase.CANCELLING, Event.FAILED): Phase.FAILED,
    (Phase.CANCELLING, Event.LOST): Phase.CANCELLED,
    (Phase.CANCELLING, Event.INTERRUPTED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.OVERDUE): Phase.CANCELLED,
    (Phase.CANCELLING, Event.CANCEL): Phase.CANCELLING,
}

TERMINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})


def table() -> str:
    """The table as Markdown, as printed in ARCHITECTURE.md."""
    rows = ["| phase | event | next phase |", "|---|---|---|"]
    rows += [f"| {phase} | {event} | {after} |" for (phase, event), after in TRANSITIONS.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
