"""Every event that Duewheel logs: its name, its meaning, its keys.

Logs are an interface: people alert on event names and query their keys, so both are promises. This is the one list of them. A test
reads the source and refuses a `log.info("…")` whose name or keys are missing here, and an entry here that nothing logs.

A name is `subject.what_happened`, in the past tense where something happened. Keys are the field's words, units last. `error` is the
text of an exception. Nothing is logged per record: a flood of jobs must not become a flood of lines. Count, and log the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Event(NamedTuple):
    """What one event name stands for.

    Attributes:
        meaning: one sentence for the person who reads the line at night, with what to do where something can be done.
        keys: all keys that may stand beside it, apart from those of every line (see `logs`).
    """

    meaning: str
    keys: tuple[str, ...] = ()


EVENTS: Final[Mapping[str, Event]] = {
    # Transactions (adapters/kafka/transactions.py)
    "transactions.init_failed": Event(
        "A transactional producer could not be initialised; it is tried again. Is the cluster reachable?", ("transactional_id", "error")
    ),
    "transactions.producer_discarded": Event("A producer failed for good and will be replaced.", ("name", "error")),
    "transactions.call_hung": Event(
        "A call into the Kafka client overran our own limit; it was left behind and replaced.", ("name", "seconds")
    ),
    # Hashing of keys (adapters/kafka/partitioner.py)
    "partitioner.pure": Event("Keys are hashed in Python, which is correct and slower: librdkafka's own function cannot be used.", ("error",)),
}
