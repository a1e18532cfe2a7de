"""Many recurring jobs that fall on the same moment: what happens on the hour.

All have the same cron line, which names one second of the day; all are scheduled, and taken in by the processor, before it. Then each
fires once, through the whole chain, while somebody goes on scheduling and cancelling other jobs, who should not notice:

    late_*        the handler's first line, after that second
    fired_*       of that, until the processor began its batch
    intake_*      of a job scheduled meanwhile: from the call until the transaction that took it in was committed
    cancel_*      the same for its cancel
    missing, duplicates, early    as in `lateness`; all must be 0
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Final

from duewheel import wiring
from duewheel.bench import load, process, site
from duewheel.bench.lateness import Stamp, add_promises, parsed
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site
from duewheel.bench.tasks import STAMPS_VARIABLE
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.percentile import percentile
from duewheel.core.topology import Topology

JOBS_DEFAULT: Final = 100_000
PARTITIONS_DEFAULT: Final = 4
CONCURRENCY_DEFAULT: Final = 10

_LEAD_S: Final = 8
_LEAD_JOBS_PER_S: Final = 3_000
_TAKE_IN_TIMEOUT_S: Final = 60.0
_LATE_S: Final = 120.0
_QUIET_S: Final = 2.0
_POLL_S: Final = 0.25
_PROBE_LEAD_S: Final = 3.0
_PROBE_PAUSE_S: Final = 0.1
_PROBE_POLL_S: Final = 0.005
_PROBE_TIMEOUT_S: Final = 60.0


def run(place: Site, jobs: int, partitions: int, concurrency: int, progress: Progress) -> Report:
    """Measures `jobs` recurring jobs on one moment."""
    report = Report("crons", {"jobs": jobs, "partitions": partitions, "concurrency": concurrency}, place.kafka_version)
    topology = place.install(partitions)
    fleet = place.fleet(topology)
    stamps = place.run.path / "stamps"
    stamps.touch()
    processor = fleet.start_processor("processor")
    worker = fleet.start_worker("worker", "duewheel.bench.tasks:app", concurrency=concurrency, environment={STAMPS_VARIABLE: str(stamps)})
    site.await_active(fleet, processor, partitions)
    fleet.await_that(lambda: site.having(worker, "worker.partition_opened", partitions), site.READY_TIMEOUT_S, "the worker reads")

    lead_s = _LEAD_S + jobs // _LEAD_JOBS_PER_S
    slot_s = int(time.time()) + lead_s
    at = time.gmtime(slot_s)
    line = f"{at.tm_sec} {at.tm_min} {at.tm_hour} * * *"
    load.schedule(place.kafka, topology, jobs, lambda n: load.job(n, "stamp")._replace(cron=line), progress, "scheduling")
    fleet.await_that(lambda: place.intake_left(topology) == 0, _TAKE_IN_TIMEOUT_S, "the processor has taken in all jobs")
    if time.time() >= slot_s - _PROBE_LEAD_S:
        raise EnvironmentFailure(
            f"this machine is too slow or too busy: {jobs} jobs were not scheduled and taken in before their time; use fewer"
        )
    probe = _Probe(place, topology)
    while (left_s := slot_s - _PROBE_LEAD_S - time.time()) > 0:
        progress("waiting", lead_s - round(left_s), lead_s)
        time.sleep(min(left_s, _POLL_S))
    probe.start()
    pids = {"processor": processor.pid, "worker": worker.pid, "broker": place.broker_pid}
    before_s = {name: process.cpu_s(pid) for name, pid in pids.items()}
    size, changed_s = 0, time.monotonic()
    while time.monotonic() - changed_s < _QUIET_S or not size:
        fleet.check()
        if time.time() > slot_s + _LATE_S:
            break
        found = stamps.stat().st_size
        if found != size:
            size, changed_s = found, time.monotonic()
        progress("running", stamps.read_bytes().count(b"\n"), jobs)
        time.sleep(_POLL_S)
    used_s = {name: process.cpu_s(pid) - before_s[name] for name, pid in pids.items() if pid is not None}
    probe.stop()
    fleet.stop()
    _fill(report, jobs, slot_s * 1_000, [parsed(text) for text in stamps.read_text().splitlines()])
    for name, waits_ms in (("intake", sorted(probe.intake_ms)), ("cancel", sorted(probe.cancel_ms))):
        what = "a job scheduled meanwhile was taken in" if name == "intake" else "its cancel was obeyed"
        report.add(f"{name}_p50_ms", percentile(waits_ms, 50), f"until {what}, median, ms")
        report.add(f"{name}_max_ms", waits_ms[-1], "the longest, ms")
    for name, seconds in used_s.items():
        report.add(f"{name}_cpu_us", seconds * 1e6 / jobs, f"CPU time of the {name} for each job, µs")
    report.add("probes", len(probe.cancel_ms), "jobs scheduled and cancelled meanwhile")
    return report


def _fill(report: Report, jobs: int, slot_ms: int, stamps: list[Stamp]) -> None:
    if not stamps:
        raise EnvironmentFailure(f"none of {jobs} jobs was run")
    late_ms = sorted(stamp.started_us / 1_000 - slot_ms for stamp in stamps)
    fired_ms = sorted(stamp.dispatched_ms - slot_ms for stamp in stamps)
    report.add("late_p50_ms", percentile(late_ms, 50), "handler's first line after the slot, median, ms")
    report.add("late_p99_ms", percentile(late_ms, 99), "99th percentile, ms")
    report.add("late_max_ms", late_ms[-1], "the latest, ms")
    report.add("fired_p99_ms", percentile(fired_ms, 99), "of which until the processor began its batch, 99th percentile, ms")
    add_promises(report, jobs, stamps)


class _Probe:
    """Somebody who schedules a job, sees it taken in, cancels it, sees that obeyed, and begins again.

    It asks the group how far it has come, and reads no topic: that would take as much of the machine as the processor does.
    """

    def __init__(self, place: Site, topology: Topology) -> None:
        self.intake_ms: list[float] = []
        self.cancel_ms: list[float] = []
        self._place, self._topology = place, topology
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe")
        self._failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Lets it end, and raises what ended it before."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with wiring.producing_client(self._place.kafka, self._topology, _PROBE_TIMEOUT_S) as client:
                while not self._over.is_set():
                    began_s = time.monotonic()
                    handle = client.schedule("noop", b"", delay=timedelta(hours=1))
                    self._await(handle.partition, handle.offset)
                    taken_s = time.monotonic()
                    receipt = client.cancel(handle.job_id)
                    self._await(receipt.partition, receipt.offset)
                    self.intake_ms.append((taken_s - began_s) * 1_000)
                    self.cancel_ms.append((time.monotonic() - taken_s) * 1_000)
                    self._over.wait(_PROBE_PAUSE_S)
        except Exception as error:
            self._failure = error

    def _await(self, partition: int, offset: int) -> None:
        """Waits until the group has committed an offset of the intake topic."""
        topology, deadline_s = self._topology, time.monotonic() + _PROBE_TIMEOUT_S
        while (self._place.cluster.owners(topology.processor_group, topology.intake, [partition])[partition].offset or 0) <= offset:
            if time.monotonic() > deadline_s:
                raise EnvironmentFailure(f"{topology.intake} [{partition}] offset {offset} was not taken in within {_PROBE_TIMEOUT_S:g} s")
            time.sleep(_PROBE_POLL_S)
