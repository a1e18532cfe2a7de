"""One fault test, from its brokers to its verdict.

    start      three brokers, three processors, three workers; until all have their share
    break      producers ask for jobs, a caretaker redrives and drops dead ones, and `troubles` breaks things
    heal       every fault is over, every process runs, every replica is in sync
    drain      until every job has ended, or there is no time left
    stop       all processes, in good order
    record     everything that was written anywhere becomes one history
    judge      by `duewheel.proof`

What was broken, and how, follows from the seed; which process is hit at which instruction does not, so a seed that failed may have to be
run several times. The history that failed is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from duewheel.core.errors import DuewheelError
from duewheel.devbroker.runfolder import RunFolder
from duewheel.proof.history import Acknowledged, Backlog, EnqueueInvoked, Event, FaultBegan, Healed, LogEnd, to_lines
from duewheel.proof.plan import Plan
from duewheel.proof.report import Report, judge
from tests.chaos import recorder
from tests.chaos.caretaker import Caretaker
from tests.chaos.jobs import Workload
from tests.chaos.notes import Notes, notes_of
from tests.chaos.site import Machine, Site
from tests.chaos.troubles import Doses, Troubles
from tests.chaos.watch import Watch

LANES: Final = 3
# One job of a hundred dies for certain. Half of those are to be redriven and a quarter dropped; a few may never have been acknowledged.
JOBS_A_CLOSING: Final = 500
# Producers load their libraries before they begin.
HEAD_START_MS: Final = 2_000
HEAL_S: Final = 90.0
DRAIN_S: Final = 120.0
_SETTLE_S: Final = 20.0
_TICK_S: Final = 0.05
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 0.5
_SHOW_EVERY_S: Final = 2.0
_UNFINISHED_SHOWN: Final = 5


class Progress(NamedTuple):
    """How things stand."""

    elapsed_s: float
    doing: str
    jobs: int
    defined: int
    ended: int
    faults: int
    restarts: int
    note: str = ""


class Bounds(NamedTuple):
    """How late things may be: see `proof.plan.Plan`. With more processes than cores, and others on the same machine, be generous."""

    punctual_ms: int
    recovery_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it.

    Attributes:
        report: the checker's.
        unexpected: processes that ended and should not have.
        notes: what else there is to be told.
        took_s: all of it.
    """

    report: Report
    unexpected: list[str]
    notes: list[str]
    took_s: float

    @property
    def proven(self) -> bool:
        return self.report.proven and not self.unexpected


class Course:
    """One run.

    Args:
        folder: where Kafka's jars lie.
        run: takes everything else.
        show: is told how things stand.
    """

    def __init__(
        self, folder: Path, run: RunFolder, workload: Workload, doses: Doses, bounds: Bounds, show: Callable[[Progress], None]
    ) -> None:
        self._folder, self._run, self._workload, self._doses, self._bounds, self._show = folder, run, workload, doses, bounds, show
        self._random = Random(f"troubles {workload.seed}")
        self._began = time.monotonic()
        self._shown = 0.0
        self._doing = "starting"
        self._notes: list[str] = []

    def run(self) -> Result:
        lanes = LANES if self._doses.partitions else 0
        with Site.build(self._folder, self._run, self._workload, self._random, lanes) as site:
            self._tell("brokers are up")
            site.start(small_disk=bool(self._doses.full_disks))
            self._tell("processes serve")
            troubles = Troubles(site, self._doses, self._workload.span_ms, self._random)
            with Watch(site.kafka) as watch, Caretaker(site.kafka, Notes(site.notes, "caretaker")) as caretaker:
                self._break(site, troubles, watch)
                self._drain(site, troubles, watch, caretaker)
            history = self._record(site, troubles)
        return self._judge(site, history)

    # --- the steps ---

    def _break(self, site: Site, troubles: Troubles, watch: Watch) -> None:
        self._doing = "breaking"
        start_ms = _now_ms() + HEAD_START_MS
        site.start_producers(start_ms)
        troubles.begin(time.monotonic() + HEAD_START_MS / 1_000)
        self._go_on(site, troubles, watch, lambda: troubles.over)
        self._doing = "healing"
        deadline = time.monotonic() + HEAL_S
        self._go_on(site, troubles, watch, lambda: (site.all_run() and site.in_sync()) or time.monotonic() > deadline)
        site.history.append(Healed(_now_ms()))
        self._tell("all is whole")

    def _drain(self, site: Site, troubles: Troubles, watch: Watch, caretaker: Caretaker) -> None:
        self._doing = "draining"
        self._go_on(site, troubles, watch, site.producers_finished)
        asked, answered = {}, set()
        for event in notes_of(site.notes, "producer-*"):
            if isinstance(event, EnqueueInvoked):
                asked[event.call] = event.job_id
            elif isinstance(event, Acknowledged):
                answered.add(event.call)
        acknowledged = {job_id for call, job_id in asked.items() if call in answered}
        deadline = time.monotonic() + DRAIN_S

        def unfinished() -> list[str]:
            return watch.jobs.unfinished(acknowledged, caretaker.left)

        self._go_on(site, troubles, watch, lambda: not unfinished() or time.monotonic() > deadline)
        left = unfinished()
        if left:
            self._notes.append(f"{len(left)} jobs had not ended {DRAIN_S:g} s after the last was asked for: {left[:_UNFINISHED_SHOWN]}")

    def _record(self, site: Site, troubles: Troubles) -> list[Event]:
        self._doing = "reading"
        records = self._settled(site)
        owners = site.settled_shares("processor")
        site.stop()
        self._tell("processes stopped")
        final = recorder.read_all(site)
        history: list[Event] = [*site.history, *notes_of(site.notes), *site.sink.effects(), *recorder.of_logs(site)]
        history += records
        history += recorder.of_topics(final)
        history += recorder.of_stores(site, final, owners, troubles.damaged)
        with (self._run.path / "history.jsonl").open("w") as file:
            file.writelines(to_lines(history))
        return history

    def _settled(self, site: Site) -> list[Event]:
        """Looks at logs' ends and groups' backlogs until nothing is left, or time is up; gives what was seen last."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            ends: list[Event] = []
            try:
                ends = list(recorder.of_ends(site, recorder.read_all(site)))
            except DuewheelError as error:
                self._tell(f"the cluster could not be asked: {error}")
            if (ends and not any(_is_unsettled(end) for end in ends)) or time.monotonic() > deadline:
                return ends
            time.sleep(_AGAIN_S)

    def _judge(self, site: Site, history: list[Event]) -> Result:
        self._doing = "judging"
        doses = {kind: count for kind, count in self._doses.by_kind.items() if count}
        jobs = self._workload.jobs
        plan = Plan(
            **self._bounds._asdict(),
            jobs_min=jobs,
            faults=doses,
            redriven_min=jobs // JOBS_A_CLOSING,
            dropped_min=jobs // JOBS_A_CLOSING,
            snapshots_min=2,
            needs_drain=True,
        )
        report = judge(history, plan)
        return Result(report=report, unexpected=site.unexpected, notes=self._notes, took_s=time.monotonic() - self._began)

    # --- meanwhile ---

    def _go_on(self, site: Site, troubles: Troubles, watch: Watch, until: Callable[[], bool]) -> None:
        """Breaks, mends and starts again what is due, until the condition holds."""
        looked = 0.0

        def crashed(machine: Machine) -> None:
            troubles.crashed(machine)
            self._tell(f"{machine.name} ended by itself with exit code {machine.child.exit_code}", watch, site)

        told = len(site.history)
        while True:
            troubles.tick()
            site.look_after(crashed)
            for event in site.history[told:]:
                if isinstance(event, FaultBegan):
                    self._tell(f"{event.kind}: {event.target}", watch, site)
            told = len(site.history)
            if time.monotonic() - looked >= _LOOK_S:
                if until():
                    return
                looked = time.monotonic()
            if time.monotonic() - self._shown >= _SHOW_EVERY_S:
                self._tell("", watch, site)
            time.sleep(_TICK_S)

    def _tell(self, note: str, watch: Watch | None = None, site: Site | None = None) -> None:
        self._shown = time.monotonic()
        self._show(
            Progress(
                self._shown - self._began,
                self._doing,
                self._workload.jobs,
                0 if watch is None else watch.jobs.defined,
                0 if watch is None else watch.jobs.ended,
                0 if site is None else sum(isinstance(event, FaultBegan) for event in site.history),
                0 if site is None else site.restarts,
                note,
            )
        )


def _is_unsettled(event: Event) -> bool:
    if isinstance(event, Backlog):
        return event.records > 0
    return isinstance(event, LogEnd) and event.last_stable < event.end


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
