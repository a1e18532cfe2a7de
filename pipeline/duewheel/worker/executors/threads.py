"""Threads that take runs, and the handlers that are called in them.

Taking a run costs no lock (`lines`). What costs is waking a thread (about 50 us with the switch), so threads are woken only when they are
idle and there is reason to: one for a batch, then at each nudge twice as many as before, while work is left and is not taken fast. A batch
of no-op handlers is done by one thread before a second would have woken up; slow handlers have all threads busy within a few milliseconds.

What a thread does with a run is its seat's business: here it calls the handler, in `processes` it has a child call it.

Threads cannot be killed in Python, and nothing here pretends otherwise. A thread whose run is given up is left behind (`leftovers`),
another takes its place, and it ends when its handler does.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import structlog

from duewheel.ports import Clock
from duewheel.worker.app import Context
from duewheel.worker.executors.leftovers import Leftovers
from duewheel.worker.executors.lines import Line, taking
from duewheel.worker.executors.shares import Shares
from duewheel.worker.runs import Run

log = structlog.get_logger(__name__)

_FAST_RUNS: Final = 20  # runs that a thread took since the last nudge: with so many, more threads would only be in its way


class Seat(Protocol):
    """Where one thread performs runs."""

    def open(self) -> None:
        """Gets ready for a run; called before one is taken, in the seat's thread."""

    def perform(self, run: Run) -> bool:
        """Runs the handler and writes down how it ended. False: the run was given up meanwhile."""

    def cancel(self, run: Run) -> None:
        """The run it performs is asked to stop. Called from the polling thread."""

    def kill(self, run: Run) -> None:
        """The run it performs was given up. Called from the polling thread."""

    def close(self) -> None:
        """Lets go of everything; called in the seat's thread, at its end."""


Seats: TypeAlias = Leftovers[Seat]


class Handlers:
    """The seat in which handlers are called in the thread itself."""

    def __init__(self, seats: Seats, clock: Clock) -> None:
        self._seats = seats
        self._running = seats.running
        self._wall_ms = clock.wall_ms

    def open(self) -> None: ...
    def cancel(self, run: Run) -> None: ...
    def close(self) -> None: ...

    def kill(self, run: Run) -> None:
        log.warning("worker.thread_left_behind", task=run.task.name, left_behind=len(self._seats.freed))

    def perform(self, run: Run) -> bool:
        running, task = self._running, run.task
        running[run] = self
        run.started_ms = self._wall_ms()
        try:
            # Context variables of its own, so that one handler's are not the next one's.
            value = contextvars.Context().run(task.call, Context(run.dispatch, run.desk.queue, run))
        except BaseException as error:  # whatever it is, also SystemExit: the handler failed, the worker goes on
            if running.pop(run, None) is None:
                return False
            run.fail(error)
        else:
            if running.pop(run, None) is None:
                return False
            if task.keeps_result:
                run.end(value)
        run.finished_ms = self._wall_ms()
        return True


class Threads:
    """Up to `concurrency` daemon threads, each on its seat, which start when first needed.

    Args:
        name: what the threads are called.
        seat: makes another seat.
    """

    def __init__(
        self, name: str, concurrency: int, lines: Sequence[Line], shares: Shares, seats: Seats, seat: Callable[[Seats], Seat]
    ) -> None:
        self._name = name
        self._concurrency = concurrency
        self._lines = lines
        self._take = taking(lines, shares)
        self._seats = seats
        self._seat = seat
        self._idle: deque[threading.Lock] = deque()
        self._lock = threading.Lock()  # for starting and ending threads; several polling threads may want one at a time
        self._count = 0  # threads that are not left behind
        self._started = 0
        self._closed = False
        self._threads: set[threading.Thread] = set()

    def submit(self, line: Line) -> None:
        if len(line.queue) > self._on_the_way():
            self._wake()

    def nudge(self, line: Line) -> None:
        waiting = len(line.queue)
        before, line.taken = line.taken, line.submitted - waiting
        if not waiting:
            line.eagerness = 1
            return
        if waiting <= self._on_the_way():
            return
        awake = self._count - len(self._idle)
        if line.taken - before < _FAST_RUNS * max(1, awake):
            for _ in range(min(line.eagerness, waiting, self._concurrency)):
                self._wake()
            line.eagerness *= 2

    def running(self) -> list[Run]:
        return list(self._seats.running)

    def cancel(self, run: Run) -> None:
        seat = self._seats.running.get(run)
        if seat is not None:
            seat.cancel(run)

    def abandon(self, run: Run) -> bool:
        given_up = self._seats.give_up(run)
        if given_up is None:
            return False
        seat, is_free = given_up
        if is_free:
            self._leave_behind()
        seat.kill(run)
        return True

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._wake()

    def _on_the_way(self) -> int:
        """How many threads are about to take a run: those between two, and those whose seats are still getting ready. Not those that are
        held by handlers which were given up and cannot be replaced: who knows when these will take one."""
        return self._count - len(self._idle) - len(self._seats.running) - len(self._seats.kept)

    def join(self, timeout_s: float) -> None:
        """Waits for all threads to end, after `close`."""
        until_s = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, until_s - time.monotonic()))

    def _leave_behind(self) -> None:
        with self._lock:
            self._count -= 1
        if any(line.queue for line in self._lines):
            self._wake()

    def _wake(self) -> None:
        try:
            self._idle.popleft().release()
        except IndexError:
            if self._count < self._concurrency:
                self._start()

    def _start(self) -> None:
        with self._lock:
            if self._count >= self._concurrency or self._closed:
                return
            self._count += 1
            self._started += 1
            name = f"{self._name}-{self._started}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        seat = self._seat(self._seats)
        take, perform, open_ = self._take, seat.perform, seat.open
        parked = threading.Lock()
        parked.acquire()
        while not self._closed:
            open_()
            run = take()
            if run is None:
                self._park(parked)
            elif perform(run):
                run.desk.finished(run)
            elif self._seats.ended(run):
                break  # another has this thread's place
        seat.close()
        self._threads.discard(threading.current_thread())

    def _park(self, parked: threading.Lock) -> None:
        self._idle.append(parked)
        if self._closed or any(line.is_open() for line in self._lines):
            # Work came between the look and the append, perhaps with nobody idle to wake.
            try:
                self._idle.remove(parked)
            except ValueError:
                pass  # somebody woke this thread already; take the wake-up
            else:
                return
        parked.acquire()
