"""Images for the simulated device, made without a captured set. Thread-safe.

The tables are consistent (every offset lies in the buffer), but the buffer holds no create infos, so a real
driver must never get such an image.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from orchestrator.devices.image import KINDS, CreateInfoImage, ImageModule, PipelineKind

# Header of an empty SPIR-V 1.0 module: magic number, version, generator, bound, schema.
_EMPTY_MODULE = struct.pack("<5I", 0x07230203, 0x00010000, 0, 1, 0)
_STRIDE = 16


def _load_empty_module() -> bytes:
    return _EMPTY_MODULE


def _starts(groups: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    starts = np.zeros(len(groups) + 1, np.int64)
    np.cumsum([len(group) for group in groups], out=starts[1:])
    return starts


def simulated_image(
    keys: Sequence[int],
    *,
    kinds: Sequence[PipelineKind] | PipelineKind = PipelineKind.GRAPHICS,
    modules: Mapping[int, Sequence[int]] | None = None,
    libraries: Mapping[int, Sequence[int]] | None = None,
) -> CreateInfoImage:
    """Make an image for the simulated device.

    Args:
        keys: Different hashes of the pipelines, in the order of their indices.
        kinds: Kind of each pipeline, in the order of `PipelineKind`, or one kind for all.
        modules: Hashes of the shader modules of a pipeline's stages, by pipeline key.
        libraries: Keys of the libraries that a pipeline links, by pipeline key; a library precedes it.

    Raises:
        ValueError: The arguments do not describe an image; for example, kinds are out of order.
    """
    modules, libraries = modules or {}, libraries or {}
    all_kinds = [kinds] * len(keys) if isinstance(kinds, PipelineKind) else list(kinds)
    numbers = [KINDS.index(kind) for kind in all_kinds]
    index_of = _checked(keys, numbers, modules.keys() | libraries.keys())
    module_keys = list(dict.fromkeys(module for key in keys for module in modules.get(key, ())))
    module_index = {key: index for index, key in enumerate(module_keys)}
    modules_of = [[module_index[module] for module in modules.get(key, ())] for key in keys]
    libraries_of: list[list[int]] = []
    for index, key in enumerate(keys):
        linked = [index_of.get(library, len(keys)) for library in libraries.get(key, ())]
        if any(library >= index for library in linked):
            raise ValueError(f"pipeline {key:#x} links a library that does not come before it")
        libraries_of.append(linked)

    count = len(keys)
    is_library = np.zeros(count, np.bool_)
    is_library[[library for linked in libraries_of for library in linked]] = True
    none = np.zeros(0, np.int64)
    no_index = np.zeros(0, np.int32)
    slots = [offset for offset, group in enumerate(modules_of) for _ in group]
    links = [offset for offset, group in enumerate(libraries_of) for _ in group]
    return CreateInfoImage(
        # Create infos and feedback entries have a stride of 16 bytes each here.
        buffer=np.zeros(2 * count * _STRIDE, np.uint8),
        pointer_slots=none,
        pointer_targets=none,
        objects=(),
        object_slots=none,
        object_slot_object=no_index,
        modules=tuple(ImageModule(key, len(_EMPTY_MODULE), 0, _load_empty_module) for key in module_keys),
        module_slots=np.array(slots, np.int64) * _STRIDE,
        module_slot_module=np.array([each for group in modules_of for each in group], np.int32),
        module_slot_start=_starts(modules_of),
        library_slots=np.array(links, np.int64) * _STRIDE,
        library_slot_pipeline=np.array([each for group in libraries_of for each in group], np.int32),
        library_slot_start=_starts(libraries_of),
        object_start=np.zeros(count + 1, np.int64),
        object_index=no_index,
        keys=np.array(keys, np.uint64),
        kinds=np.array(numbers, np.uint8),
        offsets=np.arange(count, dtype=np.int64) * _STRIDE,
        strides=dict.fromkeys(PipelineKind, _STRIDE),
        counts={kind: all_kinds.count(kind) for kind in PipelineKind},
        feedback_offset=count * _STRIDE,
        feedback_slots=np.arange(count, dtype=np.int64) * _STRIDE + 8,
        feedback_next=np.full(count, -1, np.int64),
        flags2_slots=np.full(count, -1, np.int64),
        is_library=is_library,
    )


def _checked(keys: Sequence[int], kinds: Sequence[int], named: AbstractSet[int]) -> dict[int, int]:
    # The index of each key, where the arguments describe an image.
    index_of = {key: index for index, key in enumerate(keys)}
    if len(kinds) != len(keys) or list(kinds) != sorted(kinds):
        raise ValueError("kinds has one element a pipeline, in the order of PipelineKind")
    if len(index_of) != len(keys):
        raise ValueError("a pipeline key stands twice in keys")
    if unknown := named - index_of.keys():
        raise ValueError(f"modules or libraries name pipelines that are not in keys: {sorted(unknown)}")
    return index_of
