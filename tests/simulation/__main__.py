"""Runs the simulator.

python -m tests.simulation --seeds 1000      seeds 1 to 1000; says which fail, and ends with how many
python -m tests.simulation --seed 4711       this one, with its last events
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

import structlog

from duewheel.adapters.memory.world import START_MS
from tests.simulation.coverage import SEEDS_MIN, missing
from tests.simulation.trial import Trial

FAILURES_SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--calm", action="store_true", help="nothing goes wrong")
    parser.add_argument("--job", help="of a single seed, tell this job's story")
    parser.add_argument("--logs", action="store_true", help="show what the processes log")
    options = parser.parse_args()
    if not options.logs:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.seed is not None:
        trial = Trial(options.seed, options.calm)
        trial.run()
        for event in trial.history:
            if options.job and getattr(event, "job_id", None) == options.job:
                sys.stdout.write(f"{(event.at_ms - START_MS) / 1000:12.3f} {event}\n")
        sys.stdout.write(trial.account() + "\n")
        return 1 if trial.verdict else 0
    return _many(range(options.first, options.first + options.seeds), options.calm)


def _many(seeds: range, calm: bool) -> int:
    failed, met, began_s = [], Counter[str](), time.process_time()
    for seed in seeds:
        trial = Trial(seed, calm)
        trial.run()
        met += trial.met
        if trial.verdict:
            failed.append(seed)
            if len(failed) <= FAILURES_SHOWN:
                sys.stdout.write(trial.account() + "\n\n")
            else:
                sys.stdout.write(f"seed {seed} fails: {trial.verdict[0]}\n")
            sys.stdout.flush()
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(met.items()))
    sys.stdout.write(f"faults: {faults or 'none'}\n")
    never = [] if calm or len(seeds) < SEEDS_MIN else missing(met)
    if never:
        sys.stdout.write(f"VACUOUS: never happened: {', '.join(never)}\n")
    sys.stdout.write(f"{len(seeds)} seeds, {len(failed)} failed {failed or ''}, {time.process_time() - began_s:.0f} s of CPU\n")
    return 1 if failed or never else 0


if __name__ == "__main__":
    sys.exit(main())
