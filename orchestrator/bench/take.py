"""Does the jobs of a benchmark in a child process: takes a sample, fills a cache, probes a cache.

    set ─> each feature group: open device ─> image ─> copies ─> run ─> row

The timed part is what `compile` does between preparing and saving: query pipeline keys, then `run_pipelines`
with the schedule of `compile`. Before that, the set is decoded, modules are created, and the caches of a warm
run are loaded. As in an application, pipelines are kept until the end of the run. Python's garbage collector
is disabled during the run.

Guarantees: the driver's own caches are off, and the row says how. Devices are opened as by `compile`. A warm
run starts from a cache file that is proven for this device; otherwise it fails. A run creates every pipeline
that the device supports `passes` times, and the share of duplicates once more in each pass. A job that cannot
be done gets an answer with the reason.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field

from orchestrator.bench.jobs import (
    Answer,
    CacheJob,
    Filled,
    FillJob,
    Job,
    Probed,
    ProbeJob,
    ProbeStep,
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
    device_text,
    turn_of,
)
from orchestrator.bench.trace import Span, encode_trace, run_spans
from orchestrator.children.serving import Channel
from orchestrator.devices.device import CacheMode, Device, DeviceIdentity
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import PIPELINE_BINARIES
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.run.accounting import USAGE
from orchestrator.run.binaries import HeldPipelines
from orchestrator.run.compile import with_features
from orchestrator.run.compile_schedule import CompileSchedule
from orchestrator.run.execution import run_pipelines
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.openers import ProfiledOpener, QuarantinedSet
from orchestrator.run.options import (
    BATCH_LIMIT,
    PipelineKeyUse,
    RunOptions,
    available_workers,
    unsteered_schedule,
)
from orchestrator.run.recompiled import describe
from orchestrator.run.records import OutcomeStatus, RunReport, plain_text, status_code
from orchestrator.schedule.options import Followers
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener, opened_groups
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file, save_cache_file
from orchestrator.stores.files.atomic_file import SaveError, write_document
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from orchestrator.stores.binary_store import BinaryStore

_SEED = 7
_COMPILED = status_code(OutcomeStatus.COMPILED)
_HIT = status_code(OutcomeStatus.CACHE_HIT)
_IDENTITY = (
    *("driver_name", "driver_info", "driver_version", "driver_id"),
    *("device_name", "vendor_id", "device_id"),
)


def take_sample(job: SampleJob) -> Sample:
    """Take a sample.

    Raises:
        OrchestratorError: The set, the device or the cache file of a warm run cannot be used.
    """
    began, totals = time.perf_counter(), _Totals(job)
    with _opened(job) as (quarantined, opener):
        source = quarantined.source
        for opened in opened_groups(source, opener):
            device, image = opened.device, opened.built.image
            totals.identity, totals.driver_caches = device.identity, device.features.driver_caches
            totals.skipped += len(opened.built.problems)
            quarantined.take(opened.built.problems)
            if not len(image):
                continue
            order = run_order(image, passes=job.passes, duplicates=job.duplicates)
            if len(order) != len(image) or job.duplicates:
                image = repeat_pipelines(image, order)
            totals.opened_as.append(opened.group.request.text)
            totals.add(_sample(job, device, opened.built.image, image))
        totals.notes |= dict.fromkeys((*opener.notes, *quarantined.notes))
        return totals.row(source, began)


def _sample(job: SampleJob, device: Device, whole: CreateInfoImage, image: CreateInfoImage) -> _Done:
    costs, settings = _costs(job, device), settings_of(job)
    if job.mode is not CacheMode.BINARIES:
        data = _warm_data(job, device) if job.start == Start.WARM else b""
        return _run(device, image, settings, data, costs)
    if job.start != Start.WARM:
        with _binaries(device) as source:
            return _run(device, image, settings, source, costs)
    from orchestrator.stores.binary_store import BinaryStore

    with BinaryStore.open(Path(job.cache_directory)) as store:
        with _binaries(device, store) as source:
            if not source.is_filled:  # the first sample fills the store
                _run(device, whole, RunSettings(CacheMode.BINARIES, job.workers), source, costs)
        with _binaries(device, store) as source:
            return _run(device, image, settings, source, costs)


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
    identity, compiles, binaries, data = None, job.compiles, True, b""
    pipelines = hits = one_ns = most_ns = wall_ns = driver_ns = 0
    warnings: dict[str, None] = {}
    not_kept = ""
    with _opened(job) as (quarantined, opener):
        source = quarantined.source
        for opened in opened_groups(source, opener):
            device, image = opened.device, opened.built.image
            identity, pipelines = device.identity, pipelines + len(image)
            binaries &= device.features.pipeline_binaries
            path = cache_path(Path(job.cache_directory), identity)
            if job.reuse and compiles:
                compiles = read_cache_file(path, identity).status is not LoadStatus.LOADED
            if compiles and len(image):
                done = _run(device, image, RunSettings(job.mode, job.workers), data)
                cold, costs = done.report, RecordedCosts.open(Path(job.cache_directory), identity)
                costs.learn(cold.pipelines.keys, done.schedule.compile_times(cold))
                data, hits = cold.cache_data or b"", hits + cold.cache_hits
                wall_ns, driver_ns = wall_ns + cold.timing.wall_ns, driver_ns + cold.timing.driver_ns
                warnings |= dict.fromkeys(cold.merge.warnings if cold.merge is not None else ())
                if job.passes and _finds(device, image, data, cold.cache_hits):
                    # The first hit of an entry turns its data into code and takes several times as long as
                    # later hits. A long run measures the later ones.
                    many = repeat_pipelines(image, run_order(image, passes=job.passes))
                    alone = RunSettings(CacheMode.SHARED, 1, followers=Followers.SEPARATE)
                    one = _run(device, many, alone, data).report
                    most = _run(device, many, alone._replace(workers=job.workers), data).report
                    one_ns, most_ns = one_ns + one.timing.wall_ns, most_ns + most.timing.wall_ns
            if not job.compiles:
                break
        if identity is None:
            raise DeviceError(f"{source.name}: holds no pipelines")
        if compiles:
            skipped = save_cache_file(path, identity, data).skipped
            if read_cache_file(path, identity).status is not LoadStatus.LOADED:
                not_kept = skipped or "the file that was written cannot be read"

        def rate(time_ns: int) -> float:
            return pipelines * job.passes / (time_ns / 1e9) if time_ns else 0.0

        return Filled(
            set_name=plain_text(source.name),
            set_hash=f"{source.content_hash():016x}",
            identity=identity,
            pipelines=pipelines,
            hits=hits,
            warm_rate=rate(one_ns),
            warm_rate_most=rate(most_ns),
            warnings=tuple(warnings),
            not_kept=not_kept,
            binaries=binaries,
            cold_wall_ns=wall_ns,
            cold_driver_ns=driver_ns,
            **machine(),
        )


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
            data = read_cache_file(
                cache_path(Path(job.cache_directory), device.identity), device.identity
            ).data
            for _ in range(job.rounds if job.step is ProbeStep.GROW else 1):
                report = _run(device, image, _ONE, data).report
                hits, data = hits + report.cache_hits, report.cache_data or b""
                sizes.append(len(data))
            compiled, found = (report.pipelines.status == each for each in (_COMPILED, _HIT))
            if job.step is ProbeStep.LOOK_UP and compiled.any() and found.any():
                missed.append(describe(image, compiled, found))
            if job.step is ProbeStep.GROW:
                break  # one group of features shows it
        if not asked:
            raise DeviceError(f"{source.name}: {device_text(job.device)} takes none of its pipelines")
    return Probed(
        hits=hits, missed="; ".join(missed), sizes=tuple(sizes) if job.step is ProbeStep.GROW else ()
    )


@contextmanager
def _opened(job: SampleJob | CacheJob) -> Iterator[tuple[QuarantinedSet, ProfiledOpener]]:
    directory = Path(job.profiles) if job.profiles else None
    with open_paths(job.set_paths) as whole:
        quarantined = QuarantinedSet(whole, directory)
        opener = quarantined.opening(_opener(job))
        yield quarantined, ProfiledOpener(opener, directory)


def _opener(job: SampleJob | CacheJob) -> DeviceOpener:
    opener = partial(open_for_child, "", job.device)
    if isinstance(job, SampleJob) and job.mode is CacheMode.BINARIES:
        return with_features(opener, frozenset({PIPELINE_BINARIES}))
    return opener


class RunSettings(NamedTuple):
    """The settings of a run; all others are those of `compile`.

    Attributes:
        batch: Largest number of pipelines in a call.
        followers: The treatment of duplicates.
        keep: Whether pipelines are kept until the end of the run.
    """

    mode: CacheMode
    workers: int
    batch: int = BATCH_LIMIT
    followers: Followers = Followers.CREATE
    keep: bool = False


_ONE: Final = RunSettings(CacheMode.SHARED, 1)


class _Done(NamedTuple):
    report: RunReport
    schedule: CompileSchedule
    memory_before: int
    prepare_ns: int


def settings_of(job: SampleJob) -> RunSettings:
    """The settings of a sample's run."""
    # Passes stand for a larger set, so repeated pipelines are not duplicates here.
    followers = Followers.SEPARATE if job.passes > 1 else Followers.CREATE
    return RunSettings(job.mode, job.workers, job.batch, followers, keep=True)


def _costs(job: SampleJob, device: Device) -> RecordedCosts:
    directory = Path(job.cache_directory) if job.start == Start.WARM else None
    return RecordedCosts.open(directory, device.identity)


def _finds(device: Device, image: CreateInfoImage, data: bytes, hits_without: int) -> bool:
    if not device.features.creation_feedback:
        return True
    return _run(device, image, _ONE, data).report.cache_hits > hits_without


def _run(
    device: Device,
    image: CreateInfoImage,
    settings: RunSettings,
    primary: bytes | HeldPipelines,
    costs: RecordedCosts | None = None,
) -> _Done:
    known = RecordedCosts(None) if costs is None else costs
    on_demand, began = settings.mode is CacheMode.BINARIES, time.perf_counter_ns()
    warm = primary.is_filled if isinstance(primary, HeldPipelines) else bool(primary)
    with closing(device.prepare(image, modules_on_demand=on_demand)) as prepared:
        prepare_ns = time.perf_counter_ns() - began
        schedule = CompileSchedule(
            prepared,
            settings.mode,
            settings.workers,
            known.of(image),
            held=np.ones(len(image), np.bool_) if warm else None,
            batch=settings.batch,
            followers=settings.followers,
        )
        schedule.ask_keys(device, PipelineKeyUse.AUTO)

        async def run() -> RunReport:
            options = RunOptions(workers=settings.workers, mode=settings.mode, keep=settings.keep)
            return await run_pipelines(
                device, prepared, options, primary=primary, scheduler=schedule.scheduler()
            )

        before = peak_memory()
        with no_garbage_collection():
            report = trio.run(run)
        if report.pipelines.handles is not None:
            device.destroy_pipelines(report.pipelines.handles)
        return _Done(report, schedule, before, prepare_ns)


def _warm_data(job: SampleJob, device: Device) -> bytes:
    loaded = read_cache_file(cache_path(Path(job.cache_directory), device.identity), device.identity)
    if loaded.status is not LoadStatus.LOADED:
        raise DeviceError(
            f"the cache for warm runs cannot be used: {loaded.status.value}: {loaded.detail}; "
            "the driver may have changed since the benchmark began"
        )
    return loaded.data


def run_order(image: CreateInfoImage, *, passes: int = 1, duplicates: float = 0.0) -> npt.NDArray[np.int32]:
    """The order of a run: `passes` times the whole set, and a share of it once more.

    Libraries occur once. A duplicate follows its original at a random distance, which is the same in every
    process. So two workers may compile both at the same time, as in an application.

    Args:
        image: The pipelines.
        passes: How many times the set occurs.
        duplicates: Share of the pipelines that occur once more in each pass.
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


def peak_memory() -> int:
    """Peak resident size of this process, bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024  # kilobytes everywhere else


def repeated_work(keys: npt.NDArray[np.uint64], driver_ns: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Number of keys compiled more than once, and driver time of all but their first compiles, ns."""
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    total = int(driver_ns.sum()) - int(driver_ns[first].sum()) if len(keys) else 0
    return int((counts > 1).sum()), total


@define
class _Totals:
    job: SampleJob
    started_at: float = field(factory=time.time)
    load: float = field(factory=lambda: os.getloadavg()[0])
    identity: DeviceIdentity | None = None
    driver_caches: str = ""
    skipped: int = 0
    memory_before: int = 0
    sums: dict[str, Any] = field(factory=dict)
    compiled_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    hit_ns: list[npt.NDArray[np.uint64]] = field(factory=list)
    kinds_ns: Counter[str] = field(factory=Counter)
    slow: list[SlowPipeline] = field(factory=list)
    notes: dict[str, None] = field(factory=dict)
    opened_as: list[str] = field(factory=list)
    spans: list[Span] = field(factory=list)

    def add(self, done: _Done) -> None:
        report = done.report
        self.memory_before = self.memory_before or done.memory_before
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
        duplicate_keys, duplicate_ns = repeated_work(of.keys[compiled], of.driver_ns[compiled])
        merge, timing, counts = report.merge, report.timing, report.counts()
        figures = {
            "pipelines": len(report) - counts[OutcomeStatus.SKIPPED],
            "created": int(compiled.sum() + hit.sum()),
            "hits": int(hit.sum()),
            "failed": counts[OutcomeStatus.FAILED],
            "skipped": counts[OutcomeStatus.SKIPPED],
            "calls": len(report.calls),
            "prepare_ns": done.prepare_ns,
            "keys_ns": done.schedule.keys_ns,
            "open_ns": timing.make_caches_ns,
            "wall_ns": timing.wall_ns,
            "merge_ns": timing.merge_ns,
            "read_back_ns": timing.read_back_ns,
            "call_ns": int(report.calls.wall_ns.sum()),
            "driver_ns": timing.driver_ns,
            "cpu_ns": timing.cpu_ns,
            "run_delay_ns": timing.run_delay_ns,
            "blocked_ns": timing.blocked_ns,
            "blocked_without_faults_ns": timing.blocked_without_faults_ns,
            **{name: getattr(timing, name) for name in USAGE},
            "barrier_wait_ns": sum(report.barrier.waits_ns),
            "duplicate_keys": duplicate_keys,
            "duplicate_ns": duplicate_ns,
            "source_bytes": sum(merge.source_bytes) if merge else 0,
            "primary_bytes": merge.primary_bytes_after if merge else 0,
        }
        self.sums = {name: self.sums.get(name, 0) + value for name, value in figures.items()}
        self.notes |= dict.fromkeys((*done.schedule.notes, *report.notes, *(merge.warnings if merge else ())))

    def row(self, source: PipelineSet, began: float) -> Sample:
        job, sums = self.job, self.sums
        if self.identity is None or not sums:
            raise DeviceError(f"{source.name}: {device_text(job.device)} takes none of its pipelines")
        sums["skipped"] += self.skipped
        row = Sample(
            **turn_of(job),
            **sums,
            batch=job.batch,
            order=unsteered_schedule(job.mode).order,
            passes=job.passes,
            set_name=plain_text(", ".join(Path(each).name for each in job.set_paths)),
            set_hash=f"{source.content_hash():016x}",
            set_pipelines=len(source),
            environment=self._environment(self.identity),
            started_at=self.started_at,
            process_s=time.perf_counter() - began,
            memory_before_bytes=self.memory_before,
            peak_memory_bytes=peak_memory(),
            compiled_latency=Latencies.of(np.concatenate(self.compiled_ns)),
            hit_latency=Latencies.of(np.concatenate(self.hit_ns)),
            kinds_ns=dict(self.kinds_ns),
            slowest=tuple(sorted(self.slow, key=lambda each: -each.driver_ns)[:SLOWEST]),
            notes=tuple(self.notes),
        )
        if job.trace:
            try:
                write_document(Path(job.trace), encode_trace(self.spans, process=job.arm.words))
            except SaveError as error:
                row = msgspec.structs.replace(row, notes=(*row.notes, f"no timeline: {error}"))
        return row

    def _environment(self, identity: DeviceIdentity) -> Environment:
        return Environment(
            **{name: getattr(identity, name) for name in _IDENTITY},
            pipeline_cache_uuid=identity.pipeline_cache_uuid.hex(),
            driver_caches=self.driver_caches,
            opened_as=tuple(self.opened_as),
            load_average=self.load,
            **machine(),
        )


def machine() -> dict[str, Any]:
    """Processors and versions, by the names that `Environment` has for them."""
    return {
        "cores": available_workers(),
        "processor": processor_name(),
        "python": platform.python_version(),
        "orchestrator": VERSION,
    }


def processor_name() -> str:
    """Model name of the processor; the architecture if the system does not tell."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


Request = Job


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
