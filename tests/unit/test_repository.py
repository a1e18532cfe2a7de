"""The repository itself: nothing in it belongs to one machine or one registry, and the core imports the standard library only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written apart, so that this file does not name what it forbids.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("registry", "npmjs", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
]
# A path in somebody's home, the checkout itself, or the folder above it.
MACHINE_PATHS = re.compile("|".join(["/(?:home|Users)/[a-z]", "/root" + "/", re.escape(f"{ROOT}/"), r"file:/{2,3}\w"]))


def _tracked_text() -> dict[str, str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {}
    for name in filter(None, listing.split("\0")):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):  # golden bytes; removed and not yet committed
            continue
    return texts


TRACKED = _tracked_text()


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_file_names_a_package_registry(host: str) -> None:
    assert [name for name, text in TRACKED.items() if host in text.lower()] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    found = {name: match.group() for name, text in TRACKED.items() if (match := MACHINE_PATHS.search(text))}
    assert found == {}


@pytest.mark.parametrize("name", ["runtime", "dev", "lock"])
def test_a_lock_holds_pins_with_hashes_and_no_options(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    pins = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[a-z0-9-]+==\S+( ; [^-]+)?\s+--hash=sha256:[0-9a-f]{64}\b", pin), pin


def test_the_dev_lock_installs_what_the_runtime_lock_installs() -> None:
    pins = {
        name: set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))
        for name in ("runtime", "dev")
    }
    assert pins["runtime"] <= pins["dev"]


def test_each_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = (ROOT / "requirements" / "dev.txt").read_text()
    declared = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["broker"],
        *project["dependency-groups"]["dev"],
    ]
    missing = [line for line in declared if not re.search(rf"^{re.split('[<>=~!; ]', line)[0]}==", lock, re.MULTILINE)]
    assert missing == [], "run `make lock`"


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


CORE = sorted((ROOT / "pipeline" / "duewheel" / "core").rglob("*.py"))


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_imports_the_standard_library_only(path: Path) -> None:
    foreign = {
        name for name in _imported(path) if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("duewheel.core")
    }
    # It reads cron lines, and is as pure as the rules: no I/O, no clock.
    assert foreign == ({"cronsim"} if path.name == "recurrence.py" else set())


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_reads_no_clock_and_rolls_no_dice(path: Path) -> None:
    assert _imported(path) & {"time", "random", "secrets", "threading", "socket", "asyncio"} == set()


def test_the_wheel_carries_its_data(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("schemas", "topics", "infra/broker"):
        expected = {f"duewheel/_data/{name}" for name in TRACKED if name.startswith(f"{folder}/")}
        assert expected, f"{folder}/ is empty"
        assert expected <= names
    assert "duewheel/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "pipeline/"))]
