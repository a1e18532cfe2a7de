"""`duewheel demo` around its run: what it prints, how it ends, what it leaves behind. The run itself is tested on a real broker."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from duewheel.cli import demo
from duewheel.cli.main import cli
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.history import Entry, Happening, Source
from duewheel.demo.course import Course
from duewheel.demo.evidence import Evidence, Execution, Verdict


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    structlog.reset_defaults()


def _verdict(*, early: bool) -> Verdict:
    evidence = Evidence()
    source = Source(topic="t", partition=0, offset=0, written_ms=0)
    for event in (Happening.SCHEDULE, Happening.DISPATCHED, Happening.ATTEMPT_SUCCEEDED, Happening.SUCCEEDED):
        evidence.entry(Entry(source=source, at_ms=110, event=event, job_id="a", due_ms=100, token=7, generation=1))
    evidence.execution(Execution(7, 99 if early else 104, "a"))
    return evidence.verdict(["a"])


def _run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["demo", "-b", "127.0.0.1:1", "--folder", str(folder), *arguments])


@pytest.fixture
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "remove_installation", lambda *_arguments: None)
    monkeypatch.setattr(Course, "__init__", lambda _self, *_arguments: None)


@pytest.mark.usefixtures("_no_cluster")
def test_kept_promises_end_well_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Course, "run", lambda _self: _verdict(early=False))
    result = _run(tmp_path)
    assert result.exit_code == 0, result.output
    assert "Every promise was kept." in result.output
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.usefixtures("_no_cluster")
def test_a_broken_promise_is_an_error_that_keeps_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Course, "run", lambda _self: _verdict(early=True))
    result = _run(tmp_path, "--json")
    assert isinstance(result.exception, demo.BrokenPromise)
    kept = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert "1 early" in str(result.exception)
    assert str(kept) in str(result.exception)
    assert (kept / "demo.log").exists()
    assert json.loads(result.stdout.splitlines()[-1])["early"] == 1


@pytest.mark.usefixtures("_no_cluster")
def test_what_one_failed_demo_kept_the_next_one_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Course) -> Verdict:
        raise EnvironmentFailure("no")

    monkeypatch.setattr(Course, "run", fail)
    assert isinstance(_run(tmp_path).exception, EnvironmentFailure)
    assert [path for path in tmp_path.iterdir() if path.is_dir()]
    monkeypatch.setattr(Course, "run", lambda _self: _verdict(early=False))
    assert _run(tmp_path).exit_code == 0
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.usefixtures("_no_cluster")
def test_keep_keeps_beyond_the_next_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Course, "run", lambda _self: _verdict(early=False))
    kept = _run(tmp_path, "--keep")
    assert kept.exit_code == 0
    assert _run(tmp_path).exit_code == 0
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert str(folders[0]) in kept.output
