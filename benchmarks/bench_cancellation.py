"""Does anything break when runs are cancelled at random moments, and when sessions are steered at random?

Prints a JSON line for runs and one for sessions:

    violations   errors of the simulated device's ownership check, leaks, and lost pipelines: must be 0
    seconds      elapsed time, mostly for starting threads

Every run draws its mode, merge, workers, set, device and moment from the seed (tests/run/cancel_storm.py; the
tests do a part of it). No time passes on the simulated device, so moments between two steps are tried.
Sessions (tests/run/session_storm.py) have one to three callers, who submit, promote, require, budget and
cancel pipelines, groups or all, and end in one of five ways.

It cannot show how a driver misbehaves when a call ends late; fault-injecting tests do that.

Command: python -m benchmarks.bench_cancellation --runs 10000 --sessions 2000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time

import trio
from attrs import asdict

from tests.run.cancel_storm import storm
from tests.run.session_storm import session_storm


def main() -> None:
    """Cancel, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=2_000)
    given = parser.parse_args()
    lost = 0
    for kind, storm_of, number in (("runs", storm, given.runs), ("sessions", session_storm, given.sessions)):
        began = time.perf_counter()
        # A violation is an exception, with the run that showed it in its traceback.
        found = trio.run(storm_of, number, given.seed)
        row = {"storm": kind} | asdict(found)
        row |= {
            "seed": given.seed,
            "violations": 0,
            "seconds": round(time.perf_counter() - began, 1),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
        }
        print(json.dumps(row), flush=True)
        lost += found.lost
    if lost:
        raise SystemExit(f"{lost} compiled pipelines were lost")


if __name__ == "__main__":
    main()
