"""Question: is a store of pipeline binaries as fast as the driver's pipeline cache, and what memory do binaries take?

Whole processes, warm, in turn: mode binaries, the driver's cache in two topologies, and the first of those once more as
the A/A control. Then, in processes of their own: what the calls take, and what memory so many binaries take while they
are held and after they were destroyed.

    wall_s, cpu_s, peak_mib   of the whole process, from outside: fork to reaping
    look_up_s, created        of mode binaries: the one pass before the first pipeline; pipelines made from binaries
    *_us                      CPU time of one pipeline: its binaries made of data, itself made of those, or taken from a cache
    virtual, resident         MiB more than before, held and after release

Python's byte code must be written, as it is where the package is installed: PYTHONDONTWRITEBYTECODE is taken out of
the environment. On a busy machine compare CPU time.

Command: python benchmarks/bench_binaries.py --device radv:navi21 --samples 7 --output FILE SET.foz...
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_replayer import measured
from benchmarks.fresh import (
    CONTROL,
    Figures,
    Job,
    answer_if_asked,
    in_process,
    machine,
    opened,
    parser_of,
    table,
)
from orchestrator.devices import environment_of
from orchestrator.devices.binaries import HeldBinaries, PipelineBinary
from orchestrator.run.binaries import binary_device
from orchestrator.sets.sample import sample_path

BINARIES, CACHE = "binaries", "per-worker"
CONTENDERS = (CACHE, BINARIES, "shared", CACHE + CONTROL)
COUNTS = (1_000, 10_000)
_PASSES = 20


def process(contender: str, path: Path, device: str, workers: int, folder: Path) -> Figures:
    """One process of `compile`."""
    mode = contender.removesuffix(CONTROL)
    environment = {**os.environ, **environment_of(device)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = ["--device", device, "--workers", str(workers), "--mode", mode, "--json"]
    command = [sys.executable, "-m", "orchestrator", "compile", str(path), *arguments]
    output = folder / "output"
    figures = measured(
        [*command, "--cache-dir", str(folder / contender.replace(" ", "-"))], environment, output
    )
    report = json.loads(output.read_bytes())
    if "error" in report:
        raise SystemExit(f"{path.name}: {report['error']['message']}")
    figures |= {"outcomes": report["outcomes"], "clock": report["clock"]}
    if report["binaries"] is not None:
        figures |= {
            "created": report["binaries"].get("created", 0),
            "look_up_s": report["binaries"]["look_up_s"],
        }
        first = report["binaries"].get("captured_bytes", 0)
        if first:
            figures["stored_share"] = report["binaries"]["stored_bytes"] / first
    return figures


def memory() -> tuple[float, float]:
    """Virtual and resident memory of this process, MiB, with all that is free given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text("ascii").split()
    size = os.sysconf("SC_PAGE_SIZE") / 2**20
    return int(pages[0]) * size, int(pages[1]) * size


def measure(job: Job) -> Figures:
    """What a process of its own finds out about a set: calls, or the memory of so many binaries."""
    with opened(job) as (device, prepared):
        able = binary_device(device)
        chosen = np.flatnonzero(np.diff(prepared.image.library_slot_start) == 0).astype(np.int32)
        _, captured = able.create_captured(prepared, chosen)
        indices = np.array([each.index for each in captured], np.int32)
        counts = np.array([len(each.binaries) for each in captured], np.uint32)
        binaries = [binary for each in captured for binary in each.binaries]
        if "count" in job:
            return memory_of(able, binaries, job["count"])
        cache = device.create_pipeline_cache()
        device.create_pipelines(prepared, chosen, cache)
        spent = {"make": 0, "from": 0, "destroy": 0, "cache": 0}
        for _ in range(_PASSES):
            began = time.thread_time_ns()
            handles = able.create_binaries(binaries)
            made = time.thread_time_ns()
            able.create_from_binaries(prepared, indices, HeldBinaries(counts, handles))
            created = time.thread_time_ns()
            able.destroy_binaries(handles)
            destroyed = time.thread_time_ns()
            device.create_pipelines(prepared, indices, cache)
            ended = time.thread_time_ns()
            for name, begins, ends in (
                ("make", began, made),
                ("from", made, created),
                ("destroy", created, destroyed),
                ("cache", destroyed, ended),
            ):
                spent[name] += ends - begins
        each = 1e3 * _PASSES * len(indices)
        return {f"{name}_us": total / each for name, total in spent.items()} | {
            "pipelines": len(indices),
            "binaries": len(binaries),
        }


def memory_of(able, binaries: list[PipelineBinary], count: int) -> Figures:  # type: ignore[no-untyped-def]
    """What so many binaries take."""
    many = [binaries[number % len(binaries)] for number in range(count)]
    able.destroy_binaries(able.create_binaries(many[:1]))
    before = memory()
    handles = able.create_binaries(many)
    held = memory()
    able.destroy_binaries(handles)
    del handles
    after = memory()
    return {
        "count": count,
        "data_mib": sum(len(each.data) for each in many) / 2**20,
        "held_virtual_mib": held[0] - before[0],
        "held_resident_mib": held[1] - before[1],
        "released_virtual_mib": after[0] - before[0],
        "released_resident_mib": after[1] - before[1],
    }


def main() -> None:
    """Measure the sets."""
    parser = parser_of(__doc__.splitlines()[0].removeprefix("Question: ") if __doc__ else "")
    parser.add_argument(
        "sets", nargs="*", type=Path, default=[sample_path()], help="archives; default: the sample"
    )
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    lines = options.output.open("a", encoding="utf-8") if options.output else sys.stdout
    for path in options.sets:
        rows: list[Figures] = []
        named = {"benchmark": "bench_binaries", "set": path.name, "device": options.device} | machine()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(-2, options.samples):  # -2 fills, -1 warms up
                turn = max(number, 0) % len(CONTENDERS)
                for contender in (*CONTENDERS[turn:], *CONTENDERS[:turn]):
                    taken = process(contender, path, options.device, options.workers, Path(folder))
                    rows.append({"contender": contender, "round": number, **taken})
                    print(json.dumps(named | rows[-1]), file=lines, flush=True)
        for figure in ("wall_s", "cpu_s", "peak_mib"):
            table(rows, [CACHE, BINARIES, "shared"], figure, lower_is_better=True)
        jobs: list[Job] = [{}, *({"count": count} for count in COUNTS)]
        for job in jobs:
            done = in_process(__file__, job | {"device": options.device, "set": str(path)})
            print(json.dumps(named | done), file=lines, flush=True)
            print(
                f"{path.name}: {json.dumps({key: round(value, 2) for key, value in done.items()})}",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
