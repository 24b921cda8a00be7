"""What does the shared cache cost, by driver, mode, workers and start?

Runs `orchestrator bench` on each driver, with one results directory each, then compares the first two. After
an interruption the same command resumes. The method is in docs/benchmarking.md; bench_warm.py compares the
harness itself with threads that only call the driver.

Command on 16 cores: python benchmarks/bench_contention.py --set game.foz --workers 1,4,16 --out results
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import environment_for, parser_of
from orchestrator.run.options import available_workers
from orchestrator.sets.sample import sample_path


def main() -> None:
    """Run the matrix on each driver."""
    parser = parser_of(__doc__)
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
    for device in devices:
        folder = options.out / device.replace(":", "-")
        command = [
            *(sys.executable, "-m", "orchestrator", "bench", archive, "-d", device, "-o", str(folder)),
            *("-j", workers, "-n", str(options.samples), "--duplicates", options.duplicates),
            *("--time-limit", options.time_limit),
        ]
        code = subprocess.run(command, check=False, env=environment_for()).returncode
        if code == 130:
            raise SystemExit(code)
        if code == 0:
            done.append(folder)
        else:
            print(f"{device}: left out (exit code {code})", file=sys.stderr)
    if len(done) > 1:
        command = [sys.executable, "-m", "orchestrator", "compare", *map(str, done[:2]), "--fail-on", "never"]
        subprocess.run(command, check=False, env=environment_for())


if __name__ == "__main__":
    main()
