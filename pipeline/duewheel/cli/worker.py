"""`duewheel worker`: one member of a queue's fleet, or of several."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from typing import Final

import click
import structlog

from duewheel import wiring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import spare_garbage_collection
from duewheel.cli.common import cluster_options, option
from duewheel.cli.running import Stop, connected
from duewheel.core.errors import BadConfiguration, BrokerUnavailable
from duewheel.core.limits import WORKER_CONCURRENCY_MAX
from duewheel.core.topology import QUEUE_DEFAULT, Topology, queue_fault
from duewheel.worker.executors.shares import WEIGHT_MAX, Shares
from duewheel.worker.loading import load

log = structlog.get_logger(__name__)

# The polling thread needs the interpreter back soon after a commit, while handlers may be computing. The default of 5 ms is as long as
# a whole turn of the loop.
_SWITCH_INTERVAL_S: Final = 0.001


@click.command()
@click.argument("app_path", metavar="MODULE:APP")
@cluster_options
@option("-q", "--queue", "queues", multiple=True, default=(QUEUE_DEFAULT,), show_default=True, metavar="NAME[:WEIGHT]",
        help="A queue whose jobs to run, and its share of the handlers where there are several. Repeatable.")  # fmt: skip
@option("--strict", is_flag=True, help="Serve the queues in the order given: a later one only while the earlier ones are empty.")
@option("-c", "--concurrency", type=click.IntRange(1, WORKER_CONCURRENCY_MAX), default=10, show_default=True,
        help="How many handlers may run at a time, of all queues together: so many threads, coroutines, and processes each.")  # fmt: skip
@option("--name", help="As it stands in outcomes.  [default: the host's name and the process id]")
@option("--grace", "grace_s", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
        help="How long handlers may go on after SIGTERM.")  # fmt: skip
@option("--broker-timeout", "broker_timeout_s", type=click.FloatRange(min=1), default=300.0, show_default=True, metavar="SECONDS",
        help="Give up when the cluster is away for so long.")  # fmt: skip
def worker(
    app_path: str,
    kafka: KafkaConfig,
    topology: Topology,
    queues: tuple[str, ...],
    strict: bool,
    concurrency: int,
    name: str | None,
    grace_s: float,
    broker_timeout_s: float,
) -> None:
    """Run the jobs of one queue, or several.

    MODULE:APP names a duewheel.App, as in shop.jobs:app; modules are found from the current directory too. Run as many workers as the queue
    has partitions: they share them. Stop one with Ctrl-C or SIGTERM: it finishes what runs, and hands back what it did not start. A second
    signal stops it at once; then, as after kill -9, what it ran is handed to others when the group misses it.

    Of several queues each gets handlers by its weight, as long as it has work: with -q critical:5 -q default:1 five of six starts are
    critical ones. What a queue does not need, the others get. With --strict, the order alone decides, and a later queue may have to wait
    for ever.

    \b
    Examples:
      duewheel worker shop.jobs:app -q mail -c 20
      duewheel worker shop.jobs:app -q critical:5 -q default:1
      duewheel worker shop.jobs:app -q critical -q default -q reports --strict
    """
    app = load(app_path)
    shares = shares_of(queues, strict)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    stop = Stop()
    station = connected(
        lambda: wiring.worker(kafka, topology, app, app_path, shares, concurrency, name, broker_timeout_s), _delayed, broker_timeout_s, stop
    )
    if station is None:
        return
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    spare_garbage_collection()
    station.start()
    for queue in shares.queues:
        log.info(
            "worker.started",
            bootstrap_servers=kafka.bootstrap_servers,
            queue=queue,
            name=name,
            concurrency=concurrency,
            tasks=sorted(app.tasks),
        )
    station.run(lambda: bool(stop), round(grace_s * 1000))
    log.info("worker.stopped")


def shares_of(queues: Sequence[str], strict: bool) -> Shares:
    """What was asked for with -q and --strict.

    Raises:
        BadConfiguration: a name or a weight is wrong, a queue is named twice, or there are weights where only the order counts.
    """
    weights: dict[str, int] = {}
    for text in queues:
        queue, colon, weight = text.partition(":")
        fault = queue_fault(queue)
        if fault is not None:
            raise BadConfiguration(f"queue {queue!r} {fault}")
        if queue in weights:
            raise BadConfiguration(f"queue {queue!r} is given twice; name it once, with the weight that it should have")
        if colon and not re.fullmatch("[0-9]{1,9}", weight):
            raise BadConfiguration(f"the weight of queue {queue!r} is {weight!r}; it must be a whole number from 1 to {WEIGHT_MAX}")
        if colon and strict:
            raise BadConfiguration(f"queue {queue!r} has a weight, which means nothing with --strict: leave one of them out")
        weights[queue] = int(weight) if colon else 1
    return Shares(weights, strict)


def _delayed(error: BrokerUnavailable) -> None:
    log.warning("worker.cluster_unavailable", error=str(error))
