"""`duewheel state`: shows one job as it is, or as it was."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Final

import click

from duewheel.adapters.audit.past import read_past
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import cluster_options, option
from duewheel.cli.dead_reading import progress
from duewheel.cli.dead_view import color
from duewheel.cli.state_view import Seen, seen_json, seen_lines
from duewheel.cli.times import duration, instant
from duewheel.core.past import Past
from duewheel.core.store_audit import DEFINITION, STATE
from duewheel.core.topology import Topology

EXIT_UNKNOWN: Final = 1


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """A time, or a duration for that long ago, in milliseconds since the epoch."""
    if text is None:
        return None
    now_ms = SystemClock().wall_ms()
    try:
        at_ms = now_ms - duration(text) // timedelta(milliseconds=1)
    except click.BadParameter:
        given: datetime | int = instant(text)
        at_ms = given if isinstance(given, int) else int(given.timestamp() * 1_000)
    if at_ms > now_ms:
        raise click.BadParameter(f"{text!r} is still to come; leave it out for now")
    return at_ms


@click.command()
@click.argument("job_id")
@option("--at", "at_ms", callback=_time, metavar="TIME",
        help="As it was then, by the brokers' clocks: 2030-01-31T18:00:00Z, or how long ago: 30s, 10m, 2h, 1d.")  # fmt: skip
@option("--timeout", type=duration, default="30s", show_default=True, metavar="DURATION",
        help="How long the cluster may be away before this gives up.")  # fmt: skip
@option("--json", "as_json", is_flag=True, help="Print one JSON object, always with the same keys.")
@cluster_options
def state(kafka: KafkaConfig, topology: Topology, job_id: str, at_ms: int | None, timeout: timedelta, as_json: bool) -> None:
    """Show a job as it is, or as it was: definition, phase, attempts, token, and when its owner looks at it next.

    Reads the job's partition of the state topic, which is compacted: of long ago only the newest is left, and where something was removed
    this says so. Exits with 1 where the job is, or was, not known.

    \b
    Examples:
      duewheel state welcome-ada
      duewheel state welcome-ada --at 2h
      duewheel state welcome-ada --at 2030-01-31T18:00:00Z --json | jq .phase
    """
    past = Past(job_id, at_ms)
    with progress("reading the state topic") as progressed:
        partition = read_past(kafka, topology, past, timeout.total_seconds(), progressed)
    defined, moved = past.record(DEFINITION), past.record(STATE)
    seen = Seen(
        past=past,
        topic=topology.state,
        partition=partition,
        definition=codec.decode_definition(defined.value) if defined is not None and defined.value is not None else None,
        state=codec.decode_state(moved.value) if moved is not None and moved.value is not None else None,
    )
    click.echo(seen_json(seen) if as_json else "\n".join(seen_lines(seen)), color=color())
    if seen.definition is None:
        sys.exit(EXIT_UNKNOWN)
