"""`duewheel schedule next`: when a recurring job would be due, asked before it is one.

It stands beside `duewheel schedule TASK`, so that `next` is not taken for a task's name; `duewheel schedule -- next` is one.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

import click

from duewheel.cli.common import option
from duewheel.cli.times import duration, instant
from duewheel.core.limits import DUE_MS_MAX, DUE_MS_MIN
from duewheel.core.model import Misfire, Overlap, Recurrence, RecurrenceKind
from duewheel.core.recurrence import slots, zone_of
from duewheel.core.recurrence_rules import check_recurrence

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COUNT_MAX: Final = 10_000
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class CommandOrGroup(click.Group):
    """A command with arguments of its own, and commands below it where their name comes first."""

    allow_interspersed_args = True

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        below = self.commands.get(args[0]) if args else None
        if below is None:
            return super().make_context(info_name, args, parent, **extra)
        return below.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)


def _start(_context: click.Context, _parameter: click.Parameter, at: datetime | int | None) -> int | None:
    if at is None:
        return None
    start_ms = at if isinstance(at, int) else -((_EPOCH - at) // _MILLISECOND)
    if not DUE_MS_MIN <= start_ms <= DUE_MS_MAX:
        raise click.BadParameter(f"{start_ms} ms since the epoch is not from 2001-09-09 to 2100-01-01, which times of jobs are")
    return start_ms


@click.command("next")
@click.argument("expression", required=False)
@option("--every", type=duration, help="Instead of an expression: 90s, 5m, 1h30m, 2d. Elapsed time, whatever clocks do.")
@option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Whose clocks the expression means: an IANA name, as Europe/Berlin.")
@option("--count", type=click.IntRange(1, _COUNT_MAX), default=5, show_default=True, help="How many times to show.")
@option(
    "--from",
    "start_ms",
    type=instant,
    callback=_start,
    metavar="TIME",
    help="The first moment that counts: ISO 8601 with a time zone, or milliseconds since the epoch.  [default: now]",
)
@option("--json", "as_json", is_flag=True, help="Print one line of JSON for each time.")
def schedule_next(expression: str | None, every: timedelta | None, tz: str, count: int, start_ms: int | None, as_json: bool) -> None:
    """Shows when a schedule would be due, without scheduling anything. Needs no cluster.

    EXPRESSION is a cron line of five fields, minute hour day month weekday; of six, with seconds before them; or a nickname: @hourly,
    @daily, @midnight, @weekly, @monthly, @yearly, @annually.

    \b
      *         every            1-5        from to           */10    every tenth
      1,15      either           mon, jan   names             L       the last day of the month
      fri#3     the third Friday 5L         the last Friday   LW      the last weekday, mon to fri

    Where neither day nor weekday begins with a star, either will do: 0 0 13 * fri is each 13th, and each Friday.

    \b
    Examples:
      duewheel schedule next "0 9 * * mon-fri" --tz Europe/Berlin
      duewheel schedule next "30 2 * * *" --tz America/New_York --from 2030-03-09T12:00:00Z    (clocks skip 2:30 on the 10th)
      duewheel schedule next "0 18 L * *" --count 12 --json
      duewheel schedule next --every 90s

    Each line says the time on the clocks of the zone with their offset, the same in UTC, and how long after --from it is. Where clocks
    skip a time it becomes the first moment after, and a time that they show twice is due once; but an expression whose minute or hour
    begins with a star goes by real time. docs/schedules.md has the table.
    """
    if (expression is None) == (every is None):
        raise click.UsageError('give an expression, as in duewheel schedule next "0 9 * * mon-fri", or --every, as in --every 90s')
    start_ms = _now_ms() if start_ms is None else start_ms
    recurrence = _recurrence(expression, every, tz)
    check_recurrence(recurrence, start_ms)
    zone = zone_of(tz)
    for slot_ms in islice(slots(recurrence, start_ms, 0), count):
        utc = _EPOCH + slot_ms * _MILLISECOND
        local = utc.astimezone(zone)
        if as_json:
            click.echo(json.dumps({"slot_ms": slot_ms, "utc": _iso(utc), "local": local.isoformat(timespec="milliseconds"), "zone": tz}))
        else:
            click.echo(f"{local:%a %Y-%m-%d %H:%M:%S %z}  {_iso(utc)}  in {_span(slot_ms - start_ms)}")


def _recurrence(expression: str | None, every: timedelta | None, zone: str) -> Recurrence:
    return {
        "kind": RecurrenceKind.EVERY if expression is None else RecurrenceKind.CRON,
        "every_ms": 0 if every is None else -(-every // _MILLISECOND),
        "expression": expression or "",
        "zone": zone,
        "start_ms": 0,
        "end_ms": 0,
        "runs_max": 0,
        "jitter_ms": 0,
        "misfire": Misfire.ONCE,
        "misfire_max": 0,
        "grace_ms": 0,
        "overlap": Overlap.SKIP,
        "overlap_max": 0,
    }


def _now_ms() -> int:
    from duewheel.adapters.system import SystemClock

    return SystemClock().wall_ms()


def _iso(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1_000:03d}Z"


def _span(span_ms: int) -> str:
    """The two largest units: 3d4h, 9h55m, 12s. Rounded up, as who waits until then waits no less."""
    left = -(-span_ms // 1_000)
    parts = []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts[:2]) or "0s"
