"""One producer of a fault test, as a process: `python -m tests.chaos.producer`. Asks for its share of the script, and writes down each
call before it makes it, and what it was told.

Killed and started again, it goes on with the wave at which it was: as any program would that does not know what became of its last calls.
A call without an answer is repeated, byte for byte the same, until it has one or time is up for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.intake import KafkaIntake
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.client.commands import Job, cancel_command, schedule_command
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology
from duewheel.proof.history import Acknowledged, CancelInvoked, EnqueueInvoked, Event, Unknown
from tests.chaos.jobs import Step, Workload, script
from tests.chaos.notes import Notes, notes_of

# Longer than a broker's fail-over; an unknown answer is repeated.
CALL_TIMEOUT_S: Final = 8.0
CALLS_MAX: Final = 4
THREADS: Final = 32
GARBAGE: Final = b"\x00this is no command"


class Producer:
    """Goes through its steps, wave by wave; those of one wave at the same time.

    Args:
        name: its own, which no other producer of this run has.
        notes: where it writes down what it does.
        start_ms: when the script begins.
    """

    def __init__(self, name: str, intake: KafkaIntake, notes: Notes, start_ms: int) -> None:
        self._name = name
        self._intake = intake
        self._notes = notes
        self._start_ms = start_ms
        self._wave_ms = 0
        self._calls = itertools.count()
        self._life = time.time_ns()  # tells the calls of this process from those of the one before it

    def run(self, steps: Sequence[Step], from_ms: int) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for self._wave_ms, wave in itertools.groupby(steps, lambda step: step.at_ms):
                if self._wave_ms >= from_ms:
                    time.sleep(max(0.0, (self._start_ms + self._wave_ms - _now_ms()) / 1_000))
                    list(pool.map(self._take, wave))

    def _take(self, step: Step) -> None:
        key, now_ms = step.job_id.encode(), _now_ms()
        asked: Any = None
        if step.verb == "spoil":
            value = GARBAGE
        elif step.verb == "cancel":
            value = codec.encode_cancel(cancel_command(step.job_id, now_ms))
            asked = CancelInvoked(now_ms, "", step.job_id)
        else:
            command = schedule_command(_job(step, self._start_ms), now_ms, lambda _now_ms: step.job_id)
            value = codec.encode_schedule(command)
            replaces = step.verb == "replace"
            asked = EnqueueInvoked(now_ms, "", step.job_id, command["due_ms"], now_ms, command["limits"], replaces)
        for _ in range(CALLS_MAX):
            if self._call(asked, key, value):
                return

    def _call(self, asked: Any, key: bytes, value: bytes) -> bool:
        call = f"{self._name}-{self._wave_ms}-{self._life}-{next(self._calls)}"
        if asked is not None:
            self._notes.tell(asked._replace(at_ms=_now_ms(), call=call))
        answer: Event
        try:
            partition, offset = self._intake.append(key, value)
            answer = Acknowledged(_now_ms(), call, partition, offset)
        except BrokerUnavailable:
            answer = Unknown(_now_ms(), call)
        if asked is not None:
            self._notes.tell(answer)
        return isinstance(answer, Acknowledged)


def wave_of(notes: Iterator[Event]) -> int:
    """Which wave a producer was at, by what it wrote down before it was killed."""
    return max((int(event.call.split("-")[2]) for event in notes if isinstance(event, (EnqueueInvoked, CancelInvoked))), default=0)


def share(workload: Workload, number: int, producers: int) -> list[Step]:
    """The steps of producer `number` of so many: all that concerns a job is one producer's, in order."""
    return [step for step in script(workload) if int(step.job_id.rpartition("-")[2]) % producers == number]


def _job(step: Step, start_ms: int) -> Job:
    at_ms = start_ms + step.at_ms + step.delay_ms
    job = Job(step.task, step.payload, at=at_ms, job_id=step.job_id, crash_limit=step.crash_limit)
    if step.verb == "replace":
        job = job._replace(on_conflict="replace")
    return job._replace(expires_at=at_ms + step.expires_ms) if step.expires_ms else job


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command()
@click.option("--bootstrap-servers", required=True)
@click.option("--prefix", required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--number", type=int, required=True)
@click.option("--producers", type=int, required=True)
@click.option("--start-ms", type=int, required=True)
@click.option("--seed", type=int, required=True)
@click.option("--jobs", type=int, required=True)
@click.option("--span-ms", type=int, required=True)
def main(
    bootstrap_servers: str, prefix: str, folder: Path, number: int, producers: int, start_ms: int, seed: int, jobs: int, span_ms: int
) -> None:
    """One producer's share of a fault test."""
    name = f"producer-{number}"
    from_ms = wave_of(notes_of(folder, name))
    intake = KafkaIntake(KafkaConfig(bootstrap_servers, {"client.id": name}), Topology(prefix).intake, CALL_TIMEOUT_S)
    producer = Producer(name, intake, Notes(folder, name), start_ms)
    producer.run(share(Workload(seed, jobs, span_ms), number, producers), from_ms)


if __name__ == "__main__":
    main()
