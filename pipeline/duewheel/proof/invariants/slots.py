"""Every slot of a recurring job is run once, or told as left out.

A recurring job's states say how far it has decided (`slot_ms`: the first slot that is open), and its definitions from when on each of them
decides. Between the two lie the slots that are owed:

    definition 1   |--------owed--------|                     created_ms of the next one
    definition 2                        |------owed------|    its last state: the first slot that is open
    slots            x    x    x    x     o    o    o    o
    runs             x    x         x     o    o         o    for two slots there is none, so two must have been told as left out

Slots are read from the definitions by `proof.slots`, not by the engine's own rules. Where it cannot be told who had to decide about a slot,
as with a definition that was replaced in the transaction that would have written it, the slot is owed by nobody.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from typing import Final, NamedTuple

from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import DUE_MS_MAX, OVERLAP_MAX_DEFAULT, SLOTS_COUNTED_MAX, SLOTS_ON_TIME_MAX
from duewheel.core.limits import GRACE_MS_DEFAULT as GRACE_MS
from duewheel.core.model import Misfire, Overlap, Phase, Recurrence, RecurrenceKind
from duewheel.core.run_ids import parse
from duewheel.proof.history import Defined, StateWritten
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger, Run, Story
from duewheel.proof.slots import begin_ms, slots_between

_NEVER_MS: Final = DUE_MS_MAX + 1
_OF_SLOTS: Final = ("kind", "every_ms", "expression", "zone", "start_ms", "end_ms")
_MANY: Final = 2**63
_LOOKED_AT_MAX: Final = 10_000
_SHOWN_MAX: Final = 5


class Owed(NamedTuple):
    """What one definition owes.

    Attributes:
        slots: that it certainly had to decide about, rising.
        open: how many more it may have decided about, and told of.
        dropped: how many of `slots` may be gone untold: one that waited its turn when the job was cancelled, or waits still.
    """

    slots: Sequence[int]
    open: int = 0
    dropped: int = 0


class EverySlotOnce(Invariant):
    """Every slot of a recurring job, from its definition to its end, has a run or was told as left out; and none has two.

    A slot may have a second run only where the first was forgotten and the job defined anew since. A job that is over hands out no run, and
    is over only when it was cancelled or no slot is left. And none is left out but because it came too late, or others went on.
    """

    title = "slot lost or run twice"

    def check(self, ledger: Ledger) -> list[Violation]:
        runs: defaultdict[str, dict[int, Story]] = defaultdict(dict)
        for job_id, story in ledger.stories.items():
            run = parse(job_id)
            if run is not None and story.defined:
                runs[run.job_id][run.slot_ms] = story
        found: list[Violation] = []
        for story in ledger.stories.values():
            if any(record.recurrence is not None for record in story.defined):
                of_job = runs.get(story.job_id, {})
                found += self._out_of_turn(story, of_job)
                lives = [list(life) for _, life in groupby(story.runs, key=lambda run: run.life)]
                for life, following in pairwise((*lives, [])):
                    end = min((record.offset for run in following for record in run.definitions), default=_MANY)
                    found += self._life(story, life, end, {slot_ms: run for slot_ms, run in of_job.items() if run.defined[0].offset < end})
        return found

    # --- each slot once ---

    def _out_of_turn(self, story: Story, runs: Mapping[int, Story]) -> Iterator[Violation]:
        """Runs that there may not be: second ones, and those of a job that is over."""
        log: list[Defined | StateWritten] = [*story.defined, *(s for s in story.states if s.phase in TERMINAL)]
        log.sort(key=lambda record: record.offset)
        offsets = [record.offset for record in log]
        anew = sorted(record.offset for record in story.defined)
        for slot_ms, run in runs.items():
            records = sorted(run.defined, key=lambda record: record.offset)
            for first, second in pairwise(records):
                if bisect_left(anew, first.offset) == bisect_left(anew, second.offset):
                    yield self.broken(story.job_id, f"slot {slot_ms} of job {story.job_id!r} was handed out twice", first, second)
            for record in records:
                place = bisect_left(offsets, record.offset)
                before = log[place - 1] if place else None
                if isinstance(before, StateWritten):
                    sentence = f"slot {slot_ms} of job {story.job_id!r} was handed out when that was {before.phase} already"
                    yield self.broken(story.job_id, sentence, before, record)

    # --- each slot at least once ---

    def _life(self, story: Story, life: Sequence[Run], end: int, runs: Mapping[int, Story]) -> Iterator[Violation]:
        """What the definitions of one life owe together.

        Args:
            end: the offset of the next life's first definition.
            runs: by slot, as far as they were handed out in this life or before.
        """
        states = [state for run in life for state in run.states if run.defined is not None and run.defined.recurrence is not None]
        taken = sorted(runs)
        lacking: list[Sequence[int]] = []
        lacking_count = open_count = dropped = 0
        for before, run, after in zip((None, *life), life, (*life[1:], None), strict=False):
            if run.defined is None or run.defined.recurrence is None or not run.states:
                continue
            yield from self._steps(story, run, run.defined, run.defined.recurrence, runs)
            owed = _owed(run, run.defined, run.defined.recurrence, before, after, taken)
            if after is not None and _may_have_rested(story, after):
                had_queue = run.defined.recurrence["overlap"] == Overlap.QUEUE
                owed = Owed(owed.slots[: bisect_left(owed.slots, _open_ms(_stood(run)))], _MANY, int(had_queue))
            run_slots = [slot_ms for slot_ms in taken if slot_ms in owed.slots]
            lacking.append(owed.slots)
            lacking_count += len(owed.slots) - len(run_slots)
            # What another definition has run, this one may have left out.
            until = after.defined.offset if after is not None and after.defined is not None else end
            open_count += owed.open + sum(
                not any(run.defined.offset <= record.offset < until for record in runs[slot_ms].defined) for slot_ms in run_slots
            )
            dropped += owed.dropped
        told = sum(state.left_out for state in states)
        if any(state.left_out < 0 for state in states):
            return  # nobody knows how many were left out
        what = f"of job {story.job_id!r} {lacking_count} slots that it had to decide about have no run"
        if lacking_count > told + dropped and not _is_saturated(states):
            named = (slot_ms for slots in lacking for slot_ms in islice(slots, _LOOKED_AT_MAX) if slot_ms not in runs)
            sentence = f"{what}, and only {told} were told as left out: among {_shown(list(islice(named, _SHOWN_MAX + 1)))}"
            yield self.broken(story.job_id, sentence, *(run.defined for run in life))
        elif told > lacking_count + open_count:
            yield self.broken(story.job_id, f"{what}, {open_count} more may have none, and {told} were told as left out", *states[-1:])

    # --- and left out only for a reason ---

    def _steps(self, story: Story, run: Run, defined: Defined, recurrence: Recurrence, runs: Mapping[int, Story]) -> Iterator[Violation]:
        last = run.states[-1]
        is_over = last.phase == Phase.SUCCEEDED and not 0 < recurrence["runs_max"] <= last.attempt
        if is_over and not recurrence["end_ms"] and last.slot_ms < DUE_MS_MAX - recurrence["every_ms"]:
            yield self.broken(story.job_id, f"job {story.job_id!r} has no end, and ended", last)
        for before, after in pairwise(run.states):
            if after.left_out > 0 and before.phase == Phase.WAITING and after.changed_ms:
                decided = list(islice(_decided(defined, recurrence, before, after), _LOOKED_AT_MAX))
                left = [slot_ms for slot_ms in decided if slot_ms not in runs]
                going = sum(_went_on(it, after.changed_ms) for it in runs.values() if it.defined[0].offset <= after.offset)
                has_run = len(left) < len(decided)  # one that an earlier definition has run stands for the others
                if left and not _is_excused(recurrence, left, going, has_run, after.changed_ms):
                    sentence = (
                        f"{after.left_out} of the slots {_shown(left)} of job {story.job_id!r} were left out at {after.changed_ms} "
                        f"({recurrence['misfire']}, {recurrence['overlap']}), while {going} runs went on"
                    )
                    yield self.broken(story.job_id, sentence, before, after)


def _shown(slots: Sequence[int]) -> str:
    shown = ", ".join(map(str, slots[:_SHOWN_MAX]))
    return f"{shown} …" if len(slots) > _SHOWN_MAX else shown


def _is_saturated(states: Sequence[StateWritten]) -> bool:
    """Whether an owner that left out very many slots of a cron line may have stopped counting."""
    return any(state.left_out >= SLOTS_COUNTED_MAX for state in states)


def _open_ms(state: StateWritten) -> int:
    """The first slot that nothing was decided about, as a state tells; beyond all where there is none."""
    if state.phase == Phase.WAITING and state.queued_ms == state.slot_ms:
        return _NEVER_MS
    return state.slot_ms


def _may_have_rested(story: Story, after: Run) -> bool:
    """Whether the job was perhaps cancelled or paused until the transaction that defined it anew, which need not have left a record."""
    if after.defined is None or story.changes:
        return True
    cancels = sum(cancel.at_ms <= after.defined.at_ms for cancel in story.cancels)
    return cancels > sum(state.phase == Phase.CANCELLED and state.offset < after.defined.offset for state in story.states)


def _stood(run: Run) -> StateWritten:
    """How it stood last: of one that was cancelled the state before, where that tells more."""
    last = run.states[-1]
    if last.phase == Phase.CANCELLED and len(run.states) > 1 and run.states[-2].queued_ms == last.slot_ms:
        return run.states[-2]
    return last


def _owed(run: Run, defined: Defined, recurrence: Recurrence, before: Run | None, after: Run | None, taken: Sequence[int]) -> Owed:
    """What a definition owes, given those before and after it in its life.

    Args:
        taken: the slots that have runs, rising.
    """
    if recurrence["kind"] == RecurrenceKind.EVERY_AFTER:
        return _owed_after_ends(run, recurrence, before, after)
    last, stood = run.states[-1], _stood(run)
    from_ms, is_certain = _from_ms(run, defined, before)
    open_count = 0 if is_certain else _MANY
    until_ms, next_ms = _open_ms(stood), _handed_over_ms(run, after)
    if _has_all_runs(recurrence, stood):
        # Nothing is owed beyond the last run, or the slot that is to have it.
        seen = taken[bisect_left(taken, from_ms) : bisect_right(taken, stood.slot_ms)]
        until_ms = max(seen[-1] if seen else 0, stood.queued_ms) + 1
    elif last.phase == Phase.SUCCEEDED:
        until_ms = _NEVER_MS
    elif recurrence["runs_max"] and next_ms > until_ms:
        # Handing over it may have come to its last run, and how many there were is not told: nothing is owed beyond that.
        seen = taken[bisect_left(taken, until_ms) : bisect_left(taken, next_ms)]
        open_count += len(slots_between(recurrence, defined.due_ms, until_ms, next_ms))
        until_ms = seen[-1] + 1 if seen else until_ms
    else:
        until_ms = max(until_ms, next_ms)
    waits = any(state.queued_ms for state in run.states[-2:])
    dropped = int(recurrence["overlap"] == Overlap.QUEUE and (last.phase == Phase.CANCELLED or (waits and after is None)))
    return Owed(slots_between(recurrence, defined.due_ms, from_ms, until_ms), open_count, dropped)


def _has_all_runs(recurrence: Recurrence, last: StateWritten) -> bool:
    if not recurrence["runs_max"]:
        return False
    return last.attempt + (last.phase == Phase.WAITING and last.queued_ms > 0) >= recurrence["runs_max"]


def _is_command_for_next(run: Run, after: Run) -> bool:
    """Whether a definition was followed by this one, and by a command that defines: an update keeps the time of the first."""
    if run.defined is None or after.defined is None or after.generation != run.generation + 1:
        return False
    return run.defined.created_ms != after.defined.created_ms


def _handed_over_ms(run: Run, after: Run | None) -> int:
    """The first moment whose slots the next definition decides about; 0 where there is none, or that cannot be told."""
    if after is None or after.defined is None or not after.states or not _is_command_for_next(run, after):
        return 0
    return min(after.defined.created_ms, after.states[0].changed_ms + 1) if run.states[-1].phase == Phase.WAITING else 0


def _from_ms(run: Run, defined: Defined, before: Run | None) -> tuple[int, bool]:
    """From when on a definition decides, and whether that is certain."""
    first, assigned = run.states[0], defined.recurrence
    assert assigned is not None
    begins_ms = begin_ms(assigned, defined.due_ms)
    if before is None and run.generation == 1:
        return begins_ms, True
    if before is None or before.defined is None or not _is_command_for_next(before, run):
        return max(begins_ms, first.changed_ms + 1), False
    if before.defined.recurrence is None or before.defined.due_ms != defined.due_ms:
        return begins_ms, True
    if not before.states or before.states[-1].phase == Phase.PAUSED:
        return max(begins_ms, first.changed_ms + 1), False
    was, until_ms = before.states[-1], min(defined.created_ms - 1, first.changed_ms)
    goes_on = (
        was.phase == Phase.WAITING and was.queued_ms != was.slot_ms and all(before.defined.recurrence[f] == assigned[f] for f in _OF_SLOTS)
    )
    return max(begins_ms, until_ms + 1, was.slot_ms if goes_on else 0, was.queued_ms + 1), True


def _owed_after_ends(run: Run, recurrence: Recurrence, before: Run | None, after: Run | None) -> Owed:
    """With EVERY_AFTER: the slots that it waited for, one after the other."""
    waited = [state.slot_ms if _waits_for_slot(state) else 0 for state in run.states]
    slots = [slot_ms for slot_ms in dict.fromkeys(waited) if slot_ms]
    last, open_count = run.states[-1], 0
    if before is not None or run.generation > 1:  # its first slot may have been decided about in the transaction that defined it
        open_count = 1 if before is not None and _is_command_for_next(before, run) else _MANY
    is_decided_by_next = 0 < waited[-1] < _handed_over_ms(run, after)
    if slots and (waited[-1] or last.phase == Phase.CANCELLED) and not is_decided_by_next:
        slots.pop()
        open_count += 1
    has_queue = recurrence["overlap"] == Overlap.QUEUE
    return Owed(slots, open_count, int(has_queue and (last.phase == Phase.CANCELLED or bool(last.queued_ms))))


def _waits_for_slot(state: StateWritten) -> bool:
    """With EVERY_AFTER: whether its next slot is known. While another one waits its turn it is not: that one's end will tell."""
    return state.phase == Phase.WAITING and state.wake_ms == state.slot_ms and not state.queued_ms


def _decided(defined: Defined, recurrence: Recurrence, before: StateWritten, after: StateWritten) -> Sequence[int]:
    """The slots that were decided about between two states of one definition."""
    if recurrence["kind"] == RecurrenceKind.EVERY_AFTER:
        return (before.slot_ms,) if _waits_for_slot(before) else ()
    if _has_all_runs(recurrence, after):
        until_ms = max(after.queued_ms, after.slot_ms) + 1  # beyond the last run there is nothing to leave out
    else:
        until_ms = min(_open_ms(after) if after.phase == Phase.WAITING else _NEVER_MS, after.changed_ms + 1)
    return slots_between(recurrence, defined.due_ms, min(before.slot_ms, _open_ms(before)), until_ms)


def _went_on(run: Story, at_ms: int) -> bool:
    """Whether a run of a slot had not come to its end then, or did so in that moment."""
    states = sorted(run.states, key=lambda state: state.offset)
    if any(state.changed_ms == at_ms for state in states):
        return True
    place = bisect_right([state.changed_ms for state in states], at_ms)
    return not place or states[place - 1].phase not in TERMINAL


def _is_excused(recurrence: Recurrence, left: Sequence[int], going: int, has_run: bool, at_ms: int) -> bool:
    """Whether there is a reason to leave out these slots."""
    late_before_ms = at_ms - (recurrence["grace_ms"] or GRACE_MS) - recurrence["jitter_ms"]
    on_time = sum(slot_ms >= late_before_ms for slot_ms in left)
    if not going:
        return not on_time and (has_run or recurrence["misfire"] == Misfire.SKIP)
    if recurrence["overlap"] == Overlap.ALLOW and on_time:
        return going >= min(recurrence["overlap_max"] or OVERLAP_MAX_DEFAULT, SLOTS_ON_TIME_MAX)
    return True
