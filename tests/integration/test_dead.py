"""`duewheel dead` on a real broker, with a real timer processor: what died is found, run again once, or dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.scan import Scan
from duewheel.cli.main import cli
from duewheel.core.errors import TopicMissing
from duewheel.core.model import Dispatch, Outcome, Schedule, Work
from duewheel.core.topology import Topology
from duewheel.engine.processor import Processor
from tests.conftest import Installation
from tests.dead import ERROR, closed, died, refused
from tests.integration.desk import DAY_MS, TIMEOUT_S, Desk, Raw, home, now_ms, turning


def dead(desk: Desk, *arguments: str) -> Result:
    """`duewheel dead` as somebody calls it."""
    group, *rest = arguments
    where = ["-b", desk.kafka.bootstrap_servers, "--prefix", desk.topology.prefix]
    result = CliRunner().invoke(cli, ["dead", group, *where, *rest])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def listed(desk: Desk, *arguments: str) -> list[dict[str, Any]]:
    result = dead(desk, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def schedule(desk: Desk, job_id: str, due_ms: int, task: str = "t") -> None:
    work = Work(task=task, content_type="application/json", payload=b'{"to":"ada"}', headers={}, policy=None)
    command = Schedule(
        job_id=job_id, due_ms=due_ms, created_ms=now_ms(), on_conflict="IGNORE", retention_ms=DAY_MS, queue="default", limits=None,
        recurrence=None, delivery=None, work=work,
    )  # fmt: skip
    desk.publish([Raw(job_id.encode(), codec.encode_schedule(command))])


def fail(desk: Desk, d: Dispatch) -> None:
    """A worker says that an attempt failed for good."""
    outcome = Outcome(
        token=d["token"], job_id=d["job_id"], slot_ms=d["slot_ms"], attempt=d["attempt"], result="FAILED", started_ms=d["dispatched_ms"],
        finished_ms=d["dispatched_ms"] + 11, worker="w1", error=ERROR, retry_after_ms=0, lease_ms=0, output=None,
    )  # fmt: skip
    desk.publish([Raw(d["job_id"].encode(), codec.encode_outcome(outcome), d["timer_partition"])], desk.topology.outcomes)


def die(desk: Desk, processor: Processor, job_id: str) -> Dispatch:
    """Lets the dispatch of a job that was handed out last fail for good."""
    last = [d for d in desk.all_dispatches() if d["job_id"] == job_id][-1]
    fail(desk, last)
    desk.drive(processor, until=lambda: any(message.key() == job_id.encode() for message in desk.read(desk.topology.dead_letter)))
    return last


def test_a_dead_run_is_found_redriven_once_and_dropped(desk: Desk) -> None:
    processor = desk.active()
    schedule(desk, "a", now_ms())
    desk.drive(processor, until=desk.dispatches)
    first = die(desk, processor, "a")

    [entry] = listed(desk)
    assert (entry["job_id"], entry["token"], entry["reason"], entry["error"]) == ("a", first["token"], "failed", ERROR["type"])
    whole = json.loads(dead(desk, "show", "a", "--json").stdout)
    assert (whole["payload"], whole["failure"], whole["timer_partition"]) == ({"to": "ada"}, ERROR, home("a"))
    assert [(ending["attempt"], ending["token"]) for ending in whole["endings"]] == [(1, first["token"])]

    # Both commands are sent before the owner reads either: neither knows of the other, and still it is redriven once.
    for _ in range(2):
        assert dead(desk, "redrive", "--id", "a").stderr == "1 redrive command sent\n"
    desk.drive(processor, until=lambda: len(desk.dispatches()) == 2)
    desk.drive_for(processor, seconds=0.5)
    again = desk.dispatches()[-1]
    assert len(desk.dispatches()) == 2
    assert again["token"] > first["token"]
    assert (again["attempt"], again["slot_ms"], again["work"]) == (1, first["slot_ms"], first["work"])
    assert listed(desk) == []
    assert dead(desk, "redrive", "--id", "a").stderr.splitlines()[-1] == "nothing to redrive"

    # It dies again, which is a death of its own; what was said of the first does not touch it.
    fail(desk, again)
    desk.drive(processor, until=lambda: listed(desk))
    desk.publish([Raw(b"a", codec.encode_redrive({"job_id": "a", "token": first["token"], "created_ms": now_ms()}))])
    desk.drive_for(processor, seconds=0.5)
    assert [entry["token"] for entry in listed(desk)] == [again["token"]]
    with turning(desk, processor):
        result = dead(desk, "drop", "--id", "a", "--wait")
    assert result.stdout.startswith(f"a (token {again['token']}) dropped at ")
    assert [(entry["token"], entry["how"]) for entry in listed(desk, "--all")] == [
        (first["token"], "REDRIVEN"),
        (again["token"], "DROPPED"),
    ]
    schedule(desk, "a", now_ms() + 60_000)  # the id may be used anew
    desk.drive(processor, until=lambda: b"da" in desk.fold()[home("a")])
    assert len(desk.dispatches()) == 2


def test_many_are_redriven_by_filter_and_waited_for(desk: Desk) -> None:
    processor = desk.active()
    for n in range(30):
        schedule(desk, f"job-{n}", now_ms(), task="even" if n % 2 == 0 else "odd")
    desk.drive(processor, until=lambda: len(desk.dispatches()) == 30)
    for d in desk.dispatches():
        fail(desk, d)
    desk.drive(processor, until=lambda: len(listed(desk)) == 30)
    with turning(desk, processor):
        result = dead(desk, "redrive", "--task", "even", "--error", "SMTPDataError", "--yes", "--wait", "--json")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert {entry["job_id"] for entry in told} == {f"job-{n}" for n in range(0, 30, 2)}
    assert {(entry["sent"], entry["how"]) for entry in told} == {(True, "REDRIVEN")}
    desk.drive(processor, until=lambda: len(desk.dispatches()) == 45)
    assert {d["work"]["task"] for d in desk.dispatches()[30:]} == {"even"}
    assert {entry["task"] for entry in listed(desk)} == {"odd"}


# ------------------------------------------------------------------------------------------------------------------ reading


def records(scan: Scan) -> list[tuple[int, bytes | None]]:
    return [(record.offset(), record.key()) for batch in scan.to_end() for record in batch]


@pytest.fixture
def scan(installation: Installation) -> Iterator[Scan]:
    scan = Scan(installation.kafka, installation.topology.dead_letter, TIMEOUT_S)
    yield scan
    scan.close()


def written(desk: Desk, *values: tuple[bytes, bytes]) -> None:
    desk.publish([Raw(key, value) for key, value in values], desk.topology.dead_letter)


def test_a_topic_is_read_to_its_end_and_on(desk: Desk, scan: Scan) -> None:
    assert records(scan) == []
    written(desk, died("a", 1), refused("x"))
    assert records(scan) == [(0, b"a"), (1, b"x")]
    assert records(scan) == []
    written(desk, closed("a", 1))
    assert records(scan) == [(2, b"a")]
    assert (scan.done, scan.count) == (3, 3)
    record = scan.at(0, 0)
    assert record is not None
    assert codec.decode_dead_run(record.value())["token"] == 1


def test_what_is_aborted_or_open_is_neither_read_nor_waited_for(desk: Desk, scan: Scan) -> None:
    aborted = desk.transaction([Raw(*died("a", 1))], desk.topology.dead_letter)
    aborted.abort_transaction(TIMEOUT_S)
    assert records(scan) == []
    open_ = desk.transaction([Raw(*died("b", 2))], desk.topology.dead_letter)
    written(desk, died("c", 3))
    assert records(scan) == []  # it lies behind the open transaction
    open_.commit_transaction(TIMEOUT_S)
    told: list[bytes | None] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(told) < 2:  # the broker answers before all readers may see it
        told += [key for _, key in records(scan)]
        assert time.monotonic() < deadline_s
    assert told == [b"b", b"c"]


def test_a_record_that_was_deleted_meanwhile_is_missed(desk: Desk, scan: Scan) -> None:
    written(desk, died("a", 1), died("b", 2), died("c", 3))
    assert len(records(scan)) == 3
    admin = AdminClient(desk.kafka.common())
    admin.delete_records([TopicPartition(desk.topology.dead_letter, 0, 2)])[TopicPartition(desk.topology.dead_letter, 0)].result(TIMEOUT_S)
    assert scan.at(0, 1) is None
    assert scan.at(0, 2) is not None
    assert scan.at(0, 3) is None
    assert [entry["job_id"] for entry in listed(desk)] == ["c"]


def test_an_installation_without_topics_is_told_how_to_make_them(desk: Desk) -> None:
    desk.topology = Topology("nobody-made-this")
    with pytest.raises(TopicMissing, match=r"nobody-made-this\.dead-letter does not exist .*duewheel topics apply"):
        dead(desk, "list")
