"""What becomes of a dispatch without running it: decided when it is claimed, and recorded in the transaction of that claim.

    its job was cancelled meanwhile            CANCELLED
    it came too late (`expires_ms`)            EXPIRED
    its time for all attempts is over          SNOOZED for a second: its owner will find that it is dead
    nobody knows its task here                 RETRY by the default policy: another worker may know it, as while a new version is being
                                               rolled out; FAILED in the end
    it is a last life, and another one runs    SNOOZED for about two seconds

The last rule protects bystanders. A handler that makes its process crash takes everything down that runs beside it, and each of those
loses an execution to a crash too. Runs of which another crash would be the end are therefore not executed beside one another: when the
process goes down again, the only last life that is lost is the culprit's own, and the bystanders finish in peace afterwards. Nor are they
claimed beside one another: what was claimed and not begun is lost in a crash as well.

What is claimed may wait, for a thread, for its task's own limit, or for a queue that goes first. So the same is decided again and again
while it waits (`is_time`, `waiting`), and once more at the moment when it would start (`unwanted`). A last life that waits keeps all
others out, although nothing is executed; so when others have asked and it has waited for PATIENCE_MS, it is put off as they were.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from duewheel.core.limits import LAST_LIFE_SNOOZE_MS
from duewheel.core.model import Dispatch, Result, Terms
from duewheel.core.retry import DEFAULT
from duewheel.ports import Clock
from duewheel.worker.stops import Stops
from duewheel.worker.verdicts import RunTimeout, UnknownTask, Verdict, failure_of, on_error

CANCELLED: Final = Verdict(Result.CANCELLED.value)
EXPIRED: Final = Verdict(Result.EXPIRED.value)


PATIENCE_MS: Final = 30_000
LOOK_EVERY_MS: Final = 500  # so often, at most, what waits is looked through because of its terms
_NEVER_MS: Final = 2**63 - 1
_TOO_LATE_SNOOZE_MS: Final = 1_000  # the owner's clock may be behind ours


class LastLives:
    """At most one last life at a time, in all loops of a worker process.

    Attributes:
        is_wanted: whether another one has asked since this one entered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going_on: tuple[str, int] | None = None
        self.is_wanted = False

    def enter(self, dispatch: Dispatch) -> bool:
        """Whether it may be executed now; then `leave` is to be called when it is over."""
        with self._lock:
            if self._going_on is not None:
                self.is_wanted = True
                return False
            self._going_on = _identity(dispatch)
            self.is_wanted = False
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
        self._stops_seen = 0
        self._looked_ms = 0
        self._soonest_ms = _NEVER_MS  # when something that waits may have waited long enough
        self._patience_ms = 0  # until when our last life may wait

    # --- when it is claimed ---

    def known(self, dispatch: Dispatch) -> Verdict | None:
        """What becomes of a dispatch whose task is known; None where it is to be executed, and that is noted if it is a last life.

        Without terms, and while no stop has come, there is no need to ask.
        """
        verdict, terms = self.unwanted(dispatch), dispatch["terms"]
        if verdict is not None or terms is None:
            return verdict
        if terms["is_last_life"]:
            if not self._lives.enter(dispatch):
                return _put_off(dispatch)
            self._patience_ms = self._clock.wall_ms() + PATIENCE_MS
        self._expect(terms)
        return None

    def unknown(self, dispatch: Dispatch) -> Verdict:
        """What becomes of a dispatch whose task is not."""
        task, known = dispatch["work"]["task"], ", ".join(sorted(self._tasks))
        message = f"task {task!r} is not registered in the app of worker {self._worker}, which has: {known}"
        return self.unwanted(dispatch) or on_error(UnknownTask(message), DEFAULT, dispatch)

    # --- while it waits ---

    def is_time(self) -> bool:
        """Whether all that waits is to be looked through now: a stop has come, or the time of some of it may be over. Says so once."""
        now_ms = self._clock.wall_ms()
        if self._stops.count == self._stops_seen and now_ms < self._soonest_ms:
            return False
        self._stops_seen, self._looked_ms, self._soonest_ms = self._stops.count, now_ms, _NEVER_MS
        return True

    def waiting(self, dispatch: Dispatch) -> Verdict | None:
        """What becomes of a dispatch that waits; None where it may go on waiting. To be asked once of each, when it is time."""
        verdict, terms = self.unwanted(dispatch), dispatch["terms"]
        if verdict is not None or terms is None:
            return verdict
        if terms["is_last_life"] and self._lives.is_wanted and self._patience_ms <= self._clock.wall_ms():
            return _put_off(dispatch)
        self._expect(terms)
        return None

    # --- when it would start ---

    def unwanted(self, dispatch: Dispatch) -> Verdict | None:
        """What becomes of a dispatch that must not start now, whatever else goes on here. On any thread."""
        terms = dispatch["terms"]
        if self._stops.names(dispatch):
            return CANCELLED
        if terms is not None:
            now_ms = self._clock.wall_ms()
            if 0 < terms["expires_ms"] <= now_ms:
                return EXPIRED
            if 0 < terms["deadline_ms"] <= now_ms:
                error = RunTimeout(f"the time for all attempts of task {dispatch['work']['task']!r} was over before this one could start")
                return Verdict(Result.SNOOZED.value, failure_of(error), _TOO_LATE_SNOOZE_MS)
        return None

    def _expect(self, terms: Terms) -> None:
        """Notes when a dispatch with these terms will have waited long enough."""
        ends_ms = [each for each in (terms["expires_ms"], terms["deadline_ms"], self._patience_ms if terms["is_last_life"] else 0) if each]
        self._soonest_ms = min(self._soonest_ms, max(min(ends_ms, default=_NEVER_MS), self._looked_ms + LOOK_EVERY_MS))


def _put_off(dispatch: Dispatch) -> Verdict:
    return Verdict(Result.SNOOZED.value, retry_after_ms=_snooze_ms(dispatch))


def _snooze_ms(dispatch: Dispatch) -> int:
    """Up to a quarter more or less, so that those that wait for one another do not come back together."""
    digest = blake2b(f"{dispatch['job_id']}/{dispatch['token']}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
    share = int.from_bytes(digest, "big") / 2**32
    return round(LAST_LIFE_SNOOZE_MS * (0.75 + share / 2))


def _identity(dispatch: Dispatch) -> tuple[str, int]:
    return dispatch["job_id"], dispatch["token"]
