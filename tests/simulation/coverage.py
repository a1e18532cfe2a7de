"""What a set of seeds must have exercised to prove anything: each kind of fault, and each thing that people and strangers do.

A fault counts when it was done; what others do counts when it had its effect, as the topics show it. With a few hundred seeds nothing of
all this is missing; where something is, the set is vacuous, and fails. A single seed may well do nothing at all: with the queue gone all
the time no job is taken, and while all workers are held up no handler begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from duewheel.core.errors import Reason
from duewheel.core.model import Closing, Phase, Result
from duewheel.core.run_ids import parse
from duewheel.core.step import Reason as Died
from duewheel.core.trail import expires_ms
from duewheel.proof.history import (
    Answered,
    BadRecordWritten,
    DeadLettered,
    DeathClosed,
    Defined,
    Delivered,
    EnqueueInvoked,
    Event,
    Forgotten,
    OutcomeRecorded,
    RunDied,
    Snapshot,
    Started,
    StateWritten,
)
from tests.simulation.site import OUT, QUEUE, TOPOLOGY, Site
from tests.simulation.weather import AT_CALLS, AT_TIMES, DOWNTIME, OFFSETS_RESET

# So many seeds must do everything. The rarest is a commit of unknown outcome that lands later.
SEEDS_MIN: Final = 300

DEEDS: Final = (
    "bad command refused",
    "bad outcome refused",
    "bad dispatch refused",
    "stray command forwarded",
    "command of a missing queue refused",
    "job forgotten",
    "job id used anew",
    "dead run redriven",
    "dead run dropped",
    "job paused",
    "paused job resumed",
    "job run at once",
    "job updated",
    "change of what runs refused",
    "change of what is over refused",
    "update refused by the rules",
    "expired too early by a worker's clock",
    "dispatch deleted with its queue",
    "job asked for",
    "handler began",
    "store compared",
    "record delivered",
    "record of a slot delivered",
    "record refused by its topic",
    "record waited for its topic",
    DOWNTIME,
    "recurring job asked for",
    "recurring job redefined, same anchor",
    "recurring job redefined, other anchor",
    "recurring job cancelled",
    "recurring job over by itself",
    "recurring job forgotten",
    "command refused, its job being known",
    "slot run",
    "slot missed",
    "slot overlapped",
    "slot queued",
    "slot's run replaced",
    "slot's run redriven",
    f"{OFFSETS_RESET}: {TOPOLOGY.processor_group}",
    f"{OFFSETS_RESET}: {TOPOLOGY.worker_group(QUEUE)}",
)
_OBEYED: Final = {"PAUSE": "job paused", "RESUME": "paused job resumed", "RUN_NOW": "job run at once", "UPDATE": "job updated"}
_REFUSED: Final = {
    "running": "change of what runs refused",
    "over": "change of what is over refused",
    "unknown": "change of an unknown job refused",
}
_BAD: Final = {TOPOLOGY.intake: DEEDS[0], TOPOLOGY.outcomes: DEEDS[1], TOPOLOGY.dispatch(QUEUE): DEEDS[2]}


def missing(met: Mapping[str, int]) -> list[str]:
    """What did not happen in a set of seeds, of which `met` counts what did."""
    return [kind for kind in (*AT_CALLS, *AT_TIMES, *DEEDS) if not met.get(kind)]


def deeds(history: Sequence[Event], site: Site, strays: Collection[str]) -> Counter[str]:
    """What people and strangers did, and clocks and queues did to jobs, by kind."""
    met = Counter[str]({"stray command forwarded": len(strays)})
    bad, letters = set(), []
    limits, forgotten = {}, {}
    for event in history:
        if isinstance(event, BadRecordWritten):
            bad.add((event.topic, event.partition, event.offset))
        elif isinstance(event, DeadLettered):
            letters.append((event.topic, event.partition, event.offset))
            met["command of a missing queue refused"] += event.reason == "unknown_queue" and event.job_id is not None
        elif isinstance(event, EnqueueInvoked):
            met["job asked for"] += 1
            limits[event.job_id] = event.limits
        elif isinstance(event, Started):
            met["handler began"] += 1
        elif isinstance(event, Snapshot):
            met["store compared"] += event.witness == "store"
        elif isinstance(event, Forgotten):
            met["job forgotten"] += 1
            forgotten[event.job_id] = event.offset
        elif isinstance(event, DeathClosed):
            met[f"dead run {event.how.lower()}"] += 1
    met.update(_of_records(history))
    met.update(_answer(event) for event in history if isinstance(event, Answered))
    for event in history:
        if isinstance(event, Defined):
            met["job id used anew"] += event.offset > forgotten.get(event.job_id, event.offset)
        elif isinstance(event, OutcomeRecorded) and event.result == Result.EXPIRED:
            met["expired too early by a worker's clock"] += event.at_ms < expires_ms(limits.get(event.job_id))
    met.update(_BAD[letter[0]] for letter in letters if letter in bad)
    met.update(_of_slots(history, site))
    met["dispatch deleted with its queue"] += sum(len(log.kept) for _, log in site.deleted)
    return met


def _of_records(history: Collection[Event]) -> Counter[str]:
    """What became of records to deliver."""
    delivered = [event for event in history if isinstance(event, Delivered)]
    of_slots = sum(parse(event.job_id) is not None for event in delivered)
    late = sum(event.topic == OUT[-1] and event.at_ms > event.slot_ms + 1_000 for event in delivered)
    refused = sum(isinstance(event, RunDied) and event.reason == Died.REFUSED for event in history)
    counts = len(delivered), of_slots, late, refused
    kinds = "record delivered", "record of a slot delivered", "record waited for its topic", "record refused by its topic"
    return Counter(dict(zip(kinds, counts, strict=True)))


def _of_slots(history: Sequence[Event], site: Site) -> Counter[str]:
    """What became of jobs that recur, and of their slots."""
    met = Counter[str]({"slot missed": site.slots_missed, "slot overlapped": site.slots_overlapped})
    anchors: dict[str, int] = {}
    for event in history:
        if isinstance(event, DeadLettered):
            met["command refused, its job being known"] += event.reason == Reason.CONFLICT
        elif isinstance(event, EnqueueInvoked):
            met["recurring job asked for"] += event.recurrence is not None
        elif isinstance(event, Defined) and event.recurrence is not None:
            before_ms = anchors.get(event.job_id, 0) if event.generation > 1 else 0
            met["recurring job redefined, same anchor"] += before_ms == event.due_ms
            met["recurring job redefined, other anchor"] += 0 < before_ms != event.due_ms
            anchors[event.job_id] = event.due_ms
        elif isinstance(event, Defined):
            met["slot run"] += parse(event.job_id) is not None
        elif isinstance(event, StateWritten) and event.job_id in anchors:
            met["recurring job cancelled"] += event.phase == Phase.CANCELLED
            met["recurring job over by itself"] += event.phase == Phase.SUCCEEDED
            met["slot queued"] += event.queued_ms > 0
        elif isinstance(event, StateWritten):
            met["slot's run replaced"] += event.phase == Phase.CANCELLING and parse(event.job_id) is not None
        elif isinstance(event, Forgotten):
            met["recurring job forgotten"] += event.job_id in anchors
        elif isinstance(event, DeathClosed):
            met["slot's run redriven"] += event.how == Closing.REDRIVEN and parse(event.job_id) is not None
    return met


def _answer(event: Answered) -> str:
    return _REFUSED.get(event.reason, "update refused by the rules") if event.reason else _OBEYED[event.action]
