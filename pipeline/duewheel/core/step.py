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
timer left over from an earlier life of the job does nothing. The moment that counts is `timer_ms`, a function of these two.

The step applies all inputs before it fires anything: a cancel in the same batch as its due job wins.

What an outcome means was decided by the worker, who knows the task. The owner obeys, and watches over what a worker cannot: that no
attempt starts too late, how long all of them may take, how many may end because their worker vanished, and for how long a run may be
silent. A lease that is over is not yet a run that is silent: its word may lie unread in the outcomes. So nobody is given up before the
outcomes were read up to where they ended after the lease was over (`heard_ms`), by an owner that was there to listen all that time.

A job that recurs is never dispatched. When a slot of it fires, the step defines a job that runs once (`core.run_ids`), to which all of this
applies; which slots fire, `core.overlap` decides. It needs to know which runs are not over: their slots are kept with the recurring job's
state and looked up at each slot, so that most runs end without touching it. Only where it waits for an end does the run's last state move
it too.

Jobs without limits that succeed at once take the short ways here, and those must stay short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from duewheel.core import errors
from duewheel.core import trail as trails
from duewheel.core.changes import updated
from duewheel.core.commands import check_schedule
from duewheel.core.errors import BrokenInvariant, IllegalTransition, RejectedJob, UndecodableRecord
from duewheel.core.lifecycle import TERMINAL, Event, follow
from duewheel.core.limits import (
    ANSWER_MESSAGE_CHARS_MAX,
    ANSWERS_MAX,
    BATCH_BYTES_MAX,
    DEAD_RETENTION_MS,
    DUE_MS_MAX,
    ERROR_MESSAGE_CHARS_MAX,
    ERROR_TRACEBACK_CHARS_MAX,
    ERROR_TYPE_CHARS_MAX,
    LEASE_RECHECK_MS,
    PARKED_MS,
    RUNS_KEPT_MAX,
)
from duewheel.core.model import (
    Action,
    Answer,
    Cancel,
    Change,
    Closing,
    Delivery,
    Drop,
    Ending,
    Failure,
    Limits,
    OnConflict,
    Outcome,
    Overlap,
    Phase,
    Reach,
    Recurrence,
    RecurrenceKind,
    Redrive,
    Schedule,
    State,
    Stop,
    Terms,
    Trail,
)
from duewheel.core.overlap import Start, after_end, has_same_slots, look, take_over
from duewheel.core.recurrence import first_slot_ms, is_slot, jittered_ms, missed
from duewheel.core.run_ids import parse, run_id
from duewheel.core.topology import QUEUE_DEFAULT
from duewheel.core.wheel import job_of, timer_key


class Defined(NamedTuple):
    """A job's definition as the rules need it. `work` and `command` are encoded bytes, carried without being looked into.

    Attributes:
        queue: or the lane, which stands for it where a record is to be delivered: see `lane`.
        offset: of the command in the intake topic; -1 for the run of a recurring job's slot, which nobody asked for by itself.
    """

    generation: int
    due_ms: int
    queue: str
    retention_ms: int
    limits: Limits | None
    work: bytes
    command: bytes
    recurrence: Recurrence | None = None
    offset: int = -1
    delivery: Delivery | None = None


def lane(queue: str, delivery: Delivery | None) -> str:
    """What stands for the queue where a record is to be delivered: ">" and its topic, which is no queue's name. So whatever is known of
    queues holds for topics too: whether they exist, take records, are doubted."""
    return queue if delivery is None else LANE + delivery["topic"]


LANE: Final = ">"


class Dispatching(NamedTuple):
    """One attempt to hand to the workers of `queue`."""

    queue: str
    token: int
    job_id: str
    generation: int
    slot_ms: int
    attempt: int
    terms: Terms | None
    work: bytes


class Delivering(NamedTuple):
    """One record to put on the topic that `delivery` names."""

    delivery: Delivery
    token: int
    job_id: str
    slot_ms: int
    payload: bytes
    headers: dict[str, str]


class Admission(NamedTuple):
    """Whether a record may be put on its topic now.

    Attributes:
        wait_ms: for how long to wait before that is asked again; 0 where it may be.
        refused: why the topic never takes it, in a sentence; empty where that is not known.
    """

    wait_ms: int = 0
    refused: str = ""


ADMITTED: Final = Admission()


class Reason(StrEnum):
    """Why a run is dead: the code in `DeadRun.reason`."""

    FAILED = "failed"
    CRASH_LIMIT = "crash_limit"
    TOTAL_TIMEOUT = "total_timeout"
    REFUSED = "refused"  # the topic takes others, and not this one
    DAMAGED = "damaged"  # what was to be delivered cannot be read any more


class Death(NamedTuple):
    """A run that is dead from now on, and the job as it was defined then."""

    job_id: str
    reason: Reason
    state: State
    known: Defined


class Closed(NamedTuple):
    """A dead run that nobody needs to look at any more; `token` is of the attempt it died with."""

    job_id: str
    token: int
    how: Closing


class View(Protocol):
    """What was committed of a partition."""

    def defined(self, job_id: str) -> Defined | None: ...

    def state(self, job_id: str) -> State | None: ...


def timer_ms(known: Defined, state: State | None) -> int:
    """When the owner must look at a job again, in milliseconds since the epoch; 0 where only an input can change anything."""
    if state is None or state["generation"] != known.generation:
        return known.due_ms
    if state["phase"] == Phase.PAUSED:
        return 0
    trail = state["trail"]
    if trail is not None and trail["wake_ms"]:
        return trail["wake_ms"]
    return known.due_ms if state["phase"] == Phase.WAITING and known.recurrence is None else 0


def retention_ms(known: Defined, state: State) -> int:
    """How long a finished job stays known. One that is dead stays until somebody had time to look."""
    return max(known.retention_ms, DEAD_RETENTION_MS) if state["phase"] == Phase.FAILED else known.retention_ms


@dataclass(slots=True)
class Counts:
    """What became of the inputs, for logs and statistics.

    Attributes:
        conflicts: schedules that were refused since their id was known, as they had asked.
        cancels_late: of jobs that were over, or dispatched already.
        changes: of jobs that waited, whatever they were; changes_refused: of those that run or are over, or that would break a rule then.
        redrives_late: redrives and drops of what is not dead, or no longer, with the token they name.
        redrives_refused: redrives of what is dead, and whose time to start is over.
        started, heartbeats: outcomes that gave or extended a lease.
        returned: outcomes by which a dispatch was given back: lost or interrupted.
        failed: runs that failed for good; `dead` of them, for any reason, went to the dead letters.
        stale: outcomes under a token that is not the newest.
        corrupt: outcomes under a token that nobody was given.
        illegal: events that the lifecycle does not list, such as the same outcome once more.
        slots_fired: slots of recurring jobs that runs were handed out for.
        slots_missed, slots_overlapped: those that were left out because they came too late, or because others were still going on. Of a
            cron line that was away for long, `SLOTS_COUNTED_MAX` missed ones stand for so many or more.
        delivered: records that were put on their topics.
        late_ms_max: how much later than due a first attempt was dispatched, or a record delivered, at most.
    """

    scheduled: int = 0
    duplicates: int = 0
    replaced: int = 0
    conflicts: int = 0
    cancelled: int = 0
    cancels_late: int = 0
    cancels_unknown: int = 0
    dispatched: int = 0
    started: int = 0
    heartbeats: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    discarded: int = 0
    expired: int = 0
    retried: int = 0
    snoozed: int = 0
    returned: int = 0
    leases_expired: int = 0
    changes: int = 0
    changes_refused: int = 0
    changes_unknown: int = 0
    redriven: int = 0
    dropped: int = 0
    redrives_late: int = 0
    redrives_refused: int = 0
    stale: int = 0
    corrupt: int = 0
    illegal: int = 0
    forgotten: int = 0
    parked: int = 0
    slots_fired: int = 0
    slots_missed: int = 0
    slots_overlapped: int = 0
    delivered: int = 0
    late_ms_max: int = 0

    def add(self, other: Counts) -> None:
        """Adds another step's counts to these."""
        for name in self.__slots__:
            if name != "late_ms_max":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.late_ms_max = max(self.late_ms_max, other.late_ms_max)


# Why a change was refused, beside the codes of `errors.Reason`.
_UNKNOWN: Final = "unknown"
_OVER: Final = "over"
_RUNNING: Final = "running"
# Of an ending's numbers and of an average error in it; what a state of many endings adds to a transaction.
_ENDING_BYTES: Final = 200
# Of a run that is handed out, beside its command and work: its two states, its ids.
_RUN_BYTES: Final = 300
# Of a record to deliver, beside its key and work: its own headers.
_DELIVERY_BYTES: Final = 400
_SLOT_BYTES: Final = 6
_ANSWER_BYTES: Final = 50


class SpliceSchedule(Protocol):
    """The encoded Schedule of a job that runs once, around encoded work: as in `ports.Codec`."""

    def __call__(
        self,
        job_id: str,
        due_ms: int,
        created_ms: int,
        retention_ms: int,
        queue: str,
        limits: Limits | None,
        delivery: Delivery | None,
        work: bytes,
    ) -> bytes: ...


def _cannot_splice(
    job_id: str,
    due_ms: int,
    created_ms: int,
    retention_ms: int,
    queue: str,
    limits: Limits | None,
    delivery: Delivery | None,
    work: bytes,
) -> bytes:
    raise BrokenInvariant(f"the run {job_id!r} is to be handed out by a step that was not told how to encode it")


def _cannot_read(work: bytes) -> tuple[bytes, dict[str, str]]:
    raise BrokenInvariant(f"work of {len(work)} bytes is to be delivered by a step that was not told how to read it")


class ReviseSchedule(Protocol):
    """An encoded Schedule, revised: as a record, its work encoded, and all of it encoded. As in `ports.Codec`."""

    def __call__(self, command: bytes, revise: Callable[[Schedule], Schedule]) -> tuple[Schedule, bytes, bytes]: ...


def _cannot_revise(command: bytes, revise: Callable[[Schedule], Schedule]) -> tuple[Schedule, bytes, bytes]:
    raise BrokenInvariant("a job is to be changed by a step that was not told how to encode it")


class _Before(NamedTuple):
    """How a recurring job stood whose next definition has come.

    Attributes:
        pending_ms, queued_ms: as in `overlap.Look`.
        handed_out: how many runs were handed out.
        is_waiting_for_end: with EVERY_AFTER, whether its next slot comes when what goes on has ended.
        decided_ms: up to when it has decided about its slots.
        unfit: how many slots before the next definition nobody has run or will run: they had no room in this step, or it was paused.
    """

    due_ms: int
    recurrence: Recurrence
    pending_ms: int
    queued_ms: int
    handed_out: int
    is_waiting_for_end: bool
    decided_ms: int
    unfit: int


@dataclass(slots=True)
class Step:
    """An overlay over one partition, and the rules that fill it.

    Attributes:
        view: what was committed.
        partition: the timer partition's number.
        token: the highest fencing token handed out so far; rises with each dispatch.
        now_ms: the one time of this step.
        has_queue: whether dispatches can be sent to a queue of this name. A job whose queue is gone waits, and is looked at again.
        catching_up: the logs have not been read up to where they ended at takeover, so cancels may lie ahead and nothing fires. Only a
            job that was due when it was made is dispatched at once: any cancel of it came too late already.
        heard_ms: every outcome that was written up to this time has been taken in by an earlier step.
        listening_ms: since when the owner has taken in outcomes without interruption.
        splice_schedule: encodes the definition of a recurring job's run.
        may_deliver: whether a record may be put on its topic now, by lane, job id and generation.
        read_content: payload and headers of encoded work; raises UndecodableRecord where it is damaged.
        revise_schedule: encodes a definition that was changed.
        definitions: new definitions by job id; None forgets the job.
        states: new states by job id; None forgets it.
        timers_set, timers_unset: timer keys to put on disk, and to take from it.
        fired: timer keys that had their moment; what lies behind the earliest timer is removed from disk by range.
        dispatches: attempts to hand out, in order of their tokens.
        deliveries: records to put on topics, likewise.
        queues: those that dispatches may go to, as far as it was asked.
        stops: dispatches whose job was cancelled, for the workers.
        deaths, closings: runs that died, and dead ones that are no longer of interest, for the dead letters; the deaths come first.
        left_out: how many slots of which recurring jobs were left out.
        must_listen: there are leases that are over, and outcomes have not been read so far that this is certain.
        size_bytes: of what may be large in all of this: commands, work, errors, results and how attempts ended.
    """

    view: View
    partition: int
    token: int
    now_ms: int
    catching_up: bool = False
    has_queue: Callable[[str], bool] = field(default=lambda queue: True)
    heard_ms: int = 0
    listening_ms: int = 0
    splice_schedule: SpliceSchedule = _cannot_splice
    may_deliver: Callable[[str, str, int], Admission] = field(default=lambda lane, job_id, generation: ADMITTED)
    read_content: Callable[[bytes], tuple[bytes, dict[str, str]]] = _cannot_read
    revise_schedule: ReviseSchedule = _cannot_revise
    size_bytes: int = 0
    definitions: dict[str, Defined | None] = field(default_factory=dict)
    states: dict[str, State | None] = field(default_factory=dict)
    timers_set: dict[bytes, None] = field(default_factory=dict)
    timers_unset: list[bytes] = field(default_factory=list)
    fired: list[bytes] = field(default_factory=list)
    dispatches: list[Dispatching] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    closings: list[Closed] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=dict)
    deliveries: list[Delivering] = field(default_factory=list)
    must_listen: bool = False
    counts: Counts = field(default_factory=Counts)
    _due: dict[str, None] = field(default_factory=dict)
    _recurring: dict[str, Defined] = field(default_factory=dict)  # that were read: what follows asks for them again
    _answers: dict[str, list[Answer]] = field(default_factory=dict)

    # --- commands ---

    def schedule(self, record: Schedule, work: bytes, command: bytes, offset: int = -1) -> None:
        """Defines a job, or redefines it, or finds that it is known.

        Args:
            record: the decoded command, already checked.
            work: its work, encoded.
            command: the whole command, encoded; equal bytes are the same command.
            offset: of the command in the intake topic.

        Raises:
            RejectedJob: the id is known, and the command asks to be refused then. Nothing has changed.
        """
        job_id = record["job_id"]
        known = self._defined(job_id)
        generation, was = 1, None
        if known is not None:
            if record["on_conflict"] == OnConflict.IGNORE or known.command == command:
                self.counts.duplicates += 1
                return
            if record["on_conflict"] == OnConflict.REJECT:
                self.counts.conflicts += 1
                raise _conflict(job_id, self._current(job_id, known))
            generation = known.generation + 1
            was = self._concluded(job_id, known, record)
            self._replace(job_id, known)
        due_ms, recurrence = record["due_ms"], record["recurrence"]
        self.size_bytes += len(command)
        delivery = record["delivery"]
        queue = record["queue"] if delivery is None else lane(record["queue"], delivery)
        retained_ms, limits = record["retention_ms"], record["limits"]
        defined = Defined(generation, due_ms, queue, retained_ms, limits, work, command, recurrence, offset, delivery)
        self.definitions[job_id] = defined
        self.counts.scheduled += 1
        if recurrence is not None:
            self._recur(job_id, defined, recurrence, was)
        elif due_ms <= self.now_ms and (not self.catching_up or due_ms <= record["created_ms"]):
            self._due[job_id] = None
        else:
            self.timers_set[timer_key(due_ms, job_id)] = None
        if was is not None:
            self._give_up_slots(job_id, defined, was)

    def cancel(self, record: Cancel) -> None:
        """Stops a job that waits; one that is dispatched will not be dispatched again, and its worker is told, unless only the job itself
        is meant.

        A job that recurs hands out no more runs then; those that go on are not touched, unless they are meant too.
        """
        job_id, reach = record["job_id"], record["reach"]
        known = self._defined(job_id)
        if known is None:
            self.counts.cancels_unknown += 1
            return
        state = self._current(job_id, known)
        going = self._going(job_id, trails.runs_of(state)) if reach == Reach.RUNNING and known.recurrence is not None else []
        self._cancel(job_id, known, state, is_quiet=reach == Reach.JOB)
        for slot_ms in going:
            self._replace_run(run_id(job_id, slot_ms))

    def _cancel(self, job_id: str, known: Defined, state: State, *, is_quiet: bool) -> None:
        try:
            after = follow(state["phase"], Event.CANCEL)
        except IllegalTransition:
            self.counts.cancels_late += 1
            return
        if after is Phase.CANCELLED:
            self._unset_timer(known.due_ms, job_id)
            self._due.pop(job_id, None)
            self.counts.cancelled += 1
            # Of a recurring job its runs stay known: defined anew, it must not overlap with them.
            trail = trails.carried(state["trail"]) if known.recurrence is None else trails.recurring(0, trails.runs_of(state))
            self._move(job_id, state, after, trail)
        else:
            self.counts.cancels_late += 1
            if not is_quiet:
                self._stop(job_id, known, state)
            elif state["phase"] != Phase.CANCELLING:
                self._move(job_id, state, after, trails.quiet(state["trail"], True))

    def _stop(self, job_id: str, known: Defined, state: State) -> None:
        """Lets a dispatched job not be dispatched again, and its worker know."""
        self.stops.append({"job_id": job_id, "token": state["token"], "queue": known.queue})
        self._move(job_id, state, Phase.CANCELLING, trails.quiet(state["trail"], False))

    def redrive(self, record: Redrive) -> None:
        """Runs a dead run again, with fresh attempts, if it is still dead with the token that the command names.

        Raises:
            RejectedJob: it is, and no attempt of it may start any more. Nothing has changed: it stays dead, and can be looked at.
        """
        job_id = record["job_id"]
        state = self._state(job_id)
        known = None if state is None else self._governing(job_id, state)
        if state is None or known is None or state["token"] != record["token"]:
            self.counts.redrives_late += 1
            return
        try:
            after = follow(state["phase"], Event.REDRIVE)
        except IllegalTransition:
            self.counts.redrives_late += 1
            return
        expires_ms = trails.expires_ms(known.limits)
        if expires_ms and expires_ms <= self.now_ms:
            self.counts.redrives_refused += 1
            raise _redriven_too_late(job_id, expires_ms, self.now_ms)
        self.counts.redriven += 1
        self.closings.append(Closed(job_id, state["token"], Closing.REDRIVEN))
        trail = trails.begun(state["trail"], 0)
        waiting = self._move(job_id, state, after, trail, attempt=0, crashes=0)
        self._lives_again(job_id)
        self._attempt(job_id, known, waiting, 1, 0, trail)

    def change(self, record: Change, offset: int) -> None:
        """Pauses, resumes, runs or updates a job that waits, and answers in its state, which is written anew whatever came of it. Of an id
        that nobody knows the state is taken away, which says so.

        Args:
            record: the decoded command, already checked.
            offset: of the command in the intake topic.

        Raises:
            RejectedJob: with this update the job would break a rule. It is answered, and as it was.
        """
        job_id = record["job_id"]
        known = self._defined(job_id)
        if known is None:
            self.counts.changes_unknown += 1
            self._answer(job_id, offset, _UNKNOWN, f"job {job_id} was not known then")
            return
        state, refusal, error = self._current(job_id, known), ("", ""), None
        if state["phase"] in TERMINAL:
            refusal = _OVER, f"job {job_id} is over: {state['phase']} since {state['changed_ms']}; schedule it anew"
        elif state["phase"] not in (Phase.WAITING, Phase.PAUSED):
            refusal = _RUNNING, f"job {job_id} is {state['phase']}, and what runs is not changed; cancel it, or wait for its end"
        else:
            try:
                self._changed(job_id, known, state, record, offset)
            except RejectedJob as rejected:
                refusal, error = (rejected.reason.value, str(rejected)), rejected
        if refusal[0]:
            self.counts.changes_refused += 1
        else:
            self.counts.changes += 1
        self._answer(job_id, offset, *refusal)
        if error is not None:
            raise error

    def _answer(self, job_id: str, offset: int, reason: str, message: str) -> None:
        message = message[:ANSWER_MESSAGE_CHARS_MAX]
        self.size_bytes += len(message) + _ANSWER_BYTES
        answer: Answer = {"offset": offset, "taken_ms": self.now_ms, "reason": reason, "message": message}
        self._answers.setdefault(job_id, []).append(answer)

    def _write_answers(self) -> None:
        """Writes them with how each job stands in the end, so that nothing that became of it in this step takes them away."""
        for job_id, answers in self._answers.items():
            known = self._defined(job_id)
            if known is None:
                self.states[job_id] = None
            else:
                state = self._current(job_id, known)
                self.states[job_id] = {**state, "trail": trails.answered(state["trail"], answers[-ANSWERS_MAX:])}

    def _changed(self, job_id: str, known: Defined, state: State, record: Change, offset: int) -> None:
        match record["action"]:
            case Action.PAUSE:
                self._pause(job_id, known, state)
            case Action.RESUME:
                self._unpause(job_id, known, state)
            case Action.RUN_NOW if known.recurrence is not None:
                self._run_now(job_id, known, state, record["created_ms"], offset)
            case Action.RUN_NOW:
                now_ms = self.now_ms
                if timer_ms(known, {**state, "phase": Phase.WAITING}) > now_ms:
                    self._update(job_id, known, state, lambda schedule: _due_at(schedule, now_ms), record["created_ms"])
                    known = self._defined(job_id) or known
                self._unpause(job_id, known, self._current(job_id, known))
            case Action.UPDATE:
                self._update(job_id, known, state, lambda schedule: updated(schedule, record), record["created_ms"])

    def _pause(self, job_id: str, known: Defined, state: State) -> None:
        if state["phase"] == Phase.PAUSED:
            return
        self._unset_timer(known.due_ms, job_id)
        self._unset_wake(job_id, state)
        self._due.pop(job_id, None)
        self.states[job_id] = {**state, "phase": follow(state["phase"], Event.PAUSE), "changed_ms": self.now_ms}

    def _unpause(self, job_id: str, known: Defined, state: State) -> State:
        """Lets a paused job wait for its time again, which may have come; what it does about that is for the next look at it."""
        if state["phase"] != Phase.PAUSED:
            return state
        waiting: State = {**state, "phase": follow(state["phase"], Event.RESUME), "changed_ms": self.now_ms}
        self.states[job_id] = waiting
        wake_ms = timer_ms(known, waiting)
        if wake_ms:
            self.timers_set[timer_key(wake_ms, job_id)] = None
        if known.recurrence is not None:
            self._resume(job_id, known, known.recurrence)  # what it waited for may have ended
        return self._current(job_id, known)

    def _run_now(self, job_id: str, known: Defined, state: State, created_ms: int, offset: int) -> None:
        """Hands out a run beside the slots, which is named by when it was asked for: the same command twice is one run.

        A slot may be of that very millisecond; then the run takes the name of the next one that is none.
        """
        trail, recurrence = state["trail"], known.recurrence
        assert trail is not None
        assert recurrence is not None
        slots, asked_ms = {state["slot_ms"], trail["queued_ms"]}, created_ms
        while True:
            found = self._defined(run_id(job_id, asked_ms))
            if found is not None and found.offset >= 0:
                return  # asked for before
            if found is None and asked_ms not in slots and not is_slot(recurrence, known.due_ms, asked_ms):
                break
            asked_ms += 1
        runs = sorted({*self._going(job_id, trail["runs"]), asked_ms})[-RUNS_KEPT_MAX:]
        self.states[job_id] = {**state, "trail": {**trail, "runs": runs}}
        self._hand_out(run_id(job_id, asked_ms), known, asked_ms, max(asked_ms, self.now_ms), offset)

    def _update(self, job_id: str, known: Defined, state: State, revise: Callable[[Schedule], Schedule], created_ms: int) -> None:
        """Defines a job anew, from what it was; one that is paused stays so. What changes nothing is no new generation."""
        record, work, command = self.revise_schedule(known.command, revise)
        if command == known.command:
            return
        wake_ms, due_ms = 0, record["due_ms"]
        if state["attempt"] and known.recurrence is None:
            # Between two attempts it is still the run of its time, which names it: only the next attempt can be put off.
            wake_ms = due_ms if due_ms != known.due_ms else timer_ms(known, {**state, "phase": Phase.WAITING})
            due_ms = known.due_ms
            record, work, command = self.revise_schedule(command, lambda schedule: {**schedule, "due_ms": due_ms})
            if command == known.command:
                self._move(job_id, state, Phase(state["phase"]), trails.waking(state["trail"], wake_ms), state["error"])
                return
        if known.generation == 1 and record["on_conflict"] == OnConflict.REPLACE:
            # It replaced nothing, and is to say so however often it is updated: nobody asks its generation then.
            record, work, command = self.revise_schedule(command, lambda schedule: {**schedule, "on_conflict": OnConflict.IGNORE.value})
        if state["phase"] == Phase.PAUSED:
            before = None if known.recurrence is None else _paused(known, state)
        else:
            before = self._concluded(job_id, known, {**record, "created_ms": created_ms})
        self._replace(job_id, known)
        recurrence, delivery, generation = record["recurrence"], record["delivery"], known.generation + 1
        self.size_bytes += len(command)
        queue, retained_ms, limits = lane(record["queue"], delivery), record["retention_ms"], record["limits"]
        defined = Defined(generation, due_ms, queue, retained_ms, limits, work, command, recurrence, known.offset, delivery)
        self.definitions[job_id] = defined
        if recurrence is not None:
            self._recur(job_id, defined, recurrence, before)
        elif state["attempt"]:
            waiting: State = {**state, "generation": defined.generation, "phase": Phase.WAITING}
            self._move(job_id, waiting, Phase.WAITING, trails.waking(state["trail"], wake_ms), state["error"])
        else:
            self.timers_set[timer_key(due_ms, job_id)] = None
        if before is not None:
            self._give_up_slots(job_id, defined, before)
        after = self._current(job_id, defined)
        if state["phase"] == Phase.PAUSED and after["phase"] == Phase.WAITING:
            self._pause(job_id, defined, after)

    def drop(self, record: Drop) -> None:
        """Forgets a dead run, if it is still dead with the token that the command names."""
        job_id = record["job_id"]
        state = self._state(job_id)
        if state is None or state["phase"] != Phase.FAILED or state["token"] != record["token"] or self._governing(job_id, state) is None:
            self.counts.redrives_late += 1
            return
        self.counts.dropped += 1
        self._forget(job_id, state, Closing.DROPPED)

    # --- outcomes ---

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
        result = record["result"]
        try:
            after = follow(state["phase"], result)
        except IllegalTransition:
            self.counts.illegal += 1
            return
        if after is Phase.SUCCEEDED:
            self.counts.succeeded += 1
            self._end(job_id, state, after, record, state["trail"])
        elif after is Phase.DISPATCHED:
            self.counts.returned += 1
            self._again(job_id, state, result, trails.ending_told(state, record))
        elif after is Phase.WAITING:
            self._put_off(job_id, state, record, trails.delay_of(record))
        elif after is Phase.FAILED:
            self._fail(job_id, state, record)
        elif result == Event.STARTED or result == Event.HEARTBEAT:
            self._hear(job_id, state, after, record)
        elif after is Phase.DISCARDED:
            self.counts.discarded += 1
            self._end(job_id, state, after, record, trails.ended(state["trail"], trails.ending_told(state, record)))
        elif after is Phase.EXPIRED and self._may_start(job_id, state):
            self._put_off(job_id, state, record, PARKED_MS)  # the worker's clock is ahead of ours; another's may not be
        else:
            if after is Phase.EXPIRED:
                self.counts.expired += 1
            else:
                self.counts.cancelled += 1
            self._end(job_id, state, after, record, state["trail"])

    def _end(self, job_id: str, state: State, after: Phase, record: Outcome, trail: Trail | None) -> None:
        output = record["output"]
        if output is None and trail is None and record["error"] is None and state["trail"] is None:  # as most runs end
            self.states[job_id] = {**state, "phase": after, "changed_ms": self.now_ms, "error": None}
            if "@" in job_id:
                self._ended(job_id)
            return
        if output is not None:
            output = trails.output_of(record) if after is Phase.SUCCEEDED else None
        if trail is not None or output is not None:
            trail = trails.carried(trail, output=output)
        self._move(job_id, state, after, trail, self._cut(record["error"]))

    def _hear(self, job_id: str, state: State, after: Phase, record: Outcome) -> None:
        """Gives a run that goes on its lease. One whose job was cancelled is told so again: its worker may have missed it."""
        if record["result"] == Event.STARTED:
            self.counts.started += 1
        else:
            self.counts.heartbeats += 1
        known = self._governing(job_id, state)
        trail, output = state["trail"], trails.output_of(record)
        if output is None and trail is not None:
            output = trail["output"]
        lease_ms = trails.lease_of(record)
        wake_ms = 0 if known is None else self.now_ms + lease_ms  # of an older generation nobody waits to hear
        is_quiet = trails.is_quiet(trail)
        self._move(job_id, state, after, trails.carried(trail, wake_ms=wake_ms, lease_ms=lease_ms, output=output, is_quiet=is_quiet))
        if after is Phase.CANCELLING and known is not None and not is_quiet:
            self.stops.append({"job_id": job_id, "token": state["token"], "queue": known.queue})

    def _may_start(self, job_id: str, state: State) -> bool:
        """Whether there is a time after which no attempt may start, and it has not come."""
        known = self._governing(job_id, state)
        return known is not None and self.now_ms < trails.expires_ms(known.limits)

    def _put_off(self, job_id: str, state: State, record: Outcome, delay_ms: int) -> None:
        """Lets a run wait for its next attempt, where there may be one."""
        known = self._governing(job_id, state)
        if known is None:
            self._supersede(job_id, state)
            return
        wake_ms, trail, attempt = self.now_ms + delay_ms, state["trail"], state["attempt"]
        if record["result"] == Event.RETRY:
            self.counts.retried += 1
            trail = trails.ended(trail, trails.ending_told(state, record))
        else:
            self.counts.snoozed += 1
            attempt -= 1
        deadline_ms, expires_ms = trails.deadline_ms(known.limits, trail), trails.expires_ms(known.limits)
        if deadline_ms and wake_ms >= deadline_ms:
            self._die(job_id, known, state, Reason.TOTAL_TIMEOUT, trail, record["error"])
            return
        if expires_ms:
            wake_ms = max(1, min(wake_ms, expires_ms))  # then it expires, and need not wait to be told so
        waiting = trails.carried(trail, wake_ms=wake_ms)
        self._move(job_id, state, Phase.WAITING, waiting, self._cut(record["error"]), attempt=attempt)

    def _fail(self, job_id: str, state: State, record: Outcome) -> None:
        trail = trails.ended(state["trail"], trails.ending_told(state, record))
        known = self._governing(job_id, state)
        if known is None:
            # Of an older generation: its payload is gone, and redriving it would undo what came after. So it failed, and is not dead.
            self.counts.failed += 1
            self._end(job_id, state, Phase.FAILED, record, trail)
        else:
            self._die(job_id, known, state, Reason.FAILED, trail, record["error"])

    # --- what nobody tells ---

    def overdue(self, job_id: str, token: int) -> None:
        """Dispatches a job again whose dispatch, the one with `token`, got no outcome before its record may be deleted."""
        state = self._state(job_id)
        if state is None or state["token"] != token:
            return
        try:
            self._silent(job_id, state, Event.OVERDUE)
        except IllegalTransition:
            self.counts.illegal += 1

    def forget(self, job_id: str) -> None:
        """Drops a finished job whose retention is over; its id may be used anew."""
        known, state = self._defined(job_id), self._state(job_id)
        if known is None or state is None or state["phase"] not in TERMINAL or state["generation"] != known.generation:
            return
        if state["changed_ms"] + retention_ms(known, state) <= self.now_ms:
            self.counts.forgotten += 1
            self._forget(job_id, state, Closing.FORGOTTEN)

    # --- firing ---

    def fire(self, timers: Iterable[bytes], size_bytes_max: int = BATCH_BYTES_MAX) -> None:
        """Dispatches what is due: jobs of this batch, and those whose timers the wheel gave. Call it once, last.

        Once the step has `size_bytes_max`, the other timers are left for the next one.
        """
        for job_id in self._due:
            known = self.definitions[job_id]
            if known is not None:
                self._first(job_id, known)
        for key in timers:
            if self.size_bytes >= size_bytes_max:
                break
            self.fired.append(key)
            job_id = job_of(key)
            known = self._defined(job_id)
            if known is None:
                continue
            state = self._state(job_id)
            if known.recurrence is not None:
                self._recurring[job_id] = known
                if state is not None and state["generation"] == known.generation:
                    self._look(job_id, known, known.recurrence, state, size_bytes_max)
            elif state is not None and state["generation"] == known.generation:
                self._wake(job_id, known, state)
            elif known.due_ms <= self.now_ms:
                self._first(job_id, known)
        if self._answers:
            self._write_answers()

    def _first(self, job_id: str, known: Defined) -> None:
        if self.now_ms - known.due_ms > self.counts.late_ms_max:
            self.counts.late_ms_max = self.now_ms - known.due_ms
        if known.limits is None:
            self._dispatch(job_id, known, 1, 0, None, None)
        else:
            self._attempt(job_id, known, self._current(job_id, known), 1, 0, None)

    def _wake(self, job_id: str, known: Defined, state: State) -> None:
        """Looks at a job whose moment may have come: its next attempt, or the end of its lease."""
        wake_ms = timer_ms(known, state)
        if not 0 < wake_ms <= self.now_ms:
            return  # a timer left over; the one that counts is still to come
        trail = state["trail"]
        if state["phase"] == Phase.WAITING:
            self._attempt(job_id, known, state, state["attempt"] + 1, state["crashes"], trail)
            return
        assert trail is not None
        heard_out_ms = self.listening_ms + trail["lease_ms"]
        if wake_ms <= self.heard_ms and heard_out_ms <= self.now_ms:
            self.counts.leases_expired += 1
            self._silent(job_id, state, Event.LEASE_EXPIRED)
            return
        self.must_listen = self.must_listen or wake_ms > self.heard_ms
        self.timers_set[timer_key(max(self.now_ms + LEASE_RECHECK_MS, heard_out_ms), job_id)] = None

    # --- recurring jobs ---

    def _concluded(self, job_id: str, known: Defined, record: Schedule) -> _Before | None:
        """Lets a recurring job decide about its slots before its next definition was made, so that none of them is lost by that.

        It leaves them to the next definition, if that has the same slots, where it cannot decide: what seems to go on may be over while
        outcomes are unread; more runs than fit into a step are handed out by others; and while it is paused it runs nothing.

        Returns:
            How it stood; None for a job that does not recur.
        """
        recurrence, state = known.recurrence, self._current(job_id, known)
        if recurrence is None:
            return None
        until_ms = min(record["created_ms"] - 1, self.now_ms)
        after = record["recurrence"]
        goes_on = after is not None and known.due_ms == record["due_ms"] and has_same_slots(recurrence, after)
        trail = state["trail"]
        if state["phase"] == Phase.PAUSED and trail is not None:
            paused = _paused(known, state)
            return paused if goes_on else _given_up(paused, until_ms)
        if state["phase"] != Phase.WAITING or trail is None:
            return _Before(known.due_ms, recurrence, 0, 0, state["attempt"], False, until_ms, 0)
        decided_ms, unfit = until_ms, 0
        if state["slot_ms"] <= until_ms:
            is_uncertain = self.catching_up and recurrence["overlap"] != Overlap.ALLOW and self._going(job_id, trail["runs"])
            if not (goes_on and is_uncertain):
                upto: Recurrence = {**recurrence, "end_ms": min(recurrence["end_ms"] or DUE_MS_MAX, until_ms + 1)}
                unfit = self._look(job_id, known, upto, state, BATCH_BYTES_MAX)
                state = self._current(job_id, known)
        trail = state["trail"]
        assert trail is not None
        if goes_on and state["phase"] == Phase.WAITING and state["slot_ms"] != trail["queued_ms"]:
            decided_ms, unfit = state["slot_ms"] - 1, 0  # beyond, or before where it could not decide
        is_waiting_for_end = state["phase"] == Phase.WAITING and not trail["wake_ms"]
        handed_out = state["attempt"]
        return _Before(known.due_ms, recurrence, state["slot_ms"], trail["queued_ms"], handed_out, is_waiting_for_end, decided_ms, unfit)

    def _recur(self, job_id: str, known: Defined, recurrence: Recurrence, before: _Before | None) -> None:
        """Lets a job wait for its first slot: of this definition, or, where it has the anchor of the one before, the first that nothing was
        decided about. The runs of an earlier generation, which may go on, are those of this one too.
        """
        runs, waiting = trails.runs_of(self._state(job_id)), self._current(job_id, known)
        if before is None or before.due_ms != known.due_ms:
            first_ms = first_slot_ms(recurrence, known.due_ms)
            start = Start(first_ms, 0, first_ms, 0)
        else:
            start = take_over(
                recurrence,
                known.due_ms,
                before.recurrence,
                pending_ms=before.pending_ms,
                queued_ms=before.queued_ms,
                handed_out=before.handed_out,
                is_waiting_for_end=before.is_waiting_for_end,
                decided_ms=before.decided_ms,
            )
        slot_ms = start.pending_ms or start.queued_ms or (before.pending_ms if before is not None else 0) or waiting["slot_ms"]
        is_finished = not (start.pending_ms or start.queued_ms)
        changes: Any = {"slot_ms": slot_ms, "attempt": start.handed_out}
        self._await(job_id, waiting, start.wake_ms, runs, start.queued_ms, is_finished=is_finished, **changes)
        self._resume(job_id, known, recurrence)  # where it waits for runs that are over

    def _give_up_slots(self, job_id: str, known: Defined, before: _Before) -> None:
        """Counts the slots that nobody will run any more, because of a new definition."""
        state = self._current(job_id, known)
        trail = state["trail"]
        still_queued = trail["queued_ms"] if trail is not None and known.recurrence is not None else 0
        overlapped = int(0 < before.queued_ms != still_queued)
        self._leave_out(job_id, before.unfit, overlapped)

    def _look(self, job_id: str, known: Defined, recurrence: Recurrence, state: State, size_bytes_max: int) -> int:
        """Hands out runs for the slots whose time has come, as far as they fit, and lets the job wait for the next one.

        Returns:
            How many did not fit.
        """
        trail = state["trail"]
        if trail is None or state["phase"] != Phase.WAITING or not 0 < trail["wake_ms"] <= self.now_ms:
            return 0
        queued_ms, slot_ms, handed_out = trail["queued_ms"], state["slot_ms"], state["attempt"]
        going = self._going(job_id, trail["runs"]) if trail["runs"] else []
        found = look(
            recurrence,
            known.due_ms,
            pending_ms=0 if queued_ms == slot_ms else slot_ms,
            queued_ms=queued_ms,
            going=going,
            handed_out=handed_out,
            now_ms=self.now_ms,
            fits=max(1, (size_bytes_max - self.size_bytes) // (len(known.command) + _sent_bytes(known) + _RUN_BYTES)),
            has_run=lambda slot_ms: self._defined(run_id(job_id, slot_ms)) is not None,
        )
        self.counts.slots_fired += len(found.fire)
        self._leave_out(job_id, found.missed, found.overlapped)
        runs = [*going, *found.fire][-RUNS_KEPT_MAX:]
        slot_ms = found.pending_ms or found.queued_ms or max(slot_ms, *found.fire, 0)
        changes: Any = {"slot_ms": slot_ms, "attempt": handed_out + len(found.fire)}
        self._await(job_id, state, found.wake_ms, runs, found.queued_ms, is_finished=found.is_finished, **changes)
        for fired_ms in found.fire:
            self._hand_out(run_id(job_id, fired_ms), known, fired_ms, jittered_ms(recurrence, job_id, fired_ms))
        for replaced_ms in found.replaced:
            self._replace_run(run_id(job_id, replaced_ms))
        if found.queued_ms or not found.wake_ms:
            self._resume(job_id, known, recurrence)  # where all of these runs are over already
        return found.unfit

    def _leave_out(self, job_id: str, missed: int, overlapped: int) -> None:
        self.counts.slots_missed += missed
        self.counts.slots_overlapped += overlapped
        if missed or overlapped:
            self.left_out[job_id] = self.left_out.get(job_id, 0) + missed + overlapped

    def _await(
        self, job_id: str, state: State, wake_ms: int, runs: list[int], queued_ms: int = 0, *, is_finished: bool = False, **changes: Any
    ) -> None:
        """Writes when a recurring job is to be looked at next."""
        after = follow(state["phase"], Event.FINISHED) if is_finished else Phase.WAITING
        self._move(job_id, state, after, trails.recurring(wake_ms, runs, queued_ms), **changes)

    def _hand_out(self, job_id: str, known: Defined, slot_ms: int, due_ms: int, offset: int = -1) -> None:
        """Defines the run of a slot, or one that the command at `offset` asks for."""
        delivery = known.delivery
        queue = known.queue if delivery is None else QUEUE_DEFAULT
        command = self.splice_schedule(job_id, due_ms, slot_ms, known.retention_ms, queue, known.limits, delivery, known.work)
        self.size_bytes += len(command) + _RUN_BYTES
        run = Defined(1, due_ms, known.queue, known.retention_ms, known.limits, known.work, command, None, offset, delivery)
        self.definitions[job_id] = run
        if due_ms <= self.now_ms:
            self._first(job_id, run)
        else:
            self.timers_set[timer_key(due_ms, job_id)] = None

    def _replace_run(self, job_id: str) -> None:
        """Cancels a run in favour of the next one."""
        known = self._defined(job_id)
        if known is None:
            return
        state = self._current(job_id, known)
        if state["phase"] == Phase.WAITING:
            self._unset_timer(known.due_ms, job_id)
            self.counts.cancelled += 1
            self._move(job_id, state, follow(state["phase"], Event.CANCEL), trails.carried(state["trail"]))
        elif state["phase"] != Phase.CANCELLING:
            self._stop(job_id, known, state)

    def _going(self, job_id: str, runs: list[int]) -> list[int]:
        """Those of a recurring job's slots whose runs are not over."""
        return [slot_ms for slot_ms in runs if self._goes_on(run_id(job_id, slot_ms))]

    def _goes_on(self, job_id: str) -> bool:
        known = self._defined(job_id)
        return known is not None and self._current(job_id, known)["phase"] not in TERMINAL

    def _ended(self, job_id: str) -> None:
        """Tells a recurring job that a run of it is over."""
        run = parse(job_id)
        state = None if run is None else self._state(run.job_id)
        if run is None or state is None or not _waits_for_ends(state):
            return
        known = self._defined(run.job_id)
        if known is not None and known.recurrence is not None:
            self._resume(run.job_id, known, known.recurrence)

    def _resume(self, job_id: str, known: Defined, recurrence: Recurrence) -> None:
        """Lets a recurring job that waits for what goes on look for its next slot, if nothing does any more."""
        state = self._current(job_id, known)
        trail = state["trail"]
        if trail is None or state["phase"] != Phase.WAITING:
            return
        queued_ms, slot_ms = trail["queued_ms"], state["slot_ms"]
        if not queued_ms and trail["wake_ms"]:
            return  # it waits for a time
        if self._going(job_id, trail["runs"]):
            return
        wake_ms = after_end(recurrence, known.due_ms, queued_ms, self.now_ms)
        if recurrence["kind"] == RecurrenceKind.EVERY_AFTER and not queued_ms:
            slot_ms = wake_ms or slot_ms
        self._await(job_id, state, wake_ms, [], queued_ms, is_finished=not wake_ms, slot_ms=slot_ms)

    def _lives_again(self, job_id: str) -> None:
        """Lets a recurring job know that a run of it, which was dead, goes on."""
        run = parse(job_id)
        known = None if run is None else self._defined(run.job_id)
        if run is None or known is None or known.recurrence is None:
            return
        state = self._current(run.job_id, known)
        trail = state["trail"]
        if trail is not None and state["phase"] in (Phase.WAITING, Phase.PAUSED) and run.slot_ms not in trail["runs"]:
            runs = sorted((*trail["runs"], run.slot_ms))[-RUNS_KEPT_MAX:]
            self._move(run.job_id, state, Phase(state["phase"]), trails.recurring(trail["wake_ms"], runs, trail["queued_ms"]))

    # --- attempts ---

    def _silent(self, job_id: str, state: State, event: Event) -> None:
        """What follows where an outcome should have come and did not."""
        after = follow(state["phase"], event)
        if after is Phase.DISPATCHED:
            self._again(job_id, state, event, trails.ending_concluded(state, event, self.now_ms))
        else:
            self.counts.cancelled += 1
            self._move(job_id, state, after, trails.carried(state["trail"]))

    def _again(self, job_id: str, state: State, event: str, ending: Ending) -> None:
        """Hands out another dispatch of the same run, where there may be one.

        A crash is an attempt. What was cut short in good order is none, nor is a dispatch that perhaps nobody ever saw.
        """
        known = self._governing(job_id, state)
        if known is None:
            self._supersede(job_id, state)
            return
        trail, attempt, crashes = state["trail"], state["attempt"], state["crashes"]
        if event != Event.INTERRUPTED:
            trail = trails.ended(trail, ending)
        if event == Event.LOST or event == Event.LEASE_EXPIRED:
            attempt, crashes = attempt + 1, crashes + 1
            if crashes >= trails.crashes_max(known.limits):
                self._die(job_id, known, state, Reason.CRASH_LIMIT, trail, _crash_limit(crashes), crashes=crashes)
                return
        self._attempt(job_id, known, state, attempt, crashes, trail)

    def _attempt(self, job_id: str, known: Defined, state: State, attempt: int, crashes: int, trail: Trail | None) -> None:
        """Dispatches a job that has limits or a past, unless these forbid it."""
        limits, now_ms = known.limits, self.now_ms
        if limits is not None:
            expires_ms, deadline_ms = limits["expires_ms"], trails.deadline_ms(limits, trail)
            if expires_ms and expires_ms <= now_ms:
                self.counts.expired += 1
                self._move(job_id, state, follow(state["phase"], Event.TOO_LATE), trails.carried(trail), crashes=crashes)
                return
            if deadline_ms and deadline_ms <= now_ms:
                self._die(job_id, known, state, Reason.TOTAL_TIMEOUT, trail, None, crashes=crashes)
                return
        if known.delivery is not None:
            self._deliver(job_id, known, known.delivery, state)
            return
        if not self._found(known.queue):
            self._park(job_id, known, state, attempt - 1, crashes, trail)
            return
        first_ms = 0 if trail is None else trail["first_ms"]
        if limits is not None and limits["total_timeout_ms"] and not first_ms:
            first_ms = now_ms
        self._unset_wake(job_id, state)
        trail = trails.begun(trail, first_ms)
        self._dispatch(job_id, known, attempt, crashes, trails.terms(limits, trail, crashes), trail)

    def _dispatch(self, job_id: str, known: Defined, attempt: int, crashes: int, terms: Terms | None, trail: Trail | None) -> None:
        if known.delivery is not None:
            self._deliver(job_id, known, known.delivery, self._current(job_id, known))
            return
        if known.queue not in self.queues and not self._found(known.queue):
            self._park(job_id, known, self._current(job_id, known), attempt - 1, crashes, trail)
            return
        generation, due_ms = known.generation, known.due_ms
        self.token += 1
        self.size_bytes += len(known.work)
        if trail is not None:
            self._weigh(trail)
        self.dispatches.append(Dispatching(known.queue, self.token, job_id, generation, due_ms, attempt, terms, known.work))
        self.states[job_id] = {
            "generation": generation,
            "phase": Phase.DISPATCHED,
            "attempt": attempt,
            "crashes": crashes,
            "token": self.token,
            "slot_ms": due_ms,
            "changed_ms": self.now_ms,
            "error": None,
            "trail": trail,
        }
        self.counts.dispatched += 1

    def _deliver(self, job_id: str, known: Defined, delivery: Delivery, state: State) -> None:
        """Puts a record on its topic, and so ends the job: the transaction that writes the state is the one that has the record.

        Where that cannot be now, nothing is written but a timer: a topic that is missing for a day must not cost a record for each look.
        """
        wait_ms, refused = self.may_deliver(known.queue, job_id, known.generation)
        if wait_ms:
            self.counts.parked += 1
            self.timers_set[timer_key(self._look_again_ms(known, wait_ms), job_id)] = None
            return
        self.token += 1  # also of what dies: a redrive names the death by it
        if refused:
            self._die(job_id, known, state, Reason.REFUSED, None, _refused(known, refused), token=self.token, slot_ms=known.due_ms)
            return
        try:
            payload, headers = self.read_content(known.work)
        except UndecodableRecord as error:
            self._die(job_id, known, state, Reason.DAMAGED, None, _damaged(error), token=self.token, slot_ms=known.due_ms)
            return
        self.queues.add(known.queue)
        self.size_bytes += _sent_bytes(known)
        self.deliveries.append(Delivering(delivery, self.token, job_id, known.due_ms, payload, headers))
        self.counts.delivered += 1
        after = follow(state["phase"], Event.DELIVERED)
        self._move(job_id, state, after, None, attempt=1, token=self.token, slot_ms=known.due_ms)

    def _look_again_ms(self, known: Defined, wait_ms: int) -> int:
        """When a record that cannot be put on its topic is looked at next: all that wait for as long are, at the same moments, so that
        several timers of one job become one."""
        again_ms = (self.now_ms // wait_ms + 1) * wait_ms
        expires_ms = trails.expires_ms(known.limits)
        return min(again_ms, expires_ms) if expires_ms else again_ms

    def _found(self, queue: str) -> bool:
        """Whether the queue exists; asked once a step."""
        if queue in self.queues or self.has_queue(queue):
            self.queues.add(queue)
            return True
        return False

    def _park(self, job_id: str, known: Defined, state: State, attempt: int, crashes: int, trail: Trail | None) -> None:
        """Lets a job wait whose queue is gone, until the queue is made again or the job is cancelled."""
        self.counts.parked += 1
        after = follow(state["phase"], Event.PARKED)
        waiting = trails.carried(trail, wake_ms=self.now_ms + PARKED_MS)
        self._move(job_id, state, after, waiting, attempt=attempt, crashes=crashes)

    def _die(
        self,
        job_id: str,
        known: Defined,
        state: State,
        reason: Reason,
        trail: Trail | None,
        error: Failure | None,
        **changes: Any,
    ) -> None:
        """Gives a run up for good, and keeps it for whoever wants to know, with its payload."""
        after = follow(state["phase"], Event.FAILED if reason == Reason.FAILED else Event.EXHAUSTED)
        self.counts.failed += 1
        self.counts.dead += 1
        if error is None and reason == Reason.TOTAL_TIMEOUT:
            error = _total_timeout(known.limits)
        moved = self._move(job_id, state, after, trails.carried(trail), self._cut(error), **changes)
        self.size_bytes += len(known.command)
        self.deaths.append(Death(job_id, reason, moved, known))

    def _supersede(self, job_id: str, state: State) -> None:
        """Ends a run that would have gone on, had the job not been defined anew: the newest generation wins."""
        self._move(job_id, state, follow(state["phase"], Event.REPLACED), trails.carried(state["trail"]))

    def _replace(self, job_id: str, known: Defined) -> None:
        """Clears the way for the next generation."""
        self.counts.replaced += 1
        self._unset_timer(known.due_ms, job_id)
        self._due.pop(job_id, None)
        state = self._state(job_id)
        if state is not None and state["generation"] == known.generation:
            self._unset_wake(job_id, state)
            if state["phase"] == Phase.FAILED:
                self.closings.append(Closed(job_id, state["token"], Closing.REPLACED))

    def _forget(self, job_id: str, state: State, how: Closing) -> None:
        self.definitions[job_id] = None
        self.states[job_id] = None
        if state["phase"] == Phase.FAILED:
            self.closings.append(Closed(job_id, state["token"], how))

    # --- reading and writing the overlay ---

    def _defined(self, job_id: str) -> Defined | None:
        try:
            return self.definitions[job_id]
        except KeyError:
            return self._recurring.get(job_id) or self.view.defined(job_id)

    def _state(self, job_id: str) -> State | None:
        try:
            return self.states[job_id]
        except KeyError:
            return self.view.state(job_id)

    def _governing(self, job_id: str, state: State) -> Defined | None:
        """The definition that the state belongs to; None where the job was defined anew meanwhile, or forgotten."""
        known = self._defined(job_id)
        return known if known is not None and known.generation == state["generation"] else None

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
            "trail": None,
        }

    def _move(self, job_id: str, state: State, after: Phase, trail: Trail | None, error: Failure | None = None, **changes: Any) -> State:
        """Writes the state that follows, and sets its timer in place of the one before."""
        moved = state.copy()
        moved["phase"] = after
        moved["changed_ms"] = self.now_ms
        moved["error"] = error
        if trail is not None and trail["answers"]:
            trail = trails.unanswered(trail)
        if trail is not state["trail"]:
            moved["trail"] = trail
            self._unset_wake(job_id, state)
            if trail is not None:
                self._weigh(trail)
                if trail["wake_ms"] and after is not Phase.PAUSED:
                    self.timers_set[timer_key(trail["wake_ms"], job_id)] = None
        if changes:
            moved.update(changes)  # type: ignore[typeddict-item]
        self.states[job_id] = moved
        if after in TERMINAL and "@" in job_id:
            self._ended(job_id)
        return moved

    def _weigh(self, trail: Trail) -> None:
        output = trail["output"]
        self.size_bytes += len(trail["endings"]) * _ENDING_BYTES + len(trail["runs"]) * _SLOT_BYTES + (0 if output is None else len(output))

    def _unset_wake(self, job_id: str, state: State) -> None:
        """Takes out the timer of a state. One of an older generation has none, and the newest may have its own at the same moment."""
        trail = state["trail"]
        if trail is not None and trail["wake_ms"] and self._governing(job_id, state) is not None:
            self._unset_timer(trail["wake_ms"], job_id)

    def _unset_timer(self, due_ms: int, job_id: str) -> None:
        key = timer_key(due_ms, job_id)
        self.timers_set.pop(key, None)
        self.timers_unset.append(key)

    def _cut(self, error: Failure | None) -> Failure | None:
        """An error, as kept: a worker cuts what it reports; who else writes outcomes may not."""
        if error is None:
            return None
        kind, message = error["type"][:ERROR_TYPE_CHARS_MAX], error["message"][:ERROR_MESSAGE_CHARS_MAX]
        traceback = error["traceback"][:ERROR_TRACEBACK_CHARS_MAX]
        self.size_bytes += len(message) + len(traceback)
        return {"type": kind, "message": message, "traceback": traceback}


def _waits_for_ends(state: State) -> bool:
    """Whether a recurring job waits for what goes on, and not only for a time: read of most jobs whose run ends, and of no more."""
    trail = state["trail"]
    return trail is not None and state["phase"] == Phase.WAITING and (trail["queued_ms"] > 0 or not trail["wake_ms"])


def _paused(known: Defined, state: State) -> _Before:
    """How a paused job stands that recurs: it decides about no slot before it is resumed."""
    recurrence, trail, slot_ms = known.recurrence, state["trail"], state["slot_ms"]
    assert recurrence is not None
    assert trail is not None
    return _Before(known.due_ms, recurrence, slot_ms, trail["queued_ms"], state["attempt"], not trail["wake_ms"], slot_ms - 1, 0)


def _given_up(paused: _Before, until_ms: int) -> _Before:
    """The same, where slots that passed meanwhile are nobody's any more."""
    pending_ms, passed = paused.pending_ms, 0
    if pending_ms != paused.queued_ms and paused.recurrence["kind"] != RecurrenceKind.EVERY_AFTER:
        found = missed(paused.recurrence, paused.due_ms, pending_ms, until_ms)
        passed = len(found.fire) + found.skipped
    return paused._replace(decided_ms=until_ms, unfit=passed)


def _crash_limit(crashes: int) -> Failure:
    message = (
        f"{crashes} attempts ended because their worker vanished, which is the limit. Does the handler end its process, or use up the "
        "machine's memory? Run it in a process of its own, or allow more crashes"
    )
    return {"type": "duewheel.CrashLimit", "message": message, "traceback": ""}


def _sent_bytes(known: Defined) -> int:
    """What handing out a job adds to a transaction."""
    delivery = known.delivery
    return len(known.work) if delivery is None else len(known.work) + len(delivery["key"] or b"") + _DELIVERY_BYTES


def _refused(known: Defined, why: str) -> Failure:
    message = f"topic {known.queue.removeprefix(LANE)!r} does not take this record: {why}; change the topic and redrive it, or drop it"
    return {"type": "duewheel.DeliveryRefused", "message": message, "traceback": ""}


def _damaged(error: UndecodableRecord) -> Failure:
    return {"type": "duewheel.DeliveryDamaged", "message": str(error), "traceback": ""}


def _total_timeout(limits: Limits | None) -> Failure:
    allowed_ms = 0 if limits is None else limits["total_timeout_ms"]
    message = f"another attempt would have gone beyond the total timeout of {allowed_ms:,} ms after the first dispatch; allow more time"
    return {"type": "duewheel.TotalTimeout", "message": message, "traceback": ""}


def _redriven_too_late(job_id: str, expires_ms: int, now_ms: int) -> RejectedJob:
    message = (
        f"the dead run of job {job_id!r} is not redriven: no attempt of it may start after {expires_ms}, its expires_ms, and now it is "
        f"{now_ms}. Look at it with duewheel dead show; to run it all the same, define the job anew with a later time, or drop it"
    )
    return RejectedJob(errors.Reason.EXPIRED, message)


def _due_at(schedule: Schedule, due_ms: int) -> Schedule:
    result: Schedule = {**schedule, "due_ms": due_ms}
    check_schedule(result)
    return result


def _conflict(job_id: str, state: State) -> RejectedJob:
    message = (
        f"job {job_id!r} is known already: generation {state['generation']}, {state['phase']} since {state['changed_ms']}, and this "
        "schedule asks to be refused then (on_conflict REJECT). Choose another id, or IGNORE to let the known job stand for this one, or "
        "REPLACE"
    )
    return RejectedJob(errors.Reason.CONFLICT, message)
