"""Bytes to records, fast and strict.

`strict` is the rule: it decodes, encodes again and compares, which takes 7 to 12 µs. The fast paths here read records of ordinary shape in
about 1.5 µs, and only bytes that a writer would have written: numbers without padding, headers in one block with each name once,
nothing left over. Whatever they stumble over, they say nothing about it; the strict way reads the same bytes and decides. So a fast
path can be slow for a rare record (a due time after 2039, a job id of 64 bytes), but never wrong in another way than `strict`. That
they agree wherever a fast path answers is a property test.

    Schedule:  header | job_id | due_ms created_ms | on_conflict … content_type | payload | headers policy
                        string   six bytes each      the same for thousands     string    usually none

The two times are taken by one `struct` call and six table look-ups. What follows them is the same for all jobs of one kind, so it is
recognized whole: its first bytes lead to what followed them last time, and one comparison says whether it is the same again. A policy
is recognized by all its bytes. So records share the dicts of their limits and policies: nobody may write into one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from typing import Final, Literal, NamedTuple, cast

from duewheel.adapters.avro.encode import (
    CONFLICTS,
    KINDS,
    MISFIRES,
    OVERLAPS,
    PHASES,
    REACHES,
    REMEMBERED_BYTES_MAX,
    REMEMBERED_MAX,
    RESULTS,
    encode_schedule,
    encode_work,
)
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.strict import Reader
from duewheel.adapters.avro.varints import FIRST, SECOND, THIRD, long_at
from duewheel.core.errors import Reason, UndecodableRecord
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import (
    Answer,
    Cancel,
    Change,
    DeadLetter,
    DeadRun,
    DeadRunClosed,
    Definition,
    Delivery,
    Dispatch,
    Drop,
    Ending,
    Failure,
    Limits,
    Outcome,
    Policy,
    Progress,
    Recurrence,
    Redrive,
    Schedule,
    State,
    Stop,
    Terms,
    Trail,
)
from duewheel.core.step import Defined, lane

_SCHEDULE: Final = CURRENT["Schedule"].header
_CANCEL: Final = CURRENT["Cancel"].header
_REDRIVE: Final = CURRENT["Redrive"].header
_DROP: Final = CURRENT["Drop"].header
_DEFINITION: Final = CURRENT["Definition"].header
_DISPATCH: Final = CURRENT["Dispatch"].header
_STATE: Final = CURRENT["State"].header
_OUTCOME: Final = CURRENT["Outcome"].header
_STOP: Final = CURRENT["Stop"].header

# What a Definition or a Dispatch adds to a Schedule: a few numbers and the job id.
_EMBEDDING_BYTES_MAX: Final = 1_024

_CONFLICTS: Final = list(CONFLICTS)
_REACHES: Final = list(REACHES)
_KINDS: Final = list(KINDS)
_MISFIRES: Final = list(MISFIRES)
_OVERLAPS: Final = list(OVERLAPS)
_PHASES: Final = list(PHASES)
_RESULTS: Final = list(RESULTS)

# What stumbling looks like: None from a table, the end of the bytes, a number or string that is not written so.
_UNUSUAL: Final = (TypeError, IndexError, ValueError, struct.error)
# A bit that is set where a length or small number takes more than one byte, or is negative.
_NOT_SMALL: Final = 0x81
# The branch of a union that is not null.
_SOME: Final = 2

_two_times = struct.Struct("<6H").unpack_from
_time = struct.Struct("<3H").unpack_from
_state_tail = struct.Struct("<6HB").unpack_from
_double = struct.Struct("<d").unpack_from
_dispatch_numbers = struct.Struct("<3HB").unpack_from
_outcome_numbers = struct.Struct("<3HBB6HB").unpack_from


# Of a list, read here; the strict way looks whether longer ones are taken at all. Those that keep the rules have 64 at most.
_ITEMS_MAX: Final = 1_000

# How most outcomes end: no error, nothing to wait for, no lease, no output.
_NOTHING_TO_ADD: Final = bytes(4)


class _Middle(NamedTuple):
    """What lies between the times of a Schedule and its payload."""

    encoded: bytes
    on_conflict: str
    retention_ms: int
    queue: str
    limits: Limits | None
    recurrence: Recurrence | None
    delivery: Delivery | None
    task: str
    content_type: str
    work_at: int  # counted from the beginning of `encoded`


# By their first bytes. No shorter middle is legal: eight lengths and numbers, a letter each of queue and task, and application/json.
# Nothing was checked yet when it is remembered: a task's name of a megabyte is not.
_MIDDLE_BYTES_MIN: Final = 26
_middles: dict[bytes, _Middle] = {}
_DELIVERIES_REMEMBERED_MAX: Final = 100

# By all of their bytes.
_policies: dict[bytes, Policy] = {}

# The first numbers of a State, and where they end; by their bytes, where each takes one.
_heads: dict[bytes, tuple[int, str, int, int, int]] = {}

ScheduleCommand = tuple[Literal["schedule"], Schedule, bytes]
CancelCommand = tuple[Literal["cancel"], Cancel, bytes]
RedriveCommand = tuple[Literal["redrive"], Redrive, bytes]
DropCommand = tuple[Literal["drop"], Drop, bytes]
ChangeCommand = tuple[Literal["change"], Change, bytes]
Command = ScheduleCommand | CancelCommand | RedriveCommand | DropCommand | ChangeCommand

OfDeadLetterTopic = tuple[Literal["letter"], DeadLetter] | tuple[Literal["dead_run"], DeadRun] | tuple[Literal["closed"], DeadRunClosed]


class Decoder:
    """Decodes each kind of record.

    Args:
        reader: the strict way.
    """

    def __init__(self, reader: Reader) -> None:
        self._read = reader.read
        self._unframe = reader.unframe

    def decode_command(self, value: bytes | None, bytes_max: int = RECORD_BYTES_MAX) -> Command:
        """What a value of the intake topic asks for.

        Args:
            bytes_max: larger values are refused before anything is decoded.

        Returns:
            ("schedule", the command, its work encoded), or "cancel", "redrive", "drop" or "change" with the command and nothing.

        Raises:
            UndecodableRecord: this and every other decoder.
            RegistryUnavailable: so too, where the codec was made with a schema registry.
        """
        if value is not None and len(value) <= bytes_max:
            header = value[:HEADER_BYTES]
            try:
                if header == _SCHEDULE:
                    return _schedule(value)
                if header == _CANCEL:
                    return _cancel(value)
                if header == _REDRIVE:
                    return "redrive", _of_a_dead_run(value), b""
                if header == _DROP:
                    return "drop", _of_a_dead_run(value), b""
            except _UNUSUAL:
                pass
            single_object = self._unframe(value)
            if single_object is not value:
                return self.decode_command(single_object, bytes_max)
        kind, record = self._read(value, ("Schedule", "Cancel", "Redrive", "Drop", "Change"), bytes_max)
        match kind:
            case "Cancel":
                return "cancel", cast(Cancel, record), b""
            case "Redrive":
                return "redrive", cast(Redrive, record), b""
            case "Drop":
                return "drop", cast(Drop, record), b""
            case "Change":
                return "change", cast(Change, record), b""
        schedule = cast(Schedule, record)
        return "schedule", schedule, encode_work(schedule["work"])

    def current_command(self, value: bytes) -> bytes:
        """A Schedule that `decode_command` took, encoded by the current schema: `value` itself but for writers of another version.

        This is what `splice_definition` takes, and what tells a repeated command.
        """
        if value.startswith(_SCHEDULE):
            return value
        return encode_schedule(cast(Schedule, self._read(value, ("Schedule",), RECORD_BYTES_MAX)[1]))

    def revise_schedule(self, command: bytes, revise: Callable[[Schedule], Schedule]) -> tuple[Schedule, bytes, bytes]:
        """An encoded Schedule of the current schema, revised: as a record, its work encoded, and the whole encoded anew."""
        record = revise(cast(Schedule, self._read(command, ("Schedule",), RECORD_BYTES_MAX)[1]))
        return record, encode_work(record["work"]), encode_schedule(record)

    def decode_definition(self, value: bytes | None) -> Definition:
        """A Definition, whole."""
        return cast(Definition, self._read(value, ("Definition",), RECORD_BYTES_MAX + _EMBEDDING_BYTES_MAX)[1])

    def peek_definition(self, value: bytes) -> Defined:
        """What the rules need of an encoded Definition, without looking into its work.

        For the changelog, which only Duewheel writes: work that is damaged is handed on as it is.
        """
        if value[:HEADER_BYTES] == _DEFINITION:
            try:
                return _defined(value)
            except _UNUSUAL:
                pass
        record = self.decode_definition(value)
        schedule = record["schedule"]
        return Defined(
            record["generation"],
            schedule["due_ms"],
            lane(schedule["queue"], schedule["delivery"]),
            schedule["retention_ms"],
            schedule["limits"],
            encode_work(schedule["work"]),
            encode_schedule(schedule),
            schedule["recurrence"],
            record["offset"],
            schedule["delivery"],
        )

    def decode_content(self, work: bytes) -> tuple[bytes, dict[str, str]]:
        """Payload and headers of encoded work, as it ends a Schedule that was decoded or peeked at."""
        try:
            _, at = _string_at(work, 0)
            _, at = _string_at(work, at)
            payload, at = _bytes_at(work, at)
            headers = _long_headers_at(work, at)[0] if work[at] else {}
        except _UNUSUAL as error:
            raise UndecodableRecord(
                Reason.MALFORMED, "the work of a job that is kept is damaged, so that it cannot be delivered"
            ) from error
        return payload, headers

    def decode_state(self, value: bytes | None) -> State:
        """A State."""
        if value is not None and value[:HEADER_BYTES] == _STATE and len(value) <= RECORD_BYTES_MAX:
            try:
                return _state(value)
            except _UNUSUAL:
                pass
        return cast(State, self._read(value, ("State",), RECORD_BYTES_MAX)[1])

    def decode_progress(self, value: bytes | None) -> Progress:
        """A Progress."""
        return cast(Progress, self._read(value, ("Progress",), RECORD_BYTES_MAX)[1])

    def decode_dispatch(self, value: bytes | None) -> Dispatch:
        """A Dispatch."""
        if value is not None and value[:HEADER_BYTES] == _DISPATCH and len(value) <= RECORD_BYTES_MAX:
            try:
                return _dispatch(value)
            except _UNUSUAL:
                pass
        return cast(Dispatch, self._read(value, ("Dispatch",), RECORD_BYTES_MAX + _EMBEDDING_BYTES_MAX)[1])

    def decode_outcome(self, value: bytes | None) -> Outcome:
        """An Outcome."""
        if value is not None and value[:HEADER_BYTES] == _OUTCOME and len(value) <= RECORD_BYTES_MAX:
            try:
                return _outcome(value)
            except _UNUSUAL:
                pass
        return cast(Outcome, self._read(value, ("Outcome",), RECORD_BYTES_MAX)[1])

    def decode_dead_letter(self, value: bytes | None) -> DeadLetter:
        """A DeadLetter."""
        return cast(DeadLetter, self._read(value, ("DeadLetter",), DEAD_LETTER_BYTES_MAX)[1])

    def decode_stop(self, value: bytes | None) -> Stop:
        """A Stop."""
        if value is not None and value[:HEADER_BYTES] == _STOP and len(value) <= RECORD_BYTES_MAX:
            try:
                return _stop(value)
            except _UNUSUAL:
                pass
        return cast(Stop, self._read(value, ("Stop",), RECORD_BYTES_MAX)[1])

    def decode_dead_run(self, value: bytes | None) -> DeadRun:
        """A DeadRun, whole."""
        return cast(DeadRun, self._read(value, ("DeadRun",), DEAD_LETTER_BYTES_MAX)[1])

    def decode_dead_run_closed(self, value: bytes | None) -> DeadRunClosed:
        """A DeadRunClosed."""
        return cast(DeadRunClosed, self._read(value, ("DeadRunClosed",), DEAD_LETTER_BYTES_MAX)[1])

    def decode_dead_letter_topic(self, value: bytes | None) -> OfDeadLetterTopic:
        """What a value of the dead-letter topic says: ("letter", DeadLetter), ("dead_run", DeadRun) or ("closed", DeadRunClosed)."""
        kind, record = self._read(value, ("DeadLetter", "DeadRun", "DeadRunClosed"), DEAD_LETTER_BYTES_MAX)
        match kind:
            case "DeadRun":
                return "dead_run", cast(DeadRun, record)
            case "DeadRunClosed":
                return "closed", cast(DeadRunClosed, record)
        return "letter", cast(DeadLetter, record)


# --- fast paths: each answers for bytes that a writer would write, and raises one of _UNUSUAL for all others ---


def _schedule(value: bytes) -> ScheduleCommand:
    id_size = value[10]
    if id_size & _NOT_SMALL:
        raise ValueError("a long job id")
    times_at = 11 + (id_size >> 1)
    a, b, c, d, e, f = _two_times(value, times_at)
    middle_at = times_at + 12
    middle = _middles.get(value[middle_at : middle_at + _MIDDLE_BYTES_MIN])
    if middle is None or not value.startswith(middle[0], middle_at):
        middle = _read_middle(value, middle_at)
    encoded, on_conflict, retention_ms, queue, limits, recurrence, delivery, task, content_type, work_at = middle
    payload, at = _bytes_at(value, middle_at + len(encoded))
    headers: dict[str, str]
    policy: Policy | None
    if value[at:] == b"\0\0":
        headers, policy = {}, None
    else:
        headers, at = _headers_at(value, at)
        policy = _policy_from(value, at)
    return (
        "schedule",
        {
            "job_id": value[11:times_at].decode(),
            "due_ms": FIRST[a] + SECOND[b] + THIRD[c],
            "created_ms": FIRST[d] + SECOND[e] + THIRD[f],
            "on_conflict": on_conflict,
            "retention_ms": retention_ms,
            "queue": queue,
            "limits": limits,
            "recurrence": recurrence,
            "delivery": delivery,
            "work": {"task": task, "content_type": content_type, "payload": payload, "headers": headers, "policy": policy},
        },
        value[middle_at + work_at :],
    )


def _read_middle(value: bytes, begin: int) -> _Middle:
    conflict = value[begin]
    if conflict & _NOT_SMALL:
        raise ValueError("no on_conflict")
    retention_ms, at = long_at(value, begin + 1)
    queue, at = _string_at(value, at)
    limits, at = _limits_at(value, at)
    recurrence, at = _recurrence_at(value, at)
    delivery, work_at = _delivery_at(value, at)
    task, at = _string_at(value, work_at)
    content_type, at = _string_at(value, at)
    on_conflict = _CONFLICTS[conflict >> 1]
    middle = _Middle(value[begin:at], on_conflict, retention_ms, queue, limits, recurrence, delivery, task, content_type, work_at - begin)
    # What expires, begins or ends does so at a time of its own, most likely, and a key is of one thing: remembering them would push out
    # what others share.
    is_its_own = (
        (limits is not None and limits["expires_ms"])
        or (recurrence is not None and (recurrence["start_ms"] or recurrence["end_ms"]))
        or (delivery is not None and delivery["key"] is not None)
    )
    begins = value[begin : begin + _MIDDLE_BYTES_MIN]
    # Topics, unlike queues, may be thousands, and many begin alike: each in the other's place, they cost four times as much as forgotten.
    has_room = delivery is None or (len(_middles) < _DELIVERIES_REMEMBERED_MAX and begins not in _middles)
    if len(middle.encoded) <= REMEMBERED_BYTES_MAX and not is_its_own and has_room:
        if len(_middles) >= REMEMBERED_MAX:
            _middles.clear()
        _middles[begins] = middle
    return middle


def _cancel(value: bytes) -> CancelCommand:
    job_id, at = _string_at(value, HEADER_BYTES)
    a, b, c = _time(value, at)
    reach, at = _symbol_at(value, at + 6, _REACHES)
    if at != len(value):
        raise ValueError("bytes left over")
    return "cancel", {"job_id": job_id, "created_ms": FIRST[a] + SECOND[b] + THIRD[c], "reach": reach}, b""


def _of_a_dead_run(value: bytes) -> Redrive:
    """A Redrive, or a Drop, which has the same fields."""
    job_id, at = _string_at(value, HEADER_BYTES)
    token, at = long_at(value, at)
    a, b, c = _time(value, at)
    if at + 6 != len(value):
        raise ValueError("bytes left over")
    return {"job_id": job_id, "token": token, "created_ms": FIRST[a] + SECOND[b] + THIRD[c]}


def _stop(value: bytes) -> Stop:
    job_id, at = _string_at(value, HEADER_BYTES)
    token, at = long_at(value, at)
    queue, at = _string_at(value, at)
    if at != len(value):
        raise ValueError("bytes left over")
    return {"job_id": job_id, "token": token, "queue": queue}


def _defined(value: bytes) -> Defined:
    generation, at = long_at(value, HEADER_BYTES)
    offset, schedule_at = long_at(value, at)
    id_size, at = long_at(value, schedule_at)
    at += id_size
    a, b, c, d, e, f = _two_times(value, at)
    FIRST[d] + SECOND[e] + THIRD[f]  # the second is of no interest here; that it takes six bytes, as the first does, is
    middle_at = at + 12
    middle = _middles.get(value[middle_at : middle_at + _MIDDLE_BYTES_MIN])
    if middle is None or not value.startswith(middle[0], middle_at):
        middle = _read_middle(value, middle_at)
    return Defined(
        generation,
        FIRST[a] + SECOND[b] + THIRD[c],
        middle.queue if middle.delivery is None else lane(middle.queue, middle.delivery),
        middle.retention_ms,
        middle.limits,
        value[middle_at + middle.work_at :],
        _SCHEDULE + value[schedule_at:],
        middle.recurrence,
        offset,
        middle.delivery,
    )


def _state(value: bytes) -> State:
    generation, phase, attempt, crashes, at = _heads.get(value[10:14]) or _read_head(value)
    token, at = long_at(value, at)
    a, b, c, d, e, f, error = _state_tail(value, at)
    if error:
        failure, end = _failure_at(value, at + 12)
    else:
        failure, end = None, at + 13
    trail: Trail | None = None
    if value[end]:
        trail, end = _trail_at(value, end)
    else:
        end += 1
    if end != len(value):
        raise ValueError("bytes left over")
    return {
        "generation": generation,
        "phase": phase,
        "attempt": attempt,
        "crashes": crashes,
        "token": token,
        "slot_ms": FIRST[a] + SECOND[b] + THIRD[c],
        "changed_ms": FIRST[d] + SECOND[e] + THIRD[f],
        "error": failure,
        "trail": trail,
    }


def _read_head(value: bytes) -> tuple[int, str, int, int, int]:
    generation, at = _int_at(value, HEADER_BYTES)
    phase, at = _int_at(value, at)
    attempt, at = _int_at(value, at)
    crashes, at = _int_at(value, at)
    head = (generation, _PHASES[phase], attempt, crashes, at)
    if at == 14:
        if len(_heads) >= REMEMBERED_MAX:
            _heads.clear()
        _heads[value[10:14]] = head
    return head


def _outcome(value: bytes) -> Outcome:
    token, at = long_at(value, HEADER_BYTES)
    job_id, at = _string_at(value, at)
    a, b, c, attempt, result, d, e, f, g, h, i, worker_size = _outcome_numbers(value, at)
    if (attempt | result | worker_size) & _NOT_SMALL:
        raise ValueError("large numbers")
    worker_at = at + 21
    at = worker_at + (worker_size >> 1)
    worker = value[worker_at:at].decode()
    failure: Failure | None = None
    retry_after_ms = lease_ms = 0
    output: bytes | None = None
    if value[at:] != _NOTHING_TO_ADD:
        failure, at = _failure_at(value, at) if value[at] else (None, at + 1)
        retry_after_ms, at = long_at(value, at)
        lease_ms, at = long_at(value, at)
        output, at = _output_at(value, at)
        if at != len(value):
            raise ValueError("bytes left over")
    return {
        "token": token,
        "job_id": job_id,
        "slot_ms": FIRST[a] + SECOND[b] + THIRD[c],
        "attempt": attempt >> 1,
        "result": _RESULTS[result >> 1],
        "started_ms": FIRST[d] + SECOND[e] + THIRD[f],
        "finished_ms": FIRST[g] + SECOND[h] + THIRD[i],
        "worker": worker,
        "error": failure,
        "retry_after_ms": retry_after_ms,
        "lease_ms": lease_ms,
        "output": output,
    }


def _dispatch(value: bytes) -> Dispatch:
    token, at = long_at(value, HEADER_BYTES)
    job_id, at = _string_at(value, at)
    generation, at = _int_at(value, at)
    a, b, c, attempt = _dispatch_numbers(value, at)
    if attempt & _NOT_SMALL:
        raise ValueError("many attempts")
    timer_partition, at = _int_at(value, at + 7)
    d, e, f = _time(value, at)
    terms: Terms | None = None
    at += 6
    if value[at]:
        terms, at = _terms_at(value, at)
    else:
        at += 1
    task, at = _string_at(value, at)
    content_type, at = _string_at(value, at)
    payload, at = _bytes_at(value, at)
    headers: dict[str, str]
    policy: Policy | None
    if value[at:] == b"\0\0":
        headers, policy = {}, None
    else:
        headers, at = _headers_at(value, at)
        policy = _policy_from(value, at)
    return {
        "token": token,
        "job_id": job_id,
        "generation": generation,
        "slot_ms": FIRST[a] + SECOND[b] + THIRD[c],
        "attempt": attempt >> 1,
        "timer_partition": timer_partition,
        "dispatched_ms": FIRST[d] + SECOND[e] + THIRD[f],
        "terms": terms,
        "work": {"task": task, "content_type": content_type, "payload": payload, "headers": headers, "policy": policy},
    }


# --- parts ---


def _int_at(value: bytes, at: int) -> tuple[int, int]:
    number, end = long_at(value, at)
    if number > 2**31 - 1:
        raise ValueError("not an int")
    return number, end


def _bytes_at(value: bytes, at: int) -> tuple[bytes, int]:
    size, begin = long_at(value, at)
    end = begin + size
    return value[begin:end], end


def _output_at(value: bytes, at: int) -> tuple[bytes | None, int]:
    branch = value[at]
    if branch == 0:
        return None, at + 1
    if branch != _SOME:
        raise ValueError("no output")
    return _bytes_at(value, at + 1)


def _string_at(value: bytes, at: int) -> tuple[str, int]:
    size = value[at]
    if size & _NOT_SMALL:
        size, begin = long_at(value, at)
    else:
        size, begin = size >> 1, at + 1
    end = begin + size
    if end > len(value):
        raise ValueError("bytes missing")
    return value[begin:end].decode(), end


def _headers_at(value: bytes, at: int) -> tuple[dict[str, str], int]:
    """The headers that begin at `at`, and where they end. Spelled out for short ones, since most jobs carry one or two."""
    start = at
    count = value[at]
    at += 1
    if count == 0:
        return {}, at
    headers = {}
    sizes = count
    for _ in range(count >> 1):
        size = value[at]
        sizes |= size
        begin = at + 1
        at = begin + (size >> 1)
        name = value[begin:at].decode()
        size = value[at]
        sizes |= size
        begin = at + 1
        at = begin + (size >> 1)
        headers[name] = value[begin:at].decode()
    if sizes & _NOT_SMALL:
        return _long_headers_at(value, start)
    if value[at] or len(headers) != count >> 1:
        raise ValueError("another block, or a name twice")
    return headers, at + 1


def _long_headers_at(value: bytes, at: int) -> tuple[dict[str, str], int]:
    count, at = _count_at(value, at)
    headers = {}
    for _ in range(count):
        name, at = _string_at(value, at)
        headers[name], at = _string_at(value, at)
    if value[at] or len(headers) != count:
        raise ValueError("another block, or a name twice")
    return headers, at + 1


def _failure_at(value: bytes, at: int) -> tuple[Failure, int]:
    if value[at] != _SOME:
        raise ValueError("no failure")
    kind, at = _string_at(value, at + 1)
    message, at = _string_at(value, at)
    traceback, at = _string_at(value, at)
    return {"type": kind, "message": message, "traceback": traceback}, at


def _limits_at(value: bytes, at: int) -> tuple[Limits | None, int]:
    branch = value[at]
    if branch == 0:
        return None, at + 1
    if branch != _SOME:
        raise ValueError("no limits")
    expires_ms, at = _time_at(value, at + 1)
    total_timeout_ms, at = long_at(value, at)
    crashes_max, at = _int_at(value, at)
    return {"expires_ms": expires_ms, "total_timeout_ms": total_timeout_ms, "crashes_max": crashes_max}, at


def _recurrence_at(value: bytes, at: int) -> tuple[Recurrence | None, int]:
    branch = value[at]
    if branch == 0:
        return None, at + 1
    if branch != _SOME:
        raise ValueError("no recurrence")
    kind, at = _symbol_at(value, at + 1, _KINDS)
    every_ms, at = long_at(value, at)
    expression, at = _string_at(value, at)
    zone, at = _string_at(value, at)
    start_ms, at = long_at(value, at)
    end_ms, at = long_at(value, at)
    runs_max, at = long_at(value, at)
    jitter_ms, at = long_at(value, at)
    misfire, at = _symbol_at(value, at, _MISFIRES)
    misfire_max, at = _int_at(value, at)
    grace_ms, at = long_at(value, at)
    overlap, at = _symbol_at(value, at, _OVERLAPS)
    overlap_max, at = _int_at(value, at)
    return {
        "kind": kind,
        "every_ms": every_ms,
        "expression": expression,
        "zone": zone,
        "start_ms": start_ms,
        "end_ms": end_ms,
        "runs_max": runs_max,
        "jitter_ms": jitter_ms,
        "misfire": misfire,
        "misfire_max": misfire_max,
        "grace_ms": grace_ms,
        "overlap": overlap,
        "overlap_max": overlap_max,
    }, at


def _delivery_at(value: bytes, at: int) -> tuple[Delivery | None, int]:
    branch = value[at]
    if branch == 0:
        return None, at + 1
    if branch != _SOME:
        raise ValueError("no delivery")
    topic, at = _string_at(value, at + 1)
    key, at = _output_at(value, at)
    tombstone = value[at]
    if tombstone > 1:
        raise ValueError("no boolean")
    return {"topic": topic, "key": key, "tombstone": tombstone == 1}, at + 1


def _symbol_at(value: bytes, at: int, symbols: list[str]) -> tuple[str, int]:
    index = value[at]
    if index & _NOT_SMALL:
        raise ValueError("no symbol")
    return symbols[index >> 1], at + 1


def _terms_at(value: bytes, at: int) -> tuple[Terms, int]:
    if value[at] != _SOME:
        raise ValueError("no terms")
    crashes, at = _int_at(value, at + 1)
    life = value[at]
    if life > 1:
        raise ValueError("no boolean")
    expires_ms, at = _time_at(value, at + 1)
    deadline_ms, at = _time_at(value, at)
    return {"crashes": crashes, "is_last_life": life == 1, "expires_ms": expires_ms, "deadline_ms": deadline_ms}, at


def _policy_from(value: bytes, at: int) -> Policy | None:
    """The policy that the rest of `value` from `at` on is, as each record with work ends with it."""
    encoded = value[at:]
    return None if encoded == b"\0" else _policies.get(encoded) or _read_policy(encoded)


def _read_policy(encoded: bytes) -> Policy:
    if encoded[0] != _SOME:
        raise ValueError("no policy")
    attempts_max, at = _int_at(encoded, 1)
    delays_ms, at = _longs_at(encoded, at)
    factor, at = _double_at(encoded, at)
    delay_ms_max, at = long_at(encoded, at)
    jitter, at = _double_at(encoded, at)
    give_up_on, at = _strings_at(encoded, at)
    retry_on, at = _strings_at(encoded, at)
    run_timeout_ms, at = long_at(encoded, at)
    if at != len(encoded):
        raise ValueError("bytes left over")
    policy: Policy = {
        "attempts_max": attempts_max,
        "delays_ms": delays_ms,
        "factor": factor,
        "delay_ms_max": delay_ms_max,
        "jitter": jitter,
        "give_up_on": give_up_on,
        "retry_on": retry_on,
        "run_timeout_ms": run_timeout_ms,
    }
    if len(encoded) <= REMEMBERED_BYTES_MAX:
        if len(_policies) >= REMEMBERED_MAX:
            _policies.clear()
        _policies[encoded] = policy
    return policy


def _trail_at(value: bytes, at: int) -> tuple[Trail, int]:
    if value[at] != _SOME:
        raise ValueError("no trail")
    wake_ms, at = _time_at(value, at + 1)
    lease_ms, at = long_at(value, at)
    first_ms, at = _time_at(value, at)
    output, at = _output_at(value, at)
    endings: list[Ending] = []
    count, at = _count_at(value, at)
    if count:
        for _ in range(count):
            ending, at = _ending_at(value, at)
            endings.append(ending)
        at = _end_of_array(value, at)
    runs, at = _longs_at(value, at)
    queued_ms, at = _time_at(value, at)
    answers: list[Answer] = []
    count, at = _count_at(value, at)
    if count:
        for _ in range(count):
            answer, at = _answer_at(value, at)
            answers.append(answer)
        at = _end_of_array(value, at)
    is_quiet = value[at]
    if is_quiet > 1:
        raise ValueError("no boolean")
    return {
        "wake_ms": wake_ms,
        "lease_ms": lease_ms,
        "first_ms": first_ms,
        "output": output,
        "endings": endings,
        "runs": runs,
        "queued_ms": queued_ms,
        "answers": answers,
        "is_quiet": is_quiet == 1,
    }, at + 1


def _answer_at(value: bytes, at: int) -> tuple[Answer, int]:
    offset, at = long_at(value, at)
    taken_ms, at = _time_at(value, at)
    reason, at = _string_at(value, at)
    message, at = _string_at(value, at)
    return {"offset": offset, "taken_ms": taken_ms, "reason": reason, "message": message}, at


def _ending_at(value: bytes, at: int) -> tuple[Ending, int]:
    attempt, at = _int_at(value, at)
    token, at = long_at(value, at)
    result, at = _string_at(value, at)
    started_ms, at = _time_at(value, at)
    ended_ms, at = _time_at(value, at)
    worker, at = _string_at(value, at)
    kind, at = _string_at(value, at)
    message, at = _string_at(value, at)
    return {
        "attempt": attempt,
        "token": token,
        "result": result,
        "started_ms": started_ms,
        "ended_ms": ended_ms,
        "worker": worker,
        "type": kind,
        "message": message,
    }, at


def _time_at(value: bytes, at: int) -> tuple[int, int]:
    """A time of today, or 0 where there is none."""
    if value[at] == 0:
        return 0, at + 1
    a, b, c = _time(value, at)
    number: int = FIRST[a] + SECOND[b] + THIRD[c]
    return number, at + 6


def _double_at(value: bytes, at: int) -> tuple[float, int]:
    (number,) = _double(value, at)
    end = at + 8
    if value[end - 1] & 0x80 or not number < inf:
        raise ValueError("negative, infinite, or no number")
    return number, end


def _longs_at(value: bytes, at: int) -> tuple[list[int], int]:
    count, at = _count_at(value, at)
    longs = []
    for _ in range(count):
        number, at = long_at(value, at)
        longs.append(number)
    return longs, at if count == 0 else _end_of_array(value, at)


def _strings_at(value: bytes, at: int) -> tuple[list[str], int]:
    count, at = _count_at(value, at)
    strings = []
    for _ in range(count):
        text, at = _string_at(value, at)
        strings.append(text)
    return strings, at if count == 0 else _end_of_array(value, at)


def _count_at(value: bytes, at: int) -> tuple[int, int]:
    count, at = long_at(value, at)
    if count > _ITEMS_MAX:
        raise ValueError("a long list")
    return count, at


def _end_of_array(value: bytes, at: int) -> int:
    if value[at]:
        raise ValueError("another block")
    return at + 1
