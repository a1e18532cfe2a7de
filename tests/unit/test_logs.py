"""Log lines: one JSON object each for machines, one readable line each for people."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import structlog

from duewheel import logs


@pytest.fixture(autouse=True)
def _restored_configuration() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _logger(stream: io.StringIO, format: Literal["auto", "console", "json"] = "auto", level: Literal["debug", "info"] = "info") -> Any:
    logs.configure(level, format, stream=stream, now=lambda: datetime(2026, 3, 1, 12, 0, 0, 7_900, UTC))
    return structlog.get_logger("duewheel.engine.restore")


def test_a_line_away_from_a_terminal_is_one_json_object() -> None:
    stream = io.StringIO()
    _logger(stream).warning("store.rebuilt", partition=3, folder="größe\n2")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("pid") > 0
    assert entry == {
        "time": "2026-03-01T12:00:00.007Z",
        "level": "warning",
        "event": "store.rebuilt",
        "logger": "duewheel.engine.restore",
        "partition": 3,
        "folder": "größe\n2",
    }


def test_a_line_on_a_terminal_is_text() -> None:
    stream = _Terminal()
    _logger(stream).warning("store.rebuilt", partition=3)
    text = stream.getvalue()
    assert "store.rebuilt" in text
    assert "2026-03-01T12:00:00.007Z" in text
    assert "\x1b[" in text


def test_the_named_format_wins_over_the_terminal() -> None:
    stream = _Terminal()
    _logger(stream, "json").info("a.b")
    assert json.loads(stream.getvalue())["event"] == "a.b"


def test_levels_below_the_chosen_one_are_silent() -> None:
    stream = io.StringIO()
    _logger(stream).debug("a.b")
    assert stream.getvalue() == ""
    _logger(stream, level="debug").debug("a.b")
    assert stream.getvalue() != ""


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_traceback_never_shows_local_variables(format: Literal["console", "json"]) -> None:
    stream = io.StringIO()
    log = _logger(stream, format)
    payload = "secret"
    try:
        raise ValueError(len(payload))
    except ValueError:
        log.exception("a.b")
    assert "ValueError: 6" in stream.getvalue()
    assert payload not in stream.getvalue()


def test_values_that_json_does_not_know_are_shown_and_not_refused() -> None:
    stream = io.StringIO()
    _logger(stream).info("a.b", key=b"\xff")
    assert json.loads(stream.getvalue())["key"] == "b'\\xff'"
