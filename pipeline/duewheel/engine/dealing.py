"""To which partition of its queue a dispatch goes.

A transaction costs the brokers most of a millisecond for each partition that it touches, so dispatches of one transaction go to a partition
in runs of RUN, which a worker can start at once: by default it runs ten handlers at a time. The next transaction goes on with the next
partition: jobs that come one by one are spread over all of them.

Neighbouring partitions mostly belong to the same worker. So partitions are not taken in their order, but a golden section of the circle
apart, as leaves grow (Knuth, The Art of Computer Programming 3, section 6.4, on Fibonacci hashing): of 16, the order is 0 9 2 11 4 13 …
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Final

RUN: Final = 8
_GOLDEN: Final = 0.618034


class Dealer:
    """Deals the dispatches of one processor, queue by queue.

    Args:
        first: where to begin, so that processors do not all begin with the same partition.
    """

    def __init__(self, first: int) -> None:
        self._first = first * RUN
        self._counts: dict[str, int] = {}

    def deal(self, queue: str, partitions: int) -> int:
        """The partition of the next dispatch to `queue`, which has so many."""
        count = self._counts.get(queue, self._first)
        self._counts[queue] = count + 1
        return count // RUN * stride(partitions) % partitions

    def next_transaction(self) -> None:
        """Whatever comes now begins a new run."""
        for queue, count in self._counts.items():
            self._counts[queue] = (count + RUN - 1) // RUN * RUN


@lru_cache(maxsize=256)
def stride(partitions: int) -> int:
    """The step to the next partition: the number nearest to the golden section that has no divisor in common with `partitions`."""
    golden = partitions * _GOLDEN
    return min((n for n in range(1, partitions + 1) if gcd(n, partitions) == 1), key=lambda n: abs(n - golden))
