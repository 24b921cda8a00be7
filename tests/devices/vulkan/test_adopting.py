"""Devices of a host: adopted by integers, with what the host says it enabled; and opened with its wishes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from orchestrator.devices.device import Device
from orchestrator.devices.opening import adopt_device, open_device
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, HostWishes, OtherFeatures
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.errors import DeviceError, NoDeviceError
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import RunReport
from orchestrator.sets.image.builder import BuiltImage, build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.devices.vulkan.host_memory import HostMemory
from tests.drivers import each_driver
from tests.hosts.python_host import HostSettings, PythonHost
from tests.run.test_validation_layers import FALSE_ALARMS
from tests.run.validation_layer import ValidationLayer, run_layered

NAVI21 = "radv:navi21"
VULKAN_1_3 = 1 << 22 | 3 << 12
CORE: Final = "VkPhysicalDeviceFeatures"
VULKAN_13: Final = "VkPhysicalDeviceVulkan13Features"

FEW = HostSettings(features={CORE: ("samplerAnisotropy",)})
MORE = HostSettings(
    instance_extensions=("VK_KHR_surface",),
    device_extensions=("VK_KHR_swapchain", "VK_EXT_mesh_shader"),
    features={
        CORE: ("samplerAnisotropy", "geometryShader", "tessellationShader"),
        VULKAN_13: ("dynamicRendering", "pipelineCreationCacheControl"),
        "VkPhysicalDeviceMeshShaderFeaturesEXT": ("meshShader", "taskShader"),
    },
)


def built_for(sample: PipelineSet, device: Device) -> BuiltImage:
    return build_image(sample, sample.pipelines[::4], device.capabilities)


def compiled(device: Device, built: BuiltImage, primary: bytes = b"", workers: int = 2) -> RunReport:
    """A run over an image; nothing of it is left."""
    prepared = device.prepare(built.image)
    report = trio.run(
        lambda: run_pipelines(device, prepared, RunOptions(workers=workers), primary=primary or None)
    )
    prepared.close()
    return report


def problems_of(built: BuiltImage) -> list[tuple[int, str]]:
    return sorted((each.job.key, each.reason) for each in built.problems)


def as_request(settings: HostSettings) -> DeviceRequest:
    """What the project's own way opens for an application such as the host."""
    return DeviceRequest(
        ApplicationInfo("host", 1, "none", 1, settings.api_version),
        frozenset(settings.pairs),
        frozenset(settings.device_extensions),
        OtherFeatures.NONE,
        orchestrator_features=False,
    )


@each_driver
@pytest.mark.parametrize("settings", [FEW, MORE], ids=["few", "more"])
def test_what_the_host_did_not_enable_is_skipped_with_that_reason(
    driver: str, settings: HostSettings, sample: PipelineSet
) -> None:
    opened = open_device(driver, request=as_request(settings))
    expected = built_for(sample, opened)
    with PythonHost(settings) as host:
        device = adopt_device(**host.arguments)
        assert device.identity == opened.identity
        built = built_for(sample, device)
        assert problems_of(built) == problems_of(expected)
        reasons = " ".join(each.reason for each in built.problems)
        assert ("geometryShader" in reasons) == (settings is FEW)
        assert ("mesh_shader" in reasons) == (settings is FEW)
        assert device.supported.has_feature(CORE, "geometryShader") == (settings is MORE)
        report = compiled(device, built)
        assert not report.failed
        assert report.compiled + report.cache_hits == len(built.image)
        device.close()
    if driver != "lavapipe":  # which keeps nothing in its caches
        assert report.cache_data is not None
        again = compiled(opened, expected, report.cache_data, workers=1)
        assert again.cache_hits == len(expected.image), "the host's device gives the keys that its equal has"
    opened.close()


@each_driver
def test_nothing_of_the_host_s_is_created_or_destroyed(driver: str, sample: PipelineSet) -> None:
    with PythonHost(MORE) as host:
        device = adopt_device(**{**host.arguments, "get_instance_proc_addr": host.watched()})
        prepared = device.prepare(built_for(sample, device).image)
        device.create_pipeline_cache()
        del prepared  # closing the device ends what is left
        device.close()
        assert host.calls.total() == 0
        assert host.still_creates()
        again = adopt_device(**host.arguments)
        assert not compiled(again, built_for(sample, again)).failed
        again.close()


@pytest.mark.driver(NAVI21)
def test_the_chain_of_vkcreatedevice_says_the_same_as_names() -> None:
    with PythonHost(MORE) as host:
        named = adopt_device(**host.arguments)
        chained = adopt_device(**{**host.arguments, "enabled_features": host.chain})
        for device in (named, chained):
            capabilities = device.capabilities
            assert capabilities.api_version == VULKAN_1_3
            assert all(capabilities.has_feature(*each) for each in MORE.pairs)
            assert capabilities.has_feature("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
            assert not capabilities.has_feature(CORE, "robustBufferAccess")
            assert not capabilities.has_feature(VULKAN_13, "maintenance4")
            assert capabilities.has_extension("VK_KHR_surface")
            assert not capabilities.has_extension("VK_KHR_ray_tracing_pipeline")
            assert device.features.compile_required
            assert not device.features.pipeline_binaries
            device.close()


@pytest.mark.driver(NAVI21)
def test_a_host_is_believed_as_far_as_it_can_be_true() -> None:
    with PythonHost(FEW) as host:
        said = host.arguments

        def refused(error: type[Exception], match: str, **changes: Any) -> None:
            with pytest.raises(error, match=match):
                adopt_device(**{**said, **changes})

        refused(ValueError, "device is a null handle", device=0)
        for number in (-1, 1 << 64):  # no address: the driver would read what is there
            refused(ValueError, "device is no address", device=number)
            refused(ValueError, "enabled_features is no address", enabled_features=number)
            refused(ValueError, "allocation_callbacks is no address", allocation_callbacks=number)
        refused(TypeError, "integer", physical_device=1.5)
        refused(
            TypeError, "as text, is expected here, not bytes", enabled_extensions=[b"VK_KHR_maintenance8"]
        )
        refused(TypeError, "pairs such as", enabled_features=["geometryShader"])
        refused(ValueError, "is it spelled right", enabled_features=[(CORE, "geometryShaders")])
        refused(ValueError, "not a structure of features", enabled_features=[("VkImageCreateInfo", "flags")])
        # Without its extension the structure cannot have been in the chain.
        mesh = "VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader"
        refused(ValueError, "does not have .*::meshShader", enabled_features=[mesh])
        refused(DeviceError, "create it with Vulkan 1.1", api_version=0)
        oldest = adopt_device(
            **{
                **said,
                "api_version": 0,
                "enabled_extensions": ["VK_KHR_get_physical_device_properties2", "VK_ours_unknown"],
            }
        )
        assert oldest.capabilities.api_version == 1 << 22
        assert not oldest.features.creation_feedback
        oldest.close()


@pytest.mark.driver(NAVI21)
def test_allocation_callbacks_are_the_host_s(sample: PipelineSet) -> None:
    memory = HostMemory()
    with PythonHost(MORE) as host:
        device = adopt_device(
            **host.arguments, allocation_callbacks=int(ffi.cast("uintptr_t", memory.callbacks))
        )
        report = compiled(device, built_for(sample, device))
        assert not report.failed
        assert memory.allocations > len(report)
        device.close()
        assert memory.live_bytes == 0
        assert host.still_creates()


@pytest.mark.driver(NAVI21)
def test_several_devices_at_a_time_in_one_process(sample: PipelineSet) -> None:
    """Two of hosts, one of ours: each compiles its own image in a thread of its own."""
    reports: dict[str, RunReport] = {}
    with PythonHost(FEW) as first, PythonHost(MORE) as second:
        devices = {
            "few": adopt_device(**first.arguments),
            "more": adopt_device(**second.arguments),
            "own": open_device(NAVI21),
        }
        images = {
            name: build_image(sample, sample.pipelines[:120], device.capabilities)
            for name, device in devices.items()
        }

        def compile_one(name: str) -> None:
            reports[name] = compiled(devices[name], images[name], workers=1)

        threads = [threading.Thread(target=compile_one, args=(name,)) for name in devices]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert {name: len(report.failed) for name, report in reports.items()} == dict.fromkeys(devices, 0)
        sizes = [len(images[name].image) for name in ("few", "more", "own")]
        assert sizes == sorted(set(sizes))
        for device in devices.values():
            device.close()
        assert first.still_creates()
        assert second.still_creates()


@each_driver
def test_a_device_is_opened_with_what_its_host_wishes_for(driver: str) -> None:
    wishes = HostWishes({"VK_KHR_surface", "VK_EXT_headless_surface"}, {"VK_KHR_swapchain"}, 0)
    device = open_device(driver, wishes=wishes)
    handles = device.handles
    assert handles is not None
    assert handles.queue_family == 0
    for name in ("VK_KHR_swapchain", "VK_EXT_headless_surface"):
        assert device.capabilities.has_extension(name)
    # The handles are good for a host: it adopts them as another one's.
    own = adopt_device(
        instance=handles.instance,
        physical_device=handles.physical_device,
        device=handles.device,
        get_instance_proc_addr=handles.get_instance_proc_addr,
        api_version=device.capabilities.api_version,
    )
    assert own.identity == device.identity
    assert own.handles is not None
    assert own.handles.queue_family is None
    own.close()
    with pytest.raises(NoDeviceError, match="no queue family 77"):
        open_device(driver, wishes=HostWishes(queue_family=77))
    with pytest.raises(NoDeviceError, match="no instance extension VK_ours"):
        open_device(driver, wishes=HostWishes({"VK_ours"}))
    with pytest.raises(TypeError, match="not the text 'VK_KHR_swapchain'"):
        HostWishes(device_extensions="VK_KHR_swapchain")
    with pytest.raises(TypeError, match="several names"):
        adopt_device(
            instance=handles.instance,
            physical_device=handles.physical_device,
            device=handles.device,
            enabled_extensions="VK_KHR_swapchain",
        )
    with pytest.raises(NoDeviceError, match="does not offer VK_NV_ours"):
        open_device(driver, wishes=HostWishes(device_extensions={"VK_NV_ours"}))
    device.close()


_LAYERED = """
import json, sys
import trio
from orchestrator import PipelineSet, adopt_device
from orchestrator.run.options import RunOptions
from orchestrator.run.session import open_session
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.sample import sample_path
from tests.devices.vulkan.test_adopting import MORE
from tests.hosts.python_host import PythonHost
async def session(device, prepared):
    async with open_session(device, prepared, RunOptions(workers=2, keep=True)) as session:
        every = range(len(prepared.image))
        await session.submit(every)
        await session.wait(every)
        handles = session.take(every)
    device.destroy_pipelines(handles)
    device.destroy_pipelines(session.report.pipelines.handles)
    return len(session.report.failed)
with PythonHost(MORE) as host:
    failed = 0
    if sys.argv[1] == "session":
        device = adopt_device(**host.arguments)
        with PipelineSet.open(sample_path()) as source:
            prepared = device.prepare(build_image(source, source.pipelines[::4], device.capabilities).image)
        failed = trio.run(session, device, prepared)
        device.close()
    if sys.argv[1] == "leak":
        adopt_device(**host.arguments).create_pipeline_cache()
    host.still_creates()
print(json.dumps({"failed": failed}))
"""


def test_the_validation_layer_says_nothing_that_it_does_not_say_of_the_host_alone(tmp_path: Path) -> None:
    """Objects that are left show when the host destroys its device (VUID-vkDestroyDevice-device-05137)."""
    layer = ValidationLayer.find()
    alone = run_layered(layer, NAVI21, tmp_path / "alone", ["-c", _LAYERED, "alone"])
    assert alone.document() == {"failed": 0}
    both = run_layered(layer, NAVI21, tmp_path / "both", ["-c", _LAYERED, "session"])
    assert both.document() == {"failed": 0}
    said = {str(each) for each in alone.messages}
    new = [each for each in both.messages if str(each) not in said]
    unexpected = [
        each
        for each in new
        if not any(alarm.id == each.id and layer.version in alarm.layers for alarm in FALSE_ALARMS)
    ]
    assert unexpected == []
    leak = run_layered(layer, NAVI21, tmp_path / "leak", ["-c", _LAYERED, "leak"])
    assert any("VUID-vkDestroyDevice-device" in each.id for each in leak.messages)
