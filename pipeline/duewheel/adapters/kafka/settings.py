"""Settings of the Kafka clients, with the arithmetic behind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX

# A member that sends no heartbeat is declared dead after SESSION_TIMEOUT_MS; its partitions are polled elsewhere at most one heartbeat
# and one rebalance later. Measured with 6,000: 5.4 to 7.0 s.
SESSION_TIMEOUT_MS: Final = 6_000
HEARTBEAT_INTERVAL_MS: Final = 1_000

# How long a loop may stay away from poll() before the group gives up on it. Every step of a loop is bounded well below.
MAX_POLL_INTERVAL_MS: Final = 60_000

# A transaction that a dead process left open blocks its readers until this ends, unless a successor fences the dead by name, which
# takes under a second. 10 s gave message timeouts while brokers were being killed; 30 s gave none.
TRANSACTION_TIMEOUT_MS: Final = 30_000

# Our own clock over send_offsets and commit, which librdkafka may hang in for ever (its issues 5456 and 5511). Below
# MAX_POLL_INTERVAL_MS, so that a hung producer costs a batch and not the membership. It is most of what a coordinator's death costs: a call
# that hangs does so until this is over. One that would have come to an end loses little, since its successor waits for the same new
# coordinator. At 20 s fault tests took up to 32 s to recover.
TRANSACTION_CALL_TIMEOUT_S: Final = 8.0

# A broker that comes back is waited for no longer than this. librdkafka's default of 10 s is most of what a restart costs.
RECONNECT_BACKOFF_MAX_MS: Final = 1_000

# Leaving a group takes a round trip, or a few on a machine that is overloaded. After that it is not waited for.
CLOSE_TIMEOUT_S: Final = 15.0

# AddOffsetsToTxn answers CONCURRENT_TRANSACTIONS while the last markers are being written: at librdkafka's default back-off of 100 ms
# a transaction takes 102 ms, with 1 ms it takes 3.
RETRY_BACKOFF_MS: Final = 1
RETRY_BACKOFF_MAX_MS: Final = 200

# How long librdkafka rests when a reader's queue is full. Its default of 1,000 ms is longer than what is queued lasts, so that a fast
# reader would read 20,000 records a second and no more.
QUEUE_FULL_BACKOFF_MS: Final = 10

LINGER_MS: Final = 5
COMPRESSION: Final = "lz4"

# What a producing client may have under way: enough to keep every connection busy (half a second at full speed), small
# enough that its memory stays bounded whatever the payloads are. Past either, produce() waits.
PRODUCER_RECORDS_MAX: Final = 100_000
PRODUCER_KIBIBYTES_MAX: Final = 65_536

# librdkafka refuses larger records before they are sent, and its default of 1,000,000 is below what Duewheel accepts. Key and framing
# take a few hundred bytes beside the value.
PRODUCER_RECORD_BYTES_MAX: Final = RECORD_BYTES_MAX + 4_096
TRANSACTION_RECORD_BYTES_MAX: Final = DEAD_LETTER_BYTES_MAX + 4_096


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Where the cluster is, and whatever else librdkafka must be told (TLS, SASL, …).

    Attributes:
        bootstrap_servers: host:port, comma separated.
        options: librdkafka settings that are added to every client, and win over ours.
    """

    bootstrap_servers: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def common(self) -> dict[str, Any]:
        # librdkafka's own log goes to standard error in a form of its own, twenty lines a second while a broker is away. What it has to say
        # comes through error callbacks into ours.
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
            "log_level": 0,
            **self.options,
        }

    @property
    def session_timeout_ms(self) -> int:
        """After how long without a heartbeat a member is declared dead.

        Raises:
            BadConfiguration: it is no whole number.
        """
        value = self.options.get("session.timeout.ms", SESSION_TIMEOUT_MS)
        try:
            return int(value)
        except ValueError:
            raise BadConfiguration(
                f"session.timeout.ms {value!r} must be a whole number of milliseconds, such as {SESSION_TIMEOUT_MS}"
            ) from None

    def reader(self, **settings: Any) -> dict[str, Any]:
        """A consumer that is assigned by hand, commits nothing, and sees only what was committed."""
        return {
            "group.id": "duewheel-unused",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.min.bytes": 1,
            **self._liveness(),
            **settings,
            **self.common(),
        }

    def _liveness(self) -> dict[str, Any]:
        """How a member shows that it lives; with KIP-848 the broker decides that. Readers without a group are given the same, because
        librdkafka compares the session timeout with max.poll.interval.ms in every consumer."""
        if self.options.get("group.protocol", "classic") != "classic":
            return {}
        return {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}

    def member(self, group: str, **settings: Any) -> dict[str, Any]:
        """A member of a consumer group, that commits by itself nothing."""
        classic = self.options.get("group.protocol", "classic") == "classic"
        return {
            **self.reader(),
            "group.id": group,
            "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            **({"partition.assignment.strategy": "cooperative-sticky"} if classic else {}),
            **settings,
            **self.common(),
        }

    def producer(self, timeout_ms: int, linger_ms: int) -> dict[str, Any]:
        """A producer whose acknowledgement means: on every replica in sync, and once.

        Args:
            timeout_ms: how long a record may wait for its acknowledgement.
            linger_ms: how long a record may wait for others to share its request.
        """
        return {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
            # Java's hash, so that a job lies where its owner looks for it.
            "partitioner": "murmur2",
            "linger.ms": linger_ms,
            "compression.type": COMPRESSION,
            "message.max.bytes": PRODUCER_RECORD_BYTES_MAX,
            "queue.buffering.max.messages": PRODUCER_RECORDS_MAX,
            "queue.buffering.max.kbytes": PRODUCER_KIBIBYTES_MAX,
            # A missing topic is an error, also on clusters that would make one with their own idea of its settings.
            "allow.auto.create.topics": False,
            **self.common(),
            # A broker that is away would write twenty lines a second into the caller's terminal; the client hears of it through error_cb.
            "log_level": self.options.get("log_level", 0),
        }

    def transactional(self, transactional_id: str) -> dict[str, Any]:
        """A transactional producer."""
        return {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": LINGER_MS,
            "compression.type": COMPRESSION,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "retry.backoff.max.ms": RETRY_BACKOFF_MAX_MS,
            # The largest batch is bounded by the caller far below these, so that produce() never finds the queue full.
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "message.max.bytes": TRANSACTION_RECORD_BYTES_MAX,
            # A queue whose topic is missing is an error, also on clusters that would make one with their own idea of its settings.
            "allow.auto.create.topics": False,
            "delivery.report.only.error": True,
            **self.common(),
        }


def check(kafka: KafkaConfig) -> None:
    """Lets librdkafka judge the settings before anything is done with them. It connects to nobody.

    Raises:
        BadConfiguration: a setting is unknown, has a wrong value, or does not go with another.
    """
    _ = kafka.session_timeout_ms  # librdkafka takes 6000.5 and 0x1770 too; we count in it ourselves
    try:
        nowhere = {"bootstrap.servers": ""}
        Consumer({**kafka.member("duewheel-unused"), **nowhere}).close()
        Producer({**kafka.transactional("duewheel-unused"), **nowhere})
    except KafkaException as error:
        reason = error.args[0].str()  # names the setting and, unless it is a secret, the value
        message = f"the Kafka client for {kafka.bootstrap_servers} refuses its settings (-X NAME=VALUE): {reason}"
        raise BadConfiguration(f"{message}; names and allowed values are those of librdkafka") from error
