"""Commands that change a job: what each does to jobs that wait, run or are over, and how it is answered."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.avro import codec
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import ANSWERS_MAX, DAY_MS, HOUR_MS, MINUTE_MS
from duewheel.core.model import Action, Change, Misfire, OnConflict, Overlap, Phase, Reach, Result, Schedule
from duewheel.core.run_ids import run_id
from duewheel.core.step import Step
from duewheel.core.wheel import due_of, timer_key
from tests.recurring import cron, every, every_after
from tests.unit.test_step_recurrence import NOW_MS, World, at, cancel, outcome, run, schedule


def change(action: str, job_id: str = "a", **fields: Any) -> Change:
    record: Any = dict.fromkeys(Change.__annotations__)
    return cast(Change, {**record, "job_id": job_id, "created_ms": NOW_MS, "action": action, **fields})


class Changing(World):
    """A partition whose commands are encoded for real, since an update is written into the old one."""

    offset = 0

    def change(self, action: str, job_id: str = "a", **fields: Any) -> Step:
        record = change(action, job_id, **{"created_ms": self.now_ms, **fields})
        return self.take(lambda step: step.change(record, self.offset))

    def ask(self, record: Schedule) -> Step:
        command = codec.encode_schedule(record)
        return self.take(lambda step: step.schedule(record, codec.decode_command(command)[2], command, self.offset))

    def take(self, obey: Any) -> Step:
        self.offset += 1
        step = Step(self, 0, self.token, self.now_ms, splice_schedule=codec.splice_schedule, revise_schedule=codec.revise_schedule)
        try:
            obey(step)
        finally:
            step.fire(sorted(key for key in self.timers if due_of(key) <= self.now_ms))
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

    def step(self, *inputs: Any, **fields: Any) -> Step:
        if not inputs:
            return self.take(lambda step: None)
        return super().step(*inputs, **fields)

    def answer(self, job_id: str = "a") -> tuple[int, str]:
        state = self.states[job_id]
        assert state is not None
        assert state["trail"] is not None
        answer = state["trail"]["answers"][-1]
        return answer["offset"], answer["reason"]

    def answers(self, job_id: str) -> list[tuple[int, str]]:
        state = self.states[job_id]
        assert state is not None
        return [] if state["trail"] is None else [(answer["offset"], answer["reason"]) for answer in state["trail"]["answers"]]

    def ran(self) -> list[tuple[str, int]]:
        """Which jobs were dispatched, and at which minute."""
        return [(job_id, (at_ms - NOW_MS) // MINUTE_MS) for job_id, at_ms in self.dispatched]


ACTIONS = [(action, {"payload": b"2"} if action is Action.UPDATE else {}) for action in Action]


@pytest.mark.parametrize("action, fields", ACTIONS)
def test_a_job_that_nobody_knows_is_answered_by_its_deletion(action: Action, fields: dict[str, Any]) -> None:
    world = Changing()
    step = world.change(action, **fields)
    assert (step.states, step.definitions, step.counts.changes_unknown) == ({"a": None}, {}, 1)


@pytest.mark.parametrize("action, fields", ACTIONS)
def test_what_runs_and_what_is_over_is_left_alone(action: Action, fields: dict[str, Any]) -> None:
    world = Changing()
    world.ask(schedule(None))
    before = world.states["a"]
    assert before is not None
    world.change(action, **fields)
    assert world.answer() == (world.offset, "running")
    assert {**world.states["a"], "trail": None} == before  # type: ignore[dict-item]
    world.end("a")
    world.change(action, **fields)
    assert world.answer() == (world.offset, "over")
    assert (world.phase(), len(world.dispatched), world.counts.changes_refused) == (Phase.SUCCEEDED, 1, 2)


def test_a_paused_job_starts_no_more_until_it_is_resumed() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    for _ in range(2):  # the same again changes nothing
        world.change(Action.PAUSE)
        assert (world.phase(), world.timers, world.answer()) == (Phase.PAUSED, set(), (world.offset, ""))
    world.run_until(at(10))
    assert world.ran() == []
    world.change(Action.RESUME)
    world.settle()
    assert world.ran() == [("a", 10)]


def test_a_job_that_is_resumed_before_its_time_waits_for_it() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    world.change(Action.PAUSE)
    for _ in range(2):
        world.change(Action.RESUME)
        assert (world.phase(), world.timers, world.answer()) == (Phase.WAITING, {timer_key(at(5), "a")}, (world.offset, ""))
    world.run_until(at(6))
    assert world.ran() == [("a", 5)]


def test_a_pause_that_comes_with_the_time_wins_as_a_cancel_does() -> None:
    world = Changing()
    record = schedule(None)
    command = codec.encode_schedule(record)

    def both(step: Step) -> None:
        step.schedule(record, codec.decode_command(command)[2], command, 0)
        step.change(change(Action.PAUSE), 1)

    world.take(both)
    assert (world.ran(), world.phase()) == ([], Phase.PAUSED)


def test_each_of_several_changes_at_once_is_answered_whatever_becomes_of_the_job_in_the_same_step() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    refused: Any = {"expires_ms": at(4), "total_timeout_ms": 0, "crashes_max": 0}
    record = schedule(None, "b", due_ms=at(5))
    command = codec.encode_schedule(record)

    def several(step: Step) -> None:
        step.change(change(Action.PAUSE), 7)
        with pytest.raises(RejectedJob):
            step.change(change(Action.UPDATE, limits=refused), 8)
        step.change(change(Action.RESUME), 9)
        step.change(change(Action.PAUSE, "b"), 10)
        step.schedule(record, codec.decode_command(command)[2], command, 11)
        step.change(change(Action.PAUSE, "c"), 12)

    world.now_ms = at(5)
    world.take(several)
    assert world.answers("a") == [(7, ""), (8, "bad_limits"), (9, "")]
    assert world.answers("b") == [(10, "unknown")]
    assert world.states["c"] is None
    assert sorted(world.ran()) == [("a", 5), ("b", 5)]
    world.end("a")
    assert world.answers("a") == [], "they are written once"


def test_an_answer_outlives_the_end_of_the_job_in_the_same_step() -> None:
    world = Changing()
    world.ask(schedule(None))

    def several(step: Step) -> None:
        step.change(change(Action.PAUSE), 7)
        step.outcome(outcome("a", world.begun["a"], Result.SUCCEEDED))

    world.take(several)
    assert (world.phase(), world.answers("a")) == (Phase.SUCCEEDED, [(7, "running")])


def test_answers_are_bounded_and_the_latest_ones_stay() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))

    def many(step: Step) -> None:
        for offset in range(ANSWERS_MAX + 5):
            step.change(change(Action.PAUSE), offset)

    world.take(many)
    assert world.answers("a") == [(offset, "") for offset in range(5, ANSWERS_MAX + 5)]


def failed(world: Changing) -> None:
    """Its first attempt fails, and the next is ten minutes later."""
    retry: Any = {**outcome("a", world.begun["a"], Result.RETRY), "retry_after_ms": 10 * MINUTE_MS}
    world.take(lambda step: step.outcome(retry))


@pytest.mark.parametrize(
    "action, fields, generation, minute",
    [
        (Action.UPDATE, {"payload": b"[2]"}, 2, 10),
        (Action.UPDATE, {"due_ms": at(20)}, 1, 20),
        (Action.UPDATE, {"due_ms": at(20), "payload": b"[2]"}, 2, 20),
        (Action.RUN_NOW, {}, 1, 1),
    ],
)
def test_between_two_attempts_a_job_stays_the_run_of_its_time(action: Action, fields: dict[str, Any], generation: int, minute: int) -> None:
    world = Changing()
    world.ask(schedule(None))
    failed(world)
    world.now_ms = at(1)
    world.change(action, **fields)
    world.run_until(at(30))
    known, state = world.definitions["a"], world.states["a"]
    assert known is not None
    assert state is not None
    assert world.ran() == [("a", 0), ("a", minute)]
    assert (known.generation, known.due_ms, state["slot_ms"], state["attempt"]) == (generation, NOW_MS, NOW_MS, 2)


def test_a_paused_job_that_waits_for_its_next_attempt_keeps_the_moment() -> None:
    world = Changing()
    world.ask(schedule(None))
    failed(world)
    world.change(Action.PAUSE)
    world.run_until(at(3))
    world.change(Action.RESUME)
    world.run_until(at(11))
    assert world.ran() == [("a", 0), ("a", 10)]


def test_a_paused_job_may_be_cancelled_or_defined_anew() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    world.change(Action.PAUSE)
    world.take(lambda step: step.cancel(cancel()))
    assert world.phase() == Phase.CANCELLED
    world.ask(schedule(None, due_ms=at(6), on_conflict=OnConflict.REPLACE))
    world.change(Action.PAUSE)
    world.ask(schedule(None, due_ms=at(7), on_conflict=OnConflict.REPLACE))
    world.run_until(at(8))
    assert world.ran() == [("a", 7)]


def stopped(world: Changing, reach: Reach, *said: Result) -> list[str]:
    """Cancels so, lets the worker say what it says, and gives whose dispatches were to be stopped."""
    step = world.take(lambda step: step.cancel(cancel(reach=reach)))
    stops = [stop["job_id"] for stop in step.stops]
    for result in said:
        told = outcome("a", world.begun["a"], result)
        step = world.take(lambda step, told=told: step.outcome(told))
        stops += [stop["job_id"] for stop in step.stops]
    return stops


@pytest.mark.parametrize("reach", Reach)
def test_a_job_that_waits_is_cancelled_whatever_the_reach(reach: Reach) -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    assert stopped(world, reach) == []
    assert (world.phase(), world.timers) == (Phase.CANCELLED, set())


@pytest.mark.parametrize("reach, told", [(Reach.DEFAULT, 3), (Reach.RUNNING, 3), (Reach.JOB, 0)])
def test_what_runs_is_told_of_a_cancel_unless_only_the_job_is_meant(reach: Reach, told: int) -> None:
    world = Changing()
    world.ask(schedule(None))
    assert stopped(world, reach, Result.STARTED, Result.HEARTBEAT) == ["a"] * told
    assert world.phase() == Phase.CANCELLING
    world.end("a")
    assert world.phase() == Phase.SUCCEEDED


def test_nothing_follows_what_a_cancel_left_alone() -> None:
    world = Changing()
    world.ask(schedule(None))
    assert stopped(world, Reach.JOB, Result.RETRY) == []
    world.run_until(at(60))
    assert (world.phase(), world.ran()) == (Phase.CANCELLED, [("a", 0)])


def test_a_later_cancel_may_reach_further_and_none_less_far() -> None:
    world = Changing()
    world.ask(schedule(None))
    assert stopped(world, Reach.JOB, Result.HEARTBEAT) == []
    assert stopped(world, Reach.RUNNING, Result.HEARTBEAT) == ["a", "a"]
    assert stopped(world, Reach.JOB, Result.HEARTBEAT) == ["a"], "it was told before"


@pytest.mark.parametrize("reach, reached", [(Reach.DEFAULT, False), (Reach.JOB, False), (Reach.RUNNING, True)])
def test_runs_of_a_recurring_job_are_cancelled_where_they_are_meant(reach: Reach, reached: bool) -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW, jitter_ms=0)))
    world.settle()
    world.run_until(at(10))
    retry: Any = {**outcome(run(10), world.begun[run(10)], Result.RETRY), "retry_after_ms": HOUR_MS}
    world.take(lambda step: step.outcome(retry))
    assert stopped(world, reach) == ([run(0)] if reached else [])
    assert (world.phase(), world.phase(run(0))) == (Phase.CANCELLED, Phase.CANCELLING if reached else Phase.DISPATCHED)
    assert world.phase(run(10)) == (Phase.CANCELLED if reached else Phase.WAITING)
    assert stopped(world, Reach.RUNNING) == ([] if reached else [run(0)]), "also where the job itself was cancelled before"
    world.run_until(at(180))
    assert world.slots() == [at(0), at(10)]


@pytest.mark.parametrize("misfire, slots", [(Misfire.ONCE, [0, 40, 50]), (Misfire.SKIP, [0, 50]), (Misfire.ALL, [0, 10, 20, 30, 40, 50])])
def test_slots_of_a_recurring_job_that_pass_while_it_is_paused_are_missed_ones(misfire: Misfire, slots: list[float]) -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, misfire=misfire, overlap=Overlap.ALLOW)))
    world.settle()
    world.now_ms = at(5)
    world.change(Action.PAUSE)
    world.run_until(at(45))
    assert world.slots() == [at(0)]
    world.change(Action.RESUME)
    world.run_until(at(51))
    assert world.slots() == [at(minutes) for minutes in slots]


def test_a_paused_job_that_counts_from_the_end_of_its_run_goes_on_with_that() -> None:
    world = Changing()
    world.ask(schedule(every_after(10 * MINUTE_MS)))
    world.settle()
    world.change(Action.PAUSE)
    world.now_ms = at(1)
    world.end(run(0))
    world.run_until(at(30))
    assert world.slots() == [at(0)]
    world.change(Action.RESUME)
    world.run_until(at(41))
    assert world.slots() == [at(0), at(40)]


def test_run_now_is_a_new_due_time_for_a_job_that_runs_once() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(60)))
    world.now_ms = at(1)
    world.change(Action.RUN_NOW)
    world.settle()
    assert world.ran() == [("a", 1)]
    world.change(Action.RUN_NOW)
    assert world.answer() == (world.offset, "running")
    known = world.definitions["a"]
    assert known is not None
    assert (known.generation, known.due_ms, known.offset) == (2, at(1), 1), "never early, and still the command that asked for it"


def test_run_now_wakes_a_paused_job() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(60)))
    world.change(Action.PAUSE)
    world.change(Action.RUN_NOW)
    world.settle()
    assert world.ran() == [("a", 0)]


def test_run_now_is_a_run_beside_the_slots_of_a_recurring_job_and_the_same_command_once() -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, runs_max=3), due_ms=at(10)))
    world.now_ms = at(2)
    for _ in range(2):
        world.change(Action.RUN_NOW, created_ms=at(1.5))
    assert world.ran() == [(run_id("a", at(1.5)), 2)]
    world.run_until(at(10))
    assert world.left_out() == (0, 1), "it counts as going on"
    world.end(run_id("a", at(1.5)))
    for minutes in (20, 30, 40):
        world.run_until(at(minutes))
        world.end(run(minutes))
    assert world.slots() == [at(1.5), at(20), at(30), at(40)]
    assert (world.phase(), world.counts.slots_fired) == (Phase.SUCCEEDED, 3), "and not among those that max_runs counts"


def test_run_now_in_the_millisecond_of_a_slot_is_a_run_beside_it() -> None:
    for recurrence in (every(10 * MINUTE_MS, overlap=Overlap.ALLOW), cron("* * * * *", overlap=Overlap.ALLOW), every_after(10 * MINUTE_MS)):
        world = Changing()
        world.ask(schedule(recurrence))
        world.settle()
        slots = world.slots()
        assert slots == [at(0)]
        for _ in range(2):
            world.change(Action.RUN_NOW, created_ms=at(0))
        world.run_until(at(0) + 1)
        assert world.slots() == [at(0), at(0) + 1], "its slot has run, and it runs beside it, once"


def test_run_now_in_the_millisecond_of_a_slot_to_come_leaves_that_to_its_time() -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW), due_ms=at(10)))
    world.now_ms = at(10) - 1
    world.change(Action.RUN_NOW, created_ms=at(10))
    world.run_until(at(11))
    assert sorted(world.slots()) == [at(10), at(10) + 1]


def test_a_job_that_runs_once_is_not_made_to_recur() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    with pytest.raises(RejectedJob, match="runs once"):
        world.change(Action.UPDATE, recurrence=every(MINUTE_MS))
    world.run_until(at(5))
    failed(world)
    before = world.definitions["a"]
    with pytest.raises(RejectedJob, match="runs once"):
        world.change(Action.UPDATE, recurrence=every(MINUTE_MS))
    assert (world.definitions["a"], world.answer()) == (before, (world.offset, "bad_change"))
    world.run_until(at(16))
    assert world.ran() == [("a", 5), ("a", 15)]


@pytest.mark.parametrize("paused", [False, True])
def test_run_now_that_would_break_a_rule_leaves_the_job_as_it_was(paused: bool) -> None:
    """As no command can bring it about: a job's time is before it expires, and is brought forward. But rules may become stricter."""
    world = Changing()
    world.ask(schedule(None, due_ms=at(60)))
    if paused:
        world.change(Action.PAUSE)
    before = world.definitions["a"], set(world.timers)

    def stricter(command: bytes, revise: Any) -> Any:
        raise RejectedJob(Reason.BAD_DUE, "stricter")

    def refused(step: Step) -> None:
        step.revise_schedule = stricter
        step.change(change(Action.RUN_NOW), 7)

    with pytest.raises(RejectedJob, match="stricter"):
        world.take(refused)
    assert (world.definitions["a"], set(world.timers)) == before
    assert world.phase() == (Phase.PAUSED if paused else Phase.WAITING)
    assert world.answer() == (7, "bad_due")


@pytest.mark.parametrize(
    "on_conflict, kept", [(OnConflict.IGNORE, "IGNORE"), (OnConflict.REPLACE, "IGNORE"), (OnConflict.REJECT, "REJECT")]
)
def test_a_definition_that_is_updated_still_says_whether_it_replaced_another(on_conflict: OnConflict, kept: str) -> None:
    def says() -> str:
        known = world.definitions["a"]
        assert known is not None
        return cast(Schedule, codec.decode_command(known.command)[1])["on_conflict"]

    world = Changing()
    world.ask(schedule(None, due_ms=at(5), on_conflict=on_conflict))
    for payload in (b"[2]", b"[3]"):
        world.change(Action.UPDATE, payload=payload)
        assert says() == kept
    world.ask(schedule(None, due_ms=at(6), on_conflict=OnConflict.REPLACE))
    world.change(Action.UPDATE, payload=b"[4]")
    assert says() == "REPLACE"


def test_an_update_changes_what_it_gives_and_nothing_else() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    before = world.definitions["a"]
    assert before is not None
    limits: Any = {"expires_ms": at(30), "total_timeout_ms": 0, "crashes_max": 2}
    world.change(Action.UPDATE, payload=b"[2]", limits=limits, due_ms=at(7), retention_ms=HOUR_MS)
    after = world.definitions["a"]
    assert after is not None
    old, new = (cast(Schedule, codec.decode_command(known.command)[1]) for known in (before, after))
    changed = {"due_ms": at(7), "limits": limits, "retention_ms": HOUR_MS, "work": {**old["work"], "payload": b"[2]"}}
    assert new == {**old, **changed}
    assert (after.generation, after.offset, world.timers) == (2, 1, {timer_key(at(7), "a")})
    world.change(Action.UPDATE, payload=b"[2]", limits=limits, due_ms=at(7), retention_ms=HOUR_MS)
    assert (world.definitions["a"], world.answer()) == (after, (world.offset, "")), "the same again changes nothing"
    world.change(Action.UPDATE, limits={"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 0})
    last = world.definitions["a"]
    assert last is not None
    assert (last.generation, last.limits) == (3, None)


def test_a_paused_job_that_is_updated_stays_paused() -> None:
    for record in (schedule(None, due_ms=at(5)), schedule(every(10 * MINUTE_MS), due_ms=at(5))):
        world = Changing()
        world.ask(record)
        world.change(Action.PAUSE)
        world.change(Action.UPDATE, payload=b"[2]")
        assert (world.phase(), world.timers) == (Phase.PAUSED, set())
        world.run_until(at(6))
        assert world.ran() == []
        world.change(Action.RESUME)
        world.settle()
        assert len(world.ran()) == 1


def test_an_update_that_would_break_a_rule_is_refused_and_answered() -> None:
    world = Changing()
    world.ask(schedule(None, due_ms=at(5)))
    before = world.definitions["a"]
    with pytest.raises(RejectedJob, match="expires_ms"):
        world.change(Action.UPDATE, limits={"expires_ms": at(4), "total_timeout_ms": 0, "crashes_max": 0})
    assert world.answer() == (world.offset, "bad_limits")
    assert (world.definitions["a"], world.timers) == (before, {timer_key(at(5), "a")})


def test_an_update_of_a_recurring_job_keeps_its_slots_its_runs_and_its_counts() -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, runs_max=3)))
    world.settle()
    world.now_ms = at(5)
    world.change(Action.UPDATE, payload=b"[2]")
    world.run_until(at(10))
    assert world.left_out() == (0, 1), "the run of the first slot still goes on"
    world.end(run(0))
    world.run_until(at(20))
    world.end(run(20))
    world.run_until(at(100))
    assert (world.slots(), world.phase()) == ([at(0), at(20), at(30)], Phase.SUCCEEDED)
    state = world.states[run(20)]
    assert state is not None


@given(st.lists(st.tuples(st.sampled_from([*Action, "wait", "end"]), st.integers(0, 12)), max_size=12))
def test_whatever_is_asked_no_slot_runs_twice_and_nothing_starts_while_paused(said: list[tuple[str, int]]) -> None:
    world = Changing()
    world.ask(schedule(every(3 * MINUTE_MS, overlap=Overlap.ALLOW, overlap_max=1_000, misfire=Misfire.ALL), retention_ms=DAY_MS))
    for what, number in said:
        if what == "wait":
            world.run_until(world.now_ms + 1)  # a run beside the slots may be due in a millisecond
            paused, before = world.phase() == Phase.PAUSED, len(world.dispatched)
            world.run_until(world.now_ms + number * MINUTE_MS)
            assert not paused or len(world.dispatched) == before
        elif what == "end":
            for job_id in list(world.begun):
                world.end(job_id)
        else:
            world.change(what, payload=b"%d" % number if what == Action.UPDATE else None)
    assert len(world.slots()) == len(set(world.slots()))
    world.change(Action.RESUME)
    world.settle()
    due = [NOW_MS + n * 3 * MINUTE_MS for n in range((world.now_ms - NOW_MS) // (3 * MINUTE_MS) + 1)]
    assert set(due[-5:]) <= set(world.slots())


# --- a definition that follows a paused one ---


def test_slots_that_passed_while_paused_are_missed_ones_of_the_definition_that_follows() -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, misfire=Misfire.SKIP)))
    world.settle()
    world.end(run(0))
    world.change(Action.PAUSE)
    world.run_until(at(35))
    again = every(10 * MINUTE_MS, misfire=Misfire.ALL, overlap=Overlap.ALLOW)
    world.ask(schedule(again, created_ms=at(35), on_conflict=OnConflict.REPLACE))
    world.run_until(at(41))
    assert (world.slots(), world.left_out()) == ([at(0), at(10), at(20), at(30), at(40)], (0, 0))


def test_slots_that_passed_while_paused_are_counted_where_other_slots_follow() -> None:
    world = Changing()
    world.ask(schedule(every(10 * MINUTE_MS, overlap=Overlap.QUEUE)))
    world.run_until(at(11))  # the slot of minute 10 waits for the run of minute 0
    world.change(Action.PAUSE)
    world.run_until(at(35))
    step = world.ask(schedule(every(7 * MINUTE_MS), due_ms=at(36), created_ms=at(35), on_conflict=OnConflict.REPLACE))
    assert (world.left_out(), list(step.left_out)) == ((2, 1), ["a"])
    world.end(run(0))
    world.run_until(at(36))
    assert world.slots() == [at(0), at(36)]


def test_a_definition_that_follows_a_paused_one_begins_when_it_was_made_and_not_with_the_next_slot_of_that() -> None:
    world = Changing()
    world.ask(schedule(every(60 * MINUTE_MS)))
    world.settle()
    world.end(run(0))
    world.change(Action.PAUSE)
    world.run_until(at(35))
    world.ask(schedule(every(10 * MINUTE_MS, overlap=Overlap.ALLOW), created_ms=at(35), on_conflict=OnConflict.REPLACE))
    world.run_until(at(51))
    assert (world.slots(), world.left_out()) == ([at(0), at(40), at(50)], (0, 0))
