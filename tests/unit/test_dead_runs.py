"""What is kept of a dead run, which of them a filter chooses, and that it stays little."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from duewheel.core import dead_runs
from duewheel.core.dead_runs import SUMMARY_MESSAGE_CHARS_MAX, DeadRuns, Filter, summary
from duewheel.core.model import DeadRun, DeadRunClosed
from tests.dead import dead_run

RUN = summary(0, 42, dead_run("a", 7))


def test_a_summary_says_what_a_list_shows() -> None:
    assert (RUN.partition, RUN.offset, RUN.job_id, RUN.token, RUN.reason) == (0, 42, "a", 7, "failed")
    assert (RUN.task, RUN.queue, RUN.attempts, RUN.crashes, RUN.payload_bytes) == ("mail.send", "mail", 5, 1, 12)
    assert (RUN.error, RUN.message, RUN.how, RUN.closed_ms) == ("smtplib.SMTPDataError", "no such address", None, None)


def test_a_run_may_die_without_an_error_of_its_own() -> None:
    run = dead_run("a", 7, error=None)
    assert (summary(0, 0, run).error, summary(0, 0, run).message) == (None, None)
    assert not Filter(errors=frozenset(["SMTPDataError"])).accepts(summary(0, 0, run))


def test_a_message_is_kept_in_short() -> None:
    run = dead_run("a", 7, error={"type": "E", "message": "x" * 2_000, "traceback": ""})
    assert summary(0, 0, run).message == "x" * SUMMARY_MESSAGE_CHARS_MAX


@pytest.mark.parametrize(
    "fields, accepted",
    [
        ({}, True),
        ({"jobs": ["a", "b"]}, True),
        ({"jobs": ["b"]}, False),
        ({"tasks": ["mail.send"]}, True),
        ({"tasks": ["send"]}, False),
        ({"queues": ["mail"]}, True),
        ({"queues": ["default"]}, False),
        ({"reasons": ["failed", "crash_limit"]}, True),
        ({"reasons": ["crash_limit"]}, False),
        ({"errors": ["smtplib.SMTPDataError"]}, True),
        ({"errors": ["SMTPDataError"]}, True),
        ({"errors": ["other.SMTPDataError"]}, False),
        ({"errors": ["DataError"]}, False),
        ({"errors": ["smtplib"]}, False),
        ({"since_ms": 5_000}, True),
        ({"since_ms": 5_001}, False),
        ({"until_ms": 5_001}, True),
        ({"until_ms": 5_000}, False),
        ({"tasks": ["mail.send"], "queues": ["default"]}, False),
    ],
)
def test_a_filter_accepts_what_all_its_parts_agree_with(fields: dict[str, Any], accepted: bool) -> None:
    parts: dict[str, Any] = {name: frozenset(value) if isinstance(value, list) else value for name, value in fields.items()}
    assert Filter(**parts).accepts(replace(RUN, died_ms=5_000)) is accepted


def test_runs_come_in_the_order_of_their_deaths() -> None:
    runs = DeadRuns()
    for token, died_ms in ((3, 20), (1, 30), (2, 10)):
        runs.died(replace(RUN, token=token, died_ms=died_ms))
    assert [run.token for run in runs.runs()] == [2, 3, 1]


def test_closings_of_what_nobody_asked_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_runs, "CLOSINGS_HELD_MAX", 10)
    runs = DeadRuns(lambda run: run.job_id == "wanted")
    for token in range(1_000):
        runs.closed(DeadRunClosed(job_id="other", token=token, closed_ms=1, how="DROPPED"))
    assert len(runs._closings) == 10
    # In the order of the log a death comes before its closing, and nothing is forgotten that matters.
    runs.died(replace(RUN, job_id="wanted", token=5))
    runs.closed(DeadRunClosed(job_id="wanted", token=5, closed_ms=1, how="DROPPED"))
    assert runs.open_count == 0


def test_dead_runs_are_held_without_their_payloads() -> None:
    """As the reader makes them: every record with strings and bytes of its own. 100,000 of them take at most 100 MB."""
    payload_bytes, count = 10_000, 10_000

    def decoded(n: int) -> DeadRun:
        error = {"type": "smtplib.SMTPDataError", "message": f"no such address: customer-{n}@example.org", "traceback": "t" * 2_000}
        return dead_run(f"job-{n}", n + 1, payload=b'"%s"' % (b"x" * payload_bytes), error=error)

    runs = DeadRuns()
    tracemalloc.start()
    try:
        for n in range(count):
            runs.died(summary(0, n, decoded(n)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert runs.open_count == count
    assert held_bytes < count * 1_000, f"{held_bytes / count:.0f} bytes a run"
