"""Nothing is lost, invented, or ended twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from duewheel.core import trail as trails
from duewheel.core.model import Action, Closing, Overlap, Phase, Reach, Recurrence, RecurrenceKind, Result
from duewheel.core.recurrence import jittered_ms, next_slot_ms
from duewheel.core.run_ids import RunId, parse
from duewheel.core.step import Reason
from duewheel.proof.history import ChangeInvoked, Defined, Dispatched, DropInvoked, RedriveInvoked, StateWritten
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.invariants.changes import is_run_beside
from duewheel.proof.ledger import End, Ledger, Run, Story


class NoLoss(Invariant):
    """Every acknowledged job is defined, and every defined job comes to an end that lasts.

    The end may be any terminal phase. A generation that was redefined owes none: it gave way. A death that was undone is no end, and an
    acknowledged redrive or drop of a death must have done something about it. Jobs that are due after the history stops owe nothing yet,
    nor do those that were paused and not resumed.
    A job that recurs need not come to an end; each of its runs must.
    """

    title = "lost"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            if story.enqueues:
                found += self._undefined(ledger, story)
            for run in story.runs:
                if run.is_newest and run.defined is not None and not run.lasting_ends and not _is_paused(story, run):
                    found += self._endless(ledger, story, run)
            if story.redrives or story.drops:
                found += self._ignored(ledger, story)
        return found

    def _undefined(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        """Commands that were acknowledged and are in no definition.

        One that does not replace may have found the job known; one that asks to be refused then was refused. And one that was replaced in
        the transaction that would have written it leaves a gap in the generations, nothing else.
        """
        if len(story.enqueues) == 1 and story.defined:
            return  # told in full by the definition there is, or else NoPhantom finds one that nobody asked for
        defined = {(record.due_ms, record.created_ms) for record in story.defined}
        if story.redefines:  # updated in the transaction that would have written it, it has another due time
            created = {record.created_ms for record in story.defined}
            defined |= {(enqueue.due_ms, enqueue.created_ms) for enqueue in story.enqueues if enqueue.created_ms in created}
        gaps = sum(run.generation for run in story.runs if run.is_newest) - len(story.defined)
        for enqueue in story.enqueues:
            answer = ledger.acknowledged(enqueue.call)
            if answer is None or (enqueue.due_ms, enqueue.created_ms) in defined:
                continue
            was_refused = enqueue.rejects and (answer.partition, answer.offset) in ledger.dead_letter_places
            if was_refused or (story.defined and not enqueue.replaces and not enqueue.rejects):
                continue
            gaps -= 1
            if gaps >= 0:
                continue
            yield self.broken(
                story.job_id,
                f"job {story.job_id!r} was acknowledged at {answer.at_ms} (intake {answer.partition}@{answer.offset}) and never defined",
                enqueue,
                answer,
            )

    def _endless(self, ledger: Ledger, story: Story, run: Run) -> Iterator[Violation]:
        assert run.defined is not None
        if run.defined.recurrence is not None:
            return
        due_ms = max([run.defined.due_ms, *(state.wake_ms for state in run.states[-1:])])
        if not run.is_over and not ledger.is_expected_by_now(due_ms):
            return
        seen: list[Defined | Dispatched | StateWritten] = [run.defined, *run.dispatches, *run.states]
        last = max(seen, key=lambda event: event.at_ms)
        what = f"the last that was seen of it is {type(last).__name__} at {last.at_ms}"
        if run.undone:
            what = f"its death with token {run.undone[-1]} was undone; {what}"
        sentence = f"generation {run.generation} of job {story.job_id!r}, due {run.defined.due_ms}, came to no end; {what}"
        yield self.broken(story.job_id, sentence, run.defined, last)

    def _ignored(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        """Deaths that somebody asked to have undone, or dropped, of which nothing became."""
        if ledger.stopped_ms is not None:
            return
        closed = {closing.token for closing in story.closings}
        died = {end.token: end for run in story.runs if run.is_newest and not run.is_over for end in run.ends if end.phase == Phase.FAILED}
        commands: list[RedriveInvoked | DropInvoked] = [*story.redrives, *story.drops]
        for command in commands:
            answer, end = ledger.acknowledged(command.call), died.get(command.token)
            if answer is None or end is None or command.token in closed or end.at_ms >= command.at_ms:
                continue
            if (answer.partition, answer.offset) not in ledger.dead_letter_places:
                what = type(command).__name__.removesuffix("Invoked").lower()
                sentence = f"the {what} of job {story.job_id!r}, dead with token {command.token}, was acknowledged and did nothing"
                yield self.broken(story.job_id, sentence, end.event, command, answer)


class NoPhantom(Invariant):
    """Nothing is defined, dispatched, started, changed or ended without a cause that somebody asked for.

    A command that was acknowledged defines one generation at most, and so does one of which nobody knows whether it was stored. What was
    refused defines none. An update defines a generation more, of what was asked for before. A dispatch belongs to a definition, a start
    and an outcome to a dispatch, an effect to a start, an end to an outcome or to what else its phase stands for. What ended is dispatched
    no more, unless its death is redriven; and each redrive undoes one death. A run of a recurring job was asked for by asking for that job,
    if it stands for a slot of it, or by asking for it to run at once.
    """

    title = "phantom"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            found += self._unasked(ledger, story)
            found += self._without_dispatch(story)
            for run in story.runs:
                found += self._baseless(ledger, story, run)
            if story.closings:
                found += self._undone_unasked(ledger, story)
        return found

    def _unasked(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        """Definitions that no command explains."""
        run = parse(story.job_id)
        if run is not None and not story.enqueues:
            yield from self._no_slot(ledger, story, run)
            return
        calls = Counter((e.due_ms, e.created_ms) for e in story.enqueues if not ledger.refused(e.call))
        updates = [change for change in story.redefines if not ledger.refused(change.call)]
        calls_made, created, left = calls.total() + len(updates), {created_ms for _, created_ms in calls}, len(updates)
        for record in story.defined:
            key = (record.due_ms, record.created_ms)
            if calls[key] <= 0 and left and record.created_ms in created and _is_given(record, story, updates):
                left -= 1
                continue
            calls[key] -= 1
            if calls[key] < 0:
                sentence = f"job {story.job_id!r} was defined for {record.due_ms} (created {record.created_ms}) more often than asked for"
                yield self.broken(story.job_id, sentence, record)
                return
        generations = sum(run.generation for run in story.runs if run.is_newest)
        if generations > calls_made:
            yield self.broken(story.job_id, f"job {story.job_id!r} has {generations} generations of {calls_made} commands", *story.defined)

    def _no_slot(self, ledger: Ledger, story: Story, run: RunId) -> Iterator[Violation]:
        recurring = ledger.stories.get(run.job_id)
        asked = [] if recurring is None else [e for e in recurring.enqueues if e.recurrence is not None and not ledger.refused(e.call)]
        anchors = [] if recurring is None else [c.due_ms for c in recurring.redefines if c.due_ms and not ledger.refused(c.call)]
        for record in story.defined:
            if recurring is not None and is_run_beside(ledger, recurring, run.slot_ms):
                continue
            # A slot that waited its turn is handed out as the definition of then has it, with its jitter.
            is_slot = any(e.recurrence and _is_slot(e.recurrence, due_ms, run) for e in asked for due_ms in (e.due_ms, *anchors))
            begins = {jittered_ms(e.recurrence, run.job_id, run.slot_ms) for e in asked if e.recurrence is not None}
            if not is_slot or record.due_ms not in begins:
                sentence = f"run {story.job_id!r} was defined for {record.due_ms}, which is no slot of what was asked for as {run.job_id!r}"
                yield self.broken(story.job_id, sentence, record)

    def _without_dispatch(self, story: Story) -> Iterator[Violation]:
        job_id, dispatches = story.job_id, {dispatch.token: dispatch for dispatch in story.dispatches}
        for start in story.starts:
            dispatch = dispatches.get(start.token)
            if dispatch is None:
                sentence = f"a handler of job {job_id!r} began at {start.at_ms} under token {start.token}, which was not handed out for it"
                yield self.broken(job_id, sentence, start)
            elif start.topic and (start.topic, start.partition, start.offset) != (dispatch.topic, dispatch.partition, dispatch.offset):
                if sum(d.token == start.token for d in story.dispatches) > 1:
                    continue  # of two dispatches with one token: TokensRise tells
                sentence = f"a handler of job {job_id!r} began under token {start.token}, but not from the record that bears it"
                yield self.broken(job_id, sentence, start, dispatch)
        started = {start.token for start in story.starts}
        for effect in story.effects:
            if effect.token not in started:
                yield self.broken(job_id, f"job {job_id!r} had an effect under token {effect.token}, under which no handler began", effect)
        for outcome in story.outcomes:
            if outcome.token not in dispatches:
                sentence = f"{outcome.result} was recorded of job {job_id!r} under token {outcome.token}, which was not handed out for it"
                yield self.broken(job_id, sentence, outcome)

    def _baseless(self, ledger: Ledger, story: Story, run: Run) -> Iterator[Violation]:
        job_id = story.job_id
        if run.defined is None:
            if not run.is_newest and not run.dispatches:
                return  # cancelled and replaced in the transaction that would have defined it
            events: list[Dispatched | StateWritten] = [*run.dispatches, *run.states]
            sentence = f"generation {run.generation} of job {job_id!r} was dispatched or ended, and there is no definition of it"
            yield self.broken(job_id, sentence, *events[:3])
            return
        ends = run.lasting_ends
        for end in ends:
            reason = _missing_cause(ledger, story, run, end)
            if reason:
                yield self.broken(
                    job_id, f"job {job_id!r} ended as {end.phase} at {end.at_ms} with token {end.token}, but {reason}", end.event
                )
        if ends and ends[0].phase != Phase.CANCELLED and run.dispatches[-1:] and run.dispatches[-1].token > ends[0].token:
            late = run.dispatches[-1]
            if late.at_ms > ends[0].at_ms:
                sentence = f"job {job_id!r} was dispatched with token {late.token} at {late.at_ms}, after it had ended as {ends[0].phase}"
                yield self.broken(job_id, sentence, ends[0].event, late)

    def _undone_unasked(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        asked = {
            Closing.REDRIVEN: {command.token for command in story.redrives if not ledger.refused(command.call)},
            Closing.DROPPED: {command.token for command in story.drops if not ledger.refused(command.call)},
        }
        seen: set[tuple[int, str]] = set()
        for closing in story.closings:
            key = (closing.token, closing.how)
            what = f"the death of job {story.job_id!r} with token {closing.token} was {closing.how}"
            if closing.how in asked and closing.token not in asked[Closing(closing.how)]:
                yield self.broken(story.job_id, f"{what}, which nobody asked for", closing)
            elif key in seen:
                yield self.broken(story.job_id, f"{what} twice", closing)
            seen.add(key)


def _is_paused(story: Story, run: Run) -> bool:
    """Whether nobody has let it go on."""
    return bool(run.states) and run.states[-1].phase == Phase.PAUSED and any(pause.until is None for pause in story.pauses)


def _is_given(record: Defined, story: Story, updates: Sequence[ChangeInvoked]) -> bool:
    """Whether the due time of a definition is one that was asked for: at first, by an update, or by asking for it at once."""
    known = {enqueue.due_ms for enqueue in story.enqueues} | {change.due_ms for change in updates if change.due_ms}
    at_once = any(change.action == Action.RUN_NOW for change in updates)
    return record.due_ms in known or (at_once and record.due_ms <= record.at_ms)  # by its owner's clock, which may be behind


def _is_slot(recurrence: Recurrence, due_ms: int, run: RunId) -> bool:
    """Whether a run stands for a slot of a job that was asked for so."""
    if recurrence["kind"] == RecurrenceKind.EVERY_AFTER:
        return run.slot_ms >= max(due_ms, recurrence["start_ms"])
    return next_slot_ms(recurrence, due_ms, run.slot_ms - 1) == run.slot_ms


def _is_replaced(ledger: Ledger, job_id: str) -> bool:
    """Whether it is a run that may have given way to the next one, or was cancelled with its job."""
    run = parse(job_id)
    recurring = None if run is None else ledger.stories.get(run.job_id)
    if recurring is not None and any(c.reach == Reach.RUNNING and not ledger.refused(c.call) for c in recurring.cancels):
        return True
    return recurring is not None and any(e.recurrence and e.recurrence["overlap"] == Overlap.REPLACE for e in recurring.enqueues)


def _missing_cause(ledger: Ledger, story: Story, run: Run, end: End) -> str:
    """What should have led to an end and is not there; nothing where it is."""
    phase, token = end.phase, end.token
    outcome = story.deciding.get(token)
    told = outcome.result if outcome is not None else None
    if phase == Phase.SUCCEEDED and run.defined is not None and (run.defined.recurrence is not None or run.defined.delivers):
        return ""  # no slot of it is left; or DeliveredOnce tells
    if phase == Phase.SUCCEEDED:
        if not any(o.token == token and o.result == Result.SUCCEEDED for o in story.outcomes):
            return "no worker said so"
        if not any(start.token == token for start in story.starts):
            return "no handler began under this token"
    elif phase == Phase.DISCARDED:
        return "" if told == Result.DISCARDED else "no worker said so"
    elif phase == Phase.CANCELLED:
        replaced = not run.is_newest or told == Result.CANCELLED or _is_replaced(ledger, story.job_id)
        return "" if replaced or any(not ledger.refused(c.call) for c in story.cancels) else "nobody asked for it"
    elif phase == Phase.EXPIRED:
        expires_ms = min(filter(None, map(trails.expires_ms, run.limits)), default=0)
        return (
            ""
            if expires_ms and end.at_ms >= expires_ms
            else f"its time to start ends at {expires_ms}"
            if expires_ms
            else "it may start at any time"
        )
    elif phase == Phase.FAILED and told != Result.FAILED:
        reasons = {death.reason for death in run.deaths if death.token == token}
        if not reasons - {Reason.FAILED}:
            return "no worker said so, and no limit was named"
        if run.asked is None and parse(story.job_id) is not None:
            return ""  # its limits are those of its recurring job, of whichever generation
        if Reason.TOTAL_TIMEOUT in reasons and not any(limits and limits["total_timeout_ms"] for limits in run.limits):
            return "it has no total timeout"
    return ""


class OneOutcome(Invariant):
    """Of each run at most one outcome is accepted, and it is the first that was recorded under its token.

    A redriven run may end again, once for each time that its death was undone.
    """

    title = "accepted twice"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                ends = run.ends
                if len(ends) > 1:
                    found += self._twice(story, run, ends)
                for end in ends:
                    if end.phase == Phase.SUCCEEDED or end.phase == Phase.DISCARDED:
                        first = story.deciding.get(end.token)
                        if first is not None and first.result != end.phase:
                            sentence = f"job {story.job_id!r} ended as {end.phase}, though token {end.token} was {first.result} before"
                            found.append(self.broken(story.job_id, sentence, first, end.event))
        return found

    def _twice(self, story: Story, run: Run, ends: Sequence[End]) -> Iterator[Violation]:
        lasting = run.lasting_ends
        what = f"generation {run.generation} of job {story.job_id!r}"
        if len(lasting) > 1:
            ways = ", ".join(f"{end.phase} (token {end.token})" for end in lasting)
            yield self.broken(story.job_id, f"{what} ended {len(lasting)} times: {ways}", *(end.event for end in lasting))
        deaths = Counter(end.token for end in ends if end.phase == Phase.FAILED and end.token in run.undone)
        for token, count in deaths.items():
            if count > 1:
                events = [end.event for end in ends if end.token == token]
                yield self.broken(story.job_id, f"{what} died {count} times with token {token}", *events)


class SlotsMatched(Invariant):
    """Every slot of a definition is matched by one run: what is dispatched, and what ends, stands for a time that was asked for.

    A one-off job has one slot, its due time. That its run exists is NoLoss, that there is no second one OneOutcome. A run of a recurring
    job is such a job; that it stands for a slot of that one is NoPhantom. The recurring job itself is never dispatched.
    """

    title = "slot mismatched"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                if run.defined is None:
                    continue
                slots = slots_of(run.defined)
                events: list[Dispatched | StateWritten] = [*run.dispatches, *(run.states if run.defined.recurrence is None else ())]
                strangers = [event for event in events if event.slot_ms not in slots]
                if strangers:
                    sentence = f"job {story.job_id!r} is defined for {slots}, but {type(strangers[0]).__name__} says {strangers[0].slot_ms}"
                    found.append(self.broken(story.job_id, sentence, run.defined, *strangers[:3]))
                if len(run.definitions) > 1:
                    sentence = f"generation {run.generation} of job {story.job_id!r} was defined {len(run.definitions)} times"
                    found.append(self.broken(story.job_id, sentence, *run.definitions))
        return found


def slots_of(defined: Defined) -> tuple[int, ...]:
    """The slots that a definition may be dispatched for: its due time, and none of a job that recurs."""
    return (defined.due_ms,) if defined.recurrence is None else ()
