"""`duewheel dead`: looks at runs that died, and has them run again or dropped.

All four commands read the dead-letter topic from its start (`adapters/dead_letters.py`): it is the list, and there is no other. Redrive and
drop are commands to the owners of the jobs, which name each death by job id and token. An owner touches a run only while it is dead with
that very token, so that whoever repeats a command, or races somebody else's, has each run redriven once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import cluster_options, option
from duewheel.cli.dead_change import Change
from duewheel.cli.dead_reading import dead_letters, read
from duewheel.cli.dead_view import LIST_LIMIT_DEFAULT, color, print_refused, print_runs, whole_json, whole_lines
from duewheel.cli.times import duration, instant
from duewheel.core.dead_runs import DeadRuns, Filter
from duewheel.core.errors import Reason
from duewheel.core.history import Entry
from duewheel.core.model import Closing
from duewheel.core.step import Reason as DeathReason
from duewheel.core.topology import Topology


def _moment(text: str) -> int:
    """A time, or a duration for that long ago, in milliseconds since the epoch."""
    try:
        ago = duration(text)
    except click.BadParameter:
        time_given: datetime | int = instant(text)
        return time_given if isinstance(time_given, int) else round(time_given.timestamp() * 1_000)
    return SystemClock().wall_ms() - ago // timedelta(milliseconds=1)


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose dead runs; the command receives `wanted`, a Filter."""

    @option("--id", "ids", multiple=True, metavar="JOB_ID", help="Only this job. Repeatable.")
    @option("--task", "tasks", multiple=True, metavar="TASK", help="Only runs of this task. Repeatable.")
    @option("-q", "--queue", "queues", multiple=True, metavar="QUEUE", help="Only runs of this queue. Repeatable.")
    @option("--error", "errors", multiple=True, metavar="CLASS",
            help="Only runs whose last error was of this class: smtplib.SMTPDataError, or SMTPDataError alone. Repeatable.")  # fmt: skip
    @option("--reason", "reasons", multiple=True, type=click.Choice([*map(str, DeathReason), *map(str, Reason)]), metavar="REASON",
            help=f"Only what died for this reason: {', '.join(DeathReason)}; or, of refused records, their code. Repeatable.")  # fmt: skip
    @option("--since", "since_ms", type=_moment, metavar="TIME",
            help="Only what died at this time or later: 2030-01-31T18:00:00Z, or how long ago: 30s, 10m, 2h, 1d.")  # fmt: skip
    @option("--until", "until_ms", type=_moment, metavar="TIME", help="Only what died before this time, given in the same ways.")
    @functools.wraps(command)
    def wrapped(
        ids: tuple[str, ...],
        tasks: tuple[str, ...],
        queues: tuple[str, ...],
        errors: tuple[str, ...],
        reasons: tuple[str, ...],
        since_ms: int | None,
        until_ms: int | None,
        **rest: Any,
    ) -> Any:
        wanted = Filter(
            jobs=frozenset(ids),
            tasks=frozenset(tasks),
            queues=frozenset(queues),
            errors=frozenset(errors),
            reasons=frozenset(reasons),
            since_ms=since_ms,
            until_ms=until_ms,
        )
        return command(wanted=wanted, **rest)

    return wrapped


def _reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    timeout = option("--timeout", type=duration, default="30s", show_default=True, metavar="DURATION",
                     help="How long the cluster may be away before this gives up.")  # fmt: skip
    as_json = option("--json", "as_json", is_flag=True, help="Print one JSON object a run, always with the same keys.")
    return cluster_options(timeout(as_json(command)))


@click.group()
def dead() -> None:
    """Look at runs that died, run them again, or drop them.

    A run is dead when its attempts failed for good. Its payload, its errors and its way through lie on the dead-letter topic for 30 days;
    for 14 of them the job waits for somebody to redrive or drop it.

    \b
    Examples:
      duewheel dead list --since 2h
      duewheel dead show welcome-ada
      duewheel dead redrive --task send_email --error SMTPServerDisconnected
      duewheel dead drop --id welcome-ada
    """


@dead.command("list")
@_filter_options
@option("--all", "with_closed", is_flag=True, help="Show closed runs too, with what became of each.")
@option("--refused", is_flag=True, help="Show records that were refused or could not be read, in place of dead runs.")
@option("--limit", type=click.IntRange(min=1), metavar="COUNT",
        help=f"Show the latest COUNT only.  [default: {LIST_LIMIT_DEFAULT} in the table, all with --json]")  # fmt: skip
@_reading_options
def list_command(
    kafka: KafkaConfig,
    topology: Topology,
    timeout: timedelta,
    as_json: bool,
    wanted: Filter,
    with_closed: bool,
    refused: bool,
    limit: int | None,
) -> None:
    """List dead runs, the latest last.

    \b
    Examples:
      duewheel dead list
      duewheel dead list --task send_email --error SMTPDataError --since 2h
      duewheel dead list --all --json | jq -r 'select(.how == "REDRIVEN") | .job_id'
      duewheel dead list --refused
    """
    if refused and (wanted.tasks or wanted.queues or wanted.errors or with_closed):
        raise click.UsageError(
            "refused records have no task, queue or error, and stay; use --refused with --id, --reason, --since, --until"
        )
    runs = DeadRuns(wanted.accepts, keeps_closed=with_closed)
    with dead_letters(kafka, topology, timeout, runs, wanted, functools.partial(_accepts_refused, wanted)) as letters:
        read(letters)
    if refused:
        print_refused(letters, limit, as_json=as_json)
    else:
        print_runs(letters, limit, as_json=as_json, with_closed=with_closed)


@dead.command()
@click.argument("job_id")
@option("--token", type=int, help="Which death, where the job died several times; the latest where none is given.")
@_reading_options
def show(kafka: KafkaConfig, topology: Topology, timeout: timedelta, as_json: bool, job_id: str, token: int | None) -> None:
    """Show everything that is known of a dead run: payload, errors, how each attempt ended, and what became of it.

    \b
    Examples:
      duewheel dead show welcome-ada
      duewheel dead show welcome-ada --json | jq .payload
    """
    wanted = Filter(jobs=frozenset([job_id]))
    with dead_letters(kafka, topology, timeout, DeadRuns(wanted.accepts, keeps_closed=True), wanted) as letters:
        read(letters)
        deaths = sorted(letters.runs.runs(), key=lambda run: run.token)
        found = next((run for run in reversed(deaths) if token in (None, run.token)), None)
        if found is None:
            raise _unknown(job_id, token, [run.token for run in deaths], topology.dead_letter)
        run = letters.whole(found)
    if as_json:
        click.echo(whole_json(found, run))
    else:
        others = [death for death in deaths if death is not found]
        click.echo("\n".join(whole_lines(found, run, others)), color=color())


def _unknown(job_id: str, token: int | None, tokens: Sequence[int], topic: str) -> click.BadParameter:
    if tokens:
        known = ", ".join(map(str, tokens))
        return click.BadParameter(f"job {job_id!r} did not die with token {token}, but with {known}", param_hint="--token")
    return click.BadParameter(f"no run of job {job_id!r} died, as far as topic {topic} reaches back", param_hint="JOB_ID")


def _changing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        option("--wait-timeout", type=duration, default="1m", show_default=True, metavar="DURATION", help="How long --wait may take."),
        option("--wait", is_flag=True, help="Return when the timer processors have done it, and tell what became of each."),
        option("--dry-run", is_flag=True, help="Only show which runs it would be."),
        option("--yes", "-y", is_flag=True, help="Ask nothing."),
        option("--everything", is_flag=True, help="All dead runs, where nothing else chooses."),
        _filter_options,
        _reading_options,
    ):
        command = decorate(command)
    return command


@dead.command()
@_changing_options
def redrive(**options: Any) -> None:
    """Run dead runs again, each as a run with fresh attempts and a higher token.

    Who chooses by anything but --id is asked first, on a terminal; elsewhere --yes says that it is meant.

    \b
    Examples:
      duewheel dead redrive --id welcome-ada --wait
      duewheel dead redrive --task send_email --error SMTPServerDisconnected --since 2h
      duewheel dead redrive --queue reports --until 2030-01-31T18:00:00Z --dry-run

    Running the same command twice redrives each death once: the second finds nothing to redrive, but for runs that died again meanwhile.
    """
    Change(Closing.REDRIVEN, "redrive", **options).run()


@dead.command()
@_changing_options
def drop(**options: Any) -> None:
    """Give dead runs up: their jobs are forgotten, and their ids may be used anew.

    Who chooses by anything but --id is asked first, on a terminal; elsewhere --yes says that it is meant.

    \b
    Examples:
      duewheel dead drop --id welcome-ada
      duewheel dead drop --task send_email --reason crash_limit --until 7d --yes
    """
    Change(Closing.DROPPED, "drop", **options).run()


def _accepts_refused(wanted: Filter, entry: Entry) -> bool:
    return (
        (not wanted.jobs or entry.job_id in wanted.jobs)
        and (not wanted.reasons or entry.error in wanted.reasons)
        and (wanted.since_ms is None or entry.at_ms >= wanted.since_ms)
        and (wanted.until_ms is None or entry.at_ms < wanted.until_ms)
    )
