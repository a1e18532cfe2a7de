"""Offsets, backlogs, and that all witnesses know the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from duewheel.proof.history import Committed, OffsetsReset, Snapshot
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger

# So many jobs are named of a snapshot that differs; where one thing is wrong, often all are.
_DIFFERENCES_MAX: Final = 20


class OffsetsRise(Invariant):
    """A group's committed offset of a partition never goes back, but where it was set by hand."""

    title = "offset went back"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for (group, topic, partition), commits in ledger.offsets.items():
            before: Committed | OffsetsReset | None = None
            for commit in commits:
                if before is not None and commit.offset < before.offset and isinstance(commit, Committed):
                    sentence = f"group {group} went back from {before.offset} to {commit.offset} in {topic} [{partition}]"
                    found.append(self.broken(None, sentence, before, commit))
                before = commit
        return found


class WitnessesAgree(Invariant):
    """At any moment when nothing moves: the store = the fold of the changelog = a fresh rebuild = the model of the inputs."""

    title = "witnesses differ"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for (moment, partition), snapshots in ledger.snapshots.items():
            first = next((snapshot for snapshot in snapshots if not snapshot.partial), snapshots[0])
            for other in snapshots:
                if other is not first:
                    for job_id, difference in list(_differences(first, other))[:_DIFFERENCES_MAX]:
                        sentence = f"timer partition {partition} at {moment!r}, job {job_id!r}: {difference}"
                        found.append(self.broken(job_id, sentence))
        return found


def _differences(first: Snapshot, other: Snapshot) -> Iterator[tuple[str, str]]:
    """Jobs that two witnesses know differently, and how."""
    for job_id in sorted(first.jobs.keys() | other.jobs.keys()):
        if job_id not in first.jobs or job_id not in other.jobs:
            knows, ignores = (first, other) if job_id in first.jobs else (other, first)
            yield job_id, f"{knows.witness} knows it, {ignores.witness} does not"
            continue
        ours, theirs = first.jobs[job_id], other.jobs[job_id]
        if (first.partial or other.partial) and isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            ours, theirs = _shared(ours, theirs)
        if ours != theirs:
            yield job_id, f"{first.witness} says {ours!r}, {other.witness} says {theirs!r}"


def _shared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = ours.keys() & theirs.keys()
    return {name: ours[name] for name in names}, {name: theirs[name] for name in names}


class BacklogDrains(Invariant):
    """Once all is whole, no open transaction hides a log's end from its readers for longer than R, and no group has anything left."""

    title = "stuck"

    def check(self, ledger: Ledger) -> list[Violation]:
        healed_ms = ledger.healed_ms
        if healed_ms is None:
            return []  # nothing was said to be whole; Plan.needs_drain makes that a vacuous run
        found: list[Violation] = []
        for (topic, partition), ends in ledger.log_ends.items():
            seen = [end for end in ends if end.at_ms >= healed_ms]
            for end in seen:
                is_last = end is seen[-1]
                wanted = end.end if is_last else min(end.end, seen[0].end)
                if (is_last or end.at_ms >= healed_ms + ledger.plan.recovery_ms) and end.last_stable < wanted:
                    waited_ms = end.at_ms - healed_ms
                    sentence = f"{waited_ms} ms after healing {topic} [{partition}] can be read to {end.last_stable}; it ended at {wanted}"
                    found.append(self.broken(None, sentence, seen[0], end))
                    break
        for (group, topic, partition), backlogs in ledger.backlogs.items():
            last = backlogs[-1]
            if last.at_ms >= healed_ms and last.records:
                sentence = (
                    f"group {group} has {last.records} records of {topic} [{partition}] left, {last.at_ms - healed_ms} ms after healing"
                )
                found.append(self.broken(None, sentence, last))
        return found
