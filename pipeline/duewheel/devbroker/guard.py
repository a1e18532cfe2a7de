"""Stands between a program and its child (a broker, a processor, a worker), and ends the child when the program is gone.

A program that is killed with -9 cannot tidy up, so somebody else must notice. Linux can end a child together with its parent
(PR_SET_PDEATHSIG), but "parent" there means the *thread* that started it: a broker started from a helper thread would die with that
thread. So each broker gets this little process, which has one thread only and watches the program in two ways:

    program ──stdin pipe──► guard ──PDEATHSIG──► java        the pipe closes when the program ends, however it ends;
       ▲                      │                              where a forked child keeps it open, the parent's process id changes
       └────── getppid() ─────┘

Killed itself, the guard takes the broker along through PDEATHSIG. It has a session of its own, so that a Ctrl-C in the terminal reaches
the program alone, which then stops the broker in good order. Commands come down the pipe, one byte each (`SIGNALS`); only the guard
signals the broker, and only before it has waited for it, so the process id cannot have become somebody else's. Cost: 8 MB, 15 ms.

Run as a script, with the standard library alone: `python -I -S guard.py PARENT_PID LOG COMMAND…`. It prints the broker's process id, a
letter each time that it was paused and stands still, and exits as the broker did (128 + the signal's number after a signal).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import Final

PAUSE: Final = b"P"
SIGNALS: Final = {
    b"T": signal.SIGTERM,
    b"K": signal.SIGKILL,
    PAUSE: signal.SIGSTOP,
    b"C": signal.SIGCONT,
}
GRACE_S: Final = 5.0  # from SIGTERM to SIGKILL, once nobody is left who could ask for more
PARENT_CHECK_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


def main(parent: int, log: str, command: list[str]) -> int:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked_to_end.append(number))

    with open(log, "ab") as file:  # noqa: PTH123 (pathlib would double this process's start)
        # preexec_fn is safe here: this process has one thread.
        broker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=_end_with_parent)  # noqa: PLW1509
    os.write(1, f"{broker.pid}\n".encode())

    while broker.poll() is None:
        readable, _, _ = select.select([0, wake_read], [], [], PARENT_CHECK_S)
        if wake_read in readable:
            os.read(wake_read, 512)
        commands = os.read(0, 512) if 0 in readable else None
        if commands == b"" or asked_to_end or os.getppid() != parent:
            _end(broker)
        for at in range(len(commands or b"")):
            letter = commands[at : at + 1]  # type: ignore[index]
            broker.send_signal(SIGNALS[letter])
            if letter == PAUSE:
                # Returns when all of its threads stand still, or when it has ended: what can be told of that stays, for `poll`.
                os.waitid(os.P_PID, broker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                os.write(1, PAUSE)
    code = broker.returncode
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(broker: subprocess.Popen[bytes]) -> None:
    broker.send_signal(signal.SIGCONT)  # a stopped process does not hear SIGTERM
    broker.terminate()
    try:
        broker.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        broker.kill()
        broker.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
