"""One claimed dispatch on its way through the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duewheel.core.model import Dispatch, Failure, Result
from duewheel.worker.app import Task
from duewheel.worker.verdicts import SUCCEEDED, Verdict, failure_of, on_error, on_value

if TYPE_CHECKING:
    from duewheel.worker.crew import Desk
    from duewheel.worker.holding import Holding

__all__ = ["FAILED", "SUCCEEDED", "Run", "failure_of"]

FAILED: Final = Result.FAILED.value


class Run:
    """One dispatch that was claimed. Made on the polling thread, completed by whoever runs it, recorded on the polling thread.

    Attributes:
        holding: the partition it was read from, as held then; the partition may have been lost since.
        offset: where it lies in that partition.
        key: the record's key.
        desk: where it was submitted.
        started_ms: when its handler was called; 0 before.
        started_steady_ms: the same on the steady clock; 0 before.
        finished_ms: when its handler was done; 0 before.
        result, error, retry_after_ms, output: how it ended, as its outcome tells it.
        record_bytes: what it counts against the limit of bytes in memory.
        abandoned: reported already; what its handler still does comes too late.
        cancelled: whether its handler is asked to stop.
        beat_ms: when the handler last called `heartbeat`, on the steady clock; 0 if never.
        progress: what it said then, in JSON.
        said_started: whether the owner was told that it runs.
        said_ms: when the owner last heard of it, on the steady clock.
    """

    __slots__ = (
        "abandoned",
        "beat_ms",
        "cancelled",
        "desk",
        "dispatch",
        "error",
        "finished_ms",
        "holding",
        "key",
        "offset",
        "output",
        "progress",
        "record_bytes",
        "result",
        "retry_after_ms",
        "said_ms",
        "said_started",
        "started_ms",
        "started_steady_ms",
        "task",
    )

    desk: Desk

    def __init__(self, holding: Holding, offset: int, key: bytes | None, dispatch: Dispatch, task: Task, record_bytes: int) -> None:
        self.holding = holding
        self.offset = offset
        self.key = key
        self.dispatch = dispatch
        self.task = task
        self.record_bytes = record_bytes
        self.abandoned = self.cancelled = self.said_started = False
        self.started_ms = self.started_steady_ms = self.finished_ms = 0
        self.beat_ms = self.said_ms = 0
        self.progress: bytes | None = None
        self.result = SUCCEEDED
        self.error: Failure | None = None
        self.retry_after_ms = 0
        self.output: bytes | None = None

    @property
    def timeout_ms(self) -> int:
        """How long it may run: as the job says, else its task, and never beyond the end of the time for all attempts."""
        policy, terms = self.dispatch["work"].get("policy"), self.dispatch.get("terms")
        timeout_ms = (policy["run_timeout_ms"] if policy else 0) or self.task.run_timeout_ms
        if terms and terms["deadline_ms"]:
            timeout_ms = max(0, min(timeout_ms, terms["deadline_ms"] - self.started_ms))
        return timeout_ms

    def end(self, value: Any) -> None:
        """Its handler returned."""
        try:
            self.settle(on_value(value, self.task.keeps_result))
        except BaseException as error:  # ResultTooLarge; or what a user's own class raised that was not even an Exception
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Its handler raised, or is treated as if it had."""
        self.settle(on_error(error, self.task.policy, self.dispatch, self.cancelled))

    def settle(self, verdict: Verdict) -> None:
        self.result, self.error, self.retry_after_ms, self.output = verdict

    def beat(self, progress: bytes | None) -> None:
        """Its handler said that it goes on."""
        if progress is not None:
            self.progress = progress
        self.beat_ms = self.desk.clock.steady_ms()
