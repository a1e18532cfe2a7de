"""Documentation is tested: its Python compiles and its imports exist, its commands parse, its make targets are there.

A block says what it is by its language: `python`, or `sh` for commands. Commands are parsed by the real parser and not run.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from duewheel.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]


class Block(NamedTuple):
    where: str
    language: str
    text: str


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(f"{page.name}:{line}", match.group(1), match.group(2))


BLOCKS = list(_blocks())
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language in {"sh", "bash", "shell", "console"}]


def _commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, each as words, without comments; what follows a pipe is a command of its own."""
    joined = block.text.replace("\\\n", " ")
    for line in joined.splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;&<>"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


COMMANDS = [(block.where, words) for block in SHELL for words in _commands(block)]


def test_the_readme_shows_the_command_that_shows_it() -> None:
    assert ["make", "demo"] in [words for where, words in COMMANDS if where.startswith("README")]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.where)
def test_python_compiles_and_its_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text, block.where)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{block.where}: a relative import means nothing in a document"
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not (hasattr(module, alias.name) or _is_module(f"{node.module}.{alias.name}"))]
            assert missing == [], f"{block.where}: {node.module} has no {missing}"


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what should hold it is no package
        return False


DUEWHEEL = [(where, words[1:]) for where, words in COMMANDS if Path(words[0]).name == "duewheel"]


@pytest.mark.parametrize("where, words", DUEWHEEL, ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_duewheel_commands_parse(where: str, words: list[str]) -> None:
    command: click.Command = cli
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = command.make_context(command.name or "duewheel", words, parent=context)
        words = [*context._protected_args, *context.args]
        if not words:
            return
        found = command.get_command(context, words[0])
        assert found, f"{where}: there is no command {words[0]!r}"
        command, words = found, words[1:]
    if not {"-h", "--help"} & set(words):
        command.make_context(command.name or "", words, parent=context)  # UsageError names the option that is wrong


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for where, words in COMMANDS if words[0] == "make" for word in words[1:] if "=" not in word and not word.startswith("-")}
    assert named - targets == set()
