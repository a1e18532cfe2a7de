"""The rules by which jobs live, one situation a test. The view is a dict: what was committed by the steps before."""

from __future__ import annotations

from typing import Any, cast

import pytest

from duewheel.core import errors
from duewheel.core.errors import RejectedJob
from duewheel.core.limits import (
    BATCH_BYTES_MAX,
    DAY_MS,
    DEAD_RETENTION_MS,
    ENDING_MESSAGE_CHARS_MAX,
    ENDINGS_MAX,
    LEASE_MS,
    LEASE_MS_MAX,
    LEASE_RECHECK_MS,
    OUTPUT_BYTES_MAX,
    PARKED_MS,
    RETRY_DELAY_MS_MAX,
)
from duewheel.core.model import Cancel, Closing, Failure, Limits, OnConflict, Outcome, Phase, Reach, Redrive, Result, Schedule, State, Trail
from duewheel.core.step import Closed, Counts, Defined, Reason, Step
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

    def fresh(self, **fields: Any) -> Step:
        return Step(self, 0, self.token, self.now_ms, **fields)

    def step(self, *inputs: Schedule | Cancel | Redrive | Outcome, **fields: Any) -> Step:
        step = self.fresh(**fields)
        for record in inputs:
            if "due_ms" in record:
                step.schedule(cast(Schedule, record), b"work", repr(record).encode())
            elif "result" in record:
                step.outcome(cast(Outcome, record))
            elif "token" in record:
                step.redrive(cast(Redrive, record))
            else:
                step.cancel(record)
        step.fire([] if step.catching_up else sorted(key for key in self.timers if key < timer_key(self.now_ms + 1, "")))
        self.commit(step)
        return step

    def commit(self, step: Step) -> None:
        self.definitions |= step.definitions
        self.states |= step.states
        self.timers -= {*step.timers_unset, *step.fired}
        self.timers |= set(step.timers_set)
        self.token = step.token

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
        "recurrence": None,
        "delivery": None,
        "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
    }


def cancel(job_id: str = "a", reach: str = Reach.DEFAULT) -> Cancel:
    return {"job_id": job_id, "created_ms": NOW_MS, "reach": reach}


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


def test_a_schedule_that_asks_for_it_is_rejected_where_its_id_is_known() -> None:
    world = World()
    asked = schedule(on_conflict=OnConflict.REJECT)
    world.step(asked)
    before = (dict(world.definitions), dict(world.states))
    step = world.fresh()
    with pytest.raises(RejectedJob, match=r"job 'a' is known already: generation 1, DISPATCHED since \d+, and") as refusal:
        step.schedule(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REJECT), b"work", b"another")
    assert refusal.value.reason == errors.Reason.CONFLICT
    assert (step.counts.conflicts, step.definitions, step.states, step.timers_set) == (1, {}, {}, {})
    assert world.step(asked).counts.duplicates == 1, "the very same command is no conflict with itself"
    assert (world.definitions, world.states) == before


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


# --- attempts ---


def state_of(world: World, job_id: str = "a") -> State:
    state = world.states[job_id]
    assert state is not None
    return state


def trail_of(world: World, job_id: str = "a") -> Trail:
    trail = state_of(world, job_id)["trail"]
    assert trail is not None
    return trail


def limits(expires_ms: int = 0, total_timeout_ms: int = 0, crashes_max: int = 0) -> Limits:
    return {"expires_ms": expires_ms, "total_timeout_ms": total_timeout_ms, "crashes_max": crashes_max}


ERROR: Failure = {"type": "shop.OutOfStock", "message": "no. 4711", "traceback": "line 7"}


def test_a_job_that_succeeds_at_once_carries_nothing_along() -> None:
    world = World()
    step = world.step(schedule())
    assert step.dispatches[0].terms is None
    world.step(outcome(1))
    assert state_of(world)["trail"] is None
    assert world.timers == set()


def test_a_failed_attempt_waits_as_long_as_the_worker_says_and_is_counted() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.RETRY, retry_after_ms=500, error=ERROR))
    assert (world.phase(), trail_of(world)["wake_ms"], world.timers) == (Phase.WAITING, NOW_MS + 500, {timer_key(NOW_MS + 500, "a")})
    assert state_of(world)["error"] == ERROR
    world.now_ms += 499
    assert world.step().dispatches == []
    world.now_ms += 1
    assert [(d.token, d.attempt, d.slot_ms, d.terms) for d in world.step().dispatches] == [(2, 2, NOW_MS, None)]
    world.step(outcome(2, output=b"42"))
    assert [(e["attempt"], e["token"], e["result"], e["type"]) for e in trail_of(world)["endings"]] == [(1, 1, "RETRY", ERROR["type"])]
    assert (trail_of(world)["output"], world.timers) == (b"42", set())


def test_a_snoozed_or_interrupted_execution_is_not_counted() -> None:
    for result in (Result.SNOOZED, Result.INTERRUPTED):
        world = World()
        world.step(schedule())
        world.step(outcome(1, result, retry_after_ms=0))
        world.now_ms += 1
        world.step()
        assert (state_of(world)["attempt"], state_of(world)["token"], state_of(world)["crashes"]) == (1, 2, 0)


def test_waits_and_leases_from_outside_are_bounded() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=2**62))
    assert trail_of(world)["wake_ms"] == NOW_MS + LEASE_MS_MAX
    world.step(outcome(1, Result.HEARTBEAT, lease_ms=-5))
    assert trail_of(world)["wake_ms"] == NOW_MS + LEASE_MS
    world.step(outcome(1, Result.RETRY, retry_after_ms=2**62, output=bytes(OUTPUT_BYTES_MAX + 1), worker="w" * 5_000))
    assert trail_of(world)["wake_ms"] == NOW_MS + RETRY_DELAY_MS_MAX
    assert trail_of(world)["output"] is None
    assert len(trail_of(world)["endings"][0]["worker"]) < 500
    world.now_ms += RETRY_DELAY_MS_MAX
    world.step()
    world.step(outcome(2, Result.SNOOZED, retry_after_ms=-7))
    assert trail_of(world)["wake_ms"] == world.now_ms


def test_of_many_endings_the_first_and_the_latest_are_kept() -> None:
    world = World()
    world.step(schedule())
    for n in range(1, 2 * ENDINGS_MAX):
        world.step(outcome(n, Result.RETRY, error=ERROR | {"message": "m" * 10_000}))
        world.now_ms += 1
        world.step()
    endings = trail_of(world)["endings"]
    assert [e["attempt"] for e in endings] == [1, *range(ENDINGS_MAX + 1, 2 * ENDINGS_MAX)]
    assert {len(e["message"]) for e in endings} == {ENDING_MESSAGE_CHARS_MAX}


def test_what_failed_for_good_is_dead_and_its_payload_is_kept() -> None:
    world = World()
    world.step(schedule())
    step = world.step(outcome(1, Result.FAILED, error=ERROR))
    (death,) = step.deaths
    assert (death.job_id, death.reason, death.known, death.state) == ("a", Reason.FAILED, world.definitions["a"], state_of(world))
    assert (death.state["phase"], death.state["token"], death.state["error"]) == (Phase.FAILED, 1, ERROR)
    assert [e["result"] for e in trail_of(world)["endings"]] == ["FAILED"]
    assert step.size_bytes >= len(death.known.command)


def test_results_and_endings_count_for_the_size_of_a_transaction() -> None:
    output = bytes(OUTPUT_BYTES_MAX)
    for result in (Result.SUCCEEDED, Result.STARTED, Result.HEARTBEAT):
        world = World()
        world.step(schedule())
        assert world.step(outcome(1, result, output=output)).size_bytes >= len(output)
    assert world.step(outcome(1, Result.HEARTBEAT)).size_bytes >= len(output), "progress that was told before stays with the state"
    world = World()
    world.step(schedule())
    for n in range(1, ENDINGS_MAX + 1):
        world.step(outcome(n, Result.RETRY, error=ERROR))
        world.now_ms += 1
        world.step()
    step = world.step(outcome(ENDINGS_MAX + 1, Result.LOST))
    assert len(step.dispatches) == 1
    assert step.size_bytes > 100 * ENDINGS_MAX, "they go along with each dispatch's state"


def test_what_is_given_up_on_purpose_is_not_dead() -> None:
    world = World()
    world.step(schedule())
    step = world.step(outcome(1, Result.DISCARDED, error=ERROR))
    assert (world.phase(), state_of(world)["error"], step.deaths) == (Phase.DISCARDED, ERROR, [])


def test_W7_a_run_whose_workers_vanish_is_dead_at_the_crash_limit() -> None:
    world = World()
    world.step(schedule())
    (second,) = world.step(outcome(1, Result.LOST)).dispatches
    assert (second.attempt, second.terms) == (2, {"crashes": 1, "is_last_life": False, "expires_ms": 0, "deadline_ms": 0})
    (third,) = world.step(outcome(2, Result.LOST)).dispatches
    assert (third.attempt, third.terms) == (3, {"crashes": 2, "is_last_life": True, "expires_ms": 0, "deadline_ms": 0})
    step = world.step(outcome(3, Result.LOST))
    assert (step.dispatches, [d.reason for d in step.deaths]) == ([], [Reason.CRASH_LIMIT])
    assert (world.phase(), state_of(world)["crashes"], state_of(world)["attempt"]) == (Phase.FAILED, 3, 3)
    assert [e["result"] for e in trail_of(world)["endings"]] == ["LOST"] * 3


def test_W7_failures_in_between_do_not_count_as_crashes() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.LOST))
    world.step(outcome(2, Result.RETRY))
    world.now_ms += 1
    world.step()
    (fourth,) = world.step(outcome(3, Result.LOST)).dispatches
    assert (fourth.attempt, fourth.terms and fourth.terms["crashes"]) == (4, 2)


def test_W7_a_crash_limit_of_its_own() -> None:
    for crashes_max in (1, 2, 5):
        world = World()
        (d,) = world.step(schedule(limits=limits(crashes_max=crashes_max))).dispatches
        assert d.terms is None, "nothing speaks against it yet"
        for crashes in range(1, crashes_max):
            (d,) = world.step(outcome(d.token, Result.LOST)).dispatches
            assert d.terms == {"crashes": crashes, "is_last_life": crashes == crashes_max - 1, "expires_ms": 0, "deadline_ms": 0}
        assert [death.reason for death in world.step(outcome(d.token, Result.LOST)).deaths] == [Reason.CRASH_LIMIT]


def test_no_attempt_starts_at_or_after_its_time() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 5, limits=limits(expires_ms=NOW_MS + 6)), schedule("b", limits=limits(expires_ms=NOW_MS)))
    assert world.phase("b") == Phase.EXPIRED
    world.now_ms += 6
    assert (world.step().dispatches, world.phase()) == ([], Phase.EXPIRED)
    world = World()
    (first,) = world.step(schedule(limits=limits(expires_ms=NOW_MS + 100))).dispatches
    assert first.terms == {"crashes": 0, "is_last_life": False, "expires_ms": NOW_MS + 100, "deadline_ms": 0}
    world.step(outcome(1, Result.RETRY, retry_after_ms=DAY_MS))
    world.now_ms += 100
    step = world.step()
    assert (step.dispatches, step.deaths, world.phase(), world.timers) == ([], [], Phase.EXPIRED, set())


def test_what_its_worker_found_expired_is_over() -> None:
    world = World()
    world.step(schedule())
    assert world.step(outcome(1, Result.EXPIRED)).counts.expired == 1
    assert world.phase() == Phase.EXPIRED


def test_a_worker_whose_clock_is_ahead_expires_nothing_before_its_time() -> None:
    world = World()
    world.step(schedule(limits=limits(expires_ms=NOW_MS + 20_000)))
    step = world.step(outcome(1, Result.EXPIRED))
    assert (step.counts.expired, world.phase()) == (0, Phase.WAITING)
    world.now_ms += 5_000
    (again,) = world.step().dispatches
    assert (again.attempt, again.token) == (1, 2)
    world.now_ms += 14_000
    world.step(outcome(2, Result.EXPIRED))
    world.now_ms += 1_000
    assert (world.step().dispatches, world.phase(), world.timers) == ([], Phase.EXPIRED, set())


def test_the_total_timeout_runs_from_the_first_dispatch() -> None:
    world = World()
    world.step(schedule(due_ms=NOW_MS + 50, limits=limits(total_timeout_ms=1_000)))
    world.now_ms += 50
    (first,) = world.step().dispatches
    assert first.terms is not None
    assert first.terms["deadline_ms"] == NOW_MS + 1_050
    world.step(outcome(1, Result.RETRY, retry_after_ms=500))
    world.now_ms += 500
    (second,) = world.step().dispatches
    assert second.terms == first.terms
    step = world.step(outcome(2, Result.RETRY, retry_after_ms=500, error=ERROR))
    assert [d.reason for d in step.deaths] == [Reason.TOTAL_TIMEOUT]
    assert (state_of(world)["error"], world.timers) == (ERROR, set())


def test_a_crash_or_a_long_wait_beyond_the_total_timeout_is_dead_too() -> None:
    for result in (Result.LOST, Result.INTERRUPTED):
        world = World()
        world.step(schedule(limits=limits(total_timeout_ms=1_000)))
        world.now_ms += 1_000
        step = world.step(outcome(1, result))
        assert ([d.reason for d in step.deaths], step.dispatches) == ([Reason.TOTAL_TIMEOUT], [])
    world = World()
    world.step(schedule(limits=limits(total_timeout_ms=1_000)))
    world.step(outcome(1, Result.RETRY, retry_after_ms=900))
    world.now_ms += 5_000  # nobody was there
    assert [d.reason for d in world.step().deaths] == [Reason.TOTAL_TIMEOUT]


# --- leases ---


def test_W4_heartbeats_extend_the_lease() -> None:
    world = World()
    world.step(schedule())
    for _ in range(10):
        world.step(outcome(1, Result.HEARTBEAT, lease_ms=1_000))
        assert world.timers == {timer_key(world.now_ms + 1_000, "a")}
        world.now_ms += 900
        assert world.step(heard_ms=world.now_ms).dispatches == []
    assert world.step(outcome(1)).counts.succeeded == 1
    assert world.timers == set()


def test_W5_a_silent_run_is_dispatched_again_and_its_late_word_refused() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=1_000))
    world.now_ms += 1_000
    step = world.step(heard_ms=world.now_ms)
    assert [(d.token, d.attempt) for d in step.dispatches] == [(2, 2)]
    assert (step.counts.leases_expired, state_of(world)["crashes"]) == (1, 1)
    assert [e["result"] for e in trail_of(world)["endings"]] == ["LEASE_EXPIRED"]
    assert world.step(outcome(1), outcome(1, Result.HEARTBEAT)).counts.stale == 2
    assert world.step(outcome(2)).counts.succeeded == 1


def test_a_lease_is_not_over_before_outcomes_were_read_so_far() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=1_000))
    wake_ms = NOW_MS + 1_000
    world.now_ms = wake_ms + 10
    step = world.step(heard_ms=wake_ms - 1)
    assert (step.dispatches, step.must_listen) == ([], True)
    assert world.timers == {timer_key(world.now_ms + LEASE_RECHECK_MS, "a")}
    world.now_ms += LEASE_RECHECK_MS
    assert world.step(outcome(1, Result.HEARTBEAT, lease_ms=1_000), heard_ms=wake_ms).dispatches == [], "its word came just in time"
    assert trail_of(world)["wake_ms"] == world.now_ms + 1_000


def test_a_lease_is_not_over_before_the_owner_has_listened_for_its_length() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=1_000))
    began_ms = NOW_MS + 5_000
    world.now_ms = began_ms + 400
    step = world.step(heard_ms=world.now_ms, listening_ms=began_ms)
    assert (step.dispatches, step.must_listen, world.timers) == ([], False, {timer_key(began_ms + 1_000, "a")})
    world.now_ms = began_ms + 1_000
    assert len(world.step(heard_ms=world.now_ms, listening_ms=began_ms).dispatches) == 1


def test_an_owner_that_catches_up_expires_no_lease() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=1_000))
    world.now_ms += 50_000
    step = world.step(schedule("b"), catching_up=True, heard_ms=world.now_ms)
    assert [d.job_id for d in step.dispatches] == ["b"]


# --- cancelling what runs ---


def test_a_cancel_tells_the_worker_and_tells_it_again_whenever_it_speaks() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.STARTED, lease_ms=1_000))
    stop = {"job_id": "a", "token": 1, "queue": "default"}
    assert world.step(cancel()).stops == [stop]
    assert (world.phase(), world.timers) == (Phase.CANCELLING, {timer_key(NOW_MS + 1_000, "a")})
    world.now_ms += 900
    assert world.step(outcome(1, Result.HEARTBEAT, lease_ms=1_000)).stops == [stop], "it may have missed the first"
    assert world.phase() == Phase.CANCELLING
    world.now_ms += 1_000
    step = world.step(heard_ms=world.now_ms)
    assert (step.dispatches, world.phase(), world.timers) == ([], Phase.CANCELLED, set())


def test_whatever_becomes_of_a_cancelled_run_it_is_over() -> None:
    for result in Result:
        world = World()
        world.step(schedule())
        world.step(cancel())
        step = world.step(outcome(1, result))
        after = {"SUCCEEDED": Phase.SUCCEEDED, "STARTED": Phase.CANCELLING, "HEARTBEAT": Phase.CANCELLING}
        assert (world.phase(), step.dispatches, step.deaths) == (after.get(result, Phase.CANCELLED), [], [])


def test_a_handler_may_cancel_itself() -> None:
    world = World()
    world.step(schedule())
    assert world.step(outcome(1, Result.CANCELLED)).counts.cancelled == 1
    assert world.phase() == Phase.CANCELLED


def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    world = World()
    world.step(schedule())
    world.step(outcome(1, Result.RETRY, retry_after_ms=5_000))
    step = world.step(cancel())
    assert (step.stops, world.phase(), world.timers) == ([], Phase.CANCELLED, set())
    world.now_ms += 5_000
    assert world.step().dispatches == []


# --- dead runs ---


def redrive(token: int, job_id: str = "a") -> Redrive:
    return {"job_id": job_id, "token": token, "created_ms": NOW_MS}


def dead(world: World) -> None:
    world.step(schedule())
    world.step(outcome(1, Result.LOST))
    world.step(outcome(2, Result.FAILED, error=ERROR))


def test_a_redrive_is_a_run_with_fresh_attempts_and_a_higher_token_and_happens_once() -> None:
    world = World()
    dead(world)
    step = world.step(redrive(2), redrive(2))
    assert [(d.token, d.attempt, d.slot_ms, d.terms) for d in step.dispatches] == [(3, 1, NOW_MS, None)]
    assert step.closings == [Closed("a", 2, Closing.REDRIVEN)]
    assert (step.counts.redriven, step.counts.redrives_late, state_of(world)["crashes"]) == (1, 1, 0)
    assert world.step(redrive(2)).dispatches == []
    assert world.step(outcome(2)).counts.stale == 1
    assert [d.state["token"] for d in world.step(outcome(3, Result.FAILED)).deaths] == [3]
    assert world.step(redrive(2)).dispatches == [], "that was another death"


def test_a_redriven_job_whose_queue_is_gone_waits() -> None:
    world = World()
    dead(world)
    step = world.step(redrive(2), has_queue=lambda queue: False)
    assert (step.dispatches, world.phase()) == ([], Phase.WAITING)
    assert world.step(outcome(2), redrive(2)).dispatches == []
    world.now_ms += PARKED_MS
    assert [(d.token, d.attempt) for d in world.step().dispatches] == [(3, 1)]


def test_a_redriven_job_has_its_total_timeout_anew() -> None:
    world = World()
    world.step(schedule(limits=limits(total_timeout_ms=1_000)))
    world.step(outcome(1, Result.FAILED))
    world.now_ms += DAY_MS
    (again,) = world.step(redrive(1)).dispatches
    assert again.terms is not None
    assert again.terms["deadline_ms"] == world.now_ms + 1_000


def test_a_redrive_after_its_time_to_start_is_refused_and_the_run_stays_dead() -> None:
    world = World()
    world.step(schedule(limits=limits(expires_ms=NOW_MS + 100)))
    world.step(outcome(1, Result.FAILED, error=ERROR))
    world.now_ms += 100
    committed = state_of(world)
    step = world.fresh()
    with pytest.raises(RejectedJob, match=f"'a' is not redriven: .* {NOW_MS + 100}, its expires_ms") as caught:
        step.redrive(redrive(1))
    assert caught.value.reason == "expired"
    assert (step.states, step.definitions, step.closings, step.dispatches, step.timers_set) == ({}, {}, [], [], {})
    assert step.counts == Counts(redrives_refused=1)
    step.redrive(redrive(0))  # of another death: late, as ever
    assert step.counts == Counts(redrives_refused=1, redrives_late=1)
    step.drop({"job_id": "a", "token": 1, "created_ms": NOW_MS})
    assert step.closings == [Closed("a", 1, Closing.DROPPED)]
    world.now_ms -= 1
    assert (state_of(world), len(world.step(redrive(1)).dispatches)) == (committed, 1), "a millisecond before, it may"


def test_only_what_is_dead_can_be_redriven_or_dropped() -> None:
    world = World()
    assert world.step(redrive(0)).counts.redrives_late == 1
    world.step(schedule(), schedule("later", due_ms=NOW_MS + 5))
    for command in (redrive(1), redrive(0, "later")):
        assert world.step(command).dispatches == []
        step = world.fresh()
        step.drop({"job_id": command["job_id"], "token": command["token"], "created_ms": NOW_MS})
        assert (step.definitions, step.counts.redrives_late) == ({}, 1)


def test_a_dropped_run_is_forgotten_and_its_id_may_come_again() -> None:
    world = World()
    dead(world)
    step = world.fresh()
    step.drop({"job_id": "a", "token": 1, "created_ms": NOW_MS})
    assert step.definitions == {}, "not that death"
    step.drop({"job_id": "a", "token": 2, "created_ms": NOW_MS})
    assert (step.definitions, step.states, step.closings) == ({"a": None}, {"a": None}, [Closed("a", 2, Closing.DROPPED)])
    world.commit(step)
    assert [(d.generation, d.token) for d in world.step(schedule()).dispatches] == [(1, 3)]


def test_a_dead_run_that_is_defined_anew_is_no_longer_dead() -> None:
    world = World()
    dead(world)
    step = world.step(schedule(on_conflict=OnConflict.REPLACE, created_ms=NOW_MS + 1))
    assert (step.closings, [d.generation for d in step.dispatches]) == ([Closed("a", 2, Closing.REPLACED)], [2])
    assert world.step(redrive(2)).dispatches == []


def test_the_failure_of_an_older_generation_is_not_dead() -> None:
    world = World()
    world.step(schedule())
    world.step(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE))
    step = world.step(outcome(1, Result.FAILED))
    assert (step.deaths, step.counts.failed, step.counts.dead) == ([], 1, 0)
    assert world.step(redrive(1)).dispatches == []


def test_T8_an_older_generation_that_would_go_on_is_over() -> None:
    for result in (Result.RETRY, Result.SNOOZED, Result.LOST, Result.INTERRUPTED):
        world = World()
        world.step(schedule())
        # The lease of the old generation and the new one's due time are the same moment.
        world.step(outcome(1, Result.STARTED, lease_ms=9))
        world.step(schedule(due_ms=NOW_MS + 9, on_conflict=OnConflict.REPLACE))
        world.step(outcome(1, Result.HEARTBEAT, lease_ms=9))
        assert world.timers == {timer_key(NOW_MS + 9, "a")}
        world.step(outcome(1, result))
        assert (world.phase(), world.timers) == (Phase.CANCELLED, {timer_key(NOW_MS + 9, "a")})
        world.now_ms += 9
        assert [(d.generation, d.token) for d in world.step().dispatches] == [(2, 2)]


def test_W15_a_dead_run_stays_known_for_longer_than_its_retention() -> None:
    world = World()
    dead(world)
    world.now_ms += DEAD_RETENTION_MS - 1
    step = world.fresh()
    step.forget("a")
    assert step.definitions == {}
    world.now_ms += 1
    step = world.fresh()
    step.forget("a")
    assert (step.definitions, step.closings) == ({"a": None}, [Closed("a", 2, Closing.FORGOTTEN)])


def test_a_dispatch_that_was_perhaps_never_seen_is_no_crash() -> None:
    world = World()
    world.step(schedule())
    step = world.fresh()
    step.overdue("a", 1)
    assert [(d.token, d.attempt, d.terms) for d in step.dispatches] == [(2, 1, None)]
    world.commit(step)
    assert [e["result"] for e in trail_of(world)["endings"]] == ["OVERDUE"]
