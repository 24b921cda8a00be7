"""The extensions, features, properties and formats of a device, and the choice of what to enable.

All of it follows the registry: every feature and property structure whose extension or version is available
is queried. A `DeviceRequest` decides what is enabled. The enabled set is valid: exclusions and dependencies
of features come from the valid usage of VkDeviceCreateInfo, those of extensions from the registry. An
extension or structure all of whose features stay off is left out, because to some drivers its name alone
makes a difference. Immutable; thread-safe.
"""

from __future__ import annotations

import functools
import re
import struct as binary
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from attrs import evolve

from orchestrator.devices.image import PNEXT
from orchestrator.devices.request import (
    BASE_FEATURES,
    DeviceRequest,
    Feature,
    OtherFeatures,
)
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.instance import PhysicalDevice, VulkanInstance
from orchestrator.registry import registry
from orchestrator.registry.expressions import evaluate, lacking
from orchestrator.registry.tables import (
    FEATURES_ROOT,
    PROPERTIES_ROOT,
    Member,
    Struct,
    feature_structs,
    is_collection,
    same_members,
    structs_by_type,
)

_Value = int | float | tuple[int, ...]


class StructChain:
    """Structures linked by pNext in one zeroed buffer."""

    def __init__(self, structs: Iterable[Struct]) -> None:
        self.structs = tuple(structs)
        sizes = [(each.size + 7) // 8 * 8 for each in self.structs]
        self._memory = ffi.new("uint64_t[]", sum(sizes) // 8 or 1)
        self._bytes = ffi.buffer(self._memory)
        self._address = int(ffi.cast("uintptr_t", self._memory))
        self._offsets: dict[str, int] = {}
        at = 0
        for number, (each, size) in enumerate(zip(self.structs, sizes, strict=True)):
            self._offsets[each.name] = at
            binary.pack_into("<I", self._bytes, at, each.s_type)
            if number + 1 < len(self.structs):
                binary.pack_into("<Q", self._bytes, at + PNEXT, self._address + at + size)
            at += size

    def pointer(self, ctype: str) -> Any:
        """Pointer to the first structure, as a cffi type."""
        return ffi.cast(ctype, self._address)

    def members(self) -> Iterator[tuple[Feature, Member, int]]:
        """Names of all members, also those of nested structures, with their offsets in the buffer."""
        for struct in self.structs:
            base = self._offsets[struct.name]
            for feature, member, offset in _layout(struct.name):
                yield feature, member, base + offset

    def value(self, member: Member, at: int) -> _Value:
        """Value of a scalar member, or of a fixed array of scalars, at an offset in the buffer."""
        count = member.array or 1
        values: tuple[Any, ...] = binary.unpack_from(f"<{count}{member.format}", self._bytes, at)
        return values if member.array else values[0]

    def set_true(self, at: int) -> None:
        """Write VK_TRUE at an offset in the buffer."""
        binary.pack_into("<I", self._bytes, at, 1)


@functools.cache
def _layout(struct: str) -> tuple[tuple[Feature, Member, int], ...]:
    name = _core_name(struct)
    return tuple(((name, member.name), member, at) for member, at in _leaves(registry().struct(struct), 0))


def _leaves(struct: Struct, base: int) -> Iterator[tuple[Member, int]]:
    for member in struct.members:
        if member.name in ("sType", "pNext"):
            continue
        if member.category == "struct" and not member.pointer and not member.array:
            yield from _leaves(registry().struct(member.type), base + member.offset)
        elif member.format and not member.pointer:
            yield member, base + member.offset


_VERSION: Final = re.compile(r"VK_(?:BASE_|COMPUTE_|GRAPHICS_)?VERSION_(\d+)_(\d+)")
_PATCH_BITS: Final = 12

# VkDriverId of drivers whose keys are the same with and without ORCHESTRATOR_FEATURES, as other programs
# confirmed: Mesa's RADV, NVK and Honeykrisp, and NVIDIA's own (benchmarks/results); lavapipe caches nothing.
# `orchestrator doctor --keys` tests others.
_KEYS_LEFT_ALONE: Final = frozenset({3, 4, 13, 24, 26})

_SHADING_RATE: Final = "VkPhysicalDeviceFragmentShadingRateFeaturesKHR"
_MESH_SHADER: Final = "VkPhysicalDeviceMeshShaderFeaturesEXT"
_MULTIVIEW: Final = "VkPhysicalDeviceMultiviewFeatures"
_FLOAT_ATOMICS: Final = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"
_FLOAT_ATOMICS_2: Final = "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT"
_INT64_ATOMICS: Final = "VkPhysicalDeviceShaderImageAtomicInt64FeaturesEXT"
_RAY_TRACING: Final = "VkPhysicalDeviceRayTracingPipelineFeaturesKHR"

# Features that may not be enabled together; if neither was requested, the first is turned off.
_EXCLUSIVE: Final[tuple[tuple[Feature, Feature], ...]] = tuple(
    ((struct, member), (_SHADING_RATE, rate))  # VUID-VkDeviceCreateInfo-shadingRateImage-04478 to -04483
    for struct, member in (
        ("VkPhysicalDeviceShadingRateImageFeaturesNV", "shadingRateImage"),
        ("VkPhysicalDeviceFragmentDensityMapFeaturesEXT", "fragmentDensityMap"),
    )
    for rate in (
        "pipelineFragmentShadingRate",
        "primitiveFragmentShadingRate",
        "attachmentFragmentShadingRate",
    )
)

# A feature, and the one that must be enabled with it.
# fmt: off
_BUILT_ON: Final[tuple[tuple[Feature, Feature], ...]] = (
    # VUID-VkPhysicalDeviceRobustness2FeaturesKHR-robustBufferAccess2-04000
    (("VkPhysicalDeviceRobustness2FeaturesKHR", "robustBufferAccess2"),
        (BASE_FEATURES, "robustBufferAccess")),
    # VUID-VkPhysicalDeviceMultiviewFeatures-multiviewGeometryShader-00580, -multiviewTessellationShader-00581
    ((_MULTIVIEW, "multiviewGeometryShader"), (_MULTIVIEW, "multiview")),
    ((_MULTIVIEW, "multiviewTessellationShader"), (_MULTIVIEW, "multiview")),
    # VUID-VkPhysicalDeviceMeshShaderFeaturesEXT-multiviewMeshShader-07032,
    # -primitiveFragmentShadingRateMeshShader-07033
    ((_MESH_SHADER, "multiviewMeshShader"), (_MULTIVIEW, "multiview")),
    ((_MESH_SHADER, "primitiveFragmentShadingRateMeshShader"),
        (_SHADING_RATE, "primitiveFragmentShadingRate")),
    # VUID-VkPhysicalDeviceVariablePointersFeatures-variablePointers-01431
    (("VkPhysicalDeviceVariablePointersFeatures", "variablePointers"),
        ("VkPhysicalDeviceVariablePointersFeatures", "variablePointersStorageBuffer")),
    # VUID-VkPhysicalDeviceRayTracingPipelineFeaturesKHR-
    # rayTracingPipelineShaderGroupHandleCaptureReplayMixed-03575
    ((_RAY_TRACING, "rayTracingPipelineShaderGroupHandleCaptureReplayMixed"),
        (_RAY_TRACING, "rayTracingPipelineShaderGroupHandleCaptureReplay")),
    # VUID-VkDeviceCreateInfo-None-04896, -04897, -04898, -sparseImageFloat32AtomicMinMax-04975
    ((_INT64_ATOMICS, "sparseImageInt64Atomics"), (_INT64_ATOMICS, "shaderImageInt64Atomics")),
    ((_FLOAT_ATOMICS, "sparseImageFloat32Atomics"), (_FLOAT_ATOMICS, "shaderImageFloat32Atomics")),
    ((_FLOAT_ATOMICS, "sparseImageFloat32AtomicAdd"), (_FLOAT_ATOMICS, "shaderImageFloat32AtomicAdd")),
    ((_FLOAT_ATOMICS_2, "sparseImageFloat32AtomicMinMax"),
        (_FLOAT_ATOMICS_2, "shaderImageFloat32AtomicMinMax")),
)
# fmt: on

# A feature, and the extension that may not be enabled with it: VUID-VkDeviceCreateInfo-None-08095.
_EXCLUDES_EXTENSION: Final[tuple[tuple[Feature, str], ...]] = (
    (("VkPhysicalDeviceDescriptorBufferFeaturesEXT", "descriptorBuffer"), "VK_AMD_shader_fragment_mask"),
)

# Features that an extension turns on in the structure of its version, if that is in the chain:
# VUID-VkDeviceCreateInfo-ppEnabledExtensionNames-02831 to -02835, -04476 and -10858.
_FEATURES_OF_EXTENSION: Final[dict[str, tuple[Feature, ...]]] = {
    "VK_KHR_draw_indirect_count": (("VkPhysicalDeviceVulkan12Features", "drawIndirectCount"),),
    "VK_KHR_sampler_mirror_clamp_to_edge": (
        ("VkPhysicalDeviceVulkan12Features", "samplerMirrorClampToEdge"),
    ),
    "VK_EXT_descriptor_indexing": (("VkPhysicalDeviceVulkan12Features", "descriptorIndexing"),),
    "VK_EXT_sampler_filter_minmax": (("VkPhysicalDeviceVulkan12Features", "samplerFilterMinmax"),),
    "VK_EXT_shader_viewport_index_layer": (
        ("VkPhysicalDeviceVulkan12Features", "shaderOutputViewportIndex"),
        ("VkPhysicalDeviceVulkan12Features", "shaderOutputLayer"),
    ),
    "VK_KHR_shader_draw_parameters": (("VkPhysicalDeviceVulkan11Features", "shaderDrawParameters"),),
    "VK_KHR_push_descriptor": (("VkPhysicalDeviceVulkan14Features", "pushDescriptor"),),
}

# Features that robustBufferAccess excludes where robustBufferAccessUpdateAfterBind is false:
# VUID-VkDeviceCreateInfo-robustBufferAccess-10247.
_INDEXING: Final = "VkPhysicalDeviceDescriptorIndexingFeatures"
_BUFFERS_AFTER_BIND: Final = tuple(
    (_INDEXING, f"descriptorBinding{kind}BufferUpdateAfterBind")
    for kind in ("Uniform", "Storage", "UniformTexel", "StorageTexel")
)

# Extensions that pipelines never need: video needs other queues; the others slow a driver down, trace it,
# turn its pipeline caches off (VK_AMD_shader_info in Mesa), exclude a core feature, or change what commands
# mean (VK_SEC_pipeline_cache_incremental_mode: a read gives only what is new). (VK_KHR_swapchain is wanted,
# because captured render passes end in the layout for presenting.)
_UNWANTED_EXTENSIONS: Final = re.compile(
    r"VK_KHR_video_.*|VK_.*_video_.*|VK_EXT_device_memory_report|VK_NV_device_diagnostic.*"
    r"|VK_NV_low_latency.*|VK_EXT_buffer_device_address|VK_AMD_negative_viewport_height"
    r"|VK_NV_cuda_kernel_launch|VK_AMD_shader_info|VK_EXT_validation_cache|VK_AMD_anti_lag|VK_NV_present_.*"
    r"|VK_SEC_.*|VK_EXT_full_screen.*|VK_(EXT|KHR)_device_fault"
)


def _provided(api_version: int, extensions: frozenset[str]) -> Callable[[str], bool]:
    # Whether a version or extension name in an expression of the registry is available.
    has = api_version >> 22, api_version >> _PATCH_BITS & 0x3FF

    def is_provided(name: str) -> bool:
        version = _VERSION.fullmatch(name)
        return (int(version[1]), int(version[2])) <= has if version else name in extensions

    return is_provided


class Capabilities:
    """What a device has enabled, by any of a feature's names. Implements `DeviceCapabilities`."""

    extensions: tuple[str, ...]
    _names: frozenset[str]
    _enabled: frozenset[Feature]
    _values: dict[Feature, _Value]

    def __init__(self, instance: VulkanInstance, device: PhysicalDevice) -> None:
        """Begin with a physical device; subclasses call `_answer_for`. The instance must outlive this."""
        self._instance = instance
        self._commands = instance.commands
        self._device = device
        # Patches do not count: for 1.4.0 on a device of 1.4.305, this is the device's version.
        told, own = instance.api_version, device.identity.api_version
        self.api_version: Final = told if told >> _PATCH_BITS < own >> _PATCH_BITS else own
        self._formats: dict[int, tuple[int, int, int]] = {}

    def _answer_for(self, extensions: Iterable[str], enabled: Iterable[Feature]) -> None:
        self.extensions = tuple(sorted(extensions))
        self._names = frozenset(self.extensions) | self._instance.extensions
        self._enabled = frozenset(name for each in enabled for name in same_members(*each))
        self._values = self._read_properties(self._names)

    @property
    def supported(self) -> Capabilities:
        """What the device could enable if it were opened again; for a host's device, only this."""
        return self

    def has_extension(self, name: str) -> bool:
        """Whether an extension is enabled."""
        return name in self._names

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is enabled, by any of its names."""
        return (registry().aliases.get(struct, struct), member) in self._enabled

    def property_value(self, struct: str, member: str) -> _Value | None:
        """Value of a property, or None where the device does not have it."""
        return self._values.get((registry().aliases.get(struct, struct), member))

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """VkFormatProperties: (linearTiling, optimalTiling, buffer) features."""
        if (known := self._formats.get(format_number)) is None:
            answer = ffi.new("VkFormatProperties *")
            self._commands.vkGetPhysicalDeviceFormatProperties(self._device.handle, format_number, answer)
            known = answer.linearTilingFeatures, answer.optimalTilingFeatures, answer.bufferFeatures
            self._formats[format_number] = known
        return known

    def _features_of_device(self, extensions: frozenset[str]) -> set[Feature]:
        queried = StructChain(self._structs_with(extensions))
        self._commands.vkGetPhysicalDeviceFeatures2(
            self._device.handle, queried.pointer(f"{FEATURES_ROOT} *")
        )
        return {feature for feature, member, at in queried.members() if queried.value(member, at)}

    def _structs_with(self, extensions: frozenset[str]) -> tuple[Struct, ...]:
        return _available(FEATURES_ROOT, self.api_version, extensions | self._instance.extensions)

    def _features_with(self, extensions: frozenset[str]) -> set[Feature]:
        return {
            (_core_name(struct.name), member.name)
            for struct in self._structs_with(extensions)
            for member in _members(struct)
        }

    def _read_properties(self, present: frozenset[str]) -> dict[Feature, _Value]:
        chain = StructChain(_available(PROPERTIES_ROOT, self.api_version, present, core_only=False))
        self._commands.vkGetPhysicalDeviceProperties2(
            self._device.handle, chain.pointer(f"{PROPERTIES_ROOT} *")
        )
        values = {name: chain.value(member, at) for name, member, at in chain.members()}
        limits = {each.name for each in registry().struct("VkPhysicalDeviceLimits").members}
        for (struct_name, member_name), value in list(values.items()):
            if struct_name == "VkPhysicalDeviceProperties" and member_name in limits:
                values["VkPhysicalDeviceLimits", member_name] = value
        return values


class ChosenCapabilities(Capabilities):
    """What to enable on a new device; `features` is the chain for vkCreateDevice.

    Extensions to choose from, and features that the device has with them, are asked of it where not given.
    """

    def __init__(
        self,
        instance: VulkanInstance,
        device: PhysicalDevice,
        request: DeviceRequest,
        *,
        available: frozenset[str] | None = None,
        supported: set[Feature] | None = None,
    ) -> None:
        """Choose what to enable on a physical device."""
        super().__init__(instance, device)
        self._request = request
        if available is None:
            available = self._with_dependencies(
                {
                    each
                    for each in device.extensions.intersection(registry().extensions)
                    if each in request.extensions or not _UNWANTED_EXTENSIONS.fullmatch(each)
                }
            )
        if supported is None:
            supported = self._features_of_device(available)
        self._available, self._supported = available, supported
        chosen, enabled = self._settle(self._choose())
        self.features = self._write(chosen, enabled)
        self._answer_for(chosen, enabled)

    @cached_property
    def supported(self) -> Capabilities:
        """The same device with everything enabled that may be."""
        return ChosenCapabilities(
            self._instance,
            self._device,
            evolve(self._request, others=OtherFeatures.ALL, orchestrator_features=True),
            available=self._available,
            supported=self._supported,
        )

    def _choose(self) -> set[Feature]:
        request = self._request
        wanted = {name for each in request.features for name in same_members(*each)}
        own = request.orchestrator_features
        if own is None:
            own = self._device.identity.driver_id in _KEYS_LEFT_ALONE
        for feature, base in _BUILT_ON:
            if feature in wanted:
                wanted |= set(same_members(*base))
        settled = evolve(request, features=frozenset(wanted), orchestrator_features=own)
        enabled = {each for each in self._supported if settled.enables(same_members(*each))}
        self._make_valid(enabled, wanted)
        return enabled

    def _make_valid(self, enabled: set[Feature], wanted: set[Feature]) -> None:
        def is_on(feature: Feature) -> bool:
            return not enabled.isdisjoint(same_members(*feature))

        def turn_off(feature: Feature) -> None:
            enabled.difference_update(same_members(*feature))

        for first, second in _EXCLUSIVE:
            if is_on(first) and is_on(second):
                turn_off(second if first in wanted and second not in wanted else first)
        if is_on((BASE_FEATURES, "robustBufferAccess")):
            values = self._read_properties(self._available | self._instance.extensions)
            member = "robustBufferAccessUpdateAfterBind"
            names_of = same_members("VkPhysicalDeviceDescriptorIndexingProperties", member)
            if not any(values.get(name) for name in names_of):
                for each in _BUFFERS_AFTER_BIND:
                    turn_off(each)
        for feature, base in _BUILT_ON:
            if is_on(feature) and not is_on(base):
                turn_off(feature)

    def _settle(self, enabled: set[Feature]) -> tuple[frozenset[str], set[Feature]]:
        while True:
            chosen = self._with_dependencies(self._extensions_for(enabled))
            provided = self._features_with(chosen)
            left = {each for each in enabled if not provided.isdisjoint(same_members(*each))}
            if left == enabled:
                return chosen, enabled
            enabled = left

    def _extensions_for(self, enabled: set[Feature]) -> set[str]:
        def any_of(name: str, features: set[Feature]) -> bool:
            return any(
                not features.isdisjoint(same_members(struct, member.name))
                for struct in feature_structs().get(name, ())
                for member in _members(registry().struct(struct))
            )

        request, available = self._request, self._available
        if request.others is OtherFeatures.NONE:
            has, known = _provided(self.api_version, frozenset()), registry().extensions
            promoted = {name for name in available if has(known[name].promoted_to)}
            # A version may promote an extension without its features (VK_EXT_4444_formats in 1.3): then the
            # extension is needed.
            of_version = self._features_with(frozenset())
            lacking = {each for each in enabled if of_version.isdisjoint(same_members(*each))}
            chosen = {name for name in available - promoted if any_of(name, enabled)}
            chosen |= {name for name in promoted if any_of(name, lacking)}
            # Feedback has no feature. It changes no pipeline, and distinguishes hits from compiles.
            chosen |= (request.extensions | {"VK_EXT_pipeline_creation_feedback"}) & (available - promoted)
        else:
            supported = self._supported
            chosen = {name for name in available if any_of(name, enabled) or not any_of(name, supported)}
            chosen |= request.extensions & available
        chosen = self._complete(chosen)
        for feature, excluded in _EXCLUDES_EXTENSION:
            if not enabled.isdisjoint(same_members(*feature)):
                chosen.discard(excluded)
        return chosen

    def _complete(self, chosen: set[str]) -> set[str]:
        known = registry().extensions
        while True:
            has = _provided(self.api_version, frozenset(chosen) | self._instance.extensions)
            added = {name for each in chosen for name in lacking(known[each].depends, has)}
            added &= self._available
            if added <= chosen:
                return chosen
            chosen = chosen | added

    def _with_dependencies(self, chosen: set[str]) -> frozenset[str]:
        return _with_dependencies(frozenset(chosen), self.api_version, self._instance.extensions)

    def _write(self, extensions: frozenset[str], enabled: set[Feature]) -> StructChain:
        structs = [
            struct
            for struct in self._structs_with(extensions)
            if struct.name == FEATURES_ROOT
            or any((_core_name(struct.name), member.name) in enabled for member in _members(struct))
        ]
        chain = StructChain(structs)
        required = {
            name
            for each in extensions
            for feature in (*registry().extensions[each].features, *_FEATURES_OF_EXTENSION.get(each, ()))
            for name in same_members(*feature)
        }
        written = set()
        for feature, _, at in chain.members():
            if feature in enabled or (feature in required and is_collection(feature[0])):
                chain.set_true(at)
                written.add(feature)
        enabled |= written
        return chain


class HostCapabilities(Capabilities):
    """What a host enabled on a device that it created itself."""

    def __init__(
        self,
        instance: VulkanInstance,
        device: PhysicalDevice,
        extensions: Iterable[str],
        features: Iterable[Feature],
    ) -> None:
        """Accept what a host declares, if the physical device supports it."""
        super().__init__(instance, device)
        present = frozenset(extensions)
        enabled = set(map(_known_feature, features))
        names = {each: same_members(*each) for each in enabled}
        supported = self._features_of_device(present)
        if lacking := sorted(each for each in enabled if supported.isdisjoint(names[each])):
            listed = ", ".join("::".join(each) for each in lacking)
            raise ValueError(
                f"{device.identity.device_name} does not have {listed} with the version and the extensions "
                "that are said to be enabled, so its host cannot have enabled it"
            )
        self._answer_for(present, enabled)


@functools.lru_cache(maxsize=64)
def _with_dependencies(
    chosen: frozenset[str], api_version: int, of_instance: frozenset[str]
) -> frozenset[str]:
    known = registry().extensions
    while True:
        has = _provided(api_version, chosen | of_instance)
        unfulfilled = {each for each in chosen if not evaluate(known[each].depends, has)}
        if not unfulfilled:
            return chosen
        chosen = chosen - unfulfilled


def features_of_chain(address: int) -> frozenset[Feature]:
    """The features that a pNext chain for vkCreateDevice enables."""
    found = set()
    while address:
        s_type, address_of_next = binary.unpack("<I4xQ", ffi.buffer(ffi.cast("char *", address), 16))
        known = structs_by_type().get(s_type)
        if known is not None and FEATURES_ROOT in (known.name, *known.extends):
            memory = ffi.buffer(ffi.cast("char *", address), known.size)
            found |= {
                (_core_name(known.name), member.name)
                for member, at in _leaves(known, 0)
                if any(memory[at : at + member.size])
            }
        address = address_of_next
    return frozenset(found)


def _known_feature(feature: Feature) -> Feature:
    if not isinstance(feature, tuple | list) or len(feature) != 2:
        raise TypeError(
            "enabled_features are pairs such as ('VkPhysicalDeviceFeatures', 'geometryShader'), not "
            f"{feature!r}"
        )
    struct, member = feature
    name = _core_name(registry().aliases.get(struct, struct))
    known = registry().structs.get(name)
    if known is None or not (name == BASE_FEATURES or FEATURES_ROOT in known.extends):
        what = "a structure of features"
    elif all(each.name != member for each in _members(known)):
        what = "a feature"
    else:
        return name, member
    raise ValueError(f"{struct}::{member} is not {what} of Vulkan {registry().version}: is it spelled right?")


def _core_name(name: str) -> str:
    return name[:-1] if name in (FEATURES_ROOT, PROPERTIES_ROOT) else name


def _members(struct: Struct) -> Iterable[Any]:
    held = registry().struct(BASE_FEATURES) if struct.name == FEATURES_ROOT else struct
    return (each for each in held.members if each.name not in ("sType", "pNext"))


@functools.lru_cache(maxsize=64)
def _available(
    root: str, api_version: int, present: frozenset[str], *, core_only: bool = True
) -> tuple[Struct, ...]:
    has, every = _provided(api_version, present), registry().structs.values()
    here = [each for each in every if root in each.extends and evaluate(each.requires, has)]
    if core_only:
        core = {each.name for each in here if is_collection(each.name)}
        promoted = {member.name for each in here if each.name in core for member in _members(each)}
        here = [
            each
            for each in here
            if each.name in core
            or "VERSION" not in each.requires
            or any(member.name not in promoted for member in _members(each))
        ]
    return (registry().struct(root), *here)
