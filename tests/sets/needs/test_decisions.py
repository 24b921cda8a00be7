"""What a device decided: another one that agrees gets the same image, and only decisions count."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.answers import Asked, AskedCapabilities, Decision
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.built import Needs
from orchestrator.sets.needs.rules import LIMITS, DeviceAnswers
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import Corpus, each_corpus
from tests.sets.image.same_image import assert_same_image

NEWEST = AnyDevice()
DEVICES = 30
SUBGROUPS = "VkPhysicalDeviceSubgroupSizeControlProperties"
R8 = 9


def received(decisions: list[Decision]) -> list[Decision]:
    """Decisions as another process gets them."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(decisions), type=list[Decision])


def made(device: AnyDevice, *questions: tuple[str, dict[str, Any]]) -> list[Decision]:
    answers = DeviceAnswers(device)
    for what, arguments in questions:
        getattr(answers, what)(**arguments)
    return received(answers.decisions)


def limited(member: str, value: Any, struct: str = LIMITS) -> AnyDevice:
    return AnyDevice(properties={(struct, member): value})


VIEWPORTS = {"struct": LIMITS, "member": "maxViewports"}
GROUPS = {"struct": LIMITS, "member": "maxComputeWorkGroupSize"}
LEAST = {"struct": SUBGROUPS, "member": "minSubgroupSize"}


@pytest.mark.parametrize(
    ("question", "device", "agrees"),
    [
        (("exceeded", {**VIEWPORTS, "value": 8}), limited("maxViewports", 8), True),
        (("exceeded", {**VIEWPORTS, "value": 8}), limited("maxViewports", 7), False),
        (("exceeded", {**VIEWPORTS, "value": 8, "below": True}), limited("maxViewports", 8), False),
        (("exceeded", {**VIEWPORTS, "value": 8, "below": True}), limited("maxViewports", 9), True),
        (("exceeded", {**VIEWPORTS, "value": 8}), limited("maxViewports", None), True),
        (("exceeded_element", {**GROUPS, "values": (8, 4, 2)}), limited(GROUPS["member"], (8, 4, 2)), True),
        (("exceeded_element", {**GROUPS, "values": (8, 4, 2)}), limited(GROUPS["member"], (9, 9, 1)), False),
        (("undercut", {**LEAST, "value": 32}), limited("minSubgroupSize", 32, SUBGROUPS), True),
        (("undercut", {**LEAST, "value": 32}), limited("minSubgroupSize", 64, SUBGROUPS), False),
        (("has_any", {**VIEWPORTS, "bits": 0b110}), limited("maxViewports", 0b010), True),
        (("has_any", {**VIEWPORTS, "bits": 0b110}), limited("maxViewports", 0b001), False),
        (("property", VIEWPORTS), limited("maxViewports", 8), False),
        (("format_has", {"format_number": R8, "image": 6}), AnyDevice(formats={R8: (4, 0, 0)}), True),
        (("format_has", {"format_number": R8, "image": 6}), AnyDevice(formats={R8: (1, 1, 6)}), False),
        (("format_has", {"format_number": R8, "buffer": 6}), AnyDevice(formats={R8: (0, 0, 2)}), True),
        (("version", {"name": "VK_VERSION_1_2"}), AnyDevice(0x402000), True),
        (("version", {"name": "VK_VERSION_1_2"}), AnyDevice(0x401000), False),
        (
            ("missing", {"expression": "VK_KHR_multiview,VK_KHR_swapchain"}),
            AnyDevice(0x400000, missing_extensions=frozenset({"VK_KHR_multiview"})),
            True,
        ),
        (
            ("missing", {"expression": "VK_KHR_swapchain"}),
            AnyDevice(missing_extensions=frozenset({"VK_KHR_swapchain"})),
            False,
        ),
    ],
)
def test_a_device_that_answers_otherwise_may_decide_alike(
    question: tuple[str, dict[str, Any]], device: AnyDevice, agrees: bool
) -> None:
    assert DeviceAnswers(device).agrees(made(NEWEST, question)) is agrees


def test_the_greatest_value_that_a_limit_allowed_stands_for_all() -> None:
    decisions = made(NEWEST, *(("exceeded", {**VIEWPORTS, "value": value}) for value in (3, 16, 1)))
    assert [each.arguments["value"] for each in decisions] == [16]
    assert not DeviceAnswers(limited("maxViewports", 8)).agrees(decisions)


@pytest.mark.parametrize("most", [1024, None])
def test_a_value_beyond_all_integers_of_vulkan_can_be_sent(most: int | None) -> None:
    device = limited("maxComputeWorkGroupInvocations", most)
    question = {"struct": LIMITS, "member": "maxComputeWorkGroupInvocations", "value": 0xFFFF_FFFF**3}
    (decision,) = made(device, ("exceeded", question))
    assert decision.outcome == most
    assert DeviceAnswers(device).agrees([decision])


def test_all_is_asked_after_a_disagreement() -> None:
    """So that who decodes again is told all answers at once."""
    asked = AskedCapabilities(AnyDevice(missing_extensions=frozenset({"VK_KHR_swapchain"})))
    decisions = made(
        NEWEST, ("extension", {"name": "VK_KHR_swapchain"}), ("version", {"name": "VK_VERSION_1_1"})
    )
    assert not DeviceAnswers(asked).agrees(decisions)
    assert asked.answers.keys() == {("extension", "VK_KHR_swapchain", ""), ("version", "", "")}


def varied(asked: dict[Asked, Any], seed: int) -> AnyDevice:
    """A device that answers some of the questions otherwise."""
    chance = random.Random(seed)
    few = (0.0, 0.01, 0.03)[seed % 3]
    extensions, features = set(), set()
    properties: dict[tuple[str, str], Any] = {}
    formats: dict[int, tuple[int, int, int]] = {}
    for what, name, member in asked:
        if what == "extension" and chance.random() < few:
            extensions.add(name)
        elif what == "feature" and chance.random() < few:
            features.add((name, member))
        elif what == "property" and member.startswith("max"):
            value = chance.choice([None, 4, 16, 1 << 10, 1 << 20] if few else [None, 1 << 24])
            is_array = isinstance(asked[what, name, member], tuple)
            properties[name, member] = (value,) * 3 if is_array and value else value
        elif what == "format" and chance.random() < few:
            formats[int(name)] = (0, chance.getrandbits(17), chance.getrandbits(7))
    return AnyDevice(NEWEST.api_version, frozenset(extensions), frozenset(features), properties, formats)


def agreeing(source: PipelineSet, seeds: range) -> list[bool]:
    """Of devices that answer otherwise, which agree with the newest one; proves that those get its image."""
    asked = AskedCapabilities(NEWEST)
    built = build_image(source, source.pipelines, asked)
    decisions = received(list(built.decisions))
    found = []
    for seed in seeds:
        device = varied(asked.answers, seed)
        answers = DeviceAnswers(device)
        found.append(answers.agrees(decisions))
        alone = build_image(source, source.pipelines, device)
        if found[-1]:
            assert_same_image(alone.image, built.image)
            assert (alone.problems, alone.dependencies) == (built.problems, built.dependencies), (
                f"seed {seed}"
            )
            needs = Needs(frozenset(answers.features_used), frozenset(answers.extensions_used))
            assert alone.needs == needs, f"seed {seed}"
        else:
            assert not answers.agrees(decisions)
    return found


def test_devices_that_agree_get_the_same_image() -> None:
    with PipelineSet.open(sample_path()) as sample:
        found = agreeing(sample, range(DEVICES))
    assert True in found
    assert False in found


@each_corpus
def test_devices_that_agree_get_the_same_image_of_captured_sets(corpus: Corpus) -> None:
    with PipelineSet.open(corpus.path) as opened:
        assert True in agreeing(opened, range(3))
