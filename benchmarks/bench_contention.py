# Question: what does the shared cache cost, by driver, mode, workers and temperature?
#
# This is `orchestrator bench` over every driver that is there, one results directory each, with the report of each and the
# comparison of the first two at the end. Interrupted, the same command goes on. The method is in docs/benchmarking.md.
#
# With --bare it asks instead how close the product comes to a bare loop: threads that hand prepared batches to the device
# with nothing around them, against the same through a run, warm.
#
# Command on 16 cores: python benchmarks/bench_contention.py --set game.foz --workers 1,4,16 --out results
"""Cost of a shared cache."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.bench.sampling import run_order
from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.run import available_workers, run_pipelines
from orchestrator.samples import sample_path
from orchestrator.sets.image_builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.repeated_image import repeat_pipelines

BATCH = 64


def measure(job: Job) -> Figures:
    """One warm run, bare or through the product."""
    device = open_device(job["device"])
    with PipelineSet.open(job["set"]) as source:
        plain = build_image(source, source.pipelines, device.capabilities).image
        prepared = device.prepare(plain)
        data = trio.run(fill, device, prepared)
        prepared.close()
        # Libraries would bind the order of the bare loop; both contenders go without.
        alone = ~plain.is_library & (np.diff(plain.library_slot_start) == 0)
        order = run_order(plain, passes=job["passes"])
        image = repeat_pipelines(plain, order[alone[order]])
        prepared = device.prepare(image)
        mode = CacheMode(job["mode"])
        if job["bare"]:
            seconds = bare_loop(device, prepared, mode, job["workers"], data)
        else:
            seconds = trio.run(product, device, prepared, mode, job["workers"], data)
        prepared.close()
    identity = device.identity
    device.close()
    return {
        "seconds": seconds,
        "pipelines": len(image),
        "pipelines_per_s": len(image) / seconds,
        "driver": f"{identity.driver_name} {identity.driver_info}",  # type: ignore[dict-item]
        "device_name": identity.device_name,  # type: ignore[dict-item]
    }


async def fill(device: Device, prepared: PreparedPipelines) -> bytes:
    """Compile everything once; the cache's data."""
    report = await run_pipelines(device, prepared, mode=CacheMode.SHARED)
    return report.cache_data or b""


async def product(
    device: Device, prepared: PreparedPipelines, mode: CacheMode, workers: int, data: bytes
) -> float:
    """The product's own time, first job to barrier."""
    report = await run_pipelines(device, prepared, mode=mode, workers=workers, primary_data=data)
    if report.cache_hits != len(report):
        print(f"only {report.cache_hits} of {len(report)} were hits", file=sys.stderr)
    return report.timing.wall_ns / 1e9


def bare_loop(
    device: Device, prepared: PreparedPipelines, mode: CacheMode, workers: int, data: bytes
) -> float:
    """Threads over batches that lie ready, each thread its slice of them, with nothing around."""
    count = len(prepared.image)
    order = np.arange(count, dtype=np.int32)
    batches = [order[start : start + BATCH] for start in range(0, count, BATCH)]
    shared = device.create_pipeline_cache(data) if mode is CacheMode.SHARED else None
    flagged = mode is CacheMode.PER_WORKER
    caches: list[PipelineCache] = [
        shared or device.create_pipeline_cache(data, externally_synchronized=flagged) for _ in range(workers)
    ]
    start = threading.Barrier(workers + 1)

    def work(number: int) -> None:
        mine, cache = batches[number::workers], caches[number]
        start.wait()
        for batch in mine:
            device.create_pipelines(prepared, batch, cache)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for each in threads:
        each.start()
    start.wait()
    began = time.perf_counter()
    for each in threads:
        each.join()
    return time.perf_counter() - began


def main() -> None:
    """Run the matrix on each driver, or the bare loop."""
    parser = parser_of("What does the shared cache cost, by driver, mode, workers and temperature?")
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
    parser.add_argument(
        "--bare", action="store_true", help="compare with a bare loop over prepared batches instead"
    )
    parser.add_argument("--passes", type=int, default=50, help="with --bare: how often the set is in a run")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    archive = str(Path(options.set).resolve())
    workers = options.workers or ",".join(map(str, sorted({1, 4, available_workers()})))
    devices = options.devices.split(",")
    if options.bare:
        for device in devices:
            for count in map(int, workers.split(",")):
                jobs = {
                    f"{mode}, {'bare' if bare else 'run'}": {
                        "device": device,
                        "set": archive,
                        "mode": mode,
                        "workers": count,
                        "bare": bare,
                        "passes": options.passes,
                    }
                    for mode in ("shared", "per-worker")
                    for bare in (True, False)
                }
                print(f"{device}, {count} workers", file=sys.stderr)
                compare(__file__, jobs, options, figure="pipelines_per_s", lower_is_better=False)
        return
    done = []
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    for device in devices:
        folder = options.out / device.replace(":", "-")
        command = [
            *(sys.executable, "-m", "orchestrator", "bench", archive, "-d", device, "-o", str(folder)),
            *("-j", workers, "-n", str(options.samples), "--duplicates", options.duplicates),
            *("--time-limit", options.time_limit),
        ]
        code = subprocess.run(command, check=False, env=environment).returncode
        if code == 130:
            raise SystemExit(code)
        if code == 0:
            done.append(folder)
        else:
            print(f"{device}: left out (exit code {code})", file=sys.stderr)
    if len(done) > 1:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "orchestrator",
                "compare",
                str(done[0]),
                str(done[1]),
                "--fail-on",
                "never",
            ],
            check=False,
        )


if __name__ == "__main__":
    main()
