"""Topic declarations, and the comparison with what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from duewheel.adapters.kafka.topics import Actual, Alter, Create, Declared, Notice, Refusal, declare, plan, refuse
from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.topology import Topology
from duewheel.engine.partition import REDISPATCH_AFTER_MS, STORE_AGE_MS_MAX

TOPOLOGY = Topology("d")


def declared(*, brokers: int = 3, replication: int | None = None, queues: Mapping[str, int] | None = None) -> dict[str, Declared]:
    topics = declare(TOPOLOGY, queues or {"default": 2}, 4, replication, brokers)
    return {wanted.topic: wanted for wanted in topics}


def as_declared(wanted: Declared) -> Actual:
    return Actual(wanted.partitions, wanted.replication, {**wanted.config, "compression.type": "producer"})


def test_every_topic_of_the_topology_is_declared() -> None:
    topics = declared(queues={"mail": 2, "reports": 8})
    expected = {
        TOPOLOGY.intake,
        TOPOLOGY.state,
        TOPOLOGY.outcomes,
        TOPOLOGY.dead_letter,
        TOPOLOGY.control,
        TOPOLOGY.dispatch("mail"),
        TOPOLOGY.dispatch("reports"),
    }
    assert set(topics) == expected
    assert {topics[name].partitions for name in (TOPOLOGY.intake, TOPOLOGY.state, TOPOLOGY.outcomes)} == {4}
    assert topics[TOPOLOGY.dispatch("mail")].partitions == 2
    assert topics[TOPOLOGY.dispatch("reports")].partitions == 8


def test_sizes_follow_the_limits() -> None:
    for wanted in declared().values():
        limit = DEAD_LETTER_BYTES_MAX if wanted.topic == TOPOLOGY.dead_letter else RECORD_BYTES_MAX
        assert wanted.config["max.message.bytes"] == str(limit), f"topics/topics.toml: max.message.bytes of {wanted.topic}"


def test_only_the_state_topic_is_compacted_and_nothing_else_ends_before_its_time() -> None:
    for wanted in declared().values():
        if wanted.topic == TOPOLOGY.state:
            assert wanted.config["cleanup.policy"] == "compact"
        else:
            assert wanted.config["cleanup.policy"] == "delete"
            assert wanted.config["retention.bytes"] == "-1"
        assert wanted.config["message.timestamp.type"] == "LogAppendTime"


def test_times_that_the_processor_relies_on() -> None:
    topics = declared()
    assert int(topics[TOPOLOGY.state].config["delete.retention.ms"]) > STORE_AGE_MS_MAX
    assert int(topics[TOPOLOGY.dispatch("default")].config["retention.ms"]) > REDISPATCH_AFTER_MS
    assert int(topics[TOPOLOGY.control].config["retention.ms"]) >= int(topics[TOPOLOGY.dispatch("default")].config["retention.ms"])


@pytest.mark.parametrize("brokers,replication,insync", [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (7, 3, "2")])
def test_replication_follows_the_number_of_brokers(brokers: int, replication: int, insync: str) -> None:
    for wanted in declared(brokers=brokers).values():
        assert (wanted.replication, wanted.config["min.insync.replicas"]) == (replication, insync)


@pytest.mark.parametrize("replication", [0, 4])
def test_impossible_replication_is_refused_with_what_is_possible(replication: int) -> None:
    with pytest.raises(BadConfiguration, match=f"replication is {replication}; this cluster has 3 brokers: 1 to 3 can be had"):
        declared(replication=replication)


def test_missing_topics_are_created() -> None:
    topics = declared()
    assert plan(topics.values(), {}) == [Create(wanted) for wanted in topics.values()]


def test_nothing_to_do_when_all_is_as_declared() -> None:
    topics = declared()
    assert plan(topics.values(), {name: as_declared(wanted) for name, wanted in topics.items()}) == []


def test_every_setting_that_differs_is_altered() -> None:
    topics = declared()
    actual = {name: as_declared(wanted) for name, wanted in topics.items()}
    name = TOPOLOGY.intake
    actual[name] = replace(actual[name], config={**actual[name].config, "retention.ms": "60000", "segment.ms": "7"})
    assert plan(topics.values(), actual) == [
        Alter(name, "retention.ms", "60000", "604800000"),
        Alter(name, "segment.ms", "7", "86400000"),
    ]


def test_a_number_written_otherwise_is_no_drift() -> None:
    topics = declared()
    actual = {name: as_declared(wanted) for name, wanted in topics.items()}
    state = actual[TOPOLOGY.state]
    actual[TOPOLOGY.state] = replace(state, config={**state.config, "min.cleanable.dirty.ratio": "0.30"})
    assert plan(topics.values(), actual) == []


def test_another_partition_count_is_refused_with_the_reason_and_the_remedy() -> None:
    wanted = declared()[TOPOLOGY.state]
    (change,) = plan([wanted], {wanted.topic: replace(as_declared(wanted), partitions=5)})
    assert change == Refusal("d.state", actual=5, declared=4)
    with pytest.raises(BadConfiguration) as refused:
        refuse([change])
    for part in ("d.state has 5 partitions", "4 are declared", "murmur2(job id) % count", "Declare what there is", "--prefix"):
        assert part in str(refused.value)


def test_fewer_replicas_are_noticed_and_never_need_more_in_sync_than_exist() -> None:
    wanted = declared(brokers=3)[TOPOLOGY.intake]
    single = replace(as_declared(wanted), replication=1, config={**wanted.config, "min.insync.replicas": "1"})
    assert plan([wanted], {wanted.topic: single}) == [Notice("d.intake", actual=1, declared=3)]
