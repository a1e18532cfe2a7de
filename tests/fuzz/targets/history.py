"""Lines of a history that somebody kept in a file: whatever a line is, it is an event that can be judged, or refused by one error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Final

from duewheel.core.errors import BadConfiguration
from duewheel.proof.history import EVENTS, Defined, EnqueueInvoked, from_line, to_line
from duewheel.proof.report import judge
from tests.faithful import Faithful
from tests.fuzz.target import Target, agree, demand
from tests.recurring import cron

_OF_EACH_KIND: Final = 5
# Of the faithful history none tells these.
_OTHERS: Final = (
    b'{"event":"Refused","at_ms":14,"call":"p1-7"}',
    b'{"event":"Stopped","at_ms":1790000000000}',
    b'{"event":"EnqueueInvoked","at_ms":10,"call":"c","job_id":"a","due_ms":9,"limits":'
    b'{"expires_ms":0,"total_timeout_ms":1,"crashes_max":2},"replaces":true}',
    to_line(EnqueueInvoked(10, "c", "r", 9, 8, recurrence=cron("0 9 * * mon", "Europe/Berlin"))).encode(),
    to_line(Defined(10, 0, 4, "r@1790000000000", 1, 1_790_000_000_000)).encode(),
    b'{"event":"DeadLettered","at_ms":1,"topic":"t","partition":0,"offset":5,"reason":"r","job_id":null}',
    b'{"event":"Snapshot","at_ms":1,"moment":"end","partition":0,"witness":"store","jobs":{"a":{"b":[1,2.5,null,"\xc3\xa9"]}},"partial":true}',
)


def _read(value: bytes) -> Any:
    return from_line(value.decode("utf-8", "surrogateescape"))


def _check(_value: bytes, event: Any) -> None:
    if isinstance(event, BadConfiguration):
        demand(len(str(event)) < 2_000, f"a refusal of {len(str(event)):,} letters")
        return
    agree("the event", from_line(to_line(event)), event)
    report = judge([event])
    "\n".join(map(str, (*report.violations, *report.shortcomings))).encode()


@cache
def _lines() -> Sequence[bytes]:
    told: dict[str, list[bytes]] = {name: [] for name in EVENTS}
    for event in Faithful(Random(5), jobs=40).run():
        lines = told[type(event).__name__]
        if len(lines) < _OF_EACH_KIND:
            lines.append(to_line(event).encode())
    return [*(line for lines in told.values() for line in lines), *_OTHERS]


TARGETS: Final = [
    Target(
        name="history_line",
        call=_read,
        legal=(BadConfiguration,),
        seeds=_lines,
        check=_check,
        dialect="json",
        tokens=(*(f'"{name}"'.encode() for name in EVENTS), b"NaN", b"-Infinity", b"1e999", b"9" * 5_000, b"\\ud800", b"true", b"null"),
        bytes_max=20_000,
    ),
]
