"""The rules for recurrences: each at its boundary, with the reason and a message that helps."""

from __future__ import annotations

from typing import Any

import pytest

from duewheel.core.commands import check_schedule
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    DUE_MS_MAX,
    DUE_MS_MIN,
    EVERY_MS_MAX,
    EVERY_MS_MIN,
    EXPRESSION_BYTES_MAX,
    GRACE_MS_MAX,
    JITTER_MS_MAX,
    MISFIRE_MAX,
    OVERLAP_MAX,
    RUNS_MAX,
)
from tests.malformed import SCHEDULE
from tests.recurring import PLAIN, cron, every, every_after

DUE_MS = SCHEDULE["due_ms"]


def refusal(recurrence: Any, due_ms: int = DUE_MS) -> RejectedJob:
    """By the rules for schedules, where a recurrence is one part of many."""
    with pytest.raises(RejectedJob) as refused:
        check_schedule({**SCHEDULE, "due_ms": due_ms, "recurrence": recurrence})
    assert 0 < len(str(refused.value)) < 500
    return refused.value


@pytest.mark.parametrize(
    "recurrence",
    [
        None,
        every(EVERY_MS_MIN),
        every(EVERY_MS_MAX),
        every_after(EVERY_MS_MIN, jitter_ms=EVERY_MS_MIN),
        every(JITTER_MS_MAX, jitter_ms=JITTER_MS_MAX, runs_max=RUNS_MAX, grace_ms=GRACE_MS_MAX, end_ms=DUE_MS + 1),
        every(60_000, start_ms=DUE_MS_MIN, end_ms=DUE_MS_MAX, misfire="SKIP", overlap="QUEUE"),
        cron("0 9 * * mon-fri", "Europe/Berlin", misfire="ALL", misfire_max=MISFIRE_MAX, overlap="ALLOW", overlap_max=OVERLAP_MAX),
        cron("@daily", "America/Argentina/ComodRivadavia", overlap="REPLACE"),
        cron("0 0 29 2 *"),
        cron(f"{'0,' * 120}0 0 * * *"),
    ],
)
def test_good_recurrences_are_taken(recurrence: Any) -> None:
    check_schedule({**SCHEDULE, "recurrence": recurrence})


@pytest.mark.parametrize(
    "recurrence,reason,said",
    [
        ({}, Reason.BAD_RECURRENCE, "no record of"),
        ([], Reason.BAD_RECURRENCE, "no record of"),
        (7, Reason.BAD_RECURRENCE, "no record of"),
        (False, Reason.BAD_RECURRENCE, "no record of"),
        ({**PLAIN, "more": 1}, Reason.BAD_RECURRENCE, "no record of"),
        (every(1_000, kind="HOURLY"), Reason.BAD_RECURRENCE, "EVERY, EVERY_AFTER, CRON"),
        (every(1_000, kind=[]), Reason.BAD_RECURRENCE, "kind []"),
        (every(1_000, misfire="NEVER"), Reason.BAD_RECURRENCE, "ONCE, SKIP, ALL"),
        (every(1_000, overlap=None), Reason.BAD_RECURRENCE, "SKIP, ALLOW, QUEUE, REPLACE"),
        (every(EVERY_MS_MIN - 1), Reason.TOO_FREQUENT, "999 is less than 1000"),
        (every_after(0), Reason.TOO_FREQUENT, "every_ms 0"),
        (every(-1), Reason.BAD_RECURRENCE, "every_ms -1"),
        (every(EVERY_MS_MAX + 1), Reason.BAD_RECURRENCE, "ten years"),
        (every(1_000.0), Reason.BAD_RECURRENCE, "float"),  # type: ignore[arg-type]
        (every(True), Reason.BAD_RECURRENCE, "bool"),
        (every(1_000, runs_max=-1), Reason.BAD_RECURRENCE, "runs_max"),
        (every(1_000, runs_max=RUNS_MAX + 1), Reason.BAD_RECURRENCE, "runs_max"),
        (every(10 * JITTER_MS_MAX, jitter_ms=JITTER_MS_MAX + 1), Reason.BAD_RECURRENCE, "a day"),
        (every(1_000, jitter_ms=1_001), Reason.BAD_RECURRENCE, "change places"),
        (every(1_000, misfire_max=MISFIRE_MAX + 1), Reason.BAD_RECURRENCE, "misfire_max"),
        (every(1_000, grace_ms=GRACE_MS_MAX + 1), Reason.BAD_RECURRENCE, "30 days"),
        (every(1_000, overlap_max=OVERLAP_MAX + 1), Reason.BAD_RECURRENCE, "overlap_max"),
        (every(1_000, overlap_max=-1), Reason.BAD_RECURRENCE, "overlap_max"),
        (every(1_000, start_ms=-1), Reason.BAD_RECURRENCE, "start_ms -1"),
        (every(1_000, start_ms=DUE_MS // 1_000), Reason.BAD_RECURRENCE, f"it looks like seconds: in milliseconds it is {DUE_MS}"),
        (every(1_000, end_ms=DUE_MS * 1_000), Reason.BAD_RECURRENCE, "it looks like microseconds"),
        (every(1_000, end_ms="never"), Reason.BAD_RECURRENCE, "end_ms 'never'"),
        (every(1_000, end_ms=DUE_MS), Reason.BAD_END, "is not after the start"),
        (every(1_000, start_ms=DUE_MS + 10, end_ms=DUE_MS + 10), Reason.BAD_END, "is not after the start"),
        (every(1_000, expression="@daily"), Reason.BAD_RECURRENCE, "make it CRON"),
        (every(1_000, zone="Mars"), Reason.BAD_ZONE, "'Mars'"),
        (cron("@daily", every_ms=1_000), Reason.BAD_RECURRENCE, "give EVERY, or 0"),
        (cron("@daily", "Europe/Berln"), Reason.BAD_ZONE, "'Europe/Berln'; give an IANA name"),
        (cron("@daily", "../../etc/passwd"), Reason.BAD_ZONE, "no time zone"),
        (cron("@daily", ""), Reason.BAD_ZONE, "no time zone"),
        (cron("@daily", "\ud800"), Reason.BAD_ZONE, "no time zone"),
        (cron("@daily", "Z" * 65), Reason.BAD_RECURRENCE, "64 bytes"),
        (cron("@daily", b"UTC"), Reason.BAD_RECURRENCE, "bytes"),  # type: ignore[arg-type]
        (cron("0" * (EXPRESSION_BYTES_MAX + 1)), Reason.BAD_RECURRENCE, "256 bytes"),
        (cron(""), Reason.BAD_EXPRESSION, "0 fields"),
        (cron("* * * *"), Reason.BAD_EXPRESSION, "4 fields; give five"),
        (cron("0 25 * * *"), Reason.BAD_EXPRESSION, "bad hour"),
        (cron("0 9 * * mon-fry"), Reason.BAD_EXPRESSION, "bad day-of-week"),
        (cron("@reboot"), Reason.BAD_EXPRESSION, "@hourly, @daily"),
        (cron("0 0 30 2 *"), Reason.NO_SLOT, "no month that it names has such a day"),
        (cron("0 0 */30 * mon#2"), Reason.NO_SLOT, "no year has such a day"),
        (cron("*/5 2 * 3 0L", "Europe/Berlin"), Reason.NO_SLOT, "never run"),
        (cron("0 0 1 1 *", end_ms=DUE_MS + 86_400_000), Reason.NO_SLOT, "before the end"),
    ],
)
def test_bad_recurrences_are_refused_with_reason_value_and_remedy(recurrence: Any, reason: Reason, said: str) -> None:
    error = refusal(recurrence)
    assert error.reason == reason
    assert said in str(error)


def test_what_begins_after_all_due_times_is_refused() -> None:
    assert refusal(cron("* * * * * *"), DUE_MS_MAX + 1).reason == Reason.DUE_TOO_LATE
    assert refusal(cron("1 1 1 1 *"), DUE_MS_MAX - 1).reason == Reason.NO_SLOT


def test_a_message_never_repeats_a_huge_value() -> None:
    assert len(str(refusal(every(10**10_000)))) < 300
    assert len(str(refusal(every(1_000, start_ms=10**10_000)))) < 300
    assert len(str(refusal(cron("\n" * 10**6)))) < 300
    assert len(str(refusal(cron("@daily", "\n" * 10**6)))) < 300
    assert len(str(refusal({**PLAIN, "kind": "k" * 10**6}))) < 300
