"""Recurring jobs: which slots get a run, and what runs that go on have to do with it. T9 to T12 are the cases of the field."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import takewhile
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.limits import BATCH_BYTES_MAX, DAY_MS, HOUR_MS, MINUTE_MS, RUNS_KEPT_MAX, SECOND_MS
from duewheel.core.model import Cancel, Misfire, OnConflict, Outcome, Overlap, Phase, Reach, Recurrence, Redrive, Result, Schedule, State
from duewheel.core.recurrence import jittered_ms, slots
from duewheel.core.run_ids import parse, run_id
from duewheel.core.step import Counts, Defined, Step
from duewheel.core.wheel import due_of, timer_key
from tests.recurring import cron, every, every_after

# 2 December 2025, midnight in UTC.
NOW_MS = 1_764_633_600_000


class World:
    """A partition between its steps, whose workers say what a test lets them say."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.definitions: dict[str, Defined | None] = {}
        self.states: dict[str, State | None] = {}
        self.timers: set[bytes] = set()
        self.token = 0
        self.now_ms = now_ms
        self.counts = Counts()
        self.dispatched: list[tuple[str, int]] = []
        self.begun: dict[str, int] = {}

    def defined(self, job_id: str) -> Defined | None:
        return self.definitions.get(job_id)

    def state(self, job_id: str) -> State | None:
        return self.states.get(job_id)

    def step(
        self, *inputs: Schedule | Cancel | Redrive | Outcome, size_bytes_max: int = BATCH_BYTES_MAX, catching_up: bool = False
    ) -> Step:
        step = Step(self, 0, self.token, self.now_ms, catching_up, splice_schedule=lambda *fields: repr(fields).encode())
        for record in inputs:
            if "due_ms" in record:
                step.schedule(cast(Schedule, record), b"work", repr(record).encode())
            elif "result" in record:
                step.outcome(cast(Outcome, record))
            elif "token" in record:
                step.redrive(cast(Redrive, record))
            else:
                step.cancel(record)
        step.fire([] if catching_up else sorted(key for key in self.timers if due_of(key) <= self.now_ms), size_bytes_max)
        self.definitions |= step.definitions
        self.states |= step.states
        self.timers -= {*step.timers_unset, *step.fired}
        self.timers |= set(step.timers_set)
        self.token = step.token
        self.counts.add(step.counts)
        for d in step.dispatches:
            self.dispatched.append((d.job_id, self.now_ms))
            self.begun[d.job_id] = d.token
        return step

    def settle(self) -> None:
        """Steps until nothing is due."""
        for _ in range(1_000):
            if not any(due_of(key) <= self.now_ms for key in self.timers):
                return
            self.step()
        raise AssertionError("there is no end to what is due")

    def run_until(self, until_ms: int) -> None:
        """Lets time pass, from timer to timer."""
        self.settle()
        while self.timers and (at_ms := due_of(min(self.timers))) <= until_ms:
            self.now_ms = at_ms
            self.settle()
        self.now_ms = until_ms

    def end(self, job_id: str, result: str = Result.SUCCEEDED) -> Step:
        return self.step(outcome(job_id, self.begun.pop(job_id), result))

    def phase(self, job_id: str = "a") -> str:
        state = self.states[job_id]
        assert state is not None
        return state["phase"]

    def slots(self, job_id: str = "a") -> list[int]:
        """Slots that were dispatched, in order."""
        runs = [parse(dispatched) for dispatched, _ in self.dispatched]
        return [run.slot_ms for run in runs if run is not None and run.job_id == job_id]

    def left_out(self) -> tuple[int, int]:
        return self.counts.slots_missed, self.counts.slots_overlapped


def schedule(recurrence: Recurrence | None, job_id: str = "a", due_ms: int = NOW_MS, **fields: Any) -> Schedule:
    record: dict[str, Any] = {
        "job_id": job_id,
        "due_ms": due_ms,
        "created_ms": NOW_MS,
        "on_conflict": OnConflict.IGNORE,
        "retention_ms": DAY_MS,
        "queue": "default",
        "limits": None,
        "recurrence": recurrence,
        "delivery": None,
        "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
    }
    return cast(Schedule, record | fields)


def cancel(job_id: str = "a", reach: str = Reach.DEFAULT) -> Cancel:
    return {"job_id": job_id, "created_ms": NOW_MS, "reach": reach}


def outcome(job_id: str, token: int, result: str = Result.SUCCEEDED) -> Outcome:
    said: dict[str, Any] = {"token": token, "job_id": job_id, "slot_ms": NOW_MS, "attempt": 1, "result": result, "started_ms": NOW_MS}
    said |= {"finished_ms": NOW_MS, "worker": "w", "error": None, "retry_after_ms": 0, "lease_ms": 0, "output": None}
    return cast(Outcome, said)


def at(minutes: float) -> int:
    return NOW_MS + int(minutes * MINUTE_MS)


def run(minutes: float) -> str:
    return run_id("a", at(minutes))


LARGE: dict[str, Any] = {"task": "t", "content_type": "application/octet-stream", "payload": b"a" * 900_000, "headers": {}, "policy": None}


# --- slots become runs ---


def test_each_slot_is_a_job_of_its_own_that_runs_once() -> None:
    world = World()
    step = world.step(schedule(every(10 * MINUTE_MS)))
    assert (step.dispatches, world.phase(), world.timers) == ([], Phase.WAITING, {timer_key(NOW_MS, "a")})
    step = world.step()
    assert [(d.job_id, d.generation, d.attempt, d.slot_ms, d.work) for d in step.dispatches] == [(run(0), 1, 1, NOW_MS, b"work")]
    assert world.timers == {timer_key(at(10), "a")}
    made = world.definitions[run(0)]
    assert made is not None
    assert (made.due_ms, made.queue, made.retention_ms, made.recurrence) == (NOW_MS, "default", DAY_MS, None)
    assert made.command == repr((run(0), NOW_MS, NOW_MS, DAY_MS, "default", None, None, b"work")).encode()
    world.end(run(0))
    assert (world.phase(run(0)), world.phase()) == (Phase.SUCCEEDED, Phase.WAITING)


def test_a_recurring_job_counts_its_runs_and_is_over_after_the_last() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, runs_max=3, overlap=Overlap.ALLOW)))
    world.run_until(at(30))
    state = world.states["a"]
    assert state is not None
    assert (world.slots(), state["attempt"], state["phase"]) == ([at(0), at(1), at(2)], 3, Phase.SUCCEEDED)
    assert world.timers == set()
    world.now_ms += DAY_MS
    step = Step(world, 0, world.token, world.now_ms)
    step.forget("a")
    assert step.definitions == {"a": None}


def test_a_recurring_job_is_over_at_its_end() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, end_ms=at(2), overlap=Overlap.ALLOW)))
    world.run_until(at(30))
    assert (world.slots(), world.phase()) == ([at(0), at(1)], Phase.SUCCEEDED)


def test_T13_a_run_starts_after_its_slot_by_its_jitter() -> None:
    world, recurrence = World(), every(HOUR_MS, jitter_ms=10 * MINUTE_MS)
    world.step(schedule(recurrence))
    world.run_until(at(30))
    (begun_ms,) = [began_ms for _, began_ms in world.dispatched]
    assert begun_ms == jittered_ms(recurrence, "a", NOW_MS) > NOW_MS
    assert world.slots() == [NOW_MS]


def test_T13_ten_thousand_crons_at_midnight_start_spread_out_and_the_same_each_time() -> None:
    """Within their jitter of a minute no second has much more than its share."""
    starts = []
    for _ in range(2):
        world = World(NOW_MS - 1)
        recurrence = cron("@daily", jitter_ms=MINUTE_MS)
        world.step(*(schedule(recurrence, job_id=f"job-{n}", due_ms=NOW_MS, created_ms=NOW_MS - 1) for n in range(10_000)))
        world.now_ms = NOW_MS
        world.settle()
        runs = {job_id: known.due_ms for job_id, known in world.definitions.items() if known is not None and parse(job_id) is not None}
        assert len(runs) == 10_000
        assert all(0 <= due_ms - NOW_MS <= MINUTE_MS for due_ms in runs.values())
        fullest = max(Counter((due_ms - NOW_MS) // SECOND_MS for due_ms in runs.values()).values())
        assert fullest < 2 * 10_000 / 60
        starts.append(runs)
    assert starts[0] == starts[1]


def test_nothing_fires_while_commands_may_lie_ahead() -> None:
    world = World()
    assert world.step(schedule(every(MINUTE_MS)), catching_up=True).dispatches == []
    world.now_ms = at(5)
    assert world.step(cancel(), catching_up=True).definitions == {}
    assert (world.phase(), world.timers) == (Phase.CANCELLED, set())


def test_T11_five_schedulers_with_one_cron_line_make_one_run_a_slot() -> None:
    world = World()
    for n in range(5):
        world.step(schedule(cron("*/10 * * * *", overlap=Overlap.ALLOW), created_ms=NOW_MS + n))
        world.now_ms += SECOND_MS
    world.run_until(at(35))
    assert world.slots() == [at(0), at(10), at(20), at(30)]
    assert world.counts.duplicates == 4


@pytest.mark.parametrize(
    "expression, in_march, in_october",
    [("30 2 * * *", 3, 3), ("0,30 2 * * *", 5, 6), ("30 * * * *", 71, 73), ("*/30 2 * * *", 4, 8)],
)
def test_T9_cron_across_the_jumps_of_clocks_makes_one_run_a_slot(expression: str, in_march: int, in_october: int) -> None:
    """Three days of Berlin, the second of which has 23 or 25 hours."""
    for day, hours, expected in (("2026-03-28", 71, in_march), ("2026-10-24", 73, in_october)):
        begin_ms = int(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()) * SECOND_MS
        world = World(begin_ms)
        world.step(schedule(cron(expression, "Europe/Berlin", overlap=Overlap.ALLOW, overlap_max=1_000), due_ms=begin_ms))
        world.run_until(begin_ms + hours * HOUR_MS)
        assert len(world.slots()) == len(set(world.slots())) == expected
        assert world.left_out() == (0, 0)


recurrences = st.one_of(
    st.builds(every, st.integers(1, 600).map(lambda seconds: seconds * SECOND_MS), jitter_ms=st.just(0)),
    st.sampled_from(["* * * * *", "*/7 * * * *", "3,9,41 * * * *", "*/20 */5 * * * *"]).map(cron),
)


@given(recurrences, st.lists(st.integers(1, 900), min_size=1, max_size=12), st.sampled_from(list(Misfire)), st.integers(0, 7))
def test_every_slot_is_matched_once_or_counted_as_missed(recurrence: Recurrence, pauses_s: list[int], misfire: str, runs_max: int) -> None:
    """However irregularly anybody looks: no slot runs twice, none early, and each is either run or counted."""
    recurrence = {**recurrence, "misfire": misfire, "overlap": Overlap.ALLOW, "overlap_max": 1_000, "runs_max": runs_max}
    world = World()
    world.step(schedule(recurrence))
    for pause_s in pauses_s:
        world.settle()
        world.now_ms += pause_s * SECOND_MS
    world.settle()
    expected = []
    for slot_ms in slots(recurrence, NOW_MS, 0):
        if slot_ms > world.now_ms:
            break
        expected.append(slot_ms)
    fired = world.slots()
    assert max(Counter(fired).values(), default=1) == 1
    assert set(fired) <= set(expected)
    assert all(began_ms >= cast(Any, parse(job_id)).slot_ms for job_id, began_ms in world.dispatched)
    if runs_max:
        assert len(fired) <= runs_max
        assert (world.phase() == Phase.SUCCEEDED) == (len(fired) == runs_max)
    else:
        assert len(fired) + world.counts.slots_missed == len(expected)
        assert world.phase() == Phase.WAITING


# --- T10: after an hour without anybody, as the table in docs/schedules.md says ---

DOWN = [
    (62, Misfire.ONCE, 0, [60]),
    (62, Misfire.SKIP, 0, []),
    (62, Misfire.ALL, 0, [10, 20, 30, 40, 50, 60]),
    (62, Misfire.ALL, 2, [50, 60]),
    (60.5, Misfire.ONCE, 0, [50, 60]),
    (60.5, Misfire.SKIP, 0, [60]),
    (60.5, Misfire.ALL, 0, [10, 20, 30, 40, 50, 60]),
    (60.5, Misfire.ALL, 2, [40, 50, 60]),
]


@pytest.mark.parametrize("back_at, misfire, misfire_max, fired", DOWN)
def test_T10_after_an_hour_of_downtime(back_at: float, misfire: str, misfire_max: int, fired: list[int]) -> None:
    world = World()
    recurrence = every(10 * MINUTE_MS, misfire=misfire, misfire_max=misfire_max, overlap=Overlap.ALLOW)
    world.step(schedule(recurrence, due_ms=at(10)))
    world.now_ms = at(back_at)
    world.settle()
    assert world.slots() == [at(minutes) for minutes in fired]
    assert world.left_out() == (6 - len(fired), 0)
    assert world.timers == {timer_key(at(70), "a")}


@pytest.mark.parametrize("overlap, fired", [(Overlap.SKIP, [60]), (Overlap.QUEUE, [50]), (Overlap.REPLACE, [60])])
def test_T10_missed_slots_that_are_all_run_do_not_overlap_either(overlap: str, fired: list[int]) -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, misfire=Misfire.ALL, overlap=overlap), due_ms=at(10)))
    world.now_ms = at(62)
    world.settle()
    assert world.slots() == [at(minutes) for minutes in fired]
    assert world.left_out() == (0, 4 if overlap == Overlap.QUEUE else 5)
    world.end(run(fired[0]))
    world.settle()
    assert world.slots() == [at(50), at(60)] if overlap == Overlap.QUEUE else [at(60)]


def test_runs_that_do_not_fit_into_a_step_are_handed_out_by_the_next_one() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, misfire=Misfire.ALL, overlap=Overlap.ALLOW), due_ms=at(10)))
    world.now_ms = at(62)
    assert len(world.step(size_bytes_max=2_000).dispatches) < 6
    world.settle()
    assert world.slots() == [at(minutes) for minutes in (10, 20, 30, 40, 50, 60)]
    assert world.left_out() == (0, 0)


@pytest.mark.parametrize("overlap, left_out, slots", [(Overlap.SKIP, 6, [0]), (Overlap.QUEUE, 5, [0, 60])])
def test_slots_that_have_no_room_are_counted_also_where_few_runs_are_left(overlap: str, left_out: int, slots: list[int]) -> None:
    """An hour of nobody, in which the first run went on."""
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, misfire=Misfire.ALL, overlap=overlap, runs_max=3)))
    world.settle()
    world.now_ms = at(62)
    world.settle()
    world.end(run(0))
    world.settle()
    assert (world.slots(), world.left_out()) == ([at(slot) for slot in slots], (0, left_out))
    assert world.phase() == Phase.WAITING


# --- T12: while a run goes on ---


def test_T12_a_slot_is_left_out_while_the_run_before_goes_on_and_that_is_counted() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.run_until(at(2.5))
    assert (world.slots(), world.left_out()) == ([at(0)], (0, 2))
    world.end(run(0))
    world.run_until(at(3))
    assert world.slots() == [at(0), at(3)]
    assert world.counts.slots_fired == 2


def test_T12_of_which_job_is_told() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    world.now_ms = at(1)
    assert list(world.step().left_out) == ["a"]


@pytest.mark.parametrize("result", [Result.FAILED, Result.DISCARDED, Result.CANCELLED, Result.SUCCEEDED])
def test_however_a_run_ends_the_next_slot_may_fire(result: str) -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    world.end(run(0), result)
    world.run_until(at(1))
    assert world.slots() == [at(0), at(1)]


def test_a_run_that_waits_for_its_next_attempt_goes_on() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    world.step({**outcome(run(0), world.begun[run(0)], Result.RETRY), "retry_after_ms": HOUR_MS})
    world.run_until(at(1))
    assert (world.slots(), world.left_out()) == ([at(0)], (0, 1))


def test_as_many_runs_as_are_allowed_go_on_at_once() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.ALLOW, overlap_max=2)))
    world.run_until(at(3))
    assert (world.slots(), world.left_out()) == ([at(0), at(1)], (0, 2))
    world.end(run(0))
    world.run_until(at(4))
    assert world.slots() == [at(0), at(1), at(4)]


def test_one_slot_waits_for_the_run_before_and_fires_at_its_end() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(3.5))
    assert (world.slots(), world.left_out()) == ([at(0)], (0, 2))
    world.end(run(0))
    world.settle()
    assert (world.slots(), world.dispatched[-1]) == ([at(0), at(1)], (run(1), at(3.5)))
    world.run_until(at(4))
    world.end(run(1))
    world.settle()
    assert (world.slots(), world.left_out()) == ([at(0), at(1), at(4)], (0, 2))


def test_a_slot_that_waits_is_the_last_one_of_a_job_that_is_over() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.QUEUE, runs_max=2)))
    world.run_until(at(1))
    assert (world.phase(), world.timers) == (Phase.WAITING, set())
    world.end(run(0))
    world.settle()
    assert (world.slots(), world.phase(), world.timers) == ([at(0), at(1)], Phase.SUCCEEDED, set())


def test_the_end_of_a_run_fires_nothing_while_commands_may_lie_ahead() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(1))
    assert world.step(outcome(run(0), world.begun[run(0)]), catching_up=True).dispatches == []
    world.settle()
    assert world.slots() == [at(0), at(1)]


def test_what_goes_on_gives_way_to_the_next_slot() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.REPLACE)))
    world.settle()
    world.now_ms = at(1)
    step = world.step()
    assert [(stop["job_id"], stop["token"]) for stop in step.stops] == [(run(0), 1)]
    assert (world.phase(run(0)), world.slots()) == (Phase.CANCELLING, [at(0), at(1)])
    world.end(run(0), Result.FAILED)
    assert (world.phase(run(0)), world.phase(run(1))) == (Phase.CANCELLED, Phase.DISPATCHED)


def test_a_run_that_has_not_begun_gives_way_without_a_word() -> None:
    world, recurrence = World(), every(MINUTE_MS, overlap=Overlap.REPLACE)
    world.step(schedule(recurrence))
    world.settle()
    world.step({**outcome(run(0), world.begun[run(0)], Result.RETRY), "retry_after_ms": HOUR_MS})
    world.now_ms = at(1)
    assert world.step().stops == []
    assert world.phase(run(0)) == Phase.CANCELLED
    assert world.timers == {timer_key(at(2), "a")}


def test_the_runs_that_are_remembered_are_bounded() -> None:
    world = World()
    world.step(schedule(every(SECOND_MS, overlap=Overlap.REPLACE)))
    state = world.states["a"]
    assert state is not None
    assert state["trail"] is not None
    for n in range(1, RUNS_KEPT_MAX + 5):  # replaced ones that never end
        job_id = run_id("a", NOW_MS - n * SECOND_MS)
        world.definitions[job_id] = Defined(1, NOW_MS, "default", 0, None, b"", b"")
        world.states[job_id] = {**state, "phase": Phase.CANCELLING, "trail": None}
        state["trail"]["runs"].insert(0, NOW_MS - n * SECOND_MS)
    world.settle()
    state = world.states["a"]
    assert state is not None
    assert state["trail"] is not None
    assert (len(state["trail"]["runs"]), state["trail"]["runs"][-1]) == (RUNS_KEPT_MAX, NOW_MS)


# --- a time after the end ---


def test_the_next_slot_comes_some_time_after_the_end_of_the_last_run() -> None:
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS)))
    world.settle()
    assert (world.slots(), world.timers, world.phase()) == ([at(0)], set(), Phase.WAITING)
    world.now_ms = at(7)
    world.end(run(0))
    assert world.timers == {timer_key(at(17), "a")}
    world.run_until(at(17))
    assert world.slots() == [at(0), at(17)]


def test_a_run_after_the_end_that_is_dead_or_cancelled_has_ended_too() -> None:
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS, runs_max=3)))
    world.settle()
    world.end(run(0), Result.FAILED)
    world.run_until(at(10))
    world.step(cancel(run(10)))
    world.end(run(10), Result.CANCELLED)
    world.run_until(at(20))
    assert (world.slots(), world.phase()) == ([at(0), at(10), at(20)], Phase.SUCCEEDED)


def test_a_time_after_the_end_may_lie_beyond_the_last_slot() -> None:
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS, end_ms=at(15))))
    world.settle()
    world.now_ms = at(5)
    world.end(run(0))
    assert (world.phase(), world.timers) == (Phase.SUCCEEDED, set())


@pytest.mark.parametrize("overlap", list(Overlap))
def test_a_job_that_is_defined_anew_waits_for_the_run_of_its_older_generation(overlap: str) -> None:
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS, overlap=overlap)))
    world.settle()
    again = schedule(every_after(10 * MINUTE_MS, overlap=overlap), due_ms=at(2), on_conflict=OnConflict.REPLACE)
    world.step(again)
    world.run_until(at(5))
    beside = overlap in (Overlap.ALLOW, Overlap.REPLACE)
    assert world.slots() == ([at(0), at(2)] if beside else [at(0)])
    world.end(run(0), Result.CANCELLED if overlap == Overlap.REPLACE else Result.SUCCEEDED)
    world.settle()
    if overlap == Overlap.SKIP:
        assert world.timers == {timer_key(at(15), "a")}
    else:
        assert (world.slots(), world.timers) == ([at(0), at(2)], set())


# --- what people do ---


def test_a_cancelled_job_hands_out_no_more_runs_and_those_that_go_on_are_left_alone() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    world.step(cancel())
    world.run_until(at(5))
    assert (world.phase(), world.phase(run(0)), world.slots()) == (Phase.CANCELLED, Phase.DISPATCHED, [at(0)])
    world.end(run(0))
    assert (world.phase(run(0)), world.timers) == (Phase.SUCCEEDED, set())


def test_a_cancelled_slot_that_waited_does_not_fire() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(1))
    world.step(cancel())
    world.end(run(0))
    world.settle()
    assert world.slots() == [at(0)]


@pytest.mark.parametrize("cancelled", [False, True])
def test_T8_a_job_that_is_defined_anew_has_new_slots_and_its_runs_still_overlap(cancelled: bool) -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    if cancelled:
        world.step(cancel())
    world.step(schedule(every(MINUTE_MS), due_ms=at(0.5), on_conflict=OnConflict.REPLACE))
    assert world.timers == {timer_key(at(0.5), "a")}
    world.run_until(at(0.5))
    assert (world.slots(), world.left_out()) == ([at(0)], (0, 1))
    world.end(run(0))
    world.run_until(at(1.5))
    assert world.slots() == [at(0), at(1.5)]


def test_T8_no_slot_runs_again_because_a_job_is_defined_anew() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    world.end(run(0))
    world.step(schedule(every(MINUTE_MS), on_conflict=OnConflict.REPLACE, created_ms=NOW_MS + 1))
    world.settle()
    assert world.slots() == [at(0)]


def test_T8_a_slot_after_the_end_that_has_run_already_does_not_hold_up_the_next() -> None:
    world = World()
    world.step(schedule(every_after(MINUTE_MS)))
    world.settle()
    world.end(run(0))
    world.step(schedule(every_after(MINUTE_MS), on_conflict=OnConflict.REPLACE, created_ms=NOW_MS + 1))
    world.run_until(at(1))
    assert world.slots() == [at(0), at(1)]


def test_a_slot_that_a_new_definition_finds_waiting_is_run_as_it_was_defined() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW)))
    world.settle()
    world.now_ms = at(11)  # nobody has looked since
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW), due_ms=at(10.5), created_ms=at(10.5), on_conflict=OnConflict.REPLACE))
    world.run_until(at(20.5))
    assert world.slots() == [at(0), at(10), at(10.5), at(20.5)]


def test_a_slot_that_came_before_a_job_was_made_one_that_runs_once_is_run() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS)))
    world.now_ms = at(1)
    world.step(schedule(None, due_ms=at(2), created_ms=at(1), on_conflict=OnConflict.REPLACE))
    world.run_until(at(2))
    assert [job_id for job_id, _ in world.dispatched] == [run(0), "a"]


@pytest.mark.parametrize("misfire, expected", [(Misfire.ONCE, [50, 60]), (Misfire.SKIP, [60]), (Misfire.ALL, [30, 40, 50, 60])])
def test_slots_missed_before_a_new_definition_are_judged_by_the_old_one(misfire: str, expected: list[float]) -> None:
    """Down from minute 25 on, defined anew at minute 55 and back at 61: each of the two decides about its own slots."""
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, misfire=misfire, overlap=Overlap.ALLOW)))
    world.run_until(at(25))
    world.dispatched.clear()
    world.now_ms = at(61)
    again = schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW), created_ms=at(55), on_conflict=OnConflict.REPLACE)
    world.step(again, catching_up=True)
    world.run_until(at(69))
    assert world.slots() == [at(minutes) for minutes in expected]


definitions_of = st.sampled_from(
    [
        lambda **fields: every(MINUTE_MS, **fields),
        lambda **fields: every(7 * SECOND_MS, **fields),
        lambda **fields: cron("*/2 * * * *", **fields),
        lambda **fields: cron("1-59/3 * * * *", **fields),
    ]
)


@given(
    definitions_of,
    st.lists(st.tuples(st.integers(1, 150_000), st.integers(0, 90_000), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.booleans(),
)
def test_no_slot_is_lost_or_doubled_by_deployments(kind: Any, deployments: list[tuple[int, int, bool, bool]], ends_at_once: bool) -> None:
    """A schedule is defined anew, with its anchor, again and again: by commands that were made a while before, found fired or not."""
    recurrence = kind(overlap=Overlap.ALLOW, overlap_max=1_000, misfire=Misfire.ALL, misfire_max=100, grace_ms=HOUR_MS)
    world = World()
    world.step(schedule(recurrence))
    begin_ms = created_ms = NOW_MS
    for gap_ms, transit_ms, is_fired, is_catching_up in deployments:
        created_ms = max(created_ms, begin_ms) + gap_ms
        if is_fired:
            world.run_until(created_ms + transit_ms)
            if ends_at_once:
                for job_id in list(world.begun):
                    world.end(job_id)
        world.now_ms = max(world.now_ms, created_ms + transit_ms)
        world.step(schedule(recurrence, created_ms=created_ms, on_conflict=OnConflict.REPLACE), catching_up=is_catching_up)
    end_ms = world.now_ms + 10 * MINUTE_MS
    world.run_until(end_ms)
    due = list(takewhile(lambda slot_ms: slot_ms <= end_ms, slots(recurrence, NOW_MS, 0)))
    assert sorted(world.slots()) == due
    assert (world.counts.slots_fired, world.left_out()) == (len(due), (0, 0))
    state = world.states["a"]
    assert state is not None
    assert state["attempt"] == len(due)


def test_a_new_definition_with_the_anchor_of_the_old_one_goes_on_counting() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, runs_max=3, overlap=Overlap.ALLOW)))
    world.run_until(at(1.5))
    again = schedule(every(MINUTE_MS, runs_max=3, overlap=Overlap.ALLOW), created_ms=at(1.5), on_conflict=OnConflict.REPLACE)
    world.step(again)
    world.run_until(at(10))
    assert world.slots() == [at(0), at(1), at(2)]
    assert world.phase() == Phase.SUCCEEDED


def test_a_new_definition_that_has_had_its_runs_already_is_over() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.ALLOW)))
    world.run_until(at(4.5))
    again = every(MINUTE_MS, runs_max=3, overlap=Overlap.ALLOW)
    world.step(schedule(again, created_ms=at(4.5), on_conflict=OnConflict.REPLACE))
    world.run_until(at(10))
    assert (world.slots()[-1], world.phase(), world.timers) == (at(4), Phase.SUCCEEDED, set())


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_interval_after_the_end_is_kept_by_a_new_definition(goes_on: bool) -> None:
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS)))
    world.settle()
    world.now_ms = at(1)
    if not goes_on:
        world.end(run(0))
    world.now_ms = at(2)
    world.step(schedule(every_after(10 * MINUTE_MS), created_ms=at(2), on_conflict=OnConflict.REPLACE))
    world.run_until(at(3))
    if goes_on:
        world.end(run(0))
    first = 13 if goes_on else 11
    world.run_until(at(first))
    assert world.slots() == [at(0), at(first)]


def test_a_slot_that_waits_its_turn_waits_on_under_a_new_definition() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(11))
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE), created_ms=at(11), on_conflict=OnConflict.REPLACE))
    world.end(run(0))
    world.run_until(at(12))
    assert (world.slots(), world.left_out()) == ([at(0), at(10)], (0, 0))


def test_a_slot_that_waits_its_turn_is_left_out_where_the_new_definition_knows_no_queue() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(11))
    world.step(schedule(every(10 * MINUTE_MS), created_ms=at(11), on_conflict=OnConflict.REPLACE))
    world.end(run(0))
    world.run_until(at(20))
    assert (world.slots(), world.left_out()) == ([at(0), at(20)], (0, 1))


def test_the_slot_that_waits_is_not_the_next_one_too_under_a_new_definition() -> None:
    """The old one had handed out or queued all of its runs; the new one has more, and was made before the slot that waits."""
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE, runs_max=2)))
    world.run_until(at(10.05))
    again = every(10 * MINUTE_MS, overlap=Overlap.QUEUE, runs_max=100)
    world.step(schedule(again, created_ms=at(9.99), on_conflict=OnConflict.REPLACE))
    for slot in (0, 10, 20):
        world.end(run(slot))
        world.run_until(at(slot + 15))
    assert (world.slots(), world.phase(), world.left_out()) == ([at(0), at(10), at(20), at(30)], Phase.WAITING, (0, 0))


def test_a_slot_that_waits_is_left_out_where_the_new_definition_has_had_its_runs_already() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(11))
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE, runs_max=1), created_ms=at(11), on_conflict=OnConflict.REPLACE))
    world.end(run(0))
    world.run_until(at(30))
    assert (world.slots(), world.phase(), world.left_out()) == ([at(0)], Phase.SUCCEEDED, (0, 1))


@pytest.mark.parametrize("recurrence", [every(10 * MINUTE_MS, overlap=Overlap.QUEUE), None])
def test_a_slot_that_waits_is_counted_where_a_definition_begins_anew(recurrence: Recurrence | None) -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(11))
    step = world.step(schedule(recurrence, due_ms=at(12), created_ms=at(11), on_conflict=OnConflict.REPLACE))
    assert (world.left_out(), list(step.left_out)) == ((0, 1), ["a"])
    world.end(run(0))
    world.run_until(at(12))
    assert [job_id for job_id, _ in world.dispatched] == [run(0), "a" if recurrence is None else run(12)]


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP])
def test_slots_that_do_not_fit_into_the_step_of_a_new_definition_are_handed_out_under_it(overlap: str) -> None:
    """An hour of nobody, and runs of a megabyte each."""
    recurrence = every(MINUTE_MS, overlap=overlap, overlap_max=100, misfire=Misfire.ALL, misfire_max=100)
    world = World()
    world.step(schedule(recurrence, work=LARGE))
    world.settle()
    world.now_ms = at(60.5)
    step = world.step(schedule(recurrence, work=LARGE, created_ms=at(60.5), on_conflict=OnConflict.REPLACE))
    assert step.size_bytes < 2 * BATCH_BYTES_MAX
    world.settle()
    skipped = 60 if overlap == Overlap.SKIP else 0
    assert (len(world.slots()), world.left_out()) == (61 - skipped, (0, skipped))


@pytest.mark.parametrize("after", [every(7 * MINUTE_MS, overlap=Overlap.ALLOW), None])
def test_slots_that_do_not_fit_and_that_the_new_definition_does_not_know_are_counted(after: Recurrence | None) -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS, overlap=Overlap.ALLOW, overlap_max=100, misfire=Misfire.ALL, misfire_max=100), work=LARGE))
    world.settle()
    world.now_ms = at(60.5)
    step = world.step(schedule(after, work=LARGE, due_ms=at(61), created_ms=at(60.5), on_conflict=OnConflict.REPLACE))
    missed, overlapped = world.left_out()
    assert (len(world.slots()) + missed, overlapped, list(step.left_out)) == (61, 0, ["a"])
    assert missed > 0


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_job_that_is_over_and_defined_anew_with_its_anchor_does_not_begin_in_the_past(is_cancelled: bool) -> None:
    """Its runs count on, and no slot of the time when it was over is run."""
    runs_max = 10 if is_cancelled else 1
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, runs_max=runs_max)))
    world.settle()
    world.end(run(0))
    world.now_ms = at(5)
    if is_cancelled:
        world.step(cancel())
    assert world.phase() == (Phase.CANCELLED if is_cancelled else Phase.SUCCEEDED)
    world.run_until(at(55))
    world.step(schedule(every(10 * MINUTE_MS, runs_max=2), created_ms=at(55), on_conflict=OnConflict.REPLACE))
    world.run_until(at(90))
    assert (world.slots(), world.phase(), world.left_out()) == ([at(0), at(60)], Phase.SUCCEEDED, (0, 0))


def test_the_slot_that_a_job_waits_for_is_not_kept_where_the_new_definition_begins_later() -> None:
    """EVERY_AFTER keeps it else; but no slot lies before `start_ms`."""
    world = World()
    world.step(schedule(every_after(10 * MINUTE_MS)))
    world.settle()
    world.end(run(0))
    world.now_ms = at(2)
    world.step(schedule(every_after(10 * MINUTE_MS, start_ms=at(15)), created_ms=at(2), on_conflict=OnConflict.REPLACE))
    world.run_until(at(20))
    assert world.slots() == [at(0), at(15)]


@pytest.mark.parametrize("before", [cancel(), schedule(every(HOUR_MS, jitter_ms=1), created_ms=at(5), on_conflict=OnConflict.REPLACE)])
def test_slots_since_a_definition_was_made_are_its_own_also_where_nobody_was_there_then(before: Schedule | Cancel) -> None:
    """Its owner takes in both commands half an hour later, in one step: it had looked at none of these slots."""
    world = World()
    world.step(schedule(every(HOUR_MS)))
    world.settle()
    world.end(run(0))
    world.now_ms = at(35)
    world.step(before, schedule(every(10 * MINUTE_MS), created_ms=at(6), on_conflict=OnConflict.REPLACE))
    world.settle()
    assert (world.slots(), world.left_out()) == ([at(0), at(30)], (2, 0))


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
def test_a_run_whose_end_is_not_read_yet_leaves_no_slot_out_because_a_definition_comes(overlap: str) -> None:
    """The run ended before the slot; its owner was down then, and reads commands and outcomes in whichever order when it is back."""
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=overlap)))
    world.settle()
    world.now_ms = at(10.6)
    again = schedule(every(10 * MINUTE_MS, overlap=overlap), created_ms=at(10.5), on_conflict=OnConflict.REPLACE)
    world.step(again, catching_up=True)
    world.end(run(0))
    world.run_until(at(12))
    assert (world.slots(), world.left_out()) == ([at(0), at(10)], (0, 0))


def test_a_run_that_goes_on_is_not_replaced_by_itself() -> None:
    world = World()
    world.step(schedule(every(10 * MINUTE_MS, overlap=Overlap.REPLACE)))
    world.settle()
    again = every(10 * MINUTE_MS, overlap=Overlap.REPLACE, misfire=Misfire.SKIP)
    world.step(schedule(again, due_ms=at(-20), created_ms=NOW_MS, on_conflict=OnConflict.REPLACE))
    world.settle()
    assert world.phase(run(0)) == Phase.DISPATCHED
    assert world.counts.slots_fired == 1


def test_a_job_that_runs_once_may_take_the_place_of_one_that_recurs_and_the_other_way_round() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.step(schedule(None, due_ms=at(2), on_conflict=OnConflict.REPLACE))
    assert world.timers == {timer_key(at(2), "a")}
    world.run_until(at(2))
    assert [job_id for job_id, _ in world.dispatched] == ["a"]
    world.step(schedule(every(MINUTE_MS), due_ms=at(3), on_conflict=OnConflict.REPLACE))
    world.step(outcome("a", world.begun["a"]))  # of the generation before, and too late
    world.run_until(at(3))
    assert world.slots() == [at(3)]


def test_a_dead_run_that_is_redriven_goes_on() -> None:
    world = World()
    world.step(schedule(every(MINUTE_MS)))
    world.settle()
    token = world.begun[run(0)]
    world.end(run(0), Result.FAILED)
    world.step({"job_id": run(0), "token": token, "created_ms": NOW_MS})
    world.run_until(at(1))
    assert (world.slots(), world.left_out()) == ([at(0), at(0)], (0, 1))
