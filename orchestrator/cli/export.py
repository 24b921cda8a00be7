"""The verb `export`: the driver's bytes of a cache file without our header, as engines want them.

Guarantees: what is written was proven byte for byte, and is exactly what the driver gave. Nothing is written
where something is wrong; a file that is there is replaced in one step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, styled
from orchestrator.cli.values import opened_device, require_writable

if TYPE_CHECKING:
    from orchestrator.cli.documents import ExportDocument
    from orchestrator.devices.device import DeviceIdentity


def export_verb(
    file: Path,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    device: Annotated[
        str | None, DEVICE, Parameter(help="Write only what this device would take. " + DEVICE_HELP)
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Write the driver's bytes of a cache file, for VkPipelineCacheCreateInfo::pInitialData.

    They say less than the cache file does: not which driver version and ABI they are of, nor whether they are
    whole. A program that can check the file itself had better do so: docs/examples/pipeline_cache_file.h.

    **EXAMPLES**

        orchestrator export radv.pipeline-cache -o raw.bin
        orchestrator export radv.pipeline-cache -o raw.bin --device radv:navi21 --json

    Args:
        file: A cache file.
        output: The file to write; one that is there is replaced.
    """
    from orchestrator.stores.cache_file import LoadStatus, read_cache_file
    from orchestrator.stores.files.atomic_file import write_atomically

    out = Output(json=json)
    require_writable(output, inputs=[file])
    found = read_cache_file(Path(os.path.realpath(file)), None if device is None else _identity(device))
    good = found.status is LoadStatus.LOADED
    written = write_atomically(output.absolute(), (found.data,)) if good else 0

    def document() -> ExportDocument:
        from orchestrator.cli.documents import ExportDocument

        return ExportDocument(
            path=path_text(file),
            output=path_text(output),
            status=found.status,
            field=found.field,
            detail=found.detail,
            written_bytes=written,
        )

    out.document(document)
    if good:
        out.line(f"{path_text(output)}: {byte_text(written)}, the driver's data of {path_text(file)}")
    else:
        out.line(styled(f"nothing was written: {path_text(file)}: {found.status}: {found.detail}", "bad"))
        out.line(f"next: orchestrator inspect {path_text(file)}")
    return ExitCode.OK if good else ExitCode.BAD_INPUT


def _identity(selector: str) -> DeviceIdentity:
    with opened_device(selector) as device:
        return device.identity
