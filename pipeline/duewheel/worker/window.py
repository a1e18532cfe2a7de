"""How many dispatches to have claimed at a time.

Too few, and threads wait for the next claim's commit. Too many, and one worker hoards what others could run, and has that much to hand
back when it goes. So a worker claims what its handlers can do in WINDOW_MS, and at least one dispatch for each handler that may run:

    10 at a time, handlers of 1 s        window 10, the concurrency
    10 at a time, handlers of 5 ms       10 × 75 / 5 = 150
    handlers that take no time           as many as the limit allows

How long handlers take is learnt from those that finished, the last few dozen weighing most. It must not be learnt from the rate of
completions: that depends on the window itself and on how slow commits are, and a slow broker would shut the window that it needs open.
"""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 75
_REMEMBERED_RUNS: Final = 50
_DURATION_MS_MIN: Final = 0.01  # durations are measured in whole milliseconds; shorter ones are mostly 0


class Window:
    """Follows the duration of handlers.

    Args:
        concurrency: how many handlers may run at a time; the smallest window.
        runs_max: the largest window.
    """

    def __init__(self, concurrency: int, runs_max: int) -> None:
        self.size = concurrency
        self._concurrency = concurrency
        self._runs_max = max(concurrency, runs_max)
        self._duration_ms: float | None = None

    def observe(self, count: int, spent_ms: int) -> None:
        """Notes that so many runs have finished, whose handlers took `spent_ms` in all."""
        if count <= 0:
            return
        mean_ms = max(0, spent_ms) / count
        if self._duration_ms is None:
            self._duration_ms = mean_ms
        else:
            self._duration_ms += (mean_ms - self._duration_ms) * min(1.0, count / _REMEMBERED_RUNS)
        wanted = self._concurrency * WINDOW_MS / max(self._duration_ms, _DURATION_MS_MIN)
        self.size = max(self._concurrency, min(self._runs_max, int(wanted)))
