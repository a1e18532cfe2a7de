"""Who runs the handlers: one crew a process, one desk a queue.

A worker process may serve several queues, each with a loop of its own that polls, claims and records. They share the crew: its threads, its
event loop, its child processes, at most `concurrency` of each. A loop hands its runs in at its queue's desk and fetches them there when
they are done; which desk's runs are next is decided by `executors.shares`, whenever somebody is free.

    loop "critical"  ──submit──►  desk ─┬─► line ─┐            ┌─► threads      plain functions
                     ◄──take────        ├─► line ─┼─ shares ───┼─► coroutines   coroutine functions, in one event loop
    loop "default"   ──submit──►  desk ─┴─► line ─┘            └─► processes    what asked for executor="process"

How a run ends is decided exactly once. Either its handler ends, and the run comes out of `take`; or the loop gives it up, and `abandon`
says whether it was in time. So do not write into a run that is going on: abandon it first, and if that answers true, it is yours.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from duewheel.core.model import Dispatch
from duewheel.ports import Clock
from duewheel.worker.app import LOOP, PROCESS, THREAD, Task
from duewheel.worker.executors.coroutines import Coroutines
from duewheel.worker.executors.limits import Limit
from duewheel.worker.executors.lines import Line, Turn
from duewheel.worker.executors.processes import Processes
from duewheel.worker.executors.shares import Shares
from duewheel.worker.executors.threads import Handlers, Seats, Threads
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import Verdict

# What waits for its task's own limit takes no place in its queue's window, so that the tasks behind it get their turn (`held_back_count`):
# so much of each task, enough to look past a burst of it. What is beyond fills the window as all else does, since whatever is claimed is
# kept from other workers, and counts a crash if this one dies.
HELD_BACK_PER_HANDLER: Final = 2


class Executor(Protocol):
    """What a desk needs of threads, coroutines and processes. For polling threads, of which there may be several."""

    def submit(self, line: Line) -> None:
        """Something was put in the line."""

    def nudge(self, line: Line) -> None: ...
    def running(self) -> list[Run]: ...
    def cancel(self, run: Run) -> None: ...
    def abandon(self, run: Run) -> bool: ...
    def close(self) -> None: ...


class Desk:
    """Where one queue's loop hands in what to run and fetches what is done. For the loop's polling thread.

    Attributes:
        queue: which one.
        gate_ms: nothing starts at or after this time, on the steady clock.
        unwanted: what becomes of a dispatch that must not start now; None where it may. Asked of those with terms, right before they would,
            on any thread.
    """

    def __init__(self, queue: str, clock: Clock, held_back_max: int = 0) -> None:
        self.queue = queue
        self.clock = clock
        self.gate_ms = 0
        self.unwanted: Callable[[Dispatch], Verdict | None] = lambda dispatch: None
        self._held_back_max = held_back_max
        self._done: deque[Run] = deque()
        self._arrived = threading.Event()
        self._executors: dict[str, tuple[Executor, Line]] = {}
        self._limits: dict[Task, Limit] = {}
        self._closed: Callable[[Desk], None] = lambda desk: None

    def open(self, executors: dict[str, tuple[Executor, Line]], limits: dict[Task, Limit], closed: Callable[[Desk], None]) -> None:
        """Called by the crew, once."""
        self._executors = executors
        self._limits = limits
        self._closed = closed

    # --- for the loop ---

    def submit(self, runs: Sequence[Run]) -> None:
        plain: list[Run | Turn] = []
        batches = {THREAD: plain}
        for run in runs:
            run.desk = self
            task = run.task
            if task.is_plain:
                plain.append(run)
            else:
                batches.setdefault(task.executor, []).append(self._turn(run) if task.concurrency else run)
        for kind, batch in batches.items():
            if batch:
                executor, line = self._executors[kind]
                line.submitted += len(batch)
                line.queue.extend(batch)
                executor.submit(line)

    def take(self, runs_max: int) -> list[Run]:
        """Completed runs, in order of completion."""
        done = self._done
        return [done.popleft() for _ in range(min(len(done), runs_max))]

    @property
    def finished_count(self) -> int:
        return len(self._done)

    @property
    def held_back_count(self) -> int:
        """How many runs were submitted and wait for nothing but their task's own limit; of each task at most `held_back_max`."""
        if not self._limits:
            return 0
        held_back = [limit.held_back(self._executors[task.executor][1]) for task, limit in list(self._limits.items())]
        return sum(min(count, self._held_back_max) for count in held_back)

    def wait(self, timeout_s: float) -> None:
        """Waits until something is finished, or the time is over."""
        self._arrived.clear()
        if not self._done:
            self._arrived.wait(timeout_s)

    def nudge(self) -> None:
        """Wakes another thread where work is waiting. Call it every few milliseconds while anything is in flight."""
        for executor, line in self._executors.values():
            executor.nudge(line)

    def withdraw(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        """Takes back what was submitted and not started."""
        withdrawn: list[Run] = []
        for task, limit in list(self._limits.items()):
            withdrawn += limit.withdraw(self._executors[task.executor][1], unwanted)
        for _, line in self._executors.values():
            withdrawn += line.withdraw(unwanted)
        return withdrawn

    def running(self) -> list[Run]:
        """Started and not finished."""
        return [run for executor, _ in self._executors.values() for run in executor.running() if run.desk is self]

    def cancel(self, run: Run) -> None:
        """Asks its handler to stop: `context.cancelled` is true from now on, and a coroutine is cancelled."""
        run.cancelled = True
        self._executors[run.task.executor][0].cancel(run)

    def abandon(self, run: Run) -> bool:
        """Gives a run up that is going on: its slot is free, and whatever its handler still does is ignored. A coroutine is cancelled, a
        process killed, a thread left behind and replaced.

        Returns:
            Whether it was still going on. If not, it has ended by itself, and comes out of `take`.
        """
        abandoned = self._executors[run.task.executor][0].abandon(run)
        if abandoned:
            run.abandoned = True
            if run.task.concurrency:
                self._limits[run.task].leave(run)
        return abandoned

    def close(self) -> None:
        """Nothing more starts from here. The last desk to close closes the crew."""
        self.gate_ms = 0
        self._closed(self)

    # --- for executors ---

    def admits(self, run: Run) -> bool:
        """Whether a run may start now. If not, it is finished, as `unwanted` says."""
        verdict = self.unwanted(run.dispatch)
        if verdict is None:
            return True
        run.settle(verdict)
        run.finished_ms = self.clock.wall_ms()
        self.finished(run)
        return False

    def finished(self, run: Run) -> None:
        """Called by whoever ran it, in its thread."""
        if run.task.concurrency:
            self._limits[run.task].leave(run)
        self._done.append(run)
        if not self._arrived.is_set():
            self._arrived.set()

    def _turn(self, run: Run) -> Turn:
        # Two desks that meet a task at the same time agree on one limit: setdefault is atomic.
        limit = self._limits.get(run.task) or self._limits.setdefault(run.task, Limit(run.task.concurrency))
        return limit.turn(self._executors[run.task.executor][1], run)


class Crew:
    """Runs handlers: at most `concurrency` in threads, as many in the event loop, and as many in processes.

    Args:
        app_path: the app as MODULE:APP, which child processes import.
        shares: the queues that are served, and how they share the crew.
    """

    def __init__(self, concurrency: int, clock: Clock, app_path: str | None, shares: Shares) -> None:
        self._desks = {queue: Desk(queue, clock, HELD_BACK_PER_HANDLER * concurrency) for queue in shares.queues}
        desks = list(self._desks.values())

        def lines() -> list[Line]:
            return [Line(desk, clock) for desk in desks]

        seats = Seats()
        limits: dict[Task, Limit] = {}
        threads, coroutines, processes = lines(), lines(), lines()
        self._executors: dict[str, tuple[Executor, list[Line]]] = {
            THREAD: (Threads("duewheel-handler", concurrency, threads, shares, seats, lambda seats: Handlers(seats, clock)), threads),
            LOOP: (Coroutines(concurrency, coroutines, shares, clock), coroutines),
            PROCESS: (Processes(concurrency, processes, shares, clock, app_path), processes),
        }
        for index, desk in enumerate(desks):
            desk.open({kind: (executor, of[index]) for kind, (executor, of) in self._executors.items()}, limits, self._desk_closed)
        self._open = set(desks)

    def desk(self, queue: str) -> Desk:
        """The desk of one of the shares' queues."""
        return self._desks[queue]

    def _desk_closed(self, desk: Desk) -> None:
        self._open.discard(desk)
        if not self._open:
            self.close()

    def close(self) -> None:
        """Ends everything that can be ended: coroutines are cancelled, processes killed, idle threads end. Busy threads are left behind."""
        for executor, _ in self._executors.values():
            executor.close()
