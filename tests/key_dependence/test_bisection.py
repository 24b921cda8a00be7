"""The bisection on a device whose truth is known: what is planted is named, and nothing else."""

from __future__ import annotations

import os
from operator import itemgetter
from pathlib import Path

import pytest

from orchestrator.children.parent import Child, Ended
from orchestrator.key_dependence.bisection import find_key_dependence
from orchestrator.key_dependence.messages import Answer
from orchestrator.key_dependence.processes import KeyDependenceError
from orchestrator.stores.profile_file import KeyProfile
from tests.key_dependence.planted import BESIDE, CRASH, HANG, LACKS, OPENER, PLANTED, STUB

ALL_KINDS = ("compute", "graphics", "pipeline library", "ray tracing")
BASE = "VkPhysicalDeviceFeatures"
SHADER_OBJECT = "VkPhysicalDeviceShaderObjectFeaturesEXT::shaderObject"
ROBUST = f"{BASE}::robustBufferAccess"
FILTER = "VkPhysicalDeviceVulkan12Features::samplerFilterMinmax"
NULL_DESCRIPTOR = "VkPhysicalDeviceRobustness2FeaturesKHR::nullDescriptor"
CACHE_CONTROL = "VkPhysicalDevicePipelineCreationCacheControlFeatures::pipelineCreationCacheControl"
VARIABLES = ("nongg", "splitfma", "nohiz")
FORBIDDEN = "compiling forbidden (FAIL_ON_PIPELINE_COMPILE_REQUIRED)"


def find(*only: str) -> KeyProfile:
    return find_key_dependence("simulated", only=only, opener=OPENER)[1]


def named(profile: KeyProfile) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(each.aspect, each.name): each.kinds for each in profile.depends}


def test_what_is_planted_is_named_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not this machine's profiles, whose names of executables would each need an interpreter.
    monkeypatch.setenv("DRIRC_CONFIGDIR", str(tmp_path))
    too_long = "x" * 300
    (tmp_path / "00.conf").write_text(
        f"<driconf><device driver='radv'><application executable='{too_long}'/></device></driconf>", "utf-8"
    )
    monkeypatch.setenv(PLANTED, f"{SHADER_OBJECT},{ROBUST},{FILTER},api_version,engine_name")
    monkeypatch.setenv(BESIDE, "robustBufferAccess+nullDescriptor")
    seen: list[tuple[str, int, int]] = []
    # Of the variables, each of which needs an interpreter, three.
    features = (BASE, "Vulkan12", "shaderObject", "robust")
    only = (*features, "VK_KHR_s", "apiVersion", "application", "engine", "vkcube", too_long, *VARIABLES)
    identity, profile = find_key_dependence(
        "simulated", only=only, opener=OPENER, on_progress=lambda *step: seen.append(step)
    )
    depends = named(profile)
    alone = {each.name for each in profile.depends if each.aspect == "feature" and not each.given}
    assert alone == {SHADER_OBJECT, ROBUST, FILTER}  # the collection's own member has no other name
    (beside,) = [each for each in profile.depends if each.given]
    assert (beside.name, beside.given) == (NULL_DESCRIPTOR, ((BASE, "robustBufferAccess"),))
    assert "beside" in beside.text
    assert NULL_DESCRIPTOR not in {each.name for each in profile.independent if each.given}
    assert {aspect for aspect, _ in depends} == {"feature", "apiVersion", "engine name", "environment"}
    # nongg makes keys depend on one thing more, splitfma gives the device another pipelineCacheUUID.
    variables = {each.name: each for each in profile.depends if each.aspect == "environment"}
    assert {name: each.identity for name, each in variables.items()} == {
        "RADV_DEBUG=nongg": False,
        "RADV_DEBUG=splitfma": True,
    }
    assert variables["RADV_DEBUG=nongg"].environment == {"RADV_DEBUG": "nongg"}
    assert depends["feature", SHADER_OBJECT] == depends["feature", ROBUST] == ALL_KINDS
    assert depends["apiVersion", "1.2"] == ALL_KINDS
    versions = {name for aspect, name in depends if aspect == "apiVersion"}
    assert versions == {"1.0", "1.1", "1.2", "1.3", "1.4.1"}
    assert depends["engine name", "vkd3d"] == ALL_KINDS
    tried = {aspect for aspect, _ in depends} | {each.aspect for each in profile.independent}
    names = {"application name", "application version", "engine version", "executable name"}
    assert tried >= {"extension"} | names
    harmless = {each.name for each in profile.independent if not each.given}
    some = {CACHE_CONTROL, f"{BASE}::geometryShader", "VK_KHR_swapchain", "DOOM", "RADV_DEBUG=nohiz"}
    assert some <= harmless
    (untried,) = profile.not_tried
    assert (untried.name, untried.reason) == (
        too_long,
        "no executable can have this name: File name too long",
    )
    assert not profile.whole
    assert profile.method == f"{FORBIDDEN} and creation feedback"
    assert [(each.kind, each.problem) for each in profile.kinds] == [(kind, "") for kind in ALL_KINDS]
    assert not profile.is_doubtful
    assert profile.identity.pipeline_cache_uuid == identity.pipeline_cache_uuid.hex()
    _, done, total = max(seen, key=itemgetter(1))
    assert done == total > 100


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, "engine_version")
    monkeypatch.setenv("RADV_DEBUG", "nongg")
    profile = find(*VARIABLES)
    # With nongg in the baseline, too, it makes no difference any more, and is not tried again.
    assert [each.name for each in profile.depends] == ["RADV_DEBUG=splitfma"]
    assert profile.depends[0].environment == {"RADV_DEBUG": "nongg,splitfma"}
    assert profile.environment == {"RADV_DEBUG": "nongg"}


def test_versions_are_tried_beside_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA is said to treat robustness otherwise from Vulkan 1.4 on."""
    monkeypatch.setenv(PLANTED, ROBUST)
    monkeypatch.setenv(BESIDE, "robustBufferAccess+api_version")
    profile = find("Features::robustBufferAccess", "apiVersion")
    assert {(each.name, each.given) for each in profile.depends if each.aspect == "apiVersion"} == {
        ("1.3", ((BASE, "robustBufferAccess"),))
    }
    assert {"1.3"} <= {each.name for each in profile.independent}


def test_our_own_features_are_judged_by_feedback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, f"{CACHE_CONTROL},{SHADER_OBJECT}")
    profile = find("shaderObject", "pipelineBinaries")
    assert set(named(profile)) == {("feature", CACHE_CONTROL), ("feature", SHADER_OBJECT)}
    assert profile.method == "creation feedback"  # compiling cannot be forbidden without what matters
    assert "VkPhysicalDevicePipelineBinaryFeaturesKHR::pipelineBinaries" in {
        each.name for each in profile.independent
    }


def test_without_feedback_compiling_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, SHADER_OBJECT)
    monkeypatch.setenv(LACKS, "creation_feedback")
    profile = find("shaderObject")
    assert set(named(profile)) == {("feature", SHADER_OBJECT)}
    assert profile.method == FORBIDDEN
    (unknown,) = [each for each in profile.not_tried if each.name == CACHE_CONTROL]
    assert "feedback" in unknown.reason


@pytest.mark.parametrize(
    ("variable", "value"), [(STUB, "1"), (LACKS, "creation_feedback,compile_required")], ids=["stub", "blind"]
)
def test_where_the_baseline_cannot_tell_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(PLANTED, SHADER_OBJECT)
    monkeypatch.setenv(variable, value)
    profile = find("shaderObject")
    assert profile.depends == profile.independent == ()
    assert not profile.says_anything
    assert profile.is_doubtful
    assert all("does not hit" in each.problem for each in profile.kinds)


def test_a_crash_costs_its_variation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, ROBUST)
    monkeypatch.setenv(CRASH, "nullDescriptor,shaderObject+rayTracingPipeline")
    profile = find("shaderObject", "robust")
    assert set(named(profile)) == {("feature", ROBUST)}
    reasons = {each.name: each.reason for each in profile.not_tried}
    assert reasons[NULL_DESCRIPTOR] == "the process ended with signal 6: its last words"
    # The other members of its structure, which died as a whole, were tried alone.
    assert "VkPhysicalDeviceRobustness2FeaturesKHR::robustBufferAccess2" in {
        each.name for each in profile.independent
    }
    # The first groups of pipelines were looked up before the process died with the last one.
    (tried,) = [each for each in profile.independent if each.name == SHADER_OBJECT and not each.given]
    assert (tried.kinds, tried.untried) == (ALL_KINDS[:3], ALL_KINDS[3:])
    assert reasons[SHADER_OBJECT].startswith("with the baseline ray tracing: the process ended with signal 6")


def test_a_baseline_that_crashes_costs_its_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, SHADER_OBJECT)
    monkeypatch.setenv(CRASH, "rayTracingPipeline")
    profile = find("shaderObject")
    assert named(profile) == {("feature", SHADER_OBJECT): ALL_KINDS[:3]}
    problems = {each.kind: each.problem for each in profile.kinds}
    assert "signal 6" in problems.pop("ray tracing")
    assert set(problems.values()) == {""}
    assert any("baseline ray tracing: the process ended with signal 6" in note for note in profile.notes)
    assert profile.is_doubtful


def test_a_hang_costs_its_variation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = tmp_path / "hangs"
    monkeypatch.setenv(HANG, f"shaderObject={sign}")

    receive = Child[Answer].receive

    def wait_for_the_hang(child: Child[Answer], timeout_s: float | None) -> Answer | Ended:
        """The time has passed as soon as the process hangs, and not before."""
        assert timeout_s is not None
        while True:
            hangs = sign.exists()  # then all that it sent before has come
            try:
                return receive(child, 0.05)
            except TimeoutError:
                if hangs:
                    raise

    monkeypatch.setattr(Child, "receive", wait_for_the_hang)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # one process, whose silence is the hang's
    profile = find("shaderObject", "logicOp")
    (hung,) = profile.not_tried
    assert hung.name == SHADER_OBJECT
    assert hung.reason == "the process sent nothing for 120 s"
    assert f"{BASE}::logicOp" in {each.name for each in profile.independent}


def test_a_time_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANTED, SHADER_OBJECT)
    profile = find_key_dependence("simulated", time_limit_s=0.0, opener=OPENER)[1]
    assert profile.depends == profile.independent == ()
    reasons = [(each.name, each.reason) for each in profile.not_tried]
    for name in (SHADER_OBJECT, CACHE_CONTROL):  # each once, and feedback could have shown the second
        assert [reason for of, reason in reasons if of == name] == ["the time limit"]
    assert not profile.whole
    assert all(each.usable for each in profile.kinds)


def test_a_word_that_no_name_has_is_an_error_with_a_next_step() -> None:
    with pytest.raises(KeyDependenceError, match="nothing that is tried has raodv in its name") as caught:
        find("raodv")
    assert "--only" in caught.value.next_step


def test_a_device_that_kills_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyDependenceError, match="exit code 1"):
        find_key_dependence("simulated", opener="tests.key_dependence.planted:nothing_of_this_name")
