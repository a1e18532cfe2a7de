"""The tasks that benches run, in worker processes: `duewheel worker duewheel.bench.tasks:app`."""

from __future__ import annotations

import os
import time
from typing import Final

from duewheel.worker.app import App, Context

# Names a file to which `stamp` appends. Several processes may share it: lines this short are appended whole.
STAMPS_VARIABLE: Final = "DUEWHEEL_BENCH_STAMPS"

app = App()
_stamps: int | None = None


@app.task
def noop(payload: bytes) -> None:
    """Does nothing."""


@app.task
def fail(payload: bytes) -> None:
    """Fails, however often it is tried."""
    raise ConnectionError("the database is away")


@app.task
def stamp(context: Context) -> None:
    """Writes down job id, slot and dispatch in milliseconds, and when it was started, in microseconds. Costs about 5 µs."""
    now_us = time.time_ns() // 1_000
    global _stamps
    if _stamps is None:
        _stamps = os.open(os.environ[STAMPS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_stamps, f"{context.job_id} {context.slot_ms} {context.dispatched_ms} {now_us}\n".encode())
