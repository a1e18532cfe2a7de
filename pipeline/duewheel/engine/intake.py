"""Reads one record of the intake topic: a command to obey, a record for another partition, or one to refuse.

Anybody may write to the intake topic, so everything is checked here once more, by the same rules as in the client. A refusal never stops
the partition: it becomes one dead letter, and what the job was before stays as it was.

Reading depends on the record alone, so it is done while the last transaction is still being committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import methodcaller
from typing import Any, Final, TypeAlias

from duewheel.core.commands import check_cancel, check_schedule
from duewheel.core.errors import Reason, RejectedJob, UndecodableRecord
from duewheel.core.limits import ERROR_MESSAGE_CHARS_MAX, FOREIGN_HEADERS_BYTES_MAX, FOREIGN_KEY_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import DeadLetter
from duewheel.ports import Codec, Record


class Kind(IntEnum):
    """What is to be done with a record."""

    SCHEDULE = 0
    CANCEL = 1
    FORWARD = 2
    REFUSE = 3


# A record of the intake topic, read: (kind, partition, offset, record, what, work, value). `what` is the Schedule or Cancel; for FORWARD
# the partition it belongs to; for REFUSE the error. `work` and `value` are a Schedule's work and the Schedule itself, encoded by the
# current schema. A plain tuple, since one is made for every job: a named one takes ten times as long.
Command: TypeAlias = tuple[Kind, int, int, Record, Any, bytes, bytes]

Headers: TypeAlias = list[tuple[str, bytes | None]]

_HEADER_OVERHEAD_BYTES: Final = 8  # lengths and array blocks, at most
_KEY_BYTES_SHOWN: Final = 100

# record.headers(), so called that Python looks at the answer. For a name that is not UTF-8 confluent-kafka answers with an exception and a
# broken list at once. A call that the interpreter has specialized does not notice, and touching the list ends the process; so does asking
# a second time.
_ask_headers: Final = methodcaller("headers")


class CommandReader:
    """Reads intake records.

    Args:
        codec: decodes commands.
        partition_of: the timer partition of a key, given the number of partitions.
        partitions: how many timer partitions there are.
    """

    def __init__(self, codec: Codec, partition_of: Callable[[bytes, int], int], partitions: int) -> None:
        self._codec = codec
        self._partition_of = partition_of
        self._partitions = partitions

    def read(self, records: Sequence[Record]) -> list[Command]:
        """What is to be done with each of `records`."""
        decode, current, partition_of, partitions = (
            self._codec.decode_command,
            self._codec.current_command,
            self._partition_of,
            self._partitions,
        )
        commands: list[Command] = []
        for record in records:
            key, value, partition, offset = record.key(), record.value(), record.partition(), record.offset()
            try:
                if key is None:
                    raise UndecodableRecord(Reason.NO_KEY, "the record has no key; publish it under its job id, in UTF-8")
                kind, command, work = decode(value)
                if command["job_id"].encode() != key:
                    raise _key_mismatch(key, command["job_id"])
                if kind == "schedule":
                    check_schedule(command)
                else:
                    check_cancel(command)
            except (UndecodableRecord, RejectedJob) as error:
                commands.append((Kind.REFUSE, partition, offset, record, error, b"", b""))
                continue
            home = partition_of(key, partitions)
            if home != partition:
                commands.append(_astray(record, home))
            elif kind == "schedule":
                assert value is not None
                commands.append((Kind.SCHEDULE, partition, offset, record, command, work, current(value)))
            else:
                commands.append((Kind.CANCEL, partition, offset, record, command, b"", b""))
        return commands


def _astray(record: Record, home: int) -> Command:
    """A good command on the wrong partition goes on to its own, if its headers, which are not ours, can go along."""
    partition, offset = record.partition(), record.offset()
    _, complete = _portable_headers(record)
    if complete:
        return Kind.FORWARD, partition, offset, record, home, b"", b""
    message = (
        f"the record lies on partition {partition} instead of {home} and cannot be forwarded: its Kafka headers have more than "
        f"{FOREIGN_HEADERS_BYTES_MAX:,} bytes, or a name that is not UTF-8; send fewer, or choose the partition by murmur2 of the key"
    )
    return Kind.REFUSE, partition, offset, record, RejectedJob(Reason.BAD_HEADERS, message), b"", b""


def _key_mismatch(key: bytes, job_id: str) -> RejectedJob:
    shown = key if len(key) <= _KEY_BYTES_SHOWN else key[:_KEY_BYTES_SHOWN] + b"..."
    message = f"the key {shown!r} is not the job id {job_id!r}; publish each command under its own job id"
    return RejectedJob(Reason.KEY_MISMATCH, message)


def unknown_queue(queue: str) -> RejectedJob:
    """The refusal of a job that nobody could ever run."""
    message = f"queue {queue!r} has no dispatch topic; make it with: duewheel topics apply --queue {queue}"
    return RejectedJob(Reason.UNKNOWN_QUEUE, message)


def dead_letter(record: Record, error: UndecodableRecord | RejectedJob, now_ms: int) -> DeadLetter:
    """What is kept of a record that was refused: its value whole, and of key and headers what a dead letter has room for."""
    key, value = record.key(), record.value()
    headers, _ = _portable_headers(record)
    return {
        "reason": error.reason,
        "message": str(error)[:ERROR_MESSAGE_CHARS_MAX],
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "at_ms": now_ms,
        "key": None if key is None else key[:FOREIGN_KEY_BYTES_MAX],
        "value": None if value is None else value[:RECORD_BYTES_MAX],
        "headers": [{"name": name, "value": content} for name, content in headers],
    }


def _portable_headers(record: Record) -> tuple[Headers, bool]:
    """The record's Kafka headers as far as there is room for them elsewhere, and whether these are all."""
    try:
        headers: Headers = _ask_headers(record) or []
    except (UnicodeDecodeError, SystemError):
        return [], False
    kept: Headers = []
    left_bytes = FOREIGN_HEADERS_BYTES_MAX
    for name, content in headers:
        left_bytes -= len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD_BYTES
        if left_bytes < 0:
            return kept, False
        kept.append((name, content))
    return kept, True
