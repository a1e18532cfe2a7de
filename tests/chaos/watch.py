"""Follows the state topic while a fault test runs: how many jobs have ended, and whether all have. The verdict does not rest on it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.lifecycle import TERMINAL
from duewheel.core.model import Phase
from duewheel.engine.partition import DEFINITION, STATE
from tests.chaos.site import TOPOLOGY

_PATIENCE_S: Final = 120.0
_LISTEN_S: Final = 0.2


class _Standing(NamedTuple):
    generation: int
    phase: str
    token: int


class Watch:
    """Listens in a thread of its own, for as long as a `with` block: a cluster that is being broken may keep it waiting."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._follower = Follower(kafka, lambda topic: topic == TOPOLOGY.state, 0, _PATIENCE_S)
        self._generations: dict[str, int] = {}
        self._states: dict[str, _Standing] = {}
        self._dropped: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)

    @property
    def defined(self) -> int:
        return len(self._generations) + len(self._dropped)

    @property
    def ended(self) -> int:
        return sum(state.phase in TERMINAL for state in list(self._states.values())) + len(self._dropped)

    def unfinished(self, acknowledged: Iterable[str], left: Collection[tuple[str, int]]) -> list[str]:
        """Jobs whose newest definition has not come to its end; those too that were acknowledged and are not defined.

        Args:
            left: the deaths, by job and token, of which nothing more will become; any other is no end yet.
        """
        generations, states, dropped = dict(self._generations), dict(self._states), set(self._dropped)

        def is_over(job: str) -> bool:
            state = states.get(job)
            if job not in generations or state is None:
                return job in dropped and job not in generations
            is_last = state.generation == generations[job] and state.phase in TERMINAL
            return is_last and (state.phase != Phase.FAILED or (job, state.token) in left)

        return sorted(job for job in {*acknowledged, *generations} if not is_over(job))

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
                self._take(record)

    def _take(self, record: Any) -> None:
        kind, job_id, value = record.key()[:1], record.key()[1:].decode(), record.value()
        if kind == DEFINITION and value is not None:
            self._generations[job_id] = codec.peek_definition(value).generation
            self._dropped.discard(job_id)
        elif kind == DEFINITION:
            self._dropped.add(job_id)
            self._generations.pop(job_id, None)
        elif kind == STATE and value is not None:
            state = codec.decode_state(value)
            self._states[job_id] = _Standing(state["generation"], state["phase"], state["token"])
        elif kind == STATE:
            self._states.pop(job_id, None)
