"""How many dispatches to have claimed at a time.

Too few, and threads wait for the next claim's commit. Too many, and one worker hoards what others could run, and has that much to hand
back when it goes. By Little's law `in flight = rate x time in flight`: to keep jobs at most WINDOW_MS between claim and completion, claim
at most as many as finish in that time. A window that is smaller than handlers can keep up with lets the rate rise, which opens it
further; handlers slower than WINDOW_MS never open it beyond the concurrency, since at most `concurrency` of them finish in that time.

    4 threads, handlers of 1 s       4 finish in a second: 0.3 in 75 ms     window 4, the concurrency
    4 threads, handlers of 2 ms      2,000 a second: 150 in 75 ms           window 150
    no-op handlers                   30,000 a second: 2,250 in 75 ms        window 2,250, in bounds

The rate is measured only while something is in flight, so that an idle hour does not close the window.
"""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 75
_SAMPLE_MS: Final = 20  # long enough for several commits, short enough to open within a blink


class Window:
    """Follows the rate of completions.

    Args:
        concurrency: how many handlers may run at a time; the smallest window.
        runs_max: the largest window.
    """

    def __init__(self, concurrency: int, runs_max: int) -> None:
        self.size = concurrency
        self._concurrency = concurrency
        self._runs_max = max(concurrency, runs_max)
        self._completed = 0
        self._busy_ms = 0
        self._observed_ms = 0
        self._was_busy = False
        self._rate_per_ms = 0.0

    def observe(self, completed: int, in_flight: int, now_ms: int) -> None:
        """Notes that so many runs were completed since the last call, and that so many are claimed now.

        Args:
            now_ms: of the steady clock.
        """
        if self._was_busy:
            self._busy_ms += now_ms - self._observed_ms
        self._completed += completed
        self._observed_ms, self._was_busy = now_ms, in_flight > 0
        if self._busy_ms >= _SAMPLE_MS:
            self._rate_per_ms = (self._rate_per_ms + self._completed / self._busy_ms) / 2
            self.size = max(self._concurrency, min(self._runs_max, int(self._rate_per_ms * WINDOW_MS)))
            self._completed = self._busy_ms = 0
