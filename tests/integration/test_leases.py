"""Runs that are watched by their leases, through the whole chain: who is given up, and who must not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from duewheel import Job
from duewheel.core.limits import LEASE_MARGIN_MS
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Fleet
from tests.conftest import Installation
from tests.integration.attempt_site import END_S, SESSION_TIMEOUT_S, AttemptSite, all_in, names
from tests.integration.desk import Desk, now_ms

LEASE_MS: Final = 2_000 + LEASE_MARGIN_MS  # of the task "beats"


@pytest.fixture
def site(installation: Installation, desk: Desk, tmp_path: Path) -> Iterator[AttemptSite]:
    folder = tmp_path / "site"
    folder.mkdir()
    with RunFolder.take(tmp_path, "fleet") as run, Fleet(installation.kafka, installation.topology, run) as fleet:
        yield AttemptSite(fleet, desk, folder)


def test_what_a_worker_handed_over_comes_back_by_its_lease_when_the_worker_dies(site: AttemptSite) -> None:
    first = site.worker("first", concurrency=40)
    site.await_ready()
    jobs = names("job", 40)
    with site.client() as client:
        client.schedule_many(Job("beats", "first", job_id=job_id) for job_id in jobs)
    site.await_phases(all_in("RUNNING", jobs))
    site.worker("second", concurrency=40)
    site.await_ready()
    [handed_over] = [line["still_running"] for line in first.logged("worker.revoked")]
    assert handed_over > 0
    token = {e.job_id: e.token for e in site.executions()}

    first.kill()
    killed_ms = now_ms()
    site.await_phases(all_in("SUCCEEDED", jobs))
    again = site.executions()[40:]
    assert {(e.worker, e.attempt, e.token > token[e.job_id]) for e in again} == {("second", 2, True)}
    assert sorted(e.job_id for e in again) == jobs
    assert max(e.at_ms for e in again) - killed_ms < max(LEASE_MS, SESSION_TIMEOUT_S * 1000) + 5_000
    endings = [ending for end in site.ends().values() if end["trail"] for ending in end["trail"]["endings"]]
    assert len(endings) == 40
    # What was still claimed is returned, or its lease is over before that; what was handed over nobody can return.
    how = Counter(ending["result"] for ending in endings)
    assert how["LEASE_EXPIRED"] >= handed_over
    assert how["LEASE_EXPIRED"] + how["LOST"] == 40
    assert {(end["attempt"], end["crashes"]) for end in site.ends().values()} == {(2, 1)}


@pytest.mark.parametrize("how", ["stopped", "stalled"])
def test_an_owner_that_was_away_gives_nobody_up_who_finished_meanwhile(site: AttemptSite, how: str) -> None:
    site.worker("worker", concurrency=40)
    site.await_ready()
    jobs = names("job", 40)
    with site.client() as client:
        client.schedule_many(Job("beats", "worker", job_id=job_id) for job_id in jobs)
    site.await_phases(all_in("RUNNING", jobs))
    if how == "stopped":
        site.processor.stop()
    else:
        site.processor.pause()
    site.allow("go")
    site.await_that(lambda: Counter(o["result"] for o in site.outcomes())["SUCCEEDED"] == 40, "all have said that they are done")
    over_ms = max(o["finished_ms"] + o["lease_ms"] for o in site.outcomes())
    site.await_that(lambda: now_ms() > over_ms, "all leases are over")
    assert set(site.phases().values()) == {"RUNNING"}
    if how == "stopped":
        site.processor.start()
    else:
        site.processor.resume()
    site.await_phases(all_in("SUCCEEDED", jobs))
    assert {(end["attempt"], end["crashes"]) for end in site.ends().values()} == {(1, 0)}
    assert Counter(d["job_id"] for d in site.dispatches()) == dict.fromkeys(jobs, 1)


def test_a_self_beating_handler_that_hangs_has_a_second_attempt(site: AttemptSite) -> None:
    site.worker("worker", concurrency=1)
    site.await_ready()
    with site.client() as client:
        end = client.schedule("hangs", job_id="hangs").wait(END_S)
    assert (end.phase, end.attempts) == ("SUCCEEDED", 2)
    assert [ending["type"] for ending in end.endings] == ["duewheel.HeartbeatTimeout"]
    first, second = site.executions()
    assert second.token > first.token
    assert 1_000 <= second.at_ms - first.at_ms < 5_000
    site.allow("go")
