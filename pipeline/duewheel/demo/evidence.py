"""What became of the demo's jobs, judged by witnesses that are independent of each other and of the engine's own counters.

    intake      what was asked for: each job's due time, each cancel, and when the broker stored it
    dispatch    what the timer processors handed out, when, with which token
    handlers    what ran, when, with which token: lines that the handlers themselves wrote (`executions`)
    outcomes    what the workers said
    state       what the timer processors accepted

A promise is kept when all of them agree. For a job that ran:

    intake due 100 → dispatch at 103, token 7 → handler began at 105, token 7 → outcome SUCCEEDED, token 7 → state SUCCEEDED, token 7

and there may be more dispatches and executions, of other tokens, where a worker was killed; but one accepted end only.

Pure: feed it entries of `core.history` and executions, in any order, and ask for the verdict. About 2 KB a job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from duewheel.core.history import Entry, Happening
from duewheel.core.percentile import percentile

# A cancel that was stored this long before its job was due has come in time. One that comes in the last moment may race the job.
CANCEL_IN_TIME_MS: Final = 1_000

_ENDS: Final = frozenset({Happening.SUCCEEDED, Happening.FAILED, Happening.CANCELLED, Happening.DISCARDED, Happening.EXPIRED})


class Execution(NamedTuple):
    """A handler was called: what it wrote down itself."""

    token: int
    started_ms: int
    job_id: str


class Dispatched(NamedTuple):
    """One dispatch record."""

    token: int
    partition: int
    at_ms: int


class End(NamedTuple):
    """One terminal state record."""

    happening: Happening
    generation: int | None
    token: int | None


class Role(Enum):
    """What a process does: brings due jobs to dispatch, or dispatched ones to their handlers."""

    PROCESSOR = "processor"
    WORKER = "worker"


class Kill(NamedTuple):
    """A process was killed with -9.

    Attributes:
        name: of the process.
        role: what it did.
        dead_ms: when it was certainly dead.
        partitions: what it held, by the broker's word: timer partitions of a processor, dispatch partitions of a worker.
    """

    name: str
    role: Role
    dead_ms: int
    partitions: frozenset[int]


class Lateness(NamedTuple):
    """How long after their due time `jobs` jobs had something happen for the first time, in milliseconds."""

    jobs: int
    p50_ms: int
    p99_ms: int
    max_ms: int

    @classmethod
    def of(cls, values_ms: Iterable[int]) -> Lateness | None:
        """None of no values."""
        ordered = sorted(values_ms)
        if not ordered:
            return None
        return cls(len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


class Latenesses(NamedTuple):
    """From due time to the first dispatch, and to the first line of the first handler, of jobs that were started."""

    dispatch: Lateness | None
    start: Lateness | None


@dataclass(slots=True)
class Story:
    """All that was said of one job."""

    timer_partition: int = -1
    due_ms: int | None = None
    cancel_ms: int | None = None
    dispatches: list[Dispatched] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    succeeded_tokens: set[int] = field(default_factory=set)
    ends: list[End] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.ends)

    @property
    def completed(self) -> bool:
        """It ran, a worker said that it succeeded, and that was accepted: three witnesses, one token."""
        ran = {execution.token for execution in self.executions}
        return any(e.happening is Happening.SUCCEEDED and e.token in ran and e.token in self.succeeded_tokens for e in self.ends)

    @property
    def cancelled(self) -> bool:
        return self.cancel_ms is not None and any(end.happening is Happening.CANCELLED for end in self.ends)

    @property
    def early(self) -> bool:
        due_ms = self.due_ms
        return due_ms is not None and (
            any(d.at_ms < due_ms for d in self.dispatches) or any(e.started_ms < due_ms for e in self.executions)
        )

    @property
    def accepted_twice(self) -> bool:
        return max(Counter(end.generation for end in self.ends).values(), default=0) > 1

    @property
    def started_although_cancelled(self) -> bool:
        in_time = self.cancel_ms is not None and self.due_ms is not None and self.cancel_ms + CANCEL_IN_TIME_MS <= self.due_ms
        return in_time and bool(self.executions)

    @property
    def started_without_dispatch(self) -> int:
        """How often a handler began under a token that no dispatch record of this job bears."""
        dispatched = {dispatch.token for dispatch in self.dispatches}
        return sum(execution.token not in dispatched for execution in self.executions)

    @property
    def first_dispatch(self) -> Dispatched | None:
        return min(self.dispatches, default=None)

    @property
    def first_started_ms(self) -> int | None:
        return min((e.started_ms for e in self.executions), default=None)

    def served(self, role: Role) -> Iterator[tuple[int, int]]:
        """Partition and time of each service of a processor or of a worker."""
        if role is Role.PROCESSOR:
            yield from ((self.timer_partition, d.at_ms) for d in self.dispatches)
        else:
            partitions = {d.token: d.partition for d in self.dispatches}
            yield from ((partitions[e.token], e.started_ms) for e in self.executions if e.token in partitions)

    def overlaps(self, takeover: Takeover) -> bool:
        """Whether it was due, and not yet started, at any time between the kill and the end of the takeover."""
        if self.due_ms is None or self.first_started_ms is None or takeover.longest_ms is None:
            return False
        dead_ms = takeover.kill.dead_ms
        return self.due_ms <= dead_ms + takeover.longest_ms and self.first_started_ms >= dead_ms

    def passed_through(self, kill: Kill) -> bool:
        """Whether its way to its first start led through a partition that the killed process held."""
        if kill.role is Role.PROCESSOR:
            return self.timer_partition in kill.partitions
        return self.first_dispatch is not None and self.first_dispatch.partition in kill.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """How long after a kill its partitions were served again, by what was dispatched or started first in each."""

    kill: Kill
    after_ms: dict[int, int]

    @property
    def longest_ms(self) -> int | None:
        return max(self.after_ms.values(), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures. The promises are named in `promises`.

    Attributes:
        scheduled: jobs that were acknowledged.
        lost: of these, jobs that neither completed nor were cancelled.
        early: jobs of which something happened before their time.
        accepted_twice: jobs with more than one accepted end.
        started_although_cancelled: jobs that were cancelled in time and ran.
        started_without_dispatch: how often a handler began under a token that nobody handed out for its job, known or not.
        token_used_twice: fencing tokens that were handed out twice, or under which a handler began twice.
        executions: how often handlers were called.
        repeated: of these, how often again for the same job.
        lateness: of all jobs.
        undisturbed: of those whose time, from due to started, lay before the kills or after the takeovers.
        bystanders: of those whose time lay between, in partitions that no killed process held. They may be late too: what a killed
            processor left open hides what others write behind it, until a successor ends it.
    """

    scheduled: int
    cancelled: int
    completed: int
    lost: int
    early: int
    accepted_twice: int
    started_although_cancelled: int
    started_without_dispatch: int
    token_used_twice: int
    executions: int
    repeated: int
    lateness: Latenesses
    undisturbed: Latenesses
    bystanders: Latenesses
    takeovers: Sequence[Takeover]

    @property
    def promises(self) -> dict[str, int]:
        """How often each promise was broken, by its name."""
        return {
            "lost": self.lost,
            "early": self.early,
            "accepted twice": self.accepted_twice,
            "started although cancelled": self.started_although_cancelled,
            "started without dispatch": self.started_without_dispatch,
            "token used twice": self.token_used_twice,
        }

    @property
    def broken(self) -> list[str]:
        """The promises that were broken, in words; empty when all were kept."""
        return [f"{count:,} {promise}" for promise, count in self.promises.items() if count]


class Evidence:
    """Gathers what the witnesses say."""

    def __init__(self) -> None:
        self.stories: defaultdict[str, Story] = defaultdict(Story)

    def entry(self, entry: Entry) -> None:
        """Takes down what a record says."""
        if entry.job_id is None:
            return
        story = self.stories[entry.job_id]
        match entry.event:
            case Happening.SCHEDULE:
                story.due_ms, story.timer_partition = entry.due_ms, entry.source.partition
            case Happening.CANCEL:
                story.cancel_ms = entry.source.written_ms if story.cancel_ms is None else min(story.cancel_ms, entry.source.written_ms)
            case Happening.DISPATCHED:
                story.dispatches.append(Dispatched(entry.token or 0, entry.source.partition, entry.at_ms))
            case Happening.ATTEMPT_SUCCEEDED:
                story.succeeded_tokens.add(entry.token or 0)
            case happening if happening in _ENDS:
                story.ends.append(End(happening, entry.generation, entry.token))

    def execution(self, execution: Execution) -> None:
        """Takes down what a handler wrote."""
        self.stories[execution.job_id].executions.append(execution)

    def takeover(self, kill: Kill) -> Takeover:
        """How the partitions of a killed process came to be served again, as far as that is known."""
        after_ms: dict[int, int] = {}
        for story in self.stories.values():
            for partition, at_ms in story.served(kill.role):
                if partition in kill.partitions and at_ms > kill.dead_ms:
                    waited_ms = at_ms - kill.dead_ms
                    after_ms[partition] = min(waited_ms, after_ms.get(partition, waited_ms))
        return Takeover(kill=kill, after_ms=after_ms)

    def verdict(self, scheduled: Collection[str], kills: Sequence[Kill] = ()) -> Verdict:
        """Judges the jobs that were acknowledged, `scheduled`, after these kills."""
        stories = [self.stories[job_id] for job_id in scheduled]
        takeovers = [self.takeover(kill) for kill in kills]
        disturbed = [story for story in stories if any(story.overlaps(takeover) for takeover in takeovers)]
        executions = sum(len(story.executions) for story in stories)
        return Verdict(
            scheduled=len(stories),
            cancelled=sum(story.cancelled for story in stories),
            completed=sum(story.completed for story in stories),
            lost=sum(not story.completed and not story.cancelled for story in stories),
            early=sum(story.early for story in stories),
            accepted_twice=sum(story.accepted_twice for story in stories),
            started_although_cancelled=sum(story.started_although_cancelled for story in stories),
            started_without_dispatch=sum(story.started_without_dispatch for story in self.stories.values()),
            token_used_twice=_tokens_used_twice(stories),
            executions=executions,
            repeated=executions - sum(bool(story.executions) for story in stories),
            lateness=_latenesses(stories),
            undisturbed=_latenesses(s for s in stories if not any(s.overlaps(takeover) for takeover in takeovers)),
            bystanders=_latenesses(s for s in disturbed if not any(s.passed_through(kill) for kill in kills)),
            takeovers=takeovers,
        )


def start_lateness(stories: Iterable[Story]) -> Lateness | None:
    """From due time to the first line of the first handler."""
    return Lateness.of(s.first_started_ms - s.due_ms for s in stories if s.first_started_ms is not None and s.due_ms is not None)


def _latenesses(stories: Iterable[Story]) -> Latenesses:
    started = [story for story in stories if story.first_started_ms is not None]
    dispatch = Lateness.of(s.first_dispatch.at_ms - s.due_ms for s in started if s.first_dispatch is not None and s.due_ms is not None)
    return Latenesses(dispatch, start_lateness(started))


def _tokens_used_twice(stories: Iterable[Story]) -> int:
    """Tokens are counted within a timer partition: each may be dispatched once, and each dispatch may be started once."""
    dispatches: Counter[tuple[int, int]] = Counter()
    executions: Counter[tuple[int, int]] = Counter()
    for story in stories:
        dispatches.update((story.timer_partition, d.token) for d in story.dispatches)
        executions.update((story.timer_partition, e.token) for e in story.executions)
    return sum(count > 1 for count in (dispatches | executions).values())
