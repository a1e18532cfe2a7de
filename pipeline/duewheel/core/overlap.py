"""What a recurring job does about slots whose time has come, and about the end of a run.

A recurring job is never dispatched. It waits for its next slot, hands out a run for it, which is a job of its own (`core.run_ids`), and
waits for the one after. Two rules decide, one after the other: `recurrence.missed` says which slots are to be run at all, and here is
decided for which of these there is room beside the runs that are not over yet:

    SKIP      one, if none goes on
    ALLOW     as many as are allowed at once, less those that go on
    QUEUE     as SKIP, and one more, which waits (`queued_ms`) until none goes on
    REPLACE   one, in whose favour those that go on are cancelled

Where there is room for fewer than there are slots, the newest have it, and the others are left out and counted.

    look(every(60_000), anchor, pending_ms=10:00, queued_ms=0, going=[9:59], handed_out=7, now_ms=10:00, fits=100)
        SKIP      overlapped 1, and the next look is at 10:01
        QUEUE     queued 10:00, and the next look is at 10:01, or when the run of 9:59 ends

EVERY_AFTER knows its next slot only when its last run has ended: until then nobody looks (`wake_ms` 0), and `after_end` says when to.

A definition that follows another of the same job begins where that one stood (`take_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duewheel.core.limits import OVERLAP_MAX_DEFAULT
from duewheel.core.model import Overlap, Recurrence, RecurrenceKind
from duewheel.core.recurrence import Decision, is_late, missed, next_slot_ms


class Look(NamedTuple):
    """What to do, and when to look again.

    Attributes:
        fire: slots to hand out runs for, the oldest first.
        replaced: slots whose runs are to be cancelled.
        missed: how many slots were left out because they are too late.
        overlapped: how many were left out because of what goes on.
        pending_ms: the next slot that nothing was decided about; 0 where there is none. With EVERY_AFTER, while its next slot is not known,
            the last one.
        queued_ms: the slot that waits for what goes on; 0 for none.
        wake_ms: when to look again; 0: when a run ends, or never (`is_finished`).
        is_finished: no slot will ever come again.
        unfit: for how many of those that are to be run there was no room in this step; `pending_ms` is the first of them.
    """

    fire: tuple[int, ...]
    replaced: tuple[int, ...]
    missed: int
    overlapped: int
    pending_ms: int
    queued_ms: int
    wake_ms: int
    is_finished: bool
    unfit: int = 0


class Start(NamedTuple):
    """How a recurring job begins, or goes on under a new definition.

    Attributes:
        pending_ms, queued_ms, wake_ms: as in `Look`.
        handed_out: how many runs were handed out that count.
    """

    pending_ms: int
    queued_ms: int
    wake_ms: int
    handed_out: int


_OF_SLOTS: Final = ("kind", "every_ms", "expression", "zone", "start_ms", "end_ms")


def _ran_never(slot_ms: int) -> bool:
    return False


def look(
    recurrence: Recurrence,
    anchor_ms: int,
    *,
    pending_ms: int,
    queued_ms: int,
    going: Sequence[int],
    handed_out: int,
    now_ms: int,
    fits: int,
    has_run: Callable[[int], bool] = _ran_never,
) -> Look:
    """What to do at `now_ms`.

    Args:
        anchor_ms: as for `recurrence.next_slot_ms`.
        pending_ms, queued_ms: as the look before said.
        going: slots whose runs are not over, rising.
        handed_out: how many runs were handed out so far.
        fits: for how many there is room in this step, at least 1; if there are more, the next look is at once.
        has_run: whether a run of the slot is known. An older definition may have come to it, and there is never a second one.
    """
    is_after_end, runs_max = recurrence["kind"] == RecurrenceKind.EVERY_AFTER, recurrence["runs_max"]
    if pending_ms and not (going or queued_ms or is_after_end or runs_max or is_late(recurrence, pending_ms, now_ms)):
        # Most looks are this one: a slot on time, and nothing else. What follows would find the same, in twice the time.
        next_ms = next_slot_ms(recurrence, anchor_ms, pending_ms)
        if (next_ms > now_ms or not next_ms) and pending_ms <= now_ms and not has_run(pending_ms):
            return Look((pending_ms,), (), 0, 0, next_ms, 0, next_ms, not next_ms)
    if pending_ms and not (is_after_end and queued_ms):
        decision = missed(recurrence, anchor_ms, pending_ms, now_ms)
    else:
        decision = Decision((), 0, 0)
    last_ms = max(queued_ms, *decision.fire[-1:], 0)
    due = tuple(slot_ms for slot_ms in decision.fire if not has_run(slot_ms))
    overlap = recurrence["overlap"]
    room = _room(recurrence, len(going), queued_ms)
    runs_left = max(0, runs_max - handed_out - (queued_ms > 0))
    if runs_max and runs_left <= room:
        line, overlapped = due[:runs_left], 0  # beyond the last run there are no slots
    else:
        line = due[max(0, len(due) - room) :]
        overlapped = len(due) - len(line)
    if overlap == Overlap.QUEUE:
        line = (queued_ms, *line) if queued_ms else line
        fire, queued_ms = (line[:0], line[0] if line else 0) if going else (line[:1], line[1] if len(line) > 1 else 0)
    else:
        fire = line
    replaced = tuple(going) if fire and overlap == Overlap.REPLACE else ()
    if len(fire) > fits:
        return Look(fire[:fits], replaced, decision.skipped, overlapped, fire[fits], queued_ms, now_ms, False, len(fire) - fits)
    next_ms, wake_ms = decision.next_ms, decision.next_ms
    if runs_max and handed_out + len(fire) + (queued_ms > 0) >= runs_max:
        next_ms = wake_ms = 0
    elif last_ms and is_after_end:
        next_ms, wake_ms = last_ms, 0
    return Look(fire, replaced, decision.skipped, overlapped, next_ms, queued_ms, wake_ms, not (next_ms or queued_ms))


def after_end(recurrence: Recurrence, anchor_ms: int, queued_ms: int, now_ms: int) -> int:
    """When to look at a job again that waited for what went on, which is over now; 0 where no slot is left.

    With EVERY_AFTER, and no slot that waits, this is the next slot.
    """
    return now_ms if queued_ms else next_slot_ms(recurrence, anchor_ms, now_ms)


def has_same_slots(recurrence: Recurrence, other: Recurrence) -> bool:
    """Whether both have the same slots, given the same anchor, whatever they do about them."""
    return all(recurrence[field] == other[field] for field in _OF_SLOTS)


def take_over(
    recurrence: Recurrence,
    anchor_ms: int,
    before: Recurrence,
    *,
    pending_ms: int,
    queued_ms: int,
    handed_out: int,
    is_waiting_for_end: bool,
    decided_ms: int,
) -> Start:
    """Where a definition begins that goes on with the one before: each slot is decided about by one of them, and by one only.

    Args:
        before: the one before; the other arguments say where it stands.
        pending_ms: its next slot, with EVERY_AFTER; 0 where that is not known.
        is_waiting_for_end: with EVERY_AFTER, whether its next slot comes when what goes on has ended.
        decided_ms: up to when it has decided about its slots.

    Returns:
        How it begins; where that says of no slot that it waits, the one that waited is left out.
    """
    decided_ms, runs_max = max(decided_ms, queued_ms), recurrence["runs_max"]
    if queued_ms and (recurrence["overlap"] != Overlap.QUEUE or 0 < runs_max <= handed_out):
        queued_ms = 0  # it is left out
    if runs_max and handed_out + (queued_ms > 0) >= runs_max:
        return Start(0, queued_ms, 0, handed_out)
    if recurrence["kind"] == before["kind"] == RecurrenceKind.EVERY_AFTER:
        if is_waiting_for_end:
            return Start(pending_ms, queued_ms, 0, handed_out)
        if pending_ms > decided_ms and recurrence["start_ms"] <= pending_ms and not 0 < recurrence["end_ms"] <= pending_ms:
            return Start(pending_ms, queued_ms, pending_ms, handed_out)
    next_ms = next_slot_ms(recurrence, anchor_ms, decided_ms)
    return Start(next_ms, queued_ms, next_ms, handed_out)


def _room(recurrence: Recurrence, going: int, queued_ms: int) -> int:
    """For how many more slots there is room."""
    match recurrence["overlap"]:
        case Overlap.SKIP:
            return 0 if going else 1
        case Overlap.ALLOW:
            return max(0, (recurrence["overlap_max"] or OVERLAP_MAX_DEFAULT) - going)
        case Overlap.QUEUE:
            return (0 if going else 1) + 1 - (queued_ms > 0)
    return 1
