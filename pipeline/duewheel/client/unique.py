"""Job ids made from what a job is about, so that the same thing asked for twice is one job.

    unique_id(("task", "user_id"), task="mail", queue="default", payload={"user_id": 7, "text": "hi"})
        'unique:9dd6dfd5319c6d4d59e774d17094ec43'

The id is `unique:` and the first 32 hexadecimal digits of the SHA-256 of a line of JSON, which any language can write:

    [["task","mail"],["user_id",7]]      pairs of name and value, in order of the names; no blanks, keys of objects sorted, UTF-8

Names are `task`, `queue`, or a field of the payload; dots lead into it (`user.id`), and `payload` is the whole of it. What two languages
may write differently has no place in it: numbers are integers of at most 53 bits; 7 is another value than "7", and 7.0 is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NoReturn

from duewheel.core.errors import Reason, RejectedJob

_PREFIX: Final = "unique:"
_DIGITS: Final = 32
_INTEGER_MAX: Final = 2**53 - 1
_DEPTH_MAX: Final = 32


def unique_id(unique_by: Sequence[str], *, task: str, queue: str, payload: Any) -> str:
    """The id of a job that is to be the only one with these values.

    Args:
        unique_by: names; their order does not matter.
        payload: as given to the client, before it is encoded.

    Raises:
        RejectedJob: a name is no field of the payload, or has a value that cannot be part of an id.
    """
    if isinstance(unique_by, str) or not unique_by:
        _refuse(f"unique_by={unique_by!r} names nothing; give names of fields, as in unique_by=('task', 'user_id')")
    pairs = []
    for name in sorted(set(unique_by)):
        value = task if name == "task" else queue if name == "queue" else _of_payload(name, payload)
        _check(name, value, 0)
        pairs.append([name, value])
    line = json.dumps(pairs, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        digest = sha256(line.encode()).hexdigest()
    except UnicodeEncodeError:
        _refuse(f"what unique_by={tuple(unique_by)!r} names has a lone surrogate in it, which UTF-8 cannot say; leave it out")
    return _PREFIX + digest[:_DIGITS]


def _of_payload(name: str, payload: Any) -> Any:
    if name == "payload":
        return payload
    value = payload
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            _refuse(f"unique_by names {name!r}, which the payload has not; it may be 'task', 'queue', 'payload' or a field of a payload")
        value = value[part]
    return value


def _check(name: str, value: Any, depth: int) -> None:
    """Refuses what JSON has no single way to write."""
    if depth > _DEPTH_MAX:
        _refuse(f"what unique_by names {name!r} is nested more than {_DEPTH_MAX} deep; name what is inside")
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if abs(value) > _INTEGER_MAX:
            _refuse(f"what unique_by names {name!r} holds {value}, which not every language can read: at most {_INTEGER_MAX}; use a string")
    elif isinstance(value, list | tuple):
        for item in value:
            _check(name, item, depth + 1)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for item in value.values():
            _check(name, item, depth + 1)
    else:
        _refuse(
            f"what unique_by names {name!r} holds {value!r:.100}, a {type(value).__name__}; use strings, integers, booleans, None, and "
            "lists and dicts of these, since languages do not agree on how to write anything else"
        )


def _refuse(message: str) -> NoReturn:
    raise RejectedJob(Reason.BAD_UNIQUE_BY, message)
