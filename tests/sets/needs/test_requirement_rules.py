"""Unit tests of the table of rules: every name in it exists, and every rule and limit does what it says."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.registry import registry
from orchestrator.registry.tables import Member, same_members
from orchestrator.sets.image.documents import struct_type
from orchestrator.sets.needs.requirements import RequirementChecker
from orchestrator.sets.needs.rules import LIMIT_RULES, RULES, Limit, Rule, bit_number, enum_numbers
from tests.sets.needs.fake_capabilities import Everything, chain, make, version


def member_of(struct: str, name: str) -> Member | None:
    return next((each for each in registry().struct(struct).members if each.name == name), None)


def structure(name: str, **members: Any) -> Any:
    """The structure in the form in which it can be had: in a chain, or by itself."""
    return (chain if registry().struct(name).extends else make)(name, **members)


def label(rule: Rule | Limit) -> str:
    return f"{rule.struct}-{rule.member or 'present'}-{rule.source.rpartition('-')[2]}"


def values_of(rule: Rule) -> list[Any]:
    """Values of the rule's member that it is about."""
    if rule.test is not None:
        return [value for value in (0, 1, 2, 3) if rule.test(value)]
    return [enum_numbers()[each] for each in rule.values] or [1]


@pytest.mark.parametrize("rule", RULES, ids=label)
def test_rule_asks_for_its_feature(rule: Rule) -> None:
    member = member_of(rule.struct, rule.member)
    assert values_of(rule)
    for value in values_of(rule):
        members = {}
        if member is not None:
            single = struct_type(member.type)() if member.category == "struct" else value
            listed = member.array or (member.pointer and member.length)
            members = {member.name: [value] if listed else single}
        document = structure(rule.struct, **members)
        # Newer versions would be enough for the oldest dynamic states.
        old = version(1, 2) if "VK_VERSION_1_3" in rule.otherwise else version(1, 4)
        without = frozenset({name for _, name in rule.features} | set(rule.otherwise))
        missing = RequirementChecker(Everything(api_version=old, without=without)).structure(document)
        if rule.member == "stage" and missing is not None and missing.startswith("extension"):
            continue
        assert missing == " or ".join(f"feature {struct}::{name}" for struct, name in rule.features)
        has_it = Everything(api_version=old, without=frozenset(rule.otherwise), properties=GENEROUS)
        assert RequirementChecker(has_it).structure(document) is None
        for extension in rule.otherwise:
            others = Everything(without=without - {extension}, properties=GENEROUS)
            assert RequirementChecker(others).structure(document) is None


@pytest.mark.parametrize(
    ("divisor", "needs"),
    [(0, "vertexAttributeInstanceRateZeroDivisor"), (1, None), (2, "vertexAttributeInstanceRateDivisor")],
)
def test_divisors_other_than_one_need_their_feature(divisor: int, needs: str | None) -> None:
    document = structure("VkVertexInputBindingDivisorDescription", divisor=divisor)
    features = {"vertexAttributeInstanceRateDivisor", "vertexAttributeInstanceRateZeroDivisor"}
    lacking = RequirementChecker(Everything(without=frozenset(features), properties=GENEROUS))
    missing = lacking.structure(document)
    assert (missing is None) if needs is None else (missing is not None and missing.endswith(f"::{needs}"))


GENEROUS = {
    (struct.name, member.name): 0xFFFF_FFFF
    for struct in registry().structs.values()
    if struct.name == "VkPhysicalDeviceLimits" or "VkPhysicalDeviceProperties2" in struct.extends
    for member in struct.members
    if not member.array and not member.name.startswith("min")
}


@pytest.mark.parametrize("rule", LIMIT_RULES, ids=label)
def test_limit_bounds_its_member(rule: Limit) -> None:
    member = member_of(rule.struct, rule.member)
    assert member is not None

    def missing_at(value: int, most: int) -> str | None:
        properties = dict(GENEROUS) | dict.fromkeys(same_members(*rule.property), most)
        given: Any = value
        if member.pointer:
            given = [_element(member) for _ in range(value)]
        # Where the member counts arrays, they are there, and empty: only a null one is missing.
        counted = [each for each in registry().struct(rule.struct).members if each.length == member.name]
        document = structure(rule.struct, **{member.name: given}, **{each.name: [] for each in counted})
        return RequirementChecker(Everything(properties=properties)).structure(document)

    text = f"property {rule.property[0]}::{rule.property[1]}"
    assert missing_at(2, 3) is None
    if rule.below:
        assert missing_at(3, 3) == f"{text} 3 <= 3"
    else:
        assert missing_at(3, 3) is None
    over = missing_at(4, 3)
    assert over is not None
    assert over.startswith(f"{text} 3 <")


def _element(member: Member) -> Any:
    if member.category == "struct":
        return struct_type(member.type)()
    return 0


def test_properties_of_spirv_capabilities_have_numbers() -> None:
    for each in registry().spirv_capabilities.values():
        for way in each.enable:
            assert way.value in ("", "VK_TRUE") or bit_number(way.value)
