"""Does the jobs of a benchmark in a child process: takes a sample, fills a cache, probes a cache.

The timed part is what `compile` does between preparing and saving, with its schedule. As in an application,
pipelines are kept until the end of the run. Guarantees: the driver's own caches are off, and the row says
how. A warm run starts from a cache file that is proven for this device. What cannot be done is answered so.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.bench.jobs import (
    Answer,
    CacheJob,
    Filled,
    FillJob,
    Job,
    Probed,
    ProbeJob,
    Refused,
    SampleJob,
)
from orchestrator.bench.rows import (
    SLOWEST,
    Environment,
    Latencies,
    Sample,
    SlowPipeline,
    Start,
    Turn,
    arm_text,
    device_text,
    fields_of,
)
from orchestrator.bench.trace import Span, encode_trace, run_spans
from orchestrator.children.serving import Channel
from orchestrator.devices.device import Device, DriverObserver, DriverStep
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import PIPELINE_BINARIES
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.run.binaries import HeldPipelines
from orchestrator.run.compile_schedule import CompileSchedule, describe
from orchestrator.run.execution import run_pipelines
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.openers import ProfiledOpener, QuarantinedSet, with_features
from orchestrator.run.options import (
    BATCH_LIMIT,
    PipelineKeyUse,
    RunOptions,
    available_workers,
    unsteered_schedule,
)
from orchestrator.run.records import OutcomeStatus, RunReport, plain_text, status_code
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.opening import open_paths
from orchestrator.sets.prepare import DeviceOpener, opened_groups
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file, save_cache_file
from orchestrator.stores.files.atomic_file import SaveError, write_document
from orchestrator.version import VERSION

Request = Job
_SEED = 7
_ONE: Final = RunOptions(workers=1, mode=CacheMode.SHARED)
_NO_COSTS: Final = RecordedCosts(None)
_LONG_PASS_S = 0.25
_COMPILED = status_code(OutcomeStatus.COMPILED)
_HIT = status_code(OutcomeStatus.CACHE_HIT)
_VARIABLES: Final = (
    *("VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS", "VK_LAYER", "MESA_", "NIR_", "RADV_", "ACO_", "INTEL_"),
    *("LP_", "GALLIVM_", "TU_", "NAK_", "NVK_", "__GL_"),
)
_IDENTITY: Final = (
    *("driver_name", "driver_info", "driver_version", "driver_id"),
    *("device_name", "vendor_id", "device_id"),
)


def serve(channel: Channel[Job, Answer]) -> None:
    """Do one job."""
    job = channel.receive()
    try:
        if isinstance(job, SampleJob):
            channel.send(take_sample(job))
        else:
            channel.send(probe(job) if isinstance(job, ProbeJob) else fill(job))
    except OrchestratorError as error:
        channel.send(Refused(kind=type(error).__name__, reason=str(error)))


def take_sample(job: SampleJob) -> Sample:
    """Take a sample.

    Raises:
        OrchestratorError: The set, the device or the cache file of a warm run cannot be used.
    """
    began, totals, environment = time.perf_counter(), _Totals(job), None
    started_at, opened_as = time.time(), list[str]()
    with _opened(job) as (quarantined, opener):
        source = quarantined.source
        for opened in opened_groups(source, opener):
            device, image = opened.device, opened.built.image
            environment = environment or environment_of(device)
            totals.sums["skipped"] += len(opened.built.problems)
            quarantined.take(opened.built.problems)
            if len(image):
                opened_as.append(opened.group.request.text)
                totals.add(_sample(job, device, image))
        if environment is None or not totals.compiled_ns:
            raise DeviceError(f"{source.name}: {device_text(job.device)} takes none of its pipelines")
        notes = [*totals.notes, *opener.notes, *quarantined.notes]
        if job.trace:
            try:
                write_document(Path(job.trace), encode_trace(totals.spans, process=arm_text(job)))
            except SaveError as error:
                notes.append(f"no timeline: {error}")
        return Sample(
            **fields_of(Turn, job),
            **totals.sums,
            batch=job.batch,
            order=unsteered_schedule(job.mode).order,
            passes=job.passes,
            set_name=plain_text(", ".join(Path(each).name for each in job.set_paths)),
            set_hash=f"{source.content_hash():016x}",
            set_pipelines=len(source),
            environment=msgspec.structs.replace(environment, opened_as=tuple(opened_as)),
            started_at=started_at,
            process_s=time.perf_counter() - began,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            compiled_latency=Latencies.of(np.concatenate(totals.compiled_ns)),
            hit_latency=Latencies.of(np.concatenate(totals.hit_ns)),
            kinds_ns=dict(totals.kinds_ns),
            slowest=tuple(sorted(totals.slow, key=lambda each: -each.driver_ns)[:SLOWEST]),
            notes=tuple(dict.fromkeys(notes)),
        )


def _sample(job: SampleJob, device: Device, whole: CreateInfoImage) -> _Ran:
    directory = Path(job.cache_directory) if job.start == Start.WARM else None
    costs = RecordedCosts.open(directory, device.identity)
    order = run_order(whole, passes=job.passes, duplicates=job.duplicates)
    image = repeat_pipelines(whole, order) if len(order) != len(whole) or job.duplicates else whole
    options = RunOptions(workers=job.workers, mode=job.mode, keep=True)
    # Passes stand for a larger set, so repeated pipelines are not duplicates here.
    run = partial(_run, device, image, options, costs=costs, batch=job.batch, unites=job.passes == 1)
    if job.mode is not CacheMode.BINARIES:
        return run(b"" if directory is None else _warm_data(directory, device))
    if directory is None:
        with _binaries(device) as source:
            return run(source)
    with BinaryStore.open(directory) as store:
        with _binaries(device, store) as source:
            if not source.is_filled:  # the first sample fills the store
                _run(device, whole, evolve(options, keep=False), source, costs)
        with _binaries(device, store) as source:
            return run(source)


@contextmanager
def _binaries(device: Device, store: BinaryStore | None = None) -> Iterator[HeldPipelines]:
    source = HeldPipelines.of(device, store)
    try:
        yield source
    finally:
        source.destroy()


def fill(job: FillJob) -> Filled:
    """Compile a set, save the cache, and measure the hit rates of one worker and of all.

    Raises:
        OrchestratorError: The set or the device cannot be used.
    """
    found: dict[str, Any] = {}
    sums: dict[str, Any] = Counter()
    warnings: dict[str, None] = {}
    compiles, binaries, data = job.compiles, True, b""
    hit_s = {mode: [0.0, 0.0] for mode in (CacheMode.SHARED, CacheMode.PER_WORKER)}
    with _opened(job) as (quarantined, opener):
        source = quarantined.source
        for opened in opened_groups(source, opener):
            device, image = opened.device, opened.built.image
            path = cache_path(Path(job.cache_directory), device.identity)
            found = {"identity": device.identity, "environment": environment_of(device)}
            sums["pipelines"] += len(image)
            binaries &= device.features.pipeline_binaries
            if job.reuse and compiles:
                compiles = read_cache_file(path, device.identity).status is not LoadStatus.LOADED
            if compiles and len(image):
                ran = _run(device, image, RunOptions(workers=job.workers, mode=job.mode), data, _NO_COSTS)
                cold, schedule = ran.report, ran.schedule
                costs = RecordedCosts.open(Path(job.cache_directory), device.identity)
                costs.learn(cold.pipelines.keys, schedule.compile_times(cold))
                warnings |= dict.fromkeys(cold.merge.warnings if cold.merge is not None else ())
                data = cold.cache_data or b""
                sums["hits"] += cold.cache_hits
                sums["cold_wall_ns"] += cold.timing.wall_ns
                sums["cold_driver_ns"] += cold.timing.driver_ns
                if job.passes:
                    _measure_hits(job, device, image, data, cold.cache_hits, hit_s)
            if not job.compiles:
                break
        if not found:
            raise DeviceError(f"{source.name}: holds no pipelines")
        not_kept = ""
        if compiles:
            skipped = save_cache_file(path, device.identity, data).skipped
            if read_cache_file(path, device.identity).status is not LoadStatus.LOADED:
                not_kept = skipped or "the file that was written cannot be read"
        return Filled(
            set_name=plain_text(source.name),
            set_hash=f"{source.content_hash():016x}",
            hit_s={mode: (one, every) for mode, (one, every) in hit_s.items() if one and every},
            warnings=tuple(warnings),
            not_kept=not_kept,
            binaries=binaries,
            **found,
            **sums,
        )


def _measure_hits(
    job: FillJob,
    device: Device,
    image: CreateInfoImage,
    data: bytes,
    hits_without: int,
    hit_s: dict[CacheMode, list[float]],
) -> None:
    """Add the time of a pass of hits with one worker and with all, for a shared and for private caches.

    The first hit of an entry turns its data into code and takes several times as long as later hits. A long
    run measures the later ones, unless one pass is long enough.
    """
    for mode, times in hit_s.items():
        for place, workers in enumerate((1, job.workers)):
            options = RunOptions(workers=workers, mode=mode)
            for passes in (1, job.passes):
                many = repeat_pipelines(image, run_order(image, passes=passes))
                report = _run(device, many, options, data, _NO_COSTS, unites=False).report
                if passes == 1 and device.features.creation_feedback and report.cache_hits <= hits_without:
                    return
                seconds = report.timing.wall_ns / 1e9 / passes
                if seconds >= _LONG_PASS_S:
                    break
            times[place] += seconds


def probe(job: ProbeJob) -> Probed:
    """Ask the driver in this new process about the contents or the growth of a cache.

    Raises:
        OrchestratorError: The set or the device cannot be used.
        DeviceError: The driver has no creation feedback, so hits are unknown.
    """
    hits, sizes, asked, missed = 0, list[int](), False, list[str]()
    with _opened(job) as (quarantined, opener):
        source = quarantined.source
        for opened in opened_groups(source, opener):
            device, image = opened.device, opened.built.image
            if not len(image):
                continue
            if not device.features.creation_feedback:
                raise DeviceError("the driver gives no creation feedback, so that hits are not known")
            asked = True
            path = cache_path(Path(job.cache_directory), device.identity)
            data = read_cache_file(path, device.identity).data
            for _ in range(max(1, job.rounds)):
                report = _run(device, image, _ONE, data, _NO_COSTS).report
                hits, data = hits + report.cache_hits, report.cache_data or b""
                sizes.append(len(data))
            if job.rounds:
                break  # one group of features shows it
            compiled, found = (report.pipelines.status == each for each in (_COMPILED, _HIT))
            if compiled.any() and found.any():
                missed.append(describe(image, compiled, found))
        if not asked:
            raise DeviceError(f"{source.name}: {device_text(job.device)} takes none of its pipelines")
    return Probed(hits=hits, missed="; ".join(missed), sizes=tuple(sizes) if job.rounds else ())


@contextmanager
def _opened(job: SampleJob | CacheJob) -> Iterator[tuple[QuarantinedSet, ProfiledOpener]]:
    directory = Path(job.profiles) if job.profiles else None
    opener: DeviceOpener = partial(open_for_child, "", job.device)
    if isinstance(job, SampleJob) and job.mode is CacheMode.BINARIES:
        opener = with_features(opener, frozenset({PIPELINE_BINARIES}))
    with open_paths(job.set_paths) as whole:
        quarantined = QuarantinedSet(whole, directory)
        yield quarantined, ProfiledOpener(quarantined.opening(opener), directory)


@frozen
class _Ran:
    report: RunReport
    schedule: CompileSchedule
    prepare_ns: int
    merge_driver_ns: int


class _MergeClock(DriverObserver):
    """Measures the driver's part of merges."""

    driver_ns = 0

    def entering(self, step: DriverStep, *_: object, **__: object) -> int:
        return time.perf_counter_ns() if step is DriverStep.MERGE else 0

    def left(self, call: int, *_: object, **__: object) -> None:
        if call:
            self.driver_ns += time.perf_counter_ns() - call


def _run(
    device: Device,
    image: CreateInfoImage,
    options: RunOptions,
    primary: bytes | HeldPipelines,
    costs: RecordedCosts,
    *,
    batch: int = BATCH_LIMIT,
    unites: bool = True,
) -> _Ran:
    """A run as in `compile`, with so many pipelines in a call; duplicates are compiled once if it unites."""
    on_demand, began = options.mode is CacheMode.BINARIES, time.perf_counter_ns()
    warm = primary.is_filled if isinstance(primary, HeldPipelines) else bool(primary)
    with closing(device.prepare(image, modules_on_demand=on_demand)) as prepared:
        prepare_ns = time.perf_counter_ns() - began
        schedule = CompileSchedule(
            prepared,
            options.mode,
            options.workers or available_workers(),
            costs.of(image),
            held=np.ones(len(image), np.bool_) if warm else None,
            batch=batch,
            unites=unites,
        )
        schedule.ask_keys(device, PipelineKeyUse.AUTO)
        run = partial(
            run_pipelines, device, prepared, options, primary=primary, scheduler=schedule.scheduler()
        )
        device.observer = clock = _MergeClock()
        with no_garbage_collection():
            report = trio.run(run)
        if report.pipelines.handles is not None:
            device.destroy_pipelines(report.pipelines.handles)
        return _Ran(report, schedule, prepare_ns, clock.driver_ns)


def _warm_data(directory: Path, device: Device) -> bytes:
    loaded = read_cache_file(cache_path(directory, device.identity), device.identity)
    if loaded.status is not LoadStatus.LOADED:
        raise DeviceError(
            f"the cache for warm runs cannot be used: {loaded.status.value}: {loaded.detail}; "
            "the driver may have changed since the benchmark began"
        )
    return loaded.data


def run_order(image: CreateInfoImage, *, passes: int = 1, duplicates: float = 0.0) -> npt.NDArray[np.int32]:
    """The order of a run: `passes` times the whole set, and a share of it once more in each pass.

    Libraries occur once. A duplicate follows its original at a random distance, which is the same in every
    process. So two workers may compile both at the same time, as in an application.
    """
    random = np.random.default_rng(_SEED)
    parts = []
    for number in np.unique(image.kinds):
        of_kind = np.flatnonzero(image.kinds == number)
        plain = of_kind[~image.is_library[of_kind]]
        extra = random.choice(plain, round(len(plain) * duplicates), replace=False) if len(plain) else plain
        first = np.searchsorted(of_kind, extra)
        # Fractional places, so that sorting inserts the duplicates between the originals.
        places = first + random.random(len(extra)) * (len(of_kind) - first) + 0.5
        merged = np.argsort(np.concatenate([np.arange(len(of_kind)), places]), kind="stable")
        once = np.concatenate([of_kind, extra])[merged]
        parts += [once, *([once[~image.is_library[once]]] * (passes - 1))]
    return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage once, then disable the collector for the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@define
class _Totals:
    """The figures of a sample so far, over its feature groups; `sums` are fields of its row."""

    job: SampleJob
    sums: dict[str, Any] = field(factory=Counter)
    compiled_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    hit_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    kinds_ns: Counter[str] = field(factory=Counter)
    slow: list[SlowPipeline] = field(factory=list)
    notes: dict[str, None] = field(factory=dict)
    spans: list[Span] = field(factory=list)

    def add(self, ran: _Ran) -> None:
        report, schedule = ran.report, ran.schedule
        if self.job.trace:
            self.spans += run_spans(report)
        of = report.pipelines
        compiled, hit = of.status == _COMPILED, of.status == _HIT
        self.compiled_ns.append(of.driver_ns[compiled])
        self.hit_ns.append(of.driver_ns[hit])
        for number, kind in enumerate(PipelineKind):
            if took := int(of.driver_ns[compiled & (of.kinds == number)].sum()):
                self.kinds_ns[kind.value] += took
        places = np.flatnonzero(compiled)
        for place in places[np.argsort(of.driver_ns[places])[::-1][:SLOWEST]]:
            kind = KINDS[of.kinds[place]]
            self.slow.append(SlowPipeline(f"{of.keys[place]:016x}", kind.value, int(of.driver_ns[place])))
        compiled_ns = of.driver_ns[compiled]
        _, first, times = np.unique(of.keys[compiled], return_index=True, return_counts=True)
        merge, timing, counts = report.merge, report.timing, report.counts()
        figures = {
            "pipelines": len(report) - counts[OutcomeStatus.SKIPPED],
            "created": int(compiled.sum() + hit.sum()),
            "hits": int(hit.sum()),
            "failed": counts[OutcomeStatus.FAILED],
            "skipped": counts[OutcomeStatus.SKIPPED],
            "calls": len(report.calls),
            "prepare_ns": ran.prepare_ns,
            "keys_ns": schedule.keys_ns,
            "open_ns": timing.make_caches_ns,
            "call_ns": int(report.calls.wall_ns.sum()),
            "merge_driver_ns": ran.merge_driver_ns,
            "barrier_wait_ns": sum(report.barrier.waits_ns),
            "duplicate_keys": int((times > 1).sum()),
            "duplicate_ns": int(compiled_ns.sum()) - int(compiled_ns[first].sum()),
            "primary_bytes": merge.primary_bytes_after if merge else 0,
        }
        of_timing = ("wall", "merge", "read_back", "driver", "cpu", "run_delay", "blocked")
        figures |= {f"{name}_ns": getattr(timing, f"{name}_ns") for name in of_timing}
        for name, value in figures.items():
            self.sums[name] += value
        self.notes |= dict.fromkeys((*schedule.notes, *report.notes, *(merge.warnings if merge else ())))


def environment_of(device: Device) -> Environment:
    """The environment of a sample that is taken now on a device."""
    identity = device.identity
    return Environment(
        **{name: getattr(identity, name) for name in _IDENTITY},
        pipeline_cache_uuid=identity.pipeline_cache_uuid.hex(),
        driver_caches=device.features.driver_caches,
        variables=tuple(
            f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(_VARIABLES)
        ),
        layers=tuple(sorted(device.features.layer_names)),
        cores=available_workers(),
        processor=processor_name(),
        load_average=os.getloadavg()[0],
        python=platform.python_version(),
        orchestrator=VERSION,
    )


def processor_name() -> str:
    """Model name of the processor; the architecture if the system does not tell."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
