"""Compute shaders that do one atomic operation, assembled from words; valid where the operation is."""

from __future__ import annotations

from attrs import frozen

from tests.sets.spirv.shader_words import assemble, words_of

LOAD, STORE, EXCHANGE, COMPARE, INCREMENT, INTEGER_ADD = 227, 228, 229, 230, 232, 234
FLOAT_MIN, FLOAT_MAX, FLOAT_ADD = 5614, 5615, 6035
UNIFORM, WORKGROUP, IMAGE, STORAGE_BUFFER, PHYSICAL, PAYLOAD = 2, 4, 11, 12, 5349, 5402

_WORDS = {LOAD: 6, STORE: 5, EXCHANGE: 7, COMPARE: 9, INCREMENT: 6}
_SHADER, _INT_64 = (1, 11), 11


@frozen
class Number:
    """A type of values.

    Attributes:
        floating: Whether it is floating-point.
        width: Bits of it, or of one component.
        components: Of a vector; 1 for a scalar.
    """

    floating: bool
    width: int
    components: int = 1


def atomic_shader(
    opcode: int, number: Number, storage: int, *, capabilities: tuple[int, ...] = (), unused: bool = False
) -> bytes:
    """A compute shader "main" that does an atomic operation.

    Args:
        opcode: The operation.
        number: What it is done on.
        storage: SPIR-V StorageClass of the pointer; images are two-dimensional, of the format R32f.
        capabilities: Beside Shader.
        unused: Whether the operation is left out.
    """
    component, value, one = 8, 9 if number.components > 1 else 8, 12
    bits = (1,) if number.width <= 32 else (1, 0)
    types: list[tuple[int, ...]] = [
        (22, component, number.width) if number.floating else (21, component, number.width, 0)
    ]
    if number.components > 1:
        types.append((23, value, component, number.components))
        types.append((43, component, 11, *bits))
        types.append((44, value, one, *[11] * number.components))
    else:
        types.append((43, component, one, *bits))
    decorations: list[tuple[int, ...]] = []
    body: list[tuple[int, ...]] = []
    pointer = 20
    if storage == IMAGE:
        types += [
            (25, 13, component, 1, 0, 0, 0, 2, 3),  # %13 = OpTypeImage 2D storage R32f
            (32, 14, 0, 13),  # %14 = OpTypePointer UniformConstant %13
            (32, 15, IMAGE, value),
            (23, 16, 6, 2),  # %16 = uvec2
            (44, 16, 17, 7, 7),
            (59, 14, 18, 0),
        ]
        decorations = [(71, 18, 34, 0), (71, 18, 33, 0)]
        body.append((60, 15, pointer, 18, 17, 7))  # OpImageTexelPointer
    elif storage == WORKGROUP:
        types += [(32, 15, storage, value), (59, 15, pointer, storage)]
    else:
        types += [
            (30, 13, value),  # %13 = OpTypeStruct
            (32, 14, storage, 13),
            (32, 15, storage, value),
            (59, 14, 18, storage),
        ]
        block = 3 if storage == UNIFORM else 2  # BufferBlock or Block
        decorations = [
            (71, 13, block),
            (72, 13, 0, 35, 0),
            (71, 18, 34, 0),
            (71, 18, 33, 0),
        ]
        body.append((65, 15, pointer, 18, 7))  # OpAccessChain
    # Scope Device, relaxed; a comparison has the semantics twice and two values.
    tail = {5: (one,), 6: (), 7: (one,), 9: (7, one, one)}[_WORDS.get(opcode, 7)]
    operands = (pointer, 10, 7, *tail)
    body.append((opcode, *(() if opcode == STORE else (value, 21)), *operands))
    return assemble(
        *((17, each) for each in (1, *capabilities)),
        *(
            (10, *words_of(each))
            for each in ("SPV_KHR_storage_buffer_storage_class", "SPV_EXT_shader_atomic_float_add")
        ),
        (14, 0, 1),
        (15, 5, 2, *words_of("main")),
        (16, 2, 17, 1, 1, 1),
        *decorations,
        (19, 1),
        (33, 3, 1),
        (21, 6, 32, 0),
        (43, 6, 7, 0),
        (43, 6, 10, 1),
        *types,
        (54, 1, 2, 0, 3),
        (248, 4),
        *([] if unused else body),
        (253,),
        (56,),
        bound=32,
    )
