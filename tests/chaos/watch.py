"""Follows the state topic while a fault test runs: how many jobs have ended, and whether all have. The verdict does not rest on it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.dead_runs import DeathName
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Phase
from duewheel.engine.partition import DEFINITION, STATE
from duewheel.ports import Record
from tests.chaos.site import TOPOLOGY

_PATIENCE_S: Final = 120.0
_LISTEN_S: Final = 0.2


class _Moving(NamedTuple):
    """What a job's latest state says."""

    generation: int
    phase: str
    token: int


class Standings:
    """Where each job stands, folded from the state topic. One thread may fold while others ask."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._states: dict[str, _Moving] = {}
        self._dropped: set[str] = set()

    def take(self, record: Record) -> None:
        """Takes in a record; any order of those that one transaction writes will do."""
        key, value = record.key() or b"", record.value()
        kind, job_id = key[:1], key[1:].decode()
        if kind == DEFINITION and value is not None:
            self._generations[job_id] = codec.peek_definition(value).generation
            self._dropped.discard(job_id)
        elif kind == DEFINITION:
            self._dropped.add(job_id)
            self._generations.pop(job_id, None)
        elif kind == STATE and value is not None:
            state = codec.decode_state(value)
            self._states[job_id] = _Moving(state["generation"], state["phase"], state["token"])
        elif kind == STATE:
            self._states.pop(job_id, None)

    @property
    def defined(self) -> int:
        """How many jobs there were, dropped ones too."""
        return len(self._generations) + len(self._dropped)

    @property
    def ended(self) -> int:
        """How many of them have ended, as things look now."""
        return sum(state.phase in TERMINAL for state in list(self._states.values())) + len(self._dropped)

    def unfinished(self, acknowledged: Iterable[str], left: Collection[DeathName]) -> list[str]:
        """Jobs whose newest definition has not come to its end; those too that were acknowledged and are not defined.

        Args:
            left: the deaths of which nothing more will become; any other is no end yet.
        """
        generations, states, dropped = dict(self._generations), dict(self._states), set(self._dropped)

        def is_over(job_id: str) -> bool:
            state, generation = states.get(job_id), generations.get(job_id)
            if generation is None:
                return job_id in dropped
            if state is None or state.generation != generation:
                return False
            return state.phase in TERMINAL and (state.phase != Phase.FAILED or (job_id, state.token) in left)

        return sorted(job_id for job_id in {*acknowledged, *generations} if not is_over(job_id))


class Watch:
    """Listens in a thread of its own, for as long as a `with` block: a cluster that is being broken may keep it waiting.

    Attributes:
        jobs: where they stand, as far as it has heard.
    """

    def __init__(self, kafka: KafkaConfig) -> None:
        self._follower = Follower(kafka, lambda topic: topic == TOPOLOGY.state, 0, _PATIENCE_S)
        self.jobs = Standings()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._follower.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            for record in self._follower.poll(_LISTEN_S, 1_000):
                self.jobs.take(record)
