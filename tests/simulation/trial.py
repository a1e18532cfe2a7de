"""One seed: a site, its producers and its weather; then healing, draining, and a judgement.

trial = Trial(4711)
trial.run()
trial.verdict          [] where nothing is wrong
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Final
from unittest.mock import patch

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.world import Process, World
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import LAST_LIFE_SNOOZE_MS
from duewheel.core.run_ids import parse
from duewheel.core.trail import crashes_max
from duewheel.engine import partition as engine_partition
from duewheel.engine.partition import DEFINITION, STATE, Stage
from duewheel.proof.history import Backlog, Dispatched, EnqueueInvoked, Event, Healed, OutcomeRecorded, Started
from duewheel.proof.plan import Plan
from duewheel.proof.report import Report, judge
from duewheel.worker.runs import Run
from tests.simulation import coverage, recorder
from tests.simulation.jobs import Tasks
from tests.simulation.kernel import Kernel
from tests.simulation.producers import Producers
from tests.simulation.site import QUEUE, TOPOLOGY, Machine, ProcessorMachine, Site, WorkerMachine
from tests.simulation.weather import QUEUE_GONE, Climate, Sky, Storm

SECOND_US: Final = 1_000_000
# Nothing is said of how many faults there must be: that is a matter of many seeds. In good weather, and with workers enough, what is due
# starts at once. R is the longest that a dead process can hold up what lives: a call that hangs (26 s), a session (6 s), a transaction's
# timeout (30 s and 10), a lease (30 s). With few workers, or crashing handlers, which have to wait for one another, only the end counts.
PUNCTUAL_MS: Final = 2_000
RECOVERY_MS: Final = 120_000
_BY_THE_END_MS: Final = 10**7
DRAIN_US: Final = 400 * SECOND_US
_LOOK_US: Final = 2 * SECOND_US
_REDISPATCH_AFTER_MS: Final = 45_000
_UNLIMITED: Final = 10**6


def last_lives_ms(history: Iterable[Event]) -> int:
    """For how long at most a run may have waited for others that lived their last lives: these are executed one after the other."""
    limits: dict[str, int] = {}
    alone: set[tuple[str, int]] = set()
    began_ms: dict[tuple[str, int], int] = {}
    ended_ms: dict[tuple[str, int], int] = {}
    for event in history:
        if isinstance(event, EnqueueInvoked):
            limits[event.job_id] = min(crashes_max(event.limits), limits.get(event.job_id, _UNLIMITED))
        elif isinstance(event, Dispatched) and event.crashes + 1 >= limits.get(_asked_as(event.job_id), _UNLIMITED):
            alone.add((event.job_id, event.token))
        elif isinstance(event, Started):
            began_ms[event.job_id, event.token] = event.at_ms
        elif isinstance(event, OutcomeRecorded):
            ended_ms[event.job_id, event.token] = event.at_ms  # the last of them
    return sum(max(0, ended_ms.get(run, at_ms) - at_ms) + LAST_LIFE_SNOOZE_MS for run, at_ms in began_ms.items() if run in alone)


def _asked_as(job_id: str) -> str:
    """Under which id a job was asked for: of a run its recurring job's."""
    run = parse(job_id)
    return job_id if run is None else run.job_id


class Trial:
    """One run of the simulator.

    Attributes:
        verdict: what is wrong, one line each.
        met: what it had to cope with, by kind (see `coverage`).
        kernel: its trace, for whoever looks for the reason.
    """

    def __init__(self, seed: int, calm: bool = False) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.world = World()
        self.climate = Climate(random, calm)
        self.sky = Sky(self.world, random, self.climate)
        self.kernel = Kernel(self.world, random, self.sky, random.choice((20_000, 100_000, 200_000)))
        self.partitions = random.choice((1, 3, 8))
        self.site = Site(self.world, self.kernel, random, self.partitions, {QUEUE: random.choice((1, 2, 4))})
        self.sky.site, self.sky.kernel = self.site, self.kernel
        self.jobs = random.choice((20, 40, 80))
        self.faulty_us = random.choice((15, 30, 50)) * SECOND_US
        # A queue that is deleted takes dispatches along, which are handed out again after a while. With workers enough, only these are.
        self.ample = random.random() < 0.5 or QUEUE_GONE in self.climate.at_times
        # Behind a stuck marker lie the last words of who is given up too soon: the more leases there are, the more of them.
        long_share = 0.4 if "stuck marker" in self.climate.at_times else random.choice((0.05, 0.4)) if self.ample else 0.05
        self.tasks = Tasks(self.site, crashes=not self.ample, long_share=long_share)
        self.machines: list[Machine] = [ProcessorMachine(self.site, f"processor{n}") for n in range(random.choice((1, 2, 3)))]
        self.machines += [self._worker(f"worker{n}") for n in range(random.choice((1, 2, 3)))]
        self.spares: list[Machine] = [ProcessorMachine(self.site, "spare-processor"), self._worker("spare-worker")]
        spoils_dispatches = not {QUEUE_GONE, "offsets reset"} & set(self.climate.at_times)
        expiring = 0.4 if "worker clock leap" in self.climate.at_times else 0.1
        # Every other seed does without: what is held up, or said to be so, hides what else goes wrong.
        changes, delivering = seed % 2 == 1, Random(f"deliveries {seed}") if seed % 8 in (1, 2, 3, 5) else None
        self.producers = Producers(self.site, random, self.tasks, spoils_dispatches, expiring, changes, delivering)
        self.is_calm = calm
        # Drawn apart, so that a seed without any goes as it went before there were such jobs.
        apart = Random(f"apart: {seed}")
        self.recurring = apart.choice((0, 0, 1, 2, 4))
        self.downtime_us = apart.choice((0, 0, 20, 45)) * SECOND_US if self.recurring and not calm else 0
        self.met: Counter[str] = Counter()
        self.verdict: list[str] = []
        self.history: list[Event] = []
        self.report: Report | None = None

    @property
    def plan(self) -> Plan:
        """By what it is judged, once there is a history."""
        punctual_ms = recovery_ms = _BY_THE_END_MS
        if self.ample:
            punctual_ms, recovery_ms = PUNCTUAL_MS, RECOVERY_MS
            if self.climate.at_calls or self.climate.at_times:
                punctual_ms = RECOVERY_MS // 2  # what meets a call may not be over when it is told
                # What was taken down again and again lives its last life in the end, and those wait for one another.
                alone_ms = last_lives_ms(self.history)
                punctual_ms, recovery_ms = punctual_ms + alone_ms, recovery_ms + alone_ms
        return Plan(punctual_ms=punctual_ms, recovery_ms=recovery_ms, acknowledged_percent_min=0, snapshots_min=1)

    def _worker(self, name: str) -> WorkerMachine:
        return WorkerMachine(self.site, name, QUEUE, 50 if self.ample else self.random.choice((1, 3, 8)), self.tasks.app, self._started)

    # --- the course ---

    def run(self) -> None:
        for machine in self.machines:
            self.world.later(self.random.randrange(2 * SECOND_US), machine.start)
        self.world.later(SECOND_US, self._look_after)
        self.producers.begin(self.jobs, self.recurring, self.faulty_us, self.is_calm)
        self.world.later(2 * SECOND_US, self._open)
        with self._impatience(), self.site.listening():
            self.kernel.run(self.faulty_us)
            self._heal()
            self.kernel.run(self.faulty_us + DRAIN_US, self._is_over)
            self.kernel.run(self.world.now_us + 8 * SECOND_US)
        self._judge()

    def _impatience(self) -> AbstractContextManager[object]:
        """Where a queue is deleted, owners that wait for less than days for what became of a dispatch."""
        if QUEUE_GONE in self.climate.at_times:
            return patch.object(engine_partition, "REDISPATCH_AFTER_MS", _REDISPATCH_AFTER_MS)
        return nullcontext()

    def _open(self) -> None:
        self.sky.is_open = True
        storm = Storm(self.site, self.sky, self.climate, self.random, self.machines, self.spares)
        storm.begin()
        if self.downtime_us:
            self.world.later(self.random.randrange(self.faulty_us), lambda: storm.downtime(self.downtime_us))

    def _look_after(self) -> None:
        """Starts what ended and should not have."""
        for machine in (*self.machines, *self.spares):
            if machine.wanted and not machine.process.alive:
                machine.start()
        self.world.later(self.random.randrange(300_000, 3 * SECOND_US), self._look_after)

    def _heal(self) -> None:
        self.sky.is_open = False
        self.sky.markers_us, self.sky.stuck_markers = (0, 3_000), 0
        self.kernel.note("all", "heals")
        self.site.tell(Healed(self.world.now_ms))
        for machine in (*self.machines, *self.spares):
            machine.skew_us = machine.process.skew_us = 0
            if isinstance(machine, ProcessorMachine):
                machine.disk.full = False
            self.kernel.reconnect(machine.process)
            self.kernel.go_on(machine.process)
        for machine in self.machines:
            machine.wanted = True
        self._look = self.world.now_us

    # --- workers ---

    def _started(self, process: Process, run: Run) -> None:
        job_id, token, partition, offset = run.dispatch["job_id"], run.dispatch["token"], run.holding.partition, run.offset
        self.kernel.note(process.name, "starts a run", f"{job_id} {token} {partition}/{offset}")
        self.site.tell(Started(self.world.now_ms, job_id, token, self.site.log_name(TOPOLOGY.dispatch(QUEUE)), partition, offset))

    # --- the end ---

    def _unfinished(self) -> list[str]:
        fold, unfinished = self.site.fold(), []
        asked = self._owed() | {key[1:].decode() for key in fold if key[:1] == DEFINITION}
        for job_id in sorted(asked):
            definition, state = fold.get(DEFINITION + job_id.encode()), fold.get(STATE + job_id.encode())
            if definition is None and state is None and self.site.times_forgotten(job_id):
                continue
            if definition is None or state is None:
                unfinished.append(f"{job_id}: definition {definition is not None}, state {state is not None}")
                continue
            generation, now = codec.peek_definition(definition).generation, codec.decode_state(state)
            if now["generation"] != generation or now["phase"] not in TERMINAL:
                unfinished.append(f"{job_id}: {now['phase']} of generation {now['generation']}, defined {generation}, token {now['token']}")
        return unfinished

    def _owed(self) -> set[str]:
        """Jobs that were acknowledged, but for those that were turned away: their queue was gone."""
        turned = {(record.key() or b"").decode() for record in recorder.turned_away(self.site, self.producers.bad).values()}
        return self.producers.acknowledged.keys() - turned

    def _is_over(self) -> bool:
        if self.site.failures:
            return True
        if self.world.now_us < self._look:
            return False
        self._look = self.world.now_us + _LOOK_US
        return not self.producers.asking and not self._unfinished() and not self._backlog()

    def _backlog(self) -> bool:
        """Whether any group has records left: dispatches, say, of jobs that were cancelled while their workers were away."""
        ends = recorder.of_ends(self.site.broker, TOPOLOGY, self.world.now_ms)
        return any(isinstance(event, Backlog) and event.records for event in ends)

    def _judge(self) -> None:
        broker, now_ms = self.site.broker, self.world.now_ms
        bad = self.producers.bad
        told = recorder.without(self.site.history, recorder.turned_away(self.site, bad))
        topics = recorder.of_topics(self.site, bad)
        if "clock step" in self.climate.at_times:  # then an owner ends a lease by another clock than it was given by
            topics = (event._replace(lease_ms=0) if isinstance(event, OutcomeRecorded) else event for event in topics)
        self.history = [*told, *topics, *recorder.of_ends(broker, TOPOLOGY, now_ms)]
        for machine in (*self.machines, *self.spares):
            if isinstance(machine, ProcessorMachine) and machine.process.alive and machine.processor is not None:
                active = [number for number, stage in machine.processor.stages.items() if stage is Stage.ACTIVE]
                self.history += recorder.of_stores(broker, TOPOLOGY, machine.disk, active, now_ms)
        self.history += recorder.of_inputs(self.site, now_ms)
        self.met = self.sky.counts + coverage.deeds(self.history, self.site, self.producers.strays)
        self.report = judge(self.history, self.plan)
        self.verdict += self.site.failures
        self.verdict += [f"not forwarded once: {job_id}" for job_id in recorder.not_forwarded(self.site, self.producers.strays)]
        self.verdict += [f"{violation}" for violation in self.report.violations]
        if not self.site.failures:
            self.verdict += [f"not over: {line}" for line in self._unfinished()]

    def account(self) -> str:
        """What happened last, what is wrong, and how to repeat it."""
        lines = [f"{at_us / 1_000_000:12.6f} {who:20} {what} {detail}" for at_us, who, what, detail in self.kernel.trace]
        met = ", ".join(f"{kind} {count}" for kind, count in sorted(self.met.items()))
        lines += ["", f"seed {self.seed}: {self.kernel.events} events, digest {self.kernel.digest:08x}", f"faults: {met or 'none'}"]
        lines += [f"WRONG: {line}" for line in self.verdict] or ["nothing is wrong"]
        return "\n".join([*lines, f"again: make simulate SEED={self.seed}"])
