"""T6: the wall clock steps back, or leaps ahead. Never early, nothing sticks, nothing fires en masse."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.timekeeper import LEAP_MS_MAX, Timekeeper

START_MS = 1_764_600_000_000


def test_T6_a_step_back_is_followed_at_once() -> None:
    keeper = Timekeeper(START_MS, 0)
    assert keeper.now_ms(START_MS + 10_000, 10_000) == START_MS + 10_000
    assert keeper.now_ms(START_MS - 3_600_000, 10_001) == START_MS - 3_600_000
    assert keeper.stepped_back_ms == 3_610_000
    assert keeper.now_ms(START_MS - 3_599_000, 11_001) == START_MS - 3_599_000
    assert keeper.stepped_back_ms == 0


def test_T6_a_leap_ahead_is_held_back_until_the_wall_returns() -> None:
    keeper = Timekeeper(START_MS, 0)
    assert keeper.now_ms(START_MS + 3_601_000, 1_000) == START_MS + 1_000
    assert keeper.leap_ms == 3_600_000
    assert keeper.now_ms(START_MS + 3_602_000, 2_000) == START_MS + 2_000
    assert keeper.now_ms(START_MS + 3_000, 3_000) == START_MS + 3_000
    assert keeper.leap_ms == 0


def test_T6_a_suspended_machine_did_not_leap() -> None:
    keeper = Timekeeper(START_MS, 0)
    assert keeper.now_ms(START_MS + 3_600_000, 3_600_000) == START_MS + 3_600_000
    assert keeper.leap_ms == 0


def test_T6_a_step_back_that_is_corrected_is_no_leap() -> None:
    keeper = Timekeeper(START_MS, 0)
    assert keeper.now_ms(START_MS - 3_599_000, 1_000) == START_MS - 3_599_000
    assert keeper.now_ms(START_MS + 2_000, 2_000) == START_MS + 2_000
    assert keeper.leap_ms == 0
    keeper.now_ms(START_MS - 3_597_000, 3_000)
    assert keeper.now_ms(START_MS + 3_604_000, 4_000) == START_MS - 3_596_000, "beyond where it ever was"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(-100_000, 100_000)), max_size=50))
def test_T6_never_ahead_of_the_wall_nor_of_the_steady_clock(readings: list[tuple[int, int]]) -> None:
    """Now is at most the wall, and at most as far ahead of the steady clock as it ever was, plus what is tolerated."""
    steady_ms, ahead_ms = 0, START_MS
    keeper = Timekeeper(START_MS, 0)
    for elapsed_ms, off_ms in readings:
        steady_ms += elapsed_ms
        wall_ms = START_MS + steady_ms + off_ms
        now_ms = keeper.now_ms(wall_ms, steady_ms)
        assert now_ms <= wall_ms
        assert now_ms - steady_ms <= ahead_ms + LEAP_MS_MAX
        ahead_ms = max(ahead_ms, now_ms - steady_ms)
