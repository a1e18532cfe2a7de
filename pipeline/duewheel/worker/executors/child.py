"""The program of a child process, in which a worker runs handlers that may hang, crash or compute for long.

    python -m duewheel.worker.executors.child MODULE:APP FD PARENT

It imports the app, as the worker did, and then runs what it is sent, one run at a time. Parent and child speak over a socket, in pickles of
plain values, and each trusts the other, since it is the same program:

    parent says                                          child says
    ("path", sys.path)           first of all            ("ready",) or ("unfit", text)   the app is imported, or cannot be
    ("run", dispatch, queue)                             ("began", token)
    ("cancel", token)            while it runs           ("beat", token, progress)       at most every 50 ms
                                                         ("done", verdict)

Two threads share the work: the main thread runs handlers, as libraries that want signals expect, and the watcher listens. When the parent
is gone, the socket is at its end: a child that runs something ends at once, with all that its handler started, since nobody wants the
outcome and another worker will get the run; an idle one ends in good order. Where the socket cannot tell, because a process that somebody
forked holds the other end too, the id of the parent does.

Ctrl-C and SIGTERM, which some supervisors send to the whole family, are the worker's to handle: it drains, and needs its children for
that. They are caught, not ignored, so that what handlers themselves start can be ended by them.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from duewheel.core.model import Dispatch
from duewheel.core.retry import DEFAULT
from duewheel.worker.app import App, Context, Task
from duewheel.worker.loading import load
from duewheel.worker.verdicts import Cancelled, UnknownTask, Verdict, on_error, on_value

_PARENT_CHECK_MS: Final = 2_000
_ORDERLY_EXIT_S: Final = 5.0
_BEAT_S: Final = 0.05


class _Wire:
    """Our end of the socket. Several threads may send; only the watcher receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, *message: object) -> None:
        with self._lock:
            self._connection.send(message)


class _Attempt:
    """What a handler's context speaks with."""

    def __init__(self, token: int, beats: _Beats) -> None:
        self.token = token
        self.cancelled = False
        self._beats = beats
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coroutine: asyncio.Task[Any] | None = None

    def beat(self, progress: bytes | None) -> None:
        self._beats.note(self.token, progress)

    def cancel(self) -> None:
        """Called by the watcher."""
        self.cancelled = True
        if self._loop is not None and self._coroutine is not None:
            self._loop.call_soon_threadsafe(self._coroutine.cancel)

    def call(self, task: Task, context: Context) -> Any:
        if not task.is_async:
            return task.call(context)

        async def call_in_loop() -> Any:
            self._coroutine, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            if self.cancelled:
                raise Cancelled("the job was cancelled")
            return await task.call(context)

        return asyncio.run(call_in_loop())


class _Beats:
    """Passes heartbeats on: the latest, and not one by one, since a handler may beat in its innermost loop."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._latest: tuple[int, bytes | None] | None = None
        self._noted = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, token: int, progress: bytes | None) -> None:
        latest = self._latest
        if progress is None and latest is not None and latest[0] == token:
            progress = latest[1]
        self._latest = (token, progress)
        if self._thread is None:
            self._thread = threading.Thread(target=self._pass_on, name="duewheel-beats", daemon=True)
            self._thread.start()
        if not self._noted.is_set():
            self._noted.set()

    def _pass_on(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            if self._latest is not None:
                try:
                    self._wire.send("beat", *self._latest)
                except OSError:
                    return  # the watcher sees it too
            time.sleep(_BEAT_S)  # not a wait for something, but the rate


class Child:
    """Runs what the parent sends, until the parent is gone."""

    def __init__(self, connection: Connection, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._wire = _Wire(connection)
        self._beats = _Beats(self._wire)
        self._runs: queue.SimpleQueue[tuple[Dispatch, str, _Attempt] | None] = queue.SimpleQueue()
        self._attempt: _Attempt | None = None
        self._busy = True  # with importing the app

    def work(self, app_path: str) -> None:
        sys.path[:] = self._connection.recv()[1]
        threading.Thread(target=self._watch, name="duewheel-watcher", daemon=True).start()
        try:
            app = load(app_path)
        except BaseException as error:
            self._wire.send("unfit", f"{type(error).__name__}: {error}")
            raise
        self._wire.send("ready")
        self._busy = False
        while (received := self._runs.get()) is not None:
            self._wire.send("began", received[0]["token"])
            verdict = self._perform(app, *received)
            self._attempt, self._busy = None, False  # first, since the answer brings the next run
            self._wire.send("done", verdict)

    def _perform(self, app: App, dispatch: Dispatch, queue_name: str, attempt: _Attempt) -> Verdict:
        task = app.tasks.get(dispatch["work"]["task"])
        if task is None:
            return on_error(UnknownTask(f"the worker's child process has no task {dispatch['work']['task']!r}"), DEFAULT, dispatch)
        try:
            value = contextvars.Context().run(attempt.call, task, Context(dispatch, queue_name, attempt))
            return on_value(value, task.keeps_result)
        except BaseException as error:  # also SystemExit: it ends the handler, not the child
            return on_error(error, task.policy, dispatch, attempt.cancelled)

    def _watch(self) -> None:
        readable = select.poll()
        readable.register(self._connection.fileno(), select.POLLIN)
        try:
            while True:
                if readable.poll(_PARENT_CHECK_MS):
                    self._take(*self._connection.recv())
                elif os.getppid() != self._parent:
                    break
        except (EOFError, OSError):
            pass
        if self._busy:
            if os.getpgrp() == os.getpid():  # as our parent had us start: the group is ours alone
                os.killpg(0, signal.SIGKILL)
            os._exit(1)
        self._runs.put(None)
        time.sleep(_ORDERLY_EXIT_S)  # as long as what the user registered with atexit may take
        os._exit(1)

    def _take(self, kind: str, *of: Any) -> None:
        if kind == "run":
            dispatch, queue_name = of
            # Here and not in the main thread, so that a cancel that follows finds what it is for.
            self._attempt, self._busy = _Attempt(dispatch["token"], self._beats), True
            self._runs.put((dispatch, queue_name, self._attempt))
        elif kind == "cancel":
            attempt = self._attempt
            if attempt is not None and attempt.token == of[0]:
                attempt.cancel()


def main(app_path: str, descriptor: int, parent: int) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: None)
    os.set_inheritable(descriptor, False)  # or whatever a handler starts would keep it open
    try:
        Child(Connection(descriptor), parent).work(app_path)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the parent went while we were starting, or between two runs


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
