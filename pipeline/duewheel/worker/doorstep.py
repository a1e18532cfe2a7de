"""What becomes of a dispatch without running it: decided when it is claimed, and recorded in the transaction of that claim.

    its job was cancelled meanwhile            CANCELLED
    it came too late (`expires_ms`)            EXPIRED
    nobody knows its task here                 RETRY by the default policy: another worker may know it, as while a new version is being
                                               rolled out; FAILED in the end
    it is a last life, and another one runs    SNOOZED for about two seconds

The last rule protects bystanders. A handler that makes its process crash takes everything down that runs beside it, and each of those
loses an execution to a crash too. Runs of which another crash would be the end are therefore not executed beside one another: when the
process goes down again, the only last life that is lost is the culprit's own, and the bystanders finish in peace afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from duewheel.core.limits import LAST_LIFE_SNOOZE_MS
from duewheel.core.model import Dispatch, Result
from duewheel.core.retry import DEFAULT
from duewheel.ports import Clock
from duewheel.worker.stops import Stops
from duewheel.worker.verdicts import UnknownTask, Verdict, on_error

CANCELLED: Final = Verdict(Result.CANCELLED.value)
EXPIRED: Final = Verdict(Result.EXPIRED.value)


class LastLives:
    """At most one last life at a time, in all loops of a worker process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going_on: tuple[str, int] | None = None

    def enter(self, dispatch: Dispatch) -> bool:
        """Whether it may be executed now; then `leave` is to be called when it is over."""
        with self._lock:
            if self._going_on is not None:
                return False
            self._going_on = _identity(dispatch)
            return True

    def leave(self, dispatch: Dispatch) -> None:
        with self._lock:
            if self._going_on == _identity(dispatch):
                self._going_on = None


class Doorstep:
    """Of one queue's loop.

    Args:
        worker: its name, as it stands in outcomes.
        tasks: the names of those that it can run.
    """

    def __init__(self, worker: str, tasks: Collection[str], stops: Stops, lives: LastLives, clock: Clock) -> None:
        self._worker = worker
        self._tasks = tasks
        self._stops = stops
        self._lives = lives
        self._clock = clock

    def known(self, dispatch: Dispatch) -> Verdict | None:
        """What becomes of a dispatch whose task is known; None where it is to be executed, and that is noted if it is a last life.

        Without terms, and while no stop has come, there is no need to ask.
        """
        verdict = self._unwanted(dispatch)
        terms = dispatch["terms"]
        if verdict is None and terms is not None and terms["is_last_life"] and not self._lives.enter(dispatch):
            return Verdict(Result.SNOOZED.value, retry_after_ms=_snooze_ms(dispatch))
        return verdict

    def unknown(self, dispatch: Dispatch) -> Verdict:
        """What becomes of a dispatch whose task is not."""
        task, known = dispatch["work"]["task"], ", ".join(sorted(self._tasks))
        message = f"task {task!r} is not registered in the app of worker {self._worker}, which has: {known}"
        return self._unwanted(dispatch) or on_error(UnknownTask(message), DEFAULT, dispatch)

    def _unwanted(self, dispatch: Dispatch) -> Verdict | None:
        terms = dispatch["terms"]
        if self._stops.names(dispatch):
            return CANCELLED
        if terms is not None and 0 < terms["expires_ms"] <= self._clock.wall_ms():
            return EXPIRED
        return None


def _snooze_ms(dispatch: Dispatch) -> int:
    """Up to a quarter more or less, so that those that wait for one another do not come back together."""
    digest = blake2b(f"{dispatch['job_id']}/{dispatch['token']}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
    share = int.from_bytes(digest, "big") / 2**32
    return round(LAST_LIFE_SNOOZE_MS * (0.75 + share / 2))


def _identity(dispatch: Dispatch) -> tuple[str, int]:
    return dispatch["job_id"], dispatch["token"]
