"""Runs the simulator.

python -m tests.simulation --seeds 1000      seeds 1 to 1000, on all cores; says which fail, and ends with how many
python -m tests.simulation --seed 4711       this one, with its last events
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from typing import Final

from duewheel.adapters.memory.world import START_MS
from tests.simulation.coverage import SEEDS_MIN, missing
from tests.simulation.crowd import be_quiet, outcomes
from tests.simulation.trial import Trial

FAILURES_SHOWN: Final = 5
_PROGRESS_EVERY_S: Final = 10.0


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
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many run seeds at a time (default: one a core)")
    options = parser.parse_args()
    if not options.logs:
        be_quiet()
    if options.seed is not None:
        trial = Trial(options.seed, options.calm)
        trial.run()
        for event in trial.history:
            if options.job and getattr(event, "job_id", None) == options.job:
                sys.stdout.write(f"{(event.at_ms - START_MS) / 1000:12.3f} {event}\n")
        sys.stdout.write(trial.account() + "\n")
        return 1 if trial.verdict else 0
    seeds = range(options.first, options.first + options.seeds)
    return _many(seeds, options.calm, min(options.processes, len(seeds)), options.logs)


def _many(seeds: range, calm: bool, processes: int, logs: bool) -> int:
    failed, met, cpu_s, began_s, shown_s = list[int](), Counter[str](), 0.0, time.monotonic(), time.monotonic()
    with outcomes(seeds, calm, processes, logs) as came:
        for done, (seed, met_here, wrong, account, took_s) in enumerate(came, 1):
            met.update(met_here)
            cpu_s += took_s
            if wrong:
                failed.append(seed)
                sys.stdout.write(f"{account}\n\n" if len(failed) <= FAILURES_SHOWN else f"seed {seed} fails: {wrong}\n")
                sys.stdout.flush()
            if (now_s := time.monotonic()) - shown_s >= _PROGRESS_EVERY_S:
                shown_s = now_s
                left_s = (now_s - began_s) / done * (len(seeds) - done)
                sys.stderr.write(f"{done:,} of {len(seeds):,} seeds, {len(failed)} failed, about {left_s / 60:.0f} min left\n")
    failed.sort()
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(met.items()))
    sys.stdout.write(f"faults: {faults or 'none'}\n")
    never = [] if calm or len(seeds) < SEEDS_MIN else missing(met)
    if never:
        sys.stdout.write(f"VACUOUS: never happened: {', '.join(never)}\n")
    sys.stdout.write(f"{len(seeds)} seeds, {len(failed)} failed {failed or ''}, {cpu_s:.0f} s of CPU\n")
    return 1 if failed or never else 0


if __name__ == "__main__":
    sys.exit(main())
