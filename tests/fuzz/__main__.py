"""`python -m tests.fuzz`: throws many inputs at the decoders, and puts into the corpus what breaks them.

python -m tests.fuzz --inputs 1000000 --seed 7
python -m tests.fuzz --target decode_state --seed 7 --input 1234      one of them again, and what it is
"""

from __future__ import annotations

import secrets
import sys
import time

import click

from tests.fuzz.corpus import keep, to_text
from tests.fuzz.hunt import Find, Hunter, Report, hunt
from tests.fuzz.mutations import Maker
from tests.fuzz.targets import TARGETS

_HEX_SHOWN_MAX = 2_000


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True, help="How many, for all targets together.")
@click.option("--seed", type=int, help="Makes the same inputs again; chosen and shown where none is given.")
@click.option("--target", "targets", multiple=True, type=click.Choice(sorted(TARGETS)), help="Only this one. Repeatable.")
@click.option("--input", "index", type=int, help="Only the input of this number, of the target that is named.")
@click.option("--keep/--no-keep", "keeps", default=True, show_default=True, help="Put finds into the corpus.")
def main(inputs: int, seed: int | None, targets: tuple[str, ...], index: int | None, keeps: bool) -> None:
    """Throws bad inputs at everything that decodes what comes from outside."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    if index is not None:
        if len(targets) != 1:
            raise click.UsageError("--input needs the one --target that it is for")
        sys.exit(_again(targets[0], seed, index))
    click.echo(f"fuzz: {inputs:,} inputs for {len(targets) or len(TARGETS)} targets, seed {seed}")
    began = time.monotonic()
    progress = _Progress(began)
    report = hunt(inputs, seed, targets, on_progress=progress.show, on_find=lambda find: _tell(find, seed, keeps))
    progress.end()
    _conclude(report, seed, time.monotonic() - began)


class _Progress:
    """One line a target; on a terminal it counts."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._lively = sys.stderr.isatty()

    def show(self, target: str, done: int, count: int) -> None:
        if self._lively or done == count:
            line = f"{time.monotonic() - self._began:7.1f} s  {target:<26} {done:>9,} of {count:,}"
            click.echo(f"\r{line}" if self._lively else line, err=True, nl=not self._lively or done == count)

    def end(self) -> None:
        sys.stderr.flush()


def _tell(find: Find, seed: int, keeps: bool) -> None:
    click.echo(f"\n{find.target}: {find.sign}  (seed {seed}, input {find.number})\n{find.detail}")
    if not find.inputs:
        click.echo("It did not happen a second time, neither alone nor after the inputs before it.")
    for value in find.inputs:
        text = to_text(value)
        click.echo(f"input, {len(value):,} bytes: {text[:_HEX_SHOWN_MAX]}{'…' if len(text) > _HEX_SHOWN_MAX else ''}")
    if keeps and find.inputs:
        click.echo(f"kept as {keep(find.target, find.sign, find.inputs)}")
    click.echo(f"repeat: make fuzz SEED={seed} ARGS='--target {find.target} --input {find.number}'")


def _again(target: str, seed: int, index: int) -> int:
    value = Maker(TARGETS[target]).make(seed, index)
    click.echo(f"{target}, seed {seed}, input {index}: {len(value):,} bytes: {to_text(value)[:_HEX_SHOWN_MAX]}")
    with Hunter() as hunter:
        problems = hunter.problems(target, [value])
    click.echo("\n".join(f"{sign}\n{detail}" for sign, detail in problems) or "nothing wrong")
    return 1 if problems else 0


def _conclude(report: Report, seed: int, took_s: float) -> None:
    faults = len(report.finds)
    click.echo(f"fuzz: {report.inputs:,} inputs, {faults} {'fault' if faults == 1 else 'faults'}, {took_s:.0f} s, seed {seed}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
