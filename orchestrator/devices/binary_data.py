"""What a device and its caller hand each other of pipeline binaries (VK_KHR_pipeline_binary). Values."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

MOST_KEY_BYTES: Final = 32
"""VK_MAX_PIPELINE_BINARY_KEY_SIZE_KHR."""


class BinaryProperties(msgspec.Struct, frozen=True):
    """VkPhysicalDevicePipelineBinaryPropertiesKHR, without `pipelineBinary` and what opening alone asks."""

    internal_cache: bool = False  # the driver's own cache can be asked for binaries by create info
    prefers_internal_cache: bool = False  # the driver would rather have nothing captured
    precompiled_internal_cache: bool = False  # its own cache may hold pipelines that nobody compiled here
    compressed_data: bool = False  # binaries are compressed already


class PipelineBinary(msgspec.Struct, frozen=True):
    """One binary of a pipeline: its key, at most 32 bytes, and its data.

    The data may be memory of somebody else, valid as long as that one says.
    """

    key: bytes
    data: bytes | memoryview


class CapturedPipeline(msgspec.Struct, frozen=True):
    """A pipeline that was compiled with its data captured."""

    index: int  # which one of the image
    pipeline_key: bytes | None  # vkGetPipelineKeyKHR; None where the driver gives none
    binaries: tuple[PipelineBinary, ...]  # its binaries, in the driver's order
    # vkGetShaderModuleIdentifierEXT of the module of each stage, in order; none where the device has no
    # identifiers
    identifiers: tuple[bytes, ...] = ()


class HeldBinaries(msgspec.Struct, frozen=True, eq=False):
    """VkPipelineBinaryKHR of some pipelines."""

    counts: npt.NDArray[np.uint32]  # how many each pipeline has, shape (n,), uint32; 0 where there are none
    # the handles, pipeline by pipeline, in the driver's order, shape (sum of counts,), uint64
    handles: npt.NDArray[np.uint64]
