"""The rules that a command must keep, the same for who sends it and for who obeys it.

The client checks before it sends, so that a mistake is the caller's error on the spot. The timer processor checks again, because
anybody may write to the intake topic. Both call the functions here, which read no clock: the verdict depends on the command alone, so
what a client of this version accepts no processor of this version refuses.

The rules are spelled out in functions named after what they check; each raises `RejectedJob` with the thing, the value, the limit and
the remedy. In front of them stands one expression that recognizes an ordinary command in half a microsecond, where the rules take four.
It may say no to a good command, which costs those microseconds; it never says yes to a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NoReturn

from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    DUE_MS_MAX,
    DUE_MS_MIN,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RETENTION_MS_MAX,
    TASK_BYTES_MAX,
)
from duewheel.core.model import Cancel, OnConflict, Schedule
from duewheel.core.topology import queue_fault

CONTENT_TYPES: Final = frozenset({"application/json", "application/octet-stream"})

_ON_CONFLICT: Final = frozenset(OnConflict)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# How many different names of tasks and queues are remembered as good. An installation has dozens.
_NAMES_CACHED_MAX: Final = 1_024


def check_schedule(record: Schedule) -> None:
    """Refuses a schedule that breaks a rule.

    Args:
        record: need not be of the right types: what a caller passed in is named, not stumbled over.

    Raises:
        RejectedJob: with the reason; the job must not be sent, or not be obeyed.
    """
    try:
        job_id, due_ms, work = record["job_id"], record["due_ms"], record["work"]
        payload, headers = work["payload"], work["headers"]
        if (
            job_id.isascii()
            and job_id.isprintable()
            and 0 < len(job_id) <= JOB_ID_BYTES_MAX
            and type(due_ms) is int
            and DUE_MS_MIN <= due_ms <= DUE_MS_MAX
            and type(payload) is bytes
            and len(payload) <= PAYLOAD_BYTES_MAX
            and type(record["retention_ms"]) is int
            and 0 <= record["retention_ms"] <= RETENTION_MS_MAX
            and _is_queue(record["queue"])
            and _is_task(work["task"])
            and work["content_type"] in CONTENT_TYPES
            and record["on_conflict"] in _ON_CONFLICT
            and type(headers) is dict
            and (not headers or _are_plain(headers))
        ):
            return
    except (AttributeError, TypeError):
        pass  # something is not of the type it should be; the rules say what
    _check_job_id(record["job_id"])
    _check_due(record["due_ms"])
    _check_on_conflict(record["on_conflict"])
    _check_retention(record["retention_ms"])
    _check_queue(record["queue"])
    work = record["work"]
    _check_task(work["task"])
    _check_content_type(work["content_type"])
    _check_payload(work["payload"])
    _check_headers(work["headers"])


def check_cancel(record: Cancel) -> None:
    """Refuses a cancel that can concern no job.

    Raises:
        RejectedJob: with the reason.
    """
    _check_job_id(record["job_id"])


# --- the rules ---


def _check_job_id(job_id: object) -> None:
    _check_name("job id", job_id, JOB_ID_BYTES_MAX, Reason.BAD_JOB_ID)


def _check_task(task: object) -> None:
    _check_name("task name", task, TASK_BYTES_MAX, Reason.BAD_TASK)


def _check_name(thing: str, name: object, bytes_max: int, reason: Reason) -> None:
    if not isinstance(name, str):
        _refuse(reason, f"the {thing} {_show(name)} is of type {type(name).__name__}; give a str")
    size = _utf8_bytes(name, f"{thing} {_show(name)}", reason)
    if size == 0:
        _refuse(reason, f"the {thing} is empty; give 1 to {bytes_max} bytes of UTF-8")
    if size > bytes_max:
        _refuse(reason, f"the {thing} {_show(name)} has {size:,} bytes in UTF-8, at most {bytes_max} are allowed; shorten it")
    control = _CONTROL.search(name)
    if control:
        _refuse(reason, f"the {thing} {_show(name)} has a control character, U+{ord(control[0]):04X}, at {control.start()}; leave it out")


def _check_due(due_ms: object) -> None:
    if type(due_ms) is not int:
        _refuse(Reason.BAD_DUE, f"due_ms {_show(due_ms)} is of type {type(due_ms).__name__}; give milliseconds since the epoch as an int")
    if due_ms < DUE_MS_MIN:
        limit = f"before the earliest due time {DUE_MS_MIN}, {_instant(DUE_MS_MIN)}"
        _refuse(Reason.DUE_TOO_EARLY, f"due_ms {_show(due_ms)} is {_instant(due_ms)}, {limit}; {_remedy(due_ms)}")
    if due_ms > DUE_MS_MAX:
        limit = f"after the latest due time {DUE_MS_MAX}, {_instant(DUE_MS_MAX)}"
        _refuse(Reason.DUE_TOO_LATE, f"due_ms {_show(due_ms)} is {_instant(due_ms)}, {limit}; {_remedy(due_ms)}")


def _check_on_conflict(on_conflict: object) -> None:
    if on_conflict not in tuple(OnConflict):
        _refuse(Reason.BAD_ON_CONFLICT, f"on_conflict {_show(on_conflict)} is not known; give one of {', '.join(OnConflict)}")


def _check_retention(retention_ms: object) -> None:
    if type(retention_ms) is not int:
        _refuse(
            Reason.BAD_RETENTION,
            f"retention_ms {_show(retention_ms)} is of type {type(retention_ms).__name__}; give milliseconds as an int",
        )
    if not 0 <= retention_ms <= RETENTION_MS_MAX:
        _refuse(
            Reason.BAD_RETENTION,
            f"retention_ms {_show(retention_ms)} is outside 0 to {RETENTION_MS_MAX}, which is {RETENTION_MS_MAX // 86_400_000} days; "
            "it says how long a finished job stays known",
        )


def _check_queue(queue: object) -> None:
    if not isinstance(queue, str):
        _refuse(Reason.BAD_QUEUE, f"the queue {_show(queue)} is of type {type(queue).__name__}; give a str")
    fault = queue_fault(queue)
    if fault is not None:
        _refuse(Reason.BAD_QUEUE, f"the queue {_show(queue)} {fault}")


def _check_content_type(content_type: object) -> None:
    if content_type not in tuple(CONTENT_TYPES):
        _refuse(
            Reason.BAD_CONTENT_TYPE, f"the content type {_show(content_type)} is not known; use one of {', '.join(sorted(CONTENT_TYPES))}"
        )


def _check_payload(payload: object) -> None:
    if not isinstance(payload, bytes):
        _refuse(Reason.BAD_PAYLOAD, f"the payload is of type {type(payload).__name__}; give it encoded, as bytes")
    if len(payload) > PAYLOAD_BYTES_MAX:
        _refuse(
            Reason.PAYLOAD_TOO_LARGE,
            f"the payload has {len(payload):,} bytes, at most {PAYLOAD_BYTES_MAX:,} are allowed; store it elsewhere and send where it lies",
        )


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        _refuse(Reason.BAD_HEADERS, f"the headers are of type {type(headers).__name__}; give a dict of str to str")
    if len(headers) > HEADERS_COUNT_MAX:
        _refuse(
            Reason.BAD_HEADERS, f"there are {len(headers):,} headers, at most {HEADERS_COUNT_MAX} are allowed; put them into the payload"
        )
    size = 0
    for name, value in headers.items():
        for part in (name, value):
            if not isinstance(part, str):
                _refuse(
                    Reason.BAD_HEADERS,
                    f"the header {_show(name)}: {_show(value)} holds a value of type {type(part).__name__}; give a str for name and value",
                )
            size += _utf8_bytes(part, f"header {_show(name)}", Reason.BAD_HEADERS)
    if size > HEADERS_BYTES_MAX:
        _refuse(
            Reason.BAD_HEADERS,
            f"the headers have {size:,} bytes, names and values together, at most {HEADERS_BYTES_MAX:,} are allowed; "
            "put them into the payload",
        )


# --- shortcuts, and words ---


def _holds(rule: Callable[[Any], None], value: object) -> bool:
    try:
        rule(value)
    except RejectedJob:
        return False
    return True


@lru_cache(_NAMES_CACHED_MAX)
def _is_queue(queue: object) -> bool:
    return _holds(_check_queue, queue)


@lru_cache(_NAMES_CACHED_MAX)
def _is_task(task: object) -> bool:
    return _holds(_check_task, task)


def _are_plain(headers: dict[str, str]) -> bool:
    text = "".join([*headers, *headers.values()])
    return text.isascii() and len(text) <= HEADERS_BYTES_MAX and len(headers) <= HEADERS_COUNT_MAX


def _utf8_bytes(text: str, thing: str, reason: Reason) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        _refuse(reason, f"the {thing} cannot be written in UTF-8: a lone surrogate at {error.start}; leave it out")


def _refuse(reason: Reason, message: str) -> NoReturn:
    raise RejectedJob(reason, message)


def _show(value: object) -> str:
    """The value, cut to what a message can hold."""
    if isinstance(value, (str, bytes)):
        value = value[:101]
    elif isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _instant(ms: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="seconds")
    except OverflowError:
        return "beyond any calendar"


def _remedy(due_ms: int) -> str:
    """Guesses the unit that was meant."""
    for unit, to_ms in (("seconds", due_ms * 1_000), ("microseconds", due_ms // 1_000), ("nanoseconds", due_ms // 1_000_000)):
        if DUE_MS_MIN <= to_ms <= DUE_MS_MAX:
            return f"it looks like {unit}: in milliseconds it is {to_ms}"
    return "give milliseconds since the epoch, UTC"
