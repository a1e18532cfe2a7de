"""Watching what runs: the owner hears that it goes on, what takes too long is given up, what was cancelled is asked to stop.

A run's owner dispatches it again when it has heard nothing for the length of the run's lease. So for a run that is longer than HEARTBEAT_MS
the worker says STARTED, with a lease of three times that, and then HEARTBEAT again and again, as long as its run timeout lasts:

    0 s        10 s          20 s          30 s        …       run timeout
    called     STARTED       HEARTBEAT     HEARTBEAT           RETRY, with the error RunTimeout, and the handler is given up
                  └─ lease 30 s ──────────────┘

A task with a heartbeat timeout of its own beats itself, which tells more: not that the process lives, but that the handler gets on. STARTED
is said at once, its lease is the timeout and a margin, and of the handler's beats as many are passed on as keep the lease alive: one for
each third of the timeout. Who misses it is given up early, with the error HeartbeatTimeout. If the whole worker hangs, the lease does it.

All of it happens in one look at what is running just now, every LOOK_EVERY_MS. There are at most as many of those as handlers may run at a
time, so the cost does not know how many runs come and go: a run that is over between two looks was never seen, and need not be.

A worker that was stopped itself (SIGSTOP, a closed lid) finds, when it goes on, that everything has taken far too long. But its handlers
stood still as it did, and a failed attempt would be blamed on them. So of a time in which nobody looked only the first STALLED_MS count,
against run timeouts and against the handlers' own heartbeats; the rest is given back. (Those do count, so that a loop that is merely slow,
because a handler holds the interpreter for a second at a time, still enforces its limits.) It does no harm that such runs are still
believed in. If their leases ran out meanwhile, others have been dispatched with higher tokens, and what these report is refused by its
token; if not, they go on as if nothing had been. Nor need it wait until the membership in the group is proved: that is about who may start
and commit, and not about runs that were started rightly.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

import structlog

from duewheel.core.limits import HEARTBEAT_MS, LEASE_MARGIN_MS, LEASE_MS
from duewheel.core.model import Result
from duewheel.ports import Clock
from duewheel.worker.app import THREAD
from duewheel.worker.crew import Desk
from duewheel.worker.runs import Run
from duewheel.worker.stops import Stops
from duewheel.worker.verdicts import HeartbeatTimeout, RunTimeout

log = structlog.get_logger(__name__)

LOOK_EVERY_MS: Final = 50
STALLED_MS: Final = 1_000
_STARTED: Final = Result.STARTED.value
_HEARTBEAT: Final = Result.HEARTBEAT.value


class Loop(Protocol):
    """What the watch needs of its worker's loop."""

    def say(self, run: Run, result: str, lease_ms: int) -> None:
        """Tells the run's owner that it goes on, with the next transaction."""

    def give_up(self, run: Run, error: Exception) -> bool:
        """Ends the run with this error. False where it has just ended by itself."""


class Watch:
    """Of what one queue's loop has running. For its polling thread."""

    def __init__(self, desk: Desk, stops: Stops, clock: Clock, loop: Loop) -> None:
        self._desk = desk
        self._stops = stops
        self._clock = clock
        self._loop = loop
        self._looked_ms = clock.steady_ms()

    def look(self) -> None:
        """Call it at every turn, and wherever the loop waits; mostly it does nothing."""
        now_ms = self._clock.steady_ms()
        away_ms = now_ms - self._looked_ms
        if away_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        given_up: Counter[tuple[str, bool, str]] = Counter()
        for run in self._desk.running():
            if not run.started_ms:
                continue  # its executor has it, and has not called it
            if away_ms > STALLED_MS:
                _make_up(run, away_ms - STALLED_MS, now_ms)
            if not run.cancelled and self._stops.names(run.dispatch):
                self._desk.cancel(run)
            error = _fault(run, now_ms)
            if error is None:
                self._say(run, now_ms)
            elif self._loop.give_up(run, error):
                given_up[run.task.name, run.task.executor == THREAD, type(error).__name__] += 1
        for (task, goes_on, kind), count in given_up.items():
            log.warning("worker.run_timed_out", task=task, error=kind, runs=count, goes_on=goes_on)

    def say_started(self, run: Run) -> None:
        """Tells a run's owner to watch it by its lease from now on, whatever becomes of the partition that it came from."""
        if not run.said_started:
            self._tell(run, _STARTED, self._clock.steady_ms())

    def _say(self, run: Run, now_ms: int) -> None:
        own_ms = run.task.heartbeat_timeout_ms
        if not run.said_started:
            if own_ms or now_ms - run.started_steady_ms >= HEARTBEAT_MS:
                self._tell(run, _STARTED, now_ms)
        elif own_ms:
            if run.beat_ms > run.said_ms and now_ms - run.said_ms >= own_ms // 3:
                self._tell(run, _HEARTBEAT, now_ms)
        elif now_ms - run.said_ms >= HEARTBEAT_MS:
            self._tell(run, _HEARTBEAT, now_ms)

    def _tell(self, run: Run, result: str, now_ms: int) -> None:
        own_ms = run.task.heartbeat_timeout_ms
        run.said_started, run.said_ms = True, now_ms
        self._loop.say(run, result, own_ms + LEASE_MARGIN_MS if own_ms else LEASE_MS)


def _make_up(run: Run, lost_ms: int, now_ms: int) -> None:
    """Gives a run back the time in which the worker stood still."""
    run.started_steady_ms = min(now_ms, run.started_steady_ms + lost_ms)
    if run.beat_ms:
        run.beat_ms = min(now_ms, run.beat_ms + lost_ms)


def _fault(run: Run, now_ms: int) -> Exception | None:
    """Why the run must be given up, if it must."""
    task, timeout_ms = run.task, run.timeout_ms
    goes_on = "; nothing can end a thread, so its handler goes on, to no effect here" if task.executor == THREAD else ""
    if now_ms - run.started_steady_ms >= timeout_ms:
        return RunTimeout(f"task {task.name!r} ran for longer than the {timeout_ms / 1_000:g} s that it may{goes_on}")
    own_ms = task.heartbeat_timeout_ms
    if own_ms and now_ms - (run.beat_ms or run.started_steady_ms) >= own_ms:
        return HeartbeatTimeout(
            f"task {task.name!r} called context.heartbeat for the last time more than {own_ms / 1_000:g} s ago{goes_on}"
        )
    return None
