"""Unit tests of what modules and stages need, and the captured sets on real devices."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import NO_SOURCE, SUCCESS, DeviceCapabilities
from orchestrator.devices.opening import open_device, own_process
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, EnabledCapabilities
from orchestrator.registry import registry
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.spirv.walk import walk_spirv
from tests.drivers import run_on_device
from tests.sets.needs.fake_capabilities import Bare, Everything, make, version
from tests.sets.spirv.shader_words import VOID_FUNCTION, assemble, compute_module, words_of

LIMITS = "VkPhysicalDeviceLimits"
ROOMY: dict[tuple[str, str], int | float | tuple[int, ...]] = {
    (LIMITS, "maxComputeWorkGroupSize"): (128, 128, 64),
    (LIMITS, "maxComputeWorkGroupInvocations"): 128,
}


def module(
    device: DeviceCapabilities, *capabilities: int, extensions: tuple[str, ...] = (), spirv: int = 0
) -> str | None:
    code = compute_module(capabilities=capabilities, extensions=extensions, version=1 << 16 | spirv << 8)
    return RequirementChecker(device).shaders.module(walk_spirv(code))


def test_capability_names_the_feature_that_enables_it() -> None:
    text = "SPIR-V capability MinLod (42): needs VkPhysicalDeviceFeatures::shaderResourceMinLod"
    assert module(Bare(), 1, 42) == text
    assert module(Everything(), 1, 42) is None


def test_capability_that_vulkan_does_not_have() -> None:
    kernel = 6
    assert module(Everything(), kernel) == f"SPIR-V capability 6, unknown to registry {registry().version}"


def test_capability_that_only_the_spirv_grammar_lists() -> None:
    groups = 18
    assert module(Everything(), groups, extensions=("SPV_AMD_shader_ballot",)) is None
    text = "SPIR-V capability Groups (18): needs extension VK_AMD_shader_ballot"
    assert module(Everything(without=frozenset({"VK_AMD_shader_ballot"})), groups) == text


def test_capability_by_extension_is_not_by_the_version_that_took_it_over() -> None:
    # Vulkan 1.1 made DrawParameters a feature; the extension alone enabled it before.
    draw_parameters = 4427
    assert module(Bare(extensions=frozenset({"VK_KHR_shader_draw_parameters"})), draw_parameters) is None
    text = module(Bare(api_version=version(1, 1)), draw_parameters)
    assert text is not None
    assert "shaderDrawParameters" in text
    feature = ("VkPhysicalDeviceVulkan11Features", "shaderDrawParameters")
    assert module(Bare(api_version=version(1, 1), features=frozenset({feature})), draw_parameters) is None


def test_capability_by_a_bit_of_a_property() -> None:
    ballot = 64
    held = {("VkPhysicalDeviceSubgroupProperties", "supportedOperations"): 0x1 | 0x8}
    lacking = {("VkPhysicalDeviceVulkan11Properties", "subgroupSupportedOperations"): 0x1}
    assert module(Bare(api_version=version(1, 1), properties=held), ballot) is None
    assert module(Bare(api_version=version(1, 1), properties=lacking), ballot) == (
        "SPIR-V capability GroupNonUniformBallot (64): needs VkPhysicalDeviceVulkan11Properties::"
        "subgroupSupportedOperations with VK_SUBGROUP_FEATURE_BALLOT_BIT"
    )
    assert module(Bare(properties=held), ballot) is not None


def test_capability_by_a_property_that_is_true() -> None:
    denormals = 4464
    for value, lacks in ((0, True), (1, False)):
        held = {("VkPhysicalDeviceFloatControlsProperties", "shaderDenormPreserveFloat32"): value}
        assert (module(Bare(api_version=version(1, 2), properties=held), denormals) is not None) == lacks


def test_extensions_of_modules() -> None:
    name = "SPV_KHR_multiview"
    assert module(Bare(), 1, extensions=(name,)) == (
        "SPIR-V extension SPV_KHR_multiview: needs Vulkan 1.1 or extension VK_KHR_multiview"
    )
    assert module(Bare(api_version=version(1, 1)), 1, extensions=(name,)) is None
    assert module(Bare(extensions=frozenset({"VK_KHR_multiview"})), 1, extensions=(name,)) is None
    assert module(Bare(), 1, extensions=("SPV_KHR_no_integer_wrap_decoration",)) is None
    assert module(Bare(), 1, extensions=("SPV_XYZ_new",)) is None  # drivers pass over it


@pytest.mark.parametrize(("spirv", "core"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_versions_of_spirv(spirv: int, core: int) -> None:
    assert module(Bare(api_version=version(1, core)), 1, spirv=spirv) is None
    text = f"SPIR-V 1.{spirv}: needs Vulkan 1.{core}"
    assert module(Bare(api_version=version(1, core - 1)), 1, spirv=spirv) == text


def test_versions_of_spirv_beyond_core() -> None:
    by_extension = Bare(api_version=version(1, 1), extensions=frozenset({"VK_KHR_spirv_1_4"}))
    assert module(by_extension, 1, spirv=4) is None
    assert module(by_extension, 1, spirv=5) == "SPIR-V 1.5: needs Vulkan 1.2"
    assert module(Everything(), 1, spirv=9) == f"SPIR-V 1.9, unknown to registry {registry().version}"


def test_the_version_of_spirv_is_judged_by_the_devices_own_version() -> None:
    application = ApplicationInfo(api_version=version(1, 2))
    older = EnabledCapabilities(Bare(api_version=version(1, 4)), DeviceRequest(application))
    assert older.api_version == version(1, 2)
    assert module(older, 1, spirv=6) is None
    newer = EnabledCapabilities(Bare(api_version=version(1, 2)), DeviceRequest(application))
    assert module(newer, 1, spirv=6) == "SPIR-V 1.6: needs Vulkan 1.3"


def made_by_radv(folder: str) -> tuple[int, int, list[int]]:
    """Of a pipeline of SPIR-V 1.6: its device's version, problems, and results; for a process of its own."""
    records = MemoryRecords("newer than its application")
    builder = PipelineSetBuilder(records)
    builder.application(api_version="1.2")
    builder.compute_pipeline("auto", builder.shader_module(compute_module(version=1 << 16 | 6 << 8)))
    path = Path(folder) / "newer.foz"
    with ArchiveWriter(path) as writer:
        copy_records(records, writer)
    own_process("radv:navi21")
    with (
        PipelineSet.open(path) as source,
        closing(opened_groups(source, lambda request: open_device("radv:navi21", request=request))) as groups,
    ):
        opened = next(groups)
        device, built = opened.device, opened.built
        with closing(device.prepare(built.image)) as prepared:
            made = device.create_pipelines(prepared, np.arange(len(built.image), dtype=np.int32), NO_SOURCE)
        return device.capabilities.api_version, len(built.problems), made.results.tolist()


def test_radv_takes_newer_spirv_than_its_application_asks_for(tmp_path: Path) -> None:
    api_version, problems, results = run_on_device("radv:navi21", f"{__name__}:made_by_radv", str(tmp_path))
    assert api_version >> 12 == version(1, 2) >> 12
    assert (problems, results) == (0, [SUCCESS])


def stage(device: Bare, code: bytes, bit: int = 0x20, name: str = "main", **members: Any) -> str | None:
    value = make("VkPipelineShaderStageCreateInfo", stage=bit, pName=name, **members)
    return RequirementChecker(device).stage(value, walk_spirv(code), 0x77)


def test_stage_has_its_entry_point() -> None:
    device = Bare(properties=ROOMY)
    assert stage(device, compute_module()) is None
    assert stage(device, compute_module(), name="other") == (
        "module 0000000000000077 has no entry point 'other' for stage 0x20 (it has 'main' for 0x20)"
    )
    assert isinstance(stage(device, compute_module(), name="other"), Malformed)
    assert stage(device, compute_module(), bit=0x10) == (
        "module 0000000000000077 has no entry point 'main' for stage 0x10 (it has 'main' for 0x20)"
    )
    several = [(15, 5, 5, *words_of(each * 1000)) for each in "abcd"]
    text = stage(device, compute_module(*several), name="n" * 1_000_000)
    assert text is not None
    assert text.endswith(f"aaa... for 0x20, '{'b' * 79}... for 0x20, and 2 more)")
    assert len(text) < 500


def test_stage_needs_its_feature() -> None:
    code = assemble((17, 2), (14, 0, 1), (15, 3, 2, *words_of("main")), *VOID_FUNCTION)
    assert stage(Bare(), code, bit=8) == "feature VkPhysicalDeviceFeatures::geometryShader"
    assert stage(Everything(), code, bit=8) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((128, 1, 1), None),
        ((129, 1, 1), "maxComputeWorkGroupSize.x 128 < 129"),
        ((1, 129, 1), "maxComputeWorkGroupSize.y 128 < 129"),
        ((1, 1, 65), "maxComputeWorkGroupSize.z 64 < 65"),
        ((16, 16, 1), "maxComputeWorkGroupInvocations 128 < 256"),
    ],
)
def test_workgroup_fits(size: tuple[int, int, int], text: str | None) -> None:
    missing = stage(Bare(properties=ROOMY), compute_module(local_size=size))
    assert missing == (f"property {LIMITS}::{text}" if text else None)


def test_workgroup_of_specialization_constants() -> None:
    code = compute_module(
        (331, 2, 38, 20, 21, 21),
        (71, 20, 1, 7),
        (21, 10, 32, 0),
        (50, 10, 20, 1),
        (43, 10, 21, 1),
        local_size=None,
    )
    entry = make("VkSpecializationMapEntry", constantID=7, offset=4, size=4)
    info = make("VkSpecializationInfo", pMapEntries=[entry], pData=struct.pack("<II", 0, 4096))
    device = Bare(properties=ROOMY)
    assert stage(device, code) is None
    assert stage(device, code, pSpecializationInfo=info) == (
        f"property {LIMITS}::maxComputeWorkGroupSize.x 128 < 4096"
    )
    cut = make("VkSpecializationInfo", pMapEntries=[entry], pData=b"\0\0\0\0")
    assert stage(device, code, pSpecializationInfo=cut) is None


@pytest.mark.parametrize(("model", "bit", "member"), [(5364, 0x40, "Task"), (5365, 0x80, "Mesh")])
def test_workgroup_of_mesh_stages(model: int, bit: int, member: str) -> None:
    code = assemble(
        (17, 5283), (14, 0, 1), (15, model, 2, *words_of("main")), (16, 2, 17, 64, 1, 1), *VOID_FUNCTION
    )
    properties = "VkPhysicalDeviceMeshShaderPropertiesEXT"
    name = f"max{member}WorkGroupInvocations"
    device = Everything(properties={(properties, name): 32})
    assert stage(device, code, bit=bit) == f"property {properties}::{name} 32 < 64"


@pytest.mark.parametrize(
    ("model", "bit", "mode", "member"),
    [
        (3, 8, (26, 200), "maxGeometryOutputVertices"),
        (3, 8, (0, 200), "maxGeometryShaderInvocations"),
        (1, 2, (26, 200), "maxTessellationPatchSize"),
    ],
)
def test_execution_modes_fit(model: int, bit: int, mode: tuple[int, int], member: str) -> None:
    code = assemble((14, 0, 1), (15, model, 2, *words_of("main")), (16, 2, *mode), *VOID_FUNCTION)
    assert stage(Everything(properties={(LIMITS, member): 200}), code, bit=bit) is None
    assert stage(Everything(properties={(LIMITS, member): 199}), code, bit=bit) == (
        f"property {LIMITS}::{member} 199 < 200"
    )
