"""Devices: identity and end."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import NO_SOURCE, Device, DriverObserver, PreparedPipelines
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.devices.vulkan.device import VulkanDevice
from orchestrator.errors import DeviceError
from tests.contract.subject import Subject


def test_it_is_a_device(subject: Subject) -> None:
    assert isinstance(subject.device, Device)
    assert isinstance(subject.prepared, PreparedPipelines)
    assert subject.prepared.image is subject.image
    assert subject.prepared.unusable == {}
    assert subject.device.features.driver_caches.startswith("disabled: ")


def test_the_identity_is_complete(subject: Subject) -> None:
    identity = subject.device.identity
    assert len(identity.pipeline_cache_uuid) == 16
    assert identity.driver_abi == 64
    assert identity.device_name
    assert identity.driver_name
    # The smaller one of the device's version and what the instance was told.
    assert 1 << 22 <= subject.device.capabilities.api_version <= identity.api_version


def test_closing_ends_everything_once(subject: Subject) -> None:
    device = subject.device
    left = [subject.filled(), subject.filled(flagged=True)]
    kept = device.create_pipelines(subject.prepared, subject.all, NO_SOURCE, keep=True).handles
    device.close()
    device.close()
    assert all(cache.destroyed for cache in left)
    for call in (
        device.create_pipeline_cache,
        lambda: device.merge_pipeline_caches(left[0], [left[1]]),
        lambda: device.merge_pipeline_caches(left[0], []),
        lambda: device.pipeline_cache_size(left[0]),
        lambda: device.pipeline_cache_data(left[0]),
        lambda: device.prepare(subject.image),
        lambda: device.create_pipelines(subject.prepared, subject.all, NO_SOURCE),
        lambda: device.pipeline_keys(subject.prepared, subject.all),
        lambda: device.destroy_pipelines(kept),
    ):
        with pytest.raises(DeviceError, match="closed"):
            call()
    subject.prepared.close()
    for cache in left:
        device.destroy_pipeline_cache(cache)


def test_a_fork_leaves_it_to_its_parent_also_during_a_call(subject: Subject) -> None:
    device, cache = subject.device, subject.filled()
    begun, let_go = threading.Event(), threading.Event()

    class Waiting(DriverObserver):
        def entering(self, *_: object) -> int:
            begun.set()
            let_go.wait()
            return 0

    device.observer = Waiting()
    caller = threading.Thread(target=lambda: device.create_pipelines(subject.prepared, subject.all, cache))
    caller.start()
    begun.wait()

    def refused() -> bool:
        with pytest.raises(DeviceError, match="of the process that was forked"):
            device.prepare(subject.image)
        with pytest.raises(DeviceError):
            device.create_pipelines(subject.prepared, subject.all, cache)
        subject.prepared.close()
        device.close()
        device.close()
        return not cache.destroyed

    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a lock that is held for ever
        with suppress(BaseException):
            os._exit(0 if refused() else 1)
        os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    let_go.set()
    caller.join()
    assert status == 0
    assert not device.create_pipelines(subject.prepared, subject.all, cache).results.any()


def test_what_was_closed_or_is_another_devices_never_reaches_the_driver(
    subject: Subject, another: Device
) -> None:
    device = subject.device
    theirs, their_cache = another.prepare(subject.image), another.create_pipeline_cache()
    cache = device.create_pipeline_cache()
    with pytest.raises(DeviceError, match="closed, or another device's"):
        device.create_pipelines(theirs, subject.all, cache)
    with pytest.raises(DeviceError, match="belongs to another device"):
        device.create_pipelines(subject.prepared, subject.all, their_cache)
    for use in (
        lambda: device.merge_pipeline_caches(cache, [their_cache]),
        lambda: device.pipeline_cache_data(their_cache),
        lambda: device.pipeline_cache_size(their_cache),
        lambda: device.destroy_pipeline_cache(their_cache),
    ):
        with pytest.raises(DeviceError, match="belongs to another device"):
            use()
    # Nothing of the other device was touched.
    assert not another.create_pipelines(theirs, subject.all, their_cache).results.any()
    subject.prepared.close()
    with pytest.raises(DeviceError, match="closed, or another device's"):
        device.create_pipelines(subject.prepared, subject.all, cache)
    if device.features.pipeline_binaries:
        with pytest.raises(DeviceError, match="closed, or another device's"):
            device.pipeline_keys(subject.prepared, subject.all)


def test_pipelines_to_destroy_may_be_a_list(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    device = subject.device
    kept = device.create_pipelines(subject.prepared, subject.all, NO_SOURCE, keep=True)
    handles = kept.handles.tolist()
    assert all(handles)
    reached: list[int] = []
    if isinstance(device, VulkanDevice):
        commands = device.context.commands
        destroy = commands.vkDestroyPipeline

        def watched(owner: Any, handle: int, allocator: Any) -> None:
            reached.append(handle)
            destroy(owner, handle, allocator)

        monkeypatch.setattr(commands, "vkDestroyPipeline", watched)
    device.destroy_pipelines(np.zeros(0, np.uint64))
    assert not reached
    device.destroy_pipelines(handles)
    if isinstance(device, SimulatedDevice):
        assert device.live_pipelines == 0
    else:
        assert sorted(reached) == sorted(handles)
