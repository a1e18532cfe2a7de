"""What tests of the worker work with: somebody who dispatches as a timer processor does, reads outcomes, and looks at claims.

    queue.dispatch(["a", "b"], wait=True)       dispatch records, each with a token of its own
    worker = queue.worker(app)                  a worker in this process, turned by hand
    queue.drive(worker, until=lambda: queue.results())
    child = queue.spawn()                       `duewheel worker` as a process of its own, running `CHILD_APP`
    queue.claims()                              what the group has committed, decoded

Topics are read and claims are decoded by consumers of this module's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from duewheel import wiring
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka import positions
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.claims import Claim, decode
from duewheel.core.model import DeadLetter, Dispatch, Outcome
from duewheel.core.topology import Topology
from duewheel.worker.app import App
from duewheel.worker.executors.shares import Shares
from duewheel.worker.loop import Worker
from duewheel.worker.station import Station

TIMEOUT_S: Final = 40.0
PARTITIONS: Final = 4

# Handlers that say what they do in files, and wait for a file called "go" where the payload says so. Those called endless never end by
# themselves, and have a second.
CHILD_APP: Final = """
import asyncio, os, pathlib, time
from duewheel import App, Context

app = App()
folder = pathlib.Path(os.environ["JOBS_FOLDER"])

def note(name, context):
    with open(folder / name, "a") as file:
        file.write(f"{context.job_id}\\n")

@app.task
def job(payload: dict, context: Context) -> None:
    note("started", context)
    while payload["wait"] and not (folder / "go").exists():
        time.sleep(0.01)
    time.sleep(payload["sleep_s"])
    note("finished", context)

@app.task
async def coroutine(payload: dict, context: Context) -> None:
    note("started", context)
    await asyncio.sleep(1000 if payload["wait"] else payload["sleep_s"])

@app.task(executor="process")
def process(payload: dict, context: Context) -> None:
    note("started", context)
    time.sleep(1000 if payload["wait"] else payload["sleep_s"])

@app.task(timeout=1)
def endless_thread(context: Context) -> None:
    note("started", context)
    time.sleep(1000)

@app.task(timeout=1)
async def endless_coroutine(context: Context) -> None:
    note("started", context)
    try:
        await asyncio.sleep(1000)
    finally:
        note("cancelled", context)

@app.task(timeout=1, executor="process")
def endless_process(context: Context) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    note("started", context)
    time.sleep(1000)
"""


@dataclass
class Child:
    """A worker process."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def noted(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def started(self) -> list[str]:
        return self.noted("started")

    def go(self) -> None:
        (self.folder / "go").touch()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)


@dataclass
class Queue:
    """One queue of an installation, with nobody but tests and workers on it."""

    kafka: KafkaConfig
    topology: Topology
    folder: Path
    name: str = "default"
    token: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    _children: list[Child] = field(default_factory=list)
    _stations: dict[Worker, Station] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producer = Producer({"enable.idempotence": True, "linger.ms": 2, **self.kafka.common()})
        self._reader = self.reader(self.topology.outcomes)

    def reader(self, topic: str) -> Consumer:
        consumer = Consumer(self.kafka.reader())
        consumer.assign([TopicPartition(topic, p, 0) for p in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions])
        return consumer

    # --- the timer processor's part ---

    def dispatch(
        self, job_ids: Iterable[str], task: str = "job", payload: bytes | None = None, partition: int | None = None, **fields: Any
    ) -> list[Dispatch]:
        """Writes a dispatch of each job; `fields` are `wait`, `sleep_s`, or the dispatch's own."""
        wait, sleep_s = fields.pop("wait", False), fields.pop("sleep_s", 0)
        body = payload if payload is not None else f'{{"wait": {str(wait).lower()}, "sleep_s": {sleep_s}}}'.encode()
        dispatches = []
        for job_id in job_ids:
            self.token += 1
            dispatch: dict[str, Any] = {
                "token": self.token,
                "job_id": job_id,
                "generation": 1,
                "slot_ms": 1_700_000_000_000,
                "attempt": 1,
                "timer_partition": self.token % PARTITIONS,
                "dispatched_ms": time.time_ns() // 1_000_000,
                "work": {"task": task, "content_type": "application/json", "payload": body, "headers": {"tenant": "x"}},
            }
            for name, value in fields.items():
                (dispatch["work"] if name in dispatch["work"] else dispatch)[name] = value
            dispatches.append(dispatch)
            where = self.token % PARTITIONS if partition is None else partition
            self.publish(job_id.encode(), codec.encode_dispatch(dispatch), where)  # type: ignore[arg-type]
        assert self.producer.flush(TIMEOUT_S) == 0
        return dispatches  # type: ignore[return-value]

    def stop(self, dispatch: Dispatch) -> None:
        """Tells the workers that this dispatch is not wanted any more."""
        stop = codec.encode_stop({"job_id": dispatch["job_id"], "token": dispatch["token"], "queue": self.name})
        self.producer.produce(self.topology.control, stop, dispatch["job_id"].encode())
        assert self.producer.flush(TIMEOUT_S) == 0

    def publish(self, key: bytes | None, value: bytes | None, partition: int) -> None:
        self.producer.produce(self.topology.dispatch(self.name), value, key, partition)

    def read(self) -> list[Outcome]:
        """Outcomes that were committed so far."""
        for message in self._reader.consume(5_000, 0.01):
            assert message.error() is None, message.error()
            outcome = codec.decode_outcome(message.value())
            assert message.partition() == outcome["token"] % PARTITIONS
            self.outcomes.append(outcome)
        return self.outcomes

    def results(self) -> dict[str, list[str]]:
        """What was said of each job, in the order of its partition."""
        found: dict[str, list[str]] = {}
        for outcome in self.read():
            found.setdefault(outcome["job_id"], []).append(outcome["result"])
        return found

    def dead_letters(self, count: int) -> list[DeadLetter]:
        """The dead letters, once there are so many."""
        reader = self.reader(self.topology.dead_letter)
        messages: list[Message] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(messages) < count and time.monotonic() < deadline:
            messages += reader.consume(1_000, 0.1)
        reader.close()
        return [codec.decode_dead_letter(message.value()) for message in messages]

    # --- claims ---

    def claims(self) -> dict[int, tuple[int, Claim | None]]:
        """The committed offset of each partition, -1 where there is none, and the claim beside it."""
        group = self.topology.worker_group(self.name)
        asked = [TopicPartition(self.topology.dispatch(self.name), p) for p in range(PARTITIONS)]
        answers = positions.settled(self.kafka, group, asked, TIMEOUT_S)
        return {a.partition: (a.offset, decode(a.metadata, a.offset)) for a in answers}

    def unfinished(self) -> int:
        """How many dispatches are claimed and not finished, in all partitions."""
        claims = [claim for _, claim in self.claims().values()]
        return sum(len(claim.unfinished or ()) for claim in claims if claim is not None)

    def reset(self, offset: int) -> None:
        """Puts every partition's offset somewhere else, as kafka-consumer-groups.sh --reset-offsets does."""
        topic = self.topology.dispatch(self.name)
        positions.commit(
            self.kafka, self.topology.worker_group(self.name), [TopicPartition(topic, p, offset) for p in range(PARTITIONS)], TIMEOUT_S
        )

    # --- workers ---

    def worker(self, app: App, concurrency: int = 4, name: str = "here", options: Mapping[str, Any] | None = None) -> Worker:
        """A worker in this process that has asked to join."""
        kafka = KafkaConfig(self.kafka.bootstrap_servers, {**self.kafka.options, **(options or {})})
        station = wiring.worker(kafka, self.topology, app, None, Shares({self.name: 1}), concurrency, name, TIMEOUT_S)
        station.start()
        [worker] = station.workers
        self._stations[worker] = station
        return worker

    def drive(self, *workers: Worker, until: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        """Turns the workers, one after the other, until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            for worker in workers:
                worker.turn()
            assert time.monotonic() < deadline, f"not so after {timeout_s} s; outcomes: {self.results()}"

    def drive_apart(self, other: Worker, *workers: Worker, until: Callable[[], Any]) -> None:
        """As `drive`, with one of them turned by a thread of its own: neither waits for the other."""
        done = threading.Event()

        def turn() -> None:
            while not done.is_set():
                other.turn()

        thread = threading.Thread(target=turn)
        thread.start()
        try:
            self.drive(*workers, until=until)
        finally:
            done.set()
            thread.join()

    def leave(self, *workers: Worker, grace_ms: int = 10_000) -> None:
        """Lets workers go in good order."""
        for worker in workers:
            worker.drain(grace_ms)
            self.drive(worker, until=lambda worker=worker: worker.stopped)  # type: ignore[misc]
            self._stations.pop(worker).close()

    def spawn(self, concurrency: int = 4, name: str = "child", options: Sequence[str] = ()) -> Child:
        """A worker as a process of its own."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "jobs.py").write_text(CHILD_APP)
        command = [sys.executable, "-m", "duewheel.cli.main", "worker", "jobs:app", "-c", str(concurrency), "--name", name, *options]
        command += ["-b", self.kafka.bootstrap_servers, "--prefix", self.topology.prefix]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, env={**os.environ, "JOBS_FOLDER": str(folder)}, stdout=log, stderr=log)
        child = Child(process, folder, folder / "log")
        self._children.append(child)
        return child

    def await_that(self, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        """Waits for something that a process does."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            logs = {child.log.parent.name: child.log.read_text()[-3_000:] for child in self._children}
            assert time.monotonic() < deadline, f"not so after {timeout_s} s; outcomes: {self.results()}; logs: {logs}"
            time.sleep(0.01)

    def close(self) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.kill()
                child.wait()
        for station in self._stations.values():
            station.close()
        self._reader.close()
