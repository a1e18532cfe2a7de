"""Lateness: how long after its time a job's handler starts, at a steady rate, through the whole chain.

    due ── processor notices ── transaction ── worker polls ── claim ── handler's first line
    └───────────────────────────── measured ────────────────────────────────────────┘

Jobs are due one after another at the given rate. All of them are scheduled before the first is due, and taken in by the processor, so that
enqueueing competes with nothing. One processor and one worker run, and nothing else: the handler writes job, slot, dispatch and the
wall clock to a file, which is read when all is over. Every process is on one machine and reads the same clock.

The first jobs are a warm-up: a Java broker that has just started takes twice as long for a transaction as one that has run for a while.
They count for the promises (early, missing, duplicates) and not for the times.

    early        started before its time; must be 0
    missing      never started; must be 0
    duplicates   executions of the same (job, slot) beyond the first; must be 0, since nothing is killed here
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from duewheel.bench import load, process, site
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.bench.tasks import STAMPS_VARIABLE
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.percentile import percentile
from duewheel.core.topology import Topology
from duewheel.fleet import Fleet

RATE_DEFAULT: Final = 1_000
SECONDS_DEFAULT: Final = 20
WARM_UP_S: Final = 10
# On one machine with its broker, the broker's work for a transaction is what makes jobs late, and it grows with each partition touched.
PARTITIONS_DEFAULT: Final = 1
CONCURRENCY_DEFAULT: Final = 10  # as `duewheel worker`
# From the first job scheduled to the first one due: two seconds for whatever is slow, and 20,000 jobs a second, a sixth of what a client
# can do.
_LEAD_MS: Final = 2_000
_LEAD_JOBS_PER_MS: Final = 20
_TAKE_IN_TIMEOUT_S: Final = 60.0
# After the last one is due: for those that are late, and then for executions that should not be.
_LATE_S: Final = 15.0
_QUIET_S: Final = 2.0
_POLL_S: Final = 0.25


class Stamp(NamedTuple):
    """One execution, as the handler wrote it down."""

    job_id: str
    slot_ms: int
    dispatched_ms: int
    started_us: int


def run(place: Site, rate: int, seconds: int, partitions: int, concurrency: int, progress: Progress) -> Report:
    """Measures lateness at `rate` jobs a second for `seconds`."""
    warm_up = rate * WARM_UP_S
    jobs = warm_up + rate * seconds
    settings = {"rate": rate, "seconds": seconds, "warm_up_s": WARM_UP_S, "jobs": jobs}
    settings |= {"partitions": partitions, "concurrency": concurrency}
    report = Report("lateness", settings, place.kafka_version)
    topology = place.install(partitions)
    fleet = place.fleet(topology)
    stamps = place.run.path / "stamps"
    stamps.touch()
    processor = fleet.start_processor("processor")
    worker = fleet.start_worker("worker", "duewheel.bench.tasks:app", concurrency=concurrency, environment={STAMPS_VARIABLE: str(stamps)})
    site.await_active(fleet, processor, partitions)
    fleet.await_that(lambda: site.having(worker, "worker.partition_opened", partitions), site.READY_TIMEOUT_S, "the worker reads")

    first_ms = _schedule(place, topology, fleet, rate, jobs, progress)
    last_ms = due_ms(first_ms, rate, jobs - 1)
    pids = {"processor": processor.pid, "worker": worker.pid, "broker": place.broker_pid}
    before_s = {name: process.cpu_s(pid) for name, pid in pids.items()}
    watched_s = time.monotonic()
    _watch(stamps, fleet, first_ms, last_ms, jobs, progress)
    watched_s = time.monotonic() - watched_s
    cores = {name: (process.cpu_s(pid) - before_s[name]) / watched_s for name, pid in pids.items() if pid is not None}
    fleet.stop()
    _fill(report, jobs, due_ms(first_ms, rate, warm_up), [parsed(line) for line in stamps.read_text().splitlines()])
    for name, used in cores.items():
        report.add(f"{name}_cores", used, f"CPU time of the {name} a second; 1 is a whole core")
    return report


def due_ms(first_ms: int, rate: int, number: int) -> int:
    """When a job is due, in milliseconds since the epoch."""
    return first_ms + number * 1_000 // rate


def _schedule(place: Site, topology: Topology, fleet: Fleet, rate: int, jobs: int, progress: Progress) -> int:
    """Schedules all jobs, and sees to it that all are acknowledged and taken in before the first is due; when that is."""
    first_ms = time.time_ns() // 1_000_000 + _LEAD_MS + jobs // _LEAD_JOBS_PER_MS
    load.schedule(
        place.kafka, topology, jobs, lambda number: load.job(number, "stamp", due_ms(first_ms, rate, number)), progress, "scheduling"
    )
    fleet.await_that(lambda: place.intake_left(topology) == 0, _TAKE_IN_TIMEOUT_S, "the processor has taken in all jobs")
    if time.time_ns() // 1_000_000 >= first_ms:
        raise EnvironmentFailure(
            f"this machine is too slow or too busy: {jobs} jobs were not scheduled and taken in before the first was due; "
            "use a lower rate or fewer seconds"
        )
    return first_ms


def _watch(stamps: Path, fleet: Fleet, first_ms: int, last_ms: int, jobs: int, progress: Progress) -> None:
    """Waits until all have run and nothing more runs, looking at no more than the clock and the size of a file."""
    span_s = math.ceil((last_ms - first_ms) / 1_000)
    end_ms = last_ms + _LATE_S * 1_000
    size, changed_ms = 0, 0
    while (now_ms := time.time_ns() // 1_000_000) < end_ms:
        progress("running", min(span_s, max(0, (now_ms - first_ms) // 1_000)), span_s)
        fleet.check()
        if now_ms > last_ms:
            found = stamps.stat().st_size
            if found != size:
                size, changed_ms = found, now_ms
            elif now_ms - changed_ms > _QUIET_S * 1_000 and len(stamps.read_text().splitlines()) >= jobs:
                break
        time.sleep(_POLL_S)
    progress("running", span_s, span_s)


def parsed(line: str) -> Stamp:
    """A line that the task `stamp` wrote."""
    job_id, slot_ms, dispatched_ms, started_us = line.split(" ")
    return Stamp(job_id, int(slot_ms), int(dispatched_ms), int(started_us))


def add_promises(report: Report, jobs: int, stamps: Sequence[Stamp]) -> None:
    """Notes what should be 0, of so many jobs that run once each."""
    runs = {(stamp.job_id, stamp.slot_ms) for stamp in stamps}
    report.add("early", sum(stamp.started_us < 1_000 * stamp.slot_ms for stamp in stamps), "started before their time")
    report.add("missing", jobs - len({job_id for job_id, _ in runs}), "never started")
    report.add("duplicates", len(stamps) - len(runs), "executions of a (job, slot) beyond the first")


def _fill(report: Report, jobs: int, warm_ms: int, stamps: Sequence[Stamp]) -> None:
    warm = [stamp for stamp in stamps if stamp.slot_ms >= warm_ms]
    if not warm:
        raise EnvironmentFailure(f"none of the jobs due after the warm-up was run, of {jobs} in all")
    late_ms = sorted((stamp.started_us - 1_000 * stamp.slot_ms) / 1_000 for stamp in warm)
    noticed_ms = sorted(stamp.dispatched_ms - stamp.slot_ms for stamp in warm)
    began_us, ended_us = min(s.started_us for s in stamps), max(s.started_us for s in stamps)
    report.add("p50_ms", percentile(late_ms, 50), "handler's first line after due time, median, ms")
    report.add("p99_ms", percentile(late_ms, 99), "99th percentile, ms")
    report.add("max_ms", late_ms[-1], "the latest, ms")
    add_promises(report, jobs, stamps)
    report.add("mean_ms", sum(late_ms) / len(late_ms), "mean, ms")
    report.add("p999_ms", percentile(late_ms, 99.9), "99.9th percentile, ms")
    all_ms = sorted((stamp.started_us - 1_000 * stamp.slot_ms) / 1_000 for stamp in stamps)
    report.add("p99_with_warm_up_ms", percentile(all_ms, 99), "99th percentile, the warm-up counted, ms")
    report.add("dispatched_p50_ms", percentile(noticed_ms, 50), "of which until the processor began its batch, median, ms")
    report.add("dispatched_p99_ms", percentile(noticed_ms, 99), "the same, 99th percentile, ms")
    report.add("rate_per_s", (len(stamps) - 1) / max(1e-6, (ended_us - began_us) / 1e6), "rate reached: handlers started a second")
