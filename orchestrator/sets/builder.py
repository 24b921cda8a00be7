# Purpose: jobs added in code: an engine describes shaders, layouts and pipelines with the specification's words
# and gets a set of records, the same as a capture would have given.
#
# Every method returns the key of its record, a 64-bit hash of the record's content, so equal things are one
# record and keys are stable across runs and machines. Modules are keyed by the archive's own module hash, which
# readers recompute; all other keys are `record_hash` of the JSON, because readers use them as names only.
#
# Guarantees: a record is written whole or not at all, with everything that it refers to before it; what cannot
# be right (unknown member, name, key, constant, entry point) is a ManifestError that names it.
# Assumptions: one thread builds; the records can be read from any thread once building has ended.
"""`PipelineSetBuilder`: pipeline sets made in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
from attrs import define, field

from orchestrator.errors import ManifestError
from orchestrator.sets.applications import encode_application, encode_link
from orchestrator.sets.graphics_state import (
    ALL_PARTS,
    FRAGMENT_OUTPUT_INTERFACE,
    FRAGMENT_SHADER,
    MESH_STAGE,
    PRE_RASTERIZATION_SHADERS,
    VERTEX_INPUT_INTERFACE,
    Attachments,
    encode_graphics_state,
)
from orchestrator.sets.hashes import module_hash, record_hash
from orchestrator.sets.names import flags_number
from orchestrator.sets.records import RecordTag
from orchestrator.sets.render_passes import Rendering, encode_render_pass, subpass_attachments
from orchestrator.sets.shader_groups import encode_groups
from orchestrator.sets.shader_interface import ShaderInterface, shader_interface
from orchestrator.sets.stages import (
    ShaderStage,
    Specialization,
    automatic_bindings,
    automatic_vertex_input,
    encode_stage,
    stage_bit,
)
from orchestrator.sets.structures import encode_chain, encode_structure, handle
from orchestrator.sets.varint import encode_varint

Members = Mapping[str, object]
Layout = int | Literal["auto"] | None
Flags = str | int | Sequence[str | int]

FORMAT_VERSION = 6
_LIBRARY = 0x800  # VK_PIPELINE_CREATE_LIBRARY_BIT_KHR
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


@define
class _Library:
    """What a link has to know of a pipeline library."""

    layout: int | None
    parts: int = 0


@define(eq=False)
class PipelineSetBuilder:
    """Builds the records of a pipeline set. Not thread-safe.

    Attributes:
        records: Where records go, such as a `MemoryRecords`.
        where: What messages call the thing that is being added; set it before a call to name your own entry.
    """

    records: RecordSink
    where: str = "set"
    _keys: dict[RecordTag, dict[int, bytes]] = field(init=False, factory=dict)
    _interfaces: dict[int, ShaderInterface] = field(init=False, factory=dict)
    _render_passes: dict[int, dict[str, object]] = field(init=False, factory=dict)
    _libraries: dict[int, _Library] = field(init=False, factory=dict)
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
        self._render_passes[key] = encoded
        return key

    def compute_pipeline(
        self,
        layout: Layout,
        module: int,
        entry: str = "main",
        specialization: Specialization | None = None,
        *,
        required_subgroup_size: int | None = None,
        flags: Flags = 0,
        stage_flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a compute pipeline.

        Args:
            layout: Key of a pipeline layout, or "auto" for `automatic_layout`.
            module: Key of a shader module.
            entry: Entry point.
            specialization: Values by constant id or name.
            required_subgroup_size: Of the stage, or None.
            flags: VkPipelineCreateFlags.
            stage_flags: VkPipelineShaderStageCreateFlags.
            p_next: Structures of the pNext chain.

        Raises:
            ManifestError: A key, name or member is unknown.
        """
        stage = ShaderStage(
            module, entry, "compute", specialization or {}, required_subgroup_size, _flag_list(stage_flags)
        )
        document: dict[str, object] = {
            "flags": flags_number("VkPipelineCreateFlags", flags, f"{self.where}.flags"),
            "layout": handle(self._layout(layout, [stage])),
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "stage": encode_stage(stage, self.interface(module), self.where),
        }
        if p_next:
            document["pNext"] = encode_chain("VkComputePipelineCreateInfo", p_next, f"{self.where}.p_next")
        return self._add(RecordTag.COMPUTE_PIPELINE, document)

    def graphics_pipeline(
        self,
        stages: Sequence[ShaderStage] = (),
        layout: Layout = "auto",
        *,
        render_pass: int | None = None,
        subpass: int = 0,
        rendering: Rendering | None = None,
        vertex_input: Members | Literal["auto"] = "auto",
        libraries: Sequence[int] = (),
        library_flags: Flags = 0,
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
        **state: object,
    ) -> int:
        """Add a graphics pipeline, a graphics pipeline library, or a link of libraries.

        Args:
            stages: Its shaders.
            layout: Key of a pipeline layout, or "auto": that of the first library linked, else
                `automatic_layout`. None where no part that is described needs one.
            render_pass: Key of a render pass.
            subpass: Its subpass.
            rendering: Formats for dynamic rendering, instead of a render pass.
            vertex_input: Members of VkPipelineVertexInputStateCreateInfo (``bindings``, ``attributes``,
                ``p_next``), or "auto" for the vertex shader's inputs, interleaved in binding 0.
            libraries: Keys of pipeline libraries to link.
            library_flags: VkGraphicsPipelineLibraryFlagsEXT: makes a library of those parts.
            flags: VkPipelineCreateFlags.
            p_next: Structures of the pNext chain.
            **state: Fixed-function state by flat name; see `encode_graphics_state`.

        Raises:
            ManifestError: A key, name or member is unknown, or both or neither way of rendering is given.
        """
        where = self.where
        own = flags_number("VkGraphicsPipelineLibraryFlagsEXT", library_flags, f"{where}.library_flags")
        self._require(RecordTag.GRAPHICS_PIPELINE, libraries, "pipeline library")
        linked = 0
        for each in libraries:
            if each not in self._libraries:
                raise ManifestError(f"{where}: pipeline {each:016x} is linked, but is no library")
            linked |= self._libraries[each].parts
        parts = own or ALL_PARTS & ~linked
        number = flags_number("VkPipelineCreateFlags", flags, f"{where}.flags") | (_LIBRARY if own else 0)
        drawn, formats = self._drawn(parts, render_pass, subpass, rendering)
        bits, encoded_stages = 0, []
        for stage in stages:
            interface = self.interface(stage.module)
            bits |= stage_bit(stage, interface, where)
            encoded_stages.append(encode_stage(stage, interface, where))
        if parts & PRE_RASTERIZATION_SHADERS and not bits & (1 | MESH_STAGE):
            raise ManifestError(f"{where}: a vertex or mesh shader is needed")
        chosen = self._graphics_layout(layout, stages, libraries, parts)
        document: dict[str, object] = {
            "flags": number,
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "layout": handle(chosen),
            "renderPass": handle(render_pass),
            "subpass": subpass,
        }
        if parts:
            document |= encode_graphics_state(state, stages=bits, attachments=drawn, parts=parts, where=where)
        elif state:
            raise ManifestError(
                f"{where}: all parts are linked, so the state {sorted(state)} would be ignored"
            )
        if parts & VERTEX_INPUT_INTERFACE and not bits & MESH_STAGE:
            document["vertexInputState"] = self._vertex_input(vertex_input, stages)
        if encoded_stages:
            document["stages"] = encoded_stages
        chain = [*p_next]
        if formats is not None:
            chain.append(formats)
        if own:
            chain.append({"structure": "VkGraphicsPipelineLibraryCreateInfoEXT", "flags": own})
        if libraries:
            chain.append({"structure": "VkPipelineLibraryCreateInfoKHR", "libraries": list(libraries)})
        if chain:
            document["pNext"] = encode_chain("VkGraphicsPipelineCreateInfo", chain, f"{where}.p_next")
        key = self._add(RecordTag.GRAPHICS_PIPELINE, document)
        if number & _LIBRARY:
            self._libraries[key] = _Library(chosen, own | linked)
        return key

    def ray_tracing_pipeline(
        self,
        stages: Sequence[ShaderStage],
        groups: Sequence[Members] | Literal["auto"] = "auto",
        layout: Layout = "auto",
        *,
        max_pipeline_ray_recursion_depth: int = 1,
        libraries: Sequence[int] = (),
        library: bool = False,
        library_interface: Members | None = None,
        dynamic_state: Flags = (),
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a ray-tracing pipeline or a ray-tracing pipeline library.

        Args:
            stages: Its shaders.
            groups: Members of VkRayTracingShaderGroupCreateInfoKHR each, shaders as indices of stages; the
                type follows from the shaders where it is not given. "auto": a group a shader.
            layout: As for graphics.
            max_pipeline_ray_recursion_depth: As the specification has it.
            libraries: Keys of ray-tracing libraries to link.
            library: Makes a library.
            library_interface: Members of VkRayTracingPipelineInterfaceCreateInfoKHR; needed with libraries.
            dynamic_state: VkDynamicState names.
            flags: VkPipelineCreateFlags.
            p_next: Structures of the pNext chain.

        Raises:
            ManifestError: A key, name or member is unknown, or a group refers to a stage that is not there.
        """
        where = self.where
        self._require(RecordTag.RAY_TRACING_PIPELINE, libraries, "pipeline library")
        if any(each not in self._libraries for each in libraries):
            raise ManifestError(f"{where}: a pipeline is linked that is no library")
        if (library or libraries) and library_interface is None:
            raise ManifestError(
                f"{where}: a library, and a pipeline that links one, needs library_interface "
                "(VUID-VkRayTracingPipelineCreateInfoKHR-pLibraryInfo-03590)"
            )
        bits = [stage_bit(each, self.interface(each.module), where) for each in stages]
        chosen = self._layout(layout, stages, libraries)
        number = flags_number("VkPipelineCreateFlags", flags, f"{where}.flags") | (_LIBRARY if library else 0)
        document: dict[str, object] = {
            "flags": number,
            "layout": handle(chosen),
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "maxPipelineRayRecursionDepth": max_pipeline_ray_recursion_depth,
        }
        if dynamic_state:
            members = {
                "dynamic_state": [dynamic_state]
                if isinstance(dynamic_state, str | int)
                else list(dynamic_state)
            }
            document["dynamicState"] = encode_structure("VkPipelineDynamicStateCreateInfo", members, where)
        document["stages"] = [encode_stage(each, self.interface(each.module), where) for each in stages]
        if library_interface is not None:
            document["libraryInterface"] = encode_structure(
                "VkRayTracingPipelineInterfaceCreateInfoKHR", library_interface, f"{where}.library_interface"
            )
        if libraries:
            document["libraryInfo"] = {"libraries": [handle(each) for each in libraries]}
        document["groups"] = encode_groups(groups, bits, where)
        if p_next:
            document["pNext"] = encode_chain("VkRayTracingPipelineCreateInfoKHR", p_next, f"{where}.p_next")
        key = self._add(RecordTag.RAY_TRACING_PIPELINE, document)
        if library:
            self._libraries[key] = _Library(chosen)
        return key

    def _drawn(
        self, parts: int, render_pass: int | None, subpass: int, rendering: Rendering | None
    ) -> tuple[Attachments, Members | None]:
        """What is drawn into, and the structure that says so for dynamic rendering."""
        if render_pass is not None and rendering is not None:
            raise ManifestError(f"{self.where}: give a render pass or rendering formats, not both")
        if render_pass is not None:
            if render_pass not in self._render_passes:
                raise ManifestError(f"{self.where}: render pass {render_pass:016x} was not added to this set")
            return subpass_attachments(self._render_passes[render_pass], subpass, self.where), None
        if rendering is not None:
            drawn = rendering.attachments(self.where)
            if not parts & FRAGMENT_OUTPUT_INTERFACE:
                # Formats belong to the output part; the others have only the view mask of the structure.
                rendering = Rendering(view_mask=rendering.view_mask)
            return drawn, rendering.structure(self.where)
        if parts & (PRE_RASTERIZATION_SHADERS | FRAGMENT_SHADER | FRAGMENT_OUTPUT_INTERFACE):
            raise ManifestError(f"{self.where}: give a render pass, or rendering formats")
        return Attachments(0, depth=False, stencil=False), None

    def _graphics_layout(
        self, layout: Layout, stages: Sequence[ShaderStage], libraries: Sequence[int], parts: int
    ) -> int | None:
        if layout == "auto" and not libraries and not parts & (PRE_RASTERIZATION_SHADERS | FRAGMENT_SHADER):
            return None
        return self._layout(layout, stages, libraries)

    def _layout(
        self, layout: Layout, stages: Sequence[ShaderStage], libraries: Sequence[int] = ()
    ) -> int | None:
        if layout == "auto":
            for each in libraries:
                if self._libraries[each].layout is not None:
                    return self._libraries[each].layout
            return self.automatic_layout(stages)
        if layout is not None:
            self._require(RecordTag.PIPELINE_LAYOUT, [layout], "pipeline layout")
        return layout

    def _vertex_input(
        self, given: Members | Literal["auto"], stages: Sequence[ShaderStage]
    ) -> dict[str, object]:
        if not isinstance(given, str):
            members: Members = {"bindings": [], "attributes": [], **given}
        else:
            vertex = [
                self.interface(each.module)
                for each in stages
                if stage_bit(each, self.interface(each.module), self.where) == 1
            ]
            if not vertex:
                raise ManifestError(
                    f"{self.where}: without a vertex shader, vertex_input cannot be automatic"
                )
            members = automatic_vertex_input(vertex[0])
        return encode_structure("VkPipelineVertexInputStateCreateInfo", members, f"{self.where}.vertex_input")

    def _require(self, tag: RecordTag, keys: object, what: str) -> None:
        """Check that keys were added."""
        known = self._keys.get(tag, {})
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise ManifestError(f"{self.where}: a list of {what} keys is expected, not {keys!r}")
        for each in keys:
            if each not in known:
                shown = f"{each:016x}" if isinstance(each, int) else repr(each)
                raise ManifestError(f"{self.where}: {what} {shown} was not added to this set")

    def _add(self, tag: RecordTag, document: Members, table: str = "") -> int:
        key = record_hash(msgspec.json.encode(document))
        wrapped = {"version": FORMAT_VERSION, table or _TABLES[tag]: {handle(key): document}}
        self._put(tag, key, msgspec.json.encode(wrapped))
        return key

    def _put(self, tag: RecordTag, key: int, payload: bytes) -> None:
        known = self._keys.setdefault(tag, {})
        if key in known:
            if known[key] != payload:
                raise ManifestError(
                    f"{self.where}: two different {tag.name} records share the hash {key:016x}"
                )
            return
        known[key] = payload
        self.records.add(tag, key, payload)
        if self._application is not None:
            link, text = encode_link(self._application, int(tag), key, FORMAT_VERSION)
            self.records.add(RecordTag.APPLICATION_BLOB_LINK, link, text)


def _flag_list(flags: Flags) -> str | int | list[str]:
    if isinstance(flags, str | int):
        return flags
    return [str(each) for each in flags]
