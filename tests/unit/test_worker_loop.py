"""The worker's loop over fakes, for what a real broker does too seldom: transactions in doubt, refusals, partitions that go meanwhile."""

from __future__ import annotations

import pytest

from duewheel.core.claims import Claim, encode
from duewheel.core.errors import BrokerUnavailable
from duewheel.ports import GroupPosition
from duewheel.worker.window import GROWTH, RECENT_MS
from tests.worker_world import SESSION_TIMEOUT_MS, TURN_MS, Desk, Unreadable


def in_doubt_with_claims(ending: str) -> Desk:
    """Partition 0: two runs are finished, two more are claimed; of the transaction that says both, nobody knows the end."""
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.dispatch(0, 0, 4)
    desk.turn(2)
    desk.crew.finish(2)
    desk.output.endings, desk.aside.holding = [ending], True
    desk.turn()
    assert not desk.crew.waiting
    return desk


def works(desk: Desk, partition: int) -> bool:
    desk.assign(partition)
    desk.dispatch(partition, 50, 4)
    desk.turn(5)
    return bool(desk.crew.waiting)


ENDINGS = pytest.mark.parametrize("ending", ["unknown, aborted", "unknown, committed"])


@ENDINGS
def test_a_partition_lost_in_doubt_does_not_leave_its_claims_in_flight(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.aside.answer()
    desk.turn(5)
    assert not desk.crew.waiting
    assert works(desk, partition=1)


@ENDINGS
def test_a_partition_revoked_in_doubt_hands_back_its_claims_when_the_doubt_is_settled(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.aside.answer()
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2))
    assert len(desk.output.outcomes) == 2
    assert works(desk, partition=1)


@ENDINGS
def test_a_partition_revoked_in_a_doubt_that_outlasts_the_grace_does_not_leave_its_claims_in_flight(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    desk.aside.answer()
    desk.turn(5)
    assert not desk.crew.waiting
    assert works(desk, partition=1)


@ENDINGS
def test_a_dead_letter_is_written_by_whoever_passes_its_record_and_by_nobody_else(ending: str) -> None:
    """It has no token by which a second one would be known; of a partition that is lost it must not be said without the position."""
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.group.queue.append(Unreadable(0, 0))
    desk.output.endings, desk.aside.holding = [ending], True
    desk.turn(2)
    passed = desk.group.positions[0].offset == 1
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.aside.answer()
    desk.turn(5)
    assert len(desk.output.outcomes) == passed == (ending == "unknown, committed")


def test_a_dead_letter_of_a_lost_partition_is_left_to_who_holds_it_now() -> None:
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.group.queue.append(Unreadable(0, 0))
    desk.output.endings = ["aborted"]
    desk.turn()
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn(5)
    assert not desk.output.endings
    assert desk.group.positions[0].offset == 0
    assert not desk.output.outcomes
    assert works(desk, partition=1)


@ENDINGS
def test_a_dead_letter_in_doubt_is_written_once_by_whoever_still_holds_its_partition(ending: str) -> None:
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.group.queue.append(Unreadable(0, 0))
    desk.output.endings, desk.aside.holding = [ending], True
    desk.turn(2)
    desk.aside.answer()
    desk.turn(5)
    assert len(desk.output.outcomes) == desk.group.positions[0].offset == 1


@ENDINGS
def test_what_is_claimed_in_doubt_is_handed_back_when_draining(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.worker.drain(1_000)
    desk.aside.answer()
    desk.turn(5)
    assert desk.worker.stopped
    assert not desk.crew.waiting
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2))
    assert len(desk.output.outcomes) == 2


def test_who_comes_back_after_everything_was_lost_goes_on_under_a_new_name() -> None:
    """Whoever holds now what it held ends what its old name left open: in the middle of its next claims, if it kept it."""
    desk = Desk(concurrency=2)
    desk.assign(0, 1)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.assign(0)
    assert desk.output.renamings == 0, "it holds something under its old name"
    desk.group.rebalances.append(lambda: desk.worker.lost([0, 1]))
    desk.turn()
    assert works(desk, partition=1)
    assert desk.output.renamings == 1
    desk.assign(2)
    assert desk.output.renamings == 1


@ENDINGS
def test_a_name_is_kept_for_as_long_as_a_transaction_under_it_is_in_doubt(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.assign(0)
    desk.aside.answer()
    desk.turn(5)
    assert desk.output.renamings == 0


@pytest.mark.parametrize("ending", ["aborted", "unknown, aborted"])
def test_what_fails_again_and_again_is_tried_less_and_less_often(ending: str) -> None:
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.dispatch(0, 0, 2)
    desk.turn(2)
    desk.crew.finish(2)
    desk.output.endings = [ending] * 1_000
    desk.turn(10_000 // TURN_MS)
    tries = 1_000 - len(desk.output.endings)
    assert 5 <= tries <= 30
    desk.output.endings.clear()
    desk.turn(3_000 // TURN_MS)
    assert len(desk.output.outcomes) == 2


def suspend(desk: Desk) -> None:
    """Longer than a session, after which all positions are to be committed again."""
    desk.clock.now_ms += SESSION_TIMEOUT_MS + 500


@ENDINGS
def test_a_position_that_did_not_change_does_not_vouch_for_a_transaction(ending: str) -> None:
    desk = Desk(concurrency=1)
    desk.assign(0, 1)
    desk.dispatch(0, 0, 1)
    desk.turn(2)
    suspend(desk)
    desk.crew.finish(1)
    desk.output.endings = [ending]
    desk.turn(6)
    assert len(desk.output.outcomes) == 1


def test_an_outcome_of_a_lost_partition_is_not_vouched_for_by_an_idle_one() -> None:
    desk = Desk(concurrency=1)
    desk.assign(0, 1)
    desk.dispatch(0, 0, 1)
    desk.turn(2)
    desk.crew.start(1)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    suspend(desk)
    desk.group.refusals = 1  # the answer that the positions are committed is lost
    desk.group.land_refused = True
    desk.turn(1)
    desk.crew.finish(1)
    desk.output.endings = ["unknown, aborted"]
    desk.turn(6)
    assert len(desk.output.outcomes) == 1


def test_what_is_read_back_while_nothing_can_be_committed_is_bounded() -> None:
    desk = Desk(concurrency=2)
    desk.group.positions[0] = GroupPosition(0, "")
    desk.cluster.end = 1_000_000
    desk.output.endings, desk.output.aside = ["unknown, aborted"], desk.aside
    desk.assign(0)
    desk.turn(400)
    assert desk.log.read <= 1_000
    desk.aside.answer()
    desk.turn(20)
    assert desk.log.read > 1_000, "it goes on when it can"
    assert len(desk.output.outcomes) > 1_000


def test_a_read_back_that_brings_nothing_is_no_sign_of_life() -> None:
    desk = Desk(concurrency=2)
    desk.group.positions[0] = GroupPosition(0, "")
    desk.log.silent = True
    desk.assign(0)
    desk.cluster.away = True
    with pytest.raises(BrokerUnavailable, match="gave up after 60 s"):
        desk.turn(60_000 // TURN_MS * 2)


def test_W3_after_fast_handlers_slow_ones_are_not_hoarded() -> None:
    desk = Desk(concurrency=2)
    desk.assign(0, 1)
    finished: list[tuple[int, int]] = []
    for number in range(30):
        desk.dispatch(0, number * 10, 10)
        for _ in range(10):
            desk.turn()
            finished.append((desk.clock.now_ms, len(desk.crew.waiting)))
            desk.crew.finish(len(desk.crew.waiting))
    assert not desk.crew.waiting
    for partition in (0, 1):
        desk.dispatch(partition, 1_000, 2_000)
    recently = sum(count for at_ms, count in finished if at_ms >= desk.clock.now_ms - RECENT_MS)
    desk.turn(10)
    assert 2 <= len(desk.crew.waiting) <= GROWTH * recently <= 100


def left_by(owner: str, offset: int = 5) -> GroupPosition:
    return GroupPosition(offset, encode(Claim(owner, offset), offset))


def test_who_cannot_commit_fences_nobody() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions[0] = left_by("successor")
    desk.group.refusals = 1_000
    desk.assign(0)
    desk.turn(300)
    assert set(desk.group.log) == {"refused"}
    assert desk.group.positions[0] == left_by("successor")
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn(300)
    assert "fenced successor" not in desk.group.log, "it was told at last"


def test_a_predecessor_is_fenced_after_the_group_confirmed_that_we_are_a_member() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions.update({0: left_by("dead"), 1: left_by("")})
    desk.group.refusals = 1
    desk.assign(0, 1)
    desk.turn(20)
    assert desk.group.log[:3] == ["refused", "committed", "fenced dead"]
    assert desk.group.committed_first == [1], "a partition that nobody has to be fenced for"


def test_a_position_that_a_transaction_is_about_to_change_is_not_committed_over() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions[0] = left_by("dead")
    desk.group.pending = True
    desk.assign(0)
    desk.turn(20)
    assert desk.group.log == ["fenced dead"]
    desk.group.pending = False
    desk.turn(200)
    assert desk.group.log == ["fenced dead", "committed"]


def test_a_predecessor_is_not_waited_for_when_the_witness_is_revoked_meanwhile() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions.update({0: left_by(""), 1: left_by("dead")})
    desk.group.refusals = 1
    desk.assign(0, 1)
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    desk.group.positions[0] = left_by("another", 9)
    desk.turn(20)
    assert desk.group.log[:2] == ["refused", "fenced dead"]
    assert desk.group.positions[0] == left_by("another", 9)


def test_after_a_failure_nothing_that_was_claimed_starts() -> None:
    desk = Desk(concurrency=4)
    desk.assign(0)
    desk.dispatch(0, 0, 4)
    desk.turn(2)
    assert len(desk.crew.waiting) == 4
    assert desk.crew.gate_ms > desk.clock.now_ms
    desk.worker.shut()
    assert desk.crew.waiting == []
    assert desk.crew.gate_ms == 0
