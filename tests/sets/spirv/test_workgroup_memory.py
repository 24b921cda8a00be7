"""What variables in the Workgroup storage class take: types, computed lengths, hostile modules."""

from __future__ import annotations

import random

import pytest

from orchestrator.sets.spirv.walk import SpirvError
from orchestrator.sets.spirv.workgroup_memory import WorkgroupMemory, workgroup_memory
from tests.sets.spirv.shader_words import compute_module

# Types and constants: float, int, bool, vec4, and GROUP and RADIUS, 64 and 4 where they are not specialized.
FLOAT, INT, BOOL, VEC4, GROUP, RADIUS, TWO, LENGTH = range(20, 28)
KNOWN = (
    (71, GROUP, 1, 0), (71, RADIUS, 1, 1),
    (22, FLOAT, 32), (21, INT, 32, 1), (20, BOOL), (23, VEC4, FLOAT, 4),
    (50, INT, GROUP, 64), (50, INT, RADIUS, 4), (43, INT, TWO, 2),
)  # fmt: skip


def shared(
    *definitions: tuple[int, ...], of: int, capabilities: tuple[int, ...] = (1,), count: int = 1
) -> bytes:
    """A module with variables of a type in the Workgroup storage class, ids from 60 on."""
    variables = tuple((59, 50, 60 + each, 4) for each in range(count))
    return compute_module(*KNOWN, *definitions, (32, 50, 4, of), *variables, capabilities=capabilities)


def memory(code: bytes) -> WorkgroupMemory:
    found = workgroup_memory(code)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("definitions", "size"),
    [
        (((28, 40, VEC4, TWO),), 32),
        (((24, 40, VEC4, 3),), 48),
        (((21, 41, 16, 0), (30, 40, FLOAT, 41, BOOL)), 7),
        (((28, 40, FLOAT, GROUP),), 256),
        (((28, 40, FLOAT, 45),), 4),  # a length that nobody knows
        (((32, 41, 12, FLOAT), (30, 40, 41, FLOAT)), 4),  # a pointer's size is the driver's
    ],
)
def test_types_have_their_sizes(definitions: tuple[tuple[int, ...], ...], size: int) -> None:
    assert memory(shared(*definitions, of=40)).size({}) == size


def test_lengths_are_computed_from_specialization_constants() -> None:
    """As in a blur that keeps a row and its margins: an array of GROUP + 2 * RADIUS."""
    code = shared(
        (52, INT, 42, 132, TWO, RADIUS), (52, INT, LENGTH, 128, GROUP, 42), (28, 40, VEC4, LENGTH), of=40
    )
    found = memory(code)
    assert found.size({}) == 16 * 72
    assert found.size({0: 128, 1: 12}) == 16 * 152
    assert found.size({1: 1 << 16}) == 16 * (64 + (2 << 16))


@pytest.mark.parametrize(
    ("opcode", "left", "right", "value"),
    [
        (130, 64, 4, 60), (134, 64, 4, 16), (135, 64, 4, 16), (137, 64, 5, 4), (194, 64, 2, 16),
        (196, 1, 4, 16),
        (197, 8, 3, 11), (198, 9, 3, 10), (199, 10, 6, 2), (128, 0xFFFF_FFFF, 3, 2),
        # What has no value here counts as one: division by nothing, of a negative number, a shift by too
        # much.
        (134, 64, 0, 1), (135, 0x8000_0000, 2, 1), (196, 1, 32, 1), (252, 64, 4, 1),
    ],
)  # fmt: skip
def test_operations_are_those_of_spirv(opcode: int, left: int, right: int, value: int) -> None:
    code = shared((52, INT, LENGTH, opcode, GROUP, RADIUS), (21, 41, 8, 0), (28, 40, 41, LENGTH), of=40)
    assert memory(code).size({0: left, 1: right}) == value


def test_lengths_are_computed_from_the_workgroup_size() -> None:
    """As GLSL's `shared vec4 rows[gl_WorkGroupSize.x * gl_WorkGroupSize.y]`."""
    code = shared(
        (23, 43, INT, 3), (51, 43, 44, GROUP, RADIUS, TWO),
        (52, INT, 45, 81, 44, 0), (52, INT, 46, 81, 44, 1), (52, INT, LENGTH, 132, 45, 46),
        (28, 40, VEC4, LENGTH),
        of=40,
    )  # fmt: skip
    assert memory(code).size({}) == 16 * 64 * 4
    assert memory(code).size({0: 1024, 1: 8}) == 16 * 1024 * 8
    beyond = shared((51, 43, 44, GROUP), (52, INT, LENGTH, 81, 44, 1), (28, 40, VEC4, LENGTH), of=40)
    assert memory(beyond).size({}) == 16


@pytest.mark.parametrize(
    ("opcode", "left", "right", "holds"),
    [
        (170, 4, 4, True), (171, 4, 4, False), (172, 5, 4, True), (172, 4, 4, False), (174, 4, 4, True),
        (176, 4, 4, False), (176, 3, 4, True), (178, 4, 4, True), (173, 5, 4, True), (175, 3, 4, False),
        (177, 3, 4, True), (179, 5, 4, False), (177, 0x8000_0000, 4, None),  # a negative number is unknown
    ],
)  # fmt: skip
def test_lengths_are_selected_by_comparisons(opcode: int, left: int, right: int, holds: bool | None) -> None:
    code = shared(
        (52, BOOL, 42, opcode, GROUP, RADIUS), (43, INT, 43, 7), (52, INT, LENGTH, 169, 42, 43, TWO),
        (28, 40, VEC4, LENGTH),
        of=40,
    )  # fmt: skip
    assert memory(code).size({0: left, 1: right}) == 16 * {True: 7, False: 2, None: 1}[holds]


@pytest.mark.parametrize(("opcode", "default"), [(48, True), (49, False)])
def test_lengths_are_selected_by_booleans(opcode: int, default: bool) -> None:
    code = shared(
        (71, 45, 1, 9), (opcode, BOOL, 45), (41, BOOL, 46), (42, BOOL, 47), (52, BOOL, 42, 168, 45),
        (52, BOOL, 43, 167, 45, 46), (52, BOOL, 44, 166, 43, 47), (52, BOOL, 48, 165, 42, 44),
        (52, BOOL, 49, 164, 48, 46), (52, BOOL, 39, 167, 44, 49), (52, INT, LENGTH, 169, 39, GROUP, TWO),
        (28, 40, VEC4, LENGTH),
        of=40,
    )  # fmt: skip
    found = memory(code)
    assert found.size({}) == 16 * (64 if default else 2)
    assert found.size({9: 0}) == 16 * 2
    assert found.size({9: 2}) == 16 * 64


def test_variables_add_up_or_overlap() -> None:
    code = shared((30, 40, VEC4, FLOAT), of=40, count=3)
    assert memory(code).size({}) == 60
    assert memory(code).size({}, {61}) == 20
    explicit = shared((30, 40, VEC4, FLOAT), of=40, count=3, capabilities=(1, 4428))
    assert memory(explicit).size({}) == 20


def test_other_storage_classes_are_none_of_it() -> None:
    assert workgroup_memory(compute_module(*KNOWN, (32, 50, 6, VEC4), (59, 50, 60, 6))) is None


def test_a_type_that_holds_itself_a_million_times_takes_no_time() -> None:
    doubled = [(30, 100 + each, 99 + each, 99 + each) for each in range(1, 2000)]
    code = compute_module(
        *KNOWN,
        (30, 100, VEC4),
        *doubled,
        (30, 40, 40),
        (32, 50, 4, 2099),
        (59, 50, 60, 4),
        (32, 51, 4, 40),
        (59, 51, 61, 4),
    )
    assert memory(code).size({}) == 1 << 62


def test_damaged_modules_give_a_size_or_an_error() -> None:
    noise = random.Random(8)
    good = shared((52, INT, LENGTH, 128, GROUP, RADIUS), (28, 40, VEC4, LENGTH), of=40)
    ends: set[bool | str] = set()
    for _ in range(3000):
        code = bytearray(good)
        for _ in range(noise.choice((1, 1, 4))):
            code[noise.randrange(20, len(code))] = noise.choice((0, 1, 4, 59, 0x7F, 0xFF))
        try:
            found = workgroup_memory(bytes(code[: noise.choice((len(code), 4 * noise.randrange(5, 60)))]))
            ends.add(found is None or found.size({0: noise.getrandbits(32)}) >= 0)
        except SpirvError:
            ends.add("refused")
    assert ends == {True, "refused"}
