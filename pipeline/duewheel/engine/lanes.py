"""Which records may be put on a topic that is missing, or that has refused some.

A lane is a topic to deliver to (`core.step.lane`). What is put there is other people's: a record may be larger than the topic takes, or
have no key where the topic is compacted. Such a record is refused for what it is, and fails a whole transaction; no error says which one
it was. So a lane that is doubted (see `doubts`) is narrow: a transaction may have one of its records, then two, four, eight, as long as
they are committed, and one again as soon as one fails. A record that fails alone, and the brokers name its size or its form, or that does
so three times in a row (for the reason that `doubts` gives), rests while the others go on, and is tried again after 5 s, 10 s, 20 s …

    a topic that takes 1,000 bytes; a, b, c, d are due, and b is too large
    a b c d fail                   narrow: a alone, committed; then b and c: fails
    b alone fails                  b rests 5 s; c alone, then d and whatever comes
    b again, after 5, 15 and 35 s  fails; refused for good: its job is dead, with what the brokers said

A trial counts against a record only where it is certainly the record's: the brokers named its size or its form, or the topic has taken
others since the trial before. Where a topic takes nothing at all, none is given up; the lane rests, up to a minute.

What waits costs a timer, and is looked at again after 5 s, and the less often the longer the lane is away, up to every 160 s.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from duewheel.core.limits import MINUTE_MS, PARKED_MS
from duewheel.core.step import ADMITTED, Admission

TRIES: Final = 3
# Of a record, each with one transaction that fails, or TRIES. Between them it rests for 35 s altogether: time to mend a topic's settings.
ROUNDS_MAX: Final = 4
_REST_MS_MAX: Final = 64 * PARKED_MS
# After a record was found guilty, all others have this long before another may cost them transactions.
_BREATH_MS: Final = 250
_LANE_REST_MS_MAX: Final = MINUTE_MS
# So many in one transaction are as good as any number.
_WIDE: Final = 4_096

# How long what cannot be put on its topic waits before it is looked at again: the longer, the longer nothing could. While a lane widens,
# which takes a second, its records come back sooner; of thousands the first come first, so that not all are looked at in vain each time.
_AWAY_MS: Final = PARKED_MS
_AWAY_MS_MAX: Final = 32 * PARKED_MS
_NARROW_MS: Final = 100
_QUEUED: Final = 200
_QUEUED_DOUBLINGS_MAX: Final = 8

# Names of topics are chosen by producers, where patterns allow all; and any number of records may be refused. What is forgotten beyond
# these is found out again.
_LANES_MAX: Final = 10_000
_SUSPECTS_MAX: Final = 1_000

Record = tuple[str, int]
"""Job id and generation."""


@dataclass(slots=True)
class _Suspect:
    """What is held against a record.

    Attributes:
        failures: how often it has failed alone in a row; of these, TRIES are a round.
        is_by_value, why: what the brokers said in this round, if it was about a record's size or form; else what they said last.
        rounds: how many of these were certainly its own fault.
        commits: how many records its lane had taken in at the last of them.
    """

    failures: int = 0
    rounds: int = 0
    commits: int = 0
    rest_ms: int = 0
    until_ms: int = 0
    is_by_value: bool = False
    why: str = ""


@dataclass(slots=True)
class _Narrow:
    """A lane that is doubted, or was a moment ago.

    Attributes:
        window: how many records a transaction may have.
        taken: those that the one under way has; `turned`: how many more it could have had.
        commits: how many were committed since it became narrow.
        since_ms: when a record was first turned away since the last one was committed; -1 where none was.
        others_ms: by when records that were turned away, and of which nothing is known, will have come again: they go before suspects.
    """

    window: int = 1
    taken: list[Record] = field(default_factory=list)
    turned: int = 0
    commits: int = 0
    since_ms: int = -1
    others_ms: int = 0
    suspects: dict[Record, _Suspect] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """Whether the transaction under way has what it may have. A suspect travels alone."""
        return len(self.taken) >= self.window or (bool(self.taken) and self.taken[0] in self.suspects)

    def queue_up(self) -> int:
        """For how long the next one waits that is turned away."""
        self.turned += 1
        return _NARROW_MS << min(self.turned // _QUEUED, _QUEUED_DOUBLINGS_MAX)

    def turn_away(self, record: Record, wait_ms: int, steady_ms: int) -> Admission:
        """Lets a record wait."""
        if record not in self.suspects:
            self.others_ms = max(self.others_ms, steady_ms + wait_ms + _NARROW_MS)
        return Admission(wait_ms)


class Lanes:
    """The lanes of one processor of which not everything may be sent. Times are of the steady clock."""

    def __init__(self) -> None:
        self._narrow: dict[str, _Narrow] = {}
        self._away: dict[str, int] = {}  # since when nothing may be sent

    def begin(self) -> None:
        """A new transaction begins."""
        for narrow in self._narrow.values():
            narrow.taken, narrow.turned = [], 0

    # --- may it be sent? ---

    def away(self, lane: str, steady_ms: int) -> Admission:
        """For how long a record waits whose lane takes nothing now, since its topic is missing or not allowed."""
        if len(self._away) >= _LANES_MAX:
            self._away.clear()
        since_ms = self._away.setdefault(lane, steady_ms)
        return Admission(_stretched(_AWAY_MS, steady_ms - since_ms, _AWAY_MS_MAX))

    def rests(self, lane: str, record: Record, until_ms: int, steady_ms: int) -> Admission:
        """The same for a narrow lane that rests until then. The first that ask are there when it is tried again."""
        narrow = self._narrow[lane]
        if narrow.since_ms < 0:
            narrow.since_ms = steady_ms
        if narrow.turned < _QUEUED:
            narrow.turned += 1
            return narrow.turn_away(record, max(_NARROW_MS, until_ms - steady_ms), steady_ms)
        return Admission(_stretched(narrow.queue_up(), steady_ms - narrow.since_ms, _AWAY_MS_MAX))

    def admits(self, lane: str, job_id: str, generation: int, steady_ms: int) -> Admission:
        """Whether the transaction may have this record, as far as the lane goes. `take` it where it does."""
        narrow = self._narrow.get(lane)
        if narrow is None:
            return ADMITTED
        suspect = narrow.suspects.get((job_id, generation))
        if suspect is not None:
            if suspect.rounds >= ROUNDS_MAX:
                return Admission(refused=suspect.why)
            if steady_ms < suspect.until_ms:
                return Admission(max(_NARROW_MS, suspect.until_ms - steady_ms))
            if steady_ms < narrow.others_ms:
                return Admission(narrow.others_ms - steady_ms)
            if narrow.taken:
                return Admission(1)  # it will be the first then
        # If what was taken is refused, so is this answer, with the whole transaction.
        return narrow.turn_away((job_id, generation), narrow.queue_up(), steady_ms) if narrow.is_closed else ADMITTED

    def take(self, lane: str, job_id: str, generation: int) -> None:
        """The transaction has it."""
        narrow = self._narrow.get(lane)
        if narrow is not None:
            narrow.taken.append((job_id, generation))

    # --- what became of it ---

    def is_narrow(self, lane: str) -> bool:
        return lane in self._narrow

    def narrow(self, lane: str) -> None:
        """Lets transactions have one record of a lane, until that is committed."""
        self._narrow.setdefault(lane, _Narrow()).window = 1

    def blame(self, lane: str, steady_ms: int, rest_ms: int, error: str, *, is_by_value: bool) -> tuple[int, str | None]:
        """A transaction has failed, most likely because of what it had for this narrow lane.

        Args:
            rest_ms: for how long the lane rested the last time, since it took anything.
            error: what the brokers said.
            is_by_value: whether they said that a record is to blame for its size or its form.

        Returns:
            For how long the lane rests now, and the job that was found guilty; 0 and None where it is to be tried once more.
        """
        narrow = self._narrow[lane]
        narrow.window = 1
        if len(narrow.taken) != 1:
            return 0, None
        (record,) = narrow.taken
        if len(narrow.suspects) >= _SUSPECTS_MAX and record not in narrow.suspects:
            del narrow.suspects[next(iter(narrow.suspects))]
        suspect = narrow.suspects.setdefault(record, _Suspect(commits=narrow.commits))
        if is_by_value or not suspect.is_by_value:  # else it is but what the refusal before has left in disorder
            suspect.is_by_value, suspect.why = is_by_value, error
        suspect.failures += 1
        if suspect.failures < TRIES and not is_by_value:
            return 0, None
        is_guilty = suspect.is_by_value or narrow.commits > suspect.commits
        suspect.commits, suspect.failures, suspect.is_by_value = narrow.commits, 0, False
        if is_guilty:
            suspect.rounds += 1
            suspect.rest_ms, rest_ms = min(_REST_MS_MAX, 2 * suspect.rest_ms or PARKED_MS), _BREATH_MS
            suspect.until_ms = steady_ms + suspect.rest_ms
        else:
            rest_ms = min(_LANE_REST_MS_MAX, 2 * rest_ms or _BREATH_MS)
            suspect.until_ms = steady_ms + max(PARKED_MS, 2 * rest_ms)  # the next trial is another's
        return rest_ms, record[0]

    def committed(self, lanes: AbstractSet[str]) -> None:
        """A transaction with records for these was committed."""
        for lane in self._away.keys() & lanes:
            del self._away[lane]
        for lane in self._narrow.keys() & lanes:
            narrow = self._narrow[lane]
            narrow.commits += len(narrow.taken)
            for record in narrow.taken:
                narrow.suspects.pop(record, None)
            narrow.window, narrow.since_ms = min(_WIDE, 2 * narrow.window), -1
            if narrow.window >= _WIDE and not narrow.suspects:
                del self._narrow[lane]

    def buried(self, lane: str, job_id: str, generation: int) -> None:
        """A job is dead, since it was refused for good. Redriven, it is tried like any other."""
        narrow = self._narrow.get(lane)
        if narrow is not None:
            narrow.suspects.pop((job_id, generation), None)


def _stretched(span_ms: int, waited_ms: int, span_ms_max: int) -> int:
    """The span, doubled until it is half of what was waited already."""
    while span_ms < span_ms_max and 4 * span_ms <= waited_ms:
        span_ms *= 2
    return span_ms
