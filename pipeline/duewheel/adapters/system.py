"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time, and a steady time that goes on while the machine is suspended (Linux's CLOCK_BOOTTIME)."""

    _STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(self._STEADY) // 1_000_000
