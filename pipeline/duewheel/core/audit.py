"""One timer partition, folded from its logs for whoever wants to judge it.

The rules by which jobs live are in `core.step`. This fold does not use them: it reads what they left behind, so that a mistake in them is
not made twice. It takes the logs one after the other:

    state        up to a cut: the end of a transaction. Its last record, the Progress, says how far intake and outcomes were taken in then
    intake       up to that position: who asked for what
    outcomes     up to that position: what workers said
    dispatches   what was handed out under tokens that the Progress knows
    dead letters what was refused, what died, and what became of it

    audit = Audit(3)
    audit.definition("a", 1_000, defined, digest)  …  audit.progress(17, progress)
    audit.schedule(4, 990, schedule, digest)       …
    list(judge(audit))                             the differences, see `core.judgement`

What contradicts what came before in the same log is told at once (`found`); all else waits for `judge`.

Memory: one `Job` for each job that the state topic or the intake knows, at most 1,000 bytes with all that hangs on it, and no payloads:
a digest stands for each value. A partition of a million jobs takes 1 GB; read in several passes, a part of the jobs at a time, it takes
as much less.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duewheel.core.differences import Difference, Fact, Kind, Unjudged
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Action, Cancel, Change, OnConflict, Outcome, Phase, Progress, Reach, Recurrence, Result, Schedule, State
from duewheel.core.run_ids import parse
from duewheel.core.step import Defined

# Different commands for one job that are held, so that its definition can be found among them. A producer that repeats one under
# another time of making each time would fill the memory.
COMMANDS_HELD_MAX: Final = 50

# Runs that people asked for beside the slots of one job.
RUNS_ASKED_HELD_MAX: Final = 1_000

SAID: Final = {result: 1 << n for n, result in enumerate(Result)}

# Of a run that goes on these say nothing of its end.
GOING_ON: Final = SAID[Result.STARTED] | SAID[Result.HEARTBEAT]

_ENDS: Final = frozenset({Result.SUCCEEDED, Result.DISCARDED, Result.EXPIRED, Result.CANCELLED})


class Dispatched(NamedTuple):
    """What is kept of a dispatch record."""

    job_id: str
    token: int
    generation: int
    slot_ms: int
    dispatched_ms: int
    written_ms: int
    queue: str
    partition: int
    offset: int


class Asked:
    """What the intake says of a job: the commands that may be its definition.

    Attributes:
        offset, written_ms: of the latest Schedule.
        commands: digests of Schedules, beginning with the last one that replaces.
        replaced_at: the offset of that one; -1 where none was retained.
        complete: whether all of them are here.
        retention_ms, retention_ms_max: how long these ask to be kept, at least and at most; any of them may be the one that counts.
        expires_ms, expires_ms_max: when the first of them expires, and the last; 0 for none. One that was over when it was written expires
            then.
        recurs: one of them asks for a job that recurs; `finishes`: and for one that comes to an end by itself.
        delivers: one of them asks for a record to be delivered, once; `delivered_ms`: it cannot have been before this.
    """

    __slots__ = (
        "commands", "complete", "delivered_ms", "delivers", "expires_ms", "expires_ms_max", "finishes", "offset", "recurs", "replaced_at",
        "retention_ms", "retention_ms_max", "written_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.commands: list[int] = []
        self.complete = True
        self.recurs = self.finishes = self.delivers = False
        self.offset = self.replaced_at = -1
        self.written_ms = self.retention_ms = self.retention_ms_max = self.expires_ms = self.expires_ms_max = 0
        self.delivered_ms = 0

    def widen(self, update: Change) -> None:
        """Takes in what may hold since an update."""
        retention_ms, limits = update["retention_ms"], update["limits"]
        if retention_ms is not None:
            self.retention_ms, self.retention_ms_max = min(self.retention_ms, retention_ms), max(self.retention_ms_max, retention_ms)
        if limits is not None and limits["expires_ms"]:
            self.expires_ms = min(self.expires_ms or limits["expires_ms"], limits["expires_ms"])
            self.expires_ms_max = max(self.expires_ms_max, limits["expires_ms"])
        if update["recurrence"] is not None:
            self.finishes = self.finishes or bool(update["recurrence"]["runs_max"] or update["recurrence"]["end_ms"])
        self.delivered_ms = min(self.delivered_ms, update["due_ms"] or self.delivered_ms, update["created_ms"])


class Job:
    """What the logs say of a job. Times are of the brokers, but for `due_ms`, `created_ms` and `changed_ms`.

    Attributes:
        generation: of its definition; 0 where it has none.
        command: the digest of the Schedule in its definition; `definition` and `state` are digests of the whole values, 0 for none.
        defined_ms: when its definition was written, even where it was taken away since.
        gone_ms: when its definition was taken away last; 0 where that is not on the log.
        phase: None where it has no state.
        token: of its newest dispatch; 0 where it was not dispatched since it was defined first. One of its id, that was forgotten before,
            may have been.
        cancelled_ms: the last Cancel; `cancels_runs`: one of them was to reach its runs.
        is_dropped: a Drop was sent.
        offset: of the command that its definition came from, as that says; -1 where it says nothing.
        is_paused: a pause was asked for, of whatever life of it; `is_updated`: so was an update, or to run it at once.
        runs_asked: of a recurring job, which runs were asked for beside its slots: their times by the commands' offsets.
        has_unread: the intake has commands for it that this reader cannot read, and the owner could: of any kind.
        said: which results were told under its token (bits of SAID).
        ended_ms, ended_last_ms: the first and the last outcome that may have ended it, failures apart; 0 for none.
        failed_ms: the first word of a failure for good.
        dispatches: how many dispatch records bear its token.
        is_buried: there is a dead run of its token; `is_closed`: and it was closed before the cut.
        recurrence: of its definition.
        delivers: its definition, or one before, or a command for it, says that a record is to be delivered.
    """

    __slots__ = (
        "asked", "attempt", "cancelled_ms", "cancels_runs", "changed_ms", "command", "created_ms", "defined_ms", "definition", "delivers",
        "dispatches", "due_ms", "ended_last_ms", "ended_ms", "expires_ms", "failed_ms", "generation", "gone_ms", "has_unread", "is_buried",
        "is_closed", "is_dropped", "is_paused", "is_updated", "offset", "phase", "queue", "recurrence", "retention_ms", "runs_asked",
        "said", "state", "state_generation", "token",
    )  # fmt: skip

    def __init__(self) -> None:
        self.generation = self.due_ms = self.created_ms = self.retention_ms = self.expires_ms = self.command = 0
        self.definition = self.defined_ms = self.gone_ms = self.state = 0
        self.state_generation = self.attempt = self.token = self.changed_ms = 0
        self.said = self.ended_ms = self.ended_last_ms = self.failed_ms = self.cancelled_ms = self.dispatches = 0
        self.is_dropped = self.is_buried = self.is_closed = self.has_unread = self.is_paused = self.is_updated = False
        self.delivers = self.cancels_runs = False
        self.offset = -1
        self.runs_asked: dict[int, int] | None = None
        self.queue = ""
        self.phase: str | None = None
        self.asked: Asked | None = None
        self.recurrence: Recurrence | None = None

    @property
    def has_runs(self) -> bool:
        """Whether it is, or was asked to be, a job that recurs."""
        return self.recurrence is not None or (self.asked is not None and self.asked.recurs)

    @property
    def is_governed(self) -> bool:
        """Whether its state belongs to its definition, and not to one before."""
        return self.phase is not None and self.state_generation == self.generation


class Audit:
    """The fold.

    Args:
        partition: the timer partition.

    Attributes:
        jobs: by job id.
        token, intake_offset, outcomes_offset: the Progress at the cut.
        found: what was found in passing, until somebody takes it with `drained`.
        unjudged: how often something could not be judged, by reason.
        since_ms: from when on a log is complete, by its name; 0 for one that was never cut.
        complete_ms: from when on compaction has removed nothing of the state topic: when the second Progress on it was written
            (see `core.past`).
        open_deaths: dead runs that were there before the cut and not closed: job id and token, and when.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.jobs: dict[str, Job] = {}
        self.token = self.intake_offset = self.outcomes_offset = 0
        self.found: list[Difference] = []
        self.unjudged: dict[Unjudged, int] = {}
        self.since_ms: dict[str, int] = {}
        self.complete_ms: int | None = None
        self._progresses = 0
        self.open_deaths: dict[tuple[str, int], int] = {}

    def find(self, kind: Kind, job_id: str | None, **facts: Fact) -> None:
        self.found.append(Difference(kind, self.partition, job_id, facts))

    def drained(self) -> list[Difference]:
        """What was found and not given before."""
        found, self.found = self.found, []
        return found

    def pass_over(self, why: Unjudged) -> None:
        self.unjudged[why] = self.unjudged.get(why, 0) + 1

    # --- the state topic ---

    def definition(self, job_id: str, written_ms: int, known: Defined | None, created_ms: int, digest: int) -> None:
        """Takes in a definition; None forgets the job.

        Args:
            written_ms: when the record was written.
            created_ms: when its producer made it.
            digest: of the whole value.
        """
        job = self._job(job_id)
        if known is None:
            job.generation, job.definition, job.gone_ms = 0, 0, written_ms
            return
        if known.generation < job.generation:
            self.find(Kind.WENT_BACK, job_id, what="generation", now=known.generation, before=job.generation, written_ms=written_ms)
        limits = known.limits
        job.generation, job.due_ms, job.queue, job.retention_ms = known.generation, known.due_ms, known.queue, known.retention_ms
        job.expires_ms = 0 if limits is None else limits["expires_ms"]
        job.recurrence, job.offset, job.delivers = known.recurrence, known.offset, job.delivers or known.delivery is not None
        job.created_ms, job.defined_ms, job.command, job.definition = created_ms, written_ms, hash(known.command), digest

    def state(self, job_id: str, written_ms: int, state: State | None, digest: int) -> None:
        """Takes in a state; None forgets it."""
        job = self._job(job_id)
        if state is None:
            job.phase, job.state, job.token = None, 0, 0
            return
        if job.phase is not None:
            self._follows(job_id, job, state, written_ms)
        job.phase, job.state_generation, job.attempt = state["phase"], state["generation"], state["attempt"]
        job.token, job.changed_ms, job.state = state["token"], state["changed_ms"], digest

    def _follows(self, job_id: str, job: Job, state: State, written_ms: int) -> None:
        """Looks whether a state may come after the one before; compaction may have removed any number between them."""
        if state["generation"] < job.state_generation:
            now, before = state["generation"], job.state_generation
            self.find(Kind.WENT_BACK, job_id, what="generation of the state", now=now, before=before, written_ms=written_ms)
        elif state["token"] < job.token:
            self.find(Kind.WENT_BACK, job_id, what="token", now=state["token"], before=job.token, written_ms=written_ms)
        elif (state["phase"], state["changed_ms"], state["token"]) == (job.phase, job.changed_ms, job.token):
            pass  # written once more, in answer to a command
        elif state["generation"] == job.state_generation and job.phase in TERMINAL and not _is_redriven(job, state):
            self.find(
                Kind.ENDED_TWICE, job_id, before=job.phase, now=state["phase"], token=state["token"], before_ms=job.changed_ms,
                now_ms=state["changed_ms"],
            )  # fmt: skip

    def progress(self, offset: int, written_ms: int, progress: Progress) -> None:
        """Takes in how far the owner had come: the last record of each of its transactions."""
        self._progresses += 1
        if self._progresses == 2:
            self.complete_ms = written_ms
        for what, now, before in (
            ("token", progress["token"], self.token),
            ("position in the intake", progress["intake_offset"], self.intake_offset),
            ("position in the outcomes", progress["outcomes_offset"], self.outcomes_offset),
        ):
            if now < before:
                self.find(Kind.WENT_BACK, None, what=what, now=now, before=before, offset=offset)
        self.token = progress["token"]
        self.intake_offset, self.outcomes_offset = progress["intake_offset"], progress["outcomes_offset"]

    # --- the intake ---

    def schedule(self, offset: int, written_ms: int, record: Schedule, digest: int) -> None:
        """Takes in a Schedule that was read, not refused, and lies on its own partition.

        Args:
            digest: the `hash` of the command, encoded by the current schema.
        """
        job = self._job(record["job_id"])
        asked = job.asked
        if asked is None:
            asked = job.asked = Asked()
        is_repeated = asked.commands == [digest]
        if record["on_conflict"] == OnConflict.REPLACE:
            asked.commands, asked.replaced_at, asked.complete = [digest], offset, True
            asked.finishes = asked.delivers = False
        elif digest not in asked.commands:
            if len(asked.commands) < COMMANDS_HELD_MAX:
                asked.commands.append(digest)
            else:
                asked.complete = False
        recurrence = record["recurrence"]
        if recurrence is not None:
            asked.recurs, asked.finishes = True, asked.finishes or bool(recurrence["runs_max"] or recurrence["end_ms"])
        if record["delivery"] is not None:
            job.delivers = True
            if recurrence is None:
                delivered_ms = max(record["due_ms"], written_ms)
                asked.delivered_ms = min(asked.delivered_ms, delivered_ms) if asked.delivers else delivered_ms
                asked.delivers = True
        retention_ms, limits = record["retention_ms"], record["limits"]
        expires_ms = 0 if limits is None or not limits["expires_ms"] else max(limits["expires_ms"], written_ms)
        if len(asked.commands) == 1 and not is_repeated:
            asked.retention_ms = asked.retention_ms_max = retention_ms
            asked.expires_ms = asked.expires_ms_max = expires_ms
        else:
            asked.retention_ms, asked.retention_ms_max = min(asked.retention_ms, retention_ms), max(asked.retention_ms_max, retention_ms)
            asked.expires_ms = min(asked.expires_ms or expires_ms, expires_ms or asked.expires_ms)
            asked.expires_ms_max = max(asked.expires_ms_max, expires_ms)
        asked.offset, asked.written_ms = offset, written_ms

    def cancel(self, written_ms: int, record: Cancel) -> None:
        job = self.jobs.get(record["job_id"])
        if job is not None:
            job.cancelled_ms = written_ms
            job.cancels_runs = job.cancels_runs or record["reach"] == Reach.RUNNING

    def change(self, offset: int, record: Change) -> None:
        """Takes in a Change that was not refused by the rules. Whether it was obeyed, its job's state told once, and may not any more."""
        job = self.jobs.get(record["job_id"])
        if job is None:
            return
        action = record["action"]
        if action == Action.PAUSE:
            job.is_paused = True
        elif action == Action.RUN_NOW and job.has_runs:
            if job.runs_asked is None:
                job.runs_asked = {}
            if len(job.runs_asked) < RUNS_ASKED_HELD_MAX:
                job.runs_asked[offset] = record["created_ms"]
        elif action != Action.RESUME:
            job.is_updated = True
            if job.asked is not None:
                job.asked.widen(record)

    def drop(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None:
            job.is_dropped = True

    def unread(self, job_id: str, why: Unjudged) -> None:
        """Takes in a command of which nothing is followed but its key: what is known of the intake says not all of this job."""
        self._job(job_id).has_unread = True
        self.pass_over(why)

    # --- outcomes, dispatches, dead letters ---

    def outcome(self, offset: int, written_ms: int, record: Outcome) -> None:
        """Takes in an outcome that the owner had read at the cut."""
        job_id, token, result = record["job_id"], record["token"], Result(record["result"])
        job = self.jobs.get(job_id)
        if token > self.token or (job is not None and job.token and token > job.token):
            self.find(Kind.UNKNOWN_TOKEN, job_id, where="outcome", token=token, offset=offset, highest=self._highest(job))
            return
        if job is None:
            return
        if token == job.token:
            job.said |= SAID[result]
        if result in _ENDS:
            job.ended_ms, job.ended_last_ms = job.ended_ms or written_ms, written_ms
        elif result == Result.FAILED:
            job.failed_ms = job.failed_ms or written_ms

    def dispatch(self, row: Dispatched) -> None:
        """Takes in a dispatch; one that was made after the cut says nothing."""
        if row.token > self.token:
            return
        job_id, token = row.job_id, row.token
        where: dict[str, Fact] = {"token": token, "queue": row.queue, "dispatch_partition": row.partition, "offset": row.offset}
        if row.dispatched_ms < row.slot_ms:
            self.find(Kind.EARLY, job_id, due_ms=row.slot_ms, dispatched_ms=row.dispatched_ms, **where)
        job = self.jobs.get(job_id)
        if job is None:
            if self.since_ms.get("intake") == 0 and self.recurring(job_id) is None:
                self.find(Kind.PHANTOM, job_id, what="dispatch", **where)
            return
        if token == job.token:
            job.dispatches += 1
        elif token > job.token if job.token else job.generation and _is_of_this_life(job, row):
            self.find(Kind.AHEAD, job_id, phase=job.phase, job_token=job.token, **where)

    def died(self, job_id: str, token: int, died_ms: int, *, before_cut: bool) -> None:
        """Takes in a dead run. `before_cut`: it was there before the state topic was read."""
        if before_cut:
            self.open_deaths[job_id, token] = died_ms
        job = self.jobs.get(job_id)
        if job is not None:
            job.failed_ms = job.failed_ms or died_ms
            if token == job.token:
                job.is_buried = True

    def closed(self, job_id: str, token: int, *, before_cut: bool) -> None:
        """Takes in what became of a dead run."""
        self.open_deaths.pop((job_id, token), None)
        job = self.jobs.get(job_id)
        if job is not None and before_cut and token == job.token:
            job.is_closed = True

    def recurring(self, job_id: str) -> Job | None:
        """The recurring job of which `job_id` names a run; None where it names none, or there is no such job."""
        run = parse(job_id)
        job = None if run is None else self.jobs.get(run.job_id)
        return job if job is not None and job.has_runs else None

    def _job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = Job()
        return job

    def _highest(self, job: Job | None) -> int:
        return self.token if job is None or not job.token else job.token


def _is_redriven(job: Job, state: State) -> bool:
    """Whether a dead run may have gone on to this state."""
    return job.phase == Phase.FAILED and (state["token"] > job.token or state["phase"] in (Phase.WAITING, Phase.CANCELLED))


# Records of one transaction reach several partitions some milliseconds apart.
_ONE_TRANSACTION_MS: Final = 1_000


def _is_of_this_life(job: Job, row: Dispatched) -> bool:
    """Whether a dispatch is of the job as it is defined now, and not of one of the same id that was forgotten before."""
    is_same = row.generation == job.generation and row.slot_ms == job.due_ms
    return is_same and row.written_ms >= job.defined_ms - _ONE_TRANSACTION_MS
