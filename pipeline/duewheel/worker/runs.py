"""One claimed dispatch on its way through the worker, and how its failure is written down."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from duewheel.core.limits import ERROR_MESSAGE_CHARS_MAX, ERROR_TRACEBACK_CHARS_MAX, ERROR_TYPE_CHARS_MAX
from duewheel.core.model import Dispatch, Failure, Result
from duewheel.worker.app import Task

if TYPE_CHECKING:
    from duewheel.worker.holding import Holding

SUCCEEDED: Final = Result.SUCCEEDED.value
FAILED: Final = Result.FAILED.value


class Run:
    """One dispatch that was claimed. Made on the polling thread, completed by whoever runs it, recorded on the polling thread.

    Attributes:
        holding: the partition it was read from, as held then; the partition may have been lost since.
        offset: where it lies in that partition.
        key: the record's key.
        started_ms: when its handler was called; 0 before.
        finished_ms: when its handler was done; 0 before.
        record_bytes: what it counts against the limit of bytes in memory.
        abandoned: reported as interrupted; what its handler still does comes too late.
    """

    __slots__ = (
        "abandoned",
        "dispatch",
        "error",
        "finished_ms",
        "holding",
        "key",
        "offset",
        "record_bytes",
        "result",
        "started_ms",
        "task",
    )

    def __init__(self, holding: Holding, offset: int, key: bytes | None, dispatch: Dispatch, task: Task, record_bytes: int) -> None:
        self.holding = holding
        self.offset = offset
        self.key = key
        self.dispatch = dispatch
        self.task = task
        self.record_bytes = record_bytes
        self.abandoned = False
        self.started_ms = 0
        self.finished_ms = 0
        self.result = SUCCEEDED
        self.error: Failure | None = None

    def fail(self, error: BaseException) -> None:
        self.result = FAILED
        self.error = failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """The error as it is kept: its type, its message, and the end of its traceback, each cut to its limit."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as broken:  # a __str__ of the user's, which may do anything
        message = f"(its message cannot be had: {type(broken).__name__})"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception as broken:
        trace = f"(its traceback cannot be had: {type(broken).__name__})"
    return Failure(
        type=_encodable(name[:ERROR_TYPE_CHARS_MAX]),
        message=_encodable(message[:ERROR_MESSAGE_CHARS_MAX]),
        traceback=_encodable(trace[-ERROR_TRACEBACK_CHARS_MAX:]),  # the end says where it happened
    )


def _encodable(text: str) -> str:
    # Lone surrogates, as in undecodable file names, cannot be written as UTF-8; they must not take the worker down.
    return text.encode("utf-8", "replace").decode()
