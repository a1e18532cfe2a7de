"""Histories survive being kept in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Limits
from duewheel.proof import history
from duewheel.proof.history import EVENTS, Acknowledged, Effect, Event, from_line, from_lines, to_line, to_lines

LIMITS = st.builds(Limits, expires_ms=st.integers(0), total_timeout_ms=st.integers(0), crashes_max=st.integers(0))
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-1, 2**63),
    str: st.text(),
    bool: st.booleans(),
    str | None: st.none() | st.text(),
    Limits | None: st.none() | LIMITS,
}


def _fields(kind: Any) -> dict[str, st.SearchStrategy[Any]]:
    jobs = st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
    return {name: VALUES.get(hint, jobs) for name, hint in get_type_hints(kind).items()}


ANY_EVENT: st.SearchStrategy[Event] = st.sampled_from(list(EVENTS.values())).flatmap(lambda kind: st.builds(kind, **_fields(kind)))


@given(st.lists(ANY_EVENT, max_size=5))
def test_a_history_is_read_as_it_was_written(events: list[Event]) -> None:
    read = list(from_lines(list(to_lines(events))))
    assert read == events
    assert [type(event) for event in read] == [type(event) for event in events]


def test_a_file_of_lines_is_a_history(tmp_path: Path) -> None:
    events: list[Event] = [Acknowledged(14, "p1-7", 3, 41), Effect(106, "a\nb", 77, True)]
    path = tmp_path / "history.jsonl"
    with path.open("w") as file:
        file.writelines(to_lines(events))
        file.write("\n")
    with path.open() as file:
        assert list(from_lines(file)) == events


def test_what_is_at_its_default_is_left_out() -> None:
    assert to_line(Effect(106, "a", 77, True)) == '{"event":"Effect","at_ms":106,"job_id":"a","token":77,"accepted":true}'


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"event":"Nothing"}', '{"event":"Healed"}', '{"event":"Healed","at_ms":1,"x":2}'])
def test_a_line_that_tells_no_event_is_refused(line: str) -> None:
    with pytest.raises(BadConfiguration, match="no event of a history"):
        from_line(line)


def test_every_event_of_the_module_is_listed() -> None:
    classes = {name for name, value in vars(history).items() if isinstance(value, type) and value.__module__ == history.__name__}
    assert classes == set(EVENTS)
