"""What a bench found: figures with their meaning, the settings they were taken with, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka

# Told now and then: what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

Value = int | float | Sequence[int | float]

_DIGITS: Final = 4  # figures of a noisy machine; more would be a lie


def machine_facts() -> dict[str, Any]:
    """The machine and the versions that matter. `load` is what others did on it during the last minute."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_name(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "rocksdict": metadata.version("rocksdict"),
        "duewheel": metadata.version("duewheel"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class Measure(NamedTuple):
    """One figure. `meaning` tells a reader what was counted from when to when."""

    key: str
    value: Value
    meaning: str


@dataclass(slots=True)
class Report:
    """What one bench found.

    Attributes:
        bench: which.
        settings: what it was run with.
        measures: the figures, most important first.
        kafka: the broker's version, or that it is somebody else's.
    """

    bench: str
    settings: Mapping[str, Any]
    kafka: str
    measures: list[Measure] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine_facts)

    def add(self, key: str, value: Value, meaning: str) -> None:
        """Notes a figure, rounded."""
        self.measures.append(Measure(key, rounded(value) if isinstance(value, int | float) else [rounded(v) for v in value], meaning))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the figures at the top, beside `bench`, `settings` and `machine`."""
        figures = {measure.key: measure.value for measure in self.measures}
        return {"bench": self.bench, **figures, "settings": dict(self.settings), "machine": {**self.machine, "kafka": self.kafka}}


def rounded(value: int | float) -> int | float:
    """Four significant digits; whole numbers stay as they are."""
    if isinstance(value, int):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) >= 10 ** (_DIGITS - 1) else short
