"""`HeldPipelines`: the source of a run in mode BINARIES, which looks up in a store and stores what is new.

    pull_in   store ──> binaries of all known pipelines, in one pass before the first is created
    hold      ──────>   their handles, for one call
    release   ──────>   a binary is destroyed when the last pipeline that needs it was created
    take      captured ──> one thread that writes batches into the store

A pipeline is looked up by its state: kind and hash of its record. The driver's key was stored with it and
holds as long as the global key (proposal of VK_KHR_pipeline_binary, 6.4), so a warm start asks the driver for
no key, reads no SPIR-V and makes no module. Where modules are known by their identifiers alone, the driver's
key and those name a pipeline, unless it is for ray tracing.

Guarantees: after `settle` everything that was taken is stored, or a note says why not. A worker waits for the
store only where that is far behind. Creation reads nothing from disk but for what did not fit the bound on
memory. A store that fails costs compiles, never a pipeline.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.binary_data import CapturedPipeline, HeldBinaries, PipelineBinary
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.identifiers import identifier_algorithm
from orchestrator.devices.image import KINDS, PipelineKind
from orchestrator.errors import DeviceError, DriverError, OrchestratorError
from orchestrator.run.records import BinariesRecord
from orchestrator.stores.files.atomic_file import content_hash128

if TYPE_CHECKING:
    from orchestrator.stores.binary_store import BinaryStore, Generation, StoredPipeline, StoreReader

DEFAULT_MEMORY: Final = 256 << 20
"""Bytes of binaries that are pulled in ahead of time, at most."""

VULKAN_1_1: Final = 1 << 22 | 1 << 12
"""Below this, no device has VK_KHR_pipeline_binary."""

_RAY_TRACING: Final = KINDS.index(PipelineKind.RAY_TRACING)
_AT_ONCE: Final = 1024  # binaries that one driver call makes
_A_BATCH: Final = 256  # pipelines
_A_BATCH_BYTES: Final = 16 << 20
_MOST_WAITING_BYTES: Final = 64 << 20
_WAIT_S: Final = 1.0  # for a batch to be full; a death of the process loses at most so much
_STATE: Final = struct.Struct("<BBQ")
_FORMAT_OF_STATE: Final = 1

_Indices = npt.NDArray[np.int32]


def state_key(kind: int, key: int) -> bytes:
    """The key of a pipeline's state: kind and hash of its record, and nothing of a device."""
    return _STATE.pack(_FORMAT_OF_STATE, kind, key)


def _state_keys(prepared: PreparedPipelines, indices: Sequence[int]) -> list[bytes]:
    kinds, keys = prepared.image.kinds[indices].tolist(), prepared.image.keys[indices].tolist()
    return list(map(state_key, kinds, keys))


def identifiers_key(device: Device, stages: Sequence[bytes]) -> bytes:
    """What a pipeline is stored by beside its state: the identifiers of its stages' modules, in order.

    They hold as long as shaderModuleIdentifierAlgorithmUUID, which is part of it. Empty where there are none.
    """
    algorithm = identifier_algorithm(device.capabilities)
    return content_hash128(msgspec.msgpack.encode((algorithm, tuple(stages)))) if stages else b""


def binary_device(device: Device) -> Device:
    """A device as one with binaries.

    Raises:
        DeviceError: It has none; the message names what to do.
    """
    if device.features.pipeline_binaries:
        return device
    lacks = "it has no VK_KHR_pipeline_binary"
    if device.capabilities.api_version < VULKAN_1_1:
        lacks += ", which needs Vulkan 1.1: opened as by this application it has 1.0"
    why = device.features.keys_withheld or lacks
    raise DeviceError(
        f"{device.identity.device_name} cannot be used in mode binaries: {why}; use another --mode"
    )


class NoBinaries(BinarySource):
    """Nothing is found and nothing is kept: for an application that cannot have binaries."""

    keeps = False
    name = "no binaries"
    captures = False

    def pull_in(self, prepared: PreparedPipelines) -> None:
        """There is nothing to look up."""

    def hold(self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]) -> HeldBinaries:
        """None of anything."""
        del prepared
        return HeldBinaries(np.zeros(len(indices), np.uint32), np.zeros(0, np.uint64))

    def release(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], refused: npt.NDArray[np.int32]
    ) -> None:
        """Nothing was held."""

    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """Nothing is captured."""

    def settle(self) -> None:
        """Nothing was taken."""

    def size(self) -> int:
        """Nothing."""
        return 0

    def destroy(self) -> None:
        """There is nothing to destroy."""


@frozen
class _KeptReader:
    """Looks up what is kept without a store, as a `StoreReader` does."""

    kept: dict[bytes, StoredPipeline]
    is_empty = True

    def find_all(self, states: Sequence[bytes]) -> Iterator[tuple[bytes, str, StoredPipeline | None]]:
        for each in states:
            yield each, "found" if each in self.kept else "missing", self.kept.get(each)


@define(eq=False)
class _Pulled:
    """Binaries of pipelines that were prepared together, each made once, many in one call.

    Guarded by its owner's lock once it is filled.
    """

    device: Device
    most_bytes: int
    slots: dict[int, list[int]] = field(factory=dict)  # of each pipeline's binaries, in order: which handle
    handles: list[int] = field(factory=list)  # 0: refused, or not needed any more
    sizes: list[int] = field(factory=list)
    users: list[int] = field(factory=list)  # of each handle: uses to come
    later: set[int] = field(factory=set)  # pipelines that did not fit the bound on memory
    refused: list[DriverError] = field(factory=list)
    _slot_of: dict[tuple[bytes, int], int] = field(factory=dict)
    _new: list[PipelineBinary] = field(factory=list)
    _added_bytes: int = 0

    @property
    def bytes(self) -> int:
        return sum(size for size, users in zip(self.sizes, self.users, strict=True) if users)

    @property
    def made(self) -> int:
        return sum(handle != 0 for handle in self.handles)

    def add(self, index: int, binaries: Sequence[PipelineBinary]) -> None:
        """Give a pipeline its binaries, or note that it gets them later."""
        # Equal memory is one object here: a reader gives each binary once.
        names = [(each.key, id(each.data)) for each in binaries]
        fresh = sum(len(b.data) for name, b in zip(names, binaries, strict=True) if name not in self._slot_of)
        if self._added_bytes + fresh > self.most_bytes:
            self.later.add(index)
            return
        self._added_bytes += fresh
        for name, each in zip(names, binaries, strict=True):
            if name not in self._slot_of:
                self._slot_of[name] = len(self.sizes)
                self.sizes.append(len(each.data))
                self.users.append(0)
                self._new.append(each)
            self.users[self._slot_of[name]] += 1
        self.slots[index] = [self._slot_of[each] for each in names]
        if len(self._new) >= _AT_ONCE:
            self.make()

    def add_made(self, index: int, handles: npt.NDArray[np.uint64]) -> None:
        """Give a pipeline binaries that were made already."""
        first = len(self.sizes)
        self.handles += handles.tolist()
        self.sizes += [0] * len(handles)
        self.users += [1] * len(handles)
        self.slots[index] = list(range(first, len(self.sizes)))

    def make(self) -> None:
        """Make what was added. The data is not needed any more."""
        new, self._new = self._new, []
        if new:
            self.handles += self._made_of(new)

    def _made_of(self, binaries: list[PipelineBinary]) -> list[int]:
        """Their handles; 0 for one that the driver refuses, which takes no other with it."""
        try:
            handles: list[int] = self.device.create_binaries(binaries).tolist()
        except DriverError as error:
            if len(binaries) == 1:
                self.refused.append(error)
                return [0]
            half = len(binaries) // 2
            return self._made_of(binaries[:half]) + self._made_of(binaries[half:])
        return handles

    def end_filling(self) -> None:
        """Forget the data; whoever needs what was not made is compiled."""
        self._slot_of, self._new = {}, []
        missing = len(self.sizes) - len(self.handles)
        self.handles += [0] * missing
        for index in [at for at, slots in self.slots.items() if not all(self.handles[s] for s in slots)]:
            self.destroy(self.release(index))

    def release(self, index: int) -> list[int]:
        """Forget a pipeline; the handles that nothing needs any more."""
        dead = []
        for slot in self.slots.pop(index, ()):
            self.users[slot] -= 1
            if not self.users[slot]:
                dead.append(self.handles[slot])
                self.handles[slot] = 0
        return dead

    def destroy(self, handles: Sequence[int]) -> None:
        self.device.destroy_binaries(np.array(handles, np.uint64))

    def absorb(self, more: _Pulled) -> None:
        """Take over what another one has."""
        base = len(self.sizes)
        self.handles += more.handles
        self.sizes += more.sizes
        self.users += more.users
        self.slots |= {index: [slot + base for slot in slots] for index, slots in more.slots.items()}


@define(eq=False)
class HeldPipelines(BinarySource):
    """Binaries of one device, with a store behind them or only in memory. Made by `HeldPipelines.of`.

    `destroy` ends its thread and everything that it holds; the store is somebody else's to close. Without a
    store it keeps what it takes for as long as it lives.

    Attributes:
        captures: See `BinarySource`. False where the driver would rather have nothing captured.
        notes: What a reader of the report must know.
    """

    keeps = True
    name = "binaries"

    device: Device
    store: BinaryStore | None
    generation: Generation | None
    captures: bool
    probes: bool
    memory_bytes: int
    notes: list[str] = field(factory=list)
    _record: BinariesRecord = field(factory=BinariesRecord)
    _pulled_of: dict[PreparedPipelines, _Pulled] = field(factory=dict)
    _kept: dict[bytes, StoredPipeline] = field(factory=dict)
    _used: set[bytes] = field(factory=set)
    _refused: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)
    _pulling: threading.Lock = field(factory=threading.Lock)
    _changed: threading.Condition = field(factory=threading.Condition)
    _waiting: list[StoredPipeline] = field(factory=list)  # to be stored
    _waiting_bytes: int = 0  # of those, and of those that are being stored
    _ends: bool = False
    _writer: threading.Thread | None = None
    _destroyed: bool = False

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
        able = binary_device(device)
        says = able.binary_properties
        generation = None
        if store is not None:
            from orchestrator.stores.binary_store import Generation

            key = able.global_pipeline_key()
            generation = Generation.of(device.identity, key, compressed=says.compressed_data)
        asks = says.internal_cache and (says.prefers_internal_cache or says.precompiled_internal_cache)
        notes = []
        if captures is None:
            captures = not says.prefers_internal_cache
            if not captures:
                notes.append(
                    "the driver prefers its own cache to binaries that are captured, so none are "
                    "(pipelineBinaryPrefersInternalCache)"
                )
        probes = asks and device.features.driver_caches == "enabled"
        return cls(able, store, generation, captures, probes, memory_bytes, notes)

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
        pulled = _Pulled(self.device, self.memory_bytes)
        try:
            missing = self._look_up(pulled, prepared, chosen)
            if self.probes and missing:
                self._probe(pulled, prepared, missing)
        except OrchestratorError as error:
            self._say(f"binaries were not looked up: {error}")
        finally:
            pulled.end_filling()
            with self._lock:
                before = self._pulled_of.get(prepared)
                self._pulled_of[prepared] = pulled
                elapsed = time.perf_counter_ns() - began
                self._add(looked_up=len(chosen), pulled_in=len(pulled.slots), look_up_ns=elapsed)
                self._count(pulled)
            if before is not None:  # a run that was stopped did not need all
                before.destroy(before.handles)

    @contextmanager
    def _reading(self) -> Iterator[StoreReader | _KeptReader]:
        if self.store is None or self.generation is None:
            yield _KeptReader(self._kept)
        else:
            with self.store.reading(self.generation) as reader:
                yield reader

    def _look_up(self, pulled: _Pulled, prepared: PreparedPipelines, chosen: Sequence[int]) -> list[int]:
        """Add what is stored; returns the pipelines that are not."""
        outcomes: dict[str, int] = {}
        missing: list[int] = []

        def add(index: int, outcome: str, stored: StoredPipeline | None) -> None:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if stored is None:
                missing.append(index)
            else:
                self._used.add(stored.state_key)
                pulled.add(index, stored.binaries)

        with self._reading() as reader:
            found = reader.find_all(_state_keys(prepared, chosen))
            for index, (_, outcome, stored) in zip(chosen, found, strict=True):
                add(index, outcome, stored)
            if not isinstance(reader, _KeptReader) and not reader.is_empty:
                unknown, missing = missing, []
                names = self._identified(prepared, unknown)
                for index in unknown:
                    if index in names:
                        add(index, *reader.find_identified(*names[index]))
                    else:
                        missing.append(index)
            pulled.make()
        with self._lock:
            self._add(damaged=outcomes.get("damaged", 0), ambiguous=outcomes.get("collides", 0))
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
            index: (identifiers_key(self.device, tuple(own)), key)
            for index, own, key in zip(indices.tolist(), stages, keys, strict=True)
            if key is not None
        }

    def _probe(self, pulled: _Pulled, prepared: PreparedPipelines, missing: list[int]) -> None:
        """Ask the driver's own cache for what the store lacks, unless it links libraries."""
        # They do not exist yet. RADV (25.0.7) ends the process when such a pipeline is asked for.
        missing = [each for each in missing if not prepared.image.links[each]]
        found = self.device.probe_internal_cache(prepared, np.array(missing, np.int32))
        hits = [
            (index, handles)
            for index, handles in zip(missing, found, strict=True)
            if handles is not None and len(handles)
        ]
        for index, handles in hits:
            pulled.add_made(index, handles)
        with self._lock:
            self._add(from_internal_cache=len(hits))

    # --- around a call

    def hold(self, prepared: PreparedPipelines, indices: _Indices) -> HeldBinaries:
        """See `BinarySource.hold`."""
        while (pulled := self._pulled(prepared)) is None:  # an image that came later
            with self._pulling:
                if self._pulled(prepared) is None:
                    self.pull_in(prepared)
        if pulled.later:
            self._catch_up(pulled, prepared, [each for each in indices.tolist() if each in pulled.later])
        with self._lock:
            slots = [pulled.slots.get(each, ()) for each in indices.tolist()]
            handles = [pulled.handles[slot] for each in slots for slot in each]
        return HeldBinaries(np.array([len(each) for each in slots], np.uint32), np.array(handles, np.uint64))

    def release(self, prepared: PreparedPipelines, indices: _Indices, refused: _Indices) -> None:
        """See `BinarySource.release`."""
        pulled = self._pulled(prepared)
        if pulled is None:
            return
        with self._lock:
            held = [each for each in indices.tolist() if each in pulled.slots]
            dead = [handle for each in held for handle in pulled.release(each)]
            self._add(created=len(held) - len(refused), refused=len(refused))
            self._refused += len(refused)
        pulled.destroy(dead)

    def _pulled(self, prepared: PreparedPipelines) -> _Pulled | None:
        with self._lock:
            return self._pulled_of.get(prepared)

    def _catch_up(self, pulled: _Pulled, prepared: PreparedPipelines, wanted: list[int]) -> None:
        """Pull in what did not fit, now that it is needed."""
        if not wanted:
            return
        more = _Pulled(self.device, 1 << 62)
        try:
            self._look_up(more, prepared, wanted)
        except OrchestratorError as error:
            self._say(f"binaries were not read: {error}")
        more.end_filling()
        with self._lock:
            pulled.later.difference_update(wanted)
            pulled.absorb(more)
            self._add(pulled_late=len(more.slots))
            self._count(more)

    def _count(self, pulled: _Pulled) -> None:
        self._add(pulled_bytes=pulled.bytes, pulled_binaries=pulled.made)
        if pulled.refused:
            self._say(
                f"the driver refused {len(pulled.refused)} binaries; pipelines that need them are compiled: "
                f"{pulled.refused[0]}"
            )

    # --- what is new

    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """See `BinarySource.take`."""
        if not captured:
            return
        from orchestrator.stores.binary_store import StoredPipeline

        states = _state_keys(prepared, [each.index for each in captured])
        pipelines = [
            StoredPipeline(
                state, each.pipeline_key or b"", each.binaries, identifiers_key(self.device, each.identifiers)
            )
            for state, each in zip(states, captured, strict=True)
        ]
        size = sum(each.size for each in pipelines)
        with self._lock:  # whether or not it can be stored
            self._add(captured=len(captured), captured_bytes=size)
            if self.store is None:
                self._kept.update((each.state_key, each) for each in pipelines)
                return
        with self._changed:
            # Far behind, the disk sets the pace: memory is bounded too.
            self._changed.wait_for(lambda: self._waiting_bytes < _MOST_WAITING_BYTES)
            self._waiting += pipelines
            self._waiting_bytes += size
            if self._writer is None:
                self._writer = threading.Thread(target=self._store_all, name="binary store", daemon=True)
                self._writer.start()
            self._changed.notify_all()

    def _store_all(self) -> None:
        """Store batches, until it is to end and nothing waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                self._changed.wait_for(lambda: self._ends or self._is_full(), _WAIT_S)
                batch, self._waiting = self._waiting[:_A_BATCH], self._waiting[_A_BATCH:]
            if not batch:
                return
            self._store(batch)
            with self._changed:
                self._waiting_bytes -= sum(each.size for each in batch)
                self._changed.notify_all()

    def _is_full(self) -> bool:
        return len(self._waiting) >= _A_BATCH or self._waiting_bytes >= _A_BATCH_BYTES

    def _store(self, batch: list[StoredPipeline]) -> None:
        assert self.store is not None  # noqa: S101 - the writer is started for a store
        assert self.generation is not None  # noqa: S101
        began = time.perf_counter_ns()
        try:
            report = self.store.put(self.generation, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs no pipeline
            kind = "" if isinstance(error, OrchestratorError) else f"{type(error).__name__}: "
            with self._lock:
                self._say(f"binaries were not stored: {kind}{error}")
                self._add(lost=len(batch), store_ns=time.perf_counter_ns() - began)
            return
        with self._lock:
            self._add(
                stored=report.pipelines,
                collisions=report.collisions,
                shared_keys=report.shared_keys,
                too_large=report.too_large,
                stored_bytes=report.stored_bytes,
                evicted=report.evicted,
                store_ns=time.perf_counter_ns() - began,
                commits=1,
            )

    def settle(self) -> None:
        """Wait until everything that was taken is stored, and note what was used. Blocking."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()
        self._ends = False
        if self.store is None or self.generation is None:
            return
        if not self.store.is_there and (stored := self._record.stored):
            with self._lock:
                self._add(stored=-stored, lost=stored)
            self._say(f"binaries were not stored: {self.store.path} was removed while it was in use")
        used, self._used = self._used, set()
        refused, self._refused = self._refused, 0
        if self.store.read_only:
            return
        began = time.perf_counter_ns()
        try:
            # What was refused and compiled again has been replaced by what that gave.
            self.store.touch(self.generation, used)
        except OrchestratorError as error:
            self._say(f"what was used was not noted: {error}")
        with self._lock:
            self._add(store_ns=time.perf_counter_ns() - began)
        if refused:
            self._say(f"the driver did not make {refused} pipelines from their binaries; they were compiled")

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- figures and the end

    def _add(self, **gained: int) -> None:
        sums = {name: getattr(self._record, name) + value for name, value in gained.items()}
        self._record = msgspec.structs.replace(self._record, **sums)

    def record(self) -> BinariesRecord:
        """What it did so far."""
        with self._lock:
            return self._record

    @property
    def held_bytes(self) -> int:
        """Bytes of the binaries that it holds now for pipelines that were not created yet."""
        with self._lock:
            return sum(each.bytes for each in self._pulled_of.values())

    def size(self) -> int:
        """Bytes of binaries that were pulled in or captured."""
        with self._lock:
            return self._record.pulled_bytes + self._record.captured_bytes

    def destroy(self) -> None:
        """Store what is left, and destroy all binaries. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
        try:
            self.settle()
        finally:
            with self._lock:
                left, self._pulled_of = self._pulled_of, {}
            for pulled in left.values():
                pulled.destroy(pulled.handles)
