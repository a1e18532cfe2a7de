"""What the codec refuses, and what it makes of records that another version wrote."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.adapters.avro import decode as decoding
from duewheel.adapters.avro import encode as encoding
from duewheel.adapters.avro.admission import Inadmissible, admit
from duewheel.adapters.avro.encode import REMEMBERED_MAX, encode_work
from duewheel.adapters.avro.schemas import CURRENT, Schema, load, make
from duewheel.adapters.avro.skim import VALUES_MAX
from duewheel.adapters.avro.strict import Reader, encode, encode_as
from duewheel.core.errors import Reason, UndecodableRecord
from duewheel.core.limits import (
    DEAD_LETTER_BYTES_MAX,
    ENDING_MESSAGE_CHARS_MAX,
    ENDINGS_MAX,
    ERROR_MESSAGE_CHARS_MAX,
    ERROR_TRACEBACK_CHARS_MAX,
    ERROR_TYPE_CHARS_MAX,
    EXPRESSION_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    QUEUE_CHARS_MAX,
    RECORD_BYTES_MAX,
    RETRY_CLASSES_BYTES_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAYS_MAX,
    TASK_BYTES_MAX,
    ZONE_BYTES_MAX,
)
from duewheel.core.model import Policy, Recurrence, Schedule, State, Terms
from duewheel.resources import folder
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
    "retry_after_ms": 0,
    "lease_ms": 0,
    "output": None,
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


DECODERS = [
    codec.decode_state,
    codec.decode_outcome,
    codec.decode_dispatch,
    codec.decode_progress,
    codec.decode_stop,
    codec.decode_dead_run,
    codec.decode_dead_run_closed,
    codec.decode_dead_letter_topic,
]


@pytest.mark.parametrize("decode", DECODERS)
def test_other_kinds_refuse_as_typed(decode: Callable[[bytes | None], Any]) -> None:
    for value in (None, b"", b"\xc3\x01", VALUE, VALUE + b"\0", b"\xc3\x01" + bytes(8)):
        with pytest.raises(UndecodableRecord):
            decode(value)


def test_a_union_branch_counted_from_the_end_is_refused() -> None:
    value = codec.encode_outcome(OUTCOME)
    at = len(value) - len(b"\2\2E\2m\2t\0\0\0")
    assert value[at] == 2
    with pytest.raises(UndecodableRecord) as refusal:
        codec.decode_outcome(value[:at] + b"\1" + value[at + 1 :])
    assert refusal.value.reason == Reason.NOT_CANONICAL


def test_a_number_too_large_for_its_field_is_refused() -> None:
    value = codec.splice_dispatch(1, "j", 2**31, TIME_MS, 1, 0, TIME_MS, None, codec.decode_command(VALUE)[2])
    with pytest.raises(UndecodableRecord, match="32 bits") as refusal:
        codec.decode_dispatch(value)
    assert refusal.value.reason == Reason.MALFORMED


TERMS: Any = {"crashes": 1, "is_last_life": True, "expires_ms": 0, "deadline_ms": 0}
TERMS_BYTES = b"\2\2\1\0\0"
ENDING: Any = {
    "attempt": 1,
    "token": 7,
    "result": "RETRY",
    "started_ms": 0,
    "ended_ms": TIME_MS,
    "worker": "w",
    "type": "E",
    "message": "m",
}
STATE: Any = {
    "generation": 1,
    "phase": "WAITING",
    "attempt": 1,
    "crashes": 0,
    "token": 7,
    "slot_ms": TIME_MS,
    "changed_ms": TIME_MS,
    "error": None,
    "trail": {
        "wake_ms": TIME_MS,
        "lease_ms": 0,
        "first_ms": 0,
        "output": None,
        "endings": [ENDING],
        "runs": [],
        "queued_ms": 0,
        "answers": [],
        "is_quiet": False,
    },
}


def dispatch(terms: Any, work: bytes = VALUE[VALUE.index(b"\2t ") :]) -> bytes:
    return codec.splice_dispatch(1, "j", 1, TIME_MS, 1, 0, TIME_MS, terms, work)


@pytest.mark.parametrize(
    "terms,reason",
    [
        (b"\1\2\1\0\0", Reason.NOT_CANONICAL),
        (b"\2\2\2\0\0", Reason.NOT_CANONICAL),
        (b"\2\2\xff\0\0", Reason.NOT_CANONICAL),
        (b"\2\x82\0\1\0\0", Reason.NOT_CANONICAL),
        (b"\2\2\1\x80\0\0", Reason.NOT_CANONICAL),
        (b"\2\2\1\0", Reason.MALFORMED),
        (b"\4\2\1\0\0", Reason.MALFORMED),
    ],
    ids=["branch minus 1", "boolean 2", "boolean 255", "a padded number", "a padded zero", "a field missing", "branch 2"],
)
def test_terms_are_read_strictly(terms: bytes, reason: Reason) -> None:
    value = dispatch(TERMS)
    assert value.count(TERMS_BYTES) == 1
    with pytest.raises(UndecodableRecord) as refusal:
        codec.decode_dispatch(value.replace(TERMS_BYTES, terms))
    assert refusal.value.reason == reason


@pytest.mark.parametrize(
    "decode,value",
    [
        (
            codec.decode_command,
            codec.encode_schedule({**SCHEDULE, "limits": {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 2**31}}),
        ),
        (codec.decode_dispatch, dispatch({**TERMS, "crashes": 2**31})),
        (
            codec.decode_state,
            codec.encode_state(STATE | {"trail": {**STATE["trail"], "endings": [ENDING, {**ENDING, "attempt": -(2**32)}]}}),
        ),
    ],
    ids=["limits", "terms", "endings"],
)
def test_a_number_too_large_for_its_field_is_refused_wherever_it_lies(decode: Callable[[bytes], Any], value: bytes) -> None:
    with pytest.raises(UndecodableRecord, match="32 bits") as refusal:
        decode(value)
    assert refusal.value.reason == Reason.MALFORMED


def guarded(**changes: Any) -> Schedule:
    policy: Any = {"attempts_max": 0, "delays_ms": [], "factor": 1.0, "delay_ms_max": 0, "jitter": 0.0, "give_up_on": []}
    policy |= {"retry_on": [], "run_timeout_ms": 0, **changes}
    return {**SCHEDULE, "work": {**SCHEDULE["work"], "policy": policy}}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_factor_that_is_no_number_is_refused(number: float) -> None:
    for record in (guarded(factor=number), guarded(jitter=number)):
        with pytest.raises(UndecodableRecord, match="double") as refusal:
            codec.decode_command(codec.encode_schedule(record))
        assert refusal.value.reason == Reason.MALFORMED
        with pytest.raises(UndecodableRecord, match="double"):
            codec.decode_dispatch(dispatch(None, encode_work(record["work"])))


def test_equal_policies_are_equal_bytes() -> None:
    plain = codec.encode_schedule(guarded(factor=2.0, jitter=0.0))
    assert codec.encode_schedule(guarded(factor=2, jitter=-0.0)) == plain
    assert codec.decode_command(plain)[1] == guarded(factor=2.0, jitter=0.0)


def test_a_changed_policy_is_not_taken_for_the_remembered_one() -> None:
    record = guarded(delays_ms=[1, 2])
    before = codec.encode_schedule(record)
    assert record["work"]["policy"] is not None
    record["work"]["policy"]["delays_ms"].append(3)
    assert codec.decode_command(codec.encode_schedule(record))[1] == record != codec.decode_command(before)[1]


@pytest.mark.parametrize("name,item", [("delays_ms", 0), ("give_up_on", "")])
def test_a_list_of_the_smallest_items_takes_memory_by_its_size(name: str, item: Any) -> None:
    count_max = VALUES_MAX - 10  # there are other lists besides
    value = codec.encode_schedule(guarded(**{name: [item] * count_max}))
    tracemalloc.start()
    try:
        record: Any = codec.decode_command(value)[1]
        kept, peak = tracemalloc.get_traced_memory()
        count = len(record["work"]["policy"][name])
        del record
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert count == count_max
    assert peak < 20 * len(value) + 1_000_000  # as much is fastavro's buffer
    assert left < kept - 8 * count  # such a policy is not remembered


@pytest.mark.parametrize("name,item", [("delays_ms", 0), ("give_up_on", "")])
def test_a_longer_list_is_refused_before_anything_is_made_of_it(name: str, item: Any) -> None:
    value = codec.encode_schedule(guarded(**{name: [item] * 1_000_000}))
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableRecord) as refusal:
            codec.decode_command(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refusal.value.reason == Reason.TOO_LARGE
    assert peak < 1.1 * len(value)  # the fast way has cut a piece off, to look whether it knows it


def test_what_is_remembered_is_bounded() -> None:
    for n in range(REMEMBERED_MAX + 10):
        record: Schedule = {
            **guarded(attempts_max=n),
            "retention_ms": n,
            "limits": {"expires_ms": 0, "total_timeout_ms": n, "crashes_max": n},
        }
        value = codec.encode_schedule(record)
        assert codec.decode_command(value)[1] == record
        state: Any = {**STATE, "attempt": n, "trail": {**STATE["trail"], "endings": [{**ENDING, "worker": f"w{n}"}]}}
        assert codec.decode_state(codec.encode_state(state)) == state
    memories = [vars(module)[name] for module in (encoding, decoding) for name in vars(module) if name in MEMORIES]
    assert len(memories) == len(MEMORIES) + 3  # three have the same name in both
    assert 0 < max(len(memory) for memory in memories) <= REMEMBERED_MAX


MEMORIES = {"_middles", "_heads", "_nows", "_tails", "_names", "_policies"}


def test_W11_the_largest_job_fits_everywhere_it_travels() -> None:
    names = [f"{n:03}" for n in range(HEADERS_COUNT_MAX)]
    largest: Schedule = {
        "job_id": "j" * JOB_ID_BYTES_MAX,
        "due_ms": 2**63 - 1,
        "created_ms": 2**63 - 1,
        "on_conflict": "REPLACE",
        "retention_ms": 2**63 - 1,
        "queue": "q" * QUEUE_CHARS_MAX,
        "limits": {"expires_ms": 2**63 - 1, "total_timeout_ms": 2**63 - 1, "crashes_max": 2**31 - 1},
        "recurrence": largest_recurrence(),
        "delivery": None,
        "work": {
            "task": "t" * TASK_BYTES_MAX,
            "content_type": "application/octet-stream",
            "payload": bytes(PAYLOAD_BYTES_MAX),
            "headers": {name: "v" * (HEADERS_BYTES_MAX // HEADERS_COUNT_MAX - len(name)) for name in names},
            "policy": largest_policy(),
        },
    }
    value = codec.encode_schedule(largest)
    kind, record, work = codec.decode_command(value)
    assert (kind, record) == ("schedule", largest)
    assert len(value) < RECORD_BYTES_MAX - 2_048  # what is left is for key, framing and fields to come
    definition = codec.splice_definition(2**31 - 1, 2**63 - 1, value)
    assert codec.decode_definition(definition)["schedule"] == largest
    numbers = (2**31 - 1, TIME_MS, 2**31 - 1, 2**31 - 1)
    terms: Terms = {"crashes": 2**31 - 1, "is_last_life": True, "expires_ms": 2**63 - 1, "deadline_ms": 2**63 - 1}
    dispatched = codec.splice_dispatch(2**63 - 1, largest["job_id"], *numbers, TIME_MS, terms, work)
    assert codec.decode_dispatch(dispatched)["work"] == largest["work"]
    dead = codec.splice_dead_run(largest["job_id"], 2**63 - 1, 2**31 - 1, 2**63 - 1, "total_timeout", worst_state(), definition)
    assert len(dead) < DEAD_LETTER_BYTES_MAX - 4_096
    assert codec.decode_dead_letter_topic(dead) == ("dead_run", codec.decode_dead_run(dead))
    assert codec.decode_dead_run(dead)["definition"]["schedule"] == largest


def largest_policy() -> Policy:
    names = ["n" * (RETRY_CLASSES_BYTES_MAX // RETRY_CLASSES_MAX // 2)] * RETRY_CLASSES_MAX
    return {
        "attempts_max": 2**31 - 1,
        "delays_ms": [2**63 - 1] * RETRY_DELAYS_MAX,
        "factor": 1.5,
        "delay_ms_max": 2**63 - 1,
        "jitter": 0.5,
        "give_up_on": names,
        "retry_on": names,
        "run_timeout_ms": 2**63 - 1,
    }


def largest_recurrence() -> Recurrence:
    return {
        "kind": "CRON",
        "every_ms": 2**63 - 1,
        "expression": "0" * EXPRESSION_BYTES_MAX,
        "zone": "Z" * ZONE_BYTES_MAX,
        "start_ms": 2**63 - 1,
        "end_ms": 2**63 - 1,
        "runs_max": 2**63 - 1,
        "jitter_ms": 2**63 - 1,
        "misfire": "ALL",
        "misfire_max": 2**31 - 1,
        "grace_ms": 2**63 - 1,
        "overlap": "REPLACE",
        "overlap_max": 2**31 - 1,
    }


def worst_state() -> State:
    """Of a run that died with everything that is kept at its largest, in letters of four bytes."""
    ending: Any = {**ENDING, "type": "🙂" * ERROR_TYPE_CHARS_MAX, "message": "🙂" * ENDING_MESSAGE_CHARS_MAX, "worker": "w" * 255}
    state: State = STATE | {
        "error": {
            "type": "🙂" * ERROR_TYPE_CHARS_MAX,
            "message": "🙂" * ERROR_MESSAGE_CHARS_MAX,
            "traceback": "🙂" * ERROR_TRACEBACK_CHARS_MAX,
        },
        "trail": {**STATE["trail"], "output": bytes(OUTPUT_BYTES_MAX), "endings": [ending] * ENDINGS_MAX},
    }
    return state


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


def test_thousands_of_topics_to_deliver_to_push_out_nothing_that_jobs_share() -> None:
    codec.decode_command(VALUE)
    before = dict(decoding._middles)
    for n in range(2 * REMEMBERED_MAX):
        delivery: Any = {"topic": f"{n}-orders", "key": None, "tombstone": False}
        record: Schedule = {**SCHEDULE, "delivery": delivery}
        assert codec.decode_command(codec.encode_schedule(record))[1] == record
    assert {name: decoding._middles.get(name) for name in before} == before


# --- versions ---


def test_a_run_defined_by_an_earlier_release_dies_as_todays() -> None:
    definition = codec.splice_definition(1, -1, VALUE)
    older = load(folder("schemas") / "released" / "0.1.0")["Definition"]
    stored = encode_as(older, codec.decode_definition(definition))
    assert stored != definition
    dead = codec.splice_dead_run("j1", 7, 0, TIME_MS, "failed", STATE, stored)
    assert dead == codec.splice_dead_run("j1", 7, 0, TIME_MS, "failed", STATE, definition)
    assert codec.decode_dead_run(dead)["definition"]["schedule"] == SCHEDULE


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
