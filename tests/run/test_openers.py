"""What a key profile changes in a compile: our own features, and what the report tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.device import FEEDBACK_APPLICATION_CACHE_HIT
from orchestrator.devices.request import ORCHESTRATOR_FEATURES, DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.groups import decode_application
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.stores.cache_file import cache_path, read_cache_file
from orchestrator.stores.profile_file import (
    KEY_PROFILE,
    KeyProfile,
    save_key_profile,
)
from tests.run.small_sets import Opener, add_sample, compiled, compute_keys
from tests.sets.archive.small_archives import application
from tests.stores.profiles import IDENTITY, key_profile, tried
from tests.stores.stored import damage

CONTROL = ("VkPhysicalDevicePipelineCreationCacheControlFeatures", "pipelineCreationCacheControl")
BINARIES = ("VkPhysicalDevicePipelineBinaryFeaturesKHR", "pipelineBinaries")
LOGIC_OP = "VkPhysicalDeviceFeatures::logicOp"  # captures cannot record it, so it is on
MESH_SHADERS = '{"sType":1000328000,"taskShader":1,"meshShader":1}'


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Four compute pipelines of a captured application, which enabled mesh shaders."""
    path = tmp_path / "recorded.foz"
    write_pipelines(path, application("captured", 0, MESH_SHADERS))
    return path


@pytest.fixture
def nobodys(tmp_path: Path) -> Path:
    path = tmp_path / "nobodys.foz"
    write_pipelines(path, None)
    return path


def write_pipelines(path: Path, of: bytes | None) -> None:
    """Write an archive of compute pipelines of the sample, with the payload of an application info."""
    with ArchiveWriter(path) as writer:
        if of is not None:
            writer.add(RecordTag.APPLICATION_INFO, decode_application(0, of).hash, of)
        left_out = (RecordTag.APPLICATION_INFO, RecordTag.APPLICATION_BLOB_LINK)
        add_sample(writer, compute_keys()[:4], left_out=left_out)


def know(folder: Path, **changes: object) -> KeyProfile:
    profile = key_profile(**changes)
    save_key_profile(folder, IDENTITY, profile)
    return profile


def on(device: SimulatedDevice) -> set[str]:
    return {
        member for struct, member in ORCHESTRATOR_FEATURES if device.capabilities.has_feature(struct, member)
    }


def own() -> tuple[str, ...]:
    return tuple("::".join(each) for each in sorted(ORCHESTRATOR_FEATURES))


async def test_without_a_profile_nothing_changes(folder: Path, recorded: Path, nobodys: Path) -> None:
    opener = Opener()
    report = await compiled(recorded, folder, opener)
    assert len(opener.opened) == 1
    assert not [note for note in report.notes if "keys" in note]
    assert on(opener.device) == {member for _, member in ORCHESTRATOR_FEATURES}
    report = await compiled(nobodys, folder, opener)
    assert not [note for note in report.notes if "keys" in note]
    assert on(opener.device) == set()


async def test_what_is_proven_to_matter_is_left_off(folder: Path, recorded: Path) -> None:
    know(folder, depends=(tried("::".join(CONTROL)),))
    opener = Opener(options={"keys_depend_on": frozenset({"::".join(CONTROL)})})
    report = await compiled(recorded, folder, opener)
    assert len(opener.opened) == 2  # what the driver is, is known when it is open
    assert on(opener.device) == {member for _, member in ORCHESTRATOR_FEATURES} - {CONTROL[1]}
    assert not report.device.features.externally_synchronized_caches
    (note,) = [note for note in report.notes if "left off" in note]
    assert "pipelineCreationCacheControl" in note
    assert "2001-09-09" in note
    assert hits_of_the_application(folder, recorded) == 4
    # The control: without the profile nothing is found.
    other = folder / "other"
    other.mkdir(mode=0o700)
    await compiled(recorded, other, Opener(options={"keys_depend_on": frozenset({"::".join(CONTROL)})}))
    assert hits_of_the_application(other, recorded) == 0


def hits_of_the_application(folder: Path, archive: Path) -> int:
    """How many pipelines the application's own device, without our features, finds in the cache file."""
    with PipelineSet.open(archive) as source:
        (group,) = source.groups
        request = DeviceRequest(
            group.request.application, group.request.features, orchestrator_features=False
        )
        device = SimulatedDevice(
            SimulatedOptions(
                identity=IDENTITY, request=request, keys_depend_on=frozenset({"::".join(CONTROL)})
            )
        )
        data = read_cache_file(cache_path(folder, IDENTITY), IDENTITY).data
        prepared = device.prepare(build_image(source, group.pipelines, device.capabilities).image)
        cache = device.create_pipeline_cache(data)
        batch = device.create_pipelines(prepared, np.arange(4, dtype=np.int32), cache)
        device.close()
        return int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))


async def test_what_is_proven_harmless_is_added(folder: Path, nobodys: Path) -> None:
    know(folder, independent=tuple(map(tried, own())))
    opener = Opener()
    report = await compiled(nobodys, folder, opener)
    assert on(opener.opened[0]) == set()
    assert on(opener.device) == {member for _, member in ORCHESTRATOR_FEATURES}
    # The first device twice; that with what the pipelines need, once.
    assert len(opener.opened) <= 3
    assert report.device.features.externally_synchronized_caches
    assert not [note for note in report.notes if "left off" in note or "keys depend" in note]


async def test_what_matters_and_is_not_known_of_the_application_is_told(
    folder: Path, recorded: Path, nobodys: Path
) -> None:
    # The application is recorded to have the second, and the third is off: captures would have recorded it.
    features = ("MeshShaderFeaturesEXT::meshShader", "ShaderObjectFeaturesEXT::shaderObject")
    others = (tried("1.3", "apiVersion"), tried("DOOM", "application name"), tried("DXVK", "engine name"))
    know(folder, depends=(tried(LOGIC_OP), *(tried(f"VkPhysicalDevice{each}") for each in features), *others))
    report = await compiled(recorded, folder, Opener())
    (note,) = [note for note in report.notes if "in no application's record" in note]
    assert f"record: {LOGIC_OP} (key" in note
    know(folder, depends=(tried(LOGIC_OP), *others))
    report = await compiled(nobodys, folder, Opener())
    (note,) = [note for note in report.notes if "no application is recorded" in note]
    assert "Features::logicOp, apiVersion, application name, engine name" in note


async def test_a_profile_that_cannot_be_used_is_told(folder: Path, recorded: Path) -> None:
    save_key_profile(folder, IDENTITY, key_profile())
    damage(folder, KEY_PROFILE)
    report = await compiled(recorded, folder, Opener())
    assert [note for note in report.notes if "driver's keys was not used: key profile" in note], report.notes
