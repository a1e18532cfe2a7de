"""`duewheel topics`: its options."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from duewheel.cli.topics import topics


@pytest.mark.parametrize("queue", ["", "a b", "mail:", "mail:0", "mail:10001", "mail:x", "ü", "q" * 101])
def test_a_queue_that_cannot_be_is_refused_with_the_value_and_what_is_allowed(queue: str) -> None:
    result = CliRunner().invoke(topics, ["plan", "--queue", queue])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert repr(queue)[:40] in said
    assert "NAME:PARTITIONS" in said


@pytest.mark.parametrize("arguments", [["--partitions", "0"], ["--replication", "0"], ["--timeout", "0"]])
def test_sizes_out_of_range_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(topics, ["apply", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output
