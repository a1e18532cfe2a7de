"""The command line's front door. Commands live in modules of their own and are imported when they are called."""

from __future__ import annotations

import importlib
import sys
from typing import Final, Literal

import click

from duewheel import logs
from duewheel.core.errors import CallerError, DuewheelError

# name -> "module:attribute". The order is the order of `duewheel --help`.
COMMANDS: Final = {
    "demo": "duewheel.cli.demo:demo",
    "schedule": "duewheel.cli.producing:schedule",
    "deliver": "duewheel.cli.producing:deliver",
    "cancel": "duewheel.cli.producing:cancel",
    "pause": "duewheel.cli.changing:pause",
    "resume": "duewheel.cli.changing:resume",
    "run-now": "duewheel.cli.changing:run_now",
    "reschedule": "duewheel.cli.changing:reschedule",
    "update": "duewheel.cli.changing:update",
    "schedules": "duewheel.cli.schedules:schedules",
    "encode": "duewheel.cli.producing:encode",
    "processor": "duewheel.cli.processor:processor",
    "worker": "duewheel.cli.worker:worker",
    "tail": "duewheel.cli.tail:tail",
    "dead": "duewheel.cli.dead:dead",
    "state": "duewheel.cli.state:state",
    "verify": "duewheel.cli.verify:verify",
    "topics": "duewheel.cli.topics:topics",
    "bench": "duewheel.cli.bench:bench",
    "dev": "duewheel.cli.dev:dev",
}

EXIT_CALLER: Final = 2  # what was asked for cannot be
EXIT_ENVIRONMENT: Final = 3  # the surroundings failed, or a promise was broken


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, attribute = target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name="duewheel")
@click.option("--log-level", type=click.Choice(logs.LEVELS), envvar="DUEWHEEL_LOG_LEVEL", default="info", show_default=True,
              show_envvar=True, help="The lowest level of log lines on standard error.")  # fmt: skip
@click.option("--log-format", type=click.Choice(logs.FORMATS), envvar="DUEWHEEL_LOG_FORMAT", default="auto", show_default=True,
              show_envvar=True, help="Log lines as text or as JSON; auto is text on a terminal and JSON elsewhere.")  # fmt: skip
def cli(log_level: Literal["debug", "info", "warning", "error"], log_format: Literal["auto", "console", "json"]) -> None:
    """Duewheel runs jobs at their time, on Kafka: durable, never early, none lost."""
    logs.configure(log_level, log_format)


def main() -> None:
    """Entry point: errors of ours become one line on standard error and an exit code."""
    try:
        cli(prog_name="duewheel")
    except DuewheelError as error:
        click.echo(f"duewheel: {error}", err=True)
        sys.exit(EXIT_CALLER if isinstance(error, CallerError) else EXIT_ENVIRONMENT)


if __name__ == "__main__":
    main()
