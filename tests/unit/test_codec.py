"""What the codec refuses, and what it makes of records that another version wrote."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.admission import Inadmissible, admit
from duewheel.adapters.avro.schemas import CURRENT, Schema, make
from duewheel.adapters.avro.strict import Reader, encode, encode_as
from duewheel.core.errors import Reason, UndecodableRecord
from duewheel.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    QUEUE_CHARS_MAX,
    RECORD_BYTES_MAX,
    TASK_BYTES_MAX,
)
from duewheel.core.model import Schedule
from tests.malformed import CORPUS, SCHEDULE, VALUE, Malformed
from tests.records import TIME_MS

OUTCOME: Any = {
    "token": 1,
    "job_id": "j",
    "slot_ms": TIME_MS,
    "attempt": 1,
    "result": "FAILED",
    "started_ms": TIME_MS,
    "finished_ms": TIME_MS,
    "worker": "w",
    "error": {"type": "E", "message": "m", "traceback": "t"},
}


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_K7_malformed_commands_are_refused_with_their_reason(case: Malformed) -> None:
    with pytest.raises(UndecodableRecord) as refusal:
        codec.decode_command(case.value)
    assert refusal.value.reason == case.reason
    assert 0 < len(str(refusal.value)) < 500


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_K7_malformed_commands_take_no_memory(case: Malformed) -> None:
    size = len(case.value or b"")
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableRecord):
            codec.decode_command(case.value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000 + 4 * size


@pytest.mark.parametrize("decode", [codec.decode_state, codec.decode_outcome, codec.decode_dispatch, codec.decode_progress])
def test_other_kinds_refuse_as_typed(decode: Callable[[bytes | None], Any]) -> None:
    for value in (None, b"", b"\xc3\x01", VALUE, VALUE + b"\0", b"\xc3\x01" + bytes(8)):
        with pytest.raises(UndecodableRecord):
            decode(value)


def test_a_union_branch_counted_from_the_end_is_refused() -> None:
    value = codec.encode_outcome(OUTCOME)
    at = len(value) - len(b"\2\2E\2m\2t")
    assert value[at] == 2
    with pytest.raises(UndecodableRecord) as refusal:
        codec.decode_outcome(value[:at] + b"\1" + value[at + 1 :])
    assert refusal.value.reason == Reason.NOT_CANONICAL


def test_a_number_too_large_for_its_field_is_refused() -> None:
    value = codec.splice_dispatch(1, "j", 2**31, TIME_MS, 1, 0, TIME_MS, codec.decode_command(VALUE)[2])
    with pytest.raises(UndecodableRecord, match="32 bits") as refusal:
        codec.decode_dispatch(value)
    assert refusal.value.reason == Reason.MALFORMED


def test_W11_the_largest_job_fits_everywhere_it_travels() -> None:
    names = [f"{n:03}" for n in range(HEADERS_COUNT_MAX)]
    largest: Schedule = {
        "job_id": "j" * JOB_ID_BYTES_MAX,
        "due_ms": 2**63 - 1,
        "created_ms": 2**63 - 1,
        "on_conflict": "REPLACE",
        "retention_ms": 2**63 - 1,
        "queue": "q" * QUEUE_CHARS_MAX,
        "work": {
            "task": "t" * TASK_BYTES_MAX,
            "content_type": "application/octet-stream",
            "payload": bytes(PAYLOAD_BYTES_MAX),
            "headers": {name: "v" * (HEADERS_BYTES_MAX // HEADERS_COUNT_MAX - len(name)) for name in names},
        },
    }
    value = codec.encode_schedule(largest)
    kind, record, work = codec.decode_command(value)
    assert (kind, record) == ("schedule", largest)
    assert len(value) < RECORD_BYTES_MAX - 4_096  # what is left is for key, framing and fields to come
    definition = codec.splice_definition(2**31 - 1, value)
    assert codec.decode_definition(definition)["schedule"] == largest
    numbers = (2**31 - 1, TIME_MS, 2**31 - 1, 2**31 - 1)
    dispatch = codec.splice_dispatch(2**63 - 1, largest["job_id"], *numbers, TIME_MS, work)
    assert codec.decode_dispatch(dispatch)["work"] == largest["work"]


def test_long_names_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for n in range(50):
            work = {**SCHEDULE["work"], "task": f"{n}" * 100_000}
            codec.decode_command(encode("Schedule", {**SCHEDULE, "queue": f"{n:020}", "work": work}))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 500_000


# --- versions ---


def earlier_schedule() -> Schema:
    """A Schedule as an earlier version might have written it: without retention, with a field that is no more."""
    schema = json.loads(json.dumps(CURRENT["Schedule"].parsed, default=str))
    fields = [field for field in schema["fields"] if field["name"] != "retention_ms"]
    fields.insert(1, {"name": "colour", "type": "string"})
    return make({"type": "record", "name": "duewheel.Schedule", "fields": fields})


def test_an_earlier_version_is_read_and_becomes_todays() -> None:
    earlier = earlier_schedule()
    written = {**{name: value for name, value in SCHEDULE.items() if name != "retention_ms"}, "colour": "blue"}
    value = encode_as(earlier, written)
    reading = codec.Codec(Reader([earlier]))
    kind, record, work = reading.decode_command(value)
    assert (kind, record) == ("schedule", SCHEDULE)
    assert reading.current_command(value) == VALUE
    assert VALUE.endswith(work)
    assert reading.current_command(VALUE) is VALUE
    with pytest.raises(UndecodableRecord) as refusal:
        codec.decode_command(value)
    assert refusal.value.reason == Reason.UNKNOWN_SCHEMA


def test_an_earlier_version_is_read_as_strictly() -> None:
    earlier = earlier_schedule()
    written = {**{name: value for name, value in SCHEDULE.items() if name != "retention_ms"}, "colour": "blue"}
    value = encode_as(earlier, written)
    reading = codec.Codec(Reader([earlier]))
    for damaged, reason in (
        (value + b"\0", Reason.TRAILING_BYTES),
        (value[:-1], Reason.MALFORMED),
        (value.replace(b"\x04j1", b"\x84\x00j1", 1), Reason.NOT_CANONICAL),
    ):
        with pytest.raises(UndecodableRecord) as refusal:
            reading.decode_command(damaged)
        assert refusal.value.reason == reason


def test_a_version_that_lacks_what_is_needed_is_refused() -> None:
    narrow = make({"type": "record", "name": "duewheel.Cancel", "fields": [{"name": "created_ms", "type": "long"}]})
    with pytest.raises(UndecodableRecord, match=r"today's Cancel") as refusal:
        codec.Codec(Reader([narrow])).decode_command(encode_as(narrow, {"created_ms": 1}))
    assert refusal.value.reason == Reason.UNKNOWN_SCHEMA


# --- schemas from outside ---


def record(*fields: Any, name: str = "Schedule") -> dict[str, Any]:
    named = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(fields)]
    return {"type": "record", "name": name, "namespace": "duewheel", "fields": named}


def doubling(levels: int) -> dict[str, Any]:
    """A record whose values double with each level, without a byte."""
    inner = record("null", name=f"D{levels}")
    for level in range(levels - 1, -1, -1):
        inner = record(inner, f"duewheel.D{level + 1}", name=f"D{level}")
    return inner


HOSTILE = {
    "no JSON": "{",
    "a number": "5",
    "a list": "[]",
    "deep JSON": "[" * 100_000,
    "deep schema": '{"type":"array","items":' * 1_000 + '"int"' + "}" * 1_000,
    "another namespace": json.dumps({**record("int"), "namespace": "theirs"}),
    "another name": json.dumps(record("int", name="Other")),
    "an undefined type": json.dumps(record("Nope")),
    "items without bytes": json.dumps(record({"type": "array", "items": "null"})),
    "items of many values": json.dumps(record({"type": "array", "items": record(*["null"] * 40, "int", name="Item")})),
    "a type in itself": json.dumps(record(["null", "duewheel.Schedule"])),
    "a type in itself, later": json.dumps(record(record({"type": "map", "values": "duewheel.Schedule"}, name="Inner"))),
    "doubling": json.dumps(record(doubling(15))),
    "many fields": json.dumps(record(*["null"] * 1_000)),
    "a size below zero": json.dumps(record({"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}})),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_schema_that_could_exhaust_the_decoder_is_refused(text: str) -> None:
    with pytest.raises(Inadmissible):
        admit(text)


@pytest.mark.parametrize("kind", sorted(CURRENT))
def test_our_own_schemas_are_admitted(kind: str) -> None:
    admitted = admit(json.dumps(CURRENT[kind].parsed, default=str))
    assert (admitted.kind, admitted.header) == (kind, CURRENT[kind].header)
