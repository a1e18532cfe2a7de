"""How dead runs look: a table or a page for people, JSON for programs.

Whatever comes from outside (job ids, tasks, messages, payloads) is shown escaped, so that no terminal obeys it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from duewheel.adapters.dead_letters import DeadLetters
from duewheel.cli.history_lines import json_line, moment, printable, shortened, text_line
from duewheel.cli.job_view import course_lines, field, payload_of, work_lines
from duewheel.core.dead_runs import DeadRunSummary
from duewheel.core.history import Entry
from duewheel.core.model import DeadRun
from duewheel.core.step import Reason

LIST_LIMIT_DEFAULT: Final = 200  # rows for people; JSON has all of them
ERROR_CHARS_SHOWN_MAX: Final = 100

_TABLE_WIDTH: Final = 240  # where nobody can say how wide it is
_CHUNK_LINES: Final = 1_000
_COUNTS_SHOWN_MAX: Final = 4


def run_json(run: DeadRunSummary, **more: object) -> str:
    """One JSON object a run, always with the same keys."""
    return json.dumps({"died": moment(run.died_ms), **asdict(run), **more}, separators=(",", ":"))


def runs_table(runs: Sequence[DeadRunSummary], *, with_closed: bool) -> Table:
    """One row a run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("died (UTC)", no_wrap=True)
    table.add_column("job", overflow="fold", min_width=12)
    table.add_column("token", justify="right", no_wrap=True)
    table.add_column("task", overflow="fold")
    if with_closed:
        table.add_column("became", no_wrap=True)
    table.add_column("died of", overflow="fold", min_width=20)
    for run in runs:
        cells = [moment(run.died_ms)[:19].replace("T", " "), run.job_id, f"{run.token}", f"{run.task} @{run.queue}"]
        cells += [*([became(run)] if with_closed else []), _cause(run)]
        table.add_row(*(Text(printable(cell)) for cell in cells), style="dim" if run.how else "")
    return table


def counts_line(runs: Sequence[DeadRunSummary]) -> str:
    """How many there are, and what most of them have in common."""
    open_count = sum(run.how is None for run in runs)
    parts = [f"{open_count:,} dead {'run' if open_count == 1 else 'runs'}"]
    if open_count < len(runs):
        parts.append(f"{len(runs) - open_count:,} closed")
    common = _most_common(run.task for run in runs) + _most_common(run.error or run.reason for run in runs)
    return printable(", ".join(parts) + (f" ({', '.join(common)})" if runs else ""))


def became(run: DeadRunSummary) -> str:
    """What became of a run: open, redriven, …"""
    return run.how.lower() if run.how else "open"


def _most_common(names: Iterator[str]) -> list[str]:
    counts = Counter(names)
    shown = [f"{name} {count:,}" for name, count in counts.most_common(_COUNTS_SHOWN_MAX)]
    return [*shown, "…"] if len(counts) > _COUNTS_SHOWN_MAX else shown


def _attempts(run: DeadRunSummary) -> str:
    attempts = f"{run.attempts} {'attempt' if run.attempts == 1 else 'attempts'}"
    return f"{attempts}, of which {run.crashes} took the worker along" if run.crashes else attempts


def _cause(run: DeadRunSummary) -> str:
    """The reason, where it says more than that the last attempt failed, and the error."""
    error = [] if run.error is None else [f"{run.error}: {run.message}"]
    return shortened(" ".join(error if error and run.reason == Reason.FAILED else [run.reason, *error]), ERROR_CHARS_SHOWN_MAX)


# --- printed ---


def print_runs(letters: DeadLetters, limit: int | None, *, as_json: bool, with_closed: bool) -> None:
    runs = letters.runs.runs()
    if as_json:
        print_lines(run_json(run) for run in runs[-limit if limit else None :])
        return
    shown = runs[-(limit or LIST_LIMIT_DEFAULT) :]
    if shown:
        width = None if sys.stdout.isatty() else _TABLE_WIDTH
        Console(width=width).print(runs_table(shown, with_closed=with_closed))
    click.echo(counts_line(runs) + (f"; shown are the latest {len(shown):,}, --limit says how many" if len(shown) < len(runs) else ""))
    if letters.refused_count:
        click.echo(f"{letters.refused_count:,} refused records beside; see them with --refused")


def print_refused(letters: DeadLetters, limit: int | None, *, as_json: bool) -> None:
    entries: Sequence[Entry] = list(letters.refused)
    if as_json:
        print_lines(map(json_line, entries[-limit if limit else None :]))
        return
    shown = entries[-(limit or LIST_LIMIT_DEFAULT) :]
    print_lines(map(text_line, shown))
    click.echo(f"{letters.refused_count:,} refused records, {len(shown):,} of them shown")


def print_lines(lines: Iterable[str]) -> None:
    """Many lines; each call of echo flushes."""
    rest = iter(lines)
    while chunk := list(islice(rest, _CHUNK_LINES)):
        click.echo("\n".join(chunk), color=color())


def color() -> bool | None:
    return False if "NO_COLOR" in os.environ else None  # None: where standard output is a terminal


# --- one run, whole ---


def whole_json(found: DeadRunSummary, run: DeadRun) -> str:
    """Everything that is known of a dead run, as one JSON object, always with the same keys.

    `payload` is the payload where it is JSON; else it is null, and `payload_base64` has its bytes.
    """
    schedule, state = run["definition"]["schedule"], run["state"]
    work = schedule["work"]
    decoded, payload = payload_of(work["content_type"], work["payload"])
    return run_json(
        found,
        generation=run["definition"]["generation"],
        timer_partition=run["timer_partition"],
        failure=state["error"],
        endings=state["trail"]["endings"] if state["trail"] else [],
        first_dispatched_ms=(state["trail"]["first_ms"] if state["trail"] else 0) or None,
        due_ms=schedule["due_ms"],
        created_ms=schedule["created_ms"],
        retention_ms=schedule["retention_ms"],
        limits=schedule["limits"],
        policy=work["policy"],
        headers=work["headers"],
        content_type=work["content_type"],
        payload=payload,
        payload_base64=None if decoded else base64.b64encode(work["payload"]).decode(),
    )


def whole_lines(found: DeadRunSummary, run: DeadRun, others: Sequence[DeadRunSummary]) -> Iterator[str]:
    """The page for people.

    Args:
        others: other deaths of the same job.
    """
    schedule, state = run["definition"]["schedule"], run["state"]
    yield field("job", click.style(printable(run["job_id"]), bold=True))
    yield field("run", f"token {run['token']}, generation {run['definition']['generation']}, due {moment(state['slot_ms'])}")
    yield field("task", printable(f"{schedule['work']['task']} @{schedule['queue']}"))
    yield field("died", f"{moment(run['died_ms'])}, {printable(run['reason'])}, after {_attempts(found)}")
    yield field("now", "open" if found.how is None else f"{became(found)} at {moment(found.closed_ms or 0)}")
    for other in others:
        yield field("also died", f"{moment(other.died_ms)}, token {other.token}, {became(other)}")
    yield from work_lines(schedule)
    yield from course_lines(state)
