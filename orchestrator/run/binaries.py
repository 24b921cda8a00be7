"""`HeldPipelines`: the source of a run in mode BINARIES, which looks up in a store and stores what is new.

    pull_in   store ──> binaries of all known pipelines, in one pass before the first is created
    hold      ──────>   their handles, for one call
    release   ──────>   a binary is destroyed when the last pipeline that needs it was created
    take      captured ──> queue ──> one thread that writes batches into the store

A pipeline is looked up by its state: kind and hash of its record. The driver's key was stored with it and
holds as long as the global key (proposal of VK_KHR_pipeline_binary, 6.4), so a warm start asks the driver for
no key, reads no SPIR-V and makes no module. What has a driver's key in common with another state is compiled
all the same: such keys are known to lie. What links libraries is kept by its state alone: drivers give no key
for it. Where modules are known by their identifiers alone, the driver's key and those name a pipeline, unless
it is for ray tracing.

Guarantees: after `settle` everything that was taken is on disk, or a note says why not. The store is never
waited for by a worker, unless it is far behind. Creation reads nothing from disk but for what did not fit the
bound on memory. A store that fails costs compiles, never a pipeline.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.binary_data import CapturedPipeline, HeldBinaries, PipelineBinary
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.identifiers import identifier_algorithm
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind, ranges
from orchestrator.errors import DeviceError, DriverError, OrchestratorError
from orchestrator.run.records import BinariesRecord
from orchestrator.stores.files.atomic_file import content_hash128

if TYPE_CHECKING:
    from orchestrator.stores.binary_store import BinaryStore, Generation, PutReport, StoredPipeline

_RAY_TRACING: Final = KINDS.index(PipelineKind.RAY_TRACING)
DEFAULT_MEMORY: Final = 256 << 20
"""Bytes of binaries that are pulled in ahead of time, at most."""

_AT_ONCE: Final = 1024  # binaries that one driver call makes
_A_BATCH: Final = 256  # pipelines that one commit stores, at most
_A_BATCH_BYTES: Final = 16 << 20
_MOST_WAITING_BYTES: Final = 64 << 20
VULKAN_1_1: Final = 1 << 22 | 1 << 12
"""Below this, no device has VK_KHR_pipeline_binary."""
_WAIT_S: Final = 1.0
_STATE: Final = struct.Struct("<BBQ")
_FORMAT_OF_STATE: Final = 1


def state_key(kind: int, key: int) -> bytes:
    """The key of a pipeline's state: what its record says, and nothing of a device.

    Args:
        kind: Its kind, as a position in `PipelineKind`.
        key: Hash of its record.
    """
    return _STATE.pack(_FORMAT_OF_STATE, kind, key)


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


@define(eq=False)
class _Pulled:
    """The binaries of pipelines that were prepared together. Guarded by its owner's lock."""

    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint32]
    slots: npt.NDArray[np.int32]  # of each pipeline's binaries, one after the other: which handle
    handles: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]  # of each handle: bytes
    users: npt.NDArray[np.int32]  # of each handle: pipelines that will use it still
    later: dict[int, bytes]  # pipelines that did not fit the bound on memory: their state keys


@define(eq=False)
class _Waiting:
    """What is to be stored, between workers and the writer."""

    pipelines: deque[StoredPipeline] = field(factory=deque)
    bytes: int = 0
    ends: bool = False
    idle: bool = True


@define(eq=False)
class HeldPipelines(BinarySource):
    """Binaries of one device, with a store behind them or only in memory. Made by `HeldPipelines.of`.

    `destroy` ends its thread and everything that it holds; the store is somebody else's to close. Without a
    store it keeps what it takes for as long as it lives.

    Attributes:
        captures: See `BinarySource`. False where the driver would rather have nothing captured.
        notes: What a reader of the report must know.
        make_room: Called where the disk is full; whether it is worth trying again.
    """

    name = "binaries"

    device: Device
    store: BinaryStore | None
    generation: Generation | None
    captures: bool
    probes: bool
    memory_bytes: int
    notes: list[str] = field(factory=list)
    make_room: Callable[[], bool] = lambda: False
    _record: BinariesRecord = field(factory=BinariesRecord)
    _pulled_of: dict[PreparedPipelines, _Pulled] = field(factory=dict)
    _kept: dict[bytes, tuple[PipelineBinary, ...]] = field(factory=dict)
    _used: list[bytes] = field(factory=list)
    _refused: list[bytes] = field(factory=list)
    _held_bytes: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)
    _pulling: threading.Lock = field(factory=threading.Lock)
    _changed: threading.Condition = field(factory=threading.Condition)
    _waiting: _Waiting = field(factory=_Waiting)
    _writer: threading.Thread | None = None
    _failure: BaseException | None = None
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

            generation = Generation.of(
                device.identity, able.global_pipeline_key(), compressed=says.compressed_data
            )
        asks = says.internal_cache and (says.prefers_internal_cache or says.precompiled_internal_cache)
        made = cls(
            able,
            store,
            generation,
            not says.prefers_internal_cache if captures is None else captures,
            asks and device.features.driver_caches == "enabled",
            memory_bytes,
        )
        if not made.captures and captures is None:
            made.notes.append(
                "the driver prefers its own cache to binaries that are captured, so none are "
                "(pipelineBinaryPrefersInternalCache)"
            )
        return made

    @property
    def is_filled(self) -> bool:
        """Whether anything is there to be found."""
        if self.store is None or self.generation is None:
            return bool(self._kept)
        return self.store.generation(self.generation) is not None

    # --- before the first pipeline

    def pull_in(self, prepared: PreparedPipelines) -> None:
        """Look all pipelines of an image up, and make their binaries. Blocking."""
        began = time.perf_counter_ns()
        image = prepared.image
        indices = np.arange(len(image), dtype=np.int32)
        usable = np.ones(len(image), np.bool_)
        usable[list(prepared.unusable)] = False
        chosen = indices[usable].tolist()
        filling = _Filling(self.device, len(image), self.memory_bytes)
        missing: list[int] = []
        try:
            self._fill(filling, prepared, chosen, missing)
            if self.probes and missing:
                self._probe(filling, prepared, missing)
        except OrchestratorError as error:
            self._say(f"binaries were not looked up: {error}")
        finally:
            pulled = filling.done()
            with self._lock:
                before = self._pulled_of.get(prepared)
                self._pulled_of[prepared] = pulled
                self._held_bytes += filling.bytes
                self._add(
                    looked_up=len(chosen),
                    pulled_in=int(np.count_nonzero(pulled.counts)),
                    pulled_bytes=filling.bytes,
                    pulled_binaries=int(np.count_nonzero(pulled.handles)),
                    look_up_ns=time.perf_counter_ns() - began,
                )
                self._tell_refused(filling)
            if before is not None:  # a run that was stopped did not need all
                self._drop(before)

    def _tell_refused(self, filling: _Filling) -> None:
        if filling.refused:
            self._say(
                f"the driver refused {len(filling.refused)} binaries; pipelines that need them are compiled: "
                f"{filling.refused[0]}"
            )

    def _drop(self, pulled: _Pulled) -> None:
        """Destroy what is left of the binaries of some pipelines, which no call uses."""
        self.device.destroy_binaries(pulled.handles)
        with self._lock:
            self._held_bytes -= int(pulled.sizes.sum())

    def _fill(
        self, filling: _Filling, prepared: PreparedPipelines, chosen: list[int], missing: list[int]
    ) -> None:
        kinds, keys = prepared.image.kinds.tolist(), prepared.image.keys.tolist()
        outcomes: dict[str, int] = {}
        if self.store is None or self.generation is None:
            for index in chosen:
                found = self._kept.get(state_key(kinds[index], keys[index]))
                if found is None or not filling.add(index, found):
                    missing.append(index)
            filling.make()
            return
        with self.store.reading(self.generation) as reader:
            for index in chosen:
                outcome, stored = reader.find(state_key(kinds[index], keys[index]))
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if stored is None:
                    missing.append(index)
                else:
                    self._fill_one(filling, index, stored)
            identified: set[int] = set()
            for index, names in ({} if reader.is_empty else self._identified(prepared, missing)).items():
                outcome, stored = reader.find_identified(*names)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if stored is not None:
                    identified.add(index)
                    self._fill_one(filling, index, stored)
            missing[:] = (each for each in missing if each not in identified)
            filling.make()  # while the store's memory is there; the driver copies it
        with self._lock:
            self._add(damaged=outcomes.get("damaged", 0), ambiguous=outcomes.get("collides", 0))

    def _fill_one(self, filling: _Filling, index: int, stored: StoredPipeline) -> None:
        self._used.append(stored.state_key)
        if not filling.add(index, stored.binaries):
            filling.later[index] = stored.state_key

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

    def _probe(self, filling: _Filling, prepared: PreparedPipelines, missing: list[int]) -> None:
        """Ask the driver's own cache for what the store lacks, unless it links libraries."""
        # They do not exist yet. RADV (25.0.7) ends the process when such a pipeline is asked for.
        links = prepared.image.links
        missing = [each for each in missing if not links[each]]
        found = self.device.probe_internal_cache(prepared, np.array(missing, np.int32))
        hits = 0
        for index, handles in zip(missing, found, strict=True):
            if handles is not None and len(handles):
                filling.take(index, handles)
                hits += 1
        with self._lock:
            self._add(from_internal_cache=hits)

    # --- around a call

    def hold(self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]) -> HeldBinaries:
        """See `BinarySource.hold`."""
        while (pulled := self._pulled(prepared)) is None:  # an image that came later
            with self._pulling:
                if self._pulled(prepared) is None:
                    self.pull_in(prepared)
        if pulled.later:
            self._catch_up(pulled, prepared.image, indices)
        with self._lock:
            counts = pulled.counts[indices]
            rows = ranges(pulled.starts[indices], counts)
            return HeldBinaries(counts, pulled.handles[pulled.slots[rows]])

    def release(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], refused: npt.NDArray[np.int32]
    ) -> None:
        """See `BinarySource.release`."""
        pulled = self._pulled(prepared)
        if pulled is None:
            return
        with self._lock:
            counts = pulled.counts[indices]
            slots = pulled.slots[ranges(pulled.starts[indices], counts)]
            created = int(np.count_nonzero(counts)) - len(refused)
            pulled.counts[indices] = 0
            np.subtract.at(pulled.users, slots, 1)
            ended = np.zeros(len(pulled.users), np.bool_)
            ended[slots] = pulled.users[slots] == 0
            over = np.flatnonzero(ended)
            dead = pulled.handles[over].copy()
            pulled.handles[over] = 0
            self._held_bytes -= int(pulled.sizes[over].sum())
            pulled.sizes[over] = 0
            self._add(created=created, refused=len(refused))
            kinds, keys = prepared.image.kinds, prepared.image.keys
            self._refused += [state_key(int(kinds[each]), int(keys[each])) for each in refused.tolist()]
        self.device.destroy_binaries(dead)

    def _pulled(self, prepared: PreparedPipelines) -> _Pulled | None:
        with self._lock:
            return self._pulled_of.get(prepared)

    def _catch_up(self, pulled: _Pulled, image: CreateInfoImage, indices: npt.NDArray[np.int32]) -> None:
        """Pull in what did not fit, now that it is needed."""
        wanted = [index for index in indices.tolist() if index in pulled.later]
        if not wanted or self.store is None or self.generation is None:
            return
        filling = _Filling(self.device, len(image), 1 << 62)
        try:
            with self.store.reading(self.generation) as reader:
                for index in wanted:
                    _, stored = reader.find(pulled.later[index])
                    if stored is not None:
                        filling.add(index, stored.binaries)
                filling.make()
        except OrchestratorError as error:
            self._say(f"binaries were not read: {error}")
        more = filling.done()
        with self._lock:
            base, first = len(pulled.handles), len(pulled.slots)
            pulled.handles = np.concatenate([pulled.handles, more.handles])
            pulled.sizes = np.concatenate([pulled.sizes, more.sizes])
            pulled.users = np.concatenate([pulled.users, more.users])
            pulled.slots = np.concatenate([pulled.slots, more.slots + base])
            for index in wanted:
                pulled.later.pop(index, None)
                pulled.starts[index] = more.starts[index] + first
                pulled.counts[index] = more.counts[index]
            self._held_bytes += filling.bytes
            self._add(
                pulled_late=int(np.count_nonzero(more.counts)),
                pulled_bytes=filling.bytes,
                pulled_binaries=int(np.count_nonzero(more.handles)),
            )
            self._tell_refused(filling)

    # --- what is new

    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """See `BinarySource.take`."""
        if not captured:
            return
        kinds, keys = prepared.image.kinds, prepared.image.keys
        states = [state_key(int(kinds[each.index]), int(keys[each.index])) for each in captured]
        size = sum(len(binary.data) for each in captured for binary in each.binaries)
        with self._lock:  # whether or not it can be stored
            self._add(captured=len(captured), captured_bytes=size)
        if self.store is None:
            with self._lock:
                self._kept.update(zip(states, (each.binaries for each in captured), strict=True))
            return
        from orchestrator.stores.binary_store import StoredPipeline

        pipelines = [
            StoredPipeline(
                state,
                each.pipeline_key or b"",
                each.binaries,
                each.driver_ns,
                identifiers_key(self.device, each.identifiers),
            )
            for state, each in zip(states, captured, strict=True)
        ]
        with self._changed:
            # Far behind, the disk sets the pace: memory is bounded too.
            self._changed.wait_for(lambda: self._waiting.bytes < _MOST_WAITING_BYTES or self._waiting.ends)
            self._raise_failure()
            self._waiting.pipelines.extend(pipelines)
            self._waiting.bytes += size
            self._waiting.idle = False
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="binary store", daemon=True)
                self._writer.start()
            self._changed.notify_all()

    def _write(self) -> None:
        """Be the thread that stores."""
        try:
            self._store_all()
        except BaseException as error:  # noqa: BLE001 - raised where binaries are given, or settled
            with self._changed:
                self._failure, self._waiting.ends = error, True
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _store_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting.pipelines or self._waiting.ends)
                if not self._waiting.ends:
                    # A batch, or what has come until then.
                    self._changed.wait_for(
                        lambda: (
                            len(self._waiting.pipelines) >= _A_BATCH
                            or self._waiting.bytes >= _A_BATCH_BYTES
                            or self._waiting.ends
                        ),
                        _WAIT_S,
                    )
                batch = [
                    self._waiting.pipelines.popleft()
                    for _ in range(min(_A_BATCH, len(self._waiting.pipelines)))
                ]
                if not batch:
                    return
            self._store(batch)
            with self._changed:
                self._waiting.bytes -= sum(each.size for each in batch)
                self._waiting.idle = not self._waiting.pipelines
                self._changed.notify_all()

    def _store(self, batch: list[StoredPipeline]) -> None:
        began = time.perf_counter_ns()
        try:
            report = self._put(batch)
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

    def _put(self, batch: list[StoredPipeline]) -> PutReport:
        from orchestrator.stores.binary_store import DiskFullError

        assert self.store is not None  # noqa: S101 - the writer is started for a store
        assert self.generation is not None  # noqa: S101
        try:
            return self.store.put(self.generation, batch)
        except DiskFullError:
            if not self.make_room():
                raise
        return self.store.put(self.generation, batch)

    def settle(self) -> None:
        """Wait until everything that was taken is stored, and note what was used. Blocking."""
        with self._changed:
            self._waiting.ends = True
            self._changed.notify_all()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()
        with self._changed:
            self._waiting = _Waiting()
        self._raise_failure()
        self._look_for_store()
        used, self._used = self._used, []
        refused, self._refused = self._refused, []
        if self.store is None or self.generation is None or self.store.read_only:
            return
        began = time.perf_counter_ns()
        try:
            # What was refused and compiled again has been replaced by what that gave.
            self.store.touch(self.generation, list(dict.fromkeys(used)))
        except OrchestratorError as error:
            self._say(f"what was used was not noted: {error}")
        with self._lock:
            self._add(store_ns=time.perf_counter_ns() - began)
        if refused:
            self._say(
                f"the driver did not make {len(refused)} pipelines from their binaries; they were compiled"
            )

    def _look_for_store(self) -> None:
        """What was stored is lost if somebody removed the store meanwhile."""
        if self.store is None or self.store.is_there:
            return
        with self._lock:
            stored = self._record.stored
            self._add(stored=-stored, lost=stored)
            if stored:
                self._say(f"binaries were not stored: {self.store.path} was removed while it was in use")

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- figures and the end

    def _add(self, **gained: int) -> None:
        current = self._record
        self._record = msgspec.structs.replace(
            current, **{name: getattr(current, name) + value for name, value in gained.items()}
        )

    def record(self) -> BinariesRecord:
        """What it did so far."""
        with self._lock:
            return self._record

    @property
    def held_bytes(self) -> int:
        """Bytes of the binaries that it holds now for pipelines that were not created yet."""
        with self._lock:
            return self._held_bytes

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
                self._drop(pulled)


class _Filling:
    """Collects the binaries of pipelines, and makes each once, many in one call."""

    def __init__(self, device: Device, count: int, most_bytes: int) -> None:
        self._device = device
        self._most = most_bytes
        self._slot_of: dict[tuple[bytes, int], int] = {}
        self._new: list[PipelineBinary] = []
        self._made: list[npt.NDArray[np.uint64]] = []
        self._of: dict[int, list[int]] = {}
        self._count = count
        self.sizes: list[int] = []
        self.bytes = 0
        self.later: dict[int, bytes] = {}
        self.refused: list[DriverError] = []

    def add(self, index: int, binaries: Sequence[PipelineBinary]) -> bool:
        """Give a pipeline its binaries; False where they do not fit."""
        fresh = sum(len(each.data) for each in binaries if self._name(each) not in self._slot_of)
        if self.bytes + fresh > self._most:
            return False
        slots = []
        for each in binaries:
            name = self._name(each)
            slot = self._slot_of.get(name)
            if slot is None:
                slot = self._slot_of[name] = len(self.sizes)
                self.sizes.append(len(each.data))
                self.bytes += len(each.data)
                self._new.append(each)
            slots.append(slot)
        self._of[index] = slots
        if len(self._new) >= _AT_ONCE:
            self.make()
        return True

    @staticmethod
    def _name(binary: PipelineBinary) -> tuple[bytes, int]:
        # Equal memory is one object here: a reader gives each payload once.
        return binary.key, id(binary.data)

    def take(self, index: int, handles: npt.NDArray[np.uint64]) -> None:
        """Give a pipeline binaries that were made already."""
        self.make()
        first = len(self.sizes)
        self._made.append(handles)
        self.sizes += [0] * len(handles)
        self._of[index] = list(range(first, first + len(handles)))

    def make(self) -> None:
        """Make what was added. Whoever needs what the driver refuses is compiled."""
        new, self._new = self._new, []
        if new:
            self._made.append(self._made_of(new))

    def _made_of(self, binaries: list[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """Their handles; 0 for one that the driver refuses, which takes no other with it."""
        try:
            return self._device.create_binaries(binaries)
        except DriverError as error:
            if len(binaries) == 1:
                self.refused.append(error)
                return np.zeros(1, np.uint64)
        half = len(binaries) // 2
        return np.concatenate([self._made_of(binaries[:half]), self._made_of(binaries[half:])])

    def done(self) -> _Pulled:
        """What was made and is of use."""
        handles = np.concatenate([np.zeros(0, np.uint64), *self._made])
        made, refused = len(handles), set(np.flatnonzero(handles == 0).tolist())
        counts = np.zeros(self._count, np.uint32)
        starts = np.zeros(self._count, np.int64)
        slots: list[int] = []
        for index, own in self._of.items():
            if max(own) >= made or not refused.isdisjoint(own):
                continue
            starts[index], counts[index] = len(slots), len(own)
            slots += own
        flat = np.array(slots, np.int32)
        users = np.bincount(flat, minlength=made).astype(np.int32)
        sizes = np.array(self.sizes[:made], np.int64)
        unused = users == 0
        self._device.destroy_binaries(handles[unused])
        handles[unused] = sizes[unused] = 0
        self.bytes = int(sizes.sum())
        return _Pulled(starts, counts, flat, handles, sizes, users, self.later)
