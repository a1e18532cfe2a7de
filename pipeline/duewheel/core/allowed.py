"""To which topics records may be delivered.

Whoever may write to the intake topic has a record put on any of these, with the rights of the processors. So what is allowed is theirs to
say, by patterns: `*` is any number of characters, `?` one, and `[ab]` one of these. Nothing is allowed where nothing is said. The topics
of the installation never are, whatever the patterns say: a dispatch that no step made would break the promise. Nor are those of Kafka,
which begin with two underscores.

    allowed = Allowed(("orders.*",), "duewheel")
    allowed("orders.late")        True
    allowed("duewheel.intake")    False, with any pattern

A pattern that can match nothing is a mistake, and refused: one with a comma, or one for the installation's own topics. All processors of an
installation should have the same patterns: a partition's owner decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from string import ascii_letters, digits
from typing import Final

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import TOPIC_CHARS_MAX

_LEGAL: Final = ascii_letters + digits + "._-"
# One or more stars, a class as `fnmatch` understands it, or a character.
_PARTS: Final = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)
_KAFKAS: Final = "__"


class Allowed:
    """Whether a topic may be delivered to.

    Args:
        patterns: of names of topics; any will do.
        prefix: of the installation, whose topics are refused.

    Raises:
        BadConfiguration: a pattern can match no topic that may be delivered to.
    """

    def __init__(self, patterns: Sequence[str], prefix: str) -> None:
        self._patterns = tuple(patterns)
        self._never = (f"{prefix}.", _KAFKAS)
        for pattern in patterns:
            if fault := self._fault(pattern):
                raise BadConfiguration(
                    f"the pattern {pattern!r} of topics to deliver to {fault}; * is any characters, ? one, [ab] one of these"
                )

    def __call__(self, topic: str) -> bool:
        return not topic.startswith(self._never) and any(fnmatchcase(topic, pattern) for pattern in self._patterns)

    def _fault(self, pattern: str) -> str:
        """Why a pattern can match nothing, as the rest of a sentence; nothing where it can."""
        parts = _PARTS.findall(pattern)
        fits = [_LEGAL if part[0] == "*" else "".join(c for c in _LEGAL if fnmatchcase(c, part)) for part in parts]
        if not parts or not all(fits):
            wrong = next((part for part, fit in zip(parts, fits, strict=True) if not fit), "")
            return f"has {wrong!r} where a topic's name has one of a-z A-Z 0-9 . _ -" if wrong else "is empty"
        length = sum(part[0] != "*" for part in parts)
        if length > TOPIC_CHARS_MAX:
            return f"matches names of {length} characters and more, at most {TOPIC_CHARS_MAX} are allowed"
        begins = _beginning(parts, fits)
        if begins.startswith(self._never):
            return "matches only topics of this installation or of Kafka itself, to which nothing may be delivered"
        if begins in (".", "..") and len(begins) == len(parts):
            return "is no name of a topic"
        return ""


def _beginning(parts: Sequence[str], fits: Sequence[str]) -> str:
    """What every name begins with that a pattern matches."""
    begins = ""
    for part, fit in zip(parts, fits, strict=True):
        if part[0] == "*" or len(fit) > 1:
            break
        begins += fit
    return begins
