"""How much faster does a driver compile when the C library keeps more freed memory for each thread?

Each sample is a whole `orchestrator compile` with an empty cache directory, timed from outside. The
contenders:

    glibc                  its own settings
    steps                  larger steps of a thread's memory, which the program sets while it runs
    N blocks of B bytes    steps, and N freed blocks of a size, up to B bytes (glibc.malloc.tcache_count,
                           tcache_max); by itself glibc keeps 7, up to 1,032 bytes
    the program's choice   no setting: the program may start again for the blocks, with the time that takes

`peak_mib` is the memory of the largest process.

Command: python benchmarks/bench_allocator.py --device radv:navi21 --set sascha.foz --workers 2 --samples 7
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, compiled, set_parser_of

_BLOCKS = "glibc.malloc.tcache_count={}:glibc.malloc.tcache_max={}"
_OWN = _BLOCKS.format(7, 1_032)
_KEPT = ((1_000, 1_032), (4_000, 1_032), (4_000, 256))
_SETTINGS = {
    "glibc": f"{_OWN}:glibc.malloc.top_pad=131072",  # where the user sets it, the program sets no steps
    "steps": _OWN,
    **{f"{blocks} blocks of {size} bytes": _BLOCKS.format(blocks, size) for blocks, size in _KEPT},
    "the program's choice": "",
}
_VARIABLE = "GLIBC_TUNABLES"


def measure(job: Job) -> Figures:
    """Run one compile."""
    os.environ.pop(_VARIABLE, None)
    if job["tunables"]:
        os.environ[_VARIABLE] = job["tunables"]
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
    jobs: dict[str, Job] = {name: {**common, "tunables": each} for name, each in _SETTINGS.items()}
    compare(__file__, jobs, options, figure=options.figure)


if __name__ == "__main__":
    main()
