"""`HeldPipelines`: the source of a run in mode BINARIES, which looks up in a store and stores what is new.

A pipeline is looked up by its state: kind and hash of its record. So a warm start asks the driver for no key,
reads no SPIR-V and makes no module. A pipeline whose modules are known by their identifiers alone is found by
those and the driver's key. A store that fails costs compiles, never a pipeline.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.binary_data import CapturedPipeline, HeldBinaries, PipelineBinary
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.image import KINDS, PipelineKind
from orchestrator.errors import DeviceError, DriverError, OrchestratorError
from orchestrator.run.records import BinariesRecord
from orchestrator.stores.files.atomic_file import content_hash128

if TYPE_CHECKING:
    from orchestrator.stores.binary_store import BinaryStore, Generation, StoredPipeline

DEFAULT_MEMORY: Final = 256 << 20
"""Bytes of binaries that are pulled in ahead of time, at most."""

VULKAN_1_1: Final = 1 << 22 | 1 << 12
"""Below this, no device has VK_KHR_pipeline_binary."""

_RAY_TRACING: Final = KINDS.index(PipelineKind.RAY_TRACING)
_MADE_AT_ONCE: Final = 1024  # binaries that one driver call makes
_STORED_AT_ONCE: Final = 256  # pipelines
_MOST_WAITING: Final = 512  # pipelines; beyond, workers wait for the disk
_WAIT_S: Final = 1.0  # for more to store; a death of the process loses at most so much
_STATE: Final = struct.Struct("<BBQ")
_FORMAT_OF_STATE: Final = 1

_Indices = npt.NDArray[np.int32]


def state_key(kind: int, key: int) -> bytes:
    """The key of a pipeline's state: kind and hash of its record, and nothing of a device."""
    return _STATE.pack(_FORMAT_OF_STATE, kind, key)


def _state_keys(prepared: PreparedPipelines, indices: Sequence[int]) -> list[bytes]:
    kinds, keys = prepared.image.kinds[indices].tolist(), prepared.image.keys[indices].tolist()
    return list(map(state_key, kinds, keys))


def _identifiers_key(device: Device, stages: Sequence[bytes]) -> bytes:
    """What a pipeline is stored by beside its state: the identifiers of its stages' modules; or nothing."""
    algorithm = device.identifier_algorithm  # identifiers hold as long as it
    return content_hash128(msgspec.msgpack.encode((algorithm, tuple(stages)))) if stages else b""


def binary_device(device: Device) -> Device:
    """A device as one with binaries; raises DeviceError, which says what to do, where it has none."""
    if device.features.pipeline_binaries:
        return device
    lacks = "it has no VK_KHR_pipeline_binary"
    if device.capabilities.api_version < VULKAN_1_1:
        lacks += ", which needs Vulkan 1.1: opened as by this application it has 1.0"
    why = device.features.keys_withheld or lacks
    raise DeviceError(
        f"{device.identity.device_name} cannot be used in mode binaries: {why}; use another --mode"
    )


@define(eq=False)
class _Made:
    """A VkPipelineBinaryKHR; handle 0: not made, or destroyed."""

    size: int
    handle: int = 0
    users: int = 0


@define(eq=False)
class _Pulled:
    """Binaries of pipelines that were prepared together. Guarded by its owner's lock once it is filled."""

    of: dict[int, list[_Made]] = field(factory=dict)  # by pipeline, in the driver's order
    later: set[int] = field(factory=set)  # pipelines that did not fit the bound on memory

    def release(self, index: int) -> list[int]:
        """Forget a pipeline; the handles that nothing needs any more."""
        dead = []
        for each in self.of.pop(index, ()):
            each.users -= 1
            if not each.users:
                dead.append(each.handle)
        return dead

    def release_all(self) -> list[int]:
        return [handle for index in [*self.of] for handle in self.release(index)]


@define(eq=False)
class _Filler:
    """Makes the binaries of pipelines that are pulled in together, each once, many in one call."""

    device: Device
    most_bytes: float
    pulled: _Pulled = field(factory=_Pulled)
    made: int = 0
    made_bytes: int = 0
    refused: list[DriverError] = field(factory=list)
    _known: dict[tuple[bytes, int], _Made] = field(factory=dict)
    _new: list[tuple[PipelineBinary, _Made]] = field(factory=list)
    _added_bytes: int = 0

    def add(self, index: int, binaries: Sequence[PipelineBinary]) -> None:
        """Give a pipeline its binaries, or note that it gets them later."""
        # Equal data is one object here: a reader gives each binary once.
        named = {(each.key, id(each.data)): each for each in binaries}
        fresh = {name: each for name, each in named.items() if name not in self._known}
        size = sum(len(each.data) for each in fresh.values())
        if self._added_bytes + size > self.most_bytes:
            self.pulled.later.add(index)
            return
        self._added_bytes += size
        for name, each in fresh.items():
            self._known[name] = _Made(len(each.data))
            self._new.append((each, self._known[name]))
        self._give(index, [self._known[each.key, id(each.data)] for each in binaries])
        if len(self._new) >= _MADE_AT_ONCE:
            self.make()

    def add_made(self, index: int, handles: Iterable[int]) -> None:
        """Give a pipeline binaries that the driver had."""
        binaries = [_Made(0, each) for each in handles]
        self.made += len(binaries)
        self._give(index, binaries)

    def _give(self, index: int, binaries: list[_Made]) -> None:
        for each in binaries:
            each.users += 1
        self.pulled.of[index] = binaries

    def make(self) -> None:
        """Make what was added. Its data is not needed any more."""
        new, self._new = self._new, []
        if not new:
            return
        for (_, made), handle in zip(new, self._handles([each for each, _ in new]), strict=True):
            made.handle = handle
            self.made += handle != 0
            self.made_bytes += made.size if handle else 0

    def _handles(self, binaries: list[PipelineBinary]) -> list[int]:
        """Their handles; 0 for one that the driver refuses, which takes no other with it."""
        try:
            handles: list[int] = self.device.create_binaries(binaries).tolist()
        except DriverError as error:
            if len(binaries) == 1:
                self.refused.append(error)
                return [0]
            half = len(binaries) // 2
            return self._handles(binaries[:half]) + self._handles(binaries[half:])
        return handles

    def end(self) -> None:
        """Take out the pipelines whose binaries were not all made: they are compiled."""
        lacking = [index for index, made in self.pulled.of.items() if not all(each.handle for each in made)]
        dead = [handle for index in lacking for handle in self.pulled.release(index)]
        self.device.destroy_binaries(np.array(dead, np.uint64))


@define(eq=False)
class HeldPipelines(BinarySource):
    """Binaries of one device, with a store behind them or only in memory. Made by `HeldPipelines.of`.

    `pull_in` makes the binaries of all known pipelines, `hold` gives those of one call, and `release`
    destroys what no later pipeline needs. A thread stores what is taken, so that a worker waits only where
    the store is far behind; after `settle` it is stored, or a note says why not. `destroy` ends that thread;
    the store is somebody else's to close. Without a store it keeps what it takes for as long as it lives.
    """

    keeps = True

    device: Device
    store: BinaryStore | None
    generation: Generation | None
    captures: bool  # see `BinarySource`. False where the driver would rather have nothing captured.
    probes: bool
    memory_bytes: int
    notes: list[str] = field(factory=list)  # what a reader of the report must know
    _counts: Counter[str] = field(factory=Counter)
    _lock: threading.RLock = field(factory=threading.RLock)
    _pulled_of: dict[PreparedPipelines, _Pulled] = field(factory=dict)
    _kept: dict[bytes, StoredPipeline] = field(factory=dict)  # without a store
    _used: set[bytes] = field(factory=set)
    _waiting: queue.Queue[StoredPipeline | None] = field(factory=lambda: queue.Queue(_MOST_WAITING))
    _writer: threading.Thread | None = None

    @classmethod
    def of(
        cls,
        device: Device,
        store: BinaryStore | None = None,
        *,
        memory_bytes: int = DEFAULT_MEMORY,
        captures: bool | None = None,
    ) -> HeldPipelines:
        """The binaries of a device.

        Args:
            device: A device with pipeline binaries.
            store: Where they are kept.
            memory_bytes: Bytes of binaries that are pulled in ahead of time, at most.
            captures: Whether to capture what is compiled; None: unless the driver prefers its own cache.

        Raises:
            DeviceError: The device has no pipeline binaries.
            DriverError: The driver refused its global key.
        """
        says = binary_device(device).binary_properties
        generation = None
        if store is not None:
            from orchestrator.stores.binary_store import Generation

            key = device.global_pipeline_key()
            generation = Generation.of(device.identity, key, compressed=says.compressed_data)
        notes = []
        if captures is None:
            captures = not says.prefers_internal_cache
            if not captures:
                notes.append(
                    "the driver prefers its own cache to binaries that are captured, so none are "
                    "(pipelineBinaryPrefersInternalCache)"
                )
        asks = says.internal_cache and (says.prefers_internal_cache or says.precompiled_internal_cache)
        probes = asks and device.features.driver_caches == "enabled"
        return cls(device, store, generation, captures, probes, memory_bytes, notes)

    @property
    def is_filled(self) -> bool:
        """Whether anything is there to be found."""
        if self.store is None or self.generation is None:
            return bool(self._kept)
        return self.store.has(self.generation)

    # --- before the first pipeline

    def pull_in(self, prepared: PreparedPipelines) -> None:
        """Look all pipelines of an image up, and make their binaries. Blocking."""
        began = time.perf_counter_ns()
        chosen = [each for each in range(len(prepared.image)) if each not in prepared.unusable]
        filler = _Filler(self.device, self.memory_bytes)
        self._fill(filler, prepared, chosen, self.probes)
        with self._lock:
            before = self._pulled_of.get(prepared, _Pulled())  # a run that was stopped did not need all
            self._pulled_of[prepared] = filler.pulled
            self._counts.update(
                looked_up=len(chosen),
                pulled_in=len(filler.pulled.of),
                look_up_ns=time.perf_counter_ns() - began,
            )
        self.device.destroy_binaries(np.array(before.release_all(), np.uint64))

    def _fill(
        self, filler: _Filler, prepared: PreparedPipelines, indices: Sequence[int], probes: bool
    ) -> None:
        try:
            missing = self._look_up(filler, prepared, indices)
            if probes and missing:
                self._probe(filler, prepared, missing)
        except OrchestratorError as error:
            self._say(f"binaries were not looked up: {error}")
        finally:
            filler.end()
        with self._lock:
            self._counts.update(pulled_bytes=filler.made_bytes, pulled_binaries=filler.made)
        if filler.refused:
            self._say(
                f"the driver refused {len(filler.refused)} binaries; pipelines that need them are compiled: "
                f"{filler.refused[0]}"
            )

    def _look_up(self, filler: _Filler, prepared: PreparedPipelines, indices: Sequence[int]) -> list[int]:
        """Add what is kept; returns the pipelines that are not."""
        states = _state_keys(prepared, indices)
        outcomes: Counter[str] = Counter()
        missing: list[int] = []

        def add(index: int, outcome: str, stored: StoredPipeline | None) -> None:
            outcomes[outcome] += 1
            if stored is None:
                missing.append(index)
            else:
                self._used.add(stored.state_key)
                filler.add(index, stored.binaries)

        if self.store is None or self.generation is None:
            for index, state in zip(indices, states, strict=True):
                add(index, "", self._kept.get(state))
        else:
            with self.store.reading(self.generation) as reader:
                for index, (_, outcome, stored) in zip(indices, reader.find_all(states), strict=True):
                    add(index, outcome, stored)
                named = {} if reader.is_empty else self._identified(prepared, missing)
                unknown, missing[:] = list(named), [each for each in missing if each not in named]
                for index in unknown:
                    add(index, *reader.find_identified(*named[index]))
        filler.make()
        with self._lock:
            self._counts.update(damaged=outcomes["damaged"], ambiguous=outcomes["collides"])
        return missing

    def _identified(self, prepared: PreparedPipelines, missing: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """Of those that their state did not find: what names their modules, and the driver's key."""
        known = prepared.identified
        if known is None:
            return {}
        indices = np.array(missing, np.int32)
        # NVIDIA (580.159) has one key for all ray-tracing pipelines, so those of the same modules look alike.
        is_told_apart = prepared.image.kinds[indices] != _RAY_TRACING
        indices = indices[known.lacking[indices] & known.known(indices) & is_told_apart]
        keys = self.device.pipeline_keys(prepared, indices)
        stages = (map(known.identifier, prepared.image.modules_of(index)) for index in indices.tolist())
        return {
            index: (_identifiers_key(self.device, tuple(own)), key)
            for index, own, key in zip(indices.tolist(), stages, keys, strict=True)
            if key is not None
        }

    def _probe(self, filler: _Filler, prepared: PreparedPipelines, missing: list[int]) -> None:
        """Ask the driver's own cache for what the store lacks, unless it links libraries."""
        # They do not exist yet. RADV (25.0.7) ends the process when such a pipeline is asked for.
        missing = [each for each in missing if not prepared.image.links[each]]
        found = self.device.probe_internal_cache(prepared, np.array(missing, np.int32))
        for index, handles in zip(missing, found, strict=True):
            if handles is not None and len(handles):
                filler.add_made(index, handles.tolist())
                self._counts.update(from_internal_cache=1)

    # --- around a call

    def hold(self, prepared: PreparedPipelines, indices: _Indices) -> HeldBinaries:
        """The binaries of some pipelines, which stay until `release`."""
        with self._lock:
            if prepared not in self._pulled_of:  # an image that came later
                self.pull_in(prepared)
            pulled = self._pulled_of[prepared]
            wanted = indices.tolist()
            if late := [each for each in wanted if each in pulled.later]:
                self._pull_in_late(pulled, prepared, late)
            held = [pulled.of.get(each, []) for each in wanted]
            handles = [each.handle for binaries in held for each in binaries]
        return HeldBinaries(np.array([len(each) for each in held], np.uint32), np.array(handles, np.uint64))

    def _pull_in_late(self, pulled: _Pulled, prepared: PreparedPipelines, indices: list[int]) -> None:
        """Pull in what did not fit the bound on memory, now that it is needed."""
        filler = _Filler(self.device, float("inf"))
        self._fill(filler, prepared, indices, False)
        pulled.later.difference_update(indices)
        pulled.of |= filler.pulled.of
        self._counts.update(pulled_late=len(filler.pulled.of))

    def release(self, prepared: PreparedPipelines, indices: _Indices, refused: _Indices) -> None:
        """End what `hold` began, and destroy what nothing needs any more."""
        with self._lock:
            pulled = self._pulled_of[prepared]
            held = [each for each in indices.tolist() if each in pulled.of]
            dead = [handle for each in held for handle in pulled.release(each)]
            self._counts.update(created=len(held) - len(refused), refused=len(refused))
        self.device.destroy_binaries(np.array(dead, np.uint64))

    # --- what is new

    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """Take what was compiled and captured; waits where the store is far behind."""
        if not captured:
            return
        from orchestrator.stores.binary_store import StoredPipeline

        states = _state_keys(prepared, [each.index for each in captured])
        pipelines = [
            StoredPipeline(
                state,
                each.pipeline_key or b"",
                each.binaries,
                _identifiers_key(self.device, each.identifiers),
            )
            for state, each in zip(states, captured, strict=True)
        ]
        with self._lock:  # whether or not it can be stored
            size = sum(each.size for each in pipelines)
            self._counts.update(captured=len(captured), captured_bytes=size)
            if self.store is None:
                self._kept.update((each.state_key, each) for each in pipelines)
                return
            if self._writer is None:
                self._writer = threading.Thread(target=self._store_all, name="binary store", daemon=True)
                self._writer.start()
        for each in pipelines:
            self._waiting.put(each)

    def _store_all(self) -> None:
        for batch in _batches(self._waiting):
            counts = self._store(batch)
            with self._lock:
                self._counts.update(counts)

    def _store(self, batch: list[StoredPipeline]) -> dict[str, int]:
        assert self.store is not None  # noqa: S101 - the writer is started for a store
        assert self.generation is not None  # noqa: S101
        try:
            put = self.store.put(self.generation, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs no pipeline
            kind = "" if isinstance(error, OrchestratorError) else f"{type(error).__name__}: "
            self._say(f"binaries were not stored: {kind}{error}")
            return {"lost": len(batch)}
        names = ("collisions", "shared_keys", "too_large", "stored_bytes", "evicted")
        return {name: getattr(put, name) for name in names} | {"stored": put.pipelines, "commits": 1}

    def settle(self) -> None:
        """Wait until everything that was taken is stored, and note what was used. Blocking."""
        if self._writer is not None:
            self._waiting.put(None)
            self._writer.join()
            self._writer = None
        if self.store is None or self.generation is None:
            return
        if not self.store.is_there and (stored := self._counts["stored"]):
            self._counts.update(stored=-stored, lost=stored)
            self._say(f"binaries were not stored: {self.store.path} was removed while it was in use")
        used, self._used = self._used, set()
        if self.store.read_only or not used:
            return
        try:
            # What was refused and compiled again has been replaced by what that gave.
            self.store.touch(self.generation, used)
        except OrchestratorError as error:
            self._say(f"what was used was not noted: {error}")
        if refused := self._counts["refused"]:
            self._say(f"the driver did not make {refused} pipelines from their binaries; they were compiled")

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- figures and the end

    def record(self) -> BinariesRecord:
        """What it did so far."""
        with self._lock:
            return BinariesRecord(**self._counts)

    def size(self) -> int:
        """Bytes of binaries that were pulled in or captured."""
        with self._lock:
            return self._counts["pulled_bytes"] + self._counts["captured_bytes"]

    def destroy(self) -> None:
        """Store what is left, and destroy all binaries. Idempotent."""
        try:
            self.settle()
        finally:
            with self._lock:
                left = [handle for each in self._pulled_of.values() for handle in each.release_all()]
                self._pulled_of = {}
            self.device.destroy_binaries(np.array(left, np.uint64))


def _batches(waiting: queue.Queue[StoredPipeline | None]) -> Iterator[list[StoredPipeline]]:
    """What comes within a second, some at a time, until None comes."""
    while (first := waiting.get()) is not None:
        batch, until = [first], time.monotonic() + _WAIT_S
        while len(batch) < _STORED_AT_ONCE:
            try:
                each = waiting.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if each is None:
                yield batch
                return
            batch.append(each)
        yield batch
