# Purpose: what comes before warm samples: compiling the set once, keeping the cache, and seeing how fast it is found there, by
# one worker and by all, so that warm runs can be made to last long enough and not too long.
#
# Guarantees: the cache file is one that a sample will accept. Nothing is compiled where a file that was proven is to be left as
# it is.
"""Fills the cache of warm samples in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio
from attrs import define

from orchestrator.bench.jobs import Filled, FillJob
from orchestrator.bench.sampling import identity_text, open_paths, opened_on, run_order
from orchestrator.devices.device import CacheMode, Device
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError
from orchestrator.run import RunReport, run_pipelines
from orchestrator.sets.repeated_image import repeat_pipelines
from orchestrator.stores.cache_file import cache_path, read_cache_file, save_cache_file
from orchestrator.stores.load_status import LoadStatus

_WARM_PASSES: Final = 8


@define
class _Found:
    """What was found over the groups of a set: times of the set once, ns."""

    data: bytes = b""
    cold_ns: int = 0
    one_ns: int = 0
    most_ns: int = 0
    hits: int = 0

    def rate(self, pipelines: int, time_ns: int) -> float:
        """Pipelines a second; 0 where nothing was timed."""
        return pipelines / (time_ns / 1e9) if time_ns else 0.0


def fill(job: FillJob) -> Filled:
    """Compile a set, keep the cache, and see how fast one worker, and all of them, take everything from it.

    Raises:
        OrchestratorError: The set or the device is not to be had.
        DeviceError: The driver's cache keeps nothing, so that nothing warm can be measured.
    """
    found, pipelines = _Found(), 0
    with open_paths(job.set_paths) as source:
        identity, compiles = None, job.warm
        for opened in opened_on(source, job.device):
            identity, image = opened.device.identity, opened.built.image
            pipelines += len(image)
            if job.reuse and compiles:
                path = cache_path(Path(job.cache_directory), identity)
                compiles = read_cache_file(path, identity).status is not LoadStatus.LOADED
            if compiles and len(image):
                _compile_and_find(opened.device, image, job.workers, found)
            if not job.warm:
                break
        if identity is None:
            raise DeviceError(f"{source.name}: holds no pipelines")
        if compiles:
            saved = save_cache_file(cache_path(Path(job.cache_directory), identity), identity, found.data)
            if not saved.saved_bytes:
                raise DeviceError(f"nothing warm can be measured on {job.device}: {saved.skipped}")
        return Filled(
            set_hash=f"{source.content_hash():016x}",
            identity=identity_text(identity),
            pipelines=pipelines,
            cold_s=found.cold_ns / 1e9,
            warm_rate=found.rate(pipelines, found.one_ns),
            warm_rate_most=found.rate(pipelines, found.most_ns),
            hit_share=found.hits / pipelines if pipelines else 0.0,
            cache_bytes=len(found.data),
        )


def _compile_and_find(device: Device, image: CreateInfoImage, workers: int, found: _Found) -> None:
    """Fill a cache with several workers, then find everything in it, with one and with all; adds to what was found."""
    cold = _run(device, image, workers, found.data)
    found.data = cold.cache_data or b""
    # What a cache was given as data is turned into code when it is first found, which takes several times as long as
    # finding it again: the rate of a long run is that of the later times.
    repeated = repeat_pipelines(image, run_order(image, passes=_WARM_PASSES))
    one, most = (_run(device, repeated, count, found.data) for count in (1, workers))
    found.cold_ns += cold.timing.wall_ns
    found.one_ns += one.timing.wall_ns // _WARM_PASSES
    found.most_ns += most.timing.wall_ns // _WARM_PASSES
    found.hits += one.cache_hits // _WARM_PASSES


def _run(device: Device, image: CreateInfoImage, workers: int, data: bytes) -> RunReport:
    prepared = device.prepare(image)

    async def run() -> RunReport:
        return await run_pipelines(
            device, prepared, workers=workers, mode=CacheMode.SHARED, primary_data=data
        )

    try:
        return trio.run(run)
    finally:
        prepared.close()
