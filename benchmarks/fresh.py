"""Shared code of the benchmark scripts: interleaved contenders in fresh processes, with an A/A control.

A script passes its contenders as jobs (JSON values) and a function that does one job and returns figures. For
each sample it calls itself with --measure JOB.

Guarantees: the output is JSON lines, and a small table with medians, intervals and ratios on stderr. The
table omits the first round, a warm-up; the lines do not. Every line names the machine, its load, the
versions, the script and the command, and files without their folder.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from orchestrator.bench.contention import noise_text, ratio_text
from orchestrator.bench.runner import in_turn
from orchestrator.bench.statistics import Difference, estimate, ratio_by_round
from orchestrator.bench.take import no_garbage_collection, processor_name
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.opening import open_device, own_process
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.selectors import environment_of
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions, available_workers
from orchestrator.run.records import RunReport
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.opening import open_paths
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.sample import sample_path
from orchestrator.version import VERSION

Job = dict[str, Any]
Figures = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
CONTROL = " (again)"
LIBRARIES = "import trio, numpy, attrs, msgspec, cffi"
"""What an interpreter imports at least for any run."""
_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans among the processes below this one become its children


def parser_of(question: str | None) -> argparse.ArgumentParser:
    """The options that every script has; the help shows the first line of the question."""
    parser = argparse.ArgumentParser(description=(question or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=7, help="samples of each contender, beside a warm-up")
    parser.add_argument("--output", type=Path, help="file for the JSON lines, instead of stdout")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


def set_parser_of(question: str | None, *, workers: int | None = None) -> argparse.ArgumentParser:
    """The options of a script about a set on a device."""
    parser = parser_of(question)
    parser.add_argument("--device", default="simulated", help="as in `orchestrator compile --device`")
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    if workers is not None:
        parser.add_argument("--workers", type=int, default=workers, help="number of workers")
    return parser


def answer_if_asked(options: argparse.Namespace, measure: Callable[[Job], Figures]) -> bool:
    """Take one sample if this process was started for it; returns whether it was."""
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
    """Compare contenders; the first one is the baseline.

    Args:
        script: Path of the script.
        jobs: Its contenders by name.
        options: The options of `parser_of`.
        figure: The figure to show in the table.
        lower_is_better: True for a time, false for a rate.

    Returns:
        The rows.
    """
    baseline = next(iter(jobs))
    arms = {**jobs, baseline + CONTROL: jobs[baseline]}
    rows: list[dict[str, Any]] = []
    with row_writer(options) as write:
        for number, name in in_turns(list(arms), options.samples):
            row = {
                "benchmark": Path(script).stem,
                "contender": name,
                "round": number,
                **{key: _without_folder(value) for key, value in arms[name].items()},
                **in_process(script, arms[name]),
                **machine(),
            }
            rows.append(row)
            write(row)
    table(rows, list(jobs), figure, lower_is_better=lower_is_better)
    return rows


def in_turns(names: Sequence[str], samples: int, *, first: int = -1) -> Iterator[tuple[int, str]]:
    """The number of the round and the contender of each sample; rounds below 0 are warm-ups."""
    for number in range(first, samples):
        for name in in_turn(names, number):
            yield number, name


@contextmanager
def row_writer(options: argparse.Namespace) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Writes rows as JSON lines to the output of `parser_of`, each at once."""
    with options.output.open("a", encoding="utf-8") if options.output else nullcontext(sys.stdout) as stream:

        def write(row: Mapping[str, Any]) -> None:
            print(json.dumps(row), file=stream, flush=True)

        yield write


def environment_for(device: str = "", checkout: Path = ROOT) -> dict[str, str]:
    """The environment of a fresh process: finds the package, selects a device, and keeps byte code."""
    own = {**os.environ, **(environment_of(device) if device else {})}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(checkout), own.get("PYTHONPATH", "")]))
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return own


def measured(command: Sequence[str], environment: Mapping[str, str], output: Path) -> Figures:
    """Run a process and wait for it and for all that it started; stdout goes to a file.

    CPU time is that of all these processes, since a supervised compile does not wait for every child.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    cpu_s, peak, wall_s = 0.0, 0, 0.0
    with output.open("wb") as stdout:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.DEVNULL)
        with suppress(ChildProcessError):  # until there is none
            while True:
                ended, status, used = os.wait4(-1, 0)
                cpu_s, peak = cpu_s + used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss)
                if ended == process.pid:
                    wall_s = time.perf_counter() - began
                    process.returncode = os.waitstatus_to_exitcode(status)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": peak / 1024, "exit": process.returncode}


def compiled(
    archive: str | Path, device: str, workers: int, cache: Path, *more: str, checkout: Path = ROOT
) -> tuple[Figures, Any]:
    """Run `orchestrator compile` of a checkout; the figures of `measured`, and the JSON document.

    Raises:
        SystemExit: The document is an error.
    """
    arguments = ["compile", str(archive), "--device", device, "--workers", str(workers), "--json"]
    program = str(checkout / "orchestrator" / "__main__.py")
    command = [sys.executable, program, *arguments, "--cache-dir", str(cache), *more]
    output = cache.with_name(f"{cache.name}.output")
    figures = measured(command, environment_for(device, checkout), output)
    report = json.loads(output.read_bytes())
    output.unlink()
    if "error" in report:
        raise SystemExit(f"{Path(archive).name}: {report['error']['message']}")
    return figures, report


def one_pipeline(folder: Path) -> Path:
    """Write a set of one compute pipeline."""
    shader = sample_path().parent / "shaders" / "blur.comp.spv"
    manifest, path = folder / "one.toml", folder / "one.foz"
    manifest.write_text(f'manifest = 1\n\n[compute.blur]\nshader = "{shader}"\n', "utf-8")
    pack_manifest(manifest, path)
    return path


def in_process(script: str, job: Job) -> Figures:
    """Do one job of a script in a fresh process."""
    done = subprocess.run(
        [sys.executable, script, "--measure", json.dumps(job)],
        env=environment_for(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a sample of {Path(script).name} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _without_folder(value: Any) -> Any:
    """A value of a job or command; an absolute path without its folder."""
    if isinstance(value, list):
        return [_without_folder(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


@contextmanager
def opened(
    job: Job, arrange: Callable[[CreateInfoImage], CreateInfoImage] = lambda image: image
) -> Iterator[tuple[Device, PreparedPipelines]]:
    """Open the device of a job and prepare the first feature group of its set, as `compile` does.

    Args:
        job: Has "device" and "set".
        arrange: Transforms the image before it is prepared.
    """

    def opener(request: DeviceRequest) -> Device:
        return open_device(job["device"], request=request)

    with open_paths((job["set"],)) as source, closing(opened_groups(source, opener)) as groups:
        group = next(each for each in groups if len(each.built.image))
        with closing(group.device.prepare(arrange(group.built.image))) as prepared:
            yield group.device, prepared


def run_now(device: Device, prepared: PreparedPipelines, options: RunOptions, **more: Any) -> RunReport:
    """A run with the garbage collector disabled; `more` are further arguments of `run_pipelines`."""
    with no_garbage_collection():
        return trio.run(partial(run_pipelines, device, prepared, options, **more))


def where(device: Device) -> Figures:
    """The device and driver, for a row."""
    identity = device.identity
    return {"driver": f"{identity.driver_name} {identity.driver_info}", "device_name": identity.device_name}


def machine() -> dict[str, Any]:
    """The machine, the versions and the command of a sample."""
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
    """Print medians and ratios to the first contender on stderr, since stdout may hold the lines.

    Args:
        rows: Samples: contender, round, and figures; rounds below 0 are warm-ups.
        names: The contenders; the first one is the baseline.
        figure: The figure to show.
        lower_is_better: True for a time, false for a rate.
    """
    values = partial(by_round_of, rows, figure)
    base = values(names[0])
    if not base:
        return
    control = ratio_by_round(values(names[0] + CONTROL), base, float)
    print(f"{figure}; {noise_text(control)}", file=sys.stderr)
    for name in names:
        found = estimate(list(values(name).values()))
        text = f"{name:32} {found.median:12.6g} [{found.low:.6g}, {found.high:.6g}]"
        ratio = ratio_by_round(values(name), base, float)
        if name != names[0] and ratio is not None:
            better, worse = ("lower", "higher") if lower_is_better else ("higher", "lower")
            judgement = Difference(ratio, control).judgement
            words = {better: "better", worse: "worse"}
            text += f"  {ratio_text(ratio)} {words.get(judgement, judgement)}"
        print(text, file=sys.stderr)


def by_round_of(rows: Sequence[dict[str, Any]], figure: str, name: str) -> dict[int, float]:
    """The figure of a contender by round, without warm-ups."""
    return {row["round"]: row[figure] for row in rows if row["contender"] == name and row["round"] >= 0}
