"""Everything that is fuzzed.

Not here is what never comes from outside: what a worker and its child processes say to each other (pickles between two halves of one
program, over a socket that nobody else holds), and what the local store keeps (a cache; RocksDB's own checksums notice damage there).
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import Target
from tests.fuzz.targets import headers, history, intake, records, registry, screens, words

_ALL: Final = (*records.TARGETS, *intake.TARGETS, *registry.TARGETS, *headers.TARGETS, *words.TARGETS, *screens.TARGETS, *history.TARGETS)
TARGETS: Final[dict[str, Target]] = {target.name: target for target in _ALL}
