"""Options that say what a job is, for all commands that make or change one.

@job_options       receives `job`, a Job: duewheel schedule, duewheel encode schedule
@delivered_options receives `record`, a Delivery: duewheel deliver, duewheel encode deliver
@update_options    receives `update`, an Update, where what is not given is None: duewheel update, duewheel encode update
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from duewheel.cli.common import Decorator, option
from duewheel.cli.times import duration, instant
from duewheel.client import Delivery, Job, Update
from duewheel.core.limits import CRASHES_MAX_DEFAULT, MISFIRE_MAX_DEFAULT, OVERLAP_MAX_DEFAULT
from duewheel.core.retry import RetryPolicy
from duewheel.core.topology import QUEUE_DEFAULT


def _headers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name or name in headers:
            raise click.BadParameter(f"{value!r} is not of the form name=value, or its name was given before")
        headers[name] = text
    return headers


_TASK: Final[tuple[Decorator, ...]] = (click.argument("task"),)
_PAYLOAD: Final[tuple[Decorator, ...]] = (
    click.argument("payload", required=False),
    option("--payload-file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
            help="Send this file's bytes as they are; - is standard input."),
)  # fmt: skip
_WHEN: Final[tuple[Decorator, ...]] = (
    option("--at", type=instant, metavar="TIME", help="When: ISO 8601 with a time zone, or milliseconds since the epoch."),
    option("--delay", type=duration, help="How long from now: 250ms, 10s, 5m, 1h30m, 2d."),
)  # fmt: skip
_QUEUE: Final[tuple[Decorator, ...]] = (
    option("--queue", "-q", default=QUEUE_DEFAULT, show_default=True, help="Which workers; `duewheel topics apply -q` makes queues."),
)  # fmt: skip
_HEADERS: Final[tuple[Decorator, ...]] = (
    option("--header", "-H", "headers", multiple=True, callback=_headers, metavar="NAME=VALUE",
            help="Travels with it, for whoever gets it. Repeatable."),
)  # fmt: skip
_CONFLICT: Final[tuple[Decorator, ...]] = (
    option("--on-conflict", type=click.Choice(["ignore", "replace", "reject"]), default="ignore", show_default=True,
            help="Where the job id is known already: ignore this job, replace that one, or reject this one."),
)  # fmt: skip
_KEPT: Final[tuple[Decorator, ...]] = (
    option("--retention", type=duration, help="How long a finished job stays known, and its id deduplicates.  [default: 1d]"),
    option("--expires-at", type=instant, metavar="TIME",
            help="Start no attempt at this time or later, given as --at is; the job ends as expired.  [default: never]"),
)  # fmt: skip
_ATTEMPTS: Final[tuple[Decorator, ...]] = (
    option("--attempts", type=int, metavar="COUNT", help="How many attempts may fail, 1 is no retry.  [default: as the task says]"),
    option("--retry-delay", "retry_delays", multiple=True, type=duration,
            help="The wait before the second attempt; given again, before the third, and so on. The last one holds for all further.  "
            "[default: as the task says]"),
    option("--retry-factor", type=float, metavar="NUMBER",
            help="By how much each further wait is longer than the one before: 1s by 4 is 1s, 4s, 16s, …  [default: 1]"),
    option("--retry-jitter", type=float, metavar="SHARE",
            help="The share of a wait, 0 to 1, that may be taken off, so that what failed together comes back apart.  [default: 0]"),
    option("--run-timeout", type=duration, help="How long one attempt may take.  [default: as the task says]"),
    option("--total-timeout", type=duration,
            help="How long all attempts together may take, waits included, from when the first is handed out.  [default: for ever]"),
    option("--crash-limit", type=int, metavar="COUNT",
            help=f"How many attempts may end because their worker vanished.  [default: {CRASHES_MAX_DEFAULT}]"),
)  # fmt: skip
_RECURRING: Final[tuple[Decorator, ...]] = (
    option("--every", type=duration, help="Run again and again, so long after one another, from --start, --at, --delay or now on."),
    option("--every-after", type=duration, help="The same, counted from the end of the run before."),
    option("--cron", metavar="LINE", help="Run as a cron line says; duewheel schedule next LINE shows when that is."),
    option("--tz", metavar="ZONE", help="Whose clocks the line means: an IANA name, as Europe/Berlin.  [default: UTC]"),
    option("--start", type=instant, metavar="TIME", help="No run before; --every counts from here. It may have passed."),
    option("--end", type=instant, metavar="TIME", help="No run at this time or later."),
    option("--max-runs", type=int, metavar="COUNT", help="How many times to run at most.  [default: no limit]"),
    option("--jitter", type=duration, help="Start each run up to so long after its time.  [default: 0s]"),
    option("--misfire", type=click.Choice(["once", "skip", "all"]),
            help="Of times at which nobody was there, run the newest, none, or the newest --misfire-limit.  [default: once]"),
    option("--misfire-limit", type=int, metavar="COUNT", help=f"Of --misfire all.  [default: {MISFIRE_MAX_DEFAULT}]"),
    option("--grace", type=duration, help="How late a time may be and is not missed yet.  [default: 1m]"),
    option("--overlap", type=click.Choice(["skip", "allow", "queue", "replace"]),
            help="While the run before goes on: leave this one out, run up to --overlap-limit at once, let it wait, or cancel what "
            "goes on.  [default: skip]"),
    option("--overlap-limit", type=int, metavar="COUNT", help=f"Of --overlap allow.  [default: {OVERLAP_MAX_DEFAULT}]"),
)  # fmt: skip
_RULES: Final = (*_KEPT, *_ATTEMPTS, *_RECURRING)
_RECORD: Final[tuple[Decorator, ...]] = (
    click.argument("topic"),
    option("--key", "-k", help="The record's key, which decides about its partition.  [default: none, and any partition]"),
    option("--value", "-v", help="The record's value; - reads it from standard input."),
    option("--value-file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
            help="This file's bytes are the value."),
    option("--tombstone", is_flag=True, help="The record has no value, which deletes its key from a compacted topic."),
)  # fmt: skip


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what a job is made of, apart from its id's option; the command receives `job`, a Job."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        return command(job=Job(**_fields(given, Job._fields)), **given)

    return _with((*_TASK, *_PAYLOAD, *_WHEN, *_QUEUE, *_HEADERS, *_CONFLICT, *_RULES), wrapped)


def delivered_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what a record to deliver is made of, apart from its job's id; the command receives `record`, a Delivery."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        value = _value(given.pop("value"), given.pop("value_file"), is_tombstone=given.pop("tombstone"))
        return command(record=Delivery(value=value, **_plain(given, Delivery._fields)), **given)

    return _with((*_RECORD, *_WHEN, *_HEADERS, *_CONFLICT, *_KEPT, *_RECURRING), wrapped)


def update_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what of a job can be changed; the command receives `update`, an Update."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        fields = _fields(given, Update._fields)
        if not fields["headers"]:
            fields["headers"] = None
        return command(update=Update(**fields), **given)

    return _with((*_PAYLOAD, *_WHEN, *_HEADERS, *_RULES), wrapped)


def _with(parts: tuple[Decorator, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for part in reversed(parts):
        command = part(command)
    return command


def _fields(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Takes what makes a Job or an Update out of what was given."""
    fields = _plain(given, names)
    fields["payload"] = _payload(given.pop("payload"), given.pop("payload_file"))
    fields["retry"] = _retry(*(given.pop(name) for name in ("attempts", "retry_delays", "retry_factor", "retry_jitter")))
    fields["timeout"] = given.pop("run_timeout")
    return fields


def _plain(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Takes out of what was given what is a field as it is."""
    fields = {name: given.pop(name) for name in names if name in given and name not in ("payload", "timeout")}
    if fields["cron"] is None:
        fields["tz"] = None  # DUEWHEEL_TZ may be set for others that are
    return fields


def _value(text: str | None, file: Path | None, *, is_tombstone: bool) -> bytes | None:
    if (text is not None) + (file is not None) + is_tombstone != 1:
        raise click.UsageError("--value, --value-file and --tombstone each say what the record's value is; give one of them")
    if is_tombstone:
        return None
    if "-" in (text, str(file)):
        return sys.stdin.buffer.read()
    return text.encode() if file is None and text is not None else Path(str(file)).read_bytes()


def _retry(attempts: int | None, delays: tuple[timedelta, ...], factor: float | None, jitter: float | None) -> RetryPolicy | None:
    if not delays and (factor is not None or jitter is not None):
        raise click.UsageError("--retry-factor and --retry-jitter say how waits differ from --retry-delay; give that too")
    if attempts is None and not delays:
        return None
    return RetryPolicy(attempts=attempts, delays=delays, factor=1.0 if factor is None else factor, jitter=0.0 if jitter is None else jitter)


def _payload(text: str | None, file: Path | None) -> Any:
    if file is not None:
        if text is not None:
            raise click.UsageError(f"PAYLOAD ({text}) and --payload-file ({file}) were both given; a job has one payload")
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if text is None:
        return None
    source = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f'{source[:100]!r} is not JSON ({error}); a string needs quotes of its own, as in \'"text"\'',
                                 param_hint="PAYLOAD") from error  # fmt: skip
