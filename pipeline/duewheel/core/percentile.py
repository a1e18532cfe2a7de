"""The percentile of what was measured, by nearest rank: always a value that occurred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", int, float)


def percentile(ordered: Sequence[T], percent: float) -> T:
    """The smallest of the values that `percent` of them, from 0 to 100, do not exceed. `ordered` rises and is not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
