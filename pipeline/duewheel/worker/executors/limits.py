"""At most so many runs of one task at a time, in this worker.

The runs of such a task wait here, by line and in order; in the line itself stands a `Turn` for each. Two numbers tell all: how many run,
and how many turns each line is owed.

    a turn comes up, fewer run than may     the oldest waiting run starts
    a turn comes up, as many run as may     the turn is owed; whoever took it goes on to the next in line
    a run ends                              every line that is owed a turn gets one back, at its front

More turns may come back than can be used, when several lines want the one free place: shares decide among them as they do for everything
else, and the others are owed again. So a task's limit never lets a queue that is served late hold a place that one served early needs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from duewheel.worker.executors.lines import Line, Turn
from duewheel.worker.runs import Run


class Limit:
    """One task's. Its lock is taken for runs of that task alone."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._running: set[Run] = set()
        self._waiting: dict[Line, deque[Run]] = {}
        self._owed: dict[Line, int] = {}

    def turn(self, line: Line, run: Run) -> Turn:
        """Lets a run wait here; what is returned stands in line for it."""
        with self._lock:
            self._waiting.setdefault(line, deque()).append(run)
        return Turn(self)

    def claim(self, line: Line) -> Run | None:
        """A turn of this line has come up: the run that may start now, if one may."""
        with self._lock:
            waiting = self._waiting[line]
            if not waiting:
                return None  # withdrawn meanwhile
            if len(self._running) >= self._count_max:
                self._owed[line] = self._owed.get(line, 0) + 1
                return None
            run = waiting.popleft()
            self._running.add(run)
            return run

    def leave(self, run: Run) -> None:
        """The run is over, or given up; said twice, it counts once."""
        with self._lock:
            if run not in self._running:
                return
            self._running.remove(run)
            owed = [line for line, count in self._owed.items() if count]
            for line in owed:
                self._owed[line] -= 1
        for line in owed:
            line.queue.appendleft(Turn(self))

    def withdraw(self, line: Line, unwanted: Callable[[Run], bool]) -> list[Run]:
        with self._lock:
            waiting = self._waiting.get(line, deque())
            withdrawn = [run for run in waiting if unwanted(run)]
            if withdrawn:
                gone = set(withdrawn)
                self._waiting[line] = deque(run for run in waiting if run not in gone)
            return withdrawn

    def held_back(self, line: Line) -> int:
        """How many wait for this limit, and for nothing else."""
        return min(self._owed.get(line, 0), len(self._waiting.get(line, ())))
