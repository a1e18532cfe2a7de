"""A timer processor that fails in one chosen place, as soon as a flag file exists and it has something to dispatch.

    python faulty_processor.py BOOTSTRAP_SERVERS PREFIX STATE_DIR FLAG FAULT

FAULT is `<action> <place>`; the action is `exit`, as a power cut, or `stop`, as a long pause after which it goes on; the place is

    produced     records of a transaction are at the broker, nothing else of it
    offsets      its offsets are there too
    committed    it is committed, and no store knows
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from duewheel import logs, wiring
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.transactions import KafkaTransactions
from duewheel.cli.running import Stop
from duewheel.core.topology import Topology
from duewheel.engine.partition import Partition
from duewheel.engine.processor import Processor


def main(bootstrap_servers: str, prefix: str, state_dir: str, flag: str, fault: str) -> None:
    logs.configure(format="json")
    stopping = Stop()
    processor = wiring.timer_processor(KafkaConfig(bootstrap_servers), Topology(prefix), Path(state_dir), 30)
    action, place = fault.split()
    _arm(Path(flag), action, place)
    processor.start()
    while not stopping:
        processor.turn()
    processor.close()


def _arm(flag: Path, action: str, place: str) -> None:
    dispatching: list[bool] = []

    def fail() -> None:
        flag.unlink()
        if action == "exit":
            os._exit(9)
        os.kill(os.getpid(), signal.SIGSTOP)

    commit, finish, save = Processor._commit, KafkaTransactions._finish, Partition.save

    def noting(self: Processor, batches: Any, *rest: Any) -> None:
        dispatching[:] = [any(batch.step.dispatches for batch in batches)]
        commit(self, batches, *rest)

    def finishing(self: KafkaTransactions, producer: Any, metadata: Any, offsets: Any) -> Any:
        if place != "committed" and dispatching == [True] and flag.exists():
            producer.flush(10)
            if place == "offsets":
                for group, positions in offsets.items():
                    wanted = [TopicPartition(p.topic, p.partition, p.offset, metadata=p.metadata) for p in positions]
                    producer.send_offsets_to_transaction(wanted, metadata[group], 10)
            fail()
        return finish(self, producer, metadata, offsets)

    def saving(self: Partition, *arguments: Any) -> None:
        if place == "committed" and dispatching == [True] and flag.exists():
            fail()
        save(self, *arguments)

    for owner, name, replacement in (
        (Processor, "_commit", noting),
        (KafkaTransactions, "_finish", finishing),
        (Partition, "save", saving),
    ):
        setattr(owner, name, replacement)


if __name__ == "__main__":
    main(*sys.argv[1:])
