"""Who runs the handlers: threads for plain functions, one event loop for coroutine functions.

Work is handed over in batches through a deque, whose ends are atomic under the interpreter's lock, so taking a run costs 50 ns and no lock.
What costs is waking a thread (about 50 us with the switch), so threads are woken only when they are idle and there is reason to: one
for a batch, then at each `nudge` twice as many as before, while work is left and is not taken fast. A batch of no-op handlers is done by
one thread before a second would have woken up; slow handlers have all threads busy within a few milliseconds.

The gate: a process that was suspended (SIGSTOP, a closed lid, a migrating virtual machine) may have lost its partitions without having
noticed. So nothing is started later than `gate_ms` on the steady clock, which whoever polls moves on while the membership is fresh.

Threads cannot be killed in Python, and nothing here pretends otherwise: at the end of the grace period they are left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from duewheel.ports import Clock
from duewheel.worker.runs import Run

_FAST_RUNS: Final = 20  # runs that a thread took since the last nudge: with so many, more threads would only be in its way


class Crew:
    """Runs handlers, at most `concurrency` plain ones and `concurrency` coroutines at a time.

    All methods are for the polling thread. The threads are daemons and start when first needed.
    """

    def __init__(self, concurrency: int, queue: str, clock: Clock) -> None:
        self._done: deque[Run] = deque()
        self._arrived = threading.Event()
        self.gate_ms = 0
        self._threads = _Threads(self, concurrency, queue, clock)
        self._coroutines = _Coroutines(self, concurrency, queue, clock)

    def submit(self, runs: Sequence[Run]) -> None:
        plain = [run for run in runs if not run.task.is_async]
        if plain:
            self._threads.submit(plain)
        if len(plain) < len(runs):
            self._coroutines.submit([run for run in runs if run.task.is_async])

    def finished(self, run: Run) -> None:
        """Called by whoever ran it, in its thread."""
        self._done.append(run)
        if not self._arrived.is_set():
            self._arrived.set()

    def take(self, runs_max: int) -> list[Run]:
        """Completed runs, in order of completion."""
        done = self._done
        return [done.popleft() for _ in range(min(len(done), runs_max))]

    @property
    def finished_count(self) -> int:
        return len(self._done)

    def wait(self, timeout_s: float) -> None:
        """Waits until something is finished, or the time is over."""
        self._arrived.clear()
        if not self._done:
            self._arrived.wait(timeout_s)

    def nudge(self) -> None:
        """Wakes another thread where work is waiting. Call it every few milliseconds while anything is in flight."""
        self._threads.nudge()
        self._coroutines.nudge()

    def withdraw(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        """Takes back what was submitted and not started."""
        return [*_withdraw(self._threads.queue, unwanted), *_withdraw(self._coroutines.queue, unwanted)]

    def running(self) -> list[Run]:
        """Started and not finished."""
        return [*self._threads.running(), *self._coroutines.running()]

    def close(self) -> None:
        """Cancels coroutines and lets idle threads end; busy threads are left behind."""
        self._threads.close()
        self._coroutines.close()


class _Threads:
    def __init__(self, crew: Crew, concurrency: int, queue: str, clock: Clock) -> None:
        self._crew = crew
        self._queue_name = queue
        self._clock = clock
        self._concurrency = concurrency
        self.queue: deque[Run] = deque()
        self._current: list[Run | None] = []
        self._idle: deque[threading.Lock] = deque()
        self._closed = False
        self._submitted = 0
        self._taken = 0
        self._eagerness = 1

    def submit(self, runs: Sequence[Run]) -> None:
        self._submitted += len(runs)
        self.queue.extend(runs)
        self._wake()

    def nudge(self) -> None:
        waiting = len(self.queue)
        before, self._taken = self._taken, self._submitted - waiting
        if not waiting:
            self._eagerness = 1
            return
        awake = len(self._current) - len(self._idle)
        if self._taken - before < _FAST_RUNS * max(1, awake):
            for _ in range(min(self._eagerness, waiting, self._concurrency)):
                self._wake()
            self._eagerness *= 2

    def running(self) -> list[Run]:
        return [run for run in self._current if run is not None]

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        try:
            self._idle.popleft().release()
        except IndexError:
            if len(self._current) < self._concurrency and not self._closed:
                index = len(self._current)
                self._current.append(None)
                threading.Thread(target=self._work, args=(index,), name=f"duewheel-handler-{index}", daemon=True).start()

    def _work(self, index: int) -> None:
        crew, queue, current = self._crew, self.queue, self._current
        wall_ms, steady_ms, take, name = self._clock.wall_ms, self._clock.steady_ms, self.queue.popleft, self._queue_name
        parked = threading.Lock()
        parked.acquire()
        while not self._closed:
            if queue and steady_ms() < crew.gate_ms:
                try:
                    run = take()
                except IndexError:
                    continue  # another thread was faster
                current[index] = run
                run.started_ms = wall_ms()
                try:
                    # A context of its own, so that one handler's context variables are not the next one's.
                    contextvars.Context().run(run.task.call, run.dispatch, name)
                except BaseException as error:  # whatever it is, also SystemExit: the handler failed, the worker goes on
                    run.fail(error)
                run.finished_ms = wall_ms()
                current[index] = None
                crew.finished(run)
            else:
                self._park(parked)

    def _park(self, parked: threading.Lock) -> None:
        self._idle.append(parked)
        if self.queue and self._clock.steady_ms() < self._crew.gate_ms:
            # Work came between the look and the append, perhaps with nobody idle to wake.
            try:
                self._idle.remove(parked)
            except ValueError:
                pass  # somebody woke this thread already; take the wake-up
            else:
                return
        parked.acquire()


class _Coroutines:
    """One event loop in a thread; a task of its own for each run, so that cancelling and context variables behave as users expect."""

    def __init__(self, crew: Crew, concurrency: int, queue: str, clock: Clock) -> None:
        self._crew = crew
        self._queue_name = queue
        self._clock = clock
        self._concurrency = concurrency
        self.queue: deque[Run] = deque()
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, runs: Sequence[Run]) -> None:
        self.queue.extend(runs)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run_loop, args=(self._loop,), name="duewheel-coroutines", daemon=True).start()
        self._loop.call_soon_threadsafe(self._fill)

    def nudge(self) -> None:
        # Needed only after the gate was shut for a while: tasks that end start the next by themselves.
        if self.queue and self._loop is not None and len(self._tasks) < self._concurrency:
            self._loop.call_soon_threadsafe(self._fill)

    def running(self) -> list[Run]:
        return list(self._tasks)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _fill(self) -> None:
        assert self._loop is not None
        while self.queue and len(self._tasks) < self._concurrency and self._clock.steady_ms() < self._crew.gate_ms:
            try:
                run = self.queue.popleft()
            except IndexError:
                return  # withdrawn just now
            self._tasks[run] = self._loop.create_task(self._call(run), context=contextvars.Context())

    async def _call(self, run: Run) -> None:
        run.started_ms = self._clock.wall_ms()
        try:
            await run.task.call(run.dispatch, self._queue_name)
        except BaseException as error:  # also CancelledError and SystemExit, which would end the loop
            run.fail(error)
        run.finished_ms = self._clock.wall_ms()
        del self._tasks[run]
        self._crew.finished(run)
        self._fill()


def _withdraw(queue: deque[Run], unwanted: Callable[[Run], bool]) -> list[Run]:
    # Each run that is popped here is ours alone, however many threads pop at the same time.
    taken: list[Run] = []
    kept: list[Run] = []
    while queue:
        try:
            run = queue.popleft()
        except IndexError:
            break
        (taken if unwanted(run) else kept).append(run)
    queue.extend(kept)
    return taken
