"""Which dispatches are not wanted any more, because their jobs were cancelled.

A job that is cancelled while it waits at a worker, or runs there, is its worker's to stop. Its owner does not know who that is: so it puts
a word into the control topic, in the transaction that notes the cancel, and every worker process follows that topic and remembers:

    owner    token 41 of job "report" is to stop      ──►   duewheel.control
    worker   a dispatch is claimed                          ──►   is it named there? then it is reported CANCELLED and never runs
             a dispatch waits for a thread                  ──►   the same
             a run goes on                                  ──►   its handler is asked to stop (`watch`)

A word names a job and a token, and counts for that dispatch and those before it, which are stale anyway. The newest STOPS_MAX are kept, by
job. A worker begins so far before the topic's end, since what was cancelled while no worker was there still waits for one. A word that
comes too late, or is missed, loses nothing: the handler runs, and the job's owner decides, as it does anyway, what its outcome means.

Cost: one poll of 2 µs every POLL_EVERY_MS in the whole process, and one dict lookup a dispatch, as long as anything is remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import structlog

from duewheel.core.errors import UndecodableRecord
from duewheel.core.model import Dispatch
from duewheel.ports import Clock, PartitionReader, WorkerCodec

log = structlog.get_logger(__name__)

STOPS_MAX: Final = 10_000  # about 2 MB
POLL_EVERY_MS: Final = 50
_POLL_RECORDS: Final = 2_000


class Stops:
    """The recent stops, for all loops of a worker process.

    Args:
        reader: of the control topic.
        ends: first and next offset of each of its partitions now.

    Attributes:
        count: how many ever came; who remembers it knows whether there are new ones.
    """

    def __init__(self, reader: PartitionReader, ends: Mapping[int, tuple[int, int]], codec: WorkerCodec, clock: Clock) -> None:
        self._reader = reader
        self._codec = codec
        self._clock = clock
        self._tokens: dict[str, int] = {}  # by job id, the oldest first
        self._polling = threading.Lock()
        self._polled_ms = clock.steady_ms() - POLL_EVERY_MS
        self.count = 0
        for partition, (start, end) in ends.items():
            reader.assign(partition, max(start, end - STOPS_MAX))

    def poll(self) -> None:
        """Takes in what has come, now and then. Any loop may call it, at every turn: whoever comes first does it for all."""
        now_ms = self._clock.steady_ms()
        if now_ms - self._polled_ms < POLL_EVERY_MS or not self._polling.acquire(blocking=False):
            return
        try:
            self._polled_ms = now_ms
            for record in self._reader.poll(0.0, _POLL_RECORDS):
                self._note(record.value())
        finally:
            self._polling.release()

    def names(self, dispatch: Dispatch) -> bool:
        """Whether this dispatch is not wanted any more."""
        return dispatch["token"] <= self._tokens.get(dispatch["job_id"], 0)

    def close(self) -> None:
        self._reader.close()

    def _note(self, value: bytes | None) -> None:
        try:
            stop = self._codec.decode_stop(value)
        except UndecodableRecord as error:
            log.warning("worker.stop_undecodable", error=str(error))
            return
        job_id, token = stop["job_id"], stop["token"]
        self._tokens[job_id] = max(token, self._tokens.pop(job_id, 0))
        if len(self._tokens) > STOPS_MAX:
            del self._tokens[next(iter(self._tokens))]
        self.count += 1
