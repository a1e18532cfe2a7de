"""The worker on a real broker: what is claimed, started, recorded, handed back; and what is never done twice."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka import positions
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.claims import Claim, encode
from duewheel.core.errors import TopicMissing
from duewheel.core.topology import Topology
from duewheel.ports import TransactionUnknown
from duewheel.wiring import worker as wired
from duewheel.worker.app import App, Context
from duewheel.worker.executors.shares import Shares
from tests.conftest import Installation
from tests.integration.queue_desk import Queue


@pytest.fixture
def queue(installation: Installation, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(installation.kafka, installation.topology, tmp_path)
    yield queue
    queue.close()


class Gates:
    """An app whose jobs wait until the test lets them go, each by its own name."""

    def __init__(self) -> None:
        self.app = App()
        self.started: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self.app.task(name="job")(self._job)

    def _job(self, payload: dict[str, Any], context: Context) -> None:
        gate = self._gate(context.job_id)
        self.started.append(context.job_id)
        if payload["wait"]:
            assert gate.wait(60)

    def open(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self._gate(job_id).set()

    def _gate(self, job_id: str) -> threading.Event:
        return self._gates.setdefault(job_id, threading.Event())


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# --- running ---


@dataclass
class Order:
    id: int
    tags: list[str]


def test_handlers_get_what_they_ask_for_and_their_ends_are_recorded(queue: Queue) -> None:
    app = App()
    seen: list[object] = []

    @app.task
    def plain(order: Order, context: Context) -> None:
        seen.append((order, context.idempotency_key, context.fencing_token, context.queue, dict(context.headers)))

    @app.task
    async def coroutine(payload: bytes) -> None:
        seen.append(payload)

    @app.task
    def failing() -> None:
        raise ValueError("no \udcff such thing")

    @app.task
    def leaving() -> None:
        raise SystemExit(3)

    [first] = queue.dispatch(["a"], "plain", b'{"id": 7, "tags": ["x"], "new": 1}')
    queue.dispatch(["b"], "coroutine", b"\x00\xff", content_type="application/octet-stream")
    queue.dispatch(["c"], "failing")
    queue.dispatch(["d"], "leaving")
    queue.dispatch(["e"], "plain", b'{"id": "seven", "tags": []}')
    queue.dispatch(["f"], "nowhere")
    worker = queue.worker(app)
    queue.drive(worker, until=lambda: len(queue.read()) == 6)
    queue.leave(worker)

    assert sorted(map(str, seen)) == sorted(
        map(str, [(Order(7, ["x"]), "a/1700000000000", first["token"], "default", {"tenant": "x"}), b"\x00\xff"])
    )
    by_job = {outcome["job_id"]: outcome for outcome in queue.outcomes}
    assert {job: outcome["result"] for job, outcome in by_job.items()} == {
        "a": "SUCCEEDED",
        "b": "SUCCEEDED",
        "c": "RETRY",
        "d": "RETRY",
        "e": "FAILED",
        "f": "RETRY",
    }
    errors = {job: outcome["error"] for job, outcome in by_job.items() if outcome["error"] is not None}
    assert {job: (error["type"], error["message"]) for job, error in errors.items()} == {
        "c": ("ValueError", "no ? such thing"),
        "d": ("SystemExit", "3"),
        "e": ("duewheel.worker.payloads.PayloadMismatch", 'payload.id must be a whole number, not "seven"'),
        "f": (
            "duewheel.UnknownTask",
            "task 'nowhere' is not registered in the app of worker here, which has: coroutine, failing, leaving, plain",
        ),
    }
    assert 'raise ValueError("no' in errors["c"]["traceback"]
    assert by_job["a"]["started_ms"] >= first["dispatched_ms"]
    assert by_job["a"]["worker"] == "here"
    assert queue.unfinished() == 0


def test_K7_an_undecodable_dispatch_is_one_dead_letter_and_the_partition_goes_on(queue: Queue) -> None:
    gates = Gates()
    good = queue.dispatch(["before"], partition=1)[0]
    queue.publish(b"k", b"\xc3\x01nonsense", 1)
    queue.publish(b"k", None, 1)
    queue.publish(b"k", codec.encode_dispatch({**good, "timer_partition": 99}), 1)
    queue.dispatch(["after"], partition=1)
    worker = queue.worker(gates.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 2)
    queue.leave(worker)
    decoded = sorted(queue.dead_letters(3), key=lambda letter: letter["offset"])
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in decoded] == [
        (queue.topology.dispatch("default"), 1, offset) for offset in (1, 2, 3)
    ]
    assert decoded[0]["value"] == b"\xc3\x01nonsense"
    assert "timer partition 99 does not exist" in decoded[2]["message"]
    assert queue.claims()[1] == (5, Claim("", 5))


# --- claims ---


def test_W9_runs_finish_out_of_order(queue: Queue) -> None:
    gates = Gates()
    queue.dispatch(names("j", 5), partition=2, wait=True)
    worker = queue.worker(gates.app, concurrency=4)
    queue.drive(worker, until=lambda: len(gates.started) == 4)
    gates.open("j1", "j3")
    queue.drive(worker, until=lambda: len(queue.read()) == 2 and len(gates.started) == 5)
    offset, claim = queue.claims()[2]
    assert offset == 0
    assert claim is not None
    assert (claim.claimed_upto, claim.unfinished) == (5, (0, 2, 4))
    gates.open(*names("j", 5))
    queue.drive(worker, until=lambda: len(queue.read()) == 5)
    queue.leave(worker)
    assert queue.claims()[2] == (5, Claim("", 5))
    assert gates.started.count("j3") == 1


def test_W3_claims_bounded(queue: Queue) -> None:
    gates = Gates()
    queue.dispatch(names("j", 400), wait=True)
    worker = queue.worker(gates.app, concurrency=3)
    queue.drive(worker, until=lambda: len(gates.started) == 3)
    end = time.monotonic() + 0.5
    queue.drive(worker, until=lambda: time.monotonic() > end)
    assert queue.unfinished() == 3
    # What the first does not claim, a second runs while the first is stuck.
    second = queue.worker(gates.app, concurrency=3, name="second")
    queue.drive_apart(second, worker, until=lambda: len(gates.started) == 6)
    gates.open(*names("j", 400))
    queue.drive(worker, second, until=lambda: sum(r.count("SUCCEEDED") for r in queue.results().values()) >= 400 - 3)
    queue.leave(worker, second)


def test_kill_9_returns_what_was_claimed_and_unfinished_and_nothing_else(queue: Queue) -> None:
    child = queue.spawn(concurrency=6)
    queue.dispatch(names("wait", 3), wait=True)
    queue.await_that(lambda: len(child.started()) == 3)
    queue.dispatch(names("quick", 40))
    queue.await_that(lambda: len(queue.read()) == 40)
    child.kill()
    child.wait()
    claimed = queue.unfinished()
    assert claimed == 3
    queue.dispatch(names("later", 10))

    gates = Gates()
    worker = queue.worker(gates.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 53)
    queue.leave(worker)
    results = queue.results()
    assert {job for job, said in results.items() if said == ["LOST"]} == set(names("wait", 3))
    assert {job for job, said in results.items() if said == ["SUCCEEDED"]} == {*names("quick", 40), *names("later", 10)}
    assert sorted(gates.started) == sorted(names("later", 10))
    assert queue.unfinished() == 0


def test_kill_9_in_the_flood_starts_nothing_twice_and_loses_nothing(queue: Queue) -> None:
    jobs = names("j", 6_000)
    queue.dispatch(jobs)
    child = queue.spawn(concurrency=4)
    queue.await_that(lambda: len(queue.read()) > 1_000)
    child.kill()
    child.wait()
    gates = Gates()
    worker = queue.worker(gates.app)
    queue.drive(worker, until=lambda: len(queue.results()) == len(jobs))
    queue.leave(worker)
    results = queue.results()
    assert all(len(said) == 1 for said in results.values())
    started = Counter(child.started() + gates.started)
    assert max(started.values()) == 1
    assert {job for job, said in results.items() if said == ["LOST"]}.isdisjoint(gates.started)
    assert set(child.started()) <= {job for job, said in results.items()}


def test_a_predecessor_that_died_in_a_transaction_is_fenced_by_name(queue: Queue) -> None:
    topic, group, owner = queue.topology.dispatch("default"), queue.topology.worker_group("default"), f"{queue.topology.prefix}.worker.dead"
    queue.dispatch(["job"], partition=0)
    member = Consumer(queue.kafka.member(group))
    assigned: list[TopicPartition] = []
    member.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    queue.await_that(lambda: member.poll(0.1) or assigned)
    member.commit(offsets=[TopicPartition(topic, 0, 0, metadata=encode(Claim(owner, 1, (0,)), 0))], asynchronous=False)
    dead = Producer(queue.kafka.transactional(f"{owner}-1"))
    dead.init_transactions(10)
    dead.begin_transaction()
    dead.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 1, metadata=encode(Claim(owner, 1), 1))], member.consumer_group_metadata(), 10
    )
    member.close()

    worker = queue.worker(Gates().app)
    began = time.monotonic()
    queue.drive(worker, until=queue.read)
    assert queue.results() == {"job": ["LOST"]}
    assert time.monotonic() - began < 15  # half the transaction timeout
    queue.leave(worker)


def test_offsets_reset_by_hand_repeat_nothing(queue: Queue) -> None:
    first = Gates()
    jobs = names("j", 700)
    queue.dispatch(jobs)
    worker = queue.worker(first.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 700)
    queue.leave(worker)
    queue.reset(0)
    second = Gates()
    worker = queue.worker(second.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 1_400)
    queue.dispatch(["new"])
    queue.drive(worker, until=lambda: "new" in queue.results())
    queue.leave(worker)
    assert second.started == ["new"]
    assert {job: said for job, said in queue.results().items() if said != ["SUCCEEDED", "LOST"]} == {"new": ["SUCCEEDED"]}


def test_a_record_that_is_gone_is_passed_over(queue: Queue) -> None:
    topic, group = queue.topology.dispatch("default"), queue.topology.worker_group("default")
    queue.dispatch(names("j", 6), partition=3)
    claim = encode(Claim("", 4, (0, 1, 3)), 0)
    positions.commit(queue.kafka, group, [TopicPartition(topic, 3, 0, metadata=claim)], 10)
    retained = TopicPartition(topic, 3, 2)
    admin = AdminClient(queue.kafka.common())
    admin.delete_records([retained])[retained].result(10)
    gates = Gates()
    worker = queue.worker(gates.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 3)
    queue.leave(worker)
    assert queue.results() == {"j3": ["LOST"], "j4": ["SUCCEEDED"], "j5": ["SUCCEEDED"]}
    assert queue.claims()[3] == (6, Claim("", 6))


# --- groups ---


def held_position(queue: Queue) -> tuple[int, int, tuple[int, ...] | None]:
    offset, claim = queue.claims()[0]
    assert claim is not None
    return offset, claim.claimed_upto, claim.unfinished


def test_a_worker_that_was_suspended_starts_nothing_and_commits_nothing(queue: Queue) -> None:
    child = queue.spawn(concurrency=2)
    queue.dispatch(names("held", 2), wait=True, partition=0)
    queue.await_that(lambda: len(child.started()) == 2)
    child.kill(signal.SIGSTOP)
    queue.dispatch(names("waiting", 5), partition=0)
    gates = Gates()
    worker = queue.worker(gates.app)
    queue.drive(worker, until=lambda: len(queue.read()) == 7)
    assert queue.results() == {**{job: ["LOST"] for job in names("held", 2)}, **{job: ["SUCCEEDED"] for job in names("waiting", 5)}}
    assert held_position(queue) == (7, 7, ())

    child.go()
    child.kill(signal.SIGCONT)
    # What it ran it still reports, with a token that its owner refuses; the position stays with the new holder.
    queue.drive(worker, until=lambda: len(queue.read()) == 9)
    assert queue.results()["held0"] == ["LOST", "SUCCEEDED"]
    assert held_position(queue) == (7, 7, ())
    assert sorted(child.started()) == names("held", 2)
    queue.dispatch(names("after", 8))
    queue.drive(worker, until=lambda: len(queue.read()) == 17)  # both are members again
    child.kill(signal.SIGTERM)
    queue.drive(worker, until=lambda: child.process.poll() is not None)
    assert child.wait() == 0
    queue.leave(worker)
    started = Counter(child.started() + gates.started)
    assert all(started[job] == 1 for job in names("after", 8))


def test_a_rebalance_starts_no_dispatch_twice(queue: Queue) -> None:
    jobs = names("j", 1_500)
    queue.dispatch(jobs, sleep_s=0.004)
    first = queue.spawn(concurrency=2, name="first")
    queue.await_that(lambda: len(queue.read()) > 100)
    second = queue.spawn(concurrency=2, name="second")
    queue.await_that(lambda: len(second.noted("finished")) > 50)
    first.kill(signal.SIGTERM)
    assert first.wait() == 0
    queue.await_that(lambda: len(queue.results()) == len(jobs))
    second.kill(signal.SIGTERM)
    assert second.wait() == 0
    assert Counter(first.started() + second.started()) == Counter(jobs)
    assert queue.results() == {job: ["SUCCEEDED"] for job in jobs}
    assert queue.unfinished() == 0


# --- stopping ---


def test_W13_sigterm_finishes_what_runs_and_leaves_the_rest(queue: Queue) -> None:
    child = queue.spawn(concurrency=1)
    queue.dispatch(names("j", 3), wait=True, partition=0)
    queue.await_that(lambda: child.started() == ["j0"])
    child.kill(signal.SIGTERM)
    queue.await_that(lambda: "worker.draining" in child.log.read_text())
    child.go()
    assert child.wait() == 0
    assert child.started() == ["j0"]
    assert queue.results() == {"j0": ["SUCCEEDED"]}
    assert queue.claims()[0] == (1, Claim("", 1))


def test_W13_what_outlasts_the_grace_period_is_interrupted(queue: Queue) -> None:
    child = queue.spawn(concurrency=2, options=["--grace", "0.3"])
    queue.dispatch(names("j", 2), wait=True, partition=0)
    queue.await_that(lambda: len(child.started()) == 2)
    began = time.monotonic()
    child.kill(signal.SIGTERM)
    assert child.wait() == 0
    assert time.monotonic() - began < 5
    assert queue.results() == {"j0": ["INTERRUPTED"], "j1": ["INTERRUPTED"]}
    assert queue.claims()[0] == (2, Claim("", 2))


def test_a_second_signal_ends_it_at_once(queue: Queue) -> None:
    child = queue.spawn(concurrency=1)
    queue.dispatch(["j"], wait=True)
    queue.await_that(lambda: child.started() == ["j"])
    child.kill(signal.SIGTERM)
    queue.await_that(lambda: "worker.draining" in child.log.read_text())
    child.kill(signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert queue.unfinished() == 1  # for a successor to return


# --- when the broker leaves us in doubt ---


class DoubtfulOutput:
    """A transactional output that now and then says "unknown", sometimes after the commit and sometimes instead of it."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.name = real.name
        self.plan: list[str] = []
        self.close, self.recover, self.take_new_name = real.close, real.recover, real.take_new_name

    def begin(self) -> Any:
        transaction = self.real.begin()
        commit = transaction.commit

        def doubtful(offsets: Any) -> None:
            step = self.plan.pop(0) if self.plan else "commit"
            if step != "lost":
                commit(offsets)
            if step != "commit":
                raise TransactionUnknown(step)

        return _Transaction(transaction, doubtful)


class _Transaction:
    def __init__(self, real: Any, commit: Any) -> None:
        self._real, self.commit, self.produce = real, commit, real.produce

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self._real.__exit__(*error)


@pytest.mark.parametrize("plan", [["committed"], ["lost"], ["lost", "lost", "committed"]], ids="-".join)
def test_an_unknown_commit_neither_repeats_nor_loses_an_outcome(queue: Queue, plan: list[str]) -> None:
    gates = Gates()
    worker = queue.worker(gates.app)
    output = DoubtfulOutput(worker._output)
    worker._output = output
    queue.dispatch(names("j", 50))
    queue.drive(worker, until=lambda: len(queue.results()) == 50)
    output.plan = list(plan)
    queue.dispatch(names("k", 50))
    queue.drive(worker, until=lambda: len(queue.results()) == 100)
    queue.leave(worker)
    assert output.plan == []
    assert all(said == ["SUCCEEDED"] for said in queue.results().values())
    assert max(Counter(gates.started).values()) == 1
    assert queue.unfinished() == 0


# --- starting ---


def test_a_missing_queue_is_said_at_start(broker: KafkaConfig) -> None:
    app = Gates().app
    with pytest.raises(TopicMissing, match=r"nothing-here.dispatch.mail does not exist .*duewheel topics apply"):
        wired(broker, Topology("nothing-here"), app, None, Shares({"mail": 1}), 1, "w", 5)


def test_a_missing_control_topic_is_said_at_start(installation: Installation) -> None:
    kafka, topology = installation
    admin = AdminClient(kafka.common())
    admin.delete_topics([topology.control], operation_timeout=10)[topology.control].result(10)
    with pytest.raises(TopicMissing, match=r"control does not exist .*duewheel topics apply"):
        wired(kafka, topology, Gates().app, None, Shares({"default": 1}), 1, "w", 5)
