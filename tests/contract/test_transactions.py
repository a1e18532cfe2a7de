"""`ports.TransactionalOutput` and `ports.Cluster`: all or nothing, and nothing from who was replaced."""

from __future__ import annotations

import pytest

from duewheel.core.errors import TopicMissing
from duewheel.ports import GroupPosition, Offset, TransactionAborted, TransactionalOutput, TransactionUnknown
from tests.contract.grounds import Grounds, Member, eventually, joined, values

PARTITIONS = 2


class Copying:
    """A member of a group that reads one topic and writes to another, in transactions."""

    def __init__(self, grounds: Grounds) -> None:
        self.grounds = grounds
        self.source, self.target = grounds.topic(PARTITIONS), grounds.topic(PARTITIONS)
        self.group = grounds.name("group")
        self.member = Member(grounds.group_reader(self.source, self.group))
        joined(grounds, self.member, partitions=PARTITIONS)
        self.output = self.another(grounds.name("owner"))
        self.cluster = grounds.cluster()

    def another(self, name: str) -> TransactionalOutput:
        output = self.grounds.output(name, {self.group: self.member.reader})
        eventually(self.grounds, output.recover)
        return output

    def write(self, value: bytes, offset: int, output: TransactionalOutput | None = None) -> None:
        with (output or self.output).begin() as transaction:
            transaction.produce(self.target, value, b"key", 0)
            transaction.commit({self.group: [Offset(self.source, 0, offset, "copied")]})

    def written(self) -> list[bytes | None]:
        end = self.cluster.watermarks(self.target, [0])[0][1]
        return values(self.grounds.reader(self.target), self.grounds, 0, end)

    def committed(self) -> int | None:
        return self.member.reader.committed([0], 20.0)[0].offset


@pytest.fixture
def copying(grounds: Grounds) -> Copying:
    return Copying(grounds)


def test_records_and_offsets_are_committed_together(copying: Copying) -> None:
    copying.write(b"a", 1)
    assert copying.written() == [b"a"]
    assert copying.member.reader.committed([0, 1], 20.0) == {0: GroupPosition(1, "copied"), 1: GroupPosition(None, "")}


def test_of_two_producers_in_turn_the_later_offset_counts(copying: Copying) -> None:
    for n in range(1, 8):
        copying.write(b"%d" % n, n)
    assert copying.written() == [b"%d" % n for n in range(1, 8)]
    assert copying.committed() == 7


def test_a_plain_commit_after_a_transactions_counts(copying: Copying) -> None:
    copying.write(b"a", 1)
    copying.member.reader.commit([Offset(copying.source, 0, 2, "plain")])
    assert copying.member.reader.committed([0], 20.0) == {0: GroupPosition(2, "plain")}


def test_a_block_that_is_left_without_commit_leaves_nothing(copying: Copying) -> None:
    for _ in range(3):  # both of the pair
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
    copying.write(b"yes", 1)
    assert copying.written() == [b"yes"]


def test_so_does_one_that_is_left_by_an_error(copying: Copying) -> None:
    def fail() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    copying.write(b"yes", 1)
    assert copying.written() == [b"yes"]


def test_what_is_too_large_aborts(copying: Copying) -> None:
    def write() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            transaction.produce(copying.target, bytes(20_000_000), b"key", 0)
            transaction.commit({})

    with pytest.raises(TransactionAborted):
        write()
    copying.write(b"yes", 1)
    assert copying.written() == [b"yes"]


def test_a_topic_that_is_missing_may_yet_appear_and_so_nobody_knows(copying: Copying) -> None:
    def write() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            transaction.produce(copying.grounds.name("missing"), b"no", b"key", 0)
            transaction.commit({copying.group: [Offset(copying.source, 0, 9)]})

    with pytest.raises(TransactionUnknown):
        write()
    eventually(copying.grounds, copying.output.recover)
    assert copying.written() == []
    assert copying.committed() is None


def test_a_commit_may_go_on_beside_other_things(copying: Copying) -> None:
    with copying.output.begin() as transaction:
        transaction.produce(copying.target, b"a", b"key", 0)
        pending = transaction.commit_later({copying.group: [Offset(copying.source, 0, 1)]})
    copying.member.poll()
    pending.settle()
    assert (copying.written(), copying.committed()) == ([b"a"], 1)


def test_offsets_alone_are_a_transaction_and_so_is_nothing(copying: Copying) -> None:
    with copying.output.begin() as transaction:
        transaction.commit({copying.group: [Offset(copying.source, 0, 4)]})
    with copying.output.begin() as transaction:
        transaction.commit({})
    assert (copying.written(), copying.committed()) == ([], 4)


def test_who_was_fenced_by_name_commits_nothing_and_may_recover(copying: Copying) -> None:
    copying.write(b"before", 1)

    def be_fenced() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            copying.cluster.fence(copying.output.name)
            transaction.commit({copying.group: [Offset(copying.source, 0, 9)]})

    for _ in range(2):  # both of the pair
        with pytest.raises(TransactionUnknown):
            be_fenced()
    assert copying.committed() == 1
    eventually(copying.grounds, copying.output.recover)
    copying.write(b"after", 2)
    assert (copying.written(), copying.committed()) == ([b"before", b"after"], 2)


def test_fencing_ends_what_was_left_open_and_frees_its_readers(copying: Copying) -> None:
    dead = copying.another(copying.grounds.name("dead"))
    left_open = dead.begin()
    left_open.produce(copying.target, b"no", b"key", 0)
    eventually(copying.grounds, lambda: copying.cluster.watermarks(copying.target, [0])[0][1] == 1)
    assert copying.cluster.visible(copying.target, [0]) == {0: (0, 0)}
    copying.cluster.fence(dead.name)
    eventually(copying.grounds, lambda: copying.cluster.visible(copying.target, [0])[0][1] == 2)
    assert copying.written() == []


def test_under_a_new_name_nobody_is_hit_by_the_fencing_of_the_old_one(copying: Copying) -> None:
    old = copying.output.name
    left_open = copying.output.begin()
    left_open.produce(copying.target, b"no", b"key", 0)
    eventually(copying.grounds, lambda: copying.cluster.watermarks(copying.target, [0])[0][1] == 1)
    copying.output.take_new_name()
    assert copying.output.name != old
    eventually(copying.grounds, copying.output.recover)
    with copying.output.begin() as transaction:
        transaction.produce(copying.target, b"a", b"key", 0)
        copying.cluster.fence(old)
        transaction.commit({copying.group: [Offset(copying.source, 0, 1)]})
    assert (copying.written(), copying.committed()) == ([b"a"], 1)
    copying.output.take_new_name()
    assert len({old, f"{old}.2", copying.output.name}) == 3, "each name is new"


def test_a_name_that_nobody_had_can_be_fenced(copying: Copying) -> None:
    copying.cluster.fence(copying.grounds.name("nobody"))


def test_who_has_left_the_group_is_refused_though_its_ids_are_its_own(copying: Copying) -> None:
    other = Member(copying.grounds.group_reader(copying.source, copying.group))
    joined(copying.grounds, copying.member, other, partitions=PARTITIONS)

    def leave_and_commit() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            copying.member.reader.close()
            joined(copying.grounds, other, partitions=PARTITIONS)
            transaction.commit({copying.group: [Offset(copying.source, 0, 9)]})

    with pytest.raises(TransactionAborted):
        leave_and_commit()
    assert other.reader.committed([0], 20.0)[0].offset is None
    assert copying.written() == []


def test_so_is_who_has_missed_a_generation(copying: Copying) -> None:
    def miss_and_commit() -> None:
        with copying.output.begin() as transaction:
            transaction.produce(copying.target, b"no", b"key", 0)
            other = Member(copying.grounds.group_reader(copying.source, copying.group))
            joined(copying.grounds, copying.member, other, partitions=PARTITIONS)
            transaction.commit({copying.group: [Offset(copying.source, 0, 9)]})

    with pytest.raises(TransactionAborted):
        miss_and_commit()
    assert copying.committed() is None


def test_who_sends_no_offsets_is_not_looked_at(copying: Copying) -> None:
    """Why a batch of timers alone sends offsets all the same."""
    with copying.output.begin() as transaction:
        transaction.produce(copying.target, b"a", b"key", 0)
        copying.member.reader.close()
        transaction.commit({})
    assert copying.written() == [b"a"]


def test_who_names_no_member_is_not_looked_at_either(copying: Copying) -> None:
    """As a member whose session is over names itself, until it has been told so in a poll. So it must be fenced by its name."""
    stranger = copying.grounds.output(
        copying.grounds.name("stranger"), {copying.group: copying.grounds.group_reader(copying.source, copying.group)}
    )
    eventually(copying.grounds, stranger.recover)
    copying.write(b"a", 3, stranger)
    assert (copying.written(), copying.committed()) == ([b"a"], 3)


def test_topics_and_their_ends(copying: Copying) -> None:
    cluster, missing = copying.cluster, copying.grounds.name("missing")
    assert cluster.partition_count(copying.source) == PARTITIONS
    counts = cluster.partition_counts()
    assert (counts[copying.source], missing in counts) == (PARTITIONS, False)
    with pytest.raises(TopicMissing, match="missing"):
        cluster.partition_count(missing)
    copying.grounds.append(copying.source, 1, b"a", b"b", b"c")
    copying.grounds.delete_before(copying.source, 1, 1)
    assert cluster.watermarks(copying.source, [0, 1]) == cluster.visible(copying.source, [0, 1]) == {0: (0, 0), 1: (1, 3)}
