"""The verb `run`: starts a program that reads a cache of the driver's own from packs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.cli.application import DeviceSelector, JsonFlag, TrustedKey
from orchestrator.cli.documents import RunDocument
from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import Output, path_text
from orchestrator.cli.values import trusted_key
from orchestrator.packs.driver import pack_driver
from orchestrator.packs.driver_cache import mesa_directory, offered
from orchestrator.stores.files.atomic_file import check_directory
from orchestrator.stores.pack import MANIFEST, Pack, PackError, is_pack


def run_verb(
    directory: Path,
    /,
    *command: str,
    device: DeviceSelector = "",
    trust: TrustedKey = None,
    json: JsonFlag = False,
) -> int:
    """Start a program that reads what `compile --driver-cache` compiled, beside its driver's own cache.

    For programs that pass no VkPipelineCache. What they compile themselves goes into the driver's own cache,
    as without this. The exit code is the program's; 2 if there is nothing for this device and driver.

    **EXAMPLES**

        orchestrator run pack -- ./game
        orchestrator run ~/.cache/orchestrator/delivered/game --trust team.pub -- ./game
        orchestrator run pack --device radv:navi21 --json

    Args:
        directory: A pack, or a directory of packs such as `install` leaves of a release.
        command: The program and its arguments, after `--`. Without one, the variables are shown, to be set
            otherwise.
    """
    output, packs = Output(json=json), _packs(directory, trust)
    with pack_driver(device) as opened:
        variables = dict(offered(packs, opened.device, mesa_directory()))
    if command:
        try:
            code = subprocess.run(command, env=os.environ | variables, check=False).returncode
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be started: {error.strerror}", "check the path") from None
        return code if code >= 0 else 128 - code  # as a shell says which signal ended it
    output.document(
        lambda: RunDocument(
            directory=path_text(directory),
            device_name=opened.device.device_name,
            driver=opened.device.driver,
            variables=variables,
        )
    )
    for name, value in variables.items():
        output.line(f"{name}={value}")
    return 0


def _packs(directory: Path, trust: Path | None) -> list[Pack]:
    key = trusted_key(trust)
    found = [directory] if is_pack(directory) else sorted(filter(is_pack, directory.glob("*")))
    if not found:
        raise PackError(directory, "no pack, and none in it", "name what `compile --out` wrote, or `install`")
    for each in found if key is None else ():
        # Whoever else may write there chooses what the program runs.
        if reason := check_directory(each / MANIFEST):
            raise PackError(each, reason, "name the public key of who signed it (--trust)")
    return [Pack.open(each, key) for each in found]
