"""The records that travel, as Python sees them.

Each TypedDict here is one Avro schema of `schemas/`, field by field. They are plain dicts on purpose: the codec yields dicts,
the rules read dicts, and nothing is converted on the way through the hot path. Times are milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypedDict


class OnConflict(StrEnum):
    """What a `Schedule` does where its job id is known already."""

    IGNORE = "IGNORE"
    REPLACE = "REPLACE"
    REJECT = "REJECT"


class RecurrenceKind(StrEnum):
    """How the slots of a recurring job follow one another."""

    EVERY = "EVERY"
    EVERY_AFTER = "EVERY_AFTER"
    CRON = "CRON"


class Misfire(StrEnum):
    """What becomes of slots that were missed."""

    ONCE = "ONCE"
    SKIP = "SKIP"
    ALL = "ALL"


class Overlap(StrEnum):
    """What becomes of a slot whose predecessor still runs."""

    SKIP = "SKIP"
    ALLOW = "ALLOW"
    QUEUE = "QUEUE"
    REPLACE = "REPLACE"


class Reach(StrEnum):
    """How far a `Cancel` reaches."""

    DEFAULT = "DEFAULT"
    JOB = "JOB"
    RUNNING = "RUNNING"


class Action(StrEnum):
    """What a `Change` asks for."""

    PAUSE = "PAUSE"
    RESUME = "RESUME"
    RUN_NOW = "RUN_NOW"
    UPDATE = "UPDATE"


class Phase(StrEnum):
    """Where a job stands. `lifecycle.TRANSITIONS` says what may follow what."""

    WAITING = "WAITING"
    DISPATCHED = "DISPATCHED"
    CANCELLING = "CANCELLING"  # dispatched, and not to be dispatched again
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  # dead: it may be redriven or dropped
    CANCELLED = "CANCELLED"
    RUNNING = "RUNNING"  # dispatched, and its worker said so: there is a lease
    DISCARDED = "DISCARDED"  # given up on purpose, by the handler
    EXPIRED = "EXPIRED"  # not started in time
    PAUSED = "PAUSED"  # waits until somebody resumes it


class Result(StrEnum):
    """What a worker says of one dispatch."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"
    INTERRUPTED = "INTERRUPTED"
    STARTED = "STARTED"
    HEARTBEAT = "HEARTBEAT"
    RETRY = "RETRY"
    SNOOZED = "SNOOZED"
    DISCARDED = "DISCARDED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"


class Closing(StrEnum):
    """What became of a dead run."""

    REDRIVEN = "REDRIVEN"
    DROPPED = "DROPPED"
    REPLACED = "REPLACED"
    FORGOTTEN = "FORGOTTEN"


class Policy(TypedDict):
    attempts_max: int
    delays_ms: list[int]
    factor: float
    delay_ms_max: int
    jitter: float
    give_up_on: list[str]
    retry_on: list[str]
    run_timeout_ms: int


class Limits(TypedDict):
    expires_ms: int
    total_timeout_ms: int
    crashes_max: int


class Recurrence(TypedDict):
    kind: str
    every_ms: int
    expression: str
    zone: str
    start_ms: int
    end_ms: int
    runs_max: int
    jitter_ms: int
    misfire: str
    misfire_max: int
    grace_ms: int
    overlap: str
    overlap_max: int


class Delivery(TypedDict):
    topic: str
    key: bytes | None
    tombstone: bool


class Work(TypedDict):
    task: str
    content_type: str
    payload: bytes
    headers: dict[str, str]
    policy: Policy | None


class Schedule(TypedDict):
    job_id: str
    due_ms: int
    created_ms: int
    on_conflict: str
    retention_ms: int
    queue: str
    limits: Limits | None
    recurrence: Recurrence | None
    delivery: Delivery | None
    work: Work


class Cancel(TypedDict):
    job_id: str
    created_ms: int
    reach: str


class Change(TypedDict):
    job_id: str
    created_ms: int
    action: str
    due_ms: int | None
    retention_ms: int | None
    limits: Limits | None
    recurrence: Recurrence | None
    payload: bytes | None
    content_type: str | None
    headers: dict[str, str] | None
    policy: Policy | None


class Redrive(TypedDict):
    job_id: str
    token: int
    created_ms: int


class Drop(TypedDict):
    job_id: str
    token: int
    created_ms: int


class Definition(TypedDict):
    generation: int
    offset: int
    schedule: Schedule


class Failure(TypedDict):
    type: str
    message: str
    traceback: str


class Ending(TypedDict):
    attempt: int
    token: int
    result: str
    started_ms: int
    ended_ms: int
    worker: str
    type: str
    message: str


class Answer(TypedDict):
    offset: int
    taken_ms: int
    reason: str
    message: str


class Trail(TypedDict):
    wake_ms: int
    lease_ms: int
    first_ms: int
    output: bytes | None
    endings: list[Ending]
    runs: list[int]
    queued_ms: int
    answers: list[Answer]
    is_quiet: bool


class State(TypedDict):
    generation: int
    phase: str
    attempt: int
    crashes: int
    token: int
    slot_ms: int
    changed_ms: int
    error: Failure | None
    trail: Trail | None


class Progress(TypedDict):
    token: int
    intake_offset: int
    outcomes_offset: int


class Terms(TypedDict):
    crashes: int
    is_last_life: bool
    expires_ms: int
    deadline_ms: int


class Dispatch(TypedDict):
    token: int
    job_id: str
    generation: int
    slot_ms: int
    attempt: int
    timer_partition: int
    dispatched_ms: int
    terms: Terms | None
    work: Work


class Outcome(TypedDict):
    token: int
    job_id: str
    slot_ms: int
    attempt: int
    result: str
    started_ms: int
    finished_ms: int
    worker: str
    error: Failure | None
    retry_after_ms: int
    lease_ms: int
    output: bytes | None


class Stop(TypedDict):
    job_id: str
    token: int
    queue: str


class Header(TypedDict):
    name: str
    value: bytes | None


class DeadLetter(TypedDict):
    reason: str
    message: str
    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class DeadRun(TypedDict):
    job_id: str
    token: int
    timer_partition: int
    died_ms: int
    reason: str
    state: State
    definition: Definition


class DeadRunClosed(TypedDict):
    job_id: str
    token: int
    closed_ms: int
    how: str
