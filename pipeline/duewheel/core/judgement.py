"""Judges a timer partition: what its logs say, each held against the others.

Each rule asks a question that the promise answers, and reads the answer off two logs that were written by different hands, or at different
times:

    every acknowledged job     is known, or was refused, or ended and was kept for its time
    every job that is known    was asked for, and is the newest that was
    every end                  has an outcome under its token, or a reason of the owner's own
    every outcome              of the newest token that ends an attempt was obeyed
    every token                was dispatched, once, at or after the job's time
    every dead run             is a job that is dead, and the other way round
    every run                  of a recurring job stands for one of its slots, or was asked for beside them
    every pause                was asked for

A log is kept for days, a job may live for years. Where the log that would answer does not reach back far enough, the question is counted
as not judged; it is never answered in favour of the system. Nor is it answered where a command for the job could not be read: those are
counted, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duewheel.core.audit import GOING_ON, RUNS_ASKED_HELD_MAX, SAID, Asked, Audit, Job
from duewheel.core.differences import SKEW_MS, Difference, Fact, Kind, Unjudged
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.limits import DEAD_RETENTION_MS, HOUR_MS
from duewheel.core.model import Overlap, Phase, RecurrenceKind, Result
from duewheel.core.recurrence import is_slot, jittered_ms, next_slot_ms
from duewheel.core.run_ids import RunId, parse
from duewheel.core.step import LANE

# A producer's clock says when a command was made. It lies on the intake if the intake reaches back to this much before that.
_PRODUCER_SKEW_MS: Final = HOUR_MS

# Of one after the other, so many milliseconds may be slots, or wait to be: two slots are a second apart.
_BESIDE_MS: Final = 10

_HANDED_OUT: Final = (Phase.DISPATCHED, Phase.RUNNING, Phase.CANCELLING)


def judge(audit: Audit, now_ms: int) -> Iterator[Difference]:
    """What differs, job by job, after all logs were folded.

    Args:
        now_ms: when the reading ended.
    """
    for job_id, job in audit.jobs.items():
        if job.generation:
            _judge_definition(audit, job_id, job)
        elif job.asked is not None:
            _judge_absence(audit, job_id, job, job.asked, now_ms)
        if job.phase is not None:
            _judge_state(audit, job_id, job)
        if audit.found:
            yield from audit.drained()
    for (job_id, token), died_ms in audit.open_deaths.items():
        found = audit.jobs.get(job_id)
        if found is None or found.phase != Phase.FAILED or found.token != token or not found.is_governed:
            phase = None if found is None else found.phase
            yield Difference(Kind.NOT_DEAD, audit.partition, job_id, {"token": token, "died_ms": died_ms, "phase": phase})


def _reaches(audit: Audit, log: str, back_to_ms: int) -> bool:
    """Whether a log has everything that was written from `back_to_ms` on; one that was never read has nothing."""
    since_ms = audit.since_ms.get(log)
    return since_ms is not None and (since_ms == 0 or since_ms + SKEW_MS <= back_to_ms)


# --- is it what was asked for? ---


def _judge_definition(audit: Audit, job_id: str, job: Job) -> None:
    asked = job.asked
    facts: dict[str, Fact] = {"generation": job.generation, "due_ms": job.due_ms, "defined_ms": job.defined_ms}
    if job.has_unread or (asked is not None and (job.command in asked.commands or _is_update(job, asked))):
        return
    run = parse(job_id)
    if asked is None and run is not None:
        _judge_run(audit, job_id, job, run)
    elif asked is not None and not asked.complete:
        audit.pass_over(Unjudged.REPEATED)
    elif asked is not None and asked.replaced_at >= 0:
        audit.find(Kind.NOT_REPLACED, job_id, offset=asked.replaced_at, **facts)
    elif _reaches(audit, "intake", job.created_ms - _PRODUCER_SKEW_MS):
        audit.find(Kind.PHANTOM, job_id, what="definition", **facts)
    else:
        audit.pass_over(Unjudged.INTAKE)


def _is_update(job: Job, asked: Asked) -> bool:
    """Whether a definition may be what updates have made of a command that is one of those that count."""
    return job.is_updated and job.generation > 1 and (job.offset < 0 or asked.replaced_at <= job.offset <= asked.offset)


def _judge_run(audit: Audit, job_id: str, job: Job, run: RunId) -> None:
    """Nobody asks for a run: its recurring job hands it out for one of its slots."""
    facts: dict[str, Fact] = {"slot_ms": run.slot_ms, "due_ms": job.due_ms, "defined_ms": job.defined_ms}
    recurring = audit.recurring(job_id)
    if recurring is None:
        if audit.since_ms.get("intake") == 0:
            audit.find(Kind.PHANTOM, job_id, what="run", **facts)
        else:
            audit.pass_over(Unjudged.INTAKE)
        return
    recurrence = recurring.recurrence
    if recurring.has_unread:
        return  # somebody may have asked for a run beside its slots
    if job.offset >= 0:
        _judge_run_beside(audit, job_id, job, recurring, facts)
        return
    if recurrence is None or not recurring.generation or job.defined_ms <= recurring.defined_ms:
        return  # of a generation that is gone: when it was due nobody knows any more
    if recurring.generation > 1 and run.slot_ms < recurring.created_ms:
        return  # the slot is one of the definition before, which waited its turn, or was left to this one
    may_be = recurrence["kind"] == RecurrenceKind.EVERY_AFTER or is_slot(recurrence, recurring.due_ms, run.slot_ms)
    if not may_be or job.due_ms != jittered_ms(recurrence, run.job_id, run.slot_ms):
        audit.find(Kind.PHANTOM, job_id, what="slot", **facts)


def _judge_run_beside(audit: Audit, job_id: str, job: Job, recurring: Job, facts: dict[str, Fact]) -> None:
    """A run that says which command asked for it: to run a recurring job at once, at that time or in the next moment that is no slot."""
    asked = recurring.runs_asked or {}
    asked_ms = asked.get(job.offset)
    if asked_ms is None and (len(asked) >= RUNS_ASKED_HELD_MAX or not _reaches(audit, "intake", job.defined_ms)):
        audit.pass_over(Unjudged.INTAKE)
    elif asked_ms is None or not 0 <= job.created_ms - asked_ms <= _BESIDE_MS:
        audit.find(Kind.PHANTOM, job_id, what="run", **facts)


def _judge_absence(audit: Audit, job_id: str, job: Job, asked: Asked, now_ms: int) -> None:
    """A job that somebody asked for is not known. Either it was over for long enough, or it is lost."""
    if job.has_unread or (job.is_dropped and job.failed_ms):
        return
    if asked.finishes:
        audit.pass_over(Unjudged.STATE)  # a recurring job that comes to an end by itself leaves no outcome that says when
        return
    gone_ms = job.gone_ms or now_ms
    facts: dict[str, Fact] = {"offset": asked.offset, "acknowledged_ms": asked.written_ms, "gone_ms": job.gone_ms or None}
    ends = [ended_ms for ended_ms in (job.ended_ms, job.cancelled_ms, asked.expires_ms) if 0 < ended_ms <= gone_ms + SKEW_MS]
    if not ends and asked.delivers and asked.delivered_ms <= gone_ms + SKEW_MS:
        _judge_undelivered(audit, job_id, asked, gone_ms, facts)
        return
    keep_for_ms, keep_for_ms_max = asked.retention_ms, asked.retention_ms_max
    if job.failed_ms and not ends:
        ends, keep_for_ms = [job.failed_ms], max(keep_for_ms, DEAD_RETENTION_MS)
        keep_for_ms_max = max(keep_for_ms_max, DEAD_RETENTION_MS)
    if not ends:
        _judge_lost(audit, job_id, asked, facts)
        return
    last_ms = max(*ends, job.ended_last_ms, asked.expires_ms_max if asked.expires_ms_max <= gone_ms + SKEW_MS else 0)
    if asked.written_ms > last_ms + keep_for_ms_max + _PRODUCER_SKEW_MS and not _was_known(job, asked):
        if job.gone_ms or (audit.complete_ms is not None and audit.complete_ms <= asked.written_ms):
            _judge_lost(audit, job_id, asked, facts)  # asked for anew, after it was forgotten
        else:
            audit.pass_over(Unjudged.STATE)
    elif min(ends) + keep_for_ms > gone_ms + SKEW_MS:
        audit.find(Kind.FORGOTTEN_EARLY, job_id, ended_ms=min(ends), keep_for_ms=keep_for_ms, **facts)


def _judge_undelivered(audit: Audit, job_id: str, asked: Asked, gone_ms: int, facts: dict[str, Fact]) -> None:
    """A delivery is not known, and it was due before it was gone. No outcome tells when it was delivered; not before this, in any case."""
    if asked.delivered_ms + asked.retention_ms <= gone_ms + SKEW_MS:
        audit.pass_over(Unjudged.STATE)  # it may have been, and kept for its time
    elif facts["gone_ms"] is None:
        _judge_lost(audit, job_id, asked, facts)
    else:
        audit.find(Kind.FORGOTTEN_EARLY, job_id, ended_ms=asked.delivered_ms, keep_for_ms=asked.retention_ms, **facts)


def _was_known(job: Job, asked: Asked) -> bool:
    """Whether a job that is gone was still known when it was asked for last, so that it was not made anew then: owners who were away
    forget late.
    """
    return job.gone_ms >= asked.written_ms > job.defined_ms


def _judge_lost(audit: Audit, job_id: str, asked: Asked, facts: dict[str, Fact]) -> None:
    """Nothing tells that it ended; but perhaps what would tell is not kept any more."""
    if not _reaches(audit, "outcomes", asked.written_ms):
        audit.pass_over(Unjudged.OUTCOMES)
    elif not _reaches(audit, "dead letters", asked.written_ms):
        audit.pass_over(Unjudged.DEAD_LETTERS)
    else:
        audit.find(Kind.LOST, job_id, **facts)


# --- is it where its dispatches and outcomes leave it? ---


def _judge_state(audit: Audit, job_id: str, job: Job) -> None:
    if not job.generation:
        audit.find(Kind.ORPHAN, job_id, phase=job.phase, token=job.token, changed_ms=job.changed_ms)
        return
    if job.token > audit.token:
        audit.find(Kind.UNKNOWN_TOKEN, job_id, where="state", token=job.token, offset=None, highest=audit.token)
        return
    _judge_dispatches(audit, job_id, job)
    if job.phase == Phase.PAUSED:
        _judge_pause(audit, job_id, job)
    elif job.phase in TERMINAL:
        _judge_end(audit, job_id, job)
    elif job.phase in _HANDED_OUT and job.said & ~GOING_ON:
        told = ", ".join(result for result, bit in SAID.items() if job.said & bit & ~GOING_ON)
        audit.find(Kind.UNHEARD, job_id, phase=job.phase, token=job.token, told=told)


def _judge_pause(audit: Audit, job_id: str, job: Job) -> None:
    if job.is_paused or job.has_unread:
        return
    if _reaches(audit, "intake", job.changed_ms):
        audit.find(Kind.UNFOUNDED, job_id, phase=job.phase, token=job.token, changed_ms=job.changed_ms)
    else:
        audit.pass_over(Unjudged.INTAKE)


def _judge_dispatches(audit: Audit, job_id: str, job: Job) -> None:
    if job.dispatches > 1:
        audit.find(Kind.DISPATCHED_TWICE, job_id, token=job.token, count=job.dispatches)
    if job.dispatches or not job.attempt or not job.is_governed or job.recurrence is not None or job.queue.startswith(LANE):
        return
    made_ms = job.changed_ms if job.phase == Phase.DISPATCHED else job.defined_ms
    if job.is_updated and job.generation > 1:
        audit.pass_over(Unjudged.DISPATCHES)  # updated between two attempts, it was dispatched before it was defined so
    elif _reaches(audit, f"dispatch {job.queue}", made_ms):
        audit.find(Kind.UNDISPATCHED, job_id, phase=job.phase, token=job.token, queue=job.queue, changed_ms=job.changed_ms)
    else:
        audit.pass_over(Unjudged.DISPATCHES)


def _judge_end(audit: Audit, job_id: str, job: Job) -> None:
    if job.phase == Phase.FAILED:
        _judge_death(audit, job_id, job)
        return
    if job.recurrence is not None and job.is_governed and job.phase == Phase.SUCCEEDED:
        _judge_finished(audit, job_id, job)
        return
    if job.said & SAID[Result(job.phase or "")]:  # an end bears the name of the outcome that brings it about
        return
    if job.phase == Phase.SUCCEEDED and job.delivers and _is_delivered(audit, job_id, job):
        return
    if job.phase == Phase.EXPIRED and (not job.is_governed or 0 < job.expires_ms <= job.changed_ms):
        return  # the owner's own doing; of an older generation nobody knows any more when it expired
    if job.phase == Phase.CANCELLED:
        if job.cancelled_ms or job.has_unread or not job.is_governed:
            return  # of an older generation: the newer one took its place
        if parse(job_id) is not None and _may_be_replaced(audit, job_id):
            return
        if not _reaches(audit, "intake", job.defined_ms):
            audit.pass_over(Unjudged.INTAKE)
            return
    if _reaches(audit, "outcomes", job.changed_ms):
        audit.find(Kind.UNFOUNDED, job_id, phase=job.phase, token=job.token, changed_ms=job.changed_ms)
    else:
        audit.pass_over(Unjudged.OUTCOMES)


def _is_delivered(audit: Audit, job_id: str, job: Job) -> bool:
    """Judges the end of a delivery, which nobody tells: it was given a token, at its time or later. False where it is none."""
    if not job.is_governed and not job.dispatches:
        audit.pass_over(Unjudged.STATE)  # which of the older generations were deliveries nobody knows any more
        return True
    if not job.is_governed or not job.queue.startswith(LANE):
        return False
    if not job.token or job.changed_ms < job.due_ms:
        audit.find(Kind.UNFOUNDED, job_id, phase=job.phase, token=job.token, changed_ms=job.changed_ms)
    return True


def _judge_finished(audit: Audit, job_id: str, job: Job) -> None:
    """A recurring job is over when no slot is left."""
    recurrence = job.recurrence
    assert recurrence is not None
    has_all_runs = 0 < recurrence["runs_max"] <= job.attempt
    if not has_all_runs and next_slot_ms(recurrence, job.due_ms, job.changed_ms):
        audit.find(Kind.UNFOUNDED, job_id, phase=job.phase, token=job.token, changed_ms=job.changed_ms)


def _may_be_replaced(audit: Audit, job_id: str) -> bool:
    """Whether a run may have been cancelled in favour of the next one, or with its job."""
    recurring = audit.recurring(job_id)
    if recurring is not None and recurring.cancels_runs:
        return True
    if recurring is None or recurring.generation != 1 or recurring.recurrence is None:
        audit.pass_over(Unjudged.STATE)  # of a definition that is gone nobody knows what it said of overlaps
        return True
    return recurring.recurrence["overlap"] == Overlap.REPLACE


def _judge_death(audit: Audit, job_id: str, job: Job) -> None:
    facts: dict[str, Fact] = {"token": job.token, "changed_ms": job.changed_ms}
    if not job.is_governed:
        return  # it failed, and the newer generation took its place
    if job.is_closed:
        audit.find(Kind.STILL_DEAD, job_id, **facts)
    elif not job.is_buried:
        if not _reaches(audit, "dead letters", job.changed_ms):
            audit.pass_over(Unjudged.DEAD_LETTERS)
        elif job.said & SAID[Result.FAILED]:
            audit.find(Kind.NOT_BURIED, job_id, **facts)
        else:
            audit.find(Kind.UNFOUNDED, job_id, phase=job.phase, **facts)
