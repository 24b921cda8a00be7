# Purpose: what a session hands to its caller: a ticket for what was submitted, what became of a pipeline, and what is left.
# Guarantees: outcomes and remainders are values. A ticket only refers to its session, and may be dropped at any time.
"""`PipelineTicket`, `PipelineOutcome` and `Remainder`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.run.outcomes import OutcomeStatus


@frozen
class PipelineOutcome:
    """What became of a pipeline, as far as is known.

    Attributes:
        index: Its number in the image.
        key: Its hash in the set.
        status: NOT_RUN where it was cancelled, or has not had its turn yet.
        reason: Why it was skipped or failed.
        handle: The pipeline, where the session keeps them and it was not taken; 0 otherwise, and for a library, which the
            device keeps. See `PipelineSession.take_handles` for who owns it.
    """

    index: int
    key: int
    status: OutcomeStatus
    reason: str = ""
    handle: int = 0

    @property
    def created(self) -> bool:
        """Whether there is a pipeline."""
        return self.status in (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)


@frozen
class Remainder:
    """What a budget left over.

    Attributes:
        queued: Pipelines that were submitted and have not begun.
        in_flight: Pipelines in a driver call.
        believed_ns: What the queued ones are believed to take, one after another.
    """

    queued: int
    in_flight: int
    believed_ns: int

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self.queued and not self.in_flight


class Waitable(Protocol):
    """What a ticket needs of its session."""

    async def wait(self, what: npt.NDArray[np.int32]) -> tuple[PipelineOutcome, ...]:
        """Wait until pipelines are settled."""

    def unsettled(self, what: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Those of some pipelines that are queued or in flight."""


@frozen(eq=False)
class PipelineTicket:
    """Pipelines that were submitted together. Belongs to the trio thread.

    Attributes:
        indices: The pipelines, ascending, shape (n,), int32.
    """

    _session: Waitable = field(repr=False)
    indices: npt.NDArray[np.int32] = field(repr=False)

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.indices)

    @property
    def done(self) -> bool:
        """Whether all of them have an outcome, or were cancelled."""
        return not len(self._session.unsettled(self.indices))

    async def wait(self) -> tuple[PipelineOutcome, ...]:
        """Wait until all of them have an outcome, or were cancelled, or the session has ended; returns what became of each."""
        return await self._session.wait(self.indices)


Pipelines: TypeAlias = PipelineTicket | int | Iterable[int]
"""Pipelines of an image: a ticket, one index, or several."""

NO_GROUP = -1
"""Group of what is in none."""


def checked_pipelines(count: int, pipelines: Pipelines) -> npt.NDArray[np.int32]:
    """Indices of pipelines, ascending, none twice.

    Args:
        count: Number of pipelines that there are.
        pipelines: Which of them.

    Raises:
        ValueError: There is no such pipeline.
    """
    if isinstance(pipelines, PipelineTicket):
        return pipelines.indices
    given = [pipelines] if isinstance(pipelines, int) else pipelines
    wide = given if isinstance(given, np.ndarray) else np.asarray(list(given))
    if wide.size and (wide.dtype.kind not in "iu" or int(wide.min()) < 0 or int(wide.max()) >= count):
        raise ValueError(f"pipelines are numbers from 0 to {count - 1}")
    return np.unique(wide).astype(np.int32)


def checked_group(group: int | None) -> int:
    """A group's number; `NO_GROUP` for None.

    Raises:
        ValueError: It is no such number.
    """
    if group is None:
        return NO_GROUP
    if not 0 <= group < 2**31:
        raise ValueError(f"a group is a number from 0 to 2^31 - 1, not {group}")
    return group
