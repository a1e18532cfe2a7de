"""End to end: jobs that do nothing, from intake to accepted completion.

All jobs lie in intake, due, when the worker has joined its group and the processor is started. Each then makes the whole way: taken in,
dispatched, claimed, run, its outcome recorded, accepted, its state SUCCEEDED. One processor and one worker process, each on as many
partitions as there are.

    jobs_per_s   jobs, by the time from the append of the first dispatch to the append of the last SUCCEEDED state

Both times are the broker's own, kept beside every record (LogAppendTime), so nothing has to watch meanwhile, save a look at how far
outcomes are written and read, twice a second. Afterwards the changelog is read: each job must have exactly one SUCCEEDED state.
"""

from __future__ import annotations

import time
from typing import Final

from duewheel.adapters.avro import codec
from duewheel.bench import load, process, site
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.core.errors import BrokenInvariant, EnvironmentFailure
from duewheel.core.model import Phase
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.fleet import Fleet
from duewheel.ports import Record

JOBS_DEFAULT: Final = 200_000
PARTITIONS_DEFAULT: Final = 4
CONCURRENCY_DEFAULT: Final = 10  # as `duewheel worker`
_POLL_S: Final = 0.5
# Outcomes have come to rest when none was written or read for so long. A batch takes a tenth of a second.
_REST_S: Final = 2.0
_TIMEOUT_S: Final = 600.0
_LOG_APPEND_TIME: Final = 2


def run(place: Site, jobs: int, partitions: int, concurrency: int, payload_bytes: int, progress: Progress) -> Report:
    """Measures `jobs` jobs."""
    settings = {"jobs": jobs, "partitions": partitions, "concurrency": concurrency, "payload_bytes": payload_bytes}
    report = Report("end-to-end", settings, place.kafka_version)
    topology = place.install(partitions)
    fleet = place.fleet(topology)
    worker = fleet.start_worker("worker", "duewheel.bench.tasks:app", concurrency=concurrency)
    load.schedule(
        place.kafka, topology, jobs, lambda number: load.job(number, "noop", payload_bytes=payload_bytes), progress, "loading intake"
    )
    fleet.await_that(lambda: site.having(worker, "worker.partition_opened", partitions), site.READY_TIMEOUT_S, "the worker reads")
    processor = fleet.start_processor("processor")
    fleet.await_that(lambda: site.having(processor, "processor.assigned", 1), site.READY_TIMEOUT_S, "the processor has its partitions")
    pids = {"processor": processor.pid, "worker": worker.pid, "broker": place.broker_pid}
    before_s = {name: process.cpu_s(pid) for name, pid in pids.items()}

    _await_rest(place, topology, fleet, jobs, progress)
    cpu_us = {name: (process.cpu_s(pid) - before_s[name]) * 1e6 / jobs for name, pid in pids.items() if pid is not None}
    fleet.stop()
    progress("counting", 0, jobs)
    began_ms, ended_ms = _first_dispatch_ms(place, topology), _last_success_ms(place, topology, jobs)
    progress("counting", jobs, jobs)
    report.add("jobs_per_s", jobs * 1_000 / (ended_ms - began_ms), "jobs a second, from first dispatch to last accepted completion")
    report.add("seconds", (ended_ms - began_ms) / 1_000, "that time, s")
    for name, used_us in cpu_us.items():
        report.add(f"{name}_cpu_us", used_us, f"CPU time of the {name} a job, all its threads, µs")
    return report


def _await_rest(place: Site, topology: Topology, fleet: Fleet, jobs: int, progress: Progress) -> None:
    """Waits until outcomes have come to rest, all of them read."""
    numbers = range(place.cluster.partition_count(topology.outcomes))
    last: tuple[int, int] = (0, 0)
    moved_s, deadline = time.monotonic(), time.monotonic() + _TIMEOUT_S
    while (now_s := time.monotonic()) < deadline:
        fleet.check()
        written = place.end(topology.outcomes)
        read = place.cluster.owners(topology.processor_group, topology.outcomes, numbers)
        found = (written, sum(position.offset or 0 for position in read.values()))
        progress("running", min(jobs, found[1]), jobs)
        if found != last:
            last, moved_s = found, now_s
        elif min(found) >= jobs and now_s - moved_s > _REST_S:
            return
        time.sleep(_POLL_S)
    raise EnvironmentFailure(f"after {_TIMEOUT_S:g} s not all of {jobs} jobs are completed.\n{fleet.log_tails()}")


def _first_dispatch_ms(place: Site, topology: Topology) -> int:
    return min(_appended_ms(record) for record in place.records(topology.dispatch(QUEUE_DEFAULT)))


def _last_success_ms(place: Site, topology: Topology, jobs: int) -> int:
    succeeded: set[bytes] = set()
    count = last_ms = 0
    for record in place.records(topology.state):
        key = record.key()
        assert key is not None
        if key[:1] == b"s" and codec.decode_state(record.value() or b"")["phase"] == Phase.SUCCEEDED:
            succeeded.add(key)
            count += 1
            last_ms = max(last_ms, _appended_ms(record))
    if (len(succeeded), count) != (jobs, jobs):
        raise BrokenInvariant(f"{jobs} jobs went into intake; {len(succeeded)} have succeeded, {count} times in all")
    return last_ms


def _appended_ms(record: Record) -> int:
    kind, time_ms = record.timestamp()
    if kind != _LOG_APPEND_TIME:
        raise EnvironmentFailure(f"{record.topic()} does not keep times of append; see: duewheel topics plan")
    return time_ms
