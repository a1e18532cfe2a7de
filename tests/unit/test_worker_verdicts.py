"""Verdicts: what becomes of a run whose handler returned or raised."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duewheel
from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import ERROR_MESSAGE_CHARS_MAX, ERROR_TRACEBACK_CHARS_MAX, OUTPUT_BYTES_MAX, RETRY_DELAY_MS_MAX
from duewheel.core.model import Dispatch, Policy
from duewheel.core.retry import RetryPolicy
from duewheel.worker import verdicts
from duewheel.worker.app import App
from duewheel.worker.holding import Holding
from duewheel.worker.payloads import PayloadMismatch
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import (
    Cancelled,
    Discard,
    HeartbeatTimeout,
    ProcessDied,
    ResultTooLarge,
    Retry,
    RunTimeout,
    Snooze,
    UnknownTask,
    class_names,
    encoded,
    failure_of,
    milliseconds,
    on_error,
    on_value,
    snooze,
)

POLICY = RetryPolicy.fixed(10, attempts=3, give_up_on=[KeyError])


def dispatch(attempt: int = 1, crashes: int = 0, policy: Policy | None = None, deadline_ms: int = 0) -> Dispatch:
    return {
        "token": 1,
        "job_id": "j",
        "generation": 1,
        "slot_ms": 0,
        "attempt": attempt,
        "timer_partition": 0,
        "dispatched_ms": 0,
        "terms": {"crashes": crashes, "is_last_life": False, "expires_ms": 0, "deadline_ms": deadline_ms},
        "work": {"task": "t", "content_type": "application/json", "payload": b"1", "headers": {}, "policy": policy},
    }


@pytest.mark.parametrize(
    "error, result, retry_after_ms",
    [
        (ValueError("v"), "RETRY", 10_000),
        (SystemExit(1), "RETRY", 10_000),
        (KeyboardInterrupt(), "RETRY", 10_000),
        (asyncio.CancelledError(), "RETRY", 10_000),  # nobody asked for it
        (RunTimeout("r"), "RETRY", 10_000),
        (HeartbeatTimeout("h"), "RETRY", 10_000),
        (ProcessDied("p"), "RETRY", 10_000),
        (UnknownTask("u"), "RETRY", 10_000),
        (Retry(), "RETRY", 10_000),
        (Retry("r", after=0), "RETRY", 0),
        (Retry("r", after=timedelta(hours=2)), "RETRY", 7_200_000),
        (KeyError("k"), "FAILED", 0),
        (PayloadMismatch("p"), "FAILED", 0),
        (ResultTooLarge("r"), "FAILED", 0),
        (Discard("d"), "DISCARDED", 0),
        (Cancelled("c"), "CANCELLED", 0),
    ],
)
def test_what_is_raised_decides(error: BaseException, result: str, retry_after_ms: int) -> None:
    verdict = on_error(error, POLICY, dispatch())
    assert (verdict.result, verdict.retry_after_ms, verdict.output) == (result, retry_after_ms, None)
    assert verdict.error is not None
    assert verdict.error["message"] == str(error)


def test_a_snoozed_attempt_has_no_error() -> None:
    with pytest.raises(verdicts.Snooze) as raised:
        snooze(timedelta(minutes=5))
    assert on_error(raised.value, POLICY, dispatch(attempt=3)) == ("SNOOZED", None, 300_000, None)


def test_a_coroutine_that_was_asked_to_stop_and_did_is_cancelled() -> None:
    assert on_error(asyncio.CancelledError(), POLICY, dispatch(), cancelled=True).result == "CANCELLED"
    assert on_error(ValueError(), POLICY, dispatch(), cancelled=True).result == "RETRY"


def test_attempts_are_used_up_by_failures_and_not_by_crashes() -> None:
    results = {
        (attempt, crashes): on_error(ValueError(), POLICY, dispatch(attempt, crashes)).result
        for attempt in range(1, 6)
        for crashes in (0, 2)
    }
    assert [results[attempt, 0] for attempt in range(1, 6)] == ["RETRY", "RETRY", "FAILED", "FAILED", "FAILED"]
    assert [results[attempt, 2] for attempt in range(3, 6)] == ["RETRY", "RETRY", "FAILED"]


def test_the_last_attempt_cannot_ask_for_another() -> None:
    assert on_error(Retry(after=1), POLICY, dispatch(attempt=3)).result == "FAILED"
    assert on_error(Discard(), POLICY, dispatch(attempt=3)).result == "DISCARDED"


def test_the_jobs_own_policy_wins() -> None:
    policy = RetryPolicy(attempts=1).to_record()
    assert on_error(ValueError(), POLICY, dispatch(policy=policy)).result == "FAILED"


class Base(Exception): ...


class Derived(Base, LookupError): ...


def test_errors_go_by_the_names_of_all_their_classes() -> None:
    module = Derived.__module__
    assert class_names(Derived()) == [f"{module}.Derived", f"{module}.Base", "LookupError", "Exception", "BaseException"]
    assert on_error(Derived(), RetryPolicy.fixed(1, give_up_on=[Base]), dispatch()).result == "FAILED"
    assert on_error(Derived(), RetryPolicy.fixed(1, retry_on=[LookupError]), dispatch()).result == "RETRY"
    assert on_error(OSError(), RetryPolicy.fixed(1, retry_on=[LookupError]), dispatch()).result == "FAILED"
    assert on_error(Retry(), RetryPolicy.fixed(1, retry_on=[LookupError]), dispatch()).result == "RETRY"


@pytest.mark.parametrize("kind", [Retry, Discard, Cancelled, RunTimeout, HeartbeatTimeout, ResultTooLarge, UnknownTask, ProcessDied])
def test_our_own_exceptions_are_named_as_users_import_them(kind: type[Exception]) -> None:
    name = failure_of(kind("m"))["type"]
    assert name == f"duewheel.{kind.__name__}"
    assert getattr(duewheel, kind.__name__) is kind


# --- what is kept ---


@pytest.mark.parametrize("value", [None, 1, "é", [1, {"a": None}], {"a": 1.5}])
def test_a_result_is_kept_where_the_task_wants_it(value: Any) -> None:
    kept = on_value(value, keeps_result=True)
    assert kept.result == "SUCCEEDED"
    assert kept.output is not None
    assert json.loads(kept.output) == value
    assert on_value(value, keeps_result=False).output is None


@pytest.mark.parametrize(
    "value, message",
    [
        ("x" * OUTPUT_BYTES_MAX, r"the result has 8,194 bytes in JSON, of at most 8,192"),
        ("é" * (OUTPUT_BYTES_MAX // 2), r"8,194 bytes"),
        ({1, 2}, "JSON cannot say it: Object of type set"),
        (float("nan"), "JSON cannot say it"),
        ("\udcff", "JSON cannot say it"),
    ],
)
def test_a_result_that_cannot_be_kept_says_why(value: Any, message: str) -> None:
    with pytest.raises(ResultTooLarge, match=message):
        encoded(value, "the result")
    assert len(encoded("x" * (OUTPUT_BYTES_MAX - 2), "the result")) == OUTPUT_BYTES_MAX


def run(task: App, **of: Any) -> Run:
    return Run(Holding("t", 0, "w"), 0, b"k", dispatch(**of), task.tasks["t"], 1)


def test_a_run_whose_result_cannot_be_kept_fails_for_good() -> None:
    app = App()
    app.task(name="t", keep_result=True, retry=RetryPolicy.fixed(1, attempts=9))(lambda: None)
    broken = run(app)
    broken.end("x" * 10_000)
    assert (broken.result, broken.output, broken.retry_after_ms) == ("FAILED", None, 0)
    assert broken.error is not None
    assert broken.error["type"] == "duewheel.ResultTooLarge"
    kept = run(app)
    kept.end([1])
    assert (kept.result, kept.output, kept.error) == ("SUCCEEDED", b"[1]", None)


def test_how_long_a_run_may_take() -> None:
    app = App()
    app.task(name="t", timeout=60)(lambda: None)
    assert run(app).timeout_ms == 60_000
    assert run(app, policy=RetryPolicy().to_record(run_timeout_ms=5_000)).timeout_ms == 5_000
    ends = run(app, deadline_ms=100_000)
    ends.started_ms = 70_000
    assert ends.timeout_ms == 30_000
    ends.started_ms = 110_000
    assert ends.timeout_ms == 0


# --- whatever a handler raises or returns, there is a verdict ---


class Busy(Retry):
    """As users write them: its own __init__, and not a word to ours."""

    def __init__(self, after_ms: Any = ...) -> None:
        if after_ms is not ...:
            self.after_ms = after_ms


class Nap(Snooze):
    def __init__(self) -> None: ...


class Faceless(Exception):
    """Nothing can be asked of it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit


class Lazy(dict[str, Any]):
    """Rows of a session that is closed by now."""

    def items(self) -> Any:
        raise self["error"]


@pytest.mark.parametrize(
    "error, result, retry_after_ms",
    [
        (Busy(), "RETRY", 10_000),
        (Busy(None), "RETRY", 10_000),
        (Busy("soon"), "RETRY", 10_000),
        (Busy(2.5), "RETRY", 10_000),
        (Busy(True), "RETRY", 10_000),
        (Busy(-1), "RETRY", 10_000),
        (Busy(RETRY_DELAY_MS_MAX + 1), "RETRY", 10_000),
        (Busy(7), "RETRY", 7),
        (Nap(), "RETRY", 10_000),
    ],
)
def test_an_error_that_breaks_every_rule_has_a_verdict(error: Exception, result: str, retry_after_ms: int) -> None:
    verdict = on_error(error, POLICY, dispatch())
    assert (verdict.result, verdict.retry_after_ms) == (result, retry_after_ms)
    assert verdict.error is not None


def test_an_error_that_nothing_can_be_asked_of_has_a_verdict() -> None:
    verdict = on_error(Faceless(), POLICY, dispatch())
    assert verdict.result == "FAILED"
    assert verdict.error is not None
    assert "task 't' raised an error that raises another" in verdict.error["message"]


@pytest.mark.parametrize("error, kind", [(RuntimeError("closed"), "duewheel.ResultTooLarge"), (SystemExit(3), "SystemExit")])
def test_a_result_that_raises_when_it_is_written_has_a_verdict(error: BaseException, kind: str) -> None:
    app = App()
    app.task(name="t", keep_result=True)(lambda: None)
    broken = run(app, attempt=5)
    broken.end(Lazy(error=error))
    assert broken.result == "FAILED"
    assert broken.error is not None
    assert broken.error["type"] == kind


# --- spans ---


@pytest.mark.parametrize(
    "span, span_ms",
    [
        (0, 0),
        (1, 1_000),
        (0.0001, 1),
        (1.1, 1_100),
        (timedelta(microseconds=1), 1),
        (timedelta(days=30), RETRY_DELAY_MS_MAX),
        (RETRY_DELAY_MS_MAX // 1_000, RETRY_DELAY_MS_MAX),
    ],
)
def test_spans_are_rounded_up(span: timedelta | float, span_ms: int) -> None:
    assert milliseconds(span, "x", RETRY_DELAY_MS_MAX) == span_ms


@pytest.mark.parametrize("span", [-1, -0.001, timedelta(seconds=-1), timedelta(days=31), float("nan"), float("inf"), True, "5", 10**12])
def test_spans_that_cannot_be_are_refused(span: Any) -> None:
    with pytest.raises(BadConfiguration, match=r"the wait of a Retry is .* from 0 to 2,592,000 s"):
        Retry(after=span)


# --- errors as they are kept ---


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_errors_are_cut_to_their_limits_and_can_always_be_written() -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError("x" * 10_000 + "\udcff")

    try:
        deep(400)
    except ValueError as error:
        failure = failure_of(error)
    assert len(failure["message"]) == ERROR_MESSAGE_CHARS_MAX
    assert len(failure["traceback"]) <= ERROR_TRACEBACK_CHARS_MAX
    failure["traceback"].encode()
    assert failure_of(Unprintable())["message"] == "(its message cannot be had: SystemExit)"


@given(st.text(st.characters(), max_size=50))
def test_any_message_can_be_written(text: str) -> None:
    failure = failure_of(ValueError(text))
    for part in failure.values():
        str(part).encode()
