"""The codec against its rule: the fast ways agree with the strict one, and that one takes what a writer writes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from fastavro import schemaless_writer
from hypothesis import example, given
from hypothesis import strategies as st

from duewheel.adapters.avro import codec, varints
from duewheel.adapters.avro.encode import encode_work
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.skim import Skimmer, TooManyValues
from duewheel.adapters.avro.strict import Reader, encode
from duewheel.core.errors import Reason, UndecodableRecord
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX
from duewheel.core.step import lane
from tests.malformed import SCHEDULE
from tests.records import COMMANDS, FUNCTIONS, RECORDS, TIME_MS, TYPES, SloppyWriter, counts, longs, schedules, times

STRICT = Reader()
KINDS = sorted(RECORDS)


def encode_fast(kind: str, record: Any) -> bytes:
    encoded: bytes = getattr(codec, f"encode_{FUNCTIONS[kind]}")(record)
    return encoded


def decode_fast(kind: str, value: bytes) -> Any:
    if kind in COMMANDS:
        return codec.decode_command(value)[1]
    return getattr(codec, f"decode_{FUNCTIONS[kind]}")(value)


def decode_strict(kind: str, value: bytes) -> Any:
    kinds = COMMANDS if kind in COMMANDS else (kind,)
    return STRICT.read(value, kinds, DEAD_LETTER_BYTES_MAX)[1]


def verdict(decode: Callable[[str, bytes], Any], kind: str, value: bytes) -> Any:
    """The record, or the reason why there is none."""
    try:
        return decode(kind, value)
    except UndecodableRecord as error:
        return error.reason


def check_verdicts(kind: str, value: bytes) -> Any:
    """Both ways say the same; and what they take is what a writer would have written."""
    found = verdict(decode_fast, kind, value)
    assert found == verdict(decode_strict, kind, value)
    if not isinstance(found, Reason):
        assert encode_fast(kind, found) == value
    return found


@st.composite
def kinds_and_records(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(RECORDS[kind])


@given(kinds_and_records())
def test_encoders_write_what_fastavro_writes(case: tuple[str, Any]) -> None:
    kind, record = case
    assert encode_fast(kind, record) == encode(kind, record)


@given(kinds_and_records())
def test_encoders_write_what_the_schema_files_say(case: tuple[str, Any]) -> None:
    kind, record = case
    assert encode_fast(kind, record)[HEADER_BYTES:] == SloppyWriter(lambda _: False).body(TYPES[kind], record)


@given(kinds_and_records())
def test_what_was_encoded_is_decoded(case: tuple[str, Any]) -> None:
    kind, record = case
    assert check_verdicts(kind, encode_fast(kind, record)) == record


class NoReader(Reader):
    def read(self, value: bytes | None, kinds: tuple[str, ...], bytes_max: int) -> Any:
        raise AssertionError(f"the strict way was taken for {kinds}")


FAILURE: Any = {"type": "E", "message": "m" * 200, "traceback": ""}
POLICY: Any = {"attempts_max": 9, "delays_ms": [1_000, 60_000], "factor": 1.5, "delay_ms_max": 3_600_000, "jitter": 0.0}
POLICY |= {"give_up_on": ["app.NotFound"], "retry_on": [], "run_timeout_ms": 0}
RECURRENCE: Any = {"kind": "CRON", "every_ms": 0, "expression": "0 9 * * mon-fri", "zone": "Europe/Berlin", "start_ms": 0, "end_ms": 0}
RECURRENCE |= {
    "runs_max": 10,
    "jitter_ms": 5_000,
    "misfire": "ALL",
    "misfire_max": 3,
    "grace_ms": 60_000,
    "overlap": "ALLOW",
    "overlap_max": 2,
}
ENDING: Any = {
    "attempt": 1,
    "token": 10**9,
    "result": "LOST",
    "started_ms": 0,
    "ended_ms": TIME_MS,
    "worker": "w",
    "type": "",
    "message": "",
}
TRAILS: list[Any] = [
    None,
    {
        "wake_ms": TIME_MS,
        "lease_ms": 30_000,
        "first_ms": 0,
        "output": None,
        "endings": [],
        "runs": [],
        "queued_ms": 0,
        "answers": [],
        "is_quiet": False,
    },
    {
        "wake_ms": 0,
        "lease_ms": 0,
        "first_ms": TIME_MS,
        "output": b"7" * 8_192,
        "endings": [ENDING, {**ENDING, "started_ms": TIME_MS}],
        "runs": [TIME_MS, TIME_MS + 1],
        "queued_ms": TIME_MS,
        "answers": [],
        "is_quiet": False,
    },
]


@pytest.mark.parametrize("recurrence", [None, RECURRENCE, {**RECURRENCE, "start_ms": TIME_MS}])
@pytest.mark.parametrize("policy", [None, POLICY], ids=["no policy", "policy"])
@pytest.mark.parametrize("expires_ms", [None, 0, TIME_MS])
def test_ordinary_jobs_take_the_fast_way(recurrence: Any, policy: Any, expires_ms: int | None) -> None:
    fast = codec.Codec(NoReader())
    work: Any = {"task": "t", "content_type": "application/json", "payload": b"x" * 5_000, "headers": {"a": "b", "c": ""}, "policy": policy}
    limits = None if expires_ms is None else {"expires_ms": expires_ms, "total_timeout_ms": 10**7, "crashes_max": 2}
    terms: Any = limits and {"crashes": 1, "is_last_life": True, "expires_ms": expires_ms, "deadline_ms": TIME_MS}
    schedule: Any = {"job_id": "j" * 63, "due_ms": TIME_MS, "created_ms": TIME_MS, "on_conflict": "REPLACE", "retention_ms": 0}
    schedule |= {"queue": "q", "limits": limits, "recurrence": recurrence, "delivery": None, "work": work}
    command = codec.encode_schedule(schedule)
    for _ in range(2):  # read, and remembered
        assert fast.decode_command(command)[1] == schedule
        glanced = fast.peek_definition(codec.splice_definition(70, 10**9, command))
        assert glanced[4:] == (limits, encode_work(work), command, recurrence, 10**9, None)
        dispatch = codec.splice_dispatch(10**9, "j", 70, TIME_MS, 1, 200, TIME_MS, terms, encode_work(work))
        read = fast.decode_dispatch(dispatch)
        assert (read["terms"], read["work"]) == (terms, work)


def test_other_ordinary_records_take_the_fast_way() -> None:
    fast = codec.Codec(NoReader())
    cancel: Any = {"job_id": "j", "created_ms": TIME_MS, "reach": "JOB"}
    redrive: Any = {"job_id": "j", "token": 10**9, "created_ms": TIME_MS}
    stop: Any = {"job_id": "j", "token": 10**9, "queue": "q"}
    assert fast.decode_command(codec.encode_cancel(cancel)) == ("cancel", cancel, b"")
    assert fast.decode_command(codec.encode_redrive(redrive)) == ("redrive", redrive, b"")
    assert fast.decode_command(codec.encode_drop(redrive)) == ("drop", redrive, b"")
    assert fast.decode_stop(codec.encode_stop(stop)) == stop
    for error in (None, FAILURE):
        for trail in TRAILS:
            state: Any = {"generation": 70, "phase": "RUNNING", "attempt": 1, "crashes": 0, "token": 10**9, "slot_ms": TIME_MS}
            state |= {"changed_ms": TIME_MS, "error": error, "trail": trail}
            assert fast.decode_state(codec.encode_state(state)) == state
        for retry_after_ms, lease_ms, output in ((0, 0, None), (10**7, 30_000, b"7" * 8_192)):
            outcome: Any = {"token": 10**9, "job_id": "j" * 90, "slot_ms": TIME_MS, "attempt": 1, "result": "FAILED", "started_ms": TIME_MS}
            outcome |= {"finished_ms": TIME_MS, "worker": "w", "error": error}
            outcome |= {"retry_after_ms": retry_after_ms, "lease_ms": lease_ms, "output": output}
            assert fast.decode_outcome(codec.encode_outcome(outcome)) == outcome


@given(kinds_and_records(), st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_sloppy_writer_is_refused(case: tuple[str, Any], pick: Any, odds: int) -> None:
    kind, record = case
    slips: list[str] = []

    def slip(name: str) -> bool:
        if pick.randrange(odds * 4) == 0:
            slips.append(name)
            return True
        return False

    value = CURRENT[kind].header + SloppyWriter(slip).body(TYPES[kind], record)
    found = check_verdicts(kind, value)
    if value != encode_fast(kind, record):
        assert slips
        assert found != record


@given(kinds_and_records(), st.data())
def test_damaged_bytes_are_refused_or_mean_themselves(case: tuple[str, Any], data: st.DataObject) -> None:
    kind, record = case
    value = bytearray(encode_fast(kind, record))
    for _ in range(data.draw(st.integers(1, 3), label="damages")):
        begin = data.draw(st.integers(0, len(value)), label="begin")
        end = data.draw(st.integers(begin, min(len(value), begin + 4)), label="end")
        value[begin:end] = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\x80\x00", b"\xff" * 9 + b"\x01", b"\1"])))
    check_verdicts(kind, bytes(value))


@given(st.sampled_from(KINDS), st.binary(max_size=60))
def test_noise_is_refused_or_means_itself(kind: str, noise: bytes) -> None:
    check_verdicts(kind, CURRENT[kind].header + noise)


@given(kinds_and_records())
def test_skimming_ends_where_a_record_ends(case: tuple[str, Any]) -> None:
    kind, record = case
    value = encode_fast(kind, record)
    assert Skimmer(CURRENT[kind].parsed).skim(value + b"more", HEADER_BYTES) == len(value)


@given(kinds_and_records(), st.data())
def test_skimming_stumbles_over_nothing_that_the_strict_way_takes(case: tuple[str, Any], data: st.DataObject) -> None:
    kind, record = case
    value = bytearray(encode_fast(kind, record))
    begin = data.draw(st.integers(HEADER_BYTES, len(value)), label="begin")
    value[begin : begin + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        end = Skimmer(CURRENT[kind].parsed).skim(bytes(value), HEADER_BYTES)
    except (ValueError, IndexError, TooManyValues):
        end = -1
    if end != len(value):
        assert isinstance(verdict(decode_strict, kind, bytes(value)), Reason)


@given(schedules, counts, st.integers(-1, 2**63 - 1))
def test_a_spliced_definition_is_an_encoded_one(schedule: Any, generation: int, offset: int) -> None:
    spliced = codec.splice_definition(generation, offset, codec.encode_schedule(schedule))
    assert spliced == encode("Definition", {"generation": generation, "offset": offset, "schedule": schedule})


@given(schedules, counts, st.integers(-1, 2**63 - 1))
@example({**SCHEDULE, "job_id": "1", "created_ms": 64, "retention_ms": 64, "queue": "", "work": {**SCHEDULE["work"], "task": ""}}, 0, 0)
def test_a_glance_at_a_definition_sees_what_decoding_sees(schedule: Any, generation: int, offset: int) -> None:
    command = codec.encode_schedule(schedule)
    known = codec.peek_definition(codec.splice_definition(generation, offset, command))
    work = codec.decode_command(command)[2]
    numbers = (generation, schedule["due_ms"], lane(schedule["queue"], schedule["delivery"]), schedule["retention_ms"])
    assert known == (*numbers, schedule["limits"], work, command, schedule["recurrence"], offset, schedule["delivery"])
    assert codec.decode_content(work) == (schedule["work"]["payload"], schedule["work"]["headers"])


@given(schedules)
def test_a_spliced_schedule_is_an_encoded_one(schedule: Any) -> None:
    once: Any = {**schedule, "on_conflict": "IGNORE", "recurrence": None}
    fields = (once["job_id"], once["due_ms"], once["created_ms"], once["retention_ms"], once["queue"], once["limits"], once["delivery"])
    assert codec.splice_schedule(*fields, encode_work(once["work"])) == codec.encode_schedule(once)


@given(schedules, st.data())
def test_a_glance_at_a_damaged_definition_raises_nothing_else(schedule: Any, data: st.DataObject) -> None:
    value = bytearray(codec.splice_definition(1, 0, codec.encode_schedule(schedule)))
    at = data.draw(st.integers(0, len(value)))
    value[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=10))
    with suppress(UndecodableRecord):
        codec.peek_definition(bytes(value))


@given(RECORDS["Dispatch"])
def test_a_spliced_dispatch_is_an_encoded_one(record: Any) -> None:
    spliced = codec.splice_dispatch(**{**record, "work": encode_work(record["work"])})
    assert spliced == codec.encode_dispatch(record) == encode("Dispatch", record)


@given(RECORDS["DeadRun"])
def test_a_spliced_dead_run_is_an_encoded_one(record: Any) -> None:
    spliced = codec.splice_dead_run(**{**record, "definition": codec.encode_definition(record["definition"])})
    assert spliced == encode("DeadRun", record)


@given(kinds_and_records())
def test_the_dead_letter_topic_is_read_by_kind(case: tuple[str, Any]) -> None:
    kind, record = case
    names = {"DeadLetter": "letter", "DeadRun": "dead_run", "DeadRunClosed": "closed"}
    value = encode_fast(kind, record)
    if kind in names:
        assert codec.decode_dead_letter_topic(value) == (names[kind], record)
    else:
        with pytest.raises(UndecodableRecord) as refusal:
            codec.decode_dead_letter_topic(value)
        assert refusal.value.reason == Reason.UNEXPECTED_RECORD


@given(st.one_of(longs, times, counts))
@example(2**13 - 1)
@example(2**13)
@example(2**27 - 1)
@example(2**27)
@example(2**41 - 1)
@example(2**41)
@example(2**63 - 1)
@example(-(2**63))
def test_integers_are_written_as_fastavro_writes_them(number: int) -> None:
    out = BytesIO()
    schemaless_writer(out, "long", number)
    value = out.getvalue()
    assert varints.long(number) == value
    if 0 <= number < 2**41:
        assert varints.long_at(b"x" + value, 1) == (number, 1 + len(value))
    else:
        with pytest.raises(ValueError, match=r"negative|larger"):
            varints.long_at(value, 0)


@given(st.one_of(st.integers(2**63), st.integers(max_value=-(2**63) - 1)))
def test_an_integer_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        varints.long(number)
