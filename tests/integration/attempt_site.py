"""A whole installation to try attempts on: a timer processor and workers as processes, producers here, and everything that they wrote.

    site.worker("worker-1")
    with site.client() as client:
        client.schedule("noop", job_id="a")
    site.await_phases({"a": "SUCCEEDED"})
    site.executions("a")                    [Execution(worker="worker-1", job_id="a", attempt=1, …)]
    site.ends()["a"]                        the one terminal state that its owner accepted

What was executed is told by the handlers themselves, in a file that outlives their process; what was accepted, by the log of states.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import duewheel
from duewheel import Client
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Dispatch, Outcome, State
from duewheel.fleet import Child, ChildDied, Fleet
from tests.integration.desk import PARTITIONS, Desk

READY_S: Final = 30.0
END_S: Final = 30.0
SESSION_TIMEOUT_S: Final = 6.0

T = TypeVar("T")

# Each handler first says that it runs: one line, appended whole, on disk's side of the kernel before anything can end the process.
_HEAD: Final = """
import asyncio, os, pathlib, time
from datetime import timedelta
from duewheel import App, Context, Discard, Retry, RetryPolicy

app = App()
folder = pathlib.Path(os.environ["JOBS_FOLDER"])
lines = os.open(folder / "executions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(context):
    told = (os.environ["WORKER"], context.job_id, context.attempt, context.fencing_token, time.time_ns() // 1_000_000)
    os.write(lines, (" ".join(map(str, told)) + "\\n").encode())


def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""

APP: Final = (
    _HEAD
    + """
@app.task
def noop(context: Context) -> None:
    note(context)


@app.task
def poison(context: Context) -> None:
    note(context)
    os._exit(1)


@app.task(executor="process")
def noop_in_process(context: Context) -> None:
    note(context)


@app.task(executor="process")
def poison_in_process(context: Context) -> None:
    note(context)
    os._exit(1)


@app.task
def held(payload: str, context: Context) -> None:
    note(context)
    if os.environ["WORKER"] == payload:
        wait_for("go")


@app.task(concurrency=1)
def held_alone(payload: str, context: Context) -> None:
    held(payload, context)


@app.task(retry=RetryPolicy.exponential(first=2, factor=2, jitter=0.5, attempts=2))
def fail_once(context: Context) -> None:
    note(context)
    if context.attempt == 1:
        raise ConnectionError("the database is away")


@app.task(retry=RetryPolicy.fixed(0.3, attempts=100))
def fail_always(context: Context) -> None:
    note(context)
    raise ConnectionError("the database is away")


@app.task(heartbeat=2)
def beats(payload: str, context: Context) -> None:
    note(context)
    while os.environ["WORKER"] == payload and not (folder / "go").exists():
        context.heartbeat()
        time.sleep(0.1)


@app.task(heartbeat=1, retry=RetryPolicy.fixed(0.1, attempts=2))
def hangs(context: Context) -> None:
    note(context)
    if context.attempt == 1:
        wait_for("go")


@app.task
async def endless(context: Context) -> None:
    note(context)
    await asyncio.sleep(1_000)


@app.task(retry=RetryPolicy.fixed(timedelta(hours=1)))
def ask_again(context: Context) -> None:
    note(context)
    if context.attempt == 1:
        raise Retry("the bank is closed", after=0.7)


@app.task
def give_up(context: Context) -> None:
    note(context)
    raise Discard("the customer is gone")


@app.task(retry=RetryPolicy(attempts=1))
def doze(payload: float, context: Context) -> None:
    note(context)
    if not (folder / "awake").exists():
        (folder / "awake").touch()
        context.snooze(payload)


@app.task(retry=RetryPolicy.fixed(0.1, attempts=2))
def broken(context: Context) -> None:
    note(context)
    if not (folder / "mended").exists():
        raise LookupError("no such template")
"""
)

OTHER_APP: Final = (
    _HEAD
    + """
@app.task
def brand_new(context: Context) -> None:
    note(context)
"""
)


class Execution(NamedTuple):
    """A handler's word that it runs."""

    worker: str
    job_id: str
    attempt: int
    token: int
    at_ms: int


class AttemptSite:
    """One processor, whose partitions are active, and workers as they are asked for.

    Args:
        folder: takes the apps and what handlers write.
    """

    def __init__(self, fleet: Fleet, desk: Desk, folder: Path) -> None:
        self.fleet = fleet
        self.desk = desk
        self.folder = folder
        self.workers: list[Child] = []
        (folder / "attempted.py").write_text(APP)
        (folder / "attempted_anew.py").write_text(OTHER_APP)
        self.processor = fleet.start_processor("processor")
        self._states: list[tuple[str, State]] = []
        self._states_read = 0

    def worker(self, name: str, *arguments: str, app: str = "attempted:app", concurrency: int = 4) -> Child:
        """Starts a worker; `await_ready` afterwards."""
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path, "JOBS_FOLDER": str(self.folder), "WORKER": name}
        child = self.fleet.start_worker(name, app, *arguments, concurrency=concurrency, environment=environment)
        self.workers.append(child)
        return child

    def await_ready(self) -> None:
        """Until the processor fires all partitions and the workers share theirs evenly, so that only faults move them from here on."""
        self.fleet.await_that(lambda: len(self.processor.logged("processor.active")) == PARTITIONS, READY_S, "the processor is active")
        cluster, group = KafkaCluster(self.desk.kafka), self.desk.topology.worker_group("default")
        shares = {worker.name: PARTITIONS // len(self.workers) for worker in self.workers}
        self.fleet.await_that(
            lambda: {name: len(held) for name, held in cluster.members(group).items()} == shares, READY_S, f"the shares are {shares}"
        )

    def client(self) -> Client:
        return duewheel.connect(self.desk.kafka.bootstrap_servers, prefix=self.desk.topology.prefix)

    def allow(self, name: str) -> None:
        """Lets handlers go on that wait for this."""
        (self.folder / name).touch()

    # --- what happened ---

    def executions(self, *job_ids: str) -> list[Execution]:
        """What handlers said, in that order; of these jobs alone where any are named."""
        path = self.folder / "executions"
        told = [line.split() for line in (path.read_text().splitlines() if path.exists() else [])]
        all_ = [Execution(worker, job_id, int(attempt), int(token), int(at)) for worker, job_id, attempt, token, at in told]
        return [execution for execution in all_ if not job_ids or execution.job_id in job_ids]

    def states(self) -> list[tuple[str, State]]:
        """All that owners wrote of jobs' courses, in order of each job."""
        messages = self.desk.read(self.desk.topology.state)
        for message in messages[self._states_read :]:
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if key[:1] == b"s" and value is not None:
                self._states.append((key[1:].decode(), codec.decode_state(value)))
        self._states_read = len(messages)
        return self._states

    def phases(self) -> dict[str, str]:
        """Where each job stands that was dispatched once."""
        return {job_id: state["phase"] for job_id, state in self.states()}

    def ends(self) -> dict[str, State]:
        """The terminal state of each job that has one, after checking that no job has two."""
        found: dict[str, State] = {}
        for job_id, state in self.states():
            if state["phase"] in TERMINAL:
                assert job_id not in found, f"two ends were accepted of {job_id}: {found[job_id]} and {state}"
                found[job_id] = state
        return found

    def dispatches(self) -> list[Dispatch]:
        """All that was handed to workers."""
        self.desk.read(self.desk.topology.dispatch("default"))
        return self.desk.dispatches()

    def outcomes(self) -> list[Outcome]:
        """All that workers said."""
        return [codec.decode_outcome(message.value()) for message in self.desk.read(self.desk.topology.outcomes)]

    # --- waiting ---

    def await_that(self, condition: Callable[[], T], what: str, timeout_s: float = END_S) -> T:
        return self.fleet.await_that(condition, timeout_s, what)

    def await_phases(self, wanted: Mapping[str, str], timeout_s: float = END_S) -> None:
        """Until each of these jobs is in its phase."""
        self.await_that(lambda: wanted.items() <= self.phases().items(), f"the jobs are {_short(wanted)}", timeout_s)

    def await_revived(self, condition: Callable[[], Any], what: str, timeout_s: float) -> int:
        """As `await_that`, and starts workers again that have ended, as whoever supervises them would. How often it did."""
        revived, deadline = 0, time.monotonic() + timeout_s
        while True:
            try:
                self.await_that(condition, what, deadline - time.monotonic())
                return revived
            except ChildDied:
                for worker in self.workers:
                    if worker.exit_code is not None:
                        worker.start()
                        revived += 1
                self.fleet.check()  # it was none of these


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:03}" for number in range(count)]


def all_in(phase: str, job_ids: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(job_ids, phase)


def _short(wanted: Mapping[str, str]) -> str:
    items = list(wanted.items())
    return ", ".join(f"{job_id} {phase}" for job_id, phase in items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
