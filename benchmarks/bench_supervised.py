"""Cost of supervising.

What does compiling in a supervised child cost, against threads in the same process, on a set that never
crashes?

Each sample is a whole `orchestrator compile` with an empty cache directory, timed from outside, start to end;
its CPU time is that of all its processes, and says more on a busy machine. `run_s` is the time from the first
pipeline to the barrier, as the report has it. A set of one pipeline shows what starting costs.

Command: python benchmarks/bench_supervised.py --device radv:navi21 --set sascha.foz --samples 9
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, set_parser_of


def measure(job: Job) -> Figures:
    """Compile once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "orchestrator", "compile", job["set"], "--json"]
        command += ["--device", job["target"], "--workers", str(job["workers"]), "--cache-dir", folder]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run([*command, *job["options"]], check=True, capture_output=True)
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    return {
        "seconds": seconds,
        "cpu_s": after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime,
        "run_s": report["timing"]["wall_s"],
        "compiled": report["outcomes"]["compiled"],
    }


def main() -> None:
    """Measure both ways."""
    parser = set_parser_of("What does compiling in a supervised child cost?", workers=2)
    parser.add_argument("--figure", default="cpu_s", help="seconds, cpu_s or run_s")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    common = {"set": options.set, "target": options.device, "workers": options.workers}
    jobs = {
        "threads in this process": {**common, "options": ["--in-process", "--merge", "barrier"]},
        "threads in this process, rolling merge": {
            **common,
            "options": ["--in-process", "--merge", "rolling"],
        },
        "supervised child": {**common, "options": []},
    }
    compare(__file__, jobs, options, figure=options.figure)


if __name__ == "__main__":
    main()
