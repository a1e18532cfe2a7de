"""What a schema registry, and writers who use one, may send: ids, schemas, and bodies that go with them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from functools import cache
from typing import Any, Final

from duewheel.adapters.avro import codec, registry
from duewheel.adapters.avro.admission import Inadmissible, admit
from duewheel.adapters.avro.schemas import CURRENT, RELEASED, Schema
from duewheel.adapters.avro.strict import Reader, encode, encode_as
from duewheel.core.errors import Reason, RegistryUnavailable, UndecodableRecord
from duewheel.core.limits import RECORD_BYTES_MAX
from tests.fuzz.samples import encoded, malformed_values, records
from tests.fuzz.target import Target, agree
from tests.records import COMMANDS

_KINDS: Final = ("Schedule", "Cancel", "Redrive", "Drop", "Change")


@cache
def _foreign() -> Sequence[Schema]:
    """Schemas of other people: a field more, fields in another order, other types for the same, a type given a name."""
    schedule = json.loads(json.dumps(CURRENT["Schedule"].parsed, default=str))
    fields = schedule["fields"]
    more = {**schedule, "fields": [*fields, {"name": "tenant", "type": {"type": "map", "values": ["null", "string"]}}]}
    turned = {**schedule, "fields": fields[::-1]}
    ints = {**schedule, "fields": [{**each, "type": "int"} if each["name"] == "retention_ms" else each for each in fields]}
    text = {**schedule, "fields": [{**each, "type": "bytes"} if each["name"] == "job_id" else each for each in fields]}
    cancel = {"type": "record", "name": "duewheel.Cancel", "fields": [{"name": "job_id", "type": "string"}]}
    return [admit(json.dumps(each)) for each in (more, turned, ints, text)] + [admit(json.dumps(cancel))]


class _Registry:
    """Knows a few schemas by small ids; some it does not know, for some it is away."""

    def schema(self, schema_id: int) -> Schema:
        known = _known()
        if schema_id < len(known):
            return known[schema_id]
        if schema_id % 7 == 0:
            raise RegistryUnavailable("the schema registry cannot be reached")
        raise UndecodableRecord(Reason.UNKNOWN_SCHEMA, f"schema id {schema_id} is not registered there")


@cache
def _known() -> Sequence[Schema]:
    return [*CURRENT.values(), *RELEASED, *_foreign()]


@cache
def _codec() -> codec.Codec:
    return codec.Codec(Reader(registry=_Registry()))


@cache
def _framed() -> Sequence[bytes]:
    seeds = []
    for schema_id, schema in enumerate(_known()):
        for record in records(schema.kind) if schema.kind in _KINDS else records(schema.kind)[:3]:
            try:
                body = encode_as(schema, {"tenant": {"a": None}, **record})[10:]
            except Exception:  # what does not fit a narrower type
                continue
            seeds.append(b"\0" + schema_id.to_bytes(4, "big") + body)
    return [*seeds, *encoded(*COMMANDS)[::4], *malformed_values()[::4]]


def _check_framed(value: bytes, found: Any) -> None:
    if isinstance(found, tuple):
        name, record, _ = found
        if name == "schedule":
            current = _codec().current_command(value)
            agree("the current command", codec.decode_command(current)[1], record)
        else:
            agree("the record", codec.decode_command(encode(name.title(), record))[1], record)


# --- schemas ---


class _OneSchema:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema(self, schema_id: int) -> Schema:
        return self._schema


_BOMBS: Final = [
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}',
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":["null","duewheel.Cancel"]}]}',
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":{"type":"fixed","name":"f","size":1000000000}}]}',
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":{"type":"enum","name":"e","symbols":[]}}]}',
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":{"type":"long","logicalType":"timestamp-millis"}}]}',
    '{"type":"record","name":"duewheel.Cancel","fields":[{"name":"a","type":{"type":"bytes","logicalType":"decimal","precision":9}}]}',
    '{"type":"record","name":"duewheel.Cancel","aliases":["x"],"fields":[{"name":"job_id","type":"string","default":7}]}',
]
_WORDS: Final = (
    *(b'"null"', b'"long"', b'"double"', b'"bytes"', b'"string"', b'"duewheel.Cancel"', b'"Cancel"', b'"duewheel.Work"', b'"items"'),
    *(b'{"type":"array","items":"null"}', b'{"type":"map","values":"null"}', b'{"type":"fixed","name":"f","size":0}', b'"size":-1', b"[]"),
    *(b'{"type":"record","name":"R","fields":[]}', b'{"type":"array","items":{"type":"record","name":"E","fields":[]}}', b'"error"'),
    *(
        b'"logicalType":"uuid",',
        b'"name":"",',
        b'"namespace":"\\ud800",',
        b'"default":null,',
        b'"doc":"",',
        b'["null","null"]',
        b'"fields"',
    ),
)


@cache
def _schemas() -> Sequence[bytes]:
    texts = [json.dumps(schema.parsed, default=str) for schema in _known() if schema.kind in _KINDS] + _BOMBS
    bodies = [value[10:] for kind in ("Cancel", "Schedule") for value in encoded(kind)[:3]] + [b"", b"\x80" * 9 + b"\1", bytes(100)]
    return [text.encode() + b"\0" + body for text in texts for body in bodies[::2]]


def _admit_and_read(value: bytes) -> Any:
    """A schema as JSON, a zero, and the body of a record that it is used for."""
    text, _, body = value.partition(b"\0")
    schema = admit(text.decode("utf-8", "surrogateescape"))
    return Reader(registry=_OneSchema(schema)).read(b"\0\0\0\0\1" + body, _KINDS, RECORD_BYTES_MAX)


class _Answer:
    """What urlopen gives."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, size: int) -> bytes:
        return self._body[:size]


class _Clock:
    def wall_ms(self) -> int:
        return 0

    steady_ms = wall_ms


def _ask(value: bytes) -> Schema:
    """A registry whose answer is the input: the first byte chooses the status, where it is not 200."""

    def answer(request: urllib.request.Request, timeout: float) -> _Answer:
        status = value[:1]
        if status in (b"4", b"5"):
            raise urllib.error.HTTPError(request.full_url, 404 if status == b"4" else 500, value[1:].decode("latin-1"), Message(), None)
        return _Answer(value)

    real, urllib.request.urlopen = urllib.request.urlopen, answer  # type: ignore[assignment]
    try:
        return registry.Registry("http://registry.example", _Clock()).schema(7)
    finally:
        urllib.request.urlopen = real


@cache
def _answers() -> Sequence[bytes]:
    texts = [seed.partition(b"\0")[0].decode() for seed in _schemas()[::7]]
    answers = [json.dumps({"schema": text}).encode() for text in texts]
    answers += [
        b'{"error_code":40403,"message":"Schema not found"}',
        b'{"schema":"{}","schemaType":"JSON"}',
        b"4",
        b"5oops",
        b"[]",
        b"null",
    ]
    return [*answers, json.dumps({"schema": texts[0], "references": [{"name": "a"}]}).encode()]


TARGETS: Final = [
    Target(
        name="registered",
        call=lambda value: _codec().decode_command(value),
        legal=(UndecodableRecord, RegistryUnavailable),
        seeds=_framed,
        check=_check_framed,
        bytes_max=RECORD_BYTES_MAX + 100,
        weight=20,
    ),
    Target(
        name="admission",
        call=_admit_and_read,
        legal=(Inadmissible, UndecodableRecord),
        seeds=_schemas,
        tokens=_WORDS,
        dialect="json",
        bytes_max=300_000,
    ),
    Target(
        name="registry_answer",
        call=_ask,
        legal=(UndecodableRecord, RegistryUnavailable),
        seeds=_answers,
        tokens=_WORDS,
        dialect="json",
        bytes_max=300_000,
        weight=5,
    ),
]
