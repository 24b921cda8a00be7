"""A device whose calls are announced before the driver gets them, so that a crash of it can be blamed.

Guarantees: what can end the process (creating pipelines and what they need, asking for keys, taking the data
of a cache file) is in the table while the driver has it. Everything else is the device's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
from orchestrator.errors import DeviceError
from orchestrator.run.accounting import driver_time_ns
from orchestrator.run.in_flight import Doing, InFlightTable
from orchestrator.run.memory import MemoryGate

_NOTHING = np.zeros(0, np.int32)
_OBJECTS = {"object": Doing.OBJECT, "module": Doing.MODULE}
_HITS = np.uint32(FEEDBACK_APPLICATION_CACHE_HIT)


def announcing(
    device: Device, table: InFlightTable, on_image: Callable[[CreateInfoImage], None], gate: MemoryGate
) -> Device:
    """A device that announces its calls.

    Args:
        device: The device; it is closed with what is returned.
        table: Where calls are announced.
        on_image: Called with each image before the driver gets any of its objects.
        gate: Lets batches begin.
    """
    kind = AnnouncingInspector if isinstance(device, ExecutableInspector) else AnnouncingDevice
    return kind(device, table, on_image, gate)


@frozen(eq=False)
class AnnouncingDevice:
    """See `announcing`; its methods are those of `Device`."""

    device: Device
    table: InFlightTable
    on_image: Callable[[CreateInfoImage], None]
    gate: MemoryGate

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
        slot = self.table.begin(Doing.OPEN, _NOTHING)

        def announce(what: str, number: int) -> None:
            nonlocal slot
            before(what, number)
            self.table.end(slot)
            slot = self.table.begin(_OBJECTS[what], np.array([number], np.int32))

        try:
            return self.device.prepare(image, announce, modules_on_demand=modules_on_demand)
        finally:
            self.table.end(slot)

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
                prepared, indices, source, keep=keep, fail_on_compile_required=fail_on_compile_required
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
        self.device.destroy_pipelines(handles)

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        slot = self.table.begin(Doing.KEYS, indices)
        try:
            return self.device.pipeline_keys(prepared, indices)
        finally:
            self.table.end(slot)

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        slot = self.table.begin(Doing.CACHE, _NOTHING)
        try:
            return self.device.create_pipeline_cache(
                initial_data,
                externally_synchronized=externally_synchronized,
                internally_synchronized_merge=internally_synchronized_merge,
                name=name,
            )
        finally:
            self.table.end(slot)

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        self.device.merge_pipeline_caches(destination, sources)

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        return self.device.pipeline_cache_size(cache)

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        return self.device.pipeline_cache_data(cache, limit)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        self.device.destroy_pipeline_cache(cache)

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
        slot = self.table.begin(Doing.CACHE, _NOTHING)
        try:
            return self._binaries.create_binaries(binaries)
        finally:
            self.table.end(slot)

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `PipelineBinaries.destroy_binaries`."""
        self._binaries.destroy_binaries(handles)

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """See `PipelineBinaries.binary_data`."""
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
        slot = self.table.begin(Doing.CREATE, indices)
        try:
            return self._binaries.create_from_binaries(prepared, indices, held, keep=keep)
        finally:
            self.table.end(slot)

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """See `PipelineBinaries.create_captured`."""
        slot = self.table.begin(Doing.CREATE, indices)
        try:
            return self._binaries.create_captured(prepared, indices, keep=keep)
        finally:
            self.table.end(slot)

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """See `PipelineBinaries.probe_internal_cache`."""
        slot = self.table.begin(Doing.KEYS, indices)
        try:
            return self._binaries.probe_internal_cache(prepared, indices)
        finally:
            self.table.end(slot)

    # Identifiers of modules; `create_pipelines` announces what the device does with them too.

    @property
    def identifier_algorithm(self) -> bytes:
        """See `ModuleIdentification.identifier_algorithm`."""
        return self._identification.identifier_algorithm

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """See `ModuleIdentification.module_identifiers`."""
        with self._announced(Doing.MODULE, modules):
            return self._identification.module_identifiers(prepared, modules)

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """See `ModuleIdentification.code_identifier`."""
        with self._announced(Doing.MODULE, [module]):
            return self._identification.code_identifier(prepared, module)

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
            return self._identification.create_identified(prepared, indices, source, keep=keep)

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
        self.device.close()


class AnnouncingInspector(AnnouncingDevice):
    """One that also tells about the code of pipelines."""

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        assert isinstance(self.device, ExecutableInspector)  # noqa: S101 - `announcing` asked
        slot = self.table.begin(Doing.CREATE, np.array([index], np.int32))
        try:
            return self.device.pipeline_executables(prepared, index)
        finally:
            self.table.end(slot)
