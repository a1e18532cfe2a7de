"""A child process that can be started, stopped, killed, paused and resumed, and that outlives its parent in no case (see `guard`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from duewheel.devbroker import guard

STOP_TIMEOUT_S: Final = 10.0
LOG_LINES_SHOWN: Final = 25
LOG_BYTES_READ: Final = 1_048_576


class Supervised:
    """One command, run behind a guard, as often as it is started.

    Args:
        command: what is run.
        log: takes what it prints; each start appends.
        lock: a file descriptor that is kept open until guard and child are gone, such as a `RunFolder`'s.
        environment: of the child; None is ours.

    Attributes:
        log: as given.
        pid: process id of the running child, or None.
    """

    def __init__(self, command: Sequence[str], log: Path, lock: int, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.pid: int | None = None
        self._is_stopping = False
        self._command = command
        self._lock = lock
        self._environment = environment
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the last process ended (128 + n: by signal n); None while it runs, and before the first start."""
        return None if self._guard is None else self._guard.poll()

    def start(self) -> None:
        """Starts the process and returns at once. Nothing happens where it runs already."""
        if self.running:
            return
        self._forget()
        self._is_stopping = False
        arguments = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.log), *self._command]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._lock,),
                env=self._environment,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline() or 0) or None

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._send(b"K")
        self._await_exit(STOP_TIMEOUT_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, which lets it leave in good order; SIGKILL where that takes longer than `timeout_s`."""
        self.request_stop()
        try:
            self._await_exit(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def request_stop(self) -> None:
        """Sends SIGTERM and does not wait, so that several can stop together. Once a start: a second one would end it at once."""
        self._send(b"C" if self._is_stopping else b"CT")
        self._is_stopping = True

    def pause(self) -> None:
        """SIGSTOP, and waits until it stands still: connections stay open and nothing answers, as in a long garbage collection or on a
        frozen machine.
        """
        self._send(guard.PAUSE)
        if self._guard is not None and self._guard.stdout is not None:
            self._guard.stdout.read(1)  # nothing where it has ended

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        self._send(b"C")

    def log_tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        """The last lines of its log."""
        return tail(self.log, lines)

    def close(self) -> None:
        """Kills it if it runs, and lets go of the process."""
        if self.running:
            self.kill()
        self._forget()

    def _send(self, commands: bytes) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended already
                self._guard.stdin.write(commands)
                self._guard.stdin.flush()

    def _await_exit(self, timeout_s: float) -> None:
        if self._guard is not None:
            self._guard.wait(timeout_s)
            self.pid = None

    def _forget(self) -> None:
        if self._guard is not None:
            for pipe in (self._guard.stdin, self._guard.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            self._guard.wait(STOP_TIMEOUT_S)
        self.pid = None


def tail(log: Path, lines: int) -> str:
    """The last `lines` lines of a log, or nothing where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES_READ))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def indented(tail: str) -> str:
    """Lines of a log as they stand below an error."""
    return "\n".join(f"    {line}" for line in tail.splitlines()) or "    (it is empty)"
