"""What time it is, for something that must never be early.

The wall clock may step back (nothing may fire before its time by the clock that people see, and nothing may stick), and it may leap
ahead by mistake (the whole future would fire at once, and cannot be called back). So two clocks are compared: the wall, and a steady
clock that cannot step. As long as the wall moves like the steady clock, it is believed.

    wall   10:00:00   10:00:05   11:00:06 (leap)      10:00:07
    steady      +0         +5          +6                  +7
    now    10:00:00   10:00:05   10:00:06 held back   10:00:07 believed again

- The wall falls behind: now is the wall, at once. Later jobs wait for the wall to come; jobs made now fire now.
- The wall runs ahead by more than LEAP_MS_MAX: now goes on steadily from the last believed time, and `leap_ms` says by how much the
  wall disagrees, for the log. If the leap was the correction, a restart believes the wall; if it was the mistake, the wall will come back.
- The wall comes back from a step back: where it would be without the step it was believed before, so this is no leap.
"""

from __future__ import annotations

from typing import Final

# NTP slews by at most 0.5 ms a second and steps only what is larger than 128 ms; a virtual machine's clock after a migration is off
# by tens of milliseconds. Two seconds are beyond all of these, and a burst of jobs two seconds early is what we accept at worst.
LEAP_MS_MAX: Final = 2_000


class Timekeeper:
    """Turns readings of the two clocks into a time that is safe to fire by.

    Args:
        wall_ms: first reading of the wall clock, believed as it is.
        steady_ms: reading of the steady clock at the same moment.
    """

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self._wall_ms = wall_ms
        self._ahead_ms = wall_ms - steady_ms  # how far the wall is ahead of the steady clock, as believed last
        self._ahead_ms_max = self._ahead_ms  # as ever believed
        self.leap_ms = 0
        """How far the wall is ahead of the time that is believed; 0 while it is believed itself."""
        self.stepped_back_ms = 0
        """By how much the wall stepped back at the last reading; 0 otherwise."""

    def now_ms(self, wall_ms: int, steady_ms: int) -> int:
        """The time to fire by, in milliseconds since the epoch."""
        ahead_ms = wall_ms - steady_ms
        self.stepped_back_ms = max(0, self._wall_ms - wall_ms) if self.leap_ms == 0 else 0
        if ahead_ms - self._ahead_ms_max > LEAP_MS_MAX:
            self.leap_ms = ahead_ms - self._ahead_ms
            return self._ahead_ms + steady_ms
        self.leap_ms = 0
        self._wall_ms, self._ahead_ms = wall_ms, ahead_ms
        self._ahead_ms_max = max(self._ahead_ms_max, ahead_ms)
        return wall_ms
