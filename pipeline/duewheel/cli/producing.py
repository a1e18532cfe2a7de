"""`duewheel schedule`, `duewheel deliver`, `duewheel cancel` and `duewheel encode`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import click

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.cli.common import cluster_options, option
from duewheel.cli.job_options import delivered_options, job_options, update_options
from duewheel.cli.schedule import CommandOrGroup, schedule_next
from duewheel.cli.times import duration
from duewheel.client import Decision, Delivery, Job, JobHandle, Update
from duewheel.client.commands import cancel_command, change_command, deliver_command, drop_command, redrive_command, schedule_command
from duewheel.core.model import Action
from duewheel.core.topology import Topology

# As other commands end that were understood and came to no good.
EXIT_REJECTED: Final = 1


_REACH: Final = option(
    "--reach",
    type=click.Choice(["job", "running"]),
    help="job: what was handed out goes on undisturbed, and nothing follows it. running: what runs is asked to stop, also all runs of a "
    "job that recurs.  [default: a job that runs once with its running attempt; one that recurs without its runs]",
)


_WAIT: Final = option(
    "--decision",
    "wait",
    is_flag=True,
    help="Wait until it was taken in, and say whether it was created, replaced another, or was ignored.",
)


def _sending_options(command: Callable[..., Any]) -> Callable[..., Any]:
    timeout = option("--timeout", type=duration, default="30s", show_default=True, help="How long to wait for an acknowledgement.")
    as_json = option("--json", "as_json", is_flag=True, help="Print one line of JSON for each job.")
    return cluster_options(timeout(as_json(command)))


@click.group(cls=CommandOrGroup, no_args_is_help=False)
@job_options
@option("--job-id", help="Names the job and deduplicates; one is made where none is given.")
@option(
    "--unique-by",
    multiple=True,
    callback=lambda _context, _parameter, names: names or None,
    metavar="FIELD",
    help="Make the id from these fields, so that there is one job for the same values: task, queue, or a field of PAYLOAD. Repeatable.",
)
@_WAIT
@_sending_options
def schedule(kafka: KafkaConfig, topology: Topology, timeout: timedelta, as_json: bool, wait: bool, job: Job) -> None:
    """Schedules a job, and returns when it is durable.

    TASK is the handler's name. PAYLOAD is its argument, as JSON; - reads it from standard input. Without --at or --delay the job runs
    at once.

    \b
    Examples:
      duewheel schedule send_email '{"to": "ada@example.org"}'
      duewheel schedule send_email '{"to": "ada@example.org"}' --delay 10m --job-id welcome-ada
      duewheel schedule send_email '{"to": "ada@example.org", "text": "hi"}' --unique-by task --unique-by to
      duewheel schedule close_month '"2030-01"' --at 2030-02-01T00:00:00+01:00 --queue reports
      duewheel schedule thumbnail --payload-file cat.png -H name=cat.png
      duewheel schedule charge 7 --attempts 8 --retry-delay 2s --retry-factor 3 --retry-jitter 0.5
      duewheel schedule close_books --job-id nightly --cron "30 2 * * *" --tz Europe/Berlin
      duewheel schedule poll 7 --job-id feed-7 --every 90s --overlap queue
      duewheel schedule push '"breaking"' --expires-at 2030-01-31T18:00:00Z --run-timeout 10s --attempts 1

    Running the same command twice with the same --job-id schedules one job, so that after a failure it is safe to repeat it. Only with
    --on-conflict replace the second may define the job, and run it, once more.

    With --on-conflict reject it waits until the job was taken in, and ends with code 1 where the id was known.

    What is printed is what was asked for. What holds, `duewheel state` shows; and what was refused, as for a queue that does not exist,
    `duewheel dead list --refused`.

    What is said here of attempts, waits and --run-timeout wins over what the task says of itself.

    With --every, --every-after or --cron the job runs again and again, until it is cancelled or no time is left. Each run is a job of its
    own, JOB_ID@ and its time in milliseconds; duewheel state JOB_ID names those that go on. docs/schedules.md has all the rules.
    """
    from duewheel.wiring import producing_client

    with producing_client(kafka, topology, timeout.total_seconds()) as client:
        handle = client.schedule(**job._asdict())
        decision = handle.decision(timeout) if job.on_conflict == "reject" or wait else None
    _tell(topology, handle, decision, as_json=as_json)


schedule.add_command(schedule_next)


@click.command()
@delivered_options
@option("--job-id", help="Names the job and deduplicates; one is made where none is given.")
@_WAIT
@_sending_options
def deliver(kafka: KafkaConfig, topology: Topology, timeout: timedelta, as_json: bool, wait: bool, record: Delivery) -> None:
    """Lets a record be put on a topic at its time, and returns when the request is durable.

    No worker is needed: the processors put it on TOPIC, in one transaction with the end of the job. Consumers that read only what is
    committed see it exactly once. Without --at or --delay it is delivered at once.

    \b
    Examples:
      duewheel deliver reminders --key ada --value '{"text": "tea"}' --delay 10m
      duewheel deliver orders.late --key 4711 --value-file order.avro --at 2030-01-31T18:00:00Z --job-id order-4711
      duewheel deliver ticks --value tick --every 1m --job-id ticks
      duewheel deliver sessions --key ada --tombstone --delay 30m --job-id session-ada --on-conflict replace

    TOPIC must be one that the processors were told of (duewheel processor --deliver-to). Otherwise the request is refused when it is taken
    in: --decision waits for that, and `duewheel dead list --refused` shows it. If TOPIC does not exist when the time comes, the record
    waits until it does.

    The record has three headers of Duewheel's own beside those given: duewheel-job-id, duewheel-slot-ms and duewheel-token.

    Cancel it as any job: duewheel cancel JOB_ID. With --every, --every-after or --cron each record is a run of its own: docs/schedules.md.
    """
    from duewheel.wiring import producing_client

    with producing_client(kafka, topology, timeout.total_seconds()) as client:
        handle = client.deliver(**record._asdict())
        decision = handle.decision(timeout) if record.on_conflict == "reject" or wait else None
    _tell(topology, handle, decision, as_json=as_json)


def _tell(topology: Topology, handle: JobHandle, decision: Decision | None, *, as_json: bool) -> None:
    """Says what is durable, and what was decided about it where that was waited for."""
    told = {} if decision is None else {"decision": decision.value}
    if as_json:
        where = {"partition": handle.partition, "offset": handle.offset}
        click.echo(json.dumps({"job_id": handle.job_id, "due_ms": handle.due_ms, **where, **told}))
    elif decision is Decision.REJECTED:
        click.echo(f"{handle.job_id} rejected: the id is known already; duewheel state {handle.job_id} shows what it stands for", err=True)
    else:
        known = "" if decision is None else f", {decision.value.lower()}"
        where_it_lies = f"{topology.intake} partition {handle.partition} offset {handle.offset}"
        click.echo(f"{handle.job_id} due {_iso(handle.due_ms)} ({where_it_lies}){known}")
    if decision is Decision.REJECTED:
        raise SystemExit(EXIT_REJECTED)


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID…")
@_REACH
@_sending_options
def cancel(
    kafka: KafkaConfig,
    topology: Topology,
    timeout: timedelta,
    as_json: bool,
    reach: Literal["job", "running"] | None,
    job_ids: tuple[str, ...],
) -> None:
    """Asks for jobs not to be started any more, and returns when the requests are durable.

    What was asked for first wins: a job whose time came before the request was read runs all the same. Ids that nobody knows are no
    error.

    \b
    Examples:
      duewheel cancel welcome-ada
      duewheel cancel invoice-1 invoice-2 invoice-3
      duewheel cancel nightly --reach running
    """
    from duewheel.wiring import producing_client

    with producing_client(kafka, topology, timeout.total_seconds()) as client:
        for job_id in job_ids:
            receipt = client.cancel(job_id, reach=reach)
            if as_json:
                click.echo(json.dumps({"job_id": job_id, "partition": receipt.partition, "offset": receipt.offset}))
            else:
                click.echo(f"{job_id} cancel requested ({topology.intake} partition {receipt.partition} offset {receipt.offset})")


@click.group()
def encode() -> None:
    """Writes a command's bytes, so that any Kafka client can publish them.

    A command is one record on the intake topic: its key is the job id in UTF-8, its value these bytes. Any partitioner will do;
    murmur2 saves a hop.

    \b
    Example, with kcat:
      duewheel encode schedule send_email '{"to": "ada@example.org"}' --delay 10m --job-id welcome-ada > command.bin
      kcat -P -b localhost:9092 -t duewheel.intake -X partitioner=murmur2_random -k welcome-ada command.bin
    """


def _output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    as_hex = option("--hex", "as_hex", is_flag=True, help="Write hexadecimal digits and a newline, not bytes.")
    as_key = option("--key", "as_key", is_flag=True, help="Write the record's key, not its value.")
    return as_hex(as_key(command))


@encode.command("schedule")
@job_options
@option("--job-id", required=True, help="Names the job and deduplicates; it is the record's key.")
@_output_options
def encode_schedule(as_hex: bool, as_key: bool, job: Job) -> None:
    """Writes the bytes that schedule a job. Arguments and options are those of `duewheel schedule`.

    \b
    Examples:
      duewheel encode schedule send_email '{"to": "ada@example.org"}' --job-id welcome-ada --at 2030-01-31T18:00:00Z > command.bin
      duewheel encode schedule send_email --job-id welcome-ada --hex
      duewheel encode schedule send_email --job-id welcome-ada --key
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock, new_job_id

    command = schedule_command(job, SystemClock().wall_ms(), new_job_id)
    _write(command["job_id"].encode() if as_key else codec.encode_schedule(command), as_hex)


@encode.command("deliver")
@delivered_options
@option("--job-id", required=True, help="Names the job and deduplicates; it is the key of the request.")
@option("--hex", "as_hex", is_flag=True, help="Write hexadecimal digits and a newline, not bytes.")
@option("--request-key", "as_key", is_flag=True, help="Write the request's key, not its value.")
def encode_deliver(as_hex: bool, as_key: bool, record: Delivery) -> None:
    """Writes the bytes that let a record be delivered. Arguments and options are those of `duewheel deliver`.

    \b
    Example:
      duewheel encode deliver reminders --key ada --value tea --at 2030-01-31T18:00:00Z --job-id tea-ada > command.bin
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock, new_job_id

    command = deliver_command(record, SystemClock().wall_ms(), new_job_id)
    _write(command["job_id"].encode() if as_key else codec.encode_schedule(command), as_hex)


@encode.command("cancel")
@click.argument("job_id")
@_REACH
@_output_options
def encode_cancel(job_id: str, reach: str | None, as_hex: bool, as_key: bool) -> None:
    """Writes the bytes that cancel a job.

    \b
    Example:
      duewheel encode cancel welcome-ada > command.bin
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock

    command = cancel_command(job_id, SystemClock().wall_ms(), reach)
    _write(job_id.encode() if as_key else codec.encode_cancel(command), as_hex)


@encode.command("redrive")
@click.argument("job_id")
@click.argument("token", type=int)
@_output_options
def encode_redrive(job_id: str, token: int, as_hex: bool, as_key: bool) -> None:
    """Writes the bytes that have a dead run run again. TOKEN is that with which it died, as `duewheel dead list` says.

    \b
    Example:
      duewheel encode redrive welcome-ada 4711 > command.bin
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock

    command = redrive_command(job_id, token, SystemClock().wall_ms())
    _write(job_id.encode() if as_key else codec.encode_redrive(command), as_hex)


@encode.command("drop")
@click.argument("job_id")
@click.argument("token", type=int)
@_output_options
def encode_drop(job_id: str, token: int, as_hex: bool, as_key: bool) -> None:
    """Writes the bytes that have a dead run forgotten. TOKEN is that with which it died, as `duewheel dead list` says.

    \b
    Example:
      duewheel encode drop welcome-ada 4711 > command.bin
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock

    command = drop_command(job_id, token, SystemClock().wall_ms())
    _write(job_id.encode() if as_key else codec.encode_drop(command), as_hex)


def _encode_change(name: str, action: Action, does: str) -> None:
    """Adds `duewheel encode NAME` for a change that takes nothing but the job's id."""

    @click.argument("job_id")
    @_output_options
    def change(job_id: str, as_hex: bool, as_key: bool) -> None:
        _write_change(job_id, action, as_hex, as_key)

    help_text = f"""Writes the bytes that {does}.

    \b
    Example:
      duewheel encode {name} welcome-ada > command.bin
    """
    encode.command(name, help=help_text)(change)


_encode_change("pause", Action.PAUSE, "let a job start no more until it is resumed")
_encode_change("resume", Action.RESUME, "let a paused job wait for its time again")
_encode_change("run-now", Action.RUN_NOW, "have a job that waits or is paused run at once")


@encode.command("update")
@click.argument("job_id")
@update_options
@_output_options
def encode_update(job_id: str, as_hex: bool, as_key: bool, update: Update) -> None:
    """Writes the bytes that change a job in part. Arguments and options are those of `duewheel update`.

    \b
    Examples:
      duewheel encode update welcome-ada '{"to": "ada@example.com"}' > command.bin
      duewheel encode update welcome-ada --delay 10m --hex
    """
    _write_change(job_id, Action.UPDATE, as_hex, as_key, update)


def _write_change(job_id: str, action: Action, as_hex: bool, as_key: bool, update: Update | None = None) -> None:
    from duewheel.adapters.avro import codec
    from duewheel.adapters.system import SystemClock

    command = change_command(job_id, action, SystemClock().wall_ms(), update)
    _write(job_id.encode() if as_key else codec.encode_change(command), as_hex)


def _write(data: bytes, as_hex: bool) -> None:
    sys.stdout.buffer.write(data.hex().encode() + b"\n" if as_hex else data)
    sys.stdout.buffer.flush()


def _iso(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
