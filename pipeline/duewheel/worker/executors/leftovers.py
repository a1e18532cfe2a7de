"""Handlers that were given up and have not ended yet.

Nothing can end a thread from outside, and a coroutine may swallow its cancellation. So a handler whose time is over is left behind: its
slot goes to another, and when it ends at last nobody listens. Of such handlers at most STUCK_HANDLERS_MAX are left behind at a time, since
each holds memory, and whatever it hangs in; beyond that, they keep their slots until they end, and the log says so.

Who runs a handler and who gives it up meet in one dict, `running`. Whoever takes the run out of it decides how it ends: the handler's
thread does when the handler is done, `give_up` does when its time is over. `dict.pop` is atomic, so there is exactly one.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

import structlog

from duewheel.core.limits import STUCK_HANDLERS_MAX
from duewheel.worker.runs import Run

log = structlog.get_logger(__name__)

Seat = TypeVar("Seat")


class Leftovers(Generic[Seat]):
    """Those of one executor.

    Attributes:
        running: who runs what.
        freed: handlers that are left behind, whose slots were given to others.
        kept: handlers that were given up and keep their slots.
    """

    def __init__(self) -> None:
        self.running: dict[Run, Seat] = {}
        self.freed: dict[Run, Seat] = {}
        self.kept: dict[Run, Seat] = {}
        self._lock = threading.Lock()

    def give_up(self, run: Run) -> tuple[Seat, bool] | None:
        """Called by the polling thread. None: the run has just ended by itself, and that counts.

        Returns:
            Who ran it, and whether the slot is free: said here and not to be looked up later, as the handler may end at any moment.
        """
        with self._lock:
            seat = self.running.pop(run, None)
            if seat is None:
                return None
            kept = len(self.freed) >= STUCK_HANDLERS_MAX
            (self.kept if kept else self.freed)[run] = seat
        if kept:
            log.error("worker.slot_occupied", task=run.task.name, left_behind=len(self.freed), occupied=len(self.kept))
        return seat, not kept

    def ended(self, run: Run) -> bool:
        """Called by whoever ran it, when it has ended and was given up before. Whether its slot was given to another."""
        with self._lock:
            self.kept.pop(run, None)
            return self.freed.pop(run, None) is not None
