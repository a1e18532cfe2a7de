"""What is cancelled, dead, crashing or silent is treated as it must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from duewheel.core import trail as trails
from duewheel.core.model import Phase, Result
from duewheel.core.step import Reason
from duewheel.proof.history import ChangeInvoked, DeadLettered, Dispatched, EnqueueInvoked, OutcomeRecorded, RedriveInvoked, RunDied
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger, Run, Story

_STOPPED: Final = frozenset({Phase.CANCELLED, Phase.CANCELLING})

# After these the owner hands the run out again.
_AGAIN: Final = frozenset({Result.LOST, Result.INTERRUPTED})


class CancelledStays(Invariant):
    """A job whose cancel took effect is never dispatched afterwards, and so never starts. A cancel that came in time takes effect.

    It took effect with the state record, whose token says which dispatches lie before. It came in time where it was acknowledged
    `Plan.cancel_ahead_ms` before the job was due, and nothing was broken from the cancel until the job would have run.
    """

    title = "started although cancelled"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                stop = next((state for state in run.states if state.phase in _STOPPED), None)
                later = next((d for d in run.dispatches if d.token > stop.token), None) if stop is not None else None
                if stop is not None and later is not None:
                    sentence = f"job {story.job_id!r} was {stop.phase} at token {stop.token}, and token {later.token} went out afterwards"
                    starts = (start for start in story.starts if start.token == later.token)
                    found.append(self.broken(story.job_id, sentence, stop, later, *starts))
            if story.cancels and len(story.enqueues) == 1 and not story.redefines:  # else it may have been due sooner
                found += self._unheeded(ledger, story)
        return found

    def _unheeded(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        plan, enqueue = ledger.plan, story.enqueues[0]
        asked = ledger.acknowledged(enqueue.call)
        if asked is None or not (story.starts or story.dispatches):
            return
        for cancel in story.cancels:
            answer = ledger.acknowledged(cancel.call)
            in_time = answer is not None and asked.at_ms <= cancel.at_ms and answer.at_ms + plan.cancel_ahead_ms <= enqueue.due_ms
            if in_time and not ledger.excuses.overlap(asked.at_ms, enqueue.due_ms + plan.punctual_ms):
                sentence = f"the cancel of job {story.job_id!r} was acknowledged in time, and it went out all the same"
                yield self.broken(story.job_id, sentence, cancel, answer, *(story.starts or story.dispatches)[:1])
                return


class OneDeadLetter(Invariant):
    """Each record that cannot be read or is refused leaves one dead letter, and nothing else does; each run that dies is buried once.

    A redrive may be refused by the rules, and so may an update, and a command that asks for it where its job is known. A death whose job
    was redefined meanwhile is none.
    """

    title = "dead letters"

    def check(self, ledger: Ledger) -> list[Violation]:
        found = list(self._records(ledger))
        for story in ledger.stories.values():
            for run in story.runs:
                found += self._deaths(story, run)
            if story.deaths:
                known = {death.token for run in story.runs for death in run.deaths}
                strays = (death for death in story.deaths if death.token not in known)
                found += [
                    self.broken(story.job_id, f"job {story.job_id!r} was buried with token {d.token}, but not by any run", d)
                    for d in strays
                ]
        return found

    def _records(self, ledger: Ledger) -> Iterator[Violation]:
        letters: dict[tuple[str, int, int], list[DeadLettered]] = {}
        for letter in ledger.dead_letters:
            letters.setdefault((letter.topic, letter.partition, letter.offset), []).append(letter)
        bad = {(record.topic, record.partition, record.offset): record for record in ledger.bad_records}
        for (topic, partition, offset), record in bad.items():
            count = len(letters.get((topic, partition, offset), ()))
            if count != 1:
                sentence = f"the bad record {topic} [{partition}] @{offset} left {count} dead letters"
                yield self.broken(None, sentence, record, *letters.get((topic, partition, offset), ()))
        refusable = _refusable(ledger)
        for place, sent in letters.items():
            if place in bad or (len(sent) == 1 and (place[1:] in refusable or sent[0].job_id in refusable)):
                continue
            sentence = f"the record {place[0]} [{place[1]}] @{place[2]} left {len(sent)} dead letters ({sent[0].reason}); it was a good one"
            yield self.broken(sent[0].job_id, sentence, *sent)

    def _deaths(self, story: Story, run: Run) -> Iterator[Violation]:
        job_id, buried = story.job_id, Counter(death.token for death in run.deaths)
        failed = {state.token: state for state in run.states if state.phase == Phase.FAILED}
        for token, count in buried.items():
            if count > 1:
                sentence = f"the death of job {job_id!r} with token {token} was buried {count} times"
                yield self.broken(job_id, sentence, *(death for death in run.deaths if death.token == token))
            if token not in failed and not any(closing.token == token for closing in story.closings):
                sentence = f"job {job_id!r} was buried with token {token}, but never failed with it"
                yield self.broken(job_id, sentence, *(death for death in run.deaths if death.token == token))
        for token, state in failed.items():
            if run.is_newest and token not in buried:
                yield self.broken(job_id, f"job {job_id!r} failed for good with token {token}, and was not buried", state)


def _refusable(ledger: Ledger) -> set[tuple[int, int] | str | None]:
    """Redrives and updates that may have been refused, and what asked to be where its job is known: where they are stored, or of which job
    they are where nobody knows.
    """
    found: set[tuple[int, int] | str | None] = set()
    for story in ledger.stories.values():
        rejecting = [enqueue for enqueue in story.enqueues if enqueue.rejects]
        commands: list[RedriveInvoked | ChangeInvoked | EnqueueInvoked] = [*story.redrives, *story.redefines, *rejecting]
        for command in commands:
            answer = ledger.acknowledged(command.call)
            found.add(story.job_id if answer is None else (answer.partition, answer.offset))
    return found


class CrashLimit(Invariant):
    """A run whose workers vanish is handed out until its limit of crashes is reached, and not once more; nor is it given up any sooner.

    Every crash that a worker's successor reported counts, unless the owner had given the run up before.
    """

    title = "crash limit"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                if run.asked is not None and (len(run.dispatches) > 1 or run.deaths):
                    limits = [trails.crashes_max(limits) for limits in run.limits]
                    for number, dispatches in enumerate(run.rounds()):
                        found += self._round(story, max(limits), dispatches)
                        deaths = [d for d in run.deaths if d.reason == Reason.CRASH_LIMIT and run.round_of(d.token) == number]
                        found += self._deaths(story, min(limits), dispatches, deaths)
        return found

    def _round(self, story: Story, limit: int, dispatches: Sequence[Dispatched]) -> Iterator[Violation]:
        lost, job_id = 0, story.job_id
        earlier = dispatches[0].attempt - 1 if dispatches and story.redefines else 0  # updated between two attempts, it goes on
        for number, dispatch in enumerate(dispatches):
            what = f"dispatch of job {job_id!r} with token {dispatch.token}"
            if dispatch.crashes >= limit or lost >= limit:
                yield self.broken(job_id, f"the {what} came after {max(lost, dispatch.crashes)} crashes; the limit is {limit}", dispatch)
            elif dispatch.crashes < lost:
                yield self.broken(job_id, f"the {what} tells of {dispatch.crashes} crashes; there were {lost}", dispatch)
            elif dispatch.crashes > number + earlier:
                sentence = f"the {what} tells of {dispatch.crashes} crashes in {number + earlier} attempts"
                yield self.broken(job_id, sentence, dispatch)
            outcome = story.deciding.get(dispatch.token)
            following = dispatches[number + 1] if number + 1 < len(dispatches) else None
            # A dispatch that the owner had given up as overdue before, which is no crash, has the same attempt once more.
            if following is not None and outcome is not None and outcome.result == Result.LOST:
                lost += following.attempt > dispatch.attempt

    def _deaths(self, story: Story, limit: int, dispatches: Sequence[Dispatched], deaths: Sequence[RunDied]) -> Iterator[Violation]:
        for death in deaths:
            before = [dispatch for dispatch in dispatches if dispatch.token <= death.token]
            most = before[-1].crashes + 1 if before else 0
            if most < limit:
                sentence = f"job {story.job_id!r} was given up after {most} crashes at most; the limit is {limit}"
                yield self.broken(story.job_id, sentence, death, *before[-1:])


class HeardOut(Invariant):
    """No lease ends before the outcomes that were written in its time were taken in: slowness in reading is no silence.

    A word that came in time extends the lease, whether it was taken in or not, if its `lease_ms` is told.

    Sees only leases whose states are told, RUNNING with `wake_ms`, and believes the times of outcomes. Where these are not the times at
    which they could be read, leave out `wake_ms` of RUNNING.
    """

    title = "given up unheard"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                leases = {state.token: state for state in run.states if state.phase == Phase.RUNNING and state.wake_ms}
                for dispatches in run.rounds() if leases else ():
                    found += self._round(story, dispatches, {token: state.wake_ms for token, state in leases.items()})
        return found

    def _round(self, story: Story, dispatches: Sequence[Dispatched], leases_ms: dict[int, int]) -> Iterator[Violation]:
        for dispatch, following in pairwise(dispatches):
            outcome = story.deciding.get(dispatch.token)
            if outcome is None or outcome.result in _AGAIN or dispatch.token not in leases_ms:
                continue
            until_ms = _extended_ms(leases_ms[dispatch.token], story.outcomes, dispatch.token)
            if outcome.at_ms > until_ms:
                continue
            put_off = outcome.result in (Result.RETRY, Result.SNOOZED) and following.crashes == dispatch.crashes
            if not put_off:
                sentence = (
                    f"job {story.job_id!r} was {outcome.result} under token {dispatch.token} at {outcome.at_ms}, within its lease until "
                    f"{until_ms}, and handed out again with token {following.token}"
                )
                yield self.broken(story.job_id, sentence, dispatch, outcome, following)


def _extended_ms(until_ms: int, outcomes: Iterable[OutcomeRecorded], token: int) -> int:
    """When a lease ends that the owner took to end at `until_ms`, by all words that came in time."""
    for outcome in sorted((o for o in outcomes if o.token == token and o.lease_ms), key=attrgetter("at_ms")):
        if outcome.at_ms <= until_ms:
            until_ms = max(until_ms, outcome.at_ms + outcome.lease_ms)
    return until_ms
