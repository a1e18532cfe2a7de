"""Percentiles are values that occurred."""

from __future__ import annotations

import pytest

from duewheel.core.percentile import percentile


@pytest.mark.parametrize("percent,value", [(0, 1), (50, 50), (99, 99), (99.1, 100), (100, 100)])
def test_a_percentile_is_the_nearest_rank(percent: float, value: int) -> None:
    assert percentile(range(1, 101), percent) == value


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.5], 1) == percentile([7.5], 99.9) == 7.5
