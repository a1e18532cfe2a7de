"""One seed: a site, its producers and its weather; then healing, draining, and a judgement.

trial = Trial(4711)
trial.run()
trial.verdict          [] where nothing is wrong
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.intake import MemoryIntake
from duewheel.adapters.memory.world import Process, World
from duewheel.client.commands import Job, cancel_command, redrive_command, schedule_command
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Limits, Schedule
from duewheel.engine.partition import DEFINITION, STATE, Stage
from duewheel.proof.history import (
    Acknowledged,
    Backlog,
    CancelInvoked,
    EnqueueInvoked,
    Event,
    Healed,
    RedriveInvoked,
    Started,
    Unknown,
)
from duewheel.proof.plan import Plan
from duewheel.proof.report import Report, judge
from duewheel.worker.runs import Run
from tests.simulation import recorder
from tests.simulation.jobs import Tasks
from tests.simulation.kernel import Kernel
from tests.simulation.site import QUEUE, TOPOLOGY, Machine, ProcessorMachine, Site, WorkerMachine
from tests.simulation.weather import Climate, Sky, Storm

SECOND_US: Final = 1_000_000
# Nothing is said of how many faults there must be: that is a matter of many seeds. In good weather, and with workers enough, what is due
# starts at once. R is the longest that a dead process can hold up what lives: a call that hangs (26 s), a session (6 s), a transaction's
# timeout (30 s and 10), a lease (30 s). With few workers, or crashing handlers, which have to wait for one another, only the end counts.
PUNCTUAL_MS: Final = 2_000
RECOVERY_MS: Final = 120_000
_BY_THE_END_MS: Final = 10**7
DRAIN_US: Final = 400 * SECOND_US
_LOOK_US: Final = 2 * SECOND_US


class Trial:
    """One run of the simulator.

    Attributes:
        verdict: what is wrong, one line each.
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
        self.ample = random.random() < 0.5
        self.tasks = Tasks(self.site, crashes=not self.ample, long_share=random.choice((0.05, 0.4)) if self.ample else 0.05)
        self.machines: list[Machine] = [ProcessorMachine(self.site, f"processor{n}") for n in range(random.choice((1, 2, 3)))]
        self.machines += [self._worker(f"worker{n}") for n in range(random.choice((1, 2, 3)))]
        self.spares: list[Machine] = [ProcessorMachine(self.site, "spare-processor"), self._worker("spare-worker")]
        self.producer = Process(self.world, "producer")
        self.calls = 0
        self.scheduled: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self.created: set[tuple[str, int]] = set()
        self.asking = 0
        self.verdict: list[str] = []
        self.history: list[Event] = []
        self.report: Report | None = None

    @property
    def plan(self) -> Plan:
        """By what it is judged."""
        punctual_ms = recovery_ms = _BY_THE_END_MS
        if self.ample:
            punctual_ms, recovery_ms = PUNCTUAL_MS, RECOVERY_MS
            if self.climate.at_calls or self.climate.at_times:
                punctual_ms = RECOVERY_MS // 2  # what meets a call may not be over when it is told
        return Plan(punctual_ms=punctual_ms, recovery_ms=recovery_ms, acknowledged_percent_min=0, snapshots_min=1)

    def _worker(self, name: str) -> WorkerMachine:
        return WorkerMachine(self.site, name, QUEUE, 50 if self.ample else self.random.choice((1, 3, 8)), self.tasks.app, self._started)

    # --- the course ---

    def run(self) -> None:
        for machine in self.machines:
            self.world.later(self.random.randrange(2 * SECOND_US), machine.start)
        self.world.later(SECOND_US, self._look_after)
        for n in range(self.jobs):
            self._at(self.random.randrange(2 * SECOND_US, self.faulty_us), lambda n=n: self._schedule(f"job-{n}"))  # type: ignore[misc]
        for _ in range(self.jobs // 3):
            self._at(self.random.randrange(2 * SECOND_US, self.faulty_us), self._again)
        self.world.later(2 * SECOND_US, self._open)
        self.kernel.run(self.faulty_us)
        self._heal()
        self.kernel.run(self.faulty_us + DRAIN_US, self._is_over)
        self.kernel.run(self.world.now_us + 8 * SECOND_US)
        self._judge()

    def _open(self) -> None:
        self.sky.is_open = True
        Storm(self.site, self.sky, self.climate, self.random, self.machines, self.spares).begin()

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

    # --- producers ---

    def _at(self, at_us: int, call: Callable[[], None]) -> None:
        self.asking += 1

        def ask() -> None:
            try:
                call()
            finally:
                self.asking -= 1

        self.world.later(at_us, lambda: self.kernel.start(self.producer, ask))

    def _schedule(self, job_id: str, on_conflict: Any = "ignore") -> None:
        random = self.random
        while (job_id, self.world.now_ms) in self.created:  # two commands of one millisecond could not be told apart
            self.producer.sleep(0.001)
        self.created.add((job_id, self.world.now_ms))
        task, payload = self.tasks.behaviour(random)
        delay = random.choice((0.0, 0.0, random.random(), random.random() * 10, random.random() * 40))
        job = Job(task, payload, delay=delay, job_id=job_id, on_conflict=on_conflict)
        if random.random() < 0.1:
            job = job._replace(expires_at=self.world.now_ms + round(delay * 1000) + random.randrange(200, 20_000))
        if random.random() < 0.1:
            job = job._replace(total_timeout=random.randrange(1, 40))
        if random.random() < 0.2:
            job = job._replace(crash_limit=random.choice((1, 2, 8)))
        command = schedule_command(job, self.world.now_ms, lambda now_ms: job_id)
        for _ in range(3):
            if self._enqueue(command):
                return
            self.producer.sleep(random.random() * 3)

    def _enqueue(self, command: Schedule) -> bool:
        limits: Limits | None = command["limits"]
        job_id, call = command["job_id"], self._call()
        asked = EnqueueInvoked(
            self.world.now_ms, call, job_id, command["due_ms"], command["created_ms"], limits, command["on_conflict"] == "REPLACE"
        )
        self.scheduled[job_id] = command["due_ms"]
        if self._send(asked, job_id, codec.encode_schedule(command)):
            self.acknowledged.add(job_id)
            return True
        return False

    def _again(self) -> None:
        """Says something more about a job that is known."""
        if not self.scheduled:
            return
        job_id, draw, now_ms = self.random.choice(sorted(self.scheduled)), self.random.random(), self.world.now_ms
        dead = self._dead()
        if dead and draw < 0.6:
            job_id, token = self.random.choice(dead)
            self._send(
                RedriveInvoked(now_ms, self._call(), job_id, token), job_id, codec.encode_redrive(redrive_command(job_id, token, now_ms))
            )
        elif draw < 0.6:
            self._send(CancelInvoked(now_ms, self._call(), job_id), job_id, codec.encode_cancel(cancel_command(job_id, now_ms)))
        else:
            self._schedule(job_id, self.random.choice(("ignore", "replace")))

    def _send(self, asked: Any, job_id: str, value: bytes) -> bool:
        self.site.tell(asked)
        self.kernel.note("producer", type(asked).__name__, f"{job_id} {asked.call}")
        try:
            receipt = MemoryIntake(self.producer, self.site.broker, TOPOLOGY.intake).append(job_id.encode(), value)
        except BrokerUnavailable:
            self.site.tell(Unknown(self.world.now_ms, asked.call))
            return False
        self.site.tell(Acknowledged(self.world.now_ms, asked.call, *receipt))
        return True

    def _call(self) -> str:
        self.calls += 1
        return f"c{self.calls}"

    def _dead(self) -> list[tuple[str, int]]:
        fold = self._fold()
        states = [(key, codec.decode_state(value)) for key, value in sorted(fold.items()) if key[:1] == STATE and value]
        return [(key[1:].decode(), state["token"]) for key, state in states if state["phase"] == "FAILED"]

    # --- workers ---

    def _started(self, process: Process, run: Run) -> None:
        dispatch = run.dispatch
        self.kernel.note(process.name, "starts a run", f"{dispatch['job_id']} {dispatch['token']} {run.holding.partition}/{run.offset}")
        self.site.tell(
            Started(self.world.now_ms, dispatch["job_id"], dispatch["token"], TOPOLOGY.dispatch(QUEUE), run.holding.partition, run.offset)
        )

    # --- the end ---

    def _fold(self) -> dict[bytes, bytes | None]:
        fold: dict[bytes, bytes | None] = {}
        for log in self.site.broker.topic(TOPOLOGY.state):
            for record in sorted(log.kept, key=lambda record: record.offset()):
                if (record.key() or b"")[:1] in (DEFINITION, STATE):
                    fold[record.key() or b""] = record.value()
        return fold

    def _unfinished(self) -> list[str]:
        fold, unfinished = self._fold(), []
        for job_id in sorted(self.acknowledged | {key[1:].decode() for key in fold if key[:1] == DEFINITION}):
            definition, state = fold.get(DEFINITION + job_id.encode()), fold.get(STATE + job_id.encode())
            if definition is None or state is None:
                unfinished.append(f"{job_id}: definition {definition is not None}, state {state is not None}")
                continue
            generation, now = codec.peek_definition(definition).generation, codec.decode_state(state)
            if now["generation"] != generation or now["phase"] not in TERMINAL:
                unfinished.append(f"{job_id}: {now['phase']} of generation {now['generation']}, defined {generation}, token {now['token']}")
        return unfinished

    def _is_over(self) -> bool:
        if self.site.failures:
            return True
        if self.world.now_us < self._look:
            return False
        self._look = self.world.now_us + _LOOK_US
        return not self.asking and not self._unfinished() and not self._backlog()

    def _backlog(self) -> bool:
        """Whether any group has records left: dispatches, say, of jobs that were cancelled while their workers were away."""
        ends = recorder.of_ends(self.site.broker, TOPOLOGY, self.world.now_ms)
        return any(isinstance(event, Backlog) and event.records for event in ends)

    def _judge(self) -> None:
        broker, now_ms = self.site.broker, self.world.now_ms
        self.history = [*self.site.history, *recorder.of_topics(broker, TOPOLOGY), *recorder.of_ends(broker, TOPOLOGY, now_ms)]
        for machine in (*self.machines, *self.spares):
            if isinstance(machine, ProcessorMachine) and machine.process.alive and machine.processor is not None:
                active = [number for number, stage in machine.processor.stages.items() if stage is Stage.ACTIVE]
                self.history += recorder.of_stores(broker, TOPOLOGY, machine.disk, active, now_ms)
        self.report = judge(self.history, self.plan)
        self.verdict += self.site.failures
        self.verdict += [f"{violation}" for violation in self.report.violations]
        if not self.site.failures:
            self.verdict += [f"not over: {line}" for line in self._unfinished()]
            self.verdict += self.report.shortcomings

    def account(self) -> str:
        """What happened last, what is wrong, and how to repeat it."""
        lines = [f"{at_us / 1_000_000:12.6f} {who:20} {what} {detail}" for at_us, who, what, detail in self.kernel.trace]
        met = ", ".join(f"{kind} {count}" for kind, count in sorted(self.sky.counts.items()))
        lines += ["", f"seed {self.seed}: {self.kernel.events} events, digest {self.kernel.digest:08x}", f"faults: {met or 'none'}"]
        lines += [f"WRONG: {line}" for line in self.verdict] or ["nothing is wrong"]
        return "\n".join([*lines, f"again: make simulate SEED={self.seed}"])
