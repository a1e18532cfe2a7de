"""Who runs handlers: threads and a loop that take work, leave work, and survive whatever handlers do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from duewheel.core.model import Dispatch
from duewheel.worker.app import App, Context, Task
from duewheel.worker.crew import HELD_BACK_PER_HANDLER, Crew, Desk
from duewheel.worker.executors import leftovers
from duewheel.worker.executors.shares import Shares
from duewheel.worker.holding import Holding
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import Retry, Verdict


class Clock:
    """Time that the test sets."""

    now_ms = 1  # 0 stands for never

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms


HOLDING = Holding("t", 0, "w")


def run(handler: Callable[..., Any], offset: int = 0) -> Run:
    app = App()
    app.task(name="t")(handler)
    return run_of(app.tasks["t"], offset)


def run_of(task: Task, offset: int = 0) -> Run:
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
    return Run(HOLDING, offset, b"k", dispatch, task, 1)


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


class Busy(Retry):
    def __init__(self) -> None: ...


class Rows(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("the session is closed")


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("result", [Busy(), Rows(a=1)], ids=["error", "value"])
def test_what_breaks_its_own_verdict_still_comes_out_and_frees_its_slot(desk: Desk, kind: str, result: Any) -> None:
    def plain() -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    async def coroutine() -> Any:
        return plain()

    app = App()
    app.task(name="t", keep_result=True)(plain if kind == "plain" else coroutine)
    desk.submit([run_of(app.tasks["t"], n) for n in range(10)])
    done = finished(desk, 10)
    assert {each.result for each in done} == {"RETRY" if isinstance(result, Busy) else "FAILED"}
    assert desk.running() == []


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


def until(desk: Desk, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        desk.wait(0.001)
        desk.nudge()
        assert time.monotonic() < deadline


class Stuck:
    """Handlers that do not end before the test lets them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.free = threading.Event()
        self.inside = 0

    def run(self, offset: int) -> Run:
        return run(self.plain if self.kind == "plain" else self.coroutine, offset)

    def plain(self) -> None:
        self.inside += 1
        self.free.wait(10)
        self.inside -= 1

    async def coroutine(self) -> None:
        self.inside += 1
        while not self.free.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                pass  # as broken code does
        self.inside -= 1


KINDS = pytest.mark.parametrize("kind", ["plain", "coroutine"])


@KINDS
def test_W12_a_handler_that_cannot_be_ended_gives_its_slot_to_another(desk: Desk, kind: str) -> None:
    stuck = Stuck(kind)
    threads = threading.active_count()
    for first in range(0, 10, 2):
        runs = [stuck.run(first), stuck.run(first + 1)]
        desk.submit(runs)
        until(desk, lambda: stuck.inside == first + 2)  # noqa: B023
        assert set(desk.running()) == set(runs)
        assert [desk.abandon(each) for each in runs] == [True, True]
        assert [desk.abandon(each) for each in runs] == [False, False]
        assert all(each.abandoned for each in runs)
        assert desk.running() == []
    desk.submit([run(lambda: None)])
    assert finished(desk, 1)[0].result == "SUCCEEDED"
    stuck.free.set()
    until(desk, lambda: stuck.inside == 0)
    until(desk, lambda: threading.active_count() <= threads + 3)  # two slots, or a loop; those left behind have ended
    assert desk.finished_count == 0


@KINDS
def test_W12_of_handlers_left_behind_there_are_not_more_than_the_limit(desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "STUCK_HANDLERS_MAX", 3)
    stuck = Stuck(kind)
    with capture_logs() as logs:
        for first in (0, 2):
            runs = [stuck.run(first), stuck.run(first + 1)]
            desk.submit(runs)
            until(desk, lambda: stuck.inside == first + 2)  # noqa: B023
            assert all(desk.abandon(each) for each in runs)
    assert {"event": "worker.slot_occupied", "log_level": "error", "task": "t", "left_behind": 3, "occupied": 1} in logs
    # Of two slots one is occupied, so that these run one by one.
    more = Stuck(kind)
    desk.submit([more.run(10), more.run(11)])
    until(desk, lambda: more.inside == 1)
    for _ in range(20):
        desk.wait(0.001)
        desk.nudge()
    assert more.inside == 1
    stuck.free.set()
    until(desk, lambda: more.inside == 2)  # the occupied slot is free again
    more.free.set()
    assert sorted(each.offset for each in finished(desk, 2)) == [10, 11]
    assert desk.finished_count == 0


def test_a_handler_that_ends_while_it_is_given_up_loses_no_slot(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = leftovers.Leftovers.give_up
    threads = threading.active_count()

    def give_up_slowly(self: Any, of: Run) -> Any:
        """The handler's thread ends between the decision and what follows from it."""
        given_up = give_up(self, of)
        stuck.free.set()
        until(desk, lambda: threading.active_count() == before - 1)
        return given_up

    monkeypatch.setattr(leftovers.Leftovers, "give_up", give_up_slowly)
    for number in range(3):  # of two slots
        stuck = Stuck("plain")
        each = stuck.run(number)
        desk.submit([each])
        until(desk, lambda: stuck.inside)  # noqa: B023
        before = threading.active_count()
        assert desk.abandon(each)
    assert threading.active_count() <= threads + 1
    desk.submit([run(lambda: None)])
    assert finished(desk, 1)[0].result == "SUCCEEDED"


def test_W12_slots_that_are_occupied_by_what_was_given_up_do_not_look_like_free_ones(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "STUCK_HANDLERS_MAX", 0)
    crew = Crew(4, clock, None, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1_000
    stuck = Stuck("plain")
    runs = [stuck.run(0), stuck.run(1)]
    desk.submit(runs)
    until(desk, lambda: stuck.inside == 2)
    assert all(desk.abandon(each) for each in runs)
    desk.submit([run(lambda: None)])  # one that waits, and two threads that are not idle and run nothing
    assert finished(desk, 1)[0].result == "SUCCEEDED"
    assert stuck.inside == 2, "and it did not wait for them"
    stuck.free.set()
    crew.close()


def test_a_coroutine_that_is_given_up_before_its_first_step_never_takes_it(desk: Desk) -> None:
    entered, release = threading.Event(), threading.Event()
    steps = []

    async def block() -> None:
        entered.set()
        release.wait(10)  # the whole loop

    async def step() -> None:
        steps.append(1)

    first, second = run(block, 0), run(step, 1)
    desk.submit([first, second])
    assert entered.wait(10)
    assert desk.abandon(second)
    release.set()
    assert finished(desk, 1) == [first]
    desk.submit([run(block, 2), run(block, 3)])  # both slots are free
    assert len(finished(desk, 2)) == 2
    assert steps == []


def test_a_run_that_ends_while_it_is_given_up_ends_once(desk: Desk) -> None:
    """Whoever wins: either it is finished, or it was given up."""
    given_up = set()
    runs = [run(lambda: None, n) for n in range(2_000)]
    done = []
    for each in runs:
        desk.submit([each])
        for running in desk.running():
            if desk.abandon(running):
                given_up.add(running)
        done += desk.take(100)
    done += finished(desk, len(runs) - len(given_up) - len(done))
    assert not given_up & set(done)
    assert len(given_up) + len(set(done)) == len(done) + len(given_up) == len(runs)
    assert {each.result for each in done} == {"SUCCEEDED"}


def test_cancelling_reaches_the_handler_that_runs(desk: Desk) -> None:
    started = threading.Semaphore(0)

    def plain(context: Context) -> None:
        started.release()
        while True:
            context.raise_if_cancelled()
            time.sleep(0.001)

    async def coroutine() -> None:
        started.release()
        await asyncio.Event().wait()

    runs = [run(plain), run(coroutine)]
    desk.submit(runs)
    assert started.acquire(timeout=10)
    assert started.acquire(timeout=10)
    for each in runs:
        desk.cancel(each)
    assert {each.result for each in finished(desk, 2)} == {"CANCELLED"}


def test_a_coroutine_that_is_cancelled_before_its_first_step_ends_all_the_same(desk: Desk) -> None:
    entered = threading.Event()
    release = threading.Event()

    async def block() -> None:
        entered.set()
        release.wait(10)  # the whole loop

    async def never() -> None:
        raise AssertionError

    first, second, third = run(block, 0), run(never, 1), run(never, 2)
    desk.submit([first, second])
    assert entered.wait(10)
    desk.cancel(second)
    release.set()
    assert {each.offset: each.result for each in finished(desk, 2)} == {0: "SUCCEEDED", 1: "CANCELLED"}
    entered.clear()
    release.clear()
    desk.submit([run(block, 3), third])
    assert entered.wait(10)
    until(desk, lambda: third in desk.running() or desk.withdraw(lambda each: each is third))
    release.set()
    if third in desk.running():
        desk.abandon(third)
    assert [each.offset for each in finished(desk, 1)] == [3]


# --- limits of tasks ---


def limited(handler: Callable[..., Any], concurrency: int) -> Task:
    app = App()
    app.task(name="t", concurrency=concurrency)(handler)
    return app.tasks["t"]


@KINDS
@pytest.mark.parametrize("limit", [1, 3])
def test_a_tasks_own_limit_holds_and_costs_no_thread(clock: Clock, kind: str, limit: int) -> None:
    crew = Crew(8, clock, None, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1_000
    stuck = Stuck(kind)
    task = limited(stuck.plain if kind == "plain" else stuck.coroutine, limit)
    desk.submit([run_of(task, n) for n in range(20)])
    until(desk, lambda: stuck.inside == limit and desk.held_back_count == min(20 - limit, HELD_BACK_PER_HANDLER * 8))
    desk.submit([run(lambda: None, 100 + n) for n in range(50)])
    assert [each.offset for each in finished(desk, 50)] == list(range(100, 150))  # nothing stands in their way
    assert len(desk.running()) == limit
    assert sorted(each.offset for each in desk.withdraw(lambda each: each.offset >= 15)) == [15, 16, 17, 18, 19]
    assert desk.held_back_count == 15 - limit
    stuck.free.set()
    assert sorted(each.offset for each in finished(desk, 15)) == list(range(15))
    assert desk.held_back_count == 0
    crew.close()


def test_W3_however_many_wait_for_their_tasks_limit_only_so_many_make_room_for_others(clock: Clock) -> None:
    """What the loop takes for held back it replaces by further claims."""
    crew = Crew(3, clock, None, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1_000
    stuck = Stuck("plain")
    tasks = [limited(stuck.plain, 1) for _ in range(2)]
    desk.submit([run_of(task, n) for task in tasks for n in range(500)])
    until(desk, lambda: stuck.inside == 2 and desk.held_back_count == 2 * HELD_BACK_PER_HANDLER * 3)
    desk.withdraw(lambda each: True)
    assert desk.held_back_count == 0
    stuck.free.set()
    assert len(finished(desk, 2)) == 2
    crew.close()


@pytest.mark.parametrize("limit", [0, 2])
@KINDS
def test_what_must_not_start_any_more_is_turned_away_right_before_it_would(clock: Clock, kind: str, limit: int) -> None:
    crew = Crew(2, clock, None, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.unwanted = lambda dispatch: Verdict("EXPIRED") if dispatch["job_id"] in late else None
    late: set[str] = set()
    started = []

    def plain(context: Context) -> None:
        started.append(context.job_id)

    async def coroutine(context: Context) -> None:
        started.append(context.job_id)

    app = App()
    app.task(name="t", concurrency=limit or None)(plain if kind == "plain" else coroutine)
    runs = [run_of(app.tasks["t"], n) for n in range(6)]
    for each in runs[1:]:
        each.dispatch["terms"] = {"crashes": 0, "is_last_life": False, "expires_ms": 9, "deadline_ms": 0}
    desk.submit(runs)  # the gate is shut
    late |= {"j0", "j1", "j2", "j4"}
    desk.gate_ms = 1_000
    done = finished(desk, 6)
    assert started == ["j0", "j3", "j5"], "without terms nobody asks"
    assert sorted(each.offset for each in done if each.result == "EXPIRED") == [1, 2, 4]
    assert all((each.started_ms == 0) == (each.result == "EXPIRED") and each.finished_ms for each in done)
    assert desk.held_back_count == 0
    desk.submit([run_of(app.tasks["t"], 7)])
    assert len(finished(desk, 1)) == 1, "and no place is lost"
    crew.close()


def test_runs_of_a_limited_task_start_in_order_and_never_too_many(clock: Clock) -> None:
    crew = Crew(6, clock, None, Shares({"a": 1, "b": 1}))
    started: list[tuple[str, str]] = []
    inside = most = 0

    def handler(context: Context) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        started.append((context.queue, context.job_id))
        inside -= 1

    task = limited(handler, 1)
    desks = [crew.desk("a"), crew.desk("b")]
    for desk in desks:
        desk.gate_ms = 1_000
        desk.submit([run_of(task, n) for n in range(500)])
    for desk in desks:
        finished(desk, 500)
    assert most == 1
    for queue in ("a", "b"):
        assert [job_id for of, job_id in started if of == queue] == [f"j{n}" for n in range(500)]
    crew.close()


@KINDS
def test_a_run_that_is_given_up_frees_its_tasks_limit(desk: Desk, kind: str) -> None:
    stuck = Stuck(kind)
    task = limited(stuck.plain if kind == "plain" else stuck.coroutine, 1)
    first, second = run_of(task, 0), run_of(task, 1)
    desk.submit([first, second])
    until(desk, lambda: desk.running() == [first] and stuck.inside == 1)
    assert desk.abandon(first)
    until(desk, lambda: desk.running() == [second] and stuck.inside == 2)
    stuck.free.set()
    assert finished(desk, 1) == [second]


# --- heartbeats ---


@KINDS
def test_heartbeats_are_noted(desk: Desk, clock: Clock, kind: str) -> None:
    go_on = threading.Event()

    def plain(context: Context) -> None:
        context.heartbeat({"done": 3})
        context.heartbeat()
        go_on.wait(10)

    async def coroutine(context: Context) -> None:
        context.heartbeat({"done": 3})
        context.heartbeat()
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    clock.now_ms = 77
    beating = run(plain if kind == "plain" else coroutine)
    desk.submit([beating])
    until(desk, lambda: beating.beat_ms)
    assert (beating.progress, beating.beat_ms, beating.started_steady_ms) == (b'{"done":3}', 77, 77)
    go_on.set()
    finished(desk, 1)
