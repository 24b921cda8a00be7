# Purpose: the objects that pipelines refer to (modules, samplers, layouts, render passes) and the application,
# as records; the lower half of `PipelineSetBuilder`, which adds the pipelines.
#
# Every method returns the key of its record. Keys are those that the format's recorders compute (`hashes`,
# `state_hashes`), so that a set packed here and a capture of the same things hold the same records, and keys are
# stable across runs and machines. Things that differ only in what does not reach the compiled code have one key;
# the first of them is the record.
#
# Guarantees: a record is written whole or not at all, with everything that it refers to before it.
# Assumptions: one thread builds.
"""`ObjectBuilder`: what pipelines refer to, made in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
from attrs import define, field

from orchestrator.errors import ManifestError, RecordError
from orchestrator.sets.applications import encode_application, encode_link
from orchestrator.sets.documents import decode_document
from orchestrator.sets.hashes import module_hash
from orchestrator.sets.records import RecordTag
from orchestrator.sets.render_passes import encode_render_pass
from orchestrator.sets.shader_interface import ShaderInterface, shader_interface
from orchestrator.sets.stages import ShaderStage, automatic_bindings, stage_bit
from orchestrator.sets.state_hashes import SubpassUse, state_hash, subpass_uses
from orchestrator.sets.structures import encode_structure, handle
from orchestrator.sets.varint import encode_varint

Members = Mapping[str, object]
Flags = str | int | Sequence[str | int]

FORMAT_VERSION = 6
_TABLES = {
    RecordTag.SAMPLER: "samplers",
    RecordTag.DESCRIPTOR_SET_LAYOUT: "setLayouts",
    RecordTag.PIPELINE_LAYOUT: "pipelineLayouts",
    RecordTag.GRAPHICS_PIPELINE: "graphicsPipelines",
    RecordTag.COMPUTE_PIPELINE: "computePipelines",
    RecordTag.RAY_TRACING_PIPELINE: "raytracingPipelines",
}


class RecordSink(Protocol):
    """Takes records; `orchestrator.sets.memory.MemoryRecords` is one."""

    def add(self, tag: RecordTag, key: int, payload: bytes) -> object:
        """Take a record. One of equal tag and key may come again, with the same payload."""


@define(eq=False)
class ObjectBuilder:
    """Builds the records of a set's objects. Not thread-safe.

    Attributes:
        records: Where records go, such as a `MemoryRecords`.
        where: What messages call the thing that is being added; set it before a call to name your own entry.
    """

    records: RecordSink
    where: str = "set"
    _keys: dict[RecordTag, set[int]] = field(init=False, factory=dict)
    _interfaces: dict[int, ShaderInterface] = field(init=False, factory=dict)
    _render_passes: dict[int, dict[str, object]] = field(init=False, factory=dict)
    _subpasses: dict[int, tuple[SubpassUse, ...]] = field(init=False, factory=dict)
    _application: int | None = field(init=False, default=None)

    def application(
        self,
        name: str = "",
        engine: str = "",
        *,
        robust_buffer_access: bool = False,
        features: Sequence[Members] = (),
        application_version: int = 0,
        engine_version: int = 0,
        api_version: str = "1.3",
    ) -> int:
        """Say which application the set belongs to. At most once, and before everything else.

        Every later record is linked to it, so that the set keeps its settings when archives are merged.

        Args:
            name: Name of the application.
            engine: Name of its engine.
            robust_buffer_access: Whether it compiles with robustBufferAccess.
            features: Feature structures that its pipelines were made under, each a mapping that names its
                ``structure`` (such as VkPhysicalDeviceMeshShaderFeaturesEXT) and gives members.
            application_version: As VkApplicationInfo has it.
            engine_version: As VkApplicationInfo has it.
            api_version: Such as ``1.3``.

        Returns:
            Key of the record.

        Raises:
            ManifestError: It was called before, comes late, or a structure or member is unknown.
        """
        if self._application is not None or self._keys:
            raise ManifestError(f"{self.where}: the application is named once, before everything else")
        self._application, payload = encode_application(
            name=name,
            engine=engine,
            robust_buffer_access=robust_buffer_access,
            features=features,
            application_version=application_version,
            engine_version=engine_version,
            api_version=api_version,
            format_version=FORMAT_VERSION,
            where=self.where,
        )
        self.records.add(RecordTag.APPLICATION_INFO, self._application, payload)
        return self._application

    def shader_module(self, spirv: bytes, flags: int = 0) -> int:
        """Add a shader module.

        Args:
            spirv: Its code, little-endian words.
            flags: VkShaderModuleCreateFlags.

        Raises:
            ManifestError: The code is not SPIR-V.
        """
        interface = shader_interface(spirv, self.where)
        key = module_hash(spirv, flags)
        if key not in self._interfaces:
            packed = encode_varint(np.frombuffer(spirv, "<u4"))
            entry = {"varintOffset": 0, "varintSize": len(packed), "codeSize": len(spirv), "flags": flags}
            text = msgspec.json.encode({"version": FORMAT_VERSION, "shaderModules": {handle(key): entry}})
            self._put(RecordTag.SHADER_MODULE, key, text + b"\0" + packed)
            self._interfaces[key] = interface
        return key

    def interface(self, module: int) -> ShaderInterface:
        """What a module that was added says about itself.

        Raises:
            ManifestError: There is no such module.
        """
        if module not in self._interfaces:
            raise ManifestError(f"{self.where}: shader module {module:016x} was not added to this set")
        return self._interfaces[module]

    def sampler(self, **members: object) -> int:
        """Add a sampler.

        Args:
            **members: Members of VkSamplerCreateInfo, in snake case; ``p_next`` for its pNext chain.

        Raises:
            ManifestError: A member is unknown or does not fit.
        """
        defaults = {"max_lod": 1000.0, "max_anisotropy": 1.0}
        document = encode_structure("VkSamplerCreateInfo", {**defaults, **members}, self.where)
        return self._add(RecordTag.SAMPLER, document)

    def descriptor_set_layout(
        self, bindings: Sequence[Members], flags: Flags = 0, p_next: Sequence[Members] = ()
    ) -> int:
        """Add a descriptor set layout.

        Args:
            bindings: Members of VkDescriptorSetLayoutBinding each; ``descriptor_count`` is 1 (or
                the number of samplers) and
                ``stage_flags`` is all where not given; ``immutable_samplers`` are keys of samplers.
            flags: VkDescriptorSetLayoutCreateFlags.
            p_next: Structures of the pNext chain.

        Raises:
            ManifestError: A member is unknown or does not fit, or a sampler was not added.
        """
        full = [{"stage_flags": "all", **each} for each in bindings]
        for each in full:
            if not each.get("immutable_samplers"):
                each.setdefault("descriptor_count", 1)
        for each in full:
            self._require(RecordTag.SAMPLER, each.get("immutable_samplers") or (), "sampler")
        members = {"flags": flags, "bindings": full, "p_next": p_next}
        document = encode_structure("VkDescriptorSetLayoutCreateInfo", members, self.where)
        return self._add(RecordTag.DESCRIPTOR_SET_LAYOUT, document)

    def pipeline_layout(
        self,
        set_layouts: Sequence[int | None] = (),
        push_constant_ranges: Sequence[Members] = (),
        flags: Flags = 0,
    ) -> int:
        """Add a pipeline layout.

        Args:
            set_layouts: Keys of descriptor set layouts; None for a set that is not used.
            push_constant_ranges: Members of VkPushConstantRange each.
            flags: VkPipelineLayoutCreateFlags.

        Raises:
            ManifestError: A member is unknown or does not fit, or a set layout was not added.
        """
        self._require(
            RecordTag.DESCRIPTOR_SET_LAYOUT, [each for each in set_layouts if each is not None], "set layout"
        )
        members = {
            "flags": flags,
            "push_constant_ranges": list(push_constant_ranges),
            "set_layouts": [each or 0 for each in set_layouts],
        }
        return self._add(
            RecordTag.PIPELINE_LAYOUT, encode_structure("VkPipelineLayoutCreateInfo", members, self.where)
        )

    def automatic_layout(self, stages: Sequence[ShaderStage]) -> int:
        """Add the pipeline layout that shaders need together, from the decorations in their modules.

        Raises:
            ManifestError: Two shaders disagree on a binding, or one has an array without a length.
        """
        shaders = [
            (stage_bit(each, self.interface(each.module), self.where), self.interface(each.module))
            for each in stages
        ]
        sets, ranges = automatic_bindings(shaders, self.where)
        return self.pipeline_layout([self.descriptor_set_layout(each) for each in sets], ranges)

    def render_pass(self, document: Members, *, version: Literal[1, 2] = 2) -> int:
        """Add a render pass; see `orchestrator.sets.render_passes.encode_render_pass` for its short form.

        Args:
            document: Members of VkRenderPassCreateInfo2, or of VkRenderPassCreateInfo for version 1, in snake
                case or the archive's spelling.
            version: Which of the two.

        Raises:
            ManifestError: A member is unknown or does not fit.
        """
        encoded = encode_render_pass(document, self.where, version=version)
        table = "renderPasses2" if version == 2 else "renderPasses"
        key = self._add(RecordTag.RENDER_PASS, encoded, table)
        self._render_passes.setdefault(key, encoded)
        return key

    def _require(self, tag: RecordTag, keys: object, what: str) -> None:
        """Check that keys were added."""
        known = self._keys.get(tag, set())
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise ManifestError(f"{self.where}: a list of {what} keys is expected, not {keys!r}")
        for each in keys:
            if each not in known:
                shown = f"{each:016x}" if isinstance(each, int) else repr(each)
                raise ManifestError(f"{self.where}: {what} {shown} was not added to this set")

    def _add(self, tag: RecordTag, document: Members, table: str = "") -> int:
        """Add a record under the key that it has in the format; see the top of the module for equal keys."""
        table = table or _TABLES[tag]
        unnamed = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(None): document}})
        try:
            value = decode_document(tag, 0, unnamed)
        except RecordError as error:
            raise ManifestError(f"{self.where}: {error.reason}") from error
        key = state_hash(value, self._subpasses.__getitem__)
        if tag is RecordTag.RENDER_PASS:
            self._subpasses[key] = subpass_uses(value)
        if key not in self._keys.get(tag, ()):
            named = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(key): document}})
            self._put(tag, key, named)
        return key

    def _put(self, tag: RecordTag, key: int, payload: bytes) -> None:
        self._keys.setdefault(tag, set()).add(key)
        self.records.add(tag, key, payload)
        if self._application is not None:
            link, text = encode_link(self._application, int(tag), key, FORMAT_VERSION)
            self.records.add(RecordTag.APPLICATION_BLOB_LINK, link, text)
