# Purpose: what the scripts here share: contenders in fresh processes, interleaved, the first one measured twice as an A/A
# control, JSON lines out, and a small table with medians, intervals and ratios at the end.
#
# A script gives its contenders as jobs (values that JSON has) and a function that does one job and returns figures. The
# script calls itself with --measure JOB for each sample.
#
# Guarantees: the first round is a warm-up and is left out of the table, not of the lines. Every line names the machine, its load,
# the versions, the script and the command; of files it says the name and not the folder, so that lines can be handed on.
"""Fresh processes, interleaved, for the scripts in this folder."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.bench.contention import ratio_text
from orchestrator.bench.statistics import Difference, by_round, estimate, noise_of, paired_ratio
from orchestrator.devices import own_process

Job = dict[str, Any]
Figures = dict[str, float]
CONTROL = " (again)"


def parser_of(question: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--samples", type=int, default=7, help="samples of each contender, beside a warm-up")
    parser.add_argument("--output", type=Path, help="file for the JSON lines, instead of stdout")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


def answer_if_asked(options: argparse.Namespace, measure: Callable[[Job], Figures]) -> bool:
    """Be the process of one sample, where this process is one."""
    if options.measure is None:
        return False
    job: Job = json.loads(options.measure)
    if "device" in job:
        own_process(job["device"])
    print(json.dumps(measure(job)))
    return True


def compare(
    script: str,
    jobs: Mapping[str, Job],
    options: argparse.Namespace,
    *,
    figure: str,
    lower_is_better: bool = True,
) -> list[dict[str, Any]]:
    """Measure contenders against each other; the first one is the baseline.

    Args:
        script: Path of the script.
        jobs: Its contenders by name.
        options: What `parser_of` parsed.
        figure: The figure that the table is about.
        lower_is_better: Whether it is a time rather than a rate.

    Returns:
        The rows.
    """
    baseline = next(iter(jobs))
    arms = {**jobs, baseline + CONTROL: jobs[baseline]}
    order = list(arms)
    rows: list[dict[str, Any]] = []
    stream = options.output.open("a", encoding="utf-8") if options.output else sys.stdout
    try:
        for number in range(-1, options.samples):
            turn = max(number, 0) % len(order)
            for name in (*order[turn:], *order[:turn]):
                row = {
                    "benchmark": Path(script).stem,
                    "contender": name,
                    "round": number,
                    **{key: _without_folder(value) for key, value in arms[name].items()},
                    **in_process(script, arms[name]),
                    **machine(),
                }
                rows.append(row)
                stream.write(json.dumps(row) + "\n")
                stream.flush()
    finally:
        if options.output:
            stream.close()
    _table(rows, order[:-1], figure, lower_is_better=lower_is_better)
    return rows


def in_process(script: str, job: Job) -> Figures:
    """Do one job of a script in a fresh process."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, script, "--measure", json.dumps(job)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a sample of {Path(script).name} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _without_folder(value: Any) -> Any:
    """A value of a job or command; of a path its last part."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def machine() -> dict[str, Any]:
    """Where a sample was taken, and how."""
    try:
        version = metadata.version("orchestrator")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "orchestrator": version,
        "command": " ".join(["python", *map(_without_folder, sys.argv)]),
        "at": time.time(),
    }


def _processor() -> str:
    """What the processor calls itself, where the system says."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def _table(
    rows: Sequence[dict[str, Any]], names: Sequence[str], figure: str, *, lower_is_better: bool
) -> None:
    """Medians and ratios, to stderr, so that stdout holds lines only."""

    def values(name: str) -> dict[int, float]:
        return {row["round"]: row[figure] for row in rows if row["contender"] == name and row["round"] >= 0}

    if not values(names[0]):
        return
    base = values(names[0])
    first, second = by_round(base, values(names[0] + CONTROL), float)
    noise = noise_of(first, second) if first else None
    if noise is not None:
        print(f"{figure}; A/A within {noise.factor - 1:.1%}", file=sys.stderr)
    for name in names:
        found = estimate(list(values(name).values()))
        text = f"{name:32} {found.median:12.6g} [{found.low:.6g}, {found.high:.6g}]"
        below, above = by_round(base, values(name), float)
        if name != names[0] and below:
            ratio = paired_ratio(above, below)
            difference = Difference(ratio, noise)
            better = difference.lower if lower_is_better else difference.higher
            word = "within noise" if not difference.beyond_noise else "better" if better else "worse"
            text += f"  {ratio_text(ratio)} {word}"
        print(text, file=sys.stderr)
