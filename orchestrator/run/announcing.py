"""A device whose calls are announced before the driver gets them, so that a crash of it can be blamed.

Guarantees: each call into the driver, from the first object on, is in the table while the driver has it.
What the driver is not to be asked for again raises a `DriverError`, as if it refused; what is not to be
destroyed stays until the process ends. Everything else is the device's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.binaries import (
    BinaryProperties,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinaries,
    PipelineBinary,
    has_binaries,
)
from orchestrator.devices.device import (
    ERROR_UNKNOWN,
    FEEDBACK_APPLICATION_CACHE_HIT,
    SUCCESS,
    BeforeObject,
    CreationBatch,
    Device,
    DeviceCapabilities,
    DeviceFeatures,
    DeviceHandles,
    DeviceIdentity,
    ExecutableInspector,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PipelineSource,
    PreparedPipelines,
    no_news,
)
from orchestrator.devices.identified import IdentifiedModules, image_of
from orchestrator.devices.identifiers import ModuleIdentification, has_identification
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.accounting import driver_time_ns
from orchestrator.run.in_flight import Doing, InFlightTable
from orchestrator.run.memory import MemoryGate

_NOTHING = np.zeros(0, np.int32)
OBJECTS: Final = {"object": Doing.OBJECT, "module": Doing.MODULE}
"""What is created, as `Device.prepare` names it."""
_HITS = np.uint32(FEEDBACK_APPLICATION_CACHE_HIT)


def announcing(
    device: Device,
    table: InFlightTable,
    on_image: Callable[[CreateInfoImage], None],
    gate: MemoryGate,
    given_up: Iterable[Doing] = (),
) -> Device:
    """A device that announces its calls.

    Args:
        device: The device; it is closed with what is returned.
        table: Where calls are announced.
        on_image: Called with each image before the driver gets any of its objects.
        gate: Lets batches begin.
        given_up: What the driver is not asked for: it ended processes over that, or did not come back.
    """
    kind = AnnouncingInspector if isinstance(device, ExecutableInspector) else AnnouncingDevice
    return kind(device, table, on_image, gate, frozenset(given_up))


@frozen(eq=False)
class AnnouncingPipelines:
    """An image on such a device; see `PreparedPipelines`."""

    prepared: PreparedPipelines
    device: AnnouncingDevice

    @property
    def image(self) -> CreateInfoImage:
        """See `PreparedPipelines.image`."""
        return self.prepared.image

    @property
    def identified(self) -> IdentifiedModules | None:
        """See `PreparedPipelines.identified`."""
        return self.prepared.identified

    @property
    def unusable(self) -> dict[int, str]:
        """See `PreparedPipelines.unusable`."""
        return self.prepared.unusable

    def close(self) -> None:
        """See `PreparedPipelines.close`."""
        self.device.destroying(self.prepared.close)


def _own(prepared: PreparedPipelines) -> PreparedPipelines:
    return prepared.prepared if isinstance(prepared, AnnouncingPipelines) else prepared


@frozen(eq=False)
class AnnouncingDevice:
    """See `announcing`; its methods are those of `Device`."""

    device: Device
    table: InFlightTable
    on_image: Callable[[CreateInfoImage], None]
    gate: MemoryGate
    given_up: frozenset[Doing] = frozenset()

    @property
    def identity(self) -> DeviceIdentity:
        """See `Device.identity`."""
        return self.device.identity

    @property
    def features(self) -> DeviceFeatures:
        """See `Device.features`."""
        return self.device.features

    @property
    def capabilities(self) -> DeviceCapabilities:
        """See `Device.capabilities`."""
        return self.device.capabilities

    @property
    def supported(self) -> DeviceCapabilities:
        """See `Device.supported`."""
        return self.device.supported

    @property
    def handles(self) -> DeviceHandles | None:
        """See `Device.handles`."""
        return self.device.handles

    def prepare(
        self,
        image: CreateInfoImage | IdentifiedModules,
        before: BeforeObject = no_news,
        *,
        modules_on_demand: bool = False,
    ) -> PreparedPipelines:
        """See `Device.prepare`."""
        self.on_image(image_of(image))
        self.table.prepare(len(image_of(image)))
        slot = self.table.begin(Doing.PREPARE, _NOTHING)

        def announce(what: str, number: int) -> None:
            nonlocal slot
            before(what, number)
            self.table.end(slot)
            slot = self.table.begin(OBJECTS[what], np.array([number], np.int32))

        try:
            prepared = self.device.prepare(image, announce, modules_on_demand=modules_on_demand)
        finally:
            self.table.end(slot)
        return AnnouncingPipelines(prepared, self)

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
    ) -> CreationBatch:
        """See `Device.create_pipelines`."""
        if self.gate.is_short:
            self.gate.wait(self.table)
        slot = self.table.begin(Doing.CREATE, indices)
        began_ns = time.perf_counter_ns()
        try:
            batch = self.device.create_pipelines(
                _own(prepared), indices, source, keep=keep, fail_on_compile_required=fail_on_compile_required
            )
        finally:
            self.table.end(slot)
        if not batch.all_hits:
            compiled = (batch.results == SUCCESS) & (batch.feedback_flags & _HITS == 0)
            wall_ns = time.perf_counter_ns() - began_ns
            times_ns = driver_time_ns(batch.feedback_flags, batch.durations_ns, wall_ns)
            self.table.mark(indices[compiled], times_ns[compiled])
        return batch

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `Device.destroy_pipelines`."""
        self.destroying(lambda: self.device.destroy_pipelines(handles))

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        with self._announced(Doing.KEYS, indices):
            return self.device.pipeline_keys(_own(prepared), indices)

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        doing = Doing.LOAD if initial_data else Doing.CACHE
        with self._allowed(doing, "vkCreatePipelineCache"):
            cache = self.device.create_pipeline_cache(
                initial_data,
                externally_synchronized=externally_synchronized,
                internally_synchronized_merge=internally_synchronized_merge,
                name=name,
            )
        cache.device = self  # what is done with it is announced too
        return cache

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        with self._allowed(Doing.MERGE, "vkMergePipelineCaches"):
            self.device.merge_pipeline_caches(destination, sources)

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        with self._allowed(Doing.READ, "vkGetPipelineCacheData"):
            return self.device.pipeline_cache_size(cache)

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        with self._allowed(Doing.READ, "vkGetPipelineCacheData"):
            return self.device.pipeline_cache_data(cache, limit)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        self.destroying(lambda: self.device.destroy_pipeline_cache(cache))

    # Binaries; `create_pipelines` announces what the device does with them for a source.

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `PipelineBinaries.binary_properties`."""
        return self._binaries.binary_properties

    def global_pipeline_key(self) -> bytes:
        """See `PipelineBinaries.global_pipeline_key`."""
        return self._binaries.global_pipeline_key()

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """See `PipelineBinaries.create_binaries`."""
        with self._allowed(Doing.BINARIES, "vkCreatePipelineBinariesKHR"):
            return self._binaries.create_binaries(binaries)

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `PipelineBinaries.destroy_binaries`."""
        self.destroying(lambda: self._binaries.destroy_binaries(handles))

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """See `PipelineBinaries.binary_data`."""
        with self._allowed(Doing.BINARIES, "vkGetPipelineBinaryDataKHR"):
            return self._binaries.binary_data(handles)

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `PipelineBinaries.create_from_binaries`."""
        with self._announced(Doing.CREATE, indices):
            return self._binaries.create_from_binaries(_own(prepared), indices, held, keep=keep)

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """See `PipelineBinaries.create_captured`."""
        with self._announced(Doing.CREATE, indices):
            return self._binaries.create_captured(_own(prepared), indices, keep=keep)

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """See `PipelineBinaries.probe_internal_cache`."""
        with self._announced(Doing.KEYS, indices):
            return self._binaries.probe_internal_cache(_own(prepared), indices)

    # Identifiers of modules; `create_pipelines` announces what the device does with them too.

    @property
    def identifier_algorithm(self) -> bytes:
        """See `ModuleIdentification.identifier_algorithm`."""
        return self._identification.identifier_algorithm

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """See `ModuleIdentification.module_identifiers`."""
        with self._announced(Doing.MODULE, modules):
            return self._identification.module_identifiers(_own(prepared), modules)

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """See `ModuleIdentification.code_identifier`."""
        with self._announced(Doing.MODULE, [module]):
            return self._identification.code_identifier(_own(prepared), module)

    def create_identified(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `ModuleIdentification.create_identified`."""
        with self._announced(Doing.CREATE, indices):
            return self._identification.create_identified(_own(prepared), indices, source, keep=keep)

    def destroying(self, destroy: Callable[[], None]) -> None:
        """Announce that something is destroyed, unless all stays until the process ends."""
        if Doing.DESTROY not in self.given_up:
            with self._announced(Doing.DESTROY, _NOTHING):
                destroy()

    @contextmanager
    def _allowed(self, doing: Doing, command: str) -> Iterator[None]:
        """Announce a call, unless it is given up."""
        if doing in self.given_up:
            raise DriverError(command, ERROR_UNKNOWN, "VK_ERROR_UNKNOWN, for it was not asked again,")
        with self._announced(doing, _NOTHING):
            yield

    @contextmanager
    def _announced(self, doing: Doing, numbers: Sequence[int] | npt.NDArray[np.int32]) -> Iterator[None]:
        slot = self.table.begin(doing, np.asarray(numbers, np.int32))
        try:
            yield
        finally:
            self.table.end(slot)

    @property
    def _identification(self) -> ModuleIdentification:
        if not has_identification(self.device):
            raise DeviceError(f"{self.identity.device_name} has no shader-module identifiers")
        return self.device

    @property
    def _binaries(self) -> PipelineBinaries:
        if not has_binaries(self.device):
            raise DeviceError(f"{self.identity.device_name} has no pipeline binaries")
        return self.device

    def close(self) -> None:
        """See `Device.close`."""
        self.destroying(self.device.close)


class AnnouncingInspector(AnnouncingDevice):
    """One that also tells about the code of pipelines."""

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        assert isinstance(self.device, ExecutableInspector)  # noqa: S101 - `announcing` asked
        with self._announced(Doing.CREATE, [index]):
            return self.device.pipeline_executables(_own(prepared), index)
