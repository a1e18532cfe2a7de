"""A small faithful system, which writes down what happens to it. What the checker says of such a history is wrong.

The owners' rules are the real ones, `core.step`; everything around them is a page: logs are counters, time is an agenda, and of workers
there is only what they leave behind. Workers and owners are killed, outcomes come late, from the dead, or never; commands are repeated,
refused, lost on the way; jobs are cancelled, paused, resumed, run at once, updated, redefined, redriven, dropped, forgotten and made anew,
and where it is asked for some recur.
All by one `Random`.

    history = Faithful(Random(7), jobs=20).run()
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from duewheel.core.errors import RejectedJob
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Action, Change, Limits, OnConflict, Outcome, Phase, Reach, Result, Schedule, State
from duewheel.core.run_ids import home, parse
from duewheel.core.step import ADMITTED, Admission, Dispatching, Step
from duewheel.core.step import Defined as Known
from duewheel.core.wheel import due_of
from duewheel.proof.history import (
    Acknowledged,
    Answered,
    Backlog,
    BadRecordWritten,
    CancelInvoked,
    ChangeInvoked,
    Committed,
    DeadLettered,
    DeathClosed,
    Defined,
    Delivered,
    Dispatched,
    DropInvoked,
    Effect,
    EnqueueInvoked,
    Event,
    FaultBegan,
    FaultEnded,
    Forgotten,
    Healed,
    LogEnd,
    OffsetsReset,
    OutcomeRecorded,
    Rebalanced,
    RedriveInvoked,
    Refused,
    RunDied,
    Snapshot,
    Started,
    StateWritten,
    TransactionFailed,
    Unknown,
)
from duewheel.proof.plan import Plan
from tests.recurring import cron, every, every_after

INTAKE: Final = "intake"
DISPATCH: Final = "dispatch"
START_MS: Final = 1_700_000_000_000
SPAN_MS: Final = 40_000
PLAN: Final = Plan(punctual_ms=200, recovery_ms=8_000, cancel_ahead_ms=200, acknowledged_percent_min=0)

_PROCESSORS: Final = "processors"
_WORKERS: Final = "workers"
_DISPATCH_PARTITIONS: Final = 2
_OUT: Final = "out"
_DELIVERED: Final = 6  # every so many jobs are records to deliver
_REFUSED: Final = "job-17"
_RETENTION_MS: Final = 3_000
_LEASE_MS: Final = 400
_FINAL: Final = {Result.SUCCEEDED: 70, Result.RETRY: 10, Result.SNOOZED: 3, Result.FAILED: 6, Result.DISCARDED: 3}


class Faithful:
    """The system and its clients.

    Attributes:
        history: what happened.
        faults: whether anything is broken at all.
    """

    def __init__(self, random: Random, jobs: int = 20, partitions: int = 2, faults: bool = True, recurring: int = 0) -> None:
        self.random, self.jobs, self.faults, self.recurring = random, jobs, faults, recurring
        self.history: list[Event] = []
        self.now_ms = START_MS
        self.sink: dict[str, int] = {}
        self.owners = [Owner(self, number) for number in range(partitions)]
        self.limits: dict[str, Limits | None] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._offsets: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._dispatches_done: defaultdict[int, set[int]] = defaultdict(set)
        self._dispatches_committed: defaultdict[int, int] = defaultdict(int)

    # --- time and logs ---

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        heappush(self._agenda, (self.now_ms + delay_ms, self.number(), call))

    def number(self) -> int:
        """A number that nobody else has."""
        self._numbers += 1
        return self._numbers

    def append(self, topic: str, partition: int) -> int:
        """Where the next record of a log lies."""
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] += 1
        return offset

    def tell(self, *events: Event) -> None:
        self.history += events

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def run(self) -> list[Event]:
        """Plays all of it, and tells how it looks at the end."""
        for number in range(self.jobs):
            self.later(self.random.randrange(SPAN_MS), Producer(self, f"job-{number}").enqueue)
        for number in range(self.recurring):
            self.later(self.random.randrange(SPAN_MS // 2), Recurring(self, f"often-{number}").enqueue)
        for _ in range(self.jobs // 8):
            self.later(self.random.randrange(SPAN_MS), self._bad_record)
        if self.faults:
            self.later(self.random.randrange(SPAN_MS), self._kill_owner)
            self.later(self.random.randrange(SPAN_MS), self._rebalance)
        while self._agenda:
            self.now_ms, _, call = heappop(self._agenda)
            call()
        self._end()
        return self.history

    def _bad_record(self) -> None:
        owner = self.random.choice(self.owners)
        offset = self.append(INTAKE, owner.number)
        self.tell(BadRecordWritten(self.now_ms, INTAKE, owner.number, offset))
        owner.receive(
            owner.intake, lambda step: owner.letters.append(DeadLettered(step.now_ms, INTAKE, owner.number, offset, "undecodable"))
        )

    # --- what goes wrong ---

    def fault(self, kind: str, target: str, lasts_ms: int = 0) -> None:
        name = f"fault-{self.number()}"
        self.tell(FaultBegan(self.now_ms, name, kind, target))
        self.later(lasts_ms, lambda: self.tell(FaultEnded(self.now_ms, name)))

    def _kill_owner(self) -> None:
        owner = self.random.choice(self.owners)
        self.fault("kill", f"processor-{owner.number}")
        owner.down_until_ms = self.now_ms + self.random.randrange(500, 4_000)
        self.tell(Rebalanced(self.now_ms, _PROCESSORS, self.number()))

    def _rebalance(self) -> None:
        self.fault("rebalance", _WORKERS, self.random.randrange(500))
        self.tell(Rebalanced(self.now_ms, _WORKERS, self.number()), TransactionFailed(self.now_ms, "worker-1", "aborted", True))
        topic, partition = DISPATCH, self.random.randrange(_DISPATCH_PARTITIONS)
        committed = self._dispatches_committed[partition]
        if self.chance(50) and committed:
            self._dispatches_committed[partition] -= 1
            self.tell(OffsetsReset(self.now_ms, _WORKERS, topic, partition, committed - 1))
            self.tell(Committed(self.now_ms, _WORKERS, topic, partition, committed - 1))
            self.passed(partition, committed - 1)

    # --- workers ---

    def passed(self, partition: int, offset: int) -> None:
        """A worker is done with a dispatch record; the offset follows when all before are done."""
        done = self._dispatches_done[partition]
        done.add(offset)
        committed = self._dispatches_committed[partition]
        while committed in done:
            committed += 1
        self._dispatches_committed[partition] = committed
        self.tell(Committed(self.now_ms, _WORKERS, DISPATCH, partition, committed))

    def dispatch(self, owner: Owner, sent: Dispatching) -> None:
        partition = self.random.randrange(_DISPATCH_PARTITIONS)
        offset = self.append(DISPATCH, partition)
        crashes = 0 if sent.terms is None else sent.terms["crashes"]
        told = (sent.job_id, sent.generation, sent.token, sent.attempt, sent.slot_ms, crashes)
        self.tell(Dispatched(self.now_ms, DISPATCH, partition, offset, owner.number, *told))
        attempt = Attempt(self, owner, sent, partition, offset)
        self.later(self.random.randrange(1, 60), attempt.begin)

    # --- the end ---

    def _end(self) -> None:
        self.now_ms += 1
        self.tell(Healed(self.now_ms))
        for (topic, partition), end in self._offsets.items():
            self.tell(LogEnd(self.now_ms, topic, partition, end, end))
        for partition in range(_DISPATCH_PARTITIONS):
            left = self._offsets[DISPATCH, partition] - self._dispatches_committed[partition]
            self.tell(Backlog(self.now_ms, _WORKERS, DISPATCH, partition, left))
        for owner in self.owners:
            fold = {job_id: dict(state) for job_id, state in owner.changelog.items() if state is not None}
            store = {job_id: dict(state) for job_id, state in owner.states.items() if state is not None}
            phases = {job_id: {"phase": state["phase"]} for job_id, state in store.items()}
            self.tell(
                Snapshot(self.now_ms, "end", owner.number, "store", store),
                Snapshot(self.now_ms, "end", owner.number, "fold", fold),
                Snapshot(self.now_ms, "end", owner.number, "model", phases, partial=True),
            )


class Owner:
    """A timer partition, under whoever owns it: what was committed, and the two inputs."""

    def __init__(self, world: Faithful, number: int) -> None:
        self.world, self.number = world, number
        self.definitions: dict[str, Known | None] = {}
        self.states: dict[str, State | None] = {}
        self.changelog: dict[str, State | None] = {}
        self.intake: list[tuple[int, Callable[[Step], None]]] = []
        self.outcomes: list[tuple[int, Callable[[Step], None]]] = []
        self.letters: list[Event] = []
        self.records: dict[bytes, Schedule] = {}  # by what stands for their bytes here
        self.actions: dict[int, str] = {}
        self.token = 0
        self.down_until_ms = 0
        self._timers: list[bytes] = []
        self._reading: int = 0

    # The view of `Step`.
    def defined(self, job_id: str) -> Known | None:
        return self.definitions.get(job_id)

    def state(self, job_id: str) -> State | None:
        return self.states.get(job_id)

    def receive(self, log: list[tuple[int, Callable[[Step], None]]], apply: Callable[[Step], None]) -> None:
        """Puts an input into a log; it is read a little later."""
        log.append((self.world.now_ms, apply))
        self.world.later(self.world.random.randrange(1, 30), self.step)

    def step(self) -> None:
        """One step: outcomes, commands, timers; and what follows is committed at once."""
        world = self.world
        if self.down_until_ms > world.now_ms:
            world.later(self.down_until_ms - world.now_ms, self.step)
            return
        count = world.random.randrange(len(self.outcomes) + 1) if self.outcomes else 0
        taken, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        heard_ms = self.outcomes[0][0] - 1 if self.outcomes else world.now_ms
        if self.outcomes:
            world.later(5, self.step)
        step = Step(self, self.number, self.token, world.now_ms, heard_ms=heard_ms)
        step.revise_schedule, step.splice_schedule = self._revise, lambda *fields: repr(fields).encode()
        step.may_deliver, step.read_content = self._may_deliver, lambda work: (work, {})
        for _, apply in (*taken, *self.intake):
            apply(step)
        self._reading += len(self.intake)
        self.intake = []
        fired = []
        while self._timers and due_of(self._timers[0]) <= world.now_ms:
            fired.append(heappop(self._timers))
        step.fire(fired)
        self._commit(step)

    def _may_deliver(self, lane: str, job_id: str, generation: int) -> Admission:
        """The topic is away now and then, and never takes one of them."""
        if job_id == _REFUSED:
            return Admission(refused="it is too large")
        return Admission(wait_ms=50) if self.world.now_ms % 1_000 < 200 else ADMITTED

    def encode(self, record: Schedule) -> bytes:
        """What stands for the bytes of a command."""
        command = repr(record).encode()
        self.records[command] = record
        return command

    def _revise(self, command: bytes, revise: Callable[[Schedule], Schedule]) -> tuple[Schedule, bytes, bytes]:
        record = revise(self.records[command])
        return record, b"work", self.encode(record)

    def _commit(self, step: Step) -> None:
        world, now_ms = self.world, self.world.now_ms
        self.token = step.token
        for job_id, known in step.definitions.items():
            self.definitions[job_id] = known
            if known is not None:
                run = parse(job_id)
                created_ms = self.records[known.command]["created_ms"] if run is None else run.slot_ms
                told = (job_id, known.generation, known.due_ms, created_ms, known.recurrence, known.delivery is not None)
                world.tell(Defined(now_ms, self.number, world.append("state", self.number), *told))
        for job_id, state in step.states.items():
            self.states[job_id] = self.changelog[job_id] = state
            self._tell_state(job_id, state, step.left_out.get(job_id, 0))
        for death in step.deaths:
            world.tell(RunDied(now_ms, death.job_id, death.state["token"], death.reason, death.state["crashes"]))
            world.later(world.random.randrange(100, 1_000), Producer(world, death.job_id, death.state["token"]).regret)
        world.tell(*(DeathClosed(now_ms, closed.job_id, closed.token, closed.how) for closed in step.closings), *self.letters)
        self.letters.clear()
        for sent in step.dispatches:
            world.dispatch(self, sent)
        for record in step.deliveries:
            where = (_OUT, 0, world.append(_OUT, 0))
            world.tell(Delivered(now_ms, *where, record.job_id, record.slot_ms, record.token))
        for key in step.timers_set:
            heappush(self._timers, key)
            world.later(max(0, due_of(key) - now_ms) + world.random.randrange(20), self.step)
        world.tell(Committed(now_ms, _PROCESSORS, INTAKE, self.number, self._reading))

    def _tell_state(self, job_id: str, state: State | None, left_out: int) -> None:
        world, offset = self.world, self.world.append("state", self.number)
        if state is None:
            world.tell(Forgotten(world.now_ms, self.number, offset, job_id))
            return
        wake_ms, queued_ms = (0, 0) if state["trail"] is None else (state["trail"]["wake_ms"], state["trail"]["queued_ms"])
        told = (state["generation"], state["phase"], state["token"], state["slot_ms"], state["attempt"], state["crashes"])
        of_slots = (wake_ms, state["changed_ms"], queued_ms, left_out)
        world.tell(StateWritten(world.now_ms, self.number, offset, job_id, *told, *of_slots))
        for answer in [] if state["trail"] is None else state["trail"]["answers"]:
            command = answer["offset"]
            world.tell(Answered(world.now_ms, self.number, offset, job_id, command, self.actions[command], answer["reason"]))
        if state["phase"] in TERMINAL:
            world.later(_RETENTION_MS, lambda: self.receive(self.intake, lambda step: step.forget(job_id)))
            if world.chance(10) and job_id.startswith("job-") and parse(job_id) is None:
                world.later(_RETENTION_MS + world.random.randrange(200), Producer(world, job_id).reuse)


class Producer:
    """Whoever asks for a job, and for more about it."""

    def __init__(self, world: Faithful, job_id: str, token: int = 0) -> None:
        self.world, self.job_id, self.token = world, job_id, token
        self.owner = world.owners[sum(home(job_id.encode())) % len(world.owners)]

    def enqueue(self, is_reused: bool = False) -> None:
        world, random = self.world, self.world.random
        due_ms = world.now_ms + random.choice((0, 0, -50, 500, 2_000))
        replaces = world.chance(25)
        created_ms = world.now_ms * 1_000 + world.number() % 1_000  # each command has its own
        limits: Limits | None = world.limits.setdefault(self.job_id, self._limits(due_ms))
        call = f"call-{world.number()}"
        delivers = self.job_id.startswith("job-") and int(self.job_id[4:]) % _DELIVERED == _DELIVERED - 1
        delivery = {"topic": _OUT, "key": None, "tombstone": False} if delivers else None
        world.tell(EnqueueInvoked(world.now_ms, call, self.job_id, due_ms, created_ms, limits, replaces, delivers=delivery is not None))

        def apply(step: Step, offset: int) -> None:
            on_conflict = OnConflict.REPLACE if replaces else OnConflict.IGNORE
            record: Any = {"job_id": self.job_id, "due_ms": due_ms, "created_ms": created_ms, "on_conflict": on_conflict}
            record |= {"queue": "default", "retention_ms": _RETENTION_MS, "limits": limits, "recurrence": None, "delivery": delivery}
            record["work"] = {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None}
            step.schedule(record, b"work", self.owner.encode(record), offset)

        self._send(call, apply)
        if world.chance(20):
            world.later(random.choice((1, 100, 1_000)), self.cancel)
        if world.chance(20):
            world.later(random.choice((1, 100, 1_000)), random.choice((self.pause, self.pause, self.change)))
        if world.chance(15) and not is_reused:
            world.later(random.choice((5, 300, 3_000)), self.enqueue)

    def reuse(self) -> None:
        """Asks for it anew when it was forgotten, or is about to be."""
        self.enqueue(is_reused=True)

    def _limits(self, due_ms: int) -> Limits | None:
        random = self.world.random
        if not self.world.chance(30):
            return None
        return {
            "expires_ms": due_ms + random.choice((20, 40, 60, 3_000)) if self.world.chance(30) and due_ms > self.world.now_ms else 0,
            "total_timeout_ms": random.choice((0, 200, 2_000)),
            "crashes_max": random.choice((0, 1, 2)),
        }

    def cancel(self) -> None:
        number = self.world.number()
        call, reach = f"call-{number}", list(Reach)[number % len(Reach)]
        self.world.tell(CancelInvoked(self.world.now_ms, call, self.job_id, reach))
        self._send(call, lambda step, offset: step.cancel({"job_id": self.job_id, "created_ms": step.now_ms, "reach": reach}))

    def pause(self) -> None:
        """Holds it up for a while."""
        self._change(Action.PAUSE)
        self.world.later(self.world.random.choice((5, 500, 3_000)), self.resume)

    def resume(self) -> None:
        """Until somebody says that it was taken."""
        if not self._change(self.world.random.choice((Action.RESUME, Action.RESUME, Action.RUN_NOW))):
            self.world.later(500, self.resume)

    def change(self) -> None:
        """Asks for it at once, or for another time, or for something else."""
        random = self.world.random
        fields: dict[str, Any] = {}
        if self.world.chance(70):
            fields["due_ms"] = self.world.now_ms + random.choice((0, 300, 2_000))
        if self.world.chance(20):
            fields["limits"] = self._limits(fields.get("due_ms", 0)) or {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 0}
        if not fields and self.world.chance(50):
            fields["payload"] = f"{self.world.number()}".encode()
        self._change(Action.UPDATE if fields else Action.RUN_NOW, **fields)

    def _change(self, action: Action, **fields: Any) -> bool:
        world, state, call = self.world, self.owner.state(self.job_id), f"call-{self.world.number()}"
        if state is not None and state["phase"] in TERMINAL and world.now_ms - state["changed_ms"] > _RETENTION_MS // 2:
            return True  # one transaction may forget it, define it, and answer: then its two lives could not be told apart
        record: Any = {
            **dict.fromkeys(Change.__annotations__),
            "job_id": self.job_id,
            "created_ms": world.now_ms,
            "action": action,
            **fields,
        }
        due_ms, limits = fields.get("due_ms", 0), fields.get("limits")
        world.tell(ChangeInvoked(world.now_ms, call, self.job_id, action, world.now_ms, due_ms, limits))

        def apply(step: Step, offset: int) -> None:
            self.owner.actions[offset] = action
            self._obey(step, offset, lambda: step.change(record, offset))

        return self._send(call, apply)

    def regret(self) -> None:
        """Decides what is to become of a dead run: nothing, another try, or oblivion."""
        world = self.world
        for _ in range(world.random.choice((0, 1, 1, 2))):
            call, drops = f"call-{world.number()}", world.chance(30)
            kind = DropInvoked if drops else RedriveInvoked
            world.tell(kind(world.now_ms, call, self.job_id, self.token))
            self._send(call, self._drop if drops else self._redrive)

    def _drop(self, step: Step, offset: int) -> None:
        step.drop({"job_id": self.job_id, "token": self.token, "created_ms": step.now_ms})

    def _redrive(self, step: Step, offset: int) -> None:
        self._obey(step, offset, lambda: step.redrive({"job_id": self.job_id, "token": self.token, "created_ms": step.now_ms}))

    def _obey(self, step: Step, offset: int, obey: Callable[[], None]) -> None:
        try:
            obey()
        except RejectedJob as refused:
            self.owner.letters.append(DeadLettered(step.now_ms, INTAKE, self.owner.number, offset, refused.reason, self.job_id))

    def _send(self, call: str, apply: Callable[[Step, int], None]) -> bool:
        """Sends a command, which may be refused, or lost, or stored without an answer. Whether its sender knows that it is stored."""
        world = self.world
        fate = world.random.randrange(100)
        if fate < 3:
            world.tell(Refused(world.now_ms, call))
            return False
        if fate < 6:
            world.tell(Unknown(world.now_ms, call))
            return False
        offset = world.append(INTAKE, self.owner.number)
        self.owner.receive(self.owner.intake, lambda step: apply(step, offset))
        if fate < 9:
            world.later(3_000, lambda: world.tell(Unknown(world.now_ms, call)))
        elif fate >= 12:  # in between, the producer dies: no answer at all
            world.tell(Acknowledged(world.now_ms, call, self.owner.number, offset))
        return fate >= 12


class Recurring(Producer):
    """Whoever asks for a job that recurs, redefines it now and then, and cancels it, or some of its runs."""

    def enqueue(self, is_reused: bool = False) -> None:
        self.anchor_ms = self.world.now_ms + self.world.random.choice((-5_000, 0, 700))
        self._define()
        for _ in range(self.world.random.choice((0, 1, 1, 3))):
            call = self.world.random.choice((self._define, self._define, self._define_elsewhen, self.cancel, self._cancel_run))
            self.world.later(self.world.random.randrange(SPAN_MS // 2), call)

    def _define_elsewhen(self) -> None:
        self.anchor_ms += self.world.random.randrange(1, 3_000)
        self._define()

    def _define(self) -> None:
        world, random, created_ms = self.world, self.world.random, self.world.now_ms
        recurrence = random.choice((every(1_000), every(1_700), every_after(600), cron("*/2 * * * * *"), cron("3,7,40 * * * * *")))
        recurrence["end_ms"] = created_ms + random.randrange(8_000, SPAN_MS)
        recurrence["runs_max"] = random.choice((0, 0, 3, 9))
        recurrence["misfire"], recurrence["misfire_max"] = random.choice((("ONCE", 0), ("SKIP", 0), ("ALL", 0), ("ALL", 2)))
        recurrence["overlap"], recurrence["overlap_max"] = random.choice(
            (("SKIP", 0), ("ALLOW", 0), ("ALLOW", 1), ("QUEUE", 0), ("REPLACE", 0))
        )
        recurrence["grace_ms"], recurrence["jitter_ms"] = random.choice((0, 300, 2_000)), random.choice((0, 0, 200))
        due_ms, on_conflict = self.anchor_ms, random.choice((OnConflict.REPLACE, OnConflict.REPLACE, OnConflict.REJECT, OnConflict.IGNORE))
        call, replaces, rejects = f"call-{world.number()}", on_conflict == OnConflict.REPLACE, on_conflict == OnConflict.REJECT
        world.tell(EnqueueInvoked(created_ms, call, self.job_id, due_ms, created_ms, None, replaces, recurrence, rejects))

        def apply(step: Step, offset: int) -> None:
            record: Any = {"job_id": self.job_id, "due_ms": due_ms, "created_ms": created_ms, "on_conflict": on_conflict}
            record |= {"queue": "q", "retention_ms": _RETENTION_MS, "limits": None, "recurrence": recurrence, "delivery": None}
            record["work"] = {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None}
            try:
                step.schedule(record, b"work", self.owner.encode(record), offset)
            except RejectedJob as refused:
                self.owner.letters.append(DeadLettered(step.now_ms, INTAKE, self.owner.number, offset, refused.reason, self.job_id))

        self._send(call, apply)

    def _cancel_run(self) -> None:
        runs = [job_id for job_id in self.owner.states if job_id.startswith(f"{self.job_id}@")]
        if runs:
            Producer(self.world, self.world.random.choice(runs)).cancel()


class Attempt:
    """One dispatch in the hands of a worker, or of nobody."""

    def __init__(self, world: Faithful, owner: Owner, sent: Dispatching, partition: int, offset: int) -> None:
        self.world, self.owner, self.sent, self.partition, self.offset = world, owner, sent, partition, offset

    def begin(self) -> None:
        world, sent = self.world, self.sent
        terms = sent.terms
        if terms is not None and terms["expires_ms"] and terms["expires_ms"] <= world.now_ms:
            self._record(Result.EXPIRED)
            return
        fate = world.random.randrange(100) if world.faults else 99
        if fate < 3:  # the record is gone before anybody saw it
            world.fault("log cut", DISPATCH)
            world.passed(self.partition, self.offset)
            world.later(world.random.randrange(500, 4_000), self._overdue)
            return
        if fate < 6:  # claimed by a worker that dies before it starts anything
            self._crash()
            return
        world.tell(Started(world.now_ms, sent.job_id, sent.token, DISPATCH, self.partition, self.offset))
        if fate < 15:
            self._crash()
        elif fate < 20:  # the worker is cut off, and ends what it began when the run has gone on elsewhere
            self._crash()
            world.later(world.random.randrange(100, 6_000), self._effect)
            world.later(world.random.randrange(100, 6_000), lambda: self._record(Result.SUCCEEDED))
        elif fate < 35:
            self._run_long(fate < 25)
        else:
            world.later(world.random.randrange(1, 100), self._finish)

    def _crash(self) -> None:
        self.world.fault("kill", "worker")
        result = Result.LOST if self.world.chance(80) else Result.INTERRUPTED
        self.world.later(self.world.random.randrange(200, 3_000), lambda: self._record(result))

    def _run_long(self, falls_silent: bool) -> None:
        """Says that it runs, and then dies unheard, or ends in time or too late."""
        self._record(Result.STARTED, passes=falls_silent)
        if falls_silent:
            self.world.fault("kill", "worker")
            return
        if self.world.chance(50):
            self.world.later(_LEASE_MS // 2, lambda: self._record(Result.HEARTBEAT, passes=False))
        late = self.world.chance(30)
        if late:
            self.world.fault("pause", "worker", 2 * _LEASE_MS)
        self.world.later(_LEASE_MS * 2 if late else _LEASE_MS // 2 + 1, self._finish)

    def _finish(self) -> None:
        self._effect()
        if self._is_cancelled and self.world.chance(50):
            self._record(Result.CANCELLED)
            return
        self._record(self.world.random.choices(list(_FINAL), list(_FINAL.values()))[0])

    @property
    def _is_cancelled(self) -> bool:
        state = self.owner.state(self.sent.job_id)
        return state is not None and state["phase"] == Phase.CANCELLING and state["token"] == self.sent.token

    def _effect(self) -> None:
        world, job_id, token = self.world, self.sent.job_id, self.sent.token
        accepted = token >= world.sink.get(job_id, 0)
        if accepted:
            world.sink[job_id] = token
        world.tell(Effect(world.now_ms, job_id, token, accepted))

    def _record(self, result: Result, passes: bool = True) -> None:
        world, sent, owner = self.world, self.sent, self.owner
        offset = world.append("outcomes", owner.number)
        lease_ms = _LEASE_MS if result in (Result.STARTED, Result.HEARTBEAT) else 0
        world.tell(OutcomeRecorded(world.now_ms, owner.number, offset, sent.job_id, sent.token, result, lease_ms))
        if passes:
            world.passed(self.partition, self.offset)
        failed = result in (Result.FAILED, Result.RETRY)
        outcome: Outcome = {
            "token": sent.token,
            "job_id": sent.job_id,
            "slot_ms": sent.slot_ms,
            "attempt": sent.attempt,
            "result": result,
            "started_ms": world.now_ms,
            "finished_ms": world.now_ms,
            "worker": "w",
            "error": {"type": "E", "message": "", "traceback": ""} if failed else None,
            "retry_after_ms": world.random.choice((0, 50, 700)),
            "lease_ms": _LEASE_MS,
            "output": None,
        }
        owner.receive(owner.outcomes, lambda step: step.outcome(outcome))

    def _overdue(self) -> None:
        self.owner.receive(self.owner.intake, lambda step: step.overdue(self.sent.job_id, self.sent.token))
