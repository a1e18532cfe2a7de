"""The rules by which jobs live, one situation a test. The view is a dict: what was committed by the steps before."""

from __future__ import annotations

from typing import Any, cast

from duewheel.core.limits import BATCH_BYTES_MAX, DAY_MS, PARKED_MS
from duewheel.core.model import Cancel, Limits, OnConflict, Outcome, Phase, Result, Schedule, State
from duewheel.core.step import Defined, Step
from duewheel.core.wheel import timer_key

NOW_MS = 1_764_600_000_000


class World:
    """A partition between its steps: commits each step, keeps timers, and fires what is due."""

    def __init__(self) -> None:
        self.definitions: dict[str, Defined | None] = {}
        self.states: dict[str, State | None] = {}
        self.timers: set[bytes] = set()
        self.token = 0
        self.now_ms = NOW_MS

    def defined(self, job_id: str) -> Defined | None:
        return self.definitions.get(job_id)

    def state(self, job_id: str) -> State | None:
        return self.states.get(job_id)

    def step(self, *inputs: Schedule | Cancel | Outcome, catching_up: bool = False) -> Step:
        step = Step(self, 0, self.token, self.now_ms, catching_up)
        for record in inputs:
            if "due_ms" in record:
                step.schedule(cast(Schedule, record), b"work", repr(record).encode())
            elif "result" in record:
                step.outcome(cast(Outcome, record))
            else:
                step.cancel(record)
        step.fire([] if catching_up else sorted(key for key in self.timers if key < timer_key(self.now_ms + 1, "")))
        self.definitions |= step.definitions
        self.states |= step.states
        self.timers -= {*step.timers_unset, *step.fired}
        self.timers |= set(step.timers_set)
        self.token = step.token
        return step

    def phase(self, job_id: str = "a") -> str:
        state = self.states[job_id]
        assert state is not None
        return state["phase"]


def schedule(
    job_id: str = "a",
    due_ms: int = NOW_MS,
    on_conflict: str = OnConflict.IGNORE,
    created_ms: int = NOW_MS,
    limits: Limits | None = None,
) -> Schedule:
    return {
        "job_id": job_id,
        "due_ms": due_ms,
        "created_ms": created_ms,
        "on_conflict": on_conflict,
        "retention_ms": DAY_MS,
        "queue": "default",
        "limits": limits,
        "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
    }


def cancel(job_id: str = "a") -> Cancel:
    return {"job_id": job_id, "created_ms": NOW_MS}


def outcome(token: int, result: str = Result.SUCCEEDED, job_id: str = "a", **fields: Any) -> Outcome:
    record: dict[str, Any] = {
        "token": token,
        "job_id": job_id,
        "slot_ms": NOW_MS,
        "attempt": 1,
        "result": result,
        "started_ms": NOW_MS,
        "finished_ms": NOW_MS,
        "worker": "w",
        "error": None,
        "retry_after_ms": 0,
        "lease_ms": 0,
        "output": None,
    }
    return cast(Outcome, record | fields)


def test_a_job_that_is_due_is_dispatched_in_the_same_step() -> None:
    world = World()
    step = world.step(schedule())
    assert [(d.job_id, d.token, d.attempt, d.slot_ms) for d in step.dispatches] == [("a", 1, 1, NOW_MS)]
    assert (world.phase(), world.timers) == (Phase.DISPATCHED, set())


def test_a_job_that_is_not_due_waits_as_a_definition_and_a_timer_only() -> None:
    world = World()
    step = world.step(schedule(due_ms=NOW_MS + 1))
    assert (step.dispatches, step.states, world.timers) == ([], {}, {timer_key(NOW_MS + 1, "a")})
    world.now_ms += 1
    assert [d.token for d in world.step().dispatches] == [1]
    assert world.timers == set()


def test_T2_a_due_time_in_the_past_fires_once() -> None:
    world = World()
    assert len(world.step(schedule(due_ms=NOW_MS - DAY_MS)).dispatches) == 1
    assert world.step(schedule(due_ms=NOW_MS - DAY_MS)).dispatches == []


def test_T3_a_cancel_in_the_same_batch_as_its_due_job_wins() -> None:
    world = World()
    assert world.step(schedule(), cancel()).dispatches == []
    assert world.phase() == Phase.CANCELLED
    assert world.step().dispatches == []


def test_T3_a_cancel_of_a_waiting_job_takes_its_timer_along() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 5))
    world.step(cancel())
    assert (world.phase(), world.timers) == (Phase.CANCELLED, set())
    world.now_ms += 5
    assert world.step().dispatches == []


def test_T3_while_catching_up_only_jobs_that_were_due_when_made_are_dispatched() -> None:
    world = World()
    waited = schedule("waited", due_ms=NOW_MS - 1_000, created_ms=NOW_MS - 2_000)
    at_once = schedule("at-once", due_ms=NOW_MS - 2_000, created_ms=NOW_MS - 2_000)
    assert [d.job_id for d in world.step(waited, at_once, catching_up=True).dispatches] == ["at-once"]
    world.step(cancel("waited"), catching_up=True)
    assert world.step().dispatches == []


def test_a_cancel_of_a_dispatched_job_lets_it_finish_but_never_go_out_again() -> None:
    for result, after in ((Result.SUCCEEDED, Phase.SUCCEEDED), (Result.LOST, Phase.CANCELLED), (Result.INTERRUPTED, Phase.CANCELLED)):
        world = World()
        world.step(schedule())
        world.step(cancel())
        assert world.phase() == Phase.CANCELLING
        assert world.step(outcome(1, result)).dispatches == []
        assert world.phase() == after


def test_a_known_job_id_is_ignored_by_default() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 5))
    step = world.step(schedule(due_ms=NOW_MS + 9, created_ms=NOW_MS + 1))
    assert (step.counts.duplicates, world.timers) == (1, {timer_key(NOW_MS + 5, "a")})


def test_T8_the_newest_generation_wins_while_the_old_one_waits() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 5))
    world.step(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE))
    assert world.timers == {timer_key(NOW_MS + 9, "a")}
    world.now_ms += 9
    assert [(d.generation, d.slot_ms) for d in world.step().dispatches] == [(2, NOW_MS + 9)]


def test_T8_the_newest_generation_wins_while_the_old_one_runs() -> None:
    world = World()
    world.step(schedule())
    world.step(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE))
    assert world.step(outcome(1, Result.LOST)).dispatches == [], "the old generation is not dispatched again"
    world.now_ms += 9
    assert [(d.generation, d.token) for d in world.step().dispatches] == [(2, 2)]
    assert world.step(outcome(1)).counts.stale == 1
    assert world.step(outcome(2)).counts.succeeded == 1


def test_T8_replaced_in_the_same_batch_it_is_not_early() -> None:
    world = World()
    later = schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE)
    assert world.step(schedule(), later).dispatches == []
    assert world.timers == {timer_key(NOW_MS + 9, "a")}


def test_T8_cancelled_and_then_the_same_id_again() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 5))
    world.step(cancel(), schedule(due_ms=NOW_MS + 6, on_conflict=OnConflict.REPLACE))
    world.now_ms += 6
    assert [(d.generation, d.slot_ms) for d in world.step().dispatches] == [(2, NOW_MS + 6)]


def test_the_same_command_twice_is_one_job_even_if_it_replaces() -> None:
    world = World()
    command = schedule(on_conflict=OnConflict.REPLACE)
    world.step(command)
    world.step(outcome(1))
    assert world.step(command).counts.duplicates == 1
    assert world.phase() == Phase.SUCCEEDED


def test_an_outcome_counts_once_and_only_under_the_current_token() -> None:
    world = World()
    world.step(schedule())
    assert world.step(outcome(1, Result.LOST)).dispatches[0][1:6] == (2, "a", 1, NOW_MS, 2)
    assert world.step(outcome(1)).counts.stale == 1
    assert world.step(outcome(3)).counts.corrupt == 1
    assert world.step(outcome(2), outcome(2)).counts.illegal == 1
    assert world.phase() == Phase.SUCCEEDED


def test_a_lost_dispatch_uses_up_an_attempt_and_an_interrupted_one_does_not() -> None:
    world = World()
    world.step(schedule())
    assert world.step(outcome(1, Result.INTERRUPTED)).dispatches[0].attempt == 1
    assert world.step(outcome(2, Result.LOST)).dispatches[0].attempt == 2
    state = world.states["a"]
    assert state is not None
    assert (state["attempt"], state["crashes"], state["token"]) == (2, 1, 3)


def test_a_timer_left_over_from_an_earlier_life_does_nothing() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1))
    world.timers.add(timer_key(NOW_MS, "a"))
    world.timers.add(timer_key(NOW_MS, "never-heard-of"))
    assert world.step().dispatches == []


def test_W15_a_finished_job_is_forgotten_after_its_retention_and_its_id_may_come_again() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1))

    def forget() -> Step:
        step = Step(world, 0, world.token, world.now_ms)
        step.forget("a")
        return step

    world.now_ms += DAY_MS - 1
    assert forget().definitions == {}
    world.now_ms += 1
    assert forget().definitions == {"a": None}
    assert forget().states == {"a": None}


def test_a_running_job_is_not_forgotten() -> None:
    world = World()
    world.step(schedule())
    world.now_ms += 10 * DAY_MS
    step = Step(world, 0, world.token, world.now_ms)
    step.forget("a")
    assert step.definitions == {}


def test_a_dispatch_without_an_answer_goes_out_again() -> None:
    world = World()
    world.step(schedule())
    step = Step(world, 0, world.token, world.now_ms)
    step.overdue("a", 1)
    assert [d.token for d in step.dispatches] == [2]


def test_large_jobs_fill_a_batch_and_the_rest_keep_their_timers() -> None:
    world = World()
    step = Step(world, 0, 0, NOW_MS - 1)
    for n in range(40):
        step.schedule(schedule(f"job-{n}"), bytes(1_000_000), b"%d" % n)
    world.definitions |= step.definitions
    timers = sorted(step.timers_set)
    due = Step(world, 0, 0, NOW_MS)
    due.fire(timers)
    assert len(due.dispatches) == BATCH_BYTES_MAX // 1_000_000
    assert due.fired == timers[: len(due.dispatches)]


def test_an_answered_dispatch_is_not_overdue() -> None:
    world = World()
    world.step(schedule())
    step = Step(world, 0, world.token, world.now_ms)
    step.outcome(outcome(1, Result.LOST))
    step.overdue("a", 1)  # found by a sweep before that outcome was read
    assert [d.token for d in step.dispatches] == [2]


def test_the_late_outcome_of_a_generation_that_was_replaced_and_cancelled_changes_nothing() -> None:
    world = World()
    world.step(schedule())
    world.step(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE), cancel())
    counts = world.step(outcome(1)).counts
    assert (counts.illegal, counts.corrupt) == (1, 0)


def test_what_a_foreign_worker_reports_is_cut() -> None:
    world = World()
    world.step(schedule())
    failed = outcome(1, Result.FAILED)
    failed["error"] = {"type": "t" * 10_000, "message": "m" * 1_000_000, "traceback": "b" * 1_000_000}
    world.step(failed)
    state = world.states["a"]
    assert state is not None
    assert state["error"] is not None
    assert len("".join(str(part) for part in state["error"].values())) < 11_000


def test_K10_a_job_whose_queue_is_gone_waits_and_runs_when_it_is_back() -> None:
    world = World()
    step = Step(world, 0, 0, NOW_MS, has_queue=lambda queue: False)
    step.schedule(schedule(), b"work", b"command")
    step.fire([])
    assert (step.dispatches, step.token) == ([], 0)
    world.definitions |= step.definitions
    world.states |= step.states
    world.timers |= set(step.timers_set)
    assert world.phase() == Phase.WAITING
    world.now_ms += PARKED_MS - 1
    assert world.step().dispatches == []
    world.now_ms += 1
    assert [(d.attempt, d.slot_ms) for d in world.step().dispatches] == [(1, NOW_MS)]
    assert world.step(outcome(1)).counts.succeeded == 1


def test_K10_a_job_that_waits_for_its_queue_can_be_cancelled() -> None:
    world = World()
    step = Step(world, 0, 0, NOW_MS, has_queue=lambda queue: False)
    step.schedule(schedule(), b"work", b"command")
    step.fire([])
    world.definitions |= step.definitions
    world.states |= step.states
    world.timers |= set(step.timers_set)
    world.step(cancel())
    world.now_ms += PARKED_MS
    assert world.step().dispatches == []
    assert world.phase() == Phase.CANCELLED
