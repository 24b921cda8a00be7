# Purpose: the answer to "is nothing of it in flight any more?", which a caller needs before it frees what the jobs
# use: a driver call cannot be stopped, so a cancelled job may still be inside one.
# Guarantees: `quiet` turns true with the event that ends the last batch, and stays true.
"""`Cancellation`: what was cancelled, and whether it has come to rest."""

from __future__ import annotations

from attrs import define, field


@define(eq=False)
class Cancellation:
    """What a call to cancel did. The scheduler changes it; the caller reads it, under the scheduler's lock.

    Attributes:
        cancelled: Jobs that will not be assigned any more because of it.
        kept: Jobs that are created all the same, because a job that is not cancelled links them.
        pending: Workers with a batch that holds one of the jobs asked for.
    """

    cancelled: int = 0
    kept: int = 0
    pending: set[int] = field(factory=set)

    @property
    def quiet(self) -> bool:
        """Whether none of the jobs is in flight: nothing uses a cache on their behalf any more."""
        return not self.pending


class Cancellations:
    """Those that are not quiet yet."""

    def __init__(self) -> None:
        self._loud: list[Cancellation] = []

    def watch(self, cancellation: Cancellation) -> Cancellation:
        """Keep one up to date from now on; returns it."""
        if cancellation.pending:
            self._loud.append(cancellation)
        return cancellation

    def ended(self, worker: int) -> None:
        """A worker's batch has ended."""
        if self._loud:
            for each in self._loud:
                each.pending.discard(worker)
            self._loud = [each for each in self._loud if each.pending]
