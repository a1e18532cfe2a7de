"""Rules for every command and option, present and future: each is explained, each option has its environment variable."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from duewheel.cli.main import COMMANDS, cli
from duewheel.core.errors import BadConfiguration


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _walk(child, (*path, name))


ALL = dict(_walk(cli, ("duewheel",)))
OPTIONS = [
    (path, option)
    for path, command in ALL.items()
    for option in command.params
    if isinstance(option, click.Option) and option.name not in {"help", "version"}
]


@pytest.mark.parametrize("path", ALL)
def test_each_command_explains_itself(path: str) -> None:
    assert (ALL[path].help or "").strip()
    arguments = path.split()[1:]
    result = CliRunner().invoke(cli, [*arguments, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


@pytest.mark.parametrize("path, option", OPTIONS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_option_is_explained_and_has_an_environment_variable(path: str, option: click.Option) -> None:
    assert option.help, f"{path}: {option.opts} has no help"
    long = next((name for name in option.opts if name.startswith("--")), "--kafka-options")  # -X has no long name
    assert option.envvar == "DUEWHEEL_" + long[2:].replace("-", "_").upper(), f"{path}: use duewheel.cli.common.option"
    assert option.show_envvar, f"{path}: {option.opts} does not show its environment variable"


def test_the_list_of_commands_is_the_list_in_the_help() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    positions = [output.index(f"\n  {name} ") for name in COMMANDS]
    assert positions == sorted(positions)


def test_the_version_is_the_installed_one() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.strip().endswith(version("duewheel"))


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["frobnicate"])
    assert result.exit_code == 2
    assert "frobnicate" in result.output


@pytest.mark.parametrize("setting", ["session.timeout.ms=abc", "nonsense=1", "security.protocol=foo", "session.timeout.ms=90000"])
@pytest.mark.parametrize("command", [["processor"], ["worker", "duewheel.bench.tasks:app"], ["schedule", "task"]])
def test_a_setting_of_the_kafka_client_is_judged_at_once(command: list[str], setting: str) -> None:
    result = CliRunner().invoke(cli, [*command, "-X", setting])
    assert isinstance(result.exception, BadConfiguration)
    assert setting.partition("=")[0] in str(result.exception)
