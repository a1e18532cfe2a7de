"""Attempts on a real broker, seen from the worker: what runs long, hangs, is cancelled, is cut short; and that each is told once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duewheel.adapters.kafka.topics import ensure
from duewheel.core.limits import LEASE_MARGIN_MS, LEASE_MS
from duewheel.core.model import Outcome
from duewheel.worker import watch
from duewheel.worker.app import App, Context
from duewheel.worker.crew import HELD_BACK_PER_HANDLER
from tests.conftest import Installation
from tests.integration.queue_desk import PARTITIONS, Child, Queue


@pytest.fixture
def queue(installation: Installation, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(installation.kafka, installation.topology, tmp_path)
    yield queue
    queue.close()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def said_of(queue: Queue, job_id: str) -> list[Outcome]:
    return [outcome for outcome in queue.outcomes if outcome["job_id"] == job_id]


def spans_ms(queue: Queue, results: set[str]) -> list[int]:
    return [outcome["finished_ms"] - outcome["started_ms"] for outcome in queue.outcomes if outcome["result"] in results]


def logged(child: Child, event: str) -> bool:
    return event in child.log.read_text()


# --- leases ---


def test_W4_W8_a_run_of_three_poll_intervals_is_one_attempt_that_beats(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HEARTBEAT_MS", 3_000)
    app, started, go = App(), [], threading.Event()

    @app.task
    def job(context: Context) -> None:
        started.append(context.job_id)
        assert go.wait(60)

    worker = queue.worker(app, options={"max.poll.interval.ms": 6_000, "session.timeout.ms": 6_000})
    taken_away: list[Sequence[int]] = []
    monkeypatch.setattr(worker, "lost", taken_away.append)
    queue.dispatch(["long"])
    queue.drive(worker, until=lambda: started)
    end = time.monotonic() + 3 * 6
    queue.drive(worker, until=lambda: time.monotonic() > end)
    go.set()
    queue.drive(worker, until=lambda: "SUCCEEDED" in queue.results().get("long", []))
    assert not taken_away
    queue.leave(worker)
    assert started == ["long"]
    results = queue.results()["long"]
    assert results == ["STARTED", *["HEARTBEAT"] * (len(results) - 2), "SUCCEEDED"]
    assert 4 <= results.count("HEARTBEAT") <= 6
    assert {outcome["lease_ms"] for outcome in queue.outcomes[:-1]} == {LEASE_MS}
    assert queue.unfinished() == 0


def test_W4_a_self_beating_handler_that_hangs_is_tried_again_early(queue: Queue) -> None:
    app, hung = App(), threading.Event()

    @app.task(heartbeat=timedelta(seconds=1))
    def job(context: Context) -> None:
        for step in range(4):
            context.heartbeat({"step": step})
            time.sleep(0.4)
        context.heartbeat({"step": "last"})
        hung.wait(60)

    worker = queue.worker(app)
    queue.dispatch(["hangs"])
    queue.drive(worker, until=lambda: "RETRY" in queue.results().get("hangs", []))
    hung.set()
    queue.leave(worker)
    first, *beats, last = said_of(queue, "hangs")
    assert (first["result"], first["lease_ms"]) == ("STARTED", 1_000 + LEASE_MARGIN_MS)
    assert {beat["result"] for beat in beats} == {"HEARTBEAT"}
    assert beats[-1]["output"] == b'{"step":"last"}'
    assert last["error"] is not None
    assert last["error"]["type"] == "duewheel.HeartbeatTimeout"
    assert 2_600 <= last["finished_ms"] - last["started_ms"] < 4_000
    assert queue.results() == {"hangs": ["STARTED", *["HEARTBEAT"] * len(beats), "RETRY"]}


# --- time limits ---


def test_W12_at_its_run_timeout_a_run_is_over_and_its_slot_is_free(queue: Queue) -> None:
    child = queue.spawn(concurrency=1)
    for kind in ("thread", "coroutine", "process"):
        queue.dispatch([kind], task=f"endless_{kind}")
    queue.await_that(lambda: len(queue.read()) == 3)
    assert {outcome["job_id"]: outcome["result"] for outcome in queue.outcomes} == dict.fromkeys(
        ("thread", "coroutine", "process"), "RETRY"
    )
    errors = {outcome["job_id"]: outcome["error"] for outcome in queue.outcomes}
    assert all(error is not None and error["type"] == "duewheel.RunTimeout" for error in errors.values())
    assert ["its handler goes on" in str(error) for error in errors.values()].count(True) == 1
    assert all(1_000 <= span < 2_500 for span in spans_ms(queue, {"RETRY"}))
    queue.await_that(lambda: child.noted("cancelled") == ["coroutine"])
    queue.await_that(lambda: not is_alive(int((child.folder / "pid").read_text())))
    assert logged(child, "worker.run_timed_out")

    queue.dispatch(["after"])
    queue.dispatch(["after, too"], task="coroutine")
    queue.dispatch(["after, also"], task="process")
    queue.await_that(lambda: [outcome["result"] for outcome in queue.read()].count("SUCCEEDED") == 3)
    child.kill(signal.SIGTERM)
    assert child.wait() == 0
    assert len(queue.read()) == 6, "what the left behind thread does comes too late"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_came_too_late_is_not_run(queue: Queue) -> None:
    app, started = App(), []
    app.task(name="job")(lambda: started.append(1))
    now_ms = time.time_ns() // 1_000_000
    late = {"crashes": 0, "is_last_life": False, "expires_ms": now_ms, "deadline_ms": 0}
    queue.dispatch(["late"], terms=late)
    queue.dispatch(["in time"], terms={**late, "expires_ms": now_ms + 600_000})
    worker = queue.worker(app)
    queue.drive(worker, until=lambda: len(queue.read()) == 2)
    queue.leave(worker)
    assert queue.results() == {"late": ["EXPIRED"], "in time": ["SUCCEEDED"]}
    assert started == [1]


# --- cancelling ---


def test_a_running_handler_is_cancelled_by_its_stop(queue: Queue) -> None:
    app, started = App(), []

    @app.task
    async def coroutine(context: Context) -> None:
        started.append(context.job_id)
        await asyncio.sleep(60)

    @app.task
    def thread(context: Context) -> None:
        started.append(context.job_id)
        while True:
            context.raise_if_cancelled()
            time.sleep(0.01)

    dispatches = [queue.dispatch([job_id], job_id.split("-")[0])[0] for job_id in ("coroutine-a", "coroutine-b", "thread-a", "thread-b")]
    worker = queue.worker(app)
    queue.drive(worker, until=lambda: len(started) == 4)
    queue.stop(dispatches[0])
    queue.stop(dispatches[2])
    stopped = time.monotonic()
    queue.drive(worker, until=lambda: len(queue.read()) == 2)
    assert time.monotonic() - stopped < 2
    assert queue.results() == {"coroutine-a": ["CANCELLED"], "thread-a": ["CANCELLED"]}
    queue.stop(dispatches[1])
    queue.stop(dispatches[3])
    queue.drive(worker, until=lambda: len(queue.read()) == 4)
    queue.leave(worker)
    assert queue.unfinished() == 0


def test_what_was_cancelled_while_no_worker_was_there_is_never_run(queue: Queue) -> None:
    app, started = App(), []

    @app.task
    def job(context: Context) -> None:
        started.append(context.job_id)

    [unwanted, _] = queue.dispatch(["unwanted", "wanted"])
    queue.stop(unwanted)
    worker = queue.worker(app)
    queue.drive(worker, until=lambda: len(queue.read()) == 2)
    queue.leave(worker)
    assert queue.results() == {"unwanted": ["CANCELLED"], "wanted": ["SUCCEEDED"]}
    assert started == ["wanted"]


# --- workers that go ---


def test_kill_9_with_300_runs_in_flight_returns_each_once(queue: Queue) -> None:
    child = queue.spawn(concurrency=300, options=["-X", "session.timeout.ms=6000"])
    queue.dispatch(names("done", 100))
    queue.await_that(lambda: len(queue.read()) == 100)
    queue.dispatch(names("wait", 300), wait=True)
    queue.await_that(lambda: len(child.started()) == 400)
    app, started = App(), []

    @app.task
    def job(context: Context) -> None:
        started.append(context.job_id)

    worker = queue.worker(app, options={"session.timeout.ms": 6_000})
    child.kill()
    killed = time.monotonic()
    child.wait()
    queue.drive(worker, until=lambda: len(queue.read()) >= 400)
    assert time.monotonic() - killed < 6 + 5
    queue.dispatch(names("later", 4))
    queue.drive(worker, until=lambda: len(queue.read()) >= 404)
    queue.leave(worker)
    expected = {"done": ["SUCCEEDED"], "wait": ["LOST"], "later": ["SUCCEEDED"]}
    assert queue.results() == {
        job: expected[job.rstrip("0123456789")] for job in names("done", 100) + names("wait", 300) + names("later", 4)
    }
    assert sorted(started) == names("later", 4)
    assert queue.unfinished() == 0


def test_W13_sigterm_with_50_runs_of_which_half_end_within_the_grace_period(queue: Queue) -> None:
    child = queue.spawn(concurrency=50, options=["--grace", "3"])
    queue.dispatch(names("ends", 25), sleep_s=1.5)
    queue.dispatch(names("stays", 25), wait=True)
    queue.await_that(lambda: len(child.started()) == 50)
    asked = time.monotonic()
    child.kill(signal.SIGTERM)
    assert child.wait() == 0
    assert time.monotonic() - asked < 3 + 2
    assert queue.results() == {job: ["SUCCEEDED" if job.startswith("ends") else "INTERRUPTED"] for job in child.started()}
    assert queue.unfinished() == 0


def test_W13_coroutines_and_processes_are_interrupted_like_threads(queue: Queue) -> None:
    child = queue.spawn(concurrency=4, options=["--grace", "0.5"])
    for task in ("job", "coroutine", "process"):
        queue.dispatch([task], task=task, wait=True)
    queue.await_that(lambda: len(child.started()) == 3)
    child.kill(signal.SIGTERM)
    asked = time.monotonic()
    assert child.wait() == 0
    assert time.monotonic() - asked < 4
    assert queue.results() == {task: ["INTERRUPTED"] for task in ("job", "coroutine", "process")}


def test_W4_a_long_run_survives_that_another_worker_joins(queue: Queue) -> None:
    first = queue.spawn(concurrency=PARTITIONS, name="first")
    for partition in range(PARTITIONS):
        queue.dispatch([f"long{partition}"], partition=partition, wait=True)
    queue.await_that(lambda: len(first.started()) == PARTITIONS)
    second = queue.spawn(concurrency=2, name="second")
    queue.await_that(lambda: logged(first, "worker.revoked") and logged(second, "worker.partition_opened"))
    queue.dispatch(names("after", 8))
    queue.await_that(lambda: len(second.noted("finished")) > 0)
    # Once the second has recorded what it ran, claims stand of the long runs alone, and of no more than were not handed over.
    queue.await_that(lambda: queue.unfinished() == PARTITIONS - Counter(o["result"] for o in queue.read())["STARTED"])
    assert Counter(o["result"] for o in queue.read())["STARTED"] == PARTITIONS // 2
    first.go()
    queue.await_that(lambda: [outcome["result"] for outcome in queue.read()].count("SUCCEEDED") == PARTITIONS + 8)
    for child in (first, second):
        child.kill(signal.SIGTERM)
        assert child.wait() == 0
    results = {job: said for job, said in queue.results().items() if job.startswith("long")}
    assert Counter(map(tuple, results.values())) == {("SUCCEEDED",): 2, ("STARTED", "SUCCEEDED"): 2}
    assert Counter(first.started() + second.started()) == Counter([*names("long", PARTITIONS), *names("after", 8)])
    assert queue.unfinished() == 0


# --- sharing ---


def test_a_task_at_its_own_limit_does_not_starve_the_others(queue: Queue) -> None:
    app, go = App(), threading.Event()
    running: list[str] = []

    @app.task(concurrency=1)
    def limited(context: Context) -> None:
        running.append(context.job_id)
        assert go.wait(60)

    @app.task
    def job() -> None: ...

    # One that runs, and as many as may wait behind it without taking others' place; with more of them, the log itself is in the way.
    limited_count = 1 + 4 * HELD_BACK_PER_HANDLER
    queue.dispatch(names("limited", limited_count), "limited")
    queue.dispatch(names("free", 40))
    worker = queue.worker(app, concurrency=4)
    queue.drive(worker, until=lambda: len(queue.read()) == 40)
    assert all(job_id.startswith("free") for job_id in queue.results())
    assert len(running) == 1
    go.set()
    queue.drive(worker, until=lambda: len(queue.read()) == limited_count + 40)
    queue.leave(worker)
    assert queue.results() == {job: ["SUCCEEDED"] for job in names("limited", limited_count) + names("free", 40)}


def test_two_queues_share_a_worker_by_their_weights(queue: Queue) -> None:
    ensure(queue.kafka, queue.topology, {"default": PARTITIONS, "critical": PARTITIONS}, partitions=PARTITIONS)
    critical = Queue(queue.kafka, queue.topology, queue.folder, "critical")
    jobs = names("critical-", 300) + names("default-", 300)
    critical.dispatch(names("critical-", 300), sleep_s=0.01)
    queue.dispatch(names("default-", 300), sleep_s=0.01)
    child = queue.spawn(concurrency=1, options=["-q", "critical:5", "-q", "default:1"])
    queue.await_that(lambda: len(queue.read()) == 600)
    child.kill(signal.SIGTERM)
    assert child.wait() == 0
    assert Counter(child.started()) == Counter(jobs)
    starts: list[Any] = [job_id.partition("-")[0] for job_id in child.started()]
    both = max(starts.index("critical"), starts.index("default")) + 30  # their windows have opened by then
    shares = Counter(starts[both : both + 120])
    assert 72 <= shares["critical"] <= 117, shares  # five of six are 100; without weights it would be 60
    critical.close()
