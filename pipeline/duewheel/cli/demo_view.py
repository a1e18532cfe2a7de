"""How the demo looks: a live screen on a terminal, plain lines elsewhere, and the tables at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from duewheel.demo.course import Progress
from duewheel.demo.evidence import Lateness, Latenesses, Verdict

_NOTES_SHOWN_MAX: Final = 12
_LINE_EVERY_MS: Final = 1_000
_BAR_WIDTH: Final = 40

Show = Callable[[Progress], None]


@contextlib.contextmanager
def progress_view(console: Console) -> Iterator[Show]:
    """Shows progress on `console` for as long as the block lasts."""
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda progress: live.update(_screen(progress), refresh=True)


class _Lines:
    """A line for everything that happened, and one a second for how things stand."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._notes = 0
        self._line_ms = -_LINE_EVERY_MS

    def show(self, progress: Progress) -> None:
        for note in progress.notes[self._notes :]:
            self._print(note.at_ms, note.text)
        self._notes = len(progress.notes)
        if progress.scheduled and progress.elapsed_ms - self._line_ms >= _LINE_EVERY_MS:
            self._line_ms = progress.elapsed_ms
            figures = ", ".join(f"{value} {name}" for name, value in _figures(progress).items())
            self._print(progress.elapsed_ms, f"{figures}; late {_lateness(progress.lateness)}")

    def _print(self, at_ms: int, text: str) -> None:
        self._console.print(f"{at_ms / 1_000:6.1f} s  {text}", soft_wrap=True, highlight=False)


def _screen(progress: Progress) -> Group:
    bar = Table.grid()
    bar.add_row(ProgressBar(total=progress.jobs, completed=progress.completed + progress.cancelled, width=_BAR_WIDTH))

    figures = Table.grid(padding=(0, 2))
    figures.add_column()
    figures.add_column(justify="right", style="bold")
    for name, value in _figures(progress).items():
        figures.add_row(name, value)

    processes = Table.grid(padding=(0, 2))
    for process in progress.processes:
        state = Text(process.fate, style="bold red") if process.fate else Text(f"runs, process {process.pid}", style="green")
        processes.add_row(process.name, state)

    sides = Table.grid(padding=(0, 6))
    sides.add_row(figures, processes)
    return Group(
        Text(f"duewheel demo  {progress.elapsed_ms / 1_000:.1f} s  {progress.doing}", style="bold"),
        bar,
        sides,
        Text(f"late until the handler's first line, so far: {_lateness(progress.lateness)}"),
        *(Text(f"{note.at_ms / 1_000:6.1f} s  {note.text}", style="dim") for note in progress.notes[-_NOTES_SHOWN_MAX:]),
    )


def _figures(progress: Progress) -> dict[str, str]:
    return {
        "scheduled": f"{progress.scheduled:,}",
        "cancelled": f"{progress.cancelled:,}",
        "dispatched": f"{progress.dispatched:,}",
        "in flight": f"{progress.in_flight:,}",
        "completed": f"{progress.completed:,}",
    }


def _lateness(lateness: Lateness | None) -> str:
    if lateness is None:
        return "-"
    return f"p50 {lateness.p50_ms:,} ms, p99 {lateness.p99_ms:,} ms, max {lateness.max_ms:,} ms"


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The tables at the end."""
    for table in (_jobs_table(verdict), _lateness_table(verdict)):
        console.print()
        console.print(table)
    for takeover in verdict.takeovers:
        seconds = "nothing was due there any more" if takeover.longest_ms is None else f"{takeover.longest_ms / 1_000:.1f} s"
        console.print(
            f"From the kill of {takeover.kill.name} until each of its partitions was served again: {seconds}",
            highlight=False,
            soft_wrap=True,
        )
    console.print()
    if verdict.broken:
        console.print(f"Broken promises: {', '.join(verdict.broken)}.", style="bold red", highlight=False)
    else:
        console.print("Every promise was kept.", style="bold green", highlight=False)


def _jobs_table(verdict: Verdict) -> Table:
    table = Table("jobs", title="What became of them", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("")
    for name, count in (("scheduled", verdict.scheduled), ("cancelled", verdict.cancelled), ("completed", verdict.completed)):
        table.add_row(name, f"{count:,}")
    table.add_section()
    for promise, count in verdict.promises.items():
        table.add_row(promise, f"{count:,}", Text("BROKEN", style="bold red") if count else Text("kept", style="green"))
    table.add_section()
    table.add_row("executions", f"{verdict.executions:,}")
    table.add_row("executions repeated", f"{verdict.repeated:,}", "allowed: at least once")
    return table


def _lateness_table(verdict: Verdict) -> Table:
    table = Table("jobs", "from due time to", title="Lateness in milliseconds", title_justify="left")
    for column in ("count", "p50", "p99", "max"):
        table.add_column(column, justify="right")
    for name, (dispatch, start) in _groups(verdict).items():
        table.add_section()
        for event, lateness in (("dispatch", dispatch), ("handler's first line", start)):
            if lateness is not None:
                table.add_row(name, event, *(f"{figure:,}" for figure in lateness))
    return table


def _groups(verdict: Verdict) -> dict[str, Latenesses]:
    return {
        "all": verdict.lateness,
        "outside the outage": verdict.undisturbed,
        "in it, elsewhere": verdict.bystanders,
    }


def verdict_object(verdict: Verdict, duration_s: float) -> dict[str, Any]:
    """The verdict as one flat JSON object."""
    return {
        "scheduled": verdict.scheduled,
        "cancelled": verdict.cancelled,
        "completed": verdict.completed,
        **{promise.replace(" ", "_"): count for promise, count in verdict.promises.items()},
        "executions": verdict.executions,
        "executions_repeated": verdict.repeated,
        **_flat("", verdict.lateness),
        **_flat("undisturbed_", verdict.undisturbed),
        **_flat("bystanders_", verdict.bystanders),
        **{f"takeover_{takeover.kill.role.value}_ms": takeover.longest_ms for takeover in verdict.takeovers},
        "duration_s": round(duration_s, 1),
        "broken": verdict.broken,
    }


def _flat(prefix: str, latenesses: Latenesses) -> dict[str, int | None]:
    return {
        f"{prefix}{event}_{field}": None if lateness is None else getattr(lateness, field)
        for event, lateness in latenesses._asdict().items()
        for field in Lateness._fields
    }
