"""The bytes on the topics do not change by accident: they are pinned here, and others read them as we do.

`golden/records.json` holds records and their encodings, bytes in hexadecimal. A change of it is a change of what lies on people's topics.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import pytest
from fastavro import schemaless_reader

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES, MAGIC, Schema, load
from duewheel.adapters.avro.strict import Reader, encode_as
from duewheel.resources import folder
from tests.records import FUNCTIONS, TYPES, SloppyWriter

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = json.loads((GOLDEN / "records.json").read_text(encoding="utf-8"))
FINGERPRINTS = json.loads((GOLDEN / "fingerprints.json").read_text(encoding="utf-8"))
RELEASES = sorted(path for path in (folder("schemas") / "released").iterdir())
LAST_RELEASE = load(RELEASES[-1])

BYTES_FIELDS = {"payload", "key", "value"}


def record_of(written: Any, field: str = "") -> Any:
    """The record as it is written in the file, with its bytes as bytes."""
    if isinstance(written, dict) and field != "headers":
        return {name: record_of(value, name) for name, value in written.items()}
    if isinstance(written, list):
        return [record_of(item) for item in written]
    return bytes.fromhex(written) if field in BYTES_FIELDS and written is not None else written


def cases() -> list[Any]:
    return [pytest.param(case["kind"], record_of(case["record"]), case["encoded"], id=f"{case['kind']}-{case['name']}") for case in CASES]


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_records_are_written_as_ever(kind: str, record: Any, encoded: str) -> None:
    assert getattr(codec, f"encode_{FUNCTIONS[kind]}")(record).hex() == encoded


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_records_are_read_as_ever(kind: str, record: Any, encoded: str) -> None:
    value = bytes.fromhex(encoded)
    if kind in ("Schedule", "Cancel"):
        assert codec.decode_command(value)[:2] == (kind.lower(), record)
    else:
        assert getattr(codec, f"decode_{FUNCTIONS[kind]}")(value) == record


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


def by_current(schema: Schema, value: bytes) -> Any:
    return Reader([schema]).read(value, (schema.kind,), 10**6)[1]


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_today_reads_what_the_last_release_wrote(kind: str, record: Any, encoded: str) -> None:
    released = LAST_RELEASE[kind]
    written = encode_as(released, record)
    again = by_current(released, written)
    assert {name: again[name] for name in record if name in again} == record


@pytest.mark.parametrize("kind,record,encoded", cases())
def test_the_last_release_reads_what_is_written_today(kind: str, record: Any, encoded: str) -> None:
    body = BytesIO(bytes.fromhex(encoded)[HEADER_BYTES:])
    read: Any = schemaless_reader(body, CURRENT[kind].parsed, LAST_RELEASE[kind].parsed)
    assert {field["name"] for field in LAST_RELEASE[kind].parsed["fields"]} == set(read)
    assert {name: read[name] for name in record if name in read} == {name: record[name] for name in record if name in read}


def test_schemas_of_every_release_are_known() -> None:
    known = Reader()
    for release in RELEASES:
        for kind, schema in load(release).items():
            example = next(record_of(case["record"]) for case in CASES if case["kind"] == kind)
            assert known.read(encode_as(schema, example), (kind,), 10**6)[0] == kind
