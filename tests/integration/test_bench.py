"""Each bench on a real broker, with few jobs: its figures are there and plausible, and it leaves nothing behind. Speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.bench.site import open_site
from duewheel.cli.bench import bench

pytestmark = pytest.mark.timeout(180)  # processes are started up to five times, on machines that may be busy


def measured(broker: KafkaConfig, folder: Path, *arguments: str) -> dict[str, Any]:
    """The object on the last line of a bench's output, after looking that topics and groups are gone."""
    before = on(broker)
    result = CliRunner().invoke(bench, [*arguments, "-b", broker.bootstrap_servers, "--folder", str(folder), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert on(broker) <= before
    assert list(folder.glob("bench-*/")) == []
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert found["bench"] == arguments[0]
    assert {"cores", "cpu", "load", "python", "librdkafka", "kafka"} <= found["machine"].keys()
    return found


def on(broker: KafkaConfig) -> set[str]:
    """Topics and groups of benches."""
    admin = AdminClient(broker.common())
    groups = admin.list_consumer_groups(request_timeout=10).result(15).valid
    names = [*admin.list_topics(timeout=10).topics, *(group.group_id for group in groups)]
    return {name for name in names if name.startswith("bench-")}


def test_path_is_compared_with_its_floor(broker: KafkaConfig, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "path", "--jobs", "3000", "--rounds", "2")
    assert found["path_per_s"] > 0
    assert found["floor_per_s"] > 0
    assert len(found["ratios"]) == len(found["paths_per_s"]) == len(found["floors_per_s"]) == 2
    assert min(found["ratios"]) <= found["ratio"] <= max(found["ratios"])
    assert found["definitions_bytes"] > found["settings"]["payload_bytes"]
    assert 1 <= found["batch_jobs"] <= 3_000


def test_lateness_counts_what_was_early_missing_or_double(broker: KafkaConfig, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "lateness", "--rate", "100", "--seconds", "2", "--partitions", "2")
    assert (found["early"], found["missing"], found["duplicates"]) == (0, 0, 0)
    assert 0 <= found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"]
    assert found["rate_per_s"] > 0


def test_end_to_end_sees_every_job_succeed(broker: KafkaConfig, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "end-to-end", "--jobs", "2000", "--partitions", "2")
    assert found["jobs_per_s"] == pytest.approx(2_000 / found["seconds"], rel=0.01)
    assert found["processor_cpu_us"] > 0
    assert found["worker_cpu_us"] > 0


def test_crons_that_fall_on_one_moment_run_once_each(broker: KafkaConfig, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "crons", "--jobs", "500", "--partitions", "2")
    assert (found["early"], found["missing"], found["duplicates"]) == (0, 0, 0)
    assert 0 <= found["late_p50_ms"] <= found["late_p99_ms"] <= found["late_max_ms"]
    assert found["probes"] >= 2
    assert 0 < found["intake_p50_ms"] <= found["intake_max_ms"]
    assert 0 < found["cancel_p50_ms"] <= found["cancel_max_ms"]


def test_pending_restores_what_was_loaded(broker: KafkaConfig, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "pending", "--jobs", "5000", "--partitions", "2", "--payload-bytes", "50")
    assert 20 < found["rss_mb"] < 1_000
    assert found["bytes_per_job_disk"] > 50
    assert found["restore_s"] > found["assigned_s"] > 0
    assert found["restore_per_s"] > 0


def test_a_bench_that_fails_leaves_nothing_behind(broker: KafkaConfig, tmp_path: Path) -> None:
    before = on(broker)
    with pytest.raises(ZeroDivisionError), open_site(broker.bootstrap_servers, {}, tmp_path) as place:  # noqa: PT012
        fleet = place.fleet(place.install(partitions=1))
        processor = fleet.start_processor("processor")
        assert not on(broker) <= before
        raise ZeroDivisionError
    assert not processor.running
    assert on(broker) <= before
    assert list(tmp_path.glob("bench-*/")) == []
