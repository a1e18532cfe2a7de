"""Ids made from what a job is about: the same for the same values, and for nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.client.commands import Job, schedule_command
from duewheel.client.unique import unique_id
from duewheel.core.errors import Reason, RejectedJob
from duewheel.core.limits import JOB_ID_BYTES_MAX

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), st.text(st.characters(codec="utf-8"))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)),
    max_leaves=8,
)
payloads = st.dictionaries(st.sampled_from(["a", "b", "user", "x"]), values, min_size=1)


def made(unique_by: Any, payload: Any, task: str = "t", queue: str = "q") -> str:
    return unique_id(unique_by, task=task, queue=queue, payload=payload)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: True is not 1, though Python thinks so."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(payloads, st.data())
def test_neither_the_order_of_names_nor_of_fields_matters_nor_what_is_not_named(payload: dict[str, Any], data: st.DataObject) -> None:
    names = [*payload, "task", "queue"]
    shuffled = dict(data.draw(st.permutations(list(payload.items()))))
    other = made(data.draw(st.permutations([*names, names[0]])), {**shuffled, "not named": 1.5})
    assert made(names, payload) == other
    assert len(other.encode()) <= JOB_ID_BYTES_MAX


@given(values, values)
def test_different_values_have_different_ids(one: Any, other: Any) -> None:
    assert (made(["a"], {"a": one}) == made(["a"], {"a": other})) == same(one, other)


def test_the_id_is_as_it_is_documented() -> None:
    line = '[["queue","q"],["task","t"],["user.id",{"a":null,"ä":[true,7]}]]'
    assert made(["task", "user.id", "queue"], {"user": {"id": {"ä": [True, 7], "a": None}}}) == (
        "unique:" + hashlib.sha256(line.encode()).hexdigest()[:32]
    )


@pytest.mark.parametrize(
    "unique_by, payload, message",
    [
        ((), {}, r"unique_by=\(\) names nothing"),
        ("task", {}, r"unique_by='task' names nothing; give names of fields"),
        (["user.id"], {"user": {"name": 1}}, "unique_by names 'user.id', which the payload has not"),
        (["x"], b"bytes", "unique_by names 'x', which the payload has not"),
        (["x"], {"x": 7.0}, "holds 7.0, a float"),
        (["payload"], {"x": {1: 2}}, r"holds \{1: 2\}, a dict"),
        (["payload"], b"bytes", "holds b'bytes', a bytes"),
        (["x"], {"x": 2**53}, "holds 9007199254740992, which not every language can read"),
        (["x"], {"x": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_cannot_be_part_of_an_id_is_refused(unique_by: Any, payload: Any, message: str) -> None:
    with pytest.raises(RejectedJob, match=message) as refusal:
        made(unique_by, payload)
    assert refusal.value.reason == Reason.BAD_UNIQUE_BY


def test_a_job_is_named_once() -> None:
    job = Job("mail", {"user_id": 7}, unique_by=("task", "user_id"))
    first, second = (schedule_command(each, 1_790_000_000_000, lambda _: "new") for each in (job, job._replace(queue="other")))
    assert first["job_id"] == second["job_id"] == made(["task", "user_id"], {"user_id": 7}, task="mail")
    with pytest.raises(RejectedJob, match=r"job_id='mine' and unique_by=\('task', 'user_id'\) both name the job"):
        schedule_command(job._replace(job_id="mine"), 1_790_000_000_000, lambda _: "new")
