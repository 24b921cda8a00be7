"""What variables in the Workgroup storage class take: types, computed lengths, hostile modules."""

from __future__ import annotations

import random

import pytest

from orchestrator.sets.spirv.walk import SpirvError
from orchestrator.sets.spirv.workgroup_memory import WorkgroupMemory, workgroup_memory
from tests.sets.spirv.shader_words import compute_module

# Types and constants: float, int, bool, vec4, and GROUP and RADIUS, 64 and 4 where they are not specialized.
FLOAT, INT, BOOL, VEC4, GROUP, RADIUS, TWO = range(20, 27)
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


def test_lengths_are_specialized() -> None:
    found = memory(shared((28, 40, VEC4, GROUP), of=40))
    assert found.size({}) == 16 * 64
    assert found.size({0: 128}) == 16 * 128


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
    good = shared((28, 40, VEC4, GROUP), of=40)
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
