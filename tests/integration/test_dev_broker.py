"""The development broker: up when it says so, and gone when its program is, however that ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import TopicAdmin
from duewheel.core.errors import BadConfiguration, EnvironmentFailure, StateFolderInUse
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster, Distribution

FOLDER = Path(__file__).parent.parent.parent / ".duewheel"
DUEWHEEL = [sys.executable, "-m", "duewheel.cli.main"]

# Starts a broker from a thread that ends at once, and lives on.
PROGRAM = """
import sys, threading, time
from duewheel.devbroker import DevCluster
cluster = DevCluster(sys.argv[1])
thread = threading.Thread(target=cluster.start)
thread.start()
thread.join()
print(cluster.brokers[0].pid, cluster.bootstrap_servers, flush=True)
time.sleep(60)
"""


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def answers(bootstrap_servers: str) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return len(admin.list_topics(timeout=5).brokers) > 0
    except KafkaException:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one's own that shares the jars."""
    jars = Distribution.find(FOLDER).libs
    (tmp_path / jars.name).symlink_to(jars)
    return tmp_path


@pytest.fixture
def program(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A program with a broker: its process, the broker's process id, its address."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            pid, address = process.stdout.readline().split()
            yield process, int(pid), address
        finally:
            process.kill()


def test_a_thread_that_ends_leaves_the_broker_and_a_kill_of_the_program_does_not(
    program: tuple[subprocess.Popen[str], int, str], folder: Path
) -> None:
    process, pid, address = program
    assert answers(address)
    guard = parent_of(pid)
    process.kill()
    process.wait()
    eventually(lambda: not exists(pid) and not exists(guard))
    # What it left on disk goes when the next one starts, here one that fails.
    assert len(list(folder.glob("broker-*/"))) == 1
    with pytest.raises(EnvironmentFailure):
        DevCluster(folder, settings={"node.id": "-7"}).start()
    (left,) = folder.glob("broker-*/")
    assert "-7" in (left / "node-1" / "server.properties").read_text()


def test_what_a_broker_unpacks_lies_in_its_own_folder(program: tuple[subprocess.Popen[str], int, str], folder: Path) -> None:
    """Killed, it cannot tidy up; then the folder goes as a whole."""
    options = Path(f"/proc/{program[1]}/cmdline").read_text().split("\0")
    [temporary] = [option.partition("=")[2] for option in options if option.startswith("-Djava.io.tmpdir=")]
    assert Path(temporary).is_dir()
    assert Path(temporary).is_relative_to(folder)


def test_a_kill_of_the_guard_takes_the_broker_along(program: tuple[subprocess.Popen[str], int, str]) -> None:
    _process, pid, _address = program
    os.kill(parent_of(pid), signal.SIGKILL)
    eventually(lambda: not exists(pid))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_in_good_order(folder: Path, end: signal.Signals) -> None:
    command = [*DUEWHEEL, "dev", "broker", "--json", "--topics", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        (pid,) = ready["pids"]
        assert TopicAdmin(KafkaConfig(ready["bootstrap_servers"]), Topology()).plan({"default": 16}, partitions=16) == []
        os.killpg(process.pid, end)  # to the whole group, as a terminal does
        assert process.wait(20) == 0
    eventually(lambda: not exists(pid))
    assert list(folder.glob("broker-*/")) == []


def test_the_command_says_so_when_its_broker_ends(folder: Path) -> None:
    command = [*DUEWHEEL, "dev", "broker", "--json", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        os.kill(json.loads(process.stdout.readline())["pids"][0], signal.SIGKILL)
        _out, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "node 1 ended with exit code 137" in said
    assert "Kafka Server started" in said


def test_a_taken_port_is_named_with_the_remedy_before_anything_starts(folder: Path) -> None:
    """A broker that listens there already would answer in place of ours."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = DevCluster(folder, port=port)
        with pytest.raises(BadConfiguration, match=rf"port {port} of 127\.0\.0\.1 cannot be had .*; choose another with --port"):
            cluster.start()
    assert not any(broker.running for broker in cluster.brokers)


def test_a_setting_that_kafka_refuses_shows_kafkas_own_words(folder: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"Invalid value many for configuration log\.cleaner\.threads"):
        DevCluster(folder, settings={"log.cleaner.threads": "many"}).start()


def test_two_side_by_side_one_with_the_users_own_java_and_kafka(folder: Path, tmp_path: Path) -> None:
    packaged = Distribution.find(folder)
    home = tmp_path / "kafka"
    home.mkdir()
    (home / "libs").symlink_to(packaged.libs.resolve())
    one, other = DevCluster(folder), DevCluster(folder, java=packaged.java.parent.parent, kafka_home=home)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cluster: cluster.start(), (one, other)))
    try:
        assert one.bootstrap_servers != other.bootstrap_servers
        assert answers(one.bootstrap_servers)
        one.close()
        assert answers(other.bootstrap_servers)
    finally:
        one.close()
        other.close()
    assert list(folder.glob("broker-*/")) == []


def test_kept_data_is_there_again_and_belongs_to_one_broker_at_a_time(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "kept"
    with DevCluster(folder, data=data) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("kept", 3, 1)])["kept"].result(10)
        with pytest.raises(StateFolderInUse, match=f"kept is used by another run \\(process {os.getpid()}\\)"):
            DevCluster(folder, data=data).start()
    with DevCluster(folder, data=data) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        assert len(admin.list_topics(timeout=10).topics["kept"].partitions) == 3


def test_a_misspelt_topic_does_not_come_into_being(broker: KafkaConfig) -> None:
    admin = AdminClient(broker.common())
    described = admin.list_topics("no-such-topic", timeout=10).topics["no-such-topic"]
    assert described.error is not None
    assert "no-such-topic" not in admin.list_topics(timeout=10).topics


def test_three_brokers_go_on_without_one_and_take_it_back(cluster3: DevCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster3.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("three", 3, 3)])["three"].result(10)
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster3.bootstrap_servers,
            "acks": "all",
            "socket.timeout.ms": 3000,
            "request.timeout.ms": 3000,
            "log_level": 0,
        }
    )

    def write() -> None:
        for partition in range(3):
            producer.produce("three", b"x", partition=partition, on_delivery=lambda error, _record: failures.append(error))
        assert producer.flush(30) == 0

    victim = cluster3.brokers[1]
    write()
    victim.kill()
    assert not victim.running
    assert victim.exit_code == 128 + signal.SIGKILL
    write()
    victim.start()
    cluster3.await_in_sync()
    other = cluster3.brokers[2]
    other.pause()
    write()
    other.resume()
    cluster3.await_in_sync()
    other.stop()
    assert other.exit_code == 128 + signal.SIGTERM
    other.start()
    other.await_ready()
    cluster3.await_in_sync()
    write()
    assert set(failures) == {None}
