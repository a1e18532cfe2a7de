"""`duewheel tail`: follows what happens to jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Final

import click

from duewheel.adapters.history import Historian
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import cluster_options, option
from duewheel.cli.history_lines import json_line, text_line
from duewheel.cli.times import duration
from duewheel.core.history import Entry, Happening, Memory, Merge
from duewheel.core.topology import Topology

_POLL_S: Final = 0.1  # how soon Ctrl-C and the ends asked for are noticed
_GATHER_S: Final = 0.02  # what one transaction wrote comes together, if not at once; then it can be put in order
_BATCH_RECORDS_MAX: Final = 1_000


@click.command()
@cluster_options
@option("--job-id", "--job", "jobs", multiple=True, help="Only this job. Repeatable.")
@option("-q", "--queue", "queues", multiple=True,
        help="Only jobs of this queue. A job scheduled before following began is known from its dispatch on. Repeatable.")  # fmt: skip
@option("--event", "events", multiple=True, type=click.Choice([happening.value for happening in Happening]), metavar="EVENT",
        help=f"Only this event: {', '.join(Happening)}. Repeatable.")  # fmt: skip
@option("--heartbeats", is_flag=True, help="Show each sign of life of long attempts, too, not only that they began.")
@option("--from-beginning", is_flag=True, help="Begin with all that the topics still hold, in order of time.")
@option("--since", type=duration, metavar="DURATION", help="Begin with what happened in the last 30s, 10m, 2h, 1d.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object a line, always with the same keys.")
@option("--max-events", type=click.IntRange(min=1), metavar="COUNT", help="End after so many events.")
@option("--until-idle", type=duration, metavar="DURATION", help="End when for so long nothing happened that would be shown.")
@option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How long the cluster may be away before this gives up.",
)
def tail(
    kafka: KafkaConfig,
    topology: Topology,
    jobs: tuple[str, ...],
    queues: tuple[str, ...],
    events: tuple[str, ...],
    heartbeats: bool,
    from_beginning: bool,
    since: timedelta | None,
    as_json: bool,
    max_events: int | None,
    until_idle: timedelta | None,
    timeout: timedelta,
) -> None:
    """Follow what happens to jobs, one line an event, from now on; Ctrl-C ends it.

    Reads what is committed on Duewheel's topics, as a member of no group: it disturbs nobody. Times are UTC. The state topic is
    compacted, so that of jobs long past only the end may be left.
    """
    if from_beginning and since is not None:
        raise click.UsageError("--from-beginning and --since exclude each other")
    since_ms = 0 if from_beginning else None if since is None else max(1, SystemClock().wall_ms() - since // timedelta(milliseconds=1))
    historian = Historian(topology, jobs)
    follower = Follower(kafka, historian.reads, since_ms, timeout.total_seconds())
    # An attempt of an hour says 360 times that it goes on.
    shown = frozenset(events) or frozenset(Happening) - (frozenset() if heartbeats else {Happening.ATTEMPT_HEARTBEAT})
    line = json_line if as_json else text_line
    color = False if "NO_COLOR" in os.environ else None  # None: where standard output is a terminal
    try:
        for entries in _followed(
            follower, historian, lambda e: _matches(e, queues, shown), max_events, until_idle.total_seconds() if until_idle else None
        ):
            click.echo("\n".join(map(line, entries)), color=color)
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        follower.close()


def _matches(entry: Entry, queues: tuple[str, ...], events: Collection[str]) -> bool:
    return (not queues or entry.queue in queues) and entry.event in events


def _followed(
    follower: Follower, historian: Historian, wanted: Callable[[Entry], bool], entries_max: int | None, until_idle_s: float | None
) -> Iterator[list[Entry]]:
    """Batches of wanted entries, none empty, until there were `entries_max` or no more came for `until_idle_s`."""
    merge, memory = Merge(follower.partitions), Memory()
    count, idle_since = 0, time.monotonic()
    while count != entries_max:
        records = follower.poll(_POLL_S, _BATCH_RECORDS_MAX)
        if 0 < len(records) < _BATCH_RECORDS_MAX:
            records += follower.poll(_GATHER_S, _BATCH_RECORDS_MAX)
        for record in records:
            merge.reach((record.topic(), record.partition()), record.timestamp()[1])
            entry = historian.entry(record)
            if entry is not None:
                merge.add(entry)
        for partition in follower.ended():
            merge.finish(partition)
        entries = [entry for entry in map(memory.complete, merge.release()) if wanted(entry)]
        if entries:
            entries = entries[: None if entries_max is None else entries_max - count]
            count, idle_since = count + len(entries), time.monotonic()
            yield entries
        elif until_idle_s is not None and merge.past_is_read and time.monotonic() - idle_since >= until_idle_s:
            return
