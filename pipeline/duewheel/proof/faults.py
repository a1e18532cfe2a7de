"""When something was broken, and until when that excuses what is late.

    fault      |-----------|                          from its begin to its end
    excused    |-----------|~~~~~~~~R~~~~~~~~|        and R longer, for recovering
                      |----|~~~~~~~~R~~~~~~~~~~~~|    another one; together they are one stretch

Whatever became ready while nothing was broken, and before anything was, has the usual time; all else has until the end of the stretch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from duewheel.proof.history import FaultBegan, FaultEnded

# Of a fault that has no end in the history, and there is no healing either.
FOREVER_MS: Final = 2**63


class Fault(NamedTuple):
    """One fault, from its begin to its end."""

    began_ms: int
    ended_ms: int
    name: str
    kind: str
    target: str


def faults_of(began: Iterable[FaultBegan], ended: Iterable[FaultEnded], healed_ms: int | None) -> list[Fault]:
    """The faults in order of their begin. Those without an end lasted until everything was healed."""
    ends = {end.fault: end.at_ms for end in ended}
    last_ms = FOREVER_MS if healed_ms is None else healed_ms
    return sorted(Fault(b.at_ms, max(b.at_ms, ends.get(b.fault, last_ms)), b.fault, b.kind, b.target) for b in began)


class Excuses:
    """The stretches of time in which things may be late."""

    def __init__(self, faults: Iterable[Fault], recovery_ms: int) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for fault in sorted(faults):
            end_ms = min(fault.ended_ms + recovery_ms, FOREVER_MS)
            if self._ends and fault.began_ms <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], end_ms)
            else:
                self._begins.append(fault.began_ms)
                self._ends.append(end_ms)

    def deadline_ms(self, ready_ms: int, allowed_ms: int) -> int:
        """Until when that must have happened which could happen from `ready_ms` on and usually takes `allowed_ms`."""
        deadline_ms = ready_ms + allowed_ms
        place = bisect_right(self._begins, deadline_ms) - 1
        if place >= 0 and self._ends[place] >= ready_ms:
            return max(deadline_ms, self._ends[place])
        return deadline_ms

    def overlap(self, from_ms: int, to_ms: int) -> bool:
        """Whether any of the time between, both included, is excused."""
        place = bisect_right(self._begins, to_ms) - 1
        return place >= 0 and self._ends[place] >= from_ms
