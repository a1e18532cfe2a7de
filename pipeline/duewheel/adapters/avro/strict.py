"""Reads records from outside, and takes only what a canonical writer writes.

Avro is generous: an integer may be padded to ten bytes, a map may come in blocks and name a key twice, bytes may follow the record. Two
records that look equal could then differ, and equal bytes are how Duewheel tells a repeated command. Libraries are more generous still:
fastavro takes 2 for true and counts negative indexes from the end. So this reader decodes, encodes what it got, and refuses bytes that
differ. Integers of type int must fit 32 bits besides, and doubles must be finite, which fastavro does not look at; and of the two zeros
among doubles, which are equal and differ in their bytes, only one is taken.

This is the rule, at the price of decoding and encoding: 8 µs for a Schedule. The fast paths of `codec` accept a part of what is accepted
here, with equal results, and leave all else to this module.

Every failure is an `UndecodableRecord`. Nothing here is unbounded: sizes are checked first, no schema has items without bytes or contains
itself, so that no count, however large, outlives the end of the bytes; and a large record is skimmed first for how many values it holds
(`skim`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from math import copysign, isfinite
from typing import Any, Final, Protocol

from fastavro import schemaless_reader, schemaless_writer

from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES, MAGIC, RELEASED, Schema
from duewheel.adapters.avro.skim import SKIMMED_BYTES_MIN, VALUES_MAX, Skimmer, TooManyValues
from duewheel.core.errors import Reason, UndecodableRecord

_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
# Branches of a union with null and one type.
_OPTIONAL: Final = 2

# Confluent's format: a zero, four bytes of schema id, the body.
_CONFLUENT: Final = b"\0"
_CONFLUENT_BYTES: Final = 5
_REGISTERED_MAX: Final = 1_000


class Registry(Protocol):
    """Knows schemas by the ids that Confluent's serializers put before a body."""

    def schema(self, schema_id: int) -> Schema: ...


class Reader:
    """Decodes by the writer's schema, and resolves to the current one where they differ.

    Args:
        older: schemas of earlier versions, that records may still be written with.
        registry: knows more; without it values in Confluent's format are refused.
    """

    def __init__(self, older: Iterable[Schema] = RELEASED, registry: Registry | None = None) -> None:
        self._writers: dict[bytes, Schema] = {schema.header: schema for schema in (*older, *CURRENT.values())}
        self._registered: dict[bytes, Schema] = {}
        self._skimmers: dict[bytes, Skimmer] = {}
        self._registry = registry

    def read(self, value: bytes | None, kinds: tuple[str, ...], bytes_max: int) -> tuple[str, dict[str, Any]]:
        """The record in `value`, as (kind, record).

        Args:
            value: the whole value of a Kafka record.
            kinds: which records are welcome here.
            bytes_max: larger values are refused before anything is decoded.

        Raises:
            UndecodableRecord: with the reason.
            RegistryUnavailable: the registry was needed, and did not answer.
        """
        if value is None:
            raise UndecodableRecord(Reason.NO_VALUE, f"the record has no value; {_one_of(kinds)} was expected")
        if len(value) > bytes_max:
            raise UndecodableRecord(Reason.TOO_LARGE, f"the value has {len(value):,} bytes, at most {bytes_max:,} are allowed; send less")
        value = self.unframe(value)
        schema = self._writer(value, kinds)
        if len(value) >= SKIMMED_BYTES_MIN:
            self._skim(schema, value)
        record = _decode(schema, value)
        current = CURRENT[schema.kind]
        if schema.header != current.header:
            record = _resolve(schema, current, value)
        return schema.kind, record

    def unframe(self, value: bytes) -> bytes:
        """A value in Confluent's format as a single object; any other as it is.

        Raises:
            UndecodableRecord: the registry does not know the schema.
            RegistryUnavailable: it did not answer.
        """
        if self._registry is None or value[:1] != _CONFLUENT or len(value) < _CONFLUENT_BYTES:
            return value
        schema = self._registry.schema(int.from_bytes(value[1:_CONFLUENT_BYTES]))
        if schema.header not in self._writers:
            if len(self._registered) >= _REGISTERED_MAX:
                self._registered.clear()
                self._skimmers.clear()
            self._registered[schema.header] = schema
        return schema.header + value[_CONFLUENT_BYTES:]

    def _skim(self, schema: Schema, value: bytes) -> None:
        """Refuses a record that would become more values than any that is of use."""
        skimmer = self._skimmers.get(schema.header)
        if skimmer is None:
            skimmer = self._skimmers[schema.header] = Skimmer(schema.parsed)
        try:
            skimmer.skim(value, HEADER_BYTES)
        except TooManyValues:
            raise UndecodableRecord(
                Reason.TOO_LARGE,
                f"the lists of the {schema.kind} have more than {VALUES_MAX:,} values in all; none that is of use has so many",
            ) from None
        except (ValueError, IndexError) as error:
            raise UndecodableRecord(Reason.MALFORMED, f"the value is not a {schema.kind} ({type(error).__name__}: {error})") from error

    def _writer(self, value: bytes, kinds: tuple[str, ...]) -> Schema:
        if len(value) < HEADER_BYTES or value[:2] != MAGIC:
            raise UndecodableRecord(
                Reason.UNKNOWN_FORMAT,
                f"the value begins with {value[:HEADER_BYTES].hex() or 'nothing'}; Avro single-object encoding begins with c301 and "
                "eight bytes of fingerprint",
            )
        header = value[:HEADER_BYTES]
        schema = self._writers.get(header) or self._registered.get(header)
        if schema is None:
            known = ", ".join(f"{CURRENT[kind].header[2:].hex()} ({kind})" for kind in kinds)
            raise UndecodableRecord(Reason.UNKNOWN_SCHEMA, f"no schema with fingerprint {header[2:].hex()} is known; expected {known}")
        if schema.kind not in kinds:
            raise UndecodableRecord(Reason.UNEXPECTED_RECORD, f"the value is a {schema.kind}; {_one_of(kinds)} was expected")
        return schema


def encode(kind: str, record: Mapping[str, Any]) -> bytes:
    """The single-object encoding of `record` by the current schema."""
    return encode_as(CURRENT[kind], record)


def encode_as(schema: Schema, record: Mapping[str, Any]) -> bytes:
    """The single-object encoding of `record` by `schema`."""
    out = BytesIO()
    out.write(schema.header)
    schemaless_writer(out, schema.parsed, record)
    return out.getvalue()


def _decode(schema: Schema, value: bytes) -> dict[str, Any]:
    body = BytesIO(value)
    body.seek(HEADER_BYTES)
    try:
        record: dict[str, Any] = schemaless_reader(body, schema.parsed, None)  # type: ignore[assignment]
        _check_numbers(schema.parsed, record)
        left = len(value) - body.tell()
        again = b"" if left else encode_as(schema, record)
    except Exception as error:  # fastavro fails in many ways: EOFError, ValueError, UnicodeDecodeError, IndexError, OverflowError, …
        raise UndecodableRecord(
            Reason.MALFORMED, f"the value is not a {schema.kind} ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    if left:
        raise UndecodableRecord(Reason.TRAILING_BYTES, f"{left} bytes follow the {schema.kind}; a value is one record and nothing else")
    if again != value:
        raise UndecodableRecord(
            Reason.NOT_CANONICAL,
            f"the {schema.kind} is not encoded the way a writer encodes it (padded numbers, maps in blocks, a key twice); encode it anew",
        )
    return record


def _resolve(writer: Schema, current: Schema, value: bytes) -> dict[str, Any]:
    body = BytesIO(value)
    body.seek(HEADER_BYTES)
    try:
        record: Any = schemaless_reader(body, writer.parsed, current.parsed)
        # fastavro promotes types loosely: what it gives need not be what the current schema says. Encoded and read again, it is.
        return _decode(current, encode_as(current, record))
    except Exception as error:  # as many ways as in _decode
        raise UndecodableRecord(
            Reason.UNKNOWN_SCHEMA, f"schema {writer.header[2:].hex()} cannot be read as today's {current.kind}: {str(error)[:200]}"
        ) from error


def _check_numbers(schema: Any, value: Any) -> None:
    """Looks at what fastavro does not: that an int has 32 bits, and that a double is a number that equals itself alone.

    Unions of more than null and one other are passed over; ours have none, and a record of another's becomes one of ours anyway.
    """
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind.__class__ is list:
        if value is not None and len(kind) == _OPTIONAL and "null" in kind:
            _check_numbers(kind[kind[0] == "null"], value)
    elif kind.__class__ is dict:
        _check_numbers(kind, value)
    elif kind == "record":
        for field in schema["fields"]:
            _check_numbers(field["type"], value[field["name"]])
    elif kind == "array" and schema["items"].__class__ is dict:
        for item in value:
            _check_numbers(schema["items"], item)
    elif kind == "int" and not _INT_MIN <= value <= _INT_MAX:
        raise ValueError(f"{value} does not fit an int of 32 bits")
    elif kind == "double" and (not isfinite(value) or (value == 0 and copysign(1, value) < 0)):
        raise ValueError(f"{value} is not taken for a double; write a finite number, and zero without a sign")


def _one_of(kinds: tuple[str, ...]) -> str:
    return " or ".join(kinds)
