"""A record of the intake topic, whole: key, Kafka's headers and value, from whoever may write there.

What must hold is the promise itself: such a record becomes one command, or one dead letter that can be written and read. So what is refused
is buried here, and what is obeyed goes on through definition and dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.core.changes import updated
from duewheel.core.errors import RejectedJob
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import Action, Change
from duewheel.core.refusals import Headers, Refusal
from duewheel.engine.intake import CommandReader, Kind
from tests.fuzz.samples import Breeder, encoded, malformed_values
from tests.fuzz.target import Target, agree, demand
from tests.records import COMMANDS
from tests.recurring import cron, every, every_after

_PARTITIONS: Final = 2
_READER: Final = CommandReader(codec, partition_of, _PARTITIONS)
_NOW_MS: Final = 1_790_000_000_000

# What the first byte of an input says.
_NO_KEY, _NO_VALUE, _NO_HEADERS, _BAD_NAME, _BROKEN = 1, 2, 4, 8, 16


class Record(NamedTuple):
    """A consumed record."""

    key_: bytes | None
    value_: bytes | None
    headers_: Headers | Exception | None

    def topic(self) -> str:
        return "duewheel.intake"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Headers | None:
        if isinstance(self.headers_, Exception):
            raise self.headers_
        return self.headers_

    def timestamp(self) -> tuple[int, int]:
        return 1, _NOW_MS


def _pack(key: bytes, headers: Sequence[tuple[bytes, bytes]], value: bytes, flags: int = 0) -> bytes:
    """flags, key with two bytes of size, number of headers, each with sizes, value."""
    parts = [bytes((flags,)), len(key).to_bytes(2, "big"), key, bytes((len(headers),))]
    for part in (part for header in headers for part in header):
        parts += [len(part).to_bytes(2, "big"), part]
    return b"".join([*parts, value])


def _unpack(packed: bytes) -> Record:
    """Whatever the bytes are, they are some record."""
    at = 1

    def part() -> bytes:
        nonlocal at
        size = int.from_bytes(packed[at : at + 2], "big")
        at += 2 + size
        return packed[at - size : at]

    flags = packed[0] if packed else 0
    key = part()
    count = packed[at] if at < len(packed) else 0
    at += 1
    headers: Headers | Exception | None = [(part().decode("utf-8", "replace"), part() or None) for _ in range(count)]
    if flags & _NO_HEADERS:
        headers = None
    elif flags & _BAD_NAME:  # what confluent-kafka makes of a name that is no UTF-8
        headers = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    elif flags & _BROKEN:
        headers = SystemError("returned a result with an exception set")
    return Record(None if flags & _NO_KEY else key, None if flags & _NO_VALUE else packed[at:], headers)


@cache
def _obedient() -> Sequence[bytes]:
    """Commands that keep the rules, as most of those that are drawn do not."""
    policy: Any = {"attempts_max": 5, "delays_ms": [1_000], "factor": 2.0, "delay_ms_max": 0, "jitter": 0.5, "give_up_on": ["app.NotFound"]}
    policy |= {"retry_on": [], "run_timeout_ms": 60_000}
    limits: Any = {"expires_ms": _NOW_MS + 9, "total_timeout_ms": 600_000, "crashes_max": 0}
    recurrences = [cron("0 9 * * mon-fri", "Europe/Berlin"), every(90_000, jitter_ms=5_000), every_after(60_000)]
    values = []
    for number in range(30):
        guarded, recurring = number % 3 == 0, number % 5 == 0
        work: Any = {
            "task": "t",
            "content_type": "application/json",
            "payload": b"{}" * number,
            "headers": {"a": "b"} if number % 2 else {},
        }
        work["policy"] = policy if guarded else None
        fixed: Any = {"job_id": f"j-{number}", "due_ms": _NOW_MS, "created_ms": _NOW_MS, "on_conflict": "IGNORE", "queue": "default"}
        schedule: Any = {**fixed, "retention_ms": 0, "limits": limits if guarded else None, "work": work}
        schedule["recurrence"] = recurrences[number % len(recurrences)] if recurring else None
        schedule["delivery"] = {"topic": "orders", "key": b"k", "tombstone": False} if number % 7 == 1 and not guarded else None
        values.append(codec.encode_schedule(schedule))
        values.append(codec.encode_cancel({"job_id": f"j-{number}", "created_ms": _NOW_MS, "reach": "DEFAULT"}))
        given: Any = [{}, {"due_ms": _NOW_MS, "payload": b"[]"}, {"limits": limits, "policy": policy}, {"headers": {"a": "b"}}, {}][
            number % 5
        ]
        change: Any = {**dict.fromkeys(Change.__annotations__), "job_id": f"j-{number}", "created_ms": _NOW_MS, **given}
        change["action"] = "UPDATE" if given else ("PAUSE", "RESUME", "RUN_NOW")[number % 3]
        values.append(codec.encode_change(change))
    return values


@cache
def _seeds() -> Sequence[bytes]:
    headers = [[], [(b"a", b"b")], [(b"", b""), (b"traceparent", b"00-1")], [(b"x" * 200, b"y" * 4_000)] * 2, [(b"", b"")] * 200]
    seeds = []
    for index, value in enumerate([*encoded(*COMMANDS), *malformed_values(), *_obedient(), *_obedient()]):
        try:
            key = codec.decode_command(value)[1]["job_id"].encode()
        except Exception:
            key = b"j1"
        seeds.append(_pack(key, headers[index % len(headers)], value, (0, 0, 0, 1, 2, 4, 8, 16)[index % 8]))
    return seeds


def _read(packed: bytes) -> Any:
    [command] = _READER.read([_unpack(packed)])
    return command


def _check(_packed: bytes, command: Any) -> None:
    kind, _, _, record, what, work, value = command
    if kind is Kind.REFUSE:
        _bury(what)
    elif kind is Kind.SCHEDULE:
        _obey(what, work, value)
    elif kind is Kind.CHANGE and what["action"] == Action.UPDATE:
        _update(what)
    elif kind is Kind.FORWARD:
        agree("where it goes", what[0], partition_of(record.key(), _PARTITIONS))


def _bury(refusal: Refusal) -> None:
    letter = refusal.letter(_NOW_MS)
    encoded_letter = codec.encode_dead_letter(letter)
    demand(len(encoded_letter) <= DEAD_LETTER_BYTES_MAX, f"too large a dead letter: {len(encoded_letter):,} bytes")
    agree("the dead letter", codec.decode_dead_letter(encoded_letter), letter)


def _obey(command: Any, work: bytes, value: bytes) -> None:
    """What an owner writes of a job can be read by everybody."""
    definition = codec.splice_definition(1, 7, value)
    agree("the definition", codec.decode_definition(definition), {"generation": 1, "offset": 7, "schedule": command})
    agree("the glance", codec.peek_definition(definition).work, work)
    dispatch = codec.splice_dispatch(7, command["job_id"], 1, command["due_ms"], 1, 0, _NOW_MS, None, work)
    demand(len(dispatch) <= RECORD_BYTES_MAX, f"too large a dispatch: {len(dispatch):,} bytes")
    agree("the work", codec.decode_dispatch(dispatch)["work"], command["work"])


def _update(change: Any) -> None:
    """What an owner makes of an update is refused, or a job as any other."""
    delivery = {"topic": "orders", "key": b"k", "tombstone": False}
    for recurrence, goes_to in ((None, None), (every(90_000), None), (None, delivery)):
        work: Any = {"task": "t", "content_type": "application/json", "payload": b"1", "headers": {}, "policy": None}
        fixed: Any = {"job_id": change["job_id"], "due_ms": _NOW_MS, "created_ms": _NOW_MS, "on_conflict": "IGNORE", "queue": "default"}
        schedule: Any = {**fixed, "retention_ms": 0, "limits": None, "recurrence": recurrence, "delivery": goes_to, "work": work}
        try:
            record, encoded_work, value = codec.revise_schedule(codec.encode_schedule(schedule), lambda known: updated(known, change))
        except RejectedJob:
            continue
        demand(len(value) <= RECORD_BYTES_MAX, f"too large a job: {len(value):,} bytes")
        _obey(record, encoded_work, value)


_breed: Final = Breeder(COMMANDS, RECORD_BYTES_MAX)

TARGETS: Final = [
    Target(
        name="intake",
        call=_read,
        seeds=_seeds,
        breed=lambda pick: _pack(b"j1", [], _breed(pick)),
        check=_check,
        bytes_max=RECORD_BYTES_MAX + 20_000,
        weight=40,
    )
]
