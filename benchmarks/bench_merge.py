"""What does the merge cost, depending on the size and the number of worker caches?

Each sample compiles a set into worker caches, each with its own part of the entries or all with the same, and
merges them into an empty primary. The seconds are those of vkMergePipelineCaches alone.

Command: python benchmarks/bench_merge.py --device radv:navi21 --set game.foz --output
benchmarks/results/2-cores/merge.jsonl
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, set_parser_of, where
from orchestrator.devices.opening import open_device
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet


def measure(job: Job) -> Figures:
    """Fill worker caches and merge them."""
    device = open_device(job["device"])
    with PipelineSet.open(job["set"]) as source:
        image = build_image(source, source.pipelines, device.capabilities).image
        chosen = np.flatnonzero(~image.is_library & (np.diff(image.library_slot_start) == 0)).astype(np.int32)
        chosen = chosen[: max(1, round(len(chosen) * job["share"]))]
        prepared = device.prepare(image)
        whole = device.create_pipeline_cache(name="whole")
        caches = []
        for number in range(job["caches"]):
            cache = device.create_pipeline_cache(externally_synchronized=True, name=f"worker {number}")
            caches.append(cache)
            part = chosen if job["same"] else chosen[number :: job["caches"]]
            for start in range(0, len(part), 64):
                device.create_pipelines(prepared, part[start : start + 64], cache)
        source_bytes = sum(device.pipeline_cache_size(each) for each in caches)
        began = time.perf_counter()
        device.merge_pipeline_caches(whole, caches)
        seconds = time.perf_counter() - began
        size = device.pipeline_cache_size(whole)
    return {
        "seconds": seconds,
        "pipelines": len(chosen),
        "source_bytes": source_bytes,
        "primary_bytes": size,
        "bytes_per_s": source_bytes / seconds,
        **where(device),
    }


def main() -> None:
    """Measure sizes and counts."""
    parser = set_parser_of(__doc__)
    parser.add_argument("--caches", default="1,2,4,16", help="numbers of worker caches")
    parser.add_argument("--shares", default="0.25,1", help="shares of the set")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    jobs: dict[str, Job] = {}
    for share in map(float, options.shares.split(",")):
        for count in map(int, options.caches.split(",")):
            for same in (False, True) if count > 1 else (False,):
                name = f"{share:.0%} in {count} caches" + (", the same in each" if same else "")
                jobs[name] = {
                    "device": options.device,
                    "set": str(Path(options.set).resolve()),
                    "caches": count,
                    "share": share,
                    "same": same,
                }
    compare(__file__, jobs, options, figure="seconds")


if __name__ == "__main__":
    main()
