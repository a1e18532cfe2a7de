"""Every event that Duewheel logs: its name, its meaning, its keys.

Logs are an interface: people alert on event names and query their keys, so both are promises. This is the one list of them. A test
reads the source and refuses a `log.info("…")` whose name or keys are missing here, and an entry here that nothing logs.

A name is `subject.what_happened`, in the past tense where something happened. Keys are the field's words, units last. `error` is the
text of an exception. Nothing is logged per record: a flood of jobs must not become a flood of lines. Count, and log the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from duewheel.core.step import Counts


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
        "A call into the Kafka client overran our own limit; it was left behind and replaced.", ("name", "where", "seconds")
    ),
    # Hashing of keys (adapters/kafka/partitioner.py)
    "partitioner.pure": Event(
        "Keys are hashed in Python, which is correct and slower: librdkafka's own function cannot be used.", ("error",)
    ),
    # Following topics without a group (adapters/kafka/follower.py)
    "follower.assigned": Event("These topics' partitions are followed from now on.", ("topics", "partitions")),
    "follower.broker_away": Event("No broker answered; it is tried again.", ("bootstrap_servers", "error")),
    "follower.error": Event("A partition could not be read for now; reading goes on by itself.", ("topic", "partition", "error")),
    # Reading partitions (adapters/kafka/readers.py)
    "reader.close_abandoned": Event(
        "Leaving a group took too long and is not waited for; the group notices by the session timeout.", ("topic", "group", "timeout_s")
    ),
    "reader.cluster_trouble": Event("A connection to the cluster failed; the client tries again by itself.", ("error",)),
    "reader.error": Event("A partition could not be read for now; reading goes on by itself.", ("topic", "error")),
    # Waiting for jobs to end (client/results.py)
    "results.failed": Event("Waiting for jobs failed by our own fault, and all waits ended with it; please report it.", ("error",)),
    "results.unavailable": Event("The state topic cannot be read just now; waits for jobs go on, and it is tried again.", ("error",)),
    # The timer processor (engine/processor.py)
    "processor.started": Event("A timer processor joined its group.", ("bootstrap_servers", "prefix", "state_dir")),
    "processor.stopped": Event("A timer processor left in good order.", ()),
    "processor.assigned": Event("These timer partitions are ours now; each is restored before it fires.", ("partitions",)),
    "processor.revoked": Event("These timer partitions were handed over in good order.", ("partitions",)),
    "processor.lost": Event("The group gave these timer partitions to others; was this process stalled?", ("partitions",)),
    "processor.release_failed": Event("The last word on leaving a partition failed; the successor will fence us by name.", ("error",)),
    "processor.fencing": Event("A predecessor left without releasing its partitions; its open transactions are ended.", ("name",)),
    "processor.claim_failed": Event(
        "These partitions cannot be taken over yet; it is tried again, and the others go on.", ("partitions", "error")
    ),
    "processor.log_shorter_than_known": Event(
        "A topic ends before what was read of it: made anew, or its end is lost. It is read from its beginning; known job ids deduplicate.",
        ("topic", "partition", "known", "end"),
    ),
    "processor.replayed": Event("The local store is level with the changelog.", ("partition", "records")),
    "processor.replay_blocked": Event(
        "A transaction hangs in the changelog, which cannot be read past it. End it with kafka-transactions.sh (find-hanging, abort).",
        ("partitions",),
    ),
    "processor.active": Event("A timer partition fires from now on.", ("partition", "token")),
    "processor.batch_aborted": Event("A transaction left nothing; its inputs are read again.", ("error",)),
    "processor.queue_doubted": Event(
        "Transactions fail whenever they have dispatches for this queue; its jobs wait, and it is tried again. Does its topic take records "
        "of this size, from this user? Of a topic that records are delivered to, '>' and its name, this job is why: the topic may take "
        "others; refused again and again, the job is dead.",
        ("queue", "rest_ms", "job_id", "error"),
    ),
    "processor.queue_trusted": Event("A queue that was doubted took its dispatches.", ("queue",)),
    "processor.batch_unknown": Event("Nobody knows whether a transaction was committed; the cluster is asked.", ("error",)),
    "processor.cluster_unavailable": Event("The cluster did not answer; it is tried again.", ("error",)),
    "processor.registry_unavailable": Event("The schema registry did not answer; the intake waits for it.", ("error",)),
    "processor.store_outdated": Event(
        "A local store cannot be brought level with the changelog; it is made anew.", ("partition", "reason")
    ),
    "processor.store_damaged": Event("A local store failed; it is made anew from the changelog.", ("error",)),
    "processor.report": Event("What became of the inputs since the last report.", tuple(Counts.__slots__)),
    "processor.slots_left_out": Event(
        "Slots of recurring jobs had no run since the last report: they came too late, or while the run before went on. Some of the jobs "
        "are named; their misfire and overlap rules say what is to become of such slots.",
        ("missed", "overlapped", "jobs"),
    ),
    "clock.stepped_back": Event("The wall clock stepped back; jobs fire by the clock as it stands now.", ("by_ms",)),
    "clock.leapt_ahead": Event(
        "The wall clock leapt ahead of the steady clock. Nothing is fired by the leap. If the wall clock is right, restart this process.",
        ("by_ms",),
    ),
    # Producing (adapters/kafka/intake.py)
    "intake.waiting": Event(
        "No broker answers yet; the call goes on trying until its timeout. Is the address right?", ("address", "timeout_s", "error")
    ),
    # The worker (cli/worker.py, worker). Where it serves several queues, the lines of each one's loop name their `queue` too.
    "worker.started": Event("A worker joined its queue's group.", ("bootstrap_servers", "queue", "name", "concurrency", "tasks")),
    "worker.stopped": Event("A worker left in good order."),
    "worker.assigned": Event("These dispatch partitions are ours now; each is taken over before it is read.", ("partitions",)),
    "worker.predecessor_fenced": Event("A predecessor let go without saying so; its open transactions were ended.", ("predecessor",)),
    "worker.claim_unknown": Event(
        "Offsets were reset or expired, so nobody knows what was started: all of this range is reported as lost, and owners decide.",
        ("topic", "partition", "offset", "upto"),
    ),
    "worker.partition_opened": Event(
        "A partition is read from this offset on; what its predecessor had not finished was returned.",
        ("topic", "partition", "offset", "returned"),
    ),
    "worker.takeover_delayed": Event("The cluster did not answer during a takeover; it is tried again.", ("error",)),
    "worker.revoked": Event(
        "These partitions were handed over; what still runs goes on without them, by its lease.", ("partitions", "still_running")
    ),
    "worker.lost": Event("The group gave these partitions to others; was this process stalled?", ("partitions",)),
    "worker.stalled": Event("This process did not poll for so long that its membership must be proved first.", ("for_ms",)),
    "worker.commit_refused": Event("A commit left nothing and starts nothing; it is tried again.", ("error", "outcomes", "claims")),
    "worker.transaction_in_doubt": Event("Nobody knows whether outcomes were committed; the group is asked.", ("error", "outcomes")),
    "worker.doubt_settled": Event("The group's position told whether a transaction was committed.", ("outcomes", "again")),
    "worker.dispatch_undecodable": Event(
        "A dispatch could not be read; it lies in the dead-letter topic.", ("partition", "offset", "error")
    ),
    "worker.cluster_unavailable": Event("The cluster does not answer; it is tried again.", ("error",)),
    "worker.run_timed_out": Event(
        "Handlers ran for longer than they may, or missed their own heartbeat, and were given up. Where it says goes_on they are in "
        "threads, which nothing can end: they run on to no effect. Give the task executor='process', which can be killed.",
        ("task", "error", "runs", "goes_on"),
    ),
    "worker.stop_undecodable": Event("A record of the control topic could not be read; it is passed over.", ("error",)),
    "worker.queue_failed": Event("The loop of one queue failed; the others drain, and the worker ends.", ("error",)),
    "worker.draining": Event("Nothing more is claimed; what runs may finish.", ("running", "grace_ms")),
    "worker.drained": Event("Everything that finished is recorded; the rest was reported as interrupted.", ("interrupted", "unrecorded")),
    # Who runs handlers (worker/executors)
    "worker.thread_left_behind": Event(
        "A handler overran its time in a thread, which nothing can end. Another thread took its place, and this one ends when the handler "
        "does. Give the task executor='process', which can be killed.",
        ("task", "left_behind"),
    ),
    "worker.slot_occupied": Event(
        "So many handlers that overran their time have not ended yet that this one keeps its slot until it does: the worker runs fewer "
        "handlers at a time. Restart it, and give the task executor='process'.",
        ("task", "left_behind", "occupied"),
    ),
    "worker.child_died": Event(
        "A child process died in the middle of a run, which is reported as lost and counts as a crash; another child takes its place.",
        ("task", "child", "error"),
    ),
    "worker.child_unfit": Event(
        "A child process could not be started, or could not import the app; the run for which it was wanted fails.", ("app", "error")
    ),
    # The development broker (devbroker/jars.py)
    "devbroker.fetch_started": Event("Kafka's jars are being fetched, 38 MB, once for this folder.", ("jars", "folder")),
}
