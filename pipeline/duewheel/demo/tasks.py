"""What the demo's workers run: `duewheel worker duewheel.demo.tasks:app`."""

from __future__ import annotations

import time
from typing import TypedDict

from duewheel.demo.evidence import Execution
from duewheel.demo.executions import ExecutionWriter
from duewheel.worker.app import App, Context

app = App()
_executions = ExecutionWriter()


class Work(TypedDict):
    work_ms: int


@app.task
def work(job: Work, context: Context) -> None:
    """Writes down that it began, then works for as long as it is told."""
    _executions.write(Execution(context.fencing_token, time.time_ns() // 1_000_000, context.job_id))
    time.sleep(job["work_ms"] / 1_000)
