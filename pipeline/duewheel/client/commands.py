"""From what a producer writes down to the command that goes to the intake topic.

A producer thinks in datetimes, delays and Python values; the topic carries milliseconds and bytes. Everything that can go wrong on the
way is found here, before anything is sent, and raised as `RejectedJob` with the value and the limit.

Time is converted so that nothing is ever early: fractions of a millisecond are rounded up.

    at=datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)    due_ms = 1893456000001    one microsecond past the second
    delay=1.1, the clock shows 5_000 ms                due_ms = 6101             5,000 may be 5,000.9; so 5,001 + 1,100

A job costs about 5 µs here, most of it for its id, its payload and the rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final, Literal, NamedTuple, NoReturn

from duewheel.client.unique import unique_id
from duewheel.core import model
from duewheel.core.commands import check_cancel, check_change, check_drop, check_redrive, check_schedule
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import DUE_MS_MAX, RETENTION_MS_DEFAULT
from duewheel.core.model import (
    Action,
    Cancel,
    Change,
    Drop,
    Limits,
    Misfire,
    OnConflict,
    Overlap,
    Policy,
    Recurrence,
    RecurrenceKind,
    Redrive,
    Schedule,
)
from duewheel.core.retry import RetryPolicy
from duewheel.core.topology import QUEUE_DEFAULT

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"

# As tuples, because `int | float` would make a new object at every job.
_BYTES: Final = (bytes, bytearray, memoryview)
_NUMBER: Final = (int, float)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SPAN_S_MAX: Final = DUE_MS_MAX // 1_000
_UNSAID: Final = RetryPolicy()
_ON_CONFLICT: Final = {choice.lower(): choice.value for choice in OnConflict}
_MISFIRE: Final = {misfire.lower(): misfire.value for misfire in Misfire}
_REACH: Final = {None: "DEFAULT", "job": "JOB", "running": "RUNNING"}
_OVERLAP: Final = {overlap.lower(): overlap.value for overlap in Overlap}


class Job(NamedTuple):
    """A job to schedule.

    Attributes:
        task: name of the handler, as the workers registered it.
        payload: the handler's argument. `bytes` travel as they are; everything else as JSON.
        at: when: a datetime with a time zone, or milliseconds since the epoch. A time that has passed means at once, as does neither
            `at` nor `delay`.
        delay: how long from now: a timedelta, or seconds.
        job_id: names the job for ever, and deduplicates: 1 to 255 bytes of UTF-8. One is made where none is given.
        queue: which workers.
        headers: strings that travel with the job, for its handler alone.
        on_conflict: where the id is known already: `ignore` this job, `replace` that one, or `reject` this one, which leaves a dead letter
            and makes `JobHandle.wait` raise.
        retention: how long a finished job stays known, and its id deduplicates: a timedelta, or seconds. A day by default.
        expires_at: no attempt starts at this time or later, given as `at` is; a job that none was started of by then ends as expired.
            Never by default.
        retry: when failed attempts are tried again; what it says wins over the task's own policy.
        timeout: how long one attempt may take: a timedelta, or seconds. As the task says by default.
        total_timeout: how long all attempts together may take, from when the first one is handed out: a timedelta, or seconds. For ever
            by default.
        crash_limit: how many attempts may end because their worker vanished; with the last of them the run is dead. 3 by default.
        unique_by: makes the job id from these fields, so that there is one job for the same values: "task", "queue", and fields of the
            payload, as in ("task", "user_id"). In place of `job_id`; `client.unique` tells how it is made.
        every: run again and again, so long after one another: a timedelta, or seconds, of elapsed time. Beginning at `start`; or at `at`,
            after `delay`, or at once. docs/schedules.md tells all of what follows.
        every_after: the same, counted from the end of the run before.
        cron: run as this cron line says: five fields, six with seconds before them, or a nickname as @daily.
        tz: whose clocks the line means: an IANA name. UTC by default.
        start: no slot lies before, and `every` counts from here: given as `at` is, and may have passed.
        end: no slot lies at this time or later, given as `at` is.
        max_runs: how many slots are run at most.
        jitter: a run starts up to so long after its slot: a timedelta, or seconds.
        misfire: what becomes of slots for which nobody was there: `once` runs the newest, `skip` none, `all` the newest `misfire_limit`.
        misfire_limit: 10 by default.
        grace: how late a slot may be and is not missed yet: a timedelta, or seconds. A minute by default.
        overlap: what becomes of a slot while the run before goes on: `skip` leaves it out, `allow` runs up to `overlap_limit` at once,
            `queue` lets it wait, `replace` cancels what goes on.
        overlap_limit: 10 by default.
    """

    task: str
    payload: Any = None
    at: datetime | int | None = None
    delay: timedelta | float | None = None
    job_id: str | None = None
    queue: str = QUEUE_DEFAULT
    headers: Mapping[str, str] | None = None
    on_conflict: Literal["ignore", "replace", "reject"] = "ignore"
    retention: timedelta | float | None = None
    expires_at: datetime | int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | float | None = None
    total_timeout: timedelta | float | None = None
    crash_limit: int | None = None
    unique_by: Sequence[str] | None = None
    every: timedelta | float | None = None
    every_after: timedelta | float | None = None
    cron: str | None = None
    tz: str | None = None
    start: datetime | int | None = None
    end: datetime | int | None = None
    max_runs: int | None = None
    jitter: timedelta | float | None = None
    misfire: Literal["once", "skip", "all"] | None = None
    misfire_limit: int | None = None
    grace: timedelta | float | None = None
    overlap: Literal["skip", "allow", "queue", "replace"] | None = None
    overlap_limit: int | None = None


class Delivery(NamedTuple):
    """A record to put on a topic when the time comes, with no worker.

    It is put there by the processors, in one transaction with the end of the job, so that whoever reads only what is committed sees it
    exactly once. Beside its own headers it has `duewheel-job-id`, `duewheel-slot-ms` and `duewheel-token`.

    Attributes:
        topic: one that the processors may deliver to.
        value: as it will lie there: bytes, or a string, in UTF-8. None is a tombstone.
        key: likewise; it decides about the partition, as in Kafka's own clients. None is no key, and any partition.
        headers: strings, which will lie there in UTF-8.
        at, delay, job_id, on_conflict, retention, every, every_after, cron, tz, start, end, max_runs, jitter, misfire, misfire_limit,
            grace, overlap, overlap_limit: as of a `Job`.
        expires_at: the record is not delivered at this time or later.
    """

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Mapping[str, str] | None = None
    at: datetime | int | None = None
    delay: timedelta | float | None = None
    job_id: str | None = None
    on_conflict: Literal["ignore", "replace", "reject"] = "ignore"
    retention: timedelta | float | None = None
    expires_at: datetime | int | None = None
    every: timedelta | float | None = None
    every_after: timedelta | float | None = None
    cron: str | None = None
    tz: str | None = None
    start: datetime | int | None = None
    end: datetime | int | None = None
    max_runs: int | None = None
    jitter: timedelta | float | None = None
    misfire: Literal["once", "skip", "all"] | None = None
    misfire_limit: int | None = None
    grace: timedelta | float | None = None
    overlap: Literal["skip", "allow", "queue", "replace"] | None = None
    overlap_limit: int | None = None


_ONCE_AT: Final = Job._fields.index("every")
_ONCE: Final = (None,) * (len(Job._fields) - _ONCE_AT)
# What stands for a task where no worker is asked.
TASK_OF_DELIVERIES: Final = "duewheel.deliver"


def deliver_command(given: Delivery, now_ms: int, new_id: Callable[[int], str]) -> Schedule:
    """The command that asks for a record to be delivered; as `schedule_command`."""
    value, key = _as_bytes(given.value, "value", Reason.BAD_PAYLOAD), _as_bytes(given.key, "key", Reason.BAD_DELIVERY)
    job = Job(TASK_OF_DELIVERIES, value or b"", **{name: part for name, part in given._asdict().items() if name in _SHARED})
    return schedule_command(job, now_ms, new_id, {"topic": given.topic, "key": key, "tombstone": value is None})


_SHARED: Final = frozenset(Delivery._fields) & frozenset(Job._fields)


def schedule_command(job: Job, now_ms: int, new_id: Callable[[int], str], delivery: model.Delivery | None = None) -> Schedule:
    """The command that asks for `job`.

    Args:
        delivery: where to put its payload, in place of running it.
        now_ms: the clock, rounded down.
        new_id: makes an id, given the time.

    Raises:
        RejectedJob: the job breaks a rule.
    """
    content_type, payload = _encode(job.payload)
    command: Schedule = {
        "job_id": _job_id(job, now_ms, new_id) if job.job_id is None or job.unique_by is not None else job.job_id,
        "due_ms": _due_ms(job.at, job.delay, now_ms),
        "created_ms": now_ms,
        "on_conflict": _on_conflict(job.on_conflict),
        "retention_ms": RETENTION_MS_DEFAULT if job.retention is None else _span_ms(job.retention, "retention", Reason.BAD_RETENTION),
        "queue": job.queue,
        "limits": _limits(job),
        "recurrence": None if job[_ONCE_AT:] == _ONCE else _recurrence(job),
        "delivery": delivery,
        "work": {
            "task": job.task,
            "content_type": content_type,
            "payload": payload,
            "headers": _headers(job.headers),
            "policy": None if job.retry is None and job.timeout is None else _policy(job),
        },
    }
    check_schedule(command)
    return command


def cancel_command(job_id: str, now_ms: int, reach: str | None = None) -> Cancel:
    """The command that asks for `job_id` not to be started any more.

    Raises:
        RejectedJob: no job can have this id, or no cancel this reach.
    """
    symbol = _REACH.get(reach) if reach is None or isinstance(reach, str) else None
    if symbol is None:
        raise RejectedJob(Reason.BAD_CHANGE, f"reach={reach!r} is unknown; it may be 'job' or 'running', or left out")
    command: Cancel = {"job_id": job_id, "created_ms": now_ms, "reach": symbol}
    check_cancel(command)
    return command


class Update(NamedTuple):
    """What is to change of a job that waits. What is None stays as it is; the rest is as in `Job`."""

    payload: Any = None
    at: datetime | int | None = None
    delay: timedelta | float | None = None
    headers: Mapping[str, str] | None = None
    retention: timedelta | float | None = None
    expires_at: datetime | int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | float | None = None
    total_timeout: timedelta | float | None = None
    crash_limit: int | None = None
    every: timedelta | float | None = None
    every_after: timedelta | float | None = None
    cron: str | None = None
    tz: str | None = None
    start: datetime | int | None = None
    end: datetime | int | None = None
    max_runs: int | None = None
    jitter: timedelta | float | None = None
    misfire: Literal["once", "skip", "all"] | None = None
    misfire_limit: int | None = None
    grace: timedelta | float | None = None
    overlap: Literal["skip", "allow", "queue", "replace"] | None = None
    overlap_limit: int | None = None


def change_command(job_id: str, action: Action, now_ms: int, update: Update | None = None) -> Change:
    """The command that asks for a job to be changed.

    Raises:
        RejectedJob: no job can have this id, or nothing is to change, or what is to change breaks a rule.
    """
    job = Job("", **{} if update is None else update._asdict())
    content_type, payload = (None, None) if job.payload is None else _encode(job.payload)
    command: Change = {
        "job_id": job_id,
        "created_ms": now_ms,
        "action": action.value,
        "due_ms": None if job.at is None and job.delay is None else _due_ms(job.at, job.delay, now_ms),
        "retention_ms": None if job.retention is None else _span_ms(job.retention, "retention", Reason.BAD_RETENTION),
        "limits": _limits(job),
        "recurrence": None if job[_ONCE_AT:] == _ONCE else _recurrence(job),
        "payload": payload,
        "content_type": content_type,
        "headers": None if job.headers is None else _headers(job.headers),
        "policy": None if job.retry is None and job.timeout is None else _policy(job),
    }
    check_change(command)
    return command


def redrive_command(job_id: str, token: int, now_ms: int) -> Redrive:
    """The command that asks for the run that died with `token` to be run again.

    Raises:
        RejectedJob: no job can have this id, or no attempt this token.
    """
    command: Redrive = {"job_id": job_id, "token": token, "created_ms": now_ms}
    check_redrive(command)
    return command


def drop_command(job_id: str, token: int, now_ms: int) -> Drop:
    """The command that asks for the run that died with `token` to be forgotten.

    Raises:
        RejectedJob: no job can have this id, or no attempt this token.
    """
    command: Drop = {"job_id": job_id, "token": token, "created_ms": now_ms}
    check_drop(command)
    return command


def _job_id(job: Job, now_ms: int, new_id: Callable[[int], str]) -> str:
    if job.unique_by is None:
        return new_id(now_ms)
    if job.job_id is not None:
        raise RejectedJob(Reason.BAD_UNIQUE_BY, f"job_id={job.job_id!r} and unique_by={job.unique_by!r} both name the job; give one")
    return unique_id(job.unique_by, task=job.task, queue=job.queue, payload=job.payload)


# --- what few jobs have ---


def _limits(job: Job) -> Limits | None:
    expires_at, total_timeout, crash_limit = job.expires_at, job.total_timeout, job.crash_limit
    if expires_at is None and total_timeout is None and crash_limit is None:
        return None
    # In the record 0 is what was not said; what a caller says is never that.
    if expires_at == 0 or crash_limit == 0:
        raise RejectedJob(
            Reason.BAD_LIMITS, f"expires_at={expires_at!r}, crash_limit={crash_limit!r}: 0 is none; leave out what is not to be limited"
        )
    return {
        "expires_ms": 0 if expires_at is None else _expires_ms(expires_at),
        "total_timeout_ms": 0 if total_timeout is None else _timeout_ms(total_timeout, "total_timeout", Reason.BAD_LIMITS),
        "crashes_max": 0 if crash_limit is None else crash_limit,
    }


def _policy(job: Job) -> Policy:
    policy = _UNSAID if job.retry is None else job.retry
    if not isinstance(policy, RetryPolicy):
        raise RejectedJob(Reason.BAD_POLICY, f"retry={_short(policy)} is no RetryPolicy; give one, such as RetryPolicy(attempts=3)")
    return policy.to_record(0 if job.timeout is None else _timeout_ms(job.timeout, "timeout", Reason.BAD_POLICY))


def _timeout_ms(span: timedelta | float, name: str, reason: Reason) -> int:
    timeout_ms = _span_ms(span, name, reason)
    if timeout_ms == 0:  # in the record it would mean none
        raise RejectedJob(reason, f"{name}={span!r} leaves no time at all; give a timedelta, or seconds, above 0")
    return timeout_ms


def _expires_ms(at: datetime | int) -> int:
    """Rounded down, unlike all other times: what expires must not start a fraction of a millisecond too late either."""
    if isinstance(at, datetime):
        return _since_epoch(at, "expires_at", Reason.BAD_LIMITS) // _MILLISECOND
    return _whole_ms(at, "expires_at", Reason.BAD_LIMITS)


# --- jobs that recur ---


def _recurrence(job: Job) -> Recurrence:
    kinds = {RecurrenceKind.EVERY: job.every, RecurrenceKind.EVERY_AFTER: job.every_after, RecurrenceKind.CRON: job.cron}
    given = [kind for kind, value in kinds.items() if value is not None]
    if len(given) != 1:
        raise RejectedJob(
            Reason.BAD_RECURRENCE,
            f"every={job.every!r}, every_after={job.every_after!r}, cron={job.cron!r}: a job that recurs has exactly one of them; give "
            "one, or nothing that belongs to it",
        )
    (kind,) = given
    if kind != RecurrenceKind.CRON and job.tz is not None:
        raise RejectedJob(Reason.BAD_ZONE, f"tz={job.tz!r} belongs to a cron line; intervals are elapsed time, in any zone: leave it out")
    for limit, policy, name in ((job.misfire_limit, job.misfire, "misfire"), (job.overlap_limit, job.overlap, "overlap")):
        if limit is not None and policy not in ("all", "allow"):
            wanted = "all" if name == "misfire" else "allow"
            raise RejectedJob(
                Reason.BAD_RECURRENCE, f"{name}_limit={limit!r} belongs to {name}={wanted!r}, and {name} is {policy!r}; give that"
            )
    every = job.every if job.every_after is None else job.every_after
    return {
        "kind": kind.value,
        "every_ms": 0 if every is None else _span_ms(every, kind.lower(), Reason.BAD_RECURRENCE),
        "expression": job.cron or "",
        "zone": "UTC" if job.tz is None else job.tz,
        "start_ms": _moment_ms(job.start, "start"),
        "end_ms": _moment_ms(job.end, "end"),
        "runs_max": _count(job.max_runs, "max_runs"),
        "jitter_ms": 0 if job.jitter is None else _span_ms(job.jitter, "jitter", Reason.BAD_RECURRENCE),
        "misfire": _symbol(_MISFIRE, job.misfire, "misfire"),
        "misfire_max": _count(job.misfire_limit, "misfire_limit"),
        "grace_ms": 0 if job.grace is None else max(1, _span_ms(job.grace, "grace", Reason.BAD_RECURRENCE)),  # 0 is the default
        "overlap": _symbol(_OVERLAP, job.overlap, "overlap"),
        "overlap_max": _count(job.overlap_limit, "overlap_limit"),
    }


def _moment_ms(at: datetime | int | None, name: str) -> int:
    if at is None:
        return 0
    if isinstance(at, datetime):
        return _ceil_ms(_since_epoch(at, name, Reason.BAD_RECURRENCE))
    return _whole_ms(at, name, Reason.BAD_RECURRENCE)


def _count(count: int | None, name: str) -> int:
    if count is None:
        return 0
    if type(count) is int and count > 0:  # in the record 0 is what was not said
        return count
    raise RejectedJob(Reason.BAD_RECURRENCE, f"{name}={count!r} is no count; give an int from 1, or leave it out")


def _symbol(symbols: Mapping[str, str], choice: object, name: str) -> str:
    if choice is None:
        return next(iter(symbols.values()))
    symbol = symbols.get(choice) if isinstance(choice, str) else None
    if symbol is None:
        known = ", ".join(repr(word) for word in symbols)
        raise RejectedJob(Reason.BAD_RECURRENCE, f"{name}={choice!r} is unknown; it may be one of {known}")
    return symbol


# --- times ---


def _due_ms(at: datetime | int | None, delay: timedelta | float | None, now_ms: int) -> int:
    if delay is not None:
        if at is not None:
            raise RejectedJob(Reason.BAD_DUE, f"at={at!r} and delay={delay!r} were both given; a job has one due time, so give one")
        delay_ms = _span_ms(delay, "delay", Reason.BAD_DUE)
        # The clock is read in whole milliseconds, so that it may be almost one later than it says.
        return now_ms + 1 + delay_ms if delay_ms else now_ms
    if at is None:
        return now_ms
    if isinstance(at, datetime):
        return _ceil_ms(_since_epoch(at, "at", Reason.BAD_DUE))
    return _whole_ms(at, "at", Reason.BAD_DUE)


def _whole_ms(at: object, name: str, reason: Reason) -> int:
    if isinstance(at, int) and not isinstance(at, bool):
        return at
    raise RejectedJob(
        reason, f"{name}={at!r} is a {type(at).__name__}; give a datetime with a time zone, or milliseconds since the epoch as an int"
    )


def _since_epoch(at: datetime, name: str, reason: Reason) -> timedelta:
    if at.utcoffset() is None:
        raise RejectedJob(
            reason,
            f"{name}={at.isoformat()} has no time zone, so that it names another instant on every machine; "
            f"add the one that is meant: {name}.replace(tzinfo=UTC), or ZoneInfo('Europe/Berlin')",
        )
    return at - _EPOCH


def _ceil_ms(span: timedelta) -> int:
    whole, rest = divmod(span, _MILLISECOND)
    return whole + 1 if rest else whole


def _span_ms(span: timedelta | float, name: str, reason: Reason) -> int:
    """A duration in whole milliseconds, rounded up; never negative, never beyond what a due time can be."""
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, _NUMBER) and not isinstance(span, bool) and span == span:  # NaN differs from itself
        seconds = span
    else:
        raise RejectedJob(reason, f"{name}={span!r} is no duration; give a timedelta, or seconds as a number")
    if seconds < 0:
        raise RejectedJob(reason, f"{name}={span!r} is negative; the least is 0")
    if seconds > _SPAN_S_MAX:
        reason = Reason.DUE_TOO_LATE if reason is Reason.BAD_DUE else reason
        raise RejectedJob(reason, f"{name}={span!r} is longer than {_SPAN_S_MAX} s, which is beyond all due times; a number means seconds")
    if isinstance(span, timedelta):
        return _ceil_ms(span)
    if isinstance(span, int):
        return span * 1_000
    # Through the decimal number that was written: in binary 1.1 is a little more than 1.1, and would become 1,101 ms.
    return int((Decimal(float.__repr__(span)) * 1_000).to_integral_value(ROUND_CEILING))


def _on_conflict(choice: object) -> str:
    symbol = _ON_CONFLICT.get(choice) if isinstance(choice, str) else None
    if symbol is None:
        raise RejectedJob(Reason.BAD_ON_CONFLICT, f"on_conflict={choice!r} is unknown; it may be 'ignore', 'replace' or 'reject'")
    return symbol


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise RejectedJob(Reason.BAD_HEADERS, f"headers={headers!r} is a {type(headers).__name__}; give a mapping of strings to strings")
    return dict(headers)


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"it holds a {type(value).__name__}, {_short(value)}")


# Made once: json.dumps would make one for every job. Characters beyond ASCII travel as UTF-8, which is shorter than escapes.
_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse).encode


def _encode(payload: Any) -> tuple[str, bytes]:
    """(content type, bytes) of a payload."""
    if isinstance(payload, _BYTES):
        return BYTES, bytes(payload)
    try:
        return JSON, _to_json(payload).encode()
    except (TypeError, ValueError, RecursionError) as error:  # ValueError: NaN, circles, lone surrogates
        raise RejectedJob(
            Reason.BAD_PAYLOAD,
            f"the payload ({type(payload).__name__}) cannot be written as JSON: {error}; "
            "convert it to dicts, lists, strings, finite numbers, booleans and None, or pass bytes",
        ) from error


def _as_bytes(value: object, name: str, reason: Reason) -> bytes | None:
    """A part of a record to deliver."""
    if value is None or isinstance(value, _BYTES):
        return None if value is None else bytes(value)
    if not isinstance(value, str):
        raise RejectedJob(reason, f"the {name} of a record to deliver is a {type(value).__name__}; give bytes, a string, or None")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise RejectedJob(reason, f"the {name} of a record to deliver has no UTF-8 form: {error}; give bytes") from error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "…"
