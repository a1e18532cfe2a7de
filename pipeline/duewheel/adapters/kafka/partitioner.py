"""Which partition owns a key: Kafka's murmur2, at the speed of C.

The timer processor asks this of every intake record, to find those that a client with another hash put on the wrong partition. In pure
Python the hash of a 32-byte key costs 2.3 µs, a tenth of what a whole job costs. librdkafka carries the same function for its
producers and exports it, and it is in this process already: a call through ctypes costs 0.45 µs.

    partition_of(b"invoice-4711", 16)  # 0 to 15, as in core.topology

The exported function takes a topic handle that it does not look at (`rd_kafka_msg_partitioner_murmur2` in rdkafka_msg.c only hashes),
so NULL will do. It is found through the extension module that is linked with it, so that neither the bundled library's name nor the
platform's layout matters: the dynamic linker looks through a module's dependencies. Where it is not found, or does not agree with
`core.topology` on known keys, the pure function takes its place, and says so once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import cimpl

from duewheel.core import topology
from duewheel.core.run_ids import home

PartitionOf = Callable[[bytes, int], int]

log = structlog.get_logger(__name__)

# Every length of the tail, an empty key, a zero byte in the middle, a high bit in every position, a run of a recurring job, and numbers of
# partitions that are and are not powers of two.
_PROBED: Final = (b"", b"a", b"a\0b", b"\xff" * 7, b"\x80" * 8, b"job-7", b"job-7@1764600000000", bytes(range(256)))
_PROBES: Final = tuple((key, n) for key in _PROBED for n in (1, 7, 16))


def _native(library: str) -> PartitionOf:
    """The hash of the librdkafka that `library` is linked with.

    Raises:
        OSError, AttributeError: `library` cannot be loaded, or does not lead to the function.
        ValueError: the function found computes something else.
    """
    # PyDLL keeps the GIL: the call is shorter than letting it go, and another thread could take it for 5 ms.
    hash_in_c = ctypes.PyDLL(library).rd_kafka_msg_partitioner_murmur2
    hash_in_c.restype = ctypes.c_int32
    hash_in_c.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]

    def partition_of(key: bytes, partitions: int) -> int:
        key = home(key)
        return hash_in_c(None, key, len(key), partitions, None, None)  # type: ignore[no-any-return]

    for key, partitions in _PROBES:
        expected, found = topology.partition_of(key, partitions), partition_of(key, partitions)
        if found != expected:
            raise ValueError(f"librdkafka puts key {key!r} on partition {found} of {partitions}, Kafka on {expected}")
    return partition_of


def _pure(why: Exception) -> PartitionOf:
    @functools.cache
    def say_once() -> None:
        log.warning("partitioner.pure", error=str(why))

    def partition_of(key: bytes, partitions: int) -> int:
        say_once()  # at the first use: when this module is imported, logging has not been configured yet
        return topology.partition_of(key, partitions)

    return partition_of


def choose(library: str) -> PartitionOf:
    """The fast function where `library` leads to it, else the pure one. Both give what `core.topology.partition_of` gives."""
    try:
        return _native(library)
    except (OSError, AttributeError, ValueError) as error:
        return _pure(error)


partition_of: Final[PartitionOf] = choose(cimpl.__file__)
"""`partition_of(key, partitions)`: 0 to `partitions` - 1. `partitions` must be at least 1."""
