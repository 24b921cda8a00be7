"""Names of members, enum values and bits, against the specification's numbers."""

import pytest

from orchestrator.errors import ManifestError
from orchestrator.registry import registry
from orchestrator.sets.authoring.names import enum_number, flags_number


@pytest.mark.parametrize(
    ("type_name", "written", "number"),
    [
        ("VkFormat", "VK_FORMAT_R8G8B8A8_UNORM", 37),
        ("VkFormat", "r8g8b8a8_unorm", 37),
        ("VkFormat", "R8G8B8A8_UNORM", 37),
        ("VkFormat", 37, 37),
        ("VkCompareOp", "less_or_equal", 3),
        ("VkSampleCountFlagBits", "4", 4),
        ("VkSampleCountFlagBits", 4, 4),
        ("VkShaderStageFlagBits", "raygen", 0x100),
        ("VkShaderStageFlagBits", "raygen_khr", 0x100),
        ("VkRayTracingShaderGroupTypeKHR", "procedural_hit_group", 2),
        ("VkImageLayout", "color_attachment_optimal", 2),
        ("VkPipelineRobustnessBufferBehavior", "robust_buffer_access", 2),
        ("VkTessellationDomainOrigin", "lower_left", 1),
        ("VkDynamicState", "viewport_with_count", 1000267003),
    ],
)
def test_enum_by_full_or_short_name(type_name: str, written: str | int, number: int) -> None:
    assert enum_number(type_name, written, "here") == number


@pytest.mark.parametrize(
    ("type_name", "written", "number"),
    [
        ("VkShaderStageFlags", ["vertex", "fragment"], 17),
        ("VkShaderStageFlags", "vertex | fragment", 17),
        ("VkShaderStageFlags", "all", 0x7FFFFFFF),
        ("VkCullModeFlags", "front_and_back", 3),
        ("VkCullModeFlags", "none", 0),
        ("VkCullModeFlags", "", 0),
        ("VkCullModeFlags", [], 0),
        ("VkColorComponentFlags", "rgba", 15),
        ("VkColorComponentFlags", "a", 8),
        ("VkColorComponentFlags", "rb", 5),
        ("VkGraphicsPipelineLibraryFlagsEXT", "fragment_shader", 4),
        ("VkPipelineCreateFlags", "library", 0x800),
    ],
)
def test_flags_by_names(type_name: str, written: object, number: int) -> None:
    assert flags_number(type_name, written, "here") == number


def test_unknown_value_names_the_place_and_its_neighbours() -> None:
    with pytest.raises(
        ManifestError, match=r"graphics\.a: unknown VkCompareOp 'less_equal'; did you mean less_or_equal"
    ):
        enum_number("VkCompareOp", "less_equal", "graphics.a")


@pytest.mark.parametrize(
    "type_name", ["VkFormat", "VkDynamicState", "VkShaderStageFlagBits", "VkBlendFactor", "VkAccessFlags2"]
)
def test_every_full_name_of_the_registry_resolves(type_name: str) -> None:
    enums = registry().enums
    found = enums.get(type_name) or enums[type_name.replace("Flags", "FlagBits")]
    for number, value in found.values.items():
        assert enum_number(type_name, value.name, "here") == number
