"""Bytes to records, fast and strict.

`strict` is the rule: it decodes, encodes again and compares, which takes 7 to 12 µs. The fast paths here read records of ordinary shape in
about 1.5 µs, and only bytes that a writer would have written: numbers without padding, headers in one block with each name once,
nothing left over. Whatever they stumble over, they say nothing about it; the strict way reads the same bytes and decides. So a fast
path can be slow for a rare record (a due time after 2039, a job id of 64 bytes), but never wrong in another way than `strict`. That
they agree wherever a fast path answers is a property test.

    Schedule:  header | job_id | due_ms created_ms | on_conflict … content_type | payload | headers
                        string   six bytes each      the same for thousands     string    usually none

The two times are taken by one `struct` call and six table look-ups. What follows them is the same for all jobs of one kind, so it is
recognized whole: its first bytes lead to what followed them last time, and one comparison says whether it is the same again.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple, cast

from duewheel.adapters.avro.encode import CONFLICTS, PHASES, REMEMBERED_MAX, RESULTS, encode_schedule, encode_work
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.strict import Reader
from duewheel.adapters.avro.varints import FIRST, SECOND, THIRD, long_at
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import Cancel, DeadLetter, Definition, Dispatch, Failure, Outcome, Progress, Schedule, State
from duewheel.core.step import Defined

_SCHEDULE: Final = CURRENT["Schedule"].header
_CANCEL: Final = CURRENT["Cancel"].header
_DEFINITION: Final = CURRENT["Definition"].header
_DISPATCH: Final = CURRENT["Dispatch"].header
_STATE: Final = CURRENT["State"].header
_OUTCOME: Final = CURRENT["Outcome"].header

# What a Definition or a Dispatch adds to a Schedule: a few numbers and the job id.
_EMBEDDING_BYTES_MAX: Final = 1_024

_CONFLICTS: Final = list(CONFLICTS)
_PHASES: Final = list(PHASES)
_RESULTS: Final = list(RESULTS)

# What stumbling looks like: None from a table, the end of the bytes, a number or string that is not written so.
_UNUSUAL: Final = (TypeError, IndexError, ValueError, struct.error)
# A bit that is set where a length or small number takes more than one byte, or is negative.
_NOT_SMALL: Final = 0x81

_two_times = struct.Struct("<6H").unpack_from
_time = struct.Struct("<3H").unpack_from
_state_tail = struct.Struct("<6HB").unpack_from
_dispatch_numbers = struct.Struct("<3HB").unpack_from
_outcome_numbers = struct.Struct("<3HBB6HB").unpack_from


class _Middle(NamedTuple):
    """What lies between the times of a Schedule and its payload."""

    encoded: bytes
    on_conflict: str
    retention_ms: int
    queue: str
    task: str
    content_type: str
    work_at: int  # counted from the beginning of `encoded`


# By their first bytes. No shorter middle is legal: five lengths and numbers, a letter each of queue and task, and application/json.
_MIDDLE_BYTES_MIN: Final = 23
# Nothing was checked yet when it is remembered: a task's name of a megabyte is not.
_MIDDLE_BYTES_MAX: Final = 512
_middles: dict[bytes, _Middle] = {}

# The first numbers of a State, and where they end; by their bytes, where each takes one.
_heads: dict[bytes, tuple[int, str, int, int, int]] = {}

ScheduleCommand = tuple[Literal["schedule"], Schedule, bytes]
CancelCommand = tuple[Literal["cancel"], Cancel, bytes]


class Decoder:
    """Decodes each kind of record.

    Args:
        reader: the strict way.
    """

    def __init__(self, reader: Reader) -> None:
        self._read = reader.read
        self._unframe = reader.unframe

    def decode_command(self, value: bytes | None, bytes_max: int = RECORD_BYTES_MAX) -> ScheduleCommand | CancelCommand:
        """What a value of the intake topic asks for.

        Args:
            bytes_max: larger values are refused before anything is decoded.

        Returns:
            ("schedule", the command, its work encoded) or ("cancel", the command, nothing).

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
            except _UNUSUAL:
                pass
            single_object = self._unframe(value)
            if single_object is not value:
                return self.decode_command(single_object, bytes_max)
        kind, record = self._read(value, ("Schedule", "Cancel"), bytes_max)
        if kind == "Cancel":
            return "cancel", cast(Cancel, record), b""
        schedule = cast(Schedule, record)
        return "schedule", schedule, encode_work(schedule["work"])

    def current_command(self, value: bytes) -> bytes:
        """A Schedule that `decode_command` took, encoded by the current schema: `value` itself but for writers of another version.

        This is what `splice_definition` takes, and what tells a repeated command.
        """
        if value.startswith(_SCHEDULE):
            return value
        return encode_schedule(cast(Schedule, self._read(value, ("Schedule",), RECORD_BYTES_MAX)[1]))

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
            schedule["queue"],
            schedule["retention_ms"],
            encode_work(schedule["work"]),
            encode_schedule(schedule),
        )

    def decode_state(self, value: bytes | None) -> State:
        """A State."""
        if value is not None and value[:HEADER_BYTES] == _STATE:
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
    encoded, on_conflict, retention_ms, queue, task, content_type, work_at = middle
    payload, at = _bytes_at(value, middle_at + len(encoded))
    if value[at]:
        headers, at = _headers_at(value, at)
    else:
        headers, at = {}, at + 1
    if at != len(value):
        raise ValueError("bytes missing or left over")
    return (
        "schedule",
        {
            "job_id": value[11:times_at].decode(),
            "due_ms": FIRST[a] + SECOND[b] + THIRD[c],
            "created_ms": FIRST[d] + SECOND[e] + THIRD[f],
            "on_conflict": on_conflict,
            "retention_ms": retention_ms,
            "queue": queue,
            "work": {"task": task, "content_type": content_type, "payload": payload, "headers": headers},
        },
        value[middle_at + work_at :],
    )


def _read_middle(value: bytes, begin: int) -> _Middle:
    conflict = value[begin]
    if conflict & _NOT_SMALL:
        raise ValueError("no on_conflict")
    retention_ms, at = long_at(value, begin + 1)
    queue, work_at = _string_at(value, at)
    task, at = _string_at(value, work_at)
    content_type, at = _string_at(value, at)
    middle = _Middle(value[begin:at], _CONFLICTS[conflict >> 1], retention_ms, queue, task, content_type, work_at - begin)
    if len(middle.encoded) <= _MIDDLE_BYTES_MAX:
        if len(_middles) >= REMEMBERED_MAX:
            _middles.clear()
        _middles[value[begin : begin + _MIDDLE_BYTES_MIN]] = middle
    return middle


def _cancel(value: bytes) -> CancelCommand:
    job_id, at = _string_at(value, HEADER_BYTES)
    a, b, c = _time(value, at)
    if at + 6 != len(value):
        raise ValueError("bytes left over")
    return "cancel", {"job_id": job_id, "created_ms": FIRST[a] + SECOND[b] + THIRD[c]}, b""


def _defined(value: bytes) -> Defined:
    generation, schedule_at = long_at(value, HEADER_BYTES)
    id_size, at = long_at(value, schedule_at)
    at += id_size
    a, b, c = _time(value, at)
    middle_at = at + 12
    middle = _middles.get(value[middle_at : middle_at + _MIDDLE_BYTES_MIN])
    if middle is None or not value.startswith(middle[0], middle_at):
        middle = _read_middle(value, middle_at)
    return Defined(
        generation,
        FIRST[a] + SECOND[b] + THIRD[c],
        middle.queue,
        middle.retention_ms,
        value[middle_at + middle.work_at :],
        _SCHEDULE + value[schedule_at:],
    )


def _state(value: bytes) -> State:
    generation, phase, attempt, crashes, at = _heads.get(value[10:14]) or _read_head(value)
    token, at = long_at(value, at)
    a, b, c, d, e, f, error = _state_tail(value, at)
    if error:
        failure, end = _failure_at(value, at + 12)
    else:
        failure, end = None, at + 13
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
    if value[at]:
        failure, end = _failure_at(value, at)
    else:
        failure, end = None, at + 1
    if end != len(value):
        raise ValueError("bytes left over")
    return {
        "token": token,
        "job_id": job_id,
        "slot_ms": FIRST[a] + SECOND[b] + THIRD[c],
        "attempt": attempt >> 1,
        "result": _RESULTS[result >> 1],
        "started_ms": FIRST[d] + SECOND[e] + THIRD[f],
        "finished_ms": FIRST[g] + SECOND[h] + THIRD[i],
        "worker": value[worker_at:at].decode(),
        "error": failure,
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
    task, at = _string_at(value, at + 6)
    content_type, at = _string_at(value, at)
    payload, at = _bytes_at(value, at)
    headers, at = _headers_at(value, at)
    if at != len(value):
        raise ValueError("bytes left over")
    return {
        "token": token,
        "job_id": job_id,
        "generation": generation,
        "slot_ms": FIRST[a] + SECOND[b] + THIRD[c],
        "attempt": attempt >> 1,
        "timer_partition": timer_partition,
        "dispatched_ms": FIRST[d] + SECOND[e] + THIRD[f],
        "work": {"task": task, "content_type": content_type, "payload": payload, "headers": headers},
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
    count, at = long_at(value, at)
    headers = {}
    for _ in range(count):
        name, at = _string_at(value, at)
        headers[name], at = _string_at(value, at)
    if value[at] or len(headers) != count:
        raise ValueError("another block, or a name twice")
    return headers, at + 1


def _failure_at(value: bytes, at: int) -> tuple[Failure, int]:
    if value[at] != 2:
        raise ValueError("no failure")
    kind, at = _string_at(value, at + 1)
    message, at = _string_at(value, at)
    traceback, at = _string_at(value, at)
    return {"type": kind, "message": message, "traceback": traceback}, at
