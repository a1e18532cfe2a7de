"""The rules that a command must keep, the same for who sends it and for who obeys it.

The client checks before it sends, so that a mistake is the caller's error on the spot. The timer processor checks again, because
anybody may write to the intake topic. Both call the functions here, which read no clock: the verdict depends on the command alone, so
what a client of this version accepts no processor of this version refuses.

The rules are spelled out in functions named after what they check; each raises `RejectedJob` with the thing, the value, the limit and
the remedy. In front of them stands one expression that recognizes an ordinary command in half a microsecond, where the rules take four.
It may say no to a good command, which costs those microseconds; it never says yes to a bad one. Limits, policies and recurrences have
no short way: the few jobs that have them pay 2 µs, 5 µs, and 5 to 50 µs, or 100 µs for a cron line that is new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import copysign
from typing import Any, Final

from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    ATTEMPTS_MAX,
    CRASHES_MAX,
    DELIVERY_KEY_BYTES_MAX,
    DUE_MS_MAX,
    DUE_MS_MIN,
    ERROR_TYPE_CHARS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RETENTION_MS_MAX,
    RETRY_CLASSES_BYTES_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_MAX,
    RUN_TIMEOUT_MS_MAX,
    TASK_BYTES_MAX,
    TOTAL_TIMEOUT_MS_MAX,
)
from duewheel.core.model import Action, Cancel, Change, Delivery, Drop, Limits, OnConflict, Policy, Reach, Redrive, Schedule
from duewheel.core.recurrence_rules import check_recurrence
from duewheel.core.run_ids import SUFFIX_BYTES, parse
from duewheel.core.topology import QUEUE_DEFAULT, queue_fault, topic_fault
from duewheel.core.wording import check_number, instant, refuse, remedy, show, utf8_bytes

CONTENT_TYPES: Final = frozenset({"application/json", "application/octet-stream"})
TOKEN_MAX: Final = 2**63 - 1

_ON_CONFLICT: Final = frozenset(OnConflict)
_REACHES: Final = frozenset(Reach)
_LIMITS: Final = frozenset(Limits.__annotations__)
_POLICY: Final = frozenset(Policy.__annotations__)
_DELIVERY: Final = frozenset(Delivery.__annotations__)
_UPDATED: Final = ("due_ms", "retention_ms", "limits", "recurrence", "payload", "content_type", "headers", "policy")
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
        payload, headers, limits, policy = work["payload"], work["headers"], record["limits"], work["policy"]
        recurrence, delivery = record["recurrence"], record["delivery"]
        if (
            job_id.isascii()
            and job_id.isprintable()
            and 0 < len(job_id) <= JOB_ID_BYTES_MAX
            and ("@" not in job_id or parse(job_id) is None)
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
            and (limits is None or _holds(_check_limits, limits, due_ms))
            and (policy is None or _holds(_check_policy, policy))
            and (recurrence is None or _holds(_check_recurring, job_id, recurrence, due_ms, limits))
            and (delivery is None or _holds(_check_delivery, record))
        ):
            return
    except (AttributeError, TypeError):
        pass  # something is not of the type it should be; the rules say what
    _check_job_id(record["job_id"])
    _check_no_run(record["job_id"])
    _check_due(record["due_ms"])
    _check_on_conflict(record["on_conflict"])
    _check_retention(record["retention_ms"])
    _check_queue(record["queue"])
    _check_limits(record["limits"], record["due_ms"])
    _check_recurring(record["job_id"], record["recurrence"], record["due_ms"], record["limits"])
    work = record["work"]
    _check_task(work["task"])
    _check_content_type(work["content_type"])
    _check_payload(work["payload"])
    _check_headers(work["headers"])
    _check_policy(work["policy"])
    _check_delivery(record)


def check_cancel(record: Cancel) -> None:
    """Refuses a cancel that can concern no job.

    Raises:
        RejectedJob: with the reason.
    """
    _check_job_id(record["job_id"])
    if record["reach"] not in _REACHES:
        refuse(Reason.BAD_CHANGE, f"reach {show(record['reach'])} is not known; give one of {', '.join(Reach)}")


def check_change(record: Change) -> None:
    """Refuses a change that can concern no job, or that no job could take.

    Raises:
        RejectedJob: with the reason.
    """
    _check_job_id(record["job_id"])
    if parse(record["job_id"]) is not None:
        refuse(Reason.BAD_CHANGE, f"{show(record['job_id'])} is a run of a recurring job, on its own; change the job, or cancel the run")
    action, given = record["action"], [name for name in _UPDATED if record[name] is not None]
    if action not in tuple(Action):
        refuse(Reason.BAD_CHANGE, f"action {show(action)} is not known; give one of {', '.join(Action)}")
    if action == Action.UPDATE and not given:
        refuse(Reason.BAD_CHANGE, f"an UPDATE that gives none of {', '.join(_UPDATED)} changes nothing; give what is to change")
    if action != Action.UPDATE and given:
        refuse(Reason.BAD_CHANGE, f"{action} takes none of {', '.join(given)}; that is for UPDATE")
    if record["content_type"] is not None and record["payload"] is None:
        refuse(Reason.BAD_CHANGE, f"content_type {show(record['content_type'])} is of a payload, and none is given; give both")
    if action == Action.RUN_NOW:
        _check_due(record["created_ms"])  # it may name a run


def check_redrive(record: Redrive) -> None:
    """Refuses a redrive that can concern no dead run.

    Raises:
        RejectedJob: with the reason.
    """
    _check_job_id(record["job_id"])
    _check_token(record["token"])


def check_drop(record: Drop) -> None:
    """Refuses a drop that can concern no dead run.

    Raises:
        RejectedJob: with the reason.
    """
    _check_job_id(record["job_id"])
    _check_token(record["token"])


# --- the rules ---


def _check_job_id(job_id: object) -> None:
    _check_name("job id", job_id, JOB_ID_BYTES_MAX, Reason.BAD_JOB_ID)


def _check_task(task: object) -> None:
    _check_name("task name", task, TASK_BYTES_MAX, Reason.BAD_TASK)


def _check_name(thing: str, name: object, bytes_max: int, reason: Reason) -> None:
    if not isinstance(name, str):
        refuse(reason, f"the {thing} {show(name)} is of type {type(name).__name__}; give a str")
    size = utf8_bytes(name, f"{thing} {show(name)}", reason)
    if size == 0:
        refuse(reason, f"the {thing} is empty; give 1 to {bytes_max} bytes of UTF-8")
    if size > bytes_max:
        refuse(reason, f"the {thing} {show(name)} has {size:,} bytes in UTF-8, at most {bytes_max} are allowed; shorten it")
    control = _CONTROL.search(name)
    if control:
        refuse(reason, f"the {thing} {show(name)} has a control character, U+{ord(control[0]):04X}, at {control.start()}; leave it out")


def _check_no_run(job_id: str) -> None:
    run = parse(job_id)
    if run is not None:
        refuse(
            Reason.BAD_JOB_ID,
            f"the job id {show(job_id)} ends in @ and 13 digits, as only those of runs do, here the run of {show(run.job_id)} for the slot "
            f"{run.slot_ms}; give another id. To cancel, redrive or drop a run its id is right",
        )


def _check_recurring(job_id: str, recurrence: object, due_ms: int, limits: Limits | None) -> None:
    if recurrence is None:
        return
    check_recurrence(recurrence, due_ms)
    size, size_max = len(job_id.encode()), JOB_ID_BYTES_MAX - SUFFIX_BYTES
    if size > size_max:
        refuse(
            Reason.BAD_JOB_ID,
            f"the job id {show(job_id)} has {size} bytes in UTF-8, at most {size_max} are allowed where a job recurs, since the ids of its "
            f"runs are {SUFFIX_BYTES} bytes longer; shorten it",
        )
    if limits is not None and limits["expires_ms"]:
        refuse(
            Reason.BAD_LIMITS,
            f"expires_ms {limits['expires_ms']} is one moment for all runs of a job that recurs; leave it out, and give the recurrence an "
            "end_ms, or a misfire rule for slots that come too late",
        )


def _check_due(due_ms: object) -> None:
    if type(due_ms) is not int:
        refuse(Reason.BAD_DUE, f"due_ms {show(due_ms)} is of type {type(due_ms).__name__}; give milliseconds since the epoch as an int")
    if due_ms < DUE_MS_MIN:
        limit = f"before the earliest due time {DUE_MS_MIN}, {instant(DUE_MS_MIN)}"
        refuse(Reason.DUE_TOO_EARLY, f"due_ms {show(due_ms)} is {instant(due_ms)}, {limit}; {remedy(due_ms)}")
    if due_ms > DUE_MS_MAX:
        limit = f"after the latest due time {DUE_MS_MAX}, {instant(DUE_MS_MAX)}"
        refuse(Reason.DUE_TOO_LATE, f"due_ms {show(due_ms)} is {instant(due_ms)}, {limit}; {remedy(due_ms)}")


def _check_on_conflict(on_conflict: object) -> None:
    if on_conflict not in tuple(OnConflict):
        refuse(Reason.BAD_ON_CONFLICT, f"on_conflict {show(on_conflict)} is not known; give one of {', '.join(OnConflict)}")


def _check_retention(retention_ms: object) -> None:
    if type(retention_ms) is not int:
        refuse(
            Reason.BAD_RETENTION,
            f"retention_ms {show(retention_ms)} is of type {type(retention_ms).__name__}; give milliseconds as an int",
        )
    if not 0 <= retention_ms <= RETENTION_MS_MAX:
        refuse(
            Reason.BAD_RETENTION,
            f"retention_ms {show(retention_ms)} is outside 0 to {RETENTION_MS_MAX}, which is {RETENTION_MS_MAX // 86_400_000} days; "
            "it says how long a finished job stays known",
        )


def _check_queue(queue: object) -> None:
    if not isinstance(queue, str):
        refuse(Reason.BAD_QUEUE, f"the queue {show(queue)} is of type {type(queue).__name__}; give a str")
    fault = queue_fault(queue)
    if fault is not None:
        refuse(Reason.BAD_QUEUE, f"the queue {show(queue)} {fault}")


def _check_content_type(content_type: object) -> None:
    if content_type not in tuple(CONTENT_TYPES):
        refuse(
            Reason.BAD_CONTENT_TYPE, f"the content type {show(content_type)} is not known; use one of {', '.join(sorted(CONTENT_TYPES))}"
        )


def _check_payload(payload: object) -> None:
    if not isinstance(payload, bytes):
        refuse(Reason.BAD_PAYLOAD, f"the payload is of type {type(payload).__name__}; give it encoded, as bytes")
    if len(payload) > PAYLOAD_BYTES_MAX:
        refuse(
            Reason.PAYLOAD_TOO_LARGE,
            f"the payload has {len(payload):,} bytes, at most {PAYLOAD_BYTES_MAX:,} are allowed; store it elsewhere and send where it lies",
        )


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        refuse(Reason.BAD_HEADERS, f"the headers are of type {type(headers).__name__}; give a dict of str to str")
    if len(headers) > HEADERS_COUNT_MAX:
        refuse(
            Reason.BAD_HEADERS, f"there are {len(headers):,} headers, at most {HEADERS_COUNT_MAX} are allowed; put them into the payload"
        )
    size = 0
    for name, value in headers.items():
        for part in (name, value):
            if not isinstance(part, str):
                refuse(
                    Reason.BAD_HEADERS,
                    f"the header {show(name)}: {show(value)} holds a value of type {type(part).__name__}; give a str for name and value",
                )
            size += utf8_bytes(part, f"header {show(name)}", Reason.BAD_HEADERS)
    if size > HEADERS_BYTES_MAX:
        refuse(
            Reason.BAD_HEADERS,
            f"the headers have {size:,} bytes, names and values together, at most {HEADERS_BYTES_MAX:,} are allowed; "
            "put them into the payload",
        )


def _check_token(token: object) -> None:
    if type(token) is not int or not 1 <= token <= TOKEN_MAX:
        refuse(
            Reason.BAD_TOKEN,
            f"the token {show(token)} is none; give that of the attempt the run died with, an int from 1: duewheel dead list says it",
        )


# --- the rules for limits, policies and deliveries, of which most jobs have none ---


def _check_delivery(record: Schedule) -> None:
    """Checks what is to be delivered, in a schedule that keeps all other rules."""
    delivery = record["delivery"]
    if delivery is None:
        return
    if not isinstance(delivery, Mapping) or delivery.keys() != _DELIVERY:
        refuse(Reason.BAD_DELIVERY, f"the delivery {show(delivery)} is no record of {', '.join(sorted(_DELIVERY))}; give these, or None")
    topic, key, tombstone = delivery["topic"], delivery["key"], delivery["tombstone"]
    if not isinstance(topic, str):
        refuse(Reason.BAD_DELIVERY, f"the topic {show(topic)} is of type {type(topic).__name__}; give a str")
    fault = topic_fault(topic)
    if fault is not None:
        refuse(Reason.BAD_DELIVERY, f"the topic {show(topic)} {fault}")
    if key is not None and not isinstance(key, bytes):
        refuse(Reason.BAD_DELIVERY, f"the key of the record to deliver is of type {type(key).__name__}; give bytes, or None")
    if key is not None and len(key) > DELIVERY_KEY_BYTES_MAX:
        refuse(
            Reason.BAD_DELIVERY,
            f"the key of the record to deliver has {len(key):,} bytes, at most {DELIVERY_KEY_BYTES_MAX:,} are allowed; shorten it",
        )
    if type(tombstone) is not bool:
        refuse(Reason.BAD_DELIVERY, f"tombstone {show(tombstone)} is of type {type(tombstone).__name__}; give a bool")
    if tombstone and record["work"]["payload"]:
        refuse(Reason.BAD_DELIVERY, "the record to deliver is a tombstone, which has no value, and there is a payload; leave out one")
    _check_no_attempts(record)


def _check_no_attempts(record: Schedule) -> None:
    """A record is put on its topic once, and no worker is asked: what is about attempts would never be looked at."""
    limits = record["limits"]
    if record["queue"] != QUEUE_DEFAULT:
        refuse(Reason.BAD_DELIVERY, f"the queue {show(record['queue'])} names workers, and a delivery has none; give {QUEUE_DEFAULT!r}")
    if record["work"]["policy"] is not None:
        refuse(Reason.BAD_DELIVERY, "the policy says how attempts are treated, and a delivery has none; leave it out")
    if limits is not None and (limits["total_timeout_ms"] or limits["crashes_max"]):
        refuse(
            Reason.BAD_DELIVERY,
            f"total_timeout_ms {limits['total_timeout_ms']} and crashes_max {limits['crashes_max']} limit attempts, and a delivery has "
            "none; leave them out. expires_ms is for deliveries too",
        )


def _check_limits(limits: object, due_ms: int) -> None:
    if limits is None:
        return
    if not isinstance(limits, Mapping) or limits.keys() != _LIMITS:
        refuse(Reason.BAD_LIMITS, f"the limits {show(limits)} are no record of {', '.join(sorted(_LIMITS))}; give these, or None")
    check_number(Reason.BAD_LIMITS, "crashes_max", limits["crashes_max"], CRASHES_MAX, "0 is the default")
    check_number(Reason.BAD_LIMITS, "total_timeout_ms", limits["total_timeout_ms"], TOTAL_TIMEOUT_MS_MAX, "0 is for ever")
    expires_ms = limits["expires_ms"]
    if type(expires_ms) is int and expires_ms != 0 and not DUE_MS_MIN <= expires_ms <= DUE_MS_MAX:
        limit = f"neither 0, for never, nor from {instant(DUE_MS_MIN)} to {instant(DUE_MS_MAX)}"
        refuse(Reason.BAD_LIMITS, f"expires_ms {show(expires_ms)} is {instant(expires_ms)}, {limit}; {remedy(expires_ms)}")
    check_number(Reason.BAD_LIMITS, "expires_ms", expires_ms, DUE_MS_MAX, "0 is never")
    if 0 < expires_ms <= due_ms:
        refuse(
            Reason.BAD_LIMITS,
            f"expires_ms {expires_ms}, {instant(expires_ms)}, is not after due_ms {due_ms}, {instant(due_ms)}; so the job would never "
            "start: give a later time, or none",
        )


def _check_policy(policy: object) -> None:
    if policy is None:
        return
    if not isinstance(policy, Mapping) or policy.keys() != _POLICY:
        refuse(Reason.BAD_POLICY, f"the policy {show(policy)} is no record of {', '.join(sorted(_POLICY))}; give these, or None")
    check_number(Reason.BAD_POLICY, "attempts_max", policy["attempts_max"], ATTEMPTS_MAX, "0 is as the task says")
    check_number(Reason.BAD_POLICY, "run_timeout_ms", policy["run_timeout_ms"], RUN_TIMEOUT_MS_MAX, "0 is as the task says")
    check_number(Reason.BAD_POLICY, "delay_ms_max", policy["delay_ms_max"], RETRY_DELAY_MS_MAX, "0 is the default")
    _check_waits(policy["delays_ms"], policy["factor"], policy["jitter"])
    size = _check_classes("give_up_on", policy["give_up_on"]) + _check_classes("retry_on", policy["retry_on"])
    if size > RETRY_CLASSES_BYTES_MAX:
        refuse(
            Reason.BAD_POLICY,
            f"give_up_on and retry_on have {size:,} bytes in UTF-8, at most {RETRY_CLASSES_BYTES_MAX:,} are allowed together; "
            "name base classes",
        )


def _check_waits(delays_ms: object, factor: object, jitter: object) -> None:
    waits = _list("delays_ms", delays_ms, RETRY_DELAYS_MAX, "the last one holds for all further attempts")
    for delay_ms in waits:
        check_number(Reason.BAD_POLICY, "a wait in delays_ms", delay_ms, RETRY_DELAY_MS_MAX, "which is 30 days")
    _check_double("factor", factor, 1.0, RETRY_FACTOR_MAX)
    _check_double("jitter", jitter, 0.0, 1.0)
    if not waits and (factor != 1.0 or jitter != 0.0):
        refuse(
            Reason.BAD_POLICY,
            f"delays_ms is empty, so that factor {factor} and jitter {jitter} belong to no wait; give the waits too, or 1.0 and 0.0",
        )


def _check_classes(name: str, classes: object) -> int:
    """Checks names of error classes, and returns how many bytes they have."""
    names = _list(name, classes, RETRY_CLASSES_MAX, "name base classes")
    for kind in names:
        _check_name(f"error class in {name}", kind, ERROR_TYPE_CHARS_MAX, Reason.BAD_POLICY)
    return sum(len(kind.encode()) for kind in names)


def _list(name: str, items: object, count_max: int, remedy: str) -> list[Any]:
    if not isinstance(items, list):
        refuse(Reason.BAD_POLICY, f"{name} is of type {type(items).__name__}; give a list")
    if len(items) > count_max:
        refuse(Reason.BAD_POLICY, f"{name} has {len(items):,} items, at most {count_max} are allowed; {remedy}")
    return items


def _check_double(name: str, number: object, least: float, most: float) -> None:
    # No comparison holds for NaN, and a zero with a sign is not the canonical zero.
    if type(number) is not float or not least <= number <= most or (number == 0.0 and copysign(1.0, number) < 0.0):
        refuse(Reason.BAD_POLICY, f"{name} {show(number)} of type {type(number).__name__} is no float from {least} to {most}; give one")


# --- shortcuts ---


def _holds(rule: Callable[..., None], *values: object) -> bool:
    try:
        rule(*values)
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
