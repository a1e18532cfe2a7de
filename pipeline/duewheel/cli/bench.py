"""`duewheel bench`: what Duewheel can do on this machine."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import rich.progress
import rich.table
from rich.console import Console

from duewheel.bench import crons, end_to_end, failing, lateness, load, path, pending
from duewheel.bench.report import Progress, Report
from duewheel.bench.site import Site, open_site
from duewheel.cli.common import name_value_pairs, option
from duewheel.core.limits import PAYLOAD_BYTES_MAX, WORKER_CONCURRENCY_MAX

_PARTITIONS_MAX = 100


@click.group()
def bench() -> None:
    """Measure what Duewheel can do on this machine.

    Each command starts a broker of its own, or uses the cluster named by --bootstrap-servers, with new topics under a prefix that nobody
    uses; there they are deleted in the end. The processes measured are those that you would start yourself. A table says what was found;
    with --json the last line is one JSON object with the same figures.

    Leave the machine alone meanwhile: the table says how much else was going on (load).
    """


def _place_options(command: Callable[..., Report]) -> Callable[..., None]:
    """Adds the options that every bench has; the command receives `place` and `progress`, and its report is shown."""

    @option("-b", "--bootstrap-servers", metavar="HOST:PORT,…",
            help="A cluster to use. Default: a broker is started, and ended afterwards.")  # fmt: skip
    @click.option("-X", "kafka_options", multiple=True, callback=name_value_pairs, envvar="DUEWHEEL_KAFKA_OPTIONS", show_envvar=True,
                  metavar="NAME=VALUE", help="A librdkafka setting for every client. Repeatable.")  # fmt: skip
    @option("--folder", type=click.Path(file_okay=False, path_type=Path), default=".duewheel", show_default=True,
            help="Where jars, data, logs and stores go.")  # fmt: skip
    @option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
    @functools.wraps(command)
    def wrapped(bootstrap_servers: str | None, kafka_options: dict[str, str], folder: Path, as_json: bool, **rest: Any) -> None:
        with _shown_progress() as progress:
            progress("preparing the broker", 0, 1)
            with open_site(bootstrap_servers, kafka_options, folder) as place:
                progress("preparing the broker", 1, 1)
                report = command(place=place, progress=progress, **rest)
        _show(report)
        if as_json:
            click.echo(json.dumps(report.as_dict()))

    return wrapped


_jobs = functools.partial(option, "--jobs", type=click.IntRange(min=1), show_default=True, help="How many jobs.")
_partitions = functools.partial(option, "--partitions", type=click.IntRange(1, _PARTITIONS_MAX), show_default=True,
                                help="Timer partitions, and partitions of the queue.")  # fmt: skip
_concurrency = functools.partial(option, "--concurrency", type=click.IntRange(1, WORKER_CONCURRENCY_MAX), show_default=True,
                                 help="How many handlers the worker runs at a time.")  # fmt: skip
_payload = functools.partial(option, "--payload-bytes", type=click.IntRange(0, PAYLOAD_BYTES_MAX), default=load.PAYLOAD_BYTES,
                             show_default=True, help="Payload of each job, random bytes.")  # fmt: skip


@bench.command("path")
@_place_options
@_jobs(default=path.JOBS_DEFAULT)
@option("--rounds", type=click.IntRange(1, 100), default=path.ROUNDS_DEFAULT, show_default=True, help="How often each takes its turn.")
@_payload()
def path_command(place: Site, progress: Progress, jobs: int, rounds: int, payload_bytes: int) -> Report:
    """The timer path of one partition, and what Kafka alone costs.

    Jobs that are due at once lie in intake; one processor reads, checks, defines, stores and dispatches them. In turn with it a bare
    confluent-kafka loop, the floor, reads the same records and writes records of the same bytes in transactions of the same size, decoding
    and storing nothing; like the processor it reads on while a transaction is being committed. The ratio of the two is what is worth
    knowing: it does not depend on the machine as the rates do.
    """
    return path.run(place, jobs, rounds, payload_bytes, progress)


@bench.command("lateness")
@_place_options
@option("--rate", type=click.IntRange(1, 100_000), default=lateness.RATE_DEFAULT, show_default=True, help="Jobs due in each second.")
@option("--seconds", type=click.IntRange(1, 3_600), default=lateness.SECONDS_DEFAULT, show_default=True, help="For how long.")
@_partitions(default=lateness.PARTITIONS_DEFAULT)
@_concurrency(default=lateness.CONCURRENCY_DEFAULT)
def lateness_command(place: Site, progress: Progress, rate: int, seconds: int, partitions: int, concurrency: int) -> Report:
    """How long after its time a job starts, at a steady rate.

    Jobs are due one after another. All are scheduled, and taken in, before the first is due. Measured is the wall clock in the first line
    of the handler, in a worker process, less the due time of the job: the whole chain of processor, Kafka and worker. Also counted: what
    was started before its time, never, or more than once, each of which should be 0.

    Ten seconds at the same rate come first, in which a broker that has just started warms up: they count for what should be 0, and not
    for the times.
    """
    return lateness.run(place, rate, seconds, partitions, concurrency, progress)


@bench.command("end-to-end")
@_place_options
@_jobs(default=end_to_end.JOBS_DEFAULT)
@_partitions(default=end_to_end.PARTITIONS_DEFAULT)
@_concurrency(default=end_to_end.CONCURRENCY_DEFAULT)
@_payload()
def end_to_end_command(place: Site, progress: Progress, jobs: int, partitions: int, concurrency: int, payload_bytes: int) -> Report:
    """Jobs that do nothing, from intake to accepted completion.

    All lie in intake, due, when one processor and one worker begin. The clock runs from the append of the first dispatch to the append of
    the last SUCCEEDED state, by the broker's own times. Afterwards each job must have succeeded, exactly once.
    """
    return end_to_end.run(place, jobs, partitions, concurrency, payload_bytes, progress)


@bench.command("crons")
@_place_options
@_jobs(default=crons.JOBS_DEFAULT)
@_partitions(default=crons.PARTITIONS_DEFAULT)
@_concurrency(default=crons.CONCURRENCY_DEFAULT)
def crons_command(place: Site, progress: Progress, jobs: int, partitions: int, concurrency: int) -> Report:
    """Recurring jobs that fall on the same moment: how late the last of them starts, and who else has to wait.

    All have the same cron line. While they fire, a client goes on scheduling jobs and cancelling them: how long until that shows in the
    state topic is measured too.
    """
    return crons.run(place, jobs, partitions, concurrency, progress)


@bench.command("failing")
@_place_options
@_jobs(default=failing.JOBS_DEFAULT)
@_partitions(default=failing.PARTITIONS_DEFAULT)
@_concurrency(default=failing.CONCURRENCY_DEFAULT)
@_payload()
def failing_command(place: Site, progress: Progress, jobs: int, partitions: int, concurrency: int, payload_bytes: int) -> Report:
    """Jobs that fail at each of five attempts, and end in the dead letters.

    Waits of the default policy lie between attempts, at most 85 s in all. Counted is what should be 0: jobs that are not dead, with
    other than five attempts, or tried again before their time. Measured is how well the jitter spreads them, and whether what waits stays
    out of memory.
    """
    return failing.run(place, jobs, partitions, concurrency, payload_bytes, progress)


@bench.command("pending")
@_place_options
@_jobs(default=pending.JOBS_DEFAULT)
@_partitions(default=pending.PARTITIONS_DEFAULT)
@_payload()
def pending_command(place: Site, progress: Progress, jobs: int, partitions: int, payload_bytes: int) -> Report:
    """Memory, disk and restore with a million jobs that wait.

    A processor takes in jobs that are due tomorrow. Then it is killed with -9, its store is deleted, and a new process rebuilds it from
    the changelog. Restoring counts from the start of that process, so it includes the time until the broker gives up the dead one.
    """
    return pending.run(place, jobs, partitions, payload_bytes, progress)


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """A bar for each piece of work on a terminal; elsewhere a line when it begins."""
    console = Console(stderr=True)
    tasks: dict[str, rich.progress.TaskID] = {}
    bars = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        console=console,
        disable=not sys.stderr.isatty(),
    )

    def progress(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
            if bars.disable:
                click.echo(f"bench: {what}", err=True)
        bars.update(tasks[what], completed=done, total=total)

    with bars:
        yield progress


def _show(report: Report) -> None:
    settings = ", ".join(f"{name} {_text(value)}" for name, value in report.settings.items())
    machine = ", ".join(f"{name} {value}" for name, value in report.as_dict()["machine"].items())
    table = rich.table.Table(title=f"bench {report.bench}: {settings}", caption=machine, title_justify="left", caption_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what it is")
    for key, value, meaning in report.measures:
        table.add_row(key, ", ".join(map(_text, value)) if isinstance(value, Sequence) else _text(value), meaning)
    Console().print(table)


def _text(value: float) -> str:
    return f"{value:,}"
