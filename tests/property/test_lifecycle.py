"""The lifecycle table, and that the steps of a partition keep to it: what it does not list changes nothing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duewheel.core import trail as trails
from duewheel.core.errors import IllegalTransition
from duewheel.core.lifecycle import TERMINAL, TRANSITIONS, Event, follow
from duewheel.core.limits import DAY_MS, LEASE_MS
from duewheel.core.model import Closing, Limits, OnConflict, Outcome, Phase, Result, State
from duewheel.core.step import Counts, Defined, Step, timer_ms

DUE_MS = 1_000
REDEFINE = "REDEFINE"
SECOND_THOUGHTS = {Event.TOO_LATE, Event.EXHAUSTED, Event.REPLACED, Event.PARKED}
OVERLAY = [
    "definitions",
    "states",
    "timers_set",
    "timers_unset",
    "fired",
    "dispatches",
    "stops",
    "deaths",
    "closings",
    "size_bytes",
    "must_listen",
]
# A job that workers run once meets neither FINISHED nor DELIVERED; tests/unit/test_step_recurrence.py has those that recur, and
# tests/unit/test_deliveries.py those without a worker. Those that are paused are in tests/unit/test_step_changes.py: a change is answered
# whatever it finds, and so it never changes nothing.
ELSEWHERE = {Event.FINISHED, Event.DELIVERED, Event.PAUSE, Event.RESUME}
HAPPENING = [event for event in Event if event not in SECOND_THOUGHTS and event not in ELSEWHERE]


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


@given(st.text(max_size=12) | st.sampled_from(Phase), st.text(max_size=12) | st.sampled_from(Event))
def test_what_is_neither_phase_nor_event_raises_the_same(phase: str, event: str) -> None:
    try:
        assert follow(phase, event) is TRANSITIONS[phase, event]
    except IllegalTransition:
        assert (phase, event) not in TRANSITIONS


def outcome(token: int, result: str) -> Outcome:
    return {
        "token": token,
        "job_id": "a",
        "slot_ms": DUE_MS,
        "attempt": 1,
        "result": result,
        "started_ms": DUE_MS,
        "finished_ms": DUE_MS,
        "worker": "w",
        "error": None,
        "retry_after_ms": 10,
        "lease_ms": LEASE_MS,
        "output": None,
    }


class Job:
    """A partition with one job; each event is a step of its own, which is committed."""

    def __init__(self, crashes_max: int = 0) -> None:
        self.limits: Limits | None = {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": crashes_max} if crashes_max else None
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
                "limits": self.limits,
                "recurrence": None,
                "delivery": None,
                "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
            },
            b"work",
            b"command %d" % (0 if self.definition is None else self.known.generation),
        )
        step.fire([])
        self._commit(step)
        return step

    def happen(self, event: Event, has_queue: bool, astray: int = 0) -> Step:
        """Lets an event meet the job, by a token that is `astray` by so much from the newest one."""
        token = self.token + astray
        wake_ms = timer_ms(self.known, self.committed)
        if event in (Event.DUE, Event.LEASE_EXPIRED):
            self.now_ms = max(self.now_ms, wake_ms)
        heard_ms = self.now_ms if event is Event.LEASE_EXPIRED else 0
        step = Step(self, 0, self.token, self.now_ms, has_queue=lambda queue: has_queue, heard_ms=heard_ms)
        if event is Event.CANCEL:
            step.cancel({"job_id": "a", "created_ms": 0, "reach": "DEFAULT"})
        elif event is Event.REDRIVE:
            step.redrive({"job_id": "a", "token": token, "created_ms": 0})
        elif event is Event.OVERDUE:
            step.overdue("a", token)
        elif event not in (Event.DUE, Event.LEASE_EXPIRED):
            step.outcome(outcome(token, event))
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


def leased(state: State | None) -> bool:
    """Whether there is a moment at which the state is looked at again."""
    return state is not None and state["trail"] is not None and state["trail"]["wake_ms"] > 0


def expected(job: Job, event: Event, has_queue: bool) -> str:
    """Where the event leads by the table, second thoughts included."""
    phase, superseded, crashes = job.phase(event), job.superseded, 0 if job.committed is None else job.committed["crashes"]
    newest_anyway = event in (Event.DUE, Event.CANCEL)
    if event is Event.REDRIVE and superseded:
        return phase
    if event is Event.LEASE_EXPIRED and (superseded or not leased(job.committed)):
        return phase
    try:
        after = follow(phase, event)
    except IllegalTransition:
        return phase
    if event is Event.REDRIVE:
        after = follow(after, Event.DUE)
    elif after in (Phase.DISPATCHED, Phase.WAITING) and superseded and not newest_anyway:
        return follow(phase, Event.REPLACED)
    elif event in (Event.LOST, Event.LEASE_EXPIRED) and after == Phase.DISPATCHED and crashes + 1 >= trails.crashes_max(job.limits):
        return follow(phase, Event.EXHAUSTED)
    if after == Phase.DISPATCHED and not has_queue:
        return Phase.WAITING
    return after


# What one event can add to the counts where it changes nothing.
REFUSALS = [Counts(**{name: 1}) for name in ("illegal", "cancels_late", "redrives_late", "stale", "corrupt")]
UNHEARD = [Counts()]  # nobody is told that a moment came and meant nothing


def check_unchanged(step: Step) -> None:
    """An empty overlay, and at most one thing counted."""
    for name in OVERLAY:
        assert not getattr(step, name), name
    assert step.counts in REFUSALS + UNHEARD


# Most events end a job. Those by which it goes on come more often, and the first of them almost always, or few lives would be long.
LIVELY = [Event.DUE, Event.STARTED, Event.HEARTBEAT, Event.RETRY, Event.LOST, Event.INTERRUPTED, Event.LEASE_EXPIRED, Event.REDRIVE]
happenings = st.sampled_from([REDEFINE, *HAPPENING, *LIVELY, *LIVELY, *LIVELY])
event_lists = st.lists(st.tuples(happenings, st.sampled_from([True, True, False])), max_size=40)
events = st.builds(lambda first, rest: first + rest, st.sampled_from([[(Event.DUE, True)], [(Event.DUE, True)], []]), event_lists)


@settings(max_examples=300)
@given(events, st.sampled_from([0, 1, 2, 3]))
def test_a_job_goes_the_way_of_the_table_whatever_happens_to_it(events: list[tuple[Event | str, bool]], crashes_max: int) -> None:
    job = Job(crashes_max)
    open_deaths: set[int] = set()
    for event, has_queue in events:
        generation, before, committed, token = job.known.generation, job.phase(event), job.committed, job.token
        if isinstance(event, Event):
            wanted = expected(job, event, has_queue)
            step = job.happen(event, has_queue)
            assert job.phase(event) == wanted, (before, event)
            assert job.known.generation == generation
            if (before, event) not in TRANSITIONS:
                assert (job.committed, job.token) == (committed, token)
                check_unchanged(step)
        else:
            step = job.redefine(has_queue)
        open_deaths |= {death.state["token"] for death in step.deaths}
        assert {closed.how for closed in step.closings} <= {Closing.REDRIVEN, Closing.REPLACED}
        open_deaths -= {closed.token for closed in step.closings}
        dead = job.committed is not None and not job.superseded and job.committed["phase"] == Phase.FAILED
        assert open_deaths == ({job.token} if dead else set()), "the dead letters know who is dead"
        check_timer(job)


def live(job: Job, event: Event | str, has_queue: bool) -> None:
    if isinstance(event, Event):
        job.happen(event, has_queue)
    else:
        job.redefine(has_queue)


OUTCOMES = [Event(result) for result in Result]


@settings(max_examples=300)
@given(events)
def test_an_event_by_another_token_changes_nothing_wherever_the_job_stands(events: list[tuple[Event | str, bool]]) -> None:
    job = Job()
    for event, has_queue in events:
        live(job, event, has_queue)
    before = job.definition, job.committed, job.timers.copy(), job.token
    for event, astray in product([*OUTCOMES, Event.REDRIVE, Event.OVERDUE], [-(2**62), -1, 1, 2**62]):
        step = job.happen(event, True, astray)
        assert (job.definition, job.committed, job.timers, job.token) == before, (event, astray)
        check_unchanged(step)
        if event in OUTCOMES and job.committed is not None:
            assert (step.counts.stale, step.counts.corrupt) == ((1, 0) if astray < 0 else (0, 1))


@settings(max_examples=300)
@given(events, st.data())
def test_what_is_illegal_leaves_a_step_as_it_was_amid_others(events: list[tuple[Event | str, bool]], data: st.DataObject) -> None:
    """Two partitions live through the same; one of them is told what is illegal besides, in the same step."""
    job, twin = Job(), Job()
    for event, has_queue in events:
        for each in (job, twin):
            live(each, event, has_queue)
        phase = Phase.WAITING if job.committed is None else job.committed["phase"]
        illegal = [event for event in OUTCOMES if (phase, event) not in TRANSITIONS]
        if job.committed is None or not illegal:
            continue
        told = data.draw(st.lists(st.sampled_from(illegal), min_size=1, max_size=3))
        step, plain = (Step(each, 0, each.token, each.now_ms) for each in (job, twin))
        for result in told:
            step.outcome(outcome(job.token, result))
        step.cancel({"job_id": "a", "created_ms": 0, "reach": "DEFAULT"})
        plain.cancel({"job_id": "a", "created_ms": 0, "reach": "DEFAULT"})
        assert step.counts.illegal == len(told)
        for name in OVERLAY:
            assert getattr(step, name) == getattr(plain, name), name


def check_timer(job: Job) -> None:
    wake_ms = timer_ms(job.known, job.committed)
    current = None if job.superseded else job.committed
    phase = Phase.WAITING if current is None else current["phase"]
    assert (wake_ms > 0) == (phase == Phase.WAITING or leased(current))
    assert leased(current) <= (phase in (Phase.WAITING, Phase.RUNNING, Phase.CANCELLING))
    assert {int.from_bytes(timer[:8], "big") for timer in job.timers} == ({wake_ms} if wake_ms else set())
