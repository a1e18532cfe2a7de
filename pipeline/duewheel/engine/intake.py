"""Reads one record of the intake topic: a command to obey, a record for another partition, or one to refuse.

Anybody may write to the intake topic, so everything is checked here once more, by the same rules as in the client. A refusal never stops
the partition: it becomes one dead letter, and what the job was before stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from duewheel.core.commands import check_cancel, check_schedule
from duewheel.core.errors import Reason, RejectedJob, UndecodableRecord
from duewheel.core.limits import RECORD_BYTES_MAX
from duewheel.core.model import DeadLetter
from duewheel.core.step import Step
from duewheel.ports import Codec, Record


class Misrouted(Exception):
    """The record belongs to the timer partition `partition`: its producer partitions otherwise than Kafka's Java client."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


class CommandReader:
    """Applies intake records to steps.

    Args:
        codec: decodes commands.
        partition_of: the timer partition of a key, given the number of partitions.
        partitions: how many timer partitions there are.
        is_queue: whether a queue of this name has a dispatch topic.
    """

    def __init__(self, codec: Codec, partition_of: Callable[[bytes, int], int], partitions: int, is_queue: Callable[[str], bool]) -> None:
        self._decode = codec.decode_command
        self._partition_of = partition_of
        self._partitions = partitions
        self._is_queue = is_queue

    def apply(self, record: Record, step: Step) -> None:
        """Applies the command in `record` to `step`.

        Raises:
            UndecodableRecord: its bytes cannot be read.
            RejectedJob: it breaks a rule.
            Misrouted: it belongs to another partition.
        """
        key, value = record.key(), record.value()
        if key is None:
            raise UndecodableRecord(Reason.NO_KEY, "the record has no key; publish it under its job id, in UTF-8")
        kind, command, work = self._decode(value)
        if command["job_id"].encode() != key:
            message = f"the key {key!r} is not the job id {command['job_id']!r}; publish each command under its own job id"
            raise RejectedJob(Reason.KEY_MISMATCH, message)
        if kind == "schedule":
            check_schedule(command)
        else:
            check_cancel(command)
        partition = self._partition_of(key, self._partitions)
        if partition != step.partition:
            raise Misrouted(partition)
        if kind == "cancel":
            step.cancel(command)
            return
        if not self._is_queue(command["queue"]):
            message = f"queue {command['queue']!r} has no dispatch topic; make it with: duewheel topics apply --queue {command['queue']}"
            raise RejectedJob(Reason.UNKNOWN_QUEUE, message)
        assert value is not None
        step.schedule(command, work, value)


def dead_letter(record: Record, error: UndecodableRecord | RejectedJob, now_ms: int) -> DeadLetter:
    """What is kept of a record that was refused."""
    key, value = record.key(), record.value()
    return {
        "reason": error.reason,
        "message": str(error),
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "at_ms": now_ms,
        "key": key,
        "value": None if value is None else value[:RECORD_BYTES_MAX],
        "headers": [{"name": name, "value": content} for name, content in record.headers() or []],
    }
