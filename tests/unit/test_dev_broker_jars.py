"""Kafka's jars are fetched whole, checked, and once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duewheel.core.errors import BadConfiguration, EnvironmentFailure
from duewheel.devbroker import DevCluster, Distribution, jars
from duewheel.devbroker.jars import Jar

CONTENTS = {"org.example:kafka_2.13:4.0": b"kafka", "org.example:slf4j:1.7": b"logging"}
JARS = [Jar(name, hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items()]


class Maven:
    """Answers like jgo; `answer(coordinate, n)` is what the n-th fetch of a coordinate brings."""

    def __init__(self, cache: Path, answer: Callable[[str, int], bytes]) -> None:
        self.cache = cache
        self.answer = answer
        self.fetches: list[str] = []
        self.coordinate: tuple[str, ...] = ()

    def project(self, group: str, artifact: str) -> Maven:
        asked = Maven(self.cache, self.answer)
        asked.fetches = self.fetches
        asked.coordinate = (group, artifact)
        return asked

    def at_version(self, version: str) -> Maven:
        self.coordinate = (*self.coordinate, version)
        return self

    def artifact(self) -> Maven:
        return self

    def resolve(self) -> Path:
        coordinate = ":".join(self.coordinate)
        self.cache.mkdir(parents=True, exist_ok=True)
        path = self.cache / self.coordinate[1]
        if not path.exists():
            self.fetches.append(coordinate)
            path.write_bytes(self.answer(coordinate, self.fetches.count(coordinate)))
        return path


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Maven:
    served = Maven(tmp_path / "maven", lambda coordinate, _number: CONTENTS[coordinate])
    monkeypatch.setattr(jars, "locked", lambda: JARS)
    monkeypatch.setattr(jars, "maven_context", lambda _cache: served)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return served


def test_jars_are_fetched_once_and_found_again_without_asking_anybody(maven: Maven, tmp_path: Path) -> None:
    libs = jars.ensure(tmp_path / "own")
    assert {path.name: path.read_bytes() for path in libs.iterdir()} == {"kafka_2.13-4.0.jar": b"kafka", "slf4j-1.7.jar": b"logging"}
    assert libs.name.startswith("kafka-4.0-")
    maven.fetches.clear()
    assert jars.ensure(tmp_path / "own") == libs
    assert maven.fetches == []


def test_many_at_once_fetch_once(maven: Maven, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _number: jars.ensure(tmp_path / "own"), range(8)))
    assert len(folders) == 1
    assert sorted(maven.fetches) == sorted(CONTENTS)


def test_a_fetch_that_was_cut_off_is_not_taken_for_whole(maven: Maven, tmp_path: Path) -> None:
    maven.answer = lambda coordinate, number: CONTENTS[coordinate][: 3 if number == 1 else None]
    libs = jars.ensure(tmp_path / "own")
    assert (libs / "kafka_2.13-4.0.jar").read_bytes() == b"kafka"


def test_a_jar_that_is_not_the_pinned_one_is_refused(maven: Maven, tmp_path: Path) -> None:
    maven.answer = lambda _coordinate, _number: b"something else"
    with pytest.raises(EnvironmentFailure, match=r"cannot fetch org\.example:.*its SHA-256 is .*, pinned is .*--kafka-home"):
        jars.ensure(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir() if path.is_dir() and not path.name.endswith(".partial")] == []


def test_a_failed_fetch_goes_on_where_it_ended(maven: Maven, tmp_path: Path) -> None:
    def only_kafka(coordinate: str, _number: int) -> bytes:
        if "slf4j" in coordinate:
            raise OSError("no route")
        return CONTENTS[coordinate]

    maven.answer = only_kafka
    with pytest.raises(EnvironmentFailure, match=r"cannot fetch org\.example:slf4j:1\.7 \(3 tries\): OSError: no route"):
        jars.ensure(tmp_path / "own")
    maven.fetches.clear()
    maven.answer = lambda coordinate, _number: CONTENTS[coordinate]
    jars.ensure(tmp_path / "own")
    assert maven.fetches == ["org.example:slf4j:1.7"]


def test_the_lock_pins_what_is_declared() -> None:
    pinned = {jar.coordinate for jar in jars.locked()}
    declared = jars.declaration()["maven"]
    assert set(declared["artifacts"]) <= pinned
    assert not {coordinate.rpartition(":")[0] for coordinate in pinned} & set(declared["excluded"])


def test_a_java_or_kafka_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"--java \(DUEWHEEL_JAVA\) is .*nowhere.*Java 17 or later"):
        Distribution.find(tmp_path, java=tmp_path / "nowhere")
    with pytest.raises(BadConfiguration, match=r"--kafka-home \(DUEWHEEL_KAFKA_HOME\) is .*holds no kafka_\*\.jar"):
        Distribution.find(tmp_path, kafka_home=tmp_path)


@pytest.mark.parametrize("brokers", [0, 2, 4])
def test_one_or_three(brokers: int) -> None:
    with pytest.raises(BadConfiguration, match=f"brokers is {brokers}; allowed are 1, and 3"):
        DevCluster(brokers=brokers)
