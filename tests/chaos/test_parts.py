"""What fault tests are made of: a way that is cut must be cut, and a script must be the same again."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.logs import COMMITTED, MemoryRecord
from duewheel.core.model import Closing, Phase
from duewheel.engine.partition import DEFINITION, STATE
from duewheel.proof.history import Committed, Rebalanced, Started
from tests.chaos import damage
from tests.chaos.caretaker import FATES, fate
from tests.chaos.course import JOBS_A_CLOSING
from tests.chaos.jobs import BAD_ONE_OF, DYING_ONE_OF, DYING_TIMES, Workload, script
from tests.chaos.lanes import HOST, Cut, Lanes
from tests.chaos.notes import Notes, notes_of
from tests.chaos.offsets import TOPIC, offset_event
from tests.chaos.producer import share, wave_of
from tests.chaos.site import TOPOLOGY, java_hash
from tests.chaos.tasks import QUICK
from tests.chaos.watch import Standings
from tests.dead import dead_run

QUICK_S = 0.3
TIMEOUT_S = 10.0
AT_MS = 1_767_225_600_000


# --- lanes ---


class Echo:
    """Answers whatever it hears, and remembers it."""

    def __init__(self, port: int) -> None:
        self.heard: list[bytes] = []
        self.something = threading.Event()
        self._server = socket.create_server((HOST, port))
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1_000):
                    self.heard.append(data)
                    self.something.set()
                    connection.sendall(data)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    with Lanes(1, [1]) as made:
        yield made


@pytest.fixture
def echo(lanes: Lanes) -> Iterator[Echo]:
    server = Echo(int(f"{lanes.lanes[0].upstream}1"))
    yield server
    server.close()


@pytest.fixture
def client(lanes: Lanes, echo: Echo) -> Iterator[socket.socket]:
    host, _, port = lanes.lanes[0].bootstrap_servers([1]).partition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        echo.something.clear()
        yield connection


def _hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(QUICK_S)
    try:
        return not connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def test_what_is_sent_into_a_lane_that_is_cut_arrives_when_it_is_mended(lanes: Lanes, echo: Echo, client: socket.socket) -> None:
    lanes.cut(lanes.lanes[0], Cut.BOTH)
    client.sendall(b"late")
    assert _hears_nothing(client)
    assert echo.heard == [b"before"]
    lanes.mend(lanes.lanes[0])
    assert client.recv(100) == b"late"


def test_answers_alone_can_be_cut(lanes: Lanes, echo: Echo, client: socket.socket) -> None:
    lanes.cut(lanes.lanes[0], Cut.ANSWERS)
    client.sendall(b"asked")
    assert echo.something.wait(TIMEOUT_S)
    assert _hears_nothing(client)
    lanes.mend(lanes.lanes[0])
    assert client.recv(100) == b"asked"


def test_a_lane_that_refuses_ends_connections_old_and_new(lanes: Lanes, client: socket.socket) -> None:
    lanes.cut(lanes.lanes[0], Cut.REFUSED)
    assert client.recv(100) == b""
    with socket.create_connection(client.getpeername(), TIMEOUT_S) as another:
        assert another.recv(100) == b""


# --- the script, and what is written down ---


def test_a_seed_gives_the_same_script_again_and_another_seed_another() -> None:
    workload = Workload(7, 2_000, 20_000)
    assert script(workload) == script(workload)
    assert script(workload) != script(workload._replace(seed=8))


def test_a_script_asks_for_every_job_once_and_says_more_of_a_job_later_only() -> None:
    steps = script(Workload(7, 2_000, 20_000))
    scheduled = Counter(step.job_id for step in steps if step.verb == "schedule")
    assert set(scheduled.values()) == {1}
    assert len(scheduled) == 2_000
    assert sum(step.verb == "spoil" for step in steps) == 2_000 // BAD_ONE_OF
    assert {step.verb for step in steps} == {"schedule", "cancel", "replace", "spoil"}
    assert max(Counter((step.at_ms, step.job_id) for step in steps).values()) == 1


def test_one_job_of_a_hundred_dies_for_certain() -> None:
    steps = script(Workload(7, 2_000, 20_000))
    dying = [step for step in steps if int(step.job_id[-5:]) % DYING_ONE_OF == DYING_ONE_OF // 3 and step.verb != "spoil"]
    assert len(dying) == 2_000 // DYING_ONE_OF  # one step each: none is cancelled or redefined
    assert {step.payload["times"] for step in dying} == set(DYING_TIMES)
    assert all(step.payload["do"] == "fail" and not step.expires_ms for step in dying)
    assert QUICK.attempts in range(1, min(DYING_TIMES) + 1)


def test_producers_share_the_script_among_them() -> None:
    workload = Workload(7, 300, 5_000)
    shares = [share(workload, number, 3) for number in range(3)]
    assert sorted(map(str, [step for steps in shares for step in steps])) == sorted(map(str, script(workload)))
    jobs = [{step.job_id for step in steps} for steps in shares]
    assert sum(map(len, jobs)) == len(set().union(*jobs))


def test_a_line_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    Notes(tmp_path, "handler").tell(Started(5, "a", 7))
    [path] = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"event":"Started","at_ms":6')
    assert list(notes_of(tmp_path, "handler")) == [Started(5, "a", 7)]


def test_a_producer_without_notes_begins_at_the_beginning() -> None:
    assert wave_of(iter(())) == 0


# --- who looks after the dead, and when all is over ---


def test_a_fate_of_each_kind_comes_often_enough_for_what_the_verdict_demands() -> None:
    jobs = 10 * JOBS_A_CLOSING
    fates = Counter(fate(f"job-{number:05}", 0) for number in range(DYING_ONE_OF // 3, jobs, DYING_ONE_OF))
    assert min(fates[Closing.REDRIVEN], fates[Closing.DROPPED]) > jobs // JOBS_A_CLOSING
    assert fates[None] > 0


@pytest.mark.parametrize("number", range(0, DYING_ONE_OF * len(FATES), DYING_ONE_OF))
def test_no_job_is_redriven_without_end(number: int) -> None:
    fates = [fate(f"job-{number:05}", deaths) for deaths in range(20)]
    assert fates.count(Closing.REDRIVEN) <= FATES.count(Closing.REDRIVEN)
    assert fates[len(FATES) - 1 :] == [None] * (20 - len(FATES) + 1)


def _take(standings: Standings, kind: bytes, job_id: str, generation: int = 0, phase: Phase = Phase.WAITING, token: int = 0) -> None:
    run, value = dead_run(job_id, token, generation=generation, phase=phase), None
    run["state"]["token"], run["definition"]["generation"] = token, generation
    if generation:
        value = codec.encode_definition(run["definition"]) if kind == DEFINITION else codec.encode_state(run["state"])
    standings.take(MemoryRecord(TOPOLOGY.state, 0, 0, kind + job_id.encode(), value, None, AT_MS, COMMITTED))


def test_a_job_is_over_when_its_newest_definition_has_ended() -> None:
    standings = Standings()
    assert standings.unfinished(["a"], ()) == ["a"]  # acknowledged, and nobody has heard of it
    _take(standings, DEFINITION, "a", 1)
    assert standings.unfinished([], ()) == ["a"]
    _take(standings, STATE, "a", 1, Phase.SUCCEEDED, 7)
    assert standings.unfinished(["a"], ()) == []
    _take(standings, DEFINITION, "a", 2)
    assert standings.unfinished(["a"], ()) == ["a"]
    assert (standings.defined, standings.ended) == (1, 1)


def test_a_death_is_an_end_when_it_is_left_alone() -> None:
    standings = Standings()
    _take(standings, DEFINITION, "a", 1)
    _take(standings, STATE, "a", 1, Phase.FAILED, 7)
    assert standings.unfinished(["a"], ()) == ["a"]
    assert standings.unfinished(["a"], {("a", 5)}) == ["a"]  # that was another death
    assert standings.unfinished(["a"], {("a", 7)}) == []


@pytest.mark.parametrize("kinds", [(DEFINITION, STATE), (STATE, DEFINITION)])
def test_a_dropped_job_is_over_until_it_is_defined_anew(kinds: tuple[bytes, bytes]) -> None:
    standings = Standings()
    _take(standings, DEFINITION, "a", 1)
    _take(standings, STATE, "a", 1, Phase.FAILED, 7)
    for kind in kinds:
        _take(standings, kind, "a")
    assert standings.unfinished(["a"], ()) == []
    assert (standings.defined, standings.ended) == (1, 1)
    _take(standings, DEFINITION, "a", 1)
    assert standings.unfinished(["a"], ()) == ["a"]
    assert (standings.defined, standings.ended) == (1, 0)


# --- what Kafka writes ---


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _record(key: bytes, value: bytes) -> MemoryRecord:
    return MemoryRecord(TOPIC, 2, 9, key, value, None, AT_MS, COMMITTED)


def test_commits_and_generations_are_read_from_kafkas_own_log() -> None:
    key = struct.pack(">h", 1) + _text("chaos.processor") + _text("chaos.intake") + struct.pack(">i", 3)
    commit = _record(key, struct.pack(">hqi", 3, 4_711, -1) + _text("dw1 name") + struct.pack(">q", 1))
    assert offset_event(commit, "chaos.") == Committed(AT_MS, "chaos.processor", "chaos.intake", 3, 4_711)
    assert offset_event(commit, "other.") is None
    key = struct.pack(">h", 2) + _text("chaos.processor")
    old = _record(key, struct.pack(">h", 3) + _text("consumer") + struct.pack(">i", 17))
    new = _record(key, struct.pack(">hB", 4, 9) + b"consumer" + struct.pack(">i", 18))
    assert offset_event(old, "chaos.") == Rebalanced(AT_MS, "chaos.processor", 17)
    assert offset_event(new, "chaos.") == Rebalanced(AT_MS, "chaos.processor", 18)


def test_a_hash_is_javas() -> None:
    assert java_hash("hello") == 99_162_322
    assert java_hash("polygenelubricants") == -(2**31)


# --- disks ---


@pytest.mark.parametrize("is_open", [False, True])
def test_damage_changes_what_lies_on_the_disk(tmp_path: Path, is_open: bool) -> None:
    file = tmp_path / "chaos" / "3" / "000012.sst"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(10_000))
    what = damage.overwrite(tmp_path, Random(5), is_open=is_open)
    assert what.startswith("3/000012.sst ")
    assert file.read_bytes() != bytes(10_000)


def test_deleted_stores_are_gone(tmp_path: Path) -> None:
    (tmp_path / "chaos" / "3").mkdir(parents=True)
    assert "deleted" in damage.delete(tmp_path, Random(5))
    assert not (tmp_path / "chaos" / "3").exists()
