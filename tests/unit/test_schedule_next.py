"""`duewheel schedule next`: what it shows, what it refuses, and that a task may still be called next."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from click.testing import CliRunner, Result

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.cli.main import cli
from duewheel.core.errors import Reason, RejectedJob

FROM = ["--from", "2030-01-01T00:00:00Z"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["schedule", "next", *arguments])


def lines(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_five_times_on_the_clocks_of_the_zone_and_in_utc() -> None:
    assert lines("0 9 * * mon-fri", "--tz", "Europe/Berlin", *FROM) == [
        "Tue 2030-01-01 09:00:00 +0100  2030-01-01T08:00:00.000Z  in 8h",
        "Wed 2030-01-02 09:00:00 +0100  2030-01-02T08:00:00.000Z  in 1d8h",
        "Thu 2030-01-03 09:00:00 +0100  2030-01-03T08:00:00.000Z  in 2d8h",
        "Fri 2030-01-04 09:00:00 +0100  2030-01-04T08:00:00.000Z  in 3d8h",
        "Mon 2030-01-07 09:00:00 +0100  2030-01-07T08:00:00.000Z  in 6d8h",
    ]


def test_as_json_each_time_is_a_line() -> None:
    found = [
        json.loads(line)
        for line in lines("30 2 * * *", "--tz", "Europe/Berlin", "--from", "2030-03-31T00:00:00Z", "--count", "2", "--json")
    ]
    assert found == [
        {
            "slot_ms": 1_901_149_200_000,
            "utc": "2030-03-31T01:00:00.000Z",
            "local": "2030-03-31T03:00:00.000+02:00",
            "zone": "Europe/Berlin",
        },
        {
            "slot_ms": 1_901_233_800_000,
            "utc": "2030-04-01T00:30:00.000Z",
            "local": "2030-04-01T02:30:00.000+02:00",
            "zone": "Europe/Berlin",
        },
    ]


def test_an_interval_counts_from_the_moment_given_and_rounds_it_up() -> None:
    assert lines("--every", "90s", "--from", "2030-01-01T00:00:00.0000001Z", "--count", "3") == [
        "Tue 2030-01-01 00:00:00 +0000  2030-01-01T00:00:00.001Z  in 0s",
        "Tue 2030-01-01 00:01:30 +0000  2030-01-01T00:01:30.001Z  in 1m30s",
        "Tue 2030-01-01 00:03:00 +0000  2030-01-01T00:03:00.001Z  in 3m",
    ]


def test_without_a_moment_it_is_now() -> None:
    now_ms = datetime.now().astimezone().timestamp() * 1_000
    (found,) = (json.loads(line) for line in lines("* * * * * *", "--count", "1", "--json"))
    assert now_ms - 1 <= found["slot_ms"] <= now_ms + 60_000


def test_what_ends_with_all_due_times_shows_what_there_is() -> None:
    assert len(lines("0 0 1 1 *", "--from", "2098-06-01T00:00:00Z", "--count", "9")) == 2


@pytest.mark.parametrize(
    "arguments,reason",
    [
        (["0 0 30 2 *"], Reason.NO_SLOT),
        (["0 25 * * *"], Reason.BAD_EXPRESSION),
        ([""], Reason.BAD_EXPRESSION),
        (["@daily", "--tz", "Europe/Berln"], Reason.BAD_ZONE),
        (["--every", "999ms"], Reason.TOO_FREQUENT),
        (["--every", "9000d"], Reason.BAD_RECURRENCE),
    ],
)
def test_what_the_rules_refuse(arguments: list[str], reason: Reason) -> None:
    result = run(*arguments, *FROM)
    assert isinstance(result.exception, RejectedJob)
    assert result.exception.reason == reason
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments,said",
    [
        ([], "give an expression"),
        (["@daily", "--every", "5m"], "give an expression"),
        (["@daily", "--from", "2030-01-01T00:00:00"], "no time zone"),
        (["@daily", "--from", "1893456000"], "2001-09-09"),
        (["@daily", "--count", "0"], "--count"),
        (["--every", "5"], "no duration"),
    ],
)
def test_what_cannot_be_meant(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_help_teaches() -> None:
    output = run("--help").output
    for part in ("minute hour day month weekday", "fri#3", "Examples:", "--every 90s", "docs/schedules.md"):
        assert part in output
    assert "schedule next [OPTIONS] [EXPRESSION]" in output
    assert "schedule [OPTIONS] TASK [PAYLOAD]" in CliRunner().invoke(cli, ["schedule", "--help"]).output


@pytest.mark.parametrize("arguments", [["--", "next"], ["--queue", "mail", "next"], ["--queue", "mail", "next", "1"]])
def test_a_task_may_be_called_next(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Told(Exception):
        pass

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_error: object) -> None: ...

        def schedule(self, **job: object) -> None:
            asked.append(str(job["task"]))
            raise Told

    def client(_kafka: KafkaConfig, *_rest: object) -> Client:
        return Client()

    monkeypatch.setattr("duewheel.wiring.producing_client", client)
    result = CliRunner().invoke(cli, ["schedule", *arguments])
    assert isinstance(result.exception, Told), result.output
    assert asked == ["next"]
