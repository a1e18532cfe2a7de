"""Which queue may be why transactions fail.

A transaction carries the dispatches of all queues. A topic that takes no records, because access was denied or its limit of size was
lowered, fails all of it, over and over, and no error says for certain which topic it was. So each queue that a failed transaction had
dispatches for gets a bad mark, and one with many is doubted: nothing is sent to it, and its jobs wait, as those of a queue that is gone.
Then half of the doubted are tried together, or a quarter, until one fails alone, and does so three times. Then it rests, each time for
twice as long. Three times, since even where the topic takes records again, the next transaction of each of the two producers fails:
it goes on with sequence numbers behind those that were refused, and the broker never saw them.

    transactions with a, b, c, d fail three times    all are doubted, the next transaction tries a and b
    fails                                            the next tries a
    committed: a is trusted again                    the next tries b and c
    fails                                            the next tries b: fails, three times, and rests 5 s, 10 s, … a minute
    then c and d                                     committed: both are trusted again

If a transaction without any dispatch fails, it was never the queues: none is doubted any more.

A topic that records are delivered to is a queue here, its lane. But one may take most records and refuse another for what that is. So a
lane is tried with one record, and that is blamed, not the lane: see `lanes`. Where the brokers say that it was the size or the form of a
record, lanes are doubted at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import structlog

from duewheel.core.limits import MINUTE_MS, PARKED_MS
from duewheel.core.step import LANE, Admission
from duewheel.engine.lanes import TRIES, Lanes

log = structlog.get_logger(__name__)

# Three failures in a row are enough, and so is one in four in the long run. A rebalance fails one, now and then.
_MARK: Final = 4
_MARKS_MAX: Final = 3 * _MARK
_REST_MS_MAX: Final = MINUTE_MS


@dataclass(slots=True)
class _Doubt:
    """What is held against a queue: when it may be tried, how long it rested before, how often it has failed alone since."""

    until_ms: int
    rest_ms: int = 0
    failures: int = 0


class Doubts:
    """What is thought of the queues of one processor."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self._doubted: dict[str, _Doubt] = {}
        self._tried: set[str] = set()
        self._tried_max = 1
        self.lanes = Lanes()

    def begin(self) -> None:
        """A new transaction begins."""
        self._tried.clear()
        self.lanes.begin()

    def admits(self, queue: str, steady_ms: int) -> bool:
        """Whether this transaction may have dispatches for a queue."""
        doubt = self._doubted.get(queue)
        if doubt is None or queue in self._tried:
            return True
        if steady_ms < doubt.until_ms or len(self._tried) >= self._tried_max:
            return False
        self._tried.add(queue)
        return True

    def admits_record(self, lane: str, job_id: str, generation: int, steady_ms: int) -> Admission:
        """Whether it may have this record for a lane."""
        admission = self.lanes.admits(lane, job_id, generation, steady_ms)
        if admission.wait_ms or admission.refused:
            return admission
        if not self.admits(lane, steady_ms):
            return self.lanes.rests(lane, steady_ms)
        self.lanes.take(lane, job_id, generation)
        return admission

    def committed(self, queues: AbstractSet[str]) -> None:
        """A transaction with dispatches for these queues was committed."""
        if self._marks:
            self._marks = {queue: left for queue, marks in self._marks.items() if (left := marks - (queue in queues)) > 0}
        for queue in self._tried & queues:
            del self._doubted[queue]
            self._tried_max *= 2
            log.info("processor.queue_trusted", queue=queue)
        self._tried.clear()
        self.lanes.committed(queues)

    def failed(self, queues: AbstractSet[str], steady_ms: int, error: str = "", *, is_by_value: bool = False) -> bool:
        """A transaction with dispatches for these queues failed, and left nothing. True where it was a try.

        Args:
            error, is_by_value: what the brokers said, and whether it was that a record is to blame for its size or its form.
        """
        tried = self._tried & queues
        self._tried.clear()
        if not queues:
            self._marks.clear()
            self._doubted.clear()
        elif tried:
            self._tried_max = max(1, len(tried) // 2)
            if len(tried) == 1:
                self._blame(tried.pop(), steady_ms, error, is_by_value)
            return True
        elif narrow := [queue for queue in queues if self.lanes.is_narrow(queue)]:
            # A moment ago they were doubted, and carry more now than then, or what failed alone before.
            self._doubt(narrow, steady_ms)
            if len(narrow) == 1:
                self._blame(narrow[0], steady_ms, error, is_by_value)
        elif is_by_value and (lanes := [queue for queue in queues if queue.startswith(LANE)]):
            self._doubt(lanes, steady_ms)  # what others put there is more likely to be so than what we make
        else:
            self._marks |= {queue: self._marks.get(queue, 0) + _MARK for queue in queues}
            suspects = [queue for queue in queues if self._marks[queue] >= _MARKS_MAX]
            for queue in suspects:
                del self._marks[queue]
            self._doubt(suspects, steady_ms)
        return False

    def _doubt(self, queues: Sequence[str], steady_ms: int) -> None:
        for queue in queues:
            self._doubted[queue] = _Doubt(steady_ms)
            self._tried_max = max(1, len(queues) // 2)
            if queue.startswith(LANE):
                self.lanes.narrow(queue)

    def _blame(self, queue: str, steady_ms: int, error: str, is_by_value: bool) -> None:
        doubt = self._doubted[queue]
        if queue.startswith(LANE):
            rest_ms, job_id = self.lanes.blame(queue, steady_ms, doubt.rest_ms, error, is_by_value=is_by_value)
            if rest_ms:
                self._doubted[queue] = _Doubt(steady_ms + rest_ms, rest_ms)
                log.error("processor.queue_doubted", queue=queue, rest_ms=rest_ms, job_id=job_id, error=error)
            return
        doubt.failures += 1
        if doubt.failures == TRIES:
            rest_ms = min(_REST_MS_MAX, 2 * doubt.rest_ms or PARKED_MS)
            self._doubted[queue] = _Doubt(steady_ms + rest_ms, rest_ms)
            log.error("processor.queue_doubted", queue=queue, rest_ms=rest_ms, job_id=None, error=error)
