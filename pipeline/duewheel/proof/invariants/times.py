"""Nothing is early, and nothing late without an excuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duewheel.core.model import Phase
from duewheel.proof.history import Dispatched, Effect, Started, StateWritten
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger, Run, Story


class NeverEarly(Invariant):
    """No job is dispatched, delivered, started or effective before its due time, and no later attempt before its wait is over.

    There is no tolerance, whatever the faults were.
    """

    title = "early"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            for run in story.runs:
                found += self._waits(story, run)
            events: list[Dispatched | Started | Effect] = [*story.dispatches, *story.starts, *story.effects]
            for event in events:
                run_of = story.run_of(event.token)
                if run_of is None or run_of.defined is None:
                    continue  # NoPhantom tells
                due_ms = run_of.defined.due_ms
                if event.at_ms < due_ms:
                    what = f"{type(event).__name__} of job {story.job_id!r}, token {event.token}, was at {event.at_ms}"
                    found.append(self.broken(story.job_id, f"{what}: {due_ms - event.at_ms} ms before it was due", run_of.defined, event))
            for record in story.deliveries:
                if record.at_ms < record.slot_ms:
                    what = f"job {story.job_id!r} was delivered at {record.at_ms}, {record.slot_ms - record.at_ms} ms before it was due"
                    found.append(self.broken(story.job_id, what, record))
        return found

    def _waits(self, story: Story, run: Run) -> Iterator[Violation]:
        last = {state.token: state for state in run.states}  # only the last word counts: a change may have moved the time
        for state in run.states:
            if state.phase != Phase.WAITING or not state.wake_ms or last[state.token] is not state:
                continue
            following = next((dispatch for dispatch in run.dispatches if dispatch.token > state.token), None)
            if following is not None and following.at_ms < state.wake_ms:
                early_ms = state.wake_ms - following.at_ms
                sentence = f"attempt {following.attempt} of job {story.job_id!r} was dispatched {early_ms} ms before its wait was over"
                yield self.broken(story.job_id, sentence, state, following)


class Punctual(Invariant):
    """While nothing is broken a job starts soon after it is due and acknowledged; and in any case soon after all is whole again.

    The same holds for an attempt whose wait is over, and a pause puts off what may start. What counts is when the handler began, or the
    dispatch where none did. "Soon" is `Plan.punctual_ms`; after a fault it is `Plan.recovery_ms`, for everything that was ready before
    that was over. Jobs that were not dispatched at all are NoLoss's matter, since they may have been cancelled.
    """

    title = "late"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            began = {start.token: start.at_ms for start in reversed(story.starts)}
            paused = [(pause.token, pause.until.at_ms) for pause in story.pauses if pause.until is not None]
            for run in story.runs:
                if run.dispatches:
                    for ready_ms, token in self._moments(ledger, run, bool(story.changes)):
                        later = next((dispatch.token for dispatch in run.dispatches if dispatch.token > token), 0)
                        ready_ms = max([ready_ms, *(until_ms for before, until_ms in paused if before < later)])
                        found += self._late(ledger, story, run, ready_ms, began, token)
        return found

    def _moments(self, ledger: Ledger, run: Run, is_changed: bool) -> Iterator[tuple[int, int]]:
        """When the run could go out, and the highest token that it had been given then."""
        if run.defined is not None:
            answer = ledger.acknowledged(run.asked.call) if run.asked is not None else None
            stored_ms = run.defined.at_ms if answer is None or is_changed else answer.at_ms
            if not (is_changed and _waits(run.states[:1])):  # it was defined anew between two attempts
                yield max(run.defined.due_ms, stored_ms), run.dispatches[0].token - 1
        last = {state.token: state for state in run.states}
        for state in run.states:
            if _waits([state]) and last[state.token] is state:
                yield max(state.wake_ms, state.at_ms if is_changed else 0), state.token

    def _late(self, ledger: Ledger, story: Story, run: Run, ready_ms: int, began: dict[int, int], token: int) -> Iterator[Violation]:
        following = [dispatch for dispatch in run.dispatches if dispatch.token > token]
        if not following or run.round_of(following[0].token) != run.round_of(token):
            return  # it died at the end of its wait; what follows is a redrive
        deadline_ms = ledger.excuses.deadline_ms(ready_ms, ledger.plan.punctual_ms)
        at_ms = min((began[d.token] for d in following if d.token in began), default=following[0].at_ms)
        at_ms = max(at_ms, following[0].at_ms)
        if at_ms > deadline_ms:
            sentence = f"job {story.job_id!r} was ready at {ready_ms} and began at {at_ms}, {at_ms - deadline_ms} ms later than is excused"
            yield self.broken(story.job_id, sentence, run.defined, following[0])


def _waits(states: Sequence[StateWritten]) -> bool:
    return any(state.phase == Phase.WAITING and state.wake_ms for state in states)
