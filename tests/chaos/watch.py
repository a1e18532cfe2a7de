"""Follows the state topic while a fault test runs: how many jobs have ended, and whether all have. The verdict does not rest on it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.lifecycle import TERMINAL
from duewheel.engine.partition import DEFINITION, STATE
from tests.chaos.site import TOPOLOGY

_PATIENCE_S: Final = 120.0
_LISTEN_S: Final = 0.2


class Watch:
    """Listens in a thread of its own, for as long as a `with` block: a cluster that is being broken may keep it waiting."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._follower = Follower(kafka, lambda topic: topic == TOPOLOGY.state, 0, _PATIENCE_S)
        self._generations: dict[str, int] = {}
        self._states: dict[str, tuple[int, bool]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)

    @property
    def defined(self) -> int:
        return len(self._generations)

    @property
    def ended(self) -> int:
        return sum(is_over for _, is_over in list(self._states.values()))

    def unfinished(self, acknowledged: Iterable[str]) -> list[str]:
        """Jobs whose newest definition has not come to its end; those too that were acknowledged and are not defined."""
        generations, states = dict(self._generations), dict(self._states)
        return sorted(job for job in {*acknowledged, *generations} if job not in generations or states.get(job) != (generations[job], True))

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
        elif kind == STATE and value is not None:
            state = codec.decode_state(value)
            self._states[job_id] = (state["generation"], state["phase"] in TERMINAL)
