"""Kafka's jars: fetched once, checked, and shared by every process that uses the same folder.

`infra/broker/jars.lock` pins each jar by version and SHA-256, so a start resolves nothing: it looks for one folder, and when that is
there it opens no socket. When it is not, each jar is fetched through `jgo` (Maven's repository layout, without Maven or Java), checked,
and the whole folder appears at once under its final name. Two processes that find it missing take turns; the second finds it made.

    .duewheel/kafka-4.3.1-5c0a9be3/*.jar      the name ends with the lock's own hash: another lock, another folder

`relock` writes the lock anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from duewheel import resources
from duewheel.core.errors import BadConfiguration, EnvironmentFailure

log = structlog.get_logger(__name__)

FETCHES_AT_ONCE: Final = 4
FETCH_TRIES_MAX: Final = 3
FETCH_TIMEOUT_S: Final = 60  # without a byte


class Jar(NamedTuple):
    """One line of the lock: `group:artifact:version` and the SHA-256 of the file."""

    coordinate: str
    sha256: str

    @property
    def filename(self) -> str:
        _group, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def declaration() -> dict[str, Any]:
    """`infra/broker/broker.toml`."""
    return tomllib.loads((resources.folder("infra/broker") / "broker.toml").read_text())


def locked() -> list[Jar]:
    """`infra/broker/jars.lock`."""
    lines = (resources.folder("infra/broker") / "jars.lock").read_text().splitlines()
    return [Jar(*line.split()) for line in lines if line and not line.startswith("#")]


def folder_name(jars: list[Jar]) -> str:
    """The name of the folder that holds exactly these jars."""
    version = next(jar.coordinate.split(":")[2] for jar in jars if ":kafka_" in jar.coordinate)
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()
    return f"kafka-{version}-{digest[:8]}"


def ensure(folder: Path) -> Path:
    """The folder with Kafka's jars below `folder`, fetched now if it is not there yet (38 MB).

    Raises:
        BadConfiguration: `jgo` is not installed.
        EnvironmentFailure: a jar cannot be fetched, or is not the one that was pinned.
    """
    jars = locked()
    final = folder / folder_name(jars)
    if final.is_dir():
        return final
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder / f"{final.name}.lock"):
        if not final.is_dir():
            log.info("devbroker.fetch_started", jars=len(jars), folder=str(final))
            _fetch_all(jars, final)
    return final


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_all(jars: list[Jar], final: Path) -> None:
    partial = final.with_name(final.name + ".partial")  # what an interrupted fetch left is checked and used
    partial.mkdir(exist_ok=True)
    context = maven_context(partial / "maven")
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        for fetched in [pool.submit(_fetch, context, jar, partial) for jar in jars]:
            fetched.result()
    shutil.rmtree(partial / "maven", ignore_errors=True)
    partial.replace(final)


def _fetch(context: Any, jar: Jar, partial: Path) -> None:
    """Puts one checked jar into `partial`."""
    target = partial / jar.filename
    if target.exists():
        return
    group, artifact, version = jar.coordinate.split(":")
    problem = ""
    for attempt in range(FETCH_TRIES_MAX):
        if attempt:
            time.sleep(attempt)
        try:
            path: Path = context.project(group, artifact).at_version(version).artifact().resolve()
        except Exception as error:  # whatever jgo and its HTTP library raise
            problem = f"{type(error).__name__}: {error}"
            continue
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found == jar.sha256:
            path.replace(target)
            return
        # jgo writes straight to the final name: a fetch that was cut off looks finished.
        path.unlink()
        problem = f"its SHA-256 is {found}, pinned is {jar.sha256}"
    raise EnvironmentFailure(
        f"cannot fetch {jar.coordinate} ({FETCH_TRIES_MAX} tries): {problem}. Check the way to the Maven repository, or name an unpacked "
        f"Kafka distribution with --kafka-home (DUEWHEEL_KAFKA_HOME)"
    )


def maven_context(cache: Path) -> Any:
    """jgo's view of Maven, keeping what it fetches below `cache`.

    Raises:
        BadConfiguration: `jgo` is not installed.
    """
    try:
        from jgo.config import GlobalSettings
        from jgo.maven import MavenContext
    except ModuleNotFoundError as error:
        raise BadConfiguration(
            'Kafka\'s jars are fetched by the package jgo, which is not installed: pip install "duewheel[broker]", or name an unpacked '
            "Kafka distribution with --kafka-home (DUEWHEEL_KAFKA_HOME)"
        ) from error
    # A mirror in the user's own jgo settings is used; otherwise jgo's default, Maven Central.
    mirrors = dict(GlobalSettings.load().repositories) or None
    return MavenContext(repo_cache=cache, remote_repos=mirrors, timeout=FETCH_TIMEOUT_S)
