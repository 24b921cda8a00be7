"""The bisection on a real driver: it finds what programs that are not ours found, and nothing against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.key_dependence.bisection import find_key_dependence
from orchestrator.stores.profile_file import KeyProfile
from tests.drivers import driver_manifest, has_null_hardware

NAVI21 = "radv:navi21"
PREFIX = "VkPhysicalDevice"

DRIRC = """<driconf>
  <device driver="radv">
    <application name="by executable" executable="planted-executable">
      <option name="radv_split_fma" value="true" />
    </application>
    <application name="by name" application_name_match="^Planted.Name$|Other">
      <option name="radv_split_fma" value="true" />
    </application>
    <engine engine_name_match="PlantedEngine.*">
      <option name="radv_disable_trunc_coord" value="true" />
    </engine>
    <application name="no name" application_name_match="[0-9]{4}">
      <option name="radv_split_fma" value="true" />
    </application>
  </device>
  <device driver="other"><application name="another" executable="another-driver" /></device>
</driconf>
"""


def find(*only: str) -> KeyProfile:
    driver_manifest(NAVI21)  # a machine without it is told apart from a driver that cannot tell
    return find_key_dependence(NAVI21, only=only)[1]


def features(profile: KeyProfile) -> dict[str, tuple[str, ...]]:
    """The features that keys depend on, by member, with the kinds of pipelines."""
    return {
        each.name.removeprefix(PREFIX): each.kinds
        for each in profile.depends
        if each.aspect in ("feature", "extension")
    }


@pytest.mark.driver
def test_it_finds_what_others_found_and_nothing_else() -> None:
    profile = find(
        "shaderObject", "robust", "primitivesGeneratedQuery", "image2DViewOf3D", "maintenance", "meshShader",
        "descriptorBuffer", "shadingRate", "apiVersion", "application version",
        "pipelineCreationCacheControl", "pipelineBinaries", "pipelineExecutableInfo",
        "shaderModuleIdentifier",
    )  # fmt: skip
    everything = ("compute", "graphics", "pipeline library", "ray tracing")
    query = "PrimitivesGeneratedQueryFeaturesEXT::primitivesGeneratedQuery"
    assert features(profile) == {
        "ShaderObjectFeaturesEXT::shaderObject": everything,
        "Features::robustBufferAccess": ("graphics", "pipeline library"),
        query: everything,
        f"{query}WithRasterizerDiscard": everything,
        f"{query}WithNonZeroStreams": everything,
        "Robustness2FeaturesKHR::robustBufferAccess2": everything,
    }
    (second,) = [each for each in profile.depends if each.given]
    assert second.given == (("VkPhysicalDeviceFeatures", "robustBufferAccess"),)
    assert {each.aspect for each in profile.depends} == {"feature"}
    assert {"1.2", "1.3.1"} & {each.name for each in profile.independent}
    # Subgroup operations have properties since 1.1 only.
    (oldest,) = [each for each in profile.independent if each.name == "1.0"]
    assert oldest.untried == ("ray tracing",)
    (told,) = [each for each in profile.not_tried if each.name == "1.0"]
    assert "subgroupSupportedOperations" in told.reason
    assert not profile.is_doubtful
    assert all(each.usable for each in profile.kinds)
    # Our own features leave this driver's keys alone, which is what capabilities.py takes for proven.
    assert {
        member
        for each in profile.independent
        if not each.given or each.aspect == "feature"
        for _, member in each.features
    } >= {
        "pipelineCreationCacheControl",
        "pipelineBinaries",
        "pipelineExecutableInfo",
        "shaderModuleIdentifier",
    }


@pytest.mark.driver
def test_names_that_the_driver_has_profiles_for_variables_and_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "00-planted.conf").write_text(DRIRC, "utf-8")
    monkeypatch.setenv("DRIRC_CONFIGDIR", str(tmp_path))
    variables = ("ACO_DEBUG=noopt", "RADV_PERFTEST=localbos", "split_fma")
    profile = find("planted", "another", "[0-9]{4}", *variables, "VK_LAYER_MESA")
    found = {(each.aspect, each.name): each.identity for each in profile.depends}
    # Options of the compiler change pipelineCacheUUID in the releases that have null hardware.
    assert found == {
        ("executable name", "planted-executable"): has_null_hardware(),
        ("application name", "Planted.Name"): has_null_hardware(),
        ("engine name", "PlantedEngine"): False,
        ("environment", "ACO_DEBUG=noopt"): False,
        ("environment", "radv_split_fma=true"): has_null_hardware(),
    }
    harmless = {each.name for each in profile.independent}
    assert "RADV_PERFTEST=localbos" in harmless
    assert "VK_LAYER_MESA_overlay" in harmless
    assert "another-driver" not in harmless
    untried = {each.name: each.reason for each in profile.not_tried}
    assert "[0-9]{4}" in untried
    # Of Mesa's layers, one is active without being asked for.
    assert "the baseline has it" in untried["VK_LAYER_MESA_device_select"]
    assert "VK_LAYER_MESA_device_select" not in harmless
