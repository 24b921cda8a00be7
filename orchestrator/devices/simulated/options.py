"""The options of the simulated device: identity, features, costs, bugs. Values; thread-safe.

The default is a device with every feature, no bug, and a clock on which no time passes. Costs depend only on
a pipeline's key and a seed, and identities only on their arguments, in every process, so that caches remain
valid between runs.
"""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from statistics import NormalDist
from typing import Final

import numpy as np
from attrs import evolve, field, frozen

from orchestrator.devices.binary_data import BinaryProperties
from orchestrator.devices.device import DeviceCapabilities, DeviceFeatures, DeviceIdentity
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated.clocks import Clock, VirtualClock
from orchestrator.registry.tables import NEWEST_VERSION, AnyDevice


class CacheOperation(enum.StrEnum):
    """A command on caches that a bug can make fail."""

    CREATE = "create"
    MERGE = "merge"
    READ = "read"


def _keys(keys: Collection[int]) -> frozenset[int]:
    if not isinstance(keys, Iterable) or not all(isinstance(each, int | np.integer) for each in keys):
        raise TypeError(f"keys of pipelines are given as a set, such as {{3, 7}}, not as {keys!r}")
    return frozenset(keys)


def _operations(operations: Collection[CacheOperation]) -> frozenset[CacheOperation]:
    return frozenset(operations)


def _kinds(kinds: Collection[PipelineKind]) -> frozenset[PipelineKind]:
    return frozenset(kinds)


@frozen
class DriverBugs:
    """Bugs to simulate; all off by default. Keys are those of pipelines in their set."""

    stale_uuid_accepted: bool = False  # initial data with another pipelineCacheUUID is used
    uuid_not_bumped: bool = False  # the pipelineCacheUUID does not change with driverVersion
    initial_data_dropped: bool = False  # good initial data is silently ignored
    # creating a cache with bad data fails instead of ignoring the data
    create_fails_on_bad_data: bool = False
    compile_required_ignored: bool = False  # it compiles although that is forbidden
    merge_does_nothing: bool = False  # merging succeeds and changes nothing
    cache_is_stub: bool = False  # A cache only ever holds its header: no hits, and merging does nothing
    crash: frozenset[int] = field(default=frozenset(), converter=_keys)  # compiling these aborts the process
    # compiling these blocks until the device is closed or releases them
    hang: frozenset[int] = field(default=frozenset(), converter=_keys)
    # these commands on caches return VK_ERROR_OUT_OF_HOST_MEMORY
    out_of_memory_operations: frozenset[CacheOperation] = field(default=frozenset(), converter=_operations)
    # vkGetPipelineKeyKHR returns the same key for all pipelines of these kinds, like NVIDIA 580.159 for ray
    # tracing. Cache hits do not depend on it.
    one_pipeline_key: frozenset[PipelineKind] = field(default=frozenset(), converter=_kinds)
    # creating these from their binaries returns VK_ERROR_OUT_OF_HOST_MEMORY
    binaries_refused: frozenset[int] = field(default=frozenset(), converter=_keys)
    # VkResult of compiling, by key, such as -1, VK_ERROR_OUT_OF_HOST_MEMORY
    results: Mapping[int, int] = field(factory=dict)


# Orders of magnitude of RADV's compiler for a small compute pipeline.
_COMPILE_NS: Final = 2_000_000
_HIT_NS: Final = 5_000
_ENTRY_BYTES: Final = 1_500


@frozen
class CostModel:
    """The costs of pipelines."""

    # time to compile a pipeline, by key, ns
    compile_ns: Callable[[int], int] = lambda _: _COMPILE_NS
    hit_ns: int = _HIT_NS  # time of a cache hit, ns
    # size of a pipeline's code in a cache, by key, without the header of the entry
    entry_bytes: Callable[[int], int] = lambda _: _ENTRY_BYTES
    merge_entry_ns: int = 0  # time to merge one source entry, duplicates included, ns

    @classmethod
    def mapped(
        cls, compile_ns: Mapping[int, int], default: int = _COMPILE_NS, hit_ns: int = _HIT_NS
    ) -> CostModel:
        """Compile times by pipeline key, ns."""
        own = dict(compile_ns)
        return cls(lambda key: own.get(key, default), hit_ns)

    @classmethod
    def lognormal(
        cls, median_ns: int = _COMPILE_NS, sigma: float = 1.0, seed: int = 0, hit_ns: int = _HIT_NS
    ) -> CostModel:
        """Lognormal compile times: a few pipelines cost far more than most, as in real sets.

        `sigma` is the standard deviation of the logarithm. Different seeds give different values.
        """
        key_of_seed, normal = seed.to_bytes(8, "little"), NormalDist()

        def compile_ns(key: int) -> int:
            digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=8, key=key_of_seed).digest()
            # The middle of one of 2**53 equal intervals, because the normal quantile of 0 or 1 is infinite.
            uniform = ((int.from_bytes(digest, "little") >> 11) + 0.5) / 2**53
            return max(1, round(median_ns * math.exp(sigma * normal.inv_cdf(uniform))))

        return cls(compile_ns, hit_ns)


def _cache_uuid(vendor_id: int, device_id: int, build: int) -> bytes:
    text = f"pipeline cache of {vendor_id}:{device_id}:{build}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def simulated_identity(
    *,
    vendor_id: int = 0x1FFFF,  # not a vendor's: Khronos assigns IDs above 0xFFFF, and this one is free
    device_id: int = 1,
    driver_version: int = 1,
    device_name: str = "simulated device",
) -> DeviceIdentity:
    """An identity with a pipelineCacheUUID derived from vendor, device and driver version."""
    return DeviceIdentity(
        vendor_id=vendor_id,
        device_id=device_id,
        driver_version=driver_version,
        driver_id=0,
        driver_abi=8 * struct.calcsize("P"),
        pipeline_cache_uuid=_cache_uuid(vendor_id, device_id, driver_version),
        api_version=NEWEST_VERSION,
        device_name=device_name,
        driver_name="simulated driver",
        driver_info=f"version {driver_version}",
    )


def without_bumped_uuid(identity: DeviceIdentity) -> DeviceIdentity:
    """The same device with a driver whose versions share one pipelineCacheUUID."""
    return evolve(identity, pipeline_cache_uuid=_cache_uuid(identity.vendor_id, identity.device_id, 0))


simulated_features: Final = partial(
    DeviceFeatures,
    externally_synchronized_caches=True,
    creation_feedback=True,
    pipeline_binaries=True,
    shader_module_identifiers=True,
    internally_synchronized_merge=True,
    compile_required=True,
    driver_caches="disabled: the simulated driver has none",
)
"""All features, except those that are given as absent."""


@frozen
class SimulatedOptions:
    """The behaviour of a `SimulatedDevice`."""

    identity: DeviceIdentity = field(factory=simulated_identity)
    features: DeviceFeatures = field(factory=simulated_features)  # its features for the orchestrator
    capabilities: DeviceCapabilities = field(factory=AnyDevice)  # its capabilities for pipelines
    # the request that opens it, which determines the enabled capabilities; None enables all
    request: DeviceRequest | None = None
    # what its keys depend on besides the pipeline: features as "structure::member", and members of
    # `ApplicationInfo` such as "api_version"
    keys_depend_on: frozenset[str] = frozenset()
    cost: CostModel = field(factory=CostModel)  # the costs of pipelines
    # `CpuClock` burns processor time for the costs; on `VirtualClock` no time passes
    clock: Clock = field(factory=VirtualClock)
    bugs: DriverBugs = field(factory=DriverBugs)
    # its properties of pipeline binaries
    binary_properties: BinaryProperties = field(factory=BinaryProperties)
    # keys of the pipelines in the driver's own cache, if it has one
    internal_cache: frozenset[int] = field(default=frozenset(), converter=_keys)
    # pipelines that share the binary of another one, by key: duplicates that only the driver can detect
    same_binary: Mapping[int, int] = field(factory=dict)
    # pipelines that cannot be passed to the driver, by key, with the reason
    unusable: Mapping[int, str] = field(factory=dict)
    # called with a pipeline's key in the compiling thread before it compiles; a test can synchronize threads
    # with it
    on_compile: Callable[[int], None] | None = None
