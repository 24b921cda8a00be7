"""Is a store of pipeline binaries as fast as the driver's cache?

Compares whole warm processes in turn: mode binaries, the driver's cache in two topologies, and the first
topology again as the A/A control. Then one process measures the driver's calls. Each sample is a JSON line;
each set ends with one line per figure and contender ("figure").

    wall_s, cpu_s, peak_mib   of the whole process, measured from outside
    look_up_s, created        mode binaries: time of the look-up pass, pipelines created from binaries
    *_us                      CPU time per pipeline: creating its binaries, creating it from them, a cache hit

On a busy machine compare CPU time.

Command: python benchmarks/bench_binaries.py --device radv:navi21 --samples 7 --output FILE SET.foz...
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import (
    CONTROL,
    Figures,
    Job,
    answer_if_asked,
    by_round_of,
    compiled,
    in_process,
    in_turns,
    machine,
    opened,
    parser_of,
    row_writer,
    table,
)
from orchestrator.bench.statistics import estimate, noise_factor, ratio_by_round
from orchestrator.devices.binary_data import HeldBinaries
from orchestrator.run.binaries import binary_device
from orchestrator.sets.sample import sample_path

BINARIES, CACHE = "binaries", "per-worker"
CONTENDERS = (CACHE, BINARIES, "shared", CACHE + CONTROL)
_PASSES = 20


def process(contender: str, path: Path, device: str, workers: int, folder: Path) -> Figures:
    """One process of `compile`."""
    own, mode = folder / contender.replace(" ", "-"), contender.removesuffix(CONTROL)
    figures, report = compiled(path, device, workers, own, "--mode", mode)
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


def measure(job: Job) -> Figures:
    """CPU time of the driver's calls, in this process."""
    with opened(job) as (device, prepared):
        able = binary_device(device)
        chosen = np.flatnonzero(np.diff(prepared.image.library_slot_start) == 0).astype(np.int32)
        _, captured = able.create_captured(prepared, chosen)
        indices = np.array([each.index for each in captured], np.int32)
        counts = np.array([len(each.binaries) for each in captured], np.uint32)
        binaries = [binary for each in captured for binary in each.binaries]
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


def main() -> None:
    """Measure the sets."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "sets", nargs="*", type=Path, default=[sample_path()], help="archives; default: the sample"
    )
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    with row_writer(options) as write:
        for path in options.sets:
            measure_set(path, options.device, options.workers, options.samples, write)


def measure_set(
    path: Path, device: str, workers: int, samples: int, write: Callable[[Figures], None]
) -> None:
    """All samples and figures of a set."""
    rows: list[Figures] = []
    named = {"benchmark": "bench_binaries", "set": path.name, "device": device} | machine()
    with tempfile.TemporaryDirectory() as folder:
        for number, contender in in_turns(CONTENDERS, samples, first=-2):  # -2 fills, -1 warms up
            taken = process(contender, path, device, workers, Path(folder))
            rows.append({"contender": contender, "round": number, **taken})
            write(named | rows[-1])
    for figure in ("wall_s", "cpu_s", "peak_mib"):
        table(rows, [CACHE, BINARIES, "shared"], figure, lower_is_better=True)
        for line in summary(rows, figure):
            write(named | line)
    done = in_process(__file__, {"device": device, "set": str(path)})
    write(named | done)
    print(f"{path.name}: {json.dumps(done)}", file=sys.stderr)


def summary(rows: list[Figures], figure: str) -> Iterator[Figures]:
    """One line for each contender: its median, and its ratio to the cache by pairs."""
    values = partial(by_round_of, rows, figure)
    base = values(CACHE)
    control = ratio_by_round(values(CACHE + CONTROL), base, float)
    for name in CONTENDERS:
        line: Figures = {"figure": figure, "contender": name}
        line["median"], line["low"], line["high"], _ = attrs.astuple(estimate(list(values(name).values())))
        ratio = ratio_by_round(values(name), base, float)
        if ratio is not None:
            line |= {
                "ratio": attrs.asdict(ratio),
                "noise": None if control is None else noise_factor(control),
            }
        yield line


if __name__ == "__main__":
    main()
