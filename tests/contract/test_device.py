"""Devices: identity and end.

What every device promises about itself.
"""

from __future__ import annotations

import pytest

from orchestrator.devices.device import NO_SOURCE, Device, PreparedPipelines
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
    device.close()
    device.close()
    assert all(cache.destroyed for cache in left)
    subject.prepared.close()
    for cache in left:
        device.destroy_pipeline_cache(cache)
    with pytest.raises(DeviceError):
        device.prepare(subject.image)
    with pytest.raises(DeviceError):
        device.create_pipelines(subject.prepared, subject.all, NO_SOURCE)
