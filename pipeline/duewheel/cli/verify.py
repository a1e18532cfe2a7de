"""`duewheel verify`: holds what the logs and the local stores of an installation say against each other."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from duewheel import wiring
from duewheel.adapters.audit.verifier import Report, Verifier
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import cluster_options, option
from duewheel.cli.stages import Stages
from duewheel.cli.times import duration
from duewheel.cli.verify_view import (
    difference_json,
    difference_line,
    remedy,
    report_json,
    report_lines,
    verdict_json,
    verdict_lines,
)
from duewheel.core.differences import Difference, Kind
from duewheel.core.errors import BadConfiguration
from duewheel.core.topology import Topology
from duewheel.engine.partition import STORE_AGE_MS_MAX

EXIT_DIFFERS: Final = 1
LIMIT_DEFAULT: Final = 100


@click.command()
@cluster_options
@option("--state-dir", "state_dirs", multiple=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIRECTORY",
        help="Compare the local stores in this state directory of a processor too, which may be running. Repeatable.")  # fmt: skip
@option("-p", "--partition", "numbers", multiple=True, type=click.IntRange(min=0), metavar="NUMBER",
        help="Only this timer partition. Repeatable.")  # fmt: skip
@option("--passes", type=click.IntRange(1, 1_000), default=1, show_default=True, metavar="COUNT",
        help="Read each partition so many times, a part of its jobs at a time, for as much less memory.")  # fmt: skip
@option("--limit", type=click.IntRange(min=0), default=LIMIT_DEFAULT, show_default=True, metavar="COUNT",
        help="Show so many differences of a partition; --json has all.")  # fmt: skip
@option("--schema-registry", default=None, metavar="URL",
        help="Read commands of Confluent's serializers too, with the schemas of this registry.")  # fmt: skip
@option("--timeout", type=duration, default="1m", show_default=True, metavar="DURATION",
        help="How long the cluster may be away, or a transaction open, before this gives up.")  # fmt: skip
@option("--json", "as_json", is_flag=True, help="Print one JSON object for each difference, each partition, and the verdict.")
def verify(
    kafka: KafkaConfig,
    topology: Topology,
    state_dirs: tuple[Path, ...],
    numbers: tuple[int, ...],
    passes: int,
    limit: int,
    schema_registry: str | None,
    timeout: timedelta,
    as_json: bool,
) -> None:
    """Verify that nothing was lost, on an installation that is at work or stopped.

    Rebuilds the state of each timer partition from the state topic, and compares it with what the intake, outcomes, dispatches and dead
    letters say, as far as they are still kept, and with the local stores of processors. It only reads, as a member of no group.

    Needs up to 1,000 bytes of memory for each job of a partition, one partition at a time, and about 100 bytes in the folder for temporary
    files (TMPDIR) for each dispatch that is still kept. Exits with 0 where all agrees, with 1 where something differs.

    \b
    Examples:
      duewheel verify
      duewheel verify --state-dir /var/lib/duewheel --partition 3
      duewheel verify --json | jq -r 'select(.kind == "lost") | .job_id'
    """
    clock = SystemClock()
    with Stages() as stages:
        verifier = Verifier(
            kafka,
            topology,
            codec=wiring.record_codec(schema_registry, clock),
            clock=clock,
            patience_s=timeout.total_seconds(),
            state_dirs=state_dirs,
            store_age_ms_max=STORE_AGE_MS_MAX,
            has_registry=schema_registry is not None,
            on_progress=stages,
        )
        with closing(verifier):
            chosen = _chosen(numbers, verifier.partitions, topology)
            kinds: dict[Kind, str] = {}
            reports = [_show(stages, verifier.verify(number, passes), limit, kinds, as_json=as_json) for number in chosen]
            stages.echo([verdict_json(reports)] if as_json else verdict_lines(reports, kinds, with_stores=bool(state_dirs)))
    if any(report.differences for report in reports):
        sys.exit(EXIT_DIFFERS)


def _chosen(numbers: Sequence[int], count: int, topology: Topology) -> Sequence[int]:
    for number in numbers:
        if number >= count:
            raise BadConfiguration(f"--partition {number}: {topology.state} has {count} partitions, 0 to {count - 1}")
    return sorted(set(numbers)) or range(count)


def _show(stages: Stages, results: Iterable[Difference | Report], limit: int, kinds: dict[Kind, str], *, as_json: bool) -> Report:
    """Prints the differences of one partition as they are found, and its report."""
    shown = 0
    for found in results:
        if isinstance(found, Report):
            stages.echo([report_json(found)] if as_json else report_lines(found, found.differences - shown))
            return found
        kinds[found.kind] = remedy(found)
        if as_json or shown < limit:
            shown += 1
            stages.echo([difference_json(found) if as_json else difference_line(found)])
    raise AssertionError("a verification ends with its report")
