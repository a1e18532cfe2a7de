"""How a verification looks: words for each kind of difference, and what was not compared or not judged."""

from __future__ import annotations

import json

import click
import pytest

from duewheel.adapters.audit.spool import Spool
from duewheel.adapters.audit.verifier import Report, StoreReport
from duewheel.cli.verify_view import (
    difference_json,
    difference_line,
    remedy,
    report_json,
    report_lines,
    says,
    verdict_json,
    verdict_lines,
)
from duewheel.core.differences import Difference, Fact, Kind, Unjudged

# Of kinds that only a reading of the topics and folders finds; the others are looked at where they are planted.
FACTS: dict[Kind, dict[str, Fact]] = {
    Kind.UNREADABLE: {"topic": "duewheel.state", "offset": 7, "reason": "malformed"},
    Kind.MISPLACED: {"home": 2, "offset": 7},
    Kind.UNANSWERED: {"topic": "duewheel.intake", "offset": 7, "reason": "malformed"},
    Kind.LOG_SHORTER: {"topic": "duewheel.intake", "position": 9, "end": 7},
    Kind.STORE_UNREADABLE: {"error": "the local store x cannot be read: y"},
    Kind.STORE_OF_ANOTHER: {"store": "x", "found": "a/1", "expected": "b/1"},
    Kind.STORE_AHEAD: {"store": "x", "mark": 9, "end": 7},
}


@pytest.mark.parametrize("kind", FACTS)
def test_each_kind_has_words_and_a_remedy(kind: Kind) -> None:
    difference = Difference(kind, 3, None, FACTS[kind])
    assert all(str(fact) in says(difference) for fact in FACTS[kind].values())
    assert remedy(difference)
    assert click.unstyle(difference_line(difference)) == f"  {kind.replace('_', ' ')}: partition 3: {says(difference)}"


def test_what_comes_from_outside_is_shown_escaped() -> None:
    line = difference_line(Difference(Kind.UNHEARD, 3, "a\x1b[2J", {"phase": "RUNNING", "token": 7, "told": "SUCCEEDED\n"}))
    assert "\x1b[2J" not in line
    assert "\n" not in line


def test_times_and_lengths_are_told_apart() -> None:
    facts: dict[str, Fact] = {"acknowledged_ms": 1_772_366_400_007, "ended_ms": 1_772_366_400_008, "keep_for_ms": 86_400_000}
    words = says(Difference(Kind.FORGOTTEN_EARLY, 3, "a", facts))
    assert "ended at 2026-03-01T12:00:00.008Z" in words
    assert "kept for 86,400,000 ms" in words
    told = json.loads(difference_json(Difference(Kind.FORGOTTEN_EARLY, 3, "a", facts)))
    assert (told["facts"], told["says"], told["partition"], told["job_id"]) == (facts, words, 3, "a")


def test_a_report_says_what_was_read_compared_and_not_judged() -> None:
    report = Report(
        3, jobs=1_200, phases={"WAITING": 1_000, "SUCCEEDED": 200}, records={"state": 2_400, "intake": 1_200}, differences=0,
        unjudged={Unjudged.OUTCOMES: 12},
        stores=[StoreReport("state/x/3", mark=77, compared=2_401, beyond=5), StoreReport("other/x/3", outdated="it is empty")],
    )  # fmt: skip
    lines = report_lines(report, 0)
    assert lines == [
        "partition 3: \x1b[32magrees\x1b[0m; 1,200 jobs (200 succeeded, 1,000 waiting); read state 2,400, intake 1,200",
        "  store state/x/3: 2,401 records compared; 5 keys written since its mark at offset 77: it may hold any of their values since then",
        "  store other/x/3 not compared: it is empty",
        "  not judged: 12, outcomes do not reach back to when they ended",
    ]
    assert report_lines(Report(3, differences=7), 5)[0] == "  5 more; --limit shows them, --json has all"
    assert json.loads(report_json(report))["stores"][0]["beyond"] == 5


def test_the_verdict_sums_up_and_says_what_to_do() -> None:
    reports = [Report(0, jobs=1, differences=1, stores=[StoreReport("x")]), Report(1, jobs=2)]
    lines = verdict_lines(reports, {Kind.LOST: "schedule it again"}, with_stores=True)
    assert lines == ["2 partitions, 3 jobs, 1 store: 1 difference", "  lost: schedule it again"]
    assert json.loads(verdict_json(reports)) == {"type": "verdict", "partitions": 2, "jobs": 3, "differences": 1, "agrees": False}
    assert "no store of these partitions" in verdict_lines([Report(0)], {}, with_stores=True)[1]


def test_everything_that_was_not_judged_has_words() -> None:
    assert len(report_lines(Report(0, unjudged=dict.fromkeys(Unjudged, 1)), 0)) == 1 + len(Unjudged)


def test_a_spool_gives_rows_back_by_partition_and_in_order() -> None:
    spool = Spool()
    spool.add(3, [("a", 1), ("b", 2)])
    spool.add(4, [("c", None)])
    spool.add(3, [("é", -(2**63))])
    assert (list(spool.rows(3)), list(spool.rows(4)), list(spool.rows(5))) == ([("a", 1), ("b", 2), ("é", -(2**63))], [("c", None)], [])
    spool.add(3, [("d", 4)])  # after it was read
    assert (spool.count(3), [row[0] for row in spool.rows(3)]) == (4, ["a", "b", "é", "d"])
    assert [row[0] for row in spool.rows(3)] == ["a", "b", "é", "d"]
    spool.close()
