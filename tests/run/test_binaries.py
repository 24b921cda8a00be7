"""Mode BINARIES: what is found, what is stored, what is told, and that nobody gets a wrong binary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from attrs import evolve

from orchestrator.devices.binary_data import BinaryProperties, PipelineBinary
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from orchestrator.errors import DeviceError, DriverError
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.binaries import DEFAULT_MEMORY, HeldPipelines
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import BinariesRecord, OutcomeStatus, RunReport, decode_json, encode_json
from orchestrator.run.session import open_session
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.files.atomic_file import SaveError
from tests.drivers import REPOSITORY
from tests.run.support import identified

OPTIONS = RunOptions(mode=CacheMode.BINARIES, workers=3)
COUNT = 40
MODULES = {key: [100 + key % 7, 200 + key % 5] for key in range(1, COUNT)}  # the last one has none


def image(
    kind: PipelineKind = PipelineKind.COMPUTE, libraries: dict[int, list[int]] | None = None
) -> CreateInfoImage:
    return simulated_image(range(1, COUNT + 1), kinds=kind, modules=MODULES, libraries=libraries)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BinaryStore]:
    with BinaryStore.open(tmp_path) as opened:
        yield opened


async def run(
    store: BinaryStore | None,
    options: SimulatedOptions | None = None,
    of: CreateInfoImage | None = None,
    memory_bytes: int = DEFAULT_MEMORY,
) -> tuple[RunReport, BinariesRecord, SimulatedDevice]:
    """A run on a device of its own, which is closed; nothing of it is left."""
    device = SimulatedDevice(options or SimulatedOptions())
    prepared = device.prepare(of or image())
    source = HeldPipelines.of(device, store, memory_bytes=memory_bytes)
    report = await run_pipelines(device, prepared, OPTIONS, primary=source)
    source.destroy()
    source.destroy()
    prepared.close()
    assert (device.live_binaries, device.live_pipelines, device.live_caches) == (0, 0, 0)
    assert device.driver.wrong_binaries == 0
    device.close()
    assert report.binaries is not None
    return report, report.binaries, device


async def test_the_second_run_compiles_nothing(store: BinaryStore) -> None:
    cold, first, device = await run(store)
    assert cold.counts()[OutcomeStatus.COMPILED] == COUNT
    assert (first.looked_up, first.pulled_in, first.captured, first.stored) == (COUNT, 0, COUNT, COUNT)
    assert first.stored_bytes < first.captured_bytes / 5  # 13 binaries of 79
    assert first.commits < COUNT / 4
    warm, second, device = await run(store)
    assert warm.counts()[OutcomeStatus.CACHE_HIT] == COUNT
    assert device.compile_counts == {}
    assert (second.pulled_in, second.created, second.captured, second.stored) == (COUNT, COUNT, 0, 0)
    assert second.pulled_binaries == 13
    assert second.pulled_bytes == first.stored_bytes
    assert warm.merge is not None
    assert warm.merge.warnings == ()
    assert decode_json(encode_json(warm), RunReport).binaries == second
    assert (first + second).created == COUNT


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "binaries.md").read_text("utf-8")
    (example,) = re.findall(r"```python example=run\n(.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(example, "docs/binaries.md", "exec"), scope)
    for status in (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT):
        report = scope["from_binaries"]("sample", "simulated", tmp_path)
        assert report.counts()[status] == report.set.unique


async def test_one_key_for_all_ray_tracing_pipelines_gives_nobody_a_wrong_binary(store: BinaryStore) -> None:
    # As NVIDIA 580.159: a store that trusted keys would hand the first pipeline's binaries to all.
    lying = SimulatedOptions(bugs=DriverBugs(one_pipeline_key={PipelineKind.RAY_TRACING}))
    rays = image(PipelineKind.RAY_TRACING)
    _, first, _ = await run(store, lying, rays)
    assert first.collisions > COUNT / 2
    assert first.stored == COUNT
    _, second, device = await run(store, lying, rays)
    assert second.created == COUNT
    assert device.compile_counts == {}
    # Half of them known: the others are compiled, though the driver's key is there.
    some = {key: MODULES[key] for key in range(1, 21)}
    with BinaryStore.open(store.path.parent / "other") as other:
        await run(other, lying, simulated_image([*some], kinds=PipelineKind.RAY_TRACING, modules=some))
        _, half, device = await run(other, lying, rays)
        assert half.created == 20
        assert len(device.compile_counts) == COUNT - 20


async def test_identifiers_tell_apart_what_the_drivers_key_does_not(store: BinaryStore) -> None:
    lying = SimulatedOptions(bugs=DriverBugs(one_pipeline_key={PipelineKind.COMPUTE}))
    await run(store, lying, image(PipelineKind.COMPUTE))
    # The same pipelines under states that the store does not know, of whose modules identifiers are known.
    modules = {key + 1000: modules for key, modules in MODULES.items()}
    unknown = simulated_image(range(1001, COUNT + 1001), kinds=PipelineKind.COMPUTE, modules=modules)
    device = SimulatedDevice(lying)
    prepared = device.prepare(identified(device, unknown))
    source = HeldPipelines.of(device, store)
    report = await run_pipelines(device, prepared, OPTIONS, primary=source)
    # One has no modules, and nothing is lacking.
    assert (report.cache_hits, report.compiled, device.driver.wrong_binaries) == (COUNT - 1, 1, 0)
    source.destroy()
    device.close()


@pytest.mark.parametrize("kind", [PipelineKind.RAY_TRACING, PipelineKind.COMPUTE])
async def test_what_identifiers_do_not_tell_apart_is_compiled(store: BinaryStore, kind: PipelineKind) -> None:
    """A driver with one key for all would take another one of the same modules for it."""
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(one_pipeline_key={kind})))
    source = HeldPipelines.of(device, store)
    names: tuple[bytes, ...] = ()
    # Of compute pipelines two are known, as if they differed in what has no part in the driver's key.
    for state in (1, 2) if kind is PipelineKind.COMPUTE else (1,):
        prepared = device.prepare(simulated_image([state], kinds=kind, modules={state: [state + 4]}))
        _, (captured,) = device.create_captured(prepared, np.array([0], np.int32))
        names = names or captured.identifiers
        source.take(prepared, [msgspec.structs.replace(captured, identifiers=names)])
    source.settle()
    unknown = simulated_image([3], kinds=kind, modules={3: [5]})
    source.pull_in(device.prepare(identified(device, unknown)))
    is_ambiguous = int(kind is PipelineKind.COMPUTE)
    found = source.record()
    assert (found.pulled_in, found.ambiguous, found.collisions) == (0, is_ambiguous, is_ambiguous)
    source.destroy()
    device.close()


async def test_what_is_refused_is_compiled_and_told(store: BinaryStore) -> None:
    await run(store)
    report, record, device = await run(store, SimulatedOptions(bugs=DriverBugs(binaries_refused={5, 9})))
    assert (record.refused, record.created) == (2, COUNT - 2)
    assert sorted(device.compile_counts) == [5, 9]
    assert report.counts()[OutcomeStatus.COMPILED] == 2
    assert any("2 pipelines" in note for note in report.notes)


async def test_libraries_come_before_what_links_them(store: BinaryStore) -> None:
    linking = image(libraries={key: [1, 2] for key in range(30, COUNT)} | {2: [1]})
    for compiled in (COUNT, 0):
        report, _, _ = await run(store, of=linking)
        assert report.counts()[OutcomeStatus.FAILED] == 0
        assert report.compiled == compiled


async def test_what_does_not_fit_the_memory_is_pulled_in_when_it_is_needed(store: BinaryStore) -> None:
    await run(store)
    _, record, device = await run(store, memory_bytes=4000)
    assert 0 < record.pulled_in < COUNT
    assert record.pulled_in + record.pulled_late == COUNT
    assert record.created == COUNT
    assert device.compile_counts == {}
    # Nothing fits: all of it is pulled in late, and counts as what is pulled in before.
    _, late, _ = await run(store, memory_bytes=0)
    assert (late.pulled_in, late.pulled_late) == (0, COUNT)
    assert late.pulled_binaries >= 13
    assert late.pulled_bytes > 0


async def test_a_driver_that_prefers_its_own_cache_is_asked_and_not_captured(store: BinaryStore) -> None:
    says = BinaryProperties(internal_cache=True, prefers_internal_cache=True)
    own = SimulatedOptions(
        binary_properties=says,
        internal_cache=range(1, 11),
        features=evolve(simulated_features(), driver_caches="enabled"),
    )
    report, record, device = await run(store, own)
    assert (record.from_internal_cache, record.created, record.captured) == (10, 10, 0)
    assert len(device.compile_counts) == COUNT - 10
    assert any("prefers its own cache" in note for note in report.notes)
    # Off, as it is in measurements, it is not asked: that would not be valid without SPIR-V.
    _, record, _ = await run(store, evolve(own, features=simulated_features()))
    assert record.from_internal_cache == 0
    precompiled = BinaryProperties(internal_cache=True, precompiled_internal_cache=True)
    _, record, _ = await run(store, evolve(own, binary_properties=precompiled))
    assert (record.from_internal_cache, record.captured) == (10, COUNT - 10)


async def test_a_drivers_own_cache_is_not_asked_for_what_links_libraries(store: BinaryStore) -> None:
    own = SimulatedOptions(
        binary_properties=BinaryProperties(internal_cache=True, precompiled_internal_cache=True),
        internal_cache=range(1, COUNT + 1),
        features=evolve(simulated_features(), driver_caches="enabled"),
    )
    linking = image(libraries={key: [1, 2] for key in range(31, COUNT + 1)})
    report, record, device = await run(store, own, linking)
    assert (record.from_internal_cache, record.created) == (30, 30)
    assert sorted(device.compile_counts) == list(range(31, COUNT + 1))
    assert not any("not looked up" in note for note in report.notes)


async def test_a_store_that_fails_costs_compiles_and_no_pipeline(
    store: BinaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SaveError(store.path, "writing", "the disk is gone")

    monkeypatch.setattr(BinaryStore, "put", fail)
    report, record, _ = await run(store)
    assert report.compiled == COUNT
    assert (record.stored, record.lost) == (0, COUNT)
    assert record.captured_bytes > COUNT
    assert sum("the disk is gone" in note for note in report.notes) == 1
    monkeypatch.setattr(BinaryStore, "reading", fail)
    report, _, _ = await run(store)
    assert report.compiled == COUNT
    assert any("not looked up" in note for note in report.notes)


async def test_a_store_that_is_removed_meanwhile_has_stored_nothing(tmp_path: Path) -> None:
    device = SimulatedDevice()
    prepared = device.prepare(image())
    with BinaryStore.open(tmp_path) as store:
        source = HeldPipelines.of(device, store)
        store.path.unlink()
        report = await run_pipelines(device, prepared, OPTIONS, primary=source)
        source.destroy()
    assert report.binaries is not None
    assert (report.binaries.stored, report.binaries.lost) == (0, COUNT)
    (note,) = (each for each in report.notes if "removed" in each)
    assert str(store.path) in note


async def test_binaries_are_destroyed_as_soon_as_nothing_needs_them(store: BinaryStore) -> None:
    await run(store)
    device = SimulatedDevice()
    prepared = device.prepare(image())
    source = HeldPipelines.of(device, store)
    source.pull_in(prepared)
    left = [device.live_binaries]
    for index in range(COUNT):
        batch = device.create_pipelines(prepared, np.array([index], np.int32), source)
        assert batch.results.tolist() == [0]
        left.append(device.live_binaries)
    assert left[0] == 13
    assert left[-1] == 0
    assert left == sorted(left, reverse=True)
    source.destroy()
    device.close()


async def test_a_binary_that_is_refused_costs_its_pipelines_alone(
    store: BinaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(store)
    create, bad = SimulatedDevice.create_binaries, list[PipelineBinary]()

    def refuse(device: SimulatedDevice, given: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        bad.extend(given[1:2] if not bad else ())
        if bad[0].data in [each.data for each in given]:
            raise DriverError("vkCreatePipelineBinariesKHR", -13, "VK_ERROR_UNKNOWN")
        return create(device, given)

    monkeypatch.setattr(SimulatedDevice, "create_binaries", refuse)
    for memory_bytes in (DEFAULT_MEMORY, 0):
        report, record, device = await run(store, memory_bytes=memory_bytes)
        assert 0 < report.compiled == len(device.compile_counts) < COUNT // 2
        assert record.created == COUNT - report.compiled
        assert any("refused" in note and "VK_ERROR_UNKNOWN" in note for note in report.notes)


async def test_without_a_store_they_live_as_long_as_the_source() -> None:
    device = SimulatedDevice()
    source = HeldPipelines.of(device)
    for created in (0, COUNT):
        prepared = device.prepare(image())
        report = await run_pipelines(device, prepared, OPTIONS, primary=source)
        assert report.cache_hits == created
        prepared.close()
    source.destroy()
    # A run that makes its own ends with nothing.
    report = await run_pipelines(device, device.prepare(image()), OPTIONS)
    assert report.compiled == COUNT
    assert report.cache_data is None
    assert device.live_binaries == 0
    device.close()


async def test_a_session_finds_them(store: BinaryStore) -> None:
    await run(store)
    device = SimulatedDevice()
    prepared = device.prepare(image(), modules_on_demand=True)
    source = HeldPipelines.of(device, store)
    async with open_session(
        device, prepared, RunOptions(mode=CacheMode.BINARIES, workers=2, keep=True), primary=source
    ) as session:
        await session.submit(range(10))
        assert all(each.status is OutcomeStatus.CACHE_HIT for each in await session.wait(range(10)))
        device.destroy_pipelines(session.take(range(10)))
    source.destroy()
    assert device.live_binaries == 0
    device.close()


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (1 << 22 | 3 << 12, "it has no VK_KHR_pipeline_binary; use another --mode"),
        # `devices` says of the same device that it has them.
        (1 << 22, r"needs Vulkan 1\.1: opened as by this application it has 1\.0"),
    ],
)
def test_a_device_without_binaries_says_why(version: int, why: str) -> None:
    features, capabilities = simulated_features(pipeline_binaries=False), AnyDevice(api_version=version)
    device = SimulatedDevice(SimulatedOptions(features=features, capabilities=capabilities))
    with pytest.raises(DeviceError, match=why):
        HeldPipelines.of(device)
    device.close()
