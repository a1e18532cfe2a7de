"""The client: asks Duewheel to run jobs, and to run them no more.

Every call returns when its command is durable, or raises. In between there is nothing: no outbox, no background sending, so that a
process may die after any call without losing what it was told is scheduled.

    with duewheel.connect("localhost:9092") as client:
        client.schedule("send_email", {"to": "ada@example.org"}, delay=timedelta(minutes=10), job_id="welcome-ada")
        client.cancel("welcome-ada")

Where an acknowledgement fails to arrive (`BrokerUnavailable`), nobody can know whether the command was stored. That is why jobs have
ids: the same call again, with the same `job_id`, schedules the job once. Not so with `on_conflict="replace"`: the second call is a
command of its own, made later, which replaces the first if that was stored, and a job that has run by then runs again.

One call waits one round trip, about 1 ms on one broker. For many jobs there is `schedule_many`, which keeps as many under way as fit in
a bounded buffer: over 100,000 jobs/s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from duewheel.client.bulk import Bulk, JobFailed, Scheduled
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
from duewheel.client.propagation import Propagate, enriched
from duewheel.client.reading import Decision, JobResult, JobStatus, Sought, mark
from duewheel.client.results import Results
from duewheel.core.errors import CallerError
from duewheel.core.model import Action, Cancel, Change, Drop, Redrive, Schedule
from duewheel.core.retry import RetryPolicy
from duewheel.core.topology import QUEUE_DEFAULT
from duewheel.ports import Clock, IntakeLog, Receipt


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job that is durable.

    Waiting for it reads what its owner writes, so it needs no worker, and asks nobody. It stands for the very definition that the call
    made; where the id was known already and the call was ignored, for the job that was known then.

    Attributes:
        job_id: as given, or as made.
        due_ms: when it will be started, in milliseconds since the epoch; 0 where the handle was made by `Client.handle`.
        partition: of the intake topic; -1 there.
        offset: of its command there; -1 there.
    """

    job_id: str
    due_ms: int
    partition: int
    offset: int
    _results: Results | None = field(default=None, repr=False, compare=False)
    _sought: Sought | None = field(default=None, repr=False, compare=False)

    def wait(self, timeout: timedelta | float | None = None) -> JobResult:
        """Returns when the job has ended, however it did.

        Args:
            timeout: how long to wait, as a timedelta or in seconds; for ever by default.

        Raises:
            TimeoutError: it had not ended by then. It goes on, and so may you.
            JobReplaced: it was defined anew before it ended.
            JobConflict: its id was known already, and it was to be rejected then.
            JobUnknown: it was refused, for instance because its queue does not exist; or it ended and was forgotten.
            TopicMissing: the installation's topics are gone.
            CallerError: the client was closed.
        """
        results, sought = self._waiting()
        return results.wait(sought, timeout)

    def decision(self, timeout: timedelta | float | None = None) -> Decision:
        """Returns as soon as it is known what became of the command: whether it made the job, or met one of its id.

        Args:
            timeout: as for `wait`. It takes a moment after `schedule`, as long as a timer processor runs.

        Raises:
            TimeoutError: nobody had taken the command in by then.
            JobReplaced: the id was defined anew since, and what was before is not known.
            JobUnknown, TopicMissing, CallerError: as for `wait`; also CallerError where the handle was made from an id alone.
        """
        results, sought = self._waiting()
        if sought.offset < 0:
            raise CallerError(f"the handle of job {self.job_id} was made from its id alone, so it stands for no command to ask about")
        return results.decision(sought, timeout)

    def __await__(self) -> Generator[Any, None, JobResult]:
        """As `wait`, in asyncio: for ever, unless it is cancelled or bounded by `asyncio.timeout`."""
        results, sought = self._waiting()
        return asyncio.wrap_future(results.future(sought)).__await__()

    def __reduce__(self) -> tuple[type[JobHandle], tuple[str, int, int, int]]:
        return JobHandle, (self.job_id, self.due_ms, self.partition, self.offset)

    def _waiting(self) -> tuple[Results, Sought]:
        if self._results is None or self._sought is None:
            raise CallerError(f"the handle of job {self.job_id} has no client to wait with; ask one: client.handle({self.job_id!r})")
        return self._results, self._sought


@dataclass(frozen=True, slots=True)
class ChangeHandle:
    """A request to change a job, which is durable.

    Attributes:
        partition, offset: where it lies in the intake topic.
    """

    job_id: str
    partition: int
    offset: int
    _results: Results | None = field(default=None, repr=False, compare=False)
    _sought: Sought | None = field(default=None, repr=False, compare=False)

    def wait(self, timeout: timedelta | float | None = None) -> JobStatus:
        """Returns as soon as the request was taken in, with how the job stood then.

        The answer lies in the state topic, which is compacted: asked for hours later, it may be how the job stands by now.

        Args:
            timeout: as for `JobHandle.wait`. It takes a moment, as long as a timer processor runs.

        Raises:
            TimeoutError: nobody had taken it in by then.
            JobUnknown: there was no such job.
            ChangeRefused: it runs, or is over, or would break a rule; `reason` says which.
            TopicMissing, CallerError: as for `JobHandle.wait`.
        """
        if self._results is None or self._sought is None:
            raise CallerError(f"this request to change job {self.job_id} has no client to wait with; it was copied, or made by hand")
        return self._results.status(self._sought, timeout)


class Client:
    """Schedules and cancels jobs. Safe to use from several threads. Made by `duewheel.connect`.

    Args:
        log: where commands go.
        clock: what "now" is.
        encode_schedule, encode_cancel, encode_redrive, encode_drop, encode_change: make a command's bytes.
        new_id: makes a job id, given the time in milliseconds.
        results: what handles wait with; without, they cannot.
        propagate: gives what is to travel in the headers of each job, such as the trace it belongs to.
    """

    def __init__(
        self,
        log: IntakeLog,
        clock: Clock,
        encode_schedule: Callable[[Schedule], bytes],
        encode_cancel: Callable[[Cancel], bytes],
        encode_redrive: Callable[[Redrive], bytes],
        encode_drop: Callable[[Drop], bytes],
        encode_change: Callable[[Change], bytes],
        new_id: Callable[[int], str],
        results: Results | None = None,
        propagate: Propagate | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._encode_schedule = encode_schedule
        self._encode_cancel = encode_cancel
        self._encode_redrive = encode_redrive
        self._encode_drop = encode_drop
        self._encode_change = encode_change
        self._new_id = new_id
        self._results = results
        self._propagate = propagate

    def schedule(
        self,
        task: str,
        payload: Any = None,
        *,
        at: datetime | int | None = None,
        delay: timedelta | float | None = None,
        job_id: str | None = None,
        queue: str = QUEUE_DEFAULT,
        headers: Mapping[str, str] | None = None,
        on_conflict: Literal["ignore", "replace", "reject"] = "ignore",
        retention: timedelta | float | None = None,
        expires_at: datetime | int | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        total_timeout: timedelta | float | None = None,
        crash_limit: int | None = None,
        unique_by: Sequence[str] | None = None,
        every: timedelta | float | None = None,
        every_after: timedelta | float | None = None,
        cron: str | None = None,
        tz: str | None = None,
        start: datetime | int | None = None,
        end: datetime | int | None = None,
        max_runs: int | None = None,
        jitter: timedelta | float | None = None,
        misfire: Literal["once", "skip", "all"] | None = None,
        misfire_limit: int | None = None,
        grace: timedelta | float | None = None,
        overlap: Literal["skip", "allow", "queue", "replace"] | None = None,
        overlap_limit: int | None = None,
    ) -> JobHandle:
        """Schedules one job, and returns when it is durable. The arguments are those of `Job`.

        Each run of a job that recurs is a job of its own, under the id `<job_id>@<slot in milliseconds>`.

        Raises:
            RejectedJob: the job breaks a rule; nothing was sent.
            BrokerUnavailable: nobody acknowledged it in time. It may be scheduled or not. With `on_conflict="ignore"` the same call
                with the same `job_id` is safe; with "replace" it may define the job, and run it, once more.
            TopicMissing, EnvironmentFailure: it could not be stored.
        """
        job = Job(
            task, payload, at, delay, job_id, queue, headers, on_conflict, retention, expires_at, retry, timeout, total_timeout,
            crash_limit, unique_by,
            every, every_after, cron, tz, start, end, max_runs, jitter, misfire, misfire_limit, grace, overlap, overlap_limit,
        )  # fmt: skip
        return self._sent(self._schedule(job))

    def deliver(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        at: datetime | int | None = None,
        delay: timedelta | float | None = None,
        job_id: str | None = None,
        on_conflict: Literal["ignore", "replace", "reject"] = "ignore",
        retention: timedelta | float | None = None,
        expires_at: datetime | int | None = None,
        every: timedelta | float | None = None,
        every_after: timedelta | float | None = None,
        cron: str | None = None,
        tz: str | None = None,
        start: datetime | int | None = None,
        end: datetime | int | None = None,
        max_runs: int | None = None,
        jitter: timedelta | float | None = None,
        misfire: Literal["once", "skip", "all"] | None = None,
        misfire_limit: int | None = None,
        grace: timedelta | float | None = None,
        overlap: Literal["skip", "allow", "queue", "replace"] | None = None,
        overlap_limit: int | None = None,
    ) -> JobHandle:
        """Lets a record be put on a topic at its time, with no worker, and returns when the request is durable. The arguments are those of
        `Delivery`, and it is a job in all else: it is waited for, cancelled, replaced as any.

        Which topics may be delivered to, the processors say (`duewheel processor --deliver-to`), and so nothing is refused for that here:
        a topic that is not among them becomes a dead letter, and `JobHandle.wait` raises JobUnknown.

        Raises: as `schedule`.
        """
        record = Delivery(
            topic, value, key, headers, at, delay, job_id, on_conflict, retention, expires_at,
            every, every_after, cron, tz, start, end, max_runs, jitter, misfire, misfire_limit, grace, overlap, overlap_limit,
        )  # fmt: skip
        return self._sent(self._schedule(record))

    def _sent(self, command: Schedule) -> JobHandle:
        job_id, due_ms = command["job_id"], command["due_ms"]
        encoded = self._encode_schedule(command)
        partition, offset = self._log.append(job_id.encode(), encoded)
        sought = Sought(job_id, partition, offset, command["created_ms"], mark(encoded), command["on_conflict"])
        return JobHandle(job_id, due_ms, partition, offset, self._results, sought)

    def handle(self, job_id: str) -> JobHandle:
        """A handle to wait with for a job of which only the id is known, such as one of `schedule_many` or of another process.

        It stands for whatever the id means while it is waited for: the newest definition, also one that is still to come. To find out,
        the job's partition of the state topic is read from its beginning at the first wait: some seconds for a million jobs.

        Raises:
            RejectedJob: no job can have this id.
        """
        cancel_command(job_id, 0)
        return JobHandle(job_id, 0, -1, -1, self._results, Sought(job_id))

    def schedule_many(
        self,
        jobs: Iterable[Job | Delivery],
        *,
        on_failure: Callable[[JobFailed], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Scheduled:
        """Schedules many jobs at full speed, records to deliver among them, and returns when all of them are durable.

        `jobs` is read as it is sent, so it may be endless in memory's eyes: a generator will do.

        Without `on_failure` the first failure ends it. With it, a job that breaks a rule is reported there and the others go on. A
        broker that does not acknowledge ends it either way: no further job is read, those under way are waited for, and each that
        failed is reported before the error is raised.

        Args:
            on_failure: called with each job that was not acknowledged.
            on_progress: called about ten times a second, and at the end, with how many are durable so far.

        Raises:
            RejectedJob: a job breaks a rule, and there is no `on_failure`. The message says which, and how many are durable.
            BrokerUnavailable, TopicMissing, EnvironmentFailure: as for `schedule`; the message says how many are durable.
        """
        return Bulk(self._log, self._command, on_failure, on_progress).run(jobs)

    def cancel(self, job_id: str, *, reach: Literal["job", "running"] | None = None) -> Receipt:
        """Asks for a job to be run no more, and returns when the request is durable.

        One that has not been dispatched never starts. One that runs is asked to stop: its `context.cancelled` becomes true, a coroutine is
        cancelled, and it is not tried again; if it succeeds all the same, that counts. An id that nobody knows is no error.

        Args:
            reach: "job" leaves alone what was handed out: it ends as it will, and nothing follows it. "running" takes along what runs: of a
                job that recurs all runs that go on, which else it does not touch.

        Raises: as `schedule`.
        """
        command = cancel_command(job_id, self._clock.wall_ms(), reach)
        return self._log.append(job_id.encode(), self._encode_cancel(command))

    def pause(self, job_id: str) -> ChangeHandle:
        """Asks for a job to start no more until it is resumed, and returns when the request is durable.

        What runs goes on: pausing is for jobs that wait. The slots of a recurring job that pass meanwhile are missed ones, for which its
        `misfire` holds.

        Raises: as `schedule`; after BrokerUnavailable the same call is safe.
        """
        return self._change(job_id, Action.PAUSE)

    def resume(self, job_id: str) -> ChangeHandle:
        """Asks for a paused job to wait for its time again, which may have come. As `pause`."""
        return self._change(job_id, Action.RESUME)

    def run_now(self, job_id: str) -> ChangeHandle:
        """Asks for a job to run at once: one that waits or is paused is due now; one that recurs has a run beside its slots, under the id
        `<job_id>@<now in milliseconds>`.

        Raises: as `schedule`. After BrokerUnavailable a recurring job may run once more by the same call.
        """
        return self._change(job_id, Action.RUN_NOW)

    def reschedule(self, job_id: str, *, at: datetime | int | None = None, delay: timedelta | float | None = None) -> ChangeHandle:
        """Asks for a job that waits or is paused to be due at another time. Between two attempts it puts off the next one.

        Raises: as `schedule`; after BrokerUnavailable the same call with `at` is safe.
        """
        return self._change(job_id, Action.UPDATE, Update(at=at, delay=delay))

    def update(self, job_id: str, update: Update) -> ChangeHandle:
        """Asks for a job that waits or is paused to be defined anew in part: what `update` gives, and nothing else.

        A recurring job keeps its slots where their recurrence stays, its runs and its counts.

        Raises: as `schedule`; after BrokerUnavailable the same call is safe, but for a `delay`.
        """
        return self._change(job_id, Action.UPDATE, update)

    def redrive(self, job_id: str, token: int) -> Receipt:
        """Asks for a dead run to be run again, with fresh attempts, and returns when the request is durable.

        Only a run that is dead with this very token is touched, so that the same call again, or anybody else's, redrives it once.

        Args:
            token: with which it died, as `duewheel dead list` says.

        Raises: as `schedule`; after BrokerUnavailable the same call is safe.
        """
        key, value = self._redrive((job_id, token))
        return self._log.append(key.encode(), value)

    def redrive_many(self, runs: Iterable[tuple[str, int]], *, on_progress: Callable[[int], None] | None = None) -> int:
        """Redrives many dead runs, each given as job id and token, and returns how many requests are durable: all.

        Args:
            runs: read as they are sent.
            on_progress: as in `schedule_many`.

        Raises: as `schedule_many` without `on_failure`; the same call is safe again.
        """
        return Bulk(self._log, self._redrive, None, on_progress, "redrive").run(runs).acknowledged

    def drop(self, job_id: str, token: int) -> Receipt:
        """Asks for a dead run to be forgotten, so that its job id may be used anew, and returns when the request is durable.

        The arguments and errors are those of `redrive`.
        """
        key, value = self._drop((job_id, token))
        return self._log.append(key.encode(), value)

    def drop_many(self, runs: Iterable[tuple[str, int]], *, on_progress: Callable[[int], None] | None = None) -> int:
        """Drops many dead runs; as `redrive_many`."""
        return Bulk(self._log, self._drop, None, on_progress, "drop").run(runs).acknowledged

    def close(self) -> None:
        """Lets go of the connections, after calls in other threads have ended; bounded by the timeout. Whoever waits for a job is told that
        the client was closed. Closing twice is fine."""
        if self._results is not None:
            self._results.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _schedule(self, job: Job | Delivery) -> Schedule:
        if self._propagate is not None:
            job = job._replace(headers=enriched(job.headers, self._propagate()))
        make = deliver_command if isinstance(job, Delivery) else schedule_command
        return make(job, self._clock.wall_ms(), self._new_id)  # type: ignore[arg-type]

    def _change(self, job_id: str, action: Action, update: Update | None = None) -> ChangeHandle:
        command = change_command(job_id, action, self._clock.wall_ms(), update)
        partition, offset = self._log.append(job_id.encode(), self._encode_change(command))
        return ChangeHandle(job_id, partition, offset, self._results, Sought(job_id, partition, offset, command["created_ms"]))

    def _command(self, job: Job | Delivery) -> tuple[str, bytes]:
        command = self._schedule(job)
        return command["job_id"], self._encode_schedule(command)

    def _redrive(self, run: tuple[str, int]) -> tuple[str, bytes]:
        command = redrive_command(*run, self._clock.wall_ms())
        return command["job_id"], self._encode_redrive(command)

    def _drop(self, run: tuple[str, int]) -> tuple[str, bytes]:
        command = drop_command(*run, self._clock.wall_ms())
        return command["job_id"], self._encode_drop(command)
