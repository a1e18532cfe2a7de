"""Looks after the dead while a fault test runs, as an operator would: redrives most of them, drops some, and lets the rest lie.

    dead                       fate
    job-00033, token 7         REDRIVEN     fresh attempts; should they fail too, its next death has a fate of its own
    job-00233, token 9         DROPPED      its id may be used anew
    job-00333, token 12        none         it stays dead, and its death is one of those that are `left`

A fate follows from the job's number and from how often it died before, so a seed gives the same again, and no job is redriven without end.
What was asked for is asked for again until the dead-letter topic says that the death is closed, since an answer may never come. All of it
goes through the client that users have, and each call is written down before it is made.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, Final, Self

from duewheel import wiring
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.client.client import Client
from duewheel.core.dead_runs import DeadRuns, DeadRunSummary, DeathName, summary
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.model import Closing
from duewheel.proof.history import Acknowledged, DropInvoked, Event, RedriveInvoked, Unknown
from tests.chaos.jobs import DYING_ONE_OF
from tests.chaos.notes import Notes
from tests.chaos.site import TOPOLOGY

# What becomes of a death; of the next one of the same job the next of these.
FATES: Final = (Closing.REDRIVEN, Closing.REDRIVEN, Closing.DROPPED, None)

_PATIENCE_S: Final = 120.0
_LISTEN_S: Final = 0.2
_CALL_S: Final = 8.0
_AGAIN_S: Final = 5.0
# An attempt that may start for so short a time is not worth a redrive, which would be refused when it is read.
_LATE_MS: Final = 2_000


def fate(job_id: str, deaths_before: int) -> Closing | None:
    """What is to become of a dead run; None where it stays dead.

    Args:
        deaths_before: how often its job died before.
    """
    place = int(job_id.rpartition("-")[2]) // DYING_ONE_OF % len(FATES) + deaths_before
    return FATES[min(place, len(FATES) - 1)]


class Caretaker:
    """Works in a thread of its own, for as long as a `with` block: a cluster that is being broken may keep it waiting."""

    def __init__(self, kafka: KafkaConfig, notes: Notes) -> None:
        self._notes = notes
        self._follower = Follower(kafka, lambda topic: topic == TOPOLOGY.dead_letter, 0, _PATIENCE_S)
        self._client = wiring.producing_client(kafka, TOPOLOGY, _CALL_S)
        self._dead = DeadRuns()
        self._tokens: defaultdict[str, set[int]] = defaultdict(set)
        self._left: set[DeathName] = set()
        self._again_at: dict[DeathName, float] = {}
        self._calls = itertools.count()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="caretaker", daemon=True)

    @property
    def left(self) -> set[DeathName]:
        """The deaths of which nothing more will become."""
        return self._left.copy()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._follower.close()
        self._client.close()

    def _work(self) -> None:
        while not self._over.is_set():
            for record in self._follower.poll(_LISTEN_S, 1_000):
                self._take(record)
            with contextlib.suppress(BrokerUnavailable):  # the notes say so, and it is asked again
                for run in self._dead.runs():
                    self._look_after(run)

    def _take(self, record: Any) -> None:
        kind, content = codec.decode_dead_letter_topic(record.value())
        told: Any = content
        if kind == "dead_run":
            self._tokens[told["job_id"]].add(told["token"])
            self._dead.died(summary(record.partition(), record.offset(), told))
        elif kind == "closed":
            self._dead.closed(told)

    def _look_after(self, run: DeadRunSummary) -> None:
        wanted = fate(run.job_id, sum(token < run.token for token in self._tokens[run.job_id]))
        if wanted is None:
            self._left.add(run.name)
        elif time.monotonic() >= self._again_at.get(run.name, 0.0) and not self._over.is_set():
            self._again_at[run.name] = time.monotonic() + _AGAIN_S
            self._ask(Closing.DROPPED if run.is_too_late(_now_ms() + _LATE_MS) else wanted, *run.name)

    def _ask(self, wanted: Closing, job_id: str, token: int) -> None:
        call = f"caretaker-{next(self._calls)}"
        kind, send = (RedriveInvoked, Client.redrive) if wanted == Closing.REDRIVEN else (DropInvoked, Client.drop)
        self._notes.tell(kind(_now_ms(), call, job_id, token))
        answer: Event = Unknown(_now_ms(), call)
        try:
            answer = Acknowledged(_now_ms(), call, *send(self._client, job_id, token))
        finally:
            self._notes.tell(answer._replace(at_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
