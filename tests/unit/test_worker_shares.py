"""Several queues, one crew: whose turn it is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.system import SystemClock
from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Dispatch
from duewheel.worker.app import App, Context, Task
from duewheel.worker.crew import Crew, Desk
from duewheel.worker.executors.shares import QUEUES_MAX, WEIGHT_MAX, Shares
from duewheel.worker.holding import Holding
from duewheel.worker.runs import Run

HOLDING = Holding("t", 0, "w")
KINDS = pytest.mark.parametrize("kind", ["plain", "coroutine"])


class Served:
    """Desks with a backlog, and the order in which their runs were started."""

    def __init__(self, kind: str, shares: Shares, concurrency: int = 4) -> None:
        self.order: list[str] = []
        self.crew = Crew(concurrency, SystemClock(), None, shares)
        self.desks = {queue: self.crew.desk(queue) for queue in shares.queues}
        self.submitted: Counter[str] = Counter()
        app = App()
        app.task(name="t")(self._plain if kind == "plain" else self._coroutine)
        self._task = app.tasks["t"]
        # All are filled while the gates are shut, so that nothing starts before everything waits.

    def _plain(self, context: Context) -> None:
        self.order.append(context.queue)

    async def _coroutine(self, context: Context) -> None:
        self.order.append(context.queue)

    def fill(self, queue: str, count: int) -> None:
        self.desks[queue].submit([_run(self._task) for _ in range(count)])
        self.submitted[queue] += count

    def serve(self) -> list[str]:
        """Opens the gates, waits until everything is done, and tells the order."""
        for desk in self.desks.values():
            desk.gate_ms = 1 << 60
        deadline = time.monotonic() + 30
        left = {queue: self.submitted[queue] for queue in self.desks}
        while any(left.values()):
            for queue, desk in self.desks.items():
                desk.nudge()
                left[queue] -= len(desk.take(1_000))
            time.sleep(0.001)
            assert time.monotonic() < deadline
        self.crew.close()
        return self.order


def _run(task: Task) -> Run:
    dispatch: Dispatch = {
        "token": 1,
        "job_id": "j",
        "generation": 1,
        "slot_ms": 0,
        "attempt": 1,
        "timer_partition": 0,
        "dispatched_ms": 0,
        "terms": None,
        "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
    }
    return Run(HOLDING, 0, b"k", dispatch, task, 1)


def test_turns_are_spread_and_not_bunched() -> None:
    assert Shares({"a": 3, "b": 1, "c": 1}).turns() == [0, 1, 0, 2, 0]
    assert Shares({"a": 5, "b": 1, "c": 1}).turns() == [0, 0, 1, 0, 2, 0, 0]  # nginx's own example
    assert Shares({"a": 50, "b": 10}).turns() == [0, 0, 0, 1, 0, 0]


@given(st.lists(st.integers(1, WEIGHT_MAX), min_size=1, max_size=6))
def test_every_queue_gets_its_share_at_any_moment(weights: list[int]) -> None:
    """At no point is a queue behind or ahead of its share by a whole round of the others."""
    shares = Shares({str(index): weight for index, weight in enumerate(weights)})
    turns, total = shares.turns(), sum(weights)
    served: Counter[int] = Counter()
    for count, turn in enumerate(turns, 1):
        served[turn] += 1
        for index, weight in enumerate(weights):
            assert abs(served[index] - count * weight / total) < len(weights)
    for index, weight in enumerate(weights):
        assert served[index] * total == weight * len(turns)


@KINDS
def test_with_work_in_all_queues_starts_are_as_the_weights(kind: str) -> None:
    served = Served(kind, Shares({"critical": 5, "default": 1}))
    served.fill("critical", 6_000)
    served.fill("default", 6_000)
    order = served.serve()
    # The last of the critical ones is a little after 7,200 starts; before, both had work at any time.
    count = Counter(islice(order, 6_000))
    assert count["critical"] / count["default"] == pytest.approx(5, rel=0.01)


@KINDS
def test_strictly_the_later_queue_starves_while_the_first_has_work(kind: str) -> None:
    served = Served(kind, Shares({"critical": 1, "default": 5}, strict=True))
    served.fill("default", 2_000)
    served.fill("critical", 2_000)
    order = served.serve()
    # A thread has taken its run a moment before it says so: as many may be out of order as there are threads.
    assert order[:1_990] == ["critical"] * 1_990


@KINDS
def test_what_a_queue_does_not_need_goes_to_the_others_by_their_weights(kind: str) -> None:
    served = Served(kind, Shares({"a": 3, "b": 2, "idle": 5}))
    served.fill("a", 3_000)
    served.fill("b", 3_000)
    order = served.serve()
    assert len(order) == 6_000
    count = Counter(islice(order, 3_000))
    assert count["a"] / count["b"] == pytest.approx(1.5, rel=0.01)


@KINDS
def test_a_queue_whose_gate_is_shut_does_not_hold_up_the_others(kind: str) -> None:
    served = Served(kind, Shares({"a": 1, "b": 1}))
    served.fill("a", 10)
    served.fill("b", 10)
    served.desks["b"].gate_ms = 1 << 60
    deadline = time.monotonic() + 10
    done: list[Run] = []
    while len(done) < 10:
        done += served.desks["b"].take(10)
        served.desks["b"].nudge()
        served.desks["a"].nudge()
        assert time.monotonic() < deadline
    assert set(served.order) == {"b"}
    assert len(served.desks["a"].withdraw(lambda run: True)) == 10
    served.crew.close()


def test_each_desk_gets_its_own_runs_back() -> None:
    crew = Crew(3, SystemClock(), None, Shares({"a": 1, "b": 1}))
    app = App()
    stop = threading.Event()

    @app.task
    def wait() -> None:
        stop.wait(10)

    @app.task
    async def wait_too() -> None:
        while not stop.is_set():
            await asyncio.sleep(0.001)

    runs = {queue: [_run(app.tasks["wait"]), _run(app.tasks["wait_too"])] for queue in "ab"}
    for queue in "ab":
        crew.desk(queue).gate_ms = 1 << 60
        crew.desk(queue).submit(runs[queue])
    _until(lambda: all(len(crew.desk(queue).running()) == 2 for queue in "ab"), crew)
    for queue in "ab":
        assert set(crew.desk(queue).running()) == set(runs[queue])
    stop.set()
    _until(lambda: all(crew.desk(queue).finished_count == 2 for queue in "ab"), crew)
    for queue in "ab":
        assert set(crew.desk(queue).take(9)) == set(runs[queue])
    crew.close()


def test_several_loops_at_a_time_start_no_more_threads_than_allowed() -> None:
    """Each queue's loop submits and nudges from its own thread."""
    crew = Crew(3, SystemClock(), None, Shares({"a": 1, "b": 1, "c": 1}))
    app = App()
    inside = most = 0
    lock = threading.Lock()

    @app.task
    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.0005)
        with lock:
            inside -= 1

    def loop(desk: Desk) -> None:
        desk.gate_ms = 1 << 60
        done = 0
        for _ in range(50):
            desk.submit([_run(app.tasks["work"]) for _ in range(10)])
            desk.nudge()
            done += len(desk.take(100))
        while done < 500:
            desk.wait(0.005)
            desk.nudge()
            done += len(desk.take(100))

    loops = [threading.Thread(target=loop, args=(crew.desk(queue),)) for queue in "abc"]
    for each in loops:
        each.start()
    for each in loops:
        each.join(30)
    assert not any(each.is_alive() for each in loops)
    assert most == 3
    crew.close()


@pytest.mark.parametrize(
    "weights, message",
    [
        ({}, "serves 1 to"),
        ({"a": 0}, "the weight of queue 'a' is 0"),
        ({"a": 1, "b": WEIGHT_MAX + 1}, "the weight of queue 'b' is 101; it must be from 1 to 100"),
        ({str(n): 1 for n in range(QUEUES_MAX + 1)}, "not 21"),
    ],
)
def test_shares_that_cannot_be_are_refused(weights: Mapping[str, Any], message: str) -> None:
    with pytest.raises(BadConfiguration, match=message):
        Shares(weights)


def _until(condition: Callable[[], bool], crew: Crew) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        for queue in "ab":
            crew.desk(queue).nudge()
        time.sleep(0.001)
        assert time.monotonic() < deadline
