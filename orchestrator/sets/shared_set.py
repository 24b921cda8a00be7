"""A set that other processes have too, such as a decoder, and the turn of decoding it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, Self

from attrs import define

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob, PipelineJobs

LEAST_DECODED_BESIDE: Final = 1 << 15
"""Least bytes of a set that another process decodes. It does while the process that compiles imports its
modules and opens the device, if there is a second processor."""
_DECODED_BY_ONE: Final = 3 << 17
"""Least bytes of a set for each of several processes: what each does anew takes as long as decoding them."""
_DECODED_BY_ALL: Final = 3 << 20
"""Least bytes of a set that all processors decode; each process needs its share of them. If processors are
few, they are busy with imports and the device."""


def decoding_processes(set_bytes: int, processors: int, workers: int) -> int:
    """How many processes should decode a set of this size that has no plan, `workers` at most.

    0 if the process that compiles it should.
    """
    most = min(processors, workers)
    count = min(set_bytes // max(_DECODED_BY_ONE, _DECODED_BY_ALL // processors), most)
    if count > 1:
        return count
    return int(set_bytes >= LEAST_DECODED_BESIDE and most > 1)


class SetDecoder(Protocol):
    """A process that decodes a set in the place of this one; see `orchestrator.sets.decoder.Decoder`."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files that a fork needs to use it."""

    def read(self, source: PipelineSet) -> None:
        """Give the set what the decoder read of it."""

    def begin(self, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> None:
        """Have pipelines decoded that `build_image` will be asked for."""

    def build_image(
        self, source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities
    ) -> BuiltImage | None:
        """The image of some pipelines, or None where this process must decode."""

    def hand_over(self) -> None:
        """Leave it to a fork."""

    def close(self) -> None:
        """End it. Idempotent."""


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
        decoder: Decodes it already, for the first fork that compiles; None where there is none.
    """

    source: PipelineSet
    turn: int | None = None
    decoder: SetDecoder | None = None

    def close(self) -> None:
        """Close the set, and end the decoder."""
        self.source.close()
        if self.decoder is not None:
            self.decoder.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files that a fork needs."""
        turn = () if self.turn is None else (self.turn,)
        return (*turn, *self.source.descriptors, *(self.decoder.descriptors if self.decoder else ()))


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


def decoder_of(source: PipelineSet) -> SetDecoder | None:
    """The process that decodes a set in the place of this one; None where there is none."""
    return source.decoder if isinstance(source, SharedSet) else None


class SharedSet(PipelineSet):
    """A set that other processes have too, such as a decoder.

    Attributes:
        decoder: Decodes its groups; who compiles need not close it. None where this process decodes.
        turn: Says when this process decodes, where others have the set too; None where it is the only one.
    """

    decoder: SetDecoder | None
    turn: DecodingTurn | None

    @classmethod
    def of(cls, source: PipelineSet, decoder: SetDecoder | None, turn: DecodingTurn | None = None) -> Self:
        """A set by the decoder that was started with it; it must stay open."""
        shared = cls(source.records)
        shared.decoder, shared.turn = decoder, turn
        return shared
