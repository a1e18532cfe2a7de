"""The timer path: jobs that are due at once, from intake to committed dispatches, on one partition.

What happens to each job in between: its command is read, decoded and checked; a definition and a state go to the changelog, a dispatch
to its queue; the transaction is committed with the offset; the local store takes it over. `floor` does the Kafka part of this alone, on the
same broker. They take turns for some rounds, and `ratio` is the median of the rounds' ratios: 1 would be a scheduler that costs nothing.

The clock of the path runs from the log line that says that the partition may read its intake (`processor.replayed`) to the one that
says that all that lay there is committed (`processor.active`). All of it was put there before, and every job was due when it was made.
Afterwards the topics are read, and each job must have one definition, one state and one dispatch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from duewheel.bench import floor, load, process, site
from duewheel.bench.floor import FloorRun, Samples
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.core.errors import BrokenInvariant
from duewheel.core.topology import QUEUE_DEFAULT, Topology

JOBS_DEFAULT: Final = 200_000
ROUNDS_DEFAULT: Final = 3
# A short round in front, not counted: a broker that has just started is not what is measured.
_WARM_UP_JOBS: Final = 20_000
_TIMEOUT_S: Final = 300.0


class _PathRun(NamedTuple):
    seconds: float
    cpu_s: float
    broker_cpu_s: float
    transactions: int
    samples: Samples


class _Round(NamedTuple):
    path: _PathRun
    floor: FloorRun
    floor_broker_cpu_s: float


def run(place: Site, jobs: int, rounds: int, payload_bytes: int, progress: Progress) -> Report:
    """Measures path and floor alternately."""
    report = Report("path", {"jobs": jobs, "rounds": rounds, "payload_bytes": payload_bytes, "partitions": 1}, place.kafka_version)
    _round(place, min(jobs, _WARM_UP_JOBS), payload_bytes, progress, "warming up")
    results = [_round(place, jobs, payload_bytes, progress, f"round {number} of {rounds}") for number in range(1, rounds + 1)]
    _fill(report, jobs, results)
    return report


def _fill(report: Report, jobs: int, results: list[_Round]) -> None:
    paths = [jobs / r.path.seconds for r in results]
    floors = [jobs / r.floor.seconds for r in results]
    ratios = [path / bare for path, bare in zip(paths, floors, strict=True)]
    samples, median = results[-1].path.samples, statistics.median
    report.add("path_per_s", median(paths), "jobs a second, from intake to committed dispatches (median)")
    report.add("floor_per_s", median(floors), "the same by the bare loop (median)")
    report.add("ratio", median(ratios), "path to floor (median of the rounds' ratios)")
    report.add("paths_per_s", paths, "each round")
    report.add("floors_per_s", floors, "each round")
    report.add("ratios", ratios, "each round")
    report.add("path_cpu_us", median(1e6 * r.path.cpu_s / jobs for r in results), "CPU time of the processor a job, all its threads, µs")
    report.add("floor_cpu_us", median(1e6 * r.floor.cpu_s / jobs for r in results), "CPU time of the bare loop a job, µs")
    if results[0].floor_broker_cpu_s:
        report.add(
            "path_broker_cpu_us", median(1e6 * r.path.broker_cpu_s / jobs for r in results), "CPU time of the broker a job, path, µs"
        )
        report.add(
            "floor_broker_cpu_us", median(1e6 * r.floor_broker_cpu_s / jobs for r in results), "CPU time of the broker a job, floor, µs"
        )
    report.add("batch_jobs", median(jobs / r.path.transactions for r in results), "jobs in a transaction, on average, in both")
    for kind, records in samples._asdict().items():
        size = sum(len(key) + len(value) for value, key in records) / len(records)
        report.add(f"{kind}_bytes", size, "key and value, on average, in both")


def _round(place: Site, jobs: int, payload_bytes: int, progress: Progress, name: str) -> _Round:
    source, target = place.install(partitions=1), place.install(partitions=1)
    load.schedule(
        place.kafka, source, jobs, lambda number: load.job(number, "noop", payload_bytes=payload_bytes), progress, f"{name}: loading"
    )
    path = _path(place, source, jobs, progress, f"{name}: path")
    batch = round(jobs / path.transactions)
    between_s = process.cpu_s(place.broker_pid)
    bare = floor.run(place.kafka, source, target, jobs, batch, path.samples, progress, f"{name}: floor")
    broker_s = process.cpu_s(place.broker_pid) - between_s
    for topology in (source, target):
        place.remove(topology)
    return _Round(path, bare, broker_s)


def _path(place: Site, topology: Topology, jobs: int, progress: Progress, what: str) -> _PathRun:
    progress(what, 0, jobs)
    fleet = place.fleet(topology)
    processor = fleet.start_processor(f"processor-{topology.prefix}")
    (began,) = fleet.await_that(lambda: site.having(processor, "processor.replayed", 1), site.READY_TIMEOUT_S, "the processor reads")
    pids = (processor.pid, place.broker_pid)
    before_s = [process.cpu_s(pid) for pid in pids]
    (ended,) = site.await_active(fleet, processor, 1, _TIMEOUT_S)
    cpu_s, broker_cpu_s = (process.cpu_s(pid) - before for pid, before in zip(pids, before_s, strict=True))
    progress(what, jobs, jobs)
    fleet.stop()
    samples, transactions = _check(place, topology, jobs)
    return _PathRun(_seconds_between(began, ended), cpu_s, broker_cpu_s, transactions, samples)


def _seconds_between(began: Mapping[str, Any], ended: Mapping[str, Any]) -> float:
    return (datetime.fromisoformat(ended["time"]) - datetime.fromisoformat(began["time"])).total_seconds()


def _check(place: Site, topology: Topology, jobs: int) -> tuple[Samples, int]:
    """Reads what the processor wrote: samples for the floor, and how many transactions it took.

    Raises:
        BrokenInvariant: not one definition, one state and one dispatch for each job.
    """
    kinds: dict[bytes, list[tuple[bytes, bytes]]] = {b"d": [], b"s": [], b"p": []}
    counts = dict.fromkeys(kinds, 0)
    for record in place.records(topology.state):
        key, value = record.key(), record.value()
        assert key is not None
        assert value is not None
        kind = key[:1]
        counts[kind] += 1
        if counts[kind] <= floor.SAMPLES:
            kinds[kind].append((value, key))
    dispatch = topology.dispatch(QUEUE_DEFAULT)
    dispatches = [(record.value() or b"", record.key() or b"") for record in place.records(dispatch)]
    found = {"definitions": counts[b"d"], "states": counts[b"s"], "dispatches": len(dispatches)}
    if set(found.values()) != {jobs}:
        raise BrokenInvariant(f"{jobs} jobs went into intake, and this came out: {found}")
    # Each commit leaves one marker in the log, which takes an offset like a record.
    transactions = place.end(dispatch) - jobs
    return Samples(kinds[b"d"], kinds[b"s"], dispatches[: floor.SAMPLES]), transactions
