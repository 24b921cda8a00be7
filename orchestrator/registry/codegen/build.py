"""Builds the registry tables from a VulkanObject: picks and lays out what pipelines reach.

Deterministic (everything sorted), whatever machine it runs on. An inconsistency of the registry, such as a
SPIR-V capability without a number or a structure that cannot be laid out, raises RegistryError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from msgspec.structs import replace

from orchestrator.registry.codegen import layout
from orchestrator.registry.expressions import all_of, any_of, normal_form
from orchestrator.registry.tables import (
    Enable,
    Enabled,
    EnumType,
    EnumValue,
    Extension,
    Format,
    Member,
    Registry,
    Struct,
)

Requirements = Mapping[str, str | None]

_NAME = re.compile(r"[A-Za-z_]\w*")

# The structures that the package gives to a driver or reads, where the walk through the registry begins: the
# structures of their members, and those that may extend them, follow.
_STRUCT_ROOTS = (
    # objects that pipelines refer to
    "VkSamplerCreateInfo", "VkSamplerYcbcrConversionCreateInfo", "VkDescriptorSetLayoutCreateInfo",
    "VkPipelineLayoutCreateInfo", "VkRenderPassCreateInfo", "VkRenderPassCreateInfo2",
    "VkShaderModuleCreateInfo",
    # pipelines
    "VkGraphicsPipelineCreateInfo", "VkComputePipelineCreateInfo", "VkRayTracingPipelineCreateInfoKHR",
    "VkPipelineCreationFeedback", "VkPipelineCreationFeedbackCreateInfo",
    "VkPipelineShaderStageModuleIdentifierCreateInfoEXT", "VkShaderModuleIdentifierEXT",
    # caches and binaries
    "VkPipelineCacheCreateInfo", "VkPipelineCacheHeaderVersionOne", "VkPipelineCreateInfoKHR",
    "VkPipelineBinaryCreateInfoKHR", "VkPipelineBinaryDataInfoKHR", "VkPipelineBinaryDataKHR",
    "VkPipelineBinaryHandlesInfoKHR", "VkPipelineBinaryInfoKHR", "VkPipelineBinaryKeyKHR",
    "VkPipelineBinaryKeysAndDataKHR", "VkReleaseCapturedPipelineDataInfoKHR",
    # what a driver tells about a pipeline
    "VkPipelineInfoKHR", "VkPipelineExecutablePropertiesKHR", "VkPipelineExecutableInfoKHR",
    "VkPipelineExecutableStatisticKHR", "VkPipelineExecutableInternalRepresentationKHR",
    # instances and devices
    "VkApplicationInfo", "VkInstanceCreateInfo", "VkExtensionProperties", "VkLayerProperties",
    "VkDeviceCreateInfo", "VkDeviceQueueCreateInfo", "VkQueueFamilyProperties", "VkQueueFamilyProperties2",
    "VkPhysicalDeviceFeatures", "VkPhysicalDeviceFeatures2", "VkPhysicalDeviceProperties",
    "VkPhysicalDeviceProperties2", "VkPhysicalDeviceMemoryProperties", "VkFormatProperties",
    "VkFormatProperties2", "VkFormatProperties3", "VkAllocationCallbacks",
    # what every chained structure begins with
    "VkBaseInStructure", "VkBaseOutStructure",
)  # fmt: skip
# Enums that are included even if no member has their type.
_ENUM_ROOTS = ("VkResult", "VkStructureType", "VkFormat", "VkDynamicState", "VkSystemAllocationScope")

# Capabilities that vk.xml omits, by the SPIR-V extension that enables them in the SPIR-V grammar.
_OMITTED = {"Groups": "SPV_AMD_shader_ballot"}


class RegistryError(Exception):
    """The registry holds something that the tables cannot express; the message names it."""


def canonical_names(vk: Any) -> dict[str, str]:
    """The canonical name of each alias of a type."""
    return {
        alias: name
        for table in (vk.structs, vk.enums, vk.bitmasks, vk.flags, vk.handles)
        for name, each in table.items()
        for alias in each.aliases
    }


def array_size(expression: str, constants: Mapping[str, int]) -> int:
    """Value of an array size: a number, a constant, or a product such as "2*VK_UUID_SIZE"."""
    factors = [each.strip() for each in expression.split("*")]
    return math.prod(int(each) if each.isdigit() else constants[each] for each in factors)


def capability_numbers() -> dict[str, int]:
    """Numbers of the SPIR-V capabilities by name, aliases included, from the SPIR-V grammar."""
    path = resources.files("orchestrator.registry.codegen").joinpath("spirv_capabilities.json")
    numbers: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return numbers


def build(vk: Any, numbers: Mapping[str, int]) -> Registry:
    """All tables, from `vulkan_object.get_vulkan_object()` and `capability_numbers()`."""
    return _Builder(vk).build(numbers)


class _Builder:
    def __init__(self, vk: Any) -> None:
        self._vk = vk
        self._canonical = canonical_names(vk)
        self._constants = {
            name: each.value for name, each in sorted(vk.constants.items()) if isinstance(each.value, int)
        }
        self._s_types = {
            name: each.value
            for each in vk.enums["VkStructureType"].fields
            for name in (each.name, *each.aliases)
        }
        self._layouts: dict[str, Struct] = {}
        self._foreign: dict[str, bool] = {}

    def build(self, numbers: Mapping[str, int]) -> Registry:
        reached = sorted(self._reached())
        structs = {name: self._struct(name, reached) for name in reached}
        enums = self._enums(structs.values())
        spirv_extensions = {
            each.name: Enabled(each.name, self._enables(each.enable))
            for each in sorted(self._vk.spirv, key=lambda each: str(each.name))
            if each.extension
        }
        return Registry(
            version=self._vk.headerVersionComplete,
            structs=structs,
            aliases={
                alias: name
                for alias, name in sorted(self._canonical.items())
                if name in structs and alias not in structs
            },
            enums=enums,
            extensions={name: self._extension(each) for name, each in sorted(self._vk.extensions.items())},
            dynamic_states=self._dynamic_states(),
            spirv_capabilities=self._capabilities(numbers, spirv_extensions),
            spirv_extensions=spirv_extensions,
            formats=self._formats(),
            constants=self._constants,
        )

    # Which structures

    def _reached(self) -> set[str]:
        reached: set[str] = set()
        waiting = [self._name(name) for name in _STRUCT_ROOTS]
        for name in waiting:
            if name not in self._vk.structs or self._is_foreign(name):
                raise RegistryError(f"root {name}: not in the registry, or it needs foreign headers")
        while waiting:
            name = waiting.pop()
            if name in reached or self._is_foreign(name):
                continue
            reached.add(name)
            struct = self._vk.structs[name]
            members = (self._name(each.type) for each in struct.members)
            waiting += [each for each in members if each in self._vk.structs]
            waiting += [self._name(each) for each in struct.extendedBy]
        return reached

    def _is_foreign(self, name: str) -> bool:
        # Structures of platform or provisional extensions (their layout may change), video structures, and
        # those that refer to these or to types of foreign headers are left out. Video features and properties
        # of devices that need none of them stay.
        if name not in self._foreign:
            struct = self._vk.structs[name]
            self._foreign[name] = False  # ends recursion through structures that point to themselves
            video = "Video" in name and not (name.startswith("VkPhysicalDevice") and "Features" in name)
            self._foreign[name] = (
                struct.protect is not None
                or video
                or any(self._is_foreign_type(self._name(each.type)) for each in struct.members)
            )
        return self._foreign[name]

    def _is_foreign_type(self, name: str) -> bool:
        if name in self._vk.structs:
            return self._is_foreign(name)
        known = (self._vk.enums, self._vk.bitmasks, self._vk.flags, self._vk.handles, self._vk.funcPointers)
        return name not in layout.SCALARS and not any(name in table for table in known)

    def _name(self, name: str) -> str:
        return self._canonical.get(name, name)

    # Layout

    def _struct(self, name: str, reached: Iterable[str] = ()) -> Struct:
        source = self._vk.structs[name]
        if name not in self._layouts:
            placed = [self._field(name, each) for each in source.members]
            offsets, size, alignment = layout.place([each[1:] for each in placed], union=source.union)
            members = tuple(
                self._member(each, scalar, offset, width)
                for each, (scalar, width, _), offset in zip(source.members, placed, offsets, strict=True)
            )
            self._layouts[name] = Struct(
                name=name,
                size=size,
                alignment=alignment,
                union=source.union,
                members=members,
                s_type=self._s_types[source.sType] if source.sType else None,
                requires=_requirement(
                    source.definingRequirements, source.aliases, self._vk.aliasTypeRequirements
                ),
            )
        result = self._layouts[name]
        known = set(reached)
        extends = tuple(sorted({self._name(each) for each in source.extends} & known))
        return replace(result, extends=extends)

    def _field(self, struct: str, member: Any) -> tuple[layout.Scalar | None, int, int]:
        if member.bitFieldWidth is not None:
            raise RegistryError(f"{struct}::{member.name}: bit fields are not laid out")
        name = self._name(member.type)
        scalar = self._scalar(name)
        if scalar is layout.FUNCTION or (member.pointer and member.fullType != member.type):
            size = alignment = layout.POINTER_SIZE
        elif scalar is not None:
            size = alignment = scalar.size
        elif name in self._vk.structs:
            inner = self._struct(name)
            size, alignment = inner.size, inner.alignment
        else:
            raise RegistryError(f"{struct}::{member.name}: type {name} is not known")
        if not size:
            raise RegistryError(f"{struct}::{member.name}: type {name} has no size")
        return scalar, size * self._elements(member), alignment

    def _elements(self, member: Any) -> int:
        return math.prod(array_size(each, self._constants) for each in member.fixedSizeArray)

    def _scalar(self, name: str) -> layout.Scalar | None:
        if name in layout.SCALARS:
            return layout.SCALARS[name]
        if name in self._vk.enums:
            return layout.ENUM
        for table in (self._vk.flags, self._vk.bitmasks):
            if name in table:
                return layout.FLAGS_64 if table[name].bitWidth == 64 else layout.FLAGS_32
        if name in self._vk.handles:
            return layout.HANDLE
        if name in self._vk.funcPointers:
            return layout.FUNCTION
        return None

    def _member(self, member: Any, scalar: layout.Scalar | None, offset: int, size: int) -> Member:
        name = self._name(member.type)
        if scalar is not None:
            category = scalar.category
        else:
            category = "union" if self._vk.structs[name].union else "struct"
        array = self._elements(member) if member.fixedSizeArray else 0
        length = member.length or ""
        if array and (length in member.fixedSizeArray or not _NAME.fullmatch(length)):
            length = ""  # the registry repeats the size of the array
        if not length and member.nullTerminated:
            length = "null-terminated"
        return Member(
            name=member.name,
            type=name,
            category=category,
            offset=offset,
            size=size,
            format=scalar.format if scalar is not None else "",
            pointer=bool(member.pointer),
            array=array,
            length=length,
            optional=bool(member.optional),
            optional_elements=bool(member.optionalPointer),
            selector=member.selector or "",
            selection=tuple(member.selection or ()),
        )

    # Enums, formats, extensions

    def _enums(self, structs: Iterable[Struct]) -> dict[str, EnumType]:
        used = {member.type for each in structs for member in each.members}
        used |= set(_ENUM_ROOTS)
        result: dict[str, EnumType] = {}
        for name, enum in self._vk.enums.items():
            if name in used:
                result[name] = EnumType(
                    enum.bitWidth, False, _values(enum.fields, self._vk.aliasFieldRequirements)
                )
        for name, flags in self._vk.flags.items():
            bits = flags.bitmaskName
            if name not in used and bits not in used:
                continue
            values = self._vk.bitmasks[bits].flags if bits in self._vk.bitmasks else ()
            both = EnumType(flags.bitWidth, True, _values(values, self._vk.aliasFlagRequirements))
            result[name] = both
            if bits:
                result[bits] = both
        return dict(sorted(result.items()))

    def _formats(self) -> dict[int, Format]:
        result = {}
        for each in sorted(self._vk.enums["VkFormat"].fields, key=lambda each: int(each.value)):
            details = self._vk.formats.get(each.name)
            components = details.components if details is not None else ()
            result[int(each.value)] = Format(
                name=each.name,
                components="".join(component.type for component in components),
                numeric=components[0].numericFormat if components else "",
                requires=_requirement(
                    each.definingRequirements, each.aliases, self._vk.aliasFieldRequirements
                ),
            )
        return result

    def _extension(self, extension: Any) -> Extension:
        # Only features that every device with the extension supports. A list of members demands only one of
        # them, and an entry with a dependency only counts together with that.
        features = {
            (self._name(each.struct), each.field): None
            for each in extension.featureRequirement
            if each.depends is None and "," not in each.field
        }
        return Extension(
            name=extension.name,
            device=bool(extension.device),
            depends=normal_form(extension.depends or ""),
            promoted_to=extension.promotedTo or "",
            features=tuple(features),
        )

    # What enables what

    def _dynamic_states(self) -> dict[int, Enabled]:
        values = self._vk.enums["VkDynamicState"].fields
        enables = {
            command.pipelineEnum: self._enables(state.enable)
            for state in self._vk.dynamicStates.values()
            for command in state.commands
            if command.pipelineEnum
        }
        result = {}
        for each in sorted(values, key=lambda each: int(each.value)):
            known = next((enables[name] for name in (each.name, *each.aliases) if name in enables), ())
            result[int(each.value)] = Enabled(each.name, known)
        return result

    def _capabilities(
        self, numbers: Mapping[str, int], spirv_extensions: Mapping[str, Enabled]
    ) -> dict[int, Enabled]:
        result = {
            numbers[name]: Enabled(name, spirv_extensions[extension].enable)
            for name, extension in _OMITTED.items()
        }
        for each in self._vk.spirv:
            if not each.capability:
                continue
            if each.name not in numbers:
                raise RegistryError(
                    f"SPIR-V capability {each.name}: the registry names it, spirv_capabilities.json does not "
                    "number it; add the number from the SPIR-V grammar or the extension's specification"
                )
            number = numbers[each.name]
            enables = self._enables(each.enable)
            before = result.get(number)
            if before is None:
                result[number] = Enabled(each.name, enables)
            else:  # another name of the same capability: an enabler of either enables both
                both = tuple(dict.fromkeys((*before.enable, *enables)))
                result[number] = Enabled(before.name, both if before.enable and enables else ())
        return dict(sorted(result.items()))

    def _enables(self, states: Iterable[Any]) -> tuple[Enable, ...]:
        result = []
        for each in states:
            if each.version == "VK_VERSION_1_0":
                return ()  # one alternative that always holds
            result.append(
                Enable(
                    version=each.version or "",
                    extension=each.extension or "",
                    struct=self._name(each.struct or ""),
                    feature=each.feature or "",
                    requires="" if each.requires == "VK_VERSION_1_0" else normal_form(each.requires or ""),
                    property=self._name(each.property or ""),
                    member=each.member or "",
                    value=each.value or "",
                )
            )
        return tuple(dict.fromkeys(result))


def _values(fields: Iterable[Any], alias_requirements: Mapping[str, Requirements]) -> dict[int, EnumValue]:
    return {
        int(each.value): EnumValue(
            each.name, _requirement(each.definingRequirements, each.aliases, alias_requirements)
        )
        for each in sorted(fields, key=lambda each: int(each.value))
    }


def _requirement(own: Requirements, aliases: Iterable[str], of_aliases: Mapping[str, Requirements]) -> str:
    if not own:
        return ""
    providers = {
        (provider, depends or "")
        for each in (own, *(of_aliases.get(alias, {}) for alias in aliases))
        for provider, depends in each.items()
    }
    return any_of(
        "" if provider == "VK_VERSION_1_0" else all_of((provider, depends))
        for provider, depends in sorted(providers, key=_provider_order)
    )


def _provider_order(provider: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    return not provider[0].startswith("VK_VERSION_"), provider
