"""`Subset`: part of a set's pipelines, as options name it. Imports little, because options are made early."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from attrs import converters, field, frozen, validators

from orchestrator.errors import UnknownPipelineError

if TYPE_CHECKING:
    from orchestrator.sets.pipeline_set import PipelineSet
    from orchestrator.sets.records import FeatureGroup, PipelineJob, PipelineJobs


def _keys(keys: Iterable[int]) -> frozenset[int]:
    try:
        return frozenset(map(operator.index, keys))
    except TypeError:
        raise TypeError(f"'keys' are whole numbers, such as {{0x43210c2d62f9536c}}, not {keys!r}") from None


@frozen
class Subset:
    """Part of a set's pipelines: those of some keys, one shard of several, or both; by default all of them.

    A pipeline is in exactly one of N shards. Which one follows from its key alone, so the order of the set
    and what else it holds do not matter. A library that a pipeline of the subset links is compiled with it,
    and is counted only in the subset that it is in itself. A value that msgspec encodes.

    Attributes:
        shard: Which shard, 1 to `shards`.
        shards: How many shards the set is divided into.
        keys: Keys of the pipelines that are in it, or None for all.
    """

    shard: int = field(default=1, validator=[validators.instance_of(int), validators.ge(1)])
    shards: int = field(default=1, validator=[validators.instance_of(int), validators.ge(1)])
    keys: frozenset[int] | None = field(default=None, converter=converters.optional(_keys))

    def __attrs_post_init__(self) -> None:
        if self.shard > self.shards:
            raise ValueError(f"there is no shard {self.shard} of {self.shards}: shards count from 1")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The shard that a text such as "2/4" names.

        Raises:
            ValueError: The text is not K/N with whole numbers, 1 <= K <= N.
        """
        shard, _, shards = text.partition("/")
        if not all(each.isascii() and each.isdigit() and len(each) <= 9 for each in (shard, shards)):
            raise ValueError("K/N with two whole numbers is expected, such as 2/4")
        if not 1 <= int(shard) <= int(shards):
            most = int(shards) or "N"
            raise ValueError(f"shards count from 1/{most} to {most}/{most}")
        return cls(int(shard), int(shards))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of any set."""
        return self.keys is None and self.shards == 1

    def of(self, jobs: Iterable[PipelineJob]) -> PipelineJobs:
        """Those of some pipelines that are in it, in the same order."""
        import numpy as np

        from orchestrator.sets.records import PipelineJobs

        columns = PipelineJobs.of(jobs)
        if self.is_whole:
            return columns
        # The low bits of recorders' hashes are poor: SplitMix64's finalizer.
        mixed = (columns.keys ^ columns.keys >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        chosen = mixed % np.uint64(self.shards) == np.uint64(self.shard - 1)
        if self.keys is not None:
            chosen &= np.isin(columns.keys, np.array(sorted(self.keys), np.uint64))
        return columns.where(chosen)

    def groups_of(self, source: PipelineSet) -> tuple[FeatureGroup, ...]:
        """The groups of a set that hold a pipeline of it; the first group where none does.

        Raises:
            UnknownPipelineError: A key names no pipeline of the set.
        """
        if self.keys and (unknown := self.keys.difference(source.pipelines.keys.tolist())):
            raise UnknownPipelineError(source.name, min(unknown))
        return tuple(each for each in source.groups if self.of(each.pipelines)) or source.groups[:1]


WHOLE: Final = Subset()
"""All pipelines of a set."""
