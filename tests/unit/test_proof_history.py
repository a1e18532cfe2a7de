"""Histories survive being kept in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Limits, Recurrence
from duewheel.proof import history
from duewheel.proof.faults import FOREVER_MS
from duewheel.proof.history import (
    EVENTS,
    INTEGER_MAX,
    SNAPSHOT_LEVELS_MAX,
    Acknowledged,
    Effect,
    Event,
    Healed,
    from_line,
    from_lines,
    to_line,
    to_lines,
)
from tests.recurring import cron, every, every_after

NUMBERS = st.integers(-INTEGER_MAX, INTEGER_MAX)
LIMITS = st.builds(Limits, expires_ms=NUMBERS, total_timeout_ms=NUMBERS, crashes_max=NUMBERS)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    str: st.text(),
    bool: st.booleans(),
    str | None: st.none() | st.text(),
    Limits | None: st.none() | LIMITS,
    Recurrence | None: st.none() | st.sampled_from([every(1_000, jitter_ms=7), every_after(60_000), cron("0 9 * * mon", "Europe/Berlin")]),
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


SNAPSHOT = '{"event":"Snapshot","at_ms":1,"moment":"end","partition":0,"witness":"store","jobs":%s}'
ENQUEUE = '{"event":"EnqueueInvoked","at_ms":1,"call":"c","job_id":"a","due_ms":1,"limits":%s}'
LIMITS_AND_MORE = '{"expires_ms":1,"total_timeout_ms":1,"crashes_max":1,"more":1}'


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('{"event":"Healed","at_ms":"1"}', "at_ms must be a whole number"),
        ('{"event":"Healed","at_ms":1.0}', "at_ms must be a whole number"),
        ('{"event":"Healed","at_ms":true}', "at_ms must be a whole number"),
        ('{"event":"Healed","at_ms":null}', "at_ms must be a whole number"),
        ('{"event":"Healed","at_ms":%s}' % (INTEGER_MAX + 1), "at_ms must be a whole number"),
        ('{"event":"Healed","at_ms":%s}' % ("9" * 5_000), "integer string conversion"),
        ('{"event":"Healed","at_ms":NaN}', "NaN is no number"),
        ('{"event":"Healed","at_ms":1e999}', "1e999 is beyond"),
        ('{"event":"Healed","at_ms":' + "[" * 100_000, "recursion"),
        ('{"event":["Healed"],"at_ms":1}', "unhashable"),
        ('{"event":"Healed","at_ms":1,"\udcfe":2}', "keyword argument '\\udcfe'"),
        ('{"event":"Effect","at_ms":1,"job_id":"a","token":7,"accepted":1}', "accepted must be true or false"),
        ('{"event":"Effect","at_ms":1,"job_id":["a"],"token":7,"accepted":true}', "job_id must be a text"),
        ('{"event":"Effect","at_ms":1,"job_id":"\\ud800","token":7,"accepted":true}', "job_id must be a text"),
        (ENQUEUE % '{"expires_ms":1}', "limits must be null, or expires_ms, total_timeout_ms, crashes_max"),
        (ENQUEUE % LIMITS_AND_MORE, "limits must be null, or "),
        (ENQUEUE % LIMITS_AND_MORE.replace(',"more":1', "").replace("1", '"1"'), "limits must be null, or "),
        (ENQUEUE % 'null,"recurrence":{"kind":"EVERY"}', "recurrence must be null, or a recurrence that keeps the rules"),
        (ENQUEUE % 'null,"recurrence":[7]', "recurrence must be null, or "),
        (SNAPSHOT % "[]", "jobs must be an object"),
        (SNAPSHOT % '{"a":["\\udfff"]}', "jobs must be an object"),
        (SNAPSHOT % ('{"a":' + "[" * SNAPSHOT_LEVELS_MAX + "]" * SNAPSHOT_LEVELS_MAX + "}"), "jobs must be an object of at most 50 levels"),
        (SNAPSHOT % '{"a":-Infinity}', "-Infinity is no number"),
    ],
)
def test_a_line_whose_values_are_of_no_use_is_refused_and_says_why(line: str, complaint: str) -> None:
    with pytest.raises(BadConfiguration, match="no event of a history") as caught:
        from_line(line)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 1_500


def test_a_refusal_is_short_however_long_the_line() -> None:
    with pytest.raises(BadConfiguration) as caught:
        from_line('{"event":"Healed","at_ms":1,"%s":1}' % ("x" * 100_000))
    assert len(str(caught.value)) < 1_000


def test_what_is_as_large_as_it_may_be_is_read() -> None:
    assert from_line(to_line(Healed(FOREVER_MS))) == Healed(FOREVER_MS)
    levels = SNAPSHOT_LEVELS_MAX - 1
    assert from_line(SNAPSHOT % ('{"a":' + "[" * levels + "]" * levels + "}"))


def test_every_event_of_the_module_is_listed() -> None:
    classes = {name for name, value in vars(history).items() if isinstance(value, type) and value.__module__ == history.__name__}
    assert classes == set(EVENTS)
