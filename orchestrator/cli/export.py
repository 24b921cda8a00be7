"""The verb `export`: writes the driver's bytes of a cache file without our header, for engines.

The bytes are proven, and exactly those that the driver gave. If something is wrong, nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.devices import identity_of
from orchestrator.cli.documents import ExportDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, styled
from orchestrator.cli.values import require_writable
from orchestrator.errors import shell_text
from orchestrator.stores.cache_file import LoadStatus, read_cache_file
from orchestrator.stores.files.atomic_file import write_document


def export_verb(
    file: Path,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    device: Annotated[
        str | None, DEVICE, Parameter(help="Write only what this device would accept. " + DEVICE_HELP)
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Write the driver's bytes of a cache file, for VkPipelineCacheCreateInfo::pInitialData.

    The bytes alone lack the driver version, the ABI and a hash. So a program should rather check the cache
    file itself: see docs/examples/pipeline_cache_file.h.

    **EXAMPLES**

        orchestrator export radv.pipeline-cache -o raw.bin
        orchestrator export radv.pipeline-cache -o raw.bin --device radv:navi21 --json

    Args:
        file: A cache file.
        output: The file to write; an existing one is replaced.
    """
    out = Output(json=json)
    require_writable(output, inputs=[file])
    found = read_cache_file(Path(os.path.realpath(file)), None if device is None else identity_of(device))
    good = found.status is LoadStatus.LOADED
    written = write_document(output.absolute(), found.data) if good else 0
    out.document(
        lambda: ExportDocument(
            path=path_text(file),
            output=path_text(output),
            status=found.status,
            field=found.field,
            detail=found.detail,
            written_bytes=written,
        )
    )
    if good:
        out.line(f"{path_text(output)}: {byte_text(written)}, the driver's data of {path_text(file)}")
    else:
        out.problem(styled(f"nothing was written: {path_text(file)}: {found.status}: {found.detail}", "bad"))
        out.line(f"next: orchestrator inspect {shell_text(file)}")
    return ExitCode.OK if good else ExitCode.BAD_INPUT
