"""`PipelineSetBuilder` makes sets in code, with the same records as a capture of the same objects.

Every method returns the key of its record, as the format's recorders compute it, so that keys are stable
across runs and machines. Objects that differ only in what does not affect the compiled code share a key; the
first one becomes the record. Short forms (encoders.py) are accepted, and full forms taken unchanged. State
that the driver ignores is left out, as in a capture.

Guarantees: an unknown member, name, key, constant or entry point, and a stage of the wrong kind for its
pipeline or group, are ManifestErrors that name the entry. A record is written whole or not at all, after all
records that it refers to.
Assumptions: one thread builds; the records can be read from any thread once building has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, Protocol

import msgspec
from attrs import define, field

from orchestrator.devices.request import RECORDED_STRUCTURES, Feature
from orchestrator.errors import ManifestError, RecordError, shown
from orchestrator.registry import registry
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.state_hashes import (
    ALL_PARTS,
    FRAGMENT_OUTPUT,
    FRAGMENT_SHADER,
    PRE_RASTERIZATION,
    VERTEX_INPUT,
    state_hash,
    subpass_uses,
)
from orchestrator.sets.authoring.encoders import (
    MESH_STAGE,
    MOST_DIGITS,
    Attachments,
    Flags,
    Members,
    Specialization,
    automatic_bindings,
    automatic_vertex_input,
    encode_graphics_state,
    encode_groups,
    encode_render_pass,
    encode_stage,
    specialized,
    stage_bit,
    subpass_attachments,
    table_of,
)
from orchestrator.sets.authoring.encoders import Rendering as Rendering
from orchestrator.sets.authoring.encoders import ShaderStage as ShaderStage
from orchestrator.sets.authoring.encoders import Subpass as Subpass
from orchestrator.sets.authoring.names import enum_number, flags_number, unknown
from orchestrator.sets.authoring.structures import (
    encode_chain,
    encode_scalar,
    encode_structure,
    handle,
    in_snake_case,
    member_names,
)
from orchestrator.sets.groups import Application, encode_application, encode_link, is_vulkan_version
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.needs.context import wrong_stages
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import FORMAT_VERSION, RecordTag
from orchestrator.sets.spirv.interface import ShaderInterface, shader_interface
from orchestrator.sets.spirv.walk import EntryPoint

Layout = int | Literal["auto"] | None

_LIBRARY: Final = 0x800  # VK_PIPELINE_CREATE_LIBRARY_BIT_KHR


class RecordSink(Protocol):
    """Takes records; `orchestrator.sets.archive.reader.MemoryRecords` is one."""

    def add(self, tag: RecordTag, key: int, payload: bytes) -> object:
        """Take a record. The same record may be given again."""


@define
class _Library:
    layout: int | None
    parts: int = 0


@define(eq=False)
class PipelineSetBuilder:
    """Builds the records of a pipeline set. Not thread-safe.

    Every method that adds something returns the key of its record, and raises a ManifestError where a key,
    name or member is unknown or does not fit. Flags are names, numbers or lists of them; ``p_next`` are the
    structures of a pNext chain, each a mapping with its name as ``structure``.

    Attributes:
        names: Keys of pipelines by the names and tags that `name` gave them.
    """

    records: RecordSink = field(factory=MemoryRecords)  # receives the records
    where: str = "set"  # names the current entry in messages; set it before a call
    names: dict[str, tuple[int, ...]] = field(init=False, factory=dict)
    _keys: dict[RecordTag, set[int]] = field(init=False, factory=dict)
    _interfaces: dict[int, ShaderInterface] = field(init=False, factory=dict)
    _guessed: set[int] = field(init=False, factory=set)  # modules of whose interface only stages are known
    _render_passes: dict[int, Any] = field(init=False, factory=dict)  # decoded
    _application: int | None = field(init=False, default=None)
    _libraries: dict[int, _Library] = field(init=False, factory=dict)

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
        """Name the application of the set. At most once, and before everything else.

        Every later record is linked to it, so that the set keeps its settings when archives are merged.

        The features are the structures that its device enables, each a mapping with its name as ``structure``
        (such as VkPhysicalDeviceMeshShaderFeaturesEXT) and its members; the versions are those of
        VkApplicationInfo.
        """
        if self._application is not None or self._keys:
            raise ManifestError(f"{self.where}: the application is named once, before everything else")
        version = api_version_number(api_version, self.where)
        versions = {"application_version": application_version, "engine_version": engine_version}
        for member, number in versions.items():
            encode_scalar(member_names("VkApplicationInfo")[member], number, f"{self.where}.{member}")
        for each in features:
            struct = registry().aliases.get(str(each.get("structure")), str(each.get("structure")))
            if struct in registry().structs and struct not in RECORDED_STRUCTURES:
                raise ManifestError(
                    f"{self.where}.features: archives cannot record {struct}: leave it out. Of what they "
                    "cannot record, what the pipelines need is enabled. They record "
                    f"{', '.join(sorted(RECORDED_STRUCTURES))}, and robust_buffer_access"
                )
        chain = encode_chain("VkPhysicalDeviceFeatures2", features, f"{self.where}.features")
        self._application, payload = encode_application(
            Application(
                key=0,
                name=name or None,
                engine=engine or None,
                application_version=application_version,
                engine_version=engine_version,
                api_version=version,
                robust_buffer_access=robust_buffer_access,
                features=tuple(map(_feature_members, chain)),
                others_as_needed=True,
            )
        )
        self.records.add(RecordTag.APPLICATION_INFO, self._application, payload)
        return self._application

    def pipeline_set(self) -> PipelineSet:
        """The set so far, with its names; TypeError where the records go elsewhere, as into an archive."""
        if not isinstance(self.records, MemoryRecords):
            raise TypeError(f"the records are in {type(self.records).__name__}: open that as a set")
        return PipelineSet.from_records(self.records, self.names)

    def name(self, pipeline: int, *names: str) -> int:
        """Call a pipeline by names, by which a session finds it; one that several have is a tag.

        Returns its key.
        """
        for each in names:
            self.names[each] = (*self.names.get(each, ()), pipeline)
        return pipeline

    def shader_module(self, spirv: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """Add a shader module by its code, little-endian words, and VkShaderModuleCreateFlags."""
        if not isinstance(spirv, bytes | bytearray | memoryview):
            raise ManifestError(
                f"{self.where}: the code is bytes, such as Path(path).read_bytes() gives, not {spirv!r:.80}"
            )
        flags = flags_number("VkShaderModuleCreateFlags", flags, f"{self.where}: flags")
        spirv = bytes(spirv)
        interface = shader_interface(spirv, self.where)
        key = module_hash(spirv, flags)
        if key not in self._interfaces:
            self._put(RecordTag.SHADER_MODULE, key, encode_module(spirv, flags, key))
            self._interfaces[key] = interface
        return key

    def supplied_module(
        self, key: int, stage: str, entry: str = "main", *, interface: ShaderInterface | None = None
    ) -> int:
        """Name a shader module whose code is supplied later, see `PipelineSet.supplied_by`.

        Called again with the same key, it adds another entry point of the same code.

        Args:
            key: The application's own key of the shader, 64 bits and not 0.
            stage: Name of the stage of its entry point, such as ``compute``.
            entry: Its entry point.
            interface: That of its code (`shader_interface`). Without it layouts and vertex inputs have to be
                given, and nothing can be specialized.
        """
        if not 0 < key < 1 << 64:
            raise ManifestError(
                f"{self.where}: the key of a shader is a number from 1 to 2^64 - 1, not {key}"
            )
        bit = enum_number("VkShaderStageFlagBits", stage, self.where)
        try:
            point = EntryPoint.of_stage(bit, entry)
        except StopIteration:
            raise ManifestError(f"{self.where}: {stage!r} is not one stage that code is for") from None
        known = self._interfaces.get(key)
        if known is not None and key not in self._guessed:
            return key
        if interface is not None:
            self._interfaces[key] = interface
            self._guessed.discard(key)
            return key
        points = known.entry_points if known is not None else ()
        if point not in points:
            self._interfaces[key] = ShaderInterface((*points, point), (), None, (), ())
            self._guessed.add(key)
        return key

    def interface(self, module: int) -> ShaderInterface:
        """The interface of a module that was added."""
        if module not in self._interfaces:
            shown = f"{module:016x}" if isinstance(module, int) else repr(module)[:80]
            raise ManifestError(f"{self.where}: shader module {shown} was not added to this set")
        return self._interfaces[module]

    def _read_interface(self, module: int, needed: str) -> ShaderInterface:
        interface = self.interface(module)
        if module in self._guessed:
            raise ManifestError(
                f"{self.where}: declare the {needed}: the code of shader {module:016x} is not there"
            )
        return interface

    def sampler(self, /, **members: object) -> int:
        """Add a sampler by members of VkSamplerCreateInfo in snake case; ``p_next`` is its pNext chain."""
        defaults = {"max_lod": 1000.0, "max_anisotropy": 1.0}
        given = in_snake_case("VkSamplerCreateInfo", members, self.where)
        document = encode_structure("VkSamplerCreateInfo", {**defaults, **given}, self.where)
        return self._add(RecordTag.SAMPLER, document)

    def descriptor_set_layout(
        self, bindings: Sequence[Members], flags: Flags = 0, p_next: Sequence[Members] = ()
    ) -> int:
        """Add a descriptor set layout.

        Bindings are members of VkDescriptorSetLayoutBinding each. By default ``descriptor_count`` is 1, or
        the number of immutable samplers, and ``stage_flags`` is all. ``immutable_samplers`` are keys of
        samplers.
        """
        full = []
        for index, each in enumerate(bindings):
            binding = in_snake_case("VkDescriptorSetLayoutBinding", each, f"{self.where}.bindings[{index}]")
            samplers = binding.get("immutable_samplers") or ()
            self._require(RecordTag.SAMPLER, samplers, "sampler")
            defaults = {"stage_flags": "all", **({} if samplers else {"descriptor_count": 1})}
            full.append({**defaults, **binding})
        members = {"flags": flags, "bindings": full, "p_next": p_next}
        document = encode_structure("VkDescriptorSetLayoutCreateInfo", members, self.where)
        return self._add(RecordTag.DESCRIPTOR_SET_LAYOUT, document)

    def pipeline_layout(
        self,
        set_layouts: Sequence[int | None] = (),
        push_constant_ranges: Sequence[Members] = (),
        flags: Flags = 0,
    ) -> int:
        """Add a pipeline layout of set layouts by key, None for a set that is not used, and ranges."""
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
        """Add the pipeline layout that some shaders need together, by the decorations in their modules."""
        shaders = []
        for each in stages:
            interface = self._read_interface(each.module, "layout")
            shaders.append((self._stage_bit(each), specialized(interface, each.specialization, self.where)))
        sets, ranges = automatic_bindings(shaders, self.where)
        return self.pipeline_layout([self.descriptor_set_layout(each) for each in sets], ranges)

    def render_pass(self, document: Members, *, version: Literal[1, 2] = 2) -> int:
        """Add a render pass; `encode_render_pass` of this module describes its short form."""
        encoded = encode_render_pass(document, self.where, version=version)
        table = "renderPasses2" if version == 2 else "renderPasses"
        return self._add(RecordTag.RENDER_PASS, encoded, table)

    def _require(self, tag: RecordTag, keys: object, what: str) -> None:
        known = self._keys.get(tag, set())
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise ManifestError(f"{self.where}: a list of {what} keys is expected, not {keys!r}")
        for each in keys:
            if each not in known:
                shown = f"{each:016x}" if isinstance(each, int) else repr(each)
                raise ManifestError(f"{self.where}: {what} {shown} was not added to this set")

    def _add(self, tag: RecordTag, document: Members, table: str = "") -> int:
        table = table or TABLES[tag][0][0]
        unnamed = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(None): document}})
        try:
            value = decode_document(tag, 0, unnamed)
        except RecordError as error:
            raise ManifestError(f"{self.where}: {error.reason}") from error
        key = state_hash(value, lambda render_pass: subpass_uses(self._render_passes[render_pass]))
        if tag is RecordTag.RENDER_PASS:
            self._render_passes.setdefault(key, value)
        if key not in self._keys.get(tag, ()):
            named = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(key): document}})
            self._put(tag, key, named)
        return key

    def _put(self, tag: RecordTag, key: int, payload: bytes) -> None:
        self._keys.setdefault(tag, set()).add(key)
        self.records.add(tag, key, payload)
        if self._application is not None:
            link, text = encode_link(self._application, int(tag), key)
            self.records.add(RecordTag.APPLICATION_BLOB_LINK, link, text)

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
        """Add a compute pipeline of a module by key; a layout by key, or "auto" for `automatic_layout`."""
        stage = ShaderStage(
            module, entry, "compute", specialization or {}, required_subgroup_size, stage_flags
        )
        document = self._pipeline(
            self._flags(flags),
            self._layout(layout, [stage]),
            stage=encode_stage(stage, self.interface(module), self.where),
        )
        if p_next:
            document["pNext"] = encode_chain("VkComputePipelineCreateInfo", p_next, f"{self.where}.p_next")
        return self._add(RecordTag.COMPUTE_PIPELINE, document)

    def graphics_pipeline(
        self,
        stages: Sequence[ShaderStage] = (),
        layout: Layout = "auto",
        *,
        rendering: Rendering | Subpass | None = None,
        state: Members | None = None,
        libraries: Sequence[int] = (),
        library_flags: Flags = 0,
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a graphics pipeline, a graphics pipeline library, or a link of libraries.

        Args:
            stages: Its shaders.
            layout: Key of a pipeline layout, or "auto": that of the first linked library, else
                `automatic_layout`. None where its parts need no layout.
            rendering: Formats for dynamic rendering, or a subpass of a render pass.
            state: Fixed-function state by flat name, see `encode_graphics_state`; and ``vertex_input``:
                members of VkPipelineVertexInputStateCreateInfo (``bindings``, ``attributes``, ``p_next``), or
                "auto", the default, for the vertex shader's inputs, interleaved in binding 0.
            libraries: Keys of pipeline libraries to link.
            library_flags: VkGraphicsPipelineLibraryFlagsEXT, to make a library of these parts.
            flags: VkPipelineCreateFlags.
            p_next: More structures of its chain.
        """
        given = dict(state or {})
        vertex_input = given.pop("vertex_input", "auto")
        where = self.where
        own = flags_number("VkGraphicsPipelineLibraryFlagsEXT", library_flags, f"{where}.library_flags")
        linked = self._linked_parts(RecordTag.GRAPHICS_PIPELINE, libraries)
        parts = own or ALL_PARTS & ~linked
        number = self._flags(flags) | (_LIBRARY if own else 0)
        drawn, formats = self._drawn(parts, rendering)
        bits = reduce(or_, self._stage_bits("VkGraphicsPipelineCreateInfo", stages), 0)
        encoded_stages = [encode_stage(each, self.interface(each.module), where) for each in stages]
        if parts & PRE_RASTERIZATION and not bits & (1 | MESH_STAGE):
            raise ManifestError(f"{where}: a vertex or mesh shader is needed")
        if layout == "auto" and not libraries and not parts & (PRE_RASTERIZATION | FRAGMENT_SHADER):
            layout = None  # its parts need none
        chosen = self._layout(layout, stages, libraries)
        document = self._pipeline(number, chosen)
        document["layout"] = document.pop(
            "layout"
        )  # members keep their order, so that packs keep their bytes
        document["renderPass"] = handle(rendering.render_pass if isinstance(rendering, Subpass) else None)
        document["subpass"] = rendering.subpass if isinstance(rendering, Subpass) else 0
        if parts:
            document |= encode_graphics_state(given, stages=bits, attachments=drawn, parts=parts, where=where)
        elif given:
            raise ManifestError(
                f"{where}: all parts are linked, so the state {sorted(given)} would be ignored"
            )
        if parts & VERTEX_INPUT and not bits & MESH_STAGE:
            document["vertexInputState"] = self._vertex_input(vertex_input, stages)
        if encoded_stages:
            document["stages"] = encoded_stages
        chain = [*p_next, *([] if formats is None else [formats])]
        # Beside libraries, a pipeline has no part of its own that it does not declare.
        if declared := own or (parts if libraries else 0):
            chain.append({"structure": "VkGraphicsPipelineLibraryCreateInfoEXT", "flags": declared})
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
        state: Members | None = None,
        libraries: Sequence[int] = (),
        library_interface: Members | None = None,
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a ray-tracing pipeline or a ray-tracing pipeline library.

        Args:
            stages: Its shaders.
            groups: Members of VkRayTracingShaderGroupCreateInfoKHR each, with shaders as indices of stages;
                the type defaults to the one that fits the shaders. "auto": one group for each shader.
            layout: As for graphics.
            state: ``max_pipeline_ray_recursion_depth`` (default 1) and ``dynamic_state``.
            libraries: Keys of ray-tracing libraries to link.
            library_interface: Members of VkRayTracingPipelineInterfaceCreateInfoKHR; a library, and a
                pipeline that links one, need it.
            flags: VkPipelineCreateFlags; ``library`` makes a library.
            p_next: Structures of the pNext chain.
        """
        where = self.where
        self._linked_parts(RecordTag.RAY_TRACING_PIPELINE, libraries)
        if not stages and not libraries:
            raise ManifestError(
                f"{where}: give stages, or libraries to link "
                "(VUID-VkRayTracingPipelineCreateInfoKHR-pLibraryInfo-07999)"
            )
        number = self._flags(flags)
        if (number & _LIBRARY or libraries) and library_interface is None:
            raise ManifestError(
                f"{where}: a library, and a pipeline that links one, needs library_interface "
                "(VUID-VkRayTracingPipelineCreateInfoKHR-pLibraryInfo-03590)"
            )
        given = {"max_pipeline_ray_recursion_depth": 1, "dynamic_state": (), **(state or {})}
        if len(given) > 2:
            known = ("max_pipeline_ray_recursion_depth", "dynamic_state")
            raise unknown(
                where, "ray-tracing state", next(each for each in given if each not in known), known
            )
        bits = self._stage_bits("VkRayTracingPipelineCreateInfoKHR", stages)
        chosen = self._layout(layout, stages, libraries)
        document = self._pipeline(
            number, chosen, maxPipelineRayRecursionDepth=given["max_pipeline_ray_recursion_depth"]
        )
        dynamic = given["dynamic_state"]
        if dynamic:
            members = {"dynamic_state": [dynamic] if isinstance(dynamic, str | int) else dynamic}
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
        if number & _LIBRARY:
            self._libraries[key] = _Library(chosen)
        return key

    def _flags(self, flags: Flags) -> int:
        return flags_number("VkPipelineCreateFlags", flags, f"{self.where}.flags")

    @staticmethod
    def _pipeline(flags: int, layout: int | None, **members: object) -> dict[str, object]:
        """What pipelines of all kinds have; none of them is a derivative."""
        common = {"basePipelineHandle": handle(None), "basePipelineIndex": -1}
        return {"flags": flags, "layout": handle(layout), **common, **members}

    def _linked_parts(self, tag: RecordTag, libraries: Sequence[int]) -> int:
        self._require(tag, libraries, "pipeline library")
        for each in libraries:
            if each not in self._libraries:
                raise ManifestError(f"{self.where}: pipeline {each:016x} is linked, but is no library")
        return reduce(or_, (self._libraries[each].parts for each in libraries), 0)

    def _stage_bit(self, stage: ShaderStage) -> int:
        if not isinstance(stage, ShaderStage):
            raise ManifestError(
                f"{self.where}: a ShaderStage is expected, such as ShaderStage(module), not {stage!r}"
            )
        return stage_bit(stage, self.interface(stage.module), self.where)

    def _stage_bits(self, structure: str, stages: Sequence[ShaderStage]) -> list[int]:
        bits = [self._stage_bit(each) for each in stages]
        wrong = wrong_stages(structure, bits)
        if wrong is not None:
            raise ManifestError(f"{self.where}: {wrong}")
        return bits

    def _drawn(self, parts: int, rendering: Rendering | Subpass | None) -> tuple[Attachments, Members | None]:
        if isinstance(rendering, Subpass):
            self._require(RecordTag.RENDER_PASS, [rendering.render_pass], "render pass")
            render_pass = self._render_passes[rendering.render_pass]
            return subpass_attachments(render_pass, rendering.subpass, self.where), None
        if rendering is not None:
            if not isinstance(rendering, Rendering):
                raise ManifestError(f"{self.where}: Rendering or Subpass is expected, not {rendering!r}")
            drawn, _ = rendering.encoded(self.where)
            if not parts & FRAGMENT_OUTPUT:
                # Formats belong to the output part; other parts use only the structure's view mask.
                rendering = Rendering(view_mask=rendering.view_mask)
            return drawn, rendering.encoded(self.where)[1]
        if parts & (PRE_RASTERIZATION | FRAGMENT_SHADER | FRAGMENT_OUTPUT):
            raise ManifestError(f"{self.where}: give a render pass, or rendering formats")
        return Attachments(0, depth=False, stencil=False), None

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

    def _vertex_input(self, given: object, stages: Sequence[ShaderStage]) -> dict[str, object]:
        where = f"{self.where}.vertex_input"
        if given != "auto":
            return encode_structure(
                "VkPipelineVertexInputStateCreateInfo",
                {"bindings": [], "attributes": [], **table_of(given, where)},
                where,
            )
        vertex = [each.module for each in stages if self._stage_bit(each) == 1]
        if not vertex:
            raise ManifestError(f"{self.where}: without a vertex shader, vertex_input cannot be automatic")
        members = automatic_vertex_input(self._read_interface(vertex[0], "vertex input"))
        return encode_structure("VkPipelineVertexInputStateCreateInfo", members, where)


def _feature_members(structure: Members) -> tuple[int, dict[str, int]]:
    numbers = {name: value for name, value in structure.items() if isinstance(value, int)}
    return numbers.pop("sType"), numbers


def feature_tables(features: Iterable[Feature]) -> list[dict[str, object]]:
    """Features as `PipelineSetBuilder.application` takes them: one table for each structure, by name."""
    tables: dict[str, dict[str, object]] = {}
    for structure, member in sorted(features):
        tables.setdefault(structure, {"structure": structure})[member] = True
    return list(tables.values())


def api_version_number(text: str, where: str) -> int:
    """VkApplicationInfo::apiVersion for a text such as "1.3"; ManifestError for an invalid one."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(
        each.isascii() and each.isdecimal() and len(each) <= MOST_DIGITS for each in parts
    ):
        raise ManifestError(f'{where}.api_version: {shown(repr(text))} is not a version such as "1.3"')
    major, minor, patch = (int(each) for each in (*parts, "0")[:3])
    version = major << 22 | minor << 12 | patch
    if version == 0 or minor >> 10 or patch >> 12 or not is_vulkan_version(version):
        raise ManifestError(f"{where}.api_version: {text!r} is no version of Vulkan, which begins with 1.0")
    return version
