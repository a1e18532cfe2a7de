"""Reads which recurring jobs an installation has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.scan import Scan
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.model import Schedule, State
from duewheel.core.run_ids import parse
from duewheel.core.store_audit import DEFINITION, STATE
from duewheel.core.topology import Topology


def read_recurring(
    kafka: KafkaConfig, topology: Topology, begin: str, patience_s: float, on_progress: Callable[[int, int], None]
) -> dict[str, tuple[Schedule, State | None]]:
    """The definitions of recurring jobs, and where each stands; by job id.

    Reads the state topic twice, definitions and then states, so that only what recurs is held in memory.

    Args:
        begin: what their ids begin with; "" for all.
        patience_s: for how long the cluster may be away before that is an error.
        on_progress: told how many records were passed, of how many.

    Raises:
        TopicMissing: there is no state topic.
        BrokerUnavailable: it could not be read.
        UndecodableRecord: it holds what this version cannot read.
    """
    found: dict[str, tuple[int, Schedule]] = {}
    for job_id, value in _records(kafka, topology, DEFINITION + begin.encode(), patience_s, lambda n, of: on_progress(n, 2 * of)):
        definition = None if value is None else codec.decode_definition(value)
        if definition is None or definition["schedule"]["recurrence"] is None:
            found.pop(job_id, None)
        else:
            found[job_id] = definition["generation"], definition["schedule"]
    states = {
        job_id: value
        for job_id, value in _records(kafka, topology, STATE + begin.encode(), patience_s, lambda n, of: on_progress(of + n, 2 * of))
        if job_id in found
    }
    return {job_id: (schedule, _state(states.get(job_id), generation)) for job_id, (generation, schedule) in found.items()}


def _state(value: bytes | None, generation: int) -> State | None:
    state = None if value is None else codec.decode_state(value)
    return state if state is not None and state["generation"] == generation else None


def _records(
    kafka: KafkaConfig, topology: Topology, begin: bytes, patience_s: float, on_progress: Callable[[int, int], None]
) -> Iterator[tuple[str, bytes | None]]:
    """Job id and value of all records whose keys begin so, in the order of each partition; runs of recurring jobs left out."""
    with closing(Scan(kafka, topology.state, patience_s)) as scan:
        for records in scan.to_end():
            for record in records:
                key = record.key() or b""
                if key.startswith(begin):
                    job_id = key[1:].decode(errors="replace")
                    if parse(job_id) is None:
                        yield job_id, record.value()
            on_progress(scan.done, scan.count)
