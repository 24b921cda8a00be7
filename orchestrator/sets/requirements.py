# Purpose: decide whether a device has what a captured pipeline needs, before the driver is asked to create it.
# What is needed comes from three places: the registry (what provides each structure, enum value, flag bit,
# SPIR-V capability and extension), tables of rules with their valid usage statements (requirement_rules,
# requirement_atomics, requirement_descriptors), and rules over several members (requirement_context,
# requirement_layouts).
#
# Guarantees:
# - What is returned as missing is something that the device does not have, by its name in the registry, or a
#   value that the registry does not know and that no driver may be given. What a document refers to and does not
#   have itself (an entry point, an attachment, a subpass) is returned as Malformed.
# - Nothing is skipped for what no compiler looks at: masks of stages in layouts, dependencies of subpasses,
#   state that a dynamic state or another member makes the driver ignore.
# - Pure and thread-safe: answers are remembered, and any thread would compute the same.
# Whether the device could have what is not enabled is not asked here: see prepare.py.
"""What a device lacks of what a captured pipeline needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import Feature
from orchestrator.sets.documents import SHARED_STATES
from orchestrator.sets.requirement_answers import DeviceAnswers
from orchestrator.sets.requirement_context import DynamicStates, multiview
from orchestrator.sets.requirement_context import Malformed as Malformed
from orchestrator.sets.requirement_descriptors import DescriptorCounts, DescriptorLimits
from orchestrator.sets.requirement_layouts import render_pass as render_pass_formats
from orchestrator.sets.requirement_layouts import rendering_formats
from orchestrator.sets.requirement_plans import Missing, Plan, make_plan, remember
from orchestrator.sets.requirement_shaders import ShaderRequirements
from orchestrator.sets.spirv import SpirvModule

_NO_STATES: DynamicStates = frozenset()
_RASTERIZED_STATE = frozenset(
    {"pViewportState", "pMultisampleState", "pDepthStencilState", "pColorBlendState"}
)
_VERTEX_STATE = frozenset({"pVertexInputState", "pInputAssemblyState"})
_RASTERIZER_DISCARD_ENABLE = 1000377001
_VERTEX_INPUT = 1000352000
_MESH_STAGE = 0x80
_RENDERING = "VkPipelineRenderingCreateInfo"


@frozen
class Needs:
    """What pipelines need of a device that has it.

    Attributes:
        features: Features, by one of their names.
        extensions: Device extensions.
    """

    features: frozenset[Feature] = frozenset()
    extensions: frozenset[str] = frozenset()


class RequirementChecker:
    """Finds what one device lacks. Thread-safe; keep one for as long as the device is open.

    Every method returns what is missing, such as "feature VkPhysicalDeviceFeatures::geometryShader", or None.
    """

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        """Check against a device.

        Args:
            capabilities: What the opened device has; it must not change afterwards.
        """
        self._answers = DeviceAnswers(capabilities)
        self._shaders = ShaderRequirements(self._answers)
        self._descriptors = DescriptorLimits(self._answers)
        self._plans: dict[type, Plan] = {}
        self._states: dict[tuple[int, DynamicStates], tuple[Any, str | None]] = {}

    @property
    def needs(self) -> Needs:
        """What the device has of what was asked for so far, in pipelines that it can take or cannot."""
        return Needs(frozenset(self._answers.features_used), frozenset(self._answers.extensions_used))

    def module(self, spirv: SpirvModule) -> str | None:
        """What a module's version, capabilities, extensions and atomic operations lack."""
        return self._shaders.module(spirv)

    def stage(self, value: Any, spirv: SpirvModule) -> str | None:
        """What a stage lacks together with its module: its entry point, its stage's feature, its limits.

        Args:
            value: A VkPipelineShaderStageCreateInfo; `structure` checks its flags and its chain.
            spirv: Its module.
        """
        for _, text in self._scalars(self._plan(value), value):
            return text
        return self._shaders.stage(value, spirv)

    def structure(self, value: Any) -> str | None:
        """What a structure lacks: itself, its members, its pNext chain, and everything below it.

        Args:
            value: A decoded structure: its class is named as the structure, its attributes as the members.

        Raises:
            KeyError: The registry does not know the structure.
        """
        return self._walk(value, _NO_STATES)

    def pipeline_layout(self, sets: Sequence[DescriptorCounts]) -> str | None:
        """The limit on descriptors that a pipeline layout exceeds, beside what `structure` says of it.

        Args:
            sets: `count_descriptors` of each of its set layouts that is not VK_NULL_HANDLE.
        """
        return self._descriptors.missing(sets)

    def render_pass(self, value: Any) -> str | None:
        """The format of an attachment that a VkRenderPassCreateInfo (or 2) uses and the device cannot.

        `structure` includes this.
        """
        return render_pass_formats(self._answers, value)

    def rendering_formats(self, value: Any) -> str | None:
        """The format in a VkPipelineRenderingCreateInfo that the device cannot attach; `structure` includes it."""
        return rendering_formats(self._answers, value)

    def in_render_pass(self, pipeline: Any, render_pass: Any) -> str | None:
        """What a graphics pipeline lacks in its subpass of a render pass, for multiview.

        Args:
            pipeline: A VkGraphicsPipelineCreateInfo.
            render_pass: The VkRenderPassCreateInfo or VkRenderPassCreateInfo2 that its renderPass refers to.
        """
        subpasses = render_pass.pSubpasses or ()
        if pipeline.subpass >= len(subpasses):
            return Malformed(f"subpass {pipeline.subpass} of a render pass that has {len(subpasses)}")
        mask = getattr(subpasses[pipeline.subpass], "viewMask", 0)
        for each in getattr(render_pass, "pNext", None) or ():
            masks = getattr(each, "pViewMasks", None) or ()
            if pipeline.subpass < len(masks):
                mask = masks[pipeline.subpass]
        return multiview(self._answers, pipeline, mask)

    def _plan(self, value: Any) -> Plan:
        kind = type(value)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = make_plan(self._answers, kind.__name__, value)
        return plan

    def _scalars(self, plan: Plan, value: Any) -> tuple[Missing, ...]:
        if plan.scalars is None:
            return ()
        key = plan.scalars(value)
        found = plan.answers.get(key)
        return remember(plan, key) if found is None else found

    def _walk(self, value: Any, dynamic: DynamicStates) -> str | None:
        plan = self._plans.get(type(value)) or self._plan(value)
        graphics = plan.name == "VkGraphicsPipelineCreateInfo"
        if graphics and value.pDynamicState is not None:
            dynamic = frozenset(value.pDynamicState.pDynamicStates or ())
        found = plan.missing
        if plan.scalars is not None:
            key = plan.scalars(value)
            answers = plan.answers.get(key)
            found = found + (remember(plan, key) if answers is None else answers)
        missing = _relevant(found, dynamic) if found else None
        if missing is None and plan.arrays:
            missing = self._arrays(plan, value, dynamic)
        if missing is None and plan.context is not None:
            missing = plan.context(self._answers, value, dynamic)
        if missing is not None:
            return missing
        if plan.child_values is None:
            return None
        ignored = _ignored(value, dynamic) if graphics else frozenset()
        for name, child in zip(plan.children, plan.child_values(value), strict=True):
            if child is None or name in ignored:
                continue
            if graphics and name == "pNext" and value.renderPass:
                # In a render pass the formats of dynamic rendering are ignored (VkPipelineRenderingCreateInfo).
                child = [each for each in child if type(each).__name__ != _RENDERING]
            if graphics and name in SHARED_STATES:
                missing = self._shared(child, dynamic)
                if missing is not None:
                    return missing
                continue
            for each in child if isinstance(child, list | tuple) else (child,):
                missing = self._walk(each, dynamic)
                if missing is not None:
                    return missing
        return None

    def _shared(self, state: Any, dynamic: DynamicStates) -> str | None:
        """What a state lacks that many pipelines share; remembered by identity and dynamic states."""
        known = self._states.get((id(state), dynamic))
        if known is None:
            # The reference to the state keeps its identity from being used again.
            known = self._states[id(state), dynamic] = (state, self._walk(state, dynamic))
        return known[1]

    def _arrays(self, plan: Plan, value: Any, dynamic: DynamicStates) -> str | None:
        for name, known in plan.arrays:
            elements = getattr(value, name)
            if elements is None:
                continue
            if not isinstance(elements, list | tuple):
                elements = (elements,)  # a pointer to one
            found: list[Missing] = []
            if known.limits:
                found += known.of_length(len(elements))
            if known.enum is not None or known.rules:
                for each in elements:
                    # The elements of an array of bare arrays are lists themselves.
                    for one in each if isinstance(each, list | tuple) else (each,):
                        found += known.of(one)
            if (missing := _relevant(found, dynamic)) is not None:
                return missing
        return None


def _relevant(found: Iterable[Missing], dynamic: DynamicStates) -> str | None:
    """The first of what is missing that no dynamic state makes irrelevant."""
    return next((text for state, text in found if state not in dynamic), None)


def _ignored(value: Any, dynamic: DynamicStates) -> frozenset[str]:
    """Members of a graphics pipeline that the driver does not look at (specification, "Graphics Pipelines")."""
    ignored: frozenset[str] = frozenset()
    raster = value.pRasterizationState
    if raster is not None and raster.rasterizerDiscardEnable and _RASTERIZER_DISCARD_ENABLE not in dynamic:
        ignored |= _RASTERIZED_STATE
    if any(each.stage == _MESH_STAGE for each in value.pStages or ()):
        ignored |= _VERTEX_STATE
    if _VERTEX_INPUT in dynamic:
        ignored |= {"pVertexInputState"}
    return ignored
