"""How many dispatches to have claimed at a time.

Too few, and threads wait for the next claim's commit. Too many, and one worker hoards what others could run, and has that much to hand
back when it goes. So a worker claims what its handlers can do in WINDOW_MS, and at least one dispatch for each handler that may run:

    10 at a time, handlers of 1 s        window 10, the concurrency
    10 at a time, handlers of 5 ms       10 × 75 / 5 = 150
    handlers that take no time           as many as the limit allows

A handler that finishes is idle until the next dispatch is claimed, and that waits for the commit under way and takes one itself. While
commits are quick that is nothing; where brokers are slow, handlers of the same length would be idle for most of the time. So (by Little's
law) there is one dispatch more for each that handlers could do meanwhile:

    10 at a time, handlers of 100 ms, commits of 3 ms      10 × (100 + 2 × 3) / 100 = 10
    10 at a time, handlers of 100 ms, commits of 150 ms    10 × (100 + 2 × 150) / 100 = 40

How long handlers take is learnt from those that finished, the last few dozen weighing most. But what was fast may be followed by
what is slow, and of handlers that have not finished nobody knows. So the window is never larger than the concurrency, or GROWTH times
what has finished within the last RECENT_MS. It opens from 10 to 4,000 in six rounds of claiming and finishing, a few milliseconds each,
and shuts by itself RECENT_MS after things have become slow or quiet. RECENT_MS is longer than the pauses between bursts and than commits
take, or each burst would have to open the window again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_MS: Final = 75
RECENT_MS: Final = 1_000
GROWTH: Final = 2
_REMEMBERED_RUNS: Final = 50
_REMEMBERED_COMMITS: Final = 8
_COMMIT_MS_MAX: Final = 1_000  # what takes longer is a fault, and says nothing of the next one
_DURATION_MS_MIN: Final = 0.01  # durations are measured in whole milliseconds; shorter ones are mostly 0


class Window:
    """Follows what handlers do.

    Args:
        concurrency: how many handlers may run at a time; the smallest window.
        runs_max: the largest window.
    """

    def __init__(self, concurrency: int, runs_max: int) -> None:
        self._concurrency = concurrency
        self._runs_max = max(concurrency, runs_max)
        self._duration_ms: float | None = None
        self._commit_ms = 0.0
        self._finished: deque[tuple[int, int]] = deque()  # when, and how many, within RECENT_MS
        self._finished_count = 0

    def observe(self, count: int, spent_ms: int, now_ms: int) -> None:
        """Notes that so many runs have finished, whose handlers took `spent_ms` in all."""
        if count <= 0:
            return
        mean_ms = max(0, spent_ms) / count
        if self._duration_ms is None:
            self._duration_ms = mean_ms
        else:
            self._duration_ms += (mean_ms - self._duration_ms) * min(1.0, count / _REMEMBERED_RUNS)
        self._finished.append((now_ms, count))
        self._finished_count += count
        self._forget(now_ms)

    def observe_commit(self, took_ms: int) -> None:
        """Notes how long a commit took, of claims or of completions."""
        self._commit_ms += (min(max(0, took_ms), _COMMIT_MS_MAX) - self._commit_ms) / _REMEMBERED_COMMITS

    def size(self, now_ms: int) -> int:
        """How many may be claimed and not finished."""
        self._forget(now_ms)
        if self._duration_ms is None:
            return self._concurrency
        duration_ms = max(self._duration_ms, _DURATION_MS_MIN)
        done_in_time = self._concurrency * max(WINDOW_MS, duration_ms + 2 * self._commit_ms) / duration_ms
        return max(self._concurrency, min(self._runs_max, int(done_in_time), GROWTH * self._finished_count))

    def _forget(self, now_ms: int) -> None:
        finished = self._finished
        while finished and now_ms - finished[0][0] > RECENT_MS:
            self._finished_count -= finished.popleft()[1]
