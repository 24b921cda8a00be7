"""What a device and its caller hand each other of pipeline binaries (VK_KHR_pipeline_binary). Values."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

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
        identifiers: vkGetShaderModuleIdentifierEXT of the module of each stage, in order; none where the
            device has no identifiers.
    """

    index: int
    pipeline_key: bytes | None
    binaries: tuple[PipelineBinary, ...]
    identifiers: tuple[bytes, ...] = ()


class HeldBinaries(msgspec.Struct, frozen=True, eq=False):
    """VkPipelineBinaryKHR of some pipelines.

    Attributes:
        counts: How many each pipeline has, shape (n,), uint32; 0 where there are none.
        handles: The handles, pipeline by pipeline, in the driver's order, shape (sum of counts,), uint64.
    """

    counts: npt.NDArray[np.uint32]
    handles: npt.NDArray[np.uint64]
