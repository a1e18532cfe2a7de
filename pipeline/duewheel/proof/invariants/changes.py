"""What is asked to change is answered once, and what is paused does not start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from duewheel.core.model import Action, Phase
from duewheel.core.run_ids import parse
from duewheel.proof.history import Answered, ChangeInvoked, Defined, Delivered, Dispatched
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger, Pause, Story

# A run beside the slots is named by the millisecond it was asked for in, or by the next one that is no slot: these are a second apart.
_BESIDE_MS = 10


class AnsweredOnce(Invariant):
    """Every change that was acknowledged is answered, once, and nothing is answered that nobody asked for.

    The answer stands with the job's state. Of a job that nobody knew then there is none: its state was taken away.
    """

    title = "answers"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            if story.changes or story.answered:
                found += self._answers(ledger, story)
        return found

    def _answers(self, ledger: Ledger, story: Story) -> Iterator[Violation]:
        answers: defaultdict[tuple[int, int], list[Answered]] = defaultdict(list)
        for answered in story.answered:
            answers[answered.partition, answered.command].append(answered)
        unsure: list[ChangeInvoked] = []
        for change in story.changes:
            stored = ledger.acknowledged(change.call)
            if stored is None:
                unsure += [] if ledger.refused(change.call) else [change]
                continue
            given = answers.pop((stored.partition, stored.offset), [])
            what = f"the {change.action} of job {story.job_id!r}, acknowledged at {stored.at_ms}"
            if len(given) > 1:
                yield self.broken(story.job_id, f"{what}, was answered {len(given)} times", change, *given)
            elif given and given[0].action != change.action:
                yield self.broken(story.job_id, f"{what}, was answered as a {given[0].action}", change, *given)
            elif not given and self._is_owed(ledger, story, stored.at_ms):
                yield self.broken(story.job_id, f"{what}, was never answered", change, stored)
        for (_, command), given in answers.items():
            likely = next((change for change in unsure if change.action == given[0].action), None)
            if likely is not None:
                unsure.remove(likely)
            if likely is None or len(given) > 1:
                sentence = f"the command at {command} was answered {len(given)} times with job {story.job_id!r}, and nobody asked for that"
                yield self.broken(story.job_id, sentence, *given)

    def _is_owed(self, ledger: Ledger, story: Story, stored_ms: int) -> bool:
        """Whether the job was known all the time from when the change was stored."""
        if story.forgotten or not ledger.is_expected_by_now(stored_ms):
            return False
        return any(record.at_ms <= stored_ms for record in story.defined)


class PausedStays(Invariant):
    """A paused job is not dispatched or delivered, and hands out no runs, from the record that says so until it is resumed, run, or defined
    anew.
    """

    title = "started although paused"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        paused: dict[str, list[Pause]] = {}
        for story in ledger.stories.values():
            pauses = story.pauses
            if pauses:
                paused[story.job_id] = pauses
                found += self._dispatched(story, pauses)
            found += self._unasked(story, pauses)
        if paused:
            found += self._handed_out(ledger, paused)
        return found

    def _dispatched(self, story: Story, pauses: list[Pause]) -> Iterator[Violation]:
        for pause in pauses:
            sent: list[Dispatched | Delivered] = [*story.dispatches, *story.deliveries]
            for dispatch in sent:
                if dispatch.token > pause.token and not _is_after(story, dispatch, pause):
                    sentence = f"job {story.job_id!r} was paused at {pause.begun.at_ms}, and token {dispatch.token} went out meanwhile"
                    yield self.broken(story.job_id, sentence, pause.begun, dispatch, pause.until)

    def _unasked(self, story: Story, pauses: list[Pause]) -> Iterator[Violation]:
        for state in story.states:
            if state.phase == Phase.PAUSED and not any(pause.begun.offset <= state.offset for pause in pauses):
                yield self.broken(story.job_id, f"job {story.job_id!r} is PAUSED, and no pause of it was obeyed", state)
                return

    def _handed_out(self, ledger: Ledger, paused: dict[str, list[Pause]]) -> Iterator[Violation]:
        """Runs that a recurring job handed out while it was paused, but for those that were asked for by themselves."""
        for story in ledger.stories.values():
            run = parse(story.job_id)
            for pause in paused.get(run.job_id, ()) if run is not None else ():
                meanwhile = [record for record in story.defined if _is_within(record, pause)]
                if run is not None and meanwhile and not is_run_beside(ledger, ledger.stories[run.job_id], run.slot_ms):
                    sentence = f"run {story.job_id!r} was handed out, though its job was paused at {pause.begun.at_ms}"
                    yield self.broken(story.job_id, sentence, pause.begun, *meanwhile, pause.until)


def is_run_beside(ledger: Ledger, recurring: Story, slot_ms: int) -> bool:
    """Whether somebody asked for a run of this name beside the slots of a recurring job."""
    asked = (change for change in recurring.changes if change.action == Action.RUN_NOW and not ledger.refused(change.call))
    return any(0 <= slot_ms - change.created_ms < _BESIDE_MS for change in asked)


def _is_after(story: Story, dispatch: Dispatched | Delivered, pause: Pause) -> bool:
    """Whether a dispatch came when the pause was over: by its own state record, which is of the same transaction."""
    if pause.until is None:
        return False
    places = [state.offset for state in story.states if state.token >= dispatch.token]
    return min(places) >= pause.until.offset if places else dispatch.at_ms >= pause.until.at_ms


def _is_within(record: Defined, pause: Pause) -> bool:
    if record.partition != pause.begun.partition or record.offset <= pause.begun.offset:
        return False
    if pause.until is None:
        return True
    # Of one transaction: of a job that was resumed and then changed once more only the last state is written, behind what it handed out.
    return record.offset < pause.until.offset and record.at_ms < pause.until.at_ms
