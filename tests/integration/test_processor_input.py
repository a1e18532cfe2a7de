"""Whatever is written to the topics that anybody may write to, the processor goes on, and says of each record what became of it."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from duewheel.adapters.avro import codec
from duewheel.core.errors import Reason
from duewheel.core.limits import FOREIGN_HEADERS_BYTES_MAX, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import Phase
from tests.integration.desk import PARTITIONS, Desk, Raw, home, job_ids, now_ms, raw_cancel, raw_schedule

HEADER_BYTES = 10
NOISE = random.Random(7).randbytes(600_000)


def bad_records(victim: str) -> dict[str, tuple[Raw, Reason]]:
    """Records that must not be obeyed, on the partition of `victim`, most of them under its key; and why."""
    key, partition = victim.encode(), home(victim)
    good = codec.encode_schedule(raw_command(victim))
    header, body = good[:HEADER_BYTES], good[HEADER_BYTES:]
    definition = codec.encode_definition({"generation": 9, "offset": 0, "schedule": raw_command(victim)})
    values: dict[str, tuple[bytes | None, Reason]] = {
        "no value": (None, Reason.NO_VALUE),
        "empty": (b"", Reason.UNKNOWN_FORMAT),
        "text": (b'{"job_id": "x"}', Reason.UNKNOWN_FORMAT),
        "unknown fingerprint": (b"\xc3\x01" + bytes(8) + body, Reason.UNKNOWN_SCHEMA),
        "cut short": (good[:-3], Reason.MALFORMED),
        "nothing but the header": (header, Reason.MALFORMED),
        "trailing bytes": (good + b"\0", Reason.TRAILING_BYTES),
        "two commands": (good + good, Reason.TRAILING_BYTES),
        "padded integers": (header + bytes([body[0] | 0x80, 0]) + body[1:], Reason.NOT_CANONICAL),
        "bomb of nested records": (header + b"\x02" * 900_000, Reason.TOO_LARGE),
        "bomb of counts": (header + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" * 50_000, Reason.MALFORMED),
        "a record of another kind": (definition, Reason.UNEXPECTED_RECORD),
        "too large, and small when compressed": (good + bytes(5_000_000), Reason.TOO_LARGE),
        "too large, half of it noise": (good + NOISE + bytes(1_000_000), Reason.TOO_LARGE),
    }
    records = {name: (Raw(key, value, partition), reason) for name, (value, reason) in values.items()}
    other = job_ids(1, partition, prefix="other")[0].encode()
    keys: dict[str, tuple[bytes | None, Reason]] = {
        "no key": (None, Reason.NO_KEY),
        "empty key": (b"", Reason.KEY_MISMATCH),
        "another job's key": (other, Reason.KEY_MISMATCH),
        "not UTF-8": (b"\xff\xfe", Reason.KEY_MISMATCH),
        "a key of noise": (NOISE, Reason.KEY_MISMATCH),
        "a huge key": (bytes(5_000_000), Reason.KEY_MISMATCH),
    }
    records |= {name: (Raw(bad, good, partition), reason) for name, (bad, reason) in keys.items()}
    records["huge headers"] = (Raw(key, b"", partition, [(f"h{n}", bytes(100_000)) for n in range(50)]), Reason.UNKNOWN_FORMAT)
    records["many headers"] = (Raw(key, b"", partition, [(f"h{n}", None) for n in range(50_000)]), Reason.UNKNOWN_FORMAT)
    return records


def raw_command(job_id: str) -> Any:
    return codec.decode_command(raw_schedule(job_id, now_ms(), payload=b"not this one", on_conflict="REPLACE").value)[1]


def test_K7_each_bad_record_is_one_dead_letter_and_the_partition_goes_on(desk: Desk) -> None:
    processor = desk.active()
    victim = "victim"
    partition = home(victim)
    due_ms = now_ms() + 4_000
    bad = bad_records(victim)
    desk.publish([raw_schedule(victim, due_ms, payload=b"the right one")])
    for record, _ in bad.values():  # one by one, as a batch with all of them would be too large
        desk.publish([record])
    after = job_ids(1, partition, prefix="after")[0]
    desk.schedule(after, now_ms())
    desk.drive(processor, until=lambda: {d["job_id"] for d in desk.dispatches()} >= {after, victim})
    desk.leave(processor)
    assert desk.dispatched() == sorted([after, victim])
    assert [d["work"]["payload"] for d in desk.all_dispatches() if d["job_id"] == victim] == [b"the right one"]
    letters = desk.dead_letters()
    assert {letter["offset"] - 1: letter["reason"] for letter in letters} == {n: reason for n, (_, reason) in enumerate(bad.values())}
    assert {(letter["topic"], letter["partition"]) for letter in letters} == {(desk.topology.intake, partition)}
    for letter, (record, _) in zip(letters, bad.values(), strict=True):
        assert (letter["key"] or b"") == (record.key or b"")[: len(letter["key"] or b"")]
        assert (letter["value"] or b"") == (record.value or b"")[:RECORD_BYTES_MAX]


def test_K7_bad_outcomes_are_dead_letters_too(desk: Desk) -> None:
    processor = desk.active()
    desk.schedule("job", now_ms())
    desk.drive(processor, until=desk.dispatches)
    partition = home("job")
    bad = [Raw(None, None, partition), Raw(b"job", b"?", partition), Raw(b"job", raw_schedule("job", now_ms()).value, partition)]
    desk.publish(bad, desk.topology.outcomes)
    desk.answer(desk.dispatches())
    desk.drive(processor, until=lambda: desk.phases() == {"job": Phase.SUCCEEDED})
    desk.leave(processor)
    assert [(letter["topic"], letter["partition"], letter["offset"], letter["reason"]) for letter in desk.dead_letters()] == [
        (desk.topology.outcomes, partition, 0, Reason.NO_VALUE),
        (desk.topology.outcomes, partition, 1, Reason.UNKNOWN_FORMAT),
        (desk.topology.outcomes, partition, 2, Reason.UNEXPECTED_RECORD),
    ]


def test_K7_outcomes_of_jobs_that_nobody_knows_change_nothing(desk: Desk) -> None:
    """Of a token never given, of a token that is over, on the wrong partition, twice."""
    processor = desk.active()
    ids = job_ids(2, partition=1)
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in ids)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    first, second = desk.dispatches()
    unknown, future, elsewhere = first.copy(), first.copy(), first.copy()
    unknown["job_id"], future["token"], elsewhere["timer_partition"] = "nobody", 999_999, 2
    desk.answer([unknown, future, elsewhere])
    desk.answer([second, second])
    desk.drive(processor, until=lambda: desk.phases().get(second["job_id"]) == Phase.SUCCEEDED)
    desk.leave(processor)
    assert desk.phases() == {first["job_id"]: Phase.DISPATCHED, second["job_id"]: Phase.SUCCEEDED}
    assert desk.dead_letters() == []


def test_K9_headers_that_look_like_control_are_carried_and_not_obeyed(desk: Desk) -> None:
    processor = desk.active()
    work_headers = {"job_id": "other", "due_ms": "0", "cancel": "true", "token": "1", "duewheel.generation": "7", "": ""}
    control: list[tuple[str, str | bytes | None]] = [
        ("duewheel", b"cancel"),
        ("job_id", b"other"),
        ("due_ms", b"99999999999999"),
        ("queue", b"nowhere"),
        ("token", b"\xff\x00"),
        ("token", None),
        ("", b""),
        ("Nats-Schedule", b"@every 1s"),
    ]
    astray = (home("astray") + 1) % PARTITIONS
    desk.publish(
        [
            raw_schedule("at-home", now_ms(), kafka_headers=control, headers=work_headers),
            raw_schedule("astray", now_ms(), partition=astray, kafka_headers=control, headers=work_headers),
        ]
    )
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    desk.leave(processor)
    assert desk.dispatched() == ["astray", "at-home"]
    for d in desk.all_dispatches():
        assert d["work"]["headers"] == work_headers
        assert (d["generation"], d["token"], d["attempt"]) == (1, 1, 1)
    forwarded = [m for m in desk.read(desk.topology.intake) if m.key() == b"astray" and m.partition() == home("astray")]
    assert [m.headers() for m in forwarded] == [control]


def test_a_record_astray_with_more_headers_than_can_be_forwarded_is_refused(desk: Desk) -> None:
    processor = desk.active()
    astray = (home("astray") + 1) % PARTITIONS
    huge: list[tuple[str, str | bytes | None]] = [("h", bytes(5_000_000))]
    limit: list[tuple[str, str | bytes | None]] = [("h", bytes(FOREIGN_HEADERS_BYTES_MAX - 9))]
    desk.publish([raw_schedule("astray", now_ms(), partition=astray, kafka_headers=huge)])
    desk.publish([raw_schedule("astray", now_ms(), partition=astray, kafka_headers=limit)])
    desk.drive(processor, until=desk.dispatches)
    desk.leave(processor)
    assert [letter["reason"] for letter in desk.dead_letters()] == [Reason.BAD_HEADERS]


def test_K7_a_header_whose_name_is_not_text_stops_nobody(desk: Desk) -> None:
    """As C and Go clients may send it. On a good record it does not matter, a refused record loses it, one astray is refused."""
    processor = desk.active()
    here, elsewhere = home("job"), (home("job") + 1) % PARTITIONS
    good = raw_schedule("job", now_ms())
    publish_with_broken_header(
        desk, [good._replace(partition=elsewhere), good._replace(value=b"?", partition=here), good._replace(partition=here)]
    )
    desk.drive(processor, until=lambda: desk.dispatches() and len(desk.seen(desk.topology.dead_letter)) >= 2)
    desk.leave(processor)
    assert desk.dispatched() == ["job"]
    assert {letter["partition"]: letter["reason"] for letter in desk.dead_letters()} == {
        elsewhere: Reason.BAD_HEADERS,
        here: Reason.UNKNOWN_FORMAT,
    }


def publish_with_broken_header(desk: Desk, records: list[Raw]) -> None:
    """Through librdkafka itself: the Python client sends no such name."""
    [path] = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    pointer, size, error = ctypes.c_void_p, ctypes.c_size_t, ctypes.create_string_buffer(512)
    conf = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", desk.kafka.bootstrap_servers.encode(), error, size(512))
    producer = pointer(library.rd_kafka_new(0, conf, error, size(512)))
    for key, value, partition, _ in records:
        headers = pointer(library.rd_kafka_headers_new(size(1)))
        library.rd_kafka_header_add(headers, b"\xff\xfe", ctypes.c_ssize_t(2), b"v", ctypes.c_ssize_t(1))
        assert key is not None
        assert value is not None
        # rd_kafka_vtype_t: TOPIC 1, PARTITION 3, VALUE 4, KEY 5, MSGFLAGS 7 (2 is "copy"), HEADERS 10, END 0
        arguments = (
            1,
            desk.topology.intake.encode(),
            3,
            partition,
            4,
            value,
            size(len(value)),
            5,
            key,
            size(len(key)),
            7,
            2,
            10,
            headers,
            0,
        )
        assert library.rd_kafka_producev(producer, *arguments) == 0
    assert library.rd_kafka_flush(producer, 20_000) == 0
    library.rd_kafka_destroy(producer)


def test_an_unknown_queue_is_a_dead_letter_that_names_it(desk: Desk) -> None:
    processor = desk.active()
    desk.publish(raw_schedule(f"lost-{n}", now_ms(), queue="nowhere") for n in range(20))
    desk.schedule("bad-name", now_ms(), queue="../etc")
    desk.schedule("found", now_ms())
    desk.drive(processor, until=lambda: desk.dispatches() and len(desk.seen(desk.topology.dead_letter)) >= 21)
    desk.leave(processor)
    letters = {(letter["key"] or b"").decode(): letter for letter in desk.dead_letters()}
    assert len(letters) == len(desk.dead_letters()) == 21
    assert letters.pop("bad-name")["reason"] == Reason.BAD_QUEUE
    assert {letter["reason"] for letter in letters.values()} == {Reason.UNKNOWN_QUEUE}
    assert "duewheel topics apply --queue nowhere" in letters["lost-0"]["message"]
    assert desk.dispatched() == ["found"]
    assert all(b"dlost" not in key for records in desk.fold().values() for key in records)


@pytest.mark.parametrize("how", ["at home", "astray"])
def test_the_largest_job_that_clients_accept_passes(desk: Desk, how: str) -> None:
    """Noise, so that compression does not help it through."""
    processor = desk.active()
    payload = random.Random(3).randbytes(PAYLOAD_BYTES_MAX)
    headers = {f"h{n}": "é" * 126 for n in range(60)}
    job_id = "j" * 255
    partition = home(job_id) if how == "at home" else (home(job_id) + 1) % PARTITIONS
    largest = raw_schedule(job_id, now_ms(), partition, payload=payload, headers=headers, task="t" * 255)
    desk.publish([largest])
    desk.drive(processor, until=desk.dispatches)
    desk.leave(processor)
    assert desk.all_dispatches()[0]["work"]["payload"] == payload
    assert desk.dead_letters() == []


def test_a_cancel_of_a_job_that_nobody_knows_is_nothing(desk: Desk) -> None:
    processor = desk.active()
    desk.publish([raw_cancel("nobody"), raw_schedule("nobody", now_ms())])
    desk.drive(processor, until=desk.dispatches)
    desk.leave(processor)
    assert desk.dispatched() == ["nobody"]
    assert desk.dead_letters() == []
