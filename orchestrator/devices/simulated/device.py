"""`SimulatedDevice`: a `Device` without Vulkan.

It serves users' tests, machines without a driver, and checks of measurements, since its true times are known.

Guarantees: it has all of a device, with the errors of a real one. Equal calls in equal
order give equal bytes, results and (on a VirtualClock) durations. Detectable misuse that the specification
forbids raises an error before the driver is called. Leaked objects can be counted until the device is closed.
Assumptions: of an image it uses only keys, kinds, modules and library links.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from attrs import evolve, frozen

from orchestrator.devices.binary_data import (
    BinaryProperties,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinary,
)
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_UNKNOWN,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CreationBatch,
    Device,
    DeviceCapabilities,
    DeviceFeatures,
    DriverStep,
    Handles,
    PipelineCache,
    PipelineCacheData,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import CreateInfoImage, Indices
from orchestrator.devices.request import (
    CACHE_CONTROL,
    MODULE_IDENTIFIER,
    PIPELINE_BINARIES,
    EnabledCapabilities,
)
from orchestrator.devices.simulated.cache import SimulatedCache
from orchestrator.devices.simulated.driver import IDENTIFIER_ALGORITHM, Creation, SimulatedDriver
from orchestrator.devices.simulated.options import SimulatedOptions, without_bumped_uuid
from orchestrator.errors import DeviceError

# Shared by all devices of the process, so that no two devices have equal handles.
_handles = itertools.count(0x51D0_0001)
_CALLS_KEPT: Final = 65_536


@frozen(eq=False)
class CallRecord:
    """One call."""

    operation: str  # name of the device's method
    cache: str  # name of the cache that it used or merged into, "" for none
    pipelines: int  # number of pipelines to create
    duration_ns: int  # time inside the driver on the device's clock


class SimulatedPipelines(PreparedPipelines):
    """What `SimulatedDevice.prepare` returns.

    Attributes:
        keys: Key of each pipeline in its set.
        libraries: Handles of the libraries that exist, by index.
    """

    def __init__(self, device: SimulatedDevice, given: CreateInfoImage | IdentifiedModules) -> None:
        super().__init__(device, given)
        self._forget = device.forget_pipelines
        # Lists, because reading an element of a numpy array costs more than the rest of a cache hit.
        self.keys: Final[list[int]] = self.image.keys.tolist()
        self.libraries: Final[dict[int, int]] = {}
        self._is_library: list[bool] = self.image.is_library.tolist()
        self._links = len(self.image.library_slot_pipeline) > 0

    def is_usable(self, index: int) -> bool:
        """Whether a pipeline can be passed to the driver: it is usable and its libraries exist."""
        if index in self.unusable:
            return False
        return not self._links or all(each in self.libraries for each in self.image.libraries_of(index))

    def take_library(self, index: int, handle: int) -> bool:
        """Take ownership of the first pipeline of a library, which other pipelines link; True if taken."""
        return self._is_library[index] and self.libraries.setdefault(index, handle) == handle

    def modules_of(self, index: int) -> list[int]:
        """Keys of the modules of a pipeline."""
        return [self.image.modules[each].key for each in self.image.modules_of(index)]

    def destroy(self) -> None:
        """See `PreparedPipelines.destroy`."""
        self._forget(self.libraries.values())


class SimulatedDevice(Device):
    """A `Device` with a simulated driver.

    Thread-safe. In addition it reports the truth: `calls`, `compile_counts`, `live_caches`, `live_pipelines`
    and others.

    Attributes:
        driver: The simulated driver, for what the device does not tell.
    """

    def __init__(self, options: SimulatedOptions | None = None) -> None:
        super().__init__()
        self._options = chosen = options if options is not None else SimulatedOptions()
        bumps = not chosen.bugs.uuid_not_bumped
        self.identity = chosen.identity if bumps else without_bumped_uuid(chosen.identity)
        self.handles = None
        self.capabilities = (
            chosen.capabilities
            if chosen.request is None
            else EnabledCapabilities(chosen.capabilities, chosen.request)
        )
        self.features = (
            chosen.features
            if chosen.request is None or chosen.request.orchestrator_features is not False
            else _without_own(chosen.features, self.capabilities)
        )
        self.driver: Final = SimulatedDriver(self.identity, chosen, self.capabilities)
        self._mutex = threading.Lock()
        self._records: deque[CallRecord] = deque(maxlen=_CALLS_KEPT)
        self._of_driver: dict[int, SimulatedCache] = {}
        self._pipelines: set[int] = set()
        self._binaries: dict[int, PipelineBinary] = {}

    @property
    def supported(self) -> DeviceCapabilities:
        """See `Device.supported`."""
        return self._options.capabilities

    @property
    def identifier_algorithm(self) -> bytes:
        """See `Device.identifier_algorithm`."""
        return IDENTIFIER_ALGORITHM if self.features.shader_module_identifiers else b""

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `Device.binary_properties`."""
        return self._options.binary_properties if self.features.pipeline_binaries else BinaryProperties()

    def prepare(
        self, image: CreateInfoImage | IdentifiedModules, *, modules_on_demand: bool = False
    ) -> SimulatedPipelines:
        """See `Device.prepare`."""
        prepared = super().prepare(image, modules_on_demand=modules_on_demand)
        assert isinstance(prepared, SimulatedPipelines)  # noqa: S101 - `_bind` made it
        return prepared

    # --- caches

    def _create_cache(self, data: bytes, external: bool, merged_internally: bool, name: str) -> int:
        del external, merged_internally
        with self._recorded("create_pipeline_cache", name):
            made = self.driver.create_cache(data)
        handle = next(_handles)
        with self._mutex:
            self._of_driver[handle] = made
        return handle

    def _merge_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        into, *merged = (self._of_driver[each.handle] for each in (destination, *sources))
        with self._recorded("merge_pipeline_caches", destination.name):
            self.driver.merge_caches(into, merged)

    def _cache_size(self, cache: PipelineCache) -> int:
        with self._recorded("pipeline_cache_size", cache.name):
            return self.driver.cache_size(self._of_driver[cache.handle])

    def _cache_data(self, cache: PipelineCache) -> PipelineCacheData:
        with self._recorded("pipeline_cache_data", cache.name):
            data = self.driver.cache_data(self._of_driver[cache.handle])
        return PipelineCacheData(data, complete=True)

    def _destroy_cache(self, cache: PipelineCache) -> None:
        with self._mutex:
            del self._of_driver[cache.handle]

    # --- pipelines

    def _bind(self, given: CreateInfoImage | IdentifiedModules, on_demand: bool) -> SimulatedPipelines:
        prepared = SimulatedPipelines(self, given)
        causes = self._options.unusable
        prepared.unusable = {index: causes[key] for index, key in enumerate(prepared.keys) if key in causes}
        if not on_demand:  # it creates none, but an observer hears of them
            for number in range(len(prepared.image.modules)):
                with self.observer.calling(DriverStep.MODULE, prepared.image, np.array([number], np.int32)):
                    pass
        return prepared

    def _create(
        self,
        bound: SimulatedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        *,
        keep: bool,
        identified: bool = False,
    ) -> CreationBatch:
        batch = CreationBatch.of_zeros(len(indices))
        numbers: list[int] = indices.tolist()
        cache = source if isinstance(source, PipelineCache) else None
        used = None if cache is None else self._of_driver.get(cache.handle)
        what = "create_identified" if identified else "create_pipelines"
        source.begin_use(what)
        try:
            with self._recorded(what, "" if cache is None else cache.name, len(indices)):
                # In ascending order, because libraries precede the pipelines that link them.
                for place in sorted(range(len(indices)), key=numbers.__getitem__):
                    index = numbers[place]
                    if identified and self._misidentified(bound, index):
                        made = Creation(PIPELINE_COMPILE_REQUIRED)
                    elif not bound.is_usable(index):
                        made = Creation(ERROR_UNKNOWN)
                    else:
                        made = self.driver.create_pipeline(
                            bound.keys[index], used, fail_on_compile_required=fail_on_compile_required
                        )
                    self._put(batch, place, made, bound, index, keep=keep)
        finally:
            source.end_use()
        return batch

    def _put(
        self,
        batch: CreationBatch,
        place: int,
        made: Creation,
        bound: SimulatedPipelines,
        index: int,
        *,
        keep: bool,
    ) -> None:
        batch.results[place] = made.result
        if self.features.creation_feedback:
            batch.feedback_flags[place] = made.feedback_flags
            batch.durations_ns[place] = made.duration_ns
        if made.result != SUCCESS:
            return
        handle = next(_handles)
        with self._mutex:
            mine = bound.take_library(index, handle)
            if mine or keep:
                self._pipelines.add(handle)
        if keep and not mine:
            batch.handles[place] = handle

    def _destroy_pipelines(self, handles: Handles) -> None:
        given = handles[handles != 0].tolist()
        with self._mutex:
            if len(set(given)) != len(given) or not self._pipelines.issuperset(given):
                raise DeviceError("destroy_pipelines: not a live pipeline of this device, or given twice")
            self._pipelines.difference_update(given)

    def forget_pipelines(self, handles: Iterable[int]) -> None:
        """Libraries are destroyed with the image whose they are."""
        with self._mutex:
            self._pipelines.difference_update(handles)

    # --- identifiers of modules

    def _code_identifier(self, bound: SimulatedPipelines, module: int) -> bytes:
        bound.image.modules[module].load()
        return self.driver.module_identifier(bound.image.modules[module].key)

    def _misidentified(self, bound: SimulatedPipelines, index: int) -> bool:
        identified, modules = bound.identified, bound.image.modules
        return (
            identified is not None
            and bool(identified.lacking[index])
            and any(
                identified.identifier(each) != self.driver.module_identifier(modules[each].key)
                for each in bound.image.modules_of(index)
            )
        )

    # --- keys and binaries

    def _key(self, bound: SimulatedPipelines, index: int) -> bytes | None:
        if index in bound.unusable or bound.image.libraries_of(index) or self._misidentified(bound, index):
            return None
        return self.driver.pipeline_key(bound.keys[index], bound.image.kind_of(index))

    def _pipeline_keys(self, bound: SimulatedPipelines, indices: Indices) -> list[bytes | None]:
        return [self._key(bound, index) for index in indices.tolist()]

    def _global_key(self) -> bytes:
        return self.driver.global_key()

    def _create_binaries(self, binaries: Sequence[PipelineBinary]) -> Handles:
        made = {next(_handles): PipelineBinary(each.key, bytes(each.data)) for each in binaries}
        with self._mutex:
            self._binaries.update(made)
        return np.array(list(made), np.uint64)

    def _destroy_binaries(self, handles: Handles) -> None:
        with self._mutex:
            for handle in handles[handles != 0].tolist():
                if self._binaries.pop(handle, None) is None:
                    raise DeviceError("destroy_binaries: not a live binary of this device, or given twice")

    def _binary_data(self, handles: Handles) -> tuple[PipelineBinary, ...]:
        with self._mutex:
            return tuple(self._binaries[handle] for handle in handles.tolist())

    def _create_from_binaries(
        self, bound: SimulatedPipelines, indices: Indices, held: HeldBinaries, *, keep: bool
    ) -> CreationBatch:
        batch = CreationBatch.of_zeros(len(indices))
        ends = np.cumsum(held.counts)
        with self._recorded("create_from_binaries", pipelines=len(indices)):
            for place, index in enumerate(indices.tolist()):
                given = self._binary_data(held.handles[ends[place] - held.counts[place] : ends[place]])
                made = Creation(ERROR_UNKNOWN)
                if bound.is_usable(index):
                    key, modules = bound.keys[index], bound.modules_of(index)
                    made = self.driver.create_from_binaries(key, modules, given)
                self._put(batch, place, made, bound, index, keep=keep)
        return batch

    def _create_captured(
        self, bound: SimulatedPipelines, indices: Indices, captured: list[CapturedPipeline], *, keep: bool
    ) -> CreationBatch:
        batch = self._create(bound, indices, NO_SOURCE, False, keep=keep)
        for place in np.flatnonzero(batch.results == SUCCESS).tolist():
            index = int(indices[place])
            modules = bound.modules_of(index)
            named = modules if self.features.shader_module_identifiers else ()
            captured.append(
                CapturedPipeline(
                    index,
                    self._key(bound, index),
                    self.driver.binaries_of(bound.keys[index], modules),
                    tuple(map(self.driver.module_identifier, named)),
                )
            )
        return batch

    def _probe_internal_cache(self, bound: SimulatedPipelines, indices: Indices) -> list[Handles | None]:
        if bound.image.links[indices].any():
            raise DeviceError("one links libraries, at which a driver may end the process")
        return [
            self._create_binaries(self.driver.binaries_of(bound.keys[index], bound.modules_of(index)))
            if bound.keys[index] in self._options.internal_cache and not self._misidentified(bound, index)
            else None
            for index in indices.tolist()
        ]

    def _closing(self) -> None:
        self.driver.hangs.release(ERROR_DEVICE_LOST)

    def _destroy_rest(self) -> None:
        with self._mutex:
            self._pipelines.clear()
            self._binaries.clear()

    # --- the truth

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
    def live_prepared(self) -> int:
        """Number of prepared images that were not closed."""
        return len(self._prepared)

    @property
    def compile_counts(self) -> dict[int, int]:
        """Number of complete compiles of each pipeline, by its key in the set, without hits."""
        return self.driver.compile_counts

    def calls(self) -> tuple[CallRecord, ...]:
        """The last 65,536 calls that used a cache or created pipelines, in the order of their ends."""
        with self._mutex:
            return tuple(self._records)

    def wait_until_hung(self, timeout_s: float = 30.0) -> bool:
        """Wait until a compile hangs (`DriverBugs.hang`); False after the timeout."""
        return self.driver.hangs.begun.wait(timeout_s)

    def release_hangs(self) -> None:
        """Let all compiles that hang continue; later ones do not hang."""
        self.driver.hangs.release(SUCCESS)

    @contextmanager
    def _recorded(self, what: str, cache: str = "", pipelines: int = 0) -> Iterator[None]:
        clock = self._options.clock
        start = clock.now_ns()
        try:
            yield
        finally:
            record = CallRecord(what, cache, pipelines, clock.now_ns() - start)
            with self._mutex:
                self._records.append(record)


def _without_own(features: DeviceFeatures, enabled: DeviceCapabilities) -> DeviceFeatures:
    control = enabled.has_feature(*CACHE_CONTROL)
    return evolve(
        features,
        externally_synchronized_caches=features.externally_synchronized_caches and control,
        compile_required=features.compile_required and control,
        pipeline_binaries=features.pipeline_binaries and enabled.has_feature(*PIPELINE_BINARIES),
        shader_module_identifiers=features.shader_module_identifiers
        and enabled.has_feature(*MODULE_IDENTIFIER),
    )
