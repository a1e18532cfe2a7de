"""Child processes, for handlers that must be killed at their timeout, may crash, or compute for long.

A child is a fresh Python (never a fork: librdkafka's threads and locks do not survive one) that imports the app by its path and runs one
run at a time (`child`). There are at most `concurrency`; each is started when first needed, about a quarter of a second plus what
importing the app takes, and is then used again and again. A run costs about 0.3 ms more than in a thread.

Each child belongs to a thread of ours, that sends it runs and waits for what becomes of them. So the rest is as with `threads`: the same
lines, the same waking, the same way of giving up a run, except that this one does end: its child is killed, and another child, with another
thread, takes its place. What a handler started itself ends with it: a child leads a process group, and all of that is killed. Only who
leaves the group, as daemons do, escapes.

A child that dies in the middle of a run takes nothing with it but that run, which is reported as LOST. That counts as a crash with the
job's owner, as if a whole worker had died of it, and has the crash limit of the job, not its retries. Where the child died before the
handler began, the handler is not to blame: that run is INTERRUPTED, and dispatched again without a word.

A child that hangs while it imports the app would hold its slot for ever, and nothing would say so. After START_S it is killed, and what
waited for it fails, as where the app cannot be imported.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

import structlog

from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Result
from duewheel.ports import Clock
from duewheel.worker.executors.lines import Line
from duewheel.worker.executors.shares import Shares
from duewheel.worker.executors.threads import Seats, Threads
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import ProcessDied, Verdict, failure_of

log = structlog.get_logger(__name__)

START_S: Final = 60.0  # far more than importing takes that gets on at all
_LOOK_MS: Final = 500  # a child that is gone mostly ends its socket; one whose socket others hold too is noticed after this
_ORDERLY_EXIT_S: Final = 6.0  # a little more than a child takes at most
_CLOSE_S: Final = 10.0


class Processes:
    """Up to `concurrency` children, and a thread for each.

    Args:
        app_path: the app as MODULE:APP.
    """

    def __init__(self, concurrency: int, lines: Sequence[Line], shares: Shares, clock: Clock, app_path: str | None) -> None:
        self._seats = Seats()
        self._closing = threading.Event()
        self._threads = Threads(
            "duewheel-child", concurrency, lines, shares, self._seats, lambda seats: ChildSeat(seats, clock, app_path, self._closing)
        )
        self.submit = self._threads.submit
        self.nudge = self._threads.nudge
        self.running = self._threads.running
        self.cancel = self._threads.cancel
        self.abandon = self._threads.abandon

    def close(self) -> None:
        """Kills what runs, lets the rest end, and stays until no child is left."""
        self._closing.set()
        for run in self._threads.running():
            self._threads.abandon(run)
        self._threads.close()
        self._threads.join(_CLOSE_S)


class ChildSeat:
    """One child, or its successor where it died."""

    def __init__(self, seats: Seats, clock: Clock, app_path: str | None, closing: threading.Event) -> None:
        self._seats = seats
        self._clock = clock
        self._app_path = app_path
        self._closing = closing
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._readable = select.poll()
        self._sending = threading.Lock()
        self._fault: Exception | None = None
        self._began = False

    # --- in the seat's thread ---

    def open(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        try:
            self._reap()
            self._start()
            self._fault = None
        except Exception as error:
            self._reap()
            self._fault = error
            if not self._closing.is_set():
                log.error("worker.child_unfit", app=self._app_path, error=str(error))

    def perform(self, run: Run) -> bool:
        running = self._seats.running
        running[run] = self
        run.started_ms, run.started_steady_ms = self._clock.wall_ms(), self._clock.steady_ms()
        verdict = None if self._fault else self._converse(run)
        if running.pop(run, None) is None:
            self._reap()
            return False
        if verdict is not None:
            run.settle(verdict)
        elif self._fault is not None:
            run.fail(self._fault)
        else:
            run.settle(self._lost(run))
        run.finished_ms = self._clock.wall_ms()
        return True

    def close(self) -> None:
        if self._process is None:
            return
        self._connection.close()
        try:
            self._process.wait(_ORDERLY_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._app_path is None:
            raise BadConfiguration(
                "a task with executor='process' needs a worker that was given its app as MODULE:APP, which child processes can import"
            )
        self._connection, theirs = Pipe()
        self._readable = select.poll()  # made once; Connection.poll() makes one at every call
        self._readable.register(self._connection.fileno(), select.POLLIN)
        with theirs:
            descriptor = theirs.fileno()
            # Every other descriptor is closed in the child: the sockets of Kafka's client among them.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duewheel.worker.executors.child", self._app_path, str(descriptor), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                start_new_session=True,  # so that it leads a group; and a terminal's Ctrl-C is not for it
            )
        try:
            self._connection.send(("path", sys.path))
            answer = self._receive()
        except (EOFError, OSError):
            raise ProcessDied(f"a child process for {self._app_path} ended while it started: {self._end()}") from None
        if answer[0] != "ready":
            raise ProcessDied(f"a child process cannot import {self._app_path}: {answer[1]}")

    def _converse(self, run: Run) -> Verdict | None:
        """The child's verdict; None where it died."""
        self._began, token = False, run.dispatch["token"]
        verdict: Verdict
        try:
            with self._sending:
                self._connection.send(("run", run.dispatch, run.desk.queue))
            while True:
                kind, *of = self._receive(run)
                if kind == "done":
                    verdict = of[0]
                    return verdict
                if of[0] != token:
                    continue  # a last word of the run before
                if kind == "began":
                    self._began = True
                else:
                    run.beat(of[1])
        except Exception:  # mostly EOFError; and whatever else, if a handler wrote into the socket
            return None

    def _receive(self, run: Run | None = None) -> tuple[Any, ...]:
        """The next thing that the child says.

        Raises:
            EOFError: the child is gone, or to be gone.
            ProcessDied: it does not get ready.
        """
        assert self._process is not None
        if run is not None and run.cancelled:
            self.cancel(run)  # asked before the child knew of the run
        until_s = time.monotonic() + START_S
        while not self._readable.poll(_LOOK_MS):
            if run is None and time.monotonic() >= until_s:
                raise ProcessDied(f"a child process had not imported {self._app_path} within {START_S:g} s; does that hang?")
            if self._process.poll() is not None or (run is None and self._closing.is_set()):
                raise EOFError
        message: tuple[Any, ...] = self._connection.recv()
        return message

    def _lost(self, run: Run) -> Verdict:
        pid = self._process.pid if self._process is not None else 0
        how = self._end()
        if pid:
            _kill_family(pid)  # what its handler started, and left behind
        if not self._began:
            return Verdict(Result.INTERRUPTED.value)
        log.warning("worker.child_died", task=run.task.name, child=pid, error=how)
        error = ProcessDied(f"the process that ran task {run.task.name!r} {how} in the middle of it")
        return Verdict(Result.LOST.value, failure_of(error))

    def _end(self) -> str:
        """How the child ended."""
        code = self._reap()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (by hand, or for want of memory?)" if name == "SIGKILL" else "")

    def _reap(self) -> int:
        """Makes sure that the child is gone, and leaves no zombie. Its exit code, or the signal that ended it, as a negative number."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._connection.close()
        if process.poll() is None:
            try:
                process.wait(_LOOK_MS / 1_000)  # its socket ends a moment before it does
            except subprocess.TimeoutExpired:
                _kill_family(process.pid)
        return process.wait()

    # --- from the polling thread ---

    def cancel(self, run: Run) -> None:
        # Never wait here: a child that is stopped may leave the socket full. The seat's thread tells it, when it is not being told now.
        if self._sending.acquire(blocking=False):
            try:
                self._connection.send(("cancel", run.dispatch["token"]))
            except OSError:
                pass  # it is gone, which the seat's thread notices
            finally:
                self._sending.release()

    def kill(self, run: Run) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            _kill_family(process.pid)


def _kill_family(pid: int) -> None:
    """Kills a child and whatever is of its process group. As long as anything is, no other group can have its number, though the child is
    gone; and where nothing is, a number that was in use a moment ago is not given out again yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left; macOS says of those who are dead and not reaped that one may not
