"""The simulated driver: what its commands do, its bugs, and the record of what it compiled and how often.

The device above it implements ownership, checks and errors. The driver is deterministic for one thread. Two
threads may compile the same pipeline at the same time, as its caches lock only to look up and to insert.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.devices.device import (
    ERROR_INITIALIZATION_FAILED,
    ERROR_OUT_OF_HOST_MEMORY,
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    DeviceCapabilities,
    DeviceIdentity,
    check,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated.cache import CacheEntry, SimulatedCache, encode_header, parse_data
from orchestrator.devices.simulated.options import CacheOperation, SimulatedOptions

IDENTIFIER_ALGORITHM: Final = b"simulated module"  # shaderModuleIdentifierAlgorithmUUID


@frozen
class Creation:
    """What creating one pipeline gave: VkResult and creation feedback."""

    result: int
    feedback_flags: int = 0
    duration_ns: int = 0


class Hangs:
    """Blocks compiles that hang until they are released."""

    def __init__(self) -> None:
        self.begun = threading.Event()  # One hangs, or did.
        self._released = threading.Event()
        self._result = SUCCESS

    def hang(self) -> int:
        """Block until `release`; returns its result."""
        self.begun.set()
        self._released.wait()
        return self._result

    def release(self, result: int) -> None:
        """Release all compiles that hang, now and later, with a result."""
        self._result = result
        self._released.set()


class SimulatedDriver:
    """Driver commands on simulated caches and pipelines. Cache commands raise DriverError."""

    def __init__(
        self, identity: DeviceIdentity, options: SimulatedOptions, capabilities: DeviceCapabilities
    ) -> None:
        self.hangs = Hangs()
        self.foreign_hits = 0  # hits with code of another device or driver version
        self.wrong_binaries = 0  # pipelines created from another pipeline's binaries
        self._identity = identity
        text = f"{identity.vendor_id}:{identity.device_id}:{identity.driver_version}"
        self._build = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        self._options = options
        self._cost, self._clock, self._bugs = options.cost, options.clock, options.bugs
        self._key_salt = _key_salt(options.keys_depend_on, options.request, capabilities)
        self._mutex = threading.Lock()
        self._compiled: Counter[int] = Counter()

    @property
    def compile_counts(self) -> dict[int, int]:
        """How often each pipeline was compiled, by key."""
        with self._mutex:
            return dict(self._compiled)

    def binary_key(self, key: int) -> bytes:
        """Key of a pipeline's binary, 32 bytes; several pipelines may share one."""
        told = self._options.same_binary.get(key, key).to_bytes(8, "little")
        return hashlib.blake2b(told, digest_size=32, person=b"pipeline binary", key=self._key_salt).digest()

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
        told = module.to_bytes(8, "little") + IDENTIFIER_ALGORITHM
        return hashlib.blake2b(told, digest_size=32, person=b"identifier").digest()

    def binaries_of(self, key: int, modules: Sequence[int]) -> tuple[PipelineBinary, ...]:
        """The binaries of a pipeline: one per module, shared by pipelines; its own one without modules."""
        entries = [self._entry(each) for each in (modules or (key,))]
        return tuple(PipelineBinary(each.key, each.payload) for each in entries)

    def create_from_binaries(
        self, key: int, modules: Sequence[int], given: Sequence[PipelineBinary]
    ) -> Creation:
        """Create one pipeline from binaries. Counts binaries of another pipeline, which no driver checks."""
        start = self._clock.now_ns()
        self._clock.spend(self._cost.hit_ns)
        if key in self._bugs.binaries_refused:
            return Creation(ERROR_OUT_OF_HOST_MEMORY)
        if tuple(given) != self.binaries_of(key, modules):
            with self._mutex:
                self.wrong_binaries += 1
        return Creation(SUCCESS, FEEDBACK_VALID, self._clock.now_ns() - start)

    def create_cache(self, data: bytes) -> SimulatedCache:
        """Create a cache with initial data, as vkCreatePipelineCache."""
        command = "vkCreatePipelineCache"
        self._check_memory(CacheOperation.CREATE, command)
        entries: Sequence[CacheEntry] = ()
        if data:
            parsed = parse_data(data, self._identity, any_uuid=self._bugs.stale_uuid_accepted)
            if parsed.bad and self._bugs.create_fails_on_bad_data:
                check(command, ERROR_INITIALIZATION_FAILED)
            entries = () if self._bugs.initial_data_dropped else parsed.entries
        return SimulatedCache(encode_header(self._identity), entries, stub=self._bugs.cache_is_stub)

    def merge_caches(self, destination: SimulatedCache, sources: Sequence[SimulatedCache]) -> None:
        """Merge caches, as vkMergePipelineCaches; duplicates are pruned."""
        self._check_memory(CacheOperation.MERGE, "vkMergePipelineCaches")
        if self._bugs.merge_does_nothing:
            return
        for source in sources:
            # Takes one lock at a time, so that two merges in opposite directions do not deadlock.
            entries = source.snapshot()
            self._clock.spend(self._cost.merge_entry_ns * len(entries))
            destination.insert(entries)

    def cache_size(self, cache: SimulatedCache) -> int:
        """Bytes that a read would give, as vkGetPipelineCacheData with a null pointer."""
        self._check_memory(CacheOperation.READ, "vkGetPipelineCacheData")
        return cache.size()

    def cache_data(self, cache: SimulatedCache) -> bytes:
        """The data of a cache, as vkGetPipelineCacheData."""
        self._check_memory(CacheOperation.READ, "vkGetPipelineCacheData")
        return cache.read()

    def create_pipeline(
        self, key: int, cache: SimulatedCache | None, *, fail_on_compile_required: bool
    ) -> Creation:
        """Create one pipeline, as an element of a vkCreate*Pipelines call; None for VK_NULL_HANDLE."""
        start, result, flags = self._clock.now_ns(), SUCCESS, FEEDBACK_VALID
        found = cache.get(self.binary_key(key)) if cache is not None else None
        if found is not None:
            flags |= FEEDBACK_APPLICATION_CACHE_HIT
            self._clock.spend(self._cost.hit_ns)
            if found.build != self._build:
                with self._mutex:
                    self.foreign_hits += 1
        elif fail_on_compile_required and not self._bugs.compile_required_ignored:
            result = PIPELINE_COMPILE_REQUIRED
        else:
            result = self._compile(key)
            if result == SUCCESS and cache is not None:
                cache.insert([self._entry(key)])
        return Creation(result, flags, self._clock.now_ns() - start)

    def _compile(self, key: int) -> int:
        if self._options.on_compile is not None:
            self._options.on_compile(key)
        if key in self._bugs.crash:
            os.abort()
        if key in self._bugs.hang and (result := self.hangs.hang()) != SUCCESS:
            return result
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

    def _check_memory(self, operation: CacheOperation, command: str) -> None:
        if operation in self._bugs.out_of_memory_operations:
            check(command, ERROR_OUT_OF_HOST_MEMORY)


def _key_salt(
    depends_on: frozenset[str], request: DeviceRequest | None, capabilities: DeviceCapabilities
) -> bytes:
    if not depends_on:
        return b""
    told = (request or DeviceRequest()).application
    parts = []
    for each in sorted(depends_on):
        struct, _, member = each.rpartition("::")
        value = capabilities.has_feature(struct, member) if struct else getattr(told, member)
        parts.append(f"{each}={value}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
