"""One event loop in a thread, for coroutine functions.

Each run is an asyncio task of its own, so that cancelling and context variables behave as users expect. A run that is given up is
cancelled, and its slot is free at once, whatever the coroutine makes of it (`leftovers`).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from typing import TypeAlias

from duewheel.ports import Clock
from duewheel.worker.app import Context
from duewheel.worker.executors.leftovers import Leftovers
from duewheel.worker.executors.lines import Line, taking
from duewheel.worker.executors.shares import Shares
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import Cancelled

_Task: TypeAlias = "asyncio.Task[None]"


class Coroutines:
    """Up to `concurrency` coroutines at a time. The loop's thread is a daemon and starts when first needed."""

    def __init__(self, concurrency: int, lines: Sequence[Line], shares: Shares, clock: Clock) -> None:
        self._concurrency = concurrency
        self._lines = lines
        self._take = taking(lines, shares)
        self._wall_ms = clock.wall_ms
        self._tasks: Leftovers[_Task] = Leftovers()
        self._lock = threading.Lock()  # for starting the loop; several polling threads may want it at a time
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def submit(self, line: Line) -> None:
        if self._loop is None:
            self._start()
        self._call_in_loop(self._fill)

    def nudge(self, line: Line) -> None:
        # Needed only after the gate was shut for a while: tasks that end start the next by themselves.
        if line.queue and self._is_free():
            self._call_in_loop(self._fill)

    def running(self) -> list[Run]:
        return list(self._tasks.running)

    def cancel(self, run: Run) -> None:
        task = self._tasks.running.get(run)
        if task is not None:
            self._call_in_loop(lambda: self._cancel(run, task))

    def abandon(self, run: Run) -> bool:
        given_up = self._tasks.give_up(run)
        if given_up is None:
            return False
        task, _ = given_up
        self._call_in_loop(lambda: self._cancel(run, task))
        self._call_in_loop(self._fill)
        return True

    def close(self) -> None:
        self._closed = True
        self._call_in_loop(self._cancel_all)

    def _call_in_loop(self, call: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call)  # type: ignore[arg-type]

    def _start(self) -> None:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=self._run_loop, args=(loop,), name="duewheel-coroutines", daemon=True).start()
                self._loop = loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    # --- in the loop ---

    def _is_free(self) -> bool:
        return len(self._tasks.running) + len(self._tasks.kept) < self._concurrency

    def _fill(self) -> None:
        assert self._loop is not None
        while self._is_free() and not self._closed:
            run = self._take()
            if run is None:
                return
            self._tasks.running[run] = self._loop.create_task(self._perform(run), context=contextvars.Context())

    async def _perform(self, run: Run) -> None:
        running = self._tasks.running
        if run not in running:  # given up before its first step
            self._leave(run)
            return
        run.started_ms = self._wall_ms()
        try:
            if run.cancelled:
                raise Cancelled("the job was cancelled")
            value = await run.task.call(Context(run.dispatch, run.desk.queue, run))
        except BaseException as error:  # also CancelledError and SystemExit, which would end the loop
            if running.pop(run, None) is None:
                self._leave(run)
                return
            run.fail(error)
        else:
            if running.pop(run, None) is None:
                self._leave(run)
                return
            if run.task.keeps_result:
                run.end(value)
        run.finished_ms = self._wall_ms()
        run.desk.finished(run)
        self._fill()

    def _leave(self, run: Run) -> None:
        """It was given up, and has ended now."""
        self._tasks.ended(run)
        self._fill()

    def _cancel(self, run: Run, task: _Task) -> None:
        # A task that is cancelled before its first step never enters `_perform`, and nobody would hear of it.
        if run.started_ms:
            task.cancel()

    def _cancel_all(self) -> None:
        for task in list(self._tasks.running.values()):
            task.cancel()
