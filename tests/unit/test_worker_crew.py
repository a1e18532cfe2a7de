"""Who runs handlers: threads and a loop that take work, leave work, and survive whatever handlers do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duewheel.core.limits import ERROR_MESSAGE_CHARS_MAX, ERROR_TRACEBACK_CHARS_MAX
from duewheel.core.model import Dispatch
from duewheel.worker.app import App
from duewheel.worker.crew import Crew, Desk
from duewheel.worker.executors.shares import Shares
from duewheel.worker.holding import Holding
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import failure_of


class Clock:
    """Time that the test sets."""

    now_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms


HOLDING = Holding("t", 0, "w")


def run(handler: Callable[..., Any], offset: int = 0) -> Run:
    app = App()
    app.task(name="t")(handler)
    dispatch: Dispatch = {
        "token": offset,
        "job_id": f"j{offset}",
        "generation": 1,
        "slot_ms": 0,
        "attempt": 1,
        "timer_partition": 0,
        "dispatched_ms": 0,
        "terms": None,
        "work": {"task": "t", "content_type": "application/json", "payload": b"1", "headers": {}, "policy": None},
    }
    return Run(HOLDING, offset, b"k", dispatch, app.tasks["t"], 1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> Iterator[Desk]:
    crew = Crew(2, clock, None, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1_000
    yield desk
    crew.close()


def finished(desk: Desk, count: int) -> list[Run]:
    done: list[Run] = []
    deadline = time.monotonic() + 10
    while len(done) < count:
        desk.wait(0.01)
        desk.nudge()
        done += desk.take(count - len(done))
        assert time.monotonic() < deadline, f"{len(done)} of {count} finished"
    return done


def test_everything_submitted_is_finished_once(desk: Desk) -> None:
    async def coroutine() -> None:
        await asyncio.sleep(0)

    runs = [run(coroutine if n % 3 == 0 else lambda: None, n) for n in range(3_000)]
    for start in range(0, 3_000, 100):
        desk.submit(runs[start : start + 100])
    done = finished(desk, 3_000)
    assert sorted(r.offset for r in done) == list(range(3_000))
    assert {r.result for r in done} == {"SUCCEEDED"}
    assert desk.running() == []


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_no_more_handlers_run_at_a_time_than_allowed_and_all_of_those_do(desk: Desk, kind: str) -> None:
    gate = threading.Event()
    lock = threading.Lock()
    running, most = 0, 0

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    def plain() -> None:
        enter(1)
        assert gate.wait(10)
        enter(-1)

    async def coroutine() -> None:
        enter(1)
        while not gate.is_set():
            await asyncio.sleep(0.001)
        enter(-1)

    desk.submit([run(plain if kind == "plain" else coroutine, n) for n in range(8)])
    deadline = time.monotonic() + 10
    while running < 2:
        desk.wait(0.001)
        desk.nudge()
        assert time.monotonic() < deadline
    assert len(desk.running()) == 2
    assert [r.offset for r in desk.withdraw(lambda r: r.offset >= 6)] == [6, 7]
    gate.set()
    assert sorted(r.offset for r in finished(desk, 6)) == [0, 1, 2, 3, 4, 5]
    assert most == 2


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_whatever_a_handler_raises_only_its_run_fails(desk: Desk, error: BaseException) -> None:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    desk.submit([run(plain), run(coroutine), run(lambda: None), run(lambda: None)])
    done = finished(desk, 4)
    assert sorted(r.result for r in done) == ["RETRY", "RETRY", "SUCCEEDED", "SUCCEEDED"]
    assert {r.error["type"].rpartition(".")[2] for r in done if r.error is not None} == {type(error).__name__}


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_nothing_starts_while_the_gate_is_shut(desk: Desk, clock: Clock, kind: str) -> None:
    async def coroutine() -> None: ...

    clock.now_ms = 1_000  # the process was away for longer than its membership is sure
    desk.submit([run((lambda: None) if kind == "plain" else coroutine)])
    for _ in range(20):
        desk.nudge()
        desk.wait(0.002)
    assert desk.finished_count == 0
    desk.gate_ms = 2_000
    assert len(finished(desk, 1)) == 1


def test_context_variables_do_not_leak_from_one_run_into_the_next(desk: Desk) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    def plain() -> None:
        seen.append(tenant.get())
        tenant.set("somebody")

    async def coroutine() -> None:
        plain()

    desk.submit([run(plain) for _ in range(5)] + [run(coroutine) for _ in range(5)])
    finished(desk, 10)
    assert seen == ["nobody"] * 10


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


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
    assert failure_of(Unprintable())["message"] == "(its message cannot be had: RuntimeError)"
