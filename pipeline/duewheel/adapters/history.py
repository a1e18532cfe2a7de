"""Records of Duewheel's topics as entries of `core.history`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from duewheel.adapters.avro import codec
from duewheel.core import history
from duewheel.core.errors import UndecodableRecord
from duewheel.core.history import Entry, Source
from duewheel.core.topology import Topology
from duewheel.ports import Record

_DEFINITION: Final = b"d"
_STATE: Final = b"s"


class Historian:
    """Tells what the records of one installation mean.

    Args:
        topology: the installation.
        jobs: tell of these job ids only, without decoding what belongs to others; empty for all.
    """

    def __init__(self, topology: Topology, jobs: Collection[str] = ()) -> None:
        self._topology = topology
        self._keys = {job.encode() for job in jobs}
        self._dispatch_prefix = topology.dispatch("")

    def reads(self, topic: str) -> bool:
        """Whether `topic` is one that tells of this installation's jobs."""
        topology = self._topology
        own = {topology.intake, topology.state, topology.outcomes, topology.dead_letter, topology.control}
        return topic in own or topic.startswith(self._dispatch_prefix)

    def entry(self, record: Record) -> Entry | None:
        """What `record` says, or None where it says nothing of interest. A record that cannot be read is an entry too."""
        topic, key = record.topic(), record.key()
        if topic == self._topology.state:
            kind, key = (key[:1], key[1:]) if key else (b"", None)
            if kind not in (_DEFINITION, _STATE):
                return None  # how far the owner has come
        else:
            kind = b""
        if self._keys and key not in self._keys:
            return None
        source = Source(topic=topic, partition=record.partition(), offset=record.offset(), written_ms=record.timestamp()[1])
        job_id = key.decode(errors="backslashreplace") if key is not None else None
        try:
            return self._decoded(source, kind, job_id, record.value())
        except UndecodableRecord as error:
            return history.unreadable_entry(source, job_id, error.reason, str(error))

    def _decoded(self, source: Source, kind: bytes, job_id: str | None, value: bytes | None) -> Entry | None:
        topology = self._topology
        if source.topic == topology.intake:
            return _command(source, value)
        if source.topic == topology.state:
            assert job_id is not None
            if value is None:
                return history.forgotten_entry(source, job_id) if kind == _DEFINITION else None
            if kind == _DEFINITION:
                return history.definition_entry(source, codec.decode_definition(value))
            return history.state_entry(source, job_id, codec.decode_state(value))
        if source.topic == topology.outcomes:
            return history.outcome_entry(source, codec.decode_outcome(value))
        if source.topic == topology.dead_letter:
            return _of_dead_letter_topic(source, job_id, value)
        if source.topic == topology.control:
            return history.stop_entry(source, codec.decode_stop(value))
        queue = source.topic.removeprefix(self._dispatch_prefix)
        return history.dispatch_entry(source, queue, codec.decode_dispatch(value))


def _command(source: Source, value: bytes | None) -> Entry:
    command = codec.decode_command(value)
    match command[0]:
        case "schedule":
            return history.schedule_entry(source, command[1])
        case "cancel":
            return history.cancel_entry(source, command[1])
        case "redrive":
            return history.redrive_entry(source, command[1])
        case "drop":
            return history.drop_entry(source, command[1])
        case "change":
            return history.change_entry(source, command[1])


def _of_dead_letter_topic(source: Source, job_id: str | None, value: bytes | None) -> Entry | None:
    decoded = codec.decode_dead_letter_topic(value)
    match decoded[0]:
        case "dead_run":
            return history.dead_run_entry(source, decoded[1])
        case "closed":
            return history.closed_entry(source, decoded[1])
        case "letter":
            return history.dead_letter_entry(source, job_id, decoded[1])
