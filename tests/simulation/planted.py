"""Bugs planted on purpose, each of a kind that such a system must not have: the simulator has to find every one of them.

A bug is a change of one function's text, made in memory and taken back. Where the text has moved on, planting it fails and says so.

    find("claim skipped", range(1, 301))     the first seed that fails with it, and does not without
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from duewheel.adapters.memory.transactions import MemoryTransactions
from duewheel.core.errors import BrokenInvariant
from duewheel.core.step import Step
from duewheel.engine.processor import Processor
from duewheel.engine.restore import Restore
from duewheel.worker.loop import Worker
from duewheel.worker.reports import Reports
from tests.simulation.trial import Trial


class Bug(NamedTuple):
    """`was` becomes `becomes` in the text of a method."""

    where: type
    method: str
    was: str
    becomes: str


_NO_OFFSETS: Final = Bug(
    Processor,
    "_commit",
    "self._pending = transaction.commit_later({self._topology.processor_group: offsets}), batches",
    "read = any(b.intake_offset > b.partition.intake_offset or b.outcomes_offset > b.partition.outcomes_offset for b in batches)\n"
    "            self._pending = transaction.commit_later({self._topology.processor_group: offsets} if read else {}), batches",
)
# Whoever takes over ends what the one before has open, where it finds a name. It finds none where a person has reset the group's offsets.
_NO_NAMES: Final = Bug(Restore, "_fence", "if name is not None and name != self._output.name", "if not name")
_END_FIRST: Final = Bug(
    Restore,
    "_claim",
    "committed = self._intake.committed(numbers, _COMMITTED_TIMEOUT_S)\n"
    "        changelog = self._cluster.watermarks(topology.state, numbers)",
    "changelog = self._cluster.watermarks(topology.state, numbers)\n"
    "        committed = self._intake.committed(numbers, _COMMITTED_TIMEOUT_S)",
)
# A slot that came while nobody was there is taken for handed out by the one before; or the last one is taken for not handed out yet.
_PENDING: Final = "pending_ms=0 if queued_ms == slot_ms else slot_ms,"
_NEXT_PENDING: Final = (
    "pending_ms=0 if queued_ms == slot_ms else slot_ms if slot_ms > self.listening_ms else look(recurrence, known.due_ms, "
    "pending_ms=slot_ms, queued_ms=0, going=[], handed_out=0, now_ms=slot_ms, fits=1).pending_ms or slot_ms,"
)
_LAST_PENDING: Final = (
    'pending_ms=0 if queued_ms == slot_ms else trail["runs"][-1] if trail["runs"] and state["changed_ms"] < self.listening_ms else slot_ms,'
)
_HAS_RUN: Final = "has_run=lambda slot_ms: self._defined(run_id(job_id, slot_ms)) is not None"
BUGS: Final[dict[str, tuple[Bug, ...]]] = {
    # Fencing by name alone would hide these two.
    "offsets not sent in timer-only batches": (_NO_OFFSETS, _NO_NAMES),
    "changelog's end taken before committed offsets": (_END_FIRST, _NO_NAMES),
    "nobody is fenced": (_NO_NAMES,),
    "store written before the commit": (
        Bug(
            Processor,
            "_commit",
            "with self._output.begin() as transaction:",
            "for batch in batches:\n"
            "            batch.partition.save(batch.step, batch.changes)\n"
            "        with self._output.begin() as transaction:",
        ),
    ),
    "claim skipped": (
        Bug(
            Worker,
            "_claim_of",
            "self._starts.append(Run(holding, record.offset(), record.key(), dispatch, task, size))",
            "self._desk.submit([Run(holding, record.offset(), record.key(), dispatch, task, size)])",
        ),
    ),
    "lease expired before outcomes are read": (
        Bug(Step, "_wake", "if wake_ms <= self.heard_ms and heard_out_ms <= self.now_ms:", "if heard_out_ms:"),
    ),
    "a redefinition counts twice": (Bug(Step, "schedule", "generation = known.generation + 1", "generation = known.generation + 2"),),
    "a record lost where others are dispatched": (
        Bug(Processor, "_publish", "if batch.step.deliveries:", "if batch.step.deliveries and not batch.step.dispatches:"),
    ),
    "a record delivered without a word to the changelog": (
        Bug(Step, "_deliver", "self._move(job_id, state, after, None, attempt=1, token=self.token, slot_ms=known.due_ms)", "after"),
    ),
    "slot skipped after a takeover": (Bug(Step, "_look", _PENDING, _NEXT_PENDING),),
    # That a run is known by its slot would hide this one.
    "slot run once more after a takeover": (
        Bug(Step, "_look", _PENDING, _LAST_PENDING),
        Bug(Step, "_look", _HAS_RUN, "has_run=lambda slot_ms: False"),
    ),
    "slot that was left out not counted": (Bug(Step, "_leave_out", "+ missed + overlapped", "+ missed"),),
    "a pause is answered and not obeyed": (Bug(Step, "_pause", 'if state["phase"] == Phase.PAUSED:', "if state:"),),
    "only the last answer is written": (Bug(Step, "_write_answers", "answers[-ANSWERS_MAX:]", "answers[-1:]"),),
    "dead letter kept when its partition is lost": (Bug(Reports, "leave_letters", "if holding.held]", "if holding]"),),
    "producer reused after an unknown commit": (
        Bug(MemoryTransactions, "_discard", "self._producers[self._producers.index(producer)] = None", "pass"),
        Bug(MemoryTransactions, "_settle", "if error.is_fencing:\n            self._producers = [None, None]", "pass"),
    ),
}
# What costs time and nothing else, as long as the other defences stand.
HARMLESS: Final = frozenset({"nobody is fenced"})


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants a bug, and takes it back."""
    texts: dict[tuple[type, str], str] = {}
    originals: dict[tuple[type, str], Any] = {}
    for bug in BUGS[name]:
        place = bug.where, bug.method
        if place not in texts:
            originals[place] = inspect.getattr_static(*place)
            texts[place] = inspect.getsource(originals[place])
        if texts[place].count(bug.was) != 1:
            method = f"{bug.where.__name__}.{bug.method}"
            raise BrokenInvariant(f"{name!r} cannot be planted: {method} does not say {bug.was!r} once any more")
        texts[place] = texts[place].replace(bug.was, bug.becomes)
    for (where, method), text in texts.items():
        made: dict[str, Any] = {}
        exec(compile(textwrap.dedent(text), f"<{name}>", "exec"), vars(sys.modules[where.__module__]), made)
        setattr(where, method, made[method])
    try:
        yield
    finally:
        for (where, method), original in originals.items():
            setattr(where, method, original)


def find(name: str, seeds: Iterable[int]) -> Trial | None:
    """The first of these seeds by which a bug is found."""
    for seed in seeds:
        with planted(name):
            trial = Trial(seed)
            trial.run()
        if trial.verdict:
            healthy = Trial(seed)
            healthy.run()
            if not healthy.verdict:
                return trial
    return None
