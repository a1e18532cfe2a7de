"""Jobs for a bench, put into intake as any producer would: through the client, acknowledged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from duewheel import wiring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.bench.report import Progress
from duewheel.client import Job
from duewheel.core.topology import Topology

PAYLOAD_BYTES: Final = 100
_HEADERS: Final[Mapping[str, str]] = {"trace": "4bf92f3577b34da6"}
_TIMEOUT_S: Final = 60.0


def job_id(number: int) -> str:
    """16 characters that sort by number."""
    return f"job-{number:012d}"


def job(number: int, task: str, at_ms: int | None = None, payload_bytes: int = PAYLOAD_BYTES) -> Job:
    """A job with one small header and a payload that no compression can shrink.

    Args:
        at_ms: when, in milliseconds since the epoch; None is now, and then it is due in the millisecond in which it was made.
    """
    return Job(task, os.urandom(payload_bytes), at=at_ms, job_id=job_id(number), headers=_HEADERS)


def schedule(kafka: KafkaConfig, topology: Topology, count: int, make: Callable[[int], Job], progress: Progress, what: str) -> float:
    """Schedules jobs 0 to count - 1 and returns when all are acknowledged: how long that took, in seconds."""
    progress(what, 0, count)
    began_s = time.monotonic()
    with wiring.producing_client(kafka, topology, _TIMEOUT_S) as client:
        client.schedule_many((make(number) for number in range(count)), on_progress=lambda done: progress(what, done, count))
    return time.monotonic() - began_s
