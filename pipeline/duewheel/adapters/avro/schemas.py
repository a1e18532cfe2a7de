"""The schemas of `schemas/`, made whole and named by their fingerprints.

A schema file may name types of another file (Definition embeds duewheel.Schedule). Whoever reads a record needs the schema whole, so
each named type is put in where it is met first. Single-object encoding then names the schema by the CRC-64-AVRO fingerprint of its
Parsing Canonical Form, eight bytes that do not change with documentation, defaults or layout:

    C3 01 | fingerprint, little-endian | body
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from duewheel.resources import folder

MAGIC: Final = b"\xc3\x01"
HEADER_BYTES: Final = 10
NAMESPACE: Final = "duewheel"


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of one kind of record.

    Attributes:
        kind: the record's name, without the namespace: "Schedule".
        parsed: the whole schema, as fastavro wants it.
        header: magic and fingerprint, which every encoded record begins with.
    """

    kind: str
    parsed: Any
    header: bytes

    def symbols(self, *path: str) -> list[str]:
        """The symbols of the enum in the field at `path`, which may lead through records that can be null."""
        found = self.parsed
        for name in path:
            record = found[-1] if isinstance(found, list) else found
            found = next(field["type"] for field in record["fields"] if field["name"] == name)
        symbols: list[str] = found["symbols"]
        return symbols


def load(path: Path) -> dict[str, Schema]:
    """Every schema file of the folder `path`, by kind."""
    found = {}
    for file in sorted(path.glob("*.avsc")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        found[schema["name"]] = schema
    types: dict[str, Any] = {}
    for schema in found.values():
        _collect(schema, types)
    return {kind: make(_embed(schema, types, set())) for kind, schema in found.items()}


def make(schema: dict[str, Any]) -> Schema:
    """A `Schema` of a schema that is whole."""
    canonical = to_parsing_canonical_form(schema)
    crc = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    return Schema(schema["name"].rpartition(".")[2], fastavro.parse_schema(schema), MAGIC + crc)


def _collect(schema: Any, types: dict[str, Any]) -> None:
    """Finds the named types inside `schema`."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, types)
    elif isinstance(schema, dict):
        if "name" in schema and schema["type"] in ("record", "enum", "fixed"):
            types[f"{NAMESPACE}.{schema['name']}"] = schema
        for part in ("type", "items", "values"):
            _collect(schema.get(part), types)
        for field in schema.get("fields", ()):
            _collect(field["type"], types)


def _embed(schema: Any, types: dict[str, Any], met: set[str]) -> Any:
    """`schema` with each type of another file put in where it is named first."""
    if isinstance(schema, list):
        return [_embed(branch, types, met) for branch in schema]
    if isinstance(schema, str):
        return schema if schema not in types or schema in met else _embed({"namespace": NAMESPACE, **types[schema]}, types, met)
    whole = dict(schema)
    if "name" in whole:
        met.add(f"{NAMESPACE}.{whole['name']}")
    for part in ("items", "values"):
        if part in whole:
            whole[part] = _embed(whole[part], types, met)
    if isinstance(whole["type"], (dict, list)):
        whole["type"] = _embed(whole["type"], types, met)
    if "fields" in whole:
        whole["fields"] = [{**field, "type": _embed(field["type"], types, met)} for field in whole["fields"]]
    return whole


CURRENT: Final = load(folder("schemas"))
# What earlier releases wrote, and may still lie on the topics.
RELEASED: Final = tuple(schema for version in sorted((folder("schemas") / "released").iterdir()) for schema in load(version).values())
