"""`SimulatedDevice`: a `Device` without Vulkan.

It serves users' tests, machines without a driver, and checks of measurements, since its true times are known.

Guarantees: it implements the whole Device Protocol with the errors of a real device. Equal calls in equal
order give equal bytes, results and (on a VirtualClock) durations. Detectable misuse that the specification
forbids raises an error before the driver is called. Leaked objects can be counted until the device is closed.
Assumptions: of an image it uses only keys, kinds, modules and library links.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve

from orchestrator.devices.binaries import (
    BinaryProperties,
    BinarySource,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinary,
    create_with_binaries,
)
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_UNKNOWN,
    INCOMPLETE,
    NO_OBSERVER,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CallSplit,
    CreationBatch,
    DeviceCapabilities,
    DeviceFeatures,
    DriverObserver,
    DriverStep,
    PipelineCache,
    PipelineCacheData,
    PipelineSource,
    PreparedPipelines,
    check,
    in_calls,
    stays_with_parent,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.identifiers import create_speculatively, identified_places
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import (
    CACHE_CONTROL,
    MODULE_IDENTIFIER,
    PIPELINE_BINARIES,
    EnabledCapabilities,
)
from orchestrator.devices.simulated.cache import SimulatedCache
from orchestrator.devices.simulated.driver import (
    CallRecord,
    Calls,
    Creation,
    SimulatedDriver,
)
from orchestrator.devices.simulated.locking import LockWait
from orchestrator.devices.simulated.options import SimulatedOptions, key_salt, without_bumped_uuid
from orchestrator.errors import DeviceError, ExternalSynchronizationError


class SimulatedPipelines:
    """Implements `PreparedPipelines`. Made by `SimulatedDevice.prepare`. Thread-safe.

    Attributes:
        image, identified, unusable: See `PreparedPipelines`.
        keys: Key of each pipeline in its set.
    """

    def __init__(
        self,
        given: CreateInfoImage | IdentifiedModules,
        unusable: dict[int, str],
        forget: Callable[[SimulatedPipelines, Sequence[int]], None],
    ) -> None:
        """Bind an image; `close` calls `forget` with the handles of the libraries to destroy."""
        self.identified: Final = given if isinstance(given, IdentifiedModules) else None
        self.image: Final = given.image
        image = self.image
        self.unusable: Final = unusable
        # Lists, because reading an element of a numpy array costs more than the rest of a cache hit.
        self.keys: Final[list[int]] = image.keys.tolist()
        self._is_library: list[bool] = image.is_library.tolist()
        self._links = len(image.library_slot_pipeline) > 0
        self._forget = forget
        self._mutex = threading.Lock()
        self._in_use: set[int] = set()
        self._closed = False
        # Handles of the library pipelines that exist, by index.
        self._libraries: dict[int, int] = {}

    def is_usable(self, index: int) -> bool:
        """Whether a pipeline can be passed to the driver: it is usable and its libraries exist."""
        if index in self.unusable:
            return False
        if not self._links:
            return True
        with self._mutex:
            return all(library in self._libraries for library in self.image.libraries_of(index))

    def check(self, indices: npt.NDArray[np.int32], what: str) -> list[int]:
        """The indices as Python numbers.

        Raises:
            DeviceError: An index is out of range or occurs twice.
        """
        given: list[int] = indices.tolist()
        if given and (len(set(given)) != len(given) or min(given) < 0 or max(given) >= len(self.keys)):
            raise DeviceError(f"{what}: an index is out of range or occurs twice among {len(given)}")
        return given

    @contextmanager
    def using(self, indices: npt.NDArray[np.int32], what: str) -> Iterator[list[int]]:
        """Reserve pipelines for the block; gives their indices as Python numbers.

        Raises:
            DeviceError: An index is out of range or occurs twice, or this is closed.
            ExternalSynchronizationError: Another call is creating one of them.
        """
        numbers = self.check(indices, what)
        given = set(numbers)
        with self._mutex:
            if self._closed:
                raise DeviceError(f"{what}: the prepared pipelines are closed")
            if busy := given & self._in_use:
                raise ExternalSynchronizationError(
                    f"{what}: pipelines {sorted(busy)[:8]} are being created by another thread"
                )
            self._in_use |= given
        try:
            yield numbers
        finally:
            with self._mutex:
                self._in_use -= given

    def take_library(self, index: int, handle: int) -> bool:
        """Take ownership of the first pipeline of a library, which other pipelines link; True if taken."""
        with self._mutex:
            return self._is_library[index] and self._libraries.setdefault(index, handle) == handle

    def stay_with_parent(self) -> None:
        """See `StaysWithParent`."""
        self._mutex, self._closed = threading.Lock(), True

    def close(self) -> None:
        """Destroy its libraries. Idempotent.

        Raises:
            ExternalSynchronizationError: Some of its pipelines are being created.
        """
        with self._mutex:
            if self._closed:
                return
            if self._in_use:
                raise ExternalSynchronizationError(
                    "close: the prepared pipelines are in use by another thread"
                )
            self._closed = True
            owned = list(self._libraries.values())
            self._libraries.clear()
        self._forget(self, owned)


# Shared by all devices of the process, so that no two devices have equal handles.
_next_handle = itertools.count(0x51D0_0001)
# The result for a pipeline that is unusable, or that lacks a library.
_NOT_HANDED_OVER = Creation(ERROR_UNKNOWN, 0, 0, 0)
_NOT_FOUND = Creation(PIPELINE_COMPILE_REQUIRED, 0, 0, 0)


class SimulatedDevice:
    """A `Device` with a simulated driver. Thread-safe as the Protocol demands.

    In addition to the Protocol it reports the truth: `true_lock_wait_ns`, `calls`, `compile_counts`,
    `live_caches`, `live_pipelines`.

    Attributes:
        identity, features, capabilities, supported, handles, observer: See `Device`.
        driver: The simulated driver, for calls that the device does not make.
    """

    def __init__(self, options: SimulatedOptions | None = None) -> None:
        """Open a simulated device.

        Args:
            options: How it behaves; by default every feature, no bug, and no real time.
        """
        self._options = chosen = options if options is not None else SimulatedOptions()
        bumps = not chosen.bugs.uuid_not_bumped
        self.identity: Final = chosen.identity if bumps else without_bumped_uuid(chosen.identity)
        self.supported: Final = chosen.capabilities
        self.handles: Final = None
        self.capabilities: Final[DeviceCapabilities] = (
            self.supported if chosen.request is None else EnabledCapabilities(self.supported, chosen.request)
        )
        self.features: Final = (
            chosen.features
            if chosen.request is None or chosen.request.orchestrator_features is not False
            else _without_own(chosen.features, self.capabilities)
        )
        salt = key_salt(chosen.keys_depend_on, chosen.request, self.capabilities)
        self.driver: Final = SimulatedDriver(self.identity, chosen, salt)
        self.observer: DriverObserver = NO_OBSERVER
        self._calls = Calls(chosen.calls_kept, chosen.clock)
        self._mutex = threading.Lock()
        self._caches: dict[int, tuple[PipelineCache, SimulatedCache]] = {}
        self._pipelines: set[int] = set()
        self._binaries: dict[int, PipelineBinary] = {}
        self._prepared: set[SimulatedPipelines] = set()
        self._is_parents = False
        stays_with_parent(self)

    def stay_with_parent(self) -> None:
        """See `StaysWithParent`."""
        self._is_parents = True
        self._calls.stay_with_parent()
        for each in self._prepared:
            each.stay_with_parent()

    # Caches.

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        what = "create_pipeline_cache"
        handle = next(_next_handle)
        cache = PipelineCache(handle, externally_synchronized, internally_synchronized_merge, name, self)
        self.features.check_cache_flags(externally_synchronized, internally_synchronized_merge, name)
        step = DriverStep.LOAD if initial_data else DriverStep.CACHE
        with self._calls.recorded(what, name), self.observer.calling(step):
            result, made = self.driver.create_cache(
                len(initial_data), initial_data or None, synchronized=not externally_synchronized
            )
            check("vkCreatePipelineCache", result)
            if made is None:
                raise DeviceError(f"{what}: the driver gave no cache for {name!r}")
            with self._mutex:
                self._caches[handle] = cache, made
            return cache

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        what = "merge_pipeline_caches"
        with self._calls.recorded(what, destination.name) as wait, ExitStack() as held:
            if any(source is destination for source in sources):
                raise DeviceError(
                    f"{what}: the destination {destination.name!r} is among the sources "
                    "(VUID-vkMergePipelineCaches-dstCache-00770)"
                )
            if not sources:
                return
            alone = not destination.internally_synchronized_merge
            into = held.enter_context(self._using(destination, what, alone=alone))
            merged = [held.enter_context(self._using(source, what)) for source in sources]
            held.enter_context(self.observer.calling(DriverStep.MERGE))
            check("vkMergePipelineCaches", self.driver.merge_caches(into, merged, wait))

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        what = "pipeline_cache_size"
        with (
            self._calls.recorded(what, cache.name) as wait,
            self._using(cache, what) as used,
            self.observer.calling(DriverStep.READ),
        ):
            return self._size(used, wait)

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        what = "pipeline_cache_data"
        if limit is not None and limit < 0:
            raise DeviceError(f"{what}: a limit of {limit} bytes")
        with (
            self._calls.recorded(what, cache.name) as wait,
            self._using(cache, what) as used,
            self.observer.calling(DriverStep.READ),
        ):
            while True:
                size = self._size(used, wait)
                capacity = size if limit is None else min(size, limit)
                buffer = bytearray(capacity)
                result, written = self.driver.cache_data(used, buffer, capacity, wait)
                check("vkGetPipelineCacheData", result)
                # Incomplete although the buffer had the full size: the cache grew between the two calls.
                if result != INCOMPLETE or capacity < size or capacity == limit:
                    return PipelineCacheData(bytes(buffer[:written]), complete=result != INCOMPLETE)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        what = "destroy_pipeline_cache"
        if cache.destroyed or self.observer.keeps_all:
            return
        with (
            self._calls.recorded(what, cache.name),
            self._using(cache, what, alone=True),
            self.observer.calling(DriverStep.DESTROY),
            self._mutex,
        ):
            cache.destroyed = True
            self._caches.pop(cache.handle, None)

    # Pipelines.

    def prepare(
        self,
        image: CreateInfoImage | IdentifiedModules,
        *,
        modules_on_demand: bool = False,
    ) -> SimulatedPipelines:
        """See `Device.prepare`. Creates no objects; an observer hears of modules all the same."""
        modules = 0 if modules_on_demand or not self.observer.watches else len(image.image.modules)
        with self._calls.inside("prepare"):
            for number in range(modules):
                with self.observer.calling(DriverStep.MODULE, image.image, np.array([number], np.int32)):
                    pass
            causes = self._options.unusable
            keys = enumerate(image.image.keys.tolist())
            unusable = {index: causes[key] for index, key in keys if key in causes}
            prepared = SimulatedPipelines(image, unusable, self._forget)
            with self._mutex:
                self._prepared.add(prepared)
            return prepared

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
        """See `Device.create_pipelines`.

        `prepared` owns the first pipeline of a library until it is closed; its handle here is 0.

        Raises:
            ExternalSynchronizationError: Another thread uses the cache or one of the pipelines.
            DeviceError: `prepared` is closed or another device's, an index is out of range or occurs twice,
                or the device does not support FAIL_ON_PIPELINE_COMPILE_REQUIRED.
        """
        identified = prepared.identified
        if identified is not None or isinstance(source, BinarySource):
            self._ours(prepared, "create_pipelines").check(indices, "create_pipelines")
        if isinstance(source, BinarySource):
            create = partial(create_with_binaries, self, prepared, source=source)
        elif identified is not None and identified.lacking[indices].any():
            create = partial(create_speculatively, self, prepared, source=source)
        else:
            create = partial(self._create, "create_pipelines", prepared, source=source)
        create = partial(create, keep=keep, fail_on_compile_required=fail_on_compile_required)
        return in_calls(self, indices, split, create)

    def _create(
        self,
        what: str,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool,
        fail_on_compile_required: bool,
        misses: Collection[int] = (),
    ) -> CreationBatch:
        """Create pipelines; those in `misses` are not found in the cache."""

        def create() -> CreationBatch:
            return self._create_unobserved(
                what, prepared, indices, source, fail_on_compile_required, misses, keep=keep
            )

        return self.observer.creating(DriverStep.CREATE, prepared.image, indices, create)

    def _create_unobserved(
        self,
        what: str,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        misses: Collection[int],
        *,
        keep: bool,
    ) -> CreationBatch:
        if fail_on_compile_required and not self.features.compile_required:
            raise DeviceError(f"{what}: the device has no FAIL_ON_PIPELINE_COMPILE_REQUIRED")
        batch = CreationBatch.of_zeros(len(indices))
        waits = np.zeros(len(indices), np.int64)
        cache = source if isinstance(source, PipelineCache) else None
        name = cache.name if cache is not None else ""
        with self._calls.recorded(what, name, waits) as wait, ExitStack() as held:
            ours = self._ours(prepared, what)
            numbers = held.enter_context(ours.using(indices, what))
            used = held.enter_context(self._using(cache, what)) if cache is not None else None
            # In ascending order, because libraries precede the pipelines that link them.
            for position in sorted(range(len(indices)), key=numbers.__getitem__):
                index = numbers[position]
                made = _NOT_HANDED_OVER
                if index in misses:
                    made = _NOT_FOUND
                elif ours.is_usable(index):
                    made = self.driver.create_pipeline(
                        ours.keys[index], used, fail_on_compile_required=fail_on_compile_required
                    )
                    waits[position] = made.lock_wait_ns
                    wait.ns += made.lock_wait_ns
                    wait.asleep_ns += made.lock_asleep_ns
                self._put(batch, position, made, ours, index, keep=keep)
        return batch

    def _put(
        self,
        batch: CreationBatch,
        position: int,
        made: Creation,
        ours: SimulatedPipelines,
        index: int,
        *,
        keep: bool,
    ) -> None:
        batch.results[position] = made.result
        if self.features.creation_feedback:
            batch.feedback_flags[position] = made.feedback_flags
            batch.durations_ns[position] = made.duration_ns
        if made.result == SUCCESS:
            batch.handles[position] = self._settle(ours, index, keep=keep)

    @property
    def identifier_algorithm(self) -> bytes:
        """See `ModuleIdentification.identifier_algorithm`."""
        return self._options.identifier_algorithm if self.features.shader_module_identifiers else b""

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """See `ModuleIdentification.module_identifiers`; derived from the keys of the modules."""
        what, numbers = "module_identifiers", np.array(modules, np.int32)
        with (
            self._calls.inside(what),
            self.observer.calling(DriverStep.MODULE, prepared.image, numbers),
        ):
            self._require_identifiers(what)
            image = self._ours(prepared, what).image
            return [self.driver.module_identifier(image.modules[each].key) for each in modules]

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """See `ModuleIdentification.code_identifier`; loads the code and ignores it."""
        (found,) = self.module_identifiers(prepared, [module])
        prepared.image.modules[module].load()
        return found

    def create_identified(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `ModuleIdentification.create_identified`; a pipeline with a wrong identifier is not found."""
        what = "create_identified"
        ours = self._ours(prepared, what)
        known = identified_places(prepared, indices)
        given = ours.check(indices, what)
        if known.size:
            self._require_identifiers(what)
        spurious = self._options.bugs.spurious_misses
        misses = {each for each in given if ours.keys[each] in spurious or self._misidentified(ours, each)}
        if len(misses) == len(given):
            batch = CreationBatch.of_zeros(len(indices))
            batch.results[:] = PIPELINE_COMPILE_REQUIRED
            return batch
        return self._create(
            what, prepared, indices, source, keep=keep, fail_on_compile_required=True, misses=misses
        )

    def _misidentified(self, ours: SimulatedPipelines, index: int) -> bool:
        """Whether a pipeline without code has a stage with a wrong identifier."""
        identified, modules = ours.identified, ours.image.modules
        if identified is None or not identified.lacking[index]:
            return False
        return any(
            identified.identifier(each) != self.driver.module_identifier(modules[each].key)
            for each in ours.image.modules_of(index)
        )

    def _require_identifiers(self, what: str) -> None:
        if not self.features.shader_module_identifiers:
            raise DeviceError(f"{what}: the device has no module identifiers")

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `Device.destroy_pipelines`.

        Raises:
            DeviceError: One of them is not a live pipeline of this device; none is destroyed then.
        """
        if self.observer.keeps_all:
            return
        with (
            self._calls.inside("destroy_pipelines"),
            self.observer.calling(DriverStep.DESTROY),
            self._mutex,
        ):
            wanted = np.asarray(handles, np.uint64)
            given = wanted[wanted != 0].tolist()
            if len(set(given)) != len(given) or not self._pipelines.issuperset(given):
                raise DeviceError("destroy_pipelines: not a live pipeline of this device, or given twice")
            self._pipelines.difference_update(given)

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`; 32 bytes derived from the key in the set, None if unusable."""
        what = "pipeline_keys"
        with self._calls.inside(what), self.observer.calling(DriverStep.KEYS, prepared.image, indices):
            self._require_binaries(what)
            ours = self._ours(prepared, what)
            return [
                None
                if index in ours.unusable
                or ours.image.libraries_of(index)
                or self._misidentified(ours, index)
                else self.driver.pipeline_key(ours.keys[index], ours.image.kind_of(index))
                for index in ours.check(indices, what)
            ]

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `PipelineBinaries.binary_properties`."""
        return self._options.binary_properties if self.features.pipeline_binaries else BinaryProperties()

    def global_pipeline_key(self) -> bytes:
        """See `PipelineBinaries.global_pipeline_key`."""
        with self._calls.inside("global_pipeline_key"):
            self._require_binaries("global_pipeline_key")
            return self.driver.global_key()

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """See `PipelineBinaries.create_binaries`."""
        with self._calls.inside("create_binaries"), self.observer.calling(DriverStep.BINARIES):
            self._require_binaries("create_binaries")
            made = {next(_next_handle): PipelineBinary(each.key, bytes(each.data)) for each in binaries}
            with self._mutex:
                self._binaries.update(made)
            return np.array(list(made), np.uint64)

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `PipelineBinaries.destroy_binaries`.

        Raises:
            DeviceError: One of them is not a live binary of this device.
        """
        if self.observer.keeps_all:
            return
        with (
            self._calls.inside("destroy_binaries"),
            self.observer.calling(DriverStep.DESTROY),
            self._mutex,
        ):
            for handle in handles[handles != 0].tolist():
                if self._binaries.pop(handle, None) is None:
                    raise DeviceError("destroy_binaries: not a live binary of this device, or given twice")

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """See `PipelineBinaries.binary_data`."""
        with (
            self._calls.inside("binary_data"),
            self.observer.calling(DriverStep.BINARIES),
            self._mutex,
        ):
            return tuple(self._binaries[handle] for handle in handles.tolist())

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `PipelineBinaries.create_from_binaries`."""

        def create() -> CreationBatch:
            return self._create_from_binaries(prepared, indices, held, keep=keep)

        return self.observer.creating(DriverStep.FROM_BINARIES, prepared.image, indices, create)

    def _create_from_binaries(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], held: HeldBinaries, *, keep: bool
    ) -> CreationBatch:
        what = "create_from_binaries"
        batch = CreationBatch.of_zeros(len(indices))
        ends = np.cumsum(held.counts)
        with self._calls.recorded(what, ""):
            self._require_binaries(what)
            ours = self._ours(prepared, what)
            with ours.using(indices, what) as numbers:
                for place, index in enumerate(numbers):
                    given = self.binary_data(held.handles[ends[place] - held.counts[place] : ends[place]])
                    made = _NOT_HANDED_OVER
                    if ours.is_usable(index):
                        modules = _modules(ours, index)
                        made = self.driver.create_from_binaries(ours.keys[index], modules, given)
                    self._put(batch, place, made, ours, index, keep=keep)
        return batch

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """See `PipelineBinaries.create_captured`."""
        self._require_binaries("create_captured")
        batch = self.create_pipelines(prepared, indices, NO_SOURCE, keep=keep)
        good = np.flatnonzero(batch.results == SUCCESS)
        keys = self.pipeline_keys(prepared, indices[good])
        ours = self._ours(prepared, "create_captured")
        return batch, [
            CapturedPipeline(
                int(indices[place]),
                key,
                self.driver.binaries_of(ours.keys[indices[place]], _modules(ours, int(indices[place]))),
                int(batch.durations_ns[place]),
                self._identifiers(ours, int(indices[place])),
            )
            for place, key in zip(good.tolist(), keys, strict=True)
        ]

    def _identifiers(self, prepared: SimulatedPipelines, index: int) -> tuple[bytes, ...]:
        if not self.features.shader_module_identifiers:
            return ()
        return tuple(self.driver.module_identifier(each) for each in _modules(prepared, index))

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """See `PipelineBinaries.probe_internal_cache`."""
        what = "probe_internal_cache"
        self._require_binaries(what)
        if not self.binary_properties.internal_cache:
            raise DeviceError(f"{what}: the device has no internal cache")
        ours = self._ours(prepared, what)
        if ours.image.links[indices].any():
            raise DeviceError(f"{what}: one links libraries, at which a driver may end the process")
        return [
            self.create_binaries(self.driver.binaries_of(ours.keys[index], _modules(ours, index)))
            if ours.keys[index] in self._options.internal_cache and not self._misidentified(ours, index)
            else None
            for index in ours.check(indices, what)
        ]

    def close(self) -> None:
        """See `Device.close`. First releases calls that hang, with VK_ERROR_DEVICE_LOST."""
        if self._is_parents or self.observer.keeps_all:
            return
        self._calls.refuse_new()
        self.driver.hangs.release(ERROR_DEVICE_LOST)
        self._calls.wait_until_none()
        with self.observer.calling(DriverStep.DESTROY), self._mutex:
            for cache, _ in self._caches.values():
                cache.destroyed = True
            self._caches.clear()
            self._pipelines.clear()
            self._binaries.clear()
            self._prepared.clear()

    # The truth, beside the Protocol.

    @property
    def live_caches(self) -> int:
        """Number of caches that were not destroyed."""
        return len(self._caches)

    @property
    def live_pipelines(self) -> int:
        """Number of existing pipelines: those kept for callers, and libraries of prepared images."""
        return len(self._pipelines)

    @property
    def live_binaries(self) -> int:
        """Number of binaries that were not destroyed."""
        return len(self._binaries)

    @property
    def wrong_binaries(self) -> int:
        """Number of pipelines created from another pipeline's binaries, which must not happen."""
        return self.driver.wrong_binaries

    @property
    def live_prepared(self) -> int:
        """Number of prepared images that were not closed."""
        return len(self._prepared)

    @property
    def compile_counts(self) -> dict[int, int]:
        """Number of complete compiles of each pipeline, by its key in the set, without hits."""
        return self.driver.compile_counts

    @property
    def foreign_hits(self) -> int:
        """Number of hits with code of another device or driver version, which must not happen."""
        return self.driver.foreign_hits

    def true_lock_wait_ns(self, thread_id: int | None = None) -> int:
        """Time that calls waited for locks of caches, ns on the device's clock.

        Args:
            thread_id: `threading.get_ident()` of one thread; None for all threads.
        """
        waits = self._calls.waits()
        return sum(waits.values()) if thread_id is None else waits.get(thread_id, 0)

    def calls(self) -> tuple[CallRecord, ...]:
        """The last `calls_kept` calls that used a cache or created pipelines, oldest first."""
        return self._calls.records()

    def last_call(self) -> CallRecord | None:
        """The last of these calls in the calling thread."""
        return self._calls.last()

    def wait_until_hung(self, count: int = 1, timeout_s: float = 30.0) -> bool:
        """Wait until `count` compiles hang (`DriverBugs.hang`); False after the timeout."""
        return self.driver.hangs.wait_until_hung(count, timeout_s)

    def release_hangs(self) -> None:
        """Let all compiles that hang continue; later ones do not hang."""
        self.driver.hangs.release(SUCCESS)

    # Parts of the above.

    def _require_binaries(self, what: str) -> None:
        if not self.features.pipeline_binaries:
            raise DeviceError(f"{what}: the device has no pipeline binaries")

    @contextmanager
    def _using(self, cache: PipelineCache, what: str, *, alone: bool = False) -> Iterator[SimulatedCache]:
        with cache.using(what, alone=alone):
            with self._mutex:
                ours, of_driver = self._caches.get(cache.handle, (None, None))
            if ours is not cache or of_driver is None:
                raise DeviceError(f"{what}: pipeline cache {cache.name!r} belongs to another device")
            yield of_driver

    def _size(self, cache: SimulatedCache, wait: LockWait) -> int:
        result, size = self.driver.cache_data(cache, None, 0, wait)
        check("vkGetPipelineCacheData", result)
        return size

    def _ours(self, prepared: PreparedPipelines, what: str) -> SimulatedPipelines:
        with self._mutex:
            if isinstance(prepared, SimulatedPipelines) and prepared in self._prepared:
                return prepared
        raise DeviceError(f"{what}: the prepared pipelines are closed, or another device's")

    def _settle(self, prepared: SimulatedPipelines, index: int, *, keep: bool) -> int:
        """Decide who owns a new pipeline: its prepared image, the caller (returns the handle), or nobody."""
        handle = next(_next_handle)
        mine = prepared.take_library(index, handle)
        if mine or keep:
            with self._mutex:
                self._pipelines.add(handle)
        return handle if keep and not mine else 0

    def _forget(self, prepared: SimulatedPipelines, libraries: Sequence[int]) -> None:
        with self.observer.calling(DriverStep.DESTROY, prepared.image), self._mutex:
            self._prepared.discard(prepared)
            self._pipelines.difference_update(libraries)


def _modules(prepared: SimulatedPipelines, index: int) -> list[int]:
    """Keys of the modules of a pipeline."""
    image = prepared.image
    return [image.modules[each].key for each in image.modules_of(index)]


def _without_own(features: DeviceFeatures, enabled: DeviceCapabilities) -> DeviceFeatures:
    """The features without those of the orchestrator that are not enabled."""
    control = enabled.has_feature(*CACHE_CONTROL)
    return evolve(
        features,
        externally_synchronized_caches=features.externally_synchronized_caches and control,
        compile_required=features.compile_required and control,
        pipeline_binaries=features.pipeline_binaries and enabled.has_feature(*PIPELINE_BINARIES),
        shader_module_identifiers=features.shader_module_identifiers
        and enabled.has_feature(*MODULE_IDENTIFIER),
    )
