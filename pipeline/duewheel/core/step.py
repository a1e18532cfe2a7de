"""One step of a timer partition: the rules by which jobs live.

All state of a job changes here and nowhere else, in the process that owns its partition. A step reads what was committed through a
`View`, takes inputs in the order of their logs, and collects what would change in an overlay. It reads no clock and does no I/O: the
caller publishes the overlay in one transaction and applies it to the local store afterwards, or drops it, and then nothing happened.

    step = Step(view, partition=3, token=41, now_ms=1_000)
    step.schedule(command, work, value)     a job due at 900
    step.fire([])
    step.dispatches                         [Dispatching(queue="default", job_id=…, token=42, …)]
    step.definitions, step.states           what to write to the changelog
    step.token                              42

Two facts keep this short. A definition without a state of its own generation is a job that waits: so scheduling writes one record, and
redefining a job needs no touch of its old state. And a timer is only a hint: what fires is decided by definition and state, so that a
timer left over from an earlier life of the job does nothing.

The step applies all inputs before it fires anything: a cancel in the same batch as its due job wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from duewheel.core.lifecycle import TERMINAL, TRANSITIONS, Event
from duewheel.core.limits import (
    BATCH_BYTES_MAX,
    ERROR_MESSAGE_CHARS_MAX,
    ERROR_TRACEBACK_CHARS_MAX,
    ERROR_TYPE_CHARS_MAX,
    PARKED_MS,
)
from duewheel.core.model import Cancel, Failure, Limits, OnConflict, Outcome, Phase, Schedule, State
from duewheel.core.wheel import job_of, timer_key


class Defined(NamedTuple):
    """A job's definition as the rules need it. `work` and `command` are encoded bytes, carried without being looked into."""

    generation: int
    due_ms: int
    queue: str
    retention_ms: int
    limits: Limits | None
    work: bytes
    command: bytes


class Dispatching(NamedTuple):
    """One attempt to hand to the workers of `queue`."""

    queue: str
    token: int
    job_id: str
    generation: int
    slot_ms: int
    attempt: int
    work: bytes


class View(Protocol):
    """What was committed of a partition."""

    def defined(self, job_id: str) -> Defined | None: ...

    def state(self, job_id: str) -> State | None: ...


@dataclass(slots=True)
class Counts:
    """What became of the inputs, for logs and statistics."""

    scheduled: int = 0
    duplicates: int = 0
    replaced: int = 0
    cancelled: int = 0
    cancels_late: int = 0
    cancels_unknown: int = 0
    dispatched: int = 0
    succeeded: int = 0
    failed: int = 0
    returned: int = 0
    stale: int = 0
    corrupt: int = 0
    forgotten: int = 0
    parked: int = 0
    late_ms_max: int = 0

    def add(self, other: Counts) -> None:
        """Adds another step's counts to these."""
        for name in self.__slots__:
            if name != "late_ms_max":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.late_ms_max = max(self.late_ms_max, other.late_ms_max)


@dataclass(slots=True)
class Step:
    """An overlay over one partition, and the rules that fill it.

    Attributes:
        view: what was committed.
        partition: the timer partition's number.
        token: the highest fencing token handed out so far; rises with each dispatch.
        now_ms: the one time of this step.
        has_queue: whether somebody could run what is sent to a queue of this name. A job whose queue is gone waits, and is looked at again.
        catching_up: the logs have not been read up to where they ended at takeover, so cancels may lie ahead and nothing fires. Only a
            job that was due when it was made is dispatched at once: any cancel of it came too late already.
        definitions: new definitions by job id; None forgets the job.
        states: new states by job id; None forgets it.
        timers_set, timers_unset: timer keys to put on disk, and to take from it.
        fired: timer keys that had their moment; what lies behind the earliest timer is removed from disk by range.
        dispatches: attempts to hand out, in order of their tokens.
        size_bytes: of the commands and the work in all of this, which is what may be large.
    """

    view: View
    partition: int
    token: int
    now_ms: int
    catching_up: bool = False
    has_queue: Callable[[str], bool] = field(default=lambda queue: True)
    size_bytes: int = 0
    definitions: dict[str, Defined | None] = field(default_factory=dict)
    states: dict[str, State | None] = field(default_factory=dict)
    timers_set: dict[bytes, None] = field(default_factory=dict)
    timers_unset: list[bytes] = field(default_factory=list)
    fired: list[bytes] = field(default_factory=list)
    dispatches: list[Dispatching] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    _due: dict[str, None] = field(default_factory=dict)
    _queues: set[str] = field(default_factory=set)

    # --- inputs ---

    def schedule(self, record: Schedule, work: bytes, command: bytes) -> None:
        """Defines a job, or redefines it, or finds that it is known.

        Args:
            record: the decoded command, already checked.
            work: its work, encoded.
            command: the whole command, encoded; equal bytes are the same command.
        """
        job_id = record["job_id"]
        known = self._defined(job_id)
        generation = 1
        if known is not None:
            if record["on_conflict"] == OnConflict.IGNORE or known.command == command:
                self.counts.duplicates += 1
                return
            generation = known.generation + 1
            self._unset_timer(known.due_ms, job_id)
            self._due.pop(job_id, None)
            self.counts.replaced += 1
        due_ms = record["due_ms"]
        self.size_bytes += len(command)
        self.definitions[job_id] = Defined(generation, due_ms, record["queue"], record["retention_ms"], record["limits"], work, command)
        self.counts.scheduled += 1
        if due_ms <= self.now_ms and (not self.catching_up or due_ms <= record["created_ms"]):
            self._due[job_id] = None
        else:
            self.timers_set[timer_key(due_ms, job_id)] = None

    def cancel(self, record: Cancel) -> None:
        """Stops a job that waits; one that is dispatched will not be dispatched again."""
        job_id = record["job_id"]
        known = self._defined(job_id)
        if known is None:
            self.counts.cancels_unknown += 1
            return
        state = self._current(job_id, known)
        after = TRANSITIONS.get((state["phase"], Event.CANCEL))
        if after is None:
            self.counts.cancels_late += 1
            return
        if after == Phase.CANCELLED:
            self._unset_timer(known.due_ms, job_id)
            self._due.pop(job_id, None)
            self.counts.cancelled += 1
        else:
            self.counts.cancels_late += 1
        self._move(job_id, state, after)

    def outcome(self, record: Outcome) -> None:
        """Accepts what a worker says, if it speaks of the current dispatch."""
        job_id = record["job_id"]
        state = self._state(job_id)
        if state is None or record["token"] < state["token"]:
            self.counts.stale += 1
            return
        if record["token"] > state["token"]:
            self.counts.corrupt += 1  # nobody was ever given this token
            return
        after = TRANSITIONS.get((state["phase"], record["result"]))
        if after is None:
            self.counts.stale += 1  # the same outcome once more
            return
        if after == Phase.DISPATCHED:
            self.counts.returned += 1
            self._again(job_id, state, crashed=record["result"] == Event.LOST)
            return
        if after == Phase.SUCCEEDED:
            self.counts.succeeded += 1
        elif after == Phase.FAILED:
            self.counts.failed += 1
        else:
            self.counts.cancelled += 1
        moved = state.copy()
        moved["phase"] = after
        moved["changed_ms"] = self.now_ms
        error = record["error"]
        moved["error"] = None if error is None else _cut(error)
        self.states[job_id] = moved

    def overdue(self, job_id: str, token: int) -> None:
        """Dispatches a job again whose dispatch, the one with `token`, got no outcome before its record may be deleted."""
        state = self._state(job_id)
        if state is None or state["token"] != token:
            return
        after = TRANSITIONS.get((state["phase"], Event.OVERDUE))
        if after == Phase.DISPATCHED:
            self._again(job_id, state, crashed=True)
        elif after is not None:
            self._move(job_id, state, after)

    def forget(self, job_id: str) -> None:
        """Drops a finished job whose retention is over; its id may be used anew."""
        known, state = self._defined(job_id), self._state(job_id)
        if known is None or state is None or state["phase"] not in TERMINAL or state["generation"] != known.generation:
            return
        if state["changed_ms"] + known.retention_ms <= self.now_ms:
            self.definitions[job_id] = None
            self.states[job_id] = None
            self.counts.forgotten += 1

    # --- firing ---

    def fire(self, timers: Iterable[bytes], size_bytes_max: int = BATCH_BYTES_MAX) -> None:
        """Dispatches what is due: jobs of this batch, and those whose timers the wheel gave. Call it once, last.

        Once the step has `size_bytes_max`, the other timers are left for the next one.
        """
        for job_id in self._due:
            known = self.definitions[job_id]
            if known is not None:
                self._dispatch(job_id, known, attempt=1, crashes=0)
        for key in timers:
            if self.size_bytes >= size_bytes_max:
                break
            self.fired.append(key)
            job_id = job_of(key)
            known = self._defined(job_id)
            if known is None or known.due_ms > self.now_ms:
                continue
            state = self._current(job_id, known)
            if state["phase"] == Phase.WAITING:
                self._dispatch(job_id, known, state["attempt"] + 1, state["crashes"])

    def _dispatch(self, job_id: str, known: Defined, attempt: int, crashes: int) -> None:
        generation, due_ms = known.generation, known.due_ms
        if known.queue not in self._queues and not self._found(known.queue):
            self._park(job_id, known, attempt - 1, crashes)
            return
        self.token += 1
        self.size_bytes += len(known.work)
        self.dispatches.append(Dispatching(known.queue, self.token, job_id, generation, due_ms, attempt, known.work))
        self.states[job_id] = {
            "generation": generation,
            "phase": Phase.DISPATCHED,
            "attempt": attempt,
            "crashes": crashes,
            "token": self.token,
            "slot_ms": due_ms,
            "changed_ms": self.now_ms,
            "error": None,
        }
        counts = self.counts
        counts.dispatched += 1
        if attempt == 1 and self.now_ms - due_ms > counts.late_ms_max:
            counts.late_ms_max = self.now_ms - due_ms

    def _found(self, queue: str) -> bool:
        """Whether the queue exists; asked once a step."""
        if self.has_queue(queue):
            self._queues.add(queue)
            return True
        return False

    def _park(self, job_id: str, known: Defined, attempt: int, crashes: int) -> None:
        """Lets a job wait whose queue is gone, until the queue is made again or the job is cancelled."""
        parked = self._current(job_id, known).copy()
        parked["phase"] = Phase.WAITING
        parked["attempt"], parked["crashes"] = attempt, crashes
        parked["changed_ms"] = self.now_ms
        self.states[job_id] = parked
        self.timers_set[timer_key(self.now_ms + PARKED_MS, job_id)] = None
        self.counts.parked += 1

    def _again(self, job_id: str, state: State, crashed: bool) -> None:
        """Hands out another dispatch of the same run; a crash uses up an attempt, an orderly return does not."""
        known = self._defined(job_id)
        if known is None or known.generation != state["generation"]:
            self._move(job_id, state, Phase.CANCELLED)  # redefined meanwhile: the newest generation wins
            return
        self._dispatch(job_id, known, state["attempt"] + crashed, state["crashes"] + crashed)

    # --- reading through the overlay ---

    def _defined(self, job_id: str) -> Defined | None:
        try:
            return self.definitions[job_id]
        except KeyError:
            return self.view.defined(job_id)

    def _state(self, job_id: str) -> State | None:
        try:
            return self.states[job_id]
        except KeyError:
            return self.view.state(job_id)

    def _current(self, job_id: str, known: Defined) -> State:
        """The state of the newest generation."""
        state = self._state(job_id)
        if state is not None and state["generation"] == known.generation:
            return state
        return {
            "generation": known.generation,
            "phase": Phase.WAITING,
            "attempt": 0,
            "crashes": 0,
            # Of an older generation's dispatch, which may still report: late then, and not from the future.
            "token": 0 if state is None else state["token"],
            "slot_ms": known.due_ms,
            "changed_ms": self.now_ms,
            "error": None,
        }

    def _move(self, job_id: str, state: State, after: Phase) -> None:
        moved = state.copy()
        moved["phase"] = after
        moved["changed_ms"] = self.now_ms
        self.states[job_id] = moved

    def _unset_timer(self, due_ms: int, job_id: str) -> None:
        key = timer_key(due_ms, job_id)
        self.timers_set.pop(key, None)
        self.timers_unset.append(key)


def _cut(error: Failure) -> Failure:
    """A worker cuts what it reports; who else writes outcomes may not."""
    return {
        "type": error["type"][:ERROR_TYPE_CHARS_MAX],
        "message": error["message"][:ERROR_MESSAGE_CHARS_MAX],
        "traceback": error["traceback"][:ERROR_TRACEBACK_CHARS_MAX],
    }
