"""Manifests: pipeline sets written by hand in TOML; docs/manifest.md describes them by example.

A manifest names shaders, layouts, render passes and pipelines. A pipeline may be permuted over specialization
constants, fixed-function state and attachments: it then stands for the cross product of the dimensions, the
last one fastest, each permutation with a readable name. A manifest is decoded into the tables below, so a
misspelt key or a value of the wrong type is refused before anything is built. The registry defines the keys
of free tables (members of Vulkan structures, state).

Guarantees: the same manifest and shaders give the same records in the same order, so that packing twice gives
the same bytes. Nothing is written before the whole manifest was checked. Errors name the file, the entry and
the key. The size of a product is checked before it is enumerated.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
from attrs import Factory, define, frozen

from orchestrator.devices.image import PipelineKind
from orchestrator.errors import ManifestError
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.authoring.builder import PipelineSetBuilder, api_version_number, feature_tables
from orchestrator.sets.authoring.encoders import (
    GROUP,
    SHADER_MEMBERS,
    Rendering,
    ShaderStage,
    Subpass,
    find_constant,
    pack_constant,
    stage_bit,
)
from orchestrator.sets.authoring.names import enum_number, unknown
from orchestrator.sets.authoring.structures import in_snake_case
from orchestrator.sets.image.built import LIBRARY_DEPTH
from orchestrator.sets.inputs import InputError, read_input
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import features_to_record
from orchestrator.sets.spirv.interface import SpecializationConstant

#: Version of the manifest's own format, in its first line: ``manifest = 1``.
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 8 << 20

Names = str | int | list[str | int]
Value = bool | int | float
Table = dict[str, Any]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Refuses keys that it does not have."""


class ApplicationTable(_Strict, frozen=True, kw_only=True):
    """``[application]``; the fields are the arguments of `PipelineSetBuilder.application`."""

    name: str = ""
    engine: str = ""
    robust_buffer_access: bool = False
    application_version: int = 0
    engine_version: int = 0
    api_version: str = "1.3"
    features: list[Table] | None = None


class ShaderTable(_Strict, frozen=True, kw_only=True):
    """``[shaders]`` NAME = { ... }, or a plain path, relative to the manifest."""

    path: str
    entry: str = "main"
    stage: str | None = None  # where several entry points share a name
    constants: dict[str, int] = {}  # names for specialization constants, for modules without debug names
    flags: int = 0


class StageTable(_Strict, frozen=True, kw_only=True):
    """An entry of ``stages`` as a table; a plain name or path is short for a table with that shader only."""

    shader: str
    specialization: dict[str, Value] = {}
    required_subgroup_size: int | None = None
    flags: Names = 0
    p_next: list[Table] = []


class DescriptorSetLayoutTable(_Strict, frozen=True, kw_only=True):
    """``[descriptor_set_layouts.NAME]``."""

    bindings: list[Table] = []
    flags: Names = 0
    p_next: list[Table] = []


class PipelineLayoutTable(_Strict, frozen=True, kw_only=True):
    """``[pipeline_layouts.NAME]``: declared, or derived from ``shaders``."""

    set_layouts: list[str] = []
    push_constant_ranges: list[Table] = []
    flags: Names = 0
    shaders: list[str] = []


class PermutationsTable(_Strict, frozen=True, kw_only=True):
    """``permutations`` of a pipeline: each key is a dimension with a list of values."""

    specialization: dict[str, list[Value]] = {}
    state: dict[str, list[Any]] = {}
    vertex_input: list[str] = []
    render_pass: list[str] = []
    color_formats: list[list[str]] = []
    depth_format: list[str] = []


class ComputeTable(_Strict, frozen=True, kw_only=True):
    """``[compute.NAME]``."""

    shader: str
    layout: str = "auto"
    specialization: dict[str, Value] = {}
    required_subgroup_size: int | None = None
    flags: Names = 0
    stage_flags: Names = 0
    p_next: list[Table] = []
    permutations: PermutationsTable = PermutationsTable()


class GraphicsTable(_Strict, frozen=True, kw_only=True):
    """``[graphics.NAME]``, with a render pass by its name, or formats for dynamic rendering."""

    stages: list[str | StageTable] = []
    layout: str = "auto"
    render_pass: str | None = None
    subpass: int = 0
    color_formats: list[str] | None = None
    depth_format: str | None = None
    stencil_format: str | None = None  # the depth format's own stencil where not given
    view_mask: int = 0
    vertex_input: str | Table = "auto"  # or a name of [vertex_inputs]
    state: Table = {}
    specialization: dict[str, Value] = {}  # for every stage that has the constant
    library: Names = 0  # parts (VkGraphicsPipelineLibraryFlagsEXT): makes a library
    link: list[str] = []  # names of graphics entries that are libraries
    flags: Names = 0
    p_next: list[Table] = []
    permutations: PermutationsTable = PermutationsTable()


class RayTracingTable(_Strict, frozen=True, kw_only=True):
    """``[ray_tracing.NAME]``; groups name their shaders as ``stages`` does, or by index."""

    stages: list[str | StageTable] = []
    groups: Literal["auto"] | list[Table] = "auto"
    layout: str = "auto"
    max_pipeline_ray_recursion_depth: int = 1
    specialization: dict[str, Value] = {}
    library: bool = False
    link: list[str] = []
    library_interface: Table | None = None
    dynamic_state: Names = 0
    flags: Names = 0
    p_next: list[Table] = []
    permutations: PermutationsTable = PermutationsTable()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole manifest, decoded."""

    application: ApplicationTable | None
    shaders: dict[str, ShaderTable]
    samplers: dict[str, Table]
    descriptor_set_layouts: dict[str, DescriptorSetLayoutTable]
    pipeline_layouts: dict[str, PipelineLayoutTable]
    render_passes: dict[str, Table]
    vertex_inputs: dict[str, Table]
    compute: dict[str, ComputeTable]
    graphics: dict[str, GraphicsTable]
    ray_tracing: dict[str, RayTracingTable]


_KINDS: dict[str, Any] = typing.get_type_hints(Manifest)
_NAMED = {name: typing.get_args(kind)[1] for name, kind in _KINDS.items() if name != "application"}
_WITH_AUTO = ("pipeline_layouts", "vertex_inputs")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_T = TypeVar("_T")


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest."""
    try:
        text = read_input(path, MAX_MANIFEST_BYTES).decode("utf-8-sig")
        document = tomllib.loads(text)
    except InputError as error:
        split = "; split it into several manifests" if "larger" in str(error) else ""
        raise ManifestError(f"{path}: {error}{split}") from error
    except (ValueError, RecursionError) as error:  # TOML's own errors, text that is not UTF-8, endless digits
        raise ManifestError(f"{path}: not TOML: {error}") from error
    return decode_manifest(document, str(path))


def decode_manifest(document: dict[str, Any], source: str) -> Manifest:
    """Check the tables of a manifest."""
    tables = dict(document)
    version = tables.pop("manifest", None)
    if isinstance(version, bool | float) or version != MANIFEST_VERSION:  # true and 1.0 equal 1
        found = "is missing" if version is None else f"is {version!r}"
        raise ManifestError(
            f"{source}: `manifest = {MANIFEST_VERSION}` {found}; it names the manifest's format"
        )
    known = (*_NAMED, "application")
    for name in tables:
        if name not in known:
            raise ManifestError(f"{source}: unknown table [{name}]{_meant(name, known)}")
    application = tables.pop("application", None)
    decoded: dict[str, dict[str, Any]] = {}
    for table, kind in _NAMED.items():
        entries = _convert(tables.get(table, {}), dict[str, Any], f"{source}: [{table}]")
        if table == "shaders":
            entries = {
                name: {"path": each} if isinstance(each, str) else each for name, each in entries.items()
            }
        decoded[table] = {
            name: _convert(each, kind, f"{source}: [{table}.{name}]") for name, each in entries.items()
        }
        if table in _WITH_AUTO and "auto" in entries:
            raise ManifestError(f'{source}: [{table}.auto]: "auto" means what the shaders need; rename it')
    return Manifest(
        application=None
        if application is None
        else _convert(application, ApplicationTable, f"{source}: [application]"),
        **decoded,
    )


def _convert(value: Any, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        text = str(error)
        found = _UNKNOWN_FIELD.search(text)
        fields = getattr(kind, "__struct_fields__", ())
        hint = _meant(found.group(1), fields) if found and "`$." not in text.split("- at")[-1] else ""
        raise ManifestError(f"{where}: {text}{hint}") from None


def _meant(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(known)}"


#: Most permutations of one entry, and most pipelines of one manifest.
MAX_PERMUTATIONS = 4096
MAX_PIPELINES = 65536


@frozen
class Permutation:
    """One point of the product."""

    label: str  # such as [LOCAL_SIZE=64,cull_mode=back]; "" where there are no dimensions
    specialization: dict[str, bool | int | float]
    state: dict[str, Any]
    fields: dict[str, Any]  # by the name of the entry's field, such as vertex_input


def permutations_of(table: PermutationsTable, where: str, *, kind: str) -> Iterator[Permutation]:
    """Every permutation of an entry; one without a label if there are no dimensions."""
    fields = ("vertex_input", "render_pass", "color_formats", "depth_format")
    others: list[tuple[str, str, list[Any]]] = [("state", *each) for each in table.state.items()]
    others += [("fields", name, values) for name in fields if (values := getattr(table, name))]
    if others and kind != "graphics":
        raise ManifestError(f"{where}: permutations.{others[0][1]}: only graphics pipelines have that")
    dimensions = [("specialization", *each) for each in table.specialization.items()] + others
    size = 1
    for group, name, values in dimensions:
        if not values:
            raise ManifestError(
                f"{where}: permutations.{group}.{name} lists no values, so nothing would be packed"
            )
        size *= len(values)
    if size > MAX_PERMUTATIONS:
        sizes = " x ".join(str(len(values)) for _, _, values in dimensions)
        raise ManifestError(
            f"{where}: {sizes} = {size} permutations; the limit is {MAX_PERMUTATIONS} an entry"
        )
    for choice in itertools.product(*(values for _, _, values in dimensions)):
        chosen: dict[str, dict[str, Any]] = {"specialization": {}, "state": {}, "fields": {}}
        label = []
        for (group, name, _), value in zip(dimensions, choice, strict=True):
            chosen[group][name] = value
            label.append(f"{name}={_readable(value)}")
        yield Permutation(f"[{','.join(label)}]" if label else "", **chosen)


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "+".join(_readable(each) for each in value)
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_readable(each)}" for name, each in value.items()) + "}"
    return str(value)


MAX_SHADER_BYTES = 64 << 20
_COMPUTE_STAGE = 0x20


@frozen
class PackedPipeline:
    """A pipeline of a manifest."""

    name: str
    kind: PipelineKind
    key: int


@frozen(eq=False)
class PackedSet:
    """A manifest's set in memory."""

    source: PipelineSet  # with the names of its pipelines
    pipelines: tuple[PackedPipeline, ...]
    files: tuple[Path, ...]  # the manifest, and its shaders


def load_manifest(path: Path) -> PackedSet:
    """Build the set that a manifest describes.

    Raises:
        ManifestError: It is invalid, or a shader cannot be read; names the file and the entry.
    """
    manifest = read_manifest(path)
    packer = _Packer.of(path, manifest)
    application = manifest.application
    if application is not None and application.features is None:
        version = api_version_number(application.api_version, f"{path}: application")
        needed = features_to_record(packer.builder.pipeline_set(), version)
        if needed:
            told = msgspec.structs.replace(application, features=feature_tables(needed))
            packer = _Packer.of(path, msgspec.structs.replace(manifest, application=told))
    files = (path, *(path.parent / each.table.path for each in packer.shaders.values()))
    return PackedSet(packer.builder.pipeline_set(), tuple(packer.pipelines), files)


def pack_manifest(path: Path, destination: Path) -> PackedSet:
    """Build the set that a manifest describes and write it as an archive.

    Raises:
        ManifestError: As `load_manifest`; or the archive would overwrite the manifest or one of its shaders.
        ArchiveError: The archive cannot be written.
    """
    packed = load_manifest(path)
    for each in packed.files:
        if os.path.realpath(each) == os.path.realpath(destination):
            raise ManifestError(f"{destination}: cannot be written: it would overwrite the input {each}")
    with ArchiveWriter(destination) as writer:
        packed.source.copy_to(writer)
    return packed


@frozen
class _Shader:
    module: int
    table: ShaderTable


@define(eq=False)
class _Packer:
    path: Path
    manifest: Manifest
    builder: PipelineSetBuilder
    pipelines: list[PackedPipeline] = Factory(list)
    shaders: dict[str, _Shader] = Factory(dict)
    samplers: dict[str, int] = Factory(dict)
    set_layouts: dict[str, int] = Factory(dict)
    layouts: dict[str, int] = Factory(dict)
    render_passes: dict[str, int] = Factory(dict)
    packed: dict[str, list[tuple[str, int]]] = Factory(dict)
    pending: list[str] = Factory(list)
    links_deep: dict[str, int] = Factory(dict)

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> Self:
        packer = cls(path, manifest, PipelineSetBuilder(MemoryRecords(str(path))))
        packer.pack()
        return packer

    def pack(self) -> None:
        manifest = self.manifest
        if manifest.application is not None:
            table = manifest.application
            self._at("application")
            members = {name: getattr(table, name) for name in table.__struct_fields__}
            self.builder.application(**{**members, "features": table.features or []})
        for name, shader in manifest.shaders.items():
            module = self._shader(name, f"shaders.{name}").module
            interface = self.builder.interface(module)
            # An entry point of several stages may be used for each of them.
            if shader.stage is not None or all(each.name != shader.entry for each in interface.entry_points):
                stage = ShaderStage(module, shader.entry, shader.stage)
                stage_bit(stage, interface, f"{self.path}: shaders.{name}")
        for name, sampler in manifest.samplers.items():
            self._at(f"samplers.{name}")
            self.samplers[name] = self.builder.sampler(**sampler)
        self._pack_layouts()
        for name, document in manifest.render_passes.items():
            self._at(f"render_passes.{name}")
            members = dict(document)
            version = members.pop("version", 2)
            if isinstance(version, bool | float) or version not in (1, 2):
                raise self._error(f"version: 1 or 2 is expected, not {version!r}")
            self.render_passes[name] = self.builder.render_pass(members, version=version)
        for kind in PipelineKind.COMPUTE, PipelineKind.GRAPHICS, PipelineKind.RAY_TRACING:
            for name in getattr(manifest, kind.value):
                self._entry(f"{kind.value}.{name}")
        if not self.pipelines:
            raise ManifestError(f"{self.path}: describes no pipeline")

    def _at(self, where: str) -> str:
        self.builder.where = f"{self.path}: {where}"
        return self.builder.where

    def _error(self, text: str) -> ManifestError:
        return ManifestError(f"{self.builder.where}: {text}")

    def _find(self, what: str, name: object, known: Mapping[str, int]) -> int:
        if not isinstance(name, str) or name not in known:
            raise unknown(self.builder.where, what, name, known)
        return known[name]

    def _pack_layouts(self) -> None:
        for name, table in self.manifest.descriptor_set_layouts.items():
            where = self._at(f"descriptor_set_layouts.{name}")
            bindings = []
            for index, given in enumerate(table.bindings):
                binding = in_snake_case("VkDescriptorSetLayoutBinding", given, f"{where}.bindings[{index}]")
                names = binding.get("immutable_samplers", [])
                if not isinstance(names, list):
                    raise self._error("immutable_samplers: a list of names of [samplers] is expected")
                keys = [self._find("sampler", each, self.samplers) for each in names]
                bindings.append({**binding, "immutable_samplers": keys} if keys else binding)
            self.set_layouts[name] = self.builder.descriptor_set_layout(bindings, table.flags, table.p_next)
        for name, layout in self.manifest.pipeline_layouts.items():
            where = self._at(f"pipeline_layouts.{name}")
            if layout.shaders:
                if layout.set_layouts or layout.push_constant_ranges or layout.flags:
                    raise self._error("give shaders to derive the layout from, or declare it, not both")
                stages = [self._stage(each, {}, where) for each in layout.shaders]
                self.layouts[name] = self.builder.automatic_layout(stages)
                continue
            sets = [
                self._find("descriptor set layout", each, self.set_layouts) for each in layout.set_layouts
            ]
            self.layouts[name] = self.builder.pipeline_layout(sets, layout.push_constant_ranges, layout.flags)

    def _shader(self, name: str, where: str) -> _Shader:
        if name in self.shaders:
            return self.shaders[name]
        table = self.manifest.shaders.get(name)
        # Path.is_file raises where the name is too long for a path.
        is_file = os.path.isfile(self.path.parent / name)  # noqa: PTH113
        if table is None and not name.endswith(".spv") and not is_file:
            raise unknown(f"{self.path}: {where}", "shader", name, self.manifest.shaders)
        table = table or ShaderTable(path=name)
        file = self.path.parent / table.path
        try:
            code = read_input(file, MAX_SHADER_BYTES)
        except InputError as error:
            raise ManifestError(f"{self.path}: {where}: {file}: {error}") from error
        outer, self.builder.where = self.builder.where, f"{self.path}: {where}: {table.path}"
        self.shaders[name] = _Shader(self.builder.shader_module(code, table.flags), table)
        self.builder.where = outer
        return self.shaders[name]

    def _constant(self, shader: _Shader, name: str) -> SpecializationConstant | None:
        interface = self.builder.interface(shader.module)
        return find_constant(interface, shader.table.constants.get(name, name))

    def _stage(self, given: str | StageTable, values: Mapping[str, Value], where: str) -> ShaderStage:
        table = StageTable(shader=given) if isinstance(given, str) else given
        shader = self._shader(table.shader, where.removeprefix(f"{self.path}: "))
        specialization: dict[int | str, Value] = {}
        names: dict[int, str] = {}
        for name, value in {**values, **table.specialization}.items():
            constant = self._constant(shader, name)
            if constant is not None:
                other = names.setdefault(constant.constant_id, name)
                if other != name:
                    raise ManifestError(
                        f"{where}: {other!r} and {name!r} are the same specialization constant of "
                        f"{table.shader}; give one"
                    )
                pack_constant(constant, value, f"{where}.specialization.{name}")  # its name is known here
                specialization[constant.constant_id] = value
            elif name in table.specialization:
                number = shader.table.constants.get(name, name)
                specialization[number] = value  # the builder refuses it by name
        return ShaderStage(
            module=shader.module,
            entry=shader.table.entry,
            stage=shader.table.stage,
            specialization=specialization,
            required_subgroup_size=table.required_subgroup_size,
            flags=table.flags,
            p_next=table.p_next,
        )

    def _stages(
        self, given: Sequence[str | StageTable], values: Mapping[str, Value], where: str
    ) -> list[ShaderStage]:
        tables = [StageTable(shader=each) if isinstance(each, str) else each for each in given]
        stages = [self._stage(each, values, where) for each in tables]
        for name in values:
            having = [each for each in tables if self._constant(self._shader(each.shader, where), name)]
            if not having:
                interfaces = [self.builder.interface(each.module) for each in stages]
                there = [each for interface in interfaces for each in interface.specialization]
                known = [each.name or str(each.constant_id) for each in there]
                raise unknown(where, "specialization constant", name, known)
            if all(name in table.specialization for table in having):
                raise ManifestError(
                    f"{where}.specialization.{name}: would be ignored: each stage that has it gives its own"
                )
        return stages

    def _layout(self, name: str) -> int | Literal["auto"]:
        return "auto" if name == "auto" else self._find("pipeline layout", name, self.layouts)

    def _entry(self, entry: str) -> list[tuple[str, int]]:
        if entry in self.pending:
            cycle = " -> ".join([*self.pending[self.pending.index(entry) :], entry])
            raise ManifestError(f"{self.path}: {entry}: libraries link each other: {cycle}")
        if len(self.pending) + self.links_deep.get(entry, 0) > LIBRARY_DEPTH:
            raise ManifestError(
                f"{self.path}: {self.pending[0]}: links libraries more than {LIBRARY_DEPTH} deep, through "
                f"{entry}; link some of them directly"
            )
        if entry in self.packed:
            return self.packed[entry]
        self.pending.append(entry)
        kind, _, name = entry.partition(".")
        table = getattr(self.manifest, kind)[name]
        linked = getattr(table, "link", [])
        keys: list[tuple[str, int]] = []
        for permutation in permutations_of(table.permutations, f"{self.path}: {entry}", kind=kind):
            for label, libraries in self._links(kind, linked, entry):
                full = f"{entry}{permutation.label}{label}"
                where = self._at(full)
                match table:
                    case ComputeTable():
                        key = self._compute(table, permutation, where)
                    case GraphicsTable():
                        key = self._graphics(table, permutation, libraries, where)
                    case RayTracingTable():
                        key = self._ray_tracing(table, permutation, libraries, where)
                self.pipelines.append(PackedPipeline(full, PipelineKind(kind), key))
                for each in dict.fromkeys((full, entry)):
                    self.builder.name(key, each, each.partition(".")[2])
                keys.append((f"{permutation.label}{label}", key))
                if len(self.pipelines) > MAX_PIPELINES:
                    raise ManifestError(
                        f"{self.path}: {entry}: more than {MAX_PIPELINES} pipelines in one manifest"
                    )
        self.pending.pop()
        self.links_deep[entry] = max((1 + self.links_deep[f"{kind}.{each}"] for each in linked), default=0)
        self.packed[entry] = keys
        return keys

    def _links(self, kind: str, names: Sequence[str], entry: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        choices: list[list[tuple[str, int]]] = []
        for name in names:
            if name not in getattr(self.manifest, kind):
                raise unknown(
                    f"{self.path}: {entry}.link", f"entry of [{kind}]", name, getattr(self.manifest, kind)
                )
            keys = self._entry(f"{kind}.{name}")
            choices.append([(f"{name}{label}" if label else "", key) for label, key in keys])
        for choice in itertools.product(*choices):
            label = ",".join(each for each, _ in choice if each)
            yield f"[{label}]" if label else "", tuple(key for _, key in choice)

    def _compute(self, table: ComputeTable, permutation: Permutation, where: str) -> int:
        values = {**table.specialization, **permutation.specialization}
        stage = self._stages([table.shader], values, where)[0]
        named = stage.stage
        if named is not None and enum_number("VkShaderStageFlagBits", named, where) != _COMPUTE_STAGE:
            raise self._error(f"shader {table.shader!r} is declared for stage {named!r}")
        return self.builder.compute_pipeline(
            self._layout(table.layout),
            stage.module,
            stage.entry,
            stage.specialization,
            required_subgroup_size=table.required_subgroup_size,
            flags=table.flags,
            stage_flags=table.stage_flags,
            p_next=table.p_next,
        )

    def _graphics(
        self, table: GraphicsTable, permutation: Permutation, libraries: tuple[int, ...], where: str
    ) -> int:
        fields = permutation.fields
        values = {**table.specialization, **permutation.specialization}
        vertex_input = fields.get("vertex_input", table.vertex_input)
        pass_name = fields.get("render_pass", table.render_pass)
        colors = fields.get("color_formats", table.color_formats)
        depth = fields.get("depth_format", table.depth_format)
        formats = (
            colors is not None or depth is not None or table.stencil_format is not None or table.view_mask
        )
        rendering: Rendering | Subpass | None = None
        if pass_name is not None:
            if formats:
                raise self._error("give a render pass or rendering formats, not both")
            rendering = Subpass(self._find("render pass", pass_name, self.render_passes), table.subpass)
        elif formats:
            rendering = Rendering(colors or [], depth, table.stencil_format, table.view_mask)
        state = {**table.state, **permutation.state}
        for name in GraphicsTable.__struct_fields__:
            if name in state:
                raise self._error(f"{name!r} is a key of the pipeline, not of its state")
        if vertex_input != "auto":
            state["vertex_input"] = self._vertex_input(vertex_input, where)
        return self.builder.graphics_pipeline(
            self._stages(table.stages, values, where),
            self._layout(table.layout),
            rendering=rendering,
            state=state,
            libraries=libraries,
            library_flags=table.library,
            flags=table.flags,
            p_next=table.p_next,
        )

    def _vertex_input(self, given: str | Table, where: str) -> Table:
        if isinstance(given, str):
            if given not in self.manifest.vertex_inputs:
                raise unknown(where, "vertex input", given, [*self.manifest.vertex_inputs, "auto"])
            return self.manifest.vertex_inputs[given]
        return given

    def _ray_tracing(
        self, table: RayTracingTable, permutation: Permutation, libraries: tuple[int, ...], where: str
    ) -> int:
        values = {**table.specialization, **permutation.specialization}
        names = [each if isinstance(each, str) else each.shader for each in table.stages]
        flags = table.flags if isinstance(table.flags, list) else [table.flags]
        groups: Sequence[Table] | Literal["auto"] = table.groups
        if not isinstance(groups, str):
            groups = [
                self._group(in_snake_case(GROUP, each, f"{where}.groups[{index}]"), names)
                for index, each in enumerate(groups)
            ]
        return self.builder.ray_tracing_pipeline(
            self._stages(table.stages, values, where),
            groups,
            self._layout(table.layout),
            state={
                "max_pipeline_ray_recursion_depth": table.max_pipeline_ray_recursion_depth,
                "dynamic_state": table.dynamic_state or (),
            },
            libraries=libraries,
            library_interface=table.library_interface,
            flags=[*flags, "library"] if table.library else flags,
            p_next=table.p_next,
        )

    def _group(self, group: Table, names: Sequence[str]) -> dict[str, Any]:
        indexed: dict[str, Any] = dict(group)
        for member in SHADER_MEMBERS:
            shader = indexed.get(member)
            if isinstance(shader, str):
                if names.count(shader) != 1:
                    how = "is not" if shader not in names else "is more than once"
                    raise self._error(
                        f"groups: {member} {shader!r} {how} among the stages; name it, or give its index"
                    )
                indexed[member] = names.index(shader)
        return indexed
