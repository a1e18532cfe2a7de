"""Records to bytes, fast.

fastavro walks a schema for each record: 3 to 4 µs. The shape of the hot records is known, so they are written here by hand: constants,
remembered pieces, and `varints`, joined. About 1 µs. What is not hot goes through fastavro, and so do the rare branches. Equal bytes are
a property test.

Remembered are the pieces that thousands of records share, such as everything from `on_conflict` to `content_type` of a Schedule. Each
memory is bounded and starts anew when it is full.

Records must be of the right types and within the limits; whoever takes them from a user checks before (`core/commands.py`). An integer
beyond 64 bits is an OverflowError, a lone surrogate a UnicodeEncodeError.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.strict import encode
from duewheel.adapters.avro.varints import LAST, long
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
    Work,
)

_SCHEDULE: Final = CURRENT["Schedule"].header
_CANCEL: Final = CURRENT["Cancel"].header
_REDRIVE: Final = CURRENT["Redrive"].header
_DROP: Final = CURRENT["Drop"].header
_DEFINITION: Final = CURRENT["Definition"].header
_DISPATCH: Final = CURRENT["Dispatch"].header
_STATE: Final = CURRENT["State"].header
_OUTCOME: Final = CURRENT["Outcome"].header
_PROGRESS: Final = CURRENT["Progress"].header
_STOP: Final = CURRENT["Stop"].header
_DEAD_RUN: Final = CURRENT["DeadRun"].header

PHASES: Final = {symbol: index for index, symbol in enumerate(CURRENT["State"].symbols("phase"))}
RESULTS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Outcome"].symbols("result"))}
CONFLICTS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Schedule"].symbols("on_conflict"))}
REACHES: Final = {symbol: index for index, symbol in enumerate(CURRENT["Cancel"].symbols("reach"))}
KINDS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Schedule"].symbols("recurrence", "kind"))}
MISFIRES: Final = {symbol: index for index, symbol in enumerate(CURRENT["Schedule"].symbols("recurrence", "misfire"))}
OVERLAPS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Schedule"].symbols("recurrence", "overlap"))}

_double = struct.Struct("<d").pack

REMEMBERED_MAX: Final = 4_096
# What is longer is made anew each time: the caller's limits may not have been checked yet.
REMEMBERED_BYTES_MAX: Final = 512
_middles: dict[tuple[Any, ...], bytes] = {}
_heads: dict[tuple[Any, ...], bytes] = {}
_nows: dict[int, bytes] = {}
_tails: dict[tuple[int, int, int], bytes] = {}
_names: dict[str, bytes] = {}
_policies: dict[tuple[Any, ...], bytes] = {}


def encode_schedule(record: Schedule) -> bytes:
    """The Schedule, ready to be published."""
    work = record["work"]
    job_id = record["job_id"].encode()
    payload = work["payload"]
    headers = work["headers"]
    policy = work["policy"]
    if record["limits"] is None and record["recurrence"] is None and record["delivery"] is None:
        pieces = (record["on_conflict"], record["retention_ms"], record["queue"], work["task"], work["content_type"])
        middle = _middles.get(pieces) or _remember(_middles, pieces, _middle(record))
    else:
        middle = _middle(record)
    return b"".join(
        (
            _SCHEDULE,
            long(len(job_id)),
            job_id,
            long(record["due_ms"]),
            _now(record["created_ms"]),
            middle,
            long(len(payload)),
            payload,
            _headers(headers) if headers else b"\0",
            b"\0" if policy is None else _policy(policy),
        )
    )


def splice_schedule(
    job_id: str,
    due_ms: int,
    created_ms: int,
    retention_ms: int,
    queue: str,
    limits: Limits | None,
    delivery: Delivery | None,
    work: bytes,
) -> bytes:
    """The Schedule of a job that runs once, around `work`, the encoded work of another."""
    return b"".join(
        (
            _SCHEDULE,
            _string(job_id),
            long(due_ms),
            _now(created_ms),
            LAST[CONFLICTS["IGNORE"] << 1],
            long(retention_ms),
            _string(queue),
            b"\0" if limits is None else _limits(limits),
            b"\0",
            b"\0" if delivery is None else _delivery(delivery),
            work,
        )
    )


def encode_cancel(record: Cancel) -> bytes:
    """The Cancel, ready to be published."""
    return b"".join((_CANCEL, _string(record["job_id"]), long(record["created_ms"]), LAST[REACHES[record["reach"]] << 1]))


def encode_change(record: Change) -> bytes:
    """The Change, ready to be published."""
    return encode("Change", record)


def encode_redrive(record: Redrive) -> bytes:
    """The Redrive, ready to be published."""
    return b"".join((_REDRIVE, _string(record["job_id"]), long(record["token"]), long(record["created_ms"])))


def encode_drop(record: Drop) -> bytes:
    """The Drop, ready to be published."""
    return b"".join((_DROP, _string(record["job_id"]), long(record["token"]), long(record["created_ms"])))


def encode_definition(record: Definition) -> bytes:
    """The Definition, whole. The processor has an encoded Schedule at hand and uses `splice_definition`."""
    return encode("Definition", record)


def splice_definition(generation: int, offset: int, command: bytes) -> bytes:
    """The Definition around `command`, an encoded Schedule of the current schema."""
    return _DEFINITION + long(generation) + long(offset) + command[HEADER_BYTES:]


def encode_state(record: State) -> bytes:
    """The State, for the changelog."""
    pieces = (record["generation"], record["phase"], record["attempt"], record["crashes"])
    error = record["error"]
    trail = record["trail"]
    return b"".join(
        (
            _heads.get(pieces) or _head(*pieces),
            long(record["token"]),
            long(record["slot_ms"]),
            _now(record["changed_ms"]),
            b"\0" if error is None else _failure(error),
            b"\0" if trail is None else _trail(trail),
        )
    )


def encode_progress(record: Progress) -> bytes:
    """The Progress, for the changelog."""
    return b"".join((_PROGRESS, long(record["token"]), long(record["intake_offset"]), long(record["outcomes_offset"])))


def encode_dispatch(record: Dispatch) -> bytes:
    """The Dispatch, whole. The processor has encoded work at hand and uses `splice_dispatch`."""
    return encode("Dispatch", record)


def splice_dispatch(
    token: int,
    job_id: str,
    generation: int,
    slot_ms: int,
    attempt: int,
    timer_partition: int,
    dispatched_ms: int,
    terms: Terms | None,
    work: bytes,
) -> bytes:
    """The Dispatch around `work`, the encoded work of a Schedule."""
    key = job_id.encode()
    pieces = (attempt, timer_partition, dispatched_ms)
    return b"".join(
        (
            _DISPATCH,
            long(token),
            long(len(key)),
            key,
            long(generation),
            long(slot_ms),
            _tails.get(pieces) or _remember(_tails, pieces, long(attempt) + long(timer_partition) + long(dispatched_ms)),
            b"\0" if terms is None else _terms(terms),
            work,
        )
    )


def encode_outcome(record: Outcome) -> bytes:
    """The Outcome, ready to be published."""
    job_id = record["job_id"].encode()
    worker = record["worker"]
    error = record["error"]
    retry_after_ms, lease_ms, output = record["retry_after_ms"], record["lease_ms"], record["output"]
    return b"".join(
        (
            _OUTCOME,
            long(record["token"]),
            long(len(job_id)),
            job_id,
            long(record["slot_ms"]),
            long(record["attempt"]),
            LAST[RESULTS[record["result"]] << 1],
            _now(record["started_ms"]),
            _now(record["finished_ms"]),
            _names.get(worker) or _name(worker),
            b"\0" if error is None else _failure(error),
            b"\0\0\0" if output is None and retry_after_ms == lease_ms == 0 else long(retry_after_ms) + long(lease_ms) + _output(output),
        )
    )


def encode_stop(record: Stop) -> bytes:
    """The Stop, ready to be published."""
    return b"".join((_STOP, _string(record["job_id"]), long(record["token"]), _string(record["queue"])))


def encode_dead_letter(record: DeadLetter) -> bytes:
    """The DeadLetter, ready to be published."""
    return encode("DeadLetter", record)


def encode_dead_run(record: DeadRun) -> bytes:
    """The DeadRun, whole. The processor has an encoded Definition at hand and uses `splice_dead_run`."""
    return encode("DeadRun", record)


def splice_dead_run(job_id: str, token: int, timer_partition: int, died_ms: int, reason: str, state: State, definition: bytes) -> bytes:
    """The DeadRun around `definition`, an encoded Definition of the current schema."""
    numbers = long(token) + long(timer_partition) + long(died_ms)
    pieces = (_DEAD_RUN, _string(job_id), numbers, _string(reason), encode_state(state)[HEADER_BYTES:], definition[HEADER_BYTES:])
    return b"".join(pieces)


def encode_dead_run_closed(record: DeadRunClosed) -> bytes:
    """The DeadRunClosed, ready to be published."""
    return encode("DeadRunClosed", record)


def encode_work(work: Work) -> bytes:
    """The work alone, as it ends Schedule, Definition and Dispatch."""
    payload = work["payload"]
    policy = work["policy"]
    pieces = (_string(work["task"]), _string(work["content_type"]), long(len(payload)), payload, _headers(work["headers"]))
    return b"".join(pieces) + (b"\0" if policy is None else _policy(policy))


# --- pieces ---


def _middle(record: Schedule) -> bytes:
    """Of a Schedule, everything from `on_conflict` to `content_type`."""
    limits, recurrence, delivery, work = record["limits"], record["recurrence"], record["delivery"], record["work"]
    return b"".join(
        (
            LAST[CONFLICTS[record["on_conflict"]] << 1],
            long(record["retention_ms"]),
            _string(record["queue"]),
            b"\0" if limits is None else _limits(limits),
            b"\0" if recurrence is None else _recurrence(recurrence),
            b"\0" if delivery is None else _delivery(delivery),
            _string(work["task"]),
            _string(work["content_type"]),
        )
    )


def _head(generation: int, phase: str, attempt: int, crashes: int) -> bytes:
    head = _STATE + long(generation) + LAST[PHASES[phase] << 1] + long(attempt) + long(crashes)
    return _remember(_heads, (generation, phase, attempt, crashes), head)


def _now(now_ms: int) -> bytes:
    """A time that many records of a batch share."""
    return _nows.get(now_ms) or _remember(_nows, now_ms, long(now_ms))


def _remember(memory: dict[Any, bytes], key: Any, piece: bytes) -> bytes:
    if len(memory) >= REMEMBERED_MAX:
        memory.clear()
    memory[key] = piece
    return piece


def _name(name: str) -> bytes:
    """A string that many records share."""
    return _remember(_names, name, _string(name)) if len(name) <= REMEMBERED_BYTES_MAX else _string(name)


def _string(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    return (LAST[size << 1] if size < 8_192 else long(size)) + data


def _headers(headers: dict[str, str]) -> bytes:
    if not headers:
        return b"\0"
    return long(len(headers)) + b"".join([_string(text) for pair in headers.items() for text in pair]) + b"\0"


def _failure(error: Failure) -> bytes:
    return b"\2" + _string(error["type"]) + _string(error["message"]) + _string(error["traceback"])


def _limits(limits: Limits) -> bytes:
    return b"\2" + long(limits["expires_ms"]) + long(limits["total_timeout_ms"]) + long(limits["crashes_max"])


def _recurrence(recurrence: Recurrence) -> bytes:
    return b"".join(
        (
            b"\2",
            LAST[KINDS[recurrence["kind"]] << 1],
            long(recurrence["every_ms"]),
            _string(recurrence["expression"]),
            _string(recurrence["zone"]),
            long(recurrence["start_ms"]),
            long(recurrence["end_ms"]),
            long(recurrence["runs_max"]),
            long(recurrence["jitter_ms"]),
            LAST[MISFIRES[recurrence["misfire"]] << 1],
            long(recurrence["misfire_max"]),
            long(recurrence["grace_ms"]),
            LAST[OVERLAPS[recurrence["overlap"]] << 1],
            long(recurrence["overlap_max"]),
        )
    )


def _delivery(delivery: Delivery) -> bytes:
    return b"".join((b"\2", _string(delivery["topic"]), _output(delivery["key"]), b"\1" if delivery["tombstone"] else b"\0"))


def _terms(terms: Terms) -> bytes:
    life = b"\1" if terms["is_last_life"] else b"\0"
    return b"".join((b"\2", long(terms["crashes"]), life, long(terms["expires_ms"]), long(terms["deadline_ms"])))


def _policy(policy: Policy) -> bytes:
    pieces = (
        policy["attempts_max"],
        tuple(policy["delays_ms"]),
        policy["factor"],
        policy["delay_ms_max"],
        policy["jitter"],
        tuple(policy["give_up_on"]),
        tuple(policy["retry_on"]),
        policy["run_timeout_ms"],
    )
    return _policies.get(pieces) or _new_policy(pieces)


def _new_policy(pieces: tuple[Any, ...]) -> bytes:
    attempts_max, delays_ms, factor, delay_ms_max, jitter, give_up_on, retry_on, run_timeout_ms = pieces
    encoded = b"".join(
        (
            b"\2",
            long(attempts_max),
            _array([long(delay_ms) for delay_ms in delays_ms]),
            _double(factor + 0.0),  # which makes 0.0 of -0.0: readers take only one of the two
            long(delay_ms_max),
            _double(jitter + 0.0),
            _array([_string(name) for name in give_up_on]),
            _array([_string(name) for name in retry_on]),
            long(run_timeout_ms),
        )
    )
    return encoded if len(encoded) > REMEMBERED_BYTES_MAX else _remember(_policies, pieces, encoded)


def _array(items: list[bytes]) -> bytes:
    return long(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _trail(trail: Trail) -> bytes:
    endings = trail["endings"]
    return b"".join(
        (
            b"\2",
            long(trail["wake_ms"]),
            long(trail["lease_ms"]),
            long(trail["first_ms"]),
            _output(trail["output"]),
            _array([_ending(ending) for ending in endings]) if endings else b"\0",
            _array([long(slot_ms) for slot_ms in trail["runs"]]) if trail["runs"] else b"\0",
            long(trail["queued_ms"]),
            _array([_answer(answer) for answer in trail["answers"]]) if trail["answers"] else b"\0",
            b"\1" if trail["is_quiet"] else b"\0",
        )
    )


def _answer(answer: Answer) -> bytes:
    return long(answer["offset"]) + long(answer["taken_ms"]) + _string(answer["reason"]) + _string(answer["message"])


def _output(output: bytes | None) -> bytes:
    return b"\0" if output is None else b"\2" + long(len(output)) + output


def _ending(ending: Ending) -> bytes:
    result, worker, kind = ending["result"], ending["worker"], ending["type"]
    return b"".join(
        (
            long(ending["attempt"]),
            long(ending["token"]),
            _names.get(result) or _name(result),
            long(ending["started_ms"]),
            long(ending["ended_ms"]),
            _names.get(worker) or _name(worker),
            _names.get(kind) or _name(kind),
            _string(ending["message"]),
        )
    )
