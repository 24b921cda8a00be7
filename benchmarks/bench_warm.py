"""How close does a warm run come to threads that only call the driver?

    bare   threads take calls from one list: spans of a contiguous array of create infos, with pointers made
           beforehand. This is the lower bound for Python and calls of that size. (Fixed slices per thread are
           slower: they wait for the slowest.)
    run    `run_pipelines` over the same pipelines with calls of the same size: scheduler, outcomes, clocks

Both use one shared cache, and one cache per worker, to show the cost of the shared cache's lock; both must
find the same ratio. Caches hold everything, and every pipeline hits with creation feedback. Pipelines are
destroyed after the measurement.

It cannot show hits whose code is not in memory, or a game's mixture of hits and misses.

Command: python benchmarks/bench_warm.py --device radv:navi21 --workers 1,2 --batches 64,1024
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.fresh import CONTROL, Figures, Job, answer_if_asked, compare, parser_of, where
from benchmarks.warm import fill, make_set, many_times, run_warm
from orchestrator.bench.contention import ratio_text
from orchestrator.bench.statistics import by_round, paired_ratio
from orchestrator.bench.take import no_garbage_collection
from orchestrator.devices.device import PipelineCache
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.device import VulkanDevice
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines
from orchestrator.run.options import available_workers

MODES = (CacheMode.SHARED, CacheMode.PER_WORKER)


def measure(job: Job) -> Figures:
    """One sample: fill the cache, or a warm run, bare or through the product."""
    if "fill" in job:
        return {"pipelines": fill(job["device"], job["set"], Path(job["fill"]))}
    data = Path(job["data"]).read_bytes()
    with many_times(job) as (device, prepared):
        if not isinstance(device, VulkanDevice) or not isinstance(prepared, VulkanPreparedPipelines):
            raise SystemExit("a bare loop needs a Vulkan device")
        mode, workers, batch = CacheMode(job["mode"]), job["workers"], job["batch"]
        count = len(prepared.image)
        figures: Figures = {}
        if job["bare"]:
            began_ns, ended_ns = bare_loop(device, prepared, mode, workers, batch, data)
        else:
            report = run_warm(device, prepared, mode, workers, batch, data)
            timing, ended_ns = report.timing, report.barrier.end_ns
            began_ns = ended_ns - timing.wall_ns
            figures = {"driver_s": timing.driver_ns / 1e9, "blocked_s": timing.blocked_ns / 1e9}
    seconds = (ended_ns - began_ns) / 1e9
    return {"seconds": seconds, "pipelines_per_s": count / seconds, **figures, **where(device)}


def bare_loop(
    device: VulkanDevice,
    prepared: VulkanPreparedPipelines,
    mode: CacheMode,
    workers: int,
    batch: int,
    data: bytes,
) -> tuple[int, int]:
    """Threads that only call; the start of all and the end of the last, on the clock of perf_counter_ns."""
    count = len(prepared.image)
    infos = prepared.create_infos(
        PipelineKind.COMPUTE,
        np.arange(count, dtype=np.int32),
        fail_on_compile_required=False,
    )
    handles = np.zeros(count, np.uint64)
    stride, first, out = infos.shape[1], infos.ctypes.data, handles.ctypes.data
    caches: list[PipelineCache] = [
        device.create_pipeline_cache(data, externally_synchronized=mode is CacheMode.PER_WORKER)
        for _ in range(1 if mode is CacheMode.SHARED else workers)
    ]
    calls = iter(  # taking the next one is one step of the interpreter, so threads may share it
        [
            (
                min(batch, count - start),
                ffi.cast("VkComputePipelineCreateInfo *", first + start * stride),
                ffi.cast("uint64_t *", out + start * 8),
            )
            for start in range(0, count, batch)
        ]
    )
    context = device.context
    create, logical, allocator = context.commands.vkCreateComputePipelines, context.handle, context.allocator
    barrier = threading.Barrier(workers + 1)
    failed: list[int] = []

    def work(number: int) -> None:
        cache = caches[number % len(caches)].handle
        barrier.wait()
        for size, these, there in calls:
            if create(logical, cache, size, these, allocator, there):
                failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    with no_garbage_collection():
        for each in threads:
            each.start()
        barrier.wait()
        began_ns = time.perf_counter_ns()
        for each in threads:
            each.join()
        ended_ns = time.perf_counter_ns()
    if failed or not handles.all():
        raise SystemExit("a call of the bare loop failed")
    device.destroy_pipelines(handles)
    for cache in caches:
        device.destroy_pipeline_cache(cache)
    return began_ns, ended_ns


def tell(rows: list[dict[str, Any]]) -> None:
    """The two ratios that the question is about, from pairs of one round."""

    def rates(bare: bool, mode: CacheMode) -> dict[int, float]:
        return {
            row["round"]: row["pipelines_per_s"]
            for row in rows
            if row["round"] >= 0
            and row["bare"] is bare
            and row["mode"] == mode
            and CONTROL not in row["contender"]
        }

    def ratio(above: dict[int, float], below: dict[int, float]) -> str:
        first, second = by_round(below, above, float)
        return ratio_text(paired_ratio(second, first)) if first else "no pairs"

    for mode in MODES:
        print(f"{mode}: run / bare {ratio(rates(False, mode), rates(True, mode))}", file=sys.stderr)
    for bare in (True, False):
        shared, own = rates(bare, CacheMode.SHARED), rates(bare, CacheMode.PER_WORKER)
        print(
            f"{'bare' if bare else 'run'}: per-worker / shared {ratio(own, shared)}",
            file=sys.stderr,
            flush=True,
        )


def main() -> None:
    """Fill a cache, then take all samples."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="radv:navi21", help="selector of the device")
    parser.add_argument(
        "--workers", default=f"1,{available_workers()}", help="numbers of workers, commas between them"
    )
    parser.add_argument("--batches", default="64,1024", help="pipelines in a call, commas between them")
    parser.add_argument("--passes", type=int, default=200, help="how often the set is in a run")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    with tempfile.TemporaryDirectory() as folder:
        archive, data = str(make_set(Path(folder))), str(Path(folder) / "cache")
        base = {"device": options.device, "set": archive}
        measure({**base, "fill": data})
        for workers, batch in product(_numbers(options.workers), _numbers(options.batches)):
            jobs = {
                f"{'bare' if bare else 'run'}, {mode}": {
                    **base,
                    "data": data,
                    "mode": mode,
                    "workers": workers,
                    "batch": batch,
                    "bare": bare,
                    "passes": options.passes,
                }
                for mode in MODES
                for bare in (True, False)
            }
            print(f"\n{options.device}, {workers} workers, {batch} a call", file=sys.stderr)
            tell(compare(__file__, jobs, options, figure="pipelines_per_s", lower_is_better=False))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
