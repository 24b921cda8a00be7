# Purpose: the devices under test, each with an image that it can compile and the little that the cases must know of it.
#
# Assumptions: one process opens one real driver (the loader reads its environment once), so the cases of a driver run
# in a process of their own; see run_cases. The simulated device runs them in the tests' process.
"""What the contract cases are run on."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.device import Device, PipelineCache, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage, PipelineKind

PIPELINES = 4


@frozen(eq=False)
class Subject:
    """A device under test.

    Attributes:
        device: The device, open.
        image: `PIPELINES` pipelines that it can create.
        prepared: The image, bound to it.
        caches: Whether its pipeline caches keep anything; lavapipe's do not.
    """

    device: Device
    image: CreateInfoImage
    prepared: PreparedPipelines
    caches: bool

    @property
    def all(self) -> npt.NDArray[np.int32]:
        """Indices of all pipelines."""
        return np.arange(PIPELINES, dtype=np.int32)

    def filled(self, *indices: int, flagged: bool = False) -> PipelineCache:
        """A cache with some pipelines in it, of all where none is named."""
        flagged = flagged and self.device.features.externally_synchronized_caches
        cache = self.device.create_pipeline_cache(externally_synchronized=flagged)
        chosen = np.array(indices, np.int32) if indices else self.all
        batch = self.device.create_pipelines(self.prepared, chosen, cache)
        assert batch.results.tolist() == [0] * len(chosen)
        return cache


class NotShownError(Exception):
    """The device under test has no such feature, so it cannot show the case."""


def sample_image(device: Device) -> CreateInfoImage:
    """An image of `PIPELINES` compute pipelines that any driver can compile."""
    from orchestrator.sets.builder import PipelineSetBuilder
    from orchestrator.sets.image_builder import build_image
    from orchestrator.sets.memory import MemoryRecords
    from orchestrator.sets.pipeline_set import PipelineSet

    records = MemoryRecords("contract")
    builder = PipelineSetBuilder(records)
    for size in range(1, PIPELINES + 1):
        builder.compute_pipeline("auto", builder.shader_module(empty_compute_shader(size)))
    pipelines = PipelineSet.from_records(records)
    built = build_image(pipelines, pipelines.pipelines, device.capabilities)
    assert built.problems == ()
    return built.image


def empty_compute_shader(local_size: int) -> bytes:
    """SPIR-V of a compute shader that does nothing, in workgroups of `local_size`."""
    main, void, function, label = 1, 2, 3, 4
    instructions = (
        (17, 1),  # OpCapability Shader
        (14, 0, 1),  # OpMemoryModel Logical GLSL450
        (15, 5, main, *struct.unpack("<2I", b"main\0\0\0\0")),  # OpEntryPoint GLCompute
        (16, main, 17, local_size, 1, 1),  # OpExecutionMode LocalSize
        (19, void),  # OpTypeVoid
        (33, function, void),  # OpTypeFunction
        (54, void, main, 0, function),  # OpFunction
        (248, label),  # OpLabel
        (253,),  # OpReturn
        (56,),  # OpFunctionEnd
    )
    words = [0x07230203, 0x00010000, 0, label + 1, 0]
    for code, *operands in instructions:
        words += [(1 + len(operands)) << 16 | code, *operands]
    return struct.pack(f"<{len(words)}I", *words)


@contextmanager
def simulated_subject() -> Iterator[Subject]:
    """The simulated device, with nothing switched on or off."""
    from orchestrator.devices.simulated import SimulatedDevice, simulated_image

    device = SimulatedDevice()
    image = simulated_image(range(1, PIPELINES + 1), kinds=PipelineKind.COMPUTE)
    yield Subject(device, image, device.prepare(image), caches=True)
    device.close()
    assert (device.live_caches, device.live_pipelines, device.live_prepared) == (0, 0, 0)


@contextmanager
def driver_subject(selector: str) -> Iterator[Subject]:
    """A real device."""
    from orchestrator.devices import open_device

    device = open_device(selector)
    try:
        image = sample_image(device)
        yield Subject(device, image, device.prepare(image), caches=selector != "lavapipe")
    finally:
        device.close()


def run_cases(selector: str) -> dict[str, list[str]]:
    """Run all cases on a real device, in a process that is the device's own.

    Returns:
        By case: "passed", "not shown" or "failed", and the reason.
    """
    from tests.contract.cases import CASES

    outcomes = {}
    for name, case in CASES.items():
        try:
            with driver_subject(selector) as subject:
                case(subject)
        except NotShownError as reason:
            outcomes[name] = ["not shown", str(reason)]
        except Exception:  # noqa: BLE001 - reported by the test that asked for the case
            outcomes[name] = ["failed", traceback.format_exc()]
        else:
            outcomes[name] = ["passed", ""]
    return outcomes
