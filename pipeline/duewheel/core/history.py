"""What happened to a job, told from the records that it left.

Every step of a job's life leaves a record on some topic. This module says in one entry what a record means, so that `duewheel tail`
and whoever else tells the story tells the same one:

    intake    schedule            somebody asks for a job                        (the command; nothing is decided yet)
    state     scheduled           the owner took it, as generation n
    dispatch  dispatched          attempt 1 went to the workers, 3 ms late, with token 77
    outcomes  attempt_succeeded   a worker says that attempt 1 is done
    state     succeeded           the owner accepted it: this is how the run ended
    state     forgotten           its retention is over

and where things go wrong:

    outcomes  attempt_retry       attempt 1 failed, with this error; again in 1,000 ms
    state     waiting             the owner will dispatch attempt 2 then
    outcomes  attempt_failed      attempt 5 failed, and there is no other
    state     failed              the owner accepted it
    dead-l.   dead                and buried the run, with its payload
    intake    redrive             somebody asks for it to be run again
    dead-l.   redriven            the owner does

Records of different topics arrive in any order. `Merge` puts them back in order of the brokers' time while history is being read,
holding ENTRIES_HELD_MAX at most; what is live is ordered within each batch only.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from duewheel.core.errors import Reason
from duewheel.core.model import (
    Cancel,
    Change,
    Closing,
    DeadLetter,
    DeadRun,
    DeadRunClosed,
    Definition,
    Dispatch,
    Drop,
    Outcome,
    Phase,
    Redrive,
    Result,
    Schedule,
    State,
    Stop,
)
from duewheel.core.step import lane

# While old records are being read, entries wait for the partition that lags most. An entry is about 500 bytes: 50 MB at most.
ENTRIES_HELD_MAX: Final = 100_000

# Outcomes and states do not repeat the job's task and queue; these many jobs are remembered, at about 300 bytes each.
JOBS_REMEMBERED_MAX: Final = 50_000


class Happening(StrEnum):
    """What an entry says. The order is that in which one thing leads to the next, for entries of one millisecond."""

    SCHEDULE = "schedule"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    DROP = "drop"
    PAUSE = "pause"
    RESUME = "resume"
    RUN_NOW = "run_now"
    UPDATE = "update"
    SCHEDULED = "scheduled"
    REDRIVEN = "redriven"
    DROPPED = "dropped"
    DISPATCHED = "dispatched"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_HEARTBEAT = "attempt_heartbeat"
    ATTEMPT_SUCCEEDED = "attempt_succeeded"
    ATTEMPT_RETRY = "attempt_retry"
    ATTEMPT_SNOOZED = "attempt_snoozed"
    ATTEMPT_FAILED = "attempt_failed"
    ATTEMPT_DISCARDED = "attempt_discarded"
    ATTEMPT_EXPIRED = "attempt_expired"
    ATTEMPT_CANCELLED = "attempt_cancelled"
    ATTEMPT_LOST = "attempt_lost"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    WAITING = "waiting"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    STOP = "stop"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    DISCARDED = "discarded"
    EXPIRED = "expired"
    FAILED = "failed"
    DEAD = "dead"
    FORGOTTEN = "forgotten"
    DEAD_LETTER = "dead_letter"
    UNREADABLE = "unreadable"


_ORDER: Final = {happening: rank for rank, happening in enumerate(Happening)}

# DISPATCHED and RUNNING are missing on purpose: the dispatch, and the worker's word, say the same and more.
_PHASES: Final = {
    Phase.WAITING: Happening.WAITING,
    Phase.PAUSED: Happening.PAUSED,
    Phase.CANCELLING: Happening.CANCELLING,
    Phase.CANCELLED: Happening.CANCELLED,
    Phase.SUCCEEDED: Happening.SUCCEEDED,
    Phase.DISCARDED: Happening.DISCARDED,
    Phase.EXPIRED: Happening.EXPIRED,
    Phase.FAILED: Happening.FAILED,
}

# REPLACED and FORGOTTEN are missing: the new definition, and the state that was taken away, tell that.
_CLOSINGS: Final = {Closing.REDRIVEN: Happening.REDRIVEN, Closing.DROPPED: Happening.DROPPED}

_GOING_ON: Final = frozenset({Result.STARTED, Result.HEARTBEAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a record lay, and when it was written there."""

    topic: str
    partition: int
    offset: int
    written_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened. None where a field says nothing.

    Attributes:
        at_ms: when it happened, by the clock of whoever did it.
        event: what happened.
        job_id: to which job; None where a record had no readable key.
        due_ms: the scheduled time.
        late_ms: of a first attempt's dispatch, how long after its scheduled time it was made.
        took_ms: of an outcome, how long the handler ran, or has been running.
        wait_ms: of an attempt that is to be repeated, how long to wait before.
        wake_ms: of a job that waits for another attempt, when that is.
        lease_ms: of an attempt that goes on, how long its owner will wait for the next word.
        crashes: how many attempts ended because their worker vanished.
        error: the error's type, or the reason code of a refusal.
        message: the error's message.
        reason: of a dead run, the code of why it died.
        output: what the handler returned, or says of its progress; JSON.
    """

    source: Source
    at_ms: int
    event: Happening
    job_id: str | None
    task: str | None = None
    queue: str | None = None
    generation: int | None = None
    attempt: int | None = None
    token: int | None = None
    due_ms: int | None = None
    late_ms: int | None = None
    took_ms: int | None = None
    wait_ms: int | None = None
    wake_ms: int | None = None
    lease_ms: int | None = None
    crashes: int | None = None
    worker: str | None = None
    error: str | None = None
    message: str | None = None
    reason: str | None = None
    output: str | None = None


def schedule_entry(source: Source, schedule: Schedule) -> Entry:
    return Entry(
        source=source,
        at_ms=source.written_ms,
        event=Happening.SCHEDULE,
        job_id=schedule["job_id"],
        task=schedule["work"]["task"],
        queue=lane(schedule["queue"], schedule["delivery"]),
        due_ms=schedule["due_ms"],
    )


def cancel_entry(source: Source, cancel: Cancel) -> Entry:
    return Entry(source=source, at_ms=source.written_ms, event=Happening.CANCEL, job_id=cancel["job_id"])


def redrive_entry(source: Source, redrive: Redrive) -> Entry:
    return Entry(source=source, at_ms=source.written_ms, event=Happening.REDRIVE, job_id=redrive["job_id"], token=redrive["token"])


def drop_entry(source: Source, drop: Drop) -> Entry:
    return Entry(source=source, at_ms=source.written_ms, event=Happening.DROP, job_id=drop["job_id"], token=drop["token"])


def change_entry(source: Source, change: Change) -> Entry:
    event, due_ms = Happening(change["action"].lower()), change["due_ms"]
    return Entry(source=source, at_ms=source.written_ms, event=event, job_id=change["job_id"], due_ms=due_ms)


def stop_entry(source: Source, stop: Stop) -> Entry:
    return Entry(
        source=source, at_ms=source.written_ms, event=Happening.STOP, job_id=stop["job_id"], queue=stop["queue"], token=stop["token"]
    )  # fmt: skip


def definition_entry(source: Source, definition: Definition) -> Entry:
    entry = schedule_entry(source, definition["schedule"])
    return replace(entry, event=Happening.SCHEDULED, generation=definition["generation"])


def state_entry(source: Source, job_id: str, state: State) -> Entry | None:
    """None for a state that another topic's record tells better."""
    event = _PHASES.get(Phase(state["phase"]))
    if event is None:
        return None
    failure, trail = state["error"], state["trail"]
    if trail is not None and trail["answers"] and trail["answers"][-1]["taken_ms"] != state["changed_ms"]:
        return None  # written once more, for what it answers
    return Entry(
        source=source,
        at_ms=state["changed_ms"],
        event=event,
        job_id=job_id,
        generation=state["generation"],
        attempt=state["attempt"] if state["token"] and state["attempt"] else None,  # without a token it counts a recurring job's runs
        token=state["token"] or None,
        due_ms=state["slot_ms"],
        wake_ms=(trail["wake_ms"] or None) if trail is not None and event is Happening.WAITING else None,
        crashes=state["crashes"] or None,
        error=failure["type"] if failure else None,
        message=failure["message"] if failure else None,
        output=_text(trail["output"]) if trail is not None else None,
    )


def forgotten_entry(source: Source, job_id: str) -> Entry:
    return Entry(source=source, at_ms=source.written_ms, event=Happening.FORGOTTEN, job_id=job_id)


def dispatch_entry(source: Source, queue: str, dispatch: Dispatch) -> Entry:
    terms = dispatch["terms"]
    return Entry(
        source=source,
        at_ms=dispatch["dispatched_ms"],
        event=Happening.DISPATCHED,
        job_id=dispatch["job_id"],
        task=dispatch["work"]["task"],
        queue=queue,
        generation=dispatch["generation"],
        attempt=dispatch["attempt"],
        token=dispatch["token"],
        due_ms=dispatch["slot_ms"],
        late_ms=dispatch["dispatched_ms"] - dispatch["slot_ms"] if dispatch["attempt"] == 1 else None,
        crashes=(terms["crashes"] or None) if terms is not None else None,
    )


def outcome_entry(source: Source, outcome: Outcome) -> Entry:
    failure, result = outcome["error"], Result(outcome["result"])
    at_ms = outcome["finished_ms"] or source.written_ms
    ran = outcome["started_ms"] > 0
    return Entry(
        source=source,
        at_ms=at_ms,
        event=Happening(f"attempt_{result.lower()}"),
        job_id=outcome["job_id"],
        attempt=outcome["attempt"],
        token=outcome["token"],
        due_ms=outcome["slot_ms"],
        took_ms=at_ms - outcome["started_ms"] if ran else None,
        wait_ms=outcome["retry_after_ms"] if result in (Result.RETRY, Result.SNOOZED) else None,
        lease_ms=outcome["lease_ms"] if result in _GOING_ON else None,
        worker=outcome["worker"],
        error=failure["type"] if failure else None,
        message=failure["message"] if failure else None,
        output=_text(outcome["output"]),
    )


def dead_run_entry(source: Source, run: DeadRun) -> Entry:
    schedule, state = run["definition"]["schedule"], run["state"]
    failure = state["error"]
    return Entry(
        source=source,
        at_ms=run["died_ms"],
        event=Happening.DEAD,
        job_id=run["job_id"],
        task=schedule["work"]["task"],
        queue=lane(schedule["queue"], schedule["delivery"]),
        generation=state["generation"],
        attempt=state["attempt"] or None,
        token=run["token"],
        due_ms=state["slot_ms"],
        crashes=state["crashes"] or None,
        error=failure["type"] if failure else None,
        message=failure["message"] if failure else None,
        reason=run["reason"],
    )


def closed_entry(source: Source, closed: DeadRunClosed) -> Entry | None:
    """None for a closing that another topic's record tells better."""
    event = _CLOSINGS.get(Closing(closed["how"]))
    if event is None:
        return None
    return Entry(source=source, at_ms=closed["closed_ms"], event=event, job_id=closed["job_id"], token=closed["token"])


def dead_letter_entry(source: Source, job_id: str | None, letter: DeadLetter) -> Entry:
    return Entry(
        source=source,
        at_ms=letter["at_ms"],
        event=Happening.DEAD_LETTER,
        job_id=job_id,
        error=letter["reason"],
        message=f"{letter['message']} ({letter['topic']} [{letter['partition']}] @{letter['offset']})",
    )


def unreadable_entry(source: Source, job_id: str | None, reason: Reason, message: str) -> Entry:
    return Entry(source=source, at_ms=source.written_ms, event=Happening.UNREADABLE, job_id=job_id, error=reason, message=message)


def _text(output: bytes | None) -> str | None:
    return None if output is None else output.decode(errors="backslashreplace")


class Memory:
    """Remembers task and queue of the jobs seen last, to complete entries whose records do not repeat them."""

    def __init__(self, jobs_max: int = JOBS_REMEMBERED_MAX) -> None:
        self._jobs: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._jobs_max = jobs_max

    def complete(self, entry: Entry) -> Entry:
        if entry.job_id is None:
            return entry
        if entry.task is not None and entry.queue is not None:
            self._jobs[entry.job_id] = (entry.task, entry.queue)
            self._jobs.move_to_end(entry.job_id)
            if len(self._jobs) > self._jobs_max:
                self._jobs.popitem(last=False)
            return entry
        known = self._jobs.get(entry.job_id)
        return entry if known is None else replace(entry, task=known[0], queue=entry.queue or known[1])


class Merge:
    """Puts entries of several partitions in order of time while their past is being read.

    Within a partition time moves on. So whatever was written before the time that the slowest partition has reached may go out:

        partition A has reached 12:05, partition B 12:03   →  everything before 12:03 goes out, in order

    A partition whose past is read no longer counts. O(log n) an entry. Where more than `held_max` entries would wait, the oldest go
    out early and order is only nearly kept.
    """

    def __init__(self, partitions: Iterable[Hashable], held_max: int = ENTRIES_HELD_MAX) -> None:
        self._reached: dict[Hashable, int] = dict.fromkeys(partitions, -1)
        self._held: list[tuple[int, int, int, Entry]] = []
        self._added = 0
        self._held_max = held_max

    @property
    def past_is_read(self) -> bool:
        return not self._reached

    def add(self, entry: Entry) -> None:
        self._added += 1  # equal in time and rank: as they came
        heapq.heappush(self._held, (entry.source.written_ms, _ORDER[entry.event], self._added, entry))

    def reach(self, partition: Hashable, written_ms: int) -> None:
        """A record of this time was read from `partition`, whether it became an entry or not."""
        if partition in self._reached and written_ms > self._reached[partition]:
            self._reached[partition] = written_ms

    def finish(self, partition: Hashable) -> None:
        """The past of `partition` is read, or it is followed no longer."""
        self._reached.pop(partition, None)

    def release(self) -> list[Entry]:
        """The entries whose turn has come, in order."""
        safe_ms = min(self._reached.values(), default=None)
        out = []
        while self._held and (safe_ms is None or self._held[0][0] < safe_ms or len(self._held) > self._held_max):
            out.append(heapq.heappop(self._held)[-1])
        return _causes_first(out)


def _causes_first(entries: list[Entry]) -> list[Entry]:
    """`entries` with no job dispatched before it is scheduled, or before it is redriven.

    A job that is due at once is taken and dispatched in one transaction, and so is a run that is redriven. Its two records reach two
    partitions in either order, some milliseconds apart, by which the brokers' times put them. Everything else that follows from a record
    comes after its commit.
    """
    first: dict[tuple[str | None, int | None], int] = {}  # the place of a generation's first dispatch
    latest: dict[str | None, int] = {}  # the place of a job's latest dispatch
    for index, entry in enumerate(entries):
        earlier = None
        if entry.event is Happening.DISPATCHED:
            first.setdefault((entry.job_id, entry.generation), index)
            latest[entry.job_id] = index
        elif entry.event is Happening.SCHEDULED:
            earlier = first.pop((entry.job_id, entry.generation), None)
        elif entry.event is Happening.REDRIVEN:
            earlier = latest.get(entry.job_id)
            if earlier is not None and (entries[earlier].token or 0) <= (entry.token or 0):
                earlier = None  # the dispatch that it died with
        if earlier is not None:
            entries[earlier], entries[index] = entry, entries[earlier]
            latest[entry.job_id] = max(latest[entry.job_id], index)
    return entries
