"""Processors as child processes, on a real broker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.core.errors import EnvironmentFailure
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Child, ChildDied, Fleet
from tests.conftest import Installation

READY_S = 30


@pytest.fixture
def fleet(installation: Installation, tmp_path: Path) -> Iterator[Fleet]:
    with RunFolder.take(tmp_path, "fleet") as run, Fleet(installation.kafka, installation.topology, run) as fleet:
        yield fleet


def _await_active(fleet: Fleet, child: Child, partitions: int) -> None:
    fleet.await_that(lambda: len(child.logged("processor.active")) >= partitions, READY_S, f"{child.name} has {partitions} partitions")


def test_a_killed_processor_is_no_accident_and_another_takes_over(fleet: Fleet, installation: Installation) -> None:
    first = fleet.start_processor("first")
    _await_active(fleet, first, 4)
    held = KafkaCluster(installation.kafka).members(installation.topology.processor_group)
    assert held == {"first": frozenset({0, 1, 2, 3})}

    first.kill()
    assert first.exit_code == 128 + signal.SIGKILL
    fleet.check()
    second = fleet.start_processor("second")
    _await_active(fleet, second, 4)


def test_a_processor_stops_in_good_order_and_starts_again(fleet: Fleet) -> None:
    child = fleet.start_processor("one")
    _await_active(fleet, child, 4)
    fleet.stop()
    assert child.exit_code == 0
    assert child.logged("processor.stopped")
    fleet.check()

    child.start()
    _await_active(fleet, child, 8)


def test_a_child_that_ends_by_itself_is_reported_with_its_log(fleet: Fleet) -> None:
    fleet.start_processor("wrong", "--no-such-option")
    with pytest.raises(ChildDied, match=r"wrong ended by itself with exit code 2(.|\n)*No such option"):
        fleet.await_that(lambda: False, READY_S, "it runs")


def test_a_condition_that_never_comes_true_is_an_error_with_the_logs(fleet: Fleet) -> None:
    child = fleet.start_processor("one")
    _await_active(fleet, child, 4)
    with pytest.raises(EnvironmentFailure, match=r"after 0.2 s it is still not so that pigs fly(.|\n)*processor.active"):
        fleet.await_that(lambda: False, 0.2, "pigs fly")


def test_a_paused_processor_loses_its_partitions_and_goes_on_when_resumed(fleet: Fleet, installation: Installation) -> None:
    cluster, group = KafkaCluster(installation.kafka), installation.topology.processor_group
    paused = fleet.start_processor("paused")
    _await_active(fleet, paused, 4)
    other = fleet.start_processor("other")
    _await_active(fleet, other, 2)
    paused.pause()
    fleet.await_that(lambda: cluster.members(group) == {"other": frozenset({0, 1, 2, 3})}, READY_S, "the other has everything")
    paused.resume()
    fleet.await_that(lambda: len(cluster.members(group).get("paused", ())) == 2, READY_S, "both have two again")
