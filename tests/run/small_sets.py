"""Small sets and their devices.

Pipeline sets that are small enough to be compiled hundreds of times, and devices that are opened for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import define, field

from orchestrator.devices.device import DriverStep, PipelineCache
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_identity
from orchestrator.devices.simulated.device import SimulatedPipelines
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, Progress
from orchestrator.run.steering import Steering
from orchestrator.sets.archive.reader import Archive, MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.sets.records import KIND_OF_TAG, RecordTag
from orchestrator.sets.sample import sample_manifest_path, sample_path

BLUR = sample_manifest_path().parent / "shaders" / "blur.comp.spv"
"""The code of a compute pipeline with specialization constants 0, 1 and 2."""

MARKER = "ORCHESTRATOR_TEST_MARKER"
"""The variable in which the children of a test find the path of its file `marker`."""

TWO_APPLICATIONS = ({"name": "one"}, {"name": "two", "robust_buffer_access": True})


def compute_keys() -> list[int]:
    with Archive.open(sample_path()) as sample:
        return list(sample.keys(RecordTag.COMPUTE_PIPELINE))


def add_sample(writer: ArchiveWriter, keys: Collection[int], *, left_out: Collection[RecordTag] = ()) -> None:
    """Write the sample's records but for some kinds; of its pipelines only those of these keys."""
    with Archive.open(sample_path()) as sample:
        for tag in RecordTag:
            for key in () if tag in left_out else sample.keys(tag):
                if tag not in KIND_OF_TAG or key in keys:
                    writer.add(tag, key, sample.payload(tag, key))


def write_small_set(path: Path, first: int, last: int) -> list[int]:
    """Write an archive of some of the sample's compute pipelines; returns their keys."""
    path.write_bytes(_small_set(first, last))
    return compute_keys()[first:last]


@cache
def _small_set(first: int, last: int) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "set.foz"
        with ArchiveWriter(path) as writer:
            add_sample(writer, compute_keys()[first:last])
        return path.read_bytes()


def write_applications(
    path: Path, applications: Sequence[dict[str, Any]] = TWO_APPLICATIONS, *, same: bool = True
) -> Path:
    """Write an archive of several applications, each with two compute pipelines: the same, or its own."""
    with ArchiveWriter(path) as writer:
        for number, each in enumerate(applications):
            records = MemoryRecords("part")
            builder = PipelineSetBuilder(records)
            builder.application(**each)
            module = builder.shader_module(BLUR.read_bytes())
            for group in (64, 128):
                size = group if same else group + number
                builder.compute_pipeline("auto", module, specialization={0: size, 1: 4, 2: False})
            copy_records(records, writer)
    return path


def write_variants(path: Path, count: int) -> list[int]:
    """Write an archive of so many variants of one compute pipeline; returns their keys."""
    records = MemoryRecords("part")
    builder = PipelineSetBuilder(records)
    builder.application(name="game")
    module = builder.shader_module(BLUR.read_bytes())
    for each in range(count):
        builder.compute_pipeline("auto", module, specialization={0: 64, 1: each + 1, 2: False})
    with ArchiveWriter(path) as writer:
        copy_records(records, writer)
    return list(records.keys(RecordTag.COMPUTE_PIPELINE))


class Watched(SimulatedDevice):
    """Tells of a step before it takes it: "prepare", "primary" (creating that cache) or "close"."""

    def __init__(self, options: SimulatedOptions, on_step: Callable[[str], None]) -> None:
        super().__init__(options)
        self.on_step = on_step

    def prepare(self, *given: Any, **named: Any) -> SimulatedPipelines:
        with self.observer.calling(DriverStep.OPEN):
            self.on_step("prepare")
        return super().prepare(*given, **named)

    def create_pipeline_cache(self, initial_data: bytes = b"", **named: Any) -> PipelineCache:
        if named.get("name") == "primary":
            with self.observer.calling(DriverStep.LOAD if initial_data else DriverStep.CACHE):
                self.on_step("primary")
        return super().create_pipeline_cache(initial_data, **named)

    def close(self) -> None:
        with self.observer.calling(DriverStep.DESTROY):
            self.on_step("close")
        super().close()


@define(eq=False)
class Opener:
    """Opens simulated devices, and keeps them for questions afterwards."""

    bugs: DriverBugs = field(factory=DriverBugs)
    driver_version: int = 1
    options: dict[str, Any] = field(factory=dict)
    opened: list[SimulatedDevice] = field(factory=list)

    def __call__(self, request: DeviceRequest) -> SimulatedDevice:
        identity = simulated_identity(driver_version=self.driver_version)
        device = SimulatedDevice(
            SimulatedOptions(identity=identity, bugs=self.bugs, request=request, **self.options)
        )
        self.opened.append(device)
        return device

    @property
    def device(self) -> SimulatedDevice:
        return self.opened[-1]


def opener(on_compile: Callable[[int], None]) -> Callable[[DeviceRequest], SimulatedDevice]:
    """A decorator: the opener of devices that do so with the key of each pipeline before they compile it."""
    return lambda request: SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


async def compiled(
    archives: Path | Sequence[Path],
    folder: Path | None = None,
    opener: DeviceOpener | None = None,
    *,
    stop: trio.Event | Steering | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> CompileReport:
    """Compile a set with its cache kept in a folder, by two workers unless other options are given."""
    with PipelineSet.open(archives) as source:
        return await compile_set(
            source,
            CompileOptions(**dict[str, Any](workers=2, mode="per-worker") | options),
            cache_directory=folder,
            opener=opener,
            stop=stop,
            on_stage=on_stage,
            on_progress=on_progress,
        )
