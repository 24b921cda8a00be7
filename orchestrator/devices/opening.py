"""Opens devices by what a user calls them.

One process is one target, since drivers read theirs from the environment (selectors.py). Opening a device
changes nothing there, nor does adopting a host's. A program that owns its process calls `own_process` first;
any other is told by NoDeviceError what to set. All else is thread-safe.

Nothing else above devices/vulkan imports the binding, and it is imported when a Vulkan device is asked for.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

from orchestrator.devices.device import Device, DeviceHandles, DeviceIdentity
from orchestrator.devices.request import NO_WISHES, DeviceRequest, Feature, HostWishes
from orchestrator.devices.selectors import (
    SIMULATED,
    DeviceSelector,
    environment_of,
    lacks_null_hardware,
    no_null_hardware,
    shim_at_hand,
    starts_with,
)
from orchestrator.errors import NoDeviceError, OrchestratorError, expect

_owned_by: DeviceSelector | None = None


def own_process(selector: str, *, driver_caches: bool = False) -> None:
    """Set the environment of this process for a device; for programs that own their process.

    Call it in the main thread, before the first device is opened: drivers read their target once. A library,
    or a program that shows pictures with Vulkan itself, leaves its environment alone and does not call this.

    Raises:
        NoDeviceError: The driver is not installed or has no such family, at which it would end the process;
            this process runs another target already; or the device needs a library that is loaded when a
            program starts (selectors.py).
    """
    if DeviceSelector.parse(selector).family and _owned_by is None:
        from orchestrator.devices.families import require_family

        require_family(selector)
    _own(selector, driver_caches=driver_caches)


def _own(selector: str, *, driver_caches: bool) -> None:
    global _owned_by
    chosen = DeviceSelector.parse(selector)
    if selector == SIMULATED:
        return
    if _owned_by is not None and (_owned_by.driver, _owned_by.family) != (chosen.driver, chosen.family):
        raise NoDeviceError(
            f"this process runs {_owned_by.text!r} already and drivers read their target once: "
            f"open {selector!r} in a process of its own"
        )
    lacking = environment_of(selector, driver_caches=driver_caches)
    if starts_with(lacking):
        raise NoDeviceError(
            f"{selector!r} needs a library that a program has from its start: {_to_set(lacking)}"
        )
    os.environ.update(lacking)
    _owned_by = chosen


def open_device(
    selector: str = "",
    *,
    request: DeviceRequest | None = None,
    driver_caches: bool = False,
    wishes: HostWishes = NO_WISHES,
) -> Device:
    """Open a device. Leaves the process as it is. Blocks as long as the driver needs: any thread may call it.

    Args:
        selector: ``radv:navi21`` (RADV on null hardware, by family), ``radv``, ``lavapipe``, ``nvidia``, the
            index that `list_devices` shows, a part of a device's or driver's name, ``simulated``, or "" for
            the first device. A selector that names a driver needs the environment that `environment_of`
            gives.
        request: The application whose instance and device it is opened as. A set's groups have theirs
            (`PipelineSet.groups`). None: no application's; what captures record is off, the rest on.
        driver_caches: Leave the driver's own caches on. Otherwise they are off where the device can turn them
            off (VkDevicePipelineBinaryInternalCacheControlKHR) or the environment does; `DeviceFeatures` says
            which.
        wishes: What the caller wants of instance and device for use of its own; `Device.handles` has them.
            Extensions that pipelines do not need may change the keys that a driver gives them. Without
            effect on the simulated device.

    Returns:
        The device; the caller closes it, after everything that it made of the handles was destroyed.

    Raises:
        NoDeviceError: Nothing answers to the selector, it lacks what is wished for, or this process's
            environment is another target's; the message says what there is, what to set, or what to install.
        DriverError: The driver refused.
        TypeError: The request or the wishes are something else.
    """
    expect(request, (DeviceRequest, type(None)), "DeviceRequest or None")
    expect(wishes, HostWishes, "HostWishes")
    if selector == SIMULATED:
        from orchestrator.devices.simulated import CpuClock, SimulatedDevice, SimulatedOptions

        # It burns processor time, so that progress, workers and the reports behave as with a driver.
        return SimulatedDevice(SimulatedOptions(clock=CpuClock(), request=request))
    chosen = _in_this_process(selector)
    from orchestrator.devices.vulkan.context import DeviceContext
    from orchestrator.devices.vulkan.device import VulkanDevice

    try:
        context = DeviceContext.open(
            chosen.text,
            chosen.index,
            chosen.driver,
            chosen.name,
            request=request,
            driver_caches=driver_caches,
            wishes=wishes,
        )
    except NoDeviceError:
        if chosen.family and lacks_null_hardware(os.environ) and not shim_at_hand(os.environ):
            raise no_null_hardware() from None
        raise
    return VulkanDevice(context)


def adopt_device(
    *,
    instance: int,
    physical_device: int,
    device: int,
    get_instance_proc_addr: int = 0,
    api_version: int = 0,
    enabled_extensions: Iterable[str] = (),
    enabled_features: Iterable[Feature] | int = (),
    allocation_callbacks: int = 0,
) -> Device:
    """Use a VkDevice that its host created. Nothing of the host's is destroyed, and no instance is created.

    Vulkan cannot be asked what is enabled on a device, so the host says it. What it does not say counts as
    off: pipelines that need it are skipped, with that reason, before the driver sees them. Any thread may
    call this and use the device beside the host: no queue is used, and objects are this package's own.
    Several devices may be adopted and opened in one process.

    Args:
        instance: VkInstance.
        physical_device: VkPhysicalDevice.
        device: VkDevice.
        get_instance_proc_addr: Address of the vkGetInstanceProcAddr that created the instance; 0 for that of
            the loader library of this process.
        api_version: VkApplicationInfo::apiVersion of the instance; 0 as Vulkan has it, 1.0.
        enabled_extensions: Those of the instance and those of the device, in any order. Names that the
            registry does not know are passed over.
        enabled_features: Pairs such as ("VkPhysicalDeviceFeatures", "samplerAnisotropy"), or the address of
            the pNext chain that vkCreateDevice was given, VkPhysicalDeviceFeatures2 in it; only read, during
            this call. What VkDeviceCreateInfo::pEnabledFeatures enabled is given as pairs.
        allocation_callbacks: Address of VkAllocationCallbacks for what is created here, which must outlive
            the device; 0 for none. They are called from every thread that compiles.

    Returns:
        The device. Its `close` destroys what was made with it here; the host calls that, after the last
        session has ended, and then vkDestroyDevice.

    Raises:
        TypeError: The extensions are one text, or not texts; a handle is no number; a feature is no pair.
        ValueError: A handle is null, or no address; a feature is not known, or the physical device does not
            have it.
        NoDeviceError: No vkGetInstanceProcAddr is given, and the process has no loader library.
        DeviceError: The instance is Vulkan 1.0 without VK_KHR_get_physical_device_properties2.
        DriverError: The loader or the driver refused to tell something.
    """
    from orchestrator.devices.vulkan.context import DeviceContext
    from orchestrator.devices.vulkan.device import VulkanDevice

    handles = DeviceHandles(instance, physical_device, device, get_instance_proc_addr, allocation_callbacks)
    return VulkanDevice(DeviceContext.adopt(handles, api_version, enabled_extensions, enabled_features))


def preload(opener: str, selector: str) -> None:
    """Import what `open_for_child` needs, and load no driver: for a process whose forks open devices."""
    if opener:
        importlib.import_module(opener.partition(":")[0])
    elif selector != SIMULATED:
        importlib.import_module("orchestrator.devices.vulkan.device")


def load_driver(opener: str, selector: str, *, driver_caches: bool = False, wait: bool = False) -> None:
    """Begin to load the driver of what `open_for_child` will open, in a thread: other work goes on beside it.

    This process's environment is set for the device. What is wrong with the driver, `open_for_child` says.
    With `wait`, it is loaded when this returns, without a thread.
    """
    if opener or selector == SIMULATED:
        return
    _own(selector, driver_caches=driver_caches)
    from orchestrator.devices.vulkan.instance import load_drivers

    def load() -> None:
        with suppress(OrchestratorError):
            load_drivers()

    if wait:
        load()
    else:
        threading.Thread(target=load, name="load-driver", daemon=True).start()


def open_for_child(
    opener: str, selector: str, request: DeviceRequest, *, driver_caches: bool = False
) -> Device:
    """Open a device in a child process that works for another one and owns its environment.

    It is opened by `open_device`, or by the opener "package.module:function", called with the request.
    """
    if opener:
        module, _, name = opener.partition(":")
        device: Device = getattr(importlib.import_module(module), name)(request)
        return device
    _own(selector, driver_caches=driver_caches)
    return open_device(selector, request=request, driver_caches=driver_caches)


def list_layers(selector: str = "") -> tuple[str, ...]:
    """Names of the layers that the Vulkan loader finds, sorted; the simulated device has none."""
    if selector == SIMULATED:
        return ()
    from orchestrator.devices.vulkan.instance import known_layers

    return known_layers()


def loader_version() -> int:
    """Version of Vulkan that the loader knows (vkEnumerateInstanceVersion)."""
    from orchestrator.devices.vulkan import instance

    return instance.loader_version()


def list_devices(selector: str = "") -> list[DeviceIdentity]:
    """Identities of the Vulkan devices that the loader finds, in its order; their index is the selector.

    A selector with a driver decides which drivers are asked. NoDeviceError where there is no Vulkan loader,
    or this process's environment is another target's.
    """
    _in_this_process(selector)
    from orchestrator.devices.vulkan.instance import VulkanInstance

    with closing(VulkanInstance.create()) as instance:
        return [each.identity for each in instance.physical_devices]


def _in_this_process(selector: str) -> DeviceSelector:
    lacking = environment_of(selector, driver_caches=True)
    if lacking:
        own = (
            f", or, in a program that owns its process, call orchestrator.own_process({selector!r}) before "
            "the first device is opened"
        )
        raise NoDeviceError(
            f"the environment of this process is not that of {selector!r}, and opening a device does not "
            f"change it: {_to_set(lacking)}{'' if starts_with(lacking) else own}"
        )
    return DeviceSelector.parse(selector)


def _to_set(lacking: Mapping[str, str]) -> str:
    shown = " ".join(f"{name}={value}" for name, value in lacking.items() if name != "VK_ICD_FILENAMES")
    return f"start the process with {shown}"
