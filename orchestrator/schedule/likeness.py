# Purpose: which pipelines might turn out to be the same work, before the driver is asked: those that share their kind, all
# of their shader modules and all of their libraries with another one. A driver's key for a pipeline is made of its code
# and of the state that the code depends on, so pipelines of different code have different keys, and asking is spared.
#
# Guarantees: pure; O(pipelines + module slots), without a loop in the interpreter. Different pipelines may be told alike by
# accident of a 64-bit hash, which costs a question. What this misses is compiled twice, as without a second level:
# pipelines whose modules differ in their bytes and not to the driver.
"""`possibly_same`: who is worth asking the driver about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage

UInt64s = npt.NDArray[np.uint64]

_LIBRARY = np.uint64(1) << np.uint64(40)
_KIND = np.uint64(1) << np.uint64(41)


def possibly_same(image: CreateInfoImage) -> npt.NDArray[np.bool_]:
    """Pipelines that may have the same pipeline key as another one of the image, shape (n,)."""
    code = (
        _mixed(image.kinds.astype(np.uint64) + _KIND)
        + _sums(image.module_slot_start, image.module_slot_module.astype(np.uint64))
        + _sums(image.library_slot_start, image.library_slot_pipeline.astype(np.uint64) + _LIBRARY)
    )
    _, numbers, counts = np.unique(code, return_inverse=True, return_counts=True)
    return np.asarray(counts[numbers] > 1)


def _sums(start: npt.NDArray[np.int64], values: UInt64s) -> UInt64s:
    """Sum of the mixed values of each row of a ragged array: the order does not count, how often does."""
    ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(values), dtype=np.uint64)))
    return np.asarray(ends[start[1:]] - ends[start[:-1]])


def _mixed(values: UInt64s) -> UInt64s:
    """The values spread over 64 bits (the finalizer of splitmix64)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
