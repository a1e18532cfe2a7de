"""How a job looks to people, whoever shows it: its work, and how its attempts went.

Whatever comes from outside (tasks, headers, messages, payloads) is shown escaped, so that no terminal obeys it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import click

from duewheel.cli.history_lines import moment, printable
from duewheel.core.model import Ending, Policy, Recurrence, RecurrenceKind, Schedule, State

PAYLOAD_CHARS_SHOWN_MAX: Final = 4_000
PAYLOAD_DEPTH_SHOWN_MAX: Final = 200
PAYLOAD_HEX_SHOWN_MAX: Final = 64  # bytes of a payload that is no JSON

_NAME_WIDTH: Final = 10


def field(name: str, value: str) -> str:
    """One line: a name, and what it is."""
    return click.style(f"{name:<{_NAME_WIDTH}}", dim=True) + value


def work_lines(schedule: Schedule) -> Iterator[str]:
    """What is to be done, and within which bounds."""
    work, limits, recurrence = schedule["work"], schedule["limits"], schedule["recurrence"]
    if recurrence is not None:
        yield field("recurs", printable(recurrence_words(recurrence)))
    if work["policy"] is not None:
        yield field("policy", printable(_policy(work["policy"])))
    if limits is not None:
        words = [f"expires {moment(limits['expires_ms'])}"] if limits["expires_ms"] else []
        words += [f"total timeout {limits['total_timeout_ms']:,} ms"] if limits["total_timeout_ms"] else []
        words += [f"at most {limits['crashes_max']} crashes"] if limits["crashes_max"] else []
        yield field("limits", ", ".join(words))
    for name, value in work["headers"].items():
        yield field("header", printable(f"{name}={value}"))
    yield field("payload", printable(f"{work['content_type']}, {len(work['payload']):,} bytes"))
    yield from _payload_lines(work["content_type"], work["payload"])


def course_lines(state: State) -> Iterator[str]:
    """How attempts went, and the last error, whole."""
    if state["trail"] is not None and state["trail"]["endings"]:
        yield field("attempts", "")
        yield from (textwrap.indent(_ending(ending), "  ") for ending in state["trail"]["endings"])
    if state["error"] is not None:
        error = state["error"]
        yield field("error", click.style(printable(f"{error['type']}: {error['message']}"), fg="red"))
        yield from (f"  {printable(line)}" for line in error["traceback"].splitlines())


def _ending(ending: Ending) -> str:
    words = [f"{ending['attempt']:>3}", f"token {ending['token']}", moment(ending["ended_ms"]), ending["result"].lower()]
    if ending["started_ms"]:
        words.append(f"in {ending['ended_ms'] - ending['started_ms']:,} ms")
    if ending["worker"]:
        words.append(f"on {ending['worker']}")
    if ending["type"]:
        words.append(f"{ending['type']}: {ending['message']}")
    return printable("  ".join(words))


def recurrence_words(recurrence: Recurrence) -> str:
    """When it is due, and what becomes of slots that were missed or overlap."""
    match recurrence["kind"]:
        case RecurrenceKind.CRON:
            words = [f"{recurrence['expression']} on the clocks of {recurrence['zone']}"]
        case RecurrenceKind.EVERY_AFTER:
            words = [f"{recurrence['every_ms']:,} ms after the last run has ended"]
        case _:
            words = [f"every {recurrence['every_ms']:,} ms"]
    words += [f"from {moment(recurrence['start_ms'])}"] if recurrence["start_ms"] else []
    words += [f"until {moment(recurrence['end_ms'])}"] if recurrence["end_ms"] else []
    words += [f"at most {recurrence['runs_max']:,} runs"] if recurrence["runs_max"] else []
    words += [f"jitter {recurrence['jitter_ms']:,} ms"] if recurrence["jitter_ms"] else []
    words += [f"misfire {recurrence['misfire'].lower()}", f"overlap {recurrence['overlap'].lower()}"]
    return ", ".join(words)


def _policy(policy: Policy) -> str:
    words = [f"{policy['attempts_max']} attempts"] if policy["attempts_max"] else []
    if policy["delays_ms"]:
        delays = ", ".join(f"{delay:,}" for delay in policy["delays_ms"])
        words.append(f"waits of {delays} ms, then times {policy['factor']:g}")
    words += [f"at most {policy['delay_ms_max']:,} ms"] if policy["delay_ms_max"] else []
    words += [f"jitter {policy['jitter']:g}"] if policy["jitter"] else []
    words += [f"gives up on {name}" for name in policy["give_up_on"]]
    words += [f"retries {name}" for name in policy["retry_on"]]
    words += [f"run timeout {policy['run_timeout_ms']:,} ms"] if policy["run_timeout_ms"] else []
    return ", ".join(words) or "its task's"


def _payload_lines(content_type: str, payload: bytes) -> Iterator[str]:
    decoded, value = payload_of(content_type, payload)
    if decoded:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        yield from (f"  {printable(line)}" for line in text[:PAYLOAD_CHARS_SHOWN_MAX].split("\n"))
        if len(text) > PAYLOAD_CHARS_SHOWN_MAX:
            yield f"  … {len(text) - PAYLOAD_CHARS_SHOWN_MAX:,} more characters; --json has all of it"
    elif payload:
        more = f" … {len(payload) - PAYLOAD_HEX_SHOWN_MAX:,} more bytes; --json has all of them, in base64"
        yield f"  {payload[:PAYLOAD_HEX_SHOWN_MAX].hex(' ')}{more if len(payload) > PAYLOAD_HEX_SHOWN_MAX else ''}"


def payload_of(content_type: str, payload: bytes) -> tuple[bool, Any]:
    """Whether the payload is JSON that can be shown as such, and what it says."""
    if content_type != "application/json":
        return False, None
    try:
        value = json.loads(payload, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False, None
    return (False, None) if _is_deep(value) else (True, value)


def _is_deep(value: Any) -> bool:
    """Whether it is nested so deeply that Python, which could read it, might not be able to write it."""
    level = [value]
    for _ in range(PAYLOAD_DEPTH_SHOWN_MAX):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [part for parts in inner for part in parts]
        if not level:
            return False
    return True


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
