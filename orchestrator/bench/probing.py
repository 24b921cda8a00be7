# Purpose: single questions to a driver, each in a process of its own, because what the driver remembers must not answer.
#
#   compile   an empty cache, a topology, the whole set  ─> cache file, and what the merge said
#   look up   that file in a new process                 ─> how many of the set are found
#   grow      load, use, read back, and again            ─> the size after each round
#
# Guarantees: creation feedback says what a hit is; a driver without it has no answer, and that is said.
"""Probes of a calibration."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import trio

from orchestrator.bench.jobs import Probed, ProbeJob, ProbeStep
from orchestrator.bench.sampling import open_paths, opened_on
from orchestrator.devices.device import CacheMode, Device, DeviceIdentity, PreparedPipelines
from orchestrator.errors import DeviceError
from orchestrator.run import RunReport, run_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.cache_file import cache_path, read_cache_file, save_cache_file


def probe(job: ProbeJob) -> Probed:
    """Ask.

    Raises:
        OrchestratorError: The set or the device is not to be had.
    """
    with open_paths(job.set_paths) as source:
        runs: list[RunReport] = []
        sizes: list[int] = []
        data: bytes | None = None
        identity: DeviceIdentity | None = None
        for opened in opened_on(source, job.device):
            device = opened.device
            if not len(opened.built.image):
                continue
            if not device.features.creation_feedback and job.step is not ProbeStep.COMPILE:
                raise DeviceError("the driver gives no creation feedback, so that hits are not known")
            identity = device.identity
            if data is None:
                data = b"" if job.step is ProbeStep.COMPILE else _data(job, device)
            with closing(device.prepare(opened.built.image)) as prepared:
                if job.step is ProbeStep.GROW:
                    for _ in range(job.rounds):
                        runs.append(_run(device, prepared, CacheMode.SHARED, 1, data))
                        data = runs[-1].cache_data or b""
                        sizes.append(len(data))
                    break  # one group of features shows it
                mode, workers = (
                    (CacheMode(job.mode), job.workers)
                    if job.step is ProbeStep.COMPILE
                    else (CacheMode.SHARED, 1)
                )
                runs.append(_run(device, prepared, mode, workers, data))
            if job.step is ProbeStep.COMPILE:
                data = runs[-1].cache_data or b""
        if identity is None:
            raise DeviceError(f"{source.name}: {job.device} takes none of its pipelines")
        if job.step is ProbeStep.COMPILE:
            save_cache_file(cache_path(Path(job.cache_directory), identity), identity, data or b"")
        return _answer(source, identity, runs, sizes)


def _answer(source: PipelineSet, identity: DeviceIdentity, runs: list[RunReport], sizes: list[int]) -> Probed:
    wall_ns = sum(each.timing.wall_ns for each in runs)
    pipelines = sum(len(each) - len(each.skipped) for each in runs)
    merges = [each.merge for each in runs if each.merge is not None]
    return Probed(
        set_name=source.name,
        set_hash=f"{source.content_hash():016x}",
        identity=identity,
        pipelines=pipelines,
        hits=sum(each.cache_hits for each in runs),
        rate=pipelines / (wall_ns / 1e9) if wall_ns else 0.0,
        sizes=tuple(sizes),
        warnings=tuple(dict.fromkeys(warning for merge in merges for warning in merge.warnings)),
    )


def _data(job: ProbeJob, device: Device) -> bytes:
    """The data of the cache file, or none where nothing was worth saving."""
    return read_cache_file(cache_path(Path(job.cache_directory), device.identity), device.identity).data


def _run(
    device: Device, prepared: PreparedPipelines, mode: CacheMode, workers: int, data: bytes
) -> RunReport:
    async def run() -> RunReport:
        return await run_pipelines(device, prepared, workers=workers, mode=mode, primary_data=data)

    return trio.run(run)
