"""What the loop does about attempts: what is never run, what runs long, what is given up, what goes on without its partition."""

from __future__ import annotations

from typing import Any

import pytest

from duewheel.core.claims import Claim, encode
from duewheel.core.limits import HEARTBEAT_MS, LAST_LIFE_SNOOZE_MS, LEASE_MARGIN_MS, LEASE_MS, WORKER_RUNS_MAX
from duewheel.core.model import Outcome, Terms
from duewheel.core.retry import RetryPolicy
from duewheel.ports import GroupPosition
from duewheel.worker import reports
from duewheel.worker.doorstep import LOOK_EVERY_MS as LOOK_THROUGH_EVERY_MS
from duewheel.worker.doorstep import PATIENCE_MS
from duewheel.worker.loop import REVOKE_GRACE_MS
from duewheel.worker.runs import Run
from duewheel.worker.watch import LOOK_EVERY_MS, STALLED_MS
from tests.worker_world import TURN_MS, Desk

UNTIL_SEEN = 2 * LOOK_EVERY_MS // TURN_MS + 2  # turns until the watch has looked, and what it found is recorded

LOOK_THROUGH_MS = LOOK_THROUGH_EVERY_MS + 3 * TURN_MS


def desk_with_a_run(count: int = 1, concurrency: int = 4, **task: Any) -> Desk:
    desk = Desk(concurrency, **task)
    desk.assign(0, 1)
    desk.dispatch(0, 0, count)
    desk.turn(2)
    desk.crew.start(count)
    return desk


def pass_ms(desk: Desk, span_ms: int) -> None:
    desk.turn(-(-span_ms // TURN_MS))


def terms(**given: Any) -> Terms:
    return {"crashes": 0, "is_last_life": False, "expires_ms": 0, "deadline_ms": 0, **given}  # type: ignore[typeddict-item]


def leases(desk: Desk) -> list[tuple[str, int]]:
    return [(outcome["result"], outcome["lease_ms"]) for outcome in desk.outcomes()]


def only(desk: Desk) -> Outcome:
    [outcome] = desk.outcomes()
    return outcome


# --- leases ---


def test_a_short_run_says_nothing_of_itself() -> None:
    desk = desk_with_a_run()
    pass_ms(desk, HEARTBEAT_MS - 200)
    desk.crew.finish(1)
    desk.turn(3)
    assert desk.said() == [("0-0", "SUCCEEDED")]


def test_W4_a_long_run_is_started_once_and_beats_until_it_ends() -> None:
    desk = desk_with_a_run()
    pass_ms(desk, 5 * HEARTBEAT_MS + HEARTBEAT_MS // 2)
    assert leases(desk) == [("STARTED", LEASE_MS)] + [("HEARTBEAT", LEASE_MS)] * 4
    first = desk.outcomes()[0]
    assert 0 < first["started_ms"] <= first["finished_ms"] - HEARTBEAT_MS
    desk.crew.finish(1)
    pass_ms(desk, 3 * HEARTBEAT_MS)
    assert [result for _, result in desk.said()][5:] == ["SUCCEEDED"]
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 1), 1))


def test_a_heartbeat_does_not_finish_the_dispatch() -> None:
    desk = desk_with_a_run()
    pass_ms(desk, 2 * HEARTBEAT_MS)
    assert desk.group.positions[0] == GroupPosition(0, encode(Claim("me", 1, (0,)), 0))


def test_of_what_goes_on_while_nothing_can_be_said_only_the_newest_word_is_kept() -> None:
    desk = desk_with_a_run(heartbeat=30)
    [run] = desk.crew.started
    desk.output.endings, desk.aside.holding = ["unknown, aborted"], True
    for number in range(600):  # for a minute
        run.beat(b"%d" % number)
        pass_ms(desk, 100)
    assert not desk.said()
    desk.aside.answer()
    desk.turn(3)
    assert leases(desk) == [("STARTED", 30_000 + LEASE_MARGIN_MS)]
    assert desk.outcomes()[0]["output"] == b"599"
    pass_ms(desk, 10_000)
    run.beat(None)
    pass_ms(desk, 100)
    assert [result for _, result in desk.said()] == ["STARTED", "HEARTBEAT"]


def test_words_that_come_in_a_doubt_are_said_with_those_that_were_in_it() -> None:
    desk = desk_with_a_run()
    desk.output.endings, desk.aside.holding = ["unknown, aborted"], True
    pass_ms(desk, HEARTBEAT_MS + 100)
    desk.crew.started += [later := Run(desk.crew.started[0].holding, 9, b"k", desk.crew.started[0].dispatch, desk.crew.started[0].task, 1)]
    later.started_ms = later.started_steady_ms = desk.clock.now_ms
    pass_ms(desk, HEARTBEAT_MS + 100)
    desk.aside.answer()
    desk.turn(3)
    assert leases(desk) == [("STARTED", LEASE_MS)] * 2


def test_what_ends_before_its_word_was_said_says_only_how() -> None:
    desk = desk_with_a_run(2)
    desk.crew.finish(1)
    desk.output.endings, desk.aside.holding = ["unknown, aborted"], True
    pass_ms(desk, 2 * HEARTBEAT_MS)
    desk.crew.finish(1)
    pass_ms(desk, 100)
    desk.aside.answer()
    desk.turn(3)
    assert desk.said() == [("0-0", "SUCCEEDED"), ("0-1", "SUCCEEDED")]


def test_a_transaction_of_large_outcomes_is_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "BATCH_BYTES_MAX", 256 * 1_000)
    desk = desk_with_a_run(600, concurrency=600)
    for run in desk.crew.started:
        run.output = b"x" * 1_000
    desk.crew.finish(600)
    seen = []
    while desk.crew.finished_count:
        desk.turn()
        seen.append(len(desk.outcomes()))
    assert seen == [256, 512, 600]


def test_a_task_that_beats_itself_is_started_at_once_and_its_beats_are_passed_on_for_each_third_of_its_timeout() -> None:
    desk = desk_with_a_run(heartbeat=30)
    desk.turn(UNTIL_SEEN)
    assert leases(desk) == [("STARTED", 30_000 + LEASE_MARGIN_MS)]
    [run] = desk.crew.started
    for number in range(500):  # for a minute
        run.beat(b"%d" % number)
        pass_ms(desk, 100)
    beats = desk.outcomes()[1:]
    assert {beat["result"] for beat in beats} == {"HEARTBEAT"}
    assert 5 <= len(beats) <= 6
    progress = [int(beat["output"] or b"-1") for beat in beats]
    assert progress == sorted(set(progress)), "the latest word of each"


def test_a_self_beating_handler_that_hangs_is_given_up_after_its_own_timeout() -> None:
    desk = desk_with_a_run(heartbeat=30, retry=RetryPolicy.fixed(7))
    [run] = desk.crew.started
    pass_ms(desk, 15_000)
    run.beat(None)
    pass_ms(desk, 29_000)
    assert [result for _, result in desk.said()] == ["STARTED", "HEARTBEAT"]
    pass_ms(desk, 1_500)
    last = desk.outcomes()[-1]
    assert (last["result"], last["retry_after_ms"]) == ("RETRY", 7_000)
    assert last["error"] is not None
    assert last["error"]["type"] == "duewheel.HeartbeatTimeout"
    assert not desk.crew.running()
    assert run.abandoned


def test_a_handler_that_never_beats_is_measured_from_its_start() -> None:
    desk = desk_with_a_run(heartbeat=1)
    pass_ms(desk, 1_200)
    assert [result for _, result in desk.said()] == ["STARTED", "RETRY"]


# --- run timeouts ---


def test_W12_a_run_that_takes_too_long_is_over_at_its_deadline_and_its_slot_is_free() -> None:
    desk = desk_with_a_run(timeout=2)
    pass_ms(desk, 1_900)
    assert not desk.said()
    pass_ms(desk, 300)
    outcome = only(desk)
    assert outcome["result"] == "RETRY"
    assert outcome["error"] is not None
    assert outcome["error"]["type"] == "duewheel.RunTimeout"
    assert "longer than the 2 s" in outcome["error"]["message"]
    assert 2_000 <= outcome["finished_ms"] - outcome["started_ms"] <= 2_200
    assert not desk.crew.running()
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 1), 1))


def test_a_run_that_timed_out_beats_no_more() -> None:
    desk = desk_with_a_run(timeout=25)
    pass_ms(desk, 60_000)
    assert [result for _, result in desk.said()] == ["STARTED", "HEARTBEAT", "RETRY"]


def test_a_handler_that_ends_at_its_deadline_is_not_also_timed_out() -> None:
    desk = desk_with_a_run(timeout=2)
    pass_ms(desk, 1_980)
    desk.crew.finish(1)
    pass_ms(desk, 300)
    assert desk.said() == [("0-0", "SUCCEEDED")]


@pytest.mark.parametrize("own", [{"timeout": 20}, {"heartbeat": 20}], ids=str)
def test_W5_a_worker_that_stood_still_does_not_blame_its_handlers(own: dict[str, Any]) -> None:
    desk = desk_with_a_run(**own)
    pass_ms(desk, 9_000)
    before = desk.said()
    desk.clock.now_ms += 120_000  # SIGSTOP
    pass_ms(desk, 9_000)
    assert not {"RETRY", "FAILED"} & {result for _, result in desk.said()}, "the rest of its time is still its own, but for a second"
    pass_ms(desk, 2_000)
    assert [result for _, result in desk.said()][-1] == "RETRY", "and no more than that"
    assert before in ([], [("0-0", "STARTED")])


@pytest.mark.parametrize("own", [{"timeout": 5}, {"heartbeat": 5}], ids=str)
def test_a_loop_whose_every_turn_is_slow_still_enforces_limits(own: dict[str, Any]) -> None:
    """As where handlers hold the interpreter for longer than a second at a time."""
    desk = desk_with_a_run(**own)
    began_ms = desk.clock.now_ms
    while desk.crew.running():
        desk.worker.turn()
        desk.clock.now_ms += STALLED_MS + 200
        assert desk.clock.now_ms - began_ms < 10_000
    desk.turn()
    assert desk.said()[-1] == ("0-0", "RETRY")


# --- what is never run ---


def test_what_came_too_late_is_expired_with_its_claim() -> None:
    desk = Desk(4)
    desk.assign(0)
    now_ms = desk.clock.now_ms
    desk.dispatch(0, 0, 1, terms=terms(expires_ms=now_ms))
    desk.dispatch(0, 1, 1, terms=terms(expires_ms=now_ms + 60_000))
    desk.turn(2)
    assert desk.said() == [("0-0", "EXPIRED")]
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-1"]
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 2, (1,)), 1))


def test_what_waits_until_it_is_too_late_is_expired_and_never_starts() -> None:
    desk = Desk(4)
    desk.assign(0)
    now_ms = desk.clock.now_ms
    desk.dispatch(0, 0, 1, terms=terms(expires_ms=now_ms + 5_000))
    desk.dispatch(0, 1, 1, terms=terms(expires_ms=now_ms + 60_000))
    desk.dispatch(0, 2, 1, terms=terms(deadline_ms=now_ms + 5_000))
    pass_ms(desk, 4_900)
    assert (len(desk.crew.waiting), desk.said()) == (3, [])
    pass_ms(desk, 100 + LOOK_THROUGH_MS)
    assert sorted(desk.said()) == [("0-0", "EXPIRED"), ("0-2", "SNOOZED")]
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-1"]
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 3, (1,)), 1))
    pass_ms(desk, 60_000)
    assert not desk.crew.waiting, "the next one is not forgotten"


@pytest.mark.parametrize(
    "limits, result, error", [({"expires_ms": 1}, "EXPIRED", ""), ({"deadline_ms": 1}, "SNOOZED", "duewheel.RunTimeout")], ids=str
)
def test_what_is_too_late_at_the_moment_of_its_start_does_not_start(limits: dict[str, int], result: str, error: str) -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.dispatch(0, 0, 1, terms=terms(**dict.fromkeys(limits, desk.clock.now_ms + 200)))
    desk.turn(2)
    desk.clock.now_ms += 200
    desk.crew.start(1)
    assert not desk.crew.running()
    desk.turn()
    outcome = only(desk)
    assert (outcome["result"], outcome["started_ms"]) == (result, 0)
    assert ("" if outcome["error"] is None else outcome["error"]["type"]) == error
    assert desk.worker._window._duration_ms == 0, "and says nothing of how long handlers take"
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 1), 1))


def test_W10_an_unknown_task_is_tried_again_by_the_default_policy() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.dispatch(0, 0, 1, task="nowhere")
    desk.turn(2)
    outcome = only(desk)
    assert outcome["result"] == "RETRY"
    assert 500 <= outcome["retry_after_ms"] <= 1_000
    assert outcome["error"] is not None
    assert outcome["error"]["type"] == "duewheel.UnknownTask"
    assert outcome["error"]["message"] == "task 'nowhere' is not registered in the app of worker w, which has: t"
    assert desk.group.positions[0] == GroupPosition(1, encode(Claim("me", 1), 1))


def test_W10_an_unknown_task_is_dead_when_its_attempts_are_used_up() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.dispatch(0, 0, 1, task="nowhere", attempt=5)
    desk.turn(2)
    assert desk.said() == [("0-0", "FAILED")]


# --- last lives ---


def test_W7_last_lives_are_not_executed_beside_one_another() -> None:
    desk = Desk(8)
    desk.assign(0)
    desk.dispatch(0, 0, 4, terms=terms(is_last_life=True, crashes=2))
    desk.dispatch(0, 4, 2)
    desk.turn(2)
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-0", "0-4", "0-5"]
    assert desk.said() == [("0-1", "SNOOZED"), ("0-2", "SNOOZED"), ("0-3", "SNOOZED")]
    waits = [outcome["retry_after_ms"] for outcome in desk.outcomes()]
    assert len(set(waits)) > 1
    assert all(abs(wait - LAST_LIFE_SNOOZE_MS) <= LAST_LIFE_SNOOZE_MS // 4 for wait in waits)
    assert desk.group.positions[0] == GroupPosition(0, encode(Claim("me", 6, (0, 4, 5)), 0))


@pytest.mark.parametrize("end", ["finished", "given up", "withdrawn", "stopped", "lost"])
def test_W7_the_next_last_life_comes_when_one_is_over(end: str) -> None:
    desk = Desk(8, timeout=2)
    desk.assign(0, 1)
    desk.dispatch(0, 0, 1, terms=terms(is_last_life=True))
    desk.turn(2)
    match end:
        case "finished":
            desk.crew.finish(1)
        case "given up":
            desk.crew.start(1)
            pass_ms(desk, 2_500)
        case "withdrawn":
            desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
        case "stopped":
            desk.stop("0-0", 1)
        case "lost":
            desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn(UNTIL_SEEN)
    desk.dispatch(1, 0, 1, terms=terms(is_last_life=True))
    desk.turn(2)
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["1-0"]


def test_W7_a_last_life_that_waits_keeps_others_out_for_a_while_only() -> None:
    """It may wait for a busy worker, its task's own limit, or a queue that goes first."""
    desk = Desk(4)
    desk.assign(0)
    last_life = terms(is_last_life=True)
    desk.dispatch(0, 0, 1, terms=last_life)
    pass_ms(desk, 2 * PATIENCE_MS)
    assert (len(desk.crew.waiting), desk.said()) == (1, []), "as long as nobody else asks, it may wait"
    desk.dispatch(0, 1, 1, terms=last_life)
    pass_ms(desk, LOOK_THROUGH_MS)
    assert desk.said() == [("0-1", "SNOOZED"), ("0-0", "SNOOZED")]
    desk.dispatch(0, 2, 1, terms=last_life)
    desk.turn(2)
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-2"]
    desk.dispatch(0, 3, 1, terms=last_life)
    pass_ms(desk, PATIENCE_MS - 1_000)
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-2"]
    desk.crew.start(1)
    pass_ms(desk, PATIENCE_MS)
    assert len(desk.crew.running()) == 1, "what runs is left alone"
    assert [result for _, result in desk.said()].count("SNOOZED") == 3


# --- stops ---


def test_what_was_cancelled_before_it_came_is_never_run() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.stop("0-0", 1)
    desk.stop("0-1", 1)  # of an attempt before
    desk.turn(UNTIL_SEEN)
    desk.dispatch(0, 0, 2)
    desk.turn(2)
    assert desk.said() == [("0-0", "CANCELLED")]
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-1"]


def test_what_is_cancelled_while_it_waits_for_a_thread_is_never_run() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.dispatch(0, 0, 3)
    desk.turn(2)
    desk.stop("0-1", 2)
    desk.turn(UNTIL_SEEN)
    assert desk.said() == [("0-1", "CANCELLED")]
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-0", "0-2"]
    assert desk.group.positions[0] == GroupPosition(0, encode(Claim("me", 3, (0, 2)), 0))


def test_what_is_cancelled_in_doubt_is_reported_when_the_doubt_is_settled() -> None:
    desk = Desk(2)
    desk.assign(0)
    desk.dispatch(0, 0, 4)
    desk.turn(2)
    desk.crew.finish(2)
    desk.output.endings, desk.aside.holding = ["unknown, aborted"], True
    desk.turn()
    desk.stop("0-3", 4)
    desk.turn(UNTIL_SEEN)
    desk.aside.answer()
    desk.turn(5)
    assert sorted(desk.said()) == [("0-0", "SUCCEEDED"), ("0-1", "SUCCEEDED"), ("0-3", "CANCELLED")]
    assert [run.dispatch["job_id"] for run in desk.crew.waiting] == ["0-2"]


def test_a_stop_that_comes_in_the_middle_of_the_look_loses_no_run() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.group.refusals = 100
    desk.dispatch(0, 0, 4)
    desk.turn(2)
    starts = list(desk.worker._starts)
    asked: list[Run] = []

    def unwanted(run: Run) -> bool:
        """Another queue's loop takes in a stop while this one looks."""
        asked.append(run)
        return len(asked) > 2

    assert len(starts) == 4
    assert desk.worker._pick_out(unwanted) == starts[2:]
    assert desk.worker._starts == starts[:2]


def test_a_running_handler_is_asked_to_stop() -> None:
    desk = desk_with_a_run(2)
    desk.stop("0-1", 2)
    desk.turn(UNTIL_SEEN)
    assert [run.cancelled for run in desk.crew.started] == [False, True]
    assert not desk.said()


# --- handing over ---


def revoke(desk: Desk, *partitions: int) -> None:
    desk.group.rebalances.append(lambda: desk.worker.revoked(partitions))
    desk.turn()


def test_what_outlasts_a_revocation_goes_on_by_its_lease() -> None:
    desk = desk_with_a_run(2)
    began_ms = desk.clock.now_ms
    revoke(desk, 0)
    assert REVOKE_GRACE_MS <= desk.clock.now_ms - began_ms < REVOKE_GRACE_MS + 1_000
    assert leases(desk) == [("STARTED", LEASE_MS)] * 2
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2)), "nothing is left for a successor to return"
    pass_ms(desk, HEARTBEAT_MS + 200)
    assert leases(desk)[2:] == [("HEARTBEAT", LEASE_MS)] * 2
    desk.crew.finish(2)
    desk.turn(3)
    assert desk.said()[4:] == [("0-0", "SUCCEEDED"), ("0-1", "SUCCEEDED")]
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2))


def test_what_was_handed_over_still_counts_as_in_flight_until_it_ends() -> None:
    desk = desk_with_a_run(4, concurrency=4)
    revoke(desk, 0)
    desk.dispatch(1, 0, 8)
    desk.turn(3)
    assert not desk.crew.waiting
    desk.crew.finish(4)
    desk.turn(3)
    assert len(desk.crew.waiting) >= 4
    assert desk.worker._bytes == sum(run.record_bytes for run in desk.crew.waiting) + _buffered_bytes(desk)


def _buffered_bytes(desk: Desk) -> int:
    return sum(len(record.value() or b"") for holding in desk.worker._holdings.values() for record in holding.records)


def test_a_run_that_has_started_long_ago_is_not_started_again_at_the_hand_over() -> None:
    desk = desk_with_a_run()
    pass_ms(desk, HEARTBEAT_MS + 100)
    revoke(desk, 0)
    assert [result for _, result in desk.said()] == ["STARTED"]


def test_the_watch_goes_on_while_a_revocation_waits() -> None:
    desk = desk_with_a_run(2, timeout=2)
    revoke(desk, 0)
    assert [result for _, result in desk.said()] == ["RETRY", "RETRY"]
    assert all(outcome["finished_ms"] - outcome["started_ms"] < 2_500 for outcome in desk.outcomes())


def test_a_run_of_a_lost_partition_goes_on_and_is_reported() -> None:
    desk = desk_with_a_run()
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.crew.finish(1)
    desk.turn(3)
    assert desk.said() == [("0-0", "SUCCEEDED")]


def test_W13_what_was_handed_over_is_interrupted_too_when_the_worker_ends() -> None:
    desk = desk_with_a_run(2)
    revoke(desk, 0)
    desk.worker.drain(1_000)
    pass_ms(desk, 1_200)
    assert desk.worker.stopped
    assert desk.said()[2:] == [("0-0", "INTERRUPTED"), ("0-1", "INTERRUPTED")]
    assert not desk.crew.running()


def test_W13_a_run_that_ends_within_the_grace_is_recorded_and_the_others_are_interrupted() -> None:
    desk = desk_with_a_run(4)
    desk.worker.drain(1_000)
    desk.turn(3)
    desk.crew.finish(2)
    pass_ms(desk, 1_200)
    assert desk.worker.stopped
    assert desk.said() == [("0-0", "SUCCEEDED"), ("0-1", "SUCCEEDED"), ("0-2", "INTERRUPTED"), ("0-3", "INTERRUPTED")]
    assert desk.group.positions[0] == GroupPosition(4, encode(Claim("", 4), 4))


# --- the window ---


def test_runs_that_wait_for_their_own_limit_do_not_keep_others_out() -> None:
    desk = Desk(4)
    desk.assign(0)
    desk.dispatch(0, 0, 40)
    desk.turn(3)
    assert len(desk.crew.waiting) == 4
    desk.crew.held_back = 3
    desk.turn(3)
    assert len(desk.crew.waiting) == 4 + 3


def test_W3_however_many_are_held_back_what_is_claimed_is_bounded() -> None:
    desk = Desk(40)
    desk.assign(*range(4))
    for partition in range(4):
        desk.dispatch(partition, 0, WORKER_RUNS_MAX // 4 + 100)
    for _ in range(300):
        desk.crew.held_back = len(desk.crew.waiting)
        desk.turn()
    assert WORKER_RUNS_MAX * 0.9 < len(desk.crew.waiting) <= WORKER_RUNS_MAX
