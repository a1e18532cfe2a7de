"""`duewheel verify` and `duewheel state` on a real broker: a faithful installation agrees, and each kind of damage is found."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rocksdict import Options, Rdict

from duewheel import wiring
from duewheel.adapters.avro import codec
from duewheel.adapters.avro.schemas import CURRENT
from duewheel.adapters.kafka.scan import Scan
from duewheel.cli.main import cli
from duewheel.core.errors import BadConfiguration, Reason, RegistryUnavailable
from duewheel.core.model import Dispatch
from duewheel.core.wheel import timer_key
from duewheel.engine.processor import Processor
from tests.integration.desk import (
    DAY_MS,
    PARTITIONS,
    TIMEOUT_S,
    Desk,
    Raw,
    home,
    is_active,
    job_ids,
    now_ms,
    raw_cancel,
    raw_outcome,
    raw_schedule,
)
from tests.registry import FakeRegistry, framed

HOUR_MS = 3_600_000


def invoked(desk: Desk, *arguments: str) -> Result:
    """A command as somebody calls it."""
    command, *rest = arguments
    where = ["-b", desk.kafka.bootstrap_servers, "--prefix", desk.topology.prefix, "--timeout", f"{TIMEOUT_S:.0f}s"]
    result = CliRunner().invoke(cli, [command, *where, *rest])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def verified(desk: Desk, *arguments: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The differences, and the partitions' reports, of a verification with all stores of processor a."""
    state_dir = ["--state-dir", str(desk.folder / "a")] if (desk.folder / "a").exists() else []
    result = invoked(desk, "verify", "--json", *state_dir, *arguments)
    told = [json.loads(line) for line in result.stdout.splitlines()]
    differences, reports = ([entry for entry in told if entry["type"] == kind] for kind in ("difference", "partition"))
    [verdict] = [entry for entry in told if entry["type"] == "verdict"]
    assert (verdict["differences"], verdict["agrees"]) == (len(differences), not differences)
    assert result.exit_code == (1 if differences else 0), result.output
    return differences, reports


def found(desk: Desk, *arguments: str) -> list[tuple[str, str | None]]:
    """The kind and the job of each difference."""
    return sorted(((entry["kind"], entry["job_id"]) for entry in verified(desk, *arguments)[0]), key=str)


def of(desk: Desk, job_id: str) -> Dispatch:
    """The latest dispatch of a job."""
    return [d for d in desk.dispatches() if d["job_id"] == job_id][-1]


def lead_lives(desk: Desk, processor: Processor) -> None:
    """Jobs of every fate: done, failed and dead, redriven, retried, cancelled in time and too late, refused, waiting, replaced, running,
    expired and forgotten."""
    fates = ["done", "failed", "redriven", "retried", "cancelled-late", "running", "discarded", "gone", "lost"]
    desk.publish([raw_schedule(job_id, now_ms()) for job_id in fates if job_id != "gone"])
    desk.publish([raw_schedule("gone", now_ms(), retention_ms=0)])
    desk.publish([raw_schedule(job_id, now_ms() + HOUR_MS) for job_id in ("waits", "cancelled", "replaced")])
    desk.publish([raw_schedule("refused", now_ms(), queue="nobody-made-this"), Raw(b"junk", b"junk"), Raw(None, b"no key", 0)])
    limits = {"expires_ms": now_ms() - 1, "total_timeout_ms": 0, "crashes_max": 0}
    desk.publish([raw_schedule("expired", now_ms() - 10, limits=limits, created_ms=now_ms() - 20)])
    astray = raw_schedule("astray", now_ms() + HOUR_MS, partition=(home("astray") + 1) % PARTITIONS)
    desk.publish([astray, raw_schedule("replaced", now_ms() + 2 * HOUR_MS, on_conflict="REPLACE")])
    desk.cancel("cancelled")
    desk.drive(processor, until=lambda: len(desk.dispatches()) == len(fates) and len(desk.dead_letters()) == 3)
    desk.answer([of(desk, "done"), of(desk, "gone")])
    desk.answer([of(desk, "failed"), of(desk, "redriven")], "FAILED")
    desk.answer([of(desk, "retried")], "RETRY", retry_after_ms=HOUR_MS)
    desk.answer([of(desk, "running"), of(desk, "cancelled-late")], "STARTED", lease_ms=HOUR_MS)
    desk.answer([of(desk, "discarded")], "DISCARDED")
    desk.answer([of(desk, "lost")], "LOST")
    desk.drive(processor, until=lambda: len(desk.dispatches()) == len(fates) + 1 and len(desk.dead_runs()) == 2)
    desk.cancel("cancelled-late")
    redrive: Any = {"job_id": "redriven", "token": of(desk, "redriven")["token"], "created_ms": now_ms()}
    desk.publish([Raw(b"redriven", codec.encode_redrive(redrive))])
    desk.drive(processor, until=lambda: len(desk.dispatches()) == len(fates) + 2)
    desk.answer([of(desk, "redriven")])
    desk.drive(processor, until=lambda: "gone" not in desk.phases() and desk.phases().get("cancelled-late") == "CANCELLING")


def test_a_faithful_installation_agrees_while_it_works_and_when_it_is_stopped(desk: Desk) -> None:
    processor = desk.active()
    lead_lives(desk, processor)
    desk.drive_for(processor, seconds=0.2)
    differences, reports = verified(desk)  # nothing is turned meanwhile, and the owner holds its stores
    assert differences == []
    assert [report["partition"] for report in reports] == list(range(PARTITIONS))
    jobs = {"done", "failed", "redriven", "retried", "cancelled-late", "running", "discarded", "gone", "lost", "waits", "cancelled"}
    jobs |= {"replaced", "expired", "astray"}
    assert sum(report["jobs"] for report in reports) == len(jobs)
    phases = [phase for report in reports for phase, count in report["phases"].items() for _ in range(count)]
    assert sorted(phases) == sorted(
        ["SUCCEEDED"] * 2 + ["FAILED", "CANCELLING", "RUNNING", "DISCARDED", "DISPATCHED", "CANCELLED", "EXPIRED"] + ["WAITING"] * 4
    )
    assert sum(report["stores"][0]["compared"] for report in reports) >= len(jobs) - 1 + PARTITIONS
    assert all(report["unjudged"] == {} for report in reports)

    desk.leave(processor)
    differences, reports = verified(desk)
    assert differences == []
    assert [report["stores"][0]["beyond"] for report in reports] == [0] * PARTITIONS
    assert found(desk, "--passes", "3") == []
    text = invoked(desk, "verify", "--state-dir", str(desk.folder / "a"))
    assert text.exit_code == 0
    assert text.stdout.splitlines()[-1] == f"{PARTITIONS} partitions, {len(jobs)} jobs, {PARTITIONS} stores: 0 differences"


def test_what_comes_in_and_goes_out_meanwhile_is_no_difference(desk: Desk) -> None:
    """An owner at work between any two readings: the cut is what counts."""
    processor = desk.active()
    answered = 0

    def work() -> None:
        nonlocal answered
        desk.publish([raw_schedule(f"job-{now_ms()}-{n}", now_ms()) for n in range(5)])
        desk.drive_for(processor, seconds=0.05)
        dispatches = desk.dispatches()
        desk.answer(dispatches[answered:], "FAILED" if answered % 2 else "SUCCEEDED")
        answered = len(dispatches)

    with pytest.MonkeyPatch.context() as patch:
        original: Callable[..., Any] = Scan.up_to

        def up_to(self: Any, ends: Any) -> Any:
            work()
            return original(self, ends)

        patch.setattr(Scan, "up_to", up_to)
        for _ in range(2):
            differences, reports = verified(desk)
            assert differences == []
    assert answered > 20
    assert sum(report["jobs"] for report in reports) > 20


def test_an_owner_that_works_all_the_time_is_verified_on_the_way(desk: Desk) -> None:
    """Transactions, store writes and compactions go on in another thread, without a pause."""
    processor = desk.active()
    over = threading.Event()
    thread = threading.Thread(target=lambda: keep_busy(desk, processor, over))
    thread.start()
    try:
        told = [verified(desk) for _ in range(3)]
    finally:
        over.set()
        thread.join()
    assert [differences for differences, _ in told] == [[], [], []]
    jobs = [sum(report["jobs"] for report in reports) for _, reports in told]
    assert jobs == sorted(jobs)
    assert jobs[0] < jobs[-1]
    assert sum(report["stores"][0]["beyond"] for _, reports in told for report in reports) > 0


def keep_busy(desk: Desk, processor: Processor, over: threading.Event) -> None:
    """Jobs that are done, die, are retried, go on and get lost, and some that are forgotten at once."""
    results = ("SUCCEEDED", "SUCCEEDED", "FAILED", "RETRY", "STARTED", "LOST")
    answered = count = 0
    deadline_s = time.monotonic() + 2 * TIMEOUT_S
    while not over.is_set() and time.monotonic() < deadline_s:
        due_ms = now_ms()
        desk.publish([raw_schedule(f"job-{count + n}", due_ms + n % 7 * 40, retention_ms=DAY_MS if n % 3 == 0 else 0) for n in range(40)])
        count += 40
        for _ in range(6):
            processor.turn()
        fresh = desk.dispatches()[answered:]
        answered += len(fresh)
        fields = {"retry_after_ms": 100, "lease_ms": 3_000}
        desk.publish([raw_outcome(d, results[n % len(results)], **fields) for n, d in enumerate(fresh)], desk.topology.outcomes)


def stopped(desk: Desk) -> None:
    """An installation that has led a life, and is stopped."""
    processor = desk.active()
    lead_lives(desk, processor)
    desk.leave(processor)


def written_to_state(desk: Desk, key: bytes, value: bytes | None) -> None:
    desk.publish([Raw(key, value, home(key[1:].decode()))], desk.topology.state)


def test_damage_to_a_store_is_found_and_named(desk: Desk) -> None:
    stopped(desk)
    families = {family: Options(raw_mode=True) for family in ("jobs", "timers", "meta")}
    for job_id in ("done", "waits", "retried", "running"):
        store = Rdict(str(desk.store_path("a", home(job_id))), Options(raw_mode=True), column_families=families)
        jobs, timers = store.get_column_family("jobs"), store.get_column_family("timers")
        key = job_id.encode()
        if job_id == "done":
            jobs[b"s" + key] = codec.encode_state({**codec.decode_state(jobs[b"s" + key]), "phase": "DISPATCHED"})
        elif job_id == "waits":
            del timers[timer_key(codec.decode_definition(jobs[b"d" + key])["schedule"]["due_ms"], job_id)]
        elif job_id == "retried":
            del jobs[b"s" + key]
        else:
            jobs[b"dstranger"] = jobs[b"d" + key]
        for each in (jobs, timers, store):
            each.close()
    told = {(entry["kind"], entry["job_id"]): entry for entry in verified(desk)[0]}
    kinds = {kind: job_id for kind, job_id in told if kind != "store_timer"}
    assert kinds == {"store_value": "done", "store_missing": "retried", "store_extra": "stranger"}
    # A job of which only the definition is left waits, by that, and would need a timer too.
    assert {job_id for kind, job_id in told if kind == "store_timer"} == {"waits", "retried", "stranger"}
    assert told["store_value", "done"]["says"].startswith("its state in the store is not the changelog's: DISPATCHED, token ")
    assert "SUCCEEDED, token " in told["store_value", "done"]["says"]
    assert "delete the folder" in told["store_value", "done"]["remedy"]
    text = invoked(desk, "verify", "--state-dir", str(desk.folder / "a"), "--partition", str(home("waits")))
    assert text.exit_code == 1
    assert "  store timer: waits has no timer at " in text.stdout


def test_a_store_that_cannot_be_read_or_is_of_another_topic_is_found(desk: Desk) -> None:
    stopped(desk)
    for path in desk.store_path("a", 0).glob("MANIFEST-*"):
        path.write_bytes(b"\0" * 100)
    families = {family: Options(raw_mode=True) for family in ("jobs", "timers", "meta")}
    store = Rdict(str(desk.store_path("a", 1)), Options(raw_mode=True), column_families=families)
    meta = store.get_column_family("meta")
    mark: Any = meta[b"mark"]
    meta[b"mark"] = json.dumps({**json.loads(mark), "identity": "another/1"}).encode()
    for each in (meta, store):
        each.close()
    assert found(desk) == [("store_of_another", None), ("store_unreadable", None)]


def test_what_somebody_wrote_straight_into_the_state_topic_is_found(desk: Desk) -> None:
    stopped(desk)
    fold = {key: value for partition in desk.fold().values() for key, value in partition.items()}
    forged: Any = {**codec.decode_state(fold[b"srunning"]), "phase": "SUCCEEDED"}
    written_to_state(desk, b"srunning", codec.encode_state(forged))
    again: Any = {**codec.decode_state(fold[b"sdone"]), "phase": "FAILED", "changed_ms": now_ms()}
    written_to_state(desk, b"sdone", codec.encode_state(again))
    written_to_state(desk, b"dwaits", None)
    written_to_state(desk, b"ddiscarded", None)
    stranger = raw_schedule("stranger", now_ms() + HOUR_MS).value
    assert stranger is not None
    written_to_state(desk, b"dstranger", codec.splice_definition(1, 0, stranger))
    written_to_state(desk, b"slost", b"junk")
    # The stores are older than this, and right: what was written after they were closed they shall take over.
    assert found(desk) == sorted(
        [
            ("unfounded", "running"),
            ("ended_twice", "done"),
            ("unfounded", "done"),
            ("lost", "waits"),
            ("orphan", "discarded"),
            ("forgotten_early", "discarded"),
            ("phantom", "stranger"),
            ("unreadable", "lost"),
        ],
        key=str,
    )
    text = invoked(desk, "verify")
    assert text.exit_code == 1
    assert "  lost: waits was acknowledged at offset " in text.stdout
    assert "schedule it again" in text.stdout


def test_what_somebody_wrote_into_the_other_topics_is_found(desk: Desk) -> None:
    stopped(desk)
    done = of(desk, "done")
    early: Any = {**done, "dispatched_ms": done["slot_ms"] - 1}
    desk.publish([Raw(b"done", codec.encode_dispatch(early))], desk.topology.dispatch("default"))
    fold = {key: value for partition in desk.fold().values() for key, value in partition.items()}
    desk.publish([Raw(b"dwaits", fold[b"dwaits"], (home("waits") + 1) % PARTITIONS)], desk.topology.state)
    progress: Any = codec.decode_progress(desk.fold()[home("nobody")][b"p"])
    desk.publish([Raw(b"nobody", b"junk")])  # and the owner says that it has read it, and says no more
    [junk] = [message for message in desk.read(desk.topology.intake) if message.key() == b"nobody"]
    progress["intake_offset"] = (junk.offset() or 0) + 1
    progress["outcomes_offset"] += 10
    desk.publish([Raw(b"p", codec.encode_progress(progress), home("nobody"))], desk.topology.state)
    assert found(desk) == sorted(
        [
            ("dispatched_twice", "done"),
            ("early", "done"),
            ("log_shorter", None),
            ("misplaced", "waits"),
            ("unanswered", "nobody"),
        ],
        key=str,
    )


def test_what_is_asked_for_wrongly_is_refused(desk: Desk) -> None:
    with pytest.raises(BadConfiguration, match=r"--partition 9: .*state has 4 partitions, 0 to 3"):
        invoked(desk, "verify", "--partition", "9")
    with pytest.raises(BadConfiguration, match=r"has no stores of .*name the state directory"):
        invoked(desk, "verify", "--state-dir", str(desk.folder))


# --- commands of Confluent's serializers ---

SCHEMA_IDS = {"Schedule": 7, "Cancel": 8, "Drop": 9}
UNKNOWN_ID = 70


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    registry = FakeRegistry()
    for name, schema_id in SCHEMA_IDS.items():
        registry.register(schema_id, CURRENT[name].parsed)
    yield registry
    registry.stop()


def theirs(record: Raw, name: str = "Schedule") -> Raw:
    """The same command, as Confluent's serializer writes it."""
    assert record.value is not None
    return record._replace(value=framed(SCHEMA_IDS[name], record.value))


def lead_foreign_lives(desk: Desk, registry: FakeRegistry) -> None:
    """Jobs of which some or all commands are in Confluent's format, in an installation that is stopped in the end."""
    processor = wiring.timer_processor(
        desk.kafka, desk.topology, desk.folder / "a", TIMEOUT_S, schema_registry=f"http://{registry.address}"
    )
    processor.start()
    try:
        desk.drive(processor, until=lambda: is_active(processor))
        again = raw_schedule("again", now_ms())
        mixed = raw_schedule("mixed", now_ms())
        desk.publish([theirs(again), theirs(again), theirs(mixed), mixed, theirs(raw_schedule("gone", now_ms(), retention_ms=0))])
        desk.publish([theirs(raw_schedule("dropped", now_ms())), raw_schedule("ours", now_ms() + HOUR_MS)])
        desk.publish([theirs(raw_schedule("waits", now_ms() + HOUR_MS)), theirs(raw_schedule("cancelled", now_ms() + HOUR_MS))])
        desk.publish([raw_schedule("stopped", now_ms() + HOUR_MS), theirs(raw_cancel("stopped"), "Cancel"), raw_cancel("cancelled")])
        anew = raw_schedule("replaced", now_ms() + 2 * HOUR_MS, on_conflict="REPLACE", retention_ms=0)
        desk.publish([raw_schedule("replaced", now_ms() + HOUR_MS), theirs(anew)])
        desk.publish([theirs(raw_schedule("astray", now_ms() + HOUR_MS, partition=(home("astray") + 1) % PARTITIONS))])
        refused = raw_schedule("refused", now_ms())
        assert refused.value is not None
        desk.publish([refused._replace(value=framed(UNKNOWN_ID, refused.value))])
        desk.drive(processor, until=lambda: len(desk.dispatches()) == 4 and desk.dead_letters())
        desk.answer([of(desk, "again"), of(desk, "gone")])
        desk.answer([of(desk, "dropped")], "FAILED")
        desk.drive(processor, until=desk.dead_runs)
        drop: Any = {"job_id": "dropped", "token": of(desk, "dropped")["token"], "created_ms": now_ms()}
        desk.publish([theirs(Raw(b"dropped", codec.encode_drop(drop)), "Drop")])
        cancelled = {"cancelled": "CANCELLED", "stopped": "CANCELLED"}
        desk.drive(
            processor, until=lambda: desk.phases() == {"again": "SUCCEEDED", "mixed": "DISPATCHED", **cancelled} and _known(desk) >= KNOWN
        )
    finally:
        processor.close()
    assert [letter["reason"] for letter in desk.dead_letters()] == [Reason.UNKNOWN_SCHEMA]


KNOWN = {"again", "mixed", "ours", "waits", "cancelled", "stopped", "replaced", "astray"}


def _known(desk: Desk) -> set[str]:
    return {key[1:].decode() for partition in desk.fold().values() for key in partition if key[:1] == b"d"}


def test_commands_of_confluents_serializers_are_verified_with_their_registry(desk: Desk, registry: FakeRegistry) -> None:
    lead_foreign_lives(desk, registry)
    named = ("--schema-registry", f"http://{registry.address}")
    differences, reports = verified(desk, *named)
    assert differences == []
    assert [report["unjudged"] for report in reports] == [{}] * PARTITIONS
    assert sum(report["jobs"] for report in reports) == len(KNOWN | {"gone", "dropped"})
    assert found(desk, "--passes", "3", *named) == []

    written_to_state(desk, b"dwaits", None)  # and so it would never run
    stranger = raw_schedule("stranger", now_ms() + HOUR_MS).value
    assert stranger is not None
    written_to_state(desk, b"dstranger", codec.splice_definition(1, 0, stranger))
    assert found(desk, *named) == [("lost", "waits"), ("phantom", "stranger")]


def test_without_a_registry_what_hangs_on_foreign_commands_is_not_judged(desk: Desk, registry: FakeRegistry) -> None:
    lead_foreign_lives(desk, registry)
    asked = len(registry.asked)
    differences, reports = verified(desk)
    assert differences == []
    # One of these lies on the wrong partition first, and is looked at where it went on to.
    foreign = ["again", "again", "mixed", "gone", "dropped", "dropped", "waits", "cancelled", "stopped", "replaced", "astray"]
    assert sum(report["unjudged"].get("registry", 0) for report in reports) == len(foreign)
    assert len(registry.asked) == asked
    page = invoked(desk, "verify").stdout
    assert "in the format of a schema registry; name it with --schema-registry" in page

    written_to_state(desk, b"dours", None)
    stranger = raw_schedule("stranger", now_ms() + HOUR_MS).value
    assert stranger is not None
    written_to_state(desk, b"dstranger", codec.splice_definition(1, 0, stranger))
    assert found(desk) == [("lost", "ours"), ("phantom", "stranger")]  # those have none


def test_a_registry_that_is_away_is_said_and_is_no_difference(desk: Desk, registry: FakeRegistry) -> None:
    lead_foreign_lives(desk, registry)
    for schema_id in SCHEMA_IDS.values():
        registry.answers[schema_id] = (503, b"")
    with pytest.raises(RegistryUnavailable, match="answered 503"):
        invoked(desk, "verify", "--schema-registry", f"http://{registry.address}")
    with pytest.raises(BadConfiguration, match="the schema registry 'registry:8081' is no URL"):
        invoked(desk, "verify", "--schema-registry", "registry:8081")


def state(desk: Desk, job_id: str, *arguments: str) -> dict[str, Any]:
    result = invoked(desk, "state", job_id, "--json", *arguments)
    told: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if told["known"] else 1)
    return told


def test_a_job_is_shown_as_it_is_and_as_it_was(desk: Desk) -> None:
    [job_id] = job_ids(1)
    before_ms = now_ms()
    processor = desk.active()
    desk.schedule(job_id, now_ms() + 3_000, payload=b'{"to":"ada"}', retention_ms=DAY_MS)
    desk.drive(processor, until=lambda: b"d" + job_id.encode() in desk.fold()[home(job_id)])
    waiting_ms = now_ms()
    desk.drive(processor, until=desk.dispatches)
    desk.answer(desk.dispatches(), "RETRY", retry_after_ms=HOUR_MS, error={"type": "OSError", "message": "away", "traceback": ""})
    desk.drive(processor, until=lambda: desk.phases().get(job_id) == "WAITING")
    now = state(desk, job_id)
    assert (now["phase"], now["state"]["attempt"], now["state"]["token"]) == ("WAITING", 1, desk.dispatches()[0]["token"])
    assert [ending["type"] for ending in now["state"]["trail"]["endings"]] == ["OSError"]
    assert now["wake_ms"] == now["state"]["trail"]["wake_ms"] > now_ms() + HOUR_MS // 2
    assert now["definition"]["work"]["payload"] == {"to": "ada"}

    then = state(desk, job_id, "--at", str(waiting_ms))
    assert (then["phase"], then["state"], then["wake_ms"]) == ("WAITING", None, now["definition"]["due_ms"])
    assert (then["log"]["state"], then["log"]["complete_from_ms"]) == ("never", 0)
    assert state(desk, job_id, "--at", str(before_ms))["known"] is False
    assert state(desk, "nobody")["known"] is False

    page = invoked(desk, "state", job_id).stdout
    for words in ("WAITING since ", "attempt   1, token ", "next      ", '"to": "ada"', "OSError: away", "generation 1"):
        assert words in page
    assert "not yet: it was defined at " in invoked(desk, "state", job_id, "--at", str(before_ms)).stdout
    assert "was never scheduled, or was forgotten" in invoked(desk, "state", "nobody").stdout
