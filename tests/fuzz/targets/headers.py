"""Metadata beside offsets, and headers: small texts that somebody else wrote, and that are obeyed or handed on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, Final, cast

from opentelemetry.sdk.trace import TracerProvider

from duewheel import fencing
from duewheel.core.claims import Claim, Ledger, decode, encode
from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Dispatch
from duewheel.core.ownership import RELEASED, owned_by, owner_of
from duewheel.tracing import Tracing
from duewheel.worker.app import Context
from tests.fuzz.target import Target, agree, demand

_OFFSET_MAX: Final = 2**63 - 1
# What a transactional id may begin with: topics' prefix, a word, a number of 32 digits.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# --- claims: "offset metadata" ---


def _offset_and_metadata(value: bytes) -> tuple[int, str]:
    offset, _, metadata = value.partition(b" ")
    return min(int(offset), _OFFSET_MAX) if re.fullmatch(rb"[0-9]{1,19}", offset) else 0, _text(metadata)


def _decode_claim(value: bytes) -> Claim | None:
    offset, metadata = _offset_and_metadata(value)
    return decode(metadata, offset)


def _check_claim(value: bytes, claim: Claim | None) -> None:
    """A claim that was read can be worked with, and written down again."""
    offset, _ = _offset_and_metadata(value)
    if claim is None:
        return
    demand(claim.claimed_upto <= _OFFSET_MAX, f"no offset is that high: {claim.claimed_upto}")
    if claim.unfinished is None:
        agree("the claim", decode(encode(claim, offset), offset), claim)
        return
    ledger = Ledger(claim)
    position, metadata = ledger.position()
    agree("the position", position, offset if claim.unfinished else claim.claimed_upto)
    agree("the claim", decode(metadata, position), claim)
    ledger.room(claim.claimed_upto + 10)
    for each in list(ledger.unfinished):
        ledger.finish(each)
    agree("the end", ledger.position()[0], claim.claimed_upto)


@cache
def _claims() -> Sequence[bytes]:
    pick, found = Random(7), [b"0 ", b"7 dw1 duewheel.timer.5", b"9223372036854775807 dw1:w:*gICAgICAgIB/"]
    for _ in range(60):
        offset = pick.choice((0, 1, 1_000, 2**40, _OFFSET_MAX - 10_000))
        unfinished = sorted({offset, *(offset + int(4_000 ** pick.random()) for _ in range(pick.choice((0, 3, 60))))})
        claim = Claim(f"duewheel.worker.{pick.randrange(10**9)}", unfinished[-1] + 1 + pick.randrange(9), tuple(unfinished))
        claims = (claim, claim._replace(unfinished=None), Claim("", offset))
        found += [f"{offset} {encode(each, offset)}".encode() for each in claims]
    return found


# --- owners ---


def _check_owner(_value: bytes, name: str | None) -> None:
    demand(name is None or _NAME.fullmatch(name) is not None, f"no process has this name: {name!r}")


# --- headers ---


def _headers(value: bytes) -> dict[str, str]:
    """One a line: `name: value`."""
    pairs = (line.partition(b":") for line in value.split(b"\n"))
    return {_text(name): _text(text.strip(b" ")) for name, _, text in pairs}


def _attempt_headers(value: bytes) -> fencing.Attempt:
    return fencing.from_headers(_headers(value))


def _check_attempt(_value: bytes, attempt: fencing.Attempt | BadConfiguration) -> None:
    if not isinstance(attempt, BadConfiguration):
        agree("the attempt", fencing.from_headers(fencing.to_headers(attempt)), attempt)


_TRACED: Final = TracerProvider()
_LAYERS: Final = [Tracing("child", _TRACED), Tracing("link", _TRACED)]


def _trace(value: bytes) -> None:
    context = Context(_dispatch(_headers(value)), "mails")
    for layer in _LAYERS:
        layer.before(context)
        layer.after(context, None)


def _dispatch(headers: Mapping[str, str]) -> Dispatch:
    work: Any = {"task": "t", "content_type": "application/json", "payload": b"1", "headers": headers, "policy": None}
    named: Any = {"token": 41, "job_id": "j", "generation": 1, "slot_ms": 0, "attempt": 2, "timer_partition": 0, "dispatched_ms": 0}
    dispatch: Any = {**named, "terms": None, "work": work}
    return cast(Dispatch, dispatch)


_PARENT: Final = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_TRACES: Final = (
    _PARENT,
    _PARENT + b"\ntracestate: rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    _PARENT.replace(b"00-", b"cc-") + b"-extra",
    _PARENT + b"\ntracestate: " + b",".join(b"k%d=v" % n for n in range(40)) + b"\nbaggage: a=1;meta,b=%20x%C3%A9,c",
    b"baggage: " + b"k=" + b"v" * 8_000,
)
_TRACE_WORDS: Final = (
    b"traceparent: ",
    b"tracestate: ",
    b"baggage: ",
    b"-",
    b"00",
    b"=",
    b",",
    b";",
    b"%",
    b"%ff",
    b"ff-",
    b"0" * 32,
    b"\xd9\xa3",
)
_FENCES: Final = (
    b'Idempotency-Key: "welcome-ada/1790000000000"\nDuewheel-Fencing-Token: 77',
    b'idempotency-key: "%C3%A9%2F/-1"\nDUEWHEEL-FENCING-TOKEN: 9223372036854775807',
    b'Idempotency-Key: "a/b/c"\nDuewheel-Fencing-Token: 0',
)

TARGETS: Final = [
    Target(
        name="claims",
        call=_decode_claim,
        seeds=_claims,
        check=_check_claim,
        dialect="text",
        tokens=(b"dw1:", b"dw1 ", b":", b"*", b"=", b"gA", b"AA", b"/////////w", b"gICAgICAgIB/", b"//////////9/", b"A" * 4_000),
        bytes_max=6_000,
        weight=20,
    ),
    Target(
        name="owners",
        call=lambda value: owner_of(_text(value)),
        seeds=lambda: [owned_by("duewheel.timer.0123456789abcdef").encode(), RELEASED.encode(), *_claims()[:5]],
        check=_check_owner,
        dialect="text",
        tokens=(b"dw1 ", b"-"),
        weight=3,
    ),
    Target(
        name="traces",
        call=_trace,
        seeds=lambda: _TRACES,
        dialect="text",
        tokens=_TRACE_WORDS,
        bytes_max=20_000,
        weight=5,
    ),
    Target(
        name="fencing_headers",
        call=_attempt_headers,
        legal=(BadConfiguration,),
        seeds=lambda: _FENCES,
        check=_check_attempt,
        dialect="text",
        tokens=(b'"', b"%", b"%00", b"%ff", b"/", b"-1", b"\xd9\xa3", b"\xc2\xb2", b"+7"),
        bytes_max=20_000,
        weight=5,
    ),
]
