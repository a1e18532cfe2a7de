"""What can differ between the logs of a timer partition, and between them and a local store.

A `Difference` is a finding of `core.audit`, `core.judgement` or `core.store_audit`: of which kind, of which job, and the numbers that show
it. It has no words; those who show it have them. What cannot be judged, because a log does not reach back far enough, is no difference: it
is counted as `Unjudged`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Fact = int | str | None

# Times in records come from three kinds of clocks: the brokers', the owners', the workers'. Where two kinds are compared, they may differ
# by this much.
SKEW_MS: Final = 60_000


class Kind(StrEnum):
    """What differs."""

    # The state topic, by itself.
    UNREADABLE = "unreadable"  # a record of it cannot be read
    MISPLACED = "misplaced"  # a job lies on a partition that is not its own
    ORPHAN = "orphan"  # a state without a definition
    WENT_BACK = "went_back"  # a token, a generation or a position is lower than before
    ENDED_TWICE = "ended_twice"  # a finished run changed again
    # Against the intake.
    LOST = "lost"  # acknowledged, and neither known nor refused, nor did it end
    FORGOTTEN_EARLY = "forgotten_early"  # it ended, and is not known any more while it should be
    PHANTOM = "phantom"  # known or dispatched, and nobody asked for it
    NOT_REPLACED = "not_replaced"  # known by a definition that a later one replaced
    UNANSWERED = "unanswered"  # an input that cannot be obeyed, and no dead letter says so
    LOG_SHORTER = "log_shorter"  # an input ends before what was read of it
    # Against outcomes and dispatches.
    UNFOUNDED = "unfounded"  # it ended, and nothing says why
    UNHEARD = "unheard"  # a worker told how its dispatch ended, and it stands as before
    UNKNOWN_TOKEN = "unknown_token"  # a token that was never given
    EARLY = "early"  # dispatched before its time
    AHEAD = "ahead"  # a dispatch with a higher token than the job's own
    UNDISPATCHED = "undispatched"  # the job's token was never dispatched
    DISPATCHED_TWICE = "dispatched_twice"  # one token, several dispatches
    # Against dead letters.
    NOT_BURIED = "not_buried"  # dead, and no dead run says so
    NOT_DEAD = "not_dead"  # a dead run is open, and its job is not dead
    STILL_DEAD = "still_dead"  # a dead run is closed, and its job still dead
    # Against a local store.
    STORE_UNREADABLE = "store_unreadable"
    STORE_OF_ANOTHER = "store_of_another"  # it is a copy of another topic, or of another format
    STORE_AHEAD = "store_ahead"  # it has come further than the changelog reaches
    STORE_VALUE = "store_value"  # another value than the changelog has
    STORE_MISSING = "store_missing"  # a record of the changelog is not in it
    STORE_EXTRA = "store_extra"  # a record in it is not in the changelog
    STORE_TIMER = "store_timer"  # a job that waits has no timer, and would not fire


class Unjudged(StrEnum):
    """Why something could not be judged."""

    INTAKE = "intake"  # the intake does not reach back far enough
    STATE = "state"  # compaction has removed what became of a job
    OUTCOMES = "outcomes"
    DISPATCHES = "dispatches"
    DEAD_LETTERS = "dead_letters"
    REPEATED = "repeated"  # so many different commands for one job that not all were held
    REGISTRY = "registry"  # in the format of a schema registry that was not named


@dataclass(frozen=True, slots=True)
class Difference:
    """One finding.

    Attributes:
        kind: what differs.
        partition: the timer partition.
        job_id: whose; None for one that is of the partition as a whole.
        facts: what shows it, by name. Names that end in `_ms` are times, but for lengths, which end in `_for_ms`.
    """

    kind: Kind
    partition: int
    job_id: str | None
    facts: dict[str, Fact] = field(default_factory=dict)
