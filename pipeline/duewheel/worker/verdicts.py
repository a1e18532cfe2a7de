"""How an attempt ends, and how a handler says so.

A handler that returns has succeeded. One that raises has failed, and its task's policy, merged with the job's, decides whether it is tried
again. Some exceptions decide by themselves:

    raise Retry("the bank is closed", after=timedelta(hours=2))   tried again, not before then; a failed attempt like any other
    raise Discard("the customer is gone")                         given up on purpose: no further attempt, no dead letter
    context.snooze(timedelta(minutes=5))                          later; no attempt is used up
    raise Cancelled, context.raise_if_cancelled()                 it was asked to stop, and did

    raised                                         result      waits
    Retry, other errors, attempts left             RETRY       `after`, else as the policy says
    the same, no attempts left                     FAILED
    an error that the policy gives up on           FAILED
    a payload that does not fit, ResultTooLarge    FAILED      trying again would not help
    Discard                                        DISCARDED
    Snooze                                         SNOOZED     the span
    Cancelled; CancelledError after a cancel       CANCELLED

Whatever a handler raises or returns, there is a verdict: a run without one would never be heard of again. User code has its hand in every
step of that (a `Retry` of their own whose __init__ forgets ours, a __str__ that raises, a lazy result whose session is closed), so nothing
of it is trusted, and where even judging fails, the run has FAILED.

In records and in `give_up_on` a class goes by its qualified name, those of the builtins by the name alone: `ValueError`, `duewheel.Retry`,
`requests.exceptions.Timeout`. Crashes are no failures of the handler: attempts that ended because their worker vanished do not count here.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from datetime import timedelta
from typing import Any, Final, NamedTuple, NoReturn

from duewheel.core import retry
from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import (
    ERROR_MESSAGE_CHARS_MAX,
    ERROR_TRACEBACK_CHARS_MAX,
    ERROR_TYPE_CHARS_MAX,
    OUTPUT_BYTES_MAX,
    RETRY_DELAY_MS_MAX,
)
from duewheel.core.model import Dispatch, Failure, Result
from duewheel.worker.payloads import PayloadMismatch

# Each class names `duewheel` as its module: that is where users import it from, and the name that records keep.


class Retry(Exception):
    """Raise it to have the run tried again: after the given time, or after the wait that the policy would choose.

    It counts as a failed attempt: when none is left, the run is dead. To put a run off without using one up, call `context.snooze`.

    Args:
        message: why; kept as the attempt's error.
        after: how long to wait, as a timedelta or in seconds; at most 30 days.
    """

    __module__ = "duewheel"
    after_ms: int | None = None  # also of a class derived from it that does not call this __init__

    def __init__(self, message: str = "", after: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.after_ms = None if after is None else milliseconds(after, "the wait of a Retry", RETRY_DELAY_MS_MAX)


class Discard(Exception):
    """Raise it to give the run up on purpose: it is not tried again and leaves no dead letter."""

    __module__ = "duewheel"


class Cancelled(Exception):
    """Raise it from a handler that was asked to stop (`context.cancelled`) and did."""

    __module__ = "duewheel"


class Snooze(Exception):
    """Raised by `context.snooze`."""

    __module__ = "duewheel"
    after_ms: int | None = None

    def __init__(self, after_ms: int) -> None:
        super().__init__(f"snoozed for {after_ms / 1000:g} s")
        self.after_ms = after_ms


class RunTimeout(Exception):
    """The attempt took longer than its run timeout, or than the time for all attempts together."""

    __module__ = "duewheel"


class HeartbeatTimeout(Exception):
    """The handler has not called `context.heartbeat` for longer than its task promised."""

    __module__ = "duewheel"


class ResultTooLarge(Exception):
    """What a handler returned, or said of its progress, is too large to be kept, or cannot be written as JSON. Keep it elsewhere and
    return where it lies."""

    __module__ = "duewheel"


class UnknownTask(Exception):
    """No task of this name is registered in the worker's app."""

    __module__ = "duewheel"


class ProcessDied(Exception):
    """The process that ran the handler ended in the middle of it, or could not be started."""

    __module__ = "duewheel"


class Verdict(NamedTuple):
    """How an attempt ended, as an outcome tells it."""

    result: str
    error: Failure | None = None
    retry_after_ms: int = 0
    output: bytes | None = None


SUCCEEDED: Final = Result.SUCCEEDED.value
SUCCESS: Final = Verdict(SUCCEEDED)
_HOPELESS: Final = (PayloadMismatch, ResultTooLarge)


def on_value(value: Any, keeps_result: bool) -> Verdict:
    """The verdict on a handler that returned.

    Raises:
        ResultTooLarge: the value is to be kept, and cannot be.
    """
    return Verdict(SUCCEEDED, output=encoded(value, "the result")) if keeps_result else SUCCESS


def on_error(error: BaseException, policy: retry.RetryPolicy, dispatch: Dispatch, cancelled: bool = False) -> Verdict:
    """The verdict on a handler that raised. Raises nothing.

    Args:
        policy: the task's; the job's own wins over it.
        cancelled: whether the handler had been asked to stop.
    """
    try:
        return _judged(error, policy, dispatch, cancelled)
    except BaseException:  # its class, its message, or what asks for them, raises: nothing more may be asked of it
        message = f"task {dispatch['work']['task']!r} raised an error that raises another when it is looked at"
        return Verdict(Result.FAILED.value, Failure(type="BaseException", message=message, traceback=""))


def _judged(error: BaseException, policy: retry.RetryPolicy, dispatch: Dispatch, cancelled: bool) -> Verdict:
    failure = failure_of(error)
    if isinstance(error, Cancelled) or (cancelled and isinstance(error, asyncio.CancelledError)):
        return Verdict(Result.CANCELLED.value, failure)
    after_ms = _wait_asked(error)
    if isinstance(error, Snooze) and after_ms is not None:
        return Verdict(Result.SNOOZED.value, retry_after_ms=after_ms)
    if isinstance(error, Discard):
        return Verdict(Result.DISCARDED.value, failure)
    if isinstance(error, _HOPELESS):
        return Verdict(Result.FAILED.value, failure)
    terms = dispatch.get("terms")
    attempt = dispatch["attempt"]
    tries = attempt - (terms["crashes"] if terms else 0)
    merged = retry.merged(policy, dispatch["work"].get("policy"))
    wait_ms = retry.verdict(merged, tries, dispatch["job_id"], attempt, class_names(error), after_ms)
    return Verdict(Result.FAILED.value, failure) if wait_ms is None else Verdict(Result.RETRY.value, failure, wait_ms)


def _wait_asked(error: BaseException) -> int | None:
    """What a Retry or Snooze asks for; None where it asks for nothing, or for nothing that there is."""
    if not isinstance(error, (Retry, Snooze)):
        return None
    after_ms = error.after_ms
    return after_ms if type(after_ms) is int and 0 <= after_ms <= RETRY_DELAY_MS_MAX else None


def encoded(value: Any, what: str) -> bytes:
    """A value as it is kept, in JSON.

    Raises:
        ResultTooLarge: it is too large, or JSON cannot say it.
    """
    try:
        output = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except Exception as error:  # TypeError, ValueError, RecursionError; and any other, as the value may be of a class that does things
        raise ResultTooLarge(f"{what} cannot be kept, since JSON cannot say it: {_message(error)}") from None
    if len(output) > OUTPUT_BYTES_MAX:
        raise ResultTooLarge(
            f"{what} has {len(output):,} bytes in JSON, of at most {OUTPUT_BYTES_MAX:,}; keep it elsewhere, and where here"
        )
    return output


def milliseconds(span: timedelta | float, what: str, max_ms: int) -> int:
    """A span in milliseconds, rounded up.

    Args:
        span: a timedelta, or seconds.

    Raises:
        BadConfiguration: it is none, or out of bounds.
    """
    if isinstance(span, timedelta):
        span_ms = -(-span // timedelta(milliseconds=1)) if span >= timedelta() else -1
    elif isinstance(span, (int, float)) and not isinstance(span, bool) and 0 <= span <= max_ms / 1000:
        span_ms = -(-round(span * 1_000_000) // 1000)
    else:
        span_ms = -1
    if not 0 <= span_ms <= max_ms:
        raise BadConfiguration(f"{what} is {span!r}; it must be a timedelta or seconds, from 0 to {max_ms // 1000:,} s")
    return span_ms


def snooze(span: timedelta | float) -> NoReturn:
    raise Snooze(milliseconds(span, "the span of a snooze", RETRY_DELAY_MS_MAX))


# --- errors as they are kept ---


def class_names(error: BaseException) -> list[str]:
    """The names of an error's class and of all that it derives from."""
    return [retry.qualified_name(kind) for kind in type(error).__mro__[:-1]]


def failure_of(error: BaseException) -> Failure:
    """The error as it is kept: its type, its message, and the end of its traceback, each cut to its limit."""
    message = _message(error)
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException as broken:
        trace = f"(its traceback cannot be had: {type(broken).__name__})"
    return Failure(
        type=_encodable(retry.qualified_name(type(error))[:ERROR_TYPE_CHARS_MAX]),
        message=_encodable(message[:ERROR_MESSAGE_CHARS_MAX]),
        traceback=_encodable(trace[-ERROR_TRACEBACK_CHARS_MAX:]),  # the end says where it happened
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # a __str__ of the user's, which may do anything
        return f"(its message cannot be had: {type(broken).__name__})"


def _encodable(text: str) -> str:
    # Lone surrogates, as in undecodable file names, cannot be written as UTF-8; they must not take the worker down.
    return text.encode("utf-8", "replace").decode()
