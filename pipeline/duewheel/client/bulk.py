"""Many commands at full speed: what becomes of each, in bounded memory.

The jobs are an iterable of any length, read as fast as records leave. Nothing is kept of a job once it is acknowledged; at most a
buffer of them is under way. So what remains of a million jobs is two numbers, and every job that is not among the acknowledged has
been named: to `on_failure` with its place, or in the error that ends it all.

Two kinds of failure differ in what they say of the next job. A job that breaks a rule says nothing: the others go on, where the
caller takes such jobs in hand. A broker that does not acknowledge would do the same to all that follow, each after the full timeout:
it ends the reading.

Redrives and drops go the same way. Of them nobody asks for failures one by one: the same command again does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from duewheel.client.commands import Delivery, Job
from duewheel.core.errors import DuewheelError, EnvironmentFailure, RejectedJob
from duewheel.ports import IntakeLog


class JobFailed(NamedTuple):
    """A job of `schedule_many` that was not acknowledged.

    Attributes:
        position: its place among the jobs given, from 0.
        job: as given; where the outcome is unknown, with the id that was made for it, so that scheduling it again is safe (unless it
            is to replace: see `Client.schedule`).
        error: RejectedJob: it was not sent. BrokerUnavailable: the outcome is unknown. Others: it is not stored.
    """

    position: int
    job: Job | Delivery
    error: DuewheelError


class Scheduled(NamedTuple):
    """What `schedule_many` did: how many jobs are durable, and how many were rejected."""

    acknowledged: int
    rejected: int


class Bulk:
    """One call of `schedule_many`, whose arguments are explained there, or of its like for other commands.

    Args:
        record: the id and the bytes of the command for an item: a job, or whatever else is given to `run`.
        on_failure: None where items are not jobs.
        noun: what an item is called in messages.
    """

    def __init__(
        self,
        log: IntakeLog,
        record: Callable[[Any], tuple[str, bytes]],
        on_failure: Callable[[JobFailed], None] | None,
        on_progress: Callable[[int], None] | None,
        noun: str = "job",
    ) -> None:
        self._log = log
        self._record = record
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._noun = noun
        self._acknowledged = 0
        self._rejected = 0
        self._unacknowledged = 0
        self._cause: EnvironmentFailure | None = None

    def run(self, items: Iterable[Any]) -> Scheduled:
        try:
            self._log.append_many(self._records(items), self._failed, self._progressed)
        except RejectedJob as error:
            raise RejectedJob(error.reason, f"{error}. It was not sent, nor was any {self._noun} after it; {self._sum()}") from error
        if self._cause is not None:
            raise type(self._cause)(f"{self._cause}. No further {self._noun} was sent; {self._sum()}") from self._cause
        return Scheduled(self._acknowledged, self._rejected)

    def _records(self, items: Iterable[Any]) -> Iterator[tuple[tuple[int, Any, str], bytes, bytes]]:
        record = self._record
        for position, item in enumerate(items):
            try:
                job_id, value = record(item)
            except RejectedJob as error:
                named = RejectedJob(error.reason, f"{self._noun} number {position} was rejected: {error}")
                if self._on_failure is None:
                    raise named from error
                self._rejected += 1
                self._on_failure(JobFailed(position, item, named))
                continue
            yield (position, item, job_id), job_id.encode(), value

    def _failed(self, tag: tuple[int, Any, str], error: EnvironmentFailure) -> None:
        position, item, job_id = tag
        self._unacknowledged += 1
        self._cause = self._cause or error
        if self._on_failure is not None:
            self._on_failure(JobFailed(position, item._replace(job_id=job_id), error))

    def _progressed(self, acknowledged: int) -> None:
        self._acknowledged = acknowledged
        if self._on_progress is not None:
            self._on_progress(acknowledged)

    def _sum(self) -> str:
        parts = [f"{self._acknowledged} {self._noun}s are durable"]
        if self._unacknowledged:
            parts.append(f"{self._unacknowledged} were not acknowledged")
        if self._rejected:
            parts.append(f"{self._rejected} were rejected")
        return ", ".join(parts)
