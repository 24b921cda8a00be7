"""The simulated device.

What is the simulated device's own beside the cases that every device passes: accounting, host
synchronization that is checked, libraries, options, images.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices.device import ERROR_UNKNOWN, NO_SOURCE, CreationBatch
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import (
    CostModel,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_identity,
    simulated_image,
)
from orchestrator.errors import DeviceError, ExternalSynchronizationError
from orchestrator.registry.tables import AnyDevice
from tests.devices.simulated.test_bugs import hung


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


def test_results_stand_in_the_order_asked_for() -> None:
    device = SimulatedDevice(SimulatedOptions(cost=CostModel.mapped({1: 10, 2: 20, 3: 30})))
    batch = device.create_pipelines(device.prepare(simulated_image([1, 2, 3])), at(2, 0, 1), NO_SOURCE)
    assert batch.durations_ns.tolist() == [30, 10, 20]


def test_entries_take_the_bytes_of_the_cost_model() -> None:
    small, large = (
        SimulatedDevice(SimulatedOptions(cost=CostModel(entry_bytes=lambda _key, size=size: size)))  # type: ignore[misc]
        for size in (100, 5_000)
    )
    sizes = []
    for device in (small, large):
        cache = device.create_pipeline_cache()
        device.create_pipelines(device.prepare(simulated_image([1])), at(0), cache)
        sizes.append(device.pipeline_cache_size(cache))
    assert sizes[1] - sizes[0] == 4_900


def test_merging_takes_the_time_of_the_cost_model() -> None:
    device = SimulatedDevice(SimulatedOptions(cost=CostModel(merge_entry_ns=7)))
    primary, worker = device.create_pipeline_cache(), device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image([1, 2, 3])), at(0, 1, 2), worker)
    device.merge_pipeline_caches(primary, [worker])
    call = device.last_call()
    assert call is not None
    assert (call.operation, call.cache, call.duration_ns) == ("merge_pipeline_caches", "cache", 21)


def test_pipelines_with_one_binary_share_key_and_entry() -> None:
    device = SimulatedDevice(SimulatedOptions(same_binary={2: 1}))
    prepared = device.prepare(simulated_image([1, 2, 3]))
    first, second, third = device.pipeline_keys(prepared, at(0, 1, 2))
    assert first == second != third
    cache = device.create_pipeline_cache()
    assert device.create_pipelines(prepared, at(0, 1, 2), cache).feedback_flags.tolist() == [1, 3, 1]


def test_keys_follow_from_the_key_in_the_set_alone() -> None:
    one, other = (
        SimulatedDevice(SimulatedOptions(identity=simulated_identity(driver_version=version)))
        for version in (1, 2)
    )
    assert one.pipeline_keys(one.prepare(simulated_image([5])), at(0)) == other.pipeline_keys(
        other.prepare(simulated_image([4, 5])), at(1)
    )


# Accounting.


def test_what_is_alive_is_counted() -> None:
    device = SimulatedDevice()
    first, second = device.create_pipeline_cache(), device.create_pipeline_cache()
    prepared = device.prepare(simulated_image([1, 2]))
    kept = device.create_pipelines(prepared, at(0, 1), first, keep=True)
    device.create_pipelines(prepared, at(0, 1), second)
    assert (device.live_caches, device.live_pipelines, device.live_prepared) == (2, 2, 1)
    device.destroy_pipelines(kept.handles)
    device.destroy_pipeline_cache(first)
    prepared.close()
    assert (device.live_caches, device.live_pipelines, device.live_prepared) == (1, 0, 0)
    device.close()
    assert device.live_caches == 0
    assert second.destroyed
    device.destroy_pipeline_cache(second)


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
    device = SimulatedDevice(SimulatedOptions(calls_kept=2))
    cache = device.create_pipeline_cache(name="mine")
    device.create_pipelines(device.prepare(simulated_image([1, 2])), at(0, 1), cache)
    device.pipeline_cache_data(cache)
    assert [each.operation for each in device.calls()] == ["create_pipelines", "pipeline_cache_data"]
    assert [each.cache for each in device.calls()] == ["mine", "mine"]
    assert device.calls()[0].pipeline_lock_wait_ns.tolist() == [0, 0]
    assert device.last_call() is device.calls()[-1]


# Host synchronization beyond the flag.


@pytest.mark.parametrize("merge_flag", [False, True])
def test_a_destination_in_use_needs_the_internally_synchronized_merge(merge_flag: bool) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(hang={1})))
    primary = device.create_pipeline_cache(internally_synchronized_merge=merge_flag, name="primary")
    worker = device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image([2])), at(0), worker)
    with hung(device, device.prepare(simulated_image([1])), at(0), primary) as call:
        if merge_flag:
            device.merge_pipeline_caches(primary, [worker])
            assert device.pipeline_cache_size(primary) == device.pipeline_cache_size(worker)
        else:
            with pytest.raises(ExternalSynchronizationError, match="'primary' is in use"):
                device.merge_pipeline_caches(primary, [worker])
        with pytest.raises(ExternalSynchronizationError, match="destroy_pipeline_cache"):
            device.destroy_pipeline_cache(primary)
        # Reading is internally synchronized.
        device.pipeline_cache_data(primary)
    assert call.result(30.0).results.tolist() == [0]
    device.merge_pipeline_caches(primary, [worker])
    device.destroy_pipeline_cache(primary)


def test_one_pipeline_is_created_by_one_thread_at_a_time() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(hang={1})))
    prepared = device.prepare(simulated_image([1, 2]))
    with hung(device, prepared, at(0)) as call:
        with pytest.raises(ExternalSynchronizationError):
            device.create_pipelines(prepared, at(1, 0), NO_SOURCE)
        with pytest.raises(ExternalSynchronizationError):
            prepared.close()
        assert device.create_pipelines(prepared, at(1), NO_SOURCE).results.tolist() == [0]
    assert call.result(30.0).results.tolist() == [0]
    assert device.create_pipelines(prepared, at(1, 0), NO_SOURCE).results.tolist() == [0, 0]


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


def test_libraries_of_the_same_batch_come_first() -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image([1, 2], libraries={2: [1]}))
    assert device.create_pipelines(prepared, at(1, 0), NO_SOURCE).results.tolist() == [0, 0]


def test_the_first_of_a_library_is_not_the_callers() -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image([1, 2], libraries={2: [1]}))
    assert device.create_pipelines(prepared, at(0), NO_SOURCE, keep=True).handles.tolist() == [0]
    second = device.create_pipelines(prepared, at(0, 1), NO_SOURCE, keep=True)
    assert all(second.handles)
    device.destroy_pipelines(second.handles)
    assert device.create_pipelines(prepared, at(1), NO_SOURCE).results.tolist() == [0]
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


def test_flags_that_the_device_lacks_are_refused() -> None:
    features = simulated_features(
        externally_synchronized_caches=False,
        internally_synchronized_merge=False,
        pipeline_binaries=False,
        compile_required=False,
    )
    device = SimulatedDevice(SimulatedOptions(features=features))
    prepared = device.prepare(simulated_image([1]))
    with pytest.raises(DeviceError, match="externally synchronized"):
        device.create_pipeline_cache(externally_synchronized=True)
    with pytest.raises(DeviceError, match="internally synchronized merge"):
        device.create_pipeline_cache(internally_synchronized_merge=True)
    with pytest.raises(DeviceError, match="pipeline binaries"):
        device.pipeline_keys(prepared, at(0))
    with pytest.raises(DeviceError, match="COMPILE_REQUIRED"):
        device.create_pipelines(prepared, at(0), NO_SOURCE, fail_on_compile_required=True)
    assert device.live_caches == 0


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


def test_indices_that_name_a_pipeline_twice_are_refused() -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image([1, 2]))
    with pytest.raises(DeviceError, match="index"):
        device.create_pipelines(prepared, at(0, 0), NO_SOURCE)
    with pytest.raises(DeviceError, match="index"):
        device.pipeline_keys(prepared, at(0, 0))


def test_identity_can_be_any() -> None:
    identity = evolve(simulated_identity(), vendor_id=0x1002, pipeline_cache_uuid=bytes(range(16)))
    device = SimulatedDevice(SimulatedOptions(identity=identity))
    assert device.identity == identity
    data = device.pipeline_cache_data(device.create_pipeline_cache()).data
    assert data[16:32] == bytes(range(16))


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


def test_an_empty_image_is_an_image() -> None:
    device = SimulatedDevice()
    assert len(device.create_pipelines(device.prepare(simulated_image([])), at(), NO_SOURCE).results) == 0


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
