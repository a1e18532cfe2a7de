"""`python -m tests.chaos`: breaks an installation of real processes on three real brokers, and judges what it did meanwhile.

python -m tests.chaos --jobs 50000 --kills 20 --pauses 10 --partitions 5 --broker-kills 5 --damaged-stores 3 --seed 7
python -m tests.chaos --jobs 300 --kills 1 --json
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from pathlib import Path
from typing import Any, Final

import click
import structlog

from duewheel.core.errors import DuewheelError
from duewheel.devbroker.runfolder import RunFolder
from tests.chaos.course import Bounds, Course, Progress, Result
from tests.chaos.jobs import Workload
from tests.chaos.troubles import Doses

ROOT: Final = Path(__file__).parent.parent.parent
VIOLATIONS_SHOWN: Final = 20
# A fault needs so long to show itself before the next but few.
FAULT_MS: Final = 4_000
JOBS_A_SECOND: Final = 100
SPAN_MS_MIN: Final = 15_000


@click.command()
@click.option("--jobs", type=click.IntRange(1, 99_999), default=5_000, show_default=True, help="How many to ask for.")
@click.option("--kills", type=click.IntRange(0), default=6, show_default=True, help="kill -9 of processors, workers and producers.")
@click.option("--pauses", type=click.IntRange(0), default=2, show_default=True, help="SIGSTOP of any kind of process, brokers too.")
@click.option("--partitions", type=click.IntRange(0), default=0, show_default=True, help="A process is cut off from all brokers.")
@click.option("--broker-kills", type=click.IntRange(0), default=1, show_default=True, help="kill -9 of brokers, coordinators first.")
@click.option("--damaged-stores", type=click.IntRange(0), default=0, show_default=True, help="RocksDB folders deleted or overwritten.")
@click.option("--full-disks", type=click.IntRange(0), default=0, show_default=True, help="A processor's disk is filled; needs root.")
@click.option("--storms", type=click.IntRange(0), default=0, show_default=True, help="Members come and go, several times each.")
@click.option("--seed", type=int, help="Does the same again, as far as that can be; chosen and shown where none is given.")
@click.option("--span", "span_s", type=click.FloatRange(1), help="Seconds in which jobs are asked for and faults begin.")
@click.option("--punctual", "punctual_s", default=5.0, show_default=True, help="How late jobs may start while nothing is broken.")
@click.option("--recovery", "recovery_s", default=20.0, show_default=True, help="How long after a fault they may be later.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / ".duewheel", help="Takes jars, logs and stores.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output in the end.")
def main(
    jobs: int,
    seed: int | None,
    span_s: float | None,
    punctual_s: float,
    recovery_s: float,
    folder: Path,
    keep: bool,
    as_json: bool,
    **doses: int,
) -> None:
    """Breaks an installation of real processes on three real brokers, and judges what it did meanwhile."""
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )
    seed = secrets.randbelow(2**31) if seed is None else seed
    chosen = Doses(**doses)
    span_ms = span_of(jobs, chosen) if span_s is None else round(span_s * 1_000)
    bounds = Bounds(round(punctual_s * 1_000), round(recovery_s * 1_000))
    again = _command(jobs, seed, span_ms, chosen, bounds)
    click.echo(f"chaos: {jobs:,} jobs in {span_ms / 1_000:.0f} s, seed {seed}", err=True)
    run = RunFolder.take(folder, "chaos")
    kept: Path | None = run.path.with_name(f"kept-{run.path.name}")  # under its own name the next run would sweep it
    try:
        result = Course(folder, run, Workload(seed, jobs, span_ms), chosen, bounds, _show).run()
        if result.proven and not keep:
            kept = None
    except DuewheelError as error:
        click.echo(f"chaos: {error}\nits folder is kept: {kept}\nagain: {again}", err=True)
        sys.exit(3)
    finally:
        if kept is not None:
            run.path.rename(kept)
        run.release(keep=kept is not None)
    _conclude(result, kept, again, seed, as_json)
    sys.exit(0 if result.proven else 1)


def span_of(jobs: int, doses: Doses) -> int:
    """For how long jobs are asked for, so that neither they nor the faults crowd each other."""
    return max(SPAN_MS_MIN, jobs * 1_000 // JOBS_A_SECOND, sum(doses.by_kind.values()) * FAULT_MS)


def told(result: Result, seed: int) -> dict[str, Any]:
    """What came of it, for JSON."""
    return {
        **result.report.as_dict(),
        "proven": result.proven,
        "unexpected_ends": result.unexpected,
        "notes": result.notes,
        "seed": seed,
        "took_s": round(result.took_s, 1),
    }


def _show(progress: Progress) -> None:
    jobs = f"{progress.defined:>6,} of {progress.jobs:,} jobs stored, {progress.ended:>6,} ended"
    broken = f"{progress.faults:>3} faults, {progress.restarts:>3} restarts"
    click.echo(f"{progress.elapsed_s:7.1f} s  {progress.doing:<9} {jobs}, {broken}  {progress.note}".rstrip(), err=True)


def _conclude(result: Result, kept: Path | None, again: str, seed: int, as_json: bool) -> None:
    for violation in result.report.violations[:VIOLATIONS_SHOWN]:
        click.echo(f"BROKEN  {violation}", err=True)
    for line in (*result.report.shortcomings, *result.unexpected):
        click.echo(f"WRONG   {line}", err=True)
    for line in result.notes:
        click.echo(f"note    {line}", err=True)
    if as_json:
        click.echo(json.dumps(told(result, seed)))
    else:
        for name, value in result.report.rows():
            click.echo(f"{name:<36}{value:>12}")
        click.echo(f"{'took':<36}{result.took_s:>10.0f} s")
    if kept is not None:
        click.echo(f"history, logs and stores are kept: {kept}\nagain: {again}", err=True)


def _command(jobs: int, seed: int, span_ms: int, doses: Doses, bounds: Bounds) -> str:
    counts = " ".join(f"--{kind.replace(' ', '-')}s {count}" for kind, count in doses.by_kind.items())
    times = f"--span {span_ms / 1_000:g} --punctual {bounds.punctual_ms / 1_000:g} --recovery {bounds.recovery_ms / 1_000:g}"
    return f"make chaos SEED={seed} ARGS='--jobs {jobs} {counts} {times}'"


if __name__ == "__main__":
    main()
