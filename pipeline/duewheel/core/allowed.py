"""To which topics records may be delivered.

Whoever may write to the intake topic has a record put on any of these, with the rights of the processors. So what is allowed is theirs to
say, by patterns: `*` is any number of characters, `?` one, and `[ab]` one of these. Nothing is allowed where nothing is said. The topics
of the installation never are, whatever the patterns say: a dispatch that no step made would break the promise. Nor are those of Kafka,
which begin with two underscores.

    allowed = Allowed(("orders.*",), "duewheel")
    allowed("orders.late")        True
    allowed("duewheel.intake")    False, with any pattern

All processors of an installation should have the same patterns: a partition's owner decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from duewheel.core.errors import BadConfiguration
from duewheel.core.topology import topic_fault

_WILD: Final = str.maketrans("*?[]!", "xxxxx")


class Allowed:
    """Whether a topic may be delivered to.

    Args:
        patterns: of names of topics; any will do.
        prefix: of the installation, whose topics are refused.

    Raises:
        BadConfiguration: a pattern can match no topic.
    """

    def __init__(self, patterns: Sequence[str], prefix: str) -> None:
        for pattern in patterns:
            fault = topic_fault(pattern.translate(_WILD))
            if fault is not None:
                raise BadConfiguration(
                    f"the pattern {pattern!r} of topics to deliver to {fault}; * is any characters, ? one, [ab] one of these"
                )
        self._patterns = tuple(patterns)
        self._internal = f"{prefix}."

    def __call__(self, topic: str) -> bool:
        if topic.startswith((self._internal, "__")):
            return False
        return any(fnmatchcase(topic, pattern) for pattern in self._patterns)
