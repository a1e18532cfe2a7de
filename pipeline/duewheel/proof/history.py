"""A history: what was seen to happen while jobs were run, as a list of small facts.

Whoever runs the system writes one down: the simulator, which sees everything, or a test on real processes, which puts together what its
producers were told, what it reads from the topics (committed records only), what handlers wrote down, and what it did to the processes.
The checker reads nothing else, and believes no counter of the system itself. One job that went well:

    EnqueueInvoked(at_ms=10, call="p1-7", job_id="a", due_ms=100)            a producer asks
    Acknowledged(at_ms=14, call="p1-7", partition=3, offset=41)              and is told: it is stored
    Defined(at_ms=16, partition=3, offset=90, job_id="a", generation=1, due_ms=100)
    Dispatched(at_ms=102, topic="d", partition=0, offset=5, timer_partition=3, job_id="a", generation=1, token=77, attempt=1, slot_ms=100)
    Started(at_ms=105, job_id="a", token=77, topic="d", partition=0, offset=5)
    Effect(at_ms=106, job_id="a", token=77, accepted=True)                   something outside, fenced, was changed
    OutcomeRecorded(at_ms=107, partition=3, offset=12, job_id="a", token=77, result="SUCCEEDED")
    StateWritten(at_ms=110, partition=3, offset=91, job_id="a", generation=1, phase="SUCCEEDED", token=77, slot_ms=100)

Times are of one clock, the history's: whoever plays with the clocks of processes writes down the true time. The order of events counts
only among those of one witness, and is the order in which it saw them: effects at one sink, commits of one group for one partition.
All else is told by times, offsets and tokens; so what several witnesses wrote may simply be put one after the other.

What a recorder cannot see it leaves out: fields with a default may be left at it, and the checker then knows less. What it must not leave
out is said at each event.

As a file, a history is JSON lines, one event a line, of about 150 bytes:

    {"event":"Acknowledged","at_ms":14,"call":"p1-7","partition":3,"offset":41}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, get_type_hints

from duewheel.core.errors import BadConfiguration, RejectedJob
from duewheel.core.limits import DUE_MS_MIN
from duewheel.core.model import Limits, Recurrence
from duewheel.core.recurrence_rules import check_recurrence

# --- what producers ask for. Every call is written down before it is made, and has a name of its own in the whole history


class EnqueueInvoked(NamedTuple):
    """Somebody asks for a job.

    Attributes:
        created_ms: as in the command. Tells commands for the same job and time apart; so it must be given where a job id is used twice.
        replaces: whether it is to redefine a job that is known.
        recurrence: where it is to run again and again. Its runs are told as jobs of their own, that nobody asks for.
        rejects: whether it is to be refused, which leaves a dead letter, where the job is known.
        delivers: whether it is a record to put on a topic, rather than work.
    """

    at_ms: int
    call: str
    job_id: str
    due_ms: int
    created_ms: int = 0
    limits: Limits | None = None
    replaces: bool = False
    recurrence: Recurrence | None = None
    rejects: bool = False
    delivers: bool = False


class CancelInvoked(NamedTuple):
    """Somebody asks for a job to be run no more; `reach` of `core.model.Reach`."""

    at_ms: int
    call: str
    job_id: str
    reach: str = "DEFAULT"


class ChangeInvoked(NamedTuple):
    """Somebody asks for a job to be changed that waits.

    Attributes:
        action: of `core.model.Action`.
        created_ms: as in the command; of RUN_NOW for a job that recurs it names the run.
        due_ms: the new time that an UPDATE gives; 0 for none.
        limits: those that an UPDATE gives.
    """

    at_ms: int
    call: str
    job_id: str
    action: str
    created_ms: int = 0
    due_ms: int = 0
    limits: Limits | None = None


class RedriveInvoked(NamedTuple):
    """Somebody asks for a dead run to be run again; `token` is of the attempt it died with."""

    at_ms: int
    call: str
    job_id: str
    token: int


class DropInvoked(NamedTuple):
    """Somebody asks for a dead run to be forgotten."""

    at_ms: int
    call: str
    job_id: str
    token: int


class Acknowledged(NamedTuple):
    """The call was answered: its record is stored, there. Any kind of call."""

    at_ms: int
    call: str
    partition: int
    offset: int


class Unknown(NamedTuple):
    """Nobody knows what became of the call: its record may be stored, or become so. So it is with a call that has no answer at all."""

    at_ms: int
    call: str


class Refused(NamedTuple):
    """The call failed for certain: its record is not stored, and never will be."""

    at_ms: int
    call: str


# --- what owners of timer partitions write. The state topic as it was while the history went on, not as compaction left it


class Defined(NamedTuple):
    """A definition record on the state topic. All of them must be told: what was not defined counts as lost."""

    at_ms: int
    partition: int
    offset: int
    job_id: str
    generation: int
    due_ms: int
    created_ms: int = 0
    recurrence: Recurrence | None = None
    delivers: bool = False


class StateWritten(NamedTuple):
    """A state record on the state topic. Those of terminal phases and of CANCELLING must be told, the others may be.

    Attributes:
        phase: of `core.model.Phase`.
        wake_ms: of its trail, 0 where it has none: when the next attempt may begin, or the lease ends.
        changed_ms: as in the record, by its owner's clock.
        queued_ms: of a recurring job, the slot that waits for what goes on; 0 for none.
        left_out: for how many slots of a recurring job its owner decided, with this record, that they are not run; -1 where nobody knows.
    """

    at_ms: int
    partition: int
    offset: int
    job_id: str
    generation: int
    phase: str
    token: int
    slot_ms: int
    attempt: int = 0
    crashes: int = 0
    wake_ms: int = 0
    changed_ms: int = 0
    queued_ms: int = 0
    left_out: int = -1


class Answered(NamedTuple):
    """A state record says what became of a command that was to change its job. All must be told where `ChangeInvoked` is.

    Attributes:
        partition, offset: of the state record.
        command: the command's offset in the same partition of the intake; `action`: what it asks for, as it lies there.
        reason: why it changed nothing; empty where it was obeyed.
    """

    at_ms: int
    partition: int
    offset: int
    job_id: str
    command: int
    action: str
    reason: str = ""


class Forgotten(NamedTuple):
    """A job's state was deleted from the state topic: its retention is over, or it was dropped. Its id may be used anew."""

    at_ms: int
    partition: int
    offset: int
    job_id: str


class Dispatched(NamedTuple):
    """A dispatch record. All of them must be told."""

    at_ms: int
    topic: str
    partition: int
    offset: int
    timer_partition: int
    job_id: str
    generation: int
    token: int
    attempt: int
    slot_ms: int
    crashes: int = 0


class Delivered(NamedTuple):
    """A record that a job put on a topic of others. All that were committed must be told; `slot_ms` and `token` are in its headers."""

    at_ms: int
    topic: str
    partition: int
    offset: int
    job_id: str
    slot_ms: int
    token: int


class RunDied(NamedTuple):
    """A dead run on the dead-letter topic; `reason` as in `core.step.Reason`."""

    at_ms: int
    job_id: str
    token: int
    reason: str
    crashes: int = 0


class DeathClosed(NamedTuple):
    """What became of a dead run, on the dead-letter topic; `how` of `core.model.Closing`. All REDRIVEN must be told."""

    at_ms: int
    job_id: str
    token: int
    how: str


class DeadLettered(NamedTuple):
    """A record could not be read or was refused; topic, partition and offset say which one."""

    at_ms: int
    topic: str
    partition: int
    offset: int
    reason: str
    job_id: str | None = None


class BadRecordWritten(NamedTuple):
    """The test wrote a record, there, that nobody can read or that breaks a rule. All must be told."""

    at_ms: int
    topic: str
    partition: int
    offset: int


# --- what workers and handlers do


class Started(NamedTuple):
    """A handler began, as it says itself. Where it does not know from which record, topic and numbers are left out."""

    at_ms: int
    job_id: str
    token: int
    topic: str = ""
    partition: int = -1
    offset: int = -1


class Effect(NamedTuple):
    """A handler tried to change something outside, under its fencing token; whoever keeps that, the sink, took it or refused it.

    A sink remembers the highest token of each job and refuses lower ones. It is no part of the system: a table in a database, or a dict
    of the test's. Where there are several, `sink` tells them apart.
    """

    at_ms: int
    job_id: str
    token: int
    accepted: bool
    sink: str = ""


class OutcomeRecorded(NamedTuple):
    """A record on the outcomes topic. All must be told but for STARTED and HEARTBEAT, which may be.

    Attributes:
        at_ms: when the record was written.
        result: of `core.model.Result`.
        lease_ms: of STARTED and HEARTBEAT: for how long the owner has to wait for the next word. Leave it out where owners' clocks differ.
    """

    at_ms: int
    partition: int
    offset: int
    job_id: str
    token: int
    result: str
    lease_ms: int = 0


# --- what the cluster says


class Committed(NamedTuple):
    """A group's committed offset, as it was seen at this time or as the broker took it."""

    at_ms: int
    group: str
    topic: str
    partition: int
    offset: int


class OffsetsReset(NamedTuple):
    """The test set a group's offset by hand, as people do."""

    at_ms: int
    group: str
    topic: str
    partition: int
    offset: int


class Rebalanced(NamedTuple):
    """A group formed a new generation."""

    at_ms: int
    group: str
    generation: int


class TransactionFailed(NamedTuple):
    """A transaction came to no good end: aborted, fenced, or of unknown outcome.

    Attributes:
        owner: the name its producer goes by.
        how: "aborted", "fenced" or "unknown".
        in_rebalance: a rebalance caught it: its group formed a new generation between its begin and its end.
    """

    at_ms: int
    owner: str
    how: str
    in_rebalance: bool = False


class LogEnd(NamedTuple):
    """How far a log goes: for readers of what is committed, and for anybody."""

    at_ms: int
    topic: str
    partition: int
    last_stable: int
    end: int


class Backlog(NamedTuple):
    """How many committed records, markers not counted, a group has not passed yet in a partition."""

    at_ms: int
    group: str
    topic: str
    partition: int
    records: int


class Snapshot(NamedTuple):
    """The jobs of a timer partition, as one witness knows them at a moment when nothing moves.

    Attributes:
        moment: names the moment; snapshots of one moment and partition must agree.
        witness: "store" (RocksDB), "fold" (of the changelog), "rebuild" (an empty store, filled by the engine), "model" (of intake and
            outcomes).
        jobs: what is known of each job, by job id: anything that can be compared and that JSON can tell.
        partial: of the fields of each job, this witness tells a few only; what it does not tell is not compared.
    """

    at_ms: int
    moment: str
    partition: int
    witness: str
    jobs: Mapping[str, Any]
    partial: bool = False


# --- what is done to the system


class FaultBegan(NamedTuple):
    """Something was broken on purpose.

    Attributes:
        fault: a name of its own in the history.
        kind: as the plan calls it: "kill", "pause", "partition", "clock step", "store damaged" …
        target: the process, the broker, the folder.
    """

    at_ms: int
    fault: str
    kind: str
    target: str


class FaultEnded(NamedTuple):
    """It is whole again. A kill ends at once, when the process is certainly dead: from then on the others are to take over.

    One without an end lasts until `Healed`.
    """

    at_ms: int
    fault: str


class Healed(NamedTuple):
    """Every fault is over, and there will be none."""

    at_ms: int


class Stopped(NamedTuple):
    """Nothing was seen from here on. Jobs due later than that are not expected to have run. Without it, everything is."""

    at_ms: int


Event: TypeAlias = (
    EnqueueInvoked
    | CancelInvoked
    | ChangeInvoked
    | RedriveInvoked
    | DropInvoked
    | Acknowledged
    | Unknown
    | Refused
    | Defined
    | StateWritten
    | Answered
    | Forgotten
    | Dispatched
    | Delivered
    | RunDied
    | DeathClosed
    | DeadLettered
    | BadRecordWritten
    | Started
    | Effect
    | OutcomeRecorded
    | Committed
    | OffsetsReset
    | Rebalanced
    | TransactionFailed
    | LogEnd
    | Backlog
    | Snapshot
    | FaultBegan
    | FaultEnded
    | Healed
    | Stopped
)

EVENTS: Final[dict[str, Any]] = {kind.__name__: kind for kind in Event.__args__}
"""Every kind of event, by its name."""

# Offsets, tokens and times have 64 bits; `faults.FOREVER_MS` is one more. What is larger could not even be added and printed.
INTEGER_MAX: Final = 2**63
# What a snapshot knows of a job is compared and written again, which takes a level of Python's stack for each of these.
SNAPSHOT_LEVELS_MAX: Final = 50
_SHOWN_MAX: Final = 200


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:_SHOWN_MAX]} is beyond what a number can be")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that equals itself, or no finite one")


_JSON: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def _is_integer(value: Any) -> bool:
    return type(value) is int and -INTEGER_MAX <= value <= INTEGER_MAX


def _is_text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def _is_limits(value: Any) -> bool:
    return type(value) is dict and value.keys() == Limits.__annotations__.keys() and all(map(_is_integer, value.values()))


def _is_recurrence(value: Any) -> bool:
    """Whether it keeps the rules, as those who judge by it rely on."""
    try:
        check_recurrence(value, DUE_MS_MIN)
    except RejectedJob:
        return False
    return True


def _is_tellable(value: Any, levels: int = SNAPSHOT_LEVELS_MAX) -> bool:
    """Whether something that JSON can tell is not too deep, and has no lone surrogates, which nobody can print."""
    if type(value) is dict:
        return levels > 0 and all(_is_text(name) and _is_tellable(part, levels - 1) for name, part in value.items())
    if type(value) is list:
        return levels > 0 and all(_is_tellable(part, levels - 1) for part in value)
    return type(value) is not str or _is_text(value)


_TYPES: Final[dict[Any, tuple[Callable[[Any], bool], str]]] = {
    int: (_is_integer, f"a whole number, -{INTEGER_MAX} to {INTEGER_MAX}"),
    bool: (lambda value: type(value) is bool, "true or false"),
    str: (_is_text, "a text without lone surrogates"),
    str | None: (lambda value: value is None or _is_text(value), "a text without lone surrogates, or null"),
    Limits | None: (lambda value: value is None or _is_limits(value), f"null, or {', '.join(Limits.__annotations__)} and nothing else"),
    Recurrence | None: (_is_recurrence, "null, or a recurrence that keeps the rules (core/recurrence_rules.py)"),
    Mapping[str, Any]: (
        lambda value: type(value) is dict and _is_tellable(value),
        f"an object of at most {SNAPSHOT_LEVELS_MAX} levels, without lone surrogates in texts",
    ),
}

# Of each kind of event what its fields must be, in their order.
_WANTED: Final = {name: tuple(_TYPES[hint] for hint in get_type_hints(kind).values()) for name, kind in EVENTS.items()}


def to_line(event: Event) -> str:
    """One event as a line of JSON, without the newline. Fields at their default are left out."""
    kind = type(event)
    fields: dict[str, Any] = {"event": kind.__name__}
    defaults = kind._field_defaults
    fields.update((name, value) for name, value in event._asdict().items() if name not in defaults or value != defaults[name])
    return json.dumps(fields, separators=(",", ":"))


def from_line(line: str) -> Event:
    """The event that a line tells, with each field of the type that is declared for it.

    Raises:
        BadConfiguration: it tells none, whatever it is.
    """
    try:
        fields = _JSON.decode(line)
        kind = EVENTS[fields.pop("event")]
        event: Event = kind(**fields)
        for name, value, (is_fit, wanted) in zip(kind._fields, event, _WANTED[kind.__name__], strict=True):
            if not is_fit(value):
                raise ValueError(f"{name} must be {wanted}, and is {value!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = str(error)[:_SHOWN_MAX].encode(errors="backslashreplace").decode()  # it may name a field, which may be anything
        raise BadConfiguration(
            f"no event of a history: {line[:_SHOWN_MAX]!r} ({why}); duewheel/proof/history.py lists what can be told"
        ) from error
    return event


def to_lines(events: Iterable[Event]) -> Iterator[str]:
    """A history as lines of JSON, each with its newline, for `file.writelines`."""
    for event in events:
        yield to_line(event) + "\n"


def from_lines(lines: Iterable[str]) -> Iterator[Event]:
    """The history that a file tells; for an open file or any lines. Blank lines are passed over.

    Raises:
        BadConfiguration: a line tells no event.
    """
    for line in lines:
        if not line.isspace():
            yield from_line(line)
