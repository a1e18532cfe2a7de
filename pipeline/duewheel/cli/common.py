"""Options that every command shares, and how a command fails.

Each option has an environment variable: DUEWHEEL_ and its name (`--bootstrap-servers` is DUEWHEEL_BOOTSTRAP_SERVERS).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import click

from duewheel.adapters.kafka.settings import KafkaConfig, check
from duewheel.core.limits import PREFIX_CHARS_MAX
from duewheel.core.topology import PREFIX_DEFAULT, Topology


def name_value_pairs(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """What `-X NAME=VALUE` was given, as a dict."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not of the form name=value, as in security.protocol=SSL")
        options[name] = value
    return options


def _prefix(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{PREFIX_CHARS_MAX}}}", value):
        raise click.BadParameter(f"{value!r} cannot begin a topic name: 1 to {PREFIX_CHARS_MAX} characters of a-z A-Z 0-9 . _ -")
    return value


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, **settings: Any) -> Decorator:
    """An option whose environment variable is named after it: --job-id is DUEWHEEL_JOB_ID."""
    long = next(name for name in names if name.startswith("--"))
    return click.option(*names, envvar="DUEWHEEL_" + long[2:].replace("-", "_").upper(), show_envvar=True, **settings)


kafka_option: Final = click.option(
    "-X", "kafka_options", multiple=True, callback=name_value_pairs, envvar="DUEWHEEL_KAFKA_OPTIONS", show_envvar=True,
    metavar="NAME=VALUE", help="A librdkafka setting for every client, as security.protocol=SSL. Repeatable.",
)  # fmt: skip


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that name a cluster and an installation on it; the command receives `kafka` and `topology`."""

    @option("-b", "--bootstrap-servers", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT,…", help="The Kafka cluster.")
    @kafka_option
    @option("--prefix", callback=_prefix, default=PREFIX_DEFAULT, show_default=True,
            help="What the names of this installation's topics and groups begin with.")  # fmt: skip
    @functools.wraps(command)
    def wrapped(bootstrap_servers: str, kafka_options: dict[str, str], prefix: str, **rest: Any) -> Any:
        kafka = KafkaConfig(bootstrap_servers, kafka_options)
        check(kafka)
        return command(kafka=kafka, topology=Topology(prefix), **rest)

    return wrapped
