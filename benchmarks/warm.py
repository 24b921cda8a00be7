"""Shared code of the scripts about warm runs: a reproducible set, a cache that holds it, and a run.

The set has about a thousand pipelines: permutations of specialization constants of the sample's compute
shaders. So look-ups are not trivial, and the cache is filled quickly. A file passes the cache's data from the
process that fills it to those that measure.

Run as a script it writes the set: python benchmarks/warm.py FOLDER [--every 4]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attrs import evolve

from benchmarks.fresh import Job, opened, run_now
from orchestrator.bench.take import run_order
from orchestrator.devices.device import (
    Device,
    PreparedPipelines,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import own_process
from orchestrator.run.options import RunOptions, unsteered_schedule
from orchestrator.run.records import RunReport
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.sample import sample_manifest_path

_GROUPS = [32, 64, 128, 256]
_PERMUTATIONS: dict[str, tuple[str, dict[str, list[object]]]] = {
    "ao": ("ambient_occlusion", {"SAMPLES": [*range(1, 101)], "BENT_NORMAL": [False, True]}),
    "blur": ("blur", {"0": [*_GROUPS], "RADIUS": [*range(1, 31)], "VERTICAL": [False, True]}),
    "histogram": ("histogram", {"BINS": [*range(16, 257, 2)]}),
    "particles": ("particles", {"0": [*_GROUPS], "SUBSTEPS": [*range(1, 41)], "COLLISIONS": [False, True]}),
    "scan": ("prefix_sum", {"0": [*_GROUPS], "ITEMS": [*range(1, 25)]}),
    "tonemap": (
        "tonemap",
        {"OPERATOR": [*range(5)], "SRGB": [False, True], "DITHER": [False, True]},
    ),
    "fft": ("ocean_fft", {"0": [64, 128, 256, 512], "COLUMNS": [False, True]}),
}


def make_set(folder: Path, *, every: int = 1) -> Path:
    """Write the set into a folder; its path.

    Args:
        folder: Where it is written.
        every: Take every n-th value of the long ranges only, for drivers that need long for a pipeline.
    """
    shaders = sample_manifest_path().parent / "shaders"
    lines = ["manifest = 1"]
    for name, (shader, constants) in _PERMUTATIONS.items():
        values = ", ".join(
            f"{constant} = [{', '.join(str(each).lower() for each in _thinned(given, every))}]"
            for constant, given in constants.items()
        )
        lines += [f"[compute.{name}]", f'shader = "{(shaders / f"{shader}.comp.spv").as_posix()}"']
        lines += [f"permutations.specialization = {{ {values} }}"]
    manifest = folder / "compute.toml"
    manifest.write_text("\n".join(lines) + "\n", encoding="utf-8")
    archive = folder / "compute.foz"
    pack_manifest(manifest, archive)
    return archive


def _thinned(values: list[object], every: int) -> list[object]:
    return values[::every] if len(values) > 5 else values


def fill(selector: str, archive: str, data: Path) -> int:
    """Compile the set and write the cache's data to a file; the number of pipelines."""
    own_process(selector)
    with opened({"device": selector, "set": archive}) as (device, prepared):
        report = run_now(device, prepared, RunOptions(mode=CacheMode.SHARED))
        data.write_bytes(report.cache_data or b"")
        return len(prepared.image)


def many_times(job: Job) -> AbstractContextManager[tuple[Device, PreparedPipelines]]:
    """The set of a job on its device, some times over."""
    return opened(job, lambda image: repeat_pipelines(image, run_order(image, passes=job["passes"])))


def run_warm(
    device: Device, prepared: PreparedPipelines, mode: CacheMode, workers: int, batch: int, data: bytes
) -> RunReport:
    """A run over everything, from caches that hold it; the pipelines are kept, and destroyed afterwards.

    Raises:
        SystemExit: Not all were hits, so that the run says nothing.
    """
    # Passes stand for a larger set, so repeated pipelines are not duplicates here.
    schedule = evolve(unsteered_schedule(mode, batch_limit=batch), unites=False)

    options = RunOptions(workers=workers, mode=mode, schedule=schedule, keep=True)
    report = run_now(device, prepared, options, primary=data)
    if report.pipelines.handles is not None:
        device.destroy_pipelines(report.pipelines.handles)
    if report.cache_hits != len(report):
        raise SystemExit(f"only {report.cache_hits} of {len(report)} were hits")
    return report


def main() -> None:
    """Write the set."""
    parser = argparse.ArgumentParser(description="Write a set of permuted compute pipelines.")
    parser.add_argument("folder", type=Path, help="where compute.toml and compute.foz are written")
    parser.add_argument("--every", type=int, default=1, help="take every n-th value of the long ranges only")
    options = parser.parse_args()
    print(make_set(options.folder, every=options.every))


if __name__ == "__main__":
    main()
