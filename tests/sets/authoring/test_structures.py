"""Encoding of structures: what is written decodes to the same values, mistakes are named."""

from typing import Any

import msgspec
import pytest

from orchestrator.errors import ManifestError
from orchestrator.sets.authoring.structures import encode_chain, encode_structure
from orchestrator.sets.image.documents import decode_document
from orchestrator.sets.records import RecordTag


def test_the_specifications_spelling_is_taken_too() -> None:
    snake = encode_structure("VkSamplerCreateInfo", {"mag_filter": "linear", "max_lod": 4}, "here")
    camel = encode_structure("VkSamplerCreateInfo", {"magFilter": "VK_FILTER_LINEAR", "maxLod": 4.0}, "here")
    assert snake == camel
    assert snake["maxLod"] == 4.0
    assert isinstance(snake["maxLod"], float)


def test_rectangles_are_flat() -> None:
    members = {"scissors": [{"x": 1, "y": -2, "width": 3, "height": 4}], "viewport_count": 1}
    encoded = encode_structure("VkPipelineViewportStateCreateInfo", members, "here")
    assert encoded["scissors"] == [{"x": 1, "y": -2, "width": 3, "height": 4}]
    assert (encoded["scissorCount"], encoded["viewportCount"]) == (1, 1)


def test_a_count_that_contradicts_its_list_is_refused() -> None:
    members = {"scissors": [{"width": 1}], "scissor_count": 2}
    with pytest.raises(ManifestError, match=r"scissor_count: 2 is not the number of elements listed, 1"):
        encode_structure("VkPipelineViewportStateCreateInfo", members, "here")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"mag_filtre": 1},
            r"here: unknown member of VkSamplerCreateInfo 'mag_filtre'; did you mean mag_filter",
        ),
        ({"mag_filter": "linar"}, r"here\.mag_filter: unknown VkFilter 'linar'; did you mean linear"),
        ({"min_lod": "low"}, r"here\.min_lod: a number is expected"),
        ({"max_lod": float("inf")}, r"here\.max_lod: inf is outside the range"),
        ({"max_lod": float("nan")}, r"here\.max_lod: nan is outside the range"),
        ({"compare_enable": 2}, r"here\.compare_enable: true or false is expected"),
        ({"flags": -1}, r"here\.flags: -1 is outside"),
        ({"p_next": [{"reduction_mode": "min"}]}, r"here\.p_next\[0\]: name the structure"),
        (
            {"p_next": [{"structure": "VkPipelineRobustnessCreateInfo"}]},
            r"unknown structure in the pNext chain",
        ),
        ({"p_next": {"structure": "x"}}, r"here\.p_next: a list of structures"),
    ],
)
def test_mistakes_are_named(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        encode_structure("VkSamplerCreateInfo", members, "here")


def test_a_structure_stands_in_a_chain_once() -> None:
    entry = {"structure": "VkSamplerReductionModeCreateInfo", "reduction_mode": "min"}
    with pytest.raises(ManifestError, match="twice"):
        encode_chain("VkSamplerCreateInfo", [entry, entry], "here")


def test_what_is_encoded_decodes() -> None:
    """Arrays of words, components and handles, through the reader of archives."""
    sampler = encode_structure(
        "VkSamplerCreateInfo",
        {
            "p_next": [
                {
                    "structure": "VkSamplerCustomBorderColorCreateInfoEXT",
                    "custom_border_color": [1, 2, 3, 4],
                    "format": "r8g8b8a8_unorm",
                },
                {
                    "structure": "VkSamplerYcbcrConversionCreateInfo",
                    "format": "g8_b8r8_2plane_420_unorm",
                    "components": ["identity", "r", "g", 0],
                },
            ]
        },
        "here",
    )
    payload = msgspec.json.encode({"version": 6, "samplers": {"00000000000000aa": sampler}})
    decoded = decode_document(RecordTag.SAMPLER, 0xAA, payload)
    border, conversion = decoded.pNext
    assert list(border.customBorderColor) == [1, 2, 3, 4]
    assert border.format == 37
    assert list(conversion.components) == [0, 3, 4, 0]
