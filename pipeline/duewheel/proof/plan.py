"""What a run was meant to exercise, and the bounds by which it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Says what the checker cannot find in a history.

    Attributes:
        punctual_ms: how long a job may wait, once it is due and acknowledged, for its handler to begin while nothing is broken. Allow for
            workers that are busy.
        recovery_ms: R: how long after the end of a fault everything may still be late. Not below `punctual_ms`.
        cancel_ahead_ms: a cancel that was acknowledged this long before the job was due came in time. One of the last moment may race it.
        jobs_min: so many jobs must have been asked for.
        acknowledged_percent_min: of these, so many of a hundred must have been acknowledged.
        faults: so many of each kind must have happened.
        caught_transactions_min: so many transactions must have failed because a rebalance caught them.
        redriven_min, dropped_min: so many deaths must have been undone, and so many dropped.
        snapshots_min: so many snapshots of different witnesses must agree at each moment that has any.
        needs_drain: the logs must have been looked at after healing.
    """

    punctual_ms: int = 2_000
    recovery_ms: int = 20_000
    cancel_ahead_ms: int = 1_000
    jobs_min: int = 1
    acknowledged_percent_min: int = 90
    faults: Mapping[str, int] = field(default_factory=dict)
    caught_transactions_min: int = 0
    redriven_min: int = 0
    dropped_min: int = 0
    snapshots_min: int = 2
    needs_drain: bool = False
