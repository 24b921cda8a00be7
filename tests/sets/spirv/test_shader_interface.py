"""Interfaces of modules: the sample shaders as compiled, and hostile words."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ManifestError
from orchestrator.sets.sample import sample_manifest_path
from orchestrator.sets.spirv.interface import Descriptor, StageInput, shader_interface
from tests.sets.spirv.shader_words import compute_module

SHADERS = sample_manifest_path().parent / "shaders"


def interface_of(name: str):  # type: ignore[no-untyped-def]
    return shader_interface((SHADERS / f"{name}.spv").read_bytes(), name)


def test_descriptors_of_a_compute_shader() -> None:
    found = interface_of("culling.comp")
    assert [(each.binding, each.descriptor_type, each.count) for each in found.descriptors] == [
        (0, 7, 1),
        (1, 7, 1),
        (2, 7, 1),
        (3, 7, 1),
        (4, 6, 1),
        (5, 1, 1),
    ]
    assert found.push_constants == (0, 8)
    assert found.stage("main", "here") == 32


def test_descriptor_types() -> None:
    assert [each.descriptor_type for each in interface_of("deferred.frag").descriptors[:4]] == [10] * 4
    assert Descriptor(0, 1, 3, 1) in interface_of("blur.comp").descriptors
    assert Descriptor(0, 0, 1000150000, 1) in interface_of("path.rgen").descriptors


def test_a_storage_buffer_as_the_first_versions_of_spirv_declare_it() -> None:
    """A uniform block decorated BufferBlock; without the decoration it is a uniform buffer."""
    block = ((21, 10, 32, 0), (30, 20, 10), (32, 21, 2, 20), (59, 21, 30, 2))
    place = ((71, 30, 34, 1), (71, 30, 33, 2), (72, 20, 0, 35, 0))
    for decorations, number in ((((71, 20, 3),), 7), (((71, 20, 2),), 6)):
        found = shader_interface(compute_module(*decorations, *place, *block), "block")
        assert found.descriptors == (Descriptor(1, 2, number, 1),)


def nested_push_constants(depth: int) -> bytes:
    """A push constant block: structures within structures, the innermost with a 32-bit number."""
    structs = [(30, 20 + at, 10 if at == 0 else 19 + at) for at in range(depth)]
    offsets = [(72, 20 + at, 0, 35, 0) for at in range(depth)]
    variable = ((32, 11, 9, 19 + depth), (59, 11, 12, 9))
    return compute_module(*offsets, (21, 10, 32, 0), *structs, *variable)


def test_structures_that_nest_too_deep_are_refused() -> None:
    assert shader_interface(nested_push_constants(32), "nested").push_constants == (0, 4)
    with pytest.raises(ManifestError, match="nests too deep"):
        shader_interface(nested_push_constants(33), "nested")


def test_structures_that_share_members_are_read_once_each() -> None:
    """2**31 members, if each were read as often as it is there."""
    structs = [(30, 20 + at, *([10 if at == 0 else 19 + at] * 2)) for at in range(31)]
    variable = ((32, 11, 9, 50), (59, 11, 12, 9))
    found = shader_interface(compute_module((21, 10, 32, 0), *structs, *variable), "doubled")
    assert found.push_constants == (0, 4)


def test_an_input_that_is_an_array_of_itself_is_refused() -> None:
    array = ((21, 10, 32, 0), (43, 10, 15, 1), (28, 20, 20, 15), (32, 21, 1, 20), (59, 21, 30, 1))
    with pytest.raises(ManifestError, match="malformed SPIR-V"):
        shader_interface(compute_module((71, 30, 30, 0), *array), "endless")


def test_push_constants_count_matrices_and_padding() -> None:
    assert interface_of("particles.comp").push_constants == (0, 32)
    assert interface_of("path.rgen").push_constants == (0, 84)
    assert interface_of("fullscreen.vert").push_constants is None


def test_specialization_constants_have_names_types_and_ids() -> None:
    found = {
        each.constant_id: (each.name, each.kind, each.size)
        for each in interface_of("blur.comp").specialization
    }
    assert found[1] == ("RADIUS", "int", 4)
    assert found[2] == ("VERTICAL", "bool", 4)
    assert ("CUTOFF", "float", 4) in {
        (each.name, each.kind, each.size) for each in interface_of("shadow.frag").specialization
    }


def test_vertex_inputs_have_the_formats_of_their_types() -> None:
    assert interface_of("scene.vert").inputs == (
        StageInput(0, 106, 12),
        StageInput(1, 106, 12),
        StageInput(2, 109, 16),
        StageInput(3, 103, 8),
        StageInput(4, 107, 16),
        StageInput(5, 109, 16),
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "fewer than the header"),
        (b"#version 460\nvoid main() {}\n    ", "is it the source instead"),
        (struct.pack(">5I", 0x07230203, 0, 0, 1, 0), "big-endian"),
        (struct.pack("<6I", 0x07230203, 0, 0, 1, 0, 59), "word count 0"),
        (struct.pack("<6I", 0x07230203, 0, 0, 1, 0, 5 << 16 | 59), "runs past the module"),
        (struct.pack("<6I", 0x07230203, 0, 0, 1, 0, 1 << 16 | 59), "lacks operands"),
    ],
)
def test_what_is_no_module_is_refused(code: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        shader_interface(code, "x.spv")


def test_an_entry_point_that_is_not_there_is_named() -> None:
    with pytest.raises(ManifestError, match=r"here: no entry point 'start' in the module; there is 'main'"):
        interface_of("blur.comp").stage("start", "here")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mutated_modules_give_an_interface_or_a_typed_error(data: st.DataObject) -> None:
    code = bytearray((SHADERS / "ui.frag.spv").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        word = data.draw(st.integers(5, len(code) // 4 - 1))
        struct.pack_into("<I", code, 4 * word, data.draw(st.integers(0, 0xFFFFFFFF) | st.integers(0, 80)))
    try:
        found = shader_interface(bytes(code), "mutated")
    except ManifestError:
        return
    assert all(each.size <= 32 for each in found.inputs)
