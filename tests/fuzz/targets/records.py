"""Every decoder of records: the fast ways, each against the strict one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.encode import encode_schedule, encode_work
from duewheel.adapters.avro.schemas import CURRENT, HEADER_BYTES
from duewheel.adapters.avro.strict import Reader
from duewheel.core.errors import UndecodableRecord
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.step import Defined, lane
from tests.fuzz.samples import Breeder, encoded, malformed_values
from tests.fuzz.target import Target, agree, demand
from tests.records import COMMANDS, FUNCTIONS

EMBEDDED_BYTES_MAX: Final = RECORD_BYTES_MAX + 1_024
_STRICT: Final = Reader()
_LETTERS: Final = ("DeadLetter", "DeadRun", "DeadRunClosed")


def strictly(value: bytes, kinds: Sequence[str], bytes_max: int) -> Any:
    """The record in `value`, or the error, as `strict` has it."""
    try:
        return _STRICT.read(value, tuple(kinds), bytes_max)
    except UndecodableRecord as error:
        return error


def agree_with_strict(value: bytes, record: Any, kinds: Sequence[str], bytes_max: int) -> None:
    """Whatever a decoder gave, a record or an error, `strict` gives too."""
    strict = strictly(value, kinds, bytes_max)
    if isinstance(record, UndecodableRecord) or isinstance(strict, UndecodableRecord):
        agree("the verdict", getattr(record, "reason", "a record"), getattr(strict, "reason", "a record"))
        return
    kind, expected = strict
    agree("the record", record, expected)
    if value[:HEADER_BYTES] == CURRENT[kind].header:
        agree("what it is encoded as", getattr(codec, f"encode_{FUNCTIONS[kind]}")(record), value)


def _decoder(kind: str, bytes_max: int, weight: int = 10) -> Target:
    name = f"decode_{FUNCTIONS[kind]}"
    decode: Callable[[bytes], Any] = getattr(codec, name)
    return Target(
        name=name,
        call=decode,
        legal=(UndecodableRecord,),
        seeds=lambda: encoded(kind),
        breed=Breeder([kind], bytes_max),
        check=lambda value, found: agree_with_strict(value, found, [kind], bytes_max),
        bytes_max=bytes_max + 100,
        weight=weight,
    )


def _check_command(value: bytes, found: Any) -> None:
    if isinstance(found, UndecodableRecord):
        agree_with_strict(value, found, COMMANDS, RECORD_BYTES_MAX)
        return
    name, record, work = found
    agree_with_strict(value, record, COMMANDS, RECORD_BYTES_MAX)
    agree("work", work, encode_work(record["work"]) if name == "schedule" else b"")
    if name == "schedule":
        current = codec.current_command(value)
        agree("the current command", current, encode_schedule(record))


def _check_peek(value: bytes, found: Any) -> None:
    """A glance sees what decoding sees; where decoding finds damage, the glance need not notice."""
    whole = strictly(value, ["Definition"], EMBEDDED_BYTES_MAX)
    if isinstance(whole, UndecodableRecord):
        return
    demand(not isinstance(found, UndecodableRecord), f"a glance refuses a good definition: {found}")
    schedule = whole[1]["schedule"]
    rest = (schedule["recurrence"], whole[1]["offset"], schedule["delivery"])
    queue = lane(schedule["queue"], schedule["delivery"])
    seen = (whole[1]["generation"], schedule["due_ms"], queue, schedule["retention_ms"], schedule["limits"])
    agree("what a glance sees", found, Defined(*seen, encode_work(schedule["work"]), encode_schedule(schedule), *rest))


def _check_dead_run(value: bytes, found: Any) -> None:
    whole = strictly(value, ["Definition"], EMBEDDED_BYTES_MAX)
    if not isinstance(whole, UndecodableRecord):
        demand(isinstance(found, bytes), f"a good definition makes no dead run: {found}")
        agree("the dead run's definition", codec.decode_dead_run(found)["definition"], whole[1])


def _splice_dead_run(value: bytes) -> bytes:
    state: Any = {"generation": 1, "phase": "FAILED", "attempt": 1, "crashes": 0, "token": 7, "slot_ms": 0, "changed_ms": 0}
    state |= {"error": None, "trail": None}
    return codec.splice_dead_run("j", 7, 0, 0, "failed", state, value)


def _check_letter_topic(value: bytes, found: Any) -> None:
    agree_with_strict(value, found[1] if isinstance(found, tuple) else found, _LETTERS, DEAD_LETTER_BYTES_MAX)


TARGETS: Final = [
    Target(
        name="decode_command",
        call=codec.decode_command,
        legal=(UndecodableRecord,),
        seeds=lambda: [*encoded(*COMMANDS), *malformed_values()],
        breed=Breeder(COMMANDS, RECORD_BYTES_MAX),
        check=_check_command,
        bytes_max=RECORD_BYTES_MAX + 100,
        weight=40,
    ),
    Target(
        name="peek_definition",
        call=codec.peek_definition,
        legal=(UndecodableRecord,),
        seeds=lambda: encoded("Definition"),
        breed=Breeder(["Definition"], EMBEDDED_BYTES_MAX),
        check=_check_peek,
        bytes_max=EMBEDDED_BYTES_MAX + 100,
        weight=20,
    ),
    _decoder("Definition", EMBEDDED_BYTES_MAX),
    _decoder("State", RECORD_BYTES_MAX, 30),
    _decoder("Progress", RECORD_BYTES_MAX, 5),
    _decoder("Dispatch", EMBEDDED_BYTES_MAX, 30),
    _decoder("Outcome", RECORD_BYTES_MAX, 30),
    _decoder("Stop", RECORD_BYTES_MAX),
    _decoder("DeadLetter", DEAD_LETTER_BYTES_MAX),
    _decoder("DeadRun", DEAD_LETTER_BYTES_MAX),
    _decoder("DeadRunClosed", DEAD_LETTER_BYTES_MAX, 5),
    Target(
        name="decode_dead_letter_topic",
        call=codec.decode_dead_letter_topic,
        legal=(UndecodableRecord,),
        seeds=lambda: encoded(*_LETTERS),
        breed=Breeder(_LETTERS, DEAD_LETTER_BYTES_MAX),
        check=_check_letter_topic,
        bytes_max=DEAD_LETTER_BYTES_MAX + 100,
    ),
    Target(
        name="splice_dead_run",
        call=_splice_dead_run,
        legal=(UndecodableRecord,),
        seeds=lambda: encoded("Definition"),
        breed=Breeder(["Definition"], EMBEDDED_BYTES_MAX),
        check=_check_dead_run,
        bytes_max=EMBEDDED_BYTES_MAX + 100,
        weight=5,
    ),
]
