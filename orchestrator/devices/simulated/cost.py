# Purpose: what a pipeline costs in the simulated driver: time to compile, time of a hit, bytes in the cache.
# Guarantees: a cost depends on the pipeline's key (and a seed) alone, never on order, thread or process.
"""The cost model of the simulated driver."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

from attrs import field, frozen

# What RADV's compiler takes for a small compute pipeline, as the order of magnitude of the defaults.
DEFAULT_COMPILE_NS = 2_000_000
DEFAULT_HIT_NS = 5_000
DEFAULT_ENTRY_BYTES = 1_500

_NORMAL = NormalDist()


def constant_cost(value: int) -> Callable[[int], int]:
    """The same for every pipeline."""
    return lambda _key: value


def mapped_cost(values: Mapping[int, int], default: int = DEFAULT_COMPILE_NS) -> Callable[[int], int]:
    """A value by pipeline key, and one for all others."""
    own = dict(values)
    return lambda key: own.get(key, default)


def lognormal_cost(median: int, sigma: float, seed: int = 0) -> Callable[[int], int]:
    """A lognormal draw for each pipeline key: a few pipelines cost far more than most, as in real sets.

    Args:
        median: Median of the draws.
        sigma: Standard deviation of the logarithm.
        seed: Another seed gives other draws.
    """

    def cost(key: int) -> int:
        digest = hashlib.blake2b(
            key.to_bytes(8, "little"), digest_size=8, key=seed.to_bytes(8, "little")
        ).digest()
        # The middle of one of 2**53 equal slices: never 0 or 1, where the normal quantile is infinite.
        uniform = ((int.from_bytes(digest, "little") >> 11) + 0.5) / 2**53
        return max(1, round(median * math.exp(sigma * _NORMAL.inv_cdf(uniform))))

    return cost


@frozen
class CostModel:
    """What pipelines cost.

    Attributes:
        compile_ns: Time to compile the pipeline of a key, ns.
        hit_ns: Time to take a pipeline from a cache, ns.
        entry_bytes: Bytes that a pipeline's code takes in a cache, without the entry's own header.
        merge_entry_ns: Time to merge one source entry, ns, pruned ones included.
    """

    compile_ns: Callable[[int], int] = field(factory=lambda: constant_cost(DEFAULT_COMPILE_NS))
    hit_ns: int = DEFAULT_HIT_NS
    entry_bytes: Callable[[int], int] = field(factory=lambda: constant_cost(DEFAULT_ENTRY_BYTES))
    merge_entry_ns: int = 0

    @classmethod
    def constant(cls, compile_ns: int, hit_ns: int = DEFAULT_HIT_NS) -> CostModel:
        """Every pipeline takes `compile_ns`."""
        return cls(constant_cost(compile_ns), hit_ns)

    @classmethod
    def mapped(
        cls, compile_ns: Mapping[int, int], default: int = DEFAULT_COMPILE_NS, hit_ns: int = DEFAULT_HIT_NS
    ) -> CostModel:
        """Compile times by pipeline key, ns."""
        return cls(mapped_cost(compile_ns, default), hit_ns)

    @classmethod
    def lognormal(
        cls,
        median_ns: int = DEFAULT_COMPILE_NS,
        sigma: float = 1.0,
        seed: int = 0,
        hit_ns: int = DEFAULT_HIT_NS,
    ) -> CostModel:
        """Compile times as in real sets: see `lognormal_cost`."""
        return cls(lognormal_cost(median_ns, sigma, seed), hit_ns)
