"""Pipeline binaries, on every device."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices.binary_data import BinaryProperties, HeldBinaries
from orchestrator.devices.device import NO_SOURCE, Device
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.errors import DeviceError
from orchestrator.run.binaries import HeldPipelines
from orchestrator.stores.binary_store import BinaryStore
from tests.contract.subject import PIPELINES, Subject
from tests.contract.test_identifiers import identified


def binaries_of(subject: Subject) -> Device:
    subject.need(subject.device.features.pipeline_binaries, "it has no pipeline binaries")
    return subject.device


def test_a_device_without_binaries_says_so(subject: Subject) -> None:
    if subject.device.features.pipeline_binaries:
        assert subject.device.global_pipeline_key()
        return
    assert subject.device.binary_properties == BinaryProperties()
    for call in (
        subject.device.global_pipeline_key,
        lambda: subject.device.create_binaries([]),
        lambda: subject.device.create_captured(subject.prepared, subject.all),
        lambda: subject.device.pipeline_keys(subject.prepared, subject.all),
    ):
        with pytest.raises(DeviceError, match=r"pipeline[ _]binar"):
            call()


def test_the_global_key_is_stable(subject: Subject) -> None:
    device = binaries_of(subject)
    assert 0 < len(device.global_pipeline_key()) <= 32
    assert device.global_pipeline_key() == device.global_pipeline_key()


def test_captured_pipelines_are_made_again_without_modules(subject: Subject) -> None:
    device = binaries_of(subject)
    batch, captured = device.create_captured(subject.prepared, subject.all, keep=True)
    assert not batch.results.any()
    assert np.all(batch.handles != 0)
    device.destroy_pipelines(batch.handles)
    assert [each.index for each in captured] == list(range(PIPELINES))
    assert [each.pipeline_key for each in captured] == device.pipeline_keys(subject.prepared, subject.all)
    assert all(each.binaries and 0 < len(binary.key) <= 32 for each in captured for binary in each.binaries)
    # What is captured does not depend on when.
    again = device.create_captured(subject.prepared, subject.all)[1]
    assert [each.binaries for each in again] == [each.binaries for each in captured]

    handles = [device.create_binaries(each.binaries) for each in captured]
    held = HeldBinaries(np.array([len(each) for each in handles], np.uint32), np.concatenate(handles))
    # No module is ever made here: there is no SPIR-V at all.
    bare = device.prepare(without_code(subject), modules_on_demand=True)
    made = device.create_from_binaries(bare, subject.all, held, keep=True)
    device.destroy_binaries(held.handles)
    assert not made.results.any()
    assert len(set(made.handles.tolist())) == PIPELINES
    device.destroy_pipelines(made.handles)
    bare.close()


def test_a_store_finds_pipelines_by_the_drivers_key_and_identifiers(subject: Subject, tmp_path: Path) -> None:
    device = binaries_of(subject)
    _, captured = device.create_captured(subject.prepared, subject.all)
    known = identified(subject, keys=subject.image.keys)
    stages = [tuple(map(known.identifier, subject.image.modules_of(each))) for each in range(PIPELINES)]
    assert [each.identifiers for each in captured] == stages
    with BinaryStore.open(tmp_path) as store:
        first = HeldPipelines.of(device, store)
        first.take(subject.prepared, captured)
        first.destroy()
        # Another state by our own keys, such as that of an application which knows identifiers alone. To the
        # simulated device that is another pipeline, whatever its stages are.
        unknown = subject.image.keys + np.uint64(1)
        same_to_the_driver = not isinstance(device, SimulatedDevice)
        with_code = device.prepare(evolve(without_code(subject), keys=unknown), modules_on_demand=True)
        bare = device.prepare(identified(subject, keys=unknown))
        for prepared, found in ((with_code, 0), (bare, PIPELINES * same_to_the_driver)):
            source = HeldPipelines.of(device, store)
            source.pull_in(prepared)
            assert source.record().pulled_in == found
            if found:
                assert not device.create_pipelines(prepared, subject.all, source).results.any()
                assert source.record().created == PIPELINES
            source.destroy()
            prepared.close()


def without_code(subject: Subject) -> CreateInfoImage:
    """The image, whose modules cannot be read."""

    def load() -> bytes:
        raise AssertionError("SPIR-V was read")

    modules = tuple(msgspec.structs.replace(each, load=load) for each in subject.image.modules)
    return evolve(subject.image, modules=modules)


def test_modules_on_demand(subject: Subject) -> None:
    bare = subject.device.prepare(subject.image, modules_on_demand=True)
    assert not subject.device.create_pipelines(bare, subject.all, NO_SOURCE).results.any()
    bare.close()


def test_a_cache_of_its_own_is_asked_only_where_there_is_one(subject: Subject) -> None:
    device = binaries_of(subject)
    # Tests run with the drivers' own caches off.
    with pytest.raises(DeviceError, match="internal cache"):
        device.probe_internal_cache(subject.prepared, subject.all)


def test_no_binaries_of_no_data(subject: Subject) -> None:
    device = binaries_of(subject)
    assert len(device.create_binaries([])) == 0
    device.destroy_binaries(np.zeros(3, np.uint64))
