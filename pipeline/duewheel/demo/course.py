"""What happens in the demo, in order.

    start       two timer processors, two workers; until the broker says that each has its share
    schedule    all jobs, through the client; cancel some
    kill        half-way: one processor and one worker, kill -9; start another of each; cancel some more
    wait        until every job has ended, by the state topic, or there is no time left
    stop        everything, in good order
    audit       read every topic and file from the beginning, and judge

The verdict rests on the audit alone, when nothing can change any more. What is shown meanwhile comes from the same witnesses, read as they
speak. One loop, one thread: it listens, looks after the children, shows progress, and goes on when the next thing is due.

Times, from the first step on, so that the whole ends within a minute whatever happens:

    started by START_S, all jobs ended by END_S, stopped within STOP_S, audited within AUDIT_S
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from duewheel import wiring
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.client import Job
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.history import Happening
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.demo.evidence import Evidence, Kill, Lateness, Role, Verdict, start_lateness
from duewheel.demo.executions import FOLDER_VARIABLE
from duewheel.demo.plan import KILL_MS, Cancelling, PlannedJob, plan
from duewheel.demo.witnesses import Witnesses
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Child, Fleet
from duewheel.ports import Clock

PARTITIONS: Final = 4
CONCURRENCY: Final = 16

START_S: Final = 20
END_S: Final = 45
STOP_S: Final = 6
AUDIT_S: Final = 6
_CLIENT_TIMEOUT_S: Final = 10.0

_LISTEN_S: Final = 0.05
_SHOW_EVERY_MS: Final = 200

NOT_ENDED_SHOWN_MAX: Final = 5


class ProcessState(NamedTuple):
    """A child as it is shown. `fate` is "" while it runs as meant."""

    name: str
    pid: int | None
    fate: str


class Note(NamedTuple):
    """Something that happened, at a time since the start."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How things stand. Figures count jobs.

    Attributes:
        elapsed_ms: since the start.
        doing: what is going on.
        scheduled: acknowledged by the broker.
        in_flight: dispatched and not ended.
        lateness: of first starts, so far.
        processes: all that were started.
        notes: all that happened, oldest first.
    """

    elapsed_ms: int
    doing: str
    jobs: int
    scheduled: int
    cancelled: int
    dispatched: int
    completed: int
    in_flight: int
    lateness: Lateness | None
    processes: Sequence[ProcessState]
    notes: Sequence[Note]


class Course:
    """One run of the demo.

    Args:
        kafka: a cluster that answers.
        topology: names that nobody else uses.
        run: takes logs, state and the handlers' files.
        clock: the time.
        jobs: how many to schedule.
        show: is told how things stand, a few times a second.
    """

    def __init__(
        self, kafka: KafkaConfig, topology: Topology, run: RunFolder, clock: Clock, jobs: int, show: Callable[[Progress], None]
    ) -> None:
        # A cluster that goes away is reported once, as an error; librdkafka's own lines about it would spoil the screen.
        self._kafka = KafkaConfig(kafka.bootstrap_servers, {"log_level": 0, **kafka.options})
        self._topology, self._clock, self._show = topology, clock, show
        self._plan = plan(jobs)
        self._cluster = KafkaCluster(self._kafka)
        self._executions = run.path / "executions"
        self._executions.mkdir()
        self._fleet = Fleet(kafka, topology, run)
        self._began_ms = clock.steady_ms()
        self._scheduled: list[str] = []
        self._fates: dict[str, str] = {}
        self._kills: list[Kill] = []
        self._served_again: set[str] = set()
        self._notes: list[Note] = []
        self._doing = "starting"
        self._shown_ms = 0

    def run(self) -> Verdict:
        """Goes the whole way.

        Raises:
            EnvironmentFailure: it could not be gone: a process died by itself, the cluster went away, or nothing got started in time.
        """
        ensure(self._kafka, self._topology, {QUEUE_DEFAULT: PARTITIONS}, partitions=PARTITIONS)
        with self._fleet:
            with Witnesses(self._kafka, self._topology, self._executions) as witnesses:
                self._go(witnesses)
            self._fleet.stop(STOP_S)
        with Witnesses(self._kafka, self._topology, self._executions) as witnesses:
            witnesses.listen_to_the_end(self._clock, AUDIT_S)
            return witnesses.evidence.verdict(self._scheduled, self._kills)

    # --- the steps ---

    def _go(self, witnesses: Witnesses) -> None:
        for name in ("processor-1", "processor-2"):
            self._start_processor(name)
        for name in ("worker-1", "worker-2"):
            self._start_worker(name)
        self._watch(witnesses, lambda: self._all_serve() or self._past(START_S))
        if not self._all_serve():
            raise EnvironmentFailure(f"after {START_S} s not every process serves its share of the partitions.\n{self._fleet.log_tails()}")

        self._doing = "scheduling"
        began_ms = self._clock.steady_ms()
        self._schedule()
        self._cancel(Cancelling.EARLY)

        self._doing = "running"
        self._watch(witnesses, lambda: self._clock.steady_ms() - began_ms >= KILL_MS and (self._all_serve() or self._past(END_S)))
        shares = self._shares()
        self._kill(Role.PROCESSOR, "processor-1", shares)
        self._kill(Role.WORKER, "worker-1", shares)
        self._start_processor("processor-3")
        self._start_worker("worker-3")
        self._cancel(Cancelling.LATE)

        self._watch(witnesses, lambda: self._all_ended(witnesses.evidence) or self._past(END_S))
        if not self._all_ended(witnesses.evidence):
            self._note(self._not_ended(witnesses.evidence))
        self._doing = "stopping, then reading every topic from its beginning"
        self._report(witnesses.evidence)

    def _start_processor(self, name: str) -> Child:
        self._note(f"started {name}")
        return self._fleet.start_processor(name)

    def _start_worker(self, name: str) -> Child:
        self._note(f"started {name}")
        # SIGTERM's grace is shorter than our own patience, so that a worker that has a job to finish is not killed for it.
        return self._fleet.start_worker(
            name,
            "duewheel.demo.tasks:app",
            "--grace",
            str(STOP_S / 2),
            concurrency=CONCURRENCY,
            environment={FOLDER_VARIABLE: str(self._executions)},
        )

    def _schedule(self) -> None:
        now_ms = self._clock.wall_ms()
        with wiring.producing_client(self._kafka, self._topology, _CLIENT_TIMEOUT_S) as client:
            client.schedule_many(_job(planned, now_ms) for planned in self._plan)
        self._scheduled = [planned.job_id for planned in self._plan]
        self._note(f"scheduled {len(self._plan):,} jobs, all acknowledged")

    def _cancel(self, which: Cancelling) -> None:
        chosen = [planned.job_id for planned in self._plan if planned.cancelling is which]
        with wiring.producing_client(self._kafka, self._topology, _CLIENT_TIMEOUT_S) as client:
            for job_id in chosen:
                client.cancel(job_id)
        self._note(f"cancelled {len(chosen):,} jobs, all acknowledged")

    def _kill(self, role: Role, name: str, shares: Mapping[str, frozenset[int]]) -> None:
        next(child for child in self._fleet.children if child.name == name).kill()
        partitions = shares.get(name, frozenset())
        self._kills.append(Kill(name, role, self._clock.wall_ms(), partitions))
        self._fates[name] = "killed (kill -9)"
        held = ", ".join(map(str, sorted(partitions)))
        what = "timer" if role is Role.PROCESSOR else "dispatch"
        self._note(f"killed {name} with kill -9, which held {what} partitions {held}")

    # --- watching ---

    def _watch(self, witnesses: Witnesses, until: Callable[[], bool]) -> None:
        while not until():
            witnesses.listen(_LISTEN_S)
            self._fleet.check()
            if self._clock.steady_ms() - self._shown_ms >= _SHOW_EVERY_MS:
                self._note_takeovers(witnesses.evidence)
                self._report(witnesses.evidence)
                self._shown_ms = self._clock.steady_ms()

    def _shares(self) -> dict[str, frozenset[int]]:
        """Which partitions each process holds, by the broker's word."""
        groups = (self._topology.processor_group, self._topology.worker_group(QUEUE_DEFAULT))
        return {name: partitions for group in groups for name, partitions in self._cluster.members(group).items()}

    def _all_serve(self) -> bool:
        """Whether every process that runs holds partitions, and says that it serves them."""
        shares = self._shares()
        return all(
            shares.get(child.name) and shares[child.name] <= _served(child)
            for child in self._fleet.children
            if child.name not in self._fates
        )

    def _all_ended(self, evidence: Evidence) -> bool:
        return all(evidence.stories[job_id].ended for job_id in self._scheduled)

    def _past(self, seconds: float) -> bool:
        return self._elapsed_ms() > seconds * 1_000

    def _elapsed_ms(self) -> int:
        return self._clock.steady_ms() - self._began_ms

    def _not_ended(self, evidence: Evidence) -> str:
        missing = [job_id for job_id in self._scheduled if not evidence.stories[job_id].ended]
        shown = ", ".join(missing[:NOT_ENDED_SHOWN_MAX]) + (", …" if len(missing) > NOT_ENDED_SHOWN_MAX else "")
        return f"time is up after {END_S} s, and {len(missing):,} jobs have not ended: {shown}"

    # --- telling ---

    def _note(self, text: str) -> None:
        self._notes.append(Note(self._elapsed_ms(), text))

    def _note_takeovers(self, evidence: Evidence) -> None:
        for kill in self._kills:
            if kill.name not in self._served_again:
                after_ms = evidence.takeover(kill).after_ms
                if kill.partitions and after_ms.keys() == kill.partitions:
                    self._served_again.add(kill.name)
                    self._note(f"all partitions of {kill.name} are served again, {max(after_ms.values()) / 1_000:.1f} s after the kill")

    def _report(self, evidence: Evidence) -> None:
        stories = [evidence.stories[job_id] for job_id in self._scheduled]
        self._show(
            Progress(
                elapsed_ms=self._elapsed_ms(),
                doing=self._doing,
                jobs=len(self._plan),
                scheduled=len(self._scheduled),
                cancelled=sum(any(end.happening is Happening.CANCELLED for end in story.ends) for story in stories),
                dispatched=sum(bool(story.dispatches) for story in stories),
                completed=sum(any(end.happening is Happening.SUCCEEDED for end in story.ends) for story in stories),
                in_flight=sum(bool(story.dispatches) and not story.ended for story in stories),
                lateness=start_lateness(stories),
                processes=[ProcessState(child.name, child.pid, self._fates.get(child.name, "")) for child in self._fleet.children],
                notes=tuple(self._notes),
            )
        )


def _served(child: Child) -> set[int]:
    opened = child.logged("processor.active") + child.logged("worker.partition_opened")
    return {line["partition"] for line in opened}


def _job(planned: PlannedJob, now_ms: int) -> Job:
    at = None if planned.after_ms is None else now_ms + planned.after_ms
    return Job("work", {"work_ms": planned.work_ms}, at=at, job_id=planned.job_id)
