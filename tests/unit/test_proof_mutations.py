"""The checker is checked: each mutation of a faithful history breaks one promise, and the checker says which.

A mutation takes a faithful history and does to it what a bug would have done. It must be found by the invariant that it is listed under,
and by no other but those that it says it implies. Each is tried on several histories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, pairwise
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from duewheel.core.model import Action, Limits, Phase, Result
from duewheel.core.run_ids import parse
from duewheel.core.step import Reason
from duewheel.proof.history import (
    Acknowledged,
    Answered,
    Backlog,
    BadRecordWritten,
    CancelInvoked,
    ChangeInvoked,
    Committed,
    DeadLettered,
    Delivered,
    Dispatched,
    Effect,
    Event,
    LogEnd,
    OffsetsReset,
    OutcomeRecorded,
    Refused,
    RunDied,
    Snapshot,
    Started,
    StateWritten,
)
from duewheel.proof.invariants import INVARIANTS
from duewheel.proof.ledger import Ledger, Story
from duewheel.proof.report import judge
from tests.faithful import PLAN, Faithful

T = TypeVar("T")

# Above every token and offset of the histories.
BIG: Final = 1_000_000
HISTORIES: Final = 3
SEEDS: Final = 120


class NotHere(Exception):
    """The history has nothing that this mutation could be done to."""


class Scene:
    """A faithful history, to be spoilt."""

    def __init__(self, seed: int, faults: bool, recurring: int = 0) -> None:
        self.history = list(_faithful(seed, faults, recurring))
        self.ledger = Ledger(self.history, PLAN)
        self.random = Random(seed)

    # --- finding what to spoil ---

    def any(self, found: Iterable[T]) -> T:
        items = list(found)
        if not items:
            raise NotHere
        return self.random.choice(items)

    def events(self, kind: type[T]) -> Iterator[T]:
        return (event for event in self.history if isinstance(event, kind))

    def stories(self) -> Iterator[Story]:
        return iter(self.ledger.stories.values())

    def plain(self, where: Callable[[Story], bool] = lambda story: True) -> Story:
        """A job that was asked for once and succeeded at once."""
        return self.any(story for story in self.stories() if self.is_plain(story) and where(story))

    def is_plain(self, story: Story) -> bool:
        once = all(
            len(told) == 1 for told in (story.enqueues, story.defined, story.dispatches, story.starts, story.effects, story.outcomes)
        )
        succeeded = [state.phase for state in story.states] == [Phase.DISPATCHED, Phase.SUCCEEDED]
        return (
            once and succeeded and not story.cancels and not story.changes and self.ledger.acknowledged(story.enqueues[0].call) is not None
        )

    def single(self, where: Callable[[Story], bool]) -> Story:
        """A job with one run, which was asked for once."""
        stories = (story for story in self.stories() if len(story.enqueues) == len(story.defined) == len(story.runs) == 1)
        return self.any(story for story in stories if not story.changes and where(story))

    def answer(self, story: Story) -> Acknowledged:
        answer = self.ledger.acknowledged(story.enqueues[0].call)
        assert answer is not None
        return answer

    # --- spoiling it ---

    def drop(self, *events: Event) -> None:
        gone = {id(event) for event in events}
        self.history = [event for event in self.history if id(event) not in gone]

    def change(self, event: Event, **fields: Any) -> None:
        self.history = [event._replace(**fields) if other is event else other for other in self.history]

    def add(self, *events: Event) -> None:
        self.history += events

    def shift(self, events: Iterable[Event], by_ms: int) -> None:
        for event in events:
            self.change(event, at_ms=event.at_ms + by_ms)


Mutate = Callable[[Scene], None]


class Mutation(NamedTuple):
    """What is done, what finds it, what may find it too, whether it needs a history with faults, or without, and with jobs that recur."""

    invariant: str
    mutate: Mutate
    implies: frozenset[str]
    faults: bool
    recurring: int


MUTATIONS: Final[list[Mutation]] = []


def breaks(invariant: str, *implies: str, faults: bool = True, recurring: int = 0) -> Callable[[Mutate], Mutate]:
    def note(mutate: Mutate) -> Mutate:
        MUTATIONS.append(Mutation(invariant, mutate, frozenset(implies), faults, recurring))
        return mutate

    return note


@cache
def _faithful(seed: int, faults: bool, recurring: int) -> tuple[Event, ...]:
    history = tuple(Faithful(Random(seed), jobs=5 if recurring else 30, faults=faults, recurring=recurring).run())
    assert judge(history, PLAN).proven
    return history


def _of(story: Story) -> list[Event]:
    """What followed from the definition of a job."""
    told: list[Any] = [story.states, story.forgotten, story.dispatches, story.deaths, story.closings, story.starts, story.effects]
    return [event for events in (*told, story.outcomes) for event in events]


def _ended(story: Story, phase: Phase) -> StateWritten | None:
    """The one end of a job with one run, if it is this."""
    ends = story.runs[0].lasting_ends
    return ends[0].event if len(ends) == 1 and ends[0].phase == phase and isinstance(ends[0].event, StateWritten) else None


def _forgotten_unsaid(scene: Scene, story: Story) -> None:
    """Lets a job stay known, so that what is added to it belongs to its one life."""
    scene.drop(*story.forgotten)


# --- NoLoss


@breaks("NoLoss")
def acknowledged_and_never_heard_of(scene: Scene) -> None:
    story = scene.plain()
    scene.drop(*story.defined, *_of(story))


@breaks("NoLoss")
def defined_and_never_dispatched(scene: Scene) -> None:
    scene.drop(*_of(scene.plain()))


@breaks("NoLoss")
def dispatched_and_no_outcome_accepted(scene: Scene) -> None:
    story = scene.plain()
    scene.drop(story.states[-1], *story.forgotten)


@breaks("NoLoss")
def dispatched_into_the_void(scene: Scene) -> None:
    story = scene.plain()
    scene.drop(story.states[-1], *story.starts, *story.effects, *story.outcomes, *story.forgotten)


@breaks("NoLoss")
def forgotten_before_it_ended(scene: Scene) -> None:
    story = scene.plain(lambda story: bool(story.forgotten))
    scene.drop(*story.states, *story.dispatches, *story.starts, *story.effects, *story.outcomes)


@breaks("NoLoss")
def waiting_for_an_attempt_that_never_came(scene: Scene) -> None:
    story = scene.single(lambda s: not s.runs[0].undone and any(state.phase == Phase.WAITING for state in s.states))
    waiting = next(state for state in story.states if state.phase == Phase.WAITING)
    scene.drop(*(s for s in story.states if s.offset > waiting.offset), *story.forgotten, *story.deaths, *story.closings)
    later = {d.token for d in story.dispatches if d.token > waiting.token}
    of_them: list[Any] = [*story.dispatches, *story.starts, *story.effects, *story.outcomes]
    scene.drop(*(event for event in of_them if event.token in later))


@breaks("NoLoss")
def redrive_acknowledged_and_ignored(scene: Scene) -> None:
    def is_redriven(story: Story) -> bool:
        undone = story.runs[0].undone
        done = undone and len(story.redrives) == 1 and not story.drops and scene.ledger.acknowledged(story.redrives[0].call)
        return bool(done) and any(state.token == undone[0] and state.phase == Phase.FAILED for state in story.states)

    story = scene.single(is_redriven)
    token = story.runs[0].undone[0]
    death = next(state for state in story.states if state.phase == Phase.FAILED and state.token == token)
    scene.drop(*story.closings, *story.forgotten, *(s for s in story.states if s.offset > death.offset))
    of_them: list[Any] = [*story.dispatches, *story.starts, *story.effects, *story.outcomes, *story.deaths]
    scene.drop(*(event for event in of_them if event.token > token))
    scene.drop(*(effect for effect in story.effects if not effect.accepted))


@breaks("NoLoss")
def redriven_and_never_dispatched(scene: Scene) -> None:
    story = scene.single(lambda s: len(s.runs[0].undone) == 1 and any(state.token == s.runs[0].undone[0] for state in s.states))
    token = story.runs[0].undone[0]
    of_them: list[Any] = [*story.states, *story.dispatches, *story.starts, *story.effects, *story.outcomes, *story.deaths]
    scene.drop(*story.forgotten, *(event for event in of_them if event.token > token))
    scene.drop(*(effect for effect in story.effects if not effect.accepted))


@breaks("NoLoss")
def redefinition_acknowledged_and_ignored(scene: Scene) -> None:
    story = scene.plain()
    enqueue, answer = story.enqueues[0], scene.answer(story)
    scene.add(
        enqueue._replace(call="again", created_ms=enqueue.created_ms + 1, due_ms=enqueue.due_ms + 1, replaces=True),
        answer._replace(call="again", offset=BIG),
    )


# --- NoPhantom


@breaks("NoPhantom")
def ran_though_nobody_asked(scene: Scene) -> None:
    scene.drop(*scene.plain().enqueues)


@breaks("NoPhantom")
def ran_though_the_command_was_refused(scene: Scene) -> None:
    story = scene.plain()
    answer = scene.answer(story)
    scene.drop(answer)
    scene.add(Refused(answer.at_ms, answer.call))


@breaks("NoPhantom")
def a_handler_of_a_job_that_is_not(scene: Scene) -> None:
    start = scene.plain().starts[0]
    scene.add(Started(start.at_ms, "nobody", start.token))


@breaks("NoPhantom")
def a_handler_under_a_token_of_its_own(scene: Scene) -> None:
    start = scene.plain().starts[0]
    scene.add(start._replace(token=BIG, topic=""))


@breaks("NoPhantom")
def a_handler_from_another_record(scene: Scene) -> None:
    scene.change(scene.plain().starts[0], offset=BIG)


@breaks("NoPhantom")
def an_effect_without_a_handler(scene: Scene) -> None:
    effect = scene.plain().effects[0]
    scene.add(effect._replace(token=effect.token + BIG))


@breaks("NoPhantom")
def an_outcome_without_a_dispatch(scene: Scene) -> None:
    outcome = scene.plain().outcomes[0]
    scene.add(outcome._replace(token=BIG, offset=BIG, result=Result.LOST))


@breaks("NoPhantom")
def dispatched_without_a_definition(scene: Scene) -> None:
    story = scene.plain()
    dispatch = story.dispatches[0]
    scene.drop(*story.forgotten)
    scene.add(dispatch._replace(generation=2, token=BIG, offset=BIG, at_ms=dispatch.at_ms + 1))


@breaks("NoPhantom")
def one_command_defined_twice_as_two_jobs(scene: Scene) -> None:
    story = scene.plain()
    _forgotten_unsaid(scene, story)
    again: list[Any] = [*story.defined, *story.states, *story.dispatches]
    scene.add(*(event._replace(generation=2, offset=event.offset + BIG) for event in again if not hasattr(event, "token")))
    scene.add(*(event._replace(generation=2, offset=event.offset + BIG, token=BIG) for event in again if hasattr(event, "token")))
    rest: list[Any] = [*story.starts, *story.effects, *story.outcomes]
    places = {"offset": story.dispatches[0].offset + BIG}
    scene.add(*(event._replace(token=BIG, **(places if isinstance(event, Started) else {})) for event in rest))


@breaks("NoPhantom")
def dispatched_after_it_had_succeeded(scene: Scene) -> None:
    story = scene.plain()
    _forgotten_unsaid(scene, story)
    end = story.states[-1]
    scene.add(story.dispatches[0]._replace(at_ms=end.at_ms + 1, token=BIG, offset=BIG))


@breaks("NoPhantom")
def succeeded_though_no_worker_said_so(scene: Scene) -> None:
    scene.drop(*scene.plain().outcomes)


@breaks("NoPhantom")
def succeeded_though_no_handler_began(scene: Scene) -> None:
    story = scene.plain()
    scene.drop(*story.starts, *story.effects)


@breaks("NoPhantom")
def cancelled_though_nobody_asked(scene: Scene) -> None:
    scene.change(scene.plain().states[-1], phase=Phase.CANCELLED)


@breaks("NoPhantom")
def expired_though_it_never_does(scene: Scene) -> None:
    story = scene.plain(lambda story: story.enqueues[0].limits is None)
    scene.change(story.states[-1], phase=Phase.EXPIRED)


@breaks("NoPhantom")
def expired_before_its_time(scene: Scene) -> None:
    story = scene.single(lambda story: _ended(story, Phase.EXPIRED) is not None)
    end = _ended(story, Phase.EXPIRED)
    limits = story.enqueues[0].limits
    assert end is not None
    assert limits is not None
    scene.change(story.enqueues[0], limits={**limits, "expires_ms": end.at_ms + 1})


@breaks("NoPhantom")
def out_of_time_though_it_had_all_time(scene: Scene) -> None:
    story = scene.single(lambda s: any(death.reason == Reason.TOTAL_TIMEOUT for death in s.deaths) and not s.closings)
    limits = story.enqueues[0].limits
    assert limits is not None
    scene.change(story.enqueues[0], limits={**limits, "total_timeout_ms": 0})


@breaks("NoPhantom", "OneOutcome")
def discarded_though_no_worker_said_so(scene: Scene) -> None:
    scene.change(scene.plain().states[-1], phase=Phase.DISCARDED)


@breaks("NoPhantom")
def redriven_though_nobody_asked(scene: Scene) -> None:
    story = scene.single(lambda story: bool(story.runs[0].undone))
    scene.drop(*story.redrives)


@breaks("NoPhantom")
def one_death_undone_twice(scene: Scene) -> None:
    scene.add(scene.single(lambda story: bool(story.runs[0].undone)).closings[0])


# --- NeverEarly


@breaks("NeverEarly")
def dispatched_a_millisecond_early(scene: Scene) -> None:
    story = scene.plain(lambda story: story.defined[0].due_ms > story.defined[0].at_ms)
    scene.change(story.dispatches[0], at_ms=story.defined[0].due_ms - 1)


@breaks("NeverEarly")
def started_early(scene: Scene) -> None:
    story = scene.plain()
    scene.change(story.starts[0], at_ms=story.defined[0].due_ms - 1)


@breaks("NeverEarly")
def effective_early(scene: Scene) -> None:
    story = scene.plain()
    scene.change(story.effects[0], at_ms=story.defined[0].due_ms - 500)


@breaks("NeverEarly")
def tried_again_before_the_wait_was_over(scene: Scene) -> None:
    def waited(story: Story) -> Iterator[tuple[StateWritten, Dispatched]]:
        for state in story.states:
            later = [d for d in story.dispatches if d.token > state.token]
            if state.phase == Phase.WAITING and state.wake_ms and later:
                yield state, min(later, key=lambda d: d.token)

    state, dispatch = next(waited(scene.single(lambda story: any(waited(story)))))
    scene.change(dispatch, at_ms=state.wake_ms - 1)


# --- Punctual


@breaks("Punctual", faults=False)
def all_of_it_ten_seconds_late(scene: Scene) -> None:
    scene.shift(_of(scene.plain()), 10_000)


@breaks("Punctual", faults=False)
def the_handler_just_too_late(scene: Scene) -> None:
    story = scene.plain()
    late_ms = max(story.defined[0].due_ms, scene.answer(story).at_ms) + PLAN.punctual_ms + 1
    scene.shift((*story.starts, *story.effects, *story.outcomes, story.states[-1], *story.forgotten), late_ms - story.starts[0].at_ms)


@breaks("Punctual", faults=False)
def the_next_attempt_late(scene: Scene) -> None:
    story = scene.single(lambda s: s.runs[0].states[1:2] != [] and s.runs[0].states[1].phase == Phase.WAITING and len(s.dispatches) > 1)
    waiting = story.runs[0].states[1]
    of_it: list[Any] = _of(story)
    scene.shift([event for event in of_it if getattr(event, "token", BIG) > waiting.token], 10_000)


@breaks("Punctual")
def not_within_r_of_healing(scene: Scene) -> None:
    story = scene.plain(lambda s: scene.ledger.excuses.overlap(s.defined[0].due_ms, s.dispatches[0].at_ms))
    scene.shift(_of(story), scene.history[-1].at_ms + PLAN.recovery_ms - story.dispatches[0].at_ms)


# --- OneOutcome


@breaks("OneOutcome")
def accepted_twice_alike(scene: Scene) -> None:
    story = scene.plain()
    _forgotten_unsaid(scene, story)
    scene.add(story.states[-1]._replace(offset=BIG))


@breaks("OneOutcome", "NoPhantom")
def accepted_twice_and_differently(scene: Scene) -> None:
    story = scene.plain()
    _forgotten_unsaid(scene, story)
    end = story.states[-1]
    scene.add(end._replace(offset=end.offset + BIG, phase=Phase.DISCARDED))


@breaks("OneOutcome", "TokensRise")
def both_attempts_accepted(scene: Scene) -> None:
    def said_twice(story: Story) -> list[OutcomeRecorded]:
        return [outcome for outcome in story.outcomes if outcome.result == Result.SUCCEEDED]

    story = scene.single(lambda s: len(said_twice(s)) > 1 and _ended(s, Phase.SUCCEEDED) is not None)
    _forgotten_unsaid(scene, story)
    end = _ended(story, Phase.SUCCEEDED)
    assert end is not None
    other = next(outcome for outcome in said_twice(story) if outcome.token != end.token)
    scene.add(end._replace(token=other.token, offset=end.offset + BIG))


@breaks("OneOutcome")
def not_the_first_outcome(scene: Scene) -> None:
    outcome = scene.plain().outcomes[0]
    scene.change(outcome, offset=BIG)
    scene.add(outcome._replace(result=Result.DISCARDED))


@breaks("OneOutcome", "OneDeadLetter")
def died_twice_and_was_redriven_once(scene: Scene) -> None:
    story = scene.single(
        lambda s: bool(s.runs[0].undone) and any(x.phase == Phase.FAILED and x.token == s.runs[0].undone[0] for x in s.states)
    )
    token = story.runs[0].undone[0]
    death = next(state for state in story.states if state.phase == Phase.FAILED and state.token == token)
    scene.add(death)


# --- TokensRise


@breaks("TokensRise")
def one_token_for_two_jobs(scene: Scene) -> None:
    story = scene.plain()
    other = scene.plain(lambda s: s is not story and s.dispatches[0].timer_partition == story.dispatches[0].timer_partition)
    for event in _of(other):
        if hasattr(event, "token"):
            scene.change(event, token=story.dispatches[0].token)


@breaks("TokensRise")
def one_token_for_two_dispatches(scene: Scene) -> None:
    scene.add(scene.plain().dispatches[0]._replace(offset=BIG))


@breaks("TokensRise")
def the_sink_took_an_old_token(scene: Scene) -> None:
    scene.change(scene.any(effect for effect in scene.events(Effect) if not effect.accepted), accepted=True)


@breaks("TokensRise")
def the_sink_refused_the_newest(scene: Scene) -> None:
    scene.change(scene.plain().effects[0], accepted=False)


@breaks("TokensRise")
def a_state_fell_back(scene: Scene) -> None:
    story = scene.single(lambda s: [x.phase for x in s.states[:3]] == [Phase.DISPATCHED, Phase.RUNNING, Phase.SUCCEEDED])
    scene.change(story.states[1], token=story.states[1].token - 1)


@breaks("TokensRise")
def an_old_outcome_accepted(scene: Scene) -> None:
    story = scene.plain()
    end = story.states[-1]
    scene.add(story.dispatches[0]._replace(token=end.token + BIG, offset=BIG, at_ms=end.at_ms))
    scene.drop(*story.forgotten)


# --- StartedOnce


@breaks("StartedOnce")
def started_again_at_once(scene: Scene) -> None:
    scene.add(scene.plain().starts[0])


@breaks("StartedOnce")
def started_again_later_by_somebody_who_knows_no_record(scene: Scene) -> None:
    start = scene.plain().starts[0]
    scene.add(start._replace(at_ms=start.at_ms + 5_000, topic="", partition=-1, offset=-1))


@breaks("StartedOnce")
def started_again_after_a_takeover(scene: Scene) -> None:
    story = scene.single(lambda s: len(s.dispatches) > 1 and len(s.starts) > 1)
    start = story.starts[0]
    scene.add(start._replace(at_ms=start.at_ms + 1))


@breaks("StartedOnce", "NoPhantom")
def one_record_for_two_jobs(scene: Scene) -> None:
    story = scene.plain()
    other = scene.plain(lambda s: s is not story)
    start = story.starts[0]
    scene.change(other.starts[0], topic=start.topic, partition=start.partition, offset=start.offset)


# --- SlotsMatched


@breaks("SlotsMatched")
def dispatched_for_another_time(scene: Scene) -> None:
    scene.change(scene.plain().dispatches[0], slot_ms=BIG)


@breaks("SlotsMatched")
def ended_for_another_time(scene: Scene) -> None:
    state = scene.plain().states[-1]
    scene.change(state, slot_ms=state.slot_ms - 1)


@breaks("SlotsMatched")
def ran_for_a_second_slot(scene: Scene) -> None:
    story = scene.plain()
    events: list[Dispatched | StateWritten] = [*story.dispatches, *story.states]
    for event in events:
        scene.change(event, slot_ms=event.slot_ms + 60_000)


@breaks("SlotsMatched", "NoPhantom", "NeverEarly")
def defined_for_another_time(scene: Scene) -> None:
    defined = scene.plain().defined[0]
    scene.change(defined, due_ms=defined.due_ms + 1)


@breaks("SlotsMatched", "NoPhantom")
def defined_twice(scene: Scene) -> None:
    defined = scene.plain().defined[0]
    scene.add(defined)


# --- EverySlotOnce


def _slot(scene: Scene, where: Callable[[Story, Story], bool] = lambda job, run: True) -> tuple[Story, Story]:
    """A recurring job that was defined once, and a run of it."""
    stories = scene.ledger.stories
    runs = [(stories[run.job_id], story) for story in scene.stories() if (run := parse(story.job_id)) is not None]
    return scene.any((job, run) for job, run in runs if len(job.defined) == len(run.defined) == 1 and where(job, run))


def _is_asked_for(job: Story, overlap: str) -> bool:
    return all(enqueue.recurrence is not None and enqueue.recurrence["overlap"] == overlap for enqueue in job.enqueues)


def _knows_no_queue(job: Story) -> bool:
    """Whether no slot of it may have waited its turn, which is gone untold when the job is cancelled."""
    return not any(enqueue.recurrence is not None and enqueue.recurrence["overlap"] == "QUEUE" for enqueue in job.enqueues)


def _erase(scene: Scene, run: Story) -> None:
    scene.drop(*run.defined, *run.cancels, *run.redrives, *run.drops, *_of(run))


@breaks("EverySlotOnce", recurring=3)
def a_slot_passed_over(scene: Scene) -> None:
    job, run = _slot(scene, lambda job, run: _knows_no_queue(job))
    slot_ms = parse(run.job_id).slot_ms  # type: ignore[union-attr]
    if any(state.slot_ms <= slot_ms and state.phase == Phase.SUCCEEDED for state in job.states):
        raise NotHere  # beyond the last run nothing is owed
    _erase(scene, run)


@breaks("EverySlotOnce", recurring=3)
def a_slot_left_out_untold(scene: Scene) -> None:
    states = (state for state in scene.events(StateWritten) if state.left_out > 0)
    state = scene.any(state for state in states if _knows_no_queue(scene.ledger.stories[state.job_id]))
    scene.change(state, left_out=state.left_out - 1)


@breaks("EverySlotOnce", recurring=3)
def a_slot_told_as_left_out_that_was_run(scene: Scene) -> None:
    job, _ = _slot(scene)
    state = scene.any(state for state in job.states if state.phase == Phase.WAITING)
    scene.change(state, left_out=state.left_out + 20)


@breaks("EverySlotOnce", "SlotsMatched", "NoPhantom", recurring=3)
def a_slot_handed_out_again_after_a_rebuild(scene: Scene) -> None:
    _, run = _slot(scene)
    scene.add(run.defined[0]._replace(at_ms=run.defined[0].at_ms + 1))


@breaks("EverySlotOnce", "OneOutcome", recurring=3)
def a_slot_handed_out_after_the_end(scene: Scene) -> None:
    job, run = _slot(scene)
    states = [state for state in job.states if state.offset < run.defined[0].offset and state.phase == Phase.WAITING]
    if not states:
        raise NotHere
    scene.change(states[-1], phase=Phase.SUCCEEDED)


@breaks("EverySlotOnce", recurring=3)
def a_slot_left_out_though_nothing_went_on(scene: Scene) -> None:
    job, run = _slot(scene, lambda job, run: _is_asked_for(job, "SKIP"))
    before, after = next((b, a) for b, a in pairwise(job.states) if a.at_ms == run.defined[0].at_ms and a.attempt > b.attempt)
    if before.phase != Phase.WAITING or after.left_out:
        raise NotHere
    _erase(scene, run)
    scene.change(after, left_out=1)


# --- CancelledStays


def _cancelled_while_waiting(scene: Scene) -> tuple[Story, StateWritten]:
    story = scene.single(lambda s: not s.dispatches and not s.defined[0].delivers and _ended(s, Phase.CANCELLED) is not None)
    _forgotten_unsaid(scene, story)
    end = _ended(story, Phase.CANCELLED)
    assert end is not None
    return story, end


def _dispatch_after(scene: Scene, state: StateWritten) -> Dispatched:
    like = scene.plain().dispatches[0]
    dispatch = like._replace(
        at_ms=max(state.at_ms, state.slot_ms),
        offset=BIG,
        token=BIG,
        job_id=state.job_id,
        generation=state.generation,
        slot_ms=state.slot_ms,
    )
    scene.add(dispatch)
    return dispatch


@breaks("CancelledStays", faults=False)
def cancelled_and_dispatched(scene: Scene) -> None:
    _dispatch_after(scene, _cancelled_while_waiting(scene)[1])


@breaks("CancelledStays", faults=False)
def cancelled_and_started(scene: Scene) -> None:
    dispatch = _dispatch_after(scene, _cancelled_while_waiting(scene)[1])
    scene.add(Started(dispatch.at_ms, dispatch.job_id, dispatch.token))


@breaks("CancelledStays", "HeardOut")
def cancelled_while_out_and_handed_out_again(scene: Scene) -> None:
    story = scene.single(lambda s: any(state.phase == Phase.CANCELLING for state in s.states) and _ended(s, Phase.CANCELLED) is not None)
    _forgotten_unsaid(scene, story)
    _dispatch_after(scene, next(state for state in story.states if state.phase == Phase.CANCELLING))


@breaks("CancelledStays", faults=False)
def a_cancel_that_came_in_time_did_nothing(scene: Scene) -> None:
    story = scene.plain(lambda s: s.enqueues[0].due_ms - scene.answer(s).at_ms > 2 * PLAN.cancel_ahead_ms)
    asked = scene.answer(story)
    scene.add(CancelInvoked(asked.at_ms, "cancel", story.job_id), Acknowledged(asked.at_ms + 1, "cancel", asked.partition, BIG))


# --- OffsetsRise


@breaks("OffsetsRise")
def an_offset_one_back(scene: Scene) -> None:
    commit = scene.any(commit for commit in scene.events(Committed) if commit.offset)
    last = [other for other in scene.events(Committed) if other[1:4] == commit[1:4]][-1]
    scene.add(last._replace(offset=last.offset - 1))


@breaks("OffsetsRise")
def an_offset_back_at_the_start(scene: Scene) -> None:
    commits = list(scene.events(Committed))
    first = next(index for index, commit in enumerate(commits) if commit.offset > 1)
    scene.history.insert(scene.history.index(commits[first]) + 1, commits[first]._replace(offset=0))


@breaks("OffsetsRise")
def a_reset_that_nobody_made(scene: Scene) -> None:
    scene.drop(scene.any(scene.events(OffsetsReset)))


@breaks("OffsetsRise")
def an_old_owner_committed_last(scene: Scene) -> None:
    commits = [commit for commit in scene.events(Committed) if commit.group == scene.any(scene.events(Committed)).group]
    old = scene.any(c for c in commits if any(later[1:4] == c[1:4] and later.offset > c.offset for later in commits))
    scene.add(old)


# --- WitnessesAgree


def _snapshot(scene: Scene, witness: str) -> Snapshot:
    return scene.any(snapshot for snapshot in scene.events(Snapshot) if snapshot.witness == witness and snapshot.jobs)


@breaks("WitnessesAgree")
def the_store_lacks_a_job(scene: Scene) -> None:
    snapshot = _snapshot(scene, "store")
    gone = scene.any(snapshot.jobs)
    scene.change(snapshot, jobs={job_id: told for job_id, told in snapshot.jobs.items() if job_id != gone})


@breaks("WitnessesAgree")
def the_store_knows_one_more(scene: Scene) -> None:
    snapshot = _snapshot(scene, "store")
    scene.change(snapshot, jobs={**snapshot.jobs, "nobody": {"phase": Phase.WAITING}})


@breaks("WitnessesAgree")
def the_fold_has_another_token(scene: Scene) -> None:
    snapshot = _snapshot(scene, "fold")
    job_id = scene.any(snapshot.jobs)
    scene.change(snapshot, jobs={**snapshot.jobs, job_id: {**snapshot.jobs[job_id], "token": BIG}})


@breaks("WitnessesAgree")
def the_model_expected_another_end(scene: Scene) -> None:
    snapshot = _snapshot(scene, "model")
    scene.change(snapshot, jobs={**snapshot.jobs, scene.any(snapshot.jobs): {"phase": Phase.WAITING}})


@breaks("WitnessesAgree")
def the_fold_does_not_know_a_field(scene: Scene) -> None:
    snapshot = _snapshot(scene, "fold")
    job_id = scene.any(snapshot.jobs)
    told = {name: value for name, value in snapshot.jobs[job_id].items() if name != "crashes"}
    scene.change(snapshot, jobs={**snapshot.jobs, job_id: told})


# --- BacklogDrains


@breaks("BacklogDrains")
def an_open_transaction_hides_the_end(scene: Scene) -> None:
    end = scene.any(end for end in scene.events(LogEnd) if end.end)
    scene.change(end, last_stable=end.end - 1)


@breaks("BacklogDrains")
def records_left_to_read(scene: Scene) -> None:
    scene.change(scene.any(scene.events(Backlog)), records=1)


@breaks("BacklogDrains")
def records_left_in_a_log_that_nobody_reads(scene: Scene) -> None:
    backlog = scene.any(scene.events(Backlog))
    scene.add(backlog._replace(group="nobody", records=7))


@breaks("BacklogDrains")
def the_end_was_hidden_for_too_long(scene: Scene) -> None:
    end = scene.any(end for end in scene.events(LogEnd) if end.end)
    late = end._replace(at_ms=end.at_ms + PLAN.recovery_ms, last_stable=end.end - 1)
    scene.add(late, end._replace(at_ms=late.at_ms + 1))


# --- OneDeadLetter


@breaks("OneDeadLetter")
def a_bad_record_passed_over(scene: Scene) -> None:
    scene.drop(scene.any(letter for letter in scene.events(DeadLettered) if letter.reason == "undecodable"))


@breaks("OneDeadLetter")
def a_bad_record_told_twice(scene: Scene) -> None:
    scene.add(scene.any(letter for letter in scene.events(DeadLettered) if letter.reason == "undecodable"))


@breaks("OneDeadLetter")
def a_good_record_refused(scene: Scene) -> None:
    story = scene.plain()
    asked = scene.answer(story)
    scene.add(DeadLettered(asked.at_ms, "intake", asked.partition, asked.offset, "undecodable", story.job_id))


@breaks("OneDeadLetter")
def the_letter_names_another_record(scene: Scene) -> None:
    bad = scene.any(scene.events(BadRecordWritten))
    letter = next(letter for letter in scene.events(DeadLettered) if (letter.partition, letter.offset) == (bad.partition, bad.offset))
    scene.change(letter, offset=BIG)


def _dead(scene: Scene) -> Story:
    return scene.single(lambda story: len(story.deaths) == 1 and not story.closings)


@breaks("OneDeadLetter", "NoPhantom")
def died_and_was_not_buried(scene: Scene) -> None:
    scene.drop(*_dead(scene).deaths)


@breaks("OneDeadLetter")
def died_and_was_buried_twice(scene: Scene) -> None:
    scene.add(*_dead(scene).deaths)


@breaks("OneDeadLetter")
def buried_under_a_token_of_nobody(scene: Scene) -> None:
    end = scene.plain().states[-1]
    scene.add(RunDied(end.at_ms, end.job_id, BIG, Reason.FAILED))


@breaks("OneDeadLetter", "OneOutcome", "NoPhantom")
def buried_alive(scene: Scene) -> None:
    end = scene.plain().states[-1]
    scene.add(RunDied(end.at_ms, end.job_id, end.token, Reason.FAILED))


# --- CrashLimit


def _crashed(scene: Scene) -> tuple[Story, Dispatched, Dispatched]:
    """A run that was handed out again after its worker vanished, with the dispatches before and after."""

    def pairs(story: Story) -> Iterator[tuple[Dispatched, Dispatched]]:
        dispatches = story.runs[0].dispatches if not story.runs[0].undone else []
        for before, after in pairwise(dispatches):
            outcome = story.deciding.get(before.token)
            if outcome is not None and outcome.result == Result.LOST and after.crashes > before.crashes:
                yield before, after

    story = scene.single(lambda s: any(pairs(s)) and all(d.reason != Reason.CRASH_LIMIT for d in s.deaths))
    return (story, *next(pairs(story)))


def _limits(crashes_max: int) -> Limits:
    return {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": crashes_max}


@breaks("CrashLimit")
def a_crash_was_not_counted(scene: Scene) -> None:
    _, _, after = _crashed(scene)
    scene.change(after, crashes=0)


@breaks("CrashLimit")
def dispatched_beyond_the_limit(scene: Scene) -> None:
    story, _, after = _crashed(scene)
    if any(state.phase in (Phase.EXPIRED, Phase.FAILED) for state in story.states):
        raise NotHere
    scene.change(story.enqueues[0], limits=_limits(after.crashes))


@breaks("CrashLimit")
def more_crashes_told_than_there_were_attempts(scene: Scene) -> None:
    story, _, after = _crashed(scene)
    if story.enqueues[0].limits is not None:
        raise NotHere
    scene.change(story.enqueues[0], limits=_limits(100))
    scene.change(after, crashes=story.runs[0].dispatches.index(after) + 1)


@breaks("CrashLimit")
def given_up_after_no_crash_at_all(scene: Scene) -> None:
    death = scene.single(lambda s: len(s.deaths) == 1 and s.deaths[0].reason == Reason.FAILED and len(s.dispatches) == 1 and not s.closings)
    if death.enqueues[0].limits is not None:
        raise NotHere
    scene.change(death.deaths[0], reason=Reason.CRASH_LIMIT)


@breaks("CrashLimit")
def given_up_before_the_limit(scene: Scene) -> None:
    story = scene.single(lambda s: any(death.reason == Reason.CRASH_LIMIT for death in s.deaths))
    limits = story.enqueues[0].limits or _limits(0)
    scene.change(story.enqueues[0], limits={**limits, "crashes_max": (limits["crashes_max"] or 3) + 1})


# --- HeardOut


def _ran_long(scene: Scene) -> tuple[Story, Dispatched, OutcomeRecorded]:
    """A run that said that it runs, and succeeded within its lease."""

    def in_time(story: Story) -> bool:
        run = story.runs[0]
        leases = [state.wake_ms for state in run.states if state.phase == Phase.RUNNING]
        outcome = story.deciding.get(run.dispatches[0].token) if len(run.dispatches) == 1 else None
        return bool(leases) and outcome is not None and outcome.at_ms <= max(leases)

    story = scene.single(lambda s: _ended(s, Phase.SUCCEEDED) is not None and not s.cancels and in_time(s))
    dispatch = story.dispatches[0]
    return story, dispatch, story.deciding[dispatch.token]


def _hand_out_again(scene: Scene, story: Story, dispatch: Dispatched, outcome: OutcomeRecorded) -> None:
    """As if the lease had ended and nobody had heard: another dispatch, whose end counts."""
    end = story.runs[0].lasting_ends[0].event
    again = dispatch._replace(at_ms=outcome.at_ms + 1_000, token=BIG, offset=BIG)
    scene.drop(*story.forgotten)
    scene.change(end, token=BIG, at_ms=outcome.at_ms + 1_003)
    scene.add(again, Started(again.at_ms + 1, story.job_id, BIG), outcome._replace(at_ms=again.at_ms + 2, token=BIG, offset=BIG))


@breaks("HeardOut")
def a_success_unheard(scene: Scene) -> None:
    _hand_out_again(scene, *_ran_long(scene))


@breaks("HeardOut")
def a_discard_unheard(scene: Scene) -> None:
    story, dispatch, outcome = _ran_long(scene)
    scene.change(outcome, result=Result.DISCARDED)
    _hand_out_again(scene, story, dispatch, outcome)


@breaks("HeardOut")
def an_end_in_the_last_millisecond_unheard(scene: Scene) -> None:
    story, dispatch, outcome = _ran_long(scene)
    until_ms = max(state.wake_ms for state in story.states if state.phase == Phase.RUNNING)
    scene.change(outcome, at_ms=until_ms)
    _hand_out_again(scene, story, dispatch, outcome._replace(at_ms=until_ms))


@breaks("HeardOut")
def an_end_unheard_in_a_lease_that_an_unheard_word_extended(scene: Scene) -> None:
    story, dispatch, outcome = _ran_long(scene)
    until_ms = max(state.wake_ms for state in story.states if state.phase == Phase.RUNNING)
    scene.add(outcome._replace(at_ms=until_ms, result=Result.HEARTBEAT, lease_ms=1_000, offset=BIG + 1))
    scene.change(outcome, at_ms=until_ms + 1_000)
    _hand_out_again(scene, story, dispatch, outcome._replace(at_ms=until_ms + 1_000))


@breaks("HeardOut", "CrashLimit")
def a_retry_unheard(scene: Scene) -> None:
    def retried(story: Story) -> bool:
        run = story.runs[0]
        outcome = story.deciding.get(run.dispatches[0].token) if len(run.dispatches) > 1 else None
        leases = [state.wake_ms for state in run.states if state.phase == Phase.RUNNING and state.token == run.dispatches[0].token]
        return bool(leases) and outcome is not None and outcome.result == Result.RETRY and outcome.at_ms <= max(leases)

    story = scene.single(lambda story: not story.runs[0].undone and retried(story))
    after = story.runs[0].dispatches[1]
    scene.change(after, crashes=after.crashes + 1)


# --- DeliveredOnce


def _delivered(scene: Scene) -> Story:
    """A record that was asked for once and delivered."""
    return scene.single(lambda story: len(story.deliveries) == 1 and not story.redrives)


@breaks("DeliveredOnce")
def delivered_says_its_state_and_its_topic_has_nothing(scene: Scene) -> None:
    scene.drop(*_delivered(scene).deliveries)


@breaks("DeliveredOnce")
def delivered_twice_by_two_transactions_under_one_token(scene: Scene) -> None:
    record = _delivered(scene).deliveries[0]
    scene.add(record._replace(offset=BIG, at_ms=record.at_ms + 1))


@breaks("DeliveredOnce")
def delivered_twice_and_only_one_is_known_to_the_changelog(scene: Scene) -> None:
    record = _delivered(scene).deliveries[0]
    scene.add(record._replace(offset=BIG, token=BIG, at_ms=record.at_ms + 1))


@breaks("DeliveredOnce")
def delivered_although_it_was_cancelled_or_too_late(scene: Scene) -> None:
    story = scene.single(
        lambda s: s.defined[0].delivers and not s.deliveries and bool(_ended(s, Phase.CANCELLED) or _ended(s, Phase.EXPIRED))
    )
    scene.add(Delivered(story.states[-1].at_ms + story.defined[0].due_ms, "out", 0, BIG, story.job_id, story.defined[0].due_ms, BIG))


@breaks("DeliveredOnce")
def delivered_for_another_time(scene: Scene) -> None:
    record = _delivered(scene).deliveries[0]
    scene.change(record, slot_ms=record.slot_ms - 1)


@breaks("DeliveredOnce", "Punctual")
def a_record_to_deliver_goes_to_workers_too(scene: Scene) -> None:
    story, like = _delivered(scene), scene.plain().dispatches[0]
    record = story.deliveries[0]
    state = next(state for state in story.states if state.token == record.token)
    fields: Any = {"job_id": story.job_id, "generation": state.generation, "slot_ms": record.slot_ms, "token": record.token, "offset": BIG}
    scene.add(like._replace(at_ms=record.at_ms, timer_partition=state.partition, **fields))


@breaks("NeverEarly")
def delivered_before_its_time(scene: Scene) -> None:
    record = _delivered(scene).deliveries[0]
    scene.change(record, at_ms=record.slot_ms - 1)


# --- AnsweredOnce


def _answered(scene: Scene) -> tuple[Story, Answered]:
    """An update that was acknowledged and answered."""
    updates = [(story, change) for story in scene.stories() for change in story.changes if change.action == Action.UPDATE]
    stored = {(a.partition, a.offset) for a in (scene.ledger.acknowledged(change.call) for _, change in updates) if a is not None}
    found = [(story, a) for story, _ in updates for a in story.answered if (a.partition, a.command) in stored]
    return scene.any(found)


@breaks("AnsweredOnce", "PausedStays", "Punctual", "OneOutcome")
def a_change_that_nobody_answered(scene: Scene) -> None:
    def is_lone(story: Story) -> bool:
        known_ms = min((record.at_ms for record in story.defined), default=0)
        stored = scene.ledger.acknowledged(story.changes[0].call) if len(story.changes) == len(story.answered) == 1 else None
        return stored is not None and bool(story.answered[0].reason) and known_ms <= stored.at_ms

    story = scene.any(story for story in scene.stories() if is_lone(story))
    scene.drop(*story.answered, *story.forgotten)


@breaks("AnsweredOnce", "PausedStays")
def a_change_that_was_answered_twice(scene: Scene) -> None:
    _, answered = _answered(scene)
    scene.add(answered._replace(offset=answered.offset + BIG))


@breaks("AnsweredOnce", "PausedStays")
def a_change_that_was_answered_as_another(scene: Scene) -> None:
    _, answered = _answered(scene)
    scene.change(answered, action=Action.RESUME)


@breaks("AnsweredOnce")
def an_answer_to_nothing(scene: Scene) -> None:
    story = scene.plain()
    scene.add(Answered(story.states[-1].at_ms, 0, story.states[-1].offset, story.job_id, BIG, Action.RESUME))


# --- PausedStays


def _paused(scene: Scene) -> tuple[Story, Answered]:
    """A job that was paused, resumed, and dispatched then; and the answer to its resume."""

    def resumed(story: Story) -> Answered | None:
        pauses = story.pauses
        until = pauses[0].until if len(pauses) == 1 else None
        if not isinstance(until, Answered) or until.action != Action.RESUME or len(story.runs) != 1 or len(story.enqueues) != 1:
            return None
        if until.offset == pauses[0].begun.offset:
            return None
        return until if any(dispatch.token > pauses[0].token for dispatch in story.dispatches) else None

    story = scene.any(story for story in scene.stories() if resumed(story) is not None)
    until = resumed(story)
    assert until is not None
    return story, until


def _resume_of(scene: Scene, story: Story, answered: Answered) -> ChangeInvoked:
    """The call behind an answer."""
    place = answered.partition, answered.command
    for change in story.changes:
        stored = scene.ledger.acknowledged(change.call)
        if stored is not None and (stored.partition, stored.offset) == place:
            return change
    raise NotHere


@breaks("PausedStays")
def dispatched_though_it_was_never_resumed(scene: Scene) -> None:
    story, answered = _paused(scene)
    change = _resume_of(scene, story, answered)
    if sum(other.action != Action.PAUSE for other in story.changes) > 1:
        raise NotHere
    scene.drop(answered, change)


@breaks("PausedStays", "Punctual")
def dispatched_before_it_was_resumed(scene: Scene) -> None:
    story, answered = _paused(scene)
    if sum(other.action != Action.PAUSE for other in story.changes) > 1 or story.states[-1].phase != Phase.SUCCEEDED:
        raise NotHere
    scene.change(answered, offset=story.states[-1].offset)


@breaks("PausedStays")
def resumed_by_a_command_that_was_refused(scene: Scene) -> None:
    story, answered = _paused(scene)
    if sum(other.action != Action.PAUSE for other in story.changes) > 1:
        raise NotHere
    scene.change(answered, reason="over")


@breaks("PausedStays")
def paused_though_nobody_asked(scene: Scene) -> None:
    story = scene.plain()
    state = story.states[0]
    scene.add(state._replace(phase=Phase.PAUSED, token=0, attempt=0, offset=story.defined[0].offset, at_ms=story.defined[0].at_ms))


# --- the tests


def _spoilt(mutation: Mutation) -> Iterator[list[Event]]:
    for seed in range(SEEDS):
        scene = Scene(seed, mutation.faults, mutation.recurring)
        try:
            mutation.mutate(scene)
        except NotHere:
            continue
        yield scene.history


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.invariant}-{m.mutate.__name__}")
def test_a_mutation_is_found(mutation: Mutation) -> None:
    spoilt = list(islice(_spoilt(mutation), HISTORIES))
    assert len(spoilt) == HISTORIES, f"only {len(spoilt)} of {SEEDS} histories have what this mutation needs"
    for history in spoilt:
        violations = judge(history, PLAN).violations
        found = {violation.invariant for violation in violations}
        assert mutation.invariant in found, "not found"
        assert found - {mutation.invariant} <= mutation.implies, [str(violation) for violation in violations]


def test_each_invariant_has_at_least_three_mutations() -> None:
    counts = Counter(mutation.invariant for mutation in MUTATIONS)
    assert set(counts) == {invariant.name for invariant in INVARIANTS}
    assert min(counts.values()) >= 3


def test_what_may_be_implied_is_an_invariant() -> None:
    names = {invariant.name for invariant in INVARIANTS}
    assert all(mutation.implies < names for mutation in MUTATIONS)


def test_each_invariant_says_what_it_promises() -> None:
    assert all(type(invariant).__doc__ for invariant in INVARIANTS)
    assert len({invariant.title for invariant in INVARIANTS}) == len(INVARIANTS)


def test_a_violation_names_the_job_and_shows_the_events() -> None:
    scene = Scene(1, faults=False)
    start = scene.plain().starts[0]
    scene.add(start)
    (violation,) = judge(scene.history, PLAN).violations
    assert violation.job_id == start.job_id
    assert violation.events == (start, start)
    assert (
        str(violation)
        == f"StartedOnce: handlers of job {start.job_id!r} began at {start.at_ms} and at {start.at_ms}, both under token {start.token}"
    )
