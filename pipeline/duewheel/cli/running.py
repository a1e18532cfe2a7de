"""What commands share that run until they are told to stop: signals, and waiting for a cluster that is away when they start."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from duewheel.core.errors import BrokerUnavailable

T = TypeVar("T")

_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 10.0


class Stop:
    """True once SIGINT or SIGTERM has come; a second one ends the process as if it had never been caught."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def __bool__(self) -> bool:
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)


def connected(connect: Callable[[], T], delayed: Callable[[BrokerUnavailable], None], timeout_s: float, stop: Stop) -> T | None:
    """What `connect` returns, tried again while the cluster is away; None if the command was told to stop meanwhile.

    Args:
        delayed: told of each attempt that failed and is followed by another.
        timeout_s: for how long to try.

    Raises:
        BrokerUnavailable: nobody answered for so long.
    """
    deadline, wait_s = time.monotonic() + timeout_s, _RETRY_S
    while not stop:
        try:
            return connect()
        except BrokerUnavailable as error:
            if time.monotonic() + wait_s > deadline:
                raise
            delayed(error)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
    return None
