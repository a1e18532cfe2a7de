"""`duewheel processor`: one instance of the timer processor."""

from __future__ import annotations

from pathlib import Path

import click
import structlog

from duewheel import wiring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import spare_garbage_collection
from duewheel.cli.common import cluster_options
from duewheel.cli.running import Stop, connected
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology

log = structlog.get_logger(__name__)


@click.command()
@cluster_options
@click.option("--state-dir", type=click.Path(path_type=Path, file_okay=False), envvar="DUEWHEEL_STATE_DIR", default=Path(".duewheel/state"),
              show_default=True, show_envvar=True, help="Where local stores lie. One process at a time can hold it.")  # fmt: skip
@click.option("--broker-timeout", "broker_timeout_s", type=click.FloatRange(min=1), envvar="DUEWHEEL_BROKER_TIMEOUT", default=300.0,
              show_default=True, show_envvar=True, metavar="SECONDS", help="Give up when the cluster is away for so long.")  # fmt: skip
@click.option("--schema-registry", envvar="DUEWHEEL_SCHEMA_REGISTRY", default=None, show_envvar=True, metavar="URL",
              help="Read commands of Confluent's serializers too, with the schemas of this registry.")  # fmt: skip
@click.option("--deliver-to", multiple=True, envvar="DUEWHEEL_DELIVER_TO", show_envvar=True, metavar="PATTERN",
              help="Topics that duewheel deliver may put records on, as orders.*; give all processors the same. Repeatable.")  # fmt: skip
def processor(
    kafka: KafkaConfig,
    topology: Topology,
    state_dir: Path,
    broker_timeout_s: float,
    schema_registry: str | None,
    deliver_to: tuple[str, ...],
) -> None:
    """Keep jobs and fire them at their time.

    Run as many as you like, each with a state directory of its own: they share the timer partitions among them, and when one goes, the
    others take over what it had. Stop it with Ctrl-C or SIGTERM: it hands its partitions over first. A second signal stops it at once;
    neither that nor kill -9 loses anything.

    \b
    Example:
      duewheel topics apply
      duewheel processor --state-dir /var/lib/duewheel
      duewheel processor --deliver-to "orders.*" --deliver-to reminders
    """
    stop = Stop()
    instance = connected(
        lambda: wiring.timer_processor(
            kafka, topology, state_dir, broker_timeout_s, schema_registry=schema_registry, deliver_to=deliver_to
        ),
        _delayed,
        broker_timeout_s,
        stop,
    )
    if instance is None:
        return
    spare_garbage_collection()
    instance.start()
    log.info("processor.started", bootstrap_servers=kafka.bootstrap_servers, prefix=topology.prefix, state_dir=str(state_dir))
    while not stop:
        instance.turn()
    instance.close()
    log.info("processor.stopped")


def _delayed(error: BrokerUnavailable) -> None:
    log.warning("processor.cluster_unavailable", error=str(error))
