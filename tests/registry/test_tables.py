"""What the committed registry tables say, and that they hang together."""

from __future__ import annotations

import pytest

from orchestrator.registry.expressions import names, normal_form
from orchestrator.registry.tables import registry


def test_lengths_name_members_or_constants() -> None:
    for each in registry().structs.values():
        own = {member.name for member in each.members}
        for member in each.members:
            if member.length and member.length != "null-terminated":
                first = member.length.strip("(").split()[0].partition(",")[0].partition("-")[0]
                assert first in own, (each.name, member.name, member.length)
            if member.selector:
                assert member.selector in own


def test_requirements_are_in_normal_form() -> None:
    tables = registry()
    expressions = {each.requires for each in tables.structs.values()}
    expressions |= {value.requires for enum in tables.enums.values() for value in enum.values.values()}
    expressions |= {each.requires for each in tables.formats.values()}
    expressions |= {each.depends for each in tables.extensions.values()}
    expressions |= {
        enable.requires
        for table in (tables.spirv_capabilities, tables.dynamic_states, tables.spirv_extensions)
        for each in table.values()
        for enable in each.enable
    }
    for expression in expressions:
        assert normal_form(expression) == expression
        for name in names(expression):
            assert name in tables.extensions or name.startswith("VK_VERSION_1_") or "::" in name, expression
            assert name != "VK_VERSION_1_0"


@pytest.mark.parametrize(
    ("name", "requires"),
    [
        ("VkGraphicsPipelineCreateInfo", ""),
        ("VkPipelineRenderingCreateInfo", "VK_VERSION_1_3,VK_KHR_dynamic_rendering"),
        (
            "VkPipelineRasterizationLineStateCreateInfo",
            "VK_VERSION_1_4,VK_EXT_line_rasterization,VK_KHR_line_rasterization",
        ),
        ("VkSamplerCustomBorderColorCreateInfoEXT", "VK_EXT_custom_border_color"),
    ],
)
def test_what_provides_a_structure(name: str, requires: str) -> None:
    assert registry().structs[name].requires == requires


def test_what_provides_values() -> None:
    enums = registry().enums
    assert enums["VkShaderStageFlagBits"].values[1].requires == ""
    assert (
        enums["VkShaderStageFlagBits"].values[0x100].requires
        == "VK_KHR_ray_tracing_pipeline,VK_NV_ray_tracing"
    )
    assert enums["VkShaderStageFlags"] == enums["VkShaderStageFlagBits"]
    assert enums["VkPipelineCreateFlagBits2"].bits == 64
    # Depends on one thing within another.
    assert enums["VkDynamicState"].values[1000455003].name == "VK_DYNAMIC_STATE_DEPTH_CLAMP_ENABLE_EXT"
    assert registry().result_name(-1000483000) == "VK_ERROR_NOT_ENOUGH_SPACE_KHR"
    assert registry().result_name(12345) == "VkResult 12345"


def test_capabilities_by_number() -> None:
    capabilities = registry().spirv_capabilities
    assert capabilities[1].name == "Shader"
    assert capabilities[1].enable == ()
    (geometry,) = capabilities[2].enable
    assert (geometry.struct, geometry.feature) == ("VkPhysicalDeviceFeatures", "geometryShader")
    (subgroup,) = capabilities[61].enable
    assert subgroup.property == "VkPhysicalDeviceVulkan11Properties"
    assert subgroup.value == "VK_SUBGROUP_FEATURE_BASIC_BIT"
    assert {each.struct for each in capabilities[4472].enable} == {"VkPhysicalDeviceRayQueryFeaturesKHR"}


def test_features_and_properties_that_enable_exist() -> None:
    tables = registry()
    tables_of_enables = (tables.spirv_capabilities, tables.spirv_extensions, tables.dynamic_states)
    missing = set()
    for table in tables_of_enables:
        for each in table.values():
            for enable in each.enable:
                name = enable.struct or enable.property
                if name and name not in tables.structs:
                    missing.add(name)
                elif name:
                    members = {member.name for member in tables.structs[name].members}
                    assert (enable.feature or enable.member) in members
                assert not enable.extension or enable.extension in tables.extensions
    # Of provisional extensions, which the tables leave out.
    assert missing <= {
        "VkPhysicalDeviceShaderEnqueueFeaturesAMDX",
        "VkPhysicalDeviceDisplacementMicromapFeaturesNV",
    }


def test_formats_and_constants() -> None:
    formats = registry().formats
    assert formats[129].name == "VK_FORMAT_D24_UNORM_S8_UINT"
    assert (formats[129].components, formats[129].numeric) == ("DS", "UNORM")
    assert formats[37].components == "RGBA"
    assert formats[0].components == ""
    assert registry().constants["VK_UUID_SIZE"] == 16
    assert registry().constants["VK_ATTACHMENT_UNUSED"] == 0xFFFFFFFF
