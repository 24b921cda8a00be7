"""The simulated driver: commands with the arguments and VkResults of a driver, and its bugs.

The device above it implements ownership, checks and errors. The driver is deterministic for one thread, and
for several as far as the locking strategy determines their order. It has the thread safety of a driver, and
records what it compiled and how often, so tests can compare with the truth.

`Calls` tracks the calls in flight; closing waits for them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.binaries import PipelineBinary
from orchestrator.devices.device import (
    ERROR_INITIALIZATION_FAILED,
    ERROR_OUT_OF_HOST_MEMORY,
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    INCOMPLETE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    DeviceIdentity,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated.cache import CacheEntry, SimulatedCache, encode_header, parse_data
from orchestrator.devices.simulated.locking import Clock, LockingStrategy, LockWait
from orchestrator.devices.simulated.options import CacheOperation, SimulatedOptions, build_of
from orchestrator.errors import DeviceError


@frozen
class Creation:
    """The results of creating one pipeline: VkResult, VkPipelineCreationFeedback, `LockWait`."""

    result: int
    feedback_flags: int
    duration_ns: int
    lock_wait_ns: int
    lock_asleep_ns: int = 0


class Hangs:
    """Blocks compiles that hang until they are released."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hung = 0
        self._result: int | None = None

    def hang(self) -> int:
        """Block until `release`; returns its result."""
        with self._changed:
            self._hung += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._result is not None)
            finally:
                self._hung -= 1
            return SUCCESS if self._result is None else self._result

    def release(self, result: int) -> None:
        """Release all compiles that hang, now and later, with a result."""
        with self._changed:
            self._result = result
            self._changed.notify_all()

    def wait_until_hung(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` calls hang; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._hung >= count, timeout_s)


class SimulatedDriver:
    """Driver commands on simulated caches and pipelines, and the compiles that hang (`hangs`)."""

    def __init__(self, identity: DeviceIdentity, options: SimulatedOptions, key_salt: bytes = b"") -> None:
        """Create a driver. `identity` overrides the options'; keys depend on the salt, at most 64 bytes."""
        self.hangs = Hangs()
        self._identity = identity
        self._header = encode_header(identity)
        self._build = build_of(identity)
        self._options = options
        self._cost, self._clock, self._bugs = options.cost, options.clock, options.bugs
        self._key_salt = key_salt
        self._mutex = threading.Lock()
        self._growths_left = options.bugs.data_grows_between_calls
        self._compiled: Counter[int] = Counter()
        self.foreign_hits = 0
        self.wrong_binaries = 0

    @property
    def compile_counts(self) -> dict[int, int]:
        """How often each pipeline was compiled, by key."""
        with self._mutex:
            return dict(self._compiled)

    def binary_key(self, key: int) -> bytes:
        """Key of a pipeline's binary, 32 bytes; several pipelines may share one."""
        shared = self._options.same_binary.get(key, key)
        return hashlib.blake2b(
            shared.to_bytes(8, "little"), digest_size=32, person=b"pipeline binary", key=self._key_salt
        ).digest()

    def pipeline_key(self, key: int, kind: PipelineKind) -> bytes:
        """The result of vkGetPipelineKeyKHR, 32 bytes."""
        if kind in self._bugs.one_pipeline_key:
            return hashlib.blake2b(kind.value.encode(), digest_size=32, person=b"one for all").digest()
        return self.binary_key(key)

    def global_key(self) -> bytes:
        """The result of vkGetPipelineKeyKHR without a create info, 32 bytes."""
        told = self._build.to_bytes(8, "little") + self._identity.pipeline_cache_uuid
        return hashlib.blake2b(told, digest_size=32, person=b"global key", key=self._key_salt).digest()

    def module_identifier(self, module: int) -> bytes:
        """The result of vkGetShaderModuleIdentifierEXT for a module, by its key in the set, 32 bytes."""
        told = module.to_bytes(8, "little") + self._options.identifier_algorithm
        return hashlib.blake2b(told, digest_size=32, person=b"identifier").digest()

    def binaries_of(self, key: int, modules: Sequence[int]) -> tuple[PipelineBinary, ...]:
        """The binaries of a pipeline: one per module, shared by pipelines; its own one without modules."""
        entries = [self._entry(each) for each in (modules or (key,))]
        return tuple(PipelineBinary(each.key, each.payload) for each in entries)

    def create_from_binaries(
        self, key: int, modules: Sequence[int], given: Sequence[PipelineBinary]
    ) -> Creation:
        """Create one pipeline from binaries. Counts binaries of another pipeline, which no driver checks."""
        work = self._clock.begin_work()
        self._clock.spend(self._cost.hit_ns)
        if key in self._bugs.binaries_refused:
            return Creation(ERROR_OUT_OF_HOST_MEMORY, 0, 0, 0)
        if tuple(given) != self.binaries_of(key, modules):
            with self._mutex:
                self.wrong_binaries += 1
        return Creation(SUCCESS, FEEDBACK_VALID, work.duration_ns(0), 0)

    def create_cache(
        self, initial_data_size: int, initial_data: bytes | None, *, synchronized: bool
    ) -> tuple[int, SimulatedCache | None]:
        """Create a cache, as vkCreatePipelineCache; None for a null pointer.

        Returns:
            The VkResult, and the cache if it is 0.
        """
        if CacheOperation.CREATE in self._bugs.out_of_memory_operations:
            return ERROR_OUT_OF_HOST_MEMORY, None
        entries: Sequence[CacheEntry] = ()
        if initial_data_size and initial_data is not None:
            parsed = parse_data(
                initial_data[:initial_data_size], self._identity, any_uuid=self._bugs.stale_uuid_accepted
            )
            if parsed.bad and self._bugs.create_fails_on_bad_data:
                return ERROR_INITIALIZATION_FAILED, None
            entries = () if self._bugs.initial_data_dropped else parsed.entries
        elif initial_data is not None and self._bugs.error_on_empty_non_null:
            return ERROR_INITIALIZATION_FAILED, None
        cache = SimulatedCache(
            self._header,
            entries,
            strategy=self._options.locking if synchronized else LockingStrategy.NONE,
            clock=self._clock,
            migrate_every=self._options.migrate_every,
            stub=self._bugs.cache_is_stub,
        )
        return SUCCESS, cache

    def merge_caches(
        self, destination: SimulatedCache, sources: Sequence[SimulatedCache], wait: LockWait
    ) -> int:
        """Merge caches, as vkMergePipelineCaches; duplicates are pruned."""
        if CacheOperation.MERGE in self._bugs.out_of_memory_operations:
            return ERROR_OUT_OF_HOST_MEMORY
        if self._bugs.merge_does_nothing:
            return SUCCESS
        for source in sources:
            # Takes one lock at a time, so that two merges in opposite directions do not deadlock.
            entries = source.snapshot(wait)
            self._clock.spend(self._cost.merge_entry_ns * len(entries))
            destination.absorb(entries, wait)
        return SUCCESS

    def cache_data(
        self, cache: SimulatedCache, buffer: bytearray | None, size: int, wait: LockWait
    ) -> tuple[int, int]:
        """Read a cache, as vkGetPipelineCacheData; None for a null pointer queries the size.

        Returns:
            The VkResult, and the size of the data or the number of bytes written.
        """
        if CacheOperation.READ in self._bugs.out_of_memory_operations:
            return ERROR_OUT_OF_HOST_MEMORY, 0
        if buffer is None:
            total = cache.size(wait)
            self._grow(cache, wait)
            return SUCCESS, total
        data, complete = cache.read(min(size, len(buffer)), wait)
        buffer[: len(data)] = data
        return SUCCESS if complete else INCOMPLETE, len(data)

    def create_pipeline(
        self, key: int, cache: SimulatedCache | None, *, fail_on_compile_required: bool
    ) -> Creation:
        """Create one pipeline, as an element of a vkCreate*Pipelines call; None for VK_NULL_HANDLE."""
        work = self._clock.begin_work()
        wait = LockWait()
        result = SUCCESS

        def make() -> CacheEntry | None:
            nonlocal result
            result = PIPELINE_COMPILE_REQUIRED if fail_on_compile_required else self._compile(key)
            return self._entry(key) if result == SUCCESS else None

        hit = False
        if cache is None:
            make()
        else:
            entry, hit = cache.obtain(self.binary_key(key), make, wait)
            if hit and entry is not None:
                self._clock.spend(self._cost.hit_ns)
                if entry.build != self._build:
                    with self._mutex:
                        self.foreign_hits += 1
        flags = FEEDBACK_VALID | (FEEDBACK_APPLICATION_CACHE_HIT if hit else 0)
        return Creation(result, flags, work.duration_ns(wait.asleep_ns), wait.ns, wait.asleep_ns)

    def _compile(self, key: int) -> int:
        if self._options.on_compile is not None:
            self._options.on_compile(key)
        if key in self._bugs.crash:
            os.abort()
        if key in self._bugs.hang and (result := self.hangs.hang()) != SUCCESS:
            return result
        if key in self._bugs.out_of_memory:
            return ERROR_OUT_OF_HOST_MEMORY
        self._clock.spend(self._cost.compile_ns(key))
        with self._mutex:
            self._compiled[key] += 1
        return self._bugs.results.get(key, SUCCESS)

    def _entry(self, key: int) -> CacheEntry:
        binary_key = self.binary_key(key)
        size = self._cost.entry_bytes(key)
        # Cheap to make and of the right size; it is never executed.
        payload = (binary_key * (size // len(binary_key) + 1))[:size]
        return CacheEntry(binary_key, self._build, payload)

    def _grow(self, cache: SimulatedCache, wait: LockWait) -> None:
        with self._mutex:
            if self._growths_left <= 0:
                return
            self._growths_left -= 1
            number = self._growths_left
        key = hashlib.sha256(b"entry of the driver's own" + number.to_bytes(8, "little")).digest()
        cache.absorb({key: CacheEntry(key, self._build, key)}, wait)


@frozen(eq=False)
class CallRecord:
    """The true times of one call.

    Attributes:
        operation: Name of the device's method.
        cache: Name of the cache that it used or merged into, "" for none.
        thread_id: `threading.get_ident()` of the caller.
        duration_ns: Time inside the driver on the device's clock.
        lock_wait_ns: Part of it spent waiting for the lock of a cache.
        lock_asleep_ns: Part of that in which the thread slept and did not also wait for a processor; this can
            be measured from outside.
        pipeline_lock_wait_ns: The waits by pipeline, in the order of the call, shape (n,); empty if it
            creates none.
    """

    operation: str
    cache: str
    thread_id: int
    duration_ns: int
    lock_wait_ns: int
    lock_asleep_ns: int
    pipeline_lock_wait_ns: npt.NDArray[np.int64]


_NO_PIPELINES = np.zeros(0, np.int64)


class Calls:
    """Tracks the calls in flight, and records past calls. Thread-safe."""

    def __init__(self, kept: int, clock: Clock) -> None:
        """Keep the records of the last `kept` calls, measured by the clock."""
        self._clock = clock
        self._closed = ""
        self._begin()
        self._records: deque[CallRecord] = deque(maxlen=kept)
        self._waits: dict[int, int] = {}
        self._own = threading.local()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._in_flight = 0

    def stay_with_parent(self) -> None:
        """Refuse all calls, in a child of a fork."""
        self._begin()
        self._closed = "is that of the process that was forked"

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """Count as a call in flight for the block.

        Raises:
            DeviceError: The device is closed.
        """
        with self._changed:
            if self._closed:
                raise DeviceError(f"{what}: the simulated device {self._closed}")
            self._in_flight += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    @contextmanager
    def recorded(
        self, what: str, cache: str, waits: npt.NDArray[np.int64] = _NO_PIPELINES
    ) -> Iterator[LockWait]:
        """Count as a call in flight for the block, and record the call; the block fills in `waits`.

        Raises:
            DeviceError: The device is closed.
        """
        wait, thread = LockWait(), threading.get_ident()
        with self.inside(what):
            start = self._clock.now_ns()
            try:
                yield wait
            finally:
                duration = self._clock.now_ns() - start
                record = CallRecord(what, cache, thread, duration, wait.ns, wait.asleep_ns, waits)
                self._own.last = record
                with self._changed:
                    self._records.append(record)
                    self._waits[thread] = self._waits.get(thread, 0) + wait.ns

    def refuse_new(self) -> None:
        """Refuse new calls."""
        with self._changed:
            self._closed = "was closed before"

    def wait_until_none(self) -> None:
        """Wait until no call is in flight."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight)

    def last(self) -> CallRecord | None:
        """The calling thread's last call."""
        last: CallRecord | None = getattr(self._own, "last", None)
        return last

    def records(self) -> tuple[CallRecord, ...]:
        """The recorded calls in the order of their ends."""
        with self._changed:
            return tuple(self._records)

    def waits(self) -> dict[int, int]:
        """Sum of the lock waits of each thread, ns, by `threading.get_ident()`."""
        with self._changed:
            return dict(self._waits)
