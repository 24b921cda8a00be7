"""Which feature each atomic operation of a shader needs, by its memory, type and operation.

The registry lets a SPIR-V capability be enabled by any of several features, one for each kind of memory; a compiler
may end the process when it meets an operation in memory whose own feature it lacks. The rules are data: one row an
operation, memory and type, with the feature in whose description the specification says what it allows
(VkPhysicalDeviceShaderAtomicFloatFeaturesEXT, -AtomicFloat2FeaturesEXT, -AtomicInt64Features,
-ImageAtomicInt64FeaturesEXT, -AtomicFloat16VectorFeaturesNV). The statements VUID-RuntimeSpirv-None-06278, -06279 and
-06288 say the same of integers. Those of floating-point values (-06284 to -06287 and -06337 to -06339) ask for any of
the features of one memory or of one width; the rows are narrower, because each feature allows its own operations only.

Operations that no row describes (a 64-bit floating-point image) need nothing here: no feature would allow them, and
the module's capabilities are asked for anyway. Nor do the features of sparse images (sparseImageFloat32Atomics and
those beside it): neither a shader nor a pipeline says that an image will be sparse.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from orchestrator.sets.requirement_rules import Feature
from orchestrator.sets.spirv import (
    OP_ATOMIC_EXCHANGE,
    OP_ATOMIC_FLOAT_ADD,
    OP_ATOMIC_FLOAT_MAX,
    OP_ATOMIC_FLOAT_MIN,
    OP_ATOMIC_LOAD,
    OP_ATOMIC_STORE,
    Atomic,
)

_FLOAT = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"
_FLOAT_2 = "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT"
_INT_64 = "VkPhysicalDeviceShaderAtomicInt64Features"
_IMAGE_INT_64 = "VkPhysicalDeviceShaderImageAtomicInt64FeaturesEXT"
_VECTOR = "VkPhysicalDeviceShaderAtomicFloat16VectorFeaturesNV"

# SPIR-V storage classes: Uniform, StorageBuffer, PhysicalStorageBuffer; Workgroup, TaskPayloadWorkgroupEXT; Image.
# Payloads are named by the descriptions of the shared features ("shared and payload memory").
BUFFER, SHARED, IMAGE = frozenset({2, 12, 5349}), frozenset({4, 5402}), frozenset({11})

_PLAIN = frozenset({OP_ATOMIC_LOAD, OP_ATOMIC_STORE, OP_ATOMIC_EXCHANGE})
_ADD = frozenset({OP_ATOMIC_FLOAT_ADD})
_MIN_MAX = frozenset({OP_ATOMIC_FLOAT_MIN, OP_ATOMIC_FLOAT_MAX})
_ALL: frozenset[int] = frozenset()


@frozen
class AtomicRule:
    """A kind of atomic operation that needs a feature.

    Attributes:
        opcodes: SPIR-V opcodes; empty for every atomic operation.
        storage_classes: Of the pointer.
        floating: Whether the value is floating-point.
        width: Bits of the value, or of one component of it.
        vector: Whether it is a vector.
        feature: The feature, whose description is the source of the rule.
    """

    opcodes: frozenset[int]
    storage_classes: frozenset[int]
    floating: bool
    width: int
    vector: bool
    feature: Feature

    def covers(self, atomic: Atomic) -> bool:
        """Whether the rule is about an operation."""
        return (
            (not self.opcodes or atomic.opcode in self.opcodes)
            and atomic.storage_class in self.storage_classes
            and (atomic.floating, atomic.width, atomic.components > 1)
            == (self.floating, self.width, self.vector)
        )


def _float(opcodes: frozenset[int], memory: str, width: int, struct: str, suffix: str) -> AtomicRule:
    classes = {"Buffer": BUFFER, "Shared": SHARED, "Image": IMAGE}[memory]
    return AtomicRule(opcodes, classes, True, width, False, (struct, f"shader{memory}Float{width}{suffix}"))


# One rule a line, however long: the table is read and searched by line.
# fmt: off
ATOMIC_RULES: tuple[AtomicRule, ...] = (
    *(_float(_PLAIN, memory, 16, _FLOAT_2, "Atomics") for memory in ("Buffer", "Shared")),
    *(_float(_ADD, memory, 16, _FLOAT_2, "AtomicAdd") for memory in ("Buffer", "Shared")),
    *(_float(_MIN_MAX, memory, 16, _FLOAT_2, "AtomicMinMax") for memory in ("Buffer", "Shared")),
    *(_float(_PLAIN, memory, 32, _FLOAT, "Atomics") for memory in ("Buffer", "Shared", "Image")),
    *(_float(_ADD, memory, 32, _FLOAT, "AtomicAdd") for memory in ("Buffer", "Shared", "Image")),
    *(_float(_MIN_MAX, memory, 32, _FLOAT_2, "AtomicMinMax") for memory in ("Buffer", "Shared", "Image")),
    *(_float(_PLAIN, memory, 64, _FLOAT, "Atomics") for memory in ("Buffer", "Shared")),
    *(_float(_ADD, memory, 64, _FLOAT, "AtomicAdd") for memory in ("Buffer", "Shared")),
    *(_float(_MIN_MAX, memory, 64, _FLOAT_2, "AtomicMinMax") for memory in ("Buffer", "Shared")),
    AtomicRule(_ALL, BUFFER | SHARED | IMAGE, True, 16, True, (_VECTOR, "shaderFloat16VectorAtomics")),
    AtomicRule(_ALL, BUFFER, False, 64, False, (_INT_64, "shaderBufferInt64Atomics")),
    AtomicRule(_ALL, SHARED, False, 64, False, (_INT_64, "shaderSharedInt64Atomics")),
    AtomicRule(_ALL, IMAGE, False, 64, False, (_IMAGE_INT_64, "shaderImageInt64Atomics")),
)
# fmt: on


def atomic_features(atomic: Atomic) -> Iterator[Feature]:
    """The features that an operation needs, all of them: none or one."""
    return (rule.feature for rule in ATOMIC_RULES if rule.covers(atomic))
