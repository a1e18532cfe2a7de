"""Jobs that wait: what a million of them take in memory and on disk, and how long a restore takes.

A processor runs while the jobs, due tomorrow, are scheduled. Then it is killed with -9, its store is deleted, and a new process is
started on the empty folder, which must rebuild the store from the changelog. Nothing is waited for in between: the restore begins while
the broker still believes in the dead process, whose session must run out (6 s) before its partitions are assigned anew.

    load_per_s        from the first job that was sent to the last that the processor has committed
    restore_s         from the start of the new process until all partitions are active: interpreter, group, fencing, replay
    restore_per_s     jobs, by the time from the assignment of the partitions until all are active: the replay alone
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from duewheel.bench import load, process, site
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.core.errors import BrokenInvariant
from duewheel.core.limits import DAY_MS
from duewheel.core.topology import Topology
from duewheel.fleet import Child, Fleet

JOBS_DEFAULT: Final = 1_000_000
PARTITIONS_DEFAULT: Final = 4
_TAKE_IN_TIMEOUT_S: Final = 300.0
_RESTORE_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.05
_NAME: Final = "processor"


def run(place: Site, jobs: int, partitions: int, payload_bytes: int, progress: Progress) -> Report:
    """Loads, kills, restores."""
    settings = {"jobs": jobs, "partitions": partitions, "payload_bytes": payload_bytes}
    report = Report("pending", settings, place.kafka_version)
    topology = place.install(partitions)
    fleet = place.fleet(topology)
    processor = fleet.start_processor(_NAME)
    site.await_active(fleet, processor, partitions)

    load_s = _load(place, topology, fleet, jobs, payload_bytes, progress)
    loaded_mb, loaded_peak_mb = process.resident_mb(processor.pid)
    store = place.run.path / f"{_NAME}.state"
    disk_bytes = process.folder_bytes(store)

    processor.kill()
    shutil.rmtree(store)
    progress("restoring", 0, jobs)
    began_s = time.time()
    processor = fleet.start_processor(_NAME)
    active = site.await_active(fleet, processor, partitions, _RESTORE_TIMEOUT_S)
    progress("restoring", jobs, jobs)
    restored_mb, restored_peak_mb = process.resident_mb(processor.pid)
    _check(processor, jobs)

    assigned_s = min(_times_s(site.having(processor, "processor.assigned", 1)))
    active_s = max(_times_s(active))
    report.add("rss_mb", max(loaded_peak_mb, restored_peak_mb), "resident memory of the processor at its highest, loading or restoring, MB")
    report.add("bytes_per_job_disk", disk_bytes / jobs, "what the store takes on disk a job, after loading, as du counts")
    report.add("restore_s", active_s - began_s, "from the new process's start to all partitions active, s")
    report.add("restore_per_s", jobs / (active_s - assigned_s), "jobs a second, from assignment to all partitions active")
    report.add("assigned_s", assigned_s - began_s, "of restore_s, until the group gave it the dead one's partitions, s")
    report.add("load_per_s", jobs / load_s, "jobs a second, while scheduling, until the processor had committed them all")
    report.add("rss_loaded_mb", [loaded_mb, loaded_peak_mb], "after loading: then, and highest, MB")
    report.add("rss_restored_mb", [restored_mb, restored_peak_mb], "after restoring: then, and highest, MB")
    report.add("bytes_per_job_disk_restored", process.folder_bytes(store) / jobs, "on disk a job, after restoring")
    fleet.stop()
    return report


def _load(place: Site, topology: Topology, fleet: Fleet, jobs: int, payload_bytes: int, progress: Progress) -> float:
    """Schedules the jobs and waits until they are taken in; how long that took, in seconds."""
    due_ms = time.time_ns() // 1_000_000 + DAY_MS
    began_s = time.monotonic()
    # A thousandth of a second apart, so that each timer has a time of its own.
    load.schedule(
        place.kafka, topology, jobs, lambda number: load.job(number, "noop", due_ms + number, payload_bytes), progress, "scheduling"
    )

    def taken_in() -> bool:
        left = place.intake_left(topology)
        progress("taking in", jobs - left, jobs)
        time.sleep(_POLL_S)
        return left == 0

    fleet.await_that(taken_in, _TAKE_IN_TIMEOUT_S, "the processor has taken in all jobs")
    return time.monotonic() - began_s


def _times_s(lines: Sequence[dict[str, Any]]) -> list[float]:
    return [datetime.fromisoformat(line["time"]).timestamp() for line in lines]


def _check(processor: Child, jobs: int) -> None:
    replayed = sum(line["records"] for line in site.having(processor, "processor.replayed", 1))
    if replayed < jobs:
        raise BrokenInvariant(f"{jobs} jobs were pending, and the restore found {replayed} records in the changelog")
