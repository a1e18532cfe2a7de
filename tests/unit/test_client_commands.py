"""What a producer writes down becomes the right command, or is refused with the value and the limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.system import new_job_id
from duewheel.client.commands import Job, cancel_command, drop_command, redrive_command, schedule_command
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    CRASHES_MAX,
    DAY_MS,
    DUE_MS_MAX,
    DUE_MS_MIN,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RETENTION_MS_MAX,
    RUN_TIMEOUT_MS_MAX,
    TOTAL_TIMEOUT_MS_MAX,
)
from duewheel.core.model import Schedule
from duewheel.core.retry import RetryPolicy
from tests.recurring import cron, every, every_after

NOW_MS = 1_900_000_000_000


def made(**job: Any) -> Schedule:
    return schedule_command(Job(**{"task": "t", "job_id": "j", **job}), NOW_MS, new_job_id)


def refused(**job: Any) -> RejectedJob:
    with pytest.raises(RejectedJob) as caught:
        made(**job)
    return caught.value


def test_a_job_with_nothing_but_a_task_is_due_now_under_a_new_id() -> None:
    command = schedule_command(Job("send_email"), NOW_MS, new_job_id)
    assert command == {
        "job_id": command["job_id"],
        "due_ms": NOW_MS,
        "created_ms": NOW_MS,
        "on_conflict": "IGNORE",
        "retention_ms": DAY_MS,
        "queue": "default",
        "limits": None,
        "recurrence": None,
        "delivery": None,
        "work": {"task": "send_email", "content_type": "application/json", "payload": b"null", "headers": {}, "policy": None},
    }
    assert len(command["job_id"]) == 32


def test_everything_given_arrives() -> None:
    command = made(payload=[1], at=NOW_MS + 5, queue="mail", headers={"trace": "7"}, on_conflict="replace", retention=timedelta(hours=1))
    assert (command["job_id"], command["due_ms"], command["queue"]) == ("j", NOW_MS + 5, "mail")
    assert (command["on_conflict"], command["retention_ms"]) == ("REPLACE", 3_600_000)
    assert command["work"]["headers"] == {"trace": "7"}


# ------------------------------------------------------------------------------------------------------------------ payload


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"ab")])
def test_bytes_travel_as_they_are(payload: bytes) -> None:
    work = made(payload=payload)["work"]
    assert (work["content_type"], work["payload"]) == ("application/octet-stream", bytes(payload))


@pytest.mark.parametrize("payload", [None, True, 7, 1.5, "text", "é€😀", {"a": [1, {"b": None}]}, [], ""])
def test_other_values_travel_as_json(payload: object) -> None:
    work = made(payload=payload)["work"]
    assert work["content_type"] == "application/json"
    assert json.loads(work["payload"]) == payload


@pytest.mark.parametrize(
    "payload, named",
    [
        ({"price": Decimal("1.5")}, "Decimal"),
        ({"when": datetime(2030, 1, 1, tzinfo=UTC)}, "datetime"),
        ([b"bytes inside"], "bytes"),
        ({1, 2}, "set"),
        ({(1, 2): 3}, "tuple"),
        ([float("nan")], "float"),
        ({"half": "\ud800"}, "str"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_its_type(payload: object, named: str) -> None:
    error = refused(payload=payload)
    assert error.reason == Reason.BAD_PAYLOAD
    assert named in str(error) or named in str(error.__cause__)


def test_a_payload_that_contains_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert refused(payload=circle).reason == Reason.BAD_PAYLOAD


def test_a_payload_nested_beyond_reason_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert refused(payload=deep).reason == Reason.BAD_PAYLOAD


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX])
def test_W11_payload_within_the_limit_is_taken(size: int) -> None:
    assert len(made(payload=bytes(size))["work"]["payload"]) == size
    assert len(made(payload="x" * (size - 2))["work"]["payload"]) == size


def test_W11_payload_over_the_limit_is_refused_with_the_sizes() -> None:
    for payload in (bytes(PAYLOAD_BYTES_MAX + 1), "x" * (PAYLOAD_BYTES_MAX - 1)):
        error = refused(payload=payload)
        assert error.reason == Reason.PAYLOAD_TOO_LARGE
        digits = str(error).replace(",", "").replace("_", "")
        assert str(PAYLOAD_BYTES_MAX + 1) in digits
        assert str(PAYLOAD_BYTES_MAX) in digits


# ------------------------------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize(
    "at, due_ms",
    [
        (datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000),
        (datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1_893_456_000_001),
        (datetime(2030, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC), 1_893_456_000_001),
        (datetime(2030, 1, 1, 0, 0, 0, 1_001, tzinfo=UTC), 1_893_456_000_002),
        (datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1_893_456_000_000),
        (datetime(2030, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), 1_909_087_200_000),
        (datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), 1_919_291_400_000),  # the first of two such hours
        (datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_919_295_000_000),
    ],
)
def test_datetimes_become_milliseconds_rounded_up(at: datetime, due_ms: int) -> None:
    assert made(at=at)["due_ms"] == due_ms


@given(st.datetimes(datetime(2002, 1, 1), datetime(2099, 1, 1), timezones=st.timezones()))  # noqa: DTZ001  hypothesis adds the zone
def test_T7_fraction_never_early(at: datetime) -> None:
    due_ms = made(at=at)["due_ms"]
    microseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert 0 <= due_ms * 1_000 - microseconds < 1_000


@given(st.one_of(st.timedeltas(timedelta(0), timedelta(days=3_000)), st.floats(0, 1e8), st.integers(0, 100_000_000)))
def test_T7_delay_with_a_fraction_never_early(delay: timedelta | float) -> None:
    """The clock said NOW_MS, rounded down: it may have been anything before NOW_MS + 1."""
    waited_ms = made(delay=delay)["due_ms"] - NOW_MS
    asked_ms = Fraction(delay // timedelta(microseconds=1), 1_000) if isinstance(delay, timedelta) else Fraction(repr(delay)) * 1_000
    assert asked_ms + 1 <= waited_ms < asked_ms + 2 or asked_ms == waited_ms == 0


@pytest.mark.parametrize("delay, after_ms", [(0, 0), (0.0, 0), (timedelta(0), 0), (1, 1_001), (1.1, 1_101), (0.0001, 2), (1e-9, 2)])
def test_a_delay_counts_from_the_end_of_the_current_millisecond(delay: float, after_ms: int) -> None:
    assert made(delay=delay)["due_ms"] == NOW_MS + after_ms


def test_a_naive_datetime_is_refused() -> None:
    error = refused(at=datetime(2030, 1, 1))  # noqa: DTZ001  that is the point
    assert error.reason == Reason.BAD_DUE
    assert "2030-01-01T00:00:00" in str(error)
    assert "time zone" in str(error)


def test_both_times_are_refused() -> None:
    error = refused(at=NOW_MS, delay=5)
    assert error.reason == Reason.BAD_DUE
    assert str(NOW_MS) in str(error)


@pytest.mark.parametrize("at", [1.9e12, "2030-01-01T00:00:00Z", True, datetime(2030, 1, 1, tzinfo=UTC).date(), Decimal(NOW_MS)])
def test_other_types_of_time_are_refused_by_name(at: object) -> None:
    error = refused(at=at)
    assert error.reason == Reason.BAD_DUE
    assert type(at).__name__ in str(error)


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(microseconds=-1), float("nan"), "5", True, Decimal(5)])
def test_delays_that_are_none_are_refused(delay: object) -> None:
    error = refused(delay=delay)
    assert error.reason == Reason.BAD_DUE
    assert repr(delay) in str(error)


@pytest.mark.parametrize("at", [1_893_456_000, 1_893_456_000_000_000, 0, -1, DUE_MS_MIN - 1, DUE_MS_MAX + 1, 2**63, -(2**63) - 1])
def test_T4_seconds_or_microseconds_given_as_milliseconds_are_refused(at: int) -> None:
    error = refused(at=at)
    assert error.reason == (Reason.DUE_TOO_EARLY if at < DUE_MS_MIN else Reason.DUE_TOO_LATE)
    assert str(at) in str(error).replace(",", "").replace("_", "")


@pytest.mark.parametrize("delay", [2**63 - 1, 1e300, float("inf"), timedelta.max, 10**400])
def test_T4_a_delay_beyond_all_limits_is_refused(delay: object) -> None:
    assert refused(delay=delay).reason == Reason.DUE_TOO_LATE


# ------------------------------------------------------------------------------------------------------------------ limits, policies


def test_limits_arrive_and_what_is_not_said_stays_unsaid() -> None:
    limits = made(at=NOW_MS, expires_at=NOW_MS + 1, total_timeout=timedelta(hours=1), crash_limit=1)["limits"]
    assert limits == {"expires_ms": NOW_MS + 1, "total_timeout_ms": 3_600_000, "crashes_max": 1}
    assert made(total_timeout=0.0001)["limits"] == {"expires_ms": 0, "total_timeout_ms": 1, "crashes_max": 0}
    assert made(expires_at=NOW_MS + 9)["limits"] == {"expires_ms": NOW_MS + 9, "total_timeout_ms": 0, "crashes_max": 0}
    assert made(crash_limit=CRASHES_MAX)["limits"] == {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": CRASHES_MAX}


def test_a_policy_arrives_with_the_run_timeout() -> None:
    retry = RetryPolicy.exponential(attempts=3, first=2, give_up_on=[ValueError])
    assert made(retry=retry)["work"]["policy"] == retry.to_record()
    assert made(retry=retry, timeout=1.5)["work"]["policy"] == retry.to_record(1_500)
    assert made(timeout=timedelta(minutes=1))["work"]["policy"] == RetryPolicy().to_record(60_000)


@given(st.datetimes(datetime(2031, 1, 1), datetime(2099, 1, 1), timezones=st.timezones()))  # noqa: DTZ001  hypothesis adds the zone
def test_an_expiry_with_a_fraction_is_never_late(at: datetime) -> None:
    limits = made(at=NOW_MS, expires_at=at)["limits"]
    assert limits is not None
    microseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert 0 <= microseconds - limits["expires_ms"] * 1_000 < 1_000


@pytest.mark.parametrize(
    "job, reason, said",
    [
        ({"at": NOW_MS, "expires_at": NOW_MS}, Reason.BAD_LIMITS, "is not after due_ms"),
        ({"expires_at": NOW_MS - 1}, Reason.BAD_LIMITS, "is not after due_ms"),
        ({"expires_at": 0}, Reason.BAD_LIMITS, "leave out what is not to be limited"),
        ({"expires_at": datetime(2030, 1, 1)}, Reason.BAD_LIMITS, "expires_at=2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"expires_at": "2030-01-01"}, Reason.BAD_LIMITS, "is a str"),
        ({"expires_at": True}, Reason.BAD_LIMITS, "is a bool"),
        ({"expires_at": -(10**400)}, Reason.BAD_LIMITS, "beyond any calendar"),
        ({"total_timeout": 0}, Reason.BAD_LIMITS, "total_timeout=0 leaves no time"),
        ({"total_timeout": -1}, Reason.BAD_LIMITS, "negative"),
        ({"total_timeout": "1h"}, Reason.BAD_LIMITS, "no duration"),
        ({"total_timeout": timedelta(milliseconds=TOTAL_TIMEOUT_MS_MAX + 1)}, Reason.BAD_LIMITS, f"{TOTAL_TIMEOUT_MS_MAX}"),
        ({"crash_limit": 0}, Reason.BAD_LIMITS, "crash_limit=0"),
        ({"crash_limit": -1}, Reason.BAD_LIMITS, "crashes_max -1"),
        ({"crash_limit": CRASHES_MAX + 1}, Reason.BAD_LIMITS, f"{CRASHES_MAX}"),
        ({"crash_limit": 2.0}, Reason.BAD_LIMITS, "float"),
        ({"crash_limit": True}, Reason.BAD_LIMITS, "bool"),
        ({"timeout": 0}, Reason.BAD_POLICY, "timeout=0 leaves no time"),
        ({"timeout": float("nan")}, Reason.BAD_POLICY, "no duration"),
        ({"timeout": timedelta(milliseconds=RUN_TIMEOUT_MS_MAX + 1)}, Reason.BAD_POLICY, f"{RUN_TIMEOUT_MS_MAX}"),
        ({"retry": 3}, Reason.BAD_POLICY, "retry=3 is no RetryPolicy"),
        ({"retry": {"attempts_max": 3}}, Reason.BAD_POLICY, "is no RetryPolicy"),
    ],
)
def test_limits_and_policies_that_cannot_be_are_refused(job: dict[str, Any], reason: Reason, said: str) -> None:
    error = refused(**job)
    assert error.reason == reason
    assert said in str(error)


@pytest.mark.parametrize("expires_at, unit", [(NOW_MS // 1_000, "seconds"), (NOW_MS * 1_000, "microseconds")])
def test_T4_an_expiry_in_a_mistaken_unit_is_recognized(expires_at: int, unit: str) -> None:
    assert f"it looks like {unit}: in milliseconds it is {NOW_MS}" in str(refused(expires_at=expires_at))


@pytest.mark.parametrize("make", [redrive_command, drop_command])
def test_redrive_and_drop_name_the_death(make: Callable[[Any, Any, int], Any]) -> None:
    assert make("j", 7, NOW_MS) == {"job_id": "j", "token": 7, "created_ms": NOW_MS}
    for token in (0, -1, 2**63, 1.0, "7", True, None):
        with pytest.raises(RejectedJob) as caught:
            make("j", token, NOW_MS)
        assert caught.value.reason == Reason.BAD_TOKEN
    with pytest.raises(RejectedJob) as caught:
        make("", 7, NOW_MS)
    assert caught.value.reason == Reason.BAD_JOB_ID


# ------------------------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize("job_id", ["", "x" * (JOB_ID_BYTES_MAX + 1), "é" * 128, "a\nb", "a\0b", "\ud800"])
def test_bad_job_ids_are_refused(job_id: str) -> None:
    assert refused(job_id=job_id).reason == Reason.BAD_JOB_ID
    with pytest.raises(RejectedJob) as caught:
        cancel_command(job_id, NOW_MS)
    assert caught.value.reason == Reason.BAD_JOB_ID


@pytest.mark.parametrize(
    "job, reason",
    [
        ({"task": ""}, Reason.BAD_TASK),
        ({"task": None}, Reason.BAD_TASK),
        ({"job_id": 7}, Reason.BAD_JOB_ID),
        ({"queue": "a/b"}, Reason.BAD_QUEUE),
        ({"queue": ""}, Reason.BAD_QUEUE),
        ({"queue": None}, Reason.BAD_QUEUE),
        ({"headers": {f"h{n}": "" for n in range(HEADERS_COUNT_MAX + 1)}}, Reason.BAD_HEADERS),
        ({"headers": {"a": 1}}, Reason.BAD_HEADERS),
        ({"headers": {"a": "\ud800"}}, Reason.BAD_HEADERS),
        ({"headers": [("a", "b")]}, Reason.BAD_HEADERS),
        ({"retention": timedelta(milliseconds=RETENTION_MS_MAX + 1)}, Reason.BAD_RETENTION),
        ({"retention": -1}, Reason.BAD_RETENTION),
        ({"on_conflict": "REPLACE"}, Reason.BAD_ON_CONFLICT),
        ({"on_conflict": []}, Reason.BAD_ON_CONFLICT),
    ],
)
def test_bad_fields_are_refused(job: dict[str, Any], reason: Reason) -> None:
    assert refused(**job).reason == reason


def test_cancel_names_the_job_and_the_time() -> None:
    assert cancel_command("j", NOW_MS) == {"job_id": "j", "created_ms": NOW_MS, "reach": "DEFAULT"}
    assert cancel_command("j", NOW_MS, "running")["reach"] == "RUNNING"
    for reach in ("JOB", "", 7):
        with pytest.raises(RejectedJob, match="it may be 'job' or 'running'"):
            cancel_command("j", NOW_MS, reach)  # type: ignore[arg-type]


def test_new_ids_are_version_7_uuids_that_grow_with_time() -> None:
    import uuid

    ids = [new_job_id(NOW_MS + n) for n in range(1_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1_000
    for text in ids:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, int(text[:12], 16) - NOW_MS) == (7, uuid.RFC_4122, ids.index(text))
    assert len({new_job_id(NOW_MS) for _ in range(1_000)}) == 1_000


# ------------------------------------------------------------------------------------------------------------------ recurrences


def recurrence(**job: Any) -> Any:
    return made(**job)["recurrence"]


def test_an_interval_recurs_by_the_defaults() -> None:
    assert recurrence(every=timedelta(minutes=1)) == every(60_000)
    assert recurrence(every=1.5) == every(1_500)
    assert recurrence(every_after=90) == every_after(90_000)
    assert recurrence(cron="0 9 * * mon-fri", tz="Europe/Berlin") == cron("0 9 * * mon-fri", "Europe/Berlin")


def test_everything_that_is_said_of_a_recurrence_arrives() -> None:
    said = recurrence(
        every=60,
        start=datetime(2030, 1, 1, tzinfo=UTC),
        end=datetime(2031, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        max_runs=7,
        jitter=timedelta(seconds=5),
        misfire="all",
        misfire_limit=3,
        grace=30,
        overlap="allow",
        overlap_limit=2,
    )
    bounds = {"start_ms": 1_893_456_000_000, "end_ms": 1_924_992_000_001, "runs_max": 7, "jitter_ms": 5_000, "grace_ms": 30_000}
    assert said == every(60_000, **bounds, misfire="ALL", misfire_max=3, overlap="ALLOW", overlap_max=2)


@pytest.mark.parametrize("word", ["skip", "allow", "queue", "replace"])
def test_overlaps_are_said_in_small_letters(word: Any) -> None:
    assert recurrence(every=60, overlap=word)["overlap"] == word.upper()


@pytest.mark.parametrize(
    "job, reason, named",
    [
        ({"every": 60, "cron": "@daily"}, Reason.BAD_RECURRENCE, "exactly one"),
        ({"max_runs": 3}, Reason.BAD_RECURRENCE, "exactly one"),
        ({"tz": "UTC"}, Reason.BAD_RECURRENCE, "exactly one"),
        ({"every": 60, "tz": "UTC"}, Reason.BAD_ZONE, "cron line"),
        ({"every": 0.5}, Reason.TOO_FREQUENT, "every_ms 500"),
        ({"every": -1}, Reason.BAD_RECURRENCE, "negative"),
        ({"every": "90s"}, Reason.BAD_RECURRENCE, "90s"),
        ({"cron": "0 9 * *"}, Reason.BAD_EXPRESSION, "0 9 * *"),
        ({"cron": 7}, Reason.BAD_RECURRENCE, "expression 7"),
        ({"cron": "@daily", "tz": "Europe/Paris2"}, Reason.BAD_ZONE, "Paris2"),
        ({"every": 60, "max_runs": 0}, Reason.BAD_RECURRENCE, "max_runs=0"),
        ({"every": 60, "max_runs": True}, Reason.BAD_RECURRENCE, "max_runs=True"),
        ({"every": 60, "misfire": "never"}, Reason.BAD_RECURRENCE, "'once', 'skip', 'all'"),
        ({"every": 60, "overlap": "SKIP"}, Reason.BAD_RECURRENCE, "'queue'"),
        ({"every": 60, "overlap_limit": 2}, Reason.BAD_RECURRENCE, "overlap='allow'"),
        ({"every": 60, "misfire": "once", "misfire_limit": 2}, Reason.BAD_RECURRENCE, "misfire='all'"),
        ({"every": 60, "start": datetime(2030, 1, 1)}, Reason.BAD_RECURRENCE, "time zone"),  # noqa: DTZ001 -- that is the mistake
        ({"every": 60, "end": NOW_MS - 1}, Reason.BAD_END, "end_ms"),
        ({"every": 60, "expires_at": NOW_MS + 1}, Reason.BAD_LIMITS, "expires_ms"),
        ({"every": 60, "job_id": "j" * (JOB_ID_BYTES_MAX - 13)}, Reason.BAD_JOB_ID, "241"),
        ({"job_id": "j@1764600000000"}, Reason.BAD_JOB_ID, "the run of 'j'"),
    ],
)
def test_a_recurrence_that_cannot_be_is_refused(job: dict[str, Any], reason: Reason, named: str) -> None:
    error = refused(**job)
    assert error.reason == reason
    assert named in str(error)


def test_a_run_may_be_cancelled_redriven_and_dropped_by_its_id() -> None:
    job_id = "j@1764600000000"
    commands = (cancel_command(job_id, NOW_MS), redrive_command(job_id, 1, NOW_MS), drop_command(job_id, 1, NOW_MS))
    assert {command["job_id"] for command in commands} == {job_id}
