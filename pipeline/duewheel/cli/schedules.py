"""`duewheel schedules`: what recurs, compared with what the code declares, and made so."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import click

from duewheel.adapters.audit.recurring import read_recurring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.cli.common import cluster_options, option
from duewheel.cli.dead_change import is_interactive
from duewheel.cli.dead_reading import progress
from duewheel.cli.history_lines import moment, printable
from duewheel.cli.job_view import recurrence_words
from duewheel.cli.times import duration
from duewheel.client import Client, Decision
from duewheel.client.deployment import Action, Change, Running, plan, wanted_job
from duewheel.core.errors import BadConfiguration, CallerError
from duewheel.core.model import Phase
from duewheel.core.topology import Topology
from duewheel.worker.app import App
from duewheel.worker.declared import SEPARATOR
from duewheel.worker.loading import load

EXIT_DIFFERENT: Final = 1

_ROUNDS_MAX: Final = 3  # of deployers who create the same schedule at the same moment, all but one go round again
_ACTIONS: Final = (Action.CREATE, Action.CHANGE, Action.REVIVE)  # of apply
_KEPT: Final = (Action.SAME, Action.OVER)
_DONE: Final = {Action.CREATE: "created", Action.CHANGE: "changed", Action.REVIVE: "revived", Action.PRUNE: "pruned"}


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        option("--json", "as_json", is_flag=True, help="Print one JSON object for each schedule."),
        option("--timeout", type=duration, default="30s", show_default=True, metavar="DURATION",
               help="How long the cluster may take, for each step."),
        cluster_options,
    ):  # fmt: skip
        command = decorate(command)
    return command


class _Cluster:
    """An installation, as these commands ask it."""

    def __init__(self, kafka: KafkaConfig, topology: Topology, timeout: timedelta) -> None:
        self._kafka, self._topology, self._timeout_s = kafka, topology, timeout.total_seconds()

    def running(self, begin: str) -> dict[str, Running]:
        """What recurs under ids that begin so."""
        with progress("reading the state topic") as progressed:
            found = read_recurring(self._kafka, self._topology, begin, self._timeout_s, progressed)
        running = {}
        for job_id, (definition, state) in found.items():
            phase = Phase.WAITING if state is None else Phase(state["phase"])
            next_ms = state["slot_ms"] if state is not None and phase == Phase.WAITING else 0
            running[job_id] = Running(definition, phase, next_ms, 0 if state is None else state["attempt"])
        return running

    def plan(self, app: App) -> list[Change]:
        jobs = [wanted_job(*declared) for declared in app.schedules]
        return plan(jobs, self.running(f"{app.name}{SEPARATOR}"), SystemClock().wall_ms())

    def client(self) -> Client:
        from duewheel.wiring import producing_client

        return producing_client(self._kafka, self._topology, self._timeout_s)


def _with_app(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds MODULE:APP; the command receives `app` and `cluster`."""

    @click.argument("app_path", metavar="MODULE:APP")
    @_options
    @functools.wraps(command)
    def wrapped(app_path: str, kafka: KafkaConfig, topology: Topology, timeout: timedelta, **rest: Any) -> Any:
        app = load(app_path)
        if app.name is None:
            raise BadConfiguration(
                f"{app_path} has no name, which the ids of its schedules would begin with; give it one: App({app_path.split(':')[-1]!r})"
            )
        return command(app=app, cluster=_Cluster(kafka, topology, timeout), timeout=timeout, **rest)

    return wrapped


@click.group()
def schedules() -> None:
    """See what recurs, and make it what the code declares with @app.cron, @app.every and @app.every_after.

    \b
    Example, in a deployment:
      duewheel schedules diff shop.jobs:app
      duewheel schedules apply shop.jobs:app
      duewheel schedules prune shop.jobs:app --yes
    """


@schedules.command("diff")
@_with_app
def diff_command(app: App, cluster: _Cluster, timeout: timedelta, as_json: bool) -> None:
    """Show what `apply` and `prune` would do. Changes nothing.

    Exit code 1 where something differs, else 0.
    """
    changes = cluster.plan(app)
    _show(changes, as_json=as_json)
    if any(change.action not in _KEPT for change in changes):
        sys.exit(EXIT_DIFFERENT)


@schedules.command("apply")
@_with_app
def apply_command(app: App, cluster: _Cluster, timeout: timedelta, as_json: bool) -> None:
    """Create and change schedules until all are as declared. Applying again changes nothing.

    Any number of deployers may do so at once. A schedule that is changed goes on where it stood: no slot is lost or doubled, and runs that
    go on go on. One that was cancelled by hand is revived, since the code has it; take it out of the code to be rid of it.

    What is no longer in the code is left alone, and named: `duewheel schedules prune` cancels it.
    """
    done: dict[str, Change] = {}
    for _ in range(_ROUNDS_MAX):
        changes = cluster.plan(app)
        due = [change for change in changes if change.action in _ACTIONS]
        done |= {change.job_id: change for change in due}
        ignored = _send(cluster, due, timeout) if due else []
        if not ignored:
            _show([done.get(change.job_id, change) for change in changes], as_json=as_json, done=_ACTIONS)
            return
    raise CallerError(
        f"{ignored[0]} could not be created: its id is known, and stands for a job that does not recur. See duewheel state "
        f"{ignored[0]}, and give the schedule another name"
    )


def _send(cluster: _Cluster, changes: Iterable[Change], timeout: timedelta) -> list[str]:
    """Sends what is to be scheduled, and waits until it was taken in.

    Returns:
        The ids of what was ignored, because somebody else was earlier.
    """
    with cluster.client() as client:
        handles = [client.schedule(**change.job._asdict()) for change in changes if change.job is not None]
        return [handle.job_id for handle in handles if handle.decision(timeout) is Decision.IGNORED]


@schedules.command("prune")
@_with_app
@option("--yes", is_flag=True, help="Do not ask.")
def prune_command(app: App, cluster: _Cluster, timeout: timedelta, as_json: bool, yes: bool) -> None:
    """Cancel schedules of this app that are no longer in its code. Runs that go on go on.

    Only ids that begin with the app's name are looked at.
    """
    gone = [change for change in cluster.plan(app) if change.action is Action.PRUNE]
    if not gone:
        click.echo(f"every schedule of {app.name} is in the code", err=True)
        return
    if not yes:
        if not is_interactive():
            raise click.UsageError(
                f"nobody is there to confirm that {len(gone):,} schedules are cancelled: say --yes, or look first with diff"
            )
        _show(gone, as_json=False)
        click.confirm(f"cancel {len(gone):,} schedules?", abort=True, err=True)
    with cluster.client() as client:
        for change in gone:
            client.cancel(change.job_id)
    _show(gone, as_json=as_json, done=(Action.PRUNE,))


@schedules.command("list")
@option("--app", "app_name", metavar="NAME", help="Only the schedules of the app of this name.  [default: all that recurs]")
@option("--all", "everything", is_flag=True, help="Also those that are over or cancelled, as long as they are known.")
@_options
def list_command(kafka: KafkaConfig, topology: Topology, timeout: timedelta, as_json: bool, app_name: str | None, everything: bool) -> None:
    """List what recurs, whoever scheduled it: next slot, how many runs were handed out, and when it is due.

    Reads the whole state topic: some seconds for a million jobs.

    \b
    Examples:
      duewheel schedules list
      duewheel schedules list --app billing --json | jq .next_ms
    """
    running = _Cluster(kafka, topology, timeout).running("" if app_name is None else f"{app_name}{SEPARATOR}")
    shown = {job_id: running[job_id] for job_id in sorted(running) if everything or running[job_id].goes_on}
    width = max(map(len, shown), default=0)
    for job_id, schedule in shown.items():
        recurrence = schedule.definition["recurrence"]
        assert recurrence is not None
        if as_json:
            where = {"job_id": job_id, "phase": schedule.phase, "next_ms": schedule.next_ms, "runs": schedule.handed_out}
            what = {"task": schedule.definition["work"]["task"], "queue": schedule.definition["queue"], "recurrence": recurrence}
            click.echo(json.dumps(where | what))
        else:
            coming = f"next {moment(schedule.next_ms)}" if schedule.next_ms else f"{schedule.phase.lower():<29}"
            words = f"{job_id:<{width}}  {coming}  {schedule.handed_out:>7,} runs  {schedule.definition['work']['task']}: "
            click.echo(printable(words + recurrence_words(recurrence)))
    if not shown and not as_json:
        click.echo("nothing recurs" if app_name is None else f"app {app_name} has no schedules here", err=True)


def _show(changes: Sequence[Change], *, as_json: bool, done: Sequence[Action] = ()) -> None:
    """Says what is to be done, or, of these actions, what was."""
    for change in changes:
        is_done, differences = change.action in done, change.differences
        if as_json:
            told = [{"field": name, "is": was, "declared": declared} for name, was, declared in differences]
            click.echo(json.dumps({"job_id": change.job_id, "action": change.action, "done": is_done, "differences": told}))
        elif change.action not in _KEPT:
            click.echo(printable(f"{_DONE[change.action] if is_done else change.action:<8} {change.job_id}"))
            for name, was, declared in differences:
                click.echo(printable(f"         {name}: {_short(was)} -> {_short(declared)}"))
    kept = sum(change.action in _KEPT for change in changes)
    if not as_json and kept:
        click.echo(f"{kept:,} as declared", err=True)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
