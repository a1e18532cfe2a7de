"""Shows on a terminal how far long work of several stages is, while its results are printed.

The bar lives on standard error, the results go to standard output, and both may be the same terminal: so the bar steps aside for each
result.

    with Stages() as stages:
        stages("partition 3: state", 5_000, 12_000)
        stages.echo(["a result"])
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from duewheel.cli.dead_view import color

_TEXT_WIDTH: Final = 32


class Stages:
    """A bar, where standard error is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(f"{{task.description:<{_TEXT_WIDTH}}}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._is_shown = console.is_terminal
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        if self._is_shown:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_shown:
            self._progress.stop()

    def __call__(self, text: str, done: int, count: int) -> None:
        """Work is at this stage: `done` of `count` are passed; a count of 0 is not known."""
        self._progress.update(self._task, description=text, completed=done, total=count or None)

    def echo(self, lines: Sequence[str]) -> None:
        """Prints results."""
        if self._is_shown:
            self._progress.stop()
        click.echo("\n".join(lines), color=color())
        if self._is_shown:
            self._progress.start()
