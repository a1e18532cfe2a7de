"""`duewheel dead` over a topic and a client that are only there in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

from duewheel.cli import dead_change, dead_reading
from duewheel.cli.dead_view import LIST_LIMIT_DEFAULT
from duewheel.cli.job_view import PAYLOAD_CHARS_SHOWN_MAX
from duewheel.cli.main import cli
from duewheel.core.errors import EnvironmentFailure
from tests.dead import DIED_MS, ERROR, closed, died, refused

Written = tuple[bytes | None, bytes | None]


class Message:
    """A record of the dead-letter topic."""

    def __init__(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        self._offset, self._key, self._value = offset, key, value

    def topic(self) -> str:
        return "duewheel.dead-letter"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, DIED_MS


class Topic:
    """The dead-letter topic, and the intake behind which owners obey or do not.

    Attributes:
        sent: the commands that came, as (command, job id, token).
        obeys: what an owner writes to the dead-letter topic upon a command.
        later: what somebody else writes after the first reading.
    """

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.sent: list[tuple[str, str, int]] = []
        self.obeys: Callable[[str, str, int], Iterable[Written]] = lambda command, job_id, token: ()
        self.later: list[Written] = []
        self.scans = 0

    def write(self, *records: Written) -> None:
        self.records += [Message(len(self.records) + n, key, value) for n, (key, value) in enumerate(records)]

    def scan(self, _kafka: object, topic: str, patience_s: float) -> Scan:
        assert topic == "duewheel.dead-letter"
        assert patience_s == 30
        self.scans += 1
        return Scan(self)

    def client(self, _kafka: object, _topology: object, timeout_s: float) -> Client:
        assert timeout_s == 30
        return Client(self)


class Scan:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.done = 0

    @property
    def count(self) -> int:
        return len(self._topic.records)

    def to_end(self) -> Iterator[list[Message]]:
        end = len(self._topic.records)
        while self.done < end:
            yield self.poll(0)
        self._topic.write(*self._topic.later)
        self._topic.later = []

    def poll(self, _timeout_s: float) -> list[Message]:
        begin, self.done = self.done, min(self.done + 2, len(self._topic.records))
        return self._topic.records[begin : self.done]

    def at(self, partition: int, offset: int) -> Message | None:
        return self._topic.records[offset]

    def close(self) -> None:
        pass


class Client:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def redrive_many(self, runs: Iterable[tuple[str, int]], *, on_progress: Callable[[int], None]) -> None:
        self._send("redrive", runs)

    def drop_many(self, runs: Iterable[tuple[str, int]], *, on_progress: Callable[[int], None]) -> None:
        self._send("drop", runs)

    def _send(self, command: str, runs: Iterable[tuple[str, int]]) -> None:
        for job_id, token in runs:
            self._topic.sent.append((command, job_id, token))
            self._topic.write(*self._topic.obeys(command, job_id, token))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(dead_reading, "Scan", topic.scan)
    monkeypatch.setattr("duewheel.wiring.producing_client", topic.client)
    return topic


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli, ["dead", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = run("list", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def names(*arguments: str) -> list[tuple[str, int]]:
    return [(entry["job_id"], entry["token"]) for entry in listed(*arguments)]


# --------------------------------------------------------------------------------------------------------------------- list


def test_the_list_holds_what_is_open(topic: Topic) -> None:
    topic.write(died("a", 7), refused("x"), died("b", 8), closed("a", 7), died("a", 12))
    assert names() == [("b", 8), ("a", 12)] or names() == [("a", 12), ("b", 8)]
    [entry] = [entry for entry in listed() if entry["job_id"] == "b"]
    assert (entry["task"], entry["queue"], entry["attempts"], entry["crashes"], entry["reason"]) == ("mail.send", "mail", 5, 1, "failed")
    assert (entry["error"], entry["message"], entry["payload_bytes"]) == (ERROR["type"], ERROR["message"], 12)
    assert (entry["died_ms"], entry["died"], entry["offset"]) == (DIED_MS, "2026-03-01T12:00:00.007Z", 2)


def test_all_holds_closed_runs_too_with_what_became_of_them(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8), closed("a", 7, "DROPPED", DIED_MS + 5))
    assert [(entry["job_id"], entry["how"], entry["closed_ms"]) for entry in listed("--all")] == [
        ("a", "DROPPED", DIED_MS + 5),
        ("b", None, None),
    ]
    text = run("list", "--all").stdout
    assert "dropped" in text
    assert "1 dead run, 1 closed (mail.send 2, smtplib.SMTPDataError 2)" in text


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["--id", "a"], "a"),
        (["--id", "a", "--id", "b"], "ab"),
        (["--task", "mail.send"], "abd"),
        (["-q", "reports"], "c"),
        (["--error", "SMTPDataError"], "acd"),
        (["--error", "builtins.OSError"], "b"),
        (["--error", "OSError", "--queue", "reports"], ""),
        (["--reason", "crash_limit"], "d"),
        (["--since", "2026-03-01T12:00:01Z"], "d"),
        (["--until", f"{DIED_MS + 1_000}"], "abc"),
        (["--since", "1ms"], ""),
    ],
)
def test_filters_choose(topic: Topic, arguments: list[str], found: str) -> None:
    topic.write(
        died("a", 1),
        died("b", 2, error={"type": "builtins.OSError", "message": "away", "traceback": ""}),
        died("c", 3, queue="reports", task="report"),
        died("d", 4, reason="crash_limit", died_ms=DIED_MS + 1_000),
    )
    assert "".join(job_id for job_id, _ in names(*arguments)) == found


def test_the_table_is_for_people(topic: Topic) -> None:
    topic.write(died("welcome-ada", 77), refused("x"))
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["died", "(UTC)", "job", "token", "task", "died", "of"]
    assert " ".join(lines[1].split()) == ("2026-03-01 12:00:00 welcome-ada 77 mail.send @mail smtplib.SMTPDataError: no such address")
    assert lines[2:] == ["1 dead run (mail.send 1, smtplib.SMTPDataError 1)", "1 refused records beside; see them with --refused"]


def test_a_reason_is_shown_where_it_says_more_than_the_error(topic: Topic) -> None:
    topic.write(died("a", 7, reason="crash_limit"), died("b", 8, reason="total_timeout", error=None), died("c", 9, error=None))
    causes = [" ".join(line.split()[6:]) for line in run("list").stdout.splitlines()[1:4]]
    assert causes == [f"crash_limit {ERROR['type']}: {ERROR['message']}", "total_timeout", "failed"]


def test_where_nothing_died_the_list_says_so(topic: Topic) -> None:
    assert run("list").stdout == "0 dead runs\n"
    assert listed() == []


def test_the_table_shows_the_latest_and_says_that_there_are_more(topic: Topic) -> None:
    topic.write(*(died(f"job-{n}", n, died_ms=DIED_MS + n) for n in range(1, LIST_LIMIT_DEFAULT + 11)))
    text = run("list").stdout
    assert "job-10 " not in text
    assert "job-11 " in text
    assert f"{LIST_LIMIT_DEFAULT + 10} dead runs" in text
    assert f"shown are the latest {LIST_LIMIT_DEFAULT}" in text
    assert len(listed()) == LIST_LIMIT_DEFAULT + 10
    assert names("--limit", "2") == [(f"job-{n}", n) for n in (LIST_LIMIT_DEFAULT + 9, LIST_LIMIT_DEFAULT + 10)]


def test_refused_records_are_listed_apart(topic: Topic) -> None:
    topic.write(died("a", 7), refused("x"), refused("y", reason="bad_queue"))
    result = run("list", "--refused")
    assert "2 refused records, 2 of them shown" in result.stdout
    assert "due_too_early: due_ms 1893456000 lies in 1970 (duewheel.intake [1] @5)" in result.stdout
    assert [entry["job_id"] for entry in listed("--refused", "--reason", "bad_queue")] == ["y"]
    assert [entry["error"] for entry in listed("--refused", "--id", "x")] == ["due_too_early"]
    assert listed("--refused", "--until", f"{DIED_MS}") == []


@pytest.mark.parametrize("filtered", [["--task", "t"], ["--queue", "q"], ["--error", "E"], ["--all"]])
def test_refused_records_have_nothing_of_a_run(topic: Topic, filtered: list[str]) -> None:
    result = run("list", "--refused", *filtered)
    assert (result.exit_code, topic.scans) == (2, 0)
    assert "refused records have no task" in result.stderr


def test_a_record_that_cannot_be_read_is_counted_and_hides_nothing(topic: Topic) -> None:
    topic.write((b"x", b"\xc3\x01????????????"), died("a", 7))
    result = run("list", "--json")
    assert "1 records of the dead-letter topic could not be read" in result.stderr
    assert json.loads(result.stdout)["job_id"] == "a"


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "\u202egnp.exe", "[red]x"])
def test_nothing_from_outside_reaches_the_terminal_as_a_command(topic: Topic, hostile: str) -> None:
    error = {"type": hostile, "message": hostile, "traceback": hostile}
    topic.write(died(hostile, 7, task=hostile, queue=hostile, reason=hostile, error=error, headers={hostile: hostile}))
    topic.write(refused(hostile, reason=hostile))
    escaped = hostile.encode("unicode_escape").decode() if hostile != "[red]x" else hostile
    for arguments in (["list"], ["list", "--refused"], ["show", hostile], ["redrive", "--id", hostile], ["drop", "--id", hostile]):
        output = click.unstyle(run(*arguments).output)
        assert all(line.isprintable() for line in output.split("\n")), arguments
        assert escaped in output, arguments


# --------------------------------------------------------------------------------------------------------------------- show


def shown(*arguments: str) -> dict[str, Any]:
    result = run("show", "--json", *arguments)
    assert result.exit_code == 0, result.output
    decoded: dict[str, Any] = json.loads(result.stdout)
    return decoded


def test_show_tells_everything(topic: Topic) -> None:
    policy = {
        "attempts_max": 5, "delays_ms": [1_000, 4_000], "factor": 2.0, "delay_ms_max": 60_000, "jitter": 0.5, "give_up_on": ["ValueError"],
        "retry_on": [], "run_timeout_ms": 30_000,
    }  # fmt: skip
    limits = {"expires_ms": DIED_MS + 1, "total_timeout_ms": 60_000, "crashes_max": 2}
    topic.write(died("other", 1), died("a", 7, policy=policy, limits=limits, headers={"trace": "1-2"}))
    text = click.unstyle(run("show", "a").stdout)
    for told in (
        "job       a\n",
        "run       token 7, generation 1, due 2026-03-01T11:59:51.007Z\n",
        "task      mail.send @mail\n",
        "died      2026-03-01T12:00:00.007Z, failed, after 5 attempts, of which 1 took the worker along\n",
        "now       open\n",
        "policy    5 attempts, waits of 1,000, 4,000 ms, then times 2, at most 60,000 ms, jitter 0.5, gives up on ValueError, "
        "run timeout 30,000 ms\n",
        "limits    expires 2026-03-01T12:00:00.008Z, total timeout 60,000 ms, at most 2 crashes\n",
        "header    trace=1-2\n",
        'payload   application/json, 12 bytes\n  {\n    "to": "ada"\n  }\n',
        "    1  token 3  2026-03-01T11:59:55.018Z  retry  in 11 ms  on w1  smtplib.SMTPDataError: no such address\n",
        "error     smtplib.SMTPDataError: no such address\n  Traceback (most recent call last):\n",
    ):
        assert told in text
    whole = shown("a")
    assert (whole["job_id"], whole["token"], whole["payload"], whole["payload_base64"]) == ("a", 7, {"to": "ada"}, None)
    assert (whole["policy"], whole["limits"], whole["headers"], whole["failure"]) == (policy, limits, {"trace": "1-2"}, ERROR)
    assert [ending["attempt"] for ending in whole["endings"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "content_type, payload, decoded",
    [
        ("application/json", b"null", True),
        ("application/json", b'"text"', True),
        ("application/json", b"{", False),
        ("application/json", b"NaN", False),
        ("application/json", b"[" * 100_000, False),
        ("application/json", b"", False),
        ("application/octet-stream", b"\x00\xff{}", False),
        ("application/octet-stream", b"{}", False),
    ],
)
def test_a_payload_is_shown_as_json_or_kept_in_base64(topic: Topic, content_type: str, payload: bytes, decoded: bool) -> None:
    topic.write(died("a", 7, content_type=content_type, payload=payload))
    whole = shown("a")
    if decoded:
        assert (whole["payload"], whole["payload_base64"]) == (json.loads(payload), None)
    else:
        assert (whole["payload"], base64.b64decode(whole["payload_base64"])) == (None, payload)
    assert run("show", "a").exit_code == 0


def test_a_large_payload_is_cut_for_people_only(topic: Topic) -> None:
    topic.write(
        died("a", 7, payload=b'"%s"' % (b"x" * 500_000)), died("b", 8, content_type="application/octet-stream", payload=b"y" * 500_000)
    )
    assert run("show", "a").stdout.count("x") < PAYLOAD_CHARS_SHOWN_MAX + 10
    assert "more characters; --json has all of it" in run("show", "a").stdout
    assert "499,936 more bytes; --json has all of them, in base64" in run("show", "b").stdout
    assert shown("a")["payload"] == "x" * 500_000


def test_of_several_deaths_the_latest_is_shown_or_the_one_asked_for(topic: Topic) -> None:
    topic.write(died("a", 7), closed("a", 7), died("a", 12))
    assert (shown("a")["token"], shown("a")["how"]) == (12, None)
    assert (shown("a", "--token", "7")["token"], shown("a", "--token", "7")["how"]) == (7, "REDRIVEN")
    assert "also died 2026-03-01T12:00:00.007Z, token 7, redriven" in run("show", "a").stdout
    assert "now       redriven at 2026-03-01T12:01:00.007Z" in run("show", "a", "--token", "7").stdout


def test_a_job_that_did_not_die_is_said_not_to_have(topic: Topic) -> None:
    topic.write(died("a", 7))
    unknown, other = run("show", "b"), run("show", "a", "--token", "8")
    assert (unknown.exit_code, other.exit_code) == (2, 2)
    assert "no run of job 'b' died" in unknown.stderr
    assert "job 'a' did not die with token 8, but with 7" in other.stderr


# --------------------------------------------------------------------------------------------------------------------- redrive, drop


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_a_run_named_by_its_id_is_taken_without_a_question(topic: Topic, command: str) -> None:
    topic.write(died("a", 7), died("b", 8), closed("a", 7), died("a", 12))
    result = run(command, "--id", "a")
    assert (result.exit_code, topic.sent) == (0, [(command, "a", 12)])
    assert result.stdout == f"a (token 12) {command} requested\n"
    assert result.stderr == f"1 {command} command sent\n"


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_what_is_closed_is_left_alone(topic: Topic, command: str) -> None:
    topic.write(died("a", 7), closed("a", 7))
    result = run(command, "--id", "a")
    assert (result.exit_code, result.stdout, topic.sent) == (0, "", [])
    assert result.stderr.splitlines() == ["no dead run of a is open (any more)", f"nothing to {command}"]


def obedient(command: str, job_id: str, token: int) -> list[Written]:
    return [closed(job_id, token, "REDRIVEN" if command == "redrive" else "DROPPED")]


def test_what_may_not_start_any_more_is_not_redriven_and_said_so(topic: Topic) -> None:
    limits = {"expires_ms": DIED_MS + 1, "total_timeout_ms": 0, "crashes_max": 0}
    topic.write(died("late", 7, limits=limits), died("open", 8))
    result = run("redrive", "--everything", "--yes")
    assert "late: no attempt may start after 2026-03-01T12:00:00.008Z; schedule it anew, or drop it" in result.stderr
    assert topic.sent == [("redrive", "open", 8)]


def test_the_same_command_twice_redrives_once(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8))
    topic.obeys = obedient
    first, second = run("redrive", "--task", "mail.send", "--yes"), run("redrive", "--task", "mail.send", "--yes")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert topic.sent == [("redrive", "a", 7), ("redrive", "b", 8)]
    assert second.stderr == "nothing to redrive\n"


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_who_chooses_nothing_is_told_how_to(topic: Topic, command: str) -> None:
    topic.write(died("a", 7))
    result = run(command, "--yes")
    assert (result.exit_code, topic.scans) == (2, 0)
    assert f"say which runs to {command}: --id" in " ".join(result.stderr.split())
    run(command, "--everything", "--yes")
    assert topic.sent == [(command, "a", 7)]


def test_without_a_terminal_filters_need_a_yes(topic: Topic) -> None:
    topic.write(died("a", 7))
    result = run("redrive", "--task", "mail.send")
    assert (result.exit_code, topic.scans) == (2, 0)
    assert "say --yes to redrive it" in " ".join(result.stderr.split())


@pytest.mark.parametrize("answer, exit_code, sent", [("y\n", 0, [("drop", "a", 7)]), ("n\n", 1, []), ("\n", 1, [])])
def test_on_a_terminal_filters_are_asked_about(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, answer: str, exit_code: int, sent: list[tuple[str, str, int]]
) -> None:
    monkeypatch.setattr(dead_change, "is_interactive", lambda: True)
    topic.write(died("a", 7))
    result = run("drop", "--id", "a", "--task", "mail.send", stdin=answer)
    assert "drop 1 dead run (mail.send 1, smtplib.SMTPDataError 1)? [y/N]" in result.stderr
    assert (result.exit_code, topic.sent) == (exit_code, sent)


def test_a_dry_run_sends_nothing_and_asks_nothing(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8, task="other"))
    result = run("redrive", "--task", "other", "--dry-run", "--json")
    assert [json.loads(line)["job_id"] for line in result.stdout.splitlines()] == ["b"]
    assert result.stderr == "nothing was sent; without --dry-run this would redrive 1 dead run\n"
    assert (result.exit_code, topic.sent) == (0, [])


def test_wait_tells_what_became_of_each(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8), died("c", 9))
    # Between the list and our command somebody drops b, and c is redefined.
    topic.obeys = lambda command, job_id, token: [closed(job_id, token, {"a": "REDRIVEN", "b": "DROPPED", "c": "REPLACED"}[job_id])]
    result = run("redrive", "--everything", "--yes", "--wait")
    assert result.exit_code == 0
    assert [line.split()[:4] for line in result.stdout.splitlines()] == [
        ["a", "(token", "7)", "redriven"],
        ["b", "(token", "8)", "dropped"],
        ["c", "(token", "9)", "replaced"],
    ]
    assert result.stderr == "3 redrive commands sent; 1 redriven; 2 dropped, replaced by somebody else before\n"


def test_what_somebody_else_redrove_after_the_list_is_not_sent(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8))
    topic.later = [closed("a", 7)]
    topic.obeys = obedient
    result = run("redrive", "--everything", "--yes", "--wait", "--json")
    assert topic.sent == [("redrive", "b", 8)]
    told = {entry["job_id"]: (entry["sent"], entry["how"]) for entry in map(json.loads, result.stdout.splitlines())}
    assert told == {"a": (False, "REDRIVEN"), "b": (True, "REDRIVEN")}
    topic.write(died("a", 12), died("b", 13))
    topic.later = [closed("a", 12)]
    result = run("redrive", "--everything", "--yes", "--wait")
    assert result.stderr == "1 redrive command sent; 1 redriven; 1 redriven by somebody else before\n"


def test_wait_does_not_wait_for_ever(topic: Topic) -> None:
    topic.write(died("a", 7), died("b", 8))
    topic.obeys = lambda command, job_id, token: [closed(job_id, token)] if job_id == "a" else []
    with pytest.raises(EnvironmentFailure, match=r"1 of 2 dead runs were not closed within 0\.05 s; the commands are durable"):
        run("redrive", "--everything", "--yes", "--wait", "--wait-timeout", "50ms")
    assert topic.sent == [("redrive", "a", 7), ("redrive", "b", 8)]


def test_many_are_told_in_short_for_people_and_whole_for_programs(topic: Topic) -> None:
    topic.write(*(died(f"job-{n}", n) for n in range(1, 51)))
    text = run("redrive", "--everything", "--yes").stdout.splitlines()
    assert (len(text), text[-1]) == (21, "… and 30 more")
    assert len(run("redrive", "--everything", "--yes", "--json").stdout.splitlines()) == 50
