"""What was found once stays found: each input of the corpus meets its target again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.corpus import Find, finds
from tests.fuzz.hunt import Hunter
from tests.fuzz.targets import TARGETS

FINDS = finds()


@pytest.fixture(scope="module")
def hunter() -> Iterator[Hunter]:
    with Hunter() as hunter:
        yield hunter


@pytest.mark.parametrize("target, find", FINDS, ids=[f"{target}-{find.path.stem}" for target, find in FINDS])
def test_a_find_is_mended(hunter: Hunter, target: str, find: Find) -> None:
    assert target in TARGETS, f"{find.path} belongs to no target: move it to the folder of one, or remove it"
    assert find.inputs, f"{find.path} has no input"
    problems = hunter.problems(target, find.inputs)
    assert not problems, "\n".join(f"{sign}\n{detail}" for sign, detail in problems)
