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


class Phase(StrEnum):
    """Where a job stands. `lifecycle.TRANSITIONS` says what may follow what."""

    WAITING = "WAITING"
    DISPATCHED = "DISPATCHED"
    CANCELLING = "CANCELLING"  # dispatched, and not to be dispatched again
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Result(StrEnum):
    """What a worker says of one dispatch."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"
    INTERRUPTED = "INTERRUPTED"


class Work(TypedDict):
    task: str
    content_type: str
    payload: bytes
    headers: dict[str, str]


class Schedule(TypedDict):
    job_id: str
    due_ms: int
    created_ms: int
    on_conflict: str
    retention_ms: int
    queue: str
    work: Work


class Cancel(TypedDict):
    job_id: str
    created_ms: int


class Definition(TypedDict):
    generation: int
    schedule: Schedule


class Failure(TypedDict):
    type: str
    message: str
    traceback: str


class State(TypedDict):
    generation: int
    phase: str
    attempt: int
    crashes: int
    token: int
    slot_ms: int
    changed_ms: int
    error: Failure | None


class Progress(TypedDict):
    token: int
    intake_offset: int
    outcomes_offset: int


class Dispatch(TypedDict):
    token: int
    job_id: str
    generation: int
    slot_ms: int
    attempt: int
    timer_partition: int
    dispatched_ms: int
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
