"""Cost of decoding a set.

How quickly does a set become create infos: archive to records, records to one image for a device?

The capabilities are those of the simulated device, which has everything, so that every pipeline is decoded
and no driver is loaded. Files are in the page cache after the warm-up.

Command: python benchmarks/bench_decode.py --set game.foz --output benchmarks/results/2-cores/decode.jsonl
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.repeated import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path


def measure(job: Job) -> Figures:
    """Open, decode, and lay out."""
    began = time.perf_counter()
    with PipelineSet.open(job["set"]) as source:
        jobs = source.pipelines
        opened = time.perf_counter()
        image = build_image(source, jobs, AnyDevice()).image
        built = time.perf_counter()
        if job["copies"] > 1:
            from orchestrator.bench.take import run_order

            repeat_pipelines(image, run_order(image, passes=job["copies"]))
        ended = time.perf_counter()
    return {
        "seconds": ended - began,
        "open_s": opened - began,
        "build_s": built - opened,
        "repeat_s": ended - built,
        "pipelines": len(jobs),
        "pipelines_per_s": len(jobs) / (built - opened),
        "image_bytes": len(image.buffer),
    }


def main() -> None:
    """Measure a set, and the same repeated as warm benchmarks do."""
    parser = parser_of("How quickly does a set become create infos?")
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    parser.add_argument(
        "--copies", type=int, default=100, help="how often the second contender repeats the image"
    )
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    archive = str(Path(options.set).resolve())
    jobs = {
        "decode": {"set": archive, "copies": 1},
        f"decode, repeat {options.copies}": {"set": archive, "copies": options.copies},
    }
    compare(__file__, jobs, options, figure="seconds")


if __name__ == "__main__":
    main()
