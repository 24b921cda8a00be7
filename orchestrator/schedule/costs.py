"""What compiling will cost, and which pipelines are or may be the same work.

    cost = base(kind) + per_stage(kind) x stages + per_byte(kind) x bytes of SPIR-V          nanoseconds

A driver's keys (vkGetPipelineKeyKHR) are checked against kind, modules and libraries. Where two pipelines of
different code have one key, the keys of that kind are not used: NVIDIA 580.159 gives one key to all
ray-tracing pipelines. Keys of a kind are proven where pipelines of different code have different keys.

Guarantees: pure and thread-safe; images are only read; every estimate is at least 1 ns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind

DEFAULT_COST_NS = 2_000_000
"""Cost of a job of which nothing is known."""

Nanoseconds = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Keys = Sequence[bytes | None]
"""What `Device.pipeline_keys` gave for each pipeline of an image, None where it was not asked."""

# For a pipeline, each stage and each byte: a rough fit to cold compiles of small shaders on one driver. The
# scheduler needs only the order of costs; it learns their size from the run.
_LINES = {
    PipelineKind.GRAPHICS: (300_000.0, 400_000.0, 150.0),
    PipelineKind.COMPUTE: (200_000.0, 400_000.0, 150.0),
    PipelineKind.RAY_TRACING: (2_000_000.0, 800_000.0, 300.0),
}
_MOST_NS = np.int64(3_600_000_000_000)
_LIBRARY = np.uint64(1) << np.uint64(40)
_KIND = np.uint64(1) << np.uint64(41)


def estimated_costs(image: CreateInfoImage, recorded_ns: Nanoseconds | None = None) -> Nanoseconds:
    """What compiling each pipeline costs: as recorded, or estimated, nanoseconds, shape (n,).

    Estimates of a kind are as far above or below the default line as the recorded costs of that kind.

    Args:
        image: The pipelines.
        recorded_ns: Recorded cost of each, shape (n,), 0 where there is none; None: there are none. One of
            more than an hour counts as an hour, so that the sum of all has room.

    Raises:
        ValueError: The number of costs is not that of the pipelines, or one is negative or no whole number.
    """
    if recorded_ns is None:
        return _rounded(_by_line(image))
    recorded_ns = np.asarray(recorded_ns)  # a list would do, too
    if recorded_ns.shape != (len(image),):
        raise ValueError(f"costs_ns is of shape {recorded_ns.shape} for {len(image)} pipelines")
    if recorded_ns.dtype.kind not in "iu" or (len(recorded_ns) and recorded_ns.min() < 0):
        raise ValueError("costs_ns are whole numbers of nanoseconds that are not negative")
    recorded_ns = np.minimum(recorded_ns, _MOST_NS).astype(np.int64)
    is_known = recorded_ns > 0
    if is_known.all():
        return recorded_ns  # the usual case from the second run of a set on
    estimates = _by_line(image)
    for kind in range(len(KINDS)):
        of_kind = image.kinds == kind
        if (known := of_kind & is_known).any():
            estimates[of_kind] *= np.exp(np.log(recorded_ns[known] / estimates[known]).mean())
    return np.where(is_known, recorded_ns, _rounded(estimates))


def _by_line(image: CreateInfoImage) -> npt.NDArray[np.float64]:
    sizes = np.fromiter((module.code_size for module in image.modules), np.int64, len(image.modules))
    start = image.module_slot_start
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[image.module_slot_module])))
    base, stage, byte = np.array([_LINES[kind] for kind in KINDS])[image.kinds].T
    return np.asarray(base + stage * np.diff(start) + byte * (ends[start[1:]] - ends[start[:-1]]))


def _rounded(costs: npt.NDArray[np.float64]) -> Nanoseconds:
    return np.maximum(np.rint(costs), 1).astype(np.int64)


def candidate_duplicates(image: CreateInfoImage) -> npt.NDArray[np.bool_]:
    """Pipelines that may have the same pipeline key as another one of the image, shape (n,).

    They share their kind, all shader modules and all libraries with another pipeline: a driver makes a key
    from the code and the state that the code depends on. A collision of 64-bit hashes costs one needless
    question. Pipelines whose modules differ only in bytes that the driver ignores are missed, and compiled
    twice.
    """
    _, numbers, counts = np.unique(code_numbers(image), return_inverse=True, return_counts=True)
    return np.asarray(counts[numbers] > 1)


def code_numbers(image: CreateInfoImage) -> UInt64s:
    """A hash of the kind, modules and libraries of each pipeline, shape (n,)."""
    return np.asarray(
        _mixed(image.kinds.astype(np.uint64) + _KIND)
        + _sums(image.module_slot_start, image.module_slot_module.astype(np.uint64))
        + _sums(image.library_slot_start, image.library_slot_pipeline.astype(np.uint64) + _LIBRARY)
    )


def _sums(start: npt.NDArray[np.int64], values: UInt64s) -> UInt64s:
    """Sum of the mixed values of each row of a ragged array: order does not matter, repetition does."""
    ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(values), dtype=np.uint64)))
    return np.asarray(ends[start[1:]] - ends[start[:-1]])


def _mixed(values: UInt64s) -> UInt64s:
    """The values spread over 64 bits (the finalizer of splitmix64)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def distrusted_kinds(image: CreateInfoImage, keys: Keys) -> tuple[PipelineKind, ...]:
    """The kinds in which two pipelines of different code have one key."""
    code_of: dict[tuple[int, bytes], int] = {}
    found: set[int] = set()
    for kind, code, key in zip(image.kinds.tolist(), code_numbers(image).tolist(), keys, strict=True):
        if key is not None and code_of.setdefault((kind, key), code) != code:
            found.add(kind)
    return tuple(kind for number, kind in enumerate(KINDS) if number in found)


def trusted_keys(image: CreateInfoImage, keys: Keys) -> list[bytes | None]:
    """The keys, with None for the kinds that `distrusted_kinds` names."""
    distrusted = {KINDS.index(kind) for kind in distrusted_kinds(image, keys)}
    return [None if kind in distrusted else key for key, kind in zip(keys, image.kinds.tolist(), strict=True)]
