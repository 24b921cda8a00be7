"""Unit tests of the walk over SPIR-V modules."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import OrchestratorError
from orchestrator.sets.archive.modules import decode_module
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.spirv import walk
from orchestrator.sets.spirv.walk import (
    EntryPoint,
    SpirvError,
    SpirvModule,
    check_functions,
    instructions,
    spirv_words,
    walk_spirv,
)
from tests.drivers import Corpus, each_corpus
from tests.sets.spirv.shader_words import VOID_FUNCTION, assemble, compute_module, words_of

UINT_3 = ((21, 10, 32, 0), (23, 11, 10, 3))


def walk_whole(code: bytes) -> SpirvModule:
    """Walk a module, and prove that its instructions fill it exactly."""
    *_, (_, _, end) = [(0, 0, 0), *instructions(spirv_words(code))]
    assert end in (0, len(code) // 4)
    return walk_spirv(code)


def local_size(code: bytes, specialization: dict[int, int] | None = None) -> tuple[int, int, int] | None:
    module = walk_spirv(code)
    return module.local_size(module.entry_points[0].id, specialization or {})


def test_preamble_is_read() -> None:
    code = assemble(
        (17, 1),
        (17, 4427),
        (10, *words_of("SPV_KHR_shader_draw_parameters")),
        (11, 1, *words_of("GLSL.std.450")),
        (14, 0, 1),
        (15, 0, 2, *words_of("vertex_main"), 7, 8, 9),
        (15, 4, 5, *words_of("main")),
        (16, 5, 7),
        (5, 2, *words_of("vertex_main")),
        *VOID_FUNCTION,
        version=0x10300,
    )
    module = walk_spirv(code)
    assert module.version == (1, 3)
    assert module.id_bound == 64
    assert module.capabilities == [1, 4427]
    assert module.extensions == ["SPV_KHR_shader_draw_parameters"]
    assert module.entry_points == [EntryPoint(0, "vertex_main", 2), EntryPoint(4, "main", 5)]
    assert [(each.entry_point, each.mode, each.operands) for each in module.execution_modes] == [(5, 7, ())]
    assert module.entry_point(4, "main") == EntryPoint(4, "main", 5)
    assert module.entry_point(0, "main") is None
    assert module.entry_point(4, "vertex_main") is None


def test_walk_stops_at_the_first_function_unless_asked() -> None:
    code = compute_module() + struct.pack("<I", 0x0000_0001)
    assert walk_spirv(code).capabilities == [1]
    with pytest.raises(SpirvError, match="word count 0") as caught:
        walk_whole(code)
    assert caught.value.word_offset == len(code) // 4 - 1


@pytest.mark.parametrize(
    ("code", "word", "reason"),
    [
        (b"", 0, "fewer than the header"),
        (b"\0" * 19, 4, "no whole number of words"),
        (b"\0" * 20, 0, "magic"),
        (struct.pack(">5I", 0x07230203, 0x10000, 0, 9, 0), 0, "byte-swapped"),
        (assemble(bound=0), 3, "id bound 0"),
        (assemble(bound=0x400000), 3, "id bound"),
        (assemble((17, 1)) + struct.pack("<I", 17), 7, "word count 0"),
        (assemble((17, 1)) + struct.pack("<I", 5), 7, "word count 0"),
        (assemble() + struct.pack("<I", 2 << 16 | 17), 5, "runs past the module's 6 words"),
        (assemble() + struct.pack("<I", 99 << 16 | 5), 5, "runs past the module's 6 words"),
        (assemble((17,)), 5, "too short for its operands"),
        (assemble((15, 5, 2)), 5, "too short for its operands"),
        (assemble((10, 0x41414141)), 6, "without a terminator"),
        (assemble((15, 5, 2, 0x41414141)), 8, "without a terminator"),
        (assemble((15, 5, 64, 0)), 7, "id 64"),
        (assemble((15, 5, 0, 0)), 7, "id 0"),
        (assemble((16, 2, 17, 8, 8)), 5, "local size of 2 operands"),
    ],
)
def test_broken_framing_is_named_with_its_word(code: bytes, word: int, reason: str) -> None:
    with pytest.raises(SpirvError, match=reason) as caught:
        walk_spirv(code)
    assert caught.value.word_offset == word
    assert str(caught.value).startswith(f"SPIR-V word {word}: ")
    assert isinstance(caught.value, OrchestratorError)


def test_local_size_of_literals() -> None:
    assert local_size(compute_module(local_size=(8, 4, 2))) == (8, 4, 2)
    assert local_size(compute_module(local_size=None)) is None


def test_local_size_by_ids_takes_specialization() -> None:
    code = compute_module(
        (331, 2, 38, 20, 21, 22),
        (71, 20, 1, 7),
        *UINT_3,
        (50, 10, 20, 16),
        (43, 10, 21, 2),
        (43, 10, 22, 1),
        local_size=None,
    )
    assert local_size(code) == (16, 2, 1)
    assert local_size(code, {7: 64}) == (64, 2, 1)
    assert local_size(code, {8: 64}) == (16, 2, 1)


def test_workgroup_size_constant_wins_over_the_mode() -> None:
    code = compute_module(
        (71, 20, 1, 0),
        (71, 30, 11, 25),
        *UINT_3,
        (50, 10, 20, 32),
        (43, 10, 21, 1),
        (51, 11, 30, 20, 21, 21),
    )
    assert local_size(code) == (32, 1, 1)
    assert local_size(code, {0: 256}) == (256, 1, 1)


def outcome(code: bytes, *, whole: bool) -> SpirvModule | SpirvError:
    try:
        return walk_whole(code) if whole else walk_spirv(code)
    except SpirvError as error:
        return error


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_a_module_or_an_error(data: bytes, whole: bool) -> None:
    for code in (data, assemble() + data[: len(data) // 4 * 4]):
        found = outcome(code, whole=whole)
        assert isinstance(found, SpirvModule) or 0 <= found.word_offset <= len(code) // 4


@given(st.integers(0, 10_000), st.integers(0, 0xFFFF_FFFF), st.integers(0, 10_000), st.booleans())
def test_a_mutated_module_gives_a_module_or_an_error(at: int, word: int, cut: int, whole: bool) -> None:
    code = bytearray(compute_module((71, 20, 1, 0), (71, 30, 11, 25), *UINT_3, (50, 10, 20, 32)))
    at = at * 4 % len(code)
    code[at : at + 4] = struct.pack("<I", word)
    found = outcome(bytes(code[: len(code) - cut * 4 % len(code)]), whole=whole)
    if isinstance(found, SpirvError):
        assert found.reason
        return
    for entry in found.entry_points:
        size = found.local_size(entry.id, {0: 1})
        assert size is None or len(size) == 3


@each_corpus
def test_every_captured_module_is_walked(corpus: Corpus) -> None:
    with PipelineSet.open(corpus.path) as captured:
        keys = captured.records.keys(RecordTag.SHADER_MODULE)
        assert len(keys) == corpus.modules
        for key in keys:
            code = decode_module(key, captured.records.payload(RecordTag.SHADER_MODULE, key)).code
            module = walk_whole(code)
            assert module == walk_spirv(code)
            check_functions(code, module)
            assert module.entry_points
            assert module.capabilities


TWO_FUNCTIONS = assemble(
    (17, 1),
    (15, 5, 2, *words_of("main")),
    (54, 1, 2, 0, 3),
    (248, 4),
    (57, 1, 6, 5),
    (253,),
    (56,),
    (8, 7, 1, 1),
    (54, 1, 5, 0, 3),
    (248, 8),
    (253,),
    (56,),
)


def is_whole(code: bytes) -> bool:
    try:
        check_functions(code, walk_spirv(code))
    except SpirvError:
        return False
    return True


def test_code_that_is_cut_short_anywhere_is_not_whole() -> None:
    assert is_whole(TWO_FUNCTIONS)
    for size in range(48, len(TWO_FUNCTIONS), 4):  # from behind the entry point, which `refusal` asks for
        assert not is_whole(TWO_FUNCTIONS[:size]), size
    for rest in (bytes(4), bytes(400), TWO_FUNCTIONS[-4:]):
        assert not is_whole(TWO_FUNCTIONS + rest)


@pytest.mark.parametrize("repeated", [(17, 1), (10, 0x61), (15, 5, 3, 0x61), (71, 3, 33, 0), (43, 1, 3, 0)])
def test_what_is_read_of_a_module_is_bounded(
    repeated: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_MOST_DECLARED", 20)
    walk_spirv(assemble(*[repeated] * 20))
    with pytest.raises(SpirvError, match="more than 20 declarations"):
        walk_spirv(assemble(*[repeated] * 21))
