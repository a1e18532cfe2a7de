"""What people see of records: `duewheel tail` and `duewheel dead`. A terminal obeys no job id, and no record ends the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from io import StringIO
from typing import Any, Final

import click
from rich.console import Console

from duewheel.adapters.avro import codec
from duewheel.adapters.avro.strict import encode
from duewheel.adapters.history import Historian
from duewheel.cli.dead_view import counts_line, runs_table, whole_json, whole_lines
from duewheel.cli.history_lines import json_line, text_line
from duewheel.core.dead_runs import DeadRuns, summary
from duewheel.core.errors import UndecodableRecord
from duewheel.core.history import Merge
from duewheel.core.topology import Topology
from tests.fuzz.samples import Breeder, drawn, encoded
from tests.fuzz.target import Target, demand
from tests.records import RECORDS

_TOPOLOGY: Final = Topology()
_TOPICS: Final = (
    (_TOPOLOGY.intake, ("Schedule", "Cancel", "Redrive", "Drop", "Change")),
    (_TOPOLOGY.state, ("State", "Definition")),
    (_TOPOLOGY.outcomes, ("Outcome",)),
    (_TOPOLOGY.dispatch("mails"), ("Dispatch",)),
    (_TOPOLOGY.dead_letter, ("DeadLetter", "DeadRun", "DeadRunClosed")),
    (_TOPOLOGY.control, ("Stop",)),
)
_HISTORIAN: Final = Historian(_TOPOLOGY)
_KEY_BYTES: Final = 4
# A table for people takes time by its letters, and nobody waits for it but they.
_SHOWN_BYTES_MAX: Final = 32_768


class _Record:
    """A consumed record: a byte for the topic, four of key, the value."""

    def __init__(self, packed: bytes) -> None:
        self._topic = _TOPICS[packed[0] % len(_TOPICS)][0] if packed else _TOPOLOGY.intake
        self._key = packed[1 : 1 + _KEY_BYTES]
        self._value = packed[1 + _KEY_BYTES :]

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._key or None

    def value(self) -> bytes | None:
        return self._value or None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_790_000_000_000


@cache
def _records() -> Sequence[bytes]:
    seeds = []
    for topic, (_, kinds) in enumerate(_TOPICS):
        for kind in kinds:
            key = b"dj-1" if kind == "Definition" else b"sj-1"
            seeds += [bytes((topic,)) + key + value for value in encoded(kind)[:60]]
    return seeds


@cache
def _nested() -> Sequence[bytes]:
    """Payloads that are nested about as deeply as Python follows: what can be read need not be writable."""
    [run] = drawn(RECORDS["DeadRun"], 1)
    work = run["definition"]["schedule"]["work"]
    work["content_type"] = "application/json"
    values = []
    for levels in (*range(940, 1_000), 1_200):
        work["payload"] = b"[" * levels + b"]" * levels
        values.append(encode("DeadRun", run))
    return values


def _tell(packed: bytes) -> Any:
    entry = _HISTORIAN.entry(_Record(packed))
    if entry is None:
        return None
    merge = Merge([0])
    merge.add(entry)
    merge.finish(0)
    [released] = merge.release()
    return text_line(released), json_line(released)


def _check_lines(_packed: bytes, lines: Any) -> None:
    if lines is not None:
        _check_visible(lines[0])
        demand(lines[1].isascii() and json.loads(lines[1])["offset"] == 7, "no line of JSON")


def _check_visible(line: str) -> None:
    plain = click.unstyle(line)
    hidden = [character for character in plain if not character.isprintable()]
    demand(not hidden, f"a terminal would obey: {hidden[:5]!r} in {plain[:200]!r}")


def _show(value: bytes) -> Any:
    kind, record = codec.decode_dead_letter_topic(value)
    runs = DeadRuns(keeps_closed=True)
    if kind == "closed":
        runs.closed(record)  # type: ignore[arg-type]
    if kind != "dead_run":
        return None
    run: Any = record
    found = summary(0, 7, run)
    runs.died(found)
    out = StringIO()
    Console(file=out, width=240).print(runs_table(runs.runs(), with_closed=True))
    lines = [counts_line(runs.runs()), *whole_lines(found, run, runs.runs())]
    return whole_json(found, run), lines, out.getvalue()


def _check_pages(_value: bytes, pages: Any) -> None:
    if isinstance(pages, tuple):
        page, lines, table = pages
        demand(page.isascii() and json.loads(page)["token"] is not None, "no line of JSON")
        for line in (*lines, *table.splitlines()):
            _check_visible(line)


TARGETS: Final = [
    Target(name="tail", call=_tell, seeds=_records, check=_check_lines, bytes_max=65_536),
    Target(
        name="dead",
        call=_show,
        legal=(UndecodableRecord,),
        seeds=lambda: [*encoded("DeadRun", "DeadRunClosed"), *_nested()],
        breed=Breeder(["DeadRun"], _SHOWN_BYTES_MAX),
        check=_check_pages,
        bytes_max=_SHOWN_BYTES_MAX,
        weight=3,
    ),
]
