"""A worker that was given up wakes and writes: what PostgreSQL keeps, and what becomes of its outcome. All processes are real."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

import duewheel
from duewheel import fencing
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.core.model import Outcome
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Child, Fleet
from tests.conftest import Installation
from tests.integration.desk import Desk
from tests.postgres import Postgres

READY_S: Final = 30
# Session timeout (6 s), the group's rebalance, the return of the claim.
TAKEOVER_S: Final = 30
# The processor counts what it refused, and says so every 10 s.
REPORT_S: Final = 25

# Enough for more than one dispatch partition (they go there in runs of eight), and no more than one worker runs at a time.
JOBS: Final = 24

# A handler that waits for files: "write-N" before attempt N writes, "end-N" before it returns. It ends well even where its write was
# refused, so that its outcome is a completion.
APP: Final = """
import os, pathlib, time
import psycopg
from duewheel import App, Context, fencing

app = App()
folder = pathlib.Path(os.environ["JOBS_FOLDER"])


def note(what, context):
    with open(folder / what, "a") as file:
        file.write(f"{os.environ['WORKER']} {context.job_id} {context.attempt} {context.fencing_token}\\n")


def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)


@app.task
def write(payload: dict, context: Context) -> None:
    note("started", context)
    wait_for(f"write-{context.attempt}")
    with psycopg.connect(os.environ["DATABASE"]) as connection:
        connection.execute("UPDATE account SET careless = %s", [context.attempt])
    try:
        with psycopg.connect(os.environ["DATABASE"]) as connection:
            fencing.guard(connection, "account/1", context)
            connection.execute("UPDATE account SET guarded = %s", [context.attempt])
    except fencing.StaleToken:
        note("refused", context)
    else:
        note("written", context)
    wait_for(f"end-{context.attempt}")


@app.task
def book(payload: dict, context: Context) -> None:
    note("started", context)
    with psycopg.connect(os.environ["DATABASE"]) as connection:
        if fencing.once(connection, context):
            connection.execute("INSERT INTO booking (job_id) VALUES (%s)", [context.job_id])
    wait_for("end")
"""


class Note(NamedTuple):
    """A line that a handler wrote."""

    worker: str
    job_id: str
    attempt: int
    token: int


class Site:
    """A processor and two workers, `APP`'s files, and the database that its handlers write to."""

    def __init__(self, fleet: Fleet, desk: Desk, folder: Path, database: psycopg.Connection[Any]) -> None:
        self.fleet = fleet
        self.desk = desk
        self.folder = folder
        self.database = database
        (folder / "fenced.py").write_text(textwrap.dedent(APP))
        fencing.create_tables(self.database)
        self.database.execute("CREATE TABLE account (guarded INTEGER, careless INTEGER)")
        self.database.execute("INSERT INTO account VALUES (0, 0)")
        self.database.execute("CREATE TABLE booking (job_id TEXT)")
        self.processor = fleet.start_processor("processor")
        self.workers = {name: self._worker(name, database.info.dsn) for name in ("worker-1", "worker-2")}
        fleet.await_that(lambda: len(self.processor.logged("processor.active")) == 4, READY_S, "the processor has all partitions")
        # So that neither takes partitions from the other later: from here on only faults move them.
        cluster, group = KafkaCluster(desk.kafka), desk.topology.worker_group("default")
        fleet.await_that(lambda: sorted(map(len, cluster.members(group).values())) == [2, 2], READY_S, "both workers have two partitions")

    def _worker(self, name: str, conninfo: str) -> Child:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path, "JOBS_FOLDER": str(self.folder), "WORKER": name, "DATABASE": conninfo}
        return self.fleet.start_worker(name, "fenced:app", concurrency=JOBS, environment=environment)

    def schedule(self, task: str, *job_ids: str) -> None:
        with duewheel.connect(self.desk.kafka.bootstrap_servers, prefix=self.desk.topology.prefix) as client:
            for job_id in job_ids:
                client.schedule(task, {}, job_id=job_id)

    def allow(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def notes(self, what: str) -> list[Note]:
        path = self.folder / what
        lines = path.read_text().splitlines() if path.exists() else []
        return [Note(worker, job_id, int(attempt), int(token)) for worker, job_id, attempt, token in map(str.split, lines)]

    def await_note(self, what: str, attempt: int, timeout_s: float = READY_S) -> Note:
        """The line of this attempt of the one job, once it is written."""
        return self.fleet.await_that(
            lambda: next((note for note in self.notes(what) if note.attempt == attempt), None), timeout_s, f"attempt {attempt} has {what}"
        )  # type: ignore[return-value]

    def outcomes(self) -> list[Outcome]:
        return [codec.decode_outcome(message.value()) for message in self.desk.read(self.desk.topology.outcomes)]

    def states(self, job_id: str) -> list[Any]:
        """What the owner wrote of a job's course, in order."""
        messages = self.desk.read(self.desk.topology.state)
        return [codec.decode_state(m.value()) for m in messages if m.key() == b"s" + job_id.encode() and m.value() is not None]

    def await_phase(self, phase: str, *job_ids: str) -> None:
        wanted = dict.fromkeys(job_ids, phase)
        self.fleet.await_that(lambda: self.desk.phases() == wanted, READY_S, f"{job_ids} are {phase}")

    def account(self) -> tuple[Any, ...] | None:
        return self.database.execute("SELECT guarded, careless FROM account").fetchone()

    def bookings(self) -> list[str]:
        return [job_id for (job_id,) in self.database.execute("SELECT job_id FROM booking ORDER BY job_id")]

    def await_refusal(self) -> None:
        """Until the owner has said that it refused one outcome as stale."""
        reports = self.processor.logged
        self.fleet.await_that(lambda: sum(r["stale"] for r in reports("processor.report")) == 1, REPORT_S, "one outcome was stale")


@pytest.fixture
def site(installation: Installation, desk: Desk, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    with (
        psycopg.connect(postgres.database(), autocommit=True) as database,
        RunFolder.take(tmp_path, "fleet") as run,
        Fleet(installation.kafka, installation.topology, run) as fleet,
    ):
        yield Site(fleet, desk, folder, database)


def test_a_worker_that_slept_through_the_second_attempt_changes_nothing(site: Site) -> None:
    site.schedule("write", "pay")
    first = site.await_note("started", 1)
    site.workers[first.worker].pause()
    site.allow("write-2", "end-2")
    second = site.await_note("written", 2, TAKEOVER_S)
    site.await_phase("SUCCEEDED", "pay")
    assert second.worker != first.worker
    assert second.token > first.token
    [accepted] = [state for state in site.states("pay") if state["phase"] == "SUCCEEDED"]
    assert (accepted["token"], accepted["attempt"]) == (second.token, 2)
    assert site.account() == (2, 2)

    site.allow("write-1", "end-1")
    site.workers[first.worker].resume()
    assert site.await_note("refused", 1) == first
    site.await_refusal()
    assert site.account() == (2, 1)  # what does not guard is overwritten: the first did write, and late
    assert [state for state in site.states("pay") if state["phase"] == "SUCCEEDED"] == [accepted]
    assert [note.attempt for note in site.notes("started")] == [1, 2]
    completions = [outcome["token"] for outcome in site.outcomes() if outcome["result"] == "SUCCEEDED"]
    assert completions == [second.token, first.token]


def test_W5_a_stalled_worker_completes_what_another_runs(site: Site) -> None:
    site.schedule("write", "pay")
    first = site.await_note("started", 1)
    site.workers[first.worker].pause()
    site.allow("write-2")
    second = site.await_note("written", 2, TAKEOVER_S)

    site.allow("write-1", "end-1")
    site.workers[first.worker].resume()
    assert site.await_note("refused", 1) == first
    site.await_refusal()
    assert site.desk.phases()["pay"] in {"DISPATCHED", "RUNNING"}  # the second goes on, and nobody took its place
    assert site.account() == (2, 1)

    site.allow("end-2")
    site.await_phase("SUCCEEDED", "pay")
    [accepted] = [state for state in site.states("pay") if state["phase"] == "SUCCEEDED"]
    assert (accepted["token"], accepted["attempt"]) == (second.token, 2)
    assert [note.attempt for note in site.notes("started")] == [1, 2]
    assert site.account() == (2, 1)


def test_W6_a_worker_that_comes_back_under_its_name_has_its_claims_returned(site: Site) -> None:
    job_ids = [f"job-{number:02}" for number in range(JOBS)]
    site.schedule("book", *job_ids)
    site.fleet.await_that(lambda: len(site.notes("started")) == JOBS, READY_S, "all jobs run")
    site.fleet.await_that(lambda: len(site.bookings()) == JOBS, READY_S, "all have booked")  # and not yet returned
    before = site.notes("started")
    victim = max(site.workers, key=lambda name: sum(note.worker == name for note in before))
    lost = {note.job_id: note for note in before if note.worker == victim}
    site.workers[victim].kill()
    site.workers[victim].start()
    site.fleet.await_that(lambda: len(site.notes("started")) == JOBS + len(lost), TAKEOVER_S, "what was lost runs again")
    again = site.notes("started")[JOBS:]
    assert {note.job_id for note in again} == set(lost)
    assert all(note.attempt == 2 and note.token > lost[note.job_id].token for note in again)

    site.allow("end")
    site.await_phase("SUCCEEDED", *job_ids)
    assert len(site.notes("started")) == JOBS + len(lost)
    ends = [(outcome["job_id"], outcome["attempt"], outcome["result"]) for outcome in site.outcomes()]
    assert {(job_id, 1, "LOST") for job_id in lost} == {end for end in ends if end[2] == "LOST"}
    assert sorted(job_id for job_id, _, result in ends if result == "SUCCEEDED") == job_ids
    assert site.bookings() == job_ids  # once each, though some were tried twice
