"""Tokens rise, and each dispatch is started once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from duewheel.core.model import Phase
from duewheel.proof.history import Dispatched, Effect, Started, StateWritten
from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.ledger import Ledger, Run, Story


class TokensRise(Invariant):
    """Every dispatch of a timer partition bears a token of its own, and what is accepted is accepted under rising ones.

    So the sink took no effect under a lower token than one before, and refused none under the highest; a job's states never fall back;
    and no outcome was accepted while a newer dispatch was out.
    """

    title = "token fell"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        dispatched: dict[tuple[int, int], Dispatched] = {}
        for story in ledger.stories.values():
            for dispatch in story.dispatches:
                first = dispatched.get((dispatch.timer_partition, dispatch.token))
                if first is None:
                    dispatched[dispatch.timer_partition, dispatch.token] = dispatch
                else:
                    jobs = f"jobs {first.job_id!r} and {dispatch.job_id!r}" if first.job_id != dispatch.job_id else f"job {first.job_id!r}"
                    sentence = f"token {dispatch.token} of timer partition {dispatch.timer_partition} was handed out twice, for {jobs}"
                    found.append(self.broken(dispatch.job_id, sentence, first, dispatch))
            if len(story.effects) > 0:
                found += self._effects(story)
            for run in story.runs:
                found += self._accepted(story, run)
            if len(story.states) > 1:
                found += self._states(story)
        return found

    def _effects(self, story: Story) -> Iterator[Violation]:
        highest: dict[str, Effect] = {}
        for effect in story.effects:
            before = highest.get(effect.sink)
            token = -1 if before is None else before.token
            if effect.accepted and effect.token < token:
                sentence = f"an effect of job {story.job_id!r} was accepted under token {effect.token}, after one under {token}"
                yield self.broken(story.job_id, sentence, before, effect)
            elif not effect.accepted and effect.token >= token:
                sentence = f"an effect of job {story.job_id!r} was refused under token {effect.token}, the highest so far"
                yield self.broken(story.job_id, sentence, before, effect)
            if effect.accepted and effect.token >= token:
                highest[effect.sink] = effect

    def _accepted(self, story: Story, run: Run) -> Iterator[Violation]:
        """An end under a token that was not the newest any more."""
        for end in run.lasting_ends:
            if end.phase == Phase.CANCELLED:
                continue  # CancelledStays tells what was dispatched afterwards
            newer = next((d for d in run.dispatches if d.token > end.token and d.at_ms <= end.at_ms), None)
            if newer is not None:
                sentence = f"job {story.job_id!r} ended as {end.phase} under token {end.token}, while token {newer.token} was out"
                yield self.broken(story.job_id, sentence, newer, end.event)

    def _states(self, story: Story) -> Iterator[Violation]:
        """Within one life: where a job was forgotten, the next may begin without a token."""
        highest: dict[int, StateWritten] = {}
        for life, state in sorted(((run.life, state) for run in story.runs for state in run.states), key=lambda pair: pair[1].offset):
            before = highest.get(life)
            if before is not None and state.token < before.token:
                sentence = f"job {story.job_id!r} went from token {before.token} back to {state.token}"
                yield self.broken(story.job_id, sentence, before, state)
            else:
                highest[life] = state


class StartedOnce(Invariant):
    """A dispatch record is started at most once, ever: no handler begins twice under one token, or from one record."""

    title = "started twice"

    def check(self, ledger: Ledger) -> list[Violation]:
        found: list[Violation] = []
        records: defaultdict[tuple[str, int, int], list[Started]] = defaultdict(list)
        for story in ledger.stories.values():
            tokens: dict[int, Started] = {}
            for start in story.starts:
                first = tokens.get(start.token)
                if first is not None:
                    sentence = (
                        f"handlers of job {story.job_id!r} began at {first.at_ms} and at {start.at_ms}, both under token {start.token}"
                    )
                    found.append(self.broken(story.job_id, sentence, first, start))
                    continue
                tokens[start.token] = start
                if start.topic:
                    records[start.topic, start.partition, start.offset].append(start)
        for (topic, partition, offset), starts in records.items():
            if len(starts) > 1:
                sentence = f"the record {topic} [{partition}] @{offset} was started {len(starts)} times"
                found.append(self.broken(starts[1].job_id, sentence, *starts))
        return found
