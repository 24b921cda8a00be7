"""Question: is a store of pipeline binaries as fast as the driver's cache, and what memory do they take?

Whole processes, warm, in turn: mode binaries, the driver's cache in two topologies, and the first of those
once more as the A/A control. Then, in processes of their own: what the driver says of its binaries and its
keys, what its own cache has when that is on, what the calls take, and what memory so many binaries take
while they are held and after they were destroyed. It needs the package and its dependencies, and the sets.
A JSON line a sample; at the end of each set one a figure ("figure" is in it): of each contender, and as a
ratio to the cache, pair by pair.

    wall_s, cpu_s, peak_mib   of the whole process, from outside: fork to reaping
    look_up_s, created        of mode binaries: the one pass before the first pipeline; pipelines made from
                              binaries
    *_us                      CPU time of one pipeline: its binaries made of data, itself made of those, or
                              taken from a cache
    virtual, resident         MiB more than before, held and after release
    own_cache_*               pipelines of those asked for that the driver's own cache had, empty and after
                              compiling: by modules and by identifiers alone; in the process that compiled,
                              and in a new one
    keys, key_*               different keys of the driver, and pipelines of each kind with the lists of their
                              modules

Python's byte code must be written, as it is where the package is installed: PYTHONDONTWRITEBYTECODE is taken
out of the environment. On a busy machine compare CPU time.

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
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import attrs
import msgspec
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
from orchestrator.bench.statistics import estimate, noise_by_round, ratio_by_round
from orchestrator.devices import environment_of, open_device
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
    mode = contender.removesuffix(CONTROL)
    environment = {**os.environ, **environment_of(device)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
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
    """What the driver says of its binaries and gives as keys."""
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
    """What the driver's own cache, on in this process, has of a set; compiles it where the job says so."""

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
            for line in summary(rows, figure):
                print(json.dumps(named | line), file=lines, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            own = {"driver_caches": True, "environment": own_cache_environment(folder)}
            jobs: list[Job] = [
                {"says": True},
                *({"own_cache": each} | own for each in ("empty", "compiles", "full")),
            ]
            jobs += [{}, *({"count": count} for count in COUNTS)]
            for job in jobs:
                done = in_process(__file__, job | {"device": options.device, "set": str(path)})
                print(json.dumps(named | done), file=lines, flush=True)
                print(f"{path.name}: {json.dumps(done)}", file=sys.stderr)


def summary(rows: list[Figures], figure: str) -> Iterator[Figures]:
    """One line for each contender: its median, and its ratio to the cache by pairs."""

    def values(name: str) -> dict[int, float]:
        return {row["round"]: row[figure] for row in rows if row["contender"] == name and row["round"] >= 0}

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
    """Drivers' own caches on, in a folder that is empty."""
    return {
        "MESA_SHADER_CACHE_DISABLE": "false",
        "MESA_SHADER_CACHE_DIR": folder,
        "__GL_SHADER_DISK_CACHE": "1",
        "__GL_SHADER_DISK_CACHE_PATH": folder,
    }


if __name__ == "__main__":
    main()
