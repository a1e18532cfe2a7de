"""Timer processors and workers as child processes: started, watched, killed on purpose, and gone afterwards.

    with RunFolder.take(Path(".duewheel"), "demo") as run, Fleet(kafka, topology, run) as fleet:
        first = fleet.start_processor("processor-1")
        worker = fleet.start_worker("worker-1", "shop.tasks:app", concurrency=8)
        fleet.await_that(lambda: first.logged("processor.active"), 30, "processor-1 has a partition")
        first.kill()                                  # SIGKILL; also stop, pause, resume
        fleet.check()                                 # raises where one ended that nobody ended

Each is what a person would start in a terminal: `python -m duewheel.cli.main processor …`. Its log is JSON lines in `<name>.log`, its state
folder `<name>.state`, both in the run's folder. However the program ends, kill -9 included, its children end too (see `devbroker.guard`).

Towards Kafka each bears its name as client.id, so that the members of a group can be told apart. A child's settings are those of this
program's clients and what is passed here; other DUEWHEEL_… variables of the environment are kept from it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.devbroker.runfolder import RunFolder
from duewheel.devbroker.supervised import STOP_TIMEOUT_S, Supervised, indented

_POLL_S: Final = 0.02

T = TypeVar("T")


class ChildDied(EnvironmentFailure):
    """A child process ended that nobody had ended; the message ends with its log."""


class Child(Supervised):
    """A processor or a worker. Made by `Fleet`.

    Attributes:
        name: as given.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, lock: int, environment: Mapping[str, str]) -> None:
        super().__init__(command, log, lock, environment)
        self.name = name
        self._ending = False

    def start(self) -> None:
        self._ending = False
        super().start()

    def kill(self) -> None:
        self._ending = True
        super().kill()

    def request_stop(self) -> None:
        self._ending = True
        super().request_stop()

    def check(self) -> None:
        """Raises ChildDied where it ended by itself."""
        if not self._ending and self.exit_code is not None:
            raise ChildDied(
                f"{self.name} ended by itself with exit code {self.exit_code}. Its log {self.log} ends:\n{indented(self.log_tail())}"
            )

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log that tell of `event`, as objects; those of all its starts."""
        needle = f'"event":"{event}"'
        return [json.loads(line) for line in self.log.read_text(errors="replace").splitlines() if needle in line]


class Fleet:
    """The processors and workers of one installation, for as long as a `with` block.

    Args:
        kafka: where the cluster is.
        topology: which installation on it.
        run: takes logs and state folders.
        log_level: of the children.
    """

    def __init__(self, kafka: KafkaConfig, topology: Topology, run: RunFolder, log_level: str = "info") -> None:
        self._kafka = kafka
        self._topology = topology
        self._run = run
        self._log_level = log_level
        self.children: list[Child] = []

    def start_processor(self, name: str, *arguments: str) -> Child:
        """Starts a timer processor, and returns at once.

        Args:
            name: names it, its log and its state folder; one that was used before continues with what lies there.
            arguments: more for `duewheel processor`.
        """
        return self._start(name, "processor", "--state-dir", str(self._run.path / f"{name}.state"), *arguments)

    def start_worker(
        self,
        name: str,
        app: str,
        *arguments: str,
        queue: str = QUEUE_DEFAULT,
        concurrency: int = 4,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Starts a worker, and returns at once.

        Args:
            name: names it and its log.
            app: where its tasks are, as "module:app".
            arguments: more for `duewheel worker`.
            queue: whose jobs it runs.
            concurrency: how many it runs at a time.
            environment: what its tasks want to find there.
        """
        own = ("-q", queue, "-c", str(concurrency), "--name", name)
        return self._start(name, "worker", app, *own, *arguments, environment=environment)

    def check(self) -> None:
        """Raises ChildDied where a child ended by itself."""
        for child in self.children:
            child.check()

    def await_that(self, condition: Callable[[], T], timeout_s: float, what: str) -> T:
        """Waits until `condition` yields something true, which is returned, while watching the children.

        Args:
            what: the condition in words, for the error.

        Raises:
            ChildDied: a child ended by itself.
            EnvironmentFailure: it did not become true in time; the message ends with the children's logs.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = condition()
            if found:
                return found
            self.check()
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"after {timeout_s:g} s it is still not so that {what}.\n{self.log_tails()}")
            time.sleep(_POLL_S)

    def log_tails(self, lines: int = 5) -> str:
        """The last lines of every child's log."""
        return "\n".join(f"{child.name} ({child.log}) ends:\n{indented(child.log_tail(lines))}" for child in self.children)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends all in good order and at the same time; kills what takes longer than `timeout_s`."""
        for child in self.children:
            child.request_stop()
        deadline = time.monotonic() + timeout_s
        for child in self.children:
            child.stop(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Kills what runs still."""
        for child in self.children:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self, name: str, command: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        program = [sys.executable, "-m", "duewheel.cli.main", "--log-format", "json", "--log-level", self._log_level, command]
        options = [f"{option}={value}" for option, value in {**self._kafka.options, "client.id": name}.items()]
        # What has white space cannot pass through the environment; the rest should not stand in the list of processes.
        passed = [part for option in options if _has_space(option) for part in ("-X", option)]
        child_environment = {
            **{variable: value for variable, value in os.environ.items() if not variable.startswith("DUEWHEEL_")},
            "DUEWHEEL_BOOTSTRAP_SERVERS": self._kafka.bootstrap_servers,
            "DUEWHEEL_PREFIX": self._topology.prefix,
            "DUEWHEEL_KAFKA_OPTIONS": " ".join(option for option in options if not _has_space(option)),
            **(environment or {}),
        }
        log = self._run.path / f"{name}.log"
        child = Child(name, [*program, *passed, *arguments], log, self._run.lock, child_environment)
        self.children.append(child)
        child.start()
        return child


def _has_space(text: str) -> bool:
    return text.split() != [text]
