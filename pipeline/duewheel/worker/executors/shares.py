"""From which of several queues the next free thread takes.

By weights: of ten starts, a queue of weight 9 gets nine and one of weight 1 gets one, as long as both have work; what one does not need
goes to the others, by their weights. The order is nginx's smooth weighted round robin, which spreads each queue's turns instead of
bunching them: every queue gains its weight at each turn, the richest is served and pays the sum of all weights.

    weights a 3, b 1, c 1:   a b a c a | a b a c a | …      not   a a a b c

It repeats after as many turns as the weights sum up to, so it is worked out once. Whoever is to take next asks an `itertools.cycle`, which
moves on atomically under the interpreter's lock: any number of threads share it without a lock of ours.

Strictly: always from the first queue that has work. The later ones may starve, and that is what is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Final

from duewheel.core.errors import BadConfiguration

WEIGHT_MAX: Final = 100
QUEUES_MAX: Final = 20


class Shares:
    """How a worker divides itself among its queues.

    Args:
        weights: by queue, in the order of importance.
        strict: whether the order alone decides, and weights mean nothing.

    Raises:
        BadConfiguration: there is no queue, or too many, or a weight is out of bounds.
    """

    def __init__(self, weights: Mapping[str, int], strict: bool = False) -> None:
        if not 1 <= len(weights) <= QUEUES_MAX:
            raise BadConfiguration(f"a worker serves 1 to {QUEUES_MAX} queues, not {len(weights)}")
        for queue, weight in weights.items():
            if not 1 <= weight <= WEIGHT_MAX:
                raise BadConfiguration(f"the weight of queue {queue!r} is {weight}; it must be from 1 to {WEIGHT_MAX}")
        self.queues = tuple(weights)
        self.strict = strict
        divisor = gcd(*weights.values())
        self._weights = [weight // divisor for weight in weights.values()]

    def turns(self) -> list[int]:
        """Whose turn it is, as positions in `queues`, until it repeats."""
        total, gained, turns = sum(self._weights), [0] * len(self._weights), []
        for _ in range(total):
            gained = [have + weight for have, weight in zip(gained, self._weights, strict=True)]
            richest = gained.index(max(gained))
            gained[richest] -= total
            turns.append(richest)
        return turns
