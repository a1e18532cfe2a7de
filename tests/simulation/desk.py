"""The desk at which a simulated worker hands in its runs: real runs and real handlers, in virtual time.

It stands for the crew of threads: at most `concurrency` handlers at a time, taken up a moment after they were submitted, each one a strand
of the worker's process. So a handler may wait, be overtaken, outlive its partition, be given up and go on, or go down with its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from duewheel.adapters.memory.world import Crash, Process
from duewheel.worker.app import Context
from duewheel.worker.crew import Desk
from duewheel.worker.runs import Run


class VirtualDesk(Desk):
    """A worker's only desk.

    Args:
        started: told of each run right before its handler is called.
    """

    def __init__(self, process: Process, random: Random, concurrency: int, queue: str, started: Callable[[Run], None]) -> None:
        super().__init__(queue, process)
        self._process = process
        self._random = random
        self._concurrency = concurrency
        self._started = started
        self._waiting: deque[Run] = deque()
        self._completed: deque[Run] = deque()
        self._going_on: dict[Run, None] = {}
        self._busy = 0
        self._is_shut = False

    # --- for the loop ---

    def submit(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.desk = self
        self._waiting.extend(runs)
        self._take_up()

    def take(self, runs_max: int) -> list[Run]:
        done = self._completed
        return [done.popleft() for _ in range(min(len(done), runs_max))]

    @property
    def finished_count(self) -> int:
        return len(self._completed)

    @property
    def held_back_count(self) -> int:
        return 0

    def wait(self, timeout_s: float) -> None:
        # Also where something is finished and the real desk would not wait: the caller's turn takes some time.
        self._process.wait(100 if self._completed else round(timeout_s * 1_000_000))

    def nudge(self) -> None:
        self._take_up()

    def withdraw(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        withdrawn = [run for run in self._waiting if unwanted(run)]
        gone = set(withdrawn)
        self._waiting = deque(run for run in self._waiting if run not in gone)
        return withdrawn

    def running(self) -> list[Run]:
        return list(self._going_on)

    def cancel(self, run: Run) -> None:
        run.cancelled = True

    def abandon(self, run: Run) -> bool:
        if run not in self._going_on:
            return False
        del self._going_on[run]
        self._busy -= 1
        run.abandoned = True
        self._take_up()
        return True

    def close(self) -> None:
        self._is_shut = True
        self.gate_ms = 0

    # --- handlers ---

    def _take_up(self) -> None:
        """Lets as many start as may, each in a strand of its own."""
        for _ in range(min(self._concurrency - self._busy, len(self._waiting))):
            self._busy += 1
            self._process.world.hook.start(self._process, self._work)

    def _work(self) -> None:
        """What a thread of the crew does: takes runs as long as there are any."""
        while not self._is_shut and self._waiting and self._process.steady_ms() < self.gate_ms:
            run = self._waiting.popleft()
            run.started_steady_ms = self._process.steady_ms()
            if self._random.random() < 0.3:  # a thread may lose the processor right here
                self._process.wait(self._random.randrange(2_000))
            self._going_on[run] = None
            run.started_ms = self._process.wall_ms()
            self._started(run)
            if not self._perform(run):
                return  # it was given up, and another has this one's place
            self._completed.append(run)
            self._process.wake()
        self._busy -= 1

    def _perform(self, run: Run) -> bool:
        try:
            value = run.task.call(Context(run.dispatch, self.queue, run))
        except Crash:
            raise
        except BaseException as error:
            if self._going_on.pop(run, self) is self:
                return False
            run.fail(error)
        else:
            if self._going_on.pop(run, self) is self:
                return False
            if run.task.keeps_result:
                run.end(value)
        run.finished_ms = self._process.wall_ms()
        return True
