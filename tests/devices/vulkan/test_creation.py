"""Batches on real drivers: what reaches the driver when pipelines are created."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attrs import evolve, field, frozen

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_OUT_OF_HOST_MEMORY,
    ERROR_UNKNOWN,
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    DriverObserver,
    DriverStep,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.request import EXECUTABLE_INFO
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.device import VulkanDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from tests.drivers import driver_manifest, each_driver
from tests.sets.image.test_image_builder import Records

NAVI21 = "radv:navi21"
FAIL_ON_COMPILE_REQUIRED, CAPTURE_STATISTICS = 0x100, 0x40
HIT = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT
PER_KIND = 3

Indices = npt.NDArray[np.int32]
Open = Callable[..., VulkanDevice]


@frozen
class WatchedCommands:
    """Commands of a device that note the creation flags of what the driver is handed.

    Attributes:
        commands: The device's own.
        calls: Each call that creates pipelines: its command, and the flags of each create info.
        refusals: VkResults that the next such calls return without reaching the driver.
        order: Each call that creates pipelines, by how many, and each that destroys one, as -1.
        modules: Shader modules that were made and not destroyed.
    """

    commands: Any
    calls: list[tuple[str, list[int]]] = field(factory=list)
    refusals: list[int] = field(factory=list)
    order: list[int] = field(factory=list)
    modules: set[int] = field(factory=set)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        command: Callable[..., Any] = getattr(self.commands, name)
        if name == "vkDestroyPipeline":

            def destroyed(*arguments: Any) -> None:
                self.order.append(-1)
                command(*arguments)

            return destroyed
        if name == "vkCreateShaderModule":

            def made(*arguments: Any) -> Any:
                result = command(*arguments)
                self.modules.add(int(arguments[-1][0]))
                return result

            return made
        if name == "vkDestroyShaderModule":

            def unmade(*arguments: Any) -> None:
                self.modules.discard(int(arguments[1]))  # which may be older than the watch
                command(*arguments)

            return unmade
        if not (name.startswith("vkCreate") and "Pipelines" in name):
            return command

        def watched(*arguments: Any) -> Any:
            count, infos = arguments[-4:-2]
            self.calls.append((name, [int(infos[each].flags) for each in range(count)]))
            self.order.append(int(count))
            return self.refusals.pop(0) if self.refusals else command(*arguments)

        return watched


class WithoutFeedback(VulkanDevice):
    """A real driver as if it had no creation feedback."""

    def __init__(self, context: DeviceContext) -> None:
        features = evolve(context.features, creation_feedback=False)
        super().__init__(evolve(context, features=features))


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens devices of a class, and closes them after the test."""
    devices: list[VulkanDevice] = []

    def open_device(driver: str, kind: type[VulkanDevice] = VulkanDevice) -> VulkanDevice:
        driver_manifest(driver)
        devices.append(kind(DeviceContext.open()))
        return devices[-1]

    yield open_device
    for each in devices:
        each.close()


def watch(device: VulkanDevice) -> WatchedCommands:
    """Note what a device is handed from now on."""
    watched = WatchedCommands(device.context.commands)
    object.__setattr__(
        device.context, "commands", watched
    )  # frozen, and shared by all that works on the device
    return watched


def compute_of(image: CreateInfoImage) -> Indices:
    """Its compute pipelines."""
    return np.flatnonzero(image.kinds == list(PipelineKind).index(PipelineKind.COMPUTE)).astype(np.int32)


def image_for(device: VulkanDevice, source: PipelineSet) -> CreateInfoImage:
    return build_image(source, source.pipelines, device.capabilities).image


def compute_image(device: VulkanDevice, source: PipelineSet) -> CreateInfoImage:
    jobs = [each for each in source.pipelines if each.kind is PipelineKind.COMPUTE][:8]
    return build_image(source, jobs, device.capabilities).image


def some_of_each_kind(image: CreateInfoImage) -> dict[PipelineKind, list[int]]:
    """By kind, a few pipelines that link nothing and share no module, so that none is like another."""
    found: dict[PipelineKind, list[int]] = {kind: [] for kind in PipelineKind}
    seen: set[int] = set()
    for index in range(len(image)):
        mine, modules = found[image.kind_of(index)], set(image.modules_of(index))
        alone = not image.libraries_of(index) and not image.is_library[index]
        if alone and modules and not modules & seen and len(mine) < PER_KIND:
            mine.append(index)
            seen |= modules
    return {kind: indices for kind, indices in found.items() if indices}


def as_indices(indices: list[int]) -> Indices:
    return np.array(indices, np.int32)


@each_driver
def test_a_batch_of_mixed_kinds_creates_each_pipeline_once(
    driver: str, opened: Open, sample: PipelineSet
) -> None:
    device = opened(driver)
    image = image_for(device, sample)
    by_kind = some_of_each_kind(image)
    assert len(by_kind) >= 2
    # In turn, and not in the order of the image.
    mixed = as_indices([index for row in zip(*by_kind.values(), strict=False) for index in row][::-1])
    prepared = device.prepare(image)
    # Lavapipe gives feedback for two of the three kinds.
    alone = [device.create_pipelines(prepared, mixed[at : at + 1], NO_SOURCE) for at in range(len(mixed))]
    given = [int(each.feedback_flags[0]) & FEEDBACK_VALID for each in alone]
    assert any(given)
    calls = watch(device).calls
    batch = device.create_pipelines(prepared, mixed, NO_SOURCE, keep=True)
    assert not batch.results.any()
    assert len(set(batch.handles.tolist()) - {0}) == len(mixed)
    assert (batch.feedback_flags & FEEDBACK_VALID).tolist() == given
    assert (batch.durations_ns > 0).tolist() == [each == FEEDBACK_VALID for each in given]
    assert sorted(len(flags) for _, flags in calls) == sorted(
        int(np.count_nonzero(image.kinds[mixed] == kind)) for kind in np.unique(image.kinds[mixed])
    )
    assert len({name for name, _ in calls}) == len(by_kind)
    device.destroy_pipelines(batch.handles)
    # Nothing is asked of the driver for a kind that is not in a batch: it must not be
    # called for no pipelines.
    calls.clear()
    two_kinds = as_indices([by_kind[PipelineKind.COMPUTE][0], by_kind[PipelineKind.GRAPHICS][0]])
    assert not device.create_pipelines(prepared, two_kinds, NO_SOURCE).results.any()
    assert sorted(name for name, _ in calls) == ["vkCreateComputePipelines", "vkCreateGraphicsPipelines"]


@pytest.mark.driver(NAVI21)
def test_what_became_of_a_mixed_batch_stands_at_the_place_of_each(opened: Open, sample: PipelineSet) -> None:
    device = opened(NAVI21)
    image = image_for(device, sample)
    prepared = device.prepare(image)
    rows = list(zip(*some_of_each_kind(image).values(), strict=False))
    mixed = as_indices([index for row in rows for index in row])
    keys = device.pipeline_keys(prepared, mixed)
    assert len(set(keys)) == len(keys), "the driver takes none of them for another"
    known = mixed[::2]
    cache = device.create_pipeline_cache()
    assert not device.create_pipelines(prepared, known, cache).results.any()
    batch = device.create_pipelines(prepared, mixed, cache, fail_on_compile_required=True)
    assert batch.results.tolist() == [
        0 if place % 2 == 0 else PIPELINE_COMPILE_REQUIRED for place in range(len(mixed))
    ]
    assert (batch.feedback_flags[::2] == HIT).all()


@each_driver
def test_flags_are_those_of_the_image_and_of_the_call(driver: str, opened: Open, sample: PipelineSet) -> None:
    device = opened(driver)
    image = compute_image(device, sample)
    prepared = device.prepare(image)
    calls = watch(device).calls
    compute = compute_of(image)
    own = {
        index: int(image.buffer[image.offsets[index] + 16 :][:4].view(np.uint32)[0])
        for index in compute.tolist()
    }
    in_a_row, picked = compute[:4], compute[[6, 1, 4]]

    def handed(indices: Indices, **options: Any) -> list[int]:
        calls.clear()
        device.create_pipelines(prepared, indices, NO_SOURCE, **options)
        return calls[0][1]

    for indices in (in_a_row, picked):
        expected = [own[index] for index in indices.tolist()]
        assert handed(indices) == expected
        if device.features.compile_required:
            forbidden = handed(indices, fail_on_compile_required=True)
            assert forbidden == [flags | FAIL_ON_COMPILE_REQUIRED for flags in expected]
            assert handed(indices) == expected, "the flag was that call's alone"
    index = int(picked[0])
    if device.capabilities.has_feature(*EXECUTABLE_INFO):
        calls.clear()
        device.pipeline_executables(prepared, index)
        assert calls[0][1] == [own[index] | CAPTURE_STATISTICS]
        assert handed(as_indices([index])) == [own[index]]


@pytest.mark.driver(NAVI21)
def test_64_bit_flags_take_the_flags_of_the_call(opened: Open) -> None:
    """VkPipelineCreateFlags2CreateInfo::flags replaces the flags of the create info (VK_KHR_maintenance5)."""
    device = opened(NAVI21)
    for wide in ((True, False), (False, True), (True, True)):
        records = Records()
        for key, has_wide in enumerate(wide, start=1):
            records.compute(key, pNext=[{"sType": 1000470005, "flags": 0}] if has_wide else [])
        image = image_for(device, PipelineSet.from_records(records))
        assert (image.flags2_slots >= 0).tolist() == list(wide)
        prepared = device.prepare(image)
        both = as_indices([0, 1])
        cache = device.create_pipeline_cache()
        forbidden = device.create_pipelines(prepared, both, cache, fail_on_compile_required=True)
        assert forbidden.results.tolist() == [PIPELINE_COMPILE_REQUIRED] * 2
        made = device.create_pipelines(prepared, both, cache)
        assert made.results.tolist() == [0, 0], "the flag was that call's alone"


@each_driver
def test_what_a_refused_call_leaves(driver: str, opened: Open, sample: PipelineSet) -> None:
    device = opened(driver)
    prepared = device.prepare(compute_image(device, sample))
    compute = compute_of(prepared.image)
    watched = watch(device)
    for indices in (compute[:4], compute[[6, 1, 4]]):
        made = device.create_pipelines(prepared, indices, NO_SOURCE, keep=True)
        handles = made.handles.copy()
        assert handles.all()
        # The whole call, and then each of its pipelines when it is asked for by itself.
        watched.refusals.extend([ERROR_OUT_OF_HOST_MEMORY] * (1 + len(indices)))
        refused = device.create_pipelines(prepared, indices, NO_SOURCE, keep=True)
        assert not watched.refusals
        assert refused.results.tolist() == [ERROR_OUT_OF_HOST_MEMORY] * len(indices)
        assert not refused.handles.any(), "nothing is left of the call before"
        assert not refused.feedback_flags.any()
        assert not refused.durations_ns.any()
        device.destroy_pipelines(handles)

    watched.calls.clear()
    watched.refusals.append(ERROR_OUT_OF_HOST_MEMORY)
    batch = device.create_pipelines(prepared, compute[:3], NO_SOURCE, keep=True)
    assert [len(flags) for _, flags in watched.calls] == [3, 1, 1, 1], "each is asked for again by itself"
    assert not batch.results.any()
    device.destroy_pipelines(batch.handles)
    watched.refusals.append(SUCCESS)
    without_handles = device.create_pipelines(prepared, compute[:3], NO_SOURCE, keep=True)
    assert without_handles.results.tolist() == [ERROR_UNKNOWN] * 3

    watched.order.clear()
    watched.refusals.append(ERROR_DEVICE_LOST)
    batch = device.create_pipelines(prepared, compute[:6], NO_SOURCE)
    assert batch.results.tolist() == [ERROR_DEVICE_LOST] * 6
    assert watched.order == [6], "a lost device is not called again"


@each_driver
def test_an_interrupted_prepare_leaves_nothing(driver: str, opened: Open, sample: PipelineSet) -> None:
    device = opened(driver)
    image = image_for(device, sample)
    watched = watch(device)

    class Interrupting(DriverObserver):
        made = 0

        def entering(self, step: DriverStep, *_: object) -> int:
            self.made = max(self.made, len(watched.modules))
            if self.made == 3 and step is DriverStep.MODULE:
                raise KeyboardInterrupt
            return 0

    device.observer = observer = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        device.prepare(image)
    assert observer.made == 3
    assert not watched.modules


@each_driver
def test_modules_over_the_bound_end_with_the_batch_that_used_them(
    driver: str, opened: Open, sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.devices.vulkan.prepared.MODULE_LIMIT", 1)  # bytes
    device = opened(driver)
    image = compute_image(device, sample)
    prepared = device.prepare(image)
    watched = watch(device)
    compute = compute_of(image)
    for index in compute[:4].tolist():
        batch = device.create_pipelines(prepared, as_indices([index]), NO_SOURCE)
        assert not batch.results.any()
        assert not watched.modules
    assert watched.calls


@each_driver
def test_without_feedback_every_kind_is_created_and_nothing_is_known(
    driver: str, opened: Open, sample: PipelineSet
) -> None:
    without = opened(driver, WithoutFeedback)
    image = image_for(without, sample)
    unlinked = without.prepare(image)
    chosen = as_indices([index for mine in some_of_each_kind(image).values() for index in mine])
    libraries = sorted({each for index in range(len(image)) for each in image.libraries_of(index)})
    linkers = [index for index in range(len(image)) if image.libraries_of(index)]
    for indices in (chosen, as_indices(libraries), as_indices(linkers)):
        batch = without.create_pipelines(unlinked, indices, NO_SOURCE)
        assert not batch.results.any()
        assert not batch.feedback_flags.any()
        assert not batch.durations_ns.any()


@pytest.mark.driver(NAVI21)
def test_a_batch_may_be_larger_than_any_that_is_usual(opened: Open, sample: PipelineSet) -> None:
    count = 4097  # more than is cleared without asking for memory
    device = opened(NAVI21)
    image = compute_image(device, sample)
    many = repeat_pipelines(image, as_indices([0] * count))
    prepared = device.prepare(many)
    cache = device.create_pipeline_cache()
    everything = np.arange(count, dtype=np.int32)
    device.create_pipelines(prepared, everything[:1], cache)
    for _ in range(2):
        batch = device.create_pipelines(prepared, everything, cache, keep=True)
        assert not batch.results.any()
        assert (batch.feedback_flags == HIT).all()
        assert len(set(batch.handles.tolist()) - {0}) == count
        device.destroy_pipelines(batch.handles)


@pytest.mark.driver(NAVI21)
def test_where_living_pipelines_keep_stages_out_of_a_cache_none_lives(
    opened: Open, sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVIDIA's driver needs it for ray tracing; RADV stands in for it, with equal results either way."""
    device = opened(NAVI21)
    image = image_for(device, sample)
    rays = as_indices(
        [index for index in range(len(image)) if image.kind_of(index) is PipelineKind.RAY_TRACING]
    )
    plain = rays[~image.is_library[rays]][:4]
    assert len(plain) == 4
    prepared = device.prepare(image)
    device.create_pipelines(prepared, rays[image.is_library[rays]], NO_SOURCE)
    order = watch(device).order
    together = device.create_pipelines(prepared, plain, device.create_pipeline_cache())
    assert order == [4]
    order.clear()
    monkeypatch.setattr(
        "orchestrator.devices.vulkan.device.SHARES_LIVING_STAGES", {device.identity.driver_id}
    )
    cache = device.create_pipeline_cache()
    alone = device.create_pipelines(prepared, plain, cache)
    assert [each for each in order if each > 0] == [1] * 4
    # Before each but the first, all that was created before is gone: that of the call above, too.
    assert order[-2:] == [1, -1]
    assert order.count(-1) == 8
    assert alone.results.tolist() == together.results.tolist() == [0] * 4
    assert alone.feedback_flags.tolist() == together.feedback_flags.tolist()
    assert not alone.handles.any()
    again = device.create_pipelines(prepared, plain, cache)
    assert (again.feedback_flags & HIT).tolist() == [HIT] * 4
    order.clear()
    _, captured = device.create_captured(prepared, plain)
    assert [each for each in order if each > 0] == [1] * 4
    assert order[-2:] == [1, -1]
    assert [each.index for each in captured] == plain.tolist()
    order.clear()
    kept = device.create_pipelines(prepared, plain, cache, keep=True)
    assert order == [4]
    device.destroy_pipelines(kept.handles)
