"""`duewheel pause`, `resume`, `run-now`, `reschedule` and `update`: change a job that waits, and say how it stands then.

Each asks by one command on the intake topic, and waits for the owner's answer, which is the job's state, written anew. What runs is not
changed, nor what is over: then the answer says so, and the exit code is 1.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import click

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.cli.common import cluster_options, option
from duewheel.cli.history_lines import moment
from duewheel.cli.job_options import update_options
from duewheel.cli.times import duration, instant
from duewheel.client import ChangeHandle, ChangeRefused, Client, JobStatus, JobUnknown, Update
from duewheel.core.model import Phase
from duewheel.core.topology import Topology

EXIT_NOT_CHANGED: Final = 1


def _answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    timeout = option("--timeout", type=duration, default="30s", show_default=True, help="How long to wait, for each step.")
    no_wait = option("--no-wait", is_flag=True, help="Return as soon as the request is durable, without the owner's answer.")
    as_json = option("--json", "as_json", is_flag=True, help="Print one line of JSON for each job.")
    return cluster_options(timeout(no_wait(as_json(command))))


def _changed(
    kafka: KafkaConfig,
    topology: Topology,
    timeout: timedelta,
    no_wait: bool,
    as_json: bool,
    job_ids: tuple[str, ...],
    ask: Callable[[Client, str], ChangeHandle],
) -> None:
    """Asks for each job, then waits for each answer, and tells them."""
    from duewheel.wiring import producing_client

    with producing_client(kafka, topology, timeout.total_seconds()) as client:
        asked = [ask(client, job_id) for job_id in job_ids]
        told = [_told(handle, None if no_wait else timeout, as_json) for handle in asked]
    if not all(told):
        sys.exit(EXIT_NOT_CHANGED)


def _told(handle: ChangeHandle, timeout: timedelta | None, as_json: bool) -> bool:
    """Prints what became of one request, and gives whether it was obeyed."""
    facts: dict[str, Any] = {"job_id": handle.job_id, "partition": handle.partition, "offset": handle.offset}
    try:
        status = None if timeout is None else handle.wait(timeout)
    except (ChangeRefused, JobUnknown) as error:
        reason = error.reason if isinstance(error, ChangeRefused) else "unknown"
        if as_json:
            click.echo(json.dumps({**facts, "reason": reason, "message": str(error)}))
        else:
            click.echo(f"{handle.job_id} not changed ({reason}): {error}", err=True)
        return False
    if as_json:
        stands = {} if status is None else {"phase": status.phase, "generation": status.generation, "due_ms": status.due_ms}
        click.echo(json.dumps({**facts, **stands}))
    else:
        click.echo(f"{handle.job_id} {'asked' if status is None else _stands(status)}")
    return True


def _stands(status: JobStatus) -> str:
    time_ms = status.wake_ms or status.due_ms
    if status.phase == Phase.PAUSED:
        return f"PAUSED, generation {status.generation}; its time is {moment(time_ms)}"
    if status.phase == Phase.WAITING:
        return f"WAITING for {moment(time_ms)}, generation {status.generation}"
    return f"{status.phase}, generation {status.generation}"


def _jobs(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID…")(_answer_options(command))


@click.command()
@_jobs
def pause(job_ids: tuple[str, ...], **how: Any) -> None:
    """Lets jobs start no more until they are resumed.

    A job that runs is not touched. The times of a recurring job that pass meanwhile are missed ones, for which its --misfire holds.

    \b
    Examples:
      duewheel pause nightly
      duewheel pause invoice-1 invoice-2 --json
    """
    _changed(**how, job_ids=job_ids, ask=Client.pause)


@click.command()
@_jobs
def resume(job_ids: tuple[str, ...], **how: Any) -> None:
    """Lets paused jobs wait for their time again; one whose time has passed runs at once.

    \b
    Example:
      duewheel resume nightly
    """
    _changed(**how, job_ids=job_ids, ask=Client.resume)


@click.command("run-now")
@_jobs
def run_now(job_ids: tuple[str, ...], **how: Any) -> None:
    """Runs jobs at once that wait or are paused. One that recurs has a run beside its times.

    \b
    Example:
      duewheel run-now nightly
    """
    _changed(**how, job_ids=job_ids, ask=Client.run_now)


@click.command()
@click.argument("job_id")
@option("--at", type=instant, metavar="TIME", help="When: ISO 8601 with a time zone, or milliseconds since the epoch.")
@option("--delay", type=duration, help="How long from now: 250ms, 10s, 5m, 1h30m, 2d.")
@_answer_options
def reschedule(job_id: str, at: datetime | int | None, delay: timedelta | None, **how: Any) -> None:
    """Gives a job another time, which waits or is paused. Between two attempts it puts off the next one.

    \b
    Examples:
      duewheel reschedule welcome-ada --at 2030-01-31T18:00:00Z
      duewheel reschedule welcome-ada --delay 10m
    """
    _changed(**how, job_ids=(job_id,), ask=functools.partial(Client.reschedule, at=at, delay=delay))


@click.command()
@click.argument("job_id")
@update_options
@_answer_options
def update(job_id: str, update: Update, **how: Any) -> None:
    """Changes what is given of a job that waits or is paused, and leaves the rest as it is.

    What belongs together is given anew as a whole: all headers; --attempts, --retry-… and --run-timeout; --expires-at, --total-timeout and
    --crash-limit; and all that says when a job recurs. The defaults named here hold within what is given. Its task and its queue stay.

    \b
    Examples:
      duewheel update welcome-ada '{"to": "ada@example.com"}'
      duewheel update charge-7 --attempts 3 --retry-delay 1m
      duewheel update nightly --cron "30 3 * * *" --tz Europe/Berlin
    """
    _changed(**how, job_ids=(job_id,), ask=functools.partial(Client.update, update=update))
