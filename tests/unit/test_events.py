"""Log events keep their names and keys: what the source logs is what `events.EVENTS` lists, no more and no less."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from duewheel.events import EVENTS

SOURCE = Path(__file__).parents[2] / "pipeline" / "duewheel"
SPREAD = "**"  # **fields: which keys that gives, only running it would tell
LOGGERS = {"log", "self.log", "self._log"}
METHODS = {"debug", "info", "warning", "error", "critical", "exception"}


class LogCall(NamedTuple):
    where: str
    event: str | None  # None where it is not a literal
    keys: frozenset[str]


def _log_calls(path: Path) -> Iterator[LogCall]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=logger, attr=method)) if method in METHODS and ast.unparse(logger) in LOGGERS:
                literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                keys = frozenset(k.arg or SPREAD for k in node.keywords) - {"exc_info"}
                yield LogCall(f"{path.relative_to(SOURCE)}:{node.lineno}", literal if isinstance(literal, str) else None, keys)


CALLS = [call for path in sorted(SOURCE.rglob("*.py")) for call in _log_calls(path)]


def test_the_source_logs_something() -> None:
    assert CALLS


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.where)
def test_each_logged_event_is_listed_with_its_keys(call: LogCall) -> None:
    assert call.event is not None, f"{call.where}: an event's name must be a literal, so that it can be listed"
    assert call.event in EVENTS, f"{call.where}: add {call.event!r} to duewheel/events.py, with its meaning and keys"
    unlisted = call.keys - set(EVENTS[call.event].keys) - {SPREAD}
    assert not unlisted, f"{call.where}: add {sorted(unlisted)} to the keys of {call.event!r} in duewheel/events.py"


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_each_listed_event_is_logged_somewhere(event: str) -> None:
    calls = [call for call in CALLS if call.event == event]
    assert calls, f"nothing logs {event!r} any more: take it out of duewheel/events.py"
    unused = set(EVENTS[event].keys).difference(*(call.keys for call in calls))
    if any(SPREAD in call.keys for call in calls):
        unused = set()
    assert not unused, f"nothing gives {event!r} the keys {sorted(unused)}: take them out of duewheel/events.py"


def test_loggers_are_called_log_so_that_these_tests_see_them() -> None:
    strays = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and "get_logger" in ast.unparse(node.value)
        if not all(ast.unparse(target) in LOGGERS for target in node.targets)
    ]
    assert not strays, f"call the logger `log`: {strays}"
