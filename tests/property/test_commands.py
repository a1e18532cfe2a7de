"""The rules for commands: the short way says what the rules say, and what it takes can be sent."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.avro import codec
from duewheel.core import commands
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import (
    ATTEMPTS_MAX,
    CRASHES_MAX,
    DUE_MS_MAX,
    DUE_MS_MIN,
    ERROR_TYPE_CHARS_MAX,
    HEADERS_BYTES_MAX,
    RECORD_BYTES_MAX,
    RETENTION_MS_MAX,
    RETRY_CLASSES_MAX,
    RETRY_DELAY_MS_MAX,
    RETRY_DELAYS_MAX,
    RETRY_FACTOR_MAX,
    RUN_TIMEOUT_MS_MAX,
    TOTAL_TIMEOUT_MS_MAX,
)
from tests.recurring import cron, every

anything = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text()), st.just({}))
names = st.one_of(st.text(), st.text("ab ", min_size=250, max_size=260), st.characters(categories=["Cs", "Cc", "Zl"]))
texts = st.text(st.characters(categories=["L", "Cs", "Zs"]), max_size=5)
headers = st.one_of(
    st.dictionaries(texts, texts, max_size=4),
    st.builds(lambda size: {"a": "b" * size}, st.integers(HEADERS_BYTES_MAX - 3, HEADERS_BYTES_MAX + 3)),
    st.builds(lambda count: {f"{n}": "" for n in range(count)}, st.integers(60, 70)),
)


def mostly(good: st.SearchStrategy[Any], *others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One in thirty is not good, so that of whole records about as many are taken as are refused."""
    bad = st.one_of(*others, anything)
    return st.integers(1, 30).flatmap(lambda chance: bad if chance == 30 else good)


def up_to(most: int) -> st.SearchStrategy[Any]:
    return mostly(st.one_of(st.integers(0, most), st.sampled_from([0, 1, most])), st.sampled_from([most + 1, -1]))


def names_up_to(count: int) -> st.SearchStrategy[Any]:
    good = st.lists(st.sampled_from(["ValueError", "billing.errors.Größe", "x" * ERROR_TYPE_CHARS_MAX]), max_size=count)
    return mostly(good, st.lists(names, max_size=3), st.just(["x"] * (count + 1)))


deliveries = st.fixed_dictionaries(
    {
        "topic": mostly(st.sampled_from(["orders", "a.b_c-D"]), st.sampled_from(["", ".", "..", "a b", "x" * 249, "x" * 250])),
        "key": mostly(st.sampled_from([None, b"", b"k"]), st.sampled_from(["k", b"k" * 4_096, b"k" * 4_097])),
        "tombstone": mostly(st.just(False), st.booleans()),
    }
)
limits = st.fixed_dictionaries(
    {
        "expires_ms": mostly(
            st.one_of(st.just(0), st.integers(DUE_MS_MIN + 1, DUE_MS_MAX)), st.sampled_from([DUE_MS_MIN - 1, DUE_MS_MIN, DUE_MS_MAX + 1])
        ),
        "total_timeout_ms": up_to(TOTAL_TIMEOUT_MS_MAX),
        "crashes_max": up_to(CRASHES_MAX),
    }
)
policies = st.fixed_dictionaries(
    {
        "attempts_max": up_to(ATTEMPTS_MAX),
        "delays_ms": mostly(st.lists(up_to(RETRY_DELAY_MS_MAX), max_size=3), st.just([0] * (RETRY_DELAYS_MAX + 1))),
        "factor": mostly(st.floats(1.0, RETRY_FACTOR_MAX), st.floats()),
        "delay_ms_max": up_to(RETRY_DELAY_MS_MAX),
        "jitter": mostly(st.floats(0.0, 1.0), st.floats()),
        "give_up_on": names_up_to(RETRY_CLASSES_MAX),
        "retry_on": names_up_to(RETRY_CLASSES_MAX),
        "run_timeout_ms": up_to(RUN_TIMEOUT_MS_MAX),
    }
)

records = st.fixed_dictionaries(
    {
        "job_id": mostly(st.text("abc-1", min_size=1, max_size=9), names),
        "due_ms": mostly(st.integers(DUE_MS_MIN, DUE_MS_MAX), st.sampled_from([DUE_MS_MIN - 1, DUE_MS_MAX + 1])),
        "created_ms": st.integers(0, DUE_MS_MAX),
        "on_conflict": mostly(st.sampled_from(["IGNORE", "REPLACE"])),
        "retention_ms": mostly(st.integers(0, RETENTION_MS_MAX), st.sampled_from([-1, RETENTION_MS_MAX + 1])),
        "queue": mostly(st.sampled_from(["default", "a.b"]), names),
        "limits": mostly(st.one_of(st.none(), limits)),
        "recurrence": mostly(st.one_of(st.none(), st.sampled_from([every(1_000), every(999), cron("@daily"), cron("0 0 30 2 *")]))),
        "delivery": mostly(st.one_of(st.none(), deliveries)),
        "work": st.fixed_dictionaries(
            {
                "task": mostly(st.just("send_email"), names),
                "content_type": mostly(st.sampled_from(sorted(commands.CONTENT_TYPES))),
                "payload": mostly(st.binary()),
                "headers": mostly(st.just({}), headers),
                "policy": mostly(st.one_of(st.none(), policies)),
            }
        ),
    }
)


def verdict(record: Any) -> Reason | None:
    try:
        commands.check_schedule(record)
    except RejectedJob as error:
        return error.reason
    return None


def by_the_rules(record: Any) -> Reason | None:
    """The verdict without the short way."""

    class NoShortWay(str):
        def isascii(self) -> bool:
            raise AttributeError

    job_id = record["job_id"]
    return verdict({**record, "job_id": NoShortWay(job_id) if isinstance(job_id, str) else job_id})


@given(records)
def test_the_short_way_says_what_the_rules_say(record: Any) -> None:
    assert verdict(record) == by_the_rules(record)


@given(records)
def test_what_is_taken_can_be_sent_and_is_taken_again(record: Any) -> None:
    if verdict(record) is None:
        value = codec.encode_schedule(record)
        assert len(value) <= RECORD_BYTES_MAX
        kind, again, _ = codec.decode_command(value)
        assert (kind, again) == ("schedule", record)
        assert verdict(again) is None


@given(limits, policies)
def test_limits_and_a_policy_that_are_taken_can_be_sent_and_are_taken_again(limits: Any, policy: Any) -> None:
    work = {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": policy}
    record: Any = {"job_id": "j", "due_ms": DUE_MS_MIN, "created_ms": 0, "on_conflict": "IGNORE", "retention_ms": 0, "queue": "q"}
    record |= {"limits": limits, "recurrence": None, "delivery": None, "work": work}
    assert verdict(record) == by_the_rules(record)
    if verdict(record) is None:
        decoded = codec.decode_command(codec.encode_schedule(record))
        assert decoded[:2] == ("schedule", record)
        assert verdict(decoded[1]) is None
