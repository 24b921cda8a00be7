# Purpose: what may stand in a manifest, as types. Reading a manifest is decoding it into these, so a misspelt
# key or a value of the wrong type is refused before anything is built.
#
# Free tables (members of Vulkan structures, fixed-function state) are mappings here; the registry says what
# may stand in them, and the builder asks it.
#
# Guarantees: every error names the file, the table and the key.
"""The tables of a manifest."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from orchestrator.errors import ManifestError

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
    """``[shaders]`` NAME = { ... }; a plain path stands for one with that path only.

    Attributes:
        path: SPIR-V file, relative to the manifest.
        entry: Entry point.
        stage: Stage, where several entry points share a name.
        constants: Names for specialization constants, for modules without debug names.
        flags: VkShaderModuleCreateFlags.
    """

    path: str
    entry: str = "main"
    stage: str | None = None
    constants: dict[str, int] = {}
    flags: int = 0


class StageTable(_Strict, frozen=True, kw_only=True):
    """An entry of ``stages`` written as a table; a plain name or path stands for one with that shader only."""

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
    """``permutations`` of a pipeline: each key is a dimension with a list of values.

    Attributes:
        specialization: Values by constant name or id.
        state: Values by name of fixed-function state.
        vertex_input: Names of vertex inputs.
        render_pass: Names of render passes.
        color_formats: Lists of colour formats.
        depth_format: Depth formats.
    """

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
    """``[graphics.NAME]``.

    Attributes:
        stages: Shaders by name or path, or tables.
        layout: Name of a pipeline layout, or "auto".
        render_pass: Name of a render pass; otherwise the formats make it dynamic rendering.
        subpass: Of the render pass.
        color_formats: For dynamic rendering.
        depth_format: For dynamic rendering.
        stencil_format: For dynamic rendering; the depth format's own stencil where not given.
        view_mask: For dynamic rendering.
        vertex_input: "auto", a name of ``[vertex_inputs]``, or a table.
        state: Fixed-function state by name.
        specialization: Values for every stage that has the constant.
        library: Parts (VkGraphicsPipelineLibraryFlagsEXT): makes a library.
        link: Names of graphics entries that are libraries.
        flags: VkPipelineCreateFlags.
        p_next: Structures of the pNext chain.
        permutations: Dimensions.
    """

    stages: list[str | StageTable] = []
    layout: str = "auto"
    render_pass: str | None = None
    subpass: int = 0
    color_formats: list[str] | None = None
    depth_format: str | None = None
    stencil_format: str | None = None
    view_mask: int = 0
    vertex_input: str | Table = "auto"
    state: Table = {}
    specialization: dict[str, Value] = {}
    library: Names = 0
    link: list[str] = []
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


_NAMED: dict[str, Any] = {
    "shaders": ShaderTable,
    "samplers": Table,
    "descriptor_set_layouts": DescriptorSetLayoutTable,
    "pipeline_layouts": PipelineLayoutTable,
    "render_passes": Table,
    "vertex_inputs": Table,
    "compute": ComputeTable,
    "graphics": GraphicsTable,
    "ray_tracing": RayTracingTable,
}
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_T = TypeVar("_T")


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        ManifestError: The file cannot be read, is not TOML, or a table or key is not one of a manifest; the
            message names the file, the table and the key.
    """
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(
                f"{path}: larger than {MAX_MANIFEST_BYTES} bytes; split it into several manifests"
            )
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{path}: not TOML: {error}") from error
    return decode_manifest(document, str(path))


def decode_manifest(document: dict[str, Any], source: str) -> Manifest:
    """Check the tables of a manifest.

    Args:
        document: As tomllib gives it.
        source: Name of the file, for errors.

    Raises:
        ManifestError: As `read_manifest`.
    """
    tables = dict(document)
    version = tables.pop("manifest", None)
    if version != MANIFEST_VERSION:
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
