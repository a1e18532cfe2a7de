"""What the workers of a fault test run: `duewheel worker tests.chaos.tasks:app`. Payloads are those of `tests.chaos.jobs`.

Each execution first writes down that it began, and in the end changes something outside: a row of a SQLite database, which refuses lower
tokens by `duewheel.fencing`. The databases are no part of the system, and keep the order in which they took or refused what was asked.
There are several, a job always in the same, so that a process suspended in the middle of a transaction holds up few of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from duewheel import fencing
from duewheel.core.retry import RetryPolicy
from duewheel.proof.history import Effect, Started
from duewheel.worker.app import App, Context
from duewheel.worker.verdicts import Discard
from tests.chaos.notes import Notes

FOLDER_VARIABLE: Final = "CHAOS_NOTES"
_DATABASES: Final = 8
# A process that was suspended in the middle of a transaction keeps all others waiting until it goes on or is killed.
_BUSY_S: Final = 60.0
_SLICE_S: Final = 0.1


class Sink:
    """Something outside that handlers change. A connection for each thread and database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = threading.local()

    def prepare(self) -> None:
        """Makes the tables; before any worker starts."""
        for number in range(_DATABASES):
            with self._transaction(number) as connection:
                fencing.create_tables(connection)
                connection.execute("CREATE TABLE effects (number INTEGER PRIMARY KEY, at_ms, job_id, token, accepted)")
                connection.execute("CREATE TABLE tries (job_id TEXT PRIMARY KEY, count)")

    def change(self, context: Context) -> None:
        with self._transaction(_home(context.job_id)) as connection:
            accepted = True
            try:
                fencing.guard(connection, context.job_id, context)
            except fencing.StaleToken:
                accepted = False
            values = (_now_ms(), context.job_id, context.fencing_token, accepted)
            connection.execute("INSERT INTO effects (at_ms, job_id, token, accepted) VALUES (?, ?, ?, ?)", values)

    def tried(self, job_id: str) -> int:
        """How often this was called for the job, this time included. What a process remembers would die with it."""
        with self._transaction(_home(job_id)) as connection:
            connection.execute("INSERT INTO tries VALUES (?, 1) ON CONFLICT (job_id) DO UPDATE SET count = count + 1", (job_id,))
            [count] = connection.execute("SELECT count FROM tries WHERE job_id = ?", (job_id,)).fetchone()
            return int(count)

    def effects(self) -> Iterator[Effect]:
        """What it took and refused, of each job in order."""
        for number in range(_DATABASES):
            with self._transaction(number) as connection:
                rows = connection.execute("SELECT at_ms, job_id, token, accepted FROM effects ORDER BY number").fetchall()
            yield from (Effect(at_ms, job_id, token, bool(accepted)) for at_ms, job_id, token, accepted in rows)

    @contextlib.contextmanager
    def _transaction(self, number: int) -> Iterator[sqlite3.Connection]:
        connections: dict[int, sqlite3.Connection] = self._threads.__dict__.setdefault("connections", {})
        connection = connections.get(number)
        if connection is None:
            path = self._folder / f"sink-{number}.db"
            connection = connections[number] = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # processes die here, the machine does not
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _home(job_id: str) -> int:
    return crc32(job_id.encode()) % _DATABASES


class Handler:
    """All that handlers do; made at the first call, in the process where it runs."""

    def __init__(self) -> None:
        folder = Path(os.environ[FOLDER_VARIABLE])
        self._notes = Notes(folder, f"handler-{os.getpid()}")
        self._sink = Sink(folder)

    def began(self, context: Context) -> None:
        self._notes.tell(Started(_now_ms(), context.job_id, context.fencing_token))

    def work(self, payload: dict[str, Any], context: Context) -> None:
        what, first = str(payload["do"]), False
        if payload.get("times"):
            first = self._sink.tried(context.job_id) <= payload["times"]
        self._pass_time(payload.get("ms", 0) / 1_000, what == "beat", context)
        if what == "crash" and first:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "fail" and first:
            raise ValueError(f"{context.job_id} fails as it was told")
        if what == "snooze" and first:
            context.snooze(payload["snooze_ms"] / 1_000)
        if what == "discard":
            raise Discard("not wanted")
        self._sink.change(context)

    def _pass_time(self, seconds: float, beats: bool, context: Context) -> None:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))
            context.raise_if_cancelled()
            if beats:
                context.heartbeat()


app = App()
QUICK: Final = RetryPolicy(attempts=4, delays=(0.2, 1.0))
_making = threading.Lock()
_made: list[Handler] = []


def _handler() -> Handler:
    with _making:
        if not _made:
            _made.append(Handler())
        return _made[0]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@app.task(retry=QUICK)
def plain(payload: dict[str, Any], context: Context) -> None:
    """Whatever the payload says, in a thread."""
    _handler().began(context)
    _handler().work(payload, context)


@app.task(retry=QUICK, timeout=1.0)
def limited(payload: dict[str, Any], context: Context) -> None:
    """May take a second."""
    _handler().began(context)
    _handler().work(payload, context)


@app.task(retry=QUICK, heartbeat=3.0)
def beating(payload: dict[str, Any], context: Context) -> None:
    """Promises to say that it goes on."""
    _handler().began(context)
    _handler().work(payload, context)


@app.task(retry=QUICK, executor="process", concurrency=2)
def apart(payload: dict[str, Any], context: Context) -> None:
    """In a process of its own, which may die alone."""
    _handler().began(context)
    _handler().work(payload, context)


@app.task(retry=QUICK)
async def looped(payload: dict[str, Any], context: Context) -> None:
    """In the event loop."""
    _handler().began(context)
    await asyncio.sleep(payload["ms"] / 1_000)
    _handler().work({"do": "work"}, context)
