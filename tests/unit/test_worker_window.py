"""How many dispatches a worker claims: as many as its handlers can do in a moment, and never many more than they have just done."""

from __future__ import annotations

import pytest

from duewheel.worker.window import GROWTH, RECENT_MS, WINDOW_MS, Window

CONCURRENCY = 4


def opened(duration_ms: int, now_ms: int = 0) -> tuple[Window, int]:
    """A window after a second of handlers that take so long, and what time it is then; there is always more work."""
    window = Window(CONCURRENCY, 4_000)
    end_ms = now_ms + 1_000
    while now_ms < end_ms:
        count = window.size(now_ms)
        now_ms += max(2, count * duration_ms // CONCURRENCY)
        window.observe(count, count * duration_ms, now_ms)
    return window, now_ms


@pytest.mark.parametrize("duration_ms, size", [(0, 4_000), (5, CONCURRENCY * WINDOW_MS // 5), (1_000, CONCURRENCY)])
def test_the_window_is_what_handlers_can_do_in_a_moment(duration_ms: int, size: int) -> None:
    window, now_ms = opened(duration_ms)
    assert window.size(now_ms) == size


def test_the_window_opens_within_a_blink() -> None:
    window, now_ms = Window(CONCURRENCY, 4_000), 0
    assert window.size(now_ms) == CONCURRENCY, "nothing is known yet"
    while window.size(now_ms) < 4_000:
        count = window.size(now_ms)
        now_ms += 5
        window.observe(count, 0, now_ms)
        assert now_ms <= 40


@pytest.mark.parametrize("commit_ms", [2, RECENT_MS - 1, 2 * RECENT_MS])
def test_slow_commits_do_not_shut_the_window(commit_ms: int) -> None:
    window, now_ms = Window(CONCURRENCY, 4_000), 0
    for _ in range(20):
        count = window.size(now_ms)
        now_ms += commit_ms
        window.observe(count, 0, now_ms)
    assert window.size(now_ms) == 4_000


def test_after_a_moment_in_which_little_finished_little_is_claimed() -> None:
    window, now_ms = opened(0)
    assert window.size(now_ms + RECENT_MS + 1) == CONCURRENCY, "whatever has become of the handlers: they are slow, or had nothing to do"
    window.observe(30, 0, now_ms + 2 * RECENT_MS)
    assert window.size(now_ms + 2 * RECENT_MS) == GROWTH * 30


def test_the_window_follows_handlers_that_become_slow_or_fast() -> None:
    window, now_ms = opened(0)
    for _ in range(400):
        now_ms += 100
        window.observe(CONCURRENCY, CONCURRENCY * 100, now_ms)
    assert window.size(now_ms) == CONCURRENCY
    for _ in range(20):
        now_ms += 2
        window.observe(1_000, 0, now_ms)
    assert window.size(now_ms) == 4_000


def test_a_wall_clock_that_steps_back_during_a_run_does_not_break_the_window() -> None:
    window = Window(CONCURRENCY, 4_000)
    window.observe(1, -3_600_000, 0)
    assert CONCURRENCY <= window.size(0) <= 4_000
