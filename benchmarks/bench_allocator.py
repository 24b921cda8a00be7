"""How much faster does a driver compile when the C library keeps more freed blocks for each thread?

Each sample is a whole `orchestrator compile` with an empty cache directory, timed from outside. A contender
is how many blocks of a size glibc keeps, and up to what size (glibc.malloc.tcache_count, tcache_max); by
itself it keeps 7, up to 1,032 bytes. The last contender has no setting: the program chooses, with the start
that this takes. `peak_mib` is the memory of its largest process. All of
them have the larger steps that the program sets (`keep_freed_memory`).

Command: python benchmarks/bench_allocator.py --device radv:navi21 --set sascha.foz --workers 2 --samples 7
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, compiled, set_parser_of

_SETTINGS = ((7, 1_032), (1_000, 1_032), (4_000, 1_032), (4_000, 256))
_VARIABLE = "GLIBC_TUNABLES"


def measure(job: Job) -> Figures:
    """Run one compile."""
    os.environ.pop(_VARIABLE, None)
    if job["kept"]:
        blocks, size = job["kept"]
        os.environ[_VARIABLE] = f"glibc.malloc.tcache_count={blocks}:glibc.malloc.tcache_max={size}"
    with tempfile.TemporaryDirectory() as folder:
        figures, report = compiled(job["set"], job["target"], job["workers"], Path(folder, "cache"))
    return {
        "seconds": figures["wall_s"],
        "cpu_s": figures["cpu_s"],
        "peak_mib": figures["peak_mib"],
        "driver_s": report["timing"]["driver_s"],
        "compiled": report["outcomes"]["compiled"],
    }


def main() -> None:
    """Measure each setting, and the program's choice."""
    parser = set_parser_of(__doc__, workers=2)
    parser.add_argument("--figure", default="cpu_s", help="seconds, cpu_s, driver_s or peak_mib")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    common = {"set": options.set, "target": options.device, "workers": options.workers}
    jobs: dict[str, Job] = {
        f"{blocks} blocks of {size} bytes": {**common, "kept": [blocks, size]} for blocks, size in _SETTINGS
    }
    jobs["the program's choice"] = {**common, "kept": []}
    compare(__file__, jobs, options, figure=options.figure)


if __name__ == "__main__":
    main()
