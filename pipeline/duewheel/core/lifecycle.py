"""What may follow what.

A job's phase changes only by an event that this table lists. For any other `follow` raises `IllegalTransition`, nothing changes, and the
step counts it, since each may happen to a faithful system: the same outcome once more, a cancel that comes after the end. The table in
ARCHITECTURE.md is printed from this one (`python -m duewheel.core.lifecycle`).

                     RETRY, SNOOZED
             ┌─────────────────────────────┐
             ▼                             │
    ┌──► WAITING ──DUE──► DISPATCHED ──STARTED──► RUNNING ⟲ HEARTBEAT       WAITING ──PAUSE──► PAUSED ──RESUME──► WAITING
    │        │                └──────────┬───────────┘
    │        │     LOST, INTERRUPTED, OVERDUE, LEASE_EXPIRED: DISPATCHED again, with a higher token
    │        │                           │
    │        │                           ├──SUCCEEDED──► SUCCEEDED
    │        │                           ├──DISCARDED──► DISCARDED
    │        ├───────TOO_LATE────────────┼──EXPIRED────► EXPIRED
    │        ├───────EXHAUSTED───────────┴──FAILED─────► FAILED ──REDRIVE──┐
    │      CANCEL                                                          │
    │        ▼                                                             │
    │    CANCELLED ◄── CANCELLING ◄──CANCEL── (DISPATCHED, RUNNING)        │
    └──────────────────────────────────────────────────────────────────────┘

CANCELLING is a dispatched job that must not be dispatched again: what runs may succeed, and whatever else becomes of it, it is CANCELLED.
FAILED is dead: no attempt is left, and it stays known until somebody redrives it, drops it, defines it anew, or its time is over.

Four events are the owner's own second thoughts. A job may ask for an attempt when there may be none: TOO_LATE says that its time to
start is over, EXHAUSTED that the crash limit or the time for all attempts is used up, REPLACED that the job was redefined meanwhile. And a
dispatch may have nowhere to go: PARKED says that its queue cannot take it just now. A redefined job begins anew: its newest generation is
WAITING, whatever became of the one before.

A job that is a record to deliver has no attempts: it is WAITING until the transaction that puts the record on its topic: DELIVERED.

PAUSED is a job that waits, and not for its time: nobody looks at it until it is resumed, and then it is WAITING again. What runs cannot be
paused.

A recurring job is never dispatched, since each of its runs is a job of its own, which goes this way. It is WAITING until its last slot is
past: FINISHED.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from duewheel.core.errors import IllegalTransition
from duewheel.core.model import Phase, Result


class Event(StrEnum):
    """What can happen to a job. The outcomes bear the same names as in `Result`."""

    DUE = "DUE"
    CANCEL = "CANCEL"
    STARTED = Result.STARTED
    HEARTBEAT = Result.HEARTBEAT
    SUCCEEDED = Result.SUCCEEDED
    FAILED = Result.FAILED
    DISCARDED = Result.DISCARDED
    CANCELLED = Result.CANCELLED
    EXPIRED = Result.EXPIRED
    RETRY = Result.RETRY
    SNOOZED = Result.SNOOZED
    LOST = Result.LOST
    INTERRUPTED = Result.INTERRUPTED
    LEASE_EXPIRED = "LEASE_EXPIRED"  # it said that it runs, and has said nothing since
    OVERDUE = "OVERDUE"  # a dispatch without an outcome for so long that its record may be deleted soon
    TOO_LATE = "TOO_LATE"
    EXHAUSTED = "EXHAUSTED"
    REPLACED = "REPLACED"
    PARKED = "PARKED"
    REDRIVE = "REDRIVE"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    FINISHED = "FINISHED"  # of a recurring job: no slot is left
    DELIVERED = "DELIVERED"  # of a record to deliver: it is on its topic


# What happens to a dispatch, whether or not its worker has said that it started.
_HANDED_OUT: Final[dict[Event, Phase]] = {
    Event.STARTED: Phase.RUNNING,
    Event.HEARTBEAT: Phase.RUNNING,
    Event.SUCCEEDED: Phase.SUCCEEDED,
    Event.FAILED: Phase.FAILED,
    Event.DISCARDED: Phase.DISCARDED,
    Event.CANCELLED: Phase.CANCELLED,
    Event.EXPIRED: Phase.EXPIRED,
    Event.RETRY: Phase.WAITING,
    Event.SNOOZED: Phase.WAITING,
    Event.LOST: Phase.DISPATCHED,
    Event.INTERRUPTED: Phase.DISPATCHED,
    Event.OVERDUE: Phase.DISPATCHED,
    Event.TOO_LATE: Phase.EXPIRED,
    Event.EXHAUSTED: Phase.FAILED,
    Event.REPLACED: Phase.CANCELLED,
    Event.PARKED: Phase.WAITING,
    Event.CANCEL: Phase.CANCELLING,
}

TRANSITIONS: Final[dict[tuple[str, str], Phase]] = {
    (Phase.WAITING, Event.DUE): Phase.DISPATCHED,
    (Phase.WAITING, Event.CANCEL): Phase.CANCELLED,
    (Phase.WAITING, Event.TOO_LATE): Phase.EXPIRED,
    (Phase.WAITING, Event.EXHAUSTED): Phase.FAILED,
    (Phase.WAITING, Event.PARKED): Phase.WAITING,
    (Phase.WAITING, Event.FINISHED): Phase.SUCCEEDED,
    (Phase.WAITING, Event.DELIVERED): Phase.SUCCEEDED,
    (Phase.WAITING, Event.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, Event.RESUME): Phase.WAITING,
    (Phase.PAUSED, Event.CANCEL): Phase.CANCELLED,
    (Phase.PAUSED, Event.FINISHED): Phase.SUCCEEDED,
    **{(Phase.DISPATCHED, event): after for event, after in _HANDED_OUT.items()},
    **{(Phase.RUNNING, event): after for event, after in _HANDED_OUT.items()},
    (Phase.RUNNING, Event.LEASE_EXPIRED): Phase.DISPATCHED,
    (Phase.CANCELLING, Event.STARTED): Phase.CANCELLING,
    (Phase.CANCELLING, Event.HEARTBEAT): Phase.CANCELLING,
    (Phase.CANCELLING, Event.CANCEL): Phase.CANCELLING,
    (Phase.CANCELLING, Event.SUCCEEDED): Phase.SUCCEEDED,
    (Phase.CANCELLING, Event.FAILED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.DISCARDED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.CANCELLED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.EXPIRED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.RETRY): Phase.CANCELLED,
    (Phase.CANCELLING, Event.SNOOZED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.LOST): Phase.CANCELLED,
    (Phase.CANCELLING, Event.INTERRUPTED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.LEASE_EXPIRED): Phase.CANCELLED,
    (Phase.CANCELLING, Event.OVERDUE): Phase.CANCELLED,
    (Phase.FAILED, Event.REDRIVE): Phase.WAITING,
}

TERMINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.DISCARDED, Phase.EXPIRED, Phase.CANCELLED})


def follow(phase: str, event: str) -> Phase:
    """The phase that follows `phase` by `event`.

    Raises:
        IllegalTransition: the table does not list it.
    """
    after = TRANSITIONS.get((phase, event))
    if after is None:
        raise IllegalTransition(f"no job that is {phase} can meet the event {event}; core/lifecycle.py lists what can")
    return after


def table() -> str:
    """The table as Markdown, as printed in ARCHITECTURE.md."""
    rows = ["| phase | event | next phase |", "|---|---|---|"]
    rows += [f"| {phase} | {event} | {after} |" for (phase, event), after in TRANSITIONS.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
