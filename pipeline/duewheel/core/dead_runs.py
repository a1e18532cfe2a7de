"""Dead runs: which runs failed for good, and what became of each, folded from the dead-letter topic.

The owner of a job writes a DeadRun when a run of it dies, and a DeadRunClosed when that death is no longer of interest. Each death has a
name, job id and token, since a job may die again after it was redriven. A dead run is open from its DeadRun to the DeadRunClosed of the
same name:

    DeadRun        a 7                open: a 7
    DeadRun        b 8                open: a 7, b 8
    DeadRunClosed  a 7 REDRIVEN       open: b 8
    DeadRun        a 12               open: a 12, b 8            the redriven run died too, of its own
    DeadRunClosed  a 7 REDRIVEN       open: a 12, b 8            said again, it changes nothing

The fold gives the same for any order in which the records come, for the sake of whoever reads several partitions or twice.

Payloads are not held: what is kept of a death is a `DeadRunSummary`, about 700 bytes, so 100,000 of them are 70 MB; and only of deaths that
somebody wants. Who needs the rest finds it at the summary's offset.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import intern
from typing import Final

from duewheel.core.model import Closing, DeadRun, DeadRunClosed

# Of an error's message; the record has all of it.
SUMMARY_MESSAGE_CHARS_MAX: Final = 160

# Closings whose death was not seen yet. There are none where the topic is read in order, apart from those of deaths that nobody wants or
# that retention took away; of all these the latest are kept, at about 250 bytes each.
CLOSINGS_HELD_MAX: Final = 100_000

DeathName = tuple[str, int]
"""Job id and the token of the attempt it died with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRunSummary:
    """What is kept of a dead run.

    Attributes:
        partition, offset: where its record lies in the dead-letter topic.
        attempts: how many executions it had; `crashes` of them ended because their worker vanished.
        error, message: of its last attempt, the message cut; None where it died without an error of its own.
        payload_bytes: how large its payload is.
        expires_ms: from when on no attempt of it may start; 0: never.
        how, closed_ms: what became of it, and when; None while it is open.
    """

    partition: int
    offset: int
    job_id: str
    token: int
    died_ms: int
    reason: str
    task: str
    queue: str
    slot_ms: int
    attempts: int
    crashes: int
    error: str | None
    message: str | None
    payload_bytes: int
    expires_ms: int = 0
    how: Closing | None = None
    closed_ms: int | None = None

    @property
    def name(self) -> DeathName:
        return self.job_id, self.token

    def is_too_late(self, now_ms: int) -> bool:
        """Whether no attempt may start any more, so that a redrive would be refused."""
        return 0 < self.expires_ms <= now_ms


def summary(partition: int, offset: int, run: DeadRun) -> DeadRunSummary:
    """What is kept of `run`, whose record lies at this offset."""
    state, schedule = run["state"], run["definition"]["schedule"]
    work, limits, failure = schedule["work"], schedule["limits"], state["error"]
    return DeadRunSummary(
        partition=partition,
        offset=offset,
        job_id=run["job_id"],
        token=run["token"],
        died_ms=run["died_ms"],
        reason=intern(run["reason"]),
        task=intern(work["task"]),
        queue=intern(schedule["queue"]),
        slot_ms=state["slot_ms"],
        attempts=state["attempt"],
        crashes=state["crashes"],
        error=None if failure is None else intern(failure["type"]),
        message=None if failure is None else failure["message"][:SUMMARY_MESSAGE_CHARS_MAX],
        payload_bytes=len(work["payload"]),
        expires_ms=0 if limits is None else limits["expires_ms"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which deaths are wanted: those that every part agrees with. An empty part agrees with all.

    Attributes:
        jobs, tasks, queues, reasons: any of these.
        errors: classes, by their qualified name (`smtplib.SMTPDataError`) or by the last part of it.
        since_ms: died at this time or later.
        until_ms: died before this time.
    """

    jobs: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None

    def accepts(self, run: DeadRunSummary) -> bool:
        return (
            (not self.jobs or run.job_id in self.jobs)
            and (not self.tasks or run.task in self.tasks)
            and (not self.queues or run.queue in self.queues)
            and (not self.reasons or run.reason in self.reasons)
            and (not self.errors or (run.error is not None and not self.errors.isdisjoint((run.error, run.error.rpartition(".")[2]))))
            and (self.since_ms is None or run.died_ms >= self.since_ms)
            and (self.until_ms is None or run.died_ms < self.until_ms)
        )


def everything(_run: DeadRunSummary) -> bool:
    """The filter of who wants all deaths."""
    return True


class DeadRuns:
    """The fold. O(1) a record.

    Args:
        wanted: of which deaths to keep a summary.
        keeps_closed: whether to go on keeping it once the run is closed.
    """

    def __init__(self, wanted: Callable[[DeadRunSummary], bool] = everything, *, keeps_closed: bool = False) -> None:
        self._wanted = wanted
        self._keeps_closed = keeps_closed
        self._runs: dict[DeathName, DeadRunSummary] = {}
        self._closings: OrderedDict[DeathName, tuple[Closing, int]] = OrderedDict()
        self._closed_count = 0

    def died(self, run: DeadRunSummary) -> None:
        """Takes in a DeadRun."""
        name = run.name
        if name in self._runs or not self._wanted(run):
            return
        closing = self._closings.get(name)
        if closing is None:
            self._runs[name] = run
        elif self._keeps_closed:
            self._runs[name] = replace(run, how=closing[0], closed_ms=closing[1])
            self._closed_count += 1

    def closed(self, record: DeadRunClosed) -> None:
        """Takes in a DeadRunClosed. Of several closings of one death the first counts."""
        name, closing = (record["job_id"], record["token"]), (Closing(record["how"]), record["closed_ms"])
        run = self._runs.get(name)
        if run is None or not self._keeps_closed:
            self._runs.pop(name, None)
            self._closings.setdefault(name, closing)
            if len(self._closings) > CLOSINGS_HELD_MAX:
                self._closings.popitem(last=False)
        elif run.how is None:
            self._runs[name] = replace(run, how=closing[0], closed_ms=closing[1])
            self._closed_count += 1

    @property
    def open_count(self) -> int:
        """How many of those that were kept are open."""
        return len(self._runs) - self._closed_count

    def runs(self) -> list[DeadRunSummary]:
        """What was kept, in the order of the deaths."""
        return sorted(self._runs.values(), key=lambda run: (run.died_ms, run.partition, run.offset))
