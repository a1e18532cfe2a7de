"""`duewheel schedules` on a real broker: what the code declares runs, once, whoever deploys and however often."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duewheel import App
from duewheel.cli.main import cli
from tests.integration.desk import Desk, now_ms, raw_cancel, raw_schedule, turning

HOUR_S = 3_600


def schedules(desk: Desk, command: str, *arguments: str) -> Result:
    where = ["-b", desk.kafka.bootstrap_servers, "--prefix", desk.topology.prefix]
    result = CliRunner().invoke(cli, ["schedules", command, *arguments, *where])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def listed(desk: Desk, *arguments: str) -> dict[str, dict[str, Any]]:
    lines = schedules(desk, "list", "--json", *arguments).stdout.splitlines()
    return {each["job_id"]: each for each in map(json.loads, lines)}


def release(monkeypatch: pytest.MonkeyPatch, nightly: str, *names: str) -> str:
    """A version of the code."""
    app = App("billing")

    @app.cron(nightly, tz="Europe/Berlin", name="nightly")
    @app.task
    def close(payload: None) -> None: ...

    for name in names:
        app.every(HOUR_S, name=name)(close)
    module = ModuleType("billing_jobs")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "billing_jobs", module)
    return "billing_jobs:app"


def test_what_the_code_declares_runs_whoever_deploys(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.publish([raw_schedule("other", now_ms() + 9 * HOUR_S * 1_000), raw_schedule("billing:taken", now_ms() + 9 * HOUR_S * 1_000)])
    with turning(desk, desk.active()):
        path = release(monkeypatch, "30 2 * * *", "gone", "hourly")
        shown = schedules(desk, "diff", path)
        assert (shown.exit_code, shown.stdout) == (1, "create   billing:gone\ncreate   billing:hourly\ncreate   billing:nightly\n")
        assert listed(desk) == {}
        with ThreadPoolExecutor(3) as deployers:
            applied = [deployers.submit(schedules, desk, "apply", path) for _ in range(3)]
        assert [each.result().exit_code for each in applied] == [0, 0, 0]
        before = listed(desk)
        assert {job_id: each["next_ms"] > now_ms() for job_id, each in before.items()} == dict.fromkeys(
            ("billing:gone", "billing:hourly", "billing:nightly"), True
        )
        assert all(each["next_ms"] % (HOUR_S * 1_000) == 0 for job_id, each in before.items() if job_id != "billing:nightly")

        assert schedules(desk, "apply", path).stderr == "3 as declared\n"
        assert schedules(desk, "diff", path).exit_code == 0

        path = release(monkeypatch, "30 3 * * *", "hourly", "new")
        assert schedules(desk, "apply", path).stdout.splitlines() == [
            "prune    billing:gone",
            "created  billing:new",
            "changed  billing:nightly",
            "         recurrence.expression: 30 2 * * * -> 30 3 * * *",
        ]
        assert schedules(desk, "prune", path).exit_code == 2, "nobody is there to confirm it"
        assert schedules(desk, "prune", path, "--yes").stdout == "pruned   billing:gone\n"
        desk.publish([raw_cancel("billing:hourly")])
        while set(listed(desk)) != {"billing:new", "billing:nightly"}:
            pass
        assert schedules(desk, "apply", path).stdout == "revived  billing:hourly\n"
        after = listed(desk, "--app", "billing")
        assert set(after) == {"billing:hourly", "billing:new", "billing:nightly"}
        assert after["billing:nightly"]["next_ms"] == before["billing:nightly"]["next_ms"] + HOUR_S * 1_000
        assert after["billing:hourly"]["next_ms"] == before["billing:hourly"]["next_ms"]
        assert set(listed(desk, "--all")) == {*after, "billing:gone"}

        path = release(monkeypatch, "30 3 * * *", "hourly", "new", "taken")
        taken = CliRunner().invoke(cli, ["schedules", "apply", path, "-b", desk.kafka.bootstrap_servers, "--prefix", desk.topology.prefix])
        assert "billing:taken could not be created: its id is known, and stands for a job that does not recur" in str(taken.exception)
    assert desk.dispatches() == []
