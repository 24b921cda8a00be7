"""Shader-module identifiers (VK_EXT_shader_module_identifier): pipelines created without their SPIR-V.

A driver's cache finds a pipeline by hashes of its modules. Where those are known, the modules themselves are
not needed: a stage carries the identifier and no module, and the driver says VK_PIPELINE_COMPILE_REQUIRED
where it has to see the code. What is known of the modules is in identified.py; `ModuleIdentification` is what
a device offers, and `create_speculatively` the one way from both to a batch.

Guarantees: a pipeline is asked for by identifiers until all code that it needs is there, and never after.
What links a library that was made of identifiers either forbids compiling too, or gets a library made of code
(VUID-VkPipelineLibraryCreateInfoKHR-pLibraries-06855).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    PIPELINE_COMPILE_REQUIRED,
    CreationBatch,
    Device,
    DeviceCapabilities,
    PipelineSource,
    PreparedPipelines,
    joined,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.request import CACHE_CONTROL, MODULE_IDENTIFIER, Feature
from orchestrator.errors import DeviceError

SHADER_MODULE_IDENTIFIERS: Final[frozenset[Feature]] = frozenset({MODULE_IDENTIFIER, CACHE_CONTROL})
"""The features that a device must be opened with."""


def identifier_algorithm(capabilities: DeviceCapabilities) -> bytes:
    """shaderModuleIdentifierAlgorithmUUID, 16 bytes: what identifiers are good for; else empty."""
    struct = "VkPhysicalDeviceShaderModuleIdentifierPropertiesEXT"
    value = capabilities.property_value(struct, "shaderModuleIdentifierAlgorithmUUID")
    return bytes(value) if isinstance(value, tuple) else b""


@runtime_checkable
class ModuleIdentification(Device, Protocol):
    """A `Device` that can work with module identifiers, if it has them (`shader_module_identifiers`).

    The guarantees are those of `Device`. Each method raises DeviceError where the device has none.
    """

    @property
    def identifier_algorithm(self) -> bytes:
        """shaderModuleIdentifierAlgorithmUUID, 16 bytes; empty where the device has no identifiers."""

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """vkGetShaderModuleIdentifierEXT of modules of an image, which are made where they are not there.

        Raises:
            OrchestratorError: One could not be read or made.
        """

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """vkGetShaderModuleCreateInfoIdentifierEXT of a module of an image: by its code, without making it.

        Raises:
            OrchestratorError: It could not be read.
        """

    def create_identified(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """Create pipelines from the identifiers of their modules, compiling forbidden.

        Otherwise as `create_pipelines`. VK_PIPELINE_COMPILE_REQUIRED is also the result of one that the
        driver was not asked for, because an identifier is not known.
        """


def has_identification(device: Device) -> TypeGuard[ModuleIdentification]:
    """Whether a device has the methods of `ModuleIdentification`, as `has_binaries` asks."""
    return hasattr(type(device), "create_identified")


def create_speculatively(
    device: ModuleIdentification,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    source: PipelineSource,
    *,
    keep: bool,
    fail_on_compile_required: bool,
) -> CreationBatch:
    """`Device.create_pipelines` where code may be lacking: what lacks it is made from identifiers."""
    identified = prepared.identified
    assert identified is not None  # noqa: S101 - a device asks for this where there are
    lacking = identified.lacking[indices]

    def created(places: npt.NDArray[np.intp]) -> CreationBatch:
        """Create pipelines all of which lack code, or none."""
        if lacking[places[0]]:
            return device.create_identified(prepared, indices[places], source, keep=keep)
        return device.create_pipelines(
            prepared, indices[places], source, keep=keep, fail_on_compile_required=fail_on_compile_required
        )

    parts = [
        places
        for level in prepared.image.levels(indices)
        for places in (level[lacking[level]], level[~lacking[level]])
        if places.size
    ]
    if len(parts) == 1:
        return created(parts[0])
    return joined(device, len(indices), ((places, created(places)) for places in parts))


def identified_places(prepared: PreparedPipelines, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """The places of those of some pipelines all of whose stages have a known identifier; ascending."""
    if prepared.identified is None:
        raise DeviceError("these pipelines were prepared with their code, not with identifiers")
    return np.flatnonzero(prepared.identified.known(indices))


def missed(
    identified: IdentifiedModules | None, indices: npt.NDArray[np.int32], batch: CreationBatch
) -> npt.NDArray[np.bool_] | None:
    """Which of a batch lack code, and were not found without it, shape (k,); None for none."""
    if identified is None or batch.all_created:
        return None
    found = (batch.results == PIPELINE_COMPILE_REQUIRED) & identified.lacking[indices]
    return found if found.any() else None
