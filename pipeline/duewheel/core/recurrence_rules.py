"""The rules that the recurrence of a job must keep: those of `core.commands` for what makes a job run again and again.

The numbers must be in bounds, the zone and the expression must be known, and there must be a slot at all: a line that names 30 February,
or an end that comes before the first slot, is a mistake that would otherwise show as silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duewheel.core.errors import Reason
from duewheel.core.limits import (
    DUE_MS_MAX,
    DUE_MS_MIN,
    EVERY_MS_MAX,
    EVERY_MS_MIN,
    EXPRESSION_BYTES_MAX,
    GRACE_MS_MAX,
    JITTER_MS_MAX,
    MISFIRE_MAX,
    OVERLAP_MAX,
    RUNS_MAX,
    ZONE_BYTES_MAX,
)
from duewheel.core.model import Misfire, Overlap, Recurrence, RecurrenceKind
from duewheel.core.recurrence import BadExpression, Impossible, UnknownZone, check_expression, first_slot_ms, zone_of
from duewheel.core.wording import check_number, instant, refuse, remedy, show

_FIELDS: Final = frozenset(Recurrence.__annotations__)
_ENUMS: Final = {"kind": RecurrenceKind, "misfire": Misfire, "overlap": Overlap}


def check_recurrence(recurrence: Any, due_ms: int) -> None:
    """Refuses a recurrence that breaks a rule.

    Args:
        recurrence: need not be of the right types; None, for a job that runs once, keeps every rule.
        due_ms: the schedule's, which has been checked.

    Raises:
        RejectedJob: with the reason.
    """
    if recurrence is None:
        return
    if not isinstance(recurrence, Mapping) or recurrence.keys() != _FIELDS:
        refuse(
            Reason.BAD_RECURRENCE, f"the recurrence {show(recurrence)} is no record of {', '.join(sorted(_FIELDS))}; give these, or None"
        )
    for name, symbols in _ENUMS.items():
        if recurrence[name] not in tuple(symbols):
            refuse(Reason.BAD_RECURRENCE, f"{name} {show(recurrence[name])} is not known; give one of {', '.join(symbols)}")
    _check_numbers(recurrence)
    if recurrence["kind"] == RecurrenceKind.CRON:
        _check_line(recurrence)
    else:
        _check_interval(recurrence)
    _check_window(recurrence, due_ms)


def _check_numbers(recurrence: Any) -> None:
    for name, most, meaning in (
        ("runs_max", RUNS_MAX, "0 is no limit"),
        ("jitter_ms", JITTER_MS_MAX, "which is a day"),
        ("misfire_max", MISFIRE_MAX, "0 is the default"),
        ("grace_ms", GRACE_MS_MAX, "0 is the default, the most is 30 days"),
        ("overlap_max", OVERLAP_MAX, "0 is the default"),
        ("every_ms", EVERY_MS_MAX, "which is ten years"),
    ):
        check_number(Reason.BAD_RECURRENCE, name, recurrence[name], most, meaning)
    for name, size_max in (("expression", EXPRESSION_BYTES_MAX), ("zone", ZONE_BYTES_MAX)):
        text = recurrence[name]
        if not isinstance(text, str):
            refuse(Reason.BAD_RECURRENCE, f"{name} {show(text)} is of type {type(text).__name__}; give a str")
        if len(text.encode("utf-8", "surrogatepass")) > size_max:
            refuse(Reason.BAD_RECURRENCE, f"{name} {show(text)} is longer than {size_max} bytes in UTF-8; shorten it")


def _check_interval(recurrence: Any) -> None:
    kind, every_ms, jitter_ms = recurrence["kind"], recurrence["every_ms"], recurrence["jitter_ms"]
    if recurrence["expression"]:
        refuse(
            Reason.BAD_RECURRENCE,
            f"the recurrence is of kind {kind} and has the expression {show(recurrence['expression'])}; make it CRON, or leave that empty",
        )
    _check_zone(recurrence["zone"])  # it has no meaning here; but what is no zone is a mistake all the same
    if every_ms < EVERY_MS_MIN:
        refuse(Reason.TOO_FREQUENT, f"every_ms {every_ms} is less than {EVERY_MS_MIN}, a second; give at least that")
    if jitter_ms > every_ms:
        refuse(
            Reason.BAD_RECURRENCE, f"jitter_ms {jitter_ms} is more than every_ms {every_ms}, so that runs would change places; give less"
        )


def _check_line(recurrence: Any) -> None:
    expression = recurrence["expression"]
    if recurrence["every_ms"]:
        refuse(Reason.BAD_RECURRENCE, f"the recurrence is of kind CRON and has every_ms {recurrence['every_ms']}; give EVERY, or 0")
    _check_zone(recurrence["zone"])
    try:
        check_expression(expression)
    except Impossible as error:
        refuse(Reason.NO_SLOT, f"the expression {show(expression)} names no day: {error}; give a day that there is")
    except BadExpression as error:
        refuse(Reason.BAD_EXPRESSION, f"the expression {show(expression)} is no cron line: {error}; for example 0 9 * * mon-fri, or @daily")


def _check_zone(zone: str) -> None:
    try:
        zone_of(zone)
    except UnknownZone:
        refuse(Reason.BAD_ZONE, f"there is no time zone {show(zone)}; give an IANA name such as Europe/Berlin, or UTC")


def _check_window(recurrence: Any, due_ms: int) -> None:
    for name, meaning in (("start_ms", "for none beyond due_ms"), ("end_ms", "for none")):
        at_ms = recurrence[name]
        if type(at_ms) is int and at_ms != 0 and not DUE_MS_MIN <= at_ms <= DUE_MS_MAX:
            limit = f"neither 0, {meaning}, nor from {instant(DUE_MS_MIN)} to {instant(DUE_MS_MAX)}"
            refuse(Reason.BAD_RECURRENCE, f"{name} {show(at_ms)} is {instant(at_ms)}, {limit}; {remedy(at_ms)}")
        check_number(Reason.BAD_RECURRENCE, name, at_ms, DUE_MS_MAX, f"0 is {meaning}")
    begin_ms, end_ms = max(recurrence["start_ms"], due_ms), recurrence["end_ms"]
    if 0 < end_ms <= begin_ms:
        refuse(
            Reason.BAD_END, f"end_ms {end_ms}, {instant(end_ms)}, is not after the start {begin_ms}, {instant(begin_ms)}; give a later one"
        )
    if first_slot_ms(recurrence, due_ms) == 0:
        end = f"before the end, {instant(end_ms)}" if end_ms else f"before {instant(DUE_MS_MAX)}"
        what = recurrence["expression"] or f"every {recurrence['every_ms']} ms"
        refuse(
            Reason.NO_SLOT, f"{show(what)} has no slot from {instant(begin_ms)} on and {end}, so that the job would never run; change one"
        )
