"""The lifecycle table, and that the steps of a partition keep to it: what it does not list changes nothing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.errors import IllegalTransition
from duewheel.core.lifecycle import TERMINAL, TRANSITIONS, Event, follow
from duewheel.core.limits import CRASHES_MAX_DEFAULT, DAY_MS, LEASE_MS
from duewheel.core.model import Closing, OnConflict, Phase, Result, State
from duewheel.core.step import Defined, Step, timer_ms

DUE_MS = 1_000
REDEFINE = "REDEFINE"
SECOND_THOUGHTS = {Event.TOO_LATE, Event.EXHAUSTED, Event.REPLACED, Event.PARKED}
HAPPENING = [event for event in Event if event not in SECOND_THOUGHTS]


def test_every_phase_can_be_reached_and_left_until_it_is_terminal() -> None:
    reached, frontier = {Phase.WAITING}, {Phase.WAITING}
    while frontier:
        frontier = {after for (phase, _), after in TRANSITIONS.items() if phase in frontier} - reached
        reached |= frontier
    assert reached == set(Phase)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - TERMINAL | {Phase.FAILED}


def test_from_every_phase_an_end_can_be_reached() -> None:
    ending = set(TERMINAL)
    while more := {Phase(phase) for (phase, _), after in TRANSITIONS.items() if after in ending} - ending:
        ending |= more
    assert ending == set(Phase)


def test_what_is_over_stays_over_but_for_a_dead_run_that_is_redriven() -> None:
    left = {(phase, event) for phase, event in TRANSITIONS if phase in TERMINAL}
    assert left == {(Phase.FAILED, Event.REDRIVE)}


def test_every_outcome_is_known_to_the_table() -> None:
    assert {str(result) for result in Result} <= {event for _, event in TRANSITIONS}


@pytest.mark.parametrize("phase, event", list(product(Phase, Event)))
def test_an_event_is_listed_or_raises(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert follow(str(phase), str(event)) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{phase}.*{event}"):
            follow(phase, event)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_whatever_happens_a_phase_changes_only_as_listed(events: list[Event]) -> None:
    phase = Phase.WAITING
    for event in events:
        before = phase
        try:
            phase = follow(phase, event)
        except IllegalTransition:
            assert phase is before
            assert (before, event) not in TRANSITIONS
        else:
            assert before not in TERMINAL or event is Event.REDRIVE


class Job:
    """A partition with one job; each event is a step of its own, which is committed."""

    def __init__(self) -> None:
        self.definition: Defined | None = None
        self.committed: State | None = None
        self.timers: set[bytes] = set()
        self.token = 0
        self.now_ms = DUE_MS - 1
        self.redefine(has_queue=True)
        self.now_ms = DUE_MS

    def defined(self, job_id: str) -> Defined | None:
        return self.definition

    def state(self, job_id: str) -> State | None:
        return self.committed

    @property
    def known(self) -> Defined:
        assert self.definition is not None
        return self.definition

    @property
    def superseded(self) -> bool:
        """Whether the last state is of an older generation than the definition."""
        return self.committed is not None and self.committed["generation"] < self.known.generation

    def phase(self, event: str) -> str:
        """Of what the event is about: the newest generation, or the one that was dispatched last."""
        newest = event in (Event.DUE, Event.CANCEL, Event.LEASE_EXPIRED)
        return Phase.WAITING if self.committed is None or (newest and self.superseded) else self.committed["phase"]

    def redefine(self, has_queue: bool) -> Step:
        due_ms = self.now_ms + 1
        step = Step(self, 0, self.token, self.now_ms, has_queue=lambda queue: has_queue)
        step.schedule(
            {
                "job_id": "a",
                "due_ms": due_ms,
                "created_ms": 0,
                "on_conflict": OnConflict.REPLACE,
                "retention_ms": DAY_MS,
                "queue": "default",
                "limits": None,
                "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
            },
            b"work",
            b"command %d" % (0 if self.definition is None else self.known.generation),
        )
        step.fire([])
        self._commit(step)
        return step

    def happen(self, event: Event, has_queue: bool) -> Step:
        wake_ms = timer_ms(self.known, self.committed)
        if event in (Event.DUE, Event.LEASE_EXPIRED):
            self.now_ms = max(self.now_ms, wake_ms)
        heard_ms = self.now_ms if event is Event.LEASE_EXPIRED else 0
        step = Step(self, 0, self.token, self.now_ms, has_queue=lambda queue: has_queue, heard_ms=heard_ms)
        if event is Event.CANCEL:
            step.cancel({"job_id": "a", "created_ms": 0})
        elif event is Event.REDRIVE:
            step.redrive({"job_id": "a", "token": self.token, "created_ms": 0})
        elif event is Event.OVERDUE:
            step.overdue("a", self.token)
        elif event not in (Event.DUE, Event.LEASE_EXPIRED):
            step.outcome(
                {
                    "token": self.token,
                    "job_id": "a",
                    "slot_ms": DUE_MS,
                    "attempt": 1,
                    "result": event,
                    "started_ms": DUE_MS,
                    "finished_ms": DUE_MS,
                    "worker": "w",
                    "error": None,
                    "retry_after_ms": 10,
                    "lease_ms": LEASE_MS,
                    "output": None,
                }
            )
        due = event is Event.DUE and self.phase(event) == Phase.WAITING
        lease_over = event is Event.LEASE_EXPIRED and self.phase(event) in (Phase.RUNNING, Phase.CANCELLING)
        step.fire(sorted(self.timers) if due or lease_over else [])
        self._commit(step)
        return step

    def _commit(self, step: Step) -> None:
        self.definition = step.definitions.get("a", self.definition)
        self.committed = step.states.get("a", self.committed)
        self.timers -= {*step.timers_unset, *step.fired}
        self.timers |= set(step.timers_set)
        self.token = step.token


def expected(job: Job, event: Event, has_queue: bool) -> str:
    """Where the event leads by the table, second thoughts included."""
    phase, superseded, crashes = job.phase(event), job.superseded, 0 if job.committed is None else job.committed["crashes"]
    newest_anyway = event in (Event.DUE, Event.CANCEL)
    if event is Event.REDRIVE and superseded:
        return phase
    if event is Event.LEASE_EXPIRED and (superseded or job.committed is None or job.committed["trail"] is None):
        return phase
    try:
        after = follow(phase, event)
    except IllegalTransition:
        return phase
    if event is Event.REDRIVE:
        after = follow(after, Event.DUE)
    elif after in (Phase.DISPATCHED, Phase.WAITING) and superseded and not newest_anyway:
        return follow(phase, Event.REPLACED)
    elif event in (Event.LOST, Event.LEASE_EXPIRED) and after == Phase.DISPATCHED and crashes + 1 >= CRASHES_MAX_DEFAULT:
        return follow(phase, Event.EXHAUSTED)
    if after == Phase.DISPATCHED and not has_queue:
        return Phase.WAITING
    return after


@given(st.lists(st.tuples(st.sampled_from([REDEFINE, *HAPPENING]), st.booleans()), max_size=40))
def test_a_job_goes_the_way_of_the_table_whatever_happens_to_it(events: list[tuple[Event | str, bool]]) -> None:
    job = Job()
    open_deaths: set[int] = set()
    for event, has_queue in events:
        generation, before, committed = job.known.generation, job.phase(event), job.committed
        if isinstance(event, Event):
            wanted = expected(job, event, has_queue)
            step = job.happen(event, has_queue)
            assert job.phase(event) == wanted, (before, event)
            assert job.known.generation == generation
            if (before, event) not in TRANSITIONS:
                assert job.committed == committed, "what is not listed changes nothing"
        else:
            step = job.redefine(has_queue)
        open_deaths |= {death.state["token"] for death in step.deaths}
        assert {closed.how for closed in step.closings} <= {Closing.REDRIVEN, Closing.REPLACED}
        open_deaths -= {closed.token for closed in step.closings}
        dead = job.committed is not None and not job.superseded and job.committed["phase"] == Phase.FAILED
        assert open_deaths == ({job.token} if dead else set()), "the dead letters know who is dead"
        check_timer(job)


def check_timer(job: Job) -> None:
    wake_ms = timer_ms(job.known, job.committed)
    current = None if job.superseded else job.committed
    phase = Phase.WAITING if current is None else current["phase"]
    leased = current is not None and current["trail"] is not None and current["trail"]["wake_ms"] > 0
    assert (wake_ms > 0) == (phase == Phase.WAITING or leased)
    assert leased <= (phase in (Phase.WAITING, Phase.RUNNING, Phase.CANCELLING))
    assert {int.from_bytes(timer[:8], "big") for timer in job.timers} == ({wake_ms} if wake_ms else set())
