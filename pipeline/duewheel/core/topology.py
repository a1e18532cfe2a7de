"""Names of topics and groups, and who owns which job id.

Everything hangs on one prefix, `duewheel` by default, so that several installations can share a cluster. The partition of a job is
Kafka's own murmur2 of its id, so that a Java, Go or Python producer (or kcat with `partitioner=murmur2_random`) finds it too. Runs of a
recurring job lie where that job lies (`core.run_ids`); what such a producer sends about a run may land astray, and is forwarded.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from duewheel.core.limits import QUEUE_CHARS_MAX, TOPIC_CHARS_MAX
from duewheel.core.run_ids import home

PREFIX_DEFAULT: Final = "duewheel"
PARTITIONS_DEFAULT: Final = 16
QUEUE_DEFAULT: Final = "default"
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Topology:
    """The names that belong to one installation."""

    prefix: str = PREFIX_DEFAULT

    @property
    def intake(self) -> str:
        return f"{self.prefix}.intake"

    @property
    def state(self) -> str:
        return f"{self.prefix}.state"

    @property
    def outcomes(self) -> str:
        return f"{self.prefix}.outcomes"

    @property
    def dead_letter(self) -> str:
        return f"{self.prefix}.dead-letter"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    @property
    def processor_group(self) -> str:
        return f"{self.prefix}.processor"

    def dispatch(self, queue: str) -> str:
        return f"{self.prefix}.dispatch.{queue}"

    def worker_group(self, queue: str) -> str:
        return f"{self.prefix}.worker.{queue}"


def making(topic: str) -> str:
    """The command that makes a topic of an installation, as a person would type it."""
    prefix, is_dispatch, queue = topic.partition(".dispatch.")
    if not is_dispatch:
        prefix = topic.rpartition(".")[0]
    named = "" if prefix == PREFIX_DEFAULT else f" --prefix {prefix}"
    return f"duewheel topics apply{named}" + (f" --queue {queue}" if is_dispatch and queue != QUEUE_DEFAULT else "")


def queue_fault(queue: str) -> str | None:
    """Why a queue cannot have this name, as the rest of a sentence that begins with the name; None where it can."""
    if len(queue) > QUEUE_CHARS_MAX:
        return f"has {len(queue):,} characters, at most {QUEUE_CHARS_MAX} are allowed"
    if not _LEGAL.fullmatch(queue):
        return f"cannot be part of a topic's name; use 1 to {QUEUE_CHARS_MAX} characters of a-z A-Z 0-9 . _ -"
    return None


def topic_fault(topic: str) -> str | None:
    """As `queue_fault`, for a topic, by Kafka's own rules."""
    if len(topic) > TOPIC_CHARS_MAX:
        return f"has {len(topic):,} characters, at most {TOPIC_CHARS_MAX} are allowed"
    if topic in (".", "..") or not _LEGAL.fullmatch(topic):
        return f"is no name of a topic; use 1 to {TOPIC_CHARS_MAX} characters of a-z A-Z 0-9 . _ -, and not . or .. alone"
    return None


def keyed_partition(key: bytes, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, that Kafka's default partitioner gives a record with this key on any topic."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit integer.

    Source: Austin Appleby's MurmurHash2, with the seed that Apache Kafka's `Utils.murmur2` uses.
    """
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    h = 0x9747B28C ^ length
    for k in struct.unpack_from(f"<{length // 4}I", data):
        k = k * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    tail = data[length & ~3 :]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The timer partition, 0 to `partitions` - 1, of a key: what Kafka's default partitioner gives it, or the recurring job of a run."""
    return (murmur2(home(key)) & 0x7FFFFFFF) % partitions
