"""What compiling will cost, and which pipelines are or may be the same work.

    cost = base(kind) + per_stage(kind) x stages + per_byte(kind) x bytes of SPIR-V          nanoseconds

The default coefficients are a rough fit to cold compiles of small shaders on one desktop driver (about 2 ms a
pipeline). The scheduler needs only their order; it learns the absolute size from the run. `fit` gives the
coefficients of a device from its recorded compiles.

A driver's keys (vkGetPipelineKeyKHR) are checked against kind, modules and libraries. Where two pipelines of
different code have one key, the keys of that kind are not used: NVIDIA 580.159 gives one key to all
ray-tracing pipelines. Keys of a kind are proven where pipelines of different code have different keys.

Guarantees: pure and thread-safe; images are only read; every estimate is at least 1 ns, so that a sum of
costs is never zero while jobs are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind

DEFAULT_COST_NS = 2_000_000
"""Cost of a job of which nothing is known."""

Nanoseconds = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_MOST_NS = np.int64(3_600_000_000_000)
_LIBRARY = np.uint64(1) << np.uint64(40)
_KIND = np.uint64(1) << np.uint64(41)


class CostLine(msgspec.Struct, frozen=True):
    """Coefficients of one kind, nanoseconds; see the top of the module.

    Attributes:
        base_ns: For a pipeline.
        stage_ns: For each of its stages.
        byte_ns: For each byte of SPIR-V of its stages.
    """

    base_ns: float
    stage_ns: float
    byte_ns: float


class CostLines(msgspec.Struct, frozen=True):
    """A line for each kind.

    Attributes:
        lines: Coefficients by kind.
    """

    lines: dict[PipelineKind, CostLine] = msgspec.field(
        default_factory=lambda: {
            PipelineKind.GRAPHICS: CostLine(300000.0, 400000.0, 150.0),
            PipelineKind.COMPUTE: CostLine(200000.0, 400000.0, 150.0),
            PipelineKind.RAY_TRACING: CostLine(2000000.0, 800000.0, 300.0),
        }
    )

    def estimate(
        self,
        kinds: npt.NDArray[np.uint8],
        spirv_bytes: npt.NDArray[np.int64],
        stages: npt.NDArray[np.int64],
    ) -> Nanoseconds:
        """Estimate many jobs.

        Args:
            kinds: Position in `PipelineKind` of each, shape (n,).
            spirv_bytes: Bytes of SPIR-V of all stages of each, shape (n,).
            stages: Number of stages of each, shape (n,).

        Returns:
            Nanoseconds, shape (n,), at least 1.
        """
        chosen = np.array([msgspec.structs.astuple(self.lines[kind]) for kind in PipelineKind])[kinds]
        cost = chosen[:, 0] + chosen[:, 1] * stages + chosen[:, 2] * spirv_bytes
        return np.maximum(np.rint(cost), 1).astype(np.int64)


DEFAULT_MODEL = CostLines()


def fit(
    kinds: npt.NDArray[np.uint8],
    spirv_bytes: npt.NDArray[np.int64],
    stages: npt.NDArray[np.int64],
    recorded_ns: npt.NDArray[np.int64],
) -> CostLines:
    """Coefficients from recorded compiles (not cache hits), by least squares.

    Errors are weighed relative to the recorded cost: a pipeline of 100 ms must not decide the estimate
    of one of 1 ms. A negative coefficient has no meaning; it is set to zero and the others are fitted again.
    A kind with fewer records than coefficients keeps its default line, scaled to its records.

    Args:
        kinds: Position in `PipelineKind` of each record, shape (n,).
        spirv_bytes: Bytes of SPIR-V, shape (n,).
        stages: Number of stages, shape (n,).
        recorded_ns: Measured cost of each, shape (n,); records below 1 ns are left out.
    """
    lines = dict(DEFAULT_MODEL.lines)
    for place, kind in enumerate(PipelineKind):
        chosen = (kinds == place) & (recorded_ns > 0)
        cost = recorded_ns[chosen].astype(np.float64)
        if not len(cost):
            continue
        terms = np.stack([np.ones(len(cost)), stages[chosen], spirv_bytes[chosen]], axis=1).astype(np.float64)
        if len(cost) < terms.shape[1]:
            solved = np.array(msgspec.structs.astuple(lines[kind]))
        else:
            solved = _non_negative(terms / cost[:, None])
        # Relative errors weigh what is too high without bound, and what is too low by 1 at most. So where
        # sizes say little about costs, all estimates would be those of the cheapest.
        lines[kind] = CostLine(*map(float, solved * _middle(cost, terms @ solved)))
    return CostLines(lines)


def _middle(cost: npt.NDArray[np.float64], estimated: npt.NDArray[np.float64]) -> float:
    """Geometric mean of costs over their estimates."""
    return float(np.exp(np.log(cost / np.maximum(estimated, 1.0)).mean()))


def _non_negative(terms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares of terms @ x = 1 with x >= 0, by leaving negative coefficients out one after another."""
    used = [0, 1, 2]
    # Columns differ by orders of magnitude (1 and kilobytes), so scale them for `lstsq` to find the rank.
    scale = np.maximum(np.abs(terms).max(axis=0), np.finfo(np.float64).tiny)
    while True:
        solved = np.linalg.lstsq(terms[:, used] / scale[used], np.ones(len(terms)), rcond=None)[0]
        solved = solved / scale[used]
        if len(used) == 1 or (solved >= 0).all():
            break
        used.pop(int(np.argmin(solved * scale[used])))
    result = np.zeros(3)
    result[used] = np.maximum(solved, 0)
    return result


def estimated_costs(image: CreateInfoImage, recorded_ns: Nanoseconds | None = None) -> Nanoseconds:
    """What compiling each pipeline costs: as recorded, or estimated, nanoseconds, shape (n,).

    Estimates are fitted to the recorded costs of the same set.

    Args:
        image: The pipelines.
        recorded_ns: Recorded cost of each, shape (n,), 0 where there is none; None: there are none. One of
            more than an hour counts as an hour, so that the sum of all has room.

    Raises:
        ValueError: The number of costs is not that of the pipelines, or one is negative or no whole number.
    """
    if recorded_ns is not None:
        recorded_ns = np.asarray(recorded_ns)  # a list would do, too
        if recorded_ns.ndim != 1:
            raise ValueError(f"costs_ns has {recorded_ns.ndim} dimensions; one number a pipeline is expected")
        if len(recorded_ns) != len(image):
            raise ValueError(f"costs_ns has {len(recorded_ns)} elements for {len(image)} pipelines")
        if recorded_ns.dtype.kind not in "iu" or (len(recorded_ns) and recorded_ns.min() < 0):
            raise ValueError("costs_ns are whole numbers of nanoseconds that are not negative")
        recorded_ns = np.minimum(recorded_ns, _MOST_NS).astype(np.int64)
    if recorded_ns is not None and (recorded_ns > 0).all():
        return recorded_ns  # the usual case from the second run of a set on
    # SPIR-V bytes of all stages of each pipeline, and their number.
    sizes = np.fromiter((module.code_size for module in image.modules), np.int64, len(image.modules))
    start = image.module_slot_start
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[image.module_slot_module])))
    code = image.kinds, ends[start[1:]] - ends[start[:-1]], np.diff(start)
    if recorded_ns is None:
        return DEFAULT_MODEL.estimate(*code)
    return np.where(recorded_ns > 0, recorded_ns, fit(*code, recorded_ns).estimate(*code))


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


Keys = Sequence[bytes | None]


def distrusted_kinds(image: CreateInfoImage, keys: Keys) -> tuple[PipelineKind, ...]:
    """The kinds in which two pipelines of different code have one key.

    Args:
        image: The pipelines.
        keys: What `Device.pipeline_keys` gave for each, None where it was not asked.
    """
    code, seen = code_numbers(image), dict[tuple[int, bytes], int]()
    found = {
        int(image.kinds[index])
        for index, key in enumerate(keys)
        if key is not None
        and seen.setdefault((int(image.kinds[index]), key), int(code[index])) != code[index]
    }
    return tuple(kind for number, kind in enumerate(PipelineKind) if number in found)


def trusted_keys(image: CreateInfoImage, keys: Keys) -> list[bytes | None]:
    """The keys, with None for the kinds that `distrusted_kinds` names."""
    distrusted = {KINDS.index(kind) for kind in distrusted_kinds(image, keys)}
    return [None if kind in distrusted else key for key, kind in zip(keys, image.kinds.tolist(), strict=True)]


def proven_keys(image: CreateInfoImage, keys: Keys) -> npt.NDArray[np.bool_]:
    """Which pipelines have a key of a kind whose keys differ for different code, shape (n,)."""
    code, trusted = code_numbers(image), trusted_keys(image, keys)
    codes: dict[int, set[int]] = {}
    for index, key in enumerate(trusted):
        if key is not None:
            codes.setdefault(int(image.kinds[index]), set()).add(int(code[index]))
    proven = np.array([number for number, several in codes.items() if len(several) > 1], np.int64)
    known = np.array([key is not None for key in trusted], np.bool_)
    return np.asarray(known & np.isin(image.kinds, proven))
