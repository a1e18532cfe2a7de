"""The demo's verdict finds each kind of broken promise. A judge that cannot condemn proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from duewheel.core.history import Entry, Happening, Source
from duewheel.demo.evidence import Evidence, Execution, Kill, Lateness, Role, Verdict
from duewheel.demo.executions import FOLDER_VARIABLE, ExecutionReader, ExecutionWriter
from duewheel.demo.plan import CANCEL_AHEAD_MS, KILL_MS, SPREAD_MS, Cancelling, plan

TIMER_PARTITION = 1
DISPATCH_PARTITION = 3


class Witness:
    """Tells a job's story to an `Evidence`, a record at a time."""

    def __init__(self) -> None:
        self.evidence = Evidence()

    def say(self, event: Happening, at_ms: int, *, job: str, partition: int = TIMER_PARTITION, **fields: int) -> None:
        source = Source(topic="t", partition=partition, offset=0, written_ms=at_ms)
        self.evidence.entry(Entry(source=source, at_ms=at_ms, event=event, job_id=job, **fields))  # type: ignore[arg-type]

    def schedule(self, due_ms: int, job: str = "a") -> None:
        self.say(Happening.SCHEDULE, 0, job=job, due_ms=due_ms)

    def dispatch(self, token: int, at_ms: int, job: str = "a") -> None:
        self.say(Happening.DISPATCHED, at_ms, job=job, partition=DISPATCH_PARTITION, token=token)

    def start(self, token: int, at_ms: int, job: str = "a") -> None:
        self.evidence.execution(Execution(token, at_ms, job))

    def succeed(self, token: int, at_ms: int, job: str = "a") -> None:
        self.say(Happening.ATTEMPT_SUCCEEDED, at_ms, job=job, token=token)

    def accept(self, token: int, at_ms: int, job: str = "a", generation: int = 1) -> None:
        self.say(Happening.SUCCEEDED, at_ms, job=job, token=token, generation=generation)

    def run(self, token: int, at_ms: int, job: str = "a") -> None:
        """All that a run in good order leaves behind."""
        self.dispatch(token, at_ms, job)
        self.start(token, at_ms + 1, job)
        self.succeed(token, at_ms + 2, job)
        self.accept(token, at_ms + 3, job)

    def verdict(self, *jobs: str) -> Verdict:
        return self.evidence.verdict(jobs or ("a",))


@pytest.fixture
def witness() -> Witness:
    return Witness()


def test_a_job_that_ran_in_good_order_is_completed(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=103)
    verdict = witness.verdict()
    assert (verdict.scheduled, verdict.completed, verdict.cancelled, verdict.repeated) == (1, 1, 0, 0)
    assert verdict.lateness.dispatch == Lateness(1, 3, 3, 3)
    assert verdict.lateness.start == Lateness(1, 4, 4, 4)
    assert verdict.broken == []


def test_a_second_execution_under_a_new_token_is_allowed_and_counted(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.dispatch(7, 100)
    witness.start(7, 101)
    witness.run(token=8, at_ms=6_000)
    verdict = witness.verdict()
    assert verdict.broken == []
    assert (verdict.executions, verdict.repeated) == (2, 1)
    assert verdict.lateness.start == Lateness(1, 1, 1, 1)


def test_a_job_of_which_nothing_was_heard_is_lost(witness: Witness) -> None:
    assert witness.verdict("never-heard-of").broken == ["1 lost"]


def test_a_job_that_was_dispatched_and_never_ended_is_lost(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.dispatch(7, 100)
    witness.start(7, 101)
    assert witness.verdict().broken == ["1 lost"]


@pytest.mark.parametrize("missing", ["start", "succeed"])
def test_a_completion_that_one_witness_knows_nothing_of_is_a_loss(witness: Witness, missing: str) -> None:
    witness.schedule(due_ms=100)
    witness.dispatch(7, 100)
    if missing != "start":
        witness.start(7, 101)
    if missing != "succeed":
        witness.succeed(7, 102)
    witness.accept(7, 103)
    assert witness.verdict().broken == ["1 lost"]


def test_a_completion_under_another_token_than_the_execution_is_a_loss(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.start(7, 101)
    witness.succeed(7, 102)
    witness.accept(8, 103)
    assert witness.verdict().lost == 1


def test_a_failed_job_is_a_loss_because_the_handlers_of_the_demo_do_not_fail(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.say(Happening.FAILED, 103, job="a", token=7, generation=1)
    assert witness.verdict().broken == ["1 lost"]


def test_a_dispatch_before_the_due_time_is_early(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.dispatch(6, 99)
    witness.run(token=7, at_ms=100)
    assert witness.verdict().broken == ["1 early"]


def test_a_handler_that_begins_before_the_due_time_is_early(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.dispatch(6, 100)
    witness.start(6, 99)
    witness.run(token=7, at_ms=100)
    assert witness.verdict().broken == ["1 early"]


def test_two_accepted_ends_of_one_generation_are_accepted_twice(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.run(token=8, at_ms=200)
    assert witness.verdict().broken == ["1 accepted twice"]


@pytest.mark.parametrize("end", [Happening.CANCELLED, Happening.FAILED, Happening.DISCARDED, Happening.EXPIRED])
def test_whichever_end_the_second_is(witness: Witness, end: Happening) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.say(end, 200, job="a", token=8, generation=1)
    assert witness.verdict().broken == ["1 accepted twice"]


def test_ends_of_two_generations_are_not(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.accept(8, 200, generation=2)
    assert witness.verdict().accepted_twice == 0


def test_a_job_that_was_cancelled_in_time_and_did_not_run_is_in_order(witness: Witness) -> None:
    witness.schedule(due_ms=5_000)
    witness.say(Happening.CANCEL, 1_000, job="a")
    witness.say(Happening.CANCELLED, 1_005, job="a", generation=1)
    verdict = witness.verdict()
    assert (verdict.cancelled, verdict.completed, verdict.broken) == (1, 0, [])


def test_a_job_that_was_cancelled_in_time_and_ran_is_a_broken_promise(witness: Witness) -> None:
    witness.schedule(due_ms=5_000)
    witness.say(Happening.CANCEL, 1_000, job="a")
    witness.run(token=7, at_ms=5_000)
    assert witness.verdict().broken == ["1 started although cancelled"]


def test_a_cancel_in_the_last_moment_may_lose_the_race(witness: Witness) -> None:
    witness.schedule(due_ms=5_000)
    witness.say(Happening.CANCEL, 4_999, job="a")
    witness.run(token=7, at_ms=5_000)
    assert witness.verdict().broken == []


def test_a_cancelled_job_that_nobody_cancelled_is_lost(witness: Witness) -> None:
    witness.schedule(due_ms=5_000)
    witness.say(Happening.CANCELLED, 1_005, job="a", generation=1)
    assert witness.verdict().broken == ["1 lost"]


def test_a_dispatch_that_is_started_twice_is_a_token_used_twice(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.start(7, 200)
    assert witness.verdict().broken == ["1 token used twice"]


def test_an_execution_under_a_token_that_was_never_handed_out_breaks_a_promise(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.start(8, 200)
    assert witness.verdict().broken == ["1 started without dispatch"]


def test_so_does_an_execution_of_another_jobs_dispatch(witness: Witness) -> None:
    for job, token in (("a", 7), ("b", 8)):
        witness.schedule(due_ms=100, job=job)
        witness.run(token=token, at_ms=100, job=job)
    witness.start(7, 200, job="b")
    assert "1 started without dispatch" in witness.verdict("a", "b").broken


def test_and_an_execution_of_a_job_that_nobody_scheduled(witness: Witness) -> None:
    witness.schedule(due_ms=100)
    witness.run(token=7, at_ms=100)
    witness.start(9, 200, job="made up")
    assert witness.verdict().broken == ["1 started without dispatch"]


def test_a_token_that_two_jobs_of_a_partition_get_is_used_twice(witness: Witness) -> None:
    for job in ("a", "b"):
        witness.schedule(due_ms=100, job=job)
        witness.run(token=7, at_ms=100, job=job)
    assert witness.verdict("a", "b").broken == ["1 token used twice"]


def test_takeover_lasts_until_the_slowest_partition_is_served_again(witness: Witness) -> None:
    for job, partition, at_ms in (("a", 0, 1_700), ("b", 0, 1_600), ("c", 2, 7_500), ("d", 1, 1_100), ("e", 0, 900)):
        witness.say(Happening.SCHEDULE, 0, job=job, partition=partition, due_ms=at_ms)
        witness.dispatch(at_ms, at_ms, job)
    takeover = witness.evidence.takeover(Kill("processor-1", Role.PROCESSOR, 1_000, frozenset({0, 2})))
    assert takeover.after_ms == {0: 600, 2: 6_500}
    assert takeover.longest_ms == 6_500


def test_takeover_of_a_worker_is_told_from_the_handlers(witness: Witness) -> None:
    witness.schedule(due_ms=500)
    witness.dispatch(7, 990)
    witness.start(7, 1_800)
    takeover = witness.evidence.takeover(Kill("worker-1", Role.WORKER, 1_000, frozenset({DISPATCH_PARTITION})))
    assert takeover.after_ms == {DISPATCH_PARTITION: 800}


def test_lateness_is_told_apart_by_what_the_kills_had_to_do_with_it(witness: Witness) -> None:
    for number, (job, partition, due_ms, late_ms) in enumerate(
        [("before", 0, 500, 5), ("held", 0, 1_000, 6_000), ("bystander", 1, 2_000, 50), ("after", 0, 9_000, 7)]
    ):
        witness.say(Happening.SCHEDULE, 0, job=job, partition=partition, due_ms=due_ms)
        witness.run(token=number, at_ms=due_ms + late_ms, job=job)
    kill = Kill("processor-1", Role.PROCESSOR, 1_000, frozenset({0}))
    verdict = witness.evidence.verdict(["before", "held", "bystander", "after"], [kill])
    assert verdict.lateness.dispatch == Lateness(4, 7, 6_000, 6_000)
    assert verdict.undisturbed.dispatch == Lateness(2, 5, 7, 7)
    assert verdict.bystanders.dispatch == Lateness(1, 50, 50, 50)


def test_percentiles_are_values_that_occurred() -> None:
    assert Lateness.of([]) is None
    assert Lateness.of(range(1, 101)) == Lateness(100, 50, 99, 100)
    assert Lateness.of([3]) == Lateness(1, 3, 3, 3)


# --- the plan ---


def test_the_plan_has_jobs_of_each_kind_and_cancels_none_near_its_time() -> None:
    jobs = plan(2_000)
    assert len({job.job_id for job in jobs}) == len(jobs) == 2_000
    assert sum(job.after_ms is None for job in jobs) == 500
    assert max(job.after_ms or 0 for job in jobs) <= SPREAD_MS
    early = [job.after_ms or 0 for job in jobs if job.cancelling is Cancelling.EARLY]
    late = [job.after_ms or 0 for job in jobs if job.cancelling is Cancelling.LATE]
    assert min(early) >= CANCEL_AHEAD_MS
    assert min(late) >= KILL_MS + CANCEL_AHEAD_MS
    assert len(early) > 100
    assert len(late) > 30


def test_the_smallest_demo_cancels_some_too() -> None:
    assert {job.cancelling for job in plan(100)} == set(Cancelling)


# --- the handlers' files ---


def test_executions_are_read_once_each_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    writer, reader = ExecutionWriter(), ExecutionReader(tmp_path)
    assert reader.read() == []
    writer.write(Execution(7, 100, "a job with spaces"))
    writer.write(Execution(8, 101, "ä"))
    assert reader.read() == [Execution(7, 100, "a job with spaces"), Execution(8, 101, "ä")]
    assert reader.read() == []
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(b"9 102 half-wri")
        file.flush()
        assert reader.read() == []
        file.write(b"tten\n")
    assert reader.read() == [Execution(9, 102, "half-written")]
