"""The demo as a newcomer runs it: on a broker of its own, whole; and killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.devbroker import Distribution
from tests.conftest import FOLDER

GONE_S = 15  # after a kill -9 children get SIGTERM, and SIGKILL 5 s later


def _start(mark: str, *arguments: str) -> subprocess.Popen[str]:
    """`duewheel demo`, whose processes can be told by `mark`, which all of them inherit."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEWHEEL_")}
    return subprocess.Popen(
        [sys.executable, "-m", "duewheel.cli.main", "demo", *arguments],
        env={**environment, "DEMO_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _processes(mark: str) -> list[str]:
    """The command lines of all processes that bear the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended just now, or is another user's
            continue
    return found


def _await(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_the_demo_keeps_every_promise_and_leaves_nothing(tmp_path: Path) -> None:
    jars = Distribution.find(FOLDER).libs
    (tmp_path / jars.name).symlink_to(jars)
    mark = uuid.uuid4().hex
    demo = _start(mark, "--json", "--folder", str(tmp_path))
    output, errors = demo.communicate(timeout=110)
    assert demo.returncode == 0, output + errors

    figures = json.loads(output.splitlines()[-1])
    assert figures["scheduled"] == 2_000
    assert figures["completed"] + figures["cancelled"] == 2_000
    assert figures["cancelled"] > 100
    promises = ("lost", "early", "accepted_twice", "started_although_cancelled", "started_without_dispatch", "token_used_twice")
    assert {figures[promise] for promise in promises} == {0}
    assert figures["broken"] == []
    assert figures["executions"] - figures["executions_repeated"] == figures["completed"]
    assert figures["start_jobs"] == figures["completed"]
    assert figures["duration_s"] < 60
    # The group misses a killed member after 6 s; both were replaced while jobs were due.
    assert 0 < figures["takeover_processor_ms"] < 15_000
    assert 0 < figures["takeover_worker_ms"] < 15_000
    assert "killed processor-1" in output
    assert "killed worker-1" in output

    assert _processes(mark) == []
    assert [path for path in tmp_path.iterdir() if path.is_dir() and path.name != jars.name] == []


def test_a_demo_that_is_killed_takes_its_processes_along(broker: KafkaConfig, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    demo = _start(mark, "--folder", str(tmp_path), "-b", broker.bootstrap_servers)
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "started worker-2" in line:
                break
        children = [command for command in _processes(mark) if " processor " in command or " worker " in command]
        assert sum("--log-format json" in command and "guard.py" not in command for command in children) == 4, children
    finally:
        demo.kill()
        demo.communicate()
    _await(lambda: not _processes(mark), GONE_S)
