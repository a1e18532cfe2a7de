"""How a job looks at one moment: a page for people, a JSON object for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Final, NamedTuple

import click

from duewheel.adapters.avro import codec
from duewheel.cli.history_lines import moment, printable
from duewheel.cli.job_view import course_lines, field, payload_of, work_lines
from duewheel.core.errors import UndecodableRecord
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import DEAD_RETENTION_MS
from duewheel.core.model import Definition, Phase, Schedule, State
from duewheel.core.past import Known, Past, Written
from duewheel.core.run_ids import run_id
from duewheel.core.store_audit import DEFINITION, STATE

_RUNS_SHOWN_MAX: Final = 10


class Seen(NamedTuple):
    """A job at a time.

    Attributes:
        definition: None where it has none, or the log is silent.
        state: None where it has none, or the log is silent; of an older generation where the job was defined anew since.
    """

    past: Past
    topic: str
    partition: int
    definition: Definition | None
    state: State | None

    @property
    def current(self) -> State | None:
        """The state, where it belongs to the definition."""
        if self.definition is None or self.state is None or self.state["generation"] != self.definition["generation"]:
            return None
        return self.state

    @property
    def phase(self) -> str | None:
        """None where the job is not known, or the log is silent on its state."""
        if self.definition is None or (self.state is None and self.past.known(STATE) is Known.REMOVED):
            return None
        return Phase.WAITING if self.current is None else self.current["phase"]

    @property
    def wake_ms(self) -> int:
        """When the owner must look at it again; 0 where only an input can change anything."""
        if self.definition is None or self.phase is None:
            return 0
        state, due_ms = self.current, self.definition["schedule"]["due_ms"]
        if state is None:
            return due_ms
        if state["trail"] is not None and state["trail"]["wake_ms"]:
            return state["trail"]["wake_ms"]
        return due_ms if state["phase"] == Phase.WAITING and not self.recurs else 0

    @property
    def recurs(self) -> bool:
        return self.definition is not None and self.definition["schedule"]["recurrence"] is not None

    @property
    def forgotten_from_ms(self) -> int:
        """From when on it may be forgotten; 0 while it goes on."""
        if self.definition is None or self.current is None or self.current["phase"] not in TERMINAL:
            return 0
        retention_ms = self.definition["schedule"]["retention_ms"]
        kept_ms = max(retention_ms, DEAD_RETENTION_MS) if self.current["phase"] == Phase.FAILED else retention_ms
        return self.current["changed_ms"] + kept_ms


def seen_lines(seen: Seen) -> Iterator[str]:
    """The page for people."""
    past = seen.past
    at = "now" if past.at_ms is None else f"at {moment(past.at_ms)}"
    yield field("job", click.style(printable(past.job_id), bold=True) + f", {at}")
    if seen.definition is None:
        yield field("known", _unknown(seen))
    else:
        schedule = seen.definition["schedule"]
        yield field("defined", f"generation {seen.definition['generation']}, {_place(seen, past.record(DEFINITION))}")
        delivery = schedule["delivery"]
        if delivery is None:
            yield field("task", printable(f"{schedule['work']['task']} @{schedule['queue']}"))
        else:
            key = "no key" if delivery["key"] is None else f"key {delivery['key'].decode(errors='backslashreplace')}"
            what = f"a record with {key}{', a tombstone,' if delivery['tombstone'] else ''} to topic {delivery['topic']}"
            yield field("delivers", printable(what))
        yield field("due", f"{moment(schedule['due_ms'])}, asked for at {moment(schedule['created_ms'])}")
        yield from _phase_lines(seen)
        yield from work_lines(schedule)
        if seen.state is not None:
            yield from course_lines(seen.state)
    yield from _silence(seen)


def _phase_lines(seen: Seen) -> Iterator[str]:
    state, phase = seen.state, seen.phase
    if phase is None:
        yield field("phase", "not known: compaction has removed what its state was then")
        return
    yield field("phase", click.style(phase, bold=True) + (_since(seen) if seen.current is not None else ", not dispatched yet"))
    if state is not None and seen.recurs and seen.current is not None:
        yield from _run_lines(seen.past.job_id, state)
    elif state is not None:
        older = "" if seen.current is not None else f", of generation {state['generation']}, which is {state['phase']}"
        crashes = f", {state['crashes']} of them took the worker along" if state["crashes"] else ""
        yield field("attempt", f"{state['attempt']}{crashes}, token {state['token']}{older}")
    if seen.wake_ms:
        what = "its next slot" if seen.recurs else "its next attempt" if phase == Phase.WAITING else "its lease ends"
        yield field("next", f"{moment(seen.wake_ms)}: {what}")
    if seen.forgotten_from_ms:
        yield field("kept", f"until {moment(seen.forgotten_from_ms)}")
    if state is not None and state["trail"] is not None and state["trail"]["output"] is not None:
        yield field("output", printable(state["trail"]["output"].decode(errors="backslashreplace")))


def _run_lines(job_id: str, state: State) -> Iterator[str]:
    """Of a job that recurs: how many runs were handed out, and by which ids to ask for those that may go on."""
    yield field("runs", f"{state['attempt']:,} handed out, each a job of its own")
    trail = state["trail"]
    if trail is None:
        return
    for slot_ms in trail["runs"][-_RUNS_SHOWN_MAX:]:
        yield field("run", f"{printable(run_id(job_id, slot_ms))}, of {moment(slot_ms)}; it went on when it was looked at last")
    if trail["queued_ms"]:
        yield field("queued", f"{moment(trail['queued_ms'])}: it waits for the run before to end")


def _since(seen: Seen) -> str:
    assert seen.state is not None
    return f" since {moment(seen.state['changed_ms'])}, {_place(seen, seen.past.record(STATE))}"


def _place(seen: Seen, record: Written | None) -> str:
    return "" if record is None else f"{seen.topic} [{seen.partition}] @{record.offset}"


def _unknown(seen: Seen) -> str:
    past, known, record = seen.past, seen.past.known(DEFINITION), seen.past.record(DEFINITION)
    if known is Known.GONE and record is not None:
        return f"no: it was forgotten at {moment(record.written_ms)}"
    if known is Known.REMOVED:
        return "cannot be told: compaction has removed what was then, if there was anything"
    after = past.after(DEFINITION)
    if after is not None:
        return f"not yet: it was defined at {moment(after.written_ms)}"
    return (
        f"no: {seen.topic} [{seen.partition}] has nothing of it; it was never scheduled, or was forgotten some days ago, "
        "or was refused: duewheel dead list --refused tells why"
    )


def _silence(seen: Seen) -> Iterator[str]:
    """Says what the log cannot tell, and what comes next that it can."""
    past = seen.past
    if past.at_ms is None or Known.REMOVED not in (past.known(DEFINITION), past.known(STATE)):
        return
    if past.complete_from is None:
        yield field("the log", "is compacted, and tells only the newest of each job")
    else:
        yield field("the log", f"is complete from {moment(past.complete_from_ms)} on; of before only the newest of each job is left")
    for kind, name in ((DEFINITION, "definition"), (STATE, "state")):
        after = past.after(kind)
        if past.known(kind) is Known.REMOVED and after is not None:
            yield field("later", f"the first {name} that is left was written at {moment(after.written_ms)}: {_told(kind, after.value)}")


def _told(kind: bytes, value: bytes | None) -> str:
    if value is None:
        return "it was forgotten"
    try:
        if kind == DEFINITION:
            return f"generation {codec.decode_definition(value)['generation']}"
        state = codec.decode_state(value)
    except UndecodableRecord as error:
        return str(error.reason)
    return f"{state['phase']}, attempt {state['attempt']}, token {state['token']}"


def seen_json(seen: Seen) -> str:
    """One JSON object, always with the same keys; null where there is nothing, or the log is silent (see `log`)."""
    past, state = seen.past, seen.state
    defined, moved = past.record(DEFINITION), past.record(STATE)
    trail = None if state is None else state["trail"]
    return json.dumps(
        {
            "job_id": past.job_id,
            "at_ms": past.at_ms,
            "known": seen.definition is not None,
            "phase": seen.phase,
            "generation": None if seen.definition is None else seen.definition["generation"],
            "wake_ms": seen.wake_ms or None,
            "forgotten_from_ms": seen.forgotten_from_ms or None,
            "definition": None if seen.definition is None else _schedule(seen.definition["schedule"]),
            "state": None if state is None else {**state, "trail": None if trail is None else {**trail, "output": _text(trail["output"])}},
            "log": {
                "topic": seen.topic,
                "partition": seen.partition,
                "definition": past.known(DEFINITION),
                "definition_offset": None if defined is None else defined.offset,
                "definition_ms": None if defined is None else defined.written_ms,
                "state": past.known(STATE),
                "state_offset": None if moved is None else moved.offset,
                "state_ms": None if moved is None else moved.written_ms,
                "complete_from_ms": None if past.complete_from is None else past.complete_from_ms,
            },
        },
        separators=(",", ":"),
    )


def _schedule(schedule: Schedule) -> dict[str, object]:
    work = schedule["work"]
    decoded, payload = payload_of(work["content_type"], work["payload"])
    encoded = None if decoded else base64.b64encode(work["payload"]).decode()
    return {**schedule, "work": {**work, "payload": payload, "payload_base64": encoded}}


def _text(output: bytes | None) -> str | None:
    return None if output is None else output.decode(errors="backslashreplace")
