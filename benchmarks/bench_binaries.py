"""Is a store of pipeline binaries as fast as the driver's cache, and how much memory do binaries take?

Compares whole warm processes in turn: mode binaries, the driver's cache in two topologies, and the first
topology again as the A/A control. Then single processes examine the driver: what it reports about binaries
and keys, what its own cache holds when enabled, the CPU time of the calls, and the memory of binaries, held
and released. Each sample is a JSON line; each set ends with one line per figure and contender ("figure").

    wall_s, cpu_s, peak_mib   of the whole process, measured from outside
    look_up_s, created        mode binaries: time of the look-up pass, pipelines created from binaries
    *_us                      CPU time per pipeline: creating its binaries, creating it from them, a cache hit
    virtual, resident         increase in MiB, held and after release
    own_cache_*               hits in the driver's own cache, by modules and by identifiers alone: with an
                              empty cache, after compiling, and in a new process
    keys, key_*               different keys of the driver, pipelines and lists of modules by kind

On a busy machine compare CPU time.

Command: python benchmarks/bench_binaries.py --device radv:navi21 --samples 7 --output FILE SET.foz...
         python benchmarks/bench_binaries.py --device nvidia --workers 16 --output FILE SET.foz...
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import attrs
import msgspec
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
from orchestrator.bench.statistics import estimate, noise_by_round, ratio_by_round
from orchestrator.devices import open_device
from orchestrator.devices.binaries import HeldBinaries, PipelineBinaries, PipelineBinary
from orchestrator.devices.device import NO_SOURCE, Device, PreparedPipelines
from orchestrator.devices.identified import IdentifiedModules, SuppliedCode, of_image
from orchestrator.devices.identifiers import ModuleIdentification
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.run.binaries import binary_device
from orchestrator.sets.opening import open_paths
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.sample import sample_path

BINARIES, CACHE = "binaries", "per-worker"
CONTENDERS = (CACHE, BINARIES, "shared", CACHE + CONTROL)
COUNTS = (1_000, 10_000)
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


def memory() -> tuple[float, float]:
    """Virtual and resident memory of this process, MiB, after releasing free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text("ascii").split()
    size = os.sysconf("SC_PAGE_SIZE") / 2**20
    return int(pages[0]) * size, int(pages[1]) * size


def measure(job: Job) -> Figures:
    """Examine a set in this process: the driver's answers, the calls, or the memory of binaries."""
    if "own_cache" in job:
        return own_cache(job)
    with opened(job) as (device, prepared):
        able = binary_device(device)
        if "says" in job:
            return said(able, prepared)
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


def said(able: PipelineBinaries, prepared: PreparedPipelines) -> Figures:
    """What the driver reports about binaries, and its keys."""
    image = prepared.image
    keys = able.pipeline_keys(prepared, np.arange(len(image), dtype=np.int32))
    figures: Figures = {
        "says": msgspec.to_builtins(able.binary_properties),
        "driver_caches": able.features.driver_caches,
        "identifiers": able.features.shader_module_identifiers,
        "global_key_bytes": len(able.global_pipeline_key()),
        "driver": f"{able.identity.driver_name} {able.identity.driver_info}",
        "device_name": able.identity.device_name,
    }
    for number, kind in enumerate(PipelineKind):
        of = [index for index in np.flatnonzero(image.kinds == number).tolist() if keys[index] is not None]
        if of:
            name = kind.value.replace(" ", "_")
            figures[f"key_{name}"] = {
                "pipelines": len(of),
                "keys": len({keys[index] for index in of}),
                "lists_of_modules": len({image.modules_of(index) for index in of}),
            }
    return figures


def own_cache(job: Job) -> Figures:
    """Hits in the driver's own cache, which this process enables; compiles the set first if asked."""

    def opener(request: DeviceRequest) -> Device:
        return open_device(job["device"], request=request, driver_caches=True)

    with ExitStack() as stack:
        source = stack.enter_context(open_paths((job["set"],)))
        groups = stack.enter_context(closing(opened_groups(source, opener)))
        group = next(each for each in groups if len(each.built.image))
        able = binary_device(group.device)
        if not able.binary_properties.internal_cache:
            return {"own_cache": "the driver says that it has none"}
        with closing(able.prepare(group.built.image)) as prepared:
            indices = np.flatnonzero(np.diff(prepared.image.library_slot_start) == 0).astype(np.int32)
            figures: Figures = {"own_cache": job["own_cache"], "own_cache_asked": len(indices)}
            if job["own_cache"] == "compiles":
                able.create_pipelines(prepared, indices, NO_SOURCE)
            image = group.built.image
            known = IdentifiedModules(image, of_image(image), SuppliedCode())
            bare = stack.enter_context(closing(able.prepare(known)))
            if isinstance(able, ModuleIdentification) and able.features.shader_module_identifiers:
                modules = range(len(image.modules))
                for module, each in zip(modules, able.module_identifiers(prepared, modules), strict=True):
                    known.learn(module, each)
            for name, asked in (("modules", prepared), ("identifiers", bare)):
                began = time.thread_time_ns()
                found = able.probe_internal_cache(asked, indices)
                figures[f"own_cache_probe_{name}_us"] = (time.thread_time_ns() - began) / 1e3 / len(indices)
                figures[f"own_cache_{name}"] = sum(each is not None and len(each) > 0 for each in found)
                for each in found:
                    if each is not None:
                        able.destroy_binaries(each)
    return figures


def memory_of(able, binaries: list[PipelineBinary], count: int) -> Figures:  # type: ignore[no-untyped-def]
    """Memory of `count` binaries."""
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
    with tempfile.TemporaryDirectory() as folder:
        own = {"driver_caches": True, "environment": own_cache_environment(folder)}
        jobs: list[Job] = [
            {"says": True},
            *({"own_cache": each} | own for each in ("empty", "compiles", "full")),
        ]
        jobs += [{}, *({"count": count} for count in COUNTS)]
        for job in jobs:
            done = in_process(__file__, job | {"device": device, "set": str(path)})
            write(named | done)
            print(f"{path.name}: {json.dumps(done)}", file=sys.stderr)


def summary(rows: list[Figures], figure: str) -> Iterator[Figures]:
    """One line for each contender: its median, and its ratio to the cache by pairs."""
    values = partial(by_round_of, rows, figure)
    base = values(CACHE)
    noise = noise_by_round(base, values(CACHE + CONTROL), float)
    for name in CONTENDERS:
        line: Figures = {"figure": figure, "contender": name}
        line["median"], line["low"], line["high"], _ = attrs.astuple(estimate(list(values(name).values())))
        ratio = ratio_by_round(values(name), base, float)
        if ratio is not None:
            line |= {"ratio": attrs.asdict(ratio), "noise": None if noise is None else noise.factor}
        yield line


def own_cache_environment(folder: str) -> dict[str, str]:
    """Variables that enable the drivers' own caches in a folder."""
    return {
        "MESA_SHADER_CACHE_DISABLE": "false",
        "MESA_SHADER_CACHE_DIR": folder,
        "__GL_SHADER_DISK_CACHE": "1",
        "__GL_SHADER_DISK_CACHE_PATH": folder,
    }


if __name__ == "__main__":
    main()
