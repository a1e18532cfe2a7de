"""Retry policies: bounds, the same wait for the same attempt, waits apart for what failed together, and who wins over whom."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core import retry
from duewheel.core.commands import check_schedule
from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import (
    ATTEMPTS_DEFAULT,
    ATTEMPTS_MAX,
    DUE_MS_MIN,
    HOUR_MS,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAY_MS_MAX_DEFAULT,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_MAX,
)
from duewheel.core.model import Policy
from duewheel.core.retry import RetryPolicy, delay_ms, merged, undiminished_ms, verdict

spans = st.one_of(
    st.integers(0, RETRY_DELAY_MS_MAX // 1_000),
    st.floats(0, RETRY_DELAY_MS_MAX / 1_000),
    st.timedeltas(timedelta(0), timedelta(milliseconds=RETRY_DELAY_MS_MAX)),
)
names = st.lists(st.sampled_from(["ValueError", "OSError", "billing.errors.Declined", "LookupError"]), max_size=3, unique=True)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    delays = draw(st.lists(spans, max_size=5))
    return RetryPolicy(
        attempts=draw(st.one_of(st.none(), st.integers(1, ATTEMPTS_MAX))),
        delays=delays,
        factor=draw(st.floats(1, RETRY_FACTOR_MAX)) if delays else 1.0,
        jitter=draw(st.floats(0, 1)) if delays else 0.0,
        delay_max=draw(st.one_of(st.none(), spans.filter(lambda span: span not in (0, timedelta(0))))),
        give_up_on=draw(names),
        retry_on=draw(names),
    )


tries = st.integers(1, ATTEMPTS_MAX)
ids = st.text(min_size=1, max_size=20)


def jitter_of(policy: RetryPolicy) -> float:
    return policy.jitter if policy.delays_ms else retry.DEFAULT.jitter


def cap_of(policy: RetryPolicy) -> int:
    return policy.delay_ms_max or max(RETRY_DELAY_MS_MAX_DEFAULT, *policy.delays_ms, 0)


# ------------------------------------------------------------------------------------------------------------------ waits


@given(policies(), tries, ids, st.integers(1, 10**9))
def test_a_wait_loses_at_most_its_share_and_never_exceeds_the_cap(policy: RetryPolicy, n: int, job_id: str, attempt: int) -> None:
    whole_ms, wait_ms = undiminished_ms(policy, n), delay_ms(policy, n, job_id, attempt)
    assert (1 - jitter_of(policy)) * whole_ms * (1 - 1e-12) <= wait_ms <= whole_ms <= cap_of(policy) <= RETRY_DELAY_MS_MAX
    assert type(wait_ms) is int


@given(policies(), tries, ids, st.integers(1, 10**9))
def test_the_same_attempt_waits_the_same(policy: RetryPolicy, n: int, job_id: str, attempt: int) -> None:
    elsewhere: RetryPolicy = pickle.loads(pickle.dumps(policy))
    assert elsewhere == policy
    assert delay_ms(elsewhere, n, job_id, attempt) == delay_ms(policy, n, job_id, attempt)


def test_the_waits_of_a_job_are_the_same_on_every_machine() -> None:
    """Pinned: whoever computes them again, in whatever version, must get these."""
    assert [delay_ms(retry.DEFAULT, n, "welcome-ada", n) for n in (1, 2, 3, 4)] == [952, 3_528, 14_003, 47_058]


@given(policies(), st.integers(1, ATTEMPTS_MAX - 1))
def test_beyond_the_list_waits_never_shrink_and_end_at_the_cap(policy: RetryPolicy, n: int) -> None:
    beyond = len(policy.delays_ms) + n - 1
    assert undiminished_ms(policy, max(beyond, 1)) <= undiminished_ms(policy, beyond + 1)
    if policy.factor > 1.1 and policy.delays_ms[-1]:
        assert undiminished_ms(policy, ATTEMPTS_MAX) == cap_of(policy)


@given(st.lists(spans, min_size=1, max_size=RETRY_DELAYS_MAX))
def test_a_list_is_followed_and_its_last_wait_repeated(delays: list[Any]) -> None:
    policy = RetryPolicy.listed(delays)
    assert policy.attempts == len(delays) + 1
    assert [delay_ms(policy, n, "j", n) for n in range(1, len(delays) + 1)] == list(policy.delays_ms)
    assert delay_ms(policy, len(delays) + 7, "j", 9) == policy.delays_ms[-1]


def test_exponential_waits_grow_by_the_factor_up_to_the_cap() -> None:
    policy = RetryPolicy.exponential(attempts=9, first=2, factor=3, delay_max=60, jitter=0)
    assert [delay_ms(policy, n, "j", n) for n in range(1, 7)] == [2_000, 6_000, 18_000, 54_000, 60_000, 60_000]
    assert [undiminished_ms(RetryPolicy(), n) for n in range(1, 9)] == [1_000 * 4**n for n in range(6)] + [HOUR_MS] * 2
    assert [delay_ms(RetryPolicy.fixed(timedelta(minutes=5)), n, "j", n) for n in (1, 2, 99)] == [300_000] * 3


def test_a_first_wait_beyond_the_default_cap_is_not_cut() -> None:
    assert undiminished_ms(RetryPolicy.exponential(first=timedelta(days=2)), 1) == 2 * 24 * HOUR_MS
    assert undiminished_ms(RetryPolicy.listed([7_200, 1]), 1) == 2 * HOUR_MS


def test_a_wait_in_binary_fractions_is_the_decimal_one() -> None:
    assert RetryPolicy(delays=[1.1, 0.001, 1e-7, 1e-300, timedelta(microseconds=1), 0.0]).delays_ms == (1_100, 1, 1, 1, 1, 0)


# ------------------------------------------------------------------------------------------------------------------ spread


def waits(job_ids: Sequence[str], n: int) -> list[int]:
    return [delay_ms(retry.DEFAULT, n, job_id, n) for job_id in job_ids]


@pytest.mark.parametrize("form", ["job-{}", "{}", "customer-{:032}", "ключ {}"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_T13_a_thousand_jobs_that_fail_at_once_come_back_apart(form: str, n: int) -> None:
    """In the 50 fiftieths of the time in which they may come back, 20 each are expected."""
    whole_ms = undiminished_ms(retry.DEFAULT, n)
    buckets = Counter((wait_ms - whole_ms // 2) * 50 // (whole_ms // 2 + 1) for wait_ms in waits([form.format(i) for i in range(1_000)], n))
    assert len(buckets) == 50
    # The binomial distribution leaves 45 in one bucket once in 30 million buckets.
    assert max(buckets.values()) < 45


def test_T13_jobs_that_came_back_together_do_not_do_so_again() -> None:
    job_ids = [f"job-{i}" for i in range(1_000)]
    first, second = waits(job_ids, 1), waits(job_ids, 2)
    together = [late for early, late in zip(first, second, strict=True) if early < 550]
    assert len(together) > 50
    assert min(together) < 2_200
    assert max(together) > 3_800


def test_T13_without_jitter_they_would_come_back_in_lock_step() -> None:
    policy = RetryPolicy.exponential(jitter=0)
    assert {delay_ms(policy, 1, f"job-{i}", 1) for i in range(1_000)} == {1_000}


# ------------------------------------------------------------------------------------------------------------------ verdicts


@given(policies(), tries, ids)
def test_the_last_failure_is_the_end_and_none_before(policy: RetryPolicy, n: int, job_id: str) -> None:
    waited = verdict(policy, n, job_id, n, ["duewheel.Retry", "Exception"])
    assert (waited is None) == (n >= (policy.attempts or ATTEMPTS_DEFAULT))
    assert waited in (None, delay_ms(policy, n, job_id, n))


def test_one_attempt_is_no_retry() -> None:
    assert verdict(RetryPolicy(attempts=1), 1, "j", 1, ["ValueError"]) is None


@given(policies(), st.integers(-1, 2 * RETRY_DELAY_MS_MAX))
def test_what_the_handler_asks_for_is_obeyed_up_to_the_limit(policy: RetryPolicy, after_ms: int) -> None:
    waited = verdict(policy, 0, "j", 1, ["duewheel.Retry"], after_ms)
    assert waited == min(max(after_ms, 0), RETRY_DELAY_MS_MAX)


class Declined(ValueError):
    pass


def names_of(kind: type[BaseException]) -> list[str]:
    return [retry.qualified_name(each) for each in kind.__mro__[:-1]]


@pytest.mark.parametrize(
    "give_up_on, retry_on, kind, again",
    [
        ([], [], Declined, True),
        ([Declined], [], Declined, False),
        ([ValueError], [], Declined, False),  # its base class
        ([Declined], [], ValueError, True),
        ([], [OSError], ConnectionResetError, True),
        ([], [OSError], Declined, False),
        ([ConnectionResetError], [OSError], ConnectionResetError, False),  # in both
        ([ConnectionResetError], [OSError], TimeoutError, True),
        ([], [Exception], KeyboardInterrupt, False),
        ([f"{__name__}.Declined"], [], Declined, False),
        (["Declined"], [], Declined, True),  # a name of another class
    ],
)
def test_errors_are_told_apart_by_class(give_up_on: Any, retry_on: Any, kind: type[BaseException], again: bool) -> None:
    policy = RetryPolicy(give_up_on=give_up_on, retry_on=retry_on)
    assert (verdict(policy, 1, "j", 1, names_of(kind)) is not None) == again


def test_who_asks_to_be_tried_again_is_whatever_the_classes_say() -> None:
    policy = RetryPolicy(give_up_on=[Exception], retry_on=[OSError])
    assert verdict(policy, 1, "j", 1, ["duewheel.Retry", "Exception", "BaseException"]) is not None


def test_a_name_says_where_a_class_lies() -> None:
    assert RetryPolicy(give_up_on=[ValueError, Declined, "x.Y"]).give_up_on == ("ValueError", f"{__name__}.Declined", "x.Y")
    assert RetryPolicy(retry_on=[OSError, ConnectionError, IOError]).retry_on == ("OSError", "ConnectionError")


# ------------------------------------------------------------------------------------------------------------------ records


@given(policies())
def test_merged_with_nothing_is_the_task_s_own(policy: RetryPolicy) -> None:
    assert merged(policy, None) is policy
    assert merged(policy, RetryPolicy().to_record()) == policy
    assert merged(policy, policy.to_record()) == policy


@given(policies())
def test_a_policy_comes_back_from_its_record(policy: RetryPolicy) -> None:
    assert merged(RetryPolicy(), policy.to_record()) == policy


@given(policies(), policies())
def test_each_part_that_a_job_says_wins_and_the_rest_is_its_task_s(task: RetryPolicy, job: RetryPolicy) -> None:
    both = merged(task, job.to_record())
    waits = job if job.delays_ms else task
    assert both.attempts == (job.attempts or task.attempts)
    assert (both.delays_ms, both.factor, both.jitter) == (waits.delays_ms, waits.factor, waits.jitter)
    assert both.delay_ms_max == (job.delay_ms_max or waits.delay_ms_max)
    assert both.give_up_on == (job.give_up_on or task.give_up_on)
    assert both.retry_on == (job.retry_on or task.retry_on)


@given(policies(), st.integers(0, HOUR_MS))
def test_every_policy_may_be_sent(policy: RetryPolicy, run_timeout_ms: int) -> None:
    record: Policy = policy.to_record(run_timeout_ms)
    assert record["run_timeout_ms"] == run_timeout_ms
    check_schedule(
        {
            "job_id": "j",
            "due_ms": DUE_MS_MIN,
            "created_ms": 0,
            "on_conflict": "IGNORE",
            "retention_ms": 0,
            "queue": "q",
            "limits": None,
            "recurrence": None,
            "delivery": None,
            "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": record},
        }
    )


# ------------------------------------------------------------------------------------------------------------------ what cannot be


BAD: list[tuple[dict[str, Any], str]] = [
    ({"attempts": 0}, "attempts of a retry policy: 0; it must be a whole number from 1"),
    ({"attempts": ATTEMPTS_MAX + 1}, "1,000"),
    ({"attempts": True}, "True"),
    ({"attempts": 2.0}, "2.0"),
    ({"delays": 5}, "delays of a retry policy: 5; it must be a list or tuple"),
    ({"delays": "5"}, "'5'"),
    ({"delays": [-1]}, "delay of a retry policy: -1"),
    ({"delays": [timedelta(microseconds=-1)]}, "30 days"),
    ({"delays": [timedelta(days=31)]}, "30 days"),
    ({"delays": [float("nan")]}, "nan"),
    ({"delays": [float("inf")]}, "inf"),
    ({"delays": ["1"]}, "'1'"),
    ({"delays": [True]}, "True"),
    ({"delays": [1] * (RETRY_DELAYS_MAX + 1)}, "51 of them; it must be at most 50"),
    ({"factor": 2}, "said together with factor and jitter"),
    ({"jitter": 0.5}, "said together with factor and jitter"),
    ({"delays": [1], "factor": 0.99}, "factor of a retry policy: 0.99; it must be a number from 1 to 1000"),
    ({"delays": [1], "factor": float("inf")}, "inf"),
    ({"delays": [1], "factor": 1_001}, "1001"),
    ({"delays": [1], "factor": "2"}, "'2'"),
    ({"delays": [1], "jitter": 1.01}, "jitter of a retry policy: 1.01; it must be a number from 0 to 1"),
    ({"delays": [1], "jitter": float("nan")}, "nan"),
    ({"delays": [1], "jitter": -0.1}, "-0.1"),
    ({"delay_max": 0}, "delay_max of a retry policy: 0"),
    ({"delay_max": timedelta(days=31)}, "30 days"),
    ({"give_up_on": "ValueError"}, "give_up_on of a retry policy: 'ValueError'; it must be a list or tuple"),
    ({"give_up_on": ValueError}, "<class 'ValueError'>; it must be a list or tuple"),
    ({"give_up_on": [int]}, "int"),
    ({"give_up_on": [ValueError("x")]}, "ValueError('x')"),
    ({"give_up_on": [""]}, "''"),
    ({"retry_on": ["a\nb"]}, "retry_on"),
    ({"retry_on": ["\ud800"]}, "retry_on"),
    ({"retry_on": ["x" * 201]}, "200 bytes"),
    ({"retry_on": ["é" * 101]}, "200 bytes"),
    ({"retry_on": [f"e{n}" for n in range(21)]}, "21 classes; it must be at most 20"),
    ({"retry_on": [f"{n:0200}" for n in range(20)], "give_up_on": ["x" * 97]}, "4,097 bytes; it must be at most 4,096 together"),
]


@pytest.mark.parametrize("said, message", [pytest.param(*case, id=f"{n}-{'-'.join(case[0])}") for n, case in enumerate(BAD)])
def test_what_cannot_be_is_refused_with_the_thing_the_value_and_the_limit(said: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        RetryPolicy(**said)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_empty_list_says_how_not_to_retry() -> None:
    with pytest.raises(BadConfiguration, match=r"RetryPolicy\(attempts=1\)"):
        RetryPolicy.listed([])


def test_a_policy_cannot_be_changed_and_can_be_a_key() -> None:
    policy = RetryPolicy.exponential()
    with pytest.raises(AttributeError):
        policy.attempts = 7  # type: ignore[misc]
    assert {policy: 1}[RetryPolicy.exponential()] == 1
