"""Jobs that fail at every attempt: what a bad deployment, or a database that is away, does to the fleet.

All jobs lie in intake, due, when one processor and one worker begin. The handler raises each time, so that each job is tried
`ATTEMPTS` times under the default waits (1, 4, 16 and 64 s, up to half taken off) and then lies in the dead letters. From there it is
read how each went:

    dead, attempts     every job is dead, after exactly so many attempts
    wait_early         retries that started before the wait that the policy computed for them; none may
    spread             of the last waits, as they were: jobs in the fullest twentieth of the time over which they should be spread,
                       against an even share. 1 is even; 20 would be all at once
    *_mb               resident memory, when every job has failed once, at the end, and at its highest: a retry that waits should not
                       be in memory
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.scan import Scan
from duewheel.bench import load, process, site
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.limits import ATTEMPTS_DEFAULT
from duewheel.core.model import DeadRun
from duewheel.core.retry import DEFAULT, delay_ms, undiminished_ms
from duewheel.fleet import Fleet

JOBS_DEFAULT: Final = 100_000
PARTITIONS_DEFAULT: Final = 4
CONCURRENCY_DEFAULT: Final = 10
ATTEMPTS: Final = ATTEMPTS_DEFAULT
_POLL_S: Final = 0.5
_TIMEOUT_S: Final = 900.0
_STALLED_S: Final = 30.0
_BUCKETS: Final = 20


def run(place: Site, jobs: int, partitions: int, concurrency: int, payload_bytes: int, progress: Progress) -> Report:
    """Measures `jobs` jobs."""
    settings = {"jobs": jobs, "attempts": ATTEMPTS, "partitions": partitions, "concurrency": concurrency, "payload_bytes": payload_bytes}
    report = Report("failing", settings, place.kafka_version)
    topology = place.install(partitions)
    load.schedule(
        place.kafka, topology, jobs, lambda number: load.job(number, "fail", payload_bytes=payload_bytes), progress, "loading intake"
    )
    fleet = place.fleet(topology)
    worker = fleet.start_worker("worker", "duewheel.bench.tasks:app", concurrency=concurrency)
    processor = fleet.start_processor("processor")
    fleet.await_that(lambda: site.having(worker, "worker.partition_opened", partitions), site.READY_TIMEOUT_S, "the worker reads")
    pids = {"processor": processor.pid, "worker": worker.pid}

    began_s = time.monotonic()
    # Commit markers count too, so this is a little early: good enough for "each has failed once".
    _await(lambda: place.end(topology.outcomes), jobs, fleet, progress, "first attempts")
    first_mb = {name: process.resident_mb(pid)[0] for name, pid in pids.items()}
    found = _Found()
    scan = Scan(place.kafka, topology.dead_letter, _STALLED_S)
    _await(lambda: found.read(scan), jobs, fleet, progress, "dying")
    seconds = time.monotonic() - began_s
    last_mb = {name: process.resident_mb(pid) for name, pid in pids.items()}
    fleet.stop()
    found.read(scan)  # were there more than one of a job, some might lie behind
    scan.close()
    report.add("dead", len(found.jobs), "jobs in the dead letters")
    report.add("died_twice", found.count - len(found.jobs), "dead letters beyond one a job; should be 0")
    report.add("attempts_wrong", found.attempts_wrong, f"jobs with other than {ATTEMPTS} attempts; should be 0")
    report.add("wait_early", found.early, "retries before their time; should be 0")
    report.add("spread", found.spread(), "jobs in the fullest twentieth of the last wait's window, against an even share of 1")
    for name in pids:
        report.add(f"{name}_mb", first_mb[name], f"resident memory of the {name} when every job had failed once, MB")
        report.add(f"{name}_end_mb", last_mb[name][0], "the same when all were dead, MB")
        report.add(f"{name}_peak_mb", last_mb[name][1], "the same at its highest, MB")
    report.add("seconds", seconds, f"until all were dead; the waits alone are at most {_waits_s():g}")
    return report


def _waits_s() -> float:
    return sum(undiminished_ms(DEFAULT, tries) for tries in range(1, ATTEMPTS)) / 1_000


def _await(ask: Callable[[], int], count: int, fleet: Fleet, progress: Progress, what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while (reached := ask()) < count:
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"{what}: {reached:,} of {count:,} after {_TIMEOUT_S:g} s.\n{fleet.log_tails()}")
        fleet.check()
        progress(what, reached, count)
        time.sleep(_POLL_S)
    progress(what, count, count)


class _Found:
    """What the dead letters tell."""

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.count = self.attempts_wrong = self.early = 0
        self._buckets: Counter[int] = Counter()

    def read(self, scan: Scan) -> int:
        """Takes in what has arrived in the dead letters; how many jobs are dead by now."""
        for records in scan.to_end():
            for record in records:
                self.take(codec.decode_dead_run(record.value()))
        return len(self.jobs)

    def take(self, run: DeadRun) -> None:
        self.count += 1
        self.jobs.add(run["job_id"])
        trail = run["state"]["trail"]
        endings = [] if trail is None else trail["endings"]
        if len(endings) != ATTEMPTS:
            self.attempts_wrong += 1
            return
        for tries, (failed, again) in enumerate(pairwise(endings), start=1):
            wanted_ms = delay_ms(DEFAULT, tries, run["job_id"], failed["attempt"])
            # The wait begins when the owner reads of the failure, which is after it.
            self.early += again["started_ms"] < failed["ended_ms"] + wanted_ms
        last_ms = undiminished_ms(DEFAULT, ATTEMPTS - 1)
        window_ms = last_ms * DEFAULT.jitter
        waited_ms = endings[-1]["started_ms"] - endings[-2]["ended_ms"]
        self._buckets[int((waited_ms - (last_ms - window_ms)) * _BUCKETS / window_ms)] += 1  # late ones lie beyond the window

    def spread(self) -> float:
        return max(self._buckets.values(), default=0) * _BUCKETS / max(1, sum(self._buckets.values()))
