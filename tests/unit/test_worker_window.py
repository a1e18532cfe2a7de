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


def test_quick_commits_claim_nothing_ahead_of_slow_handlers() -> None:
    window, now_ms = opened(1_000)
    for _ in range(100):
        window.observe_commit(5)
    assert window.size(now_ms) == CONCURRENCY


@pytest.mark.parametrize("commit_ms", [3, 40, 150])
def test_handlers_are_kept_busy_while_commits_are_slow(commit_ms: int) -> None:
    """A loop as the worker's: it claims, commits, and claims again; handlers of 100 ms go on meanwhile."""
    window, now_ms, ends_ms, waiting, busy_ms = Window(CONCURRENCY, 4_000), 0, list[int](), 0, 0
    while now_ms < 20_000:
        finished = sum(end_ms <= now_ms for end_ms in ends_ms)
        ends_ms = [end_ms for end_ms in ends_ms if end_ms > now_ms]
        window.observe(finished, finished * 100, now_ms)
        claimed = max(0, window.size(now_ms) - len(ends_ms) - waiting)
        for until_ms in range(now_ms + 1, now_ms + commit_ms + 1):
            while waiting and sum(end_ms > until_ms for end_ms in ends_ms) < CONCURRENCY:
                waiting -= 1
                ends_ms.append(until_ms + 100)
            busy_ms += sum(end_ms > until_ms for end_ms in ends_ms)
        now_ms += commit_ms
        waiting += claimed
        window.observe_commit(commit_ms)
    assert busy_ms > 0.9 * CONCURRENCY * now_ms
    assert waiting <= CONCURRENCY * (1 + 2 * commit_ms // 100)


def test_a_commit_that_hung_claims_no_hoard() -> None:
    window, now_ms = opened(100)
    window.observe_commit(20_000)
    assert window.size(now_ms) <= CONCURRENCY * 4


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
