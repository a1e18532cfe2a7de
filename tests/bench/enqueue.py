"""How fast a client schedules. `python tests/bench/enqueue.py [BOOTSTRAP_SERVERS]`; without an address it starts a broker of its own.

Three figures, each the median of several rounds:

    commands    jobs made, checked and encoded, and thrown away: what a client costs before Kafka
    many        schedule_many: as above, and durable
    one by one  schedule: one round trip each, one thread
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

import duewheel
from duewheel import Client, Job
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.adapters.system import SystemClock, new_job_id
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster
from duewheel.ports import Receipt

JOBS: Final = 200_000
ONE_BY_ONE: Final = 2_000
ROUNDS: Final = 5


class Nowhere:
    """An intake log that keeps nothing."""

    def append(self, key: bytes, value: bytes) -> Receipt:
        return Receipt(0, 0)

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        for _ in records:
            pass

    def close(self) -> None: ...


def jobs(count: int) -> Iterator[Job]:
    """As a busy producer would make them: ids made here, a payload of about 100 bytes, two headers."""
    headers = {"trace": "4bf92f3577b34da6a3ce929d0e0e4736", "tenant": "acme"}
    for n in range(count):
        yield Job("send_email", {"to": f"user-{n}@example.org", "template": "welcome", "text": "x" * 40}, delay=3_600, headers=headers)


def rate(count: int, schedule: Callable[[], object]) -> tuple[float, float]:
    """Jobs a second, and microseconds of this process's CPU a job, medians of ROUNDS."""
    rates, costs = [], []
    for _ in range(ROUNDS):
        start, cpu = time.perf_counter(), time.process_time()
        schedule()
        rates.append(count / (time.perf_counter() - start))
        costs.append(1e6 * (time.process_time() - cpu) / count)
    return statistics.median(rates), statistics.median(costs)


def measure(kafka: KafkaConfig) -> None:
    topology = Topology(f"enqueue-{uuid.uuid4().hex[:8]}")
    ensure(kafka, topology, {"default": 1}, partitions=4)
    encoders = (codec.encode_schedule, codec.encode_cancel, codec.encode_redrive, codec.encode_drop, codec.encode_change)
    dry = Client(Nowhere(), SystemClock(), *encoders, new_job_id)
    with duewheel.connect(kafka.bootstrap_servers, prefix=topology.prefix) as client:
        client.schedule("warm")
        for name, count, schedule in (
            ("commands", JOBS, lambda: dry.schedule_many(jobs(JOBS))),
            ("many", JOBS, lambda: client.schedule_many(jobs(JOBS))),
            ("one by one", ONE_BY_ONE, lambda: [client.schedule(job.task, job.payload, delay=job.delay) for job in jobs(ONE_BY_ONE)]),
        ):
            per_s, cpu_us = rate(count, schedule)
            click.echo(f"{name:12} {per_s:>10,.0f} jobs/s   {cpu_us:6.1f} µs of CPU a job")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(KafkaConfig(sys.argv[1]))
    else:
        with DevCluster(Path(__file__).parent.parent.parent / ".duewheel") as cluster:
            measure(KafkaConfig(cluster.bootstrap_servers))
