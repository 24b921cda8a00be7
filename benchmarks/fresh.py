"""What the scripts here share: contenders in fresh processes, in turn, the first one twice as an A/A control.

A script gives its contenders as jobs (values that JSON has) and a function that does one job and returns
figures. It calls itself with --measure JOB for each sample. `opened` gives a job its device and
pipelines, `run_now` a run.

Guarantees: JSON lines out, and a small table with medians, intervals and ratios. The first round is a warm-up
and is left out of the table, not of the lines. Every line names the machine, its load, the versions, the
script and the command; of files it says the name and not the folder, so that lines can be handed on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from orchestrator.bench.contention import ratio_text
from orchestrator.bench.statistics import Difference, estimate, noise_by_round, ratio_by_round
from orchestrator.bench.take import no_garbage_collection, processor_name
from orchestrator.devices import open_device, own_process
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions, available_workers
from orchestrator.run.records import RunReport
from orchestrator.sets.opening import open_paths
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.sample import sample_path
from orchestrator.version import VERSION

Job = dict[str, Any]
Figures = dict[str, Any]
CONTROL = " (again)"


def parser_of(question: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--samples", type=int, default=7, help="samples of each contender, beside a warm-up")
    parser.add_argument("--output", type=Path, help="file for the JSON lines, instead of stdout")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


def set_parser_of(question: str, *, workers: int | None = None) -> argparse.ArgumentParser:
    """The options of a script that asks about a set on a device."""
    parser = parser_of(question)
    parser.add_argument("--device", default="simulated", help="as in `orchestrator compile --device`")
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    if workers is not None:
        parser.add_argument("--workers", type=int, default=workers, help="number of workers")
    return parser


def answer_if_asked(options: argparse.Namespace, measure: Callable[[Job], Figures]) -> bool:
    """Be the process of one sample, where this process is one."""
    if options.measure is None:
        return False
    job: Job = json.loads(options.measure)
    if "device" in job:
        os.environ.update(job.get("environment", {}))
        own_process(job["device"], driver_caches=job.get("driver_caches", False))
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
    table(rows, order[:-1], figure, lower_is_better=lower_is_better)
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
    if isinstance(value, list):
        return [_without_folder(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


@contextmanager
def opened(
    job: Job, arrange: Callable[[CreateInfoImage], CreateInfoImage] = lambda image: image
) -> Iterator[tuple[Device, PreparedPipelines]]:
    """The set of a job on its device, opened as `compile` opens it: the first group of features.

    Args:
        job: Has "device" and "set".
        arrange: Makes another image of the group's.
    """

    def opener(request: DeviceRequest) -> Device:
        return open_device(job["device"], request=request)

    with open_paths((job["set"],)) as source, closing(opened_groups(source, opener)) as groups:
        group = next(each for each in groups if len(each.built.image))
        with closing(group.device.prepare(arrange(group.built.image))) as prepared:
            yield group.device, prepared


def run_now(device: Device, prepared: PreparedPipelines, options: RunOptions, **more: Any) -> RunReport:
    """A run while the garbage collector rests; `more` is what `run_pipelines` takes besides."""
    with no_garbage_collection():
        return trio.run(partial(run_pipelines, device, prepared, options, **more))


def where(device: Device) -> Figures:
    """The device and driver, for a row."""
    identity = device.identity
    return {"driver": f"{identity.driver_name} {identity.driver_info}", "device_name": identity.device_name}


def machine() -> dict[str, Any]:
    """Where a sample was taken, and how."""
    return {
        "cores": available_workers(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "orchestrator": VERSION,
        "command": " ".join(["python", *map(_without_folder, sys.argv)]),
        "at": time.time(),
    }


def table(
    rows: Sequence[dict[str, Any]], names: Sequence[str], figure: str, *, lower_is_better: bool
) -> None:
    """Print medians and ratios to the first contender, to stderr, so that stdout holds lines only.

    Args:
        rows: Samples: contender, round, and figures; rounds below 0 are warm-ups.
        names: The contenders; the first one is the baseline.
        figure: The figure that the table is about.
        lower_is_better: Whether it is a time rather than a rate.
    """

    def values(name: str) -> dict[int, float]:
        return {row["round"]: row[figure] for row in rows if row["contender"] == name and row["round"] >= 0}

    if not values(names[0]):
        return
    base = values(names[0])
    noise = noise_by_round(base, values(names[0] + CONTROL), float)
    if noise is not None:
        print(f"{figure}; A/A within {noise.factor - 1:.1%}", file=sys.stderr)
    for name in names:
        found = estimate(list(values(name).values()))
        text = f"{name:32} {found.median:12.6g} [{found.low:.6g}, {found.high:.6g}]"
        ratio = ratio_by_round(values(name), base, float)
        if name != names[0] and ratio is not None:
            difference = Difference(ratio, noise)
            better = difference.lower if lower_is_better else difference.higher
            word = "within noise" if not difference.beyond_noise else "better" if better else "worse"
            text += f"  {ratio_text(ratio)} {word}"
        print(text, file=sys.stderr)
