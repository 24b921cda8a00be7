"""The verb `merge`: merges cache files of one device, or packs of several machines, by the driver.

The driver gets a file only after all checks of a load, and the output is its data after the merge. Figures
are bytes as the driver counts them; no driver reports numbers of pipelines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag, PrivateKey, TrustedKey
from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import Output


def merge_verb(
    files: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    device: Annotated[
        str,
        DEVICE,
        Parameter(
            help="The device that made the cache files; required for them. " + DEVICE_HELP, show_default=False
        ),
    ] = "",
    sign: PrivateKey = None,
    trust: TrustedKey = None,
    json: JsonFlag = False,
) -> int:
    """Merge cache files of one device and driver into one, or packs of several machines into one.

    A cache file that the device would not load is left out, and the differing field is shown; the exit code
    is then 2. Packs are merged completely or not at all: if another driver compiled a pack's shards, the
    error names the pack. Where no pack has some shards of a set, the new pack is written, and the exit
    code is 1. With --sign, all packs must be signed, by the same key or by the one of --trust.

    **EXAMPLES**

        orchestrator merge one/*-cache two/*-cache -o all.pipeline-cache -d radv
        orchestrator merge */*-cache -o all.pipeline-cache -d radv:navi21 --json
        orchestrator merge night-1 night-2 night-3 -o release-pack

    Args:
        files: Cache files of the device, or packs.
        output: The cache file to write, replacing an existing one; or the directory of a new pack.
    """
    from orchestrator.cli.merged import merge_files, merge_packs
    from orchestrator.stores.files.atomic_file import is_directory

    out = Output(json=json)
    if any(map(is_directory, files)):
        if device:
            raise UsageError("--device is for cache files: a pack says which devices it is for")
        return merge_packs(files, output, sign, trust, out)
    if sign is not None or trust is not None:
        raise UsageError("--sign and --trust are for packs: a cache file has no signature")
    if not device:
        raise UsageError("the device that made the cache files is missing", "name it with --device")
    return merge_files(files, output, device, out)
