"""A supervised process that is paused stands still when `pause` returns, however busy the machine is; one that stops is asked once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duewheel.devbroker.supervised import Supervised

BUSY = """
import threading
for _ in range(8):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
"""

# Ends in good order a while after it was asked to, unless it is asked again.
ORDERLY = """
import signal, sys, threading

asked = threading.Event()

def ask(number, frame):
    signal.signal(number, signal.SIG_DFL)
    print("asked", flush=True)
    asked.set()

signal.signal(signal.SIGTERM, ask)
print("ready", flush=True)
asked.wait()
threading.Event().wait(0.3)
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Supervised]:
    with (tmp_path / "lock").open("w") as lock:
        process = Supervised([sys.executable, "-c", BUSY], tmp_path / "log", lock.fileno())
        process.start()
        yield process
        process.close()


def states(pid: int | None) -> set[str]:
    """Of all threads: R, S, T, …"""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_all_threads_stand_still_when_pause_returns(busy: Supervised) -> None:
    for _ in range(20):
        busy.pause()
        assert states(busy.pid) == {"T"}
        busy.resume()
    busy.pause()
    busy.pause()
    assert states(busy.pid) == {"T"}


def test_what_is_paused_can_be_killed_and_what_has_ended_can_be_paused(busy: Supervised) -> None:
    busy.pause()
    busy.kill()
    busy.pause()
    assert busy.exit_code == 137


def test_what_was_asked_to_stop_is_not_asked_again_until_it_was_started_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (tmp_path / "lock").open("w") as lock:
        process = Supervised([sys.executable, "-c", ORDERLY], log, lock.fileno())
        for start in (1, 2):
            process.start()
            await_line(log, "ready", start)
            process.request_stop()
            await_line(log, "asked", start)
            process.stop(10)
            assert process.exit_code == 0
        process.close()


def await_line(log: Path, line: str, count: int) -> None:
    deadline = time.monotonic() + 20
    while log.read_text().splitlines().count(line) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
