"""When a recurring job is due: its slots, one after the other, and what becomes of those that were missed.

A slot is a scheduled time in milliseconds since the epoch; `(job id, slot)` names a run for ever. All of it is a function of the job's
`Recurrence` and of times that are given: whoever computes it again, on whatever machine, gets the same.

    EVERY          anchor + k * every_ms                        elapsed time: what clocks on walls do is of no concern
    EVERY_AFTER    the end of the last run + every_ms           the slots are known one at a time
    CRON           the instants that a line names in a zone     0 9 * * mon-fri in Europe/Berlin

A cron line names clock times, and twice a year clocks jump. A line whose minute or hour begins with a star means an interval, and goes by
real time; any other means certain times of the day, and has one slot for each of them. That is Debian's cron rule.

    | line in Europe/Berlin    | clocks skip 2:00 to 3:00          | clocks show 2:00 to 3:00 twice            |
    |--------------------------|-----------------------------------|-------------------------------------------|
    | `30 2 * * *`  fixed      | 3:00, when the skipped hour ends  | 2:30, the first time                      |
    | `0,30 2 * * *` fixed     | 3:00, once for both               | 2:00 and 2:30, the first time             |
    | `30 2,3 * * *` fixed     | 3:00 and 3:30                     | 2:30, the first time, and 3:30            |
    | `30 * * * *`  by real time | 1:30, 3:30: an hour apart       | 1:30, 2:30, 2:30, 3:30: an hour apart     |
    | `*/30 2 * * *` by real time | none: there is no 2 o'clock    | 2:00, 2:30, 2:00, 2:30                    |
    | EVERY one hour           | every 60 minutes                  | every 60 minutes                          |

How: cronsim reads the lines and finds the next match among clock times without a zone, where days have 24 hours. From clock times to
instants is done here, with no search but for the instant of a jump, which is bisected: cronsim's own way runs through real time hour by
hour, and loses slots where clocks jump by half an hour (Lord Howe), and goes backward if it starts in an hour that is shown twice. It
also takes six fields to be by real time always; here a line with seconds obeys the same rule as one without.

Costs: 1 µs for EVERY; 5 to 30 µs for a cron line, up to 60 µs for a rare one (29 February), and 10 µs more where it must be read first
(`_LINES_CACHED_MAX` are remembered). So slots are not remembered themselves. To find that a line never matches takes up to 20 ms, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from duewheel.core.limits import (
    DUE_MS_MAX,
    GRACE_MS_DEFAULT,
    MISFIRE_MAX_DEFAULT,
    SLOTS_COUNTED_MAX,
    SLOTS_ON_TIME_MAX,
)
from duewheel.core.model import Misfire, Recurrence, RecurrenceKind
from duewheel.core.retry import fraction

NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 -- clock times have no zone
_DAY_S: Final = 86_400
_DUE_S_MAX: Final = DUE_MS_MAX // 1_000
_FIELDS_WITHOUT_SECONDS: Final = 5
# A line takes 3 KB when it was read: 50 MB if all jobs have lines of their own.
_LINES_CACHED_MAX: Final = 16_384
# There are about 600, of 2 KB or so.
_ZONES_CACHED_MAX: Final = 1_024
# 200 bytes or so each.
_SLOTS_CACHED_MAX: Final = 16_384


class BadExpression(ValueError):
    """No cron line; the message says why."""


class Impossible(BadExpression):
    """A cron line that names no day of any year."""


class UnknownZone(ValueError):
    """No time zone has this name."""


class Decision(NamedTuple):
    """What to do about slots whose time has come.

    Attributes:
        fire: the slots to run, the oldest first; each starts at its `jittered_ms`, which may lie ahead.
        skipped: how many others there were. With cron lines `SLOTS_COUNTED_MAX` means so many or more.
        next_ms: the first slot after now; 0 where none is left, and with EVERY_AFTER where one fires, since its end decides.
    """

    fire: tuple[int, ...]
    skipped: int
    next_ms: int


def first_slot_ms(recurrence: Recurrence, due_ms: int) -> int:
    """The first slot of a job, in milliseconds since the epoch; 0 if there is none.

    Args:
        recurrence: as `check_recurrence` lets pass; this and all others.
        due_ms: the schedule's: no slot lies before, and EVERY counts from it where the recurrence has no `start_ms`.
    """
    return next_slot_ms(recurrence, due_ms, 0)


def next_slot_ms(recurrence: Recurrence, anchor_ms: int, after_ms: int) -> int:
    """The first slot after `after_ms`, in milliseconds since the epoch; 0 if there is none any more.

    Args:
        anchor_ms: the schedule's due_ms; its first slot will do as well.
        after_ms: with EVERY_AFTER when the last run came to its end.
    """
    kind, every_ms = recurrence["kind"], recurrence["every_ms"]
    begin_ms = max(recurrence["start_ms"], anchor_ms)
    after_ms = max(after_ms, begin_ms - 1)
    if kind == RecurrenceKind.CRON:
        slot_ms = _next_slot_s(recurrence["expression"], recurrence["zone"], after_ms // 1_000) * 1_000
    elif kind == RecurrenceKind.EVERY:
        origin_ms = recurrence["start_ms"] or anchor_ms
        slot_ms = origin_ms + ((after_ms - origin_ms) // every_ms + 1) * every_ms
    else:
        slot_ms = begin_ms if after_ms < begin_ms else after_ms + every_ms
    end_ms = recurrence["end_ms"]
    return 0 if slot_ms > DUE_MS_MAX or (end_ms and slot_ms >= end_ms) else slot_ms


@lru_cache(_SLOTS_CACHED_MAX)
def _next_slot_s(expression: str, zone: str, after_s: int) -> int:
    """The first slot of a cron line after `after_s`, in seconds; 0 if there is none. What falls on the same minute asks the same again."""
    return _next_cron_s(_line(expression), zone_of(zone), after_s)


def is_slot(recurrence: Recurrence, anchor_ms: int, at_ms: int) -> bool:
    """Whether `at_ms` is a slot. With EVERY_AFTER slots follow from ends, and nobody can tell."""
    return recurrence["kind"] != RecurrenceKind.EVERY_AFTER and next_slot_ms(recurrence, anchor_ms, at_ms - 1) == at_ms


def slots(recurrence: Recurrence, anchor_ms: int, after_ms: int) -> Iterator[int]:
    """The slots after `after_ms`, up to the last; with EVERY_AFTER as if runs took no time. Arguments are those of `next_slot_ms`."""
    while after_ms := next_slot_ms(recurrence, anchor_ms, after_ms):
        yield after_ms


def jittered_ms(recurrence: Recurrence, job_id: str, slot_ms: int) -> int:
    """When the run of a slot is to start: at the slot, or up to `jitter_ms` later; the same for the same job and slot."""
    jitter_ms = recurrence["jitter_ms"]
    if not jitter_ms:
        return slot_ms
    return slot_ms + min(int(fraction(job_id, slot_ms) * (jitter_ms + 1)), jitter_ms)


def missed(recurrence: Recurrence, anchor_ms: int, pending_ms: int, now_ms: int) -> Decision:
    """What to do now about the slots from `pending_ms` on.

    A slot is missed when it is later than `grace_ms`, counted from the last moment its jitter allows. Of the missed ones ONCE fires the
    newest, ALL the newest `misfire_max`, SKIP none. One that is not missed fires in any case; but at most `SLOTS_ON_TIME_MAX` do, and
    older ones count as missed.

    Costs two `next_slot_ms` where nothing but `pending_ms` is due. Else, for cron lines, at most `SLOTS_COUNTED_MAX` more; and where
    there are more slots than that, the newest are found by bisection: fewer than 80 for each that fires, which is 1 ms, or 120 ms where
    a hundred fire. EVERY is arithmetic.

    Args:
        anchor_ms: as for `next_slot_ms`.
        pending_ms: the oldest slot that nothing was decided about.
        now_ms: the time.
    """
    if pending_ms > now_ms:
        return Decision((), 0, pending_ms)
    late_before_ms = _late_before_ms(recurrence, now_ms)
    kind = recurrence["kind"]
    if kind == RecurrenceKind.EVERY_AFTER:
        return _decide_after_end(recurrence, anchor_ms, pending_ms, now_ms, pending_ms < late_before_ms)
    next_ms = next_slot_ms(recurrence, anchor_ms, now_ms)
    due: list[int] | range
    if kind == RecurrenceKind.EVERY:
        due = range(pending_ms, _end_of_due(recurrence, now_ms), recurrence["every_ms"])
    else:
        due = list(islice(_slots_until(recurrence, anchor_ms, pending_ms, next_ms), SLOTS_COUNTED_MAX + 1))
        if len(due) > SLOTS_COUNTED_MAX:
            newest = _newest(recurrence, anchor_ms, pending_ms, now_ms, late_before_ms)
            return Decision(_fired(recurrence, newest, late_before_ms), SLOTS_COUNTED_MAX, next_ms)
    fire = _fired(recurrence, due, late_before_ms)
    return Decision(fire, len(due) - len(fire), next_ms)


def is_late(recurrence: Recurrence, slot_ms: int, now_ms: int) -> bool:
    """Whether a slot counts as missed now: `missed` says what that means."""
    return slot_ms < _late_before_ms(recurrence, now_ms)


def check_expression(expression: str) -> None:
    """Refuses what is no cron line.

    Raises:
        BadExpression: with the reason; Impossible where it is one, but of no day.
    """
    _line(expression)


@lru_cache(_ZONES_CACHED_MAX)
def zone_of(name: str) -> tzinfo:
    """The zone of this name, from the package tzdata: the machine's own zones may be of another year.

    Raises:
        UnknownZone: there is none.
    """
    if name == "UTC":
        return UTC
    if name not in _zone_names():
        raise UnknownZone(name)
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, name)


# --- misfires ---


def _late_before_ms(recurrence: Recurrence, now_ms: int) -> int:
    """Slots before this moment are missed now."""
    return now_ms - (recurrence["grace_ms"] or GRACE_MS_DEFAULT) - recurrence["jitter_ms"]


def _fired(recurrence: Recurrence, due: list[int] | range, late_before_ms: int) -> tuple[int, ...]:
    """Of slots whose time has come, ascending, those to run."""
    on_time_at = max(_bisect(due, late_before_ms), len(due) - SLOTS_ON_TIME_MAX)
    late = due[max(0, on_time_at - _late_max(recurrence)) : on_time_at]
    return (*late, *due[on_time_at:])


def _late_max(recurrence: Recurrence) -> int:
    match recurrence["misfire"]:
        case Misfire.SKIP:
            return 0
        case Misfire.ONCE:
            return 1
    return recurrence["misfire_max"] or MISFIRE_MAX_DEFAULT


def _bisect(due: list[int] | range, late_before_ms: int) -> int:
    low, high = 0, len(due)
    while low < high:
        middle = (low + high) // 2
        if due[middle] < late_before_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _decide_after_end(recurrence: Recurrence, anchor_ms: int, pending_ms: int, now_ms: int, is_late: bool) -> Decision:
    """With EVERY_AFTER one slot is known. If it is left out, the next is as many intervals later as it takes to lie ahead."""
    if not (is_late and recurrence["misfire"] == Misfire.SKIP):
        return Decision((pending_ms,), 0, 0)
    every_ms = recurrence["every_ms"]
    before_ms = pending_ms + (now_ms - pending_ms) // every_ms * every_ms
    return Decision((), 1, next_slot_ms(recurrence, anchor_ms, before_ms))


def _end_of_due(recurrence: Recurrence, now_ms: int) -> int:
    """One after the last time at which a slot may be due."""
    end_ms = recurrence["end_ms"] or DUE_MS_MAX + 1
    return min(now_ms + 1, end_ms, DUE_MS_MAX + 1)


def _slots_until(recurrence: Recurrence, anchor_ms: int, pending_ms: int, next_ms: int) -> Iterator[int]:
    yield pending_ms
    for slot_ms in slots(recurrence, anchor_ms, pending_ms):
        if slot_ms == next_ms:
            return
        yield slot_ms


def _newest(recurrence: Recurrence, anchor_ms: int, pending_ms: int, now_ms: int, late_before_ms: int) -> list[int]:
    """The newest slots, ascending: as many as can fire."""
    found: list[int] = []
    before_ms, left = now_ms + 1, SLOTS_ON_TIME_MAX
    while left and (slot_ms := _last_before(recurrence, anchor_ms, pending_ms, before_ms)) >= late_before_ms:
        found.append(slot_ms)
        before_ms, left = slot_ms, left - 1
    for _ in range(_late_max(recurrence)):
        slot_ms = _last_before(recurrence, anchor_ms, pending_ms, before_ms)
        if not slot_ms:
            break
        found.append(slot_ms)
        before_ms = slot_ms
    return found[::-1]


def _last_before(recurrence: Recurrence, anchor_ms: int, pending_ms: int, before_ms: int) -> int:
    """The last slot from `pending_ms` on that lies before `before_ms`; 0 if there is none.

    There is a slot between a moment and `before_ms` if, and only if, the moment lies before the slot that is sought. So it is closed in
    on, first by steps that double, then by halves.
    """
    if before_ms <= pending_ms:
        return 0
    step_ms, high_ms = 1_000, before_ms - 1
    while True:
        low_ms = max(before_ms - 1 - step_ms, pending_ms - 1)
        slot_ms = next_slot_ms(recurrence, anchor_ms, low_ms)
        if 0 < slot_ms < before_ms or low_ms < pending_ms:
            break
        high_ms, step_ms = low_ms, 2 * step_ms
    while high_ms - slot_ms > 0:
        middle_ms = (slot_ms + high_ms) // 2
        later_ms = next_slot_ms(recurrence, anchor_ms, middle_ms)
        if 0 < later_ms < before_ms:
            slot_ms = later_ms
        else:
            high_ms = middle_ms
    return slot_ms


# --- cron lines, among clock times ---


class _Line(NamedTuple):
    """A cron line that was read.

    Attributes:
        reader: never advanced itself: copies of it are.
        is_fixed: it names times of the day; else it goes by real time.
    """

    reader: CronSim
    is_fixed: bool


def _line(expression: str) -> _Line:
    line = _read(expression)
    if isinstance(line, BadExpression):
        raise line
    return line


@lru_cache(_LINES_CACHED_MAX)
def _read(expression: str) -> _Line | BadExpression:
    """The line, or what is wrong with it: that is remembered too, since to find that a line never matches takes 20 ms."""
    if not expression.isascii() or not expression.isprintable():
        return BadExpression("it holds other characters than printable ASCII")
    text = NICKNAMES.get(expression, expression)
    if text.startswith("@"):
        return BadExpression(f"there is no such nickname; known are {', '.join(NICKNAMES)}")
    fields = text.split()
    if len(fields) not in (_FIELDS_WITHOUT_SECONDS, _FIELDS_WITHOUT_SECONDS + 1):
        return BadExpression(
            f"it has {len(fields)} fields; give five (minute hour day month weekday), or six (second minute hour day month weekday)"
        )
    try:
        reader = CronSim(text, _EPOCH)
    except CronSimError as error:
        if _is_without_month(fields):
            return Impossible("no month that it names has such a day")
        return BadExpression(str(error)[:1].lower() + str(error)[1:])
    minute, hour = fields[-5], fields[-4]
    line = _Line(reader, not (minute.startswith("*") or hour.startswith("*")))
    return line if _next_wall_s(line, 0) else Impossible("no year has such a day")


def _is_without_month(fields: list[str]) -> bool:
    """Whether months are all that is wrong: cronsim calls 30 February a bad day, as it does day 32."""
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), _EPOCH)
        CronSim(" ".join(["0", "0", "*", fields[-2], "*"]), _EPOCH)
    except CronSimError:
        return False
    return True


def _next_wall_s(line: _Line, after_s: int) -> int:
    """The first clock time after `after_s` that the line names, both in seconds since midnight of 1970; 0 if fifty years have none."""
    reader = object.__new__(CronSim)
    reader.__dict__.update(line.reader.__dict__)
    reader.dt = _EPOCH + after_s * _SECOND
    try:
        return (next(reader) - _EPOCH) // _SECOND
    except StopIteration:
        return 0


# --- from clock times to instants ---


def _next_cron_s(line: _Line, zone: tzinfo, after_s: int) -> int:
    """The first slot after `after_s`, in seconds since the epoch; 0 if there is none."""
    if after_s >= _DUE_S_MAX:
        return 0
    if zone is UTC:
        return _next_wall_s(line, after_s)
    return _next_fixed_s(line, zone, after_s) if line.is_fixed else _next_by_real_time_s(line, zone, after_s)


def _next_fixed_s(line: _Line, zone: tzinfo, after_s: int) -> int:
    now = datetime.fromtimestamp(after_s, zone)
    wall_s = after_s + _offset_s(now)
    if now.fold:  # these clock times are shown for the second time: their slots were at the first
        wall_s = _jump_s(zone, after_s - _DAY_S, after_s) + _offset_s(now.replace(fold=0)) - 1
    wall_s = _next_wall_s(line, wall_s)
    if wall_s == 0:
        return 0
    slot_s, other_s = _instants_s(zone, wall_s)
    return slot_s if _wall_s(zone, slot_s) == wall_s else _jump_s(zone, other_s, slot_s)


def _next_by_real_time_s(line: _Line, zone: tzinfo, after_s: int) -> int:
    offset_s, later_s = (_wall_s(zone, at_s) - at_s for at_s in (after_s, after_s + _DAY_S))
    wall_s = after_s + offset_s
    if later_s < offset_s:  # clocks go back soon, and so the next clock time to match may be an earlier one
        jump_s = _jump_s(zone, after_s, after_s + _DAY_S)
        slot_s = _next_wall_s(line, wall_s) - offset_s
        if after_s < slot_s < jump_s:
            return slot_s
        after_s = jump_s - 1
        wall_s = after_s + later_s
    # Some lines name only times that are skipped, so that there is no slot: "*/30 2 * 3 0L" in Europe.
    while (wall_s := _next_wall_s(line, wall_s)) and wall_s <= _DUE_S_MAX + _DAY_S:
        first_s, second_s = _instants_s(zone, wall_s)
        for slot_s in (first_s, second_s):
            if slot_s > after_s and _wall_s(zone, slot_s) == wall_s:
                return slot_s
        wall_s = _wall_s(zone, _jump_s(zone, second_s, first_s)) - 1
    return 0


def _offset_s(at: datetime) -> int:
    offset = at.utcoffset()
    assert offset is not None
    return offset // _SECOND


def _wall_s(zone: tzinfo, at_s: int) -> int:
    """What clocks show at an instant."""
    return at_s + _offset_s(datetime.fromtimestamp(at_s, zone))


def _instants_s(zone: tzinfo, wall_s: int) -> tuple[int, int]:
    """When clocks show it: the first and the second time, mostly the same. Where they never do, a moment after the jump and one before."""
    wall = (_EPOCH + wall_s * _SECOND).replace(tzinfo=zone)
    return wall_s - _offset_s(wall), wall_s - _offset_s(wall.replace(fold=1))


def _jump_s(zone: tzinfo, low_s: int, high_s: int) -> int:
    """The first instant after clocks jumped, which they did once after `low_s` and not after `high_s`."""
    offset_s = _wall_s(zone, low_s) - low_s
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _wall_s(zone, middle_s) - middle_s == offset_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


@lru_cache(1)
def _zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())
