"""A consumer group at its coordinator: members, generations, rebalances, and committed offsets with their metadata.

    STABLE ──somebody comes, leaves, is silent, asks──► PREPARING ──all have joined──► COMPLETING ──assigned──► STABLE
                                                        (each at a heartbeat)        generation + 1

Rebalances are cooperative: members keep what they hold while one goes on, a partition that is to move is first revoked, and given to
another only in the next one. As in Kafka, what a member commits is checked by its id and generation, never by what it holds; a
transaction that names neither is not checked at all; and plain commits are refused while an assignment is being made.

Offsets of open transactions are pending. Who asks for stable offsets is told to wait for them; when one is committed after all, the later
of two offsets counts, in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from duewheel.adapters.memory.world import Fault, Kind, Process, World
from duewheel.ports import GroupPosition, Offset

SESSION_TIMEOUT_US: Final = 6_000_000
REBALANCE_TIMEOUT_US: Final = 60_000_000
_LOOK_EVERY_US: Final = 500_000
_METADATA_CHARS_MAX: Final = 4_095  # offset.metadata.max.bytes is 4,096, and brokers refuse what has as many

NOBODY: Final = ("", -1)
"""The id and generation of somebody who is no member, or is not one any more and has not joined anew."""


class Standing(Enum):
    """Where a group stands."""

    EMPTY = "empty"
    STABLE = "stable"
    PREPARING = "preparing"
    COMPLETING = "completing"


class Client(Protocol):
    """A member's end of the line."""

    process: Process

    def holds(self) -> Sequence[int]:
        """The partitions that it holds."""

    def joined(self, generation: int) -> None:
        """The group has a new generation."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """These are what it is to hold from now on."""


class Member:
    """A member as the group knows it."""

    def __init__(self, member_id: str, client: Client, now_us: int) -> None:
        self.id = member_id
        self.client = client
        self.seen_us = now_us
        self.has_joined = False
        self.joined_generation: int | None = None  # to be told at the next heartbeat, where it could not be reached
        self.assignment: list[int] | None = None  # the same


class Group:
    """One group, which reads one topic.

    Attributes:
        generation: counts assignments.
        members: by id, in order of joining.
        offsets: what is committed, by topic and partition.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.standing = Standing.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.partitions = 0
        self.offsets: dict[tuple[str, int], GroupPosition] = {}
        self._order: dict[tuple[str, int], int] = {}  # when what is committed was sent
        self._pending: dict[str, dict[tuple[str, int], tuple[int, GroupPosition]]] = {}
        self._sent = 0
        self._joins = 0
        self._prepared_us = 0
        self._looking = False

    # --- membership ---

    def join(self, client: Client, partitions: int) -> str:
        """Takes a member in; returns its id. It takes part from the next generation on."""
        self.partitions = partitions
        self._joins += 1
        member = Member(f"{client.process.name}#{self._joins}", client, self._world.now_us)
        self.members[member.id] = member
        self.rebalance()
        member.has_joined = True
        self._advance()
        if not self._looking:
            self._looking = True
            self._world.later(_LOOK_EVERY_US, self._look)
        return member.id

    def leave(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self.rebalance()
            self._advance()

    def heartbeat(self, member_id: str, generation: int, can_join: bool) -> bool:
        """A sign of life; joins a rebalance that is being prepared. False: the member is none (any more)."""
        member = self.members.get(member_id)
        if member is None:
            return False
        member.seen_us = self._world.now_us
        if member.joined_generation is not None:
            member.joined_generation = None
            member.client.joined(self.generation)
        if member.assignment is not None:
            partitions, member.assignment = member.assignment, None
            member.client.assigned(partitions)
        elif self.standing is Standing.PREPARING and can_join and not member.has_joined:
            member.has_joined = True
            self._advance()
        return True

    def rebalance(self) -> None:
        """Somebody came, left, or asks for it."""
        if self.standing is not Standing.PREPARING:
            self.standing = Standing.PREPARING
            self._prepared_us = self._world.now_us
            for member in self.members.values():
                member.has_joined = False

    def rejoin(self, member_id: str) -> None:
        """A member has let go of what it had to, and asks for the next round."""
        member = self.members.get(member_id)
        if member is not None:
            self.rebalance()
            member.has_joined = True
            self._advance()

    def _look(self) -> None:
        """Gives up those that were silent for too long."""
        now_us = self._world.now_us
        late = self.standing is Standing.PREPARING and now_us - self._prepared_us > REBALANCE_TIMEOUT_US
        for member in list(self.members.values()):
            if now_us - member.seen_us > SESSION_TIMEOUT_US or (late and not member.has_joined):
                self.leave(member.id)
        self._looking = bool(self.members)
        if self._looking:
            self._world.later(_LOOK_EVERY_US, self._look)
        else:
            self.standing = Standing.EMPTY

    def _advance(self) -> None:
        if self.standing is not Standing.PREPARING or not self.members:
            return
        if all(member.has_joined for member in self.members.values()):
            self.standing = Standing.COMPLETING
            self.generation += 1
            if self._world.observer is not None:
                self._world.observer.generation_formed(self.name, self.generation)
            for member in self.members.values():
                self._tell_joined(member)
            generation = self.generation
            self._world.soon("assignment", lambda: self._assign(generation))

    def _tell_joined(self, member: Member) -> None:
        member.assignment = None
        if member.client.process.reachable:
            member.joined_generation = None
            member.client.joined(self.generation)
        else:
            member.joined_generation = self.generation

    def _assign(self, generation: int) -> None:
        if self.standing is not Standing.COMPLETING or generation != self.generation:
            return
        self.standing = Standing.STABLE
        for member_id, partitions in self._shares().items():
            member = self.members[member_id]
            if member.client.process.reachable:
                member.client.assigned(partitions)
            else:
                member.assignment = partitions

    def _shares(self) -> dict[str, list[int]]:
        """Evenly many for each; whoever holds some keeps them, up to that; what another must let go of first is given to nobody."""
        members = self._world.hook.order(list(self.members.values()))
        least, more = divmod(self.partitions, len(members))
        held = {m.id: list(m.client.holds()) for m in members}
        # Those that hold most get the larger shares, so that little moves.
        members.sort(key=lambda m: -len(held[m.id]))
        quota = {m.id: least + (at < more) for at, m in enumerate(members)}
        shares = {m.id: held[m.id][: quota[m.id]] for m in members}
        taken = {p for partitions in held.values() for p in partitions}
        free = [p for p in range(self.partitions) if p not in taken]
        for member in members:
            while free and len(shares[member.id]) < quota[member.id]:
                shares[member.id].append(free.pop(0))
        return shares

    # --- offsets ---

    def commit(self, member: tuple[str, int], offsets: Sequence[Offset], transactional_id: str | None = None) -> None:
        """Commits offsets, or lets them wait for the end of a transaction.

        Args:
            member: id and generation.

        Raises:
            Fault: abort required (for a plain commit: refused).
        """
        self._check(member, transactional_id is not None)
        for topic, partition, offset, metadata in offsets:
            if len(metadata) > _METADATA_CHARS_MAX:
                raise Fault(Kind.ABORT, f"OFFSET_METADATA_TOO_LARGE: {len(metadata)} of {_METADATA_CHARS_MAX}")
            self._sent += 1
            where, position = (topic, partition), GroupPosition(offset, metadata)
            if transactional_id is None:
                self._commit(where, position, self._sent)
            else:
                self._pending.setdefault(transactional_id, {})[where] = self._sent, position

    def settle(self, transactional_id: str, commit: bool) -> None:
        """The transaction has ended, and its marker has come."""
        for where, (sent, position) in self._pending.pop(transactional_id, {}).items():
            if commit and sent > self._order.get(where, 0):
                self._commit(where, position, sent)

    def _commit(self, where: tuple[str, int], position: GroupPosition, sent: int) -> None:
        self.offsets[where], self._order[where] = position, sent
        if self._world.observer is not None:
            self._world.observer.offset_committed(self.name, *where, position.offset or 0)

    def committed(self, topic: str, partitions: Sequence[int], stable: bool) -> dict[int, GroupPosition]:
        """What is committed.

        Args:
            stable: not before open transactions that want to commit offsets of these have ended.

        Raises:
            Fault: retriable, as long as `stable` cannot be had.
        """
        wheres = {p: (topic, p) for p in partitions}
        if stable and any(where in pending for pending in self._pending.values() for where in wheres.values()):
            raise Fault(Kind.RETRIABLE, f"UNSTABLE_OFFSET_COMMIT: transactions of group {self.name} are open")
        nothing = GroupPosition(None, "")
        return {p: self.offsets.get(where, nothing) for p, where in wheres.items()}

    def forget(self, topic: str) -> None:
        """The topic was deleted: nothing is committed of it any more, nor pending."""
        for where in [where for where in self.offsets if where[0] == topic]:
            del self.offsets[where], self._order[where]
        for pending in self._pending.values():
            for where in [where for where in pending if where[0] == topic]:
                del pending[where]

    def _check(self, of: tuple[str, int], transactional: bool) -> None:
        member_id, generation = of
        if generation < 0 and self.standing is Standing.EMPTY:
            return
        if generation >= 0 or member_id:
            member = self.members.get(member_id)
            if member is None:
                raise Fault(Kind.ABORT, f"UNKNOWN_MEMBER_ID: {member_id} is no member of {self.name}")
            if generation != self.generation:
                raise Fault(Kind.ABORT, f"ILLEGAL_GENERATION: {generation} of {self.name}, which is at {self.generation}")
            member.seen_us = self._world.now_us
        elif not transactional:
            raise Fault(Kind.ABORT, f"UNKNOWN_MEMBER_ID: {self.name} has members, and takes commits from them alone")
        if not transactional and self.standing is Standing.COMPLETING:
            raise Fault(Kind.ABORT, f"REBALANCE_IN_PROGRESS: {self.name} is being assigned")
