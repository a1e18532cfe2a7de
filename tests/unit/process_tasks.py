"""The app that the tests of child processes run: `tests.unit.process_tasks:app`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from duewheel.core.retry import RetryPolicy
from duewheel.worker.app import App, Context
from duewheel.worker.verdicts import Retry

app = App()


@app.task(executor="process", keep_result=True)
def describe(payload: Any, context: Context) -> dict[str, Any]:
    return {
        "payload": payload,
        "key": context.idempotency_key,
        "token": context.fencing_token,
        "queue": context.queue,
        "crashes": context.crashes,
        "pid": os.getpid(),
    }


@app.task(executor="process", keep_result=True)
async def describe_later(payload: Any) -> dict[str, Any]:
    await asyncio.sleep(0.001)
    return {"payload": payload, "pid": os.getpid()}


@app.task(executor="process")
def leave(code: int) -> None:
    """Ends the process: by exit code, or, where that is negative, by signal."""
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(60)
    os._exit(code)


@app.task(executor="process")
def leave_heir(payload: str) -> None:
    """Ends the process, and leaves another one behind that holds all that was open."""
    if os.fork() == 0:
        _say_pid(payload)
        time.sleep(60)
    while not Path(payload).exists():
        time.sleep(0.01)
    os._exit(7)


@app.task(executor="process", retry=RetryPolicy(attempts=2))
def fail(payload: str) -> None:
    if payload == "exit":
        sys.exit(3)
    if payload == "later":
        raise Retry("closed", after=7)
    raise ValueError(payload)


class Busy(Retry):
    """As users write them: without a word to our own __init__."""

    def __init__(self) -> None: ...


@app.task(executor="process")
def be_busy() -> None:
    raise Busy


@app.task(executor="process")
def hang(payload: str) -> None:
    """Says who it is, and goes on for ever, whatever it is asked."""
    _say_pid(payload)
    while True:
        time.sleep(1)


@app.task(executor="process")
def hang_with_another(payload: str) -> None:
    """Starts a process, says who that is, and waits for it for ever."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    _say(payload, other.pid)
    other.wait()


@app.task(executor="process")
def obey(payload: str, context: Context) -> None:
    """Goes on until it is asked to stop."""
    Path(payload).touch()
    while True:
        context.raise_if_cancelled()
        time.sleep(0.005)


@app.task(executor="process")
async def obey_later(payload: str) -> None:
    Path(payload).touch()
    await asyncio.Event().wait()


@app.task(executor="process", heartbeat=5)
def beat(count: int, context: Context) -> None:
    for number in range(count):
        context.heartbeat({"done": number + 1})
    deadline = time.monotonic() + 30
    while not context.cancelled and time.monotonic() < deadline:
        time.sleep(0.005)


@app.task(executor="process")
def interrupt() -> None:
    """What a terminal does to the whole family."""
    for each in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), each)
        time.sleep(0.01)


@app.task(executor="process", keep_result=True)
def start_and_end_another() -> int:
    """Whatever a handler starts can be ended by it."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other.terminate()
    return other.wait(30)


@app.task(executor="process", keep_result=True)
def has_descriptor(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _say_pid(path: str) -> None:
    _say(path, os.getpid())


def _say(path: str, pid: int) -> None:
    unfinished = Path(f"{path}.unfinished")
    unfinished.write_text(str(pid))
    unfinished.rename(path)  # so that who sees it sees it whole
