"""`duewheel encode`, and how times, payloads and headers are typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from duewheel.adapters.avro import codec
from duewheel.cli.main import cli
from duewheel.cli.times import duration, instant
from duewheel.core.errors import BadConfiguration, Reason, RejectedJob
from duewheel.core.limits import PAYLOAD_BYTES_MAX
from duewheel.core.model import Change, Schedule
from tests.recurring import cron, every, every_after

AT = ["--at", "2030-01-01T00:00:00Z"]


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["encode", *arguments], input=stdin)


def scheduled(*arguments: str, stdin: str | bytes | None = None) -> Schedule:
    result = run("schedule", "send_email", "--job-id", "j", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    decoded = codec.decode_command(result.stdout_bytes)
    assert decoded[0] == "schedule"
    return decoded[1]


def refusal(*arguments: str) -> str:
    result = run("schedule", "t", "--job-id", "j", *arguments)
    assert result.exit_code == 2
    assert result.stdout_bytes == b""
    return " ".join(result.stderr.split())


def test_encode_schedule_writes_the_bytes_and_nothing_else() -> None:
    command = scheduled(
        '{"to": "ada"}', *AT, "-q", "mail", "-H", "trace=a=b", "-H", "empty=", "--on-conflict", "replace", "--retention", "2h"
    )
    assert command == {
        "job_id": "j",
        "due_ms": 1_893_456_000_000,
        "created_ms": command["created_ms"],
        "on_conflict": "REPLACE",
        "retention_ms": 7_200_000,
        "queue": "mail",
        "limits": None,
        "recurrence": None,
        "delivery": None,
        "work": {
            "task": "send_email",
            "content_type": "application/json",
            "payload": b'{"to":"ada"}',
            "headers": {"trace": "a=b", "empty": ""},
            "policy": None,
        },
    }


def test_limits_and_a_policy_are_said_by_options() -> None:
    command = scheduled(
        *AT, "--expires-at", "2030-01-02T00:00:00Z", "--total-timeout", "2d", "--crash-limit", "7", "--run-timeout", "1m30s",
        "--attempts", "9", "--retry-delay", "1s", "--retry-delay", "10s", "--retry-factor", "3", "--retry-jitter", "0.25",
    )  # fmt: skip
    assert command["limits"] == {"expires_ms": 1_893_542_400_000, "total_timeout_ms": 172_800_000, "crashes_max": 7}
    assert command["work"]["policy"] == {
        "attempts_max": 9,
        "delays_ms": [1_000, 10_000],
        "factor": 3.0,
        "delay_ms_max": 0,
        "jitter": 0.25,
        "give_up_on": [],
        "retry_on": [],
        "run_timeout_ms": 90_000,
    }


def test_what_no_option_says_is_left_to_the_task() -> None:
    policy = scheduled("--attempts", "1")["work"]["policy"]
    assert policy is not None
    assert {name: value for name, value in policy.items() if value} == {"attempts_max": 1, "factor": 1.0}
    assert scheduled("--attempts", "1")["limits"] is None


@pytest.mark.parametrize("given", ["--retry-factor", "--retry-jitter"])
def test_a_factor_or_jitter_without_a_wait_is_refused(given: str) -> None:
    assert "differ from --retry-delay; give that too" in refusal(given, "0.5")


@pytest.mark.parametrize(
    "given, error, said",
    [
        (["--attempts", "0"], BadConfiguration, "attempts of a retry policy: 0; it must be a whole number from 1,"),
        (["--retry-delay", "31d"], BadConfiguration, "30 days"),
        (["--retry-delay", "1s", "--retry-jitter", "2"], BadConfiguration, "jitter of a retry policy: 2.0; it must be a number from 0"),
        (["--run-timeout", "31d"], RejectedJob, "run_timeout_ms 2678400000 is outside 0 to 2592000000"),
        (["--crash-limit", "101"], RejectedJob, "crashes_max 101 is outside 0 to 100"),
        (["--expires-at", "2001-09-10T00:00:00Z"], RejectedJob, "is not after due_ms"),
    ],
)  # fmt: skip
def test_limits_and_policies_that_cannot_be_are_refused(given: list[str], error: type[Exception], said: str) -> None:
    result = run("schedule", "t", "--job-id", "j", *given)
    assert isinstance(result.exception, error)  # main() makes it one line and exit code 2
    assert said in str(result.exception)


def test_encode_cancel_writes_the_bytes() -> None:
    kind, command = codec.decode_command(run("cancel", "jöb").stdout_bytes)[:2]
    assert (kind, command["job_id"]) == ("cancel", "jöb")
    for option, reach in (((), "DEFAULT"), (("--reach", "job"), "JOB"), (("--reach", "running"), "RUNNING")):
        decoded = codec.decode_command(run("cancel", "j", *option).stdout_bytes)
        assert decoded[0] == "cancel"
        assert decoded[1]["reach"] == reach


@pytest.mark.parametrize("word", ["redrive", "drop"])
def test_encode_redrive_and_drop_write_the_bytes(word: str) -> None:
    kind, command = codec.decode_command(run(word, "jöb", "4711").stdout_bytes)[:2]
    assert (kind, command["job_id"], command.get("token")) == (word, "jöb", 4_711)
    assert run(word, "jöb", "4711", "--key").stdout_bytes == "jöb".encode()
    error = run(word, "jöb", "0").exception
    assert isinstance(error, RejectedJob)
    assert error.reason == Reason.BAD_TOKEN


def test_hex_and_key() -> None:
    assert bytes.fromhex(run("cancel", "j", "--hex").stdout)[:2] == b"\xc3\x01"
    assert run("cancel", "jöb", "--key").stdout_bytes == "jöb".encode()
    assert run("schedule", "t", "--job-id", "jöb", "--key", "--hex").stdout == "jöb".encode().hex() + "\n"


def test_without_an_id_the_key_would_be_another_each_time() -> None:
    result = run("schedule", "t")
    assert result.exit_code == 2
    assert "--job-id" in result.stderr


def test_each_option_can_come_from_the_environment() -> None:
    environment = {"DUEWHEEL_JOB_ID": "j", "DUEWHEEL_AT": "1893456000000", "DUEWHEEL_QUEUE": "mail", "DUEWHEEL_HEADER": "a=1 b=2"}
    command = codec.decode_command(CliRunner(env=environment).invoke(cli, ["encode", "schedule", "t"]).stdout_bytes)[1]
    assert (command["job_id"], command.get("due_ms"), command.get("queue")) == ("j", 1_893_456_000_000, "mail")


# ------------------------------------------------------------------------------------------------------------------ payload


@pytest.mark.parametrize("text, payload", [("7", b"7"), ('"text"', b'"text"'), ("null", b"null"), ("[1,  2]", b"[1,2]")])
def test_a_payload_is_json(text: str, payload: bytes) -> None:
    assert scheduled(text)["work"]["payload"] == payload


def test_without_a_payload_it_is_null() -> None:
    assert scheduled()["work"]["payload"] == b"null"


def test_a_payload_comes_from_standard_input() -> None:
    assert scheduled("-", stdin='{"a": 1}')["work"]["payload"] == b'{"a":1}'


def test_a_file_travels_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x00")
    for work in (
        scheduled("--payload-file", str(tmp_path / "cat.png"))["work"],
        scheduled("--payload-file", "-", stdin=b"\x89PNG\r\n\x00")["work"],
    ):
        assert (work["content_type"], work["payload"]) == ("application/octet-stream", b"\x89PNG\r\n\x00")


def test_two_payloads_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "both given" in refusal("{}", "--payload-file", str(tmp_path / "file"))


def test_a_payload_that_is_not_json_is_refused_with_the_remedy() -> None:
    assert "'hello' is not JSON" in refusal("hello")


def test_W11_a_file_over_the_limit_is_refused_with_the_sizes(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(PAYLOAD_BYTES_MAX + 1))
    result = run("schedule", "t", "--job-id", "j", "--payload-file", str(tmp_path / "big"))
    assert isinstance(result.exception, RejectedJob)  # main() makes it one line and exit code 2
    assert (result.exception.reason, result.stdout_bytes) == (Reason.PAYLOAD_TOO_LARGE, b"")


@pytest.mark.parametrize("header", ["name", "=value", ""])
def test_headers_have_a_name_and_a_value(header: str) -> None:
    assert f"{header!r} is not of the form" in refusal("-H", header)


def test_a_header_given_twice_is_refused() -> None:
    assert "'a=2'" in refusal("-H", "a=1", "-H", "a=2")


# ------------------------------------------------------------------------------------------------------------------ times


@pytest.mark.parametrize(
    "text, expected",
    [
        ("10s", timedelta(seconds=10)),
        ("250ms", timedelta(milliseconds=250)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5d", timedelta(hours=36)),
        ("0s", timedelta(0)),
        ("0.0000001s", timedelta(microseconds=1)),
        ("0.3s", timedelta(microseconds=300_000)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "10", "s", "10 s", "-5s", "5x", "1h30", "1e3s", "inf", "9999999999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"duration|longer"):
        duration(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2030-01-31T18:00:00Z", datetime(2030, 1, 31, 18, tzinfo=UTC)),
        ("2030-01-31T18:00:00+01:00", datetime(2030, 1, 31, 18, tzinfo=timezone(timedelta(hours=1)))),
        ("20300131T180000Z", datetime(2030, 1, 31, 18, tzinfo=UTC)),
        ("1893456000000", 1_893_456_000_000),
        ("-1893456000000", -1_893_456_000_000),
        ("2030-01-31T18:00:00.123456Z", datetime(2030, 1, 31, 18, 0, 0, 123_456, tzinfo=UTC)),
        ("2030-01-31T18:00:00.1234560000Z", datetime(2030, 1, 31, 18, 0, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_instants(text: str, expected: datetime | int) -> None:
    assert instant(text) == expected


def test_T7_a_fraction_beyond_microseconds_never_early() -> None:
    assert instant("2030-01-31T18:00:00.0000001Z") == datetime(2030, 1, 31, 18, 0, 0, 1, tzinfo=UTC)
    assert scheduled("--at", "2030-01-01T00:00:00.0000000001Z")["due_ms"] == 1_893_456_000_001


def test_a_time_without_a_zone_is_refused_with_the_remedy() -> None:
    assert "no time zone; end it with Z" in refusal("--at", "2030-01-31T18:00:00")


@pytest.mark.parametrize("text", ["", "tomorrow", "2030-13-01T00:00:00Z", "12345678"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        instant(text)


def test_T4_seconds_for_milliseconds_are_refused() -> None:
    result = run("schedule", "t", "--job-id", "j", "--at", "1893456000")
    assert isinstance(result.exception, RejectedJob)
    assert result.exception.reason == Reason.DUE_TOO_EARLY
    assert "1893456000000" in str(result.exception)  # what was probably meant


def test_encode_schedule_takes_everything_that_makes_a_job_recur(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scheduled(*AT, "--every", "90s")["recurrence"] == every(90_000)
    assert scheduled(*AT, "--every-after", "10m", "--max-runs", "3")["recurrence"] == every_after(600_000, runs_max=3)
    line = ["--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--start", "2030-01-01T00:00:00Z", "--end", "2031-01-01T00:00:00Z"]
    rules = ["--jitter", "5s", "--misfire", "all", "--misfire-limit", "3", "--grace", "30s", "--overlap", "allow", "--overlap-limit", "2"]
    bounds = {"start_ms": 1_893_456_000_000, "end_ms": 1_924_992_000_000, "jitter_ms": 5_000, "grace_ms": 30_000}
    expected = cron("30 2 * * *", "Europe/Berlin", **bounds, misfire="ALL", misfire_max=3, overlap="ALLOW", overlap_max=2)
    assert scheduled(*AT, *line, *rules)["recurrence"] == expected
    monkeypatch.setenv("DUEWHEEL_TZ", "Europe/Berlin")
    assert scheduled(*AT)["recurrence"] is None


# --- changes ---


def changed(*arguments: str, stdin: str | bytes | None = None) -> Change:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    decoded = codec.decode_command(result.stdout_bytes)
    assert decoded[0] == "change"
    return decoded[1]


@pytest.mark.parametrize("word, action", [("pause", "PAUSE"), ("resume", "RESUME"), ("run-now", "RUN_NOW")])
def test_encode_writes_the_bytes_of_changes_that_take_an_id_alone(word: str, action: str) -> None:
    command = changed(word, "jöb")
    assert (command["job_id"], command["action"], command["created_ms"] > 0) == ("jöb", action, True)
    assert {value for name, value in command.items() if name not in ("job_id", "action", "created_ms")} == {None}
    assert run(word, "jöb", "--key").stdout_bytes == "jöb".encode()


def test_encode_update_gives_what_was_said_and_nothing_else() -> None:
    nothing = dict.fromkeys(("due_ms", "retention_ms", "limits", "recurrence", "payload", "content_type", "headers", "policy"))
    common = {"job_id": "j", "action": "UPDATE"}

    def given(*arguments: str, stdin: str | bytes | None = None) -> dict[str, object]:
        command = changed("update", "j", *arguments, stdin=stdin)
        return {name: value for name, value in command.items() if name != "created_ms"}

    assert given('{"to": 7}') == {**common, **nothing, "payload": b'{"to":7}', "content_type": "application/json"}
    binary = {"payload": b"\0", "content_type": "application/octet-stream"}
    assert given("--payload-file", "-", stdin=b"\0") == {**common, **nothing, **binary}
    assert given(*AT, "-H", "a=b") == {**common, **nothing, "due_ms": 1_893_456_000_000, "headers": {"a": "b"}}
    limits = {"expires_ms": 0, "total_timeout_ms": 60_000, "crashes_max": 3}
    assert given("--retention", "2h", "--total-timeout", "1m", "--crash-limit", "3") == {
        **common, **nothing, "retention_ms": 7_200_000, "limits": limits,
    }  # fmt: skip
    policy = changed("update", "j", "--attempts", "3", "--retry-delay", "1m", "--run-timeout", "5s")["policy"]
    assert policy is not None
    assert (policy["attempts_max"], policy["delays_ms"], policy["run_timeout_ms"]) == (3, [60_000], 5_000)
    assert changed("update", "j", "--cron", "30 3 * * *", "--tz", "Europe/Berlin")["recurrence"] == cron("30 3 * * *", "Europe/Berlin")


@pytest.mark.parametrize("arguments, why", [((), "changes nothing"), (("--jitter", "1s"), "exactly one of them")])
def test_an_update_that_says_nothing_or_half_of_it_is_refused(arguments: tuple[str, ...], why: str) -> None:
    result = run("update", "j", *arguments)
    assert isinstance(result.exception, RejectedJob)
    assert why in str(result.exception)
    assert result.stdout_bytes == b""
