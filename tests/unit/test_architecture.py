"""ARCHITECTURE.md says what is: its map of files and its lifecycle table cannot fall behind the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from duewheel.core import lifecycle

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
MAPPED = ("pipeline/", "schemas/", "topics/", "infra/")


def _section(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", TEXT, re.DOTALL)
    assert found is not None
    return found[1].strip()


def _files() -> set[str]:
    listing = subprocess.run(["git", "ls-files", *MAPPED], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # An __init__.py says only what its folder is for, py.typed nothing, and what was released looks like what is.
    telling = (name for name in listing.splitlines() if not name.endswith(("__init__.py", "py.typed")))
    return {name for name in telling if not name.startswith("schemas/released/") and (ROOT / name).exists()}


def test_the_lifecycle_is_the_table_of_the_code() -> None:
    assert _section("lifecycle") == lifecycle.table()


def test_the_map_has_one_line_for_every_file() -> None:
    listed = re.findall(r"^\| `([^`]+)` \| \S.*\|$", _section("files"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == _files()
