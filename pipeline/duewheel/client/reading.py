"""What one partition of the state topic says of the jobs that somebody waits for.

The owner of a timer partition writes three kinds of records there: `d` + job id, what a job is; `s` + job id, where it stands; and `p`,
how far it has come, as the last record of each transaction. A producer knows of its command only where it lies in the intake topic. So
these questions are answered here, from records alone and without asking anybody:

    has the command been taken in?       a Progress with an intake_offset beyond it was seen
    which generation did it define?      the one whose Definition carries this very command
    the newest is of an earlier one      the id was known already, and the command was ignored: it stands for the job that is known; or it
                                         was rejected, as it had asked
    the newest is of a later one         somebody redefined the job: what was asked for is replaced
    has that generation ended?           a State of it in a terminal phase

    offset   record                              what follows for the command at intake offset 7 that asks for job a
    100      p   intake_offset 5                 nothing yet
    101      d a generation 1, our command       it is generation 1
    102      p   intake_offset 9
    250      s a generation 1 SUCCEEDED          done

Reading begins near the end, at the time of the command. That is always enough for a command that defined a job. One whose id was known
before may stand for a job that ended long ago: then `judge` says EARLIER, and the partition is read once from its beginning, where the
compacted log still has the newest record of each job.

All that is read is kept for a while, whether somebody waits for it or not, so that handles waited for one after the other do not read
the log again each time. Records are kept as bytes and decoded only for jobs that are waited for: a microsecond or two for all others.
What is kept is bounded; the oldest goes first, and `since_ms` moves on: from then on everything is known.
"""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, StrEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from duewheel.core.errors import DuewheelError, UndecodableRecord
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Definition, Ending, Failure, OnConflict, Phase, Progress, Schedule, State
from duewheel.ports import Record

DEFINITION: Final = b"d"
STATE: Final = b"s"
PROGRESS: Final = b"p"

# Kept of each partition that is read, a few MiB at most with what Python adds: enough for the jobs that a producer has under way.
JOBS_MAX: Final = 20_000
BYTES_MAX: Final = 4_194_304

# Where reading begins, before the time of the command: as much as two machines' clocks differ that are kept in step. Where they differ by
# more, the beginning is found to be too late, and the partition is read from its own.
MARGIN_MS: Final = 2_000

NEVER_MS: Final = 2**63 - 1
_ENTRY_BYTES: Final = 300  # what Python adds


class JobDidNotSucceed(DuewheelError):
    """The job came to an end without a result.

    Attributes:
        result: how it ended.
    """

    def __init__(self, result: JobResult) -> None:
        why = "" if result.error is None else f": {result.error['type']}: {result.error['message']}"
        super().__init__(f"job {result.job_id} ended as {result.phase} at attempt {result.attempts}{why}")
        self.result = result


class JobReplaced(DuewheelError):
    """The job was defined anew before it ended, so what was asked for will never be."""


class JobConflict(DuewheelError):
    """The job's id was known already, and its command asked to be rejected then."""


class JobUnknown(DuewheelError):
    """The job that was asked for is not known, or no longer: its command was refused, or it ended and was forgotten."""


class ChangeRefused(DuewheelError):
    """The job could not be changed, and is as it was.

    Attributes:
        reason: `running`, `over`, or the code of the rule that the job would have broken.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job stands.

    Attributes:
        phase: WAITING, PAUSED, or where it has come to since.
        generation: which definition of the job id.
        due_ms: the time its run stands for; of a recurring job its next slot. In milliseconds since the epoch, as all times.
        wake_ms: when its owner looks at it next, where that is not `due_ms`: the next attempt, the next slot; 0 for none.
        changed_ms: since when it stands so.
    """

    job_id: str
    phase: Phase
    generation: int
    due_ms: int
    wake_ms: int
    changed_ms: int


class Decision(StrEnum):
    """What became of a command that schedules a job."""

    CREATED = "CREATED"
    """Its id was new."""
    REPLACED = "REPLACED"
    """It took the place of the job that its id stood for."""
    IGNORED = "IGNORED"
    """Its id was known, and the job that was known stands for it."""
    REJECTED = "REJECTED"
    """Its id was known, and it asked to be rejected then."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    Attributes:
        job_id: as it was scheduled.
        phase: SUCCEEDED, FAILED (dead; a redrive may still change that), DISCARDED, EXPIRED or CANCELLED.
        attempts: how many were counted; 0 where none was started.
        crashes: how many of them ended because their worker vanished.
        error: what the last attempt died of; None where there was no error.
        endings: how attempts ended that did not succeed, the first one and the latest.
        ended_ms: when it came to its end, in milliseconds since the epoch.
        generation: which definition of the job id.
        token: of the last attempt; 0 where there was none. It names a dead run in `Client.redrive`.
        output: what the handler returned, in JSON; None unless the task has keep_result=True.
    """

    job_id: str
    phase: Phase
    attempts: int
    crashes: int
    error: Failure | None
    endings: Sequence[Ending]
    ended_ms: int
    generation: int
    token: int
    output: bytes | None

    @property
    def succeeded(self) -> bool:
        return self.phase is Phase.SUCCEEDED

    @property
    def value(self) -> Any:
        """What the handler returned, from JSON: tuples are lists. None where its task does not keep results.

        Raises:
            JobDidNotSucceed: it has not returned.
        """
        if self.phase is not Phase.SUCCEEDED:
            raise JobDidNotSucceed(self)
        return None if self.output is None else json.loads(self.output)


Mark: TypeAlias = bytes


def mark(command: bytes) -> Mark:
    """What tells a command from all others, encoded as this version does: with the same mark it is the same command."""
    return blake2b(command, digest_size=16).digest()


class Asks(Enum):
    """What somebody waits to be told of a job."""

    END = "END"
    DECISION = "DECISION"
    STATUS = "STATUS"


class Sought(NamedTuple):
    """The job that somebody waits for.

    Attributes:
        job_id: its id.
        partition: where it lives; -1 where that is not known yet.
        offset: of its command in the intake topic; -1 for whichever definition is the newest.
        created_ms: when the command was made.
        mark: the command's; None where there is none.
        on_conflict: what the command does where its id is known; "" where there is none.
        asks: what: how the job ends, what became of its command, or how it stands after a change.
    """

    job_id: str
    partition: int = -1
    offset: int = -1
    created_ms: int = 0
    mark: Mark | None = None
    on_conflict: str = ""
    asks: Asks = Asks.END


class StateCodec(Protocol):
    """What is needed of a codec. Each that decodes raises UndecodableRecord."""

    def encode_schedule(self, record: Schedule) -> bytes: ...
    def decode_definition(self, value: bytes | None) -> Definition: ...
    def decode_state(self, value: bytes | None) -> State: ...
    def decode_progress(self, value: bytes | None) -> Progress: ...


class Waiter:
    """Somebody who waits.

    Attributes:
        sought: for which job.
        key: its id, as in keys of records.
        future: what they wait for.
        since_ms: everything that was said of the job since then has been read.
        saw_all: whether reading began for them, so that they saw each record that may be an answer.
        is_queued: whether their turn comes when the command is taken in.
    """

    __slots__ = ("future", "is_queued", "key", "saw_all", "since_ms", "sought")

    def __init__(self, sought: Sought) -> None:
        self.sought = sought
        self.key = sought.job_id.encode()
        self.future: Future[JobResult | Decision | JobStatus] = Future()
        self.since_ms = NEVER_MS
        self.saw_all = self.is_queued = False

    @property
    def first_ms(self) -> int:
        """Where reading for them begins, unless that turns out to be too late."""
        return max(0, self.sought.created_ms - MARGIN_MS) if self.sought.offset >= 0 else 0


class Early(NamedTuple):
    """The answer lies further back: read from records of this time on."""

    since_ms: int


Answer: TypeAlias = JobResult | Decision | JobStatus | DuewheelError
Judgement: TypeAlias = Answer | Early | None
Done: TypeAlias = list[tuple[Waiter, Answer]]


class _Defined(NamedTuple):
    """What is needed of a definition.

    Attributes:
        offset: of the command it came from, also where it was updated since.
        mark: of what it is now.
        replaced: whether that command took the place of a job.
    """

    generation: int
    offset: int
    mark: Mark
    replaced: bool

    def is_of(self, sought: Sought) -> bool:
        """Whether it came from the command that is sought. The same command may lie in the intake more than once."""
        return sought.mark is not None and (0 <= sought.offset == self.offset or self.mark == sought.mark)


class _Seen:
    """The newest records of a job.

    Attributes:
        definition: encoded; None where none was seen, or it was decoded.
        defined: what it says, decoded.
        state: encoded.
        gone: whether the job was forgotten.
        written_ms: when the newest of its records was written.
        size: what it counts against the limit of bytes.
    """

    __slots__ = ("defined", "definition", "gone", "size", "state", "written_ms")

    def __init__(self) -> None:
        self.definition: bytes | None = None
        self.defined: _Defined | None = None
        self.state: bytes | None = None
        self.gone = False
        self.written_ms = self.size = 0


class Reading:
    """One partition, as far as it was read.

    Attributes:
        partition: its number.
        since_ms: everything that was written since then, up to what was read last, is known.
        next_offset: where reading goes on; -1 before it began.
        wanted_ms: reading should begin anew with records of this time; None where it may go on.
        end: where the log ended when reading began.
        reached: everything below this offset has been read.
        idle_since_ms: when the last waiter left, on the steady clock.
    """

    def __init__(self, partition: int, codec: StateCodec) -> None:
        self.partition = partition
        self._codec = codec
        self.since_ms = self.reached = self.next_offset = self.end = -1
        self.wanted_ms: int | None = None
        self.idle_since_ms = 0
        self.taken = -1
        self._jobs: OrderedDict[bytes, _Seen] = OrderedDict()
        self._bytes = 0
        self._waiting: dict[bytes, list[Waiter]] = {}
        self._untaken: list[tuple[int, int, Waiter]] = []  # a heap; those whose command was not taken in when they were judged last
        self._pushed = 0

    @property
    def waiters(self) -> list[Waiter]:
        return [waiter for waiters in self._waiting.values() for waiter in waiters]

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    # --- who waits ---

    def add(self, waiter: Waiter) -> Judgement:
        """Takes in somebody who waits, unless the answer is there."""
        if self.next_offset < 0:
            judgement: Judgement = Early(waiter.first_ms)
        else:
            waiter.since_ms, waiter.saw_all = self.since_ms, self.taken <= waiter.sought.offset
            judgement = self._judge(waiter)
        if judgement is None or isinstance(judgement, Early):
            self._waiting.setdefault(waiter.key, []).append(waiter)
            self._put_off(waiter, judgement)
        return judgement

    def drop(self, waiter: Waiter) -> None:
        """Somebody waits no longer."""
        waiters = self._waiting.get(waiter.key)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[waiter.key]
        if not self._waiting:
            self._untaken.clear()  # what left by itself lies there until its turn comes

    # --- reading ---

    def begin(self, since_ms: int, offset: int, end: int) -> None:
        """Everything is to be read anew, from this offset on."""
        self.since_ms, self.next_offset, self.end = since_ms, offset, end
        self.reached = self.taken = -1
        if self.wanted_ms is not None and self.wanted_ms >= since_ms:  # somebody may want more meanwhile
            self.wanted_ms = None
        self._jobs.clear()
        self._bytes = 0
        self._untaken.clear()
        for waiter in self.waiters:
            waiter.since_ms, waiter.is_queued, waiter.saw_all = since_ms, False, since_ms <= waiter.first_ms
            self._put_off(waiter, None)

    def fold(self, records: Sequence[Record]) -> Done:
        """Takes in the next records, and gives those who need wait no longer."""
        done: Done = []
        waiting = self._waiting
        for record in records:
            offset, key = record.offset(), record.key()
            if offset < self.next_offset or not key:
                continue
            self.next_offset = offset + 1
            if key == PROGRESS:
                self._progress(record.value(), done)
                continue
            job = self._put(key, record)
            if job in waiting:
                for waiter in waiting[job][:]:
                    self._look(waiter, done)
        self._evict()
        return done

    def reach(self, offset: int) -> Done:
        """Everything below `offset` has been read, whether it could be seen or not."""
        before, self.reached = self.reached, max(offset, self.reached)
        done: Done = []
        if before < self.end <= self.reached:
            for waiter in self.waiters:
                self._look(waiter, done)
        return done

    def _progress(self, value: bytes | None, done: Done) -> None:
        try:
            self.taken = self._codec.decode_progress(value)["intake_offset"]
        except UndecodableRecord:
            return  # the next one will do
        untaken = self._untaken
        while untaken and untaken[0][0] < self.taken:
            waiter = heapq.heappop(untaken)[2]
            waiter.is_queued = False
            if waiter in self._waiting.get(waiter.key, ()):
                self._look(waiter, done)

    def _put(self, key: bytes, record: Record) -> bytes:
        kind, job, value = key[:1], key[1:], record.value()
        seen = self._jobs.get(job)
        if seen is None:
            seen = self._jobs[job] = _Seen()
        else:
            self._jobs.move_to_end(job)
        if kind == DEFINITION:
            seen.definition, seen.defined, seen.gone = value, None, value is None
        elif kind == STATE:
            seen.state = value
        seen.written_ms = record.timestamp()[1]
        size = _ENTRY_BYTES + len(job) + len(seen.definition or b"") + len(seen.state or b"")
        self._bytes += size - seen.size
        seen.size = size
        return job

    def _evict(self) -> None:
        """Forgets what was seen longest ago. What is waited for stays."""
        left = len(self._jobs)
        while left and (len(self._jobs) > JOBS_MAX or self._bytes > BYTES_MAX):
            left -= 1
            job, seen = next(iter(self._jobs.items()))
            if job in self._waiting:
                self._jobs.move_to_end(job)
                continue
            del self._jobs[job]
            self._bytes -= seen.size
            self.since_ms = max(self.since_ms, seen.written_ms + 1)

    # --- judging ---

    def _look(self, waiter: Waiter, done: Done) -> None:
        judgement = self._judge(waiter)
        if judgement is None or isinstance(judgement, Early):
            self._put_off(waiter, judgement)
        else:
            self.drop(waiter)
            done.append((waiter, judgement))

    def _put_off(self, waiter: Waiter, judgement: Early | None) -> None:
        if judgement is not None:
            self.wanted_ms = judgement.since_ms if self.wanted_ms is None else min(self.wanted_ms, judgement.since_ms)
        elif waiter.sought.offset >= self.taken and not waiter.is_queued:
            waiter.is_queued = True
            self._pushed += 1  # of equal offsets, the one that came first; waiters cannot be compared
            heapq.heappush(self._untaken, (waiter.sought.offset, self._pushed, waiter))

    def _judge(self, waiter: Waiter) -> Judgement:
        """What can be said to somebody who waits, by the newest records of the job."""
        sought, seen = waiter.sought, self._jobs.get(waiter.key)
        try:
            defined = None if seen is None else self._defined(seen)
            if seen is not None and defined is not None and defined.is_of(sought):
                if sought.asks is Asks.DECISION:
                    return Decision.REPLACED if defined.replaced else Decision.CREATED
                return self._ended(sought, defined.generation, seen.state)
            if not self._is_taken(sought):
                return self._further_back(waiter) if self._says_nothing(sought) else None
            if sought.asks is Asks.STATUS:
                return self._status(waiter, seen)
            if seen is None or defined is None:
                return self._unknown(waiter, seen)
            if 0 <= sought.offset < defined.offset:
                return _overtaken(sought, defined)
            if sought.offset >= 0 and (sought.asks is Asks.DECISION or sought.on_conflict != OnConflict.IGNORE):
                return _met(sought, defined)
            return self._ended(sought, defined.generation, seen.state)
        except UndecodableRecord as error:
            return error

    def _is_taken(self, sought: Sought) -> bool:
        """Whether the owner has taken in the command; where there is none, whether all was read that there was."""
        return self.taken > sought.offset if sought.offset >= 0 else 0 <= self.end <= self.reached

    def _says_nothing(self, sought: Sought) -> bool:
        """Whether the log was read to its end without a word of how far its owner has come: reading began too late."""
        return sought.offset >= 0 and self.taken < 0 and 0 <= self.end <= self.reached

    def _status(self, waiter: Waiter, seen: _Seen | None) -> Judgement:
        """How a job stands after a change was taken in: its owner writes its state anew for that, or takes it away. Where compaction has
        removed that record, how it stands now.
        """
        job_id = waiter.sought.job_id
        if seen is None:
            return self._further_back(waiter) or JobUnknown(f"nothing is known of job {job_id}")
        if seen.state is None:
            return (
                Early(waiter.first_ms)
                if not waiter.saw_all
                else JobUnknown(f"job {job_id} is not known: it never was, or it had ended and was forgotten")
            )
        state = self._codec.decode_state(seen.state)
        trail = state["trail"]
        answers = [] if trail is None else [a for a in trail["answers"] if a["offset"] == waiter.sought.offset]
        if not answers and not waiter.saw_all:
            return Early(waiter.first_ms)  # it was answered before, and more has become of the job since
        if answers and answers[0]["reason"]:
            reason, message = answers[0]["reason"], answers[0]["message"]
            return JobUnknown(message) if reason == "unknown" else ChangeRefused(reason, message)
        wake_ms = 0 if trail is None else trail["wake_ms"]
        return JobStatus(job_id, Phase(state["phase"]), state["generation"], state["slot_ms"], wake_ms, state["changed_ms"])

    def _unknown(self, waiter: Waiter, seen: _Seen | None) -> Judgement:
        """What to say where no definition was seen, and all that was said of the job lies before or was never said."""
        job_id = waiter.sought.job_id
        if seen is not None and seen.gone:
            return JobUnknown(f"job {job_id} was forgotten: it had ended, and its retention was over, or somebody dropped it")
        if waiter.sought.offset < 0 and waiter.since_ms == 0:
            return None  # it may have been scheduled a moment ago
        return self._further_back(waiter) or JobUnknown(
            f"nothing is known of job {job_id}: its command was refused, and a dead letter says why (duewheel tail), or it ended long ago "
            "and was forgotten after its retention"
        )

    def _further_back(self, waiter: Waiter) -> Early | None:
        if waiter.since_ms > waiter.first_ms:
            return Early(waiter.first_ms)
        return Early(0) if waiter.since_ms > 0 else None

    def _ended(self, sought: Sought, generation: int, value: bytes | None) -> JobResult | None:
        """How the job ended, if that is what its state says."""
        if value is None:
            return None
        state = self._codec.decode_state(value)
        if state["generation"] != generation or state["phase"] not in TERMINAL:
            return None
        trail = state["trail"]
        return JobResult(
            job_id=sought.job_id,
            phase=Phase(state["phase"]),
            attempts=state["attempt"],
            crashes=state["crashes"],
            error=state["error"],
            endings=() if trail is None else tuple(trail["endings"]),
            ended_ms=state["changed_ms"],
            generation=generation,
            token=state["token"],
            output=None if trail is None else trail["output"],
        )

    def _defined(self, seen: _Seen) -> _Defined | None:
        if seen.definition is not None:
            definition = self._codec.decode_definition(seen.definition)
            schedule, generation = definition["schedule"], definition["generation"]
            replaced = generation > 1 and schedule["on_conflict"] == OnConflict.REPLACE
            seen.defined = _Defined(generation, definition["offset"], mark(self._codec.encode_schedule(schedule)), replaced)
            seen.definition = None
        return seen.defined

    def describe(self, waiter: Waiter) -> str:
        """What is known of a job that has not ended, as part of a sentence."""
        seen = self._jobs.get(waiter.key)
        state = None if seen is None or seen.state is None else self._codec.decode_state(seen.state)
        if seen is not None and self._defined(seen) is not None:
            return "it waits for its time" if state is None else f"it is {state['phase']}, attempt {state['attempt']}"
        if not self._is_taken(waiter.sought):
            return "its command has not been taken in; does a timer processor run?"
        return "nothing is known of it"


def _overtaken(sought: Sought, defined: _Defined) -> Answer:
    """What became of a command where a later one defined the job."""
    job_id = sought.job_id
    if defined.replaced:
        return JobReplaced(f"job {job_id} was defined anew, as generation {defined.generation}, since it was asked for")
    return JobUnknown(
        f"the job {job_id} that was asked for is not known: its command was refused, and a dead letter says why (duewheel tail), or it "
        "ended and was forgotten. A later command made another job under its id"
    )


def _met(sought: Sought, defined: _Defined) -> Answer:
    """What became of a command that met an older definition of its id, which still holds."""
    job_id = sought.job_id
    if sought.on_conflict == OnConflict.REPLACE and defined.offset < 0:
        # Written by 0.1.0, which did not say by which command: it may as well be a later one.
        return JobReplaced(f"job {job_id} was defined anew, as generation {defined.generation}, or the command that was to do it refused")
    if sought.on_conflict == OnConflict.REPLACE:
        return JobUnknown(
            f"the command that was to define job {job_id} anew was refused, and a dead letter says why (duewheel tail); the job is what it "
            "was before"
        )
    if sought.on_conflict == OnConflict.IGNORE:
        return Decision.IGNORED
    if sought.asks is Asks.DECISION:
        return Decision.REJECTED
    return JobConflict(
        f"job {job_id} was known already, so this one was rejected, as it had asked; client.handle({job_id!r}) waits for the known one"
    )
