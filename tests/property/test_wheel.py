"""The wheel against the obvious model: a sorted list of keys, the disk, of which the wheel shows what lies below its horizon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duewheel.core.wheel import Wheel, due_of, job_of, time_key, timer_key

TIMES = st.integers(0, 60)
JOBS = st.sampled_from("abcdef")


@given(st.integers(0, 2**62), st.text(min_size=1))
def test_a_key_names_its_time_and_job(due_ms: int, job_id: str) -> None:
    key = timer_key(due_ms, job_id)
    assert (due_of(key), job_of(key)) == (due_ms, job_id)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.text(min_size=1, max_size=3))))
def test_keys_sort_by_time(timers: list[tuple[int, str]]) -> None:
    keys = sorted(timer_key(due_ms, job_id) for due_ms, job_id in timers)
    assert [due_of(key) for key in keys] == sorted(due_ms for due_ms, _ in timers)


class WheelAgainstDisk(RuleBasedStateMachine):
    CAPACITY = 8

    def __init__(self) -> None:
        super().__init__()
        self.wheel = Wheel(self.CAPACITY)
        self.disk: set[bytes] = set()

    @rule(due_ms=TIMES, job_id=JOBS)
    def set_timer(self, due_ms: int, job_id: str) -> None:
        key = timer_key(due_ms, job_id)
        self.disk.add(key)
        self.wheel.add(key)

    @rule(due_ms=TIMES, job_id=JOBS)
    def unset_timer(self, due_ms: int, job_id: str) -> None:
        key = timer_key(due_ms, job_id)
        self.disk.discard(key)
        self.wheel.discard(key)

    @precondition(lambda self: self.wheel.room > 0)
    @rule(until_ms=TIMES)
    def load(self, until_ms: int) -> None:
        end = time_key(until_ms)
        if end < self.wheel.horizon:
            return
        keys = sorted(key for key in self.disk if self.wheel.horizon <= key < end)
        taken = keys[: self.wheel.room]
        self.wheel.load(taken, end if len(taken) == len(keys) else taken[-1] + b"\0")

    @rule(now_ms=TIMES, count_max=st.integers(1, 10))
    def fire(self, now_ms: int, count_max: int) -> None:
        due = self.wheel.due(now_ms, count_max)
        assert len(set(due)) == len(due)
        assert all(due_of(key) <= now_ms for key in due), "early"
        expected = [due_of(key) for key in sorted(self.shown()) if due_of(key) <= now_ms][:count_max]
        assert [due_of(key) for key in due] == expected, "earliest first, and none left out"
        for key in due:
            self.wheel.discard(key)
            self.disk.discard(key)

    def shown(self) -> set[bytes]:
        return {key for key in self.disk if key < self.wheel.horizon}

    @invariant()
    def holds_what_the_horizon_says(self) -> None:
        assert len(self.wheel) == len(self.shown()) <= self.CAPACITY
        assert sorted(self.wheel.due(2**62, 1_000)) == sorted(self.shown())

    @invariant()
    def knows_what_comes_next(self) -> None:
        shown = self.shown()
        assert self.wheel.next_due_ms() == (due_of(min(shown)) if shown else None)
        assert not self.disk or self.wheel.low() <= min(self.disk) or self.wheel.low() == b""


TestWheel = WheelAgainstDisk.TestCase
