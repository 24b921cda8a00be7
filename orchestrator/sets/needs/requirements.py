"""Finds what a captured pipeline needs and a device lacks, before the driver is asked to create it.

Needs come from the registry (what provides each structure, enum value, flag bit, SPIR-V capability and
extension), from tables of rules with their valid usage statements (`rules`, `shaders`), and from rules over
several members (`context`). The checks of a structure type are planned once for each device, and the answer
for every value is kept, so that a pipeline costs a few dictionary look-ups per structure.

Guarantees: a missing need is something that the device does not have, by its name in the registry, or a value
that the registry does not know and that no driver may be given. A reference to something that the document
does not have is returned as `Malformed`. State that compilers do not read is not checked: stage masks in
layouts, subpass dependencies, state that is ignored because of a dynamic state or another member.
Thread-safe: any thread would compute the same answers. Only enabled features count; prepare.py asks what else
the device could enable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Final

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.registry import registry
from orchestrator.registry.tables import EnumType, Member, Struct
from orchestrator.sets.archive.state_hashes import ALL_PARTS, STATES, states_read
from orchestrator.sets.image.built import Needs
from orchestrator.sets.image.create_infos import taking
from orchestrator.sets.image.documents import BARE_ARRAYS, WORD_ARRAYS
from orchestrator.sets.needs.context import (
    CONTEXTS,
    DynamicStates,
    chained,
    discards,
    dynamic_state,
    first,
    limit,
    multiview,
)
from orchestrator.sets.needs.context import Malformed as Malformed
from orchestrator.sets.needs.descriptors import DescriptorCounts, exceeded_limit
from orchestrator.sets.needs.rules import LIMIT_RULES, RULES, DeviceAnswers, Rule, enum_numbers
from orchestrator.sets.needs.shaders import ShaderRequirements
from orchestrator.sets.spirv.walk import SpirvModule

#: Something missing: the dynamic state that makes it irrelevant (or -1), and the text.
Missing = tuple[int, str]
_MOST_ANSWERS = 1 << 16

# Members that creation does not use: a layout may name shader stages that the device lacks, and subpass
# dependencies and image layouts matter only to later commands (VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, in most
# captures, needs an extension that a device without a window lacks).
_NOT_CHECKED = frozenset(
    {
        ("VkDescriptorSetLayoutBinding", "stageFlags"),
        ("VkPushConstantRange", "stageFlags"),
        # Ignored except for input attachments, so it may hold anything.
        ("VkAttachmentReference2", "aspectMask"),
        ("VkRenderPassCreateInfo", "pDependencies"),
        ("VkRenderPassCreateInfo2", "pDependencies"),
    }
)
_TYPES_NOT_CHECKED = frozenset({"VkImageLayout"})


# Members that a dynamic state takes the place of, so that they may hold any number.
_REPLACED = {
    ("VkPipelineInputAssemblyStateCreateInfo", "topology"): "PRIMITIVE_TOPOLOGY",
    ("VkPipelineRasterizationStateCreateInfo", "polygonMode"): "POLYGON_MODE_EXT",
    ("VkPipelineRasterizationStateCreateInfo", "cullMode"): "CULL_MODE",
    ("VkPipelineRasterizationStateCreateInfo", "frontFace"): "FRONT_FACE",
    ("VkPipelineMultisampleStateCreateInfo", "rasterizationSamples"): "RASTERIZATION_SAMPLES_EXT",
    ("VkPipelineDepthStencilStateCreateInfo", "depthCompareOp"): "DEPTH_COMPARE_OP",
    ("VkPipelineColorBlendStateCreateInfo", "logicOp"): "LOGIC_OP_EXT",
}
# Members that are ignored where another one is off; applications may leave them as the memory was.
_IGNORED_WITHOUT = {
    "VkPipelineColorBlendAttachmentState": (
        "blendEnable",
        "srcColorBlendFactor dstColorBlendFactor colorBlendOp "
        "srcAlphaBlendFactor dstAlphaBlendFactor alphaBlendOp",
    ),
    "VkPipelineColorBlendStateCreateInfo": ("logicOpEnable", "logicOp"),
    "VkPipelineDepthStencilStateCreateInfo": ("depthTestEnable", "depthCompareOp"),
    "VkSamplerCreateInfo": ("compareEnable", "compareOp"),
}


class _Member:
    """What is missing on one device for values of one member; False where nothing can be."""

    def __init__(self, answers: DeviceAnswers, struct: Struct, member: Member) -> None:
        numbers = enum_numbers()
        self._answers, self._member, self._enum = answers, member, _enum(member)
        replaced = _REPLACED.get((struct.name, member.name))
        self._replaced_by = -1 if replaced is None else dynamic_state(replaced)
        self._rules = [
            (rule, frozenset(numbers[each] for each in rule.values))
            for rule in _rules(struct.name, member.name)
        ]
        self._limits = [
            each for each in LIMIT_RULES if (each.struct, each.member) == (struct.name, member.name)
        ]

    def __bool__(self) -> bool:
        return bool(self._enum is not None or self._rules or self._limits)

    def of(self, value: Any, *, is_ignored: bool = False) -> Iterator[Missing]:
        """What is missing for a value; None counts as zero. One that drivers ignore may be unknown."""
        value = value or 0
        enum = None if is_ignored and self._enum and value not in self._enum.values else self._enum
        if enum is not None and (text := self._enum_text(enum, value)) is not None:
            yield self._replaced_by, text
        for rule, numbers in self._rules:
            if self._asks(rule, numbers, value) and (text := rule_text(self._answers, rule)) is not None:
                yield enum_numbers().get(rule.dynamic, -1), text
        if not self._member.pointer:
            yield from self._over(value)

    def of_array(self, elements: Sequence[Any]) -> Iterator[Missing]:
        """What is missing for an array: for its length, and for its elements, which may be arrays too."""
        yield from self._over(len(elements))
        if self._enum is not None or self._rules:
            for each in elements:
                for one in each if isinstance(each, list | tuple) else (each,):
                    yield from self.of(one)

    def _over(self, value: float) -> Iterator[Missing]:
        for each in self._limits:
            if (text := limit(self._answers, *each.property, value, below=each.below)) is not None:
                yield enum_numbers().get(each.dynamic, -1), text

    def _asks(self, rule: Rule, numbers: frozenset[int], value: Any) -> bool:
        if rule.test is not None:
            return rule.test(value)
        if not numbers:
            return bool(value)
        if self._enum is not None and self._enum.bitmask:
            return any(value & each for each in numbers)
        return value in numbers

    def _enum_text(self, enum: EnumType, value: int) -> str | None:
        """What is missing for a value of an enum, or for one of its bits."""
        if value in enum.values or not enum.bitmask:
            return self._value_text(enum, value, str(value))
        bits = (value & 1 << position for position in range(enum.bits))
        texts = (self._value_text(enum, bit, f"bit {bit:#x}") for bit in bits if bit)
        return next((text for text in texts if text is not None), None)

    def _value_text(self, enum: EnumType, value: int, written: str) -> str | None:
        known = enum.values.get(value)
        if known is None:
            return f"{self._member.type} {written}, unknown to registry {registry().version}"
        return self._answers.missing(known.requires)


def rule_text(answers: DeviceAnswers, rule: Rule) -> str | None:
    """The features that an applicable rule needs and the device lacks, or None."""
    if answers.one_of(rule.features, rule.otherwise):
        return None
    return " or ".join(f"feature {struct}::{member}" for struct, member in rule.features)


class _Plan:
    """What to check in structures of one type on one device; answers for scalars are kept."""

    def __init__(self, answers: DeviceAnswers, value: Any) -> None:
        struct = registry().struct(type(value).__name__)
        self.name = struct.name
        texts = [answers.missing(struct.requires)]
        texts += [rule_text(answers, rule) for rule in _rules(struct.name, "")]
        self.missing = tuple((-1, text) for text in texts if text is not None)  # whatever its members are
        self.arrays: list[tuple[str, _Member]] = []
        self.children: list[str] = []  # members that hold structures to check, pNext included
        self.context = CONTEXTS.get(struct.name)
        self._switch, ignored = _IGNORED_WITHOUT.get(struct.name, ("", ""))
        self._ignored = frozenset(ignored.split())
        scalars: list[tuple[str, _Member]] = []
        for member in struct.members:
            if member.name == "sType" or not hasattr(value, member.name):
                continue
            if (struct.name, member.name) in _NOT_CHECKED or (struct.name, member.name) in WORD_ARRAYS:
                continue  # a structure or union that the archive writes as plain words needs nothing
            if member.type in BARE_ARRAYS:
                inner = registry().struct(member.type)
                bare = _Member(answers, inner, inner.member(BARE_ARRAYS[member.type]))
                self.arrays.append((member.name, bare))
                continue
            is_struct = member.category in ("struct", "union")
            if member.name == "pNext" or (is_struct and _worth_a_visit(member.type)):
                self.children.append(member.name)
            if (known := _Member(answers, struct, member)) or member.name == self._switch:
                (self.arrays if member.pointer or member.array else scalars).append((member.name, known))
        self._members = scalars
        self._values = taking([each for each, _ in scalars])
        self._answers: dict[Hashable, tuple[Missing, ...]] = {}
        self.child_values = taking(self.children)

    def of(self, value: Any) -> tuple[Missing, ...]:
        """What is missing for a value, but for its arrays, its children and its context."""
        key = self._values(value)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            is_off = bool(self._switch) and not getattr(value, self._switch)
            pairs = zip(self._members, key, strict=True)
            scalars = (
                missing
                for (name, member), one in pairs
                for missing in member.of(one, is_ignored=is_off and name in self._ignored)
            )
            found = self._answers[key] = (*self.missing, *scalars)
        return found


@lru_cache(maxsize=1)
def _rules_by_member() -> dict[tuple[str, str], list[Rule]]:
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in RULES:
        found.setdefault((rule.struct, rule.member), []).append(rule)
    return found


def _rules(struct: str, member: str) -> list[Rule]:
    return _rules_by_member().get((struct, member), [])


def _enum(member: Member) -> EnumType | None:
    if member.category not in ("enum", "flags") or member.type in _TYPES_NOT_CHECKED:
        return None
    return registry().enums.get(member.type)


@lru_cache(maxsize=1024)
def _worth_a_visit(name: str) -> bool:
    # Whether anything in or below a structure can be missing on some device.
    struct = registry().struct(name)
    if struct.requires or struct.name in CONTEXTS:
        return True
    concerned = {rule.struct for rule in RULES} | {each.struct for each in LIMIT_RULES}
    if struct.name in concerned:
        return True
    for member in struct.members:
        if (struct.name, member.name) in _NOT_CHECKED or member.name == "sType":
            continue
        if member.name == "pNext" or _enum(member) is not None:
            return True
        if member.category in ("struct", "union") and member.type != name and _worth_a_visit(member.type):
            return True
    return False


_NO_STATES: DynamicStates = frozenset()
_RENDERING = "VkPipelineRenderingCreateInfo"
_GRAPHICS = "VkGraphicsPipelineCreateInfo"
_DEPTH_STENCIL = "VkPipelineDepthStencilStateCreateInfo"


class RequirementChecker:
    """Finds what one device lacks. Thread-safe; valid while the device is open."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        """Check against a device."""
        self._answers = DeviceAnswers(capabilities)
        self.shaders: Final = ShaderRequirements(self._answers)
        self._plans: dict[type, _Plan] = {}

    @property
    def needs(self) -> Needs:
        """Features and extensions of the device that the pipelines so far need, accepted or not."""
        return Needs(frozenset(self._answers.features_used), frozenset(self._answers.extensions_used))

    def stage(self, value: Any, spirv: SpirvModule, module: int) -> str | None:
        """What is missing for a stage with its module, by its key too: entry point, feature, limits."""
        missing = self._plan_of(value).of(value)
        return missing[0][1] if missing else self.shaders.stage(value, spirv, module)

    def structure(self, value: Any) -> str | None:
        """What is missing for a structure, its members, its pNext chain, and everything below it."""
        return self._walk(value, _NO_STATES)

    def set_layouts(self, sets: Sequence[DescriptorCounts]) -> str | None:
        """What the sets of a pipeline layout exceed together."""
        return exceeded_limit(self._answers, sets)

    def in_render_pass(self, pipeline: Any, render_pass: Any) -> str | None:
        """What is missing for multiview with a graphics pipeline in its subpass of a render pass."""
        subpasses = render_pass.pSubpasses or ()
        if pipeline.subpass >= len(subpasses):
            return Malformed(f"subpass {pipeline.subpass} of a render pass that has {len(subpasses)}")
        mask = getattr(subpasses[pipeline.subpass], "viewMask", 0)
        for each in getattr(render_pass, "pNext", None) or ():
            masks = getattr(each, "pViewMasks", None) or ()
            if pipeline.subpass < len(masks):
                mask = masks[pipeline.subpass]
        return first(multiview(self._answers, pipeline, mask))

    def _plan_of(self, value: Any) -> _Plan:
        plan = self._plans.get(type(value))
        if plan is None:
            plan = self._plans[type(value)] = _Plan(self._answers, value)
        return plan

    def _walk(self, value: Any, dynamic: DynamicStates) -> str | None:
        plan = self._plan_of(value)
        if plan.name == _GRAPHICS and value.pDynamicState is not None:
            # Negative numbers are no states; -1 means "no state" in `Missing`.
            dynamic = frozenset(each for each in value.pDynamicState.pDynamicStates or () if each >= 0)
        missing = _relevant(plan.of(value), dynamic)
        for name, member in plan.arrays if missing is None else ():
            elements = getattr(value, name)
            if elements is not None and missing is None:
                several = elements if isinstance(elements, list | tuple) else (elements,)  # a pointer to one
                missing = _relevant(member.of_array(several), dynamic)
        if missing is None and plan.context is not None:
            missing = first(plan.context(self._answers, value, dynamic))
        return missing or self._below(plan, value, dynamic)

    def _below(self, plan: _Plan, value: Any, dynamic: DynamicStates) -> str | None:
        graphics = plan.name == _GRAPHICS
        ignored = _ignored(value, dynamic) if graphics else frozenset()
        if plan.name == _DEPTH_STENCIL and not (
            value.stencilTestEnable and dynamic_state("STENCIL_OP") not in dynamic
        ):
            ignored = frozenset({"front", "back"})
        for name, child in zip(plan.children, plan.child_values(value), strict=True):
            if child is None or name in ignored:
                continue
            several = child if isinstance(child, list | tuple) else (child,)
            if graphics and name == "pNext" and value.renderPass:
                # With a render pass the formats of dynamic rendering are ignored.
                several = [each for each in several if type(each).__name__ != _RENDERING]
            for each in several:
                if (missing := self._walk(each, dynamic)) is not None:
                    return missing
        return None


def _relevant(found: Iterable[Missing], dynamic: DynamicStates) -> str | None:
    return next((text for state, text in found if state not in dynamic), None)


def _ignored(value: Any, dynamic: DynamicStates) -> frozenset[str]:
    # State that the driver ignores whatever attachments there are.
    library = chained(value, "VkGraphicsPipelineLibraryCreateInfoEXT")
    parts = ALL_PARTS if library is None else library.flags
    stages = reduce(or_, (each.stage for each in value.pStages or ()), 0)
    discard = discards(value.pRasterizationState, dynamic)
    read = states_read(parts, stages, (True, True), discard=discard)
    if dynamic_state("VERTEX_INPUT_EXT") in dynamic:
        read -= {"pVertexInputState"}
    return frozenset(STATES) - read
