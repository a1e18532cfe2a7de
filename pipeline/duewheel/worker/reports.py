"""What a worker has to say, until a transaction has taken it.

To a run's owner: how it ended (an outcome), or that it goes on (a word: STARTED, HEARTBEAT). To whoever looks: records that are no
dispatches (dead letters). An outcome is said once and kept until it was, also when the partition is lost: its token decides. A dead letter
has none, so it goes with the position that passes its record, or not at all: then whoever holds the partition next writes it. A word is
worth only what is newest: while the brokers are away a run beats on, so of each run at most one word waits, with the progress as it is when
the word leaves, and none once its outcome is there.

    say STARTED, say HEARTBEAT, say HEARTBEAT, …     one STARTED waits
    … the run ends                                   its outcome waits, and nothing else

A transaction is bounded by number and by bytes. What finished meanwhile stays at the desk, where it counts as in flight, so that nothing
more is claimed either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from duewheel.core.errors import UndecodableRecord
from duewheel.core.limits import BATCH_BYTES_MAX, WORKER_OUTCOMES_MAX
from duewheel.core.model import Dispatch, Failure, Outcome
from duewheel.core.refusals import refuse
from duewheel.core.topology import Topology
from duewheel.ports import Clock, Record, WorkerCodec
from duewheel.worker.holding import Holding
from duewheel.worker.runs import Run
from duewheel.worker.verdicts import Verdict

_ANY_PARTITION: Final = -1  # the partitioner's choice

Report: TypeAlias = tuple[str, bytes, bytes | None, int]
"""As `produce` takes it."""


class Batch(NamedTuple):
    """What was in one transaction."""

    words: dict[Run, tuple[str, int]]
    reports: list[Report]
    letters: list[tuple[Holding, Report]]


class Reports:
    """Of one queue's loop.

    Args:
        worker: its name, as it stands in outcomes.
    """

    def __init__(self, worker: str, topology: Topology, codec: WorkerCodec, clock: Clock) -> None:
        self._worker = worker
        self._outcomes_topic = topology.outcomes
        self._dead_letter_topic = topology.dead_letter
        self._codec = codec
        self._clock = clock
        self._words: dict[Run, tuple[str, int]] = {}  # what is to be said of each, and the lease
        self._reports: list[Report] = []
        self._letters: list[tuple[Holding, Report]] = []  # each with the partition that its record lies in
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._words) + len(self._reports) + len(self._letters)

    @property
    def room(self) -> int:
        """How many outcomes may be added now."""
        return max(0, WORKER_OUTCOMES_MAX - len(self._reports)) if self._bytes < BATCH_BYTES_MAX else 0

    # --- what there is to say ---

    def end(self, runs: Sequence[Run]) -> None:
        """They ended, as they say themselves."""
        words, worker, topic = self._words, self._worker, self._outcomes_topic
        encode, add = self._codec.encode_outcome, self._reports.append
        for run in runs:
            if words:
                words.pop(run, None)
            dispatch = run.dispatch
            value = encode(
                {
                    "token": dispatch["token"],
                    "job_id": dispatch["job_id"],
                    "slot_ms": dispatch["slot_ms"],
                    "attempt": dispatch["attempt"],
                    "result": run.result,
                    "started_ms": run.started_ms,
                    "finished_ms": run.finished_ms,
                    "worker": worker,
                    "error": run.error,
                    "retry_after_ms": run.retry_after_ms,
                    "lease_ms": 0,
                    "output": run.output,
                }
            )
            self._bytes += len(value)
            add((topic, value, run.key, dispatch["timer_partition"]))

    def interrupt(self, run: Run, result: str) -> None:
        """It ends, before its handler does or began."""
        self._words.pop(run, None)
        self._outcome(run.dispatch, run.key, result, run.started_ms, self._clock.wall_ms(), None)

    def unrun(self, dispatch: Dispatch, key: bytes | None, verdict: Verdict) -> None:
        """It ended without having been run here."""
        self._outcome(dispatch, key, verdict.result, 0, self._clock.wall_ms(), verdict.error, verdict.retry_after_ms)

    def word(self, run: Run, result: str, lease_ms: int) -> None:
        """It goes on, and is to be believed in for `lease_ms`."""
        first, _ = self._words.get(run, (result, 0))  # that it started tells more than that it goes on
        self._words[run] = (first, lease_ms)

    def letter(self, holding: Holding, record: Record, error: UndecodableRecord) -> None:
        """The record, of a partition that is held, is no dispatch."""
        letter = refuse(record, error).letter(self._clock.wall_ms())
        report = self._dead_letter_topic, self._codec.encode_dead_letter(letter), letter["key"], _ANY_PARTITION
        self._bytes += len(report[1])
        self._letters.append((holding, report))

    # --- saying it ---

    def waiting(self) -> list[Report]:
        """Everything, as it is to be said; words first, since a run may have ended after one."""
        words = [self._said(run, *word) for run, word in self._words.items()]
        return words + self._reports + [report for _, report in self._letters]

    def take(self) -> Batch:
        """Everything was sent, or is being sent."""
        batch = Batch(self._words, self._reports, self._letters)
        self._words, self._reports, self._letters, self._bytes = {}, [], [], 0
        return batch

    def put_back(self, batch: Batch) -> None:
        """This was not said, after all."""
        self._words = {**self._words, **batch.words}
        self._reports = batch.reports + self._reports
        self._letters = batch.letters + self._letters
        self.leave_letters()

    def leave_letters(self) -> None:
        """Leaves the dead letters of partitions that are held no longer to whoever holds them now."""
        self._letters = [(holding, report) for holding, report in self._letters if holding.held]
        self._bytes = sum(len(report[1]) for report in self._reports) + sum(len(report[1]) for _, report in self._letters)

    def _said(self, run: Run, result: str, lease_ms: int) -> Report:
        now_ms, dispatch = self._clock.wall_ms(), run.dispatch
        outcome = self._record(dispatch, result, run.started_ms or now_ms, now_ms, None, 0, lease_ms, run.progress)
        return self._outcomes_topic, self._codec.encode_outcome(outcome), run.key, dispatch["timer_partition"]

    def _outcome(
        self,
        dispatch: Dispatch,
        key: bytes | None,
        result: str,
        started_ms: int,
        finished_ms: int,
        error: Failure | None,
        retry_after_ms: int = 0,
    ) -> None:
        outcome = self._record(dispatch, result, started_ms, finished_ms, error, retry_after_ms, 0, None)
        self._add((self._outcomes_topic, self._codec.encode_outcome(outcome), key, dispatch["timer_partition"]))

    def _add(self, report: Report) -> None:
        self._bytes += len(report[1])
        self._reports.append(report)

    def _record(
        self,
        dispatch: Dispatch,
        result: str,
        started_ms: int,
        finished_ms: int,
        error: Failure | None,
        retry_after_ms: int,
        lease_ms: int,
        output: bytes | None,
    ) -> Outcome:
        return {
            "token": dispatch["token"],
            "job_id": dispatch["job_id"],
            "slot_ms": dispatch["slot_ms"],
            "attempt": dispatch["attempt"],
            "result": result,
            "started_ms": started_ms,
            "finished_ms": finished_ms,
            "worker": self._worker,
            "error": error,
            "retry_after_ms": retry_after_ms,
            "lease_ms": lease_ms,
            "output": output,
        }
