"""Blocking calls of librdkafka that may never return, made on a thread that can be given up.

    helper = Helper("duewheel-closing")
    helper.start(consumer.close).result(20)     raises TimeoutError where it takes longer; the call goes on, or hangs, by itself

What a call is made on must be kept for as long as it goes on: freeing a client that hangs would hang too. The call itself does so, as
long as it is a method of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue


class Helper:
    """A thread that makes calls, one after the other. It ends with `stop`, and holds up no process that ends.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, call: Callable[[], None]) -> Future[None]:
        """Its future has the call's end, or whatever it raised."""
        future: Future[None] = Future()
        self._calls.put((call, future))
        return future

    def stop(self) -> None:
        """Lets the thread end after the calls that were started."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                call()
            except BaseException as error:  # carried to the caller, whatever it is
                future.set_exception(error)
            else:
                future.set_result(None)
