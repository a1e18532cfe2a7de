"""Processors that end in the worst moments, stand still and wake up again: no loss, no second dispatch, and others take over soon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from duewheel.adapters.kafka.settings import TRANSACTION_TIMEOUT_MS
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.model import Phase
from duewheel.core.topology import Topology
from duewheel.devbroker.runfolder import RunFolder
from duewheel.devbroker.supervised import Supervised
from duewheel.fleet import Child, Fleet
from tests.integration.desk import DAY_MS, PARTITIONS, TIMEOUT_S, Desk, is_active, job_ids, now_ms, raw_schedule

# A member that sends no heartbeat is thrown out after 6 s, and what follows takes less than a second on an idle machine.
TAKEOVER_S = 15.0
FENCING_S = 5.0
assert FENCING_S * 1_000 < TRANSACTION_TIMEOUT_MS / 5


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.take(tmp_path, "test") as run:
        yield run


class Faulty:
    """An installation with a processor in a process of its own that is about to fail."""

    def __init__(self, desk: Desk, run: RunFolder, fault: str) -> None:
        _, place = fault.split()
        topology = Topology(f"{desk.topology.prefix}.{place}")
        ensure(desk.kafka, topology, {"default": PARTITIONS}, PARTITIONS)
        self.desk = Desk(desk.kafka, topology, run.path / place)
        self.flag = run.path / f"{place}.flag"
        script = str(Path(__file__).with_name("faulty_processor.py"))
        arguments = [desk.kafka.bootstrap_servers, topology.prefix, str(self.desk.folder / "faulty"), str(self.flag), fault]
        self.process = Supervised([sys.executable, script, *arguments], run.path / f"{place}.log", run.lock)
        self.process.start()

    def log(self) -> str:
        return self.process.log.read_text()

    def is_active(self) -> bool:
        assert self.process.running, self.log()
        return self.log().count('"event":"processor.active"') >= PARTITIONS

    def close(self) -> None:
        self.process.close()
        self.desk.close()


def wait(condition: object, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.02)


def has_dispatches(desk: Desk, count: int) -> bool:
    return len(desk.dispatches()) >= count


@pytest.fixture
def crashing(desk: Desk, run: RunFolder) -> Iterator[list[Faulty]]:
    """Three at once, since each is missed by its group for six seconds."""
    faulty = [Faulty(desk, run, fault) for fault in ("exit produced", "exit offsets", "exit committed")]
    yield faulty
    for each in faulty:
        each.close()


def test_K3_a_crash_anywhere_around_a_commit_loses_nothing_and_repeats_nothing(crashing: list[Faulty]) -> None:
    wait(lambda: all(each.is_active() for each in crashing))
    for each in crashing:
        each.desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(20, prefix="waits"))
        each.flag.touch()
        each.desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40))
    wait(lambda: all(each.process.exit_code == 9 for each in crashing))
    with capture_logs() as logs:
        successors = [each.desk.processor("b") for each in crashing]
        assigned: dict[int, float] = {}
        took_s: dict[int, float] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while len(took_s) < len(successors):
            for n, successor in enumerate(successors):
                successor.turn()
                if successor.stages:
                    assigned.setdefault(n, time.monotonic())
                if is_active(successor):
                    took_s.setdefault(n, time.monotonic() - assigned[n])
            assert time.monotonic() < deadline
    for each, successor in zip(crashing, successors, strict=True):
        each.desk.drive(successor, until=partial(has_dispatches, each.desk, 40))
        each.desk.drive_for(successor, seconds=0.2)
        each.desk.leave(successor)
        assert each.desk.dispatched() == sorted(job_ids(40))
        each.desk.check_stores("b")
        # The one that crashed comes back to its store, which may be a transaction behind.
        again = each.desk.active("faulty")
        each.desk.leave(again)
        each.desk.check_stores("faulty")
    assert max(took_s.values()) < FENCING_S, took_s
    assert [line["event"] for line in logs].count("processor.fencing") == len(crashing)


@pytest.fixture
def stopping(desk: Desk, run: RunFolder) -> Iterator[Faulty]:
    faulty = Faulty(desk, run, "stop offsets")
    yield faulty
    faulty.close()


def test_K4_of_a_transaction_that_a_rebalance_overtook_nothing_is_seen(stopping: Faulty) -> None:
    """Its owner stands still with records and offsets at the broker, is replaced, wakes up and goes on to commit."""
    desk, process = stopping.desk, stopping.process
    wait(stopping.is_active)
    stopping.flag.touch()
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40))
    wait(lambda: not stopping.flag.exists())
    successor = desk.processor("b")
    stopped = time.monotonic()
    desk.drive(successor, until=lambda: len(desk.dispatches()) >= 40)
    assert time.monotonic() - stopped < TAKEOVER_S
    process.resume()
    desk.drive(successor, until=lambda: '"event":"processor.lost"' in stopping.log())
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40, prefix="more"))
    desk.drive(successor, until=lambda: len(desk.dispatches()) >= 80)
    desk.leave(successor)
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40, prefix="last"))
    wait(lambda: len(desk.dispatches()) >= 120)
    process.stop()
    assert process.exit_code == 0, stopping.log()
    assert desk.dispatched() == sorted(job_ids(40) + job_ids(40, prefix="more") + job_ids(40, prefix="last"))
    desk.check_stores("faulty")


def active(*children: Child) -> bool:
    """Whether these processors have become active on all partitions, all together."""
    held: dict[int, None] = {}
    for child in children:
        assert child.running, child.log_tail()
        held |= {line["partition"]: None for line in child.logged("processor.active")}
    return len(held) == PARTITIONS and all(child.logged("processor.active") for child in children)


def test_killed_under_load_its_jobs_fire_elsewhere_soon(desk: Desk, run: RunFolder) -> None:
    with Fleet(desk.kafka, desk.topology, run) as fleet:
        first, second = fleet.start_processor("first"), fleet.start_processor("second")
        wait(lambda: active(first, second))
        ids: list[str] = []

        def publish() -> None:
            new = [f"job-{len(ids) + n}" for n in range(20)]
            desk.publish(raw_schedule(job_id, now_ms() + 500 * (n % 2)) for n, job_id in enumerate(new))
            ids.extend(new)
            time.sleep(0.02)

        while len(ids) < 1_000:
            publish()
        first.kill()
        killed_ms = now_ms()
        while now_ms() < killed_ms + 4_000:
            publish()
        wait(lambda: len(desk.dispatches()) >= len(ids))
        second.stop()
        assert second.exit_code == 0
        assert not second.logged("processor.lost")
    assert desk.dispatched() == sorted(ids)
    late_ms = [d["dispatched_ms"] - d["slot_ms"] for d in desk.all_dispatches()]
    assert max(late_ms) < TAKEOVER_S * 1_000
    tokens: dict[int, list[int]] = {}
    for d in sorted(desk.all_dispatches(), key=lambda d: d["dispatched_ms"]):
        tokens.setdefault(d["timer_partition"], []).append(d["token"])
    for partition, given in tokens.items():
        assert sorted(given) == list(range(1, len(given) + 1)), f"tokens of partition {partition} have gaps"


def test_SIGTERM_hands_over_at_once_and_nobody_is_fenced(desk: Desk, run: RunFolder) -> None:
    with Fleet(desk.kafka, desk.topology, run) as fleet:
        first = fleet.start_processor("first")
        wait(lambda: active(first))
        desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40))
        wait(lambda: len(desk.dispatches()) >= 40)
        first.stop()
        assert first.exit_code == 0
        assert first.logged("processor.stopped")
        desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40, prefix="more"))
        asked = time.monotonic()
        with capture_logs() as logs:
            second = desk.active("second")
        assert time.monotonic() - asked < FENCING_S
        desk.drive(second, until=lambda: len(desk.dispatches()) >= 80)
        desk.leave(second)
        assert "processor.fencing" not in {line["event"] for line in logs}
        desk.leave(desk.active("../" + str((run.path / "first.state").relative_to(desk.folder.parent))))
    assert desk.dispatched() == sorted(job_ids(40) + job_ids(40, prefix="more"))
    assert set(desk.phases().values()) == {Phase.DISPATCHED}


def duewheel(desk: Desk, *arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEWHEEL_")}
    command = [sys.executable, "-m", "duewheel.cli.main", "processor", "-b", desk.kafka.bootstrap_servers, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)


def test_a_folder_in_use_ends_the_command_and_names_the_holder(desk: Desk) -> None:
    processor = desk.processor()
    ran = duewheel(desk, "--prefix", desk.topology.prefix, "--state-dir", str(desk.folder / "a"))
    desk.leave(processor)
    assert ran.returncode == 3
    assert f"is held by process {os.getpid()}; stop that one" in ran.stderr.splitlines()[-1]


def test_missing_topics_end_the_command_and_name_the_remedy(desk: Desk) -> None:
    ran = duewheel(desk, "--prefix", "nobody-made-this", "--state-dir", str(desk.folder / "a"), timeout_s=10)
    assert ran.returncode == 3
    assert ran.stderr.splitlines()[-1].startswith("duewheel: topic nobody-made-this.")
    assert "duewheel topics apply" in ran.stderr.splitlines()[-1]
