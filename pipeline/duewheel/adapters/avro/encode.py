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

from typing import Any, Final

from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.strict import encode
from duewheel.adapters.avro.varints import LAST, long
from duewheel.core.model import Cancel, DeadLetter, Definition, Dispatch, Failure, Outcome, Progress, Schedule, State, Work

_SCHEDULE: Final = CURRENT["Schedule"].header
_CANCEL: Final = CURRENT["Cancel"].header
_DEFINITION: Final = CURRENT["Definition"].header
_DISPATCH: Final = CURRENT["Dispatch"].header
_STATE: Final = CURRENT["State"].header
_OUTCOME: Final = CURRENT["Outcome"].header
_PROGRESS: Final = CURRENT["Progress"].header

PHASES: Final = {symbol: index for index, symbol in enumerate(CURRENT["State"].symbols("phase"))}
RESULTS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Outcome"].symbols("result"))}
CONFLICTS: Final = {symbol: index for index, symbol in enumerate(CURRENT["Schedule"].symbols("on_conflict"))}

REMEMBERED_MAX: Final = 4_096
_middles: dict[tuple[Any, ...], bytes] = {}
_heads: dict[tuple[Any, ...], bytes] = {}
_nows: dict[int, bytes] = {}
_tails: dict[tuple[int, int, int], bytes] = {}
_workers: dict[str, bytes] = {}


def encode_schedule(record: Schedule) -> bytes:
    """The Schedule, ready to be published."""
    work = record["work"]
    job_id = record["job_id"].encode()
    payload = work["payload"]
    headers = work["headers"]
    pieces = (record["on_conflict"], record["retention_ms"], record["queue"], work["task"], work["content_type"])
    middle = _middles.get(pieces) or _middle(*pieces)
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
        )
    )


def encode_cancel(record: Cancel) -> bytes:
    """The Cancel, ready to be published."""
    return _CANCEL + _string(record["job_id"]) + long(record["created_ms"])


def encode_definition(record: Definition) -> bytes:
    """The Definition, whole. The processor has an encoded Schedule at hand and uses `splice_definition`."""
    return encode("Definition", record)


def splice_definition(generation: int, command: bytes) -> bytes:
    """The Definition around `command`, an encoded Schedule of the current schema."""
    return _DEFINITION + long(generation) + command[HEADER_BYTES:]


def encode_state(record: State) -> bytes:
    """The State, for the changelog."""
    pieces = (record["generation"], record["phase"], record["attempt"], record["crashes"])
    error = record["error"]
    return b"".join(
        (
            _heads.get(pieces) or _head(*pieces),
            long(record["token"]),
            long(record["slot_ms"]),
            _now(record["changed_ms"]),
            b"\0" if error is None else _failure(error),
        )
    )


def encode_progress(record: Progress) -> bytes:
    """The Progress, for the changelog."""
    return b"".join((_PROGRESS, long(record["token"]), long(record["intake_offset"]), long(record["outcomes_offset"])))


def encode_dispatch(record: Dispatch) -> bytes:
    """The Dispatch, whole. The processor has encoded work at hand and uses `splice_dispatch`."""
    return encode("Dispatch", record)


def splice_dispatch(
    token: int, job_id: str, generation: int, slot_ms: int, attempt: int, timer_partition: int, dispatched_ms: int, work: bytes
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
            work,
        )
    )


def encode_outcome(record: Outcome) -> bytes:
    """The Outcome, ready to be published."""
    job_id = record["job_id"].encode()
    worker = record["worker"]
    error = record["error"]
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
            _workers.get(worker) or _remember(_workers, worker, _string(worker)),
            b"\0" if error is None else _failure(error),
        )
    )


def encode_dead_letter(record: DeadLetter) -> bytes:
    """The DeadLetter, ready to be published."""
    return encode("DeadLetter", record)


def encode_work(work: Work) -> bytes:
    """The work alone, as it ends Schedule, Definition and Dispatch."""
    payload = work["payload"]
    return b"".join((_string(work["task"]), _string(work["content_type"]), long(len(payload)), payload, _headers(work["headers"])))


# --- pieces ---


def _middle(on_conflict: str, retention_ms: int, queue: str, task: str, content_type: str) -> bytes:
    middle = LAST[CONFLICTS[on_conflict] << 1] + long(retention_ms) + _string(queue) + _string(task) + _string(content_type)
    return _remember(_middles, (on_conflict, retention_ms, queue, task, content_type), middle)


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
