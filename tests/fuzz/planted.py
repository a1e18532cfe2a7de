"""Faults on purpose, one of each kind, to see that the fuzzer finds them: `TARGETS` for `hunt(module=…)`."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

from tests.fuzz.target import Target, agree

_FAULT: Final = b"B"  # rare among mutants of the seeds, and made by flipping bits of them
_SEEDS: Final = (b"aaaaAaaaaAaaaa", b"0123456789")
_kept: list[bytes] = []
_remembered: set[int] = set()


def _undeclared(_value: bytes) -> None:
    raise KeyError("B")


def _slow(_value: bytes) -> None:
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass


def _greedy(_value: bytes) -> None:
    _kept.append(b"\1" * 400_000_000)


def _crashing(_value: bytes) -> None:
    ctypes.string_at(1)


def _hanging(_value: bytes) -> None:
    while True:
        pass


def _at_fault(fault: Callable[[bytes], None]) -> Callable[[bytes], bytes]:
    def call(value: bytes) -> bytes:
        if _FAULT in value:
            fault(value)
        return value

    return call


def _unspeakable(value: bytes) -> None:
    raise ValueError(f"\ud800 {value!r}")  # no log and no dead letter can hold this


def _remembering(value: bytes) -> None:
    """Fails at the second input of a kind that it has seen before."""
    kind = len(value) if value.startswith(b"aaaaa") else -1
    if kind >= 0 and kind in _remembered:
        raise IndexError("again")
    _remembered.add(kind)


def _target(name: str, call: Callable[[bytes], Any], **more: Any) -> Target:
    return Target(name=name, call=call, seeds=lambda: _SEEDS, bytes_max=200, **more)


def _check(value: bytes, found: Any) -> None:
    agree("the answer", found, value.replace(_FAULT, b"b"))


TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        _target("undeclared", _at_fault(_undeclared), legal=(ValueError,)),
        _target("disagreeing", lambda value: value, check=_check),
        _target("slow", _at_fault(_slow)),
        _target("greedy", _at_fault(_greedy)),
        _target("crashing", _at_fault(_crashing)),
        _target("hanging", _at_fault(_hanging)),
        _target("unspeakable", _at_fault(_unspeakable), legal=(ValueError,)),
        _target("remembering", _remembering),
        _target("faultless", lambda value: value),
    )
}
