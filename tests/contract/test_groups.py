"""`ports.GroupReader`: who holds what, what may be committed, and what is known of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duewheel.ports import CommitRefused, GroupPosition, Offset
from tests.contract.grounds import STEP_S, Grounds, Member, eventually, joined

PARTITIONS = 4
NOTHING = GroupPosition(None, "")


@pytest.fixture
def topic(grounds: Grounds) -> str:
    return grounds.topic(PARTITIONS)


@pytest.fixture
def group(grounds: Grounds) -> str:
    return grounds.name("group")


def test_a_member_alone_holds_everything_and_reads_what_it_is_told_to(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group), reads=False)
    joined(grounds, member, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        grounds.append(topic, partition, b"%d" % partition, b"more")
    for _ in range(10):
        member.poll()
    assert member.records == []  # nothing is read before `read_from`
    member.reader.read_from(2, 1)
    eventually(grounds, lambda: member.records, member.poll)
    assert [(r.partition(), r.offset(), r.value()) for r in member.records] == [(2, 1, b"more")]


def test_what_is_paused_waits_and_goes_on_where_it_was(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    grounds.append(topic, 0, b"a")
    eventually(grounds, lambda: len(member.records) == 1, member.poll)
    member.reader.pause(0)
    grounds.append(topic, 0, b"b")
    for _ in range(10):
        member.poll()
    assert len(member.records) == 1
    member.reader.resume(0)
    eventually(grounds, lambda: len(member.records) == 2, member.poll)
    member.reader.read_from(0, 0)
    eventually(grounds, lambda: len(member.records) == 4, member.poll)
    assert [r.value() for r in member.records] == [b"a", b"b", b"a", b"b"]
    eventually(grounds, lambda: member.reader.reached(0) == 2, member.poll)


def test_members_share_and_what_moves_is_revoked_before_it_is_anothers(grounds: Grounds, topic: str, group: str) -> None:
    first = Member(grounds.group_reader(topic, group))
    joined(grounds, first, partitions=PARTITIONS)
    second = Member(grounds.group_reader(topic, group))
    at_revoke: list[tuple[Sequence[int], list[int]]] = []

    def note(partitions: Sequence[int]) -> None:
        at_revoke.append((partitions, list(second.held)))

    first.on_revoke = note
    joined(grounds, first, second, partitions=PARTITIONS)
    assert first.told[0] == ("assigned", (0, 1, 2, 3))
    # Cooperative: the rest was never taken away. Who is assigned nothing new is told so too.
    assert {kind for kind, partitions in first.told[1:] if partitions} == {"revoked"}
    assert {kind for kind, _ in second.told} == {"assigned"}
    assert all(not set(partitions) & set(held) for partitions, held in at_revoke)


def test_what_a_member_held_that_leaves_is_anothers(grounds: Grounds, topic: str, group: str) -> None:
    first, second = Member(grounds.group_reader(topic, group)), Member(grounds.group_reader(topic, group))
    joined(grounds, first, second, partitions=PARTITIONS)
    held = tuple(first.held)
    first.reader.close()
    assert first.told[-1] == ("revoked", held)
    joined(grounds, second, partitions=PARTITIONS)


def test_offsets_and_metadata_come_back(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    assert member.reader.committed([0, 1], 10.0) == {0: NOTHING, 1: NOTHING}
    member.reader.commit([Offset(topic, 0, 7, "mine"), Offset(topic, 2, 9)])
    assert member.reader.committed([0, 1, 2], 10.0) == {0: GroupPosition(7, "mine"), 1: NOTHING, 2: GroupPosition(9, "")}
    assert grounds.cluster().owners(group, topic, [0, 1]) == {0: GroupPosition(7, "mine"), 1: NOTHING}
    member.reader.commit([Offset(topic, 0, 3, "back")])  # nobody but the members' own code keeps it from going back
    assert member.reader.committed([0], 10.0) == {0: GroupPosition(3, "back")}


def test_while_partitions_are_being_revoked_their_offsets_can_be_committed(grounds: Grounds, topic: str, group: str) -> None:
    first = Member(grounds.group_reader(topic, group))
    joined(grounds, first, partitions=PARTITIONS)

    def release(partitions: Sequence[int]) -> None:
        first.reader.commit([Offset(topic, p, 5, "released") for p in partitions])

    first.on_revoke = release
    second = Member(grounds.group_reader(topic, group))
    joined(grounds, first, second, partitions=PARTITIONS)
    first.on_revoke = lambda partitions: None  # when it leaves it may have been thrown out, and what it commits then is refused
    assert second.held
    found = second.reader.committed(second.held, 10.0)
    assert found == {p: GroupPosition(5, "released") for p in second.held}


def test_only_members_commit_where_there_are_any(grounds: Grounds, topic: str, group: str) -> None:
    stranger = grounds.group_reader(topic, group)
    stranger.commit([Offset(topic, 0, 1, "before there were members")])
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    with pytest.raises(CommitRefused):
        stranger.commit([Offset(topic, 0, 2)])
    assert member.reader.committed([0], 10.0) == {0: GroupPosition(1, "before there were members")}


def test_metadata_has_a_limit(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    member.reader.commit([Offset(topic, 0, 1, "x" * 4_095)])
    with pytest.raises(CommitRefused):  # the broker's offset.metadata.max.bytes is 4,096, and what has as many is too large
        member.reader.commit([Offset(topic, 0, 2, "x" * 4_096)])
    assert member.reader.committed([0], 10.0) == {0: GroupPosition(1, "x" * 4_095)}


def test_offsets_that_an_open_transaction_may_change_are_not_told_to_who_must_be_sure(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    member.reader.commit([Offset(topic, 0, 1, "before")])
    with grounds.held_open(group, member.reader, [Offset(topic, 0, 5, "pending")]):
        with pytest.raises(CommitRefused):
            member.reader.committed([0], 1.0)
        assert member.reader.committed([1], 10.0) == {1: NOTHING}
        assert grounds.cluster().owners(group, topic, [0]) == {0: GroupPosition(1, "before")}
    assert member.reader.committed([0], 20.0) == {0: GroupPosition(1, "before")}


def test_an_error_in_a_callback_comes_out_of_poll_and_the_partitions_are_held(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))

    def fail(partitions: Sequence[int]) -> None:
        member.on_assign = lambda partitions: None
        raise ZeroDivisionError

    member.on_assign = fail

    with pytest.raises(ZeroDivisionError):
        eventually(grounds, lambda: False, member.poll)
    grounds.append(topic, 0, b"a")
    eventually(grounds, lambda: member.records, member.poll)


def test_a_member_that_reads_nothing_waits_no_longer_than_it_said(grounds: Grounds, topic: str, group: str) -> None:
    member = Member(grounds.group_reader(topic, group))
    joined(grounds, member, partitions=PARTITIONS)
    began_s = grounds.now_s()
    assert member.reader.poll(STEP_S, 10) == []
    assert grounds.now_s() - began_s < 1.0
