"""Cost of a shared cache.

What does the shared cache cost, by driver, mode, workers and temperature?

This is `orchestrator bench` over every driver that is there, one results directory each, with the report of
each and the comparison of the first two at the end. Interrupted, the same command goes on. The method is in
docs/benchmarking.md.

How close the harness itself comes to threads that only call the driver is bench_warm.py's question.

Command on 16 cores: python benchmarks/bench_contention.py --set game.foz --workers 1,4,16 --out results
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import parser_of
from orchestrator.run.options import available_workers
from orchestrator.sets.sample import sample_path


def main() -> None:
    """Run the matrix on each driver."""
    parser = parser_of("What does the shared cache cost, by driver, mode, workers and temperature?")
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    parser.add_argument(
        "--devices", default="radv:navi21,nvidia,lavapipe", help="selectors, commas between them"
    )
    parser.add_argument(
        "--workers", default="", help="numbers of workers; default: 1, 4, and one a processor"
    )
    parser.add_argument("--duplicates", default="0", help="shares of duplicates")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    parser.add_argument("--time-limit", default="2h", help="limit for each device")
    options = parser.parse_args()
    archive = str(Path(options.set).resolve())
    workers = options.workers or ",".join(map(str, sorted({1, 4, available_workers()})))
    devices = options.devices.split(",")
    done = []
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    for device in devices:
        folder = options.out / device.replace(":", "-")
        command = [
            *(sys.executable, "-m", "orchestrator", "bench", archive, "-d", device, "-o", str(folder)),
            *("-j", workers, "-n", str(options.samples), "--duplicates", options.duplicates),
            *("--time-limit", options.time_limit),
        ]
        code = subprocess.run(command, check=False, env=environment).returncode
        if code == 130:
            raise SystemExit(code)
        if code == 0:
            done.append(folder)
        else:
            print(f"{device}: left out (exit code {code})", file=sys.stderr)
    if len(done) > 1:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "orchestrator",
                "compare",
                str(done[0]),
                str(done[1]),
                "--fail-on",
                "never",
            ],
            check=False,
        )


if __name__ == "__main__":
    main()
