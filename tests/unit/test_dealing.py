"""Dispatches are spread over partitions, and over the workers that share these."""

from __future__ import annotations

from collections import Counter
from math import gcd

import pytest

from duewheel.engine.dealing import RUN, Dealer, stride


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 6, 12, 16, 30, 31, 100, 256])
def test_every_partition_gets_its_share(partitions: int) -> None:
    dealer = Dealer(7)
    dealt = Counter(dealer.deal("q", partitions) for _ in range(3 * RUN * partitions))
    assert dealt == dict.fromkeys(range(partitions), 3 * RUN)
    assert gcd(stride(partitions), partitions) == 1


@pytest.mark.parametrize("partitions", [4, 12, 16, 30])
def test_jobs_that_come_one_by_one_reach_every_worker(partitions: int) -> None:
    """Each in a transaction of its own; a worker has neighbouring partitions, as a range assignment gives them."""
    dealer = Dealer(0)
    dealt = []
    for _ in range(12):
        dealer.next_transaction()
        dealt.append(dealer.deal("q", partitions))
    assert len(set(dealt)) == min(12, partitions)
    assert 4 <= sum(partition < partitions // 2 for partition in dealt) <= 8


def test_a_few_of_one_transaction_stay_together_and_many_do_not() -> None:
    dealer = Dealer(0)
    assert [dealer.deal("q", 16) for _ in range(RUN + 1)] == [0] * RUN + [stride(16)]
    dealer.next_transaction()
    assert dealer.deal("q", 16) == 2 * stride(16) % 16


def test_queues_are_dealt_apart() -> None:
    dealer = Dealer(0)
    dealt = set()
    for _ in range(16):
        dealer.next_transaction()
        dealt.add(dealer.deal("a", 16))
        dealer.deal("b", 16)
    assert dealt == set(range(16))
