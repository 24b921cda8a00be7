# Purpose: jobs added in code: an engine describes shaders, layouts and pipelines with the specification's words
# and gets a set of records, the same as a capture would have given.
#
# Guarantees: those of `ObjectBuilder`, whose methods this class has too; what cannot be right (unknown member,
# name, key, constant, entry point) is a ManifestError that names it.
# Assumptions: one thread builds; the records can be read from any thread once building has ended.
"""`PipelineSetBuilder`: pipeline sets made in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import define, field

from orchestrator.errors import ManifestError
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
from orchestrator.sets.names import flags_number
from orchestrator.sets.object_builder import Flags, Members, ObjectBuilder
from orchestrator.sets.records import RecordTag
from orchestrator.sets.render_passes import Rendering, subpass_attachments
from orchestrator.sets.shader_groups import encode_groups
from orchestrator.sets.stages import (
    ShaderStage,
    Specialization,
    automatic_vertex_input,
    encode_stage,
    stage_bit,
)
from orchestrator.sets.structures import encode_chain, encode_structure, handle

Layout = int | Literal["auto"] | None

_LIBRARY = 0x800  # VK_PIPELINE_CREATE_LIBRARY_BIT_KHR


@define
class _Library:
    """What a link has to know of a pipeline library."""

    layout: int | None
    parts: int = 0


@define(eq=False)
class PipelineSetBuilder(ObjectBuilder):
    """Builds the records of a pipeline set. Not thread-safe.

    Attributes:
        records: Where records go, such as a `MemoryRecords`.
        where: What messages call the thing that is being added; set it before a call to name your own entry.
    """

    _libraries: dict[int, _Library] = field(init=False, factory=dict)

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


def _flag_list(flags: Flags) -> str | int | list[str]:
    if isinstance(flags, str | int):
        return flags
    return [str(each) for each in flags]
