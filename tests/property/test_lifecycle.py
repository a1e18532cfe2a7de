"""The lifecycle table, and that the steps of a partition keep to it: what it does not list changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.lifecycle import TERMINAL, TRANSITIONS, Event
from duewheel.core.limits import DAY_MS
from duewheel.core.model import OnConflict, Phase, State
from duewheel.core.step import Defined, Step

DUE_MS = 1_000
REDEFINE = "REDEFINE"


def test_every_phase_can_be_reached_and_left_until_it_is_terminal() -> None:
    reached, frontier = {Phase.WAITING}, {Phase.WAITING}
    while frontier:
        frontier = {after for (phase, _), after in TRANSITIONS.items() if phase in frontier} - reached
        reached |= frontier
    assert reached == set(Phase)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - TERMINAL


class Job:
    """A partition with one job; each event is a step of its own, which is committed."""

    def __init__(self) -> None:
        self.definition: Defined | None = None
        self.committed: State | None = None
        self.timers: set[bytes] = set()
        self.token = 0
        self.redefine(has_queue=True)

    def defined(self, job_id: str) -> Defined | None:
        return self.definition

    def state(self, job_id: str) -> State | None:
        return self.committed

    @property
    def generation(self) -> int:
        assert self.definition is not None
        return self.definition.generation

    @property
    def redefined(self) -> bool:
        """Whether the last state is of an older generation than the definition."""
        return self.committed is None or self.committed["generation"] < self.generation

    def phase(self, event: str) -> str:
        """Of what the event is about: the newest generation, or the one that was dispatched last."""
        newest = event in (Event.DUE, Event.CANCEL)
        return Phase.WAITING if self.committed is None or (newest and self.redefined) else self.committed["phase"]

    def redefine(self, has_queue: bool) -> None:
        step = Step(self, 0, self.token, DUE_MS - 1, has_queue=lambda queue: has_queue)
        step.schedule(
            {
                "job_id": "a",
                "due_ms": DUE_MS,
                "created_ms": 0,
                "on_conflict": OnConflict.REPLACE,
                "retention_ms": DAY_MS,
                "queue": "default",
                "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}},
            },
            b"work",
            b"command %d" % (0 if self.definition is None else self.generation),
        )
        step.fire([])
        self._commit(step)

    def happen(self, event: Event, has_queue: bool) -> None:
        step = Step(self, 0, self.token, DUE_MS, has_queue=lambda queue: has_queue)
        if event is Event.CANCEL:
            step.cancel({"job_id": "a", "created_ms": 0})
        elif event is Event.OVERDUE:
            step.overdue("a", self.token)
        elif event is not Event.DUE:
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
                }
            )
        step.fire(sorted(self.timers) if event is Event.DUE else [])
        self._commit(step)

    def _commit(self, step: Step) -> None:
        self.definition = step.definitions.get("a", self.definition)
        self.committed = step.states.get("a", self.committed)
        self.timers -= {*step.timers_unset, *step.fired}
        self.timers |= set(step.timers_set)
        self.token = step.token


def expected(phase: str, event: Event, redefined: bool, has_queue: bool) -> str:
    after = TRANSITIONS.get((phase, event), phase)
    if after == Phase.DISPATCHED and (phase, event) in TRANSITIONS:
        if redefined and event is not Event.DUE:
            return Phase.CANCELLED
        if not has_queue:
            return Phase.WAITING
    return after


@given(st.lists(st.tuples(st.sampled_from([REDEFINE, *Event]), st.booleans()), max_size=30))
def test_a_job_goes_the_way_of_the_table_whatever_happens_to_it(events: list[tuple[Event | str, bool]]) -> None:
    job = Job()
    for event, has_queue in events:
        if not isinstance(event, Event):
            job.redefine(has_queue)
            continue
        before, redefined, generation = job.phase(event), job.redefined, job.generation
        job.happen(event, has_queue)
        assert job.phase(event) == expected(before, event, redefined, has_queue), (before, event)
        assert job.generation == generation
        assert job.timers or job.phase(Event.DUE) != Phase.WAITING, "it would wait for ever"
