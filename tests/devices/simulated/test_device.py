"""The simulated device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from orchestrator.devices.device import ERROR_UNKNOWN, NO_SOURCE, CreationBatch
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import (
    CostModel,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from orchestrator.errors import DeviceError
from orchestrator.registry.tables import AnyDevice


def at(*indices: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(indices, np.int32)


def run_once() -> tuple[bytes, CreationBatch, CreationBatch]:
    device = SimulatedDevice(SimulatedOptions(cost=CostModel.lognormal(seed=5)))
    cache = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image(range(1, 30)))
    cold = device.create_pipelines(prepared, np.arange(29, dtype=np.int32), cache)
    warm = device.create_pipelines(prepared, np.arange(29, dtype=np.int32), cache)
    return device.pipeline_cache_data(cache).data, cold, warm


def test_the_same_calls_give_the_same_bytes_and_durations() -> None:
    (data, cold, warm), (data_again, cold_again, _) = run_once(), run_once()
    assert data == data_again
    assert cold.durations_ns.tolist() == cold_again.durations_ns.tolist()
    cost = CostModel.lognormal(seed=5)
    assert cold.durations_ns.tolist() == [cost.compile_ns(key) for key in range(1, 30)]
    assert warm.durations_ns.tolist() == [cost.hit_ns] * 29
    assert warm.feedback_flags.tolist() == [3] * 29


def test_merging_takes_the_time_of_the_cost_model() -> None:
    device = SimulatedDevice(SimulatedOptions(cost=CostModel(merge_entry_ns=7)))
    primary, worker = device.create_pipeline_cache(), device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image([1, 2, 3])), at(0, 1, 2), worker)
    device.merge_pipeline_caches(primary, [worker])
    call = device.calls()[-1]
    assert (call.operation, call.cache, call.duration_ns) == ("merge_pipeline_caches", "cache", 21)


def test_pipelines_with_one_binary_share_key_and_entry() -> None:
    device = SimulatedDevice(SimulatedOptions(same_binary={2: 1}))
    prepared = device.prepare(simulated_image([1, 2, 3]))
    first, second, third = device.pipeline_keys(prepared, at(0, 1, 2))
    assert first == second != third
    cache = device.create_pipeline_cache()
    assert device.create_pipelines(prepared, at(0, 1, 2), cache).feedback_flags.tolist() == [1, 3, 1]


# Accounting.


def test_destroying_a_pipeline_twice_is_refused() -> None:
    device = SimulatedDevice()
    kept = device.create_pipelines(device.prepare(simulated_image([1, 2])), at(0, 1), NO_SOURCE, keep=True)
    device.destroy_pipelines(kept.handles[:1])
    with pytest.raises(DeviceError):
        device.destroy_pipelines(kept.handles)
    assert device.live_pipelines == 1
    with pytest.raises(DeviceError):
        device.destroy_pipelines(kept.handles[[1, 1]])
    device.destroy_pipelines(np.array([0, kept.handles[1]], np.uint64))
    assert device.live_pipelines == 0


def test_every_call_is_on_record() -> None:
    device = SimulatedDevice()
    cache = device.create_pipeline_cache(name="mine")
    device.create_pipelines(device.prepare(simulated_image([1, 2])), at(0, 1), cache)
    device.pipeline_cache_data(cache)
    assert [each.operation for each in device.calls()] == [
        "create_pipeline_cache",
        "create_pipelines",
        "pipeline_cache_data",
    ]
    assert [each.cache for each in device.calls()] == ["mine"] * 3
    assert [each.pipelines for each in device.calls()] == [0, 2, 0]


# Host synchronization beyond the flag.


def test_two_merges_in_opposite_directions_do_not_lock_each_other_out() -> None:
    device = SimulatedDevice()
    first, second = (device.create_pipeline_cache(internally_synchronized_merge=True) for _ in range(2))
    for number, cache in enumerate((first, second)):
        device.create_pipelines(device.prepare(simulated_image([number])), at(0), cache)

    def merge(into: int) -> None:
        for _ in range(50):
            pair = (first, second) if into == 0 else (second, first)
            device.merge_pipeline_caches(pair[0], [pair[1]])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(merge, into) for into in range(2)]:
            done.result(30.0)
    assert device.pipeline_cache_size(first) == device.pipeline_cache_size(second)


def test_many_threads_on_one_cache_leave_it_whole() -> None:
    device = SimulatedDevice()
    cache = device.create_pipeline_cache()
    image = simulated_image(range(1, 41))
    everything = np.arange(40, dtype=np.int32)

    def work(shift: int) -> None:
        prepared = device.prepare(image)
        for index in np.roll(everything, shift):
            device.create_pipelines(prepared, at(int(index)), cache)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, 10 * worker) for worker in range(4)]:
            done.result(30.0)
    again = device.create_pipelines(device.prepare(image), everything, cache)
    assert again.feedback_flags.tolist() == [3] * 40


# Libraries.


def test_a_library_lives_until_its_image_is_closed() -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image([1, 2, 3], libraries={3: [1, 2]}))
    assert device.create_pipelines(prepared, at(2), NO_SOURCE).results.tolist() == [ERROR_UNKNOWN]
    device.create_pipelines(prepared, at(0, 1), NO_SOURCE)
    assert device.live_pipelines == 2
    assert device.create_pipelines(prepared, at(2), NO_SOURCE).results.tolist() == [0]
    # Made again, it is a pipeline like others.
    device.create_pipelines(prepared, at(0), NO_SOURCE)
    assert device.live_pipelines == 2
    prepared.close()
    prepared.close()
    assert device.live_pipelines == 0


# Options.


def test_an_unusable_pipeline_does_not_reach_the_driver() -> None:
    device = SimulatedDevice(SimulatedOptions(unusable={2: "a module is damaged"}))
    prepared = device.prepare(simulated_image([1, 2]))
    assert prepared.unusable == {1: "a module is damaged"}
    assert device.create_pipelines(prepared, at(0, 1), NO_SOURCE).results.tolist() == [0, ERROR_UNKNOWN]
    assert device.compile_counts == {1: 1}
    assert device.pipeline_keys(prepared, at(1)) == [None]


def test_without_creation_feedback_nothing_is_known() -> None:
    device = SimulatedDevice(SimulatedOptions(features=simulated_features(creation_feedback=False)))
    cache = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image([1]))
    for _ in range(2):
        batch = device.create_pipelines(prepared, at(0), cache)
        assert (batch.results.tolist(), batch.feedback_flags.tolist(), batch.durations_ns.tolist()) == (
            [0],
            [0],
            [0],
        )
    assert device.compile_counts == {1: 1}


def test_capabilities_lack_only_what_they_are_told_to_lack() -> None:
    limits = "VkPhysicalDeviceLimits"
    capabilities = AnyDevice(
        missing_extensions=frozenset({"VK_KHR_a"}),
        missing_features=frozenset({("VkPhysicalDeviceFeatures", "geometryShader")}),
        properties={(limits, "maxImageDimension2D"): 4096},
        formats={44: (0, 1, 2)},
    )
    assert not capabilities.has_extension("VK_KHR_a")
    assert capabilities.has_extension("VK_KHR_b")
    assert not capabilities.has_feature("VkPhysicalDeviceFeatures", "geometryShader")
    assert capabilities.has_feature("VkPhysicalDeviceFeatures", "tessellationShader")
    assert capabilities.property_value(limits, "maxImageDimension2D") == 4096
    assert capabilities.property_value(limits, "maxImageDimension3D") == 0xFFFFFFFF
    assert capabilities.property_value(limits, "maxComputeWorkGroupSize") == (0xFFFFFFFF,) * 3
    assert capabilities.property_value("VkNoSuchProperties", "x") is None
    assert capabilities.property_value(limits, "noSuchMember") is None
    assert capabilities.format_features(44) == (0, 1, 2)
    assert all(capabilities.format_features(37))


# Images.


def test_an_image_has_what_it_was_given() -> None:
    image = simulated_image(
        [10, 20, 30],
        kinds=[PipelineKind.GRAPHICS, PipelineKind.GRAPHICS, PipelineKind.RAY_TRACING],
        modules={20: [7, 8], 30: [8]},
        libraries={20: [10]},
    )
    assert len(image) == 3
    assert [image.kind_of(index) for index in range(3)] == [
        PipelineKind.GRAPHICS,
        PipelineKind.GRAPHICS,
        PipelineKind.RAY_TRACING,
    ]
    assert [image.modules_of(index) for index in range(3)] == [(), (0, 1), (1,)]
    assert [module.key for module in image.modules] == [7, 8]
    assert [image.libraries_of(index) for index in range(3)] == [(), (0,), ()]
    assert image.is_library.tolist() == [True, False, False]
    assert image.first_of(PipelineKind.RAY_TRACING) == 2
    # It holds no pointers and needs no objects, so there is nothing to fill in before a call.
    assert image.pointer_slots.size == image.pointer_targets.size == 0
    assert image.object_slots.size == image.object_slot_object.size == len(image.objects) == 0
    code = image.modules[0].load()
    assert len(code) == image.modules[0].code_size
    assert code[:4] == bytes.fromhex("03022307")


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ([1, 1], {}),
        ([1, 2], {"kinds": [PipelineKind.COMPUTE, PipelineKind.GRAPHICS]}),
        ([1, 2], {"kinds": [PipelineKind.COMPUTE]}),
        ([1, 2], {"libraries": {1: [2]}}),
        ([1], {"libraries": {1: [1]}}),
        ([1], {"libraries": {1: [9]}}),
        ([1], {"modules": {2: [9]}}),
    ],
)
def test_what_is_no_image_is_refused(keys: list[int], options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        simulated_image(keys, **options)  # type: ignore[arg-type]


def test_a_lower_bound_is_low_and_an_upper_bound_is_high() -> None:
    struct = "VkPhysicalDeviceSubgroupSizeControlProperties"
    value = SimulatedDevice().capabilities.property_value
    assert value(struct, "minSubgroupSize") == 1
    assert value(struct, "maxSubgroupSize") == 0xFFFFFFFF
