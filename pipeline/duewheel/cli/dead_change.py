"""What `duewheel dead redrive` and `duewheel dead drop` do: choose, ask, send, and wait for what becomes of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import click

from duewheel.adapters.dead_letters import DeadLetters
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.dead_reading import dead_letters, progress, read
from duewheel.cli.dead_view import became, counts_line, print_lines, print_runs
from duewheel.cli.history_lines import moment, printable
from duewheel.core.dead_runs import DeadRuns, DeadRunSummary, DeathName, Filter
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.model import Closing
from duewheel.core.topology import Topology

_SENT_SHOWN_MAX: Final = 20


class Change:
    """One call of redrive or drop.

    Args:
        aim: what is to become of the runs.
        verb: the command's name.
    """

    def __init__(
        self,
        aim: Closing,
        verb: str,
        *,
        kafka: KafkaConfig,
        topology: Topology,
        timeout: timedelta,
        as_json: bool,
        wanted: Filter,
        everything: bool,
        yes: bool,
        dry_run: bool,
        wait: bool,
        wait_timeout: timedelta,
    ) -> None:
        by_id_only = bool(wanted.jobs) and wanted == Filter(jobs=wanted.jobs)
        if wanted == Filter() and not everything:
            raise click.UsageError(f"say which runs to {verb}: --id, --task, --queue, --error, --reason, --since, --until, or --everything")
        if not by_id_only and not yes and not dry_run and not is_interactive():
            raise click.UsageError(
                f"nobody is there to confirm what the filters choose: say --yes to {verb} it, or look first with --dry-run"
            )
        self._aim, self._verb = aim, verb
        self._kafka, self._topology, self._timeout, self._wait_timeout = kafka, topology, timeout, wait_timeout
        self._wanted, self._asks, self._dry_run, self._wait, self._as_json = wanted, not by_id_only and not yes, dry_run, wait, as_json

    def run(self) -> None:
        with dead_letters(self._kafka, self._topology, self._timeout, DeadRuns(self._wanted.accepts), self._wanted) as letters:
            read(letters)
            chosen = letters.runs.runs()
            self._tell_unknown(chosen)
            chosen = self._leave_out_late(chosen)
            if not chosen:
                click.echo(f"nothing to {self._verb}", err=True)
                return
            if self._dry_run:
                print_runs(letters, None, as_json=self._as_json, with_closed=False)
                click.echo(f"nothing was sent; without --dry-run this would {self._verb} {_runs(len(chosen))}", err=True)
                return
            if self._asks:
                click.confirm(f"{self._verb} {counts_line(chosen)}?", abort=True, err=True)
            watch = _watched(letters, chosen)
            letters.read()  # a person takes time to answer, and there are other persons
            sent = [run for run in watch.runs() if run.how is None]
            if sent:
                self._send(sent)
            if self._wait:
                self._await(letters)
            self._report(watch.runs(), {run.name for run in sent})
            if self._wait and watch.open_count:
                waited_s = self._wait_timeout.total_seconds()
                raise EnvironmentFailure(
                    f"{watch.open_count:,} of {_runs(len(sent))} were not closed within {waited_s:g} s; the commands are durable, and "
                    "obeyed when a timer processor reads them. Is one running? Then see: duewheel dead list"
                )

    def _tell_unknown(self, chosen: Sequence[DeadRunSummary]) -> None:
        unknown = sorted(self._wanted.jobs - {run.job_id for run in chosen})
        if unknown:
            shown = ", ".join(unknown[:_SENT_SHOWN_MAX]) + (", …" if len(unknown) > _SENT_SHOWN_MAX else "")
            click.echo(printable(f"no dead run of {shown} is open (any more)"), err=True)

    def _leave_out_late(self, chosen: list[DeadRunSummary]) -> list[DeadRunSummary]:
        """Without those whose redrive would be refused, and says so."""
        if self._aim is not Closing.REDRIVEN:
            return chosen
        now_ms = SystemClock().wall_ms()
        late = [run for run in chosen if run.is_too_late(now_ms)]
        for run in late[:_SENT_SHOWN_MAX]:
            click.echo(
                printable(f"{run.job_id}: no attempt may start after {moment(run.expires_ms)}; schedule it anew, or drop it"), err=True
            )
        if len(late) > _SENT_SHOWN_MAX:
            click.echo(f"… and {len(late) - _SENT_SHOWN_MAX:,} more that may not start any more", err=True)
        return [run for run in chosen if not run.is_too_late(now_ms)]

    def _send(self, runs: Sequence[DeadRunSummary]) -> None:
        from duewheel.wiring import producing_client

        with producing_client(self._kafka, self._topology, self._timeout.total_seconds()) as client:
            send = client.redrive_many if self._aim is Closing.REDRIVEN else client.drop_many
            with progress(f"sending {self._verb}") as progressed:
                send((run.name for run in runs), on_progress=lambda count: progressed(count, len(runs)))

    def _await(self, letters: DeadLetters) -> None:
        """Follows the topic on from where the list ended, until every run is closed or the time is over."""
        deadline_s = time.monotonic() + self._wait_timeout.total_seconds()
        total = letters.runs.open_count
        with progress("waiting") as progressed:
            while letters.runs.open_count and time.monotonic() < deadline_s:
                letters.follow()
                progressed(total - letters.runs.open_count, total)

    def _report(self, runs: Sequence[DeadRunSummary], sent: set[DeathName]) -> None:
        """What was sent and, as far as that is known, what became of it."""
        if self._as_json:
            print_lines(
                json.dumps(
                    {
                        "job_id": r.job_id,
                        "token": r.token,
                        "command": self._verb,
                        "sent": r.name in sent,
                        "how": r.how,
                        "closed_ms": r.closed_ms,
                    }
                )
                for r in runs
            )
            return
        shown = [run for run in runs if run.name in sent][:_SENT_SHOWN_MAX]
        for run in shown:
            done = f"{became(run)} at {moment(run.closed_ms or 0)}" if run.how else f"{self._verb} requested"
            click.echo(printable(f"{run.job_id} (token {run.token}) {done}"))
        if len(sent) > len(shown):
            click.echo(f"… and {len(sent) - len(shown):,} more")
        click.echo(self._sum(runs, sent), err=True)

    def _sum(self, runs: Sequence[DeadRunSummary], sent: set[DeathName]) -> str:
        parts = [f"{len(sent):,} {self._verb} {'command' if len(sent) == 1 else 'commands'} sent"]
        done = sum(run.how == self._aim for run in runs if run.name in sent)
        otherwise = [run for run in runs if run.how is not None and (run.how != self._aim or run.name not in sent)]
        if done:
            parts.append(f"{done:,} {self._aim.lower()}")
        if otherwise:
            ways = ", ".join(sorted({became(run) for run in otherwise}))
            parts.append(f"{len(otherwise):,} {ways} by somebody else before")
        return "; ".join(parts)


def is_interactive() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _runs(count: int) -> str:
    return f"{count:,} dead {'run' if count == 1 else 'runs'}"


def _watched(letters: DeadLetters, chosen: Sequence[DeadRunSummary]) -> DeadRuns:
    """From now on `letters` is about these deaths alone, and about what becomes of them."""
    names = {run.name for run in chosen}
    watch = DeadRuns(lambda run: run.name in names, keeps_closed=True)
    for run in chosen:
        watch.died(run)
    letters.runs = watch
    letters.only({run.job_id for run in chosen})
    return watch
