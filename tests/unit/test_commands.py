"""The rules for commands: each at its boundary, with the reason and a message that helps."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from duewheel.core.commands import check_cancel, check_drop, check_redrive, check_schedule
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    ATTEMPTS_MAX,
    CRASHES_MAX,
    DUE_MS_MAX,
    DUE_MS_MIN,
    ERROR_TYPE_CHARS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_COUNT_MAX,
    JOB_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    QUEUE_CHARS_MAX,
    RETENTION_MS_MAX,
    RETRY_CLASSES_BYTES_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_MAX,
    RUN_TIMEOUT_MS_MAX,
    TASK_BYTES_MAX,
    TOTAL_TIMEOUT_MS_MAX,
)

NOW_MS = 1_790_000_000_000


def schedule(**changes: Any) -> Any:
    """A good schedule, with changes to its fields or those of its work."""
    work: dict[str, Any] = {"task": "send_email", "content_type": "application/json", "payload": b"{}", "headers": {}, "policy": None}
    record: dict[str, Any] = {
        "job_id": "j1",
        "due_ms": NOW_MS,
        "created_ms": NOW_MS,
        "on_conflict": "IGNORE",
        "limits": None,
        "recurrence": None,
        "delivery": None,
    }
    record |= {"retention_ms": 86_400_000, "queue": "default", "work": work}
    for name, value in changes.items():
        (work if name in work else record)[name] = value
    return record


def limits(**changes: Any) -> dict[str, Any]:
    return {"limits": {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 0} | changes}


def policy(**changes: Any) -> dict[str, Any]:
    unsaid = {"attempts_max": 0, "delays_ms": [], "factor": 1.0, "delay_ms_max": 0, "jitter": 0.0}
    return {"policy": unsaid | {"give_up_on": [], "retry_on": [], "run_timeout_ms": 0} | changes}


def classes(count: int, size: int) -> list[str]:
    """So many names of so many bytes each."""
    return [f"{n:02}".ljust(size, "é" if size % 2 == 0 else "x").encode()[:size].decode() for n in range(count)]


def refusal(**changes: Any) -> RejectedJob:
    with pytest.raises(RejectedJob) as caught:
        check_schedule(schedule(**changes))
    assert len(str(caught.value)) < 500
    return caught.value


GOOD: list[dict[str, Any]] = [
    {},
    {"job_id": "j"},
    {"job_id": "j" * JOB_ID_BYTES_MAX},
    {"job_id": "é" * (JOB_ID_BYTES_MAX // 2)},
    {"job_id": "order 7/retry#2 — ключ 🙂"},
    {"task": "t" * TASK_BYTES_MAX},
    {"task": "größe"},
    {"queue": "q" * QUEUE_CHARS_MAX},
    {"queue": "a-b_c.D9"},
    {"due_ms": DUE_MS_MIN},
    {"due_ms": DUE_MS_MAX},
    {"created_ms": 0},
    {"retention_ms": 0},
    {"retention_ms": RETENTION_MS_MAX},
    {"on_conflict": "REPLACE"},
    {"content_type": "application/octet-stream"},
    {"payload": b""},
    {"headers": {"": ""}},
    {"headers": {"ключ": "🙂", "line": "a\nb"}},
    {"headers": {f"{n}": "" for n in range(HEADERS_COUNT_MAX)}},
    {"headers": {"n": "v" * (HEADERS_BYTES_MAX - 1)}},
    {"headers": {"n": "é" * (HEADERS_BYTES_MAX // 2 - 1)}},
    limits(),
    limits(expires_ms=NOW_MS + 1),
    {"due_ms": DUE_MS_MIN} | limits(expires_ms=DUE_MS_MAX),
    limits(total_timeout_ms=1),
    limits(total_timeout_ms=TOTAL_TIMEOUT_MS_MAX),
    limits(crashes_max=CRASHES_MAX),
    policy(),
    policy(attempts_max=ATTEMPTS_MAX),
    policy(delays_ms=[0]),
    policy(delays_ms=[RETRY_DELAY_MS_MAX] * RETRY_DELAYS_MAX, factor=RETRY_FACTOR_MAX, jitter=1.0),
    policy(delay_ms_max=RETRY_DELAY_MS_MAX),
    policy(run_timeout_ms=RUN_TIMEOUT_MS_MAX),
    policy(give_up_on=["ValueError"], retry_on=["billing.errors.Größe", "a.<locals>.B"]),
    policy(give_up_on=classes(RETRY_CLASSES_MAX, 100), retry_on=classes(RETRY_CLASSES_MAX, 100)),
    policy(retry_on=classes(RETRY_CLASSES_MAX, ERROR_TYPE_CHARS_MAX)),
    limits(crashes_max=1) | policy(attempts_max=1),
]


@pytest.mark.parametrize("changes", [pytest.param(changes, id=f"{n}-{','.join(changes)}") for n, changes in enumerate(GOOD)])
def test_what_keeps_the_rules_is_taken(changes: dict[str, Any]) -> None:
    check_schedule(schedule(**changes))


BAD: list[tuple[dict[str, Any], Reason]] = [
    ({"job_id": ""}, Reason.BAD_JOB_ID),
    ({"job_id": "j" * (JOB_ID_BYTES_MAX + 1)}, Reason.BAD_JOB_ID),
    ({"job_id": "é" * (JOB_ID_BYTES_MAX // 2 + 1)}, Reason.BAD_JOB_ID),
    ({"job_id": "a\nb"}, Reason.BAD_JOB_ID),
    ({"job_id": "\x7f"}, Reason.BAD_JOB_ID),
    ({"job_id": "\x85"}, Reason.BAD_JOB_ID),
    ({"job_id": "\ud800"}, Reason.BAD_JOB_ID),
    ({"job_id": 7}, Reason.BAD_JOB_ID),
    ({"job_id": b"j1"}, Reason.BAD_JOB_ID),
    ({"job_id": None}, Reason.BAD_JOB_ID),
    ({"task": ""}, Reason.BAD_TASK),
    ({"task": "t" * (TASK_BYTES_MAX + 1)}, Reason.BAD_TASK),
    ({"task": "a\tb"}, Reason.BAD_TASK),
    ({"task": ["t"]}, Reason.BAD_TASK),
    ({"task": print}, Reason.BAD_TASK),
    ({"queue": ""}, Reason.BAD_QUEUE),
    ({"queue": "q" * (QUEUE_CHARS_MAX + 1)}, Reason.BAD_QUEUE),
    ({"queue": "a b"}, Reason.BAD_QUEUE),
    ({"queue": "a\n"}, Reason.BAD_QUEUE),
    ({"queue": "größe"}, Reason.BAD_QUEUE),
    ({"queue": "a/b"}, Reason.BAD_QUEUE),
    ({"queue": {}}, Reason.BAD_QUEUE),
    ({"due_ms": DUE_MS_MIN - 1}, Reason.DUE_TOO_EARLY),
    ({"due_ms": 0}, Reason.DUE_TOO_EARLY),
    ({"due_ms": -(2**63)}, Reason.DUE_TOO_EARLY),
    ({"due_ms": DUE_MS_MAX + 1}, Reason.DUE_TOO_LATE),
    ({"due_ms": 10**400}, Reason.DUE_TOO_LATE),
    ({"due_ms": float(NOW_MS)}, Reason.BAD_DUE),
    ({"due_ms": True}, Reason.BAD_DUE),
    ({"due_ms": f"{NOW_MS}"}, Reason.BAD_DUE),
    ({"retention_ms": -1}, Reason.BAD_RETENTION),
    ({"retention_ms": RETENTION_MS_MAX + 1}, Reason.BAD_RETENTION),
    ({"retention_ms": 1.0}, Reason.BAD_RETENTION),
    ({"on_conflict": "ignore"}, Reason.BAD_ON_CONFLICT),
    ({"on_conflict": []}, Reason.BAD_ON_CONFLICT),
    ({"content_type": "text/plain"}, Reason.BAD_CONTENT_TYPE),
    ({"content_type": ""}, Reason.BAD_CONTENT_TYPE),
    ({"content_type": []}, Reason.BAD_CONTENT_TYPE),
    ({"payload": "text"}, Reason.BAD_PAYLOAD),
    ({"payload": bytearray(1)}, Reason.BAD_PAYLOAD),
    ({"payload": None}, Reason.BAD_PAYLOAD),
    ({"headers": None}, Reason.BAD_HEADERS),
    ({"headers": []}, Reason.BAD_HEADERS),
    ({"headers": {"a": 1}}, Reason.BAD_HEADERS),
    ({"headers": {1: "a"}}, Reason.BAD_HEADERS),
    ({"headers": {"a": b"b"}}, Reason.BAD_HEADERS),
    ({"headers": {"a": "\ud800"}}, Reason.BAD_HEADERS),
    ({"headers": {f"{n}": "" for n in range(HEADERS_COUNT_MAX + 1)}}, Reason.BAD_HEADERS),
    ({"headers": {"n": "v" * HEADERS_BYTES_MAX}}, Reason.BAD_HEADERS),
    ({"headers": {"n": "é" * (HEADERS_BYTES_MAX // 2)}}, Reason.BAD_HEADERS),
    ({"limits": {}}, Reason.BAD_LIMITS),
    ({"limits": []}, Reason.BAD_LIMITS),
    ({"limits": 7}, Reason.BAD_LIMITS),
    ({"limits": {"expires_ms": 0, "total_timeout_ms": 0}}, Reason.BAD_LIMITS),
    (limits(expires_ms=NOW_MS), Reason.BAD_LIMITS),
    (limits(expires_ms=1), Reason.BAD_LIMITS),
    (limits(expires_ms=-1), Reason.BAD_LIMITS),
    (limits(expires_ms=DUE_MS_MAX + 1), Reason.BAD_LIMITS),
    (limits(expires_ms=10**400), Reason.BAD_LIMITS),
    (limits(expires_ms=True), Reason.BAD_LIMITS),
    (limits(expires_ms=None), Reason.BAD_LIMITS),
    (limits(total_timeout_ms=-1), Reason.BAD_LIMITS),
    (limits(total_timeout_ms=TOTAL_TIMEOUT_MS_MAX + 1), Reason.BAD_LIMITS),
    (limits(total_timeout_ms=1.0), Reason.BAD_LIMITS),
    (limits(crashes_max=-1), Reason.BAD_LIMITS),
    (limits(crashes_max=CRASHES_MAX + 1), Reason.BAD_LIMITS),
    (limits(crashes_max="3"), Reason.BAD_LIMITS),
    ({"policy": {}}, Reason.BAD_POLICY),
    ({"policy": False}, Reason.BAD_POLICY),
    (policy(attempts_max=-1), Reason.BAD_POLICY),
    (policy(attempts_max=ATTEMPTS_MAX + 1), Reason.BAD_POLICY),
    (policy(attempts_max=True), Reason.BAD_POLICY),
    (policy(delays_ms=None), Reason.BAD_POLICY),
    (policy(delays_ms=(1,)), Reason.BAD_POLICY),
    (policy(delays_ms=[-1]), Reason.BAD_POLICY),
    (policy(delays_ms=[1, RETRY_DELAY_MS_MAX + 1]), Reason.BAD_POLICY),
    (policy(delays_ms=[1.0]), Reason.BAD_POLICY),
    (policy(delays_ms=[1] * (RETRY_DELAYS_MAX + 1)), Reason.BAD_POLICY),
    (policy(delays_ms=[1], factor=0.5), Reason.BAD_POLICY),
    (policy(delays_ms=[1], factor=RETRY_FACTOR_MAX + 1), Reason.BAD_POLICY),
    (policy(delays_ms=[1], factor=inf), Reason.BAD_POLICY),
    (policy(delays_ms=[1], factor=nan), Reason.BAD_POLICY),
    (policy(delays_ms=[1], factor=2), Reason.BAD_POLICY),
    (policy(delays_ms=[1], jitter=-0.1), Reason.BAD_POLICY),
    (policy(delays_ms=[1], jitter=-0.0), Reason.BAD_POLICY),
    (policy(delays_ms=[1], jitter=1.1), Reason.BAD_POLICY),
    (policy(delays_ms=[1], jitter=nan), Reason.BAD_POLICY),
    (policy(delays_ms=[1], jitter=None), Reason.BAD_POLICY),
    (policy(factor=2.0), Reason.BAD_POLICY),
    (policy(jitter=0.5), Reason.BAD_POLICY),
    (policy(delay_ms_max=-1), Reason.BAD_POLICY),
    (policy(delay_ms_max=RETRY_DELAY_MS_MAX + 1), Reason.BAD_POLICY),
    (policy(run_timeout_ms=RUN_TIMEOUT_MS_MAX + 1), Reason.BAD_POLICY),
    (policy(run_timeout_ms=0.5), Reason.BAD_POLICY),
    (policy(give_up_on="ValueError"), Reason.BAD_POLICY),
    (policy(give_up_on=None), Reason.BAD_POLICY),
    (policy(retry_on={}), Reason.BAD_POLICY),
    (policy(give_up_on=[""]), Reason.BAD_POLICY),
    (policy(give_up_on=[ValueError]), Reason.BAD_POLICY),
    (policy(give_up_on=["a\nb"]), Reason.BAD_POLICY),
    (policy(retry_on=["\ud800"]), Reason.BAD_POLICY),
    (policy(retry_on=["x" * (ERROR_TYPE_CHARS_MAX + 1)]), Reason.BAD_POLICY),
    (policy(retry_on=["x"] * (RETRY_CLASSES_MAX + 1)), Reason.BAD_POLICY),
    (policy(give_up_on=classes(20, 200), retry_on=["x" * (RETRY_CLASSES_BYTES_MAX - 4_000 + 1)]), Reason.BAD_POLICY),
]


@pytest.mark.parametrize("changes,reason", [pytest.param(*case, id=f"{n}-{case[1]}") for n, case in enumerate(BAD)])
def test_what_breaks_a_rule_is_refused(changes: dict[str, Any], reason: Reason) -> None:
    assert refusal(**changes).reason == reason


@pytest.mark.parametrize("job_id", ["", "j" * (JOB_ID_BYTES_MAX + 1), "a\0", "\ud800", 7, None])
def test_a_cancel_needs_an_id_that_a_job_can_have(job_id: Any) -> None:
    with pytest.raises(RejectedJob) as caught:
        check_cancel({"job_id": job_id, "created_ms": NOW_MS, "reach": "DEFAULT"})
    assert caught.value.reason == Reason.BAD_JOB_ID


def test_a_cancel_of_unknown_reach_is_refused() -> None:
    with pytest.raises(RejectedJob, match="reach 'ALL' is not known; give one of DEFAULT, JOB, RUNNING") as caught:
        check_cancel({"job_id": "j", "created_ms": NOW_MS, "reach": "ALL"})
    assert caught.value.reason == Reason.BAD_CHANGE


def test_a_cancel_of_any_id_that_a_job_can_have_is_taken() -> None:
    for job_id in ("j", "j" * JOB_ID_BYTES_MAX, "ключ 🙂"):
        check_cancel({"job_id": job_id, "created_ms": NOW_MS, "reach": "DEFAULT"})


@pytest.mark.parametrize("check", [check_redrive, check_drop])
def test_a_redrive_and_a_drop_need_an_id_and_a_token_that_an_attempt_can_have(check: Callable[[Any], None]) -> None:
    for token in (1, 2**63 - 1):
        check({"job_id": "j", "token": token, "created_ms": NOW_MS})
    for bad in (0, -1, 2**63, 10**5_000, 1.0, True, "1", None):
        with pytest.raises(RejectedJob) as caught:
            check({"job_id": "j", "token": bad, "created_ms": NOW_MS})
        assert caught.value.reason == Reason.BAD_TOKEN
    with pytest.raises(RejectedJob) as caught:
        check({"job_id": "", "token": 1, "created_ms": NOW_MS})
    assert caught.value.reason == Reason.BAD_JOB_ID


@pytest.mark.parametrize(
    "due_ms,reason,unit",
    [
        (NOW_MS // 1_000, Reason.DUE_TOO_EARLY, "seconds"),
        (NOW_MS * 1_000, Reason.DUE_TOO_LATE, "microseconds"),
        (NOW_MS * 1_000_000, Reason.DUE_TOO_LATE, "nanoseconds"),
    ],
)
def test_T4_a_mistaken_unit_is_recognized(due_ms: int, reason: Reason, unit: str) -> None:
    error = refusal(due_ms=due_ms)
    assert error.reason == reason
    for part in (str(due_ms), f"looks like {unit}", f"in milliseconds it is {NOW_MS}"):
        assert part in str(error)


@pytest.mark.parametrize("due_ms", [2**63 - 1, NOW_MS + 2**63 - 1, 2**64])
def test_T4_a_due_time_beyond_all_is_refused_with_the_limit(due_ms: int) -> None:
    error = refusal(due_ms=due_ms)
    assert error.reason == Reason.DUE_TOO_LATE
    for part in (str(due_ms), str(DUE_MS_MAX), "2100-01-01"):
        assert part in str(error)


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX])
def test_W11_a_payload_up_to_the_limit_is_taken(size: int) -> None:
    check_schedule(schedule(payload=bytes(size)))


def test_W11_a_payload_over_the_limit_is_refused_with_the_sizes() -> None:
    error = refusal(payload=bytes(PAYLOAD_BYTES_MAX + 1))
    assert error.reason == Reason.PAYLOAD_TOO_LARGE
    assert "1,000,001" in str(error)
    assert "1,000,000" in str(error)


def test_a_message_never_repeats_a_huge_value() -> None:
    assert len(str(refusal(job_id="j" * 10**6))) < 300
    assert len(str(refusal(retention_ms=-(10**10_000)))) < 300
    assert len(str(refusal(queue="\n" * 10**6))) < 300
    assert len(str(refusal(due_ms=10**10_000))) < 300
    assert len(str(refusal(**limits(expires_ms=10**10_000)))) < 300
    assert len(str(refusal(**limits(crashes_max="3" * 10**6)))) < 300
    assert len(str(refusal(limits={"a" * 10**6: 1}))) < 300
    assert len(str(refusal(**policy(delays_ms=[10**10_000])))) < 300
    assert len(str(refusal(**policy(give_up_on=["x" * 10**6])))) < 300
