"""One timer partition in the hands of its owner: committed state, the near horizon, and how far everything was read.

A partition passes through four stages after it was assigned; each ends by offsets, never by time:

    CLAIMING     fence whoever died holding it, learn what is committed, write our name beside it
    REPLAYING    bring the local store up to the changelog's end, as it stood after that
    CATCHING_UP  take in commands and outcomes up to their logs' ends, as they stood then; timers rest, since cancels may lie ahead
    ACTIVE       fire
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import structlog

from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import DAY_MS, HORIZON_MS, MINUTE_MS
from duewheel.core.model import Phase, State
from duewheel.core.step import Admission, Defined, Step, retention_ms, timer_ms
from duewheel.core.wheel import Wheel, due_of, time_key, timer_key
from duewheel.ports import Codec, Mark, Record, Store

log = structlog.get_logger(__name__)

# Keys of the changelog, and of the store, which is its fold.
DEFINITION: Final = b"d"
STATE: Final = b"s"
PROGRESS: Final = b"p"
_AFTER_STATES: Final = b"t"

# Reading the disk for the horizon goes on in pieces of this size, so that a backlog of millions holds up nothing else. 10 ms each.
_LOAD_TIMERS_MAX: Final = 10_000

# Finished jobs and forgotten dispatches are looked for in passing: so few states at a time that nobody waits for it (0.2 ms), 5,000 a
# second where there are many, and no pass sooner than this after the last one began.
_SWEEP_STATES_MAX: Final = 50
_SWEEP_PASS_MS: Final = 5_000

# Fired timers are removed by range, at most this often: many small ranges make the disk slow to read.
_REMOVE_FIRED_EVERY_MS: Final = 1_000

# A dispatch that got no outcome while its record can still be expected to exist; dispatch topics keep 7 days.
REDISPATCH_AFTER_MS: Final = 6 * DAY_MS

# A store that was away for longer than tombstones live would miss deletions. topics/ lets them live a day.
STORE_AGE_MS_MAX: Final = DAY_MS - 10 * MINUTE_MS


class Stage(IntEnum):
    """How far a partition has come since it was assigned."""

    CLAIMING = 0
    REPLAYING = 1
    CATCHING_UP = 2
    ACTIVE = 3


class Inputs(NamedTuple):
    """One input of a partition as it was found at takeover: where its log began and ended."""

    low: int
    end: int


class Partition:
    """A timer partition that this process owns. It is the `View` of its steps.

    Args:
        number: the partition's number, the same in intake, state and outcomes.
        store: its local store.
        codec: reads and writes the records.
    """

    def __init__(self, number: int, store: Store, codec: Codec) -> None:
        self.number = number
        self.stage = Stage.CLAIMING
        self.token = 0
        self.intake_offset = 0
        self.outcomes_offset = 0
        self._heard_ms = 0
        self._listening_ms = 0
        self._must_listen = False
        self._watermark: tuple[int, int] | None = None
        self.replayed = 0
        self._replay_until = 0
        self._intake = self._outcomes = Inputs(0, 0)
        self._store = store
        self._codec = codec
        self._wheel = Wheel()
        self._changelog_offset = 0
        self._removed_ms = 0
        self._sweep_cursor = STATE
        self._sweep_began_ms = -_SWEEP_PASS_MS
        self._swept: list[tuple[str, State]] = []

    # --- View ---

    def defined(self, job_id: str) -> Defined | None:
        value = self._store.get(DEFINITION + job_id.encode())
        return None if value is None else self._codec.peek_definition(value)

    def state(self, job_id: str) -> State | None:
        value = self._store.get(STATE + job_id.encode())
        return None if value is None else self._codec.decode_state(value)

    # --- restore ---

    def begin_replay(self, low: int, high: int, committed: int | None, now_ms: int) -> int:
        """Decides from where the changelog must be replayed up to `high`, emptying a store that cannot be trusted.

        Args:
            low: the changelog's first offset.
            high: its end, counting what is not committed yet.
            committed: the group's committed intake offset.
            now_ms: the time, to judge the store's age.
        """
        mark = self._store.mark
        if mark is not None and (reason := self._why_outdated(mark, low, high, committed, now_ms)):
            log.warning("processor.store_outdated", partition=self.number, reason=reason)
            self._store.clear()
            mark = None
        self._replay_until = high
        self.replayed = 0
        self._changelog_offset = low if mark is None else mark.changelog_offset
        return self._changelog_offset

    def _why_outdated(self, mark: Mark, low: int, high: int, committed: int | None, now_ms: int) -> str:
        """Why the store cannot be trusted; nothing where it can."""
        if mark.changelog_offset < low:
            # The log has lost records that the store never saw, unless compaction alone moved its start, which cannot be told apart.
            return f"it ends at {mark.changelog_offset}, before the changelog begins, at {low}"
        if mark.changelog_offset > high:
            return f"it ends at {mark.changelog_offset}, behind the changelog's end, {high}"
        if now_ms - mark.saved_ms > STORE_AGE_MS_MAX:
            return f"it was away for {now_ms - mark.saved_ms} ms, and the changelog remembers deletions for {STORE_AGE_MS_MAX} ms"
        progress = self._read_progress()[1]
        if committed is not None and progress > committed:
            # It stems from a history that was undone, or somebody has set the group back.
            return f"it has taken in intake up to {progress}, and the group has committed {committed}"
        return ""

    def begin_inputs(self, intake: Inputs, outcomes: Inputs) -> None:
        """Notes where the inputs stood at takeover."""
        self._intake, self._outcomes = intake, outcomes
        self.intake_offset, self.outcomes_offset = intake.low, outcomes.low

    def replay(self, records: Sequence[Record], reached: int, now_ms: int) -> bool:
        """Folds changelog records into the store. True when the changelog was seen up to its end at takeover.

        A job has one timer at most, at the moment that follows from its definition and its state; so each record may move it.
        """
        written: list[tuple[bytes, bytes | None]] = []
        timers_set: dict[bytes, None] = {}
        timers_unset: list[bytes] = []
        jobs: dict[bytes, tuple[Defined | None, State | None]] = {}
        for record in records:
            key, value = record.key(), record.value()
            assert key is not None
            written.append((key, value))
            kind, job = key[:1], key[1:]
            if kind != DEFINITION and kind != STATE:
                continue
            job_id = job.decode()
            known, state = jobs.get(job) or (self.defined(job_id), self.state(job_id))
            before_ms = 0 if known is None else timer_ms(known, state)
            if kind == DEFINITION:
                known = None if value is None else self._codec.peek_definition(value)
            else:
                state = None if value is None else self._codec.decode_state(value)
            jobs[job] = known, state
            after_ms = 0 if known is None else timer_ms(known, state)
            if before_ms != after_ms:
                if before_ms:
                    timer = timer_key(before_ms, job_id)
                    timers_set.pop(timer, None)
                    timers_unset.append(timer)
                if after_ms:
                    timers_set[timer_key(after_ms, job_id)] = None
        self._changelog_offset = max(self._changelog_offset, reached)
        self.replayed += len(records)
        if records or self._store.mark is None:
            self._store.write(written, timers_unset, timers_set, b"", Mark(self._changelog_offset, now_ms))
        return self._changelog_offset >= self._replay_until

    def end_replay(self) -> None:
        """Learns from the changelog where to read on. The changelog is the truth: a group rewound by hand repeats nothing."""
        self.token, intake_offset, outcomes_offset = self._read_progress()
        known = self._store.get(PROGRESS) is not None
        self.intake_offset = self._position("intake", self._intake, intake_offset if known else None)
        self.outcomes_offset = self._position("outcomes", self._outcomes, outcomes_offset if known else None)
        self._wheel = Wheel()

    def _position(self, topic: str, inputs: Inputs, progress: int | None) -> int:
        """Where to read on in an input."""
        if progress is None:
            return inputs.low  # whatever the group has committed, of these records nothing is known
        if progress > inputs.end:
            # A topic of that name that was made anew, or lost its end: what lies in it now was never read. Known ids deduplicate.
            log.error("processor.log_shorter_than_known", topic=topic, partition=self.number, known=progress, end=inputs.end)
            return inputs.low
        return max(progress, inputs.low)

    def has_caught_up(self, intake_reached: int, outcomes_reached: int) -> bool:
        """Whether both inputs were taken in up to where their logs ended at takeover."""
        intake_at, outcomes_at = max(self.intake_offset, intake_reached), max(self.outcomes_offset, outcomes_reached)
        return intake_at >= self._intake.end and outcomes_at >= self._outcomes.end

    def _read_progress(self) -> tuple[int, int, int]:
        value = self._store.get(PROGRESS)
        if value is None:
            return 0, 0, 0
        progress = self._codec.decode_progress(value)
        return progress["token"], progress["intake_offset"], progress["outcomes_offset"]

    # --- steps ---

    def step(self, now_ms: int, has_queue: Callable[[str], bool], may_deliver: Callable[[str, str, int], Admission]) -> Step:
        """A fresh overlay over what is committed."""
        catching_up = self.stage < Stage.ACTIVE
        # A wall clock that stepped back must not make an old ear answer for a new lease, nor make anybody wait until it is back.
        self._heard_ms, self._listening_ms = min(self._heard_ms, now_ms), min(self._listening_ms, now_ms)
        return Step(
            self,
            self.number,
            self.token,
            now_ms,
            catching_up,
            has_queue,
            self._heard_ms,
            self._listening_ms,
            self._codec.splice_schedule,
            may_deliver,
            self._codec.decode_content,
            self._codec.revise_schedule,
        )

    def changes(self, step: Step, intake_offset: int, outcomes_offset: int) -> list[tuple[bytes, bytes | None]]:
        """The changelog records of a step, the progress last."""
        codec = self._codec
        splice_definition, encode_state = codec.splice_definition, codec.encode_state
        records: list[tuple[bytes, bytes | None]] = [
            (DEFINITION + job_id.encode(), None if known is None else splice_definition(known.generation, known.offset, known.command))
            for job_id, known in step.definitions.items()
        ]
        records += [(STATE + job_id.encode(), None if state is None else encode_state(state)) for job_id, state in step.states.items()]
        progress = codec.encode_progress({"token": step.token, "intake_offset": intake_offset, "outcomes_offset": outcomes_offset})
        records.append((PROGRESS, progress))
        return records

    def advance(self, step: Step, intake_offset: int, outcomes_offset: int) -> None:
        """Takes over in memory what a step changed, after its transaction was committed."""
        wheel = self._wheel
        for key in step.fired:
            wheel.discard(key)
        for key in step.timers_unset:
            wheel.discard(key)
        for key in step.timers_set:
            wheel.add(key)
        self.token = step.token
        self.intake_offset, self.outcomes_offset = intake_offset, outcomes_offset
        self._must_listen = self._must_listen or step.must_listen

    def save(self, step: Step, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Takes it over on disk."""
        done = b""
        if self.stage == Stage.ACTIVE and abs(step.now_ms - self._removed_ms) >= _REMOVE_FIRED_EVERY_MS:
            self._removed_ms = step.now_ms
            done = self._wheel.low()
        self._store.write(changes, step.timers_unset, step.timers_set, done, Mark(self._changelog_offset, step.now_ms))

    # --- timers ---

    def due(self, now_ms: int, count_max: int) -> list[bytes]:
        """Keys of timers that are due, earliest first."""
        return self._wheel.due(now_ms, count_max)

    def next_due_ms(self) -> int | None:
        """When the next timer of the near horizon is due, in milliseconds since the epoch."""
        return self._wheel.next_due_ms()

    def extend_horizon(self, now_ms: int) -> None:
        """Reads the next piece of the near horizon from disk, where half of it has passed."""
        wheel = self._wheel
        end = time_key(now_ms + HORIZON_MS)
        if wheel.horizon and due_of(wheel.horizon[:8]) - now_ms > HORIZON_MS // 2:
            return
        count_max = min(_LOAD_TIMERS_MAX, wheel.room)
        if count_max <= 0:
            return
        keys = self._store.timers(wheel.horizon, end, count_max)
        complete = len(keys) < count_max
        wheel.load(keys, end if complete else keys[-1] + b"\0")

    # --- leases ---

    def listen_anew(self, now_ms: int) -> None:
        """Forgets for how long outcomes were taken in without interruption: whoever was silent may have spoken to nobody."""
        self._listening_ms = now_ms

    @property
    def wants_watermark(self) -> bool:
        """Whether it must be known where the outcomes end, since leases are over."""
        return self._must_listen and self._watermark is None

    @property
    def awaits_outcomes(self) -> bool:
        """Whether it matters how far the outcomes have been read."""
        return self._watermark is not None

    def listen_until(self, offset: int, at_ms: int) -> None:
        """Takes note that outcomes ended at `offset`, which was asked at `at_ms` or later."""
        self._must_listen = False
        self._watermark = (offset, at_ms)

    def listened(self, outcomes_reached: int) -> None:
        """Takes note of how far outcomes have been read and taken in."""
        if self._watermark is not None and max(self.outcomes_offset, outcomes_reached) >= self._watermark[0]:
            self._heard_ms = max(self._heard_ms, self._watermark[1])
            self._watermark = None

    # --- housekeeping ---

    def sweep(self, now_ms: int, steady_ms: int) -> None:
        """Looks at a few more states for finished jobs to forget and dispatches that got no answer."""
        if self._sweep_cursor == STATE:
            if steady_ms - self._sweep_began_ms < _SWEEP_PASS_MS:
                return
            self._sweep_began_ms = steady_ms
        found = self._store.records(self._sweep_cursor, _AFTER_STATES, _SWEEP_STATES_MAX)
        self._sweep_cursor = found[-1][0] + b"\0" if len(found) == _SWEEP_STATES_MAX else STATE
        for key, value in found:
            state, job_id = self._codec.decode_state(value), key[1:].decode()
            if state["phase"] in TERMINAL:
                known = self.defined(job_id)
                expired = known is not None and state["changed_ms"] + retention_ms(known, state) <= now_ms
                if expired:
                    self._swept.append((job_id, state))
            elif state["changed_ms"] + REDISPATCH_AFTER_MS <= now_ms:
                self._swept.append((job_id, state))

    def tidy(self, step: Step) -> None:
        """Lets a step decide over what the sweep found."""
        for job_id, state in self._swept:
            if state["phase"] in TERMINAL:
                step.forget(job_id)
            elif state["phase"] not in (Phase.WAITING, Phase.PAUSED):
                step.overdue(job_id, state["token"])
        self._swept = []

    def mark(self, changelog_offset: int, now_ms: int) -> None:
        """Remembers that the store holds the changelog below `changelog_offset`."""
        self._changelog_offset = changelog_offset
        self._store.write([], [], [], b"", Mark(changelog_offset, now_ms))

    @property
    def damaged(self) -> bool:
        """Whether the store has failed and must be made anew."""
        return self._store.damaged

    @property
    def swept(self) -> bool:
        """Whether the sweep found something for the next step to decide."""
        return bool(self._swept)

    def rebuild(self) -> None:
        """Drops the local store, so that it is made anew from the changelog."""
        self._store.clear()

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()
