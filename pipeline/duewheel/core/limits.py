"""Every limit, with its arithmetic. Nothing in Duewheel is unbounded; what bounds it is named here."""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

# Times. Ten digits are seconds, sixteen are microseconds: both lie far outside this window, so a mistaken unit is refused, not obeyed.
DUE_MS_MIN: Final = 1_000_000_000_000  # 2001-09-09
DUE_MS_MAX: Final = 4_102_444_800_000  # 2100-01-01

RETENTION_MS_DEFAULT: Final = DAY_MS
RETENTION_MS_MAX: Final = 365 * DAY_MS

# Names. A queue's name becomes part of a topic name, which Kafka limits to 249 characters of [a-zA-Z0-9._-].
JOB_ID_BYTES_MAX: Final = 255
TASK_BYTES_MAX: Final = 255
QUEUE_CHARS_MAX: Final = 100
TOPIC_CHARS_MAX: Final = 249
PREFIX_CHARS_MAX: Final = 100

# Sizes. Whatever the client accepts must fit everywhere it will travel: the record is at most payload + headers + names and
# fixed fields (under 2 KiB), and a dead letter carries a whole record and its message.
PAYLOAD_BYTES_MAX: Final = 1_000_000
HEADERS_BYTES_MAX: Final = 16_384
HEADERS_COUNT_MAX: Final = 64
RECORD_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + HEADERS_BYTES_MAX + 8_192
DEAD_LETTER_BYTES_MAX: Final = RECORD_BYTES_MAX + 131_072

# The key of a record to deliver travels in the 8,192 bytes beside payload and headers. A job with one has no policy, and all else that it
# may have there takes less than 2,000.
DELIVERY_KEY_BYTES_MAX: Final = 4_096

# What anybody may put around a command: keys and Kafka's own headers, which compress to nothing and so can be of many megabytes. A dead
# letter keeps this much of each, and its key twice; a record astray with more headers is not forwarded, as beside the largest job
# there must be room for them even where our compression is worse than its sender's.
FOREIGN_KEY_BYTES_MAX: Final = 4_096
FOREIGN_HEADERS_BYTES_MAX: Final = 4_096

# An attempt's error, as kept: enough to see what happened, small enough to be kept by the million.
ERROR_TYPE_CHARS_MAX: Final = 200
ERROR_MESSAGE_CHARS_MAX: Final = 2_000
ERROR_TRACEBACK_CHARS_MAX: Final = 8_000

# Batches of the timer processor. A batch is one transaction: large enough to pay for its commit (3 ms), small enough that nothing
# else waits long behind it. At 20 us a job, 4,000 jobs are 80 ms.
BATCH_RECORDS_MAX: Final = 4_000
BATCH_BYTES_MAX: Final = 16_000_000
BATCH_TIMERS_MAX: Final = 4_000

# A job whose queue has no topic any more is looked at again after this.
PARKED_MS: Final = 5_000

# The near horizon of timers kept in memory: at most a minute, and at most this many a partition. A timer that has its millisecond
# for itself takes about 400 bytes, so 16 partitions hold at most 320 MB, and usually far less.
HORIZON_MS: Final = MINUTE_MS
HORIZON_TIMERS_MAX: Final = 50_000

# A claim must fit into the metadata of a committed offset, which brokers refuse from 4,096 bytes on (offset.metadata.max.bytes). The
# owner's name (a prefix, ".worker." and 32 digits) and five characters around it leave 3,940 characters of base64, which are 2,955 bytes;
# 9 of them say how far the claim reaches, and the rest lists unfinished dispatches, by distance from the one before. Mostly a distance
# takes one byte (under 128, commit markers included); 1,400 at two bytes are 2,800, and a ledger refuses claims that would not fit.
CLAIM_METADATA_BYTES_MAX: Final = 4_095
CLAIM_OWNER_CHARS_MAX: Final = 150
CLAIM_DISPATCHES_MAX: Final = 1_400

# A worker. What is claimed is in memory and must be handed back when the worker dies: at most this many in all partitions, and no more
# claims beyond so many bytes. What is polled and not claimed is a copy of the log, held so that threads need not wait for the network;
# a partition whose buffer is full is paused, and resumed when half of it was used.
WORKER_CONCURRENCY_MAX: Final = 1_000
WORKER_RUNS_MAX: Final = 4_000
WORKER_BUFFER_RECORDS_MAX: Final = 2_000
WORKER_BYTES_MAX: Final = 67_108_864

# Outcomes recorded in one transaction: at about 10 us each, 2,000 are 20 ms, beside 3 ms for the commit.
WORKER_OUTCOMES_MAX: Final = 2_000

# Attempts. A default task is tried five times over about a minute and a half; whoever wants more says so, up to these.
ATTEMPTS_DEFAULT: Final = 5
ATTEMPTS_MAX: Final = 1_000
RETRY_DELAY_MS_DEFAULT: Final = SECOND_MS
RETRY_FACTOR_DEFAULT: Final = 4.0
RETRY_FACTOR_MAX: Final = 1_000.0
RETRY_DELAY_MS_MAX_DEFAULT: Final = HOUR_MS
RETRY_DELAY_MS_MAX: Final = 30 * DAY_MS
RETRY_DELAYS_MAX: Final = 50
RETRY_JITTER_DEFAULT: Final = 0.5
RETRY_CLASSES_MAX: Final = 20
RETRY_CLASSES_BYTES_MAX: Final = 4_096  # both lists together: they travel in the record's 8,192 bytes beside payload and headers
TOTAL_TIMEOUT_MS_MAX: Final = 365 * DAY_MS

# Recurring jobs. Their expression and zone travel in the record's 8,192 bytes beside payload and headers. An expression that lists every
# minute of the hour and every hour has 240 characters, the longest name of a zone 32.
EXPRESSION_BYTES_MAX: Final = 256
ZONE_BYTES_MAX: Final = 64

# How often a job may recur, for producers and processors alike: slots are made one at a time, each at the price of a run.
EVERY_MS_MIN: Final = SECOND_MS
EVERY_MS_MAX: Final = 10 * 365 * DAY_MS
JITTER_MS_MAX: Final = DAY_MS
RUNS_MAX: Final = 2_000_000_000  # 63 years of a run a second; they are counted in 32 bits

# Missed slots. Those that are late by less than the grace run as if nothing had been; a processor that is replaced takes a few seconds.
GRACE_MS_DEFAULT: Final = MINUTE_MS
GRACE_MS_MAX: Final = 30 * DAY_MS
MISFIRE_MAX_DEFAULT: Final = 10
MISFIRE_MAX: Final = 100
SLOTS_ON_TIME_MAX: Final = 100
# Of a cron line so many slots are counted one by one, at 15 us each. Whoever was away for longer hears "so many or more".
SLOTS_COUNTED_MAX: Final = 100

OVERLAP_MAX_DEFAULT: Final = 10
OVERLAP_MAX: Final = 1_000
# How many runs that are not over are remembered with a recurring job, at 6 bytes each, and looked up at each slot, at 5 us. More than may
# overlap there are only where replaced ones do not end.
RUNS_KEPT_MAX: Final = OVERLAP_MAX

# A run that ends because its worker vanished, three times, most likely makes it vanish. The last of these executions is watched.
CRASHES_MAX_DEFAULT: Final = 3
CRASHES_MAX: Final = 100
LAST_LIFE_SNOOZE_MS: Final = 2_000

# Runs. Heartbeats say that a run goes on; a lease outlives two that were missed, and a broker's election (a few seconds) besides.
RUN_TIMEOUT_MS_DEFAULT: Final = DAY_MS
RUN_TIMEOUT_MS_MAX: Final = 30 * DAY_MS
HEARTBEAT_MS: Final = 10_000
LEASE_MS: Final = 3 * HEARTBEAT_MS
LEASE_MARGIN_MS: Final = 5_000
LEASE_MS_MAX: Final = DAY_MS
OUTPUT_BYTES_MAX: Final = 8_192

# Handlers that overran their time and cannot be ended, left behind by a worker at a time. Each holds a thread of a few hundred KiB.
STUCK_HANDLERS_MAX: Final = 100

# How a run went, as kept with its state: the first attempt's ending, which often tells the cause, and the latest ones.
ENDINGS_MAX: Final = 20
ENDING_MESSAGE_CHARS_MAX: Final = 300

# What became of commands that change a job, as written with its state, once: to as many in one transaction, 100 KB at most.
ANSWERS_MAX: Final = 50
ANSWER_MESSAGE_CHARS_MAX: Final = 500

# A dead run waits for somebody to look at it; the dead-letter topic keeps its payload for 30 days.
DEAD_RETENTION_MS: Final = 14 * DAY_MS

# A lease that is over and cannot be judged yet is looked at again after this.
LEASE_RECHECK_MS: Final = 250
