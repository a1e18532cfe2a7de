"""What travels in a job's headers without its producer having to think of it, such as the trace it belongs to.

The headers are the producer's, and a job must never be refused for what is added to them. So where the producer has set one of the
names itself, nothing is added: half a trace context beside half of another would be worse than either. And what no longer fits is left
out, beginning with the last: of `traceparent`, `tracestate` and a large `baggage` the first two stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from duewheel.core.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX

Propagate: TypeAlias = Callable[[], Mapping[str, str]]


def enriched(headers: Mapping[str, str] | None, added: Mapping[str, str]) -> Mapping[str, str] | None:
    """The producer's headers with those of `added` that may be."""
    own = {} if headers is None else headers
    if not added or not isinstance(own, Mapping) or not added.keys().isdisjoint(own):  # what is no mapping is refused later
        return headers
    enriched = dict(own)
    size = sum(map(_bytes, enriched.items()))
    for item in added.items():
        size += _bytes(item)
        if size > HEADERS_BYTES_MAX or len(enriched) >= HEADERS_COUNT_MAX:
            break
        enriched[item[0]] = item[1]
    return enriched


def _bytes(item: tuple[str, str]) -> int:
    return sum(len(str(part).encode("utf-8", "replace")) for part in item)
