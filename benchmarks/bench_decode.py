"""How long does it take to turn a set into create infos: archive to records, records to an image?

The contender "plan" proves and loads a plan, the form in which `compile` saves a decoded set, instead of
reading and decoding records. The capabilities are those of the simulated device, which has everything, so
every pipeline is decoded and no driver is loaded. Files are in the page cache after the warm-up. The
interpreter has the settings of the program, whose garbage collector ignores imported modules.

Command: python benchmarks/bench_decode.py --set game.foz --output benchmarks/results/2-cores/decode.jsonl
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.devices.request import DeviceRequest
from orchestrator.process import own_interpreter
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import PlannedGroup, SetFacts, SetPlan, decode_plan, encode_plan
from orchestrator.sets.records import FeatureGroup
from orchestrator.sets.sample import sample_path
from orchestrator.stores.files.atomic_file import content_hash128


def measure(job: Job) -> Figures:
    """Open, decode, and lay out; or take all from a plan."""
    own_interpreter()
    return from_plan(job) if job["plan"] else decoded(job)


def decoded(job: Job) -> Figures:
    """Open, decode, and lay out."""
    cpu, began = time.process_time(), time.perf_counter()
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
        "cpu_us_a_pipeline": (time.process_time() - cpu) / len(jobs) * 1e6,
        "image_bytes": len(image.buffer),
    }


def from_plan(job: Job) -> Figures:
    """Prove a set's files and its plan by their hashes, and take the plan."""
    with PipelineSet.open(job["set"]) as source:
        built = build_image(source, source.pipelines, AnyDevice())
        group = FeatureGroup(DeviceRequest(), (), source.pipelines)
        plan = SetPlan(SetFacts.of(source), (PlannedGroup(group, built, ()),))
        data = encode_plan(plan, source.module_place)
    cpu, began = time.process_time(), time.perf_counter()
    with PipelineSet.open(job["set"], indexed=False) as source:
        source.hash_files(content_hash128)
        content_hash128(data)
        image = decode_plan(data, source).groups[0].built.image
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "pipelines": len(image),
        "pipelines_per_s": len(image) / seconds,
        "cpu_us_a_pipeline": (time.process_time() - cpu) / len(image) * 1e6,
        "image_bytes": len(image.buffer),
        "plan_bytes": len(data),
    }


def main() -> None:
    """Measure a set, the same from a plan, and repeated as warm benchmarks do."""
    parser = parser_of(__doc__)
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    parser.add_argument(
        "--copies", type=int, default=100, help="how often the second contender repeats the image"
    )
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    archive = str(Path(options.set).resolve())
    jobs = {
        "decode": {"set": archive, "copies": 1, "plan": False},
        "plan": {"set": archive, "copies": 1, "plan": True},
        f"decode, repeat {options.copies}": {"set": archive, "copies": options.copies, "plan": False},
    }
    compare(__file__, jobs, options, figure="seconds")


if __name__ == "__main__":
    main()
