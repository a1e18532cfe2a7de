"""Waiting for jobs on a real broker: a timer processor and a worker as processes of their own, and producers in this one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry import baggage
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import TracerProvider

import duewheel
from duewheel import ChangeRefused, Client, Decision, JobConflict, JobDidNotSucceed, JobReplaced, JobUnknown, RetryPolicy, Update, tracing
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.client.reading import MARGIN_MS
from duewheel.core.errors import CallerError
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Child, Fleet
from tests.conftest import FOLDER, Installation

READY_S: Final = 30
END_S: Final = 30

APP: Final = """
from datetime import timedelta
from duewheel import App, Context, Discard, RetryPolicy, tracing
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())

app = App()
app.middleware(tracing.Tracing())

def where(context):
    span = trace.get_current_span()
    return {
        "trace": f"{span.get_span_context().trace_id:032x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "tenant": baggage.get_baggage("tenant"),
        "headers": dict(context.headers),
    }

@app.task(keep_result=True)
def double(payload: int) -> int:
    return 2 * payload

@app.task
def plain(payload: int) -> int:
    return payload

@app.task(keep_result=True)
def trace_of(context: Context) -> dict:
    return where(context)

@app.task(keep_result=True)
async def trace_of_coroutine(context: Context) -> dict:
    return where(context)

@app.task(keep_result=True, executor="process")
def trace_of_process(context: Context) -> dict:
    return where(context)

@app.task(retry=RetryPolicy.fixed(timedelta(milliseconds=50), attempts=3))
def fail(context: Context) -> None:
    raise ValueError(f"attempt {context.attempt} failed")

@app.task
def give_up() -> None:
    raise Discard("nobody wants it")
"""


class Site:
    """A fleet that tests share, since each has job ids of its own."""

    def __init__(self, installation: Installation, fleet: Fleet, folder: Path) -> None:
        self.kafka, self.topology = installation
        self.fleet = fleet
        (folder / "resulting.py").write_text(APP)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        self.processor = fleet.start_processor("processor")
        self.worker: Child = fleet.start_worker("worker", "resulting:app", concurrency=8, environment={"PYTHONPATH": path})
        fleet.await_that(lambda: len(self.processor.logged("processor.active")) == 4, READY_S, "the processor has all partitions")

    def client(self, **arguments: Any) -> Client:
        return duewheel.connect(self.kafka.bootstrap_servers, prefix=self.topology.prefix, **arguments)


@pytest.fixture
def site(installation: Installation, tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    with RunFolder.take(tmp_path, "fleet") as run, Fleet(installation.kafka, installation.topology, run) as fleet:
        yield Site(installation, fleet, folder)


def test_each_end_of_a_job_reaches_who_waits_for_it(site: Site) -> None:
    with site.client() as client:
        kept = client.schedule("double", 21).wait(END_S)
        assert (kept.phase, kept.value, kept.attempts, kept.error) == ("SUCCEEDED", 42, 1, None)
        assert client.schedule("plain", 1).wait(timedelta(seconds=END_S)).value is None

        failed = client.schedule("fail", job_id="fails").wait(END_S)
        assert (failed.phase, failed.attempts, failed.succeeded) == ("FAILED", 3, False)
        assert failed.error is not None
        assert (failed.error["type"], failed.error["message"]) == ("ValueError", "attempt 3 failed")
        assert [ending["message"] for ending in failed.endings] == [f"attempt {n} failed" for n in (1, 2, 3)]
        with pytest.raises(JobDidNotSucceed, match="job fails ended as FAILED at attempt 3: ValueError: attempt 3 failed"):
            _ = failed.value

        assert client.schedule("give_up").wait(END_S).phase == "DISCARDED"
        cancelled = client.schedule("double", 1, delay=600, job_id="unwanted")
        client.cancel("unwanted")
        assert cancelled.wait(END_S).phase == "CANCELLED"
        expires_ms, retry = int(time.time() * 1000) + 1_000, RetryPolicy.fixed(timedelta(minutes=1), attempts=2)
        late = client.schedule("fail", expires_at=expires_ms, retry=retry).wait(END_S)
        assert (late.phase, late.attempts, late.ended_ms >= expires_ms) == ("EXPIRED", 1, True)

        with pytest.raises(JobUnknown, match="was refused"):
            client.schedule("double", 1, queue="nowhere").wait(END_S)


def test_a_job_that_does_not_end_in_time_is_named_with_where_it_stands(site: Site) -> None:
    with site.client() as client:
        handle = client.schedule("double", 1, delay=600, job_id="slow")
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"^job slow had not ended after 1 s: it waits for its time$"):
            handle.wait(1)
        assert 0.99 < time.monotonic() - began < 5


def test_coroutines_wait_beside_each_other_and_can_be_cancelled(site: Site) -> None:
    async def main(client: Client) -> list[Any]:
        never = asyncio.create_task(_awaited(client.schedule("double", 0, delay=600)))
        values = await asyncio.gather(*[_value(client, n) for n in range(40)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.schedule("double", 0, delay=600)
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        return values

    with site.client() as client:
        assert asyncio.run(main(client)) == [2 * n for n in range(40)]
        assert client._results is not None
        assert all(reading.is_idle for reading in client._results._readings.values())


async def _awaited(handle: duewheel.JobHandle) -> duewheel.JobResult:
    return await handle


async def _value(client: Client, number: int) -> Any:
    handle = await asyncio.to_thread(client.schedule, "double", number)
    return (await handle).value


def test_an_id_that_is_known_already_stands_for_the_job_that_is_known(site: Site) -> None:
    with site.client() as client:
        first = client.schedule("double", 1, job_id="same")
        assert first.wait(END_S).value == 2
    for n in range(3):  # behind the margin with which reading begins, so that its records are not seen by chance
        with site.client() as client:
            client.schedule_many(duewheel.Job("plain", n, job_id=f"filler-{n}-{i}") for i in range(800))
            assert client.handle(f"filler-{n}-799").wait(END_S).succeeded
    time.sleep(MARGIN_MS / 1000 + 0.2)
    with site.client() as client:
        assert client.schedule("double", 5, job_id="same").wait(END_S).value == 2
        assert client.handle("same").wait(END_S).value == 2
        replaced = client.schedule("double", 7, job_id="same", on_conflict="replace")
        assert replaced.wait(END_S).value == 14
        assert replaced.wait(END_S).generation == 2


def test_what_becomes_of_a_job_whose_id_is_known_is_as_it_asked(site: Site) -> None:
    with site.client() as client:
        first = client.schedule("double", 1, job_id="once", on_conflict="reject")
        assert first.decision(END_S) is Decision.CREATED
        second = client.schedule("double", 2, job_id="once", on_conflict="reject")
        assert second.decision(END_S) is Decision.REJECTED
        with pytest.raises(JobConflict, match="job once was known already"):
            second.wait(END_S)
        assert first.wait(END_S).value == 2
        assert client.schedule("double", 3, job_id="once").decision(END_S) is Decision.IGNORED
        assert client.schedule("double", 3, job_id="once", on_conflict="replace").decision(END_S) is Decision.REPLACED


def test_the_shell_is_told_what_was_decided(site: Site) -> None:
    where = ("-b", site.kafka.bootstrap_servers, "--prefix", site.topology.prefix)

    def schedule(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "duewheel.cli.main", "schedule", "double", "1", *arguments, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    created = schedule("--job-id", "shell", "--on-conflict", "reject", "--json")
    assert (created.returncode, json.loads(created.stdout)["decision"]) == (0, "CREATED")
    rejected = schedule("--job-id", "shell", "--on-conflict", "reject")
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert "shell rejected: the id is known already" in rejected.stderr
    ignored = schedule("--job-id", "shell", "--decision")
    assert (ignored.returncode, ignored.stdout.rstrip()[-9:]) == (0, ", ignored")


def test_a_job_is_paused_moved_updated_and_run_at_once(site: Site) -> None:
    where = ("-b", site.kafka.bootstrap_servers, "--prefix", site.topology.prefix)

    def shell(*arguments: str) -> tuple[int, list[Any]]:
        command = [sys.executable, "-m", "duewheel.cli.main", *arguments, "--json", *where]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]

    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    with site.client() as client:
        handle = client.schedule("double", 1, at=due_ms, job_id="changing")
        assert client.pause("changing").wait(END_S).phase == "PAUSED"
        assert client.reschedule("changing", at=due_ms + 1).wait(END_S).due_ms == due_ms + 1
        status = client.update("changing", Update(payload=4)).wait(END_S)
        assert (status.phase, status.generation) == ("PAUSED", 3)
        code, (paused, unknown) = shell("pause", "changing", "nobody")
        assert (code, paused["phase"], unknown["reason"]) == (1, "PAUSED", "unknown")
        code, [updated] = shell("update", "changing", "4", "--attempts", "2")
        assert (code, updated["phase"], updated["generation"]) == (0, "PAUSED", 4)
        assert shell("run-now", "changing")[0] == 0
        assert handle.wait(END_S).value == 8, "the handle waits on through all of this"
        with pytest.raises(ChangeRefused, match="job changing is over: SUCCEEDED") as refusal:
            client.resume("changing").wait(END_S)
        assert refusal.value.reason == "over"
        assert handle.wait(END_S).value == 8, "and what is over stays as it was"
        with pytest.raises(JobUnknown, match="job nobody is not known"):
            client.resume("nobody").wait(END_S)


def test_a_job_that_is_defined_anew_is_not_waited_for(site: Site) -> None:
    with site.client() as client:
        handle = client.schedule("double", 1, delay=600, job_id="twice")
        await_told(handle, "it waits for its time")
        again = client.schedule("double", 2, job_id="twice", on_conflict="replace")
        with pytest.raises(JobReplaced, match="job twice was defined anew, as generation 2"):
            handle.wait(END_S)
        assert again.wait(END_S).value == 4


def test_a_job_that_is_defined_anew_before_its_owner_took_it_in_is_not_waited_for(site: Site) -> None:
    """Both commands are one batch then, and only the second one's definition is ever written."""
    with site.client() as client:
        site.processor.pause()
        try:
            handle = client.schedule("double", 1, delay=600, job_id="at-once")
            again = client.schedule("double", 2, job_id="at-once", on_conflict="replace")
        finally:
            site.processor.resume()
        with pytest.raises(JobReplaced, match="job at-once was defined anew, as generation 2"):
            handle.wait(END_S)
        assert again.wait(END_S).value == 4


def await_told(handle: duewheel.JobHandle, what: str) -> None:
    """Waits until this is where the job stands."""
    for _ in range(100):
        with pytest.raises(TimeoutError) as told:
            handle.wait(0.1)
        if what in str(told.value):
            return
    pytest.fail(str(told.value))


def test_a_broker_that_goes_and_comes_back_ends_no_wait(tmp_path: Path) -> None:
    topology = Topology("away")
    with DevCluster(FOLDER) as cluster, RunFolder.take(tmp_path, "fleet") as run:
        [broker] = cluster.brokers
        kafka = KafkaConfig(cluster.bootstrap_servers, {"log_level": 0})
        ensure(kafka, topology, {"default": 4}, partitions=4)
        with Fleet(kafka, topology, run) as fleet, duewheel.connect(kafka.bootstrap_servers, prefix="away") as client:
            Site(Installation(kafka, topology), fleet, tmp_path)
            first, second = client.schedule("double", 1, delay=15), client.schedule("double", 2, delay=15)
            await_told(first, "it waits for its time")
            broker.kill()
            with pytest.raises(TimeoutError, match=r"it waits for its time"):
                first.wait(1)
            with pytest.raises(TimeoutError, match=f"job {second.job_id} had not ended after 6 s"):
                second.wait(6)
            broker.start()
            broker.await_ready()
            assert [first.wait(60).value, second.wait(60).value] == [2, 4]


def test_a_wait_survives_that_nobody_reads_and_ends_with_the_client(site: Site) -> None:
    site.processor.pause()
    try:
        client = site.client()
        handle = client.schedule("double", 3)
        with pytest.raises(TimeoutError, match="has not been taken in; does a timer processor run"):
            handle.wait(1)
    finally:
        site.processor.resume()
    assert handle.wait(END_S).value == 6
    results, sought = client.schedule("double", 3, delay=600)._waiting()
    future = results.future(sought)
    client.close()
    with pytest.raises(CallerError, match="the client was closed"):
        future.result(1)
    with pytest.raises(CallerError, match="the client was closed"):
        handle.wait(1)


@pytest.mark.parametrize("task", ["trace_of", "trace_of_coroutine", "trace_of_process"])
def test_a_trace_goes_from_enqueue_to_the_handler(site: Site, task: str) -> None:
    tracer = TracerProvider().get_tracer("test")
    with site.client(propagate=tracing.inject) as client, tracer.start_as_current_span("request") as span:
        attached = contexts.attach(baggage.set_baggage("tenant", "acme"))
        handle = client.schedule(task, headers={"mine": "1"})
        client.schedule_many([duewheel.Job(task, job_id="one-of-many")])
        contexts.detach(attached)
        for ended in (handle.wait(END_S), client.handle("one-of-many").wait(END_S)):
            seen = ended.value
            assert seen["trace"] == f"{span.get_span_context().trace_id:032x}"
            assert seen["parent"] == f"{span.get_span_context().span_id:016x}"
            assert seen["tenant"] == "acme"
        assert handle.wait().value["headers"].keys() == {"mine", "traceparent", "baggage"}


def test_a_thousand_jobs_waited_for_one_after_the_other_read_the_log_once(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    with site.client() as client:
        client.schedule("double", 0).wait(END_S)
        began, cpu = time.monotonic(), time.process_time()
        handles = [client.schedule("double", n) for n in range(1_000)]
        scheduled, scheduled_cpu = time.monotonic() - began, time.process_time() - cpu
        values = [handle.wait(END_S).value for handle in handles]
        waited, waited_cpu = time.monotonic() - began - scheduled, time.process_time() - cpu - scheduled_cpu
    assert values == [2 * n for n in range(1_000)]
    figures = f"scheduled {scheduled:.2f} s, {scheduled_cpu:.2f} s CPU; waited {waited:.2f} s, {waited_cpu:.2f} s CPU"
    record_property("figures", figures)
    assert waited_cpu < 2, figures
