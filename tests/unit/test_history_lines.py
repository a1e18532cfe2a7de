"""How entries look on a terminal and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from duewheel.cli.history_lines import MESSAGE_CHARS_MAX, json_line, text_line
from duewheel.core.history import Entry, Happening, Source

AT_MS = 1_772_366_400_007  # 2026-03-01T12:00:00.007Z
ENTRY = Entry(
    source=Source(topic="duewheel.dispatch.mail", partition=2, offset=9, written_ms=AT_MS + 1),
    at_ms=AT_MS,
    event=Happening.DISPATCHED,
    job_id="welcome-42",
    task="mail.send",
    queue="mail",
    generation=1,
    attempt=1,
    token=77,
    due_ms=AT_MS - 3,
    late_ms=3,
)


def test_a_dispatch_reads_as_a_line() -> None:
    assert click.unstyle(text_line(ENTRY)) == (
        "12:00:00.007  dispatched           welcome-42  mail.send @mail  attempt 1  token 77  +3 ms"
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes, told",
    [
        (
            {"event": "attempt_retry", "took_ms": 11, "worker": "w1", "wait_ms": 920, "error": "OSError", "message": "away"},
            "attempt_retry        welcome-42  mail.send @mail  attempt 1  token 77  in 11 ms  on w1  again in 920 ms  OSError: away",
        ),
        (
            {"event": "attempt_snoozed", "took_ms": 11, "worker": "w1", "wait_ms": 2_000},
            "attempt_snoozed      welcome-42  mail.send @mail  attempt 1  token 77  in 11 ms  on w1  again in 2000 ms",
        ),
        (
            {"event": "attempt_heartbeat", "took_ms": 20_000, "worker": "w1", "lease_ms": 30_000, "output": '{"done":3}'},
            'attempt_heartbeat    welcome-42  mail.send @mail  attempt 1  token 77  for 20000 ms  on w1  lease 30000 ms  {"done":3}',
        ),
        (
            {"event": "waiting", "wake_ms": AT_MS + 920},
            "waiting              welcome-42  mail.send @mail  until 2026-03-01T12:00:00.927Z  attempt 1  token 77",
        ),
        (
            {"event": "dead", "crashes": 2, "reason": "crash_limit", "error": "OSError", "message": "away"},
            "dead                 welcome-42  mail.send @mail  attempt 1  crashes 2  token 77  crash_limit  OSError: away",
        ),
        ({"event": "redriven", "attempt": None}, "redriven             welcome-42  mail.send @mail  token 77"),
        ({"event": "stop", "task": None, "attempt": None}, "stop                 welcome-42  @mail  token 77"),
    ],
)
def test_what_goes_wrong_reads_as_a_line_too(changes: dict[str, Any], told: str) -> None:
    entry = replace(ENTRY, **{"late_ms": None, **changes, "event": Happening(changes["event"])})
    assert click.unstyle(text_line(entry)) == f"12:00:00.007  {told}"


def test_json_has_always_the_same_keys() -> None:
    full = json.loads(json_line(ENTRY))
    bare = json.loads(json_line(Entry(source=ENTRY.source, at_ms=0, event=Happening.UNREADABLE, job_id=None)))
    assert list(full) == list(bare)
    assert full["time"] == "2026-03-01T12:00:00.007Z"
    assert (full["event"], full["late_ms"], full["topic"], full["offset"]) == ("dispatched", 3, "duewheel.dispatch.mail", 9)
    assert bare["job_id"] is None


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "a\rb", "\x9b31m", "\u202egnp.exe", "\x07", "\u2028"])
def test_nothing_from_outside_reaches_the_terminal_as_a_command(hostile: str) -> None:
    texts: dict[str, Any] = dict.fromkeys(("job_id", "task", "queue", "worker", "error", "message", "reason", "output"), hostile)
    entry = replace(ENTRY, **texts)
    line = click.unstyle(text_line(entry))
    assert line.isprintable()
    assert hostile not in line


def test_json_is_one_line_of_ascii_whatever_it_holds() -> None:
    line = json_line(replace(ENTRY, job_id="\u2028\x1b[2J\n"))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["job_id"] == "\u2028\x1b[2J\n"


def test_a_long_message_is_cut_for_people_only() -> None:
    entry = replace(ENTRY, error="ValueError", message="x" * 5_000)
    assert click.unstyle(text_line(entry)).count("x") < MESSAGE_CHARS_MAX
    assert json.loads(json_line(entry))["message"] == "x" * 5_000


@pytest.mark.parametrize("at_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(at_ms: int) -> None:
    entry = replace(ENTRY, event=Happening.SCHEDULE, at_ms=at_ms, due_ms=at_ms)
    assert text_line(entry)
    assert json.loads(json_line(entry))["at_ms"] == at_ms


@pytest.mark.parametrize("event", list(Happening))
def test_every_event_has_a_line(event: Happening) -> None:
    assert f"  {event} " in click.unstyle(text_line(replace(ENTRY, event=event)))
