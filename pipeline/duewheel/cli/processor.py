"""`duewheel processor`: one instance of the timer processor."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

import click
import structlog

from duewheel import wiring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import spare_garbage_collection
from duewheel.cli.common import cluster_options
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology
from duewheel.engine.processor import Processor

log = structlog.get_logger(__name__)

_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 10.0


@click.command()
@cluster_options
@click.option("--state-dir", type=click.Path(path_type=Path, file_okay=False), envvar="DUEWHEEL_STATE_DIR", default=Path(".duewheel/state"),
              show_default=True, show_envvar=True, help="Where local stores lie. One process at a time can hold it.")  # fmt: skip
@click.option("--broker-timeout", "broker_timeout_s", type=click.FloatRange(min=1), envvar="DUEWHEEL_BROKER_TIMEOUT", default=300.0,
              show_default=True, show_envvar=True, metavar="SECONDS", help="Give up when the cluster is away for so long.")  # fmt: skip
@click.option("--schema-registry", envvar="DUEWHEEL_SCHEMA_REGISTRY", default=None, show_envvar=True, metavar="URL",
              help="Read commands of Confluent's serializers too, with the schemas of this registry.")  # fmt: skip
def processor(kafka: KafkaConfig, topology: Topology, state_dir: Path, broker_timeout_s: float, schema_registry: str | None) -> None:
    """Keep jobs and fire them at their time.

    Run as many as you like, each with a state directory of its own: they share the timer partitions among them, and when one goes, the
    others take over what it had. Stop it with Ctrl-C or SIGTERM: it hands its partitions over first. kill -9 loses nothing either.

    \b
    Example:
      duewheel topics apply
      duewheel processor --state-dir /var/lib/duewheel
    """
    stopping = Stop()
    instance = _connect(kafka, topology, state_dir, broker_timeout_s, schema_registry, stopping)
    if instance is None:
        return
    spare_garbage_collection()
    instance.start()
    log.info("processor.started", bootstrap_servers=kafka.bootstrap_servers, prefix=topology.prefix, state_dir=str(state_dir))
    while not stopping:
        instance.turn()
    instance.close()
    log.info("processor.stopped")


class Stop:
    """True once SIGINT or SIGTERM has come."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def __bool__(self) -> bool:
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def _connect(
    kafka: KafkaConfig, topology: Topology, state_dir: Path, broker_timeout_s: float, schema_registry: str | None, stopping: Stop
) -> Processor | None:
    deadline, wait_s = time.monotonic() + broker_timeout_s, _RETRY_S
    while not stopping:
        try:
            return wiring.timer_processor(kafka, topology, state_dir, broker_timeout_s, schema_registry=schema_registry)
        except BrokerUnavailable as error:
            if time.monotonic() + wait_s > deadline:
                raise
            log.warning("processor.cluster_unavailable", error=str(error))
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
    return None
