"""Reading the dead-letter topic for a person who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from duewheel.adapters.dead_letters import DeadLetters
from duewheel.adapters.kafka.scan import Scan
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.dead_runs import DeadRuns, Filter
from duewheel.core.history import Entry
from duewheel.core.topology import Topology


@contextmanager
def dead_letters(
    kafka: KafkaConfig,
    topology: Topology,
    timeout: timedelta,
    runs: DeadRuns,
    wanted: Filter,
    wants_refused: Callable[[Entry], bool] = lambda _entry: False,
) -> Iterator[DeadLetters]:
    """A reading of the installation's dead letters, from their start; see `DeadLetters`."""
    scan = Scan(kafka, topology.dead_letter, timeout.total_seconds())
    try:
        yield DeadLetters(scan, runs, wanted.jobs, wants_refused)
    finally:
        scan.close()


def read(letters: DeadLetters) -> None:
    """Reads to where the topic ends now, and says on a terminal how far it is."""
    with progress("reading dead letters") as progressed:
        letters.read(progressed)
    if letters.unreadable_count:
        click.echo(f"{letters.unreadable_count:,} records of the dead-letter topic could not be read; is this Duewheel too old?", err=True)


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on a terminal how far it is, for as long as the block lasts; takes how many are done, of how many."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, count: None
        return
    bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True)
    task = bars.add_task(text, total=None)
    with bars:
        yield lambda done, count: bars.update(task, completed=done, total=count)
