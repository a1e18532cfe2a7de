"""`duewheel demo`: all of it, on a real broker, with crashes, and the proof."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console

from duewheel import logs
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import kafka_option, option
from duewheel.cli.demo_view import print_verdict, progress_view, verdict_object
from duewheel.core.errors import DuewheelError
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.demo.course import Course
from duewheel.demo.evidence import Verdict
from duewheel.demo.leftovers import remove_installation
from duewheel.devbroker import DevCluster
from duewheel.devbroker.runfolder import RunFolder

JOBS_MIN: Final = 100  # so that the kills hit something
JOBS_MAX: Final = 20_000  # what two workers and a screen keep up with in ten seconds on a small machine


class BrokenPromise(DuewheelError):
    """The demo found that Duewheel did not keep a promise."""


@click.command()
@option("-b", "--bootstrap-servers", metavar="HOST:PORT,…", help="A Kafka cluster that runs already. Default: one is started, and ended.")
@kafka_option
@option("--jobs", type=click.IntRange(JOBS_MIN, JOBS_MAX), default=2_000, show_default=True, help="How many to schedule.")
@option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(".duewheel"), show_default=True,
        help="Where the broker, logs and state go.")  # fmt: skip
@option("--keep", is_flag=True, help="Keep logs, state, and topics on a cluster that runs already. A failed demo keeps its logs anyway.")
@option("--json", "as_json", is_flag=True, help="End with one line of JSON, instead of tables.")
def demo(bootstrap_servers: str | None, kafka_options: dict[str, str], jobs: int, folder: Path, keep: bool, as_json: bool) -> None:
    """Watch jobs being scheduled, fired, run and completed, while processes are killed.

    Starts a broker, two timer processors and two workers; schedules jobs, some for now, some over the next 10 s; cancels some; kills a
    processor and a worker with -9 half-way and starts others. Then it reads every topic from the beginning, and what handlers wrote down
    themselves, and says whether any job was lost, early, or accepted twice. Exit code 3 if so.

    Takes about half a minute, and never more than one from when the broker is ready. Leaves no process and no file behind.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    with _run_folder(folder, keep=keep) as run, (run.path / "demo.log").open("w") as log_file:
        logs.configure(click.get_current_context().find_root().params["log_level"], "json", log_file)
        with _cluster(console, bootstrap_servers, kafka_options, folder) as kafka:
            began = time.monotonic()
            verdict = _run(console, kafka, run, jobs, remove=bootstrap_servers is not None and not keep)
            duration_s = time.monotonic() - began
        if keep:
            click.echo(f"logs and state are in {run.path}", err=True)
        if as_json:
            click.echo(json.dumps(verdict_object(verdict, duration_s)))
        else:
            print_verdict(console, verdict)
        if verdict.broken:
            raise BrokenPromise(f"promises were broken: {', '.join(verdict.broken)}. Logs and state are kept in {run.path}")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _run_folder(folder: Path, *, keep: bool) -> Iterator[RunFolder]:
    """A folder that goes with the demo; or one to keep, whose name the next demo does not sweep."""
    run = RunFolder.take(folder, "demo", folder / f"kept-demo-{time.strftime('%Y%m%d-%H%M%S')}" if keep else None)
    failed = False
    try:
        yield run
    except DuewheelError:
        failed = True  # its logs say why
        raise
    finally:
        run.release(keep=keep or failed)


@contextlib.contextmanager
def _cluster(console: Console, bootstrap_servers: str | None, options: dict[str, str], folder: Path) -> Iterator[KafkaConfig]:
    if bootstrap_servers is not None:
        yield KafkaConfig(bootstrap_servers, options)
        return
    console.print(f"Starting a Kafka broker in {folder} (38 MB are fetched the first time) …", highlight=False)
    with DevCluster(folder) as cluster:
        yield KafkaConfig(cluster.bootstrap_servers, options)


def _run(console: Console, kafka: KafkaConfig, run: RunFolder, jobs: int, *, remove: bool) -> Verdict:
    topology = Topology(f"duewheel-demo-{uuid.uuid4().hex[:8]}")
    try:
        with progress_view(console) as show:
            return Course(kafka, topology, run, SystemClock(), jobs, show).run()
    finally:
        if remove:
            remove_installation(kafka, topology, QUEUE_DEFAULT)
