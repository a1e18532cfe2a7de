"""How many dispatches to have claimed at a time.

Too few, and threads wait for the next claim's commit. Too many, and one worker hoards what others could run, and has that much to hand
back when it goes. So a worker claims what its handlers can do in WINDOW_MS, and at least one dispatch for each handler that may run:

    10 at a time, handlers of 1 s        window 10, the concurrency
    10 at a time, handlers of 5 ms       10 × 75 / 5 = 150
    handlers that take no time           as many as the limit allows

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

    def size(self, now_ms: int) -> int:
        """How many may be claimed and not finished."""
        self._forget(now_ms)
        if self._duration_ms is None:
            return self._concurrency
        done_in_time = self._concurrency * WINDOW_MS / max(self._duration_ms, _DURATION_MS_MIN)
        return max(self._concurrency, min(self._runs_max, int(done_in_time), GROWTH * self._finished_count))

    def _forget(self, now_ms: int) -> None:
        finished = self._finished
        while finished and now_ms - finished[0][0] > RECENT_MS:
            self._finished_count -= finished.popleft()[1]
