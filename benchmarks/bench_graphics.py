"""What does a shared cache cost on captured graphics pipelines, and what does `calibrate` choose for them?

Runs `orchestrator bench` for each driver and set (shared and per-worker, all processors), then `orchestrator
calibrate` if asked, which takes several times as long; each gets its share of the time. The verbs leave out
what does not fit, so that the rest has its pairs and its control. The results are DEVICE-SET.results.jsonl,
.report.html, .report.csv, .report.md, .calibration.json and .calibration.txt, and a README.md with all
tables.

Command on 16 cores: python benchmarks/bench_graphics.py --sets ../shared/corpora --minutes 8.5 --out OUT
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import environment_for
from orchestrator.bench.take import processor_name
from orchestrator.run.options import available_workers
from orchestrator.version import VERSION

# NVIDIA's driver takes several times as long per pipeline, and to open a device.
WEIGHTS = {"nvidia": 2.0}
BENCH_SHARE = 0.25
START_UP_S = 4.0
"""What a command needs beside the time that its --time-limit counts."""


def call(*arguments: str | Path, output: Path) -> int:
    """Run a verb with its stdout in a file; the exit code."""
    command = [sys.executable, "-m", "orchestrator", *map(str, arguments)]
    with output.open("w") as text:
        return subprocess.run(command, check=False, env=environment_for(), stdout=text).returncode


def main() -> None:
    """Measure, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=Path, required=True, help="the folder of the archives")
    parser.add_argument("--names", default="sascha,placebo,wgpu", help="archives, without their ending")
    parser.add_argument("--devices", default="radv:navi21,nvidia", help="selectors, commas between them")
    parser.add_argument(
        "--calibrate", default="radv:navi21/sascha", help="DEVICE/SET that are calibrated too"
    )
    parser.add_argument("--minutes", type=float, default=8.5, help="end within so many minutes")
    parser.add_argument("--out", type=Path, required=True, help="the folder for results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ends_at = time.monotonic() + 60 * options.minutes
    jobs = [(device, name) for name in options.names.split(",") for device in options.devices.split(",")]
    calibrated = set(options.calibrate.split(","))
    weights = [
        WEIGHTS.get(device, 1.0) * (1 / BENCH_SHARE if f"{device}/{name}" in calibrated else 1)
        for device, name in jobs
    ]
    failed: list[str] = []
    for place, (device, name) in enumerate(jobs):
        left = ends_at - time.monotonic()
        share = left * weights[place] / sum(weights[place:])
        stem = f"{device.replace(':', '-')}-{name}"
        print(f"{stem}: {share:.0f} s of the {left:.0f} s that are left", flush=True)
        also = f"{device}/{name}" in calibrated
        failed += measure(device, options.sets / f"{name}.foz", options.out / stem, share, calibrated=also)
    write_readme(
        options.out, options.minutes, [f"{device.replace(':', '-')}-{name}" for device, name in jobs], failed
    )
    print(
        f"{60 * options.minutes - (ends_at - time.monotonic()):.0f} s in all; {len(failed)} commands failed"
    )
    raise SystemExit(1 if failed else 0)


def measure(device: str, archive: Path, stem: Path, share_s: float, *, calibrated: bool) -> list[str]:
    """Matrix and calibration of a set on a driver; the commands that failed."""
    failed = []
    with tempfile.TemporaryDirectory() as work:
        results, profiles = Path(work, "results"), Path(work, "profiles")
        limit = max(1.0, share_s * (BENCH_SHARE if calibrated else 1.0) - START_UP_S)
        started = time.monotonic()
        code = call(
            *("bench", archive, "-d", device, "-o", results),
            *("-j", str(available_workers()), "--samples", "5"),
            *("--modes", "shared,per-worker", "--warm-passes", "20", "--time-limit", f"{limit:.0f}s"),
            output=Path(f"{stem}.txt"),
        )
        if code:
            failed.append(f"bench {device} {archive.name}: {code}")
        for file in results.glob("re*.*"):
            shutil.copy(file, f"{stem}.{file.name}")
        if not calibrated:
            return failed
        limit = max(1.0, share_s - (time.monotonic() - started) - START_UP_S)
        code = call(
            *("calibrate", "-d", device, "--set", archive, "--samples", "5"),
            *("--time-limit", f"{limit:.0f}s", "--cache-dir", profiles),
            output=Path(f"{stem}.calibration.txt"),
        )
        if code:
            failed.append(f"calibrate {device} {archive.name}: {code}")
        for file in profiles.glob("*.calibration.json"):
            shutil.copy(file, f"{stem}.calibration.json")
    return failed


def write_readme(out: Path, minutes: float, stems: list[str], failed: list[str]) -> None:
    """What was measured where, with each matrix and what each calibration said."""
    lines = [
        "# Real graphics sets: matrix and calibration",
        "",
        f"{available_workers()} cores of {processor_name()}; Python {platform.python_version()}, "
        f"orchestrator {VERSION}. Taken by `benchmarks/bench_graphics.py` in one call of {minutes:g} "
        "minutes; the sets are captures of real programs, and lie beside the checkout.",
        "",
    ]
    lines += [f"- failed: {each}" for each in failed]
    for stem in stems:
        matrix, calibration = out / f"{stem}.report.md", out / f"{stem}.calibration.txt"
        lines += [f"## {stem}", "", matrix.read_text() if matrix.is_file() else "No cell was measured.", ""]
        if calibration.is_file():
            lines += ["```", calibration.read_text().rstrip(), "```", ""]
    (out / "README.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
