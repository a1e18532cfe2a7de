"""Many jobs at full speed: what becomes of each, in bounded memory.

The jobs are an iterable of any length, read as fast as records leave. Nothing is kept of a job once it is acknowledged; at most a
buffer of them is under way. So what remains of a million jobs is two numbers, and every job that is not among the acknowledged has
been named: to `on_failure` with its place, or in the error that ends it all.

Two kinds of failure differ in what they say of the next job. A job that breaks a rule says nothing: the others go on, where the
caller takes such jobs in hand. A broker that does not acknowledge would do the same to all that follow, each after the full timeout:
it ends the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duewheel.client.commands import Job
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
    job: Job
    error: DuewheelError


class Scheduled(NamedTuple):
    """What `schedule_many` did: how many jobs are durable, and how many were rejected."""

    acknowledged: int
    rejected: int


class Bulk:
    """One call of `schedule_many`, whose arguments are explained there.

    Args:
        record: the id and the bytes of a job's command.
    """

    def __init__(
        self,
        log: IntakeLog,
        record: Callable[[Job], tuple[str, bytes]],
        on_failure: Callable[[JobFailed], None] | None,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._log = log
        self._record = record
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._acknowledged = 0
        self._rejected = 0
        self._unacknowledged = 0
        self._cause: EnvironmentFailure | None = None

    def run(self, jobs: Iterable[Job]) -> Scheduled:
        try:
            self._log.append_many(self._records(jobs), self._failed, self._progressed)
        except RejectedJob as error:
            raise RejectedJob(error.reason, f"{error}. It was not sent, nor was any job after it; {self._sum()}") from error
        if self._cause is not None:
            raise type(self._cause)(f"{self._cause}. No further job was sent; {self._sum()}") from self._cause
        return Scheduled(self._acknowledged, self._rejected)

    def _records(self, jobs: Iterable[Job]) -> Iterator[tuple[tuple[int, Job, str], bytes, bytes]]:
        record = self._record
        for position, job in enumerate(jobs):
            try:
                job_id, value = record(job)
            except RejectedJob as error:
                named = RejectedJob(error.reason, f"job number {position} was rejected: {error}")
                if self._on_failure is None:
                    raise named from error
                self._rejected += 1
                self._on_failure(JobFailed(position, job, named))
                continue
            yield (position, job, job_id), job_id.encode(), value

    def _failed(self, tag: tuple[int, Job, str], error: EnvironmentFailure) -> None:
        position, job, job_id = tag
        self._unacknowledged += 1
        self._cause = self._cause or error
        if self._on_failure is not None:
            self._on_failure(JobFailed(position, job._replace(job_id=job_id), error))

    def _progressed(self, acknowledged: int) -> None:
        self._acknowledged = acknowledged
        if self._on_progress is not None:
            self._on_progress(acknowledged)

    def _sum(self) -> str:
        parts = [f"{self._acknowledged} jobs are durable"]
        if self._unacknowledged:
            parts.append(f"{self._unacknowledged} were not acknowledged")
        if self._rejected:
            parts.append(f"{self._rejected} were rejected")
        return ", ".join(parts)
