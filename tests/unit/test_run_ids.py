"""The names of runs, and where they lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.adapters.kafka.partitioner import partition_of as partition_fast
from duewheel.core.limits import DUE_MS_MAX, DUE_MS_MIN, JOB_ID_BYTES_MAX
from duewheel.core.run_ids import SUFFIX_BYTES, RunId, home, parse, run_id
from duewheel.core.topology import partition_of

SLOT_MS = 1_764_600_000_000

job_ids = st.text("ab@7é🙂-", min_size=1, max_size=40)
slots_ms = st.integers(DUE_MS_MIN, DUE_MS_MAX)


@given(job_ids, slots_ms, st.integers(1, 64))
def test_a_run_lies_where_its_recurring_job_lies(job_id: str, slot_ms: int, partitions: int) -> None:
    run, job = run_id(job_id, slot_ms).encode(), job_id.encode()
    assert (len(run), home(run)) == (len(job) + SUFFIX_BYTES, job)
    if parse(job_id) is None:  # nobody can schedule a job under such an id
        assert partition_of(run, partitions) == partition_of(job, partitions) == partition_fast(run, partitions)


@given(job_ids, slots_ms)
def test_a_run_is_known_by_its_id(job_id: str, slot_ms: int) -> None:
    assert parse(run_id(job_id, slot_ms)) == RunId(job_id, slot_ms)


@pytest.mark.parametrize(
    "job_id",
    [
        "", "@", "a", "a@", f"@{SLOT_MS}", f"a{SLOT_MS}", f"a@{SLOT_MS}0", f"a@{SLOT_MS // 10}", f"a@-{SLOT_MS // 10}", f"a@{SLOT_MS} ",
        "a@176460000000x", "a@١٧٦٤٦٠٠٠٠٠٠٠٠", "ada@example.com", f"a#{SLOT_MS}", f"a@ {SLOT_MS // 10}",
    ],
)  # fmt: skip
def test_no_other_id_is_of_that_form(job_id: str) -> None:
    assert parse(job_id) is None
    assert home(job_id.encode()) == job_id.encode()


@given(st.one_of(st.text(max_size=20), st.text("a@0123456789", max_size=20)))
def test_text_and_bytes_agree(job_id: str) -> None:
    run = parse(job_id)
    assert home(job_id.encode("utf-8", "surrogatepass")) == (job_id if run is None else run.job_id).encode("utf-8", "surrogatepass")


def test_the_longest_id_of_a_recurring_job_leaves_room_for_its_runs() -> None:
    assert len(run_id("a" * (JOB_ID_BYTES_MAX - SUFFIX_BYTES), SLOT_MS)) == JOB_ID_BYTES_MAX
