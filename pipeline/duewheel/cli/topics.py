"""`duewheel topics`: what a cluster's topics should be, are, and become."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import Alter, Change, Create, Notice, Refusal, TopicAdmin, refuse
from duewheel.cli.common import cluster_options, option
from duewheel.core.topology import QUEUE_DEFAULT, Topology, queue_fault

PARTITIONS_MAX: Final = 10_000


def _queues(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int | None]:
    queues: dict[str, int | None] = {}
    for value in values or (QUEUE_DEFAULT,):
        name, colon, count = value.partition(":")
        fault = queue_fault(name)
        if fault is not None:
            raise click.BadParameter(f"{value!r} is neither NAME nor NAME:PARTITIONS: queue {name!r} {fault}")
        if colon and not (count.isdecimal() and count.isascii() and len(count) <= 5 and 1 <= int(count) <= PARTITIONS_MAX):
            raise click.BadParameter(f"{value!r} is neither NAME nor NAME:PARTITIONS: a queue has 1 to {PARTITIONS_MAX} partitions")
        queues[name] = int(count) if colon else None
    return queues


def _plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        option("--json", "as_json", is_flag=True, help="Print one JSON object a change."),
        option("--timeout", "timeout_s", type=click.FloatRange(0.1, 3_600), default=30.0, show_default=True, metavar="SECONDS",
               help="How long the cluster may take to answer."),
        option("--replication", type=click.IntRange(1, 100),
               help="Replicas of each topic. Default: as declared, 3, at most the number of brokers."),
        option("--partitions", type=click.IntRange(1, PARTITIONS_MAX),
               help="Timer partitions, fixed when the installation is made. Default: what it has, or 16."),
        option("-q", "--queue", "queues", multiple=True, callback=_queues, metavar="NAME[:PARTITIONS]",
               help=f"A queue that should exist, with the partitions of its topic (default: what it has, or as many as timer partitions). "
               f"Repeatable. Default: {QUEUE_DEFAULT}. Queues that exist are compared too."),
        cluster_options,
    ):  # fmt: skip
        command = decorate(command)
    return command


@click.group()
def topics() -> None:
    """Compare a cluster's topics with what is declared, and make them so."""


@topics.command("plan")
@_plan_options
def plan_command(
    kafka: KafkaConfig,
    topology: Topology,
    queues: dict[str, int | None],
    partitions: int | None,
    replication: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show what `apply` would do, and what it would refuse. Changes nothing.

    Exit code 2 when something would be refused, else 0.
    """
    changes = TopicAdmin(kafka, topology, timeout_s).plan(queues, partitions, replication)
    _show(changes, as_json=as_json)
    refuse(changes)


@topics.command("apply")
@_plan_options
def apply_command(
    kafka: KafkaConfig,
    topology: Topology,
    queues: dict[str, int | None],
    partitions: int | None,
    replication: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Make missing topics and set settings that differ. Applying again changes nothing.

    A partition count is never changed: that is refused, before anything else is touched.
    """
    admin = TopicAdmin(kafka, topology, timeout_s)
    changes = admin.plan(queues, partitions, replication)
    admin.apply(changes)
    _show(changes, as_json=as_json)


def _show(changes: Sequence[Change], *, as_json: bool) -> None:
    for change in changes:
        click.echo(json.dumps(_as_dict(change)) if as_json else str(change))
    if not changes and not as_json:
        click.echo("all topics are as declared", err=True)


def _as_dict(change: Change) -> dict[str, object]:
    match change:
        case Create(declared):
            return {
                "change": "create",
                "topic": declared.topic,
                "partitions": declared.partitions,
                "replication": declared.replication,
                "config": dict(declared.config),
            }
        case Alter(topic, setting, actual, declared_value):
            return {"change": "alter", "topic": topic, "setting": setting, "actual": actual, "declared": declared_value}
        case Refusal(topic, actual_count, declared_count):
            return {"change": "refused", "topic": topic, "partitions": {"actual": actual_count, "declared": declared_count}}
        case Notice(topic, actual_count, declared_count):
            return {"change": "not_applied", "topic": topic, "replication": {"actual": actual_count, "declared": declared_count}}
