"""What do groups of a set beside each other save, compared with one group after the other?

While one compiles, the next one is opened, decoded and made ready, and the one before is saved.

Each sample compiles sets as one, in a process of its own: `cold_s` with an empty cache directory, `warm_s`
again with what that saved. Both are the time of `compile_set`, with the driver's own caches off. Sets of
several applications have several groups; of one group both ways are the same. With as many workers as
processors the work of opening is only moved, and the driver's waits are saved.

Command: python benchmarks/bench_ahead.py --device radv:navi21 --samples 9 sascha.foz wgpu.foz placebo.foz
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of, table
from orchestrator.malloc import keep_freed_memory
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.sets.opening import open_paths

_FIGURES = ("cold_s", "warm_s")


def measure(job: Job) -> Figures:
    """Compile the sets twice."""
    keep_freed_memory()  # as `compile` does
    options = CompileOptions(
        selector=job["device"], workers=job["workers"], mode=None, open_ahead=job["open_ahead"]
    )
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for figure in _FIGURES:
            with open_paths(job["sets"]) as source:
                began = time.perf_counter()
                report = trio.run(partial(compile_set, source, options, cache_directory=folder))
                figures[figure] = time.perf_counter() - began
            figures[f"{figure.removesuffix('_s')}_counts"] = {
                "groups": len(report.runs),
                "compiled": report.outcomes.compiled,
                "cache_hits": report.outcomes.cache_hits,
            }
    return figures


def main() -> None:
    """Measure both ways."""
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", help="archives, compiled as one set")
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    if not options.sets:
        parser.error("name the archives of a set")
    common = {"device": options.device, "sets": options.sets, "workers": options.workers}
    jobs = {
        "one after the other": {**common, "open_ahead": False},
        "opened ahead": {**common, "open_ahead": True},
    }
    cold, warm = _FIGURES
    rows = compare(__file__, jobs, options, figure=cold)
    table(rows, list(jobs), warm, lower_is_better=True)


if __name__ == "__main__":
    main()
