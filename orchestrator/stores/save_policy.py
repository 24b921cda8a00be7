"""When a cache is saved, so that crashes and saves both cost little.

A save is due when creation has been quiet, when much is new, or when what is new has waited for long; a
cancel, a signal or an exit forces one. It is never due while one is under way, without something new since
the last one that worked, or for an empty cache. A save that failed leaves what it held new, and is not due
again before a pause. With creation over, every new pipeline is in a save that was due at most `quiet_ns`
after the last one.

Pure: no clock, no I/O, no thread. Times are the caller's, ns on one clock that does not go back. The one
owner asks after each event and at `next_due_ns`.
"""

from __future__ import annotations

import enum

from attrs import define, field, frozen, validators

from orchestrator.devices.sources import CACHE_HEADER_SIZE, is_empty_cache

SECOND_NS = 10**9


class SaveReason(enum.StrEnum):
    """Why a save is due.

    QUIET: nothing was created for a while.
    GROWTH: much is new.
    OVERDUE: what is new has waited for long, with creation never quiet.
    CANCELLED: the run was cancelled.
    SIGNAL: the process was asked to end, as by SIGTERM.
    EXIT: the run or the process ends.
    """

    QUIET = "quiet"
    GROWTH = "growth"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    EXIT = "exit"


FORCED = frozenset({SaveReason.CANCELLED, SaveReason.SIGNAL, SaveReason.EXIT})
"""Reasons that wait for nothing."""


def _positive(default: int) -> int:
    value: int = field(default=default, validator=validators.gt(0))
    return value


@frozen
class SavePolicy:
    """When a save is due.

    Attributes:
        quiet_ns: Time without a new pipeline after which what is new is saved.
        growth_pipelines: New pipelines at which a save is due at once.
        growth_bytes: New bytes at which a save is due at once, where the size is known.
        overdue_ns: Time after the first new pipeline after which a save is due although creation goes on.
        pause_ns: Time between the end of a save, or a failure, and the next one that is not forced.
    """

    quiet_ns: int = _positive(2 * SECOND_NS)
    growth_pipelines: int = _positive(2048)
    growth_bytes: int = _positive(32 << 20)
    overdue_ns: int = _positive(60 * SECOND_NS)
    pause_ns: int = _positive(5 * SECOND_NS)


@define(eq=False)
class SaveDecider:
    """Decides about one cache. Not thread-safe: it has one owner.

    Attributes:
        new_pipelines: Pipelines that were created since the last save that worked began.
        cache_bytes: Size of the cache as last told; None where it was not.
    """

    policy: SavePolicy = field(factory=SavePolicy)
    new_pipelines: int = field(default=0, init=False)
    cache_bytes: int | None = field(default=None, init=False)
    saving: bool = field(default=False, init=False)
    _saved_bytes: int = field(default=CACHE_HEADER_SIZE, init=False)
    _first_ns: int | None = field(default=None, init=False)
    _last_ns: int = field(default=0, init=False)
    _paused_until_ns: int | None = field(default=None, init=False)
    _in_save: int = field(default=0, init=False)
    _bytes_in_save: int | None = field(default=None, init=False)
    _first_before_ns: int | None = field(default=None, init=False)

    def loaded(self, cache_bytes: int) -> None:
        """The cache began with what a file held: that much is not new."""
        self.cache_bytes = self._saved_bytes = cache_bytes

    def created(self, now_ns: int, pipelines: int, cache_bytes: int | None = None) -> None:
        """Pipelines were compiled into the cache, of this size where it is known. Cache hits are no news."""
        if cache_bytes is not None:
            self.cache_bytes = cache_bytes
        if pipelines <= 0:
            return
        self.new_pipelines += pipelines
        self._last_ns = now_ns
        if self._first_ns is None:
            self._first_ns = now_ns

    @property
    def is_new(self) -> bool:
        """Whether there is something that a save would add."""
        has_content = self.cache_bytes is None or not is_empty_cache(self.cache_bytes)
        return self.new_pipelines > 0 and has_content

    def due(self, now_ns: int) -> SaveReason | None:
        """Why a save is due now, or None."""
        if self.saving or not self.is_new or self._first_ns is None:
            return None
        if self._paused_until_ns is not None and now_ns < self._paused_until_ns:
            return None
        if self._has_grown:
            return SaveReason.GROWTH
        if now_ns - self._last_ns >= self.policy.quiet_ns:
            return SaveReason.QUIET
        if now_ns - self._first_ns >= self.policy.overdue_ns:
            return SaveReason.OVERDUE
        return None

    def forced(self, reason: SaveReason) -> SaveReason | None:
        """The run is cancelled or ends: why a save is due now, or None where nothing is new.

        No pause holds it up. A save that is under way does: the caller waits for that, reports it here, and
        asks again.

        Raises:
            ValueError: The reason is none of `FORCED`.
        """
        if reason not in FORCED:
            raise ValueError(f"{reason} is no reason to force a save")
        return reason if self.is_new and not self.saving else None

    def next_due_ns(self) -> int | None:
        """When to ask `due` again, ns; None where nothing is new or a save is under way."""
        if self.saving or not self.is_new or self._first_ns is None:
            return None
        if self._has_grown:
            moment = self._last_ns
        else:
            moment = min(self._last_ns + self.policy.quiet_ns, self._first_ns + self.policy.overdue_ns)
        return moment if self._paused_until_ns is None else max(moment, self._paused_until_ns)

    def started(self) -> None:
        """A save begins now: what is created from here on is not in it.

        Raises:
            RuntimeError: One is under way already.
        """
        if self.saving:
            raise RuntimeError("a save is under way; wait for it, and tell whether it worked")
        self.saving = True
        self._in_save, self._bytes_in_save = self.new_pipelines, self.cache_bytes
        self._first_before_ns, self._first_ns = self._first_ns, None
        self.new_pipelines = 0

    def saved(self, now_ns: int) -> None:
        """The save that began is done: what it held is safe. Also where it found nothing that was new.

        Raises:
            RuntimeError: None began.
        """
        self._end(now_ns)
        if self._bytes_in_save is not None:
            self._saved_bytes = self._bytes_in_save

    def failed(self, now_ns: int) -> None:
        """The save that began failed, or was skipped for another writer: what it held is new again.

        Raises:
            RuntimeError: None began.
        """
        self._end(now_ns)
        self.new_pipelines += self._in_save
        if self._first_before_ns is not None:
            self._first_ns = self._first_before_ns

    def _end(self, now_ns: int) -> None:
        if not self.saving:
            raise RuntimeError("no save is under way")
        self.saving = False
        self._paused_until_ns = now_ns + self.policy.pause_ns

    @property
    def _has_grown(self) -> bool:
        new_bytes = 0 if self.cache_bytes is None else self.cache_bytes - self._saved_bytes
        return self.new_pipelines >= self.policy.growth_pipelines or new_bytes >= self.policy.growth_bytes
