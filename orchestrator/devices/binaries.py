"""Pipeline binaries (VK_KHR_pipeline_binary): what a device does with them, and the source that holds them.

With binaries the application is the cache: it keeps the code of each pipeline, hands it over again, and the
driver makes the pipeline without SPIR-V and without compiling. A `BinarySource` decides what is there and
takes what is new; `PipelineBinaries` is what a device offers for that; `create_with_binaries` is the one way
from both to a batch of pipelines.

Guarantees: a binary is destroyed as soon as nothing needs it. Number and order of a pipeline's binaries stay
as the driver gave them (VkPipelineBinaryInfoKHR). A pipeline that the driver will not make from binaries is
compiled.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeGuard, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    SUCCESS,
    CreationBatch,
    Device,
    DeviceCapabilities,
    PipelineSource,
    PreparedPipelines,
    destroyed_on_failure,
    joined,
)
from orchestrator.errors import DeviceError

PIPELINE_BINARY_MISSING: Final = 1000483000
"""VK_PIPELINE_BINARY_MISSING_KHR: the driver's own cache does not hold the pipeline. An outcome, no error."""

_FOUND: Final = np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)

MOST_KEY_BYTES: Final = 32
"""VK_MAX_PIPELINE_BINARY_KEY_SIZE_KHR."""


class BinaryProperties(msgspec.Struct, frozen=True):
    """VkPhysicalDevicePipelineBinaryPropertiesKHR, member by member without `pipelineBinary`.

    Attributes:
        internal_cache: The driver's own cache can be asked for binaries by create info.
        internal_cache_control: The driver's own cache can be turned off when the device is opened.
        prefers_internal_cache: The driver would rather have nothing captured.
        precompiled_internal_cache: Its own cache may hold pipelines that nobody compiled here.
        compressed_data: Binaries are compressed already.
    """

    internal_cache: bool = False
    internal_cache_control: bool = False
    prefers_internal_cache: bool = False
    precompiled_internal_cache: bool = False
    compressed_data: bool = False

    @classmethod
    def of(cls, capabilities: DeviceCapabilities) -> BinaryProperties:
        """What a device says of itself; nothing where it has no binaries."""

        def has(member: str) -> bool:
            struct = "VkPhysicalDevicePipelineBinaryPropertiesKHR"
            return bool(capabilities.property_value(struct, f"pipelineBinary{member}"))

        return cls(
            has("InternalCache"),
            has("InternalCacheControl"),
            has("PrefersInternalCache"),
            has("PrecompiledInternalCache"),
            has("CompressedData"),
        )


class PipelineBinary(msgspec.Struct, frozen=True):
    """One binary of a pipeline: its key, at most 32 bytes, and its data.

    The data may be memory of somebody else, valid as long as that one says.
    """

    key: bytes
    data: bytes | memoryview


class CapturedPipeline(msgspec.Struct, frozen=True):
    """A pipeline that was compiled with its data captured.

    Attributes:
        index: Which one of the image.
        pipeline_key: vkGetPipelineKeyKHR; None where the driver gives none.
        binaries: Its binaries, in the driver's order.
        driver_ns: What compiling it took, by creation feedback; 0 where that is not known.
        identifiers: vkGetShaderModuleIdentifierEXT of the module of each stage, in order; none where the
            device has no identifiers.
    """

    index: int
    pipeline_key: bytes | None
    binaries: tuple[PipelineBinary, ...]
    driver_ns: int = 0
    identifiers: tuple[bytes, ...] = ()


class HeldBinaries(msgspec.Struct, frozen=True, eq=False):
    """VkPipelineBinaryKHR of some pipelines.

    Attributes:
        counts: How many each pipeline has, shape (n,), uint32; 0 where there are none.
        handles: The handles, pipeline by pipeline, in the driver's order, shape (sum of counts,), uint64.
    """

    counts: npt.NDArray[np.uint32]
    handles: npt.NDArray[np.uint64]


class BinarySource(PipelineSource):
    """Pipelines as binaries that the application holds. Belongs to one device; thread-safe.

    All workers use it, as one cache that nobody has to merge. A pipeline is used by one call at a time.

    Attributes:
        captures: Whether what is compiled is to be captured.
    """

    keeps = True
    header_bytes = empty_bytes = 0
    handle = 0
    externally_synchronized = False
    internally_synchronized_merge = True
    captures: bool

    @abstractmethod
    def pull_in(self, prepared: PreparedPipelines) -> None:
        """Look all pipelines of an image up, before the first of them is created. Blocking.

        Raises:
            OrchestratorError: Where it cannot be looked into; then everything is compiled.
        """

    @abstractmethod
    def hold(self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]) -> HeldBinaries:
        """The binaries of some pipelines, which stay until `release`."""

    @abstractmethod
    def release(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], refused: npt.NDArray[np.int32]
    ) -> None:
        """End what `hold` began; `refused` are those that the driver did not make from their binaries."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until everything that was taken is kept for good. Blocking; no call uses it."""

    @abstractmethod
    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """Take what was compiled and captured."""

    def begin_use(self, what: str, *, alone: bool = False) -> None:
        """Any number of calls may use it."""

    def end_use(self) -> None:
        """See `begin_use`."""

    def data(self) -> bytes:
        """Nothing: what it holds is no data of a pipeline cache."""
        return b""

    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> BinarySource:
        """This one: all workers share it."""
        del data, name, externally_synchronized
        return self

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """Nothing is to be merged into it.

        Raises:
            DeviceError: There are sources all the same.
        """
        if sources:
            raise DeviceError(f"{self.name} holds binaries: nothing can be merged into it")


@runtime_checkable
class PipelineBinaries(Device, Protocol):
    """A `Device` that can work with pipeline binaries, if it has them (`DeviceFeatures.pipeline_binaries`).

    The guarantees are those of `Device`. The device owns what it hands out, and destroys what is left when it
    is closed.
    """

    @property
    def binary_properties(self) -> BinaryProperties:
        """What the driver says of its binaries."""

    def global_pipeline_key(self) -> bytes:
        """vkGetPipelineKeyKHR without a create info: keys and binaries hold as long as this is the same.

        Raises:
            DeviceError: The device has no pipeline binaries; so for every method here.
            DriverError: The driver refused.
        """

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """Make binaries of data, one driver call for all; their handles, in order. The data is copied.

        Raises:
            DriverError: The driver refused one; none is left then.
        """

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """Destroy binaries that nothing uses; zeros are skipped."""

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """Create pipelines from their binaries, without any shader module.

        What they link exists. What was created counts as found in the application's cache.
        """

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """Compile pipelines, and read their binaries and keys; what the driver captured is released.

        What they link exists. A pipeline whose data the driver would not give is not among what was captured,
        and one that has no code of its own.
        """

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """Ask the driver's own cache for the binaries of pipelines; None where it does not hold them.

        Of those whose code is lacking by the identifiers of their modules; None too where one is not known.

        Args:
            prepared: What `prepare` returned.
            indices: The pipelines; none links libraries.

        Returns:
            Handles for each, which the caller destroys.

        Raises:
            DeviceError: The device has no internal cache, or it was turned off (then asking without SPIR-V is
                not valid: VkDevicePipelineBinaryInternalCacheControlKHR).
        """

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """Keys and data of binaries (vkGetPipelineBinaryDataKHR), in order.

        Raises:
            DriverError: The driver refused.
        """


def has_binaries(device: Device) -> TypeGuard[PipelineBinaries]:
    """Whether a device has the methods of `PipelineBinaries`; if the driver has binaries, its features say.

    `isinstance` evaluates properties (before Python 3.12), of which `Device.supported` takes milliseconds.
    """
    return hasattr(type(device), "create_from_binaries")


def create_with_binaries(
    device: PipelineBinaries,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    source: BinarySource,
    *,
    keep: bool,
    fail_on_compile_required: bool,
) -> CreationBatch:
    """`Device.create_pipelines` for a source of binaries: from binaries what is there, compiled what is not.

    With `fail_on_compile_required` nothing is compiled.
    """
    parts = _parts_with_binaries(
        device, prepared, indices, source, keep=keep, fail_on_compile_required=fail_on_compile_required
    )
    return joined(device, len(indices), parts)


def _parts_with_binaries(
    device: PipelineBinaries,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    source: BinarySource,
    *,
    keep: bool,
    fail_on_compile_required: bool,
) -> Iterator[tuple[npt.NDArray[np.intp], CreationBatch]]:
    """Places in a batch and what was created there, for `joined`: what links others after those."""
    for places in prepared.image.levels(indices):
        chosen, made, missing = _create_found(device, prepared, indices, places, source, keep=keep)
        if made is not None:
            yield chosen, made
        if prepared.identified is not None and missing.size:
            lacks = prepared.identified.lacking[indices[missing]]
            if lacks.any():
                # Nothing but the driver's own cache may have it, where that is on.
                part = device.create_pipelines(prepared, indices[missing[lacks]], NO_SOURCE, keep=keep)
                # What was created was not compiled, which was forbidden: such as links of what is there.
                part.feedback_flags = np.where(
                    part.results == SUCCESS, part.feedback_flags | _FOUND, part.feedback_flags
                )
                yield missing[lacks], part
                missing = missing[~lacks]
        if not missing.size:
            continue
        if source.captures and not fail_on_compile_required:
            part, captured = device.create_captured(prepared, indices[missing], keep=keep)
            with destroyed_on_failure(device, part):
                source.take(prepared, captured)
        else:
            part = device.create_pipelines(
                prepared,
                indices[missing],
                NO_SOURCE,
                keep=keep,
                fail_on_compile_required=fail_on_compile_required,
            )
        yield missing, part


def _create_found(
    device: PipelineBinaries,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    places: npt.NDArray[np.intp],
    source: BinarySource,
    *,
    keep: bool,
) -> tuple[npt.NDArray[np.intp], CreationBatch | None, npt.NDArray[np.intp]]:
    """Create what there are binaries for: its places, what was created, and the places that are left."""
    if not places.size:
        return places, None, places
    asked = indices[places]
    held = source.hold(prepared, asked)
    refused = np.empty(0, np.int32)
    try:
        found, handles = held.counts > 0, held.handles
        distrusted = device.observer.distrusts_binaries(prepared.image.keys[asked])
        if distrusted is not None:  # as if the driver had refused them, so that the source replaces them
            refused = asked[found & distrusted]
            handles = handles[np.repeat(~distrusted, held.counts)]
            found &= ~distrusted
        if not found.any():
            return places[found], None, places
        chosen = places[found]
        present = HeldBinaries(held.counts[found], handles)
        began = time.perf_counter_ns()
        made = device.create_from_binaries(prepared, indices[chosen], present, keep=keep)
        share = (time.perf_counter_ns() - began) // len(chosen)
        good = made.results == SUCCESS
        # RADV (25.0.7) gives no feedback here: then each takes its share of the call.
        silent = good & (made.feedback_flags & np.uint32(FEEDBACK_VALID) == 0)
        made.durations_ns[silent] = share
        refused = np.concatenate([refused, indices[chosen[~good]]])
        made.feedback_flags[good] |= _FOUND
        return chosen, made, np.sort(np.concatenate([places[~found], chosen[~good]]))
    finally:
        source.release(prepared, asked, refused)
