"""Records to test with: strategies for every kind, and ways to encode them that no proper writer takes.

`SloppyWriter` writes Avro that means the same record, or almost: padded numbers, maps in blocks, negative counts, a name twice, an
index counted from the end. It walks the schema files itself and knows nothing of fastavro, so that the two check each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import inf, nan
from typing import Any, Final

from hypothesis import strategies as st

from duewheel.core.model import Action, Closing, Misfire, Overlap, Phase, Reach, RecurrenceKind, Result
from duewheel.resources import folder

TIME_MS: Final = 1_790_000_000_000

longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
times = st.one_of(st.integers(TIME_MS, TIME_MS + 10**9), st.integers(0, 2**43), longs)
counts = st.one_of(st.integers(0, 70), st.integers(0, 2**31 - 1), ints)
tokens = st.one_of(st.integers(0, 2**36), longs)
texts = st.one_of(st.text(max_size=20), st.text("aé…🙂", min_size=60, max_size=70))
blobs = st.one_of(st.binary(max_size=20), st.binary(min_size=60, max_size=140))

# Readers take neither infinities nor a zero with a sign; the property tests damage records into those.
doubles = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 4.0]), st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
)
names = st.lists(st.one_of(st.just("app.errors.Timeout"), texts), max_size=3)
spans = st.one_of(st.just(0), st.integers(0, 10**7), times)

policies = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "attempts_max": counts,
            "delays_ms": st.lists(spans, max_size=3),
            "factor": doubles,
            "delay_ms_max": spans,
            "jitter": doubles,
            "give_up_on": names,
            "retry_on": names,
            "run_timeout_ms": spans,
        }
    ),
)
limits = st.one_of(st.none(), st.fixed_dictionaries({"expires_ms": spans, "total_timeout_ms": spans, "crashes_max": counts}))
recurrences = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(list(RecurrenceKind)).map(str),
            "every_ms": spans,
            "expression": st.one_of(st.sampled_from(["", "0 9 * * mon-fri", "@daily"]), texts),
            "zone": st.one_of(st.sampled_from(["UTC", "Europe/Berlin"]), texts),
            "start_ms": spans,
            "end_ms": spans,
            "runs_max": counts,
            "jitter_ms": spans,
            "misfire": st.sampled_from(list(Misfire)).map(str),
            "misfire_max": counts,
            "grace_ms": spans,
            "overlap": st.sampled_from(list(Overlap)).map(str),
            "overlap_max": counts,
        }
    ),
)
deliveries = st.one_of(st.none(), st.fixed_dictionaries({"topic": texts, "key": st.one_of(st.none(), blobs), "tombstone": st.booleans()}))
terms = st.one_of(
    st.none(), st.fixed_dictionaries({"crashes": counts, "is_last_life": st.booleans(), "expires_ms": spans, "deadline_ms": spans})
)
works = st.fixed_dictionaries(
    {
        "task": st.one_of(st.sampled_from(["send_email", "send_email_to_everybody"]), texts),
        "content_type": st.one_of(st.sampled_from(["application/json", "application/octet-stream"]), texts),
        "payload": blobs,
        "headers": st.one_of(st.just({}), st.dictionaries(texts, texts, max_size=3)),
        "policy": policies,
    }
)
schedules = st.fixed_dictionaries(
    {
        "job_id": st.one_of(st.text("abc-123", min_size=1, max_size=30), texts),
        "due_ms": times,
        "created_ms": times,
        "on_conflict": st.sampled_from(["IGNORE", "REPLACE", "REJECT"]),
        "retention_ms": st.one_of(st.just(86_400_000), times),
        "queue": st.one_of(st.just("default"), texts),
        "limits": limits,
        "recurrence": recurrences,
        "delivery": deliveries,
        "work": works,
    }
)
failures = st.one_of(st.none(), st.fixed_dictionaries({"type": texts, "message": texts, "traceback": texts}))
outputs = st.one_of(st.none(), blobs)
endings = st.fixed_dictionaries(
    {
        "attempt": counts,
        "token": tokens,
        "result": st.one_of(st.sampled_from(["RETRY", "LOST", "LEASE_EXPIRED"]), texts),
        "started_ms": times,
        "ended_ms": times,
        "worker": texts,
        "type": texts,
        "message": texts,
    }
)
trails = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "wake_ms": spans,
            "lease_ms": spans,
            "first_ms": spans,
            "output": outputs,
            "endings": st.lists(endings, max_size=3),
            "runs": st.lists(times, max_size=3),
            "queued_ms": spans,
            "answers": st.lists(
                st.fixed_dictionaries({"offset": tokens, "taken_ms": times, "reason": texts, "message": texts}), max_size=2
            ),
            "is_quiet": st.booleans(),
        }
    ),
)
states = st.fixed_dictionaries(
    {
        "generation": counts,
        "phase": st.sampled_from(list(Phase)).map(str),
        "attempt": counts,
        "crashes": counts,
        "token": tokens,
        "slot_ms": times,
        "changed_ms": times,
        "error": failures,
        "trail": trails,
    }
)
definitions = st.fixed_dictionaries({"generation": counts, "offset": st.integers(-1, 2**63 - 1), "schedule": schedules})
of_dead_runs = st.fixed_dictionaries({"job_id": texts, "token": tokens, "created_ms": times})

RECORDS: Final[dict[str, st.SearchStrategy[dict[str, Any]]]] = {
    "Schedule": schedules,
    "Cancel": st.fixed_dictionaries({"job_id": texts, "created_ms": times, "reach": st.sampled_from(list(Reach)).map(str)}),
    "Redrive": of_dead_runs,
    "Drop": of_dead_runs,
    "Change": st.fixed_dictionaries(
        {
            "job_id": texts,
            "created_ms": times,
            "action": st.sampled_from(list(Action)).map(str),
            "due_ms": st.one_of(st.none(), times),
            "retention_ms": st.one_of(st.none(), times),
            "limits": limits,
            "recurrence": recurrences,
            "payload": st.one_of(st.none(), blobs),
            "content_type": st.one_of(st.none(), texts),
            "headers": st.one_of(st.none(), st.dictionaries(texts, texts, max_size=3)),
            "policy": policies,
        }
    ),
    "Definition": definitions,
    "State": states,
    "Progress": st.fixed_dictionaries({"token": tokens, "intake_offset": tokens, "outcomes_offset": tokens}),
    "Dispatch": st.fixed_dictionaries(
        {
            "token": tokens,
            "job_id": texts,
            "generation": counts,
            "slot_ms": times,
            "attempt": counts,
            "timer_partition": counts,
            "dispatched_ms": times,
            "terms": terms,
            "work": works,
        }
    ),
    "Outcome": st.fixed_dictionaries(
        {
            "token": tokens,
            "job_id": texts,
            "slot_ms": times,
            "attempt": counts,
            "result": st.sampled_from(list(Result)).map(str),
            "started_ms": times,
            "finished_ms": times,
            "worker": texts,
            "error": failures,
            "retry_after_ms": spans,
            "lease_ms": spans,
            "output": outputs,
        }
    ),
    "Stop": st.fixed_dictionaries({"job_id": texts, "token": tokens, "queue": texts}),
    "DeadRun": st.fixed_dictionaries(
        {
            "job_id": texts,
            "token": tokens,
            "timer_partition": counts,
            "died_ms": times,
            "reason": texts,
            "state": states,
            "definition": definitions,
        }
    ),
    "DeadRunClosed": st.fixed_dictionaries(
        {"job_id": texts, "token": tokens, "closed_ms": times, "how": st.sampled_from(list(Closing)).map(str)}
    ),
    "DeadLetter": st.fixed_dictionaries(
        {
            "reason": texts,
            "message": texts,
            "topic": texts,
            "partition": ints,
            "offset": longs,
            "at_ms": times,
            "key": st.one_of(st.none(), blobs),
            "value": st.one_of(st.none(), blobs),
            "headers": st.lists(st.fixed_dictionaries({"name": texts, "value": st.one_of(st.none(), blobs)}), max_size=3),
        }
    ),
}

FUNCTIONS: Final = {
    "Schedule": "schedule",
    "Cancel": "cancel",
    "Redrive": "redrive",
    "Drop": "drop",
    "Change": "change",
    "Definition": "definition",
    "State": "state",
    "Progress": "progress",
    "Dispatch": "dispatch",
    "Outcome": "outcome",
    "Stop": "stop",
    "DeadLetter": "dead_letter",
    "DeadRun": "dead_run",
    "DeadRunClosed": "dead_run_closed",
}
"""The kinds of records, and what the codec's functions for them are called."""

COMMANDS: Final = ("Schedule", "Cancel", "Redrive", "Drop", "Change")
"""Those that are read by `decode_command`."""


def _named_types() -> dict[str, Any]:
    types: dict[str, Any] = {}

    def collect(schema: Any) -> None:
        if isinstance(schema, list):
            for part in schema:
                collect(part)
        elif isinstance(schema, dict):
            if "name" in schema:
                types[schema["name"]] = schema
            for part in ("type", "items", "values"):
                collect(schema.get(part))
            for field in schema.get("fields", ()):
                collect(field["type"])

    for path in folder("schemas").glob("*.avsc"):
        collect(json.loads(path.read_text(encoding="utf-8")))
    return types


TYPES: Final = _named_types()


class SloppyWriter:
    """Encodes records, here and there otherwise than a writer should.

    Args:
        slip: asked before each deviation, with its name; whether to do it. Never, and this is a proper writer.
    """

    def __init__(self, slip: Callable[[str], bool]) -> None:
        self._slip = slip

    def body(self, schema: Any, value: Any) -> bytes:
        if isinstance(schema, str) and schema.removeprefix("duewheel.") in TYPES:
            schema = TYPES[schema.removeprefix("duewheel.")]
        if isinstance(schema, list):
            return self._union(schema, value)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict):
            return self.body(kind, value)
        write: Callable[[Any, Any], bytes] = getattr(self, f"_{kind}")
        return write(schema, value)

    def number(self, value: int) -> bytes:
        zigzag = value << 1 if value >= 0 else -2 * value - 1
        groups = [zigzag & 127]
        while zigzag := zigzag >> 7:
            groups.append(zigzag & 127)
        if len(groups) < 10 and self._slip("pad a number"):
            groups.append(0)
        return bytes([group | 128 for group in groups[:-1]] + groups[-1:])

    def _record(self, schema: Any, value: Any) -> bytes:
        return b"".join(self.body(field["type"], value[field["name"]]) for field in schema["fields"])

    def _long(self, _schema: Any, value: int) -> bytes:
        return self.number(value)

    def _int(self, _schema: Any, value: int) -> bytes:
        return self.number(value + 2**32 if self._slip("leave 32 bits") else value)

    def _boolean(self, _schema: Any, value: bool) -> bytes:
        return b"\2" if self._slip("another true") else bytes((value,))

    def _double(self, _schema: Any, value: float) -> bytes:
        odd = [slip for slip in (-0.0, inf, -inf, nan) if self._slip(str(slip))]
        return struct.pack("<d", odd[0] if odd else value)

    def _bytes(self, _schema: Any, value: bytes) -> bytes:
        return self.number(-1 if self._slip("negative length") else len(value)) + value

    def _string(self, schema: Any, value: str) -> bytes:
        return self._bytes(schema, b"\xed\xa0\x80" if self._slip("no UTF-8") else value.encode())

    def _enum(self, schema: Any, value: str) -> bytes:
        index = schema["symbols"].index(value)
        return self.number(index - len(schema["symbols"]) if self._slip("index from the end") else index)

    def _union(self, schema: list[Any], value: Any) -> bytes:
        index = 0 if value is None else 1
        encoded = self.number(index - 2 if self._slip("branch from the end") else index)
        return encoded if value is None else encoded + self.body(schema[1], value)

    def _array(self, schema: Any, value: list[Any]) -> bytes:
        return self._blocks([self.body(schema["items"], item) for item in value])

    def _map(self, schema: Any, value: dict[str, Any]) -> bytes:
        items = [self._string("string", name) + self.body(schema["values"], item) for name, item in value.items()]
        if items and self._slip("a name twice"):
            items.append(items[0])
        return self._blocks(items)

    def _blocks(self, items: list[bytes]) -> bytes:
        half = len(items) // 2 if self._slip("two blocks") else len(items)
        return b"".join(self._block(block) for block in (items[:half], items[half:]) if block) + self.number(0)

    def _block(self, items: list[bytes]) -> bytes:
        content = b"".join(items)
        if self._slip("count with size"):
            return self.number(-len(items)) + self.number(len(content)) + content
        return self.number(2**62 if self._slip("huge count") else len(items)) + content
