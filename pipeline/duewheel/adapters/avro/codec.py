"""Records to bytes and back: what everybody else uses of Avro."""

from __future__ import annotations

from typing import Final, Literal, cast

from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES, WORK
from duewheel.adapters.avro.strict import Reader, encode, encode_as
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import Cancel, DeadLetter, Definition, Dispatch, Outcome, Progress, Schedule, State
from duewheel.core.step import Defined

_SCHEDULE: Final = CURRENT["Schedule"].header
_DEFINITION: Final = CURRENT["Definition"].header
_DISPATCH: Final = CURRENT["Dispatch"].header

_READER: Final = Reader()
# Around a Schedule or its work, Definition and Dispatch add a few numbers and the job id.
_EMBEDDING_BYTES_MAX: Final = 1_024


def encode_schedule(record: Schedule) -> bytes:
    return encode("Schedule", record)


def encode_cancel(record: Cancel) -> bytes:
    return encode("Cancel", record)


def encode_definition(record: Definition) -> bytes:
    return encode("Definition", record)


def encode_state(record: State) -> bytes:
    return encode("State", record)


def encode_progress(record: Progress) -> bytes:
    return encode("Progress", record)


def encode_dispatch(record: Dispatch) -> bytes:
    return encode("Dispatch", record)


def encode_outcome(record: Outcome) -> bytes:
    return encode("Outcome", record)


def encode_dead_letter(record: DeadLetter) -> bytes:
    return encode("DeadLetter", record)


def decode_command(
    value: bytes | None, bytes_max: int = RECORD_BYTES_MAX
) -> tuple[Literal["schedule"], Schedule, bytes] | tuple[Literal["cancel"], Cancel, bytes]:
    """What a value of the intake topic asks for.

    Returns:
        ("schedule", the command, its work encoded) or ("cancel", the command, nothing).

    Raises:
        UndecodableRecord: this and every other decoder.
    """
    kind, record = _READER.read(value, ("Schedule", "Cancel"), bytes_max)
    if kind == "Cancel":
        return "cancel", cast(Cancel, record), b""
    return "schedule", cast(Schedule, record), _work(cast(Schedule, record))


def decode_definition(value: bytes | None) -> Definition:
    return cast(Definition, _READER.read(value, ("Definition",), RECORD_BYTES_MAX + _EMBEDDING_BYTES_MAX)[1])


def decode_state(value: bytes | None) -> State:
    return cast(State, _READER.read(value, ("State",), RECORD_BYTES_MAX)[1])


def decode_progress(value: bytes | None) -> Progress:
    return cast(Progress, _READER.read(value, ("Progress",), RECORD_BYTES_MAX)[1])


def decode_dispatch(value: bytes | None) -> Dispatch:
    return cast(Dispatch, _READER.read(value, ("Dispatch",), RECORD_BYTES_MAX + _EMBEDDING_BYTES_MAX)[1])


def decode_outcome(value: bytes | None) -> Outcome:
    return cast(Outcome, _READER.read(value, ("Outcome",), RECORD_BYTES_MAX)[1])


def decode_dead_letter(value: bytes | None) -> DeadLetter:
    return cast(DeadLetter, _READER.read(value, ("DeadLetter",), DEAD_LETTER_BYTES_MAX)[1])


def splice_definition(generation: int, command: bytes) -> bytes:
    """The encoded Definition around `command`, an encoded Schedule of the current schema."""
    return _DEFINITION + _long(generation) + command[HEADER_BYTES:]


def splice_dispatch(
    token: int, job_id: str, generation: int, slot_ms: int, attempt: int, timer_partition: int, dispatched_ms: int, work: bytes
) -> bytes:
    """The encoded Dispatch around `work`, which is the work of a Schedule, encoded."""
    return (
        _DISPATCH
        + _long(token)
        + _string(job_id)
        + _long(generation)
        + _long(slot_ms)
        + _long(attempt)
        + _long(timer_partition)
        + _long(dispatched_ms)
        + work
    )


def peek_definition(value: bytes) -> Defined:
    """What the rules need of an encoded Definition."""
    record = decode_definition(value)
    schedule = record["schedule"]
    return Defined(
        record["generation"],
        schedule["due_ms"],
        schedule["queue"],
        schedule["retention_ms"],
        _work(schedule),
        encode_schedule(schedule),
    )


def _work(schedule: Schedule) -> bytes:
    return encode_as(WORK, schedule["work"])[HEADER_BYTES:]


def _long(number: int) -> bytes:
    zigzag = number << 1 ^ number >> 63
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _string(text: str) -> bytes:
    data = text.encode()
    return _long(len(data)) + data
