"""Whether a run exercised enough to prove anything. A run in which nothing went wrong because nothing happened fails, as vacuous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from duewheel.core.model import Closing
from duewheel.proof.ledger import Ledger


def shortcomings(ledger: Ledger) -> list[str]:
    """What the plan demands and the history does not show, in sentences; empty where it proves something."""
    return [*_jobs(ledger), *_deaths(ledger), *_faults(ledger), *_witnesses(ledger)]


def _jobs(ledger: Ledger) -> Iterator[str]:
    plan = ledger.plan
    jobs = [story for story in ledger.stories.values() if story.enqueues]
    acknowledged = ledger.jobs_acknowledged()
    if len(jobs) < plan.jobs_min:
        yield f"{len(jobs):,} jobs were asked for; the plan wants {plan.jobs_min:,}"
    if acknowledged * 100 < len(jobs) * plan.acknowledged_percent_min:
        yield f"{acknowledged:,} of {len(jobs):,} jobs were acknowledged; the plan wants {plan.acknowledged_percent_min} %"
    if jobs and not any(story.starts for story in jobs):
        yield "no handler ever began"


def _deaths(ledger: Ledger) -> Iterator[str]:
    closed = ledger.deaths_closed()
    for how, count_min in ((Closing.REDRIVEN, ledger.plan.redriven_min), (Closing.DROPPED, ledger.plan.dropped_min)):
        if closed[how] < count_min:
            yield f"{closed[how]:,} deaths were {how}; the plan wants {count_min:,}"


def _faults(ledger: Ledger) -> Iterator[str]:
    plan, kinds = ledger.plan, Counter(fault.kind for fault in ledger.faults)
    for kind, count_min in plan.faults.items():
        if kinds[kind] < count_min:
            yield f"{kinds[kind]} faults of the kind {kind!r} happened; the plan wants {count_min}"
    caught = sum(failed.in_rebalance for failed in ledger.failed_transactions)
    if caught < plan.caught_transactions_min:
        yield f"rebalances caught {caught} transactions; the plan wants {plan.caught_transactions_min}"


def _witnesses(ledger: Ledger) -> Iterator[str]:
    for (moment, partition), snapshots in ledger.snapshots.items():
        witnesses = {snapshot.witness for snapshot in snapshots}
        if len(witnesses) < ledger.plan.snapshots_min:
            names = ", ".join(sorted(witnesses))
            yield f"only {names} told of timer partition {partition} at {moment!r}; the plan wants {ledger.plan.snapshots_min} witnesses"
    if ledger.plan.needs_drain:
        healed_ms = ledger.healed_ms
        if healed_ms is None:
            yield "nothing was said to be healed"
            return
        for (topic, partition), ends in ledger.log_ends.items():
            if ends[-1].at_ms < healed_ms:
                yield f"nobody looked at {topic} [{partition}] after healing"
        if not any(end.at_ms >= healed_ms for ends in ledger.log_ends.values() for end in ends):
            yield "nobody looked at where the logs end after healing"
        if not any(backlog.at_ms >= healed_ms for backlogs in ledger.backlogs.values() for backlog in backlogs):
            yield "nobody looked at what groups have left to read after healing"
