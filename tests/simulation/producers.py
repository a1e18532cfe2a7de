"""Whoever writes to the topics: producers that ask for jobs, people who look after dead runs, and strangers who write what nobody can read.

    job-7      asked for once, perhaps cancelled, asked for again, redefined, redriven or dropped meanwhile; paused, run at once or updated
    job-8      a record to deliver: every other seed has some, and some of these are too large for their topic
    brief-2    forgotten as soon as it is over; then its id is used anew
    often-3    recurs; is redefined, with its anchor or another, and cancelled; some of its runs are cancelled, redriven, dropped
    stray-1    a good command on the wrong partition, as a client without murmur2 writes it
    bad-3      no command at all, or one that breaks a rule: worth one dead letter

Each call is told to the history before it is made, with what came of it. A job id that may be forgotten is used anew only once it was: in
the moment itself the history could not tell its two lives apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.intake import MemoryIntake
from duewheel.adapters.memory.logs import Headers, Log
from duewheel.adapters.memory.world import Process
from duewheel.client.commands import (
    Delivery,
    Job,
    Update,
    cancel_command,
    change_command,
    deliver_command,
    drop_command,
    redrive_command,
    schedule_command,
)
from duewheel.core.errors import BrokerUnavailable, RejectedJob
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import DUE_MS_MIN, FOREIGN_HEADERS_BYTES_MAX
from duewheel.core.model import Action, Limits, Phase, Schedule, State
from duewheel.core.run_ids import parse
from duewheel.core.topology import partition_of
from duewheel.engine.partition import STATE
from duewheel.proof.history import (
    Acknowledged,
    BadRecordWritten,
    CancelInvoked,
    ChangeInvoked,
    DropInvoked,
    EnqueueInvoked,
    FaultBegan,
    FaultEnded,
    RedriveInvoked,
    Unknown,
)
from tests.malformed import CORPUS
from tests.simulation import recurrences
from tests.simulation.jobs import Tasks
from tests.simulation.site import OUT, OUT_BYTES_MAX, TOPOLOGY, Site

SECOND_US: Final = 1_000_000
_FORGOTTEN_WITHIN_S: Final = 40
_DELIVERED_SHARE: Final = 0.3
_SHARED: Final = [name for name in Delivery._fields if name in Job._fields]
TOPIC_LATE: Final = "topic late"
TOPIC_PICKY: Final = "topic picky"
_RECURS_BEYOND_US: Final = 6 * SECOND_US
_RESUMES_MAX: Final = 100
_BAD_BYTES_MAX: Final = 2_000
_MALFORMED: Final = [bad.value for bad in CORPUS if bad.value is None or len(bad.value) <= _BAD_BYTES_MAX]


class Producers:
    """All of them, in one process that never fails.

    Args:
        random: decides what is asked for, and when.
        tasks: what jobs do.
        spoils_dispatches: whether strangers write to the dispatch topic as well. Where a person sets its group back, or deletes it, what
            was refused there is refused once more, or never.
        expiring: how many jobs may not start after some time, from 0 to 1.
        delivering: decides which are records to deliver; None where none is.
        changes: whether they pause, resume, run and update jobs.

    Attributes:
        asking: how many have more to ask.
        acknowledged: calls that were answered, by the job that they ask for.
        strays: job ids of good commands that lie on the wrong partition.
        bad: partition and offset of records that nobody can read, by topic.
    """

    def __init__(
        self,
        site: Site,
        random: Random,
        tasks: Tasks,
        spoils_dispatches: bool,
        expiring: float,
        changes: bool,
        delivering: Random | None,
    ) -> None:
        self._site = site
        self._world = site.world
        self._random = random
        self._tasks = tasks
        self._spoilt = [TOPOLOGY.intake, TOPOLOGY.intake, TOPOLOGY.outcomes]
        self._spoils_dispatches = spoils_dispatches
        self._expiring = expiring
        self._delivering = delivering
        self._refused_share = 0.0
        self._changes = changes
        self._process = Process(site.world, "producer")
        self._calls = 0
        self._scheduled: dict[str, int] = {}
        self._dropped: set[str] = set()
        self._created: set[tuple[str, int]] = set()
        self._anchors: dict[str, int] = {}
        self._until_us = 0
        self.asking = 0
        self.acknowledged: dict[str, set[str]] = {}
        self.strays: list[str] = []
        self.bad: dict[str, set[tuple[int, int]]] = {}

    def begin(self, jobs: int, recurring: int, until_us: int, is_calm: bool) -> None:
        """Puts on the agenda what is asked for by then, and that what recurs without an end is cancelled soon after."""
        self._until_us = until_us
        moments: list[Callable[[], None]] = [lambda n=n: self._schedule(f"job-{n}") for n in range(jobs)]  # type: ignore[misc]
        moments += [self._again] * (jobs // 3)
        if self._delivering is not None:
            self._begin_deliveries(self._delivering, until_us, is_calm)
        if self._changes:
            moments += [self._change] * (jobs // 3)
        if not is_calm:
            moments += [lambda n=n: self._briefly(f"brief-{n}") for n in range(self._random.choice((0, 2, 4)))]  # type: ignore[misc]
            moments += [lambda n=n: self._astray(f"stray-{n}") for n in range(self._random.choice((0, 2, 5)))]  # type: ignore[misc]
            moments += [lambda n=n: self._spoil(f"bad-{n}") for n in range(self._random.choice((0, 5, 20)))]  # type: ignore[misc]
        for call in moments:
            self._at(self._random.randrange(2 * SECOND_US, until_us), call)
        for n in range(recurring):
            self._at(self._random.randrange(SECOND_US, until_us // 2), lambda n=n: self._often(f"often-{n}", is_calm))  # type: ignore[misc]

    def _begin_deliveries(self, random: Random, until_us: int, is_calm: bool) -> None:
        """Makes topics to deliver to. Where one comes late, or refuses some records, that is a fault: it holds up others for a while."""
        if is_calm:
            for topic in OUT:
                self._site.make_topic(topic)
            return
        *early, late = OUT
        for topic in early:
            self._site.make_topic(topic)
        self._refused_share = random.choice((0.0, 0.1, 0.3))
        self._site.tell(FaultBegan(self._world.now_ms, "late topic", TOPIC_LATE, late))
        if self._refused_share:
            self._site.tell(FaultBegan(self._world.now_ms, "picky topics", TOPIC_PICKY, early[0]))

        def make() -> None:
            self._site.make_topic(late)
            self._site.tell(FaultEnded(self._world.now_ms, "late topic"))

        self._world.later(random.randrange(until_us), make)

    def _at(self, at_us: int, call: Callable[[], None]) -> None:
        self.asking += 1

        def ask() -> None:
            try:
                call()
            finally:
                self.asking -= 1

        self._world.later(at_us, lambda: self._site.kernel.start(self._process, ask))

    # --- jobs ---

    def _schedule(self, job_id: str, on_conflict: Any = "ignore", retention: float | None = None) -> None:
        command = self._command(job_id, on_conflict, retention)
        for _ in range(3):
            if self._enqueue(command):
                return
            self._process.sleep(self._random.random() * 3)

    def _command(self, job_id: str, on_conflict: Any = "ignore", retention: float | None = None) -> Schedule:
        random = self._random
        while (job_id, self._world.now_ms) in self._created:  # two commands of one millisecond could not be told apart
            self._process.sleep(0.001)
        now_ms = self._world.now_ms
        self._created.add((job_id, now_ms))
        task, payload = self._tasks.behaviour(random)
        delay = random.choice((0.0, 0.0, random.random(), random.random() * 10, random.random() * 40))
        if retention is not None:
            delay = min(delay, 1.0)
        job = Job(task, payload, delay=delay, job_id=job_id, on_conflict=on_conflict, retention=retention)
        if random.random() < self._expiring:
            job = job._replace(expires_at=now_ms + round(delay * 1000) + random.randrange(200, 20_000))
        if random.random() < 0.1:
            job = job._replace(total_timeout=random.randrange(1, 40))
        if random.random() < 0.2:
            job = job._replace(crash_limit=random.choice((1, 2, 8)))
        return self._perhaps_delivered(job, job_id, now_ms)

    def _perhaps_delivered(self, job: Job, job_id: str, now_ms: int) -> Schedule:
        """The command for a job, or for a record to deliver at its time."""
        random = self._delivering
        if random is None or random.random() >= _DELIVERED_SHARE:
            return schedule_command(job, now_ms, lambda now_ms: job_id)
        too_large = random.random() < self._refused_share
        value = None if random.random() < 0.1 else bytes(2 * OUT_BYTES_MAX if too_large else random.randrange(OUT_BYTES_MAX))
        record = Delivery(random.choice(OUT), value, key=random.choice((None, job_id)), **{name: getattr(job, name) for name in _SHARED})
        return deliver_command(record, now_ms, lambda now_ms: job_id)

    def _asked(self, command: Schedule) -> EnqueueInvoked:
        limits: Limits | None = command["limits"]
        job_id, on_conflict = command["job_id"], command["on_conflict"]
        what = (job_id, command["due_ms"], command["created_ms"], limits, on_conflict == "REPLACE", command["recurrence"])
        delivers = command["delivery"] is not None
        return EnqueueInvoked(self._world.now_ms, self._call(), *what, on_conflict == "REJECT", delivers)

    def _enqueue(self, command: Schedule) -> bool:
        job_id, asked = command["job_id"], self._asked(command)
        if job_id.startswith("job-"):
            self._scheduled[job_id] = command["due_ms"]
        if self._send(asked, job_id, codec.encode_schedule(command)):
            self.acknowledged.setdefault(job_id, set()).add(asked.call)
            return True
        return False

    def _again(self) -> None:
        """Says something more about a job that is known."""
        known = sorted(self._scheduled.keys() - self._dropped)
        if not known:
            return
        job_id, draw = self._random.choice(known), self._random.random()
        dead = [(each, token) for each, token in self._dead() if each not in self._dropped]
        if dead and draw < 0.3:
            self._drop(*self._random.choice(dead))
        elif dead and draw < 0.6:
            self._redrive(*self._random.choice(dead))
        elif draw < 0.6:
            self._cancel(job_id)
        else:
            self._schedule(job_id, self._random.choice(("ignore", "replace")))

    def _redrive(self, job_id: str, token: int) -> None:
        now_ms = self._world.now_ms
        asked = RedriveInvoked(now_ms, self._call(), job_id, token)
        self._send(asked, job_id, codec.encode_redrive(redrive_command(job_id, token, now_ms)))

    # --- changes ---

    def _cancel(self, job_id: str) -> bool:
        now_ms = self._world.now_ms
        reaches = (None, "job", "running")
        command = cancel_command(job_id, now_ms, reaches[self._calls % len(reaches)])
        return self._send(CancelInvoked(now_ms, self._call(), job_id, command["reach"]), job_id, codec.encode_cancel(command))

    def _change(self) -> None:
        """Changes a job that is known, whatever it does just then."""
        known = sorted(self._scheduled.keys() - self._dropped)
        if not known:
            return
        job_id, draw, random = self._random.choice(known), self._random.random(), self._random
        if draw < 0.5:
            self._hold(job_id, random.random() * random.choice((0.1, 3, 15)))
        elif draw < 0.65:
            self._ask_to(Action.RUN_NOW, job_id)
        elif draw < 0.75:
            self._ask_to(Action.UPDATE, job_id, Update(delay=random.random() * 20))
        elif draw < 0.9:
            self._ask_to(Action.UPDATE, job_id, Update(payload=self._tasks.behaviour(random)[1]))
        else:
            self._ask_to(Action.UPDATE, job_id, Update(expires_at=DUE_MS_MIN))  # which is before it is due

    def _hold(self, job_id: str, seconds: float) -> None:
        """Pauses a job, and lets it go on after a while."""
        self._ask_to(Action.PAUSE, job_id)
        self._process.sleep(seconds)
        for _ in range(_RESUMES_MAX):  # what was asked for without an answer may come later than it
            if self._ask_to(self._random.choice((Action.RESUME, Action.RESUME, Action.RUN_NOW)), job_id):
                self._process.sleep(5.0)
                if not self._is_paused(job_id):
                    return
            self._process.sleep(1.0)

    def _ask_to(self, action: Action, job_id: str, update: Update | None = None) -> bool:
        now_ms = self._world.now_ms
        command = change_command(job_id, action, now_ms, update)
        # Limits that break a rule are given by nobody.
        asked = ChangeInvoked(now_ms, self._call(), job_id, action, now_ms, command["due_ms"] or 0)
        return self._send(asked, job_id, codec.encode_change(command))

    def _is_paused(self, job_id: str) -> bool:
        value = self._site.fold().get(STATE + job_id.encode())
        return value is not None and codec.decode_state(value)["phase"] == Phase.PAUSED

    def _drop(self, job_id: str, token: int) -> None:
        """Lets a dead run be forgotten, and uses its id anew, where it is one that may be asked for."""
        self._dropped.add(job_id)
        times = self._site.times_forgotten(job_id)
        now_ms = self._world.now_ms
        self._send(DropInvoked(now_ms, self._call(), job_id, token), job_id, codec.encode_drop(drop_command(job_id, token, now_ms)))
        if parse(job_id) is None and self._is_forgotten_in_time(job_id, times):
            self._schedule(job_id)

    def _briefly(self, job_id: str) -> None:
        """Asks for a job that is forgotten as soon as it is over, and then for another one under its id."""
        for _ in range(self._random.choice((2, 3))):
            times = self._site.times_forgotten(job_id)
            self._schedule(job_id, retention=self._random.choice((0.0, 0.5, 2.0)))
            if not self._is_forgotten_in_time(job_id, times):
                return

    def _is_forgotten_in_time(self, job_id: str, times: int) -> bool:
        """Waits for it to be forgotten more often than `times`. Not for ever: a job that failed is kept for two weeks."""
        for _ in range(_FORGOTTEN_WITHIN_S):
            self._process.sleep(1.0)
            if self._site.times_forgotten(job_id) > times:
                return True
        return False

    # --- jobs that recur ---

    def _often(self, job_id: str, is_calm: bool) -> None:
        """Asks for a job that recurs, says more about it as it goes on, and cancels it in the end."""
        self._define(job_id, "replace", is_anchored=False)
        if not is_calm:
            self._talk_about(job_id)
        self._process.sleep(max(0, self._until_us + _RECURS_BEYOND_US - self._world.now_us) / SECOND_US)
        dead = [(run, token) for run, token in self._dead() if run.startswith(f"{job_id}@") and run not in self._dropped]
        if dead and self._random.random() < 0.5:
            self._redrive(*self._random.choice(dead))
        while not self._cancel(job_id):
            self._process.sleep(1.0)

    def _talk_about(self, job_id: str) -> None:
        random = self._random
        for _ in range(random.choice((0, 1, 2, 4))):
            self._process.sleep(random.choice((0.0, 0.01, random.random(), random.random() * 15)))
            if self._world.now_us > self._until_us:
                return
            draw = random.random()
            if self._changes and random.random() < 0.5:
                self._change_often(job_id)
            elif draw < 0.2:
                self._cancel(job_id)
            elif draw < 0.55:
                self._define(job_id, "replace", is_anchored=True)
            elif draw < 0.7:
                self._define(job_id, "replace", is_anchored=False)
            elif draw < 0.85:
                self._define(job_id, random.choice(("reject", "ignore")), is_anchored=True)
            else:
                going = [run for run, state in self._runs() if state["phase"] not in TERMINAL]
                if going:
                    self._cancel(random.choice(going))

    def _change_often(self, job_id: str) -> None:
        """Pauses and resumes it, runs it beside its slots, or updates it. What stays paused is cancelled in the end."""
        random = self._random
        draw = random.random()
        if draw < 0.5:
            self._ask_to(Action.PAUSE, job_id)
            self._process.sleep(random.random() * random.choice((0.1, 3, 12)))
            self._ask_to(random.choice((Action.RESUME, Action.RESUME, Action.RUN_NOW)), job_id)
        elif draw < 0.7:
            self._ask_to(Action.RUN_NOW, job_id)
        elif draw < 0.85:
            self._ask_to(Action.UPDATE, job_id, Update(delay=random.random() * 5))
        else:
            self._ask_to(Action.UPDATE, job_id, Update(payload=self._tasks.behaviour(random)[1]))

    def _define(self, job_id: str, on_conflict: Any, is_anchored: bool) -> None:
        """Asks for a job that recurs, with the anchor it had before or another one."""
        random, world = self._random, self._world
        while (job_id, world.now_ms) in self._created:
            self._process.sleep(0.001)
        now_ms, until_ms = world.now_ms, world.now_ms + (self._until_us - world.now_us) // 1_000
        self._created.add((job_id, now_ms))
        anchor_ms = self._anchors.get(job_id, 0) if is_anchored else 0
        anchor_ms = anchor_ms or now_ms + random.choice((0, 0, -10_000, random.randrange(5_000)))
        quick: Any = random.choice(({"do": "work", "ms": 1}, {"do": "work", "ms": 700}, {"do": "fail", "times": 9}))
        task, payload = ("plain", quick) if random.random() < 0.6 else self._tasks.behaviour(random)
        retention, total_timeout = random.choice((None, None, 0.0, 3.0)), random.choice((None, None, 20))
        job = Job(task, payload, at=anchor_ms, job_id=job_id, on_conflict=on_conflict, retention=retention, total_timeout=total_timeout)
        fields = recurrences.draw(random, max(now_ms, anchor_ms), until_ms)
        try:
            command = self._perhaps_delivered(job._replace(**fields), job_id, now_ms)
        except RejectedJob:  # a line by the minute, and its end in less than one
            return
        self._anchors[job_id] = anchor_ms
        for _ in range(3):
            if self._enqueue(command):
                return
            self._process.sleep(random.random() * 3)

    def _runs(self) -> list[tuple[str, State]]:
        """The runs of all jobs that recur, as far as they are known."""
        return [(job_id, codec.decode_state(value)) for job_id, value in self._states() if parse(job_id) is not None]

    # --- strangers ---

    def _astray(self, job_id: str) -> None:
        """Writes a good command to a partition that is not its own, if there is any."""
        logs = self._site.broker.topic(TOPOLOGY.intake)
        others = [log for log in logs if log.partition != partition_of(job_id.encode(), len(logs))]
        if not others:
            return
        command = self._command(job_id)
        asked, log = self._asked(command), self._random.choice(others)
        self._site.tell(asked)
        offset = self._append(log, job_id.encode(), codec.encode_schedule(command), [("from", b"elsewhere")])
        self._site.tell(Acknowledged(self._world.now_ms, asked.call, log.partition, offset))
        self.acknowledged.setdefault(job_id, set()).add(asked.call)
        self.strays.append(job_id)

    def _spoil(self, job_id: str) -> None:
        """Writes what becomes a dead letter and nothing else."""
        topics = [*self._spoilt, TOPOLOGY.dispatch("default")] if self._spoils_dispatches else self._spoilt
        topic = self._random.choice(topics)
        logs = self._site.broker.topic(topic)
        key: bytes | None = job_id.encode()
        home = logs[partition_of(job_id.encode(), len(logs))]
        log, value = self._random.choice(logs), self._random.choice(_MALFORMED)
        headers: Headers | None = None
        if topic == TOPOLOGY.intake:
            draw, command = self._random.random(), self._command(job_id)
            if draw < 0.1:
                key, value = None, codec.encode_schedule(command)
            elif draw < 0.2:
                value = codec.encode_schedule({**command, "job_id": f"other-{job_id}"})
            elif draw < 0.3:
                value = codec.encode_schedule({**command, "retention_ms": -1})
            elif draw < 0.5:
                log, value = home, codec.encode_schedule({**command, "queue": "nowhere"})
            elif draw < 0.6 and log is not home:
                value, headers = codec.encode_schedule(command), [("h", bytes(FOREIGN_HEADERS_BYTES_MAX + 1))]
        offset = self._append(log, key, value, headers)
        self._site.tell(BadRecordWritten(self._world.now_ms, topic, log.partition, offset))
        self.bad.setdefault(topic, set()).add((log.partition, offset))

    def _append(self, log: Log, key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
        self._site.kernel.note("stranger", "writes", f"{key!r} to {log.topic} {log.partition}")
        return log.append(key, value, headers, self._world.now_ms)

    # --- calls ---

    def _send(self, asked: Any, job_id: str, value: bytes) -> bool:
        self._site.tell(asked)
        self._site.kernel.note("producer", type(asked).__name__, f"{job_id} {asked.call}")
        try:
            receipt = MemoryIntake(self._process, self._site.broker, TOPOLOGY.intake).append(job_id.encode(), value)
        except BrokerUnavailable:
            self._site.tell(Unknown(self._world.now_ms, asked.call))
            return False
        self._site.tell(Acknowledged(self._world.now_ms, asked.call, *receipt))
        return True

    def _call(self) -> str:
        self._calls += 1
        return f"c{self._calls}"

    def _dead(self) -> list[tuple[str, int]]:
        states = [(job_id, codec.decode_state(value)) for job_id, value in self._states()]
        return [
            (job_id, state["token"]) for job_id, state in states if state["phase"] == "FAILED" and job_id.startswith(("job-", "often-"))
        ]

    def _states(self) -> Iterator[tuple[str, bytes]]:
        for key, value in sorted(self._site.fold().items()):
            if key[:1] == STATE and value:
                yield key[1:].decode(), value
