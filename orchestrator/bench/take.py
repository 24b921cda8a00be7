"""Takes samples in this process.

Taking one sample: a set, a device, one run, one row.

open the set ─> for each group of recorded features: open device ─> image ─> copies ─> run ─> row

What is timed is `run_pipelines` and nothing else: the set is decoded, the create infos are built and the
modules made before, and the worker caches of a warm run have their data. Pipelines are kept, as an
application keeps them, and destroyed after the run. Python's garbage collector is off meanwhile.

Guarantees: the driver's own caches are off, and the row says how. A warm run starts from a cache file that
was proven to be this device's; one that is not fails instead of being measured as cold. Every pipeline that
the device takes is in the run `passes` times, and the share of duplicates one more time.

Fills the cache of warm samples in this process.

What comes before warm samples: compiling the set once, keeping the cache, and seeing how fast it is found
there, by one worker and by all, so that warm runs can be made to last long enough and not too long.

Guarantees: the cache file is one that a sample will accept. Nothing is compiled where a file that was
proven is to be left as it is.

Probes of a calibration.

Single questions to a driver, each in a process of its own, because what the driver remembers must not
answer.

compile   an empty cache, a topology, the whole set  ─> cache file, and what the merge said look up   that
file in a new process                 ─> how many of the set are found grow      load, use, read back, and
again            ─> the size after each round

Guarantees: creation feedback says what a hit is; a driver without it has no answer, and that is said.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.bench.jobs import Filled, FillJob, Probed, ProbeJob, ProbeStep, SampleJob
from orchestrator.bench.rows import Environment, Latencies, Sample, Start
from orchestrator.bench.trace import Span, encode_trace, run_spans
from orchestrator.devices import open_for_child
from orchestrator.devices.device import CacheMode, Device, DeviceIdentity, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError
from orchestrator.run import OutcomeStatus, RunOptions, RunReport, run_pipelines
from orchestrator.run.options import unsteered_schedule
from orchestrator.run.records import status_code
from orchestrator.schedule import Followers, ScheduleOptions
from orchestrator.sets.authoring.manifest import load_manifest
from orchestrator.sets.image.builder import BuiltImage
from orchestrator.sets.image.repeated import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import OpenedGroup, opened_groups
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file, save_cache_file
from orchestrator.version import version

_SEED = 7
_COMPILED = status_code(OutcomeStatus.COMPILED)
_HIT = status_code(OutcomeStatus.CACHE_HIT)


def open_paths(paths: tuple[str, ...]) -> PipelineSet:
    """Open a set by its paths: archives, or one manifest. The caller closes it."""
    if len(paths) == 1 and Path(paths[0]).suffix.lower() == ".toml":
        return PipelineSet.from_records(load_manifest(Path(paths[0])).records)
    return PipelineSet.open(paths)


def run_order(image: CreateInfoImage, *, passes: int = 1, duplicates: float = 0.0) -> npt.NDArray[np.int32]:
    """The pipelines of a run: the whole set some times over, and a share of it once more.

    Libraries are in it once. A duplicate stands at a random place behind its original, the same in every process, so
    that two workers may or may not have it at the same time, as in an application.

    Args:
        image: The pipelines.
        passes: How often the set is in it.
        duplicates: Share of the pipelines that are in it once more.
    """
    random = np.random.default_rng(_SEED)
    parts = []
    for number in np.unique(image.kinds):
        of_kind = np.flatnonzero(image.kinds == number)
        plain = of_kind[~image.is_library[of_kind]]
        whole = np.concatenate([of_kind, *([plain] * (passes - 1))])
        extra = random.choice(plain, round(len(plain) * duplicates), replace=False) if len(plain) else plain
        first = np.searchsorted(of_kind, extra)
        # Places between those of the sequence, so that sorting by them inserts the copies.
        places = first + random.random(len(extra)) * (len(whole) - first) + 0.5
        merged = np.argsort(np.concatenate([np.arange(len(whole), dtype=np.float64), places]), kind="stable")
        parts.append(np.concatenate([whole, extra])[merged])
    return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)


def take_sample(job: SampleJob) -> Sample:
    """Take a sample.

    Raises:
        OrchestratorError: The set, the device or the cache file of a warm run is not to be had.
    """
    began = time.perf_counter()
    started_at = time.time()
    load = os.getloadavg()[0]
    with open_paths(job.set_paths) as source:
        totals = _Totals()
        for opened in opened_on(source, job.device):
            device, built = opened.device, opened.built
            totals.identity, totals.driver_caches = device.identity, device.features.driver_caches
            totals.skipped += len(built.problems)
            if len(built.image):
                totals.opened_as.append(opened.group.request.text)
                totals.take(_run(job, device, built), job)
        return totals.row(
            job, source, started_at=started_at, load=load, process_s=time.perf_counter() - began
        )


def identity_text(identity: DeviceIdentity) -> str:
    """What tells one device and driver from another, in a line."""
    return (
        f"{identity.device_name}, {identity.driver_name} {identity.driver_info} "
        f"({identity.vendor_id:04x}:{identity.device_id:04x}, version {identity.driver_version:#x}, "
        f"cache {identity.pipeline_cache_uuid.hex()})"
    )


def opened_on(source: PipelineSet, selector: str) -> Iterator[OpenedGroup]:
    """Each group of a set on the device of a selector; see `opened_groups`."""
    return opened_groups(source, lambda request: open_for_child("", selector, request))


def schedule_of(job: SampleJob) -> ScheduleOptions:
    """The settings with which `compile_set` would schedule the run of a sample."""
    # The passes stand for a larger set: they are no duplicates.
    followers = Followers.SEPARATE if job.passes > 1 else Followers.CREATE
    return evolve(unsteered_schedule(CacheMode(job.mode), batch_limit=job.batch), followers=followers)


def _run(job: SampleJob, device: Device, built: BuiltImage) -> tuple[RunReport, int]:
    """One run, and the resident size before it."""
    image = built.image
    order = run_order(image, passes=job.passes, duplicates=job.duplicates)
    if len(order) != len(image) or job.duplicates:
        image = repeat_pipelines(image, order)
    primary_data = _warm_data(job, device) if job.start == Start.WARM else b""
    prepared = device.prepare(image)
    try:

        async def run() -> RunReport:
            return await run_pipelines(
                device,
                prepared,
                RunOptions(
                    workers=job.workers, mode=CacheMode(job.mode), schedule=schedule_of(job), keep=True
                ),
                primary=primary_data,
            )

        before = peak_memory()
        with no_garbage_collection():
            report = trio.run(run)
        if report.pipelines.handles is not None:
            device.destroy_pipelines(report.pipelines.handles)
        return report, before
    finally:
        prepared.close()


def _warm_data(job: SampleJob, device: Device) -> bytes:
    loaded = read_cache_file(cache_path(Path(job.cache_directory), device.identity), device.identity)
    if loaded.status is not LoadStatus.LOADED:
        raise DeviceError(
            f"the cache for warm runs cannot be used: {loaded.status.value}: {loaded.detail}; "
            "did the driver change since the benchmark began?"
        )
    return loaded.data


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's garbage collector rests meanwhile, after it has collected once."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_memory() -> int:
    """Largest resident size of this process so far, bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024  # kilobytes everywhere else


@define
class _Totals:
    """Sums over the groups of a set."""

    identity: DeviceIdentity | None = None
    driver_caches: str = ""
    skipped: int = 0
    memory_before: int = 0
    sums: dict[str, int] = field(factory=dict)
    compiled_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    hit_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    notes: list[str] = field(factory=list)
    opened_as: list[str] = field(factory=list)
    spans: list[Span] = field(factory=list)

    def take(self, run: tuple[RunReport, int], job: SampleJob) -> None:
        """Add the run of a group."""
        report, memory_before = run
        self.memory_before = self.memory_before or memory_before
        if job.trace:
            self.spans += run_spans(report)
        compiled, hit = report.pipelines.status == _COMPILED, report.pipelines.status == _HIT
        self.compiled_ns.append(report.pipelines.driver_ns[compiled])
        self.hit_ns.append(report.pipelines.driver_ns[hit])
        duplicate_keys, duplicate_ns = repeated_work(
            report.pipelines.keys[compiled], report.pipelines.driver_ns[compiled]
        )
        merge, timing, counts = report.merge, report.timing, report.counts()
        figures = {
            "pipelines": len(report) - counts[OutcomeStatus.SKIPPED],
            "created": int(compiled.sum() + hit.sum()),
            "hits": int(hit.sum()),
            "failed": counts[OutcomeStatus.FAILED],
            "skipped": counts[OutcomeStatus.SKIPPED],
            "calls": len(report.calls),
            "open_ns": timing.make_caches_ns,
            "wall_ns": timing.wall_ns,
            "merge_ns": timing.merge_ns,
            "read_back_ns": timing.read_back_ns,
            "call_ns": int(report.calls.wall_ns.sum()),
            "driver_ns": timing.driver_ns,
            "cpu_ns": timing.cpu_ns,
            "run_delay_ns": timing.run_delay_ns,
            "blocked_ns": timing.blocked_ns,
            "barrier_wait_ns": sum(report.barrier.waits_ns),
            "duplicate_keys": duplicate_keys,
            "duplicate_ns": duplicate_ns,
            "source_bytes": sum(merge.source_bytes) if merge else 0,
            "primary_bytes": merge.primary_bytes_after if merge else 0,
        }
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0) + value
        self.notes += [
            each for each in (*report.notes, *(merge.warnings if merge else ())) if each not in self.notes
        ]

    def row(
        self, job: SampleJob, source: PipelineSet, *, started_at: float, load: float, process_s: float
    ) -> Sample:
        """The row."""
        if self.identity is None or not self.sums:
            raise DeviceError(f"{source.name}: {job.device} takes none of its pipelines")
        if job.trace:
            Path(job.trace).write_bytes(encode_trace(self.spans, process=job.arm.words))
        sums = dict(self.sums)
        sums["skipped"] += self.skipped
        return Sample(
            device=job.device,
            start=job.start,
            duplicates=job.duplicates,
            workers=job.workers,
            mode=job.mode,
            control=job.control,
            round=job.round,
            batch=job.batch,
            order=schedule_of(job).order,
            passes=job.passes,
            set_name=", ".join(Path(each).name for each in job.set_paths),
            set_hash=f"{source.content_hash():016x}",
            set_pipelines=len(source),
            environment=environment(self.identity, self.driver_caches, load, tuple(self.opened_as)),
            started_at=started_at,
            process_s=process_s,
            memory_before_bytes=self.memory_before,
            peak_memory_bytes=peak_memory(),
            compiled_latency=Latencies.of(np.concatenate(self.compiled_ns)),
            hit_latency=Latencies.of(np.concatenate(self.hit_ns)),
            notes=tuple(self.notes),
            **sums,
        )


def repeated_work(keys: npt.NDArray[np.uint64], driver_ns: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Keys that were compiled more than once, and the driver time of all but the first compilation of each."""
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    total = int(driver_ns.sum()) - int(driver_ns[first].sum()) if len(keys) else 0
    return int((counts > 1).sum()), total


def environment(
    identity: DeviceIdentity, driver_caches: str, load: float, opened_as: tuple[str, ...]
) -> Environment:
    """Where this process takes samples."""
    return Environment(
        driver_name=identity.driver_name,
        driver_info=identity.driver_info,
        driver_version=identity.driver_version,
        driver_id=identity.driver_id,
        device_name=identity.device_name,
        vendor_id=identity.vendor_id,
        device_id=identity.device_id,
        pipeline_cache_uuid=identity.pipeline_cache_uuid.hex(),
        driver_caches=driver_caches,
        opened_as=opened_as,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        processor=_processor(),
        load_average=load,
        python=platform.python_version(),
        orchestrator=version(),
    )


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


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
    cold = _run_filling(device, image, workers, found.data)
    found.data = cold.cache_data or b""
    # What a cache was given as data is turned into code when it is first found, which takes several times as long as
    # finding it again: the rate of a long run is that of the later times.
    repeated = repeat_pipelines(image, run_order(image, passes=_WARM_PASSES))
    one, most = (_run_filling(device, repeated, count, found.data) for count in (1, workers))
    found.cold_ns += cold.timing.wall_ns
    found.one_ns += one.timing.wall_ns // _WARM_PASSES
    found.most_ns += most.timing.wall_ns // _WARM_PASSES
    found.hits += one.cache_hits // _WARM_PASSES


def _run_filling(device: Device, image: CreateInfoImage, workers: int, data: bytes) -> RunReport:
    prepared = device.prepare(image)

    async def run() -> RunReport:
        return await run_pipelines(
            device, prepared, RunOptions(workers=workers, mode=CacheMode.SHARED), primary=data
        )

    try:
        return trio.run(run)
    finally:
        prepared.close()


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
                        runs.append(_run_probing(device, prepared, CacheMode.SHARED, 1, data))
                        data = runs[-1].cache_data or b""
                        sizes.append(len(data))
                    break  # one group of features shows it
                mode, workers = (
                    (CacheMode(job.mode), job.workers)
                    if job.step is ProbeStep.COMPILE
                    else (CacheMode.SHARED, 1)
                )
                runs.append(_run_probing(device, prepared, mode, workers, data))
            if job.step is ProbeStep.COMPILE:
                data = runs[-1].cache_data or b""
        if identity is None:
            raise DeviceError(f"{source.name}: {job.device} takes none of its pipelines")
        if job.step is ProbeStep.COMPILE:
            save_cache_file(cache_path(Path(job.cache_directory), identity), identity, data or b"")
        return _answer(source, identity, runs, sizes)


def _answer(source: PipelineSet, identity: DeviceIdentity, runs: list[RunReport], sizes: list[int]) -> Probed:
    wall_ns = sum(each.timing.wall_ns for each in runs)
    pipelines = sum(len(each) - each.counts()[OutcomeStatus.SKIPPED] for each in runs)
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


def _run_probing(
    device: Device, prepared: PreparedPipelines, mode: CacheMode, workers: int, data: bytes
) -> RunReport:
    async def run() -> RunReport:
        return await run_pipelines(device, prepared, RunOptions(workers=workers, mode=mode), primary=data)

    return trio.run(run)
