"""Many seeds, on several cores."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import NamedTuple

import structlog

from tests.simulation.trial import Trial


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    met: Counter[str]
    wrong: str
    account: str
    cpu_s: float


def be_quiet() -> None:
    """Lets what runs say nothing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def outcome(seed: int, calm: bool) -> Outcome:
    """Runs one seed."""
    began_s = time.process_time()
    trial = Trial(seed, calm)
    trial.run()
    wrong = f"{trial.verdict[0]}" if trial.verdict else ""
    return Outcome(seed, trial.met, wrong, trial.account() if wrong else "", time.process_time() - began_s)


@contextmanager
def outcomes(seeds: range, calm: bool, processes: int, logs: bool) -> Iterator[Iterator[Outcome]]:
    """Runs seeds in so many processes; gives their outcomes as they come."""
    if processes < 2:
        yield (outcome(seed, calm) for seed in seeds)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), None if logs else be_quiet) as pool:
        yield (future.result() for future in as_completed([pool.submit(outcome, seed, calm) for seed in seeds]))
