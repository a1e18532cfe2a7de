"""A supervised process that is paused stands still when `pause` returns, however busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duewheel.devbroker.supervised import Supervised

BUSY = """
import threading
for _ in range(8):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
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
