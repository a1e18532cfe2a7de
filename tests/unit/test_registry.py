"""Reading Confluent's format with the help of a registry, over HTTP on the loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.registry import ABSENT_MS, ANSWER_BYTES_MAX, AWAY_MS, SCHEMAS_MAX, Registry
from duewheel.adapters.avro.schemas import CURRENT, Schema, make
from duewheel.adapters.avro.strict import Reader, encode_as
from duewheel.core.errors import BadConfiguration, EnvironmentFailure, Reason, RegistryUnavailable, UndecodableRecord
from tests.malformed import SCHEDULE, VALUE
from tests.registry import FakeRegistry, framed


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = FakeRegistry()
    yield server
    server.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reading(server: FakeRegistry, clock: ManualClock) -> codec.Codec:
    return codec.Codec(Reader(registry=Registry(f"http://{server.address}", clock)))


def reason_of(reading: codec.Codec, value: bytes) -> Reason:
    with pytest.raises(UndecodableRecord) as refusal:
        reading.decode_command(value)
    return refusal.value.reason


def test_confluents_format_is_read(server: FakeRegistry, reading: codec.Codec) -> None:
    server.register(7, CURRENT["Schedule"].parsed)
    server.register(8, CURRENT["Cancel"].parsed)
    kind, record, work = reading.decode_command(framed(7, VALUE))
    assert (kind, record) == ("schedule", SCHEDULE)
    assert VALUE.endswith(work)
    assert reading.current_command(framed(7, VALUE)) == VALUE
    cancel = codec.encode_cancel({"job_id": "j", "created_ms": 1, "reach": "DEFAULT"})
    assert reading.decode_command(framed(8, cancel)) == ("cancel", {"job_id": "j", "created_ms": 1, "reach": "DEFAULT"}, b"")


def test_an_id_is_asked_for_once(server: FakeRegistry, reading: codec.Codec) -> None:
    server.register(7, CURRENT["Schedule"].parsed)
    for _ in range(3):
        reading.decode_command(framed(7, VALUE))
    assert server.asked == ["/schemas/ids/7"]


def test_single_objects_need_no_registry(server: FakeRegistry, reading: codec.Codec) -> None:
    server.stop()
    assert reading.decode_command(VALUE)[1] == SCHEDULE
    assert not server.asked


def test_confluents_format_is_read_as_strictly(server: FakeRegistry, reading: codec.Codec) -> None:
    server.register(7, CURRENT["Schedule"].parsed)
    server.register(9, CURRENT["State"].parsed)
    value = framed(7, VALUE)
    assert reason_of(reading, value + b"\0") == Reason.TRAILING_BYTES
    assert reason_of(reading, value[:-1]) == Reason.MALFORMED
    assert reason_of(reading, value.replace(b"\x04j1", b"\x84\0j1", 1)) == Reason.NOT_CANONICAL
    assert reason_of(reading, b"\0\0\0\7") == Reason.UNKNOWN_FORMAT
    assert reason_of(reading, framed(9, VALUE)) == Reason.UNEXPECTED_RECORD


def wider_schedule() -> Schema:
    """A Schedule of another team: their documentation and logical types, a field of their own, and fewer of ours."""
    fields = [field for field in json.loads(json.dumps(CURRENT["Schedule"].parsed["fields"])) if field["name"] != "retention_ms"]
    fields = [
        {**field, "type": {"type": "long", "logicalType": "timestamp-millis"}} if field["name"] == "due_ms" else field for field in fields
    ]
    fields.append({"name": "tenant", "type": ["null", "string"], "default": None})
    return make({"type": "record", "name": "Schedule", "namespace": "duewheel", "doc": "theirs", "fields": fields})


def test_a_compatible_schema_is_resolved(server: FakeRegistry, reading: codec.Codec) -> None:
    theirs = wider_schedule()
    server.register(11, theirs.parsed)
    written = {**{name: value for name, value in SCHEDULE.items() if name != "retention_ms"}, "tenant": "acme"}
    value = framed(11, encode_as(theirs, written))
    assert reading.decode_command(value)[:2] == ("schedule", SCHEDULE)
    assert reading.current_command(value) == VALUE


def test_an_incompatible_schema_is_refused(server: FakeRegistry, reading: codec.Codec) -> None:
    other = make({"type": "record", "name": "duewheel.Cancel", "fields": [{"name": "created_ms", "type": "string"}]})
    server.register(12, other.parsed)
    assert reason_of(reading, framed(12, encode_as(other, {"created_ms": "now"}))) == Reason.UNKNOWN_SCHEMA


def test_an_unknown_id_is_asked_for_again_after_a_while(server: FakeRegistry, reading: codec.Codec, clock: ManualClock) -> None:
    value = framed(13, VALUE)
    assert reason_of(reading, value) == Reason.UNKNOWN_SCHEMA
    assert reason_of(reading, value) == Reason.UNKNOWN_SCHEMA
    assert len(server.asked) == 1
    server.register(13, CURRENT["Schedule"].parsed)
    clock.now_ms += ABSENT_MS
    assert reading.decode_command(value)[1] == SCHEDULE


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": '"string"'},
        {"schema": '{"type":"record","name":"Schedule","namespace":"duewheel","fields":[{"name":"x","type":["null","Schedule"]}]}'},
        {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"},
        {"schema": '"duewheel.Work"', "references": [{"name": "duewheel.Work", "subject": "work", "version": 1}]},
        {"schema": "x" * ANSWER_BYTES_MAX},
    ],
    ids=["another type", "hostile", "Protobuf", "references", "huge"],
)
def test_a_schema_of_no_use_makes_a_bad_record(server: FakeRegistry, reading: codec.Codec, answer: Any) -> None:
    server.answers[14] = (200, json.dumps(answer).encode())
    assert reason_of(reading, framed(14, VALUE)) == Reason.UNKNOWN_SCHEMA


@pytest.mark.parametrize("answer", [(500, b"{}"), (401, b"{}"), (503, b""), (200, b"<html>"), (200, b"[]"), (200, b"{}")])
def test_a_registry_out_of_order_is_no_fault_of_the_record(
    server: FakeRegistry, reading: codec.Codec, clock: ManualClock, answer: tuple[int, bytes]
) -> None:
    server.answers[15] = answer
    with pytest.raises(RegistryUnavailable, match=server.address):
        reading.decode_command(framed(15, VALUE))
    server.register(15, CURRENT["Schedule"].parsed)
    with pytest.raises(RegistryUnavailable):
        reading.decode_command(framed(15, VALUE))
    assert len(server.asked) == 1
    clock.now_ms += AWAY_MS
    assert reading.decode_command(framed(15, VALUE))[1] == SCHEDULE


def test_a_registry_that_is_away_is_no_fault_of_the_record(server: FakeRegistry, reading: codec.Codec) -> None:
    server.stop()
    with pytest.raises(EnvironmentFailure, match=server.address):
        reading.decode_command(framed(16, VALUE))


def test_a_listener_that_is_no_registry_is_no_fault_of_the_record(clock: ManualClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            Registry(f"http://127.0.0.1:{listener.getsockname()[1]}", clock).schema(1)
        thread.join()


def test_a_registry_that_does_not_answer_is_given_up(clock: ManualClock, server: FakeRegistry) -> None:
    silent = Registry(f"http://{server.address}", clock, timeout_s=0.2)
    answered = threading.Event()

    class Waiting(dict[int, tuple[int, bytes]]):
        def get(self, key: int, default: Any = None) -> Any:
            answered.wait(10)
            return default

    server.answers = Waiting()
    begin = time.monotonic()
    try:
        with pytest.raises(RegistryUnavailable, match="timed out"):
            silent.schema(17)
        assert time.monotonic() - begin < 5
    finally:
        answered.set()


def test_what_is_remembered_is_bounded(server: FakeRegistry, clock: ManualClock) -> None:
    registry = Registry(f"http://{server.address}", clock)
    answer = (200, json.dumps({"schema": json.dumps(CURRENT["Progress"].parsed, default=str)}).encode())
    for schema_id in range(SCHEMAS_MAX + 2):
        server.answers[schema_id] = answer
        registry.schema(schema_id)
    registry.schema(SCHEMAS_MAX + 1)
    assert len(server.asked) == SCHEMAS_MAX + 2
    registry.schema(0)
    assert len(server.asked) == SCHEMAS_MAX + 3


def test_the_user_in_the_address_is_sent_and_never_shown(server: FakeRegistry, clock: ManualClock) -> None:
    server.answers[18] = (403, b"{}")
    registry = Registry(f"http://ada:s%40cret@{server.address}/", clock)
    with pytest.raises(RegistryUnavailable) as failure:
        registry.schema(18)
    assert server.authorization == f"Basic {b64encode(b'ada:s@cret').decode()}"
    assert "cret" not in str(failure.value)


@pytest.mark.parametrize("url", ["", "registry:8081", "ftp://registry", "http://", "file:registry"])
def test_an_address_that_is_none_is_refused(url: str, clock: ManualClock) -> None:
    with pytest.raises(BadConfiguration, match="schema registry"):
        Registry(url, clock)
