"""The bytes on the topics do not change by accident: they are pinned here, and others read them as we do.

`golden/records.json` holds records and their encodings, bytes in hexadecimal. A change of it is a change of what lies on people's topics.
`golden/released` keeps what it was at each release: those bytes lie there already, and are read for ever.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import pytest
from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES, MAGIC, Schema, load
from duewheel.adapters.avro.strict import Reader, encode_as
from duewheel.resources import folder
from tests.records import COMMANDS, FUNCTIONS, TYPES, SloppyWriter

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = json.loads((GOLDEN / "records.json").read_text(encoding="utf-8"))
FINGERPRINTS = json.loads((GOLDEN / "fingerprints.json").read_text(encoding="utf-8"))
RELEASES = sorted(path for path in (folder("schemas") / "released").iterdir())
LAST_RELEASE = load(RELEASES[-1])

RELEASED_CASES = [
    (path.stem, case) for path in sorted((GOLDEN / "released").glob("*.json")) for case in json.loads(path.read_text(encoding="utf-8"))
]

SYMBOLS = {"State": "phase", "Outcome": "result", "Schedule": "on_conflict"}
BYTES_FIELDS = {"payload", "key", "value", "output"}
# What 0.1.0 did not know, and what it is taken to have meant.
SINCE_0_1_0: dict[str, dict[str, Any]] = {
    "Schedule": {"limits": None, "recurrence": None, "delivery": None},
    "Work": {"policy": None},
    "Cancel": {"reach": "DEFAULT"},
    "Definition": {"offset": -1},
    "State": {"trail": None},
    "Dispatch": {"terms": None},
    "Outcome": {"retry_after_ms": 0, "lease_ms": 0, "output": None},
}


def record_of(written: Any, field: str = "") -> Any:
    """The record as it is written in the file, with its bytes as bytes."""
    if isinstance(written, dict) and field != "headers":
        return {name: record_of(value, name) for name, value in written.items()}
    if isinstance(written, list):
        return [record_of(item) for item in written]
    return bytes.fromhex(written) if field in BYTES_FIELDS and written is not None else written


def cases(kinds: Collection[str] = FUNCTIONS) -> list[Any]:
    return [
        pytest.param(case["kind"], record_of(case["record"]), case["encoded"], id=f"{case['kind']}-{case['name']}")
        for case in CASES
        if case["kind"] in kinds
    ]


def released_cases() -> list[Any]:
    return [
        pytest.param(case["kind"], record_of(case["record"]), bytes.fromhex(case["encoded"]), id=f"{release}-{case['kind']}-{case['name']}")
        for release, case in RELEASED_CASES
    ]


def todays(kind: str, record: Any) -> Any:
    """`record` of 0.1.0, as it is understood today."""
    record = {**record, **SINCE_0_1_0.get(kind, {})}
    for field, inner in (("work", "Work"), ("schedule", "Schedule")):
        if field in record:
            record[field] = todays(inner, record[field])
    return record


def decoded(kind: str, value: bytes) -> Any:
    return codec.decode_command(value)[1] if kind in COMMANDS else getattr(codec, f"decode_{FUNCTIONS[kind]}")(value)


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_records_are_written_as_ever(kind: str, record: Any, encoded: str) -> None:
    assert getattr(codec, f"encode_{FUNCTIONS[kind]}")(record).hex() == encoded


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_records_are_read_as_ever(kind: str, record: Any, encoded: str) -> None:
    value = bytes.fromhex(encoded)
    assert decoded(kind, value) == record
    if kind in COMMANDS:
        assert codec.decode_command(value)[0] == FUNCTIONS[kind]


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_another_writer_writes_the_same(kind: str, record: Any, encoded: str) -> None:
    body = SloppyWriter(lambda _: False).body(TYPES[kind], record)
    assert f"c301{FINGERPRINTS[kind]}{body.hex()}" == encoded


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_apache_avro_reads_the_same(kind: str, record: Any, encoded: str) -> None:
    schema = avro.schema.parse(canonical(TYPES[kind], set()))
    body = BytesIO(bytes.fromhex(encoded)[HEADER_BYTES:])
    assert avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(body)) == record
    assert not body.read()


def crc_64_avro(data: bytes) -> int:
    """Bit by bit, as the specification defines it; nothing of ours or fastavro's."""
    empty = 0xC15D213AA4D7A795
    crc = empty
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (empty if crc & 1 else 0)
    return crc


def canonical(schema: Any, done: set[str]) -> str:
    """The Parsing Canonical Form of a schema of ours: named types in full where they are met first, and no more than decoding needs."""
    if isinstance(schema, list):
        return f"[{','.join(canonical(branch, done) for branch in schema)}]"
    if isinstance(schema, str) and schema.removeprefix("duewheel.") in TYPES:
        schema = TYPES[schema.removeprefix("duewheel.")]
    if isinstance(schema, str):
        return f'"{schema}"'
    name = f"duewheel.{schema.get('name')}"
    if name in done:
        return f'"{name}"'
    if "name" in schema:
        done.add(name)
    match schema["type"]:
        case "record":
            fields = ",".join(f'{{"name":"{field["name"]}","type":{canonical(field["type"], done)}}}' for field in schema["fields"])
            return f'{{"name":"{name}","type":"record","fields":[{fields}]}}'
        case "enum":
            symbols = ",".join(f'"{symbol}"' for symbol in schema["symbols"])
            return f'{{"name":"{name}","type":"enum","symbols":[{symbols}]}}'
        case "array":
            return f'{{"type":"array","items":{canonical(schema["items"], done)}}}'
        case "map":
            return f'{{"type":"map","values":{canonical(schema["values"], done)}}}'
        case other:
            return canonical(other, done)


@pytest.mark.parametrize("kind", sorted(CURRENT))
def test_fingerprints_are_those_of_the_specification(kind: str) -> None:
    crc = crc_64_avro(canonical(TYPES[kind], set()).encode()).to_bytes(8, "little")
    assert CURRENT[kind].header == MAGIC + crc
    assert crc.hex() == FINGERPRINTS[kind]
    assert avro.schema.parse(canonical(TYPES[kind], set())).fingerprint() == crc


def test_every_kind_is_pinned() -> None:
    assert sorted({case["kind"] for case in CASES}) == sorted(FINGERPRINTS) == sorted(CURRENT) == sorted(FUNCTIONS)


@pytest.mark.parametrize("kind,record,value", released_cases())
def test_what_a_release_wrote_is_understood(kind: str, record: Any, value: bytes) -> None:
    assert decoded(kind, value) == todays(kind, record)


@pytest.mark.parametrize("kind,record,value", [case for case in released_cases() if case.values[0] == "Schedule"])
def test_a_command_is_known_again_after_an_upgrade(kind: str, record: Any, value: bytes) -> None:
    """By equal bytes, as ever: those of a definition that was stored before, and of the very command sent once more."""
    stored = LAST_RELEASE["Definition"].header + b"\2" + value[HEADER_BYTES:]
    command, work = codec.current_command(value), codec.decode_command(value)[2]
    assert command == codec.encode_schedule(todays(kind, record))
    assert codec.peek_definition(stored) == (
        1,
        record["due_ms"],
        record["queue"],
        record["retention_ms"],
        None,
        work,
        command,
        None,
        -1,
        None,
    )
    assert codec.current_command(command) is command


def test_every_release_is_pinned() -> None:
    assert {release for release, _ in RELEASED_CASES} == {path.name for path in RELEASES}
    for path in RELEASES:
        assert {case["kind"] for release, case in RELEASED_CASES if release == path.name} == set(load(path))


def by_current(schema: Schema, value: bytes) -> Any:
    return Reader([schema]).read(value, (schema.kind,), 10**6)[1]


@pytest.mark.parametrize("kind,record,encoded", cases(LAST_RELEASE))
def test_today_reads_what_the_last_release_writes_of_todays_records(kind: str, record: Any, encoded: str) -> None:
    """Whatever the last release cannot say is missing then, and nothing else."""
    released = LAST_RELEASE[kind]
    if not sayable(kind, record):
        with pytest.raises(ValueError, match=record[SYMBOLS[kind]]):
            encode_as(released, record)
        return
    assert by_current(released, encode_as(released, record)) == todays(kind, record)


@pytest.mark.parametrize("kind,record,encoded", cases(LAST_RELEASE))
def test_the_last_release_reads_what_is_written_today(kind: str, record: Any, encoded: str) -> None:
    body = BytesIO(bytes.fromhex(encoded)[HEADER_BYTES:])
    if not sayable(kind, record):
        with pytest.raises(SchemaResolutionError):
            schemaless_reader(body, CURRENT[kind].parsed, LAST_RELEASE[kind].parsed)
        return
    read: Any = schemaless_reader(body, CURRENT[kind].parsed, LAST_RELEASE[kind].parsed)
    assert {field["name"] for field in LAST_RELEASE[kind].parsed["fields"]} == set(read)
    assert todays(kind, read) == todays(kind, record)


def sayable(kind: str, record: Any) -> bool:
    """Whether the last release knows the symbols of `record`."""
    if kind == "Definition":
        return sayable("Schedule", record["schedule"])
    return kind not in SYMBOLS or record[SYMBOLS[kind]] in LAST_RELEASE[kind].symbols(SYMBOLS[kind])


def test_schemas_of_every_release_are_known() -> None:
    known = Reader()
    for release in RELEASES:
        for kind, schema in load(release).items():
            example = next(record_of(case["record"]) for case in CASES if case["kind"] == kind)
            assert known.read(encode_as(schema, example), (kind,), 10**6)[0] == kind
