"""Where runs wait for an executor: one line for each queue that the worker serves.

Lines are deques, whose ends are atomic under the interpreter's lock, so taking a run costs about 50 ns and no lock.

The gate: a process that was suspended (SIGSTOP, a closed lid, a migrating virtual machine) may have lost its partitions without having
noticed. So nothing is taken later than the desk's `gate_ms` on the steady clock, which whoever polls moves on while the membership is
fresh.

A task with a limit of its own keeps its waiting runs elsewhere (`limits`), in order, and only a `Turn` stands in line for each. A thread
that takes one gets the oldest of the task's runs if it may run now, or else goes on to the next in line. So what waits for its task's
limit occupies no thread, and tasks without a limit know nothing of this.

What waited too long to be started at all (`doorstep`) is not given to a thread either: the desk turns it away right here, at the last
moment before its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from duewheel.ports import Clock
from duewheel.worker.executors.shares import Shares
from duewheel.worker.runs import Run

if TYPE_CHECKING:
    from duewheel.worker.crew import Desk
    from duewheel.worker.executors.limits import Limit


Take: TypeAlias = Callable[[], Run | None]


class Turn(NamedTuple):
    """Stands in line for whichever run of a task with a limit is next."""

    limit: Limit


class Line:
    """What waits at one executor, from one desk.

    Attributes:
        submitted: how many were ever put here, by the desk's polling thread.
        taken: how many of them were gone at its last nudge.
        eagerness: how many threads it wakes at the next one.
        take: the next run, if one waits and may start.
    """

    __slots__ = ("_clock", "desk", "eagerness", "queue", "submitted", "take", "taken")

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self.desk = desk
        self.queue: deque[Run | Turn] = deque()
        self._clock = clock
        self.submitted = 0
        self.taken = 0
        self.eagerness = 1
        self.take = self._taking()

    def is_open(self) -> bool:
        """Whether anything waits that may be taken now."""
        return bool(self.queue) and self._clock.steady_ms() < self.desk.gate_ms

    def _taking(self) -> Take:
        # A closure, since this is done once a run: looking all this up in `self` would cost as much again.
        queue, popleft, desk, steady_ms = self.queue, self.queue.popleft, self.desk, self._clock.steady_ms

        def take() -> Run | None:
            while queue:
                now_ms = steady_ms()
                if now_ms >= desk.gate_ms:
                    return None
                try:
                    first = popleft()
                except IndexError:
                    return None  # another thread was faster
                run = first if isinstance(first, Run) else first.limit.claim(self)
                if run is None or (run.dispatch["terms"] is not None and not desk.admits(run)):
                    continue
                run.started_steady_ms = now_ms
                return run
            return None

        return take

    def withdraw(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        """Takes back what nobody took. Each run that is popped here is ours alone, however many threads pop at the same time."""
        queue = self.queue
        withdrawn: list[Run] = []
        kept: list[Run | Turn] = []
        while queue:
            try:
                run = queue.popleft()
            except IndexError:
                break
            if isinstance(run, Run) and unwanted(run):
                withdrawn.append(run)
            else:
                kept.append(run)
        queue.extend(kept)
        return withdrawn


def taking(lines: Sequence[Line], shares: Shares) -> Take:
    """What gives a free thread its next run."""
    if len(lines) == 1:
        return lines[0].take
    takes = [line.take for line in lines]
    if shares.strict:

        def take_first() -> Run | None:
            for take in takes:
                if (run := take()) is not None:
                    return run
            return None

        return take_first
    turns = shares.turns()
    count, turn = len(turns), cycle([(lines[index].queue, takes[index]) for index in turns]).__next__

    def take_in_turn() -> Run | None:
        if not any(line.queue for line in lines):
            return None
        for _ in range(count):  # every line once at least
            queue, take = turn()
            if queue and (run := take()) is not None:
                return run
        return None

    return take_in_turn
