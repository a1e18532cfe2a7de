"""Names of topics, and how to make them."""

from __future__ import annotations

import pytest

from duewheel.core.topology import Topology, making


@pytest.mark.parametrize(
    "topic, command",
    [
        (Topology().intake, "duewheel topics apply"),
        (Topology().dispatch("default"), "duewheel topics apply"),
        (Topology().dispatch("critical"), "duewheel topics apply --queue critical"),
        (Topology("shop.eu").dead_letter, "duewheel topics apply --prefix shop.eu"),
        (Topology("shop").dispatch("mail.fast"), "duewheel topics apply --prefix shop --queue mail.fast"),
    ],
)
def test_who_misses_a_topic_is_told_the_command_that_makes_it(topic: str, command: str) -> None:
    assert making(topic) == command
