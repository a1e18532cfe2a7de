"""The machine's clock and randomness, and the interpreter's memory."""

from __future__ import annotations

import gc
import os
import time
from typing import Final

_YOUNG_OBJECTS_MAX: Final = 200_000


class SystemClock:
    """Wall time, and a steady time that goes on while the machine is suspended (Linux's CLOCK_BOOTTIME)."""

    _STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(self._STEADY) // 1_000_000


def new_job_id(now_ms: int) -> str:
    """A version 7 UUID (RFC 9562) as 32 hexadecimal digits: the time, then 74 random bits.

    Ids that grow with time are neighbours in the store, where jobs that are made together are read and dropped together.
    """
    random = int.from_bytes(os.urandom(10))
    return f"{now_ms:012x}7{random >> 68:03x}{random & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000:016x}"


def spare_garbage_collection() -> None:
    """Sets the garbage collector for a process that handles records by the thousand.

    A batch of 4,000 jobs makes some 50,000 dicts and tuples, and frees them by itself: nothing in it refers in circles. By default the
    collector would walk through them 70 times meanwhile, for a tenth of the processor's time. It still runs, but only after a surplus
    that ordinary batches never reach, and what lives as long as the process is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX, 20, 20)
