"""Inline mode: jobs run at once, and through the very bytes that would travel."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from duewheel import App, Client, Context, Discard, Job, JobConflict, Retry, RetryPolicy
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import PAYLOAD_BYTES_MAX
from duewheel.testing import Inline, run_inline


@dataclass
class Order:
    number: int
    items: list[str]


app = App()
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


@app.task
def note(payload: Any, context: Context) -> str:
    seen.append((payload, context))
    return "nobody keeps this"


@app.task(keep_result=True)
def echo(payload: Any) -> Any:
    return payload


@app.task(keep_result=True)
async def double(payload: int) -> int:
    await asyncio.sleep(0)
    return 2 * payload


@app.task(keep_result=True)
def ship(order: Order) -> int:
    return order.number


@app.task(keep_result=True)
def unsayable() -> object:
    return object()


@app.task(retry=RetryPolicy.fixed(30, attempts=2, give_up_on=[KeyError]))
def fail(how: str, context: Context) -> None:
    match how:
        case "snooze":
            context.snooze(5)
        case "retry":
            raise Retry("closed", after=timedelta(minutes=1))
        case "discard":
            raise Discard("gone")
        case "give up":
            raise KeyError(how)
        case "exit":
            raise SystemExit(3)
        case _:
            raise ValueError(how)


@pytest.mark.parametrize(
    "payload",
    [object(), {1, 2}, datetime(2030, 1, 1, tzinfo=UTC), Decimal(1), float("nan"), Order(1, [])],
    ids=lambda payload: type(payload).__name__,
)
def test_W14_a_payload_that_cannot_be_serialized_is_refused_as_by_the_client(payload: Any) -> None:
    inline = Inline(app)
    with pytest.raises(RejectedJob, match="cannot be written as JSON") as raised:
        inline.schedule("note", {"of": payload})
    assert raised.value.reason is Reason.BAD_PAYLOAD
    assert (seen, inline.ran) == ([], [])


def test_W14_a_tuple_comes_back_as_a_list() -> None:
    run_inline(app, "note", {"pair": (1, 2), 3: None})
    assert seen[0][0] == {"pair": [1, 2], "3": None}
    assert run_inline(app, "echo", (1, (2,))).value == [1, [2]]


def test_W14_the_handler_gets_a_payload_of_its_own() -> None:
    given = {"items": [1]}
    run_inline(app, "note", given)
    seen[0][0]["items"].append(2)
    assert given == {"items": [1]}


def test_W14_a_result_that_cannot_be_serialized_fails_the_run() -> None:
    ran = run_inline(app, "unsayable")
    assert (ran.result, ran.value) == ("FAILED", None)
    assert ran.error is not None
    assert ran.error["type"] == "duewheel.ResultTooLarge"


def test_W14_a_result_that_nobody_keeps_is_not_there() -> None:
    ran = run_inline(app, "note", 1)
    assert ran.succeeded
    assert ran.value is None


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)}, Reason.PAYLOAD_TOO_LARGE),
        ({"queue": "no such name"}, Reason.BAD_QUEUE),
        ({"delay": -1}, Reason.BAD_DUE),
        ({"headers": {"a": 1}}, Reason.BAD_HEADERS),
    ],
    ids=str,
)
def test_W14_the_rules_are_the_clients(options: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(RejectedJob) as raised:
        run_inline(app, "note", **options)
    assert raised.value.reason is reason
    assert not seen


def test_a_payload_becomes_what_its_handler_is_annotated_with() -> None:
    assert run_inline(app, "ship", {"number": 7, "items": ["a"]}).value == 7
    ran = run_inline(app, "ship", {"number": 7})
    assert ran.result == "FAILED"
    assert ran.error is not None
    assert "items" in ran.error["message"]


def test_the_context_is_that_of_the_job_at_its_due_time() -> None:
    due_ms = 4_000_000_000_000
    run_inline(app, "note", at=due_ms, job_id="j", queue="mail", headers={"a": "b"})
    context = seen[0][1]
    assert (context.job_id, context.slot_ms, context.attempt, context.queue, context.task) == ("j", due_ms, 1, "mail", "note")
    assert context.idempotency_key == f"j/{due_ms}"
    assert context.dispatched_ms >= due_ms
    assert dict(context.headers) == {"a": "b"}
    assert not context.cancelled


@pytest.mark.parametrize(
    "how, result, retry_after_ms, error",
    [
        ("other", "RETRY", 30_000, "ValueError"),
        ("retry", "RETRY", 60_000, "duewheel.Retry"),
        ("exit", "RETRY", 30_000, "SystemExit"),
        ("snooze", "SNOOZED", 5_000, ""),
        ("discard", "DISCARDED", 0, "duewheel.Discard"),
        ("give up", "FAILED", 0, "KeyError"),
    ],
)
def test_what_a_handler_raises_becomes_what_it_would(how: str, result: str, retry_after_ms: int, error: str) -> None:
    ran = run_inline(app, "fail", how)
    assert (ran.result, ran.retry_after_ms) == (result, retry_after_ms)
    assert ("" if ran.error is None else ran.error["type"]) == error


def test_the_jobs_own_policy_counts() -> None:
    assert run_inline(app, "fail", "other", retry=RetryPolicy(attempts=1)).result == "FAILED"


def test_W10_an_unknown_task_says_what_there_is() -> None:
    ran = run_inline(app, "nowhere")
    assert ran.result == "RETRY"
    assert ran.error is not None
    assert "task 'nowhere' is not registered in the app, which has: double, echo, fail" in ran.error["message"]


def test_what_has_expired_is_not_run() -> None:
    now = datetime.now(UTC)
    at = now - timedelta(minutes=2)
    assert run_inline(app, "note", at=at, expires_at=now - timedelta(minutes=1)).result == "EXPIRED"
    assert run_inline(app, "note", at=at, expires_at=now + timedelta(minutes=1)).succeeded
    assert len(seen) == 1


def test_coroutine_functions_run_in_tests_of_either_kind() -> None:
    async def test() -> Any:
        return run_inline(app, "double", 4).value

    assert run_inline(app, "double", 3).value == 6
    assert asyncio.run(test()) == 8


def test_a_job_id_stands_for_one_job() -> None:
    inline = Inline(app)
    first = inline.schedule("echo", 1, job_id="j")
    assert inline.schedule("echo", 2, job_id="j") is first
    with pytest.raises(JobConflict, match="job j was known already"):
        inline.schedule("echo", 2, job_id="j", on_conflict="reject")
    assert inline.schedule("echo", 3, job_id="j", on_conflict="replace").value == 3
    assert [ran.value for ran in inline.ran] == [1, 3]


def test_code_that_takes_a_client_is_given_one() -> None:
    def welcome(client: Client, names: list[str]) -> int:
        client.schedule("echo", names[0], delay=timedelta(days=3), job_id="first")
        client.cancel("first")
        return client.schedule_many(Job("echo", name) for name in names[1:]).acknowledged

    inline = Inline(app)
    assert welcome(inline.client, ["a", "b", "c"]) == 2
    assert [(ran.succeeded, ran.value) for ran in inline.ran] == [(True, "a"), (True, "b"), (True, "c")]


def test_what_ends_a_test_goes_through() -> None:
    interrupted = App()

    @interrupted.task
    def t() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_inline(interrupted, "t")
