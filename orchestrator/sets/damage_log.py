# Purpose: where a record source writes down what it had to leave out.
# Guarantees: thread-safe; each thing is counted once however often it is met; memory is bounded: a hostile
# file of millions of bad records is counted in full and described in part.
"""A bounded list of what was found damaged."""

from __future__ import annotations

import threading

from orchestrator.sets.records import Damage

DETAILS_MAX = 10_000


class DamageLog:
    """Collects `Damage`; the first 10,000 entries with their details, all of them by count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Damage, None] = {}
        self._not_described = 0

    def add(self, damage: Damage) -> None:
        """Write something down, unless it stands there already."""
        with self._lock:
            if damage in self._entries:
                return
            if len(self._entries) < DETAILS_MAX:
                self._entries[damage] = None
            else:
                self._not_described += 1

    @property
    def entries(self) -> tuple[Damage, ...]:
        """What was described so far, in the order it was found."""
        with self._lock:
            return tuple(self._entries)

    def __len__(self) -> int:
        """How much was found, described or not."""
        with self._lock:
            return len(self._entries) + self._not_described
