"""Retry policies: whether a failed attempt is tried again, and after which wait.

A policy lists waits and says by what factor each further one grows. What it does not say is left to the next: the job's own policy comes
first, then its task's, then the default of five attempts after 1 s, 4 s, 16 s and 64 s.

    RetryPolicy.exponential(first=2, factor=3)            2 s, 6 s, 18 s, 54 s, before jitter
    RetryPolicy.fixed(timedelta(minutes=5))               5 min, 5 min, 5 min, 5 min
    RetryPolicy.listed([1, 10, 600])                      1 s, 10 s, 10 min
    RetryPolicy(attempts=20)                              the waits are those of the task, or the default's
    RetryPolicy(attempts=1)                               no second attempt

Jitter keeps apart what failed together. A wait loses at most the share `jitter` of itself, so that with one half it lies anywhere between
half and whole: the "equal jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. How much it loses is
no dice but a hash of job id and attempt: whoever computes it again, on whatever machine, gets the same.

    delay = min(cap, listed or grown)          u = blake2b(job id, attempt) / 2^64
    wait  = delay - u * jitter * delay         (1 - jitter) * delay <= wait <= delay <= cap

Which errors are tried again goes by names, since a worker that reads a job's policy need not have its producer's classes. `ValueError`
is a builtin, `billing.errors.Declined` lies in its module, and each stands for its subclasses too.

A verdict costs about 3 µs, and only failures pay it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from hashlib import blake2b
from math import ceil, isfinite
from typing import Final, NoReturn, Self, TypeVar

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import (
    ATTEMPTS_DEFAULT,
    ATTEMPTS_MAX,
    ERROR_TYPE_CHARS_MAX,
    RETRY_CLASSES_BYTES_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAY_MS_DEFAULT,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAY_MS_MAX_DEFAULT,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_DEFAULT,
    RETRY_FACTOR_MAX,
    RETRY_JITTER_DEFAULT,
)
from duewheel.core.model import Policy

Span = timedelta | float
"""A timedelta, or seconds."""

ErrorClass = type[BaseException] | str
"""A class, or its qualified name."""

Item = TypeVar("Item")

RETRY_NAME: Final = "duewheel.Retry"
"""What a handler raises to be tried again, whatever the policy says of error classes."""

_NOTHING: Final = timedelta(0)
_MILLISECOND: Final = timedelta(milliseconds=1)
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and what UTF-8 cannot say


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy:
    """When failed attempts are tried again. On a job it wins over that of its task, part by part; what it leaves out stays as it is.

    Attributes:
        attempts: how many attempts may fail before the run is dead, the first included; None: not said.
        delays_ms: waits before the second, third, … attempt; beyond the list the last one, times the factor for each further. Empty: not
            said, nor are factor and jitter.
        factor: by how much each wait beyond the list is longer than the one before; 1 is a fixed wait.
        jitter: the share of a wait, 0 to 1, that may be taken off.
        delay_ms_max: no wait is longer; None: an hour, or the longest of the list where that is longer.
        give_up_on: qualified names of error classes that end the run at once.
        retry_on: qualified names of the only error classes that are tried again; empty: all are, or, on a job, as its task says. An
            error that is in both is given up on.
    """

    attempts: int | None
    delays_ms: tuple[int, ...]
    factor: float
    jitter: float
    delay_ms_max: int | None
    give_up_on: tuple[str, ...]
    retry_on: tuple[str, ...]

    def __init__(
        self,
        *,
        attempts: int | None = None,
        delays: Iterable[Span] = (),
        factor: float = 1.0,
        jitter: float = 0.0,
        delay_max: Span | None = None,
        give_up_on: Iterable[ErrorClass] = (),
        retry_on: Iterable[ErrorClass] = (),
    ) -> None:
        """Says only what is given. Most waits are said more shortly by `exponential`, `fixed` and `listed`.

        Args:
            delays, delay_max: as timedelta or in seconds, up to 30 days each.
            give_up_on, retry_on: classes of errors, or their qualified names.

        Raises:
            BadConfiguration: a value cannot work; the message says which, and what can.
        """
        waits = tuple(_span_ms(delay, "delay") for delay in _items(delays, "delays"))
        if len(waits) > RETRY_DELAYS_MAX:
            _refuse("delays", f"{len(waits)} of them", f"at most {RETRY_DELAYS_MAX}; the last one holds for all further attempts")
        if not waits and (factor != 1.0 or jitter != 0.0):
            _refuse("delays", "empty", "said together with factor and jitter, as RetryPolicy.exponential does")
        if attempts is not None and not (type(attempts) is int and 1 <= attempts <= ATTEMPTS_MAX):
            _refuse("attempts", repr(attempts), f"a whole number from 1, which is no retry, to {ATTEMPTS_MAX:,}")
        give_up_names, retry_names = _class_names(give_up_on, "give_up_on"), _class_names(retry_on, "retry_on")
        size = sum(len(name.encode()) for name in (*give_up_names, *retry_names))
        if size > RETRY_CLASSES_BYTES_MAX:
            _refuse("give_up_on and retry_on", f"{size:,} bytes", f"at most {RETRY_CLASSES_BYTES_MAX:,} together; name a common base class")
        values: tuple[tuple[str, object], ...] = (
            ("attempts", attempts),
            ("delays_ms", waits),
            ("factor", _number(factor, "factor", 1.0, RETRY_FACTOR_MAX)),
            ("jitter", _number(jitter, "jitter", 0.0, 1.0)),
            ("delay_ms_max", None if delay_max is None else _span_ms(delay_max, "delay_max", least_ms=1)),
            ("give_up_on", give_up_names),
            ("retry_on", retry_names),
        )
        for name, value in values:
            object.__setattr__(self, name, value)

    @classmethod
    def exponential(
        cls,
        *,
        attempts: int = ATTEMPTS_DEFAULT,
        first: Span = RETRY_DELAY_MS_DEFAULT / 1_000,
        factor: float = RETRY_FACTOR_DEFAULT,
        delay_max: Span | None = None,
        jitter: float = RETRY_JITTER_DEFAULT,
        give_up_on: Iterable[ErrorClass] = (),
        retry_on: Iterable[ErrorClass] = (),
    ) -> Self:
        """Each wait is `factor` times the one before, up to `delay_max`, by default an hour; what tasks have that say nothing."""
        return cls(
            attempts=attempts,
            delays=(first,),
            factor=factor,
            jitter=jitter,
            delay_max=delay_max,
            give_up_on=give_up_on,
            retry_on=retry_on,
        )

    @classmethod
    def fixed(
        cls,
        delay: Span,
        *,
        attempts: int = ATTEMPTS_DEFAULT,
        jitter: float = 0.0,
        give_up_on: Iterable[ErrorClass] = (),
        retry_on: Iterable[ErrorClass] = (),
    ) -> Self:
        """Every wait is the same."""
        return cls(attempts=attempts, delays=(delay,), jitter=jitter, give_up_on=give_up_on, retry_on=retry_on)

    @classmethod
    def listed(
        cls,
        delays: Sequence[Span],
        *,
        attempts: int | None = None,
        jitter: float = 0.0,
        give_up_on: Iterable[ErrorClass] = (),
        retry_on: Iterable[ErrorClass] = (),
    ) -> Self:
        """The waits one by one; as many attempts as use them all, or more, which repeat the last."""
        if not delays:
            _refuse("delays", "empty", "at least one; for no retry say RetryPolicy(attempts=1)")
        attempts = len(delays) + 1 if attempts is None else attempts
        return cls(attempts=attempts, delays=delays, jitter=jitter, give_up_on=give_up_on, retry_on=retry_on)

    def to_record(self, run_timeout_ms: int = 0) -> Policy:
        """As it travels with a job.

        Args:
            run_timeout_ms: how long one attempt may take; 0: as the task says.
        """
        return {
            "attempts_max": self.attempts or 0,
            "delays_ms": list(self.delays_ms),
            "factor": self.factor,
            "delay_ms_max": self.delay_ms_max or 0,
            "jitter": self.jitter,
            "give_up_on": list(self.give_up_on),
            "retry_on": list(self.retry_on),
            "run_timeout_ms": run_timeout_ms,
        }


def merged(task_policy: RetryPolicy, job_policy: Policy | None) -> RetryPolicy:
    """The policy of one job: what its own says, and for the rest its task's.

    The waits, their factor and their jitter are one thing: they are all the job's or all the task's.

    Args:
        job_policy: as `core.commands` lets pass.
    """
    if job_policy is None:
        return task_policy
    waits_ms = tuple(job_policy["delays_ms"])
    merged_policy = object.__new__(RetryPolicy)  # its parts were checked, each in its place
    values: tuple[tuple[str, object], ...] = (
        ("attempts", job_policy["attempts_max"] or task_policy.attempts),
        ("delays_ms", waits_ms or task_policy.delays_ms),
        ("factor", job_policy["factor"] if waits_ms else task_policy.factor),
        ("jitter", job_policy["jitter"] if waits_ms else task_policy.jitter),
        # A cap belongs to the waits that it was chosen for: a task's must not cut those of the job.
        ("delay_ms_max", job_policy["delay_ms_max"] or (None if waits_ms else task_policy.delay_ms_max)),
        ("give_up_on", tuple(job_policy["give_up_on"]) or task_policy.give_up_on),
        ("retry_on", tuple(job_policy["retry_on"]) or task_policy.retry_on),
    )
    for name, value in values:
        object.__setattr__(merged_policy, name, value)
    return merged_policy


def verdict(
    policy: RetryPolicy, tries: int, job_id: str, attempt: int, class_names: Collection[str], after_ms: int | None = None
) -> int | None:
    """How long to wait before the next attempt, in milliseconds; None where there is none.

    Args:
        tries: how many attempts have failed, this one included, those not counted that ended because their worker vanished.
        attempt: the number of this one, from 1.
        class_names: qualified names of the error's class and of all that it derives from.
        after_ms: what the handler asked for instead of the policy's wait; obeyed without jitter, and beyond the policy's longest wait.
    """
    if tries >= (policy.attempts or ATTEMPTS_DEFAULT) or not _tries_again(policy, class_names):
        return None
    if after_ms is not None:
        return max(0, min(after_ms, RETRY_DELAY_MS_MAX))
    return delay_ms(policy, tries, job_id, attempt)


def delay_ms(policy: RetryPolicy, tries: int, job_id: str, attempt: int) -> int:
    """The wait after so many failures, in milliseconds; the same for the same arguments. They are those of `verdict`."""
    longest_ms = undiminished_ms(policy, tries)
    jitter = policy.jitter if policy.delays_ms else DEFAULT.jitter
    # Rounded up, so that even a wait of 1 ms is one; and it cannot exceed the whole, which is an integer.
    return ceil(longest_ms - fraction(job_id, attempt) * jitter * longest_ms)


def undiminished_ms(policy: RetryPolicy, tries: int) -> int:
    """The wait after so many failures before jitter, in milliseconds."""
    waits = policy if policy.delays_ms else DEFAULT
    delays_ms = waits.delays_ms
    cap_ms = policy.delay_ms_max or max(RETRY_DELAY_MS_MAX_DEFAULT, *delays_ms)
    further = tries - len(delays_ms)
    if further <= 0:
        return min(delays_ms[max(tries, 1) - 1], cap_ms)
    try:
        return int(min(delays_ms[-1] * waits.factor**further, cap_ms))
    except OverflowError:  # of a float, beyond 10^308
        return cap_ms if delays_ms[-1] else 0


def fraction(job_id: str, number: int) -> float:
    """A number from 0 to 1 that looks random, the same for the same job and number, which is not negative."""
    # The number's bytes come last and are of one length, so that no two pairs read the same.
    digest = blake2b(job_id.encode("utf-8", "surrogatepass") + number.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def qualified_name(kind: type) -> str:
    """The name of an error class in records: those of the builtins by the name alone."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _tries_again(policy: RetryPolicy, class_names: Collection[str]) -> bool:
    if RETRY_NAME in class_names:
        return True
    if any(name in class_names for name in policy.give_up_on):
        return False
    return not policy.retry_on or any(name in class_names for name in policy.retry_on)


# --- checks of what a user wrote ---


def _refuse(thing: str, value: str, allowed: str) -> NoReturn:
    raise BadConfiguration(f"{thing} of a retry policy: {value}; it must be {allowed}")


def _items(values: Iterable[Item], thing: str) -> tuple[Item, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        _refuse(thing, repr(values)[:100], "a list or tuple")
    return tuple(values)


def _number(number: float, thing: str, least: float, most: float) -> float:
    if type(number) not in (int, float) or not (isfinite(number) and least <= number <= most):
        _refuse(thing, repr(number)[:100], f"a number from {least:g} to {most:g}")
    return float(number) + 0.0  # a zero with a sign becomes one without, as the record wants it


def _span_ms(span: Span, thing: str, least_ms: int = 0) -> int:
    """In whole milliseconds, rounded up."""
    span_ms = -1
    if isinstance(span, timedelta):
        span_ms = -(-span // _MILLISECOND) if span >= _NOTHING else -1
    elif type(span) in (int, float) and 0 <= span <= RETRY_DELAY_MS_MAX // 1_000:
        # Through the decimal number that was written: in binary 1.1 is a little more than 1.1, and would become 1,101 ms.
        span_ms = ceil(Decimal(repr(span)) * 1_000)
    if not least_ms <= span_ms <= RETRY_DELAY_MS_MAX:
        allowed = f"a timedelta or seconds, from {least_ms / 1_000:g} to {RETRY_DELAY_MS_MAX // 1_000:,} s (30 days)"
        _refuse(thing, repr(span)[:100], allowed)
    return span_ms


def _class_names(classes: Iterable[ErrorClass], thing: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_class_name(kind, thing) for kind in _items(classes, thing)))
    if len(names) > RETRY_CLASSES_MAX:
        _refuse(thing, f"{len(names)} classes", f"at most {RETRY_CLASSES_MAX}; name a common base class")
    return names


def _class_name(kind: object, thing: str) -> str:
    name = qualified_name(kind) if isinstance(kind, type) and issubclass(kind, BaseException) else kind
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "replace")) <= ERROR_TYPE_CHARS_MAX or _UNFIT.search(name):
        allowed = f"error classes, or their qualified names as billing.errors.Declined, of at most {ERROR_TYPE_CHARS_MAX} bytes in UTF-8"
        _refuse(thing, repr(kind)[:100], allowed)
    return name


DEFAULT: Final = RetryPolicy.exponential()
"""Of a task that says nothing."""
