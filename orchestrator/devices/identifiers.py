"""Shader-module identifiers (VK_EXT_shader_module_identifier): pipelines created without their SPIR-V.

A driver's cache finds a pipeline by hashes of its modules. Where those are known, the modules themselves are
not needed: a stage carries the identifier and no module, and the driver says VK_PIPELINE_COMPILE_REQUIRED
where it has to see the code. What is known of the modules is in identified.py. A pipeline is asked for by
identifiers until all code that it needs is there, and never after.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    PIPELINE_COMPILE_REQUIRED,
    CreationBatch,
    DeviceCapabilities,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.request import CACHE_CONTROL, MODULE_IDENTIFIER, Feature

SHADER_MODULE_IDENTIFIERS: Final[frozenset[Feature]] = frozenset({MODULE_IDENTIFIER, CACHE_CONTROL})
"""The features that a device must be opened with."""


def identifier_algorithm(capabilities: DeviceCapabilities) -> bytes:
    """shaderModuleIdentifierAlgorithmUUID, 16 bytes: what identifiers are good for; else empty."""
    struct = "VkPhysicalDeviceShaderModuleIdentifierPropertiesEXT"
    value = capabilities.property_value(struct, "shaderModuleIdentifierAlgorithmUUID")
    return bytes(value) if isinstance(value, tuple) else b""


def missed(
    identified: IdentifiedModules | None, indices: npt.NDArray[np.int32], batch: CreationBatch
) -> npt.NDArray[np.bool_] | None:
    """Which of a batch lack code, and were not found without it, shape (k,); None for none."""
    if identified is None or batch.all_created:
        return None
    found = (batch.results == PIPELINE_COMPILE_REQUIRED) & identified.lacking[indices]
    return found if found.any() else None
