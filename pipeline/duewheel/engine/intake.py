"""Reads one record of the intake topic: a command to obey, a record for another partition, or one to refuse.

Anybody may write to the intake topic, so everything is checked here once more, by the same rules as in the client. A refusal never stops
the partition: it becomes one dead letter, and what the job was before stays as it was.

Reading depends on the record alone, so it is done while the last transaction is still being committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

from duewheel.core.commands import check_cancel, check_change, check_drop, check_redrive, check_schedule
from duewheel.core.errors import Reason, RejectedJob, UndecodableRecord
from duewheel.core.limits import FOREIGN_HEADERS_BYTES_MAX
from duewheel.core.refusals import Refusal, portable_headers, refuse
from duewheel.ports import Codec, Record


class Kind(IntEnum):
    """What is to be done with a record."""

    SCHEDULE = 0
    CANCEL = 1
    REDRIVE = 2
    DROP = 3
    FORWARD = 4
    REFUSE = 5
    CHANGE = 6


# By the word of `Codec.decode_command`.
_RULES: Final[dict[str, tuple[Kind, Callable[[Any], None]]]] = {
    "schedule": (Kind.SCHEDULE, check_schedule),
    "cancel": (Kind.CANCEL, check_cancel),
    "redrive": (Kind.REDRIVE, check_redrive),
    "drop": (Kind.DROP, check_drop),
    "change": (Kind.CHANGE, check_change),
}


# A record of the intake topic, read: (kind, partition, offset, record, what, work, value). `what` is the command; for FORWARD
# the partition it belongs to and its headers; for REFUSE the refusal. `work` and `value` are a Schedule's work and the Schedule itself,
# encoded by the current schema. A plain tuple, since one is made for every job: a named one takes ten times as long.
Command: TypeAlias = tuple[Kind, int, int, Record, Any, bytes, bytes]

_KEY_BYTES_SHOWN: Final = 100


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
        decode, current, rules = self._codec.decode_command, self._codec.current_command, _RULES
        partition_of, partitions = self._partition_of, self._partitions
        commands: list[Command] = []
        for record in records:
            key, value, partition, offset = record.key(), record.value(), record.partition(), record.offset()
            try:
                if key is None:
                    raise UndecodableRecord(Reason.NO_KEY, "the record has no key; publish it under its job id, in UTF-8")
                name, command, work = decode(value)
                if command["job_id"].encode() != key:
                    raise _key_mismatch(key, command["job_id"])
                kind, check = rules[name]
                check(command)
            except (UndecodableRecord, RejectedJob) as error:
                commands.append((Kind.REFUSE, partition, offset, record, refuse(record, error), b"", b""))
                continue
            home = partition_of(key, partitions)
            if home != partition:
                commands.append(_astray(record, home))
            elif kind is Kind.SCHEDULE:
                assert value is not None
                commands.append((kind, partition, offset, record, command, work, current(value)))
            else:
                commands.append((kind, partition, offset, record, command, b"", b""))
        return commands


def _astray(record: Record, home: int) -> Command:
    """A good command on the wrong partition goes on to its own, if its headers, which are not ours, can go along."""
    partition, offset = record.partition(), record.offset()
    headers, complete = portable_headers(record)
    if complete:
        return Kind.FORWARD, partition, offset, record, (home, headers), b"", b""
    message = (
        f"the record lies on partition {partition} instead of {home} and cannot be forwarded: its Kafka headers have more than "
        f"{FOREIGN_HEADERS_BYTES_MAX:,} bytes, or a name that is not UTF-8; send fewer, or choose the partition by murmur2 of the key"
    )
    return Kind.REFUSE, partition, offset, record, Refusal(record, RejectedJob(Reason.BAD_HEADERS, message), headers), b"", b""


def _key_mismatch(key: bytes, job_id: str) -> RejectedJob:
    shown = key if len(key) <= _KEY_BYTES_SHOWN else key[:_KEY_BYTES_SHOWN] + b"..."
    message = f"the key {shown!r} is not the job id {job_id!r}; publish each command under its own job id"
    return RejectedJob(Reason.KEY_MISMATCH, message)


def unknown_queue(queue: str) -> RejectedJob:
    """The refusal of a job that nobody could ever run."""
    message = f"queue {queue!r} has no dispatch topic; make it with: duewheel topics apply --queue {queue}"
    return RejectedJob(Reason.UNKNOWN_QUEUE, message)


def not_allowed(topic: str) -> RejectedJob:
    """The refusal of a record for a topic that nobody said may be delivered to."""
    message = (
        f"records may not be delivered to topic {topic!r}: it matches none of the processors' patterns, or belongs to this installation; "
        f"start the processors with: duewheel processor --deliver-to {topic}"
    )
    return RejectedJob(Reason.TOPIC_NOT_ALLOWED, message)
