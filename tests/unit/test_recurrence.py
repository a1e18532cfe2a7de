"""Slots by example: the kinds of recurrence, cron lines in all their forms, jumps of the clocks, and what was missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from duewheel.core.limits import DAY_MS, DUE_MS_MAX, HOUR_MS, MINUTE_MS, SLOTS_COUNTED_MAX, SLOTS_ON_TIME_MAX
from duewheel.core.model import Recurrence
from duewheel.core.recurrence import (  # fmt: skip
    BadExpression,
    Decision,
    Impossible,
    UnknownZone,
    check_expression,
    first_slot_ms,
    jittered_ms,
    missed,
    next_slot_ms,
    slots,
    zone_of,
)
from tests.recurring import cron, every, every_after


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def times(recurrence: Recurrence, due: str, count: int) -> list[str]:
    """The first slots as UTC clocks show them."""
    due_ms = ms(due)
    return [f"{datetime.fromtimestamp(slot_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%S}" for slot_ms in islice(slots(recurrence, due_ms, 0), count)]


T0_MS = ms("2030-01-01T00:00:00")


def test_every_counts_from_its_due_time_and_has_a_slot_there() -> None:
    job = every(7_000)
    assert first_slot_ms(job, T0_MS) == T0_MS
    assert next_slot_ms(job, T0_MS, T0_MS) == T0_MS + 7_000
    assert next_slot_ms(job, T0_MS, T0_MS + 6_999) == T0_MS + 7_000
    assert next_slot_ms(job, T0_MS, T0_MS + 7_000_000_000) == T0_MS + 7_000_007_000
    assert next_slot_ms(job, T0_MS, T0_MS - DAY_MS) == T0_MS


def test_every_counts_from_its_start_where_there_is_one() -> None:
    ahead = every(HOUR_MS, start_ms=T0_MS + 5)
    assert list(islice(slots(ahead, T0_MS, 0), 2)) == [T0_MS + 5, T0_MS + 5 + HOUR_MS]
    behind = every(HOUR_MS, start_ms=T0_MS)  # on the hour, whenever it was asked for
    assert first_slot_ms(behind, T0_MS + 90 * MINUTE_MS) == T0_MS + 2 * HOUR_MS
    assert next_slot_ms(behind, T0_MS + 2 * HOUR_MS, 0) == T0_MS + 2 * HOUR_MS  # the first slot as the anchor


def test_every_after_counts_from_the_end_of_the_last_run() -> None:
    job = every_after(HOUR_MS, start_ms=T0_MS + 9)
    assert first_slot_ms(job, T0_MS) == T0_MS + 9
    assert next_slot_ms(job, T0_MS, T0_MS + 500) == T0_MS + 500 + HOUR_MS


@pytest.mark.parametrize("job", [every(HOUR_MS), every_after(HOUR_MS), cron("0 * * * *")])
def test_no_slot_at_the_end_or_later(job: Recurrence) -> None:
    ending: Recurrence = {**job, "end_ms": T0_MS + 2 * HOUR_MS}
    assert list(slots(ending, T0_MS, 0)) == [T0_MS, T0_MS + HOUR_MS]
    assert next_slot_ms(job, T0_MS, DUE_MS_MAX) == 0


@pytest.mark.parametrize(
    "line,expected",
    [
        (
            "0 9 * * mon-fri",
            ["2030-01-01T09:00:00", "2030-01-02T09:00:00", "2030-01-03T09:00:00", "2030-01-04T09:00:00", "2030-01-07T09:00:00"],
        ),
        ("0 0 29 2 *", ["2032-02-29T00:00:00", "2036-02-29T00:00:00", "2040-02-29T00:00:00"]),
        ("0 12 L * *", ["2030-01-31T12:00:00", "2030-02-28T12:00:00", "2030-03-31T12:00:00"]),
        ("0 12 LW * *", ["2030-01-31T12:00:00", "2030-02-28T12:00:00", "2030-03-29T12:00:00"]),
        ("0 0 * * 5L", ["2030-01-25T00:00:00", "2030-02-22T00:00:00"]),
        ("0 0 * * fri#3", ["2030-01-18T00:00:00", "2030-02-15T00:00:00"]),
        ("0 0 * * MON#5", ["2030-04-29T00:00:00", "2030-07-29T00:00:00"]),
        ("0 0 1 jan,JUL *", ["2030-01-01T00:00:00", "2030-07-01T00:00:00"]),
        ("59 23 31 12 *", ["2030-12-31T23:59:00", "2031-12-31T23:59:00"]),
        ("59 59 23 31 12 *", ["2030-12-31T23:59:59", "2031-12-31T23:59:59"]),
        ("*/20 * * * * *", ["2030-01-01T00:00:00", "2030-01-01T00:00:20", "2030-01-01T00:00:40", "2030-01-01T00:01:00"]),
        ("* * * * *", ["2030-01-01T00:00:00", "2030-01-01T00:01:00"]),
        ("0 0 13 * 5", ["2030-01-04T00:00:00", "2030-01-11T00:00:00", "2030-01-13T00:00:00"]),  # either
        ("0 0 */13 * 5", [*["2030-02-01T00:00:00", "2030-02-01T00:00:00"][:1], "2030-03-01T00:00:00"]),  # both, as one begins with a star
        ("0 0 * * 7", ["2030-01-06T00:00:00"]),
        ("0 0 * * 0", ["2030-01-06T00:00:00"]),
        ("@hourly", ["2030-01-01T00:00:00", "2030-01-01T01:00:00"]),
        ("@daily", ["2030-01-01T00:00:00", "2030-01-02T00:00:00"]),
        ("@midnight", ["2030-01-01T00:00:00", "2030-01-02T00:00:00"]),
        ("@weekly", ["2030-01-06T00:00:00", "2030-01-13T00:00:00"]),
        ("@monthly", ["2030-01-01T00:00:00", "2030-02-01T00:00:00"]),
        ("@yearly", ["2030-01-01T00:00:00", "2031-01-01T00:00:00"]),
        ("@annually", ["2030-01-01T00:00:00", "2031-01-01T00:00:00"]),
    ],
)
def test_cron_lines(line: str, expected: list[str]) -> None:
    assert times(cron(line), "2030-01-01T00:00:00", len(expected)) == expected


def test_a_slot_is_never_before_the_due_time_nor_rounded_to_it() -> None:
    assert first_slot_ms(cron("* * * * * *"), T0_MS + 1) == T0_MS + 1_000
    assert first_slot_ms(cron("* * * * * *"), T0_MS + 1_000) == T0_MS + 1_000
    assert first_slot_ms(cron("* * * * * *", start_ms=T0_MS + 5_001), T0_MS) == T0_MS + 6_000


# Clocks in Berlin skip from 2:00 (1:00 UTC) to 3:00 on 31 March 2030, and from 3:00 go back to 2:00 (1:00 UTC) on 27 October.
@pytest.mark.parametrize(
    "line,skipped,twice",
    [
        ("30 2 * * *", ["01:00"], ["00:30"]),
        ("0 30 2 * * *", ["01:00"], ["00:30"]),
        ("0,30 2 * * *", ["01:00"], ["00:00", "00:30"]),
        ("30 2,3 * * *", ["01:00", "01:30"], ["00:30", "02:30"]),
        ("*/30 2 * * *", [], ["00:00", "00:30", "01:00", "01:30"]),
        ("30 1-3/1 * * *", ["00:30", "01:00", "01:30"], ["23:30", "00:30", "02:30"]),
    ],
)
def test_the_table_of_the_module(line: str, skipped: list[str], twice: list[str]) -> None:
    for day, expected in (("2030-03-31", skipped), ("2030-10-27", twice)):
        begin_ms = int(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1_000)
        found = [slot_ms for slot_ms in islice(slots(cron(line, "Europe/Berlin"), begin_ms, 0), 5) if slot_ms < begin_ms + 23 * HOUR_MS]
        assert [f"{datetime.fromtimestamp(slot_ms / 1_000, UTC):%H:%M}" for slot_ms in found] == expected


def test_an_hour_that_is_shown_twice_is_met_from_far_away_at_its_first_time() -> None:
    expected = ["2030-10-27T00:00:00", "2030-10-27T00:30:00", "2030-10-27T01:00:00", "2030-10-27T01:30:00", "2031-10-27T01:00:00"]
    assert times(cron("*/30 2 27 10 *", "Europe/Berlin"), "2030-01-01T00:00:00", 5) == expected


def test_what_goes_by_real_time_is_an_hour_apart_whatever_clocks_do() -> None:
    found = list(islice(slots(cron("30 * * * *", "Europe/Berlin"), T0_MS, 0), 24 * 365))
    assert {later - slot for slot, later in pairwise(found)} == {HOUR_MS}


def test_every_knows_no_clocks() -> None:
    found = list(islice(slots(every(DAY_MS, zone="Europe/Berlin"), T0_MS, 0), 365))
    assert found == [T0_MS + day * DAY_MS for day in range(365)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Sydney"])
@pytest.mark.parametrize("line", ["30 2 * * *", "*/15 * * * *", "0 0 * * 1", "15 3 L * *", "0 */6 * * *"])
def test_where_clocks_jump_by_whole_hours_cronsim_says_the_same(zone: str, line: str) -> None:
    its = CronSim(line, datetime.fromtimestamp(T0_MS / 1_000 - 1, ZoneInfo(zone)))
    ours = slots(cron(line, zone), T0_MS, 0)
    assert list(islice(ours, 800)) == [int(next(its).timestamp() * 1_000) for _ in range(800)]


@pytest.mark.parametrize(
    "line", ["", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "@reboot",
             "*/0 * * * *", "5-1 * * * *", "a * * * *", "* * * * fr\u0131", "* * * *\n*", "٣ * * * *", "* * 30 13 *", "* * 32 2 *"],
)  # fmt: skip
def test_what_is_no_cron_line(line: str) -> None:
    with pytest.raises(BadExpression) as refusal:
        check_expression(line)
    assert not isinstance(refusal.value, Impossible)


@pytest.mark.parametrize("line", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 feb *", "0 0 */30 * MON#2", "* * * */31 2 MON#5"])
def test_a_day_that_never_comes_is_told_from_a_mistake_in_writing(line: str) -> None:
    with pytest.raises(Impossible, match=r"no (month|year)"):
        check_expression(line)


def test_a_time_that_clocks_always_skip_has_no_slot() -> None:
    assert first_slot_ms(cron("*/30 2 * 3 0L", "Europe/Berlin"), T0_MS) == 0
    assert first_slot_ms(cron("*/30 2 * 3 0L", "Asia/Tokyo"), T0_MS) > 0


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../UTC", "/etc/localtime", "europe/berlin", "zone.tab", "Europe", "localtime", "\0"])
def test_what_is_no_zone(name: str) -> None:
    with pytest.raises(UnknownZone):
        zone_of(name)


def test_jitter_is_the_same_for_the_same_slot_and_within_its_bounds() -> None:
    job = every(HOUR_MS, jitter_ms=3)
    moments = [jittered_ms(job, "j", T0_MS + slot) - T0_MS - slot for slot in range(400)]
    assert moments == [jittered_ms(job, "j", T0_MS + slot) - T0_MS - slot for slot in range(400)]
    assert set(moments) == {0, 1, 2, 3}
    assert moments != [jittered_ms(job, "k", T0_MS + slot) - T0_MS - slot for slot in range(400)]
    assert jittered_ms(every(HOUR_MS), "j", T0_MS) == T0_MS


# --- missed slots ---


def test_before_its_time_nothing_is_to_be_done() -> None:
    assert missed(every(HOUR_MS), T0_MS, T0_MS + HOUR_MS, T0_MS + HOUR_MS - 1) == Decision((), 0, T0_MS + HOUR_MS)


@pytest.mark.parametrize("misfire", ["ONCE", "SKIP", "ALL"])
@pytest.mark.parametrize("job", [every(HOUR_MS), cron("0 * * * *")])
def test_a_slot_within_grace_fires_whatever_the_policy(job: Recurrence, misfire: str) -> None:
    job = {**job, "misfire": misfire}
    for late_ms in (0, MINUTE_MS):
        assert missed(job, T0_MS, T0_MS, T0_MS + late_ms) == Decision((T0_MS,), 0, T0_MS + HOUR_MS)
    late = missed(job, T0_MS, T0_MS, T0_MS + MINUTE_MS + 1)
    assert late == (Decision((), 1, T0_MS + HOUR_MS) if misfire == "SKIP" else Decision((T0_MS,), 0, T0_MS + HOUR_MS))


# An hour's downtime from 0:00:30 on; a slot every ten minutes from 0:10; back at 1:00:30, or at 1:02.
@pytest.mark.parametrize("job", [every(10 * MINUTE_MS), cron("*/10 * * * *")])
@pytest.mark.parametrize(
    "misfire,misfire_max,in_grace,late",
    [("ONCE", 0, [50, 60], [60]), ("SKIP", 0, [60], []), ("ALL", 0, [10, 20, 30, 40, 50, 60], [10, 20, 30, 40, 50, 60]),
     ("ALL", 2, [40, 50, 60], [50, 60])],
)  # fmt: skip
def test_after_an_hour_of_downtime(job: Recurrence, misfire: str, misfire_max: int, in_grace: list[int], late: list[int]) -> None:
    job = {**job, "misfire": misfire, "misfire_max": misfire_max}
    pending_ms, next_ms = T0_MS + 10 * MINUTE_MS, T0_MS + 70 * MINUTE_MS
    for back_ms, expected in ((60 * MINUTE_MS + 30_000, in_grace), (62 * MINUTE_MS, late)):
        fire = tuple(T0_MS + minute * MINUTE_MS for minute in expected)
        assert missed(job, T0_MS, pending_ms, T0_MS + back_ms) == Decision(fire, 6 - len(fire), next_ms)


def test_jitter_makes_no_slot_late() -> None:
    job = every(HOUR_MS, jitter_ms=30 * MINUTE_MS, misfire="SKIP")
    assert missed(job, T0_MS, T0_MS, T0_MS + 31 * MINUTE_MS).fire == (T0_MS,)
    assert missed(job, T0_MS, T0_MS, T0_MS + 31 * MINUTE_MS + 1).fire == ()


def test_a_million_missed_slots_take_no_time() -> None:
    job = every(1_000, misfire="ALL", misfire_max=3)
    now_ms = T0_MS + 10**9
    found = missed(job, T0_MS, T0_MS, now_ms)
    assert found.fire == tuple(range(now_ms - 63_000, now_ms + 1, 1_000))
    assert (found.skipped, found.next_ms) == (10**6 + 1 - 64, now_ms + 1_000)


def test_years_of_a_cron_line_are_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counting(*arguments: object) -> int:
        nonlocal calls
        calls += 1
        return next_slot_ms(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("duewheel.core.recurrence.next_slot_ms", counting)
    now_ms = ms("2060-06-15T10:00:30")
    found = missed(cron("* * * * *", misfire="ALL", misfire_max=2), T0_MS, T0_MS, now_ms)
    assert found.fire == tuple(ms(f"2060-06-15T{clock}:00") for clock in ("09:58", "09:59", "10:00"))
    assert (found.skipped, found.next_ms) == (SLOTS_COUNTED_MAX, ms("2060-06-15T10:01:00"))
    yearly = missed(cron("0 0 1 1 *", misfire="ALL", misfire_max=2, grace_ms=1), ms("1930-01-01") + 10**12, ms("2001-01-01"), now_ms)
    assert yearly.fire == (ms("2059-01-01"), ms("2060-01-01"))
    rare = missed(cron("0 0 * * *", "Europe/Berlin"), T0_MS, ms("2029-12-31T23:00:00"), now_ms)
    assert rare.fire == (ms("2060-06-14T22:00:00"),)
    assert calls < 800


def test_no_more_than_so_many_fire_at_once() -> None:
    for job in (every(1_000, grace_ms=DAY_MS, misfire="SKIP"), cron("* * * * * *", grace_ms=DAY_MS, misfire="SKIP")):
        found = missed(job, T0_MS, T0_MS, T0_MS + HOUR_MS)
        assert found.fire == tuple(range(T0_MS + HOUR_MS - (SLOTS_ON_TIME_MAX - 1) * 1_000, T0_MS + HOUR_MS + 1, 1_000))


def test_after_the_end_what_was_missed_may_still_fire() -> None:
    for job in (every(HOUR_MS), cron("0 * * * *")):
        ending: Recurrence = {**job, "end_ms": T0_MS + 3 * HOUR_MS}
        assert missed(ending, T0_MS, T0_MS, T0_MS + DAY_MS) == Decision((T0_MS + 2 * HOUR_MS,), 2, 0)


def test_every_after_fires_its_one_slot_or_waits_for_the_next() -> None:
    job = every_after(HOUR_MS)
    assert missed(job, T0_MS, T0_MS, T0_MS + DAY_MS) == Decision((T0_MS,), 0, 0)
    skipping: Recurrence = {**job, "misfire": "SKIP"}
    assert missed(skipping, T0_MS, T0_MS, T0_MS + 1) == Decision((T0_MS,), 0, 0)
    assert missed(skipping, T0_MS, T0_MS, T0_MS + DAY_MS + 1) == Decision((), 1, T0_MS + DAY_MS + HOUR_MS)
