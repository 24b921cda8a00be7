"""What does it cost to read clocks around every call?

Compares the same run with and without reading clocks; without, the readings are constant zeros.

    warm    only hits, in calls of the given sizes: the shortest calls, so the worst case
    cold    the sample set, compiled

Pairs of runs show nothing below the noise of the machine. So the share is also computed: the time of the two
readings around a call, times the calls of the run, over the time of all workers.

Command: python benchmarks/bench_measuring.py --device radv:navi21 --workers 2 --batches 64,1024
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of, run_now
from benchmarks.warm import fill, make_set, many_times, run_warm
from orchestrator.devices.device import CacheMode
from orchestrator.run import execution
from orchestrator.run.accounting import Reading, ThreadMeter
from orchestrator.run.options import RunOptions, available_workers
from orchestrator.run.records import RunReport
from orchestrator.sets.sample import sample_path

NOTHING = Reading(0, 0, 0)


class NoClocks(ThreadMeter):
    """A meter that reads nothing."""

    def begin(self) -> Reading:
        """No reading."""
        return NOTHING

    def end(self) -> Reading:
        """No reading."""
        return NOTHING


def measure(job: Job) -> Figures:
    """One run, measured or not."""
    meter = ThreadMeter if job["clocks"] else NoClocks
    with mock.patch.object(execution, "ThreadMeter", meter):
        report = run(job)
    seconds = report.timing.wall_ns / 1e9
    around_s = reading_s()
    return {
        "seconds": seconds,
        "created": report.compiled + report.cache_hits,
        "calls": len(report.calls),
        "reading_us": around_s * 1e6,
        "share": around_s * len(report.calls) / (seconds * job["workers"]),
    }


def reading_s() -> float:
    """What the two readings around a call take, where each asks the thread for its run delay."""
    count = 20_000
    with ThreadMeter() as meter:
        began = time.perf_counter()
        for _ in range(count):
            meter.begin()
            meter.end()
        plain = (time.perf_counter() - began) / count
        began = time.perf_counter()
        for _ in range(count):
            meter.run_delay_ns()
        asked = (time.perf_counter() - began) / count
    return plain + 2 * asked


def run(job: Job) -> RunReport:
    """The run."""
    warm = bool(job["batch"])
    with many_times(job) as (device, prepared):
        if warm:
            data = Path(job["data"]).read_bytes()
            return run_warm(device, prepared, CacheMode.PER_WORKER, job["workers"], job["batch"], data)

        return run_now(device, prepared, RunOptions(workers=job["workers"]))


def main() -> None:
    """Warm in calls of each size, then cold."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="radv:navi21", help="selector of the device")
    parser.add_argument("--workers", type=int, default=available_workers(), help="number of workers")
    parser.add_argument("--batches", default="64,1024", help="pipelines in a warm call")
    parser.add_argument("--passes", type=int, default=200, help="how often the set is in a warm run")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    with tempfile.TemporaryDirectory() as folder:
        archive, data = str(make_set(Path(folder))), Path(folder) / "cache"
        fill(options.device, archive, data)
        base = {"device": options.device, "workers": options.workers}
        warm = {**base, "set": archive, "data": str(data), "passes": options.passes}
        cases = {f"warm, {each} a call": {**warm, "batch": int(each)} for each in options.batches.split(",")}
        cases["cold"] = {**base, "set": str(sample_path()), "passes": 1, "batch": 0}
        for name, job in cases.items():
            jobs = {
                f"{name}, {'measured' if clocks else 'not measured'}": {**job, "clocks": clocks}
                for clocks in (False, True)
            }
            rows = compare(__file__, jobs, options, figure="seconds")
            shares = [row["share"] for row in rows if row["round"] >= 0 and row["clocks"]]
            print(
                f"{name}: readings take {statistics.median(row['reading_us'] for row in rows):.2f} us a call "
                f"at most, {statistics.median(shares):.2%} of the workers' time [{min(shares):.2%}, "
                f"{max(shares):.2%}]",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
