"""Recurring jobs on a real broker: each slot has one run, whoever owns the partition, and however its owner ends."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.core.limits import HOUR_MS, SECOND_MS
from duewheel.core.model import Phase
from duewheel.core.recurrence import jittered_ms
from duewheel.core.run_ids import parse, run_id
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Fleet
from tests.integration.desk import TIMEOUT_S, Desk, home, job_ids, now_ms, raw_cancel, raw_schedule
from tests.recurring import every, every_after

RUNS = 5


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.take(tmp_path, "test") as run:
        yield run


def slots(desk: Desk) -> dict[str, list[int]]:
    """Slots that were dispatched, by recurring job, each as often as it was."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for d in desk.dispatches():
        named = parse(d["job_id"])
        assert named is not None, d["job_id"]
        found[named.job_id].append(named.slot_ms)
    return {job_id: sorted(slots_ms) for job_id, slots_ms in found.items()}


def work_until(desk: Desk, condition: Any, fleet: Fleet, timeout_s: float = 2 * TIMEOUT_S) -> None:
    """Answers every dispatch, as a worker would, until the condition holds."""
    answered, deadline = 0, time.monotonic() + timeout_s
    while not condition():
        new = desk.dispatches()[answered:]
        answered += len(new)
        desk.answer(new)
        fleet.check()
        assert time.monotonic() < deadline, f"not so in time: {slots(desk)}"
        time.sleep(0.02)


def test_T11_each_slot_has_one_run_though_one_of_two_processors_is_killed(desk: Desk, run: RunFolder) -> None:
    by_clock, by_end = job_ids(12, prefix="clock"), job_ids(4, prefix="end")
    with Fleet(desk.kafka, desk.topology, run) as fleet:
        first, second = fleet.start_processor("first"), fleet.start_processor("second")
        fleet.await_that(lambda: first.logged("processor.active") and second.logged("processor.active"), TIMEOUT_S, "both have partitions")
        start_ms = now_ms() + SECOND_MS
        for _ in range(2):  # two schedulers, one schedule
            desk.publish(raw_schedule(job_id, start_ms, recurrence=every(SECOND_MS, runs_max=RUNS, overlap="ALLOW")) for job_id in by_clock)
        desk.publish(raw_schedule(job_id, start_ms, recurrence=every_after(SECOND_MS, runs_max=RUNS)) for job_id in by_end)
        work_until(desk, lambda: now_ms() > start_ms + 1_500 and slots(desk), fleet)
        first.kill()
        work_until(desk, lambda: sum(map(len, slots(desk).values())) >= RUNS * 16 and len(desk.phases()) >= (RUNS + 1) * 16, fleet)
        work_until(desk, lambda: set(desk.phases().values()) == {Phase.SUCCEEDED}, fleet)
        second.stop()
    found, expected = slots(desk), [start_ms + n * SECOND_MS for n in range(RUNS)]
    assert {job_id: found[job_id] for job_id in by_clock} == dict.fromkeys(by_clock, expected)
    for job_id in by_end:
        assert (len(found[job_id]), found[job_id][0]) == (RUNS, start_ms)
        assert all(later - earlier >= SECOND_MS for earlier, later in pairwise(found[job_id]))
    dispatches = desk.all_dispatches()
    assert len(dispatches) == RUNS * 16
    assert all(d["timer_partition"] == home(d["job_id"]) for d in dispatches)
    where = ["-b", desk.kafka.bootstrap_servers, "--prefix", desk.topology.prefix, "--state-dir", str(run.path / "second.state")]
    verdict = CliRunner().invoke(cli, ["verify", *where])
    assert verdict.exit_code == 0, verdict.output


def test_T1_a_run_is_cancelled_by_a_client_that_knows_nothing_of_runs(desk: Desk) -> None:
    """It hashes the whole of the run's id, and so writes to another partition than the job's."""
    now, recurrence = now_ms(), every(2 * HOUR_MS, jitter_ms=2 * HOUR_MS)
    ids = [job_id for job_id in job_ids(60) if jittered_ms(recurrence, job_id, now) > now + HOUR_MS][:10]
    processor = desk.active()
    desk.publish(raw_schedule(job_id, now, recurrence=recurrence) for job_id in ids)
    desk.drive(processor, until=lambda: sum(b"@" in key for part in desk.fold().values() for key in part) == len(ids))
    desk.publish(raw_cancel(run_id(job_id, now)) for job_id in ids)
    desk.drive(processor, until=lambda: list(desk.phases().values()).count(Phase.CANCELLED) == len(ids))
    desk.leave(processor)
    assert {job_id for job_id, phase in desk.phases().items() if phase == Phase.CANCELLED} == {run_id(job_id, now) for job_id in ids}
    assert desk.dead_letters() == []
