"""The verb `run`: starts a program that reads a filled driver cache."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.cli.application import DeviceSelector, JsonFlag
from orchestrator.cli.documents import RunDocument
from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import Output, path_text
from orchestrator.packs.driver_cache import DriverCache, mesa_directory


def run_verb(
    directory: Path,
    /,
    *command: str,
    device: DeviceSelector = "",
    json: JsonFlag = False,
) -> int:
    """Start a program that reads what `compile --driver-cache` compiled, beside its driver's own cache.

    For programs that pass no VkPipelineCache. What they compile themselves goes into the driver's own cache,
    as without this. The exit code is the program's; 2 if there is nothing for this device and driver.

    **EXAMPLES**

        orchestrator run driver-cache -- ./game
        orchestrator run driver-cache --device radv:navi21
        orchestrator run driver-cache --json

    Args:
        directory: What `compile --driver-cache` filled.
        command: The program and its arguments, after `--`. Without one, the variables are shown, to be set
            otherwise.
    """
    output, cache = Output(json=json), DriverCache.of(directory, device)
    variables = cache.offered(mesa_directory())
    if command:
        try:
            code = subprocess.run(command, env=os.environ | variables, check=False).returncode
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be started: {error.strerror}", "check the path") from None
        return code if code >= 0 else 128 - code  # as a shell says which signal ended it
    output.document(
        lambda: RunDocument(
            directory=path_text(directory),
            device_name=cache.device.device_name,
            driver=cache.device.driver,
            variables=variables,
        )
    )
    for name, value in variables.items():
        output.line(f"{name}={value}")
    return 0
