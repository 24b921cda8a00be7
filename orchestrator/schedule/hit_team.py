"""How many workers take expected hits at a time.

A hit takes microseconds, and drivers look it up under locks, some under one for the process. With 16
workers RADV spends on a hit 13 times what it takes alone, NVIDIA 14 to 52 times
(benchmarks/results/16-cores-h200-machine/hits-by-workers.jsonl). So two begin, and their number is doubled
as long as that makes all of them together quicker. What has to be compiled is for everyone: with the first
compile all may.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 2
_WORTH: Final = 1.25
"""Twice as many workers must be so many times as quick to be worth their share of the processors."""
_BATCHES: Final = 2
"""Batches of each worker from which a number of workers is judged."""


class HitTeam:
    """The workers that take expected hits. Not thread-safe.

    Args:
        workers: Number of workers that there are.
        few: Whether to begin with few; else all may from the start.

    Attributes:
        most: How many may take hits at a time.
    """

    def __init__(self, workers: int, *, few: bool) -> None:
        self.workers = workers
        self.most = min(_FIRST, workers) if few else workers
        self._best = self.most
        self._open = self.most < workers
        self._in_flight = 0
        self._best_rate = 0.0
        self._begin()

    def _begin(self) -> None:
        # Batches that began while there were fewer say nothing of the new number.
        self._ignored = self._in_flight
        self._batches = 0
        self._hits = 0
        self._elapsed_ns = 0

    @property
    def has_room(self) -> bool:
        """Whether one more worker may take hits."""
        return self._in_flight < self.most

    def joined(self) -> None:
        """A worker was given hits."""
        self._in_flight += 1

    def left(self, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A worker has ended a batch of them.

        Args:
            hits: How many of it were hits.
            compiles: How many were not.
            elapsed_ns: What the batch took.
        """
        self._in_flight -= 1
        if not self._open:
            return
        if compiles:
            self.most, self._open = self.workers, False
            return
        if self._ignored:
            self._ignored -= 1
            return
        self._batches += 1
        self._hits += hits
        self._elapsed_ns += elapsed_ns
        if self._batches >= _BATCHES * self.most:
            self._judge()

    def _judge(self) -> None:
        """Go on with more workers, or with the number that was the quickest."""
        rate = self.most * self._hits / max(self._elapsed_ns, 1)
        if rate > _WORTH * self._best_rate:
            self._best_rate, self._best = rate, self.most
            if self.most < self.workers:
                self.most = min(2 * self.most, self.workers)
                self._begin()
                return
        self.most, self._open = self._best, False
