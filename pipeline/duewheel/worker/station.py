"""A worker process: the loops of the queues that it serves, and what they share.

One queue is served by one loop, on the thread that calls `run`. Several are served by a loop each, on threads of their own, since a loop
waits for its brokers at every commit, and one queue must not wait for another's. They share the crew that runs handlers (`crew`), the
cancels that they have heard of (`stops`), and the place for last lives (`doorstep`); each is a member of its own queue's group.

They end together. A signal has all of them drain at the same time, each within the grace period. Where one fails, what it had not started
never does, the others drain as after a signal, and its error ends the process: whoever restarts it gets all queues served again, rather
than a worker that lives on in part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from duewheel.worker.loop import Worker
from duewheel.worker.stops import Stops

log = structlog.get_logger(__name__)

# A signal may be delivered to another thread, and then does not wake the main thread, which alone handles it.
_SIGNALS_S: Final = 0.2


class Station:
    """The loops of one process. Call `start`, then `run`.

    Attributes:
        workers: the loops, one for each queue.
    """

    def __init__(self, workers: Sequence[Worker], stops: Stops) -> None:
        self.workers = workers
        self._stops = stops

    def start(self) -> None:
        """Joins the groups."""
        for worker in self.workers:
            worker.start()

    def run(self, is_stopping: Callable[[], bool], grace_ms: int) -> None:
        """Serves the queues until told to stop, and then drains.

        Args:
            is_stopping: becomes true when it is time to drain. Asked on several threads.
            grace_ms: how long handlers may go on then.

        Raises:
            EnvironmentFailure: as `Worker.turn`. What the first loop raised that failed, when the others have drained.
        """
        if len(self.workers) == 1:
            _serve(self.workers[0], is_stopping, grace_ms)
        else:
            self._serve_apart(is_stopping, grace_ms)
        self._stops.close()

    def close(self) -> None:
        """Lets go of everything at once, where `run` was not called, or failed."""
        for worker in self.workers:
            worker.close()
        self._stops.close()

    def _serve_apart(self, is_stopping: Callable[[], bool], grace_ms: int) -> None:
        failures: list[BaseException] = []

        def serve(worker: Worker) -> None:
            structlog.contextvars.bind_contextvars(queue=worker.queue)  # on every line that this thread logs
            try:
                _serve(worker, lambda: bool(failures) or is_stopping(), grace_ms)
            except BaseException as error:  # whatever it is, it ends the process, from the thread that waits for this one
                failures.append(error)
                worker.shut()  # its runs still stand in line for the handlers that all share
                log.error("worker.queue_failed", error=str(error))

        threads = [threading.Thread(target=serve, args=(each,), name=f"duewheel-{each.queue}", daemon=True) for each in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_SIGNALS_S)
        if failures:
            raise failures[0]


def _serve(worker: Worker, is_stopping: Callable[[], bool], grace_ms: int) -> None:
    while not worker.stopped:
        if is_stopping():
            worker.drain(grace_ms)
        worker.turn()
    worker.close()
