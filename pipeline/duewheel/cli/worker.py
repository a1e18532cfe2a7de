"""`duewheel worker`: one member of a queue's fleet."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
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
from duewheel.worker.app import App

log = structlog.get_logger(__name__)

# The polling thread needs the interpreter back soon after a commit, while handlers may be computing. The default of 5 ms is as long as
# a whole turn of the loop.
_SWITCH_INTERVAL_S: Final = 0.001


@click.command()
@click.argument("app_path", metavar="MODULE:APP")
@cluster_options
@option("-q", "--queue", default=QUEUE_DEFAULT, show_default=True, help="The queue whose jobs to run.")
@option("-c", "--concurrency", type=click.IntRange(1, WORKER_CONCURRENCY_MAX), default=10, show_default=True,
        help="How many handlers may run at a time.")  # fmt: skip
@option("--name", help="As it stands in outcomes.  [default: the host's name and the process id]")
@option("--grace", "grace_s", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
        help="How long handlers may go on after SIGTERM.")  # fmt: skip
@option("--broker-timeout", "broker_timeout_s", type=click.FloatRange(min=1), default=300.0, show_default=True, metavar="SECONDS",
        help="Give up when the cluster is away for so long.")  # fmt: skip
def worker(
    app_path: str,
    kafka: KafkaConfig,
    topology: Topology,
    queue: str,
    concurrency: int,
    name: str | None,
    grace_s: float,
    broker_timeout_s: float,
) -> None:
    """Run the jobs of a queue.

    MODULE:APP names a duewheel.App, as in shop.jobs:app; modules are found from the current directory too. Run as many workers as the queue
    has partitions: they share them. Stop one with Ctrl-C or SIGTERM: it finishes what runs, and hands back what it did not start. A second
    signal stops it at once; then, as after kill -9, what it ran is handed to others when the group misses it.

    \b
    Example:
      duewheel worker shop.jobs:app -q mail -c 20
    """
    app = load(app_path)
    fault = queue_fault(queue)
    if fault is not None:
        raise BadConfiguration(f"queue {queue!r} {fault}")
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    stop = Stop()
    instance = connected(
        lambda: wiring.worker(kafka, topology, app, queue, concurrency, name, broker_timeout_s), _delayed, broker_timeout_s, stop
    )
    if instance is None:
        return
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    spare_garbage_collection()
    instance.start()
    log.info(
        "worker.started",
        bootstrap_servers=kafka.bootstrap_servers,
        queue=queue,
        name=name,
        concurrency=concurrency,
        tasks=sorted(app.tasks),
    )
    while not instance.stopped:
        if stop:
            instance.drain(round(grace_s * 1000))
        instance.turn()
    instance.close()
    log.info("worker.stopped")


def load(app_path: str) -> App:
    """Imports the app that MODULE:APP names.

    Raises:
        BadConfiguration: there is no such module, no such app in it, or the app has no tasks.
    """
    module_name, colon, attribute = app_path.partition(":")
    if not module_name or not colon or not attribute:
        raise BadConfiguration(f"{app_path!r} does not name an app; write MODULE:APP, as in shop.jobs:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # found, but it imports something that is missing: the traceback says what
        raise BadConfiguration(f"module {module_name!r} was not found from {Path.cwd()} or where Python looks for modules") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "has no such name" if app is None else f"has a {type(app).__name__} there"
        others = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has an App called {others[0]}" if others else "; write: app = duewheel.App()"
        raise BadConfiguration(f"{app_path} is not a duewheel.App: module {module_name} {found}{hint}")
    if not app.tasks:
        raise BadConfiguration(
            f"{app_path} has no tasks; decorate functions with @{attribute}.task, and import their modules in {module_name}"
        )
    return app


def _delayed(error: BrokerUnavailable) -> None:
    log.warning("worker.cluster_unavailable", error=str(error))
