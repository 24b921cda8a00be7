"""What does compiling in a supervised child cost, compared with threads in the same process?

Each sample is a whole `orchestrator compile` with an empty cache directory, timed from outside, on a set that
never crashes. CPU time includes all processes; on a busy machine compare it. `run_s` is the time from the
first pipeline to the barrier, from the report. A set of one pipeline shows the cost of starting.

Command: python benchmarks/bench_supervised.py --device radv:navi21 --set sascha.foz --samples 9
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, compiled, set_parser_of


def measure(job: Job) -> Figures:
    """Run one compile."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        figures, report = compiled(job["set"], job["target"], job["workers"], cache, *job["options"])
    return {
        "seconds": figures["wall_s"],
        "cpu_s": figures["cpu_s"],
        "run_s": report["timing"]["wall_s"],
        "compiled": report["outcomes"]["compiled"],
    }


def main() -> None:
    """Measure both ways."""
    parser = set_parser_of(__doc__, workers=2)
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
