"""What is delivered to a topic lies there once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from duewheel.core.model import Closing, Phase
from duewheel.proof.history import Delivered
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import End, Ledger, Run, Story


class DeliveredOnce(Invariant):
    """A record to deliver lies on its topic once where its job succeeded, and not at all where it did not; and it goes to no worker.

    The state that says so bears the token that the record has. That a job succeeds, or ends otherwise, is NoLoss; that it does not do so
    before its time, NeverEarly. A recurring job is never delivered itself, as each of its runs is.
    """

    title = "not delivered once"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        for story in ledger.stories.values():
            if story.deliveries or any(record.delivers for record in story.defined):
                found += self._matched(story)
        return found

    def _matched(self, story: Story) -> Iterator[Violation]:
        job_id, delivered = story.job_id, defaultdict[int, list[Delivered]](list)
        for record in story.deliveries:
            delivered[record.token].append(record)
        for run, end in _deliveries_of(story):
            records = delivered.pop(end.token, [])
            what = f"job {job_id!r} was delivered with token {end.token}, as its state says"
            if len(records) != 1:
                yield self.broken(job_id, f"{what}, and lies on its topic {len(records)} times", end.event, *records)
            elif run.defined is not None and records[0].slot_ms != run.defined.due_ms:
                yield self.broken(job_id, f"{what}, for {records[0].slot_ms}, which is not when it was due", run.defined, *records)
        for token, records in delivered.items():
            if not _is_redriven_before(story, token):
                yield self.broken(job_id, f"a record of job {job_id!r} was delivered with token {token}, and no state says so", *records)
        for run in story.runs:
            if run.defined is not None and run.defined.delivers and run.dispatches:
                yield self.broken(job_id, f"job {job_id!r} is to be delivered, and was handed out", run.defined, *run.dispatches)


def _deliveries_of(story: Story) -> Iterator[tuple[Run, End]]:
    for run in story.runs:
        if run.defined is not None and run.defined.delivers and run.defined.recurrence is None:
            yield from ((run, end) for end in run.ends if end.phase == Phase.SUCCEEDED)


def _is_redriven_before(story: Story, token: int) -> bool:
    """Whether it may have been redriven, and so delivered, in a transaction that went on to define it anew."""
    return any(closing.how == Closing.REDRIVEN and closing.token < token for closing in story.closings)
