"""Features of atomic operations: every row of the table, how modules' operations are found, real drivers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.device import NO_SOURCE
from orchestrator.registry import registry
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.needs.requirements import RequirementChecker
from orchestrator.sets.needs.shaders import ATOMIC_RULES, AtomicRule, atomic_features
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.spirv.walk import Atomic, SpirvError, walk_spirv
from tests.conftest import OpenDriverDevice
from tests.drivers import require_tool, unsupported
from tests.sets.needs.atomic_shaders import (
    COMPARE,
    EXCHANGE,
    FLOAT_ADD,
    FLOAT_MAX,
    FLOAT_MIN,
    IMAGE,
    INCREMENT,
    INTEGER_ADD,
    LOAD,
    PAYLOAD,
    PHYSICAL,
    STORAGE_BUFFER,
    STORE,
    UNIFORM,
    WORKGROUP,
    Number,
    atomic_shader,
)
from tests.sets.needs.fake_capabilities import Everything
from tests.sets.spirv.shader_words import assemble

FLOAT = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"
FLOAT_32, INT_64 = Number(True, 32), Number(False, 64)
ADD_32, UNTYPED_POINTERS = 6033, 4473
# For operations that are not plain: any capability that makes the walk go through the functions.
CAPABILITIES = (ADD_32,)


def label(rule: AtomicRule) -> str:
    return rule.feature[1]


def atomics_of(code: bytes) -> tuple[Atomic, ...]:
    return walk_spirv(code).atomics


@pytest.mark.parametrize("rule", ATOMIC_RULES, ids=label)
def test_names_of_rules_are_the_registrys(rule: AtomicRule) -> None:
    struct, member = rule.feature
    assert registry().struct(struct).name == struct
    assert any(each.name == member for each in registry().struct(struct).members)


def test_every_feature_that_a_module_can_need_has_a_row() -> None:
    structs = {rule.feature[0] for rule in ATOMIC_RULES}
    members = {
        each.name
        for struct in structs
        for each in registry().struct(struct).members
        if each.name.startswith("shader")
    }
    assert {rule.feature[1] for rule in ATOMIC_RULES} == members


@pytest.mark.parametrize("rule", ATOMIC_RULES, ids=label)
def test_row_asks_for_its_feature(rule: AtomicRule) -> None:
    number = Number(rule.floating, rule.width, 2 if rule.vector else 1)
    struct, member = rule.feature
    lacks = RequirementChecker(Everything(without=frozenset({member})))
    for storage in rule.storage_classes:
        for opcode in rule.opcodes or (EXCHANGE, INTEGER_ADD):
            module = walk_spirv(atomic_shader(opcode, number, storage, capabilities=CAPABILITIES))
            assert module.atomics == (Atomic(opcode, storage, rule.floating, rule.width, number.components),)
            assert lacks.shaders.module(module) == f"feature {struct}::{member}"
            assert RequirementChecker(Everything()).shaders.module(module) is None


@pytest.mark.parametrize("rule", ATOMIC_RULES, ids=label)
def test_row_asks_for_no_other_feature(rule: AtomicRule) -> None:
    number = Number(rule.floating, rule.width, 2 if rule.vector else 1)
    others = {each.feature[1] for each in ATOMIC_RULES} - {rule.feature[1]}
    # One is enough for the capability, which any of some features enables.
    keeps = Everything(without=frozenset(others - {"shaderImageFloat32AtomicAdd"}))
    opcode = min(rule.opcodes, default=EXCHANGE)
    module = walk_spirv(atomic_shader(opcode, number, min(rule.storage_classes), capabilities=CAPABILITIES))
    assert RequirementChecker(keeps).shaders.module(module) is None


@pytest.mark.parametrize(
    ("opcode", "number", "storage", "member"),
    [
        (LOAD, FLOAT_32, STORAGE_BUFFER, "shaderBufferFloat32Atomics"),
        (STORE, FLOAT_32, STORAGE_BUFFER, "shaderBufferFloat32Atomics"),
        (STORE, FLOAT_32, WORKGROUP, "shaderSharedFloat32Atomics"),
        (EXCHANGE, FLOAT_32, IMAGE, "shaderImageFloat32Atomics"),
        (EXCHANGE, FLOAT_32, PAYLOAD, "shaderSharedFloat32Atomics"),
        (FLOAT_ADD, FLOAT_32, UNIFORM, "shaderBufferFloat32AtomicAdd"),
        (FLOAT_ADD, FLOAT_32, PHYSICAL, "shaderBufferFloat32AtomicAdd"),
        (FLOAT_ADD, FLOAT_32, IMAGE, "shaderImageFloat32AtomicAdd"),
        (FLOAT_ADD, Number(True, 64), WORKGROUP, "shaderSharedFloat64AtomicAdd"),
        (FLOAT_MIN, FLOAT_32, WORKGROUP, "shaderSharedFloat32AtomicMinMax"),
        (FLOAT_MAX, Number(True, 16), STORAGE_BUFFER, "shaderBufferFloat16AtomicMinMax"),
        (FLOAT_ADD, Number(True, 16, 4), STORAGE_BUFFER, "shaderFloat16VectorAtomics"),
        (COMPARE, INT_64, STORAGE_BUFFER, "shaderBufferInt64Atomics"),
        (INCREMENT, INT_64, WORKGROUP, "shaderSharedInt64Atomics"),
        (STORE, INT_64, WORKGROUP, "shaderSharedInt64Atomics"),
        (INTEGER_ADD, INT_64, IMAGE, "shaderImageInt64Atomics"),
    ],
)
def test_feature_by_operation_type_and_memory(opcode: int, number: Number, storage: int, member: str) -> None:
    (atomic,) = atomics_of(atomic_shader(opcode, number, storage, capabilities=CAPABILITIES))
    assert [each for _, each in atomic_features(atomic)] == [member]


@pytest.mark.parametrize("storage", [UNIFORM, STORAGE_BUFFER, PHYSICAL, WORKGROUP, PAYLOAD, IMAGE])
@pytest.mark.parametrize("opcode", [LOAD, STORE, EXCHANGE])
def test_plain_operations_are_found_without_a_capability(opcode: int, storage: int) -> None:
    code = atomic_shader(opcode, FLOAT_32, storage)
    assert atomics_of(code) == (Atomic(opcode, storage, True, 32),)


def test_operations_that_need_no_feature_are_left_out() -> None:
    integer = Number(False, 32)
    for opcode in (LOAD, STORE, EXCHANGE, COMPARE, INTEGER_ADD):
        assert atomics_of(atomic_shader(opcode, integer, STORAGE_BUFFER, capabilities=CAPABILITIES)) == ()
    unused = atomic_shader(FLOAT_ADD, FLOAT_32, STORAGE_BUFFER, capabilities=CAPABILITIES, unused=True)
    assert atomics_of(unused) == ()
    # No feature allows it, so none is missing; nothing speaks of memory that only one invocation has.
    assert list(atomic_features(Atomic(EXCHANGE, IMAGE, True, 64))) == []
    assert list(atomic_features(Atomic(EXCHANGE, 7, True, 32))) == []


def function(
    *body: tuple[int, ...], before: tuple[tuple[int, ...], ...] = (), capability: int = ADD_32
) -> bytes:
    """A module that declares a capability, with a function of that body; %5 is a 32-bit float."""
    return assemble(
        (17, 1),
        (17, capability),
        (22, 5, 32),
        *before,
        (54, 1, 2, 0, 3),
        (248, 4),
        *body,
        (253,),
        (56,),
        bound=64,
    )


def test_pointers_by_whatever_makes_them() -> None:
    pointer = (32, 6, STORAGE_BUFFER, 5)
    add = (FLOAT_ADD, 5, 30, 20, 9, 9, 9)
    expected = (Atomic(FLOAT_ADD, STORAGE_BUFFER, True, 32),)
    for made in (
        (55, 6, 20),  # OpFunctionParameter
        (57, 6, 20, 40),  # OpFunctionCall
        (61, 6, 20, 40),  # OpLoad of a physical pointer
        (67, 6, 20, 40, 41),  # OpPtrAccessChain
        (120, 6, 20, 40),  # OpConvertUToPtr
        (169, 6, 20, 40, 41, 42),  # OpSelect
        (245, 6, 20, 40, 41, 42, 43),  # OpPhi
    ):
        assert atomics_of(function(made, add, before=(pointer,))) == expected
    assert atomics_of(function(add, before=(pointer,))) == ()  # nothing makes it: its memory cannot be told


def test_untyped_pointers_take_the_type_of_the_value() -> None:
    before = ((4417, 6, STORAGE_BUFFER), (4418, 6, 20, STORAGE_BUFFER))
    add = (FLOAT_ADD, 5, 30, 20, 9, 9, 9)
    assert atomics_of(function(add, before=before)) == (Atomic(FLOAT_ADD, STORAGE_BUFFER, True, 32),)
    one = (43, 5, 21, 0)
    store = (STORE, 20, 9, 9, 21)
    expected = (Atomic(STORE, STORAGE_BUFFER, True, 32),)
    assert atomics_of(function(store, before=(*before, one))) == expected
    # No typed pointer tells of memory here, so that the capability alone has to lead into the functions.
    assert atomics_of(function(store, before=(*before, one), capability=UNTYPED_POINTERS)) == expected


def test_other_encodings_of_floating_point_are_not_taken_for_it() -> None:
    before = ((22, 7, 16, 0), (32, 6, STORAGE_BUFFER, 7))  # BFloat16KHR
    body = ((55, 6, 20), (EXCHANGE, 7, 30, 20, 9, 9, 9))
    assert atomics_of(function(*body, before=before)) == ()


def test_each_kind_is_said_once() -> None:
    pointer = (32, 6, STORAGE_BUFFER, 5)
    add = (FLOAT_ADD, 5, 30, 20, 9, 9, 9)
    swap = (EXCHANGE, 5, 30, 20, 9, 9, 9)
    found = atomics_of(function((55, 6, 20), *[add, swap] * 1000, before=(pointer,)))
    assert [each.opcode for each in found] == [FLOAT_ADD, EXCHANGE]


def test_words_that_only_look_like_an_operation_do_no_harm() -> None:
    plain = assemble(
        (17, 1),
        (22, 5, 32),
        (32, 7, STORAGE_BUFFER, 5),
        (43, 5, 6, 7 << 16 | EXCHANGE),
        (54, 1, 2, 0, 3),
        (56,),
    )
    assert walk_spirv(plain).atomics == ()


def test_framing_of_functions_is_proven_where_they_are_walked() -> None:
    cut = function((55, 6, 20))[:-4] + (9 << 16 | 56).to_bytes(4, "little")
    with pytest.raises(SpirvError, match="instruction 56 of 9 words runs past"):
        walk_spirv(cut)
    with pytest.raises(SpirvError, match="instruction 21 of 2 words is too short"):
        walk_spirv(function(before=((21, 7),)))
    with pytest.raises(SpirvError, match="id 64 is not in 1 to 63"):
        walk_spirv(function((55, 6, 64), before=((32, 6, STORAGE_BUFFER, 5),)))


@pytest.mark.parametrize("storage", [STORAGE_BUFFER, WORKGROUP, IMAGE])
@pytest.mark.parametrize("opcode", [FLOAT_ADD, EXCHANGE, STORE])
def test_shaders_of_these_tests_are_valid(opcode: int, storage: int, tmp_path: Path) -> None:
    path = tmp_path / "shader.spv"
    path.write_bytes(atomic_shader(opcode, FLOAT_32, storage, capabilities=CAPABILITIES))
    tool = require_tool("spirv-val")
    done = subprocess.run(
        [tool, "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.driver("radv:navi21")
def test_a_driver_is_not_given_what_ends_its_compiler(open_driver_device: OpenDriverDevice) -> None:
    device = open_driver_device("radv:navi21")
    has = device.capabilities.has_feature
    assert has(FLOAT, "shaderSharedFloat32AtomicAdd")
    assert has(FLOAT, "shaderBufferFloat32Atomics")
    if has(FLOAT, "shaderBufferFloat32AtomicAdd"):
        unsupported("the driver adds floating-point values in buffers")
    records = MemoryRecords()
    builder = PipelineSetBuilder(records)
    shaders = {
        (opcode, storage): builder.shader_module(
            atomic_shader(opcode, FLOAT_32, storage, capabilities=CAPABILITIES)
        )
        for opcode in (FLOAT_ADD, EXCHANGE)
        for storage in (STORAGE_BUFFER, WORKGROUP)
    }
    keys = {name: builder.compute_pipeline("auto", module) for name, module in shaders.items()}
    source = PipelineSet.from_records(records)
    built = build_image(source, source.pipelines, device.capabilities)
    skipped = keys.pop((FLOAT_ADD, STORAGE_BUFFER))
    assert [(each.job.key, each.unsupported, each.reason) for each in built.problems] == [
        (skipped, True, f"feature {FLOAT}::shaderBufferFloat32AtomicAdd")
    ]
    assert set(built.image.keys.tolist()) == set(keys.values())
    prepared = device.prepare(built.image)
    batch = device.create_pipelines(prepared, np.arange(len(built.image), dtype=np.int32), NO_SOURCE)
    prepared.close()
    assert batch.results.tolist() == [0, 0, 0]
