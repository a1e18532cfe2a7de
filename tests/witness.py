"""Records of Duewheel's topics as events of a history, whichever broker they lie on; and what witnesses make of a changelog.

    event_of(record, topology)       Dispatched(at_ms=…, job_id="a", token=77, …), or None where it tells nothing that is judged
    snapshots(3, records, …)         timer partition 3 as the fold of its changelog, and as the engine restores it
    definitions(commands, 8)         how its jobs are defined, as their commands alone say

The simulator and the tests on real processes share it, so that the checker is told the same of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.store import Disk, MemoryStore
from duewheel.adapters.memory.world import Process, World
from duewheel.core.errors import UndecodableRecord
from duewheel.core.model import OnConflict
from duewheel.core.topology import Topology, partition_of
from duewheel.engine.partition import DEFINITION, STATE, Partition
from duewheel.ports import Record
from duewheel.proof.history import (
    Answered,
    DeadLettered,
    DeathClosed,
    Defined,
    Delivered,
    Dispatched,
    Event,
    Forgotten,
    OutcomeRecorded,
    RunDied,
    Snapshot,
    StateWritten,
)

_JOBS_MAX: Final = 10**7


def event_of(record: Record, topology: Topology) -> Event | None:
    """What a record says that owners or workers have committed; None for all others."""
    topic = record.topic()
    if topic == topology.state:
        return _of_state(record)
    if topic == topology.outcomes:
        o = codec.decode_outcome(record.value())
        at = record.timestamp()[1], record.partition(), record.offset()
        return OutcomeRecorded(*at, o["job_id"], o["token"], o["result"], o["lease_ms"])
    if topic == topology.dead_letter:
        return _dead(record)
    if topic.startswith(topology.dispatch("")):
        d = codec.decode_dispatch(record.value())
        crashes = d["terms"]["crashes"] if d["terms"] else 0
        where = (record.timestamp()[1], topic, record.partition(), record.offset())
        return Dispatched(*where, d["timer_partition"], d["job_id"], d["generation"], d["token"], d["attempt"], d["slot_ms"], crashes)
    headers = dict(record.headers() or ())
    if job_id := headers.get("duewheel-job-id"):
        slot_ms, token = (int(headers[name] or b"") for name in ("duewheel-slot-ms", "duewheel-token"))
        return Delivered(record.timestamp()[1], topic, record.partition(), record.offset(), job_id.decode(), slot_ms, token)
    return None


def answers_of(record: Record, topology: Topology, actions: Mapping[tuple[int, int], str]) -> Iterator[Answered]:
    """What a state record says became of commands that were to change its job.

    Args:
        actions: as `actions_of` gives them.
    """
    key, value = record.key() or b"", record.value()
    if record.topic() != topology.state or key[:1] != STATE or value is None:
        return
    trail = codec.decode_state(value)["trail"]
    at_ms, partition = record.timestamp()[1], record.partition()
    for answer in [] if trail is None else trail["answers"]:
        command = answer["offset"]
        yield Answered(at_ms, partition, record.offset(), key[1:].decode(), command, actions[partition, command], answer["reason"])


def actions_of(commands: Iterable[Record]) -> dict[tuple[int, int], str]:
    """What those of these commands ask for that are to change a job, by partition and offset."""
    found = {}
    for record in commands:
        try:
            decoded = codec.decode_command(record.value())
        except UndecodableRecord:
            continue
        if decoded[0] == "change":
            found[record.partition(), record.offset()] = decoded[1]["action"]
    return found


def snapshots(
    number: int, changelog: Sequence[Record], start: int, end: int, stores: Mapping[str, Mapping[bytes, bytes]], at_ms: int
) -> Iterator[Snapshot]:
    """A timer partition as its witnesses know it: the stores, by name; the fold of its changelog; and what the engine makes of that in an
    empty store.

    Args:
        changelog: all of its records, in order.
        start, end: where the changelog begins and ends.
    """
    fold: dict[bytes, bytes] = {}
    for record in changelog:
        key, value = record.key(), record.value()
        assert key is not None
        if value is None:
            fold.pop(key, None)
        else:
            fold[key] = value
    rebuilt = MemoryStore(Process(World(), "rebuild"), Disk(), number, "rebuild")
    partition = Partition(number, rebuilt, codec)
    offset = partition.begin_replay(start, end, None, at_ms)
    partition.replay([record for record in changelog if record.offset() >= offset], end, at_ms)
    witnesses = {**stores, "fold": fold, "rebuild": dict(rebuilt.records(b"", b"~", _JOBS_MAX))}
    for witness, jobs in witnesses.items():
        yield Snapshot(at_ms, "the end", number, witness, {f"{key!r}": value.hex() for key, value in jobs.items()})


def definitions(commands: Iterable[Record], partitions: int) -> dict[str, dict[str, Any]]:
    """How each job of a timer partition is defined in the end: a model of the engine that knows the commands alone, and five lines.

    Only of jobs that were never forgotten: when that happens is a matter of time, which commands do not tell.

    Args:
        commands: the records of the intake partition in order, but for those that were refused.
        partitions: how many timer partitions there are.
    """
    jobs: dict[str, dict[str, Any]] = {}
    for record in commands:
        decoded: tuple[str, Any, bytes] = codec.decode_command(record.value())
        name, command, _ = decoded
        if name != "schedule" or partition_of(record.key() or b"", partitions) != record.partition():
            continue
        job_id, value = command["job_id"], (record.value() or b"").hex()
        known = jobs.get(job_id)
        if known is None or (command["on_conflict"] == OnConflict.REPLACE and known["command"] != value):
            jobs[job_id] = {"generation": 1 if known is None else known["generation"] + 1, "command": value}
    return jobs


def definition_of(value: bytes) -> dict[str, Any]:
    """A definition of the changelog, as `definitions` tells it."""
    known = codec.peek_definition(value)
    return {"generation": known.generation, "command": known.command.hex()}


def _of_state(record: Record) -> Event | None:
    key, value, at_ms = record.key() or b"", record.value(), record.timestamp()[1]
    kind, job_id = key[:1], key[1:].decode()
    where = (at_ms, record.partition(), record.offset(), job_id)
    if kind == DEFINITION and value is not None:
        definition = codec.decode_definition(value)
        schedule = definition["schedule"]
        told = (definition["generation"], schedule["due_ms"], schedule["created_ms"], schedule["recurrence"])
        return Defined(*where, *told, schedule["delivery"] is not None)
    if kind == STATE and value is None:
        return Forgotten(*where)
    if kind == STATE and value is not None:
        s = codec.decode_state(value)
        wake_ms, queued_ms = (0, 0) if s["trail"] is None else (s["trail"]["wake_ms"], s["trail"]["queued_ms"])
        generation, phase, token, slot_ms = s["generation"], s["phase"], s["token"], s["slot_ms"]
        return StateWritten(*where, generation, phase, token, slot_ms, s["attempt"], s["crashes"], wake_ms, s["changed_ms"], queued_ms)
    return None


def _dead(record: Record) -> Event:
    name, content = codec.decode_dead_letter_topic(record.value())
    told: Any = content
    at_ms = record.timestamp()[1]
    if name == "dead_run":
        return RunDied(at_ms, told["job_id"], told["token"], told["reason"], told["state"]["crashes"])
    if name == "closed":
        return DeathClosed(at_ms, told["job_id"], told["token"], told["how"])
    job_id = None if told["key"] is None else told["key"].decode(errors="replace")
    return DeadLettered(at_ms, told["topic"], told["partition"], told["offset"], told["reason"], job_id)
