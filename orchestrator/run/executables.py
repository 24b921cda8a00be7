# Purpose: asking the driver about the code of many pipelines, over several threads, after a run.
# Guarantees: a driver call is never abandoned; stopped or cancelled, the calls in flight are waited for. Each pipeline is
# in one call at a time.
"""Inspecting the executables of pipelines."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from orchestrator.devices.device import Device, ExecutableInspector, PipelineExecutables, PreparedPipelines
from orchestrator.errors import DeviceError, OrchestratorError


def require_inspector(device: Device) -> ExecutableInspector:
    """The device as one that can tell about code.

    Raises:
        DeviceError: It cannot.
    """
    if not isinstance(device, ExecutableInspector):
        raise DeviceError(f"{device.identity.device_name} tells nothing about the code of pipelines")
    return device


async def inspect_pipelines(
    device: Device,
    prepared: PreparedPipelines,
    indices: Sequence[int],
    *,
    workers: int,
    stop: trio.Event | None = None,
) -> dict[int, PipelineExecutables]:
    """Ask about pipelines, which nobody else uses meanwhile.

    Args:
        device: The device.
        prepared: What `device.prepare` returned; libraries that are linked were created before.
        indices: Which pipelines, each once.
        workers: How many threads.
        stop: Ends it early when set: the rest is left out.

    Returns:
        What the driver said, by index.

    Raises:
        DeviceError: The device cannot tell.
        DriverError: The driver refused a query.
    """
    inspector = require_inspector(device)
    waiting = deque(indices)
    found: dict[int, PipelineExecutables] = {}
    errors: list[OrchestratorError] = []
    limiter = trio.CapacityLimiter(workers)

    async def worker() -> None:
        while waiting and not (stop is not None and stop.is_set()):
            index = waiting.popleft()
            try:
                found[index] = await trio.to_thread.run_sync(
                    inspector.pipeline_executables, prepared, index, limiter=limiter
                )
            except OrchestratorError as error:
                errors.append(error)
                waiting.clear()

    async with trio.open_nursery() as nursery:
        for _ in range(min(workers, len(waiting))):
            nursery.start_soon(worker)
    if errors:
        raise errors[0]  # as itself, not in the nursery's group
    return found
