"""`VulkanDevice`: the Device seam over an open VkDevice.

Guarantees: those of orchestrator/devices/device.py. A driver call releases the GIL (cffi), so workers run in
parallel; no lock is held while the driver runs. The context owns the VkDevice. Objects that were closed, or
belong to another device, are refused before the driver call that would crash on them. Closing the device
waits for the calls in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.binaries import (
    BinaryProperties,
    BinarySource,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinary,
    create_with_binaries,
)
from orchestrator.devices.device import (
    INCOMPLETE,
    NO_OBSERVER,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    CallSplit,
    CreationBatch,
    DriverObserver,
    DriverStep,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PipelineSource,
    PreparedPipelines,
    in_calls,
    stays_with_parent,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.identifiers import create_speculatively, identified_places, identifier_algorithm
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind, span_of
from orchestrator.devices.request import EXECUTABLE_INFO
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.capabilities import Capabilities
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.instance import check, new_struct
from orchestrator.devices.vulkan.prepared import (
    DEFAULT_LIMIT,
    MissingLibraryError,
    PipelineCreation,
    VulkanPreparedPipelines,
)
from orchestrator.errors import DeviceError, ExternalSynchronizationError

if TYPE_CHECKING:
    from orchestrator.devices.vulkan.binaries import Binaries

#: VkDriverId of drivers that neither cache nor capture a stage which the new pipeline shares with a living
#: one: NVIDIA's own (580.159), for ray tracing. Of the 84 pipelines of sascha_rt, 28 were missing in every
#: cache, and 79 of 88 were refused from their binaries; none is, if each is destroyed before the next is
#: created. Pipelines with `keep` are not destroyed. Other workers wait where pipelines are captured.
SHARES_LIVING_STAGES: Final = frozenset({4})
_ALONE_S: Final = 5.0
_EXTERNALLY_SYNCHRONIZED: Final = 0x1
_INTERNALLY_SYNCHRONIZED_MERGE: Final = 0x8
# A cache that other workers fill grows between the size query and the read; each round queries again.
_READ_ROUNDS: Final = 8
_GROWTH_ROOM: Final = 64 * 1024
_NO_PIPELINES: Final = np.empty(0, np.int32)
_RAY_TRACING: Final = KINDS.index(PipelineKind.RAY_TRACING)


class VulkanDevice:
    """The Device seam over an open VkDevice. Made by `open_device`; closed by its opener.

    Attributes:
        context: The device itself; `close` closes it.
        host_memory: The counters of host memory, or None where it is not counted.
        observer: See `Device.observer`.
        identity: See `Device.identity`; likewise `features`, `capabilities` and `handles`.
    """

    def __init__(self, context: DeviceContext, *, module_limit: int = DEFAULT_LIMIT) -> None:
        """Work on a device.

        Args:
            context: The device; `close` closes it.
            module_limit: Bytes of SPIR-V to keep alive as shader modules.
        """
        self.context: Final = context
        self.host_memory: Final = context.host_memory
        self.identity: Final = context.identity
        self.features: Final = context.features
        self.capabilities: Final = context.capabilities
        self.handles: Final = context.handles
        self.observer: DriverObserver = NO_OBSERVER
        self._module_limit = module_limit
        self._caches: set[PipelineCache] = set()
        self._closed = ""
        self._begin()
        stays_with_parent(self)
        self._creation = PipelineCreation(context)
        self._own_binaries: Binaries | None = None

    def _begin(self) -> None:
        # Under this: what there is, and the calls in flight.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._capturing = threading.Lock()
        self._prepared: set[VulkanPreparedPipelines] = set()
        self._calls = 0

    def stay_with_parent(self) -> None:
        """See `StaysWithParent`."""
        self._begin()
        self._closed = "is a device of the process that was forked"

    @property
    def supported(self) -> Capabilities:
        """See `Device.supported`."""
        return self.capabilities.supported

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        self.features.check_cache_flags(externally_synchronized, internally_synchronized_merge, name)
        # Some drivers fail on size 0 with a pointer that is not null.
        data = ffi.from_buffer("uint8_t[]", initial_data) if initial_data else ffi.NULL
        info = new_struct(
            "VkPipelineCacheCreateInfo",
            flags=_EXTERNALLY_SYNCHRONIZED * externally_synchronized
            | _INTERNALLY_SYNCHRONIZED_MERGE * internally_synchronized_merge,
            initialDataSize=len(initial_data),
            pInitialData=data,
        )
        step = DriverStep.LOAD if initial_data else DriverStep.CACHE
        with self._call():
            with self.observer.calling(step):
                handle = self.context.create("vkCreatePipelineCache", info)
            cache = PipelineCache(handle, externally_synchronized, internally_synchronized_merge, name, self)
            with self._changed:
                self._caches.add(cache)
        return cache

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        if destination in sources:
            raise DeviceError(f"pipeline cache {destination.name!r} cannot be merged into itself")
        what = "vkMergePipelineCaches"
        context = self.context
        with self._call(destination, *sources), ExitStack() as held:
            if not sources:
                return
            alone = not destination.internally_synchronized_merge
            held.enter_context(destination.using(what, alone=alone))
            for each in sources:
                held.enter_context(each.using(what))
            handles = ffi.new("uint64_t[]", [each.handle for each in sources])
            merge = context.commands.vkMergePipelineCaches
            held.enter_context(self.observer.calling(DriverStep.MERGE))
            check(what, merge(context.handle, destination.handle, len(sources), handles))

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        size = ffi.new("size_t *")
        with self._call(cache), cache.using("vkGetPipelineCacheData"), self.observer.calling(DriverStep.READ):
            self._get(cache, size, ffi.NULL)
        return int(size[0])

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        size = ffi.new("size_t *")
        with self._call(cache), cache.using("vkGetPipelineCacheData"), self.observer.calling(DriverStep.READ):
            room = 0
            for _ in range(_READ_ROUNDS):
                self._get(cache, size, ffi.NULL)
                wanted = int(size[0]) + room
                size[0] = wanted if limit is None else min(limit, wanted)
                buffer = ffi.new("uint8_t[]", max(int(size[0]), 1))
                result = self._get(cache, size, buffer)
                written = bytes(ffi.buffer(buffer, int(size[0])))
                if result != INCOMPLETE or limit is not None:
                    break
                room = room * 2 or _GROWTH_ROOM  # it grew meanwhile: try again with more room
        return PipelineCacheData(written, complete=result != INCOMPLETE)

    def _get(self, cache: PipelineCache, size: object, data: object) -> int:
        context = self.context
        result = context.commands.vkGetPipelineCacheData(context.handle, cache.handle, size, data)
        return check("vkGetPipelineCacheData", result)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        if cache.destroyed or self.observer.keeps_all:
            return
        with self._call(cache):
            self._destroy(cache)

    def _destroy(self, cache: PipelineCache) -> None:
        context = self.context
        with cache.using("vkDestroyPipelineCache", alone=True), self.observer.calling(DriverStep.DESTROY):
            cache.destroyed = True
            context.commands.vkDestroyPipelineCache(context.handle, cache.handle, context.allocator)
        with self._changed:
            self._caches.discard(cache)

    def prepare(
        self,
        image: CreateInfoImage | IdentifiedModules,
        *,
        modules_on_demand: bool = False,
    ) -> VulkanPreparedPipelines:
        """See `Device.prepare`."""
        with self._call():
            prepared = VulkanPreparedPipelines(
                self.context, image, self._module_limit, self._close, self.observer, modules_on_demand
            )
            with self._changed:
                self._prepared.add(prepared)
        return prepared

    def _close(self, prepared: VulkanPreparedPipelines) -> None:
        """Destroy what is behind prepared pipelines, once, where no call uses them.

        Raises:
            ExternalSynchronizationError: One does.
        """
        with self._changed:
            if prepared not in self._prepared or self.observer.keeps_all:
                return
            if prepared.calls:
                raise ExternalSynchronizationError(
                    "close: the prepared pipelines are in use by another thread; end the session or run first"
                )
            self._prepared.discard(prepared)
            self._calls += 1
        try:
            with self.observer.calling(DriverStep.DESTROY, prepared.image):
                prepared.destroy()
        finally:
            with self._lock:
                self._ended()

    def _ended(self) -> None:
        """A call in flight has ended; under the lock."""
        self._calls -= 1
        if self._closed:
            self._changed.notify_all()

    @contextmanager
    def _call(self, *caches: PipelineSource) -> Iterator[None]:
        """Be in flight, with caches of this device.

        Raises:
            DeviceError: The device was closed before; a cache is another device's.
        """
        for each in caches:
            self._require_own(each)
        with self._lock:
            self._require_open()
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._ended()

    @contextmanager
    def _bound(
        self,
        prepared: PreparedPipelines,
        source: PipelineSource = NO_SOURCE,
        creating: npt.NDArray[np.int32] = _NO_PIPELINES,
    ) -> Iterator[VulkanPreparedPipelines]:
        """Be in flight with what was prepared, and have some of its pipelines alone.

        Raises:
            DeviceError: It, or the device, was closed; it, or the cache, is another device's; an index is out
                of range.
            ExternalSynchronizationError: Another call creates one of the pipelines.
        """
        self._require_own(source)
        span = span_of(creating) if len(creating) else slice(0, 0)
        _require_pipelines(prepared, creating, span)
        with self._lock:
            self._require_open()
            if not isinstance(prepared, VulkanPreparedPipelines) or prepared not in self._prepared:
                raise DeviceError("the prepared pipelines are closed, or another device's")
            if prepared.busy.any(creating, span):
                busy = [each for each in creating.tolist() if prepared.busy[each]]
                raise ExternalSynchronizationError(
                    f"pipelines {busy[:8]} are being created by another thread; prepare the image once for "
                    "each session or run"
                )
            prepared.busy.put(creating, span, 1)
            prepared.calls += 1
            self._calls += 1
        try:
            yield prepared
        finally:
            with self._lock:
                prepared.busy.put(creating, span, 0)
                prepared.calls -= 1
                self._ended()

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """See `Device.create_pipelines`."""
        identified = prepared.identified
        if identified is not None or isinstance(source, BinarySource):
            _require_pipelines(prepared, indices)  # `_bound` does it where nothing is looked up before
        if isinstance(source, BinarySource):
            create = partial(create_with_binaries, self, prepared, source=source)
        elif identified is not None and identified.lacking[indices].any():
            create = partial(create_speculatively, self, prepared, source=source)
        else:
            with self._bound(prepared, source, indices) as bound:
                if self.observer.watches and split is not None:
                    one = partial(self._create_alone, bound, keep=keep)
                    return in_calls(
                        self, indices, split, lambda some: one(some, source, fail_on_compile_required)
                    )
                return self._create_alone(bound, indices, source, fail_on_compile_required, split, keep=keep)
        create = partial(create, keep=keep, fail_on_compile_required=fail_on_compile_required)
        return in_calls(self, indices, split, create)

    def _create_alone(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        *,
        keep: bool,
        identified: bool = False,
    ) -> CreationBatch:
        """Create pipelines all with code, or all without; one by one for `SHARES_LIVING_STAGES`."""
        return self.observer.creating(
            DriverStep.CREATE,
            bound.image,
            indices,
            lambda: self._create_unobserved(
                bound, indices, source, fail_on_compile_required, split, keep=keep, identified=identified
            ),
        )

    def _create_unobserved(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None,
        *,
        keep: bool,
        identified: bool,
    ) -> CreationBatch:
        if keep or not self._shares_living_stages(bound, indices):
            return self._create(
                bound, indices, source, fail_on_compile_required, split, keep=keep, identified=identified
            )
        batch = CreationBatch.of_zeros(len(indices))
        for place in range(len(indices)):
            here = slice(place, place + 1)
            part = self._create(
                bound, indices[here], source, fail_on_compile_required, keep=False, identified=identified
            )
            batch.put(here, part)
            bound.destroy_discarded()
        return batch

    def _shares_living_stages(self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32]) -> bool:
        return (
            self.identity.driver_id in SHARES_LIVING_STAGES
            and bound.image.counts[PipelineKind.RAY_TRACING] > 0
            and bool((bound.image.kinds[indices] == _RAY_TRACING).any())
        )

    def _create(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        *,
        keep: bool,
        identified: bool,
    ) -> CreationBatch:
        if identified:
            bound.use_identifiers(indices)
            batch = self._creation.create(bound, indices, source, True, identified=True)
        else:
            if not fail_on_compile_required:
                self._remake_libraries(bound, indices, source)
            acquired = bound.acquire_modules(indices)
            try:
                batch = self._creation.create(bound, indices, source, fail_on_compile_required, split)
            finally:
                bound.release_modules(acquired)
        if not keep:
            bound.discard(batch.handles.copy() if batch.all_hits else batch.handles)
            batch.handles = np.zeros(len(indices), np.uint64)
        return batch

    def _remake_libraries(
        self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32], source: PipelineSource
    ) -> None:
        """Create libraries from code that were created from identifiers: linking those forbids compiling."""
        if not bound.has_libraries or not len(bound.libraries_of_identifiers(indices)):
            return
        with bound.remaking:  # two workers may link one library
            self._creation.remake(bound, bound.libraries_of_identifiers(indices), source)

    # --- identifiers of modules

    @property
    def identifier_algorithm(self) -> bytes:
        """See `ModuleIdentification.identifier_algorithm`."""
        has = self.features.shader_module_identifiers
        return identifier_algorithm(self.capabilities) if has else b""

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """See `ModuleIdentification.module_identifiers`."""
        self._require_identifiers()
        numbers = np.array(modules, np.int32)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.MODULE, bound.image, numbers):
            found = bound.identifiers_of(modules)
        return [found[each] for each in modules]

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """See `ModuleIdentification.code_identifier`."""
        self._require_identifiers()
        number = np.array([module], np.int32)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.MODULE, bound.image, number):
            return bound.identifier_of_code(module)

    def create_identified(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `ModuleIdentification.create_identified`."""
        _require_pipelines(prepared, indices)
        # On a device without identifiers none is known.
        known = identified_places(prepared, indices)
        if len(known) == len(indices):
            self._require_identifiers()
            with self._bound(prepared, source, indices) as bound:
                return self._create_alone(bound, indices, source, True, keep=keep, identified=True)
        batch = CreationBatch.of_zeros(len(indices))
        batch.results[:] = PIPELINE_COMPILE_REQUIRED
        if known.size:
            batch.put(known, self.create_identified(prepared, indices[known], source, keep=keep))
        return batch

    def _require_identifiers(self) -> None:
        self._require_open()
        if not self.features.shader_module_identifiers:
            raise DeviceError(f"{self.identity.device_name} has no VK_EXT_shader_module_identifier")

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `Device.destroy_pipelines`."""
        if self.observer.keeps_all:
            return
        with self._call(), self.observer.calling(DriverStep.DESTROY):
            self.context.destroy_pipelines(np.asarray(handles, np.uint64))

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        binaries = self._binaries("no pipeline keys")
        _require_pipelines(prepared, indices)
        with (
            self._bound(prepared) as bound,
            self.observer.calling(DriverStep.KEYS, bound.image, indices),
        ):
            image = bound.image
            # RADV of Mesa 25.0.7 crashes when asked for the key of a graphics pipeline that links libraries.
            links = image.library_slot_start[indices + 1] > image.library_slot_start[indices]
            keys: list[bytes | None] = [None] * len(indices)
            batched = ~links
            if bound.identified is not None:
                batched &= ~bound.identified.lacking[indices]
                for place in np.flatnonzero(~batched & ~links).tolist():
                    with self._info(bound, int(indices[place])) as infos:
                        keys[place] = None if infos is None else binaries.pipeline_key(infos)
            for kind, places in image.by_kind(indices, batched):
                some = indices[places]
                with bound.modules(some):
                    infos = bound.create_infos(kind, some, fail_on_compile_required=False)
                    for place, key in zip(places.tolist(), binaries.pipeline_keys(infos), strict=True):
                        keys[place] = key
        return keys

    @contextmanager
    def _info(self, bound: VulkanPreparedPipelines, index: int) -> Iterator[npt.NDArray[np.uint8] | None]:
        """The create info of one pipeline while its modules exist, or with identifiers where code is missing.

        None where an identifier is not known.
        """
        if bound.identified is None or not bound.identified.lacking[index]:
            with bound.one_info(index) as infos:
                yield infos
            return
        own = np.array([index], np.int32)
        if not len(identified_places(bound, own)):
            yield None
            return
        bound.use_identifiers(own)
        yield bound.create_infos(bound.image.kind_of(index), own, fail_on_compile_required=True)

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `PipelineBinaries.binary_properties`."""
        return BinaryProperties.of(self.capabilities)

    def global_pipeline_key(self) -> bytes:
        """See `PipelineBinaries.global_pipeline_key`."""
        with self._call():
            return self._binaries("no global pipeline key").global_key()

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """See `PipelineBinaries.create_binaries`."""
        with self._call(), self.observer.calling(DriverStep.BINARIES):
            return self._binaries().of_data(binaries)

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `PipelineBinaries.destroy_binaries`."""
        if self.observer.keeps_all:
            return
        with self._call(), self.observer.calling(DriverStep.DESTROY):
            if self._own_binaries is not None:
                self._own_binaries.destroy(handles)

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """See `PipelineBinaries.binary_data`."""
        with self._call(), self.observer.calling(DriverStep.BINARIES):
            return tuple(map(self._binaries().read, handles.tolist()))

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `PipelineBinaries.create_from_binaries`."""
        binaries = self._binaries()
        with self._bound(prepared, creating=indices) as bound:
            return self.observer.creating(
                DriverStep.FROM_BINARIES,
                bound.image,
                indices,
                lambda: self._settled(bound, indices, binaries.create_from(bound, indices, held), keep=keep),
            )

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """See `PipelineBinaries.create_captured`."""
        captured: list[CapturedPipeline] = []

        def create() -> CreationBatch:
            batch, found = self._capture_alone(bound, indices, keep=keep)
            captured.extend(found)
            return batch

        with self._bound(prepared, creating=indices) as bound:
            return self.observer.creating(DriverStep.CREATE, bound.image, indices, create), captured

    def _capture_alone(
        self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        self._remake_libraries(bound, indices, NO_SOURCE)
        if keep or not self._shares_living_stages(bound, indices):
            return self._capture(bound, indices, keep=keep)
        batch = CreationBatch.of_zeros(len(indices))
        captured: list[CapturedPipeline] = []
        for place in range(len(indices)):
            here = slice(place, place + 1)
            with self._without_others():
                part, own = self._capture(bound, indices[here], keep=False)
                bound.destroy_discarded()
            batch.put(here, part)
            captured += own
        return batch, captured

    @contextmanager
    def _without_others(self) -> Iterator[None]:
        """Let one worker at a time have such a pipeline alive.

        It waits for `_ALONE_S` at most, because the wait counts towards the time limit of its call. After
        that the captured binaries may lack stages; then the next run compiles the pipeline again.
        """
        is_alone = self._capturing.acquire(timeout=_ALONE_S)
        try:
            yield
        finally:
            if is_alone:
                self._capturing.release()

    def _capture(
        self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        with bound.modules(indices):
            batch, captured = self._binaries().create_captured(bound, indices)
            if self.features.shader_module_identifiers:
                captured = [
                    msgspec.structs.replace(each, identifiers=bound.stage_identifiers(each.index))
                    for each in captured
                ]
        return self._settled(bound, indices, batch, keep=keep), captured

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """See `PipelineBinaries.probe_internal_cache`."""
        binaries = self._binaries()
        if not self.binary_properties.internal_cache:
            raise DeviceError(f"{self.identity.device_name} has no internal cache to ask for binaries")
        if self.context.internal_cache_off:
            raise DeviceError("the driver's internal cache was turned off when the device was opened")
        _require_pipelines(prepared, indices)
        found = []
        with (
            self._bound(prepared) as bound,
            self.observer.calling(DriverStep.KEYS, bound.image, indices),
        ):
            for index in indices.tolist():
                with self._info(bound, index) as infos:
                    found.append(None if infos is None else binaries.of_internal_cache(infos))
        return found

    def _settled(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        batch: CreationBatch,
        *,
        keep: bool,
    ) -> CreationBatch:
        """Give libraries of a batch to the prepared image; discard the other pipelines unless `keep`."""
        bound.keep_libraries(indices, batch.handles)
        if not keep:
            bound.discard(batch.handles)
            batch.handles = np.zeros(len(indices), np.uint64)
        return batch

    def _binaries(self, lack: str = "no binaries") -> Binaries:
        """Its binaries, or an error that says so where it has none."""
        self._require_open()
        if not self.features.pipeline_binaries:
            why = self.features.keys_withheld or f"{self.identity.device_name} has no VK_KHR_pipeline_binary"
            raise DeviceError(f"{lack}: {why}")
        with self._changed:
            if self._own_binaries is None:
                from orchestrator.devices.vulkan.binaries import Binaries  # asked for seldom

                self._own_binaries = Binaries(self.context, self._creation)
            return self._own_binaries

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        from orchestrator.devices.vulkan.executables import inspect_executables  # rarely needed

        if not self.capabilities.has_feature(*EXECUTABLE_INFO):
            raise DeviceError(
                f"{self.identity.device_name} has no VK_KHR_pipeline_executable_properties, so no statistics"
            )
        number = np.array([index], np.int32)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.CREATE, bound.image, number):
            if not bound.has_all_libraries(index):
                raise MissingLibraryError(int(bound.image.keys[index]))
            following = int(bound.image.feedback_next[index])
            rest = 0 if following < 0 else bound.address + following
            with bound.remaking:  # two calls may link one library
                self._creation.capture_libraries(bound, index)
            with bound.one_info(index, capture_statistics=True) as infos:
                kind = bound.image.kind_of(index)
                links = bool(bound.image.libraries_of(index))
                return inspect_executables(self.context, self._creation, kind, infos, rest, links=links)

    def close(self) -> None:
        """See `Device.close`. Waits for the calls in flight; none begins any more."""
        with self._changed:
            if self._closed or self.observer.keeps_all:
                return
            self._closed = "was closed before"
            self._changed.wait_for(lambda: not self._calls)
        for prepared in list(self._prepared):
            self._close(prepared)
        with self._changed:  # another thread may be closing one
            self._changed.wait_for(lambda: not self._calls)
        for cache in list(self._caches):
            self._destroy(cache)
        with self.observer.calling(DriverStep.DESTROY):
            if self._own_binaries is not None:
                self._own_binaries.destroy_all()
            self.context.close()

    def _require_own(self, source: PipelineSource) -> None:
        if isinstance(source, PipelineCache) and not source.destroyed and source not in self._caches:
            raise DeviceError(f"pipeline cache {source.name!r} belongs to another device")

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceError(f"{self.identity.device_name} {self._closed}")


def _require_pipelines(
    prepared: PreparedPipelines, indices: npt.NDArray[np.int32], span: slice | None = None
) -> None:
    """Refuse indices out of range: a driver reads what is there, and numpy counts negative ones from the end.

    `span` is what `span_of` gives for them.

    Raises:
        DeviceError: There is one.
    """
    if not len(indices):
        return
    # Without a sign, a negative index is larger than all others.
    last = max(indices.view(np.uint32).tolist()) if span is None else span.stop - 1
    count = len(prepared.image)
    if last >= count or (span is not None and span.start < 0):
        wrong = [each for each in indices.tolist() if not 0 <= each < count]
        raise DeviceError(
            f"pipelines {wrong[:8]} are out of range: {count} are prepared, numbered from 0; name places in "
            "the image that was prepared"
        )
