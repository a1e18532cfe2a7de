"""For your own tests: jobs that run at once, in this process, without a broker.

    from duewheel.testing import Inline

    def test_a_welcome_is_sent():
        inline = Inline(app)
        ran = inline.schedule("send_email", {"to": "ada@example.org"}, delay=600)
        assert ran.result == "SUCCEEDED"

Code of yours that takes a client is given `inline.client`, a real one over a log that runs what is appended to it; `inline.ran` says what
became of each job.

What works here is to work in production. So nothing is passed on as it is: the job is checked by the client's rules, becomes the bytes
that the intake topic would hold, is read back, and becomes the bytes of a dispatch, from which the handler gets its payload; and its result
is the one that an outcome's bytes can carry. A payload that JSON cannot say is refused, tuples arrive as lists, and without
`keep_result=True` there is no result.

    payload ─► command ─► bytes ─► command ─► dispatch ─► bytes ─► dispatch ─► handler ─► outcome ─► bytes ─► outcome

What is left out is time and company. A job runs once, whatever it was delayed and however it recurs, in the calling thread and at its due
time: the first attempt is made, and what would follow is told (`retry_after_ms`) and not done. Nothing is timed out, cancelled or held
back by a limit, and a task with executor="process" runs here too. Coroutine functions get an event loop of their own. A job id is known
after its first use, and the same id again is ignored or replaces, as in production.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.adapters.system import SystemClock, new_job_id
from duewheel.client import Client, JobConflict
from duewheel.core import trail as trails
from duewheel.core.commands import check_schedule
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.model import Dispatch, Failure, OnConflict, Outcome, Result, Schedule
from duewheel.core.retry import DEFAULT
from duewheel.core.topology import Topology
from duewheel.ports import Clock, Receipt
from duewheel.worker.app import App, Context, Task
from duewheel.worker.holding import NOWHERE
from duewheel.worker.reports import Reports
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import UnknownTask, Verdict, on_error

_EXPIRED: Final = Verdict(Result.EXPIRED.value)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a job's first attempt.

    Attributes:
        job_id: as given, or as made.
        result: SUCCEEDED; RETRY, where another attempt would follow; FAILED, where none would; DISCARDED, SNOOZED, CANCELLED, EXPIRED.
        value: what the handler returned, from JSON; None unless its task has keep_result=True.
        error: what it raised, as it would be kept: type, message, traceback.
        retry_after_ms: when RETRY or SNOOZED would be followed by another attempt.
    """

    job_id: str
    result: Result
    value: Any
    error: Failure | None
    retry_after_ms: int

    @property
    def succeeded(self) -> bool:
        return self.result is Result.SUCCEEDED


class Inline:
    """An installation without brokers, in which jobs run when they are scheduled.

    Args:
        app: whose tasks there are.
        clock: what "now" is.

    Attributes:
        client: schedules as any client does. Its handles cannot be waited with: look into `ran`.
        ran: what became of each job, in the order in which they were scheduled.
    """

    def __init__(self, app: App, clock: Clock | None = None) -> None:
        clock = SystemClock() if clock is None else clock
        encoders = (codec.encode_schedule, codec.encode_cancel, codec.encode_redrive, codec.encode_drop, codec.encode_change)
        self._log = _Intake(app, clock)
        self.client = Client(self._log, clock, *encoders, new_job_id)
        self.ran = self._log.ran

    def schedule(self, task: str, payload: Any = None, **options: Any) -> Ran:
        """Runs one job. The arguments are those of `Client.schedule`.

        Returns:
            What became of it; where its id was known and it was ignored, of the job that was known.

        Raises:
            RejectedJob: the job breaks a rule, as where its payload cannot be written as JSON.
            JobConflict: its id is known, and it asks to be rejected then.
        """
        return self._log.known[self.client.schedule(task, payload, **options).job_id]


def run_inline(app: App, task: str, payload: Any = None, **options: Any) -> Ran:
    """Runs one job, as `Inline.schedule`."""
    return Inline(app).schedule(task, payload, **options)


class _Intake:
    """An intake log, timer processor and worker in one: what is appended has run when `append` returns."""

    def __init__(self, app: App, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._offset = 0
        self.ran: list[Ran] = []
        self.known: dict[str, Ran] = {}

    def append(self, key: bytes, value: bytes) -> Receipt:
        command = codec.decode_command(value)
        if command[0] == "schedule":  # nothing waits that could be cancelled, and nobody keeps the dead
            schedule = command[1]
            check_schedule(schedule)
            known = self.known.get(schedule["job_id"])
            if known is not None and schedule["on_conflict"] == OnConflict.REJECT:
                raise JobConflict(f"job {known.job_id} was known already, so this one was rejected, as it had asked")
            if known is None or schedule["on_conflict"] == OnConflict.REPLACE:
                ran = self._run(key, schedule, command[2])
                self.ran.append(ran)
                self.known[ran.job_id] = ran
        self._offset += 1
        return Receipt(0, self._offset - 1)

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        count = 0
        for _, key, value in records:
            self.append(key, value)
            count += 1
        progressed(count)

    def close(self) -> None: ...

    def _run(self, key: bytes, schedule: Schedule, work: bytes) -> Ran:
        if schedule["delivery"] is not None:  # there is no topic here
            return Ran(schedule["job_id"], Result.SUCCEEDED, None, None, 0)
        now_ms, limits = max(self._clock.wall_ms(), schedule["due_ms"]), schedule["limits"]
        first_ms = now_ms if limits is not None and limits["total_timeout_ms"] else 0
        terms = trails.terms(limits, trails.begun(None, first_ms), 0)
        token = self._offset + 1
        encoded = codec.splice_dispatch(token, schedule["job_id"], 1, schedule["due_ms"], 1, 0, now_ms, terms, work)
        return _ran(self._outcome(key, codec.decode_dispatch(encoded), schedule["queue"], now_ms))

    def _outcome(self, key: bytes, dispatch: Dispatch, queue: str, now_ms: int) -> Outcome:
        reports = Reports("inline", Topology("inline"), codec, self._clock)
        task, terms = self._app.tasks.get(dispatch["work"]["task"]), dispatch["terms"]
        if terms is not None and 0 < terms["expires_ms"] <= now_ms:
            reports.unrun(dispatch, key, _EXPIRED)
        elif task is None:
            message = f"task {dispatch['work']['task']!r} is not registered in the app, which has: {', '.join(sorted(self._app.tasks))}"
            reports.unrun(dispatch, key, on_error(UnknownTask(message), DEFAULT, dispatch))
        else:
            run = Run(NOWHERE, 0, key, dispatch, task, 0)
            run.started_ms = self._clock.wall_ms()
            _perform(run, Context(dispatch, queue))
            run.finished_ms = self._clock.wall_ms()
            reports.end((run,))
        ((_, value, _, _),) = reports.waiting()
        return codec.decode_outcome(value)


def _perform(run: Run, context: Context) -> None:
    """Calls the handler. Ctrl-C, and what a test runner raises to end a test, are not its failures, and go through."""
    try:
        value = contextvars.Context().run(_call, run.task, context)
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:
        run.fail(error)
    else:
        run.end(value)


def _call(task: Task, context: Context) -> Any:
    if not task.is_async:
        return task.call(context)

    async def call() -> Any:
        return await task.call(context)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    # The test is a coroutine itself, and there is one event loop a thread.
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(contextvars.copy_context().run, asyncio.run, call()).result()


def _ran(outcome: Outcome) -> Ran:
    output = outcome["output"]
    value = None if output is None else json.loads(output)
    return Ran(outcome["job_id"], Result(outcome["result"]), value, outcome["error"], outcome["retry_after_ms"])
