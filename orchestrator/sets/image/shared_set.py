"""A set that other processes have too, such as decoders, and the turn of decoding it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from attrs import define

from orchestrator.sets.pipeline_set import PipelineSet

if TYPE_CHECKING:
    from orchestrator.sets.image.decoders import Decoders

LEAST_DECODED_BESIDE: Final = 1 << 15
"""Least bytes of a set that another process decodes. Even a single decoder pays if it has a processor of its
own: it decodes while the process that compiles imports its modules and opens the device."""
_WORKERS_TO_SPARE: Final = 4
"""With so many workers, which have a processor each, a processor is idle while a compile starts. Fewer
workers may be the share of one of several targets that start together."""
_DECODED_BY_ONE: Final = 3 << 17
"""Least bytes of a set for each of several decoders: what each does anew takes as long as decoding them."""
_DECODED_BY_ALL: Final = 3 << 20
"""Least bytes of a set that all processors decode; each decoder needs its share of them. If processors are
few, they are busy with imports and the device."""


def decoder_count(set_bytes: int, processors: int, workers: int) -> int:
    """How many processes should decode a set of this size that has no plan, `workers` at most.

    0 if the process that compiles it should.
    """
    most = min(processors, workers)
    count = min(set_bytes // max(_DECODED_BY_ONE, _DECODED_BY_ALL // processors), most)
    if count > 1:
        return count
    return int(set_bytes >= LEAST_DECODED_BESIDE and most >= _WORKERS_TO_SPARE)


@define(eq=False)
class DecodingTurn:
    """Which of several processes decodes a set that all have: the others wait for what becomes of it.

    A process that ends gives it back. One thread at a time.

    Attributes:
        descriptor: Of a file that all have open, such as a memfd; it stays the caller's.
    """

    descriptor: int
    _is_mine: bool = False

    def take(self, *, wait: bool = True) -> bool:
        """Take it, and say whether it is this process's. Blocking, but for `wait` unset; idempotent."""
        if not self._is_mine:
            with suppress(BlockingIOError):
                # The lock is the process's, whoever else has the descriptor.
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                self._is_mine = True
        return self._is_mine

    def give_back(self) -> None:
        """Let another process decode. Idempotent."""
        if self._is_mine:
            self._is_mine = False
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


@define(eq=False)
class Shared:
    """A set that this process has opened, also for the forks that it makes.

    Attributes:
        source: The set.
        turn: Descriptor of its `DecodingTurn`; None where only one fork decodes it.
        decoders: They decode it already, for the first fork that compiles; None where there are none.
    """

    source: PipelineSet
    turn: int | None = None
    decoders: Decoders | None = None

    def close(self) -> None:
        """Close the set, and end the decoders."""
        self.source.close()
        if self.decoders is not None:
            self.decoders.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files that a fork needs."""
        turn = () if self.turn is None else (self.turn,)
        return (*turn, *self.source.descriptors, *(self.decoders.descriptors if self.decoders else ()))


shared_sets: Final[dict[tuple[str, ...], Shared]] = {}
"""By the paths of the set."""


@contextmanager
def closing_shared_sets() -> Iterator[None]:
    """After the block, no set is shared any more."""
    try:
        yield
    finally:
        while shared_sets:
            shared_sets.popitem()[1].close()


def decoders_of(source: PipelineSet) -> Decoders | None:
    """Processes that decode a set in the place of this one; None where there are none."""
    return source.decoders if isinstance(source, SharedSet) else None


class SharedSet(PipelineSet):
    """A set that other processes have too, such as decoders, which build its images.

    Attributes:
        decoders: They; who compiles need not close them. None where this process decodes alone.
        turn: Says when this process decodes, where others have the set too; None where it is the only one.
    """

    decoders: Decoders | None
    turn: DecodingTurn | None

    @classmethod
    def of(cls, source: PipelineSet, decoders: Decoders | None, turn: DecodingTurn | None = None) -> Self:
        """A set by the decoders that were made with it; it must stay open."""
        shared = cls(source.records)
        shared.decoders, shared.turn = decoders, turn
        return shared
