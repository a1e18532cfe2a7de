"""The logs of one timer partition in memory, written by the real rules, for whoever audits them.

    life = Life()
    life.command(schedule("a", START_MS))          asked for, taken in, dispatched
    life.outcome("a", "SUCCEEDED")
    differences(life.logs, life.now_ms)            []

A test damages `life.logs`, and looks what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from duewheel.adapters.avro import codec
from duewheel.core.audit import Audit, Dispatched
from duewheel.core.differences import Difference, Unjudged
from duewheel.core.errors import RejectedJob
from duewheel.core.judgement import judge
from duewheel.core.model import Change, Outcome, Schedule, State
from duewheel.core.step import ADMITTED, Defined, Step, timer_ms
from duewheel.core.store_audit import DEFINITION, PROGRESS, STATE, StoreAudit
from duewheel.core.wheel import timer_key

START_MS = 1_900_000_000_000
HOUR_MS = 3_600_000


def schedule(job_id: str, due_ms: int = START_MS, **fields: Any) -> Schedule:
    """A Schedule; `fields` are its own."""
    work: dict[str, Any] = {"task": "t", "content_type": "application/json", "payload": b"1", "headers": {}, "policy": None}
    record: dict[str, Any] = {"job_id": job_id, "due_ms": due_ms, "created_ms": START_MS, "on_conflict": "IGNORE", "retention_ms": HOUR_MS}
    return cast(Schedule, record | {"queue": "default", "limits": None, "recurrence": None, "delivery": None, "work": work} | fields)


def outcome(job_id: str, token: int, result: str, **fields: Any) -> Outcome:
    """An Outcome; `fields` are its own."""
    record: dict[str, Any] = {"token": token, "job_id": job_id, "slot_ms": 0, "attempt": 1, "result": result, "started_ms": START_MS}
    record |= {"finished_ms": START_MS, "worker": "w", "error": None, "output": None, "retry_after_ms": 1_000, "lease_ms": 1_000}
    return cast(Outcome, record | fields)


@dataclass
class Logs:
    """What lies on the topics. Each entry has the time at which it was written.

    Attributes:
        refused: offsets of the intake for which there is a dead letter.
        since_ms: what was written before is not kept any more, by the name of the log; 0 for a log that was never cut.
    """

    state: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    intake: list[tuple[int, str, Any]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    dispatches: list[Dispatched] = field(default_factory=list)
    dead: list[tuple[str, str, int, int]] = field(default_factory=list)
    since_ms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("intake", "outcomes", "dead letters", "dispatch default"), 0))


def fold(logs: Logs, audit: Audit, take: Callable[[int, bytes, bytes | None], None] = lambda offset, key, value: None) -> None:
    """Lets an audit take in all logs; `take` is told of each record of the state topic before."""
    for offset, (at_ms, key, value) in enumerate(logs.state):
        take(offset, key, value)
        kind, job_id, digest = key[:1], key[1:].decode(), 0 if value is None else hash(value)
        if kind == PROGRESS:
            audit.progress(offset, at_ms, codec.decode_progress(value))
        elif kind == STATE:
            audit.state(job_id, at_ms, None if value is None else codec.decode_state(value), digest)
        elif value is None:
            audit.definition(job_id, at_ms, None, 0, digest)
        else:
            known = codec.peek_definition(value)
            audit.definition(job_id, at_ms, known, codec.decode_command(known.command)[1]["created_ms"], digest)
    audit.since_ms = logs.since_ms
    for name, job_id, at, written_ms in logs.dead:
        if written_ms < logs.since_ms["dead letters"]:
            continue
        if name == "dead_run":
            audit.died(job_id, at, written_ms, before_cut=True)
        else:
            audit.closed(job_id, at, before_cut=True)
    _fold_intake(logs, audit)
    for offset, (at_ms, told) in enumerate(logs.outcomes[: audit.outcomes_offset]):
        if at_ms >= logs.since_ms["outcomes"]:
            audit.outcome(offset, at_ms, told)
    for row in logs.dispatches:
        if row.written_ms >= logs.since_ms["dispatch default"]:
            audit.dispatch(row)


def _fold_intake(logs: Logs, audit: Audit) -> None:
    for offset, (at_ms, name, record) in enumerate(logs.intake[: audit.intake_offset]):
        if offset in logs.refused or at_ms < logs.since_ms["intake"]:
            continue
        if name == "schedule":
            audit.schedule(offset, at_ms, record, hash(codec.encode_schedule(record)))
        elif name == "cancel":
            audit.cancel(at_ms, record)
        elif name == "drop":
            audit.drop(record["job_id"])
        elif name == "change":
            audit.change(offset, record)
        elif name == "unread":
            audit.unread(record["job_id"], Unjudged.REGISTRY)


def differences(logs: Logs, now_ms: int) -> list[Difference]:
    """All that an audit finds in these logs."""
    audit = Audit(0)
    fold(logs, audit)
    return [*audit.drained(), *judge(audit, now_ms)]


class Life:
    """One partition whose owner obeys the rules.

    Attributes:
        logs: what was written.
        values: the changelog's fold, as a local store has it; `timers`: its timers.
        takes: whether topics take the records that are to be delivered to them.
        last_token: the highest that was given.
    """

    def __init__(self) -> None:
        self.logs = Logs()
        self.now_ms = START_MS
        self.values: dict[bytes, bytes] = {}
        self.timers: set[bytes] = set()
        self.has_queue = True
        self.takes = ADMITTED
        self.last_token = 0

    # --- the view of a step ---

    def defined(self, job_id: str) -> Defined | None:
        value = self.values.get(DEFINITION + job_id.encode())
        return None if value is None else codec.peek_definition(value)

    def state(self, job_id: str) -> State | None:
        value = self.values.get(STATE + job_id.encode())
        return None if value is None else codec.decode_state(value)

    # --- what happens ---

    def command(self, record: Schedule) -> None:
        """Somebody asks for a job, and the owner takes it in."""
        command = codec.encode_schedule(record)
        self.logs.intake.append((self.now_ms, "schedule", record))

        def obey(step: Step) -> None:
            try:
                step.schedule(record, codec.decode_command(command)[2], command, len(self.logs.intake) - 1)
            except RejectedJob:
                self.logs.refused.add(len(self.logs.intake) - 1)

        self.step(obey)

    def change(self, name: str, job_id: str, reach: str = "DEFAULT") -> None:
        """Somebody cancels, redrives or drops a job."""
        record: Any = {"job_id": job_id, "token": self.token(job_id), "created_ms": 0, "reach": reach}
        self.logs.intake.append((self.now_ms, name, record))

        def obey(step: Step) -> None:
            with suppress(RejectedJob):
                getattr(step, name)(record)

        self.step(obey)

    def modify(self, action: str, job_id: str, **fields: Any) -> None:
        """Somebody pauses, resumes, runs or updates a job."""
        offset = len(self.logs.intake)
        record: Any = {**dict.fromkeys(Change.__annotations__), "job_id": job_id, "created_ms": self.now_ms, "action": action, **fields}
        self.logs.intake.append((self.now_ms, "change", record))

        def obey(step: Step) -> None:
            try:
                step.change(record, offset)
            except RejectedJob:
                self.logs.refused.add(offset)

        self.step(obey)

    def outcome(self, job_id: str, result: str, **fields: Any) -> None:
        """A worker tells of the latest dispatch of a job."""
        record = outcome(job_id, fields.pop("token", self.token(job_id)), result, **fields)
        self.logs.outcomes.append((self.now_ms, record))
        self.step(lambda step: step.outcome(record))

    def pass_time(self, span_ms: int) -> None:
        self.now_ms += span_ms
        self.step(lambda step: None)

    def forget(self, job_id: str) -> None:
        self.step(lambda step: step.forget(job_id))

    def token(self, job_id: str) -> int:
        state = self.state(job_id)
        return 0 if state is None else state["token"]

    # --- the owner ---

    def step(self, obey: Callable[[Step], None]) -> None:
        step = Step(self, 0, self.last_token, self.now_ms, has_queue=lambda queue: self.has_queue, heard_ms=self.now_ms)
        step.splice_schedule, step.revise_schedule = codec.splice_schedule, codec.revise_schedule
        step.may_deliver, step.read_content = lambda lane, job_id, generation: self.takes, codec.decode_content
        obey(step)
        step.fire(sorted(timer for timer in self.timers if timer < timer_key(self.now_ms + 1, "")))
        self.last_token = step.token
        self._publish(step)
        self.timers -= {*step.fired, *step.timers_unset}
        self.timers |= set(step.timers_set)

    def _publish(self, step: Step) -> None:
        logs, now_ms = self.logs, self.now_ms
        changes: list[tuple[bytes, bytes | None]] = [
            (DEFINITION + job_id.encode(), known and codec.splice_definition(known.generation, known.offset, known.command))
            for job_id, known in step.definitions.items()
        ]
        changes += [
            (STATE + job_id.encode(), None if state is None else codec.encode_state(state)) for job_id, state in step.states.items()
        ]
        progress = {"token": step.token, "intake_offset": len(logs.intake), "outcomes_offset": len(logs.outcomes)}
        changes.append((PROGRESS, codec.encode_progress(cast(Any, progress))))
        for key, value in changes:
            logs.state.append((now_ms, key, value))
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        for d in step.dispatches:
            row = Dispatched(d.job_id, d.token, d.generation, d.slot_ms, now_ms, now_ms, d.queue, 0, len(logs.dispatches))
            logs.dispatches.append(row)
        logs.dead += [("dead_run", death.job_id, death.state["token"], now_ms) for death in step.deaths]
        logs.dead += [("closed", closed.job_id, closed.token, now_ms) for closed in step.closings]


class DictStore:
    """`core.store_audit.StoreView` over what a Life has."""

    def __init__(self, life: Life) -> None:
        self.values, self.keys = dict(life.values), set(life.timers)

    def records(self) -> Any:
        return iter(sorted(self.values.items()))

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def has_timer(self, key: bytes) -> bool:
        return key in self.keys

    def timers(self, start: bytes) -> Any:
        return (key for key in sorted(self.keys) if key >= start)


def store_differences(logs: Logs, store: Any, mark: int | None = None) -> tuple[list[Difference], StoreAudit]:
    """What an audit finds in a store that has come as far as `mark`, or all the way."""
    audit = Audit(0)
    comparison = StoreAudit(audit, len(logs.state) if mark is None else mark, codec.peek_definition, codec.decode_state)
    fold(logs, audit, comparison.take)
    return list(comparison.compare(store, lambda job: True)), comparison


def needs_timer(life: Life, job_id: str) -> bytes:
    """The key of the timer that a job must have."""
    known = life.defined(job_id)
    assert known is not None
    return timer_key(timer_ms(known, life.state(job_id)), job_id)
