"""What an invariant is, and what it says where it was broken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from duewheel.proof.history import Event
from duewheel.proof.ledger import Ledger


class Violation(NamedTuple):
    """Where a promise was broken.

    Attributes:
        invariant: the name of the promise's class.
        job_id: which job's; None where it is no job's.
        sentence: what happened that must not, or did not that must.
        events: the events that show it, as far as there are any.
    """

    invariant: str
    job_id: str | None
    sentence: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.invariant}: {self.sentence}"


class Invariant(ABC):
    """Something that holds in every history of a faithful system, whatever is done to it."""

    title: ClassVar[str]
    """What a broken one is called in a table: "lost", "early"."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def check(self, ledger: Ledger) -> list[Violation]:
        """Where it was broken. One fault of the system may break it at several places."""

    def broken(self, job_id: str | None, sentence: str, *events: Event | None) -> Violation:
        """A violation of this invariant; events that are not there are left out."""
        return Violation(self.name, job_id, sentence, tuple(event for event in events if event is not None))
