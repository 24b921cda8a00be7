"""A set that other processes have too, such as decoders, and the turn of decoding it."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from attrs import define

from orchestrator.sets.pipeline_set import PipelineSet

if TYPE_CHECKING:
    from orchestrator.sets.image.decoders import Decoders


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


def decoders_of(source: PipelineSet) -> Decoders | None:
    """Processes that decode a set in the place of this one; None where there are none."""
    return source.decoders if isinstance(source, SharedSet) else None


class SharedSet(PipelineSet):
    """A set that other processes have too, such as decoders, which build its images.

    Attributes:
        decoders: They; whoever started them ends them. None where this process decodes alone.
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
