"""Manifests: what they give, that every example of the documentation packs, and that mistakes are named."""

from __future__ import annotations

import copy
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.devices.image import PipelineKind
from orchestrator.errors import ManifestError
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.authoring.manifest import PackedSet, decode_manifest, load_manifest, pack_manifest
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path
from tests.drivers import REPOSITORY

SHADERS = sample_manifest_path().parent / "shaders"
PAGE = REPOSITORY / "docs" / "manifest.md"

UI = """
manifest = 1
[graphics.ui]
stages = ["shaders/ui.vert.spv", "shaders/ui.frag.spv"]
color_formats = ["b8g8r8a8_srgb"]
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a manifest beside the sample's shaders."""
    (tmp_path / "shaders").symlink_to(SHADERS, target_is_directory=True)

    def written(text: str) -> Path:
        path = tmp_path / "set.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def decoded(packed: PackedSet, name: str) -> Any:
    """The pipeline of an entry, as the reader of archives decodes it."""
    (found,) = [each for each in packed.pipelines if each.name == name]
    tag = RecordTag[f"{found.kind.name}_PIPELINE"]
    return decode_document(tag, found.key, packed.source.records.payload(tag, found.key))


def examples(name: str) -> str:
    """The blocks of the page that belong to one example, in order."""
    blocks = re.findall(
        rf"^```toml example={name}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    return "\n".join(blocks)


def test_the_shortest_example_of_the_page(write: Any) -> None:
    packed = load_manifest(write(examples("shortest")))
    assert [each.name for each in packed.pipelines] == ["graphics.ui"]
    assert decoded(packed, "graphics.ui").pNext[0].pColorAttachmentFormats == [50]


def test_the_whole_example_of_the_page(write: Any, tmp_path: Path) -> None:
    path = write(examples("whole"))
    report = pack_manifest(path, tmp_path / "set.foz")
    assert report.source.counts == {
        PipelineKind.GRAPHICS: 22,
        PipelineKind.COMPUTE: 11,
        PipelineKind.RAY_TRACING: 4,
    }
    packed = load_manifest(path)
    with Archive.open(tmp_path / "set.foz") as archive:
        for tag in RecordTag:
            assert list(archive.keys(tag)) == list(packed.source.records.keys(tag))
            for key in archive.keys(tag):
                assert archive.payload(tag, key) == packed.source.records.payload(tag, key)
                if tag in TABLES:
                    decode_document(tag, key, archive.payload(tag, key))
        assert sum(len(archive.keys(tag)) for tag in RecordTag) == sum(report.source.tag_counts.values())


def test_every_table_and_key_is_on_the_page() -> None:
    from orchestrator.sets.authoring import manifest as schema

    page = PAGE.read_text("utf-8")
    tables = [
        value
        for name, value in vars(schema).items()
        if name.endswith("Table") and hasattr(value, "__struct_fields__")
    ]
    assert len(tables) == 9
    missing = {
        f"{table.__name__}.{field}"
        for table in tables
        for field in table.__struct_fields__
        if not re.search(rf"\b{field}\b", page)
    }
    assert not missing
    assert all(f"[{name}" in page for name in schema.Manifest.__struct_fields__)


def test_permutations_are_named_and_different(write: Any) -> None:
    text = UI + (
        "permutations.specialization = { DISTANCE_FIELD = [true, false] }\n"
        "permutations.state = { blend = ['opaque', 'alpha'] }\n"
    )
    packed = load_manifest(write(text))
    assert [each.name for each in packed.pipelines] == [
        "graphics.ui[DISTANCE_FIELD=true,blend=opaque]",
        "graphics.ui[DISTANCE_FIELD=true,blend=alpha]",
        "graphics.ui[DISTANCE_FIELD=false,blend=opaque]",
        "graphics.ui[DISTANCE_FIELD=false,blend=alpha]",
    ]
    assert len(packed.source) == 4
    blended = decoded(packed, "graphics.ui[DISTANCE_FIELD=false,blend=alpha]")
    assert blended.pColorBlendState.pAttachments[0].blendEnable == 1
    # Only the fragment shader has the constant.
    assert [each.pSpecializationInfo is not None for each in blended.pStages] == [False, True]


def test_libraries_come_before_their_links_wherever_they_are_written(write: Any) -> None:
    text = """
manifest = 1
[graphics.a_link]
link = ["z_input", "z_rest"]
[graphics.z_input]
library = "vertex_input_interface"
vertex_input = { bindings = [], attributes = [] }
[graphics.z_rest]
library = ["pre_rasterization_shaders", "fragment_shader", "fragment_output_interface"]
stages = ["shaders/fullscreen.vert.spv", "shaders/sky.frag.spv"]
color_formats = ["r8g8b8a8_unorm"]
permutations.state = { cull_mode = ["none", "back"] }
"""
    packed = load_manifest(write(text))
    assert [each.name for each in packed.pipelines] == [
        "graphics.z_input",
        "graphics.z_rest[cull_mode=none]",
        "graphics.z_rest[cull_mode=back]",
        "graphics.a_link[z_rest[cull_mode=none]]",
        "graphics.a_link[z_rest[cull_mode=back]]",
    ]
    keys = [each.key for each in packed.pipelines]
    assert list(packed.source.records.keys(RecordTag.GRAPHICS_PIPELINE)) == keys
    link = decoded(packed, "graphics.a_link[z_rest[cull_mode=back]]")
    assert list(link.pNext[0].pLibraries) == [keys[0], keys[2]]


@pytest.mark.parametrize("order", [1, -1])
def test_a_chain_of_libraries_is_as_deep_as_a_set_may_be(write: Any, order: int) -> None:
    for depth in (32, 33):
        kind = 'library = "vertex_input_interface"\nvertex_input = {}\n'
        chain = [f"[graphics.l{at}]\n{kind}link = ['l{at + 1}']\n" for at in range(depth)]
        manifest = write("\n".join(["manifest = 1", *[*chain, f"[graphics.l{depth}]\n{kind}"][::order]]))
        if depth > 32:
            with pytest.raises(ManifestError, match=r"graphics\.l0: links libraries more than 32 deep"):
                load_manifest(manifest)
        else:
            source = PipelineSet.from_records(load_manifest(manifest).source.records)
            assert not build_image(source, source.pipelines, AnyDevice()).problems


def test_names_for_constants_without_names(write: Any) -> None:
    text = """
manifest = 1
[shaders]
scan = { path = "shaders/prefix_sum.comp.spv", constants = { LOCAL_SIZE = 0 } }
[compute.scan]
shader = "scan"
permutations.specialization = { LOCAL_SIZE = [64, 128] }
"""
    packed = load_manifest(write(text))
    first = decoded(packed, "compute.scan[LOCAL_SIZE=64]").stage.pSpecializationInfo
    assert bytes(first.pData) == b"\x40\0\0\0"
    assert first.pMapEntries[0].constantID == 0


def before(text: str) -> tuple[str, str]:
    """A change of `UI`: what stands before its pipeline."""
    return "[graphics.ui]", f"{text}\n[graphics.ui]"


def inside(text: str) -> tuple[str, str]:
    """A change of `UI`: what its pipeline has too."""
    return "[graphics.ui]", f"[graphics.ui]\n{text}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("manifest = 1", ""), r"set\.toml: `manifest = 1` is missing"),
        (("manifest = 1", "manifest = true"), r"`manifest = 1` is True"),
        (before("[pipeline_layouts.auto]"), r"\[pipeline_layouts\.auto\]: \"auto\" means"),
        (
            before("[shaders]\na = { path = 'shaders/ui.vert.spv', entry = 'mian' }"),
            r"shaders\.a: no entry point 'mian' in the module; there is 'main'",
        ),
        (
            before("[shaders]\na = { path = 'shaders/ui.vert.spv', stage = 'fragment' }"),
            r"shaders\.a: the module has no entry point 'main' for stage 'fragment'",
        ),
        (("[graphics.ui]", "[grafics.ui]"), r"unknown table \[grafics\]; did you mean graphics"),
        (
            ('["b8g8r8a8_srgb"]', '["b8g8r8a8_srgbb"]'),
            r"graphics\.ui.*unknown VkFormat 'b8g8r8a8_srgbb'; did you mean b8g8r8a8_srgb",
        ),
        (("ui.frag.spv", "ui.frag"), r"graphics\.ui: shaders/ui\.frag: .*it is text, such as GLSL"),
        (("shaders/ui.frag.spv", "n" * 5000), r"graphics\.ui: unknown shader 'n"),
        (inside("state = { flags = 1 }"), r"'flags' is a key of the pipeline"),
        (inside("state = { subpass = 1 }"), r"'subpass' is a key of the pipeline"),
        (inside("vertex_input = 'full'"), r"unknown vertex input 'full'"),
        (inside("link = ['vi']"), r"unknown entry of \[graphics\] 'vi'"),
        (before("[render_passes.p]\nversion = 3"), r"render_passes\.p: version: 1 or 2"),
        (before("[samplers.s]\nself = 1"), r"samplers\.s: unknown member of VkSamplerCreateInfo 'self'"),
        (
            before("[application]\nengine_version = -1"),
            r"application\.engine_version: -1 is outside 0\.\.4294967295",
        ),
    ],
)
def test_mistakes_name_the_file_the_entry_and_the_key(
    write: Any, change: tuple[str, str], message: str
) -> None:
    assert change[0] in UI
    with pytest.raises(ManifestError, match=message) as caught:
        load_manifest(write(UI.replace(*change)))
    assert "set.toml" in str(caught.value)


def test_a_manifest_without_pipelines_is_refused(write: Any) -> None:
    with pytest.raises(ManifestError, match="describes no pipeline"):
        load_manifest(write("manifest = 1\n"))


def test_a_manifest_that_fails_leaves_the_old_archive(write: Any, tmp_path: Path) -> None:
    destination = tmp_path / "set.foz"
    pack_manifest(write(UI), destination)
    before = destination.read_bytes()
    with pytest.raises(ManifestError):
        pack_manifest(write(UI.replace("srgb", "srbg")), destination)
    assert destination.read_bytes() == before


ANYTHING = st.recursive(
    st.sampled_from(
        [True, 0, -1, 2**40, 2**70, 0.5, float("nan"), "", "auto", "back", "main", "shaders/ui.vert.spv"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["structure", "binding", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@cache
def whole_example() -> dict[str, Any]:
    return tomllib.loads(examples("whole"))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [(value, key) for key, _ in items] + [place for _, each in items for place in places(each)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_manifest_only_manifest_errors_come_out(data: st.DataObject) -> None:
    document = copy.deepcopy(whole_example())
    for _ in range(data.draw(st.integers(1, 2))):
        found = places(document)
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        container[key] = data.draw(ANYTHING)
    path = sample_manifest_path().with_name("mutated.toml")
    try:
        decoded_manifest = decode_manifest(document, "mutated.toml")
        with mock.patch("orchestrator.sets.authoring.manifest.read_manifest", return_value=decoded_manifest):
            packed = load_manifest(path)
    except ManifestError as error:
        assert "mutated.toml" in str(error)  # noqa: PT017 - either outcome is right
        return
    for tag in TABLES:
        for key in packed.source.records.keys(tag):
            decode_document(tag, key, packed.source.records.payload(tag, key))
