"""The verb `inspect`: identifies files, and says whether they are whole and a device would accept them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.devices import identity_of
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, display, plural, styled


def inspect_verb(
    files: list[Path],
    /,
    *,
    device: Annotated[
        str | None, DEVICE, Parameter(help="Also say whether this device would accept it. " + DEVICE_HELP)
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show what files are and whether they can be trusted.

    The exit code is 0 if all files are whole and, with --device, all cache files would be accepted; else 2.

    **EXAMPLES**

        orchestrator inspect ~/.cache/orchestrator/*.pipeline-cache
        orchestrator inspect radv.pipeline-cache --device radv:navi31
        orchestrator inspect capture.foz --json

    Args:
        files: Cache files and the files beside them, raw cache data of a driver, packs, or `.foz` archives.
    """
    from orchestrator.cli.documents import InspectDocument
    from orchestrator.cli.inspected import inspected

    output = Output(json=json)
    identity = None if device is None else identity_of(device)
    seen = [inspected(each, identity) for each in files]
    found = tuple(each.document for each in seen)
    bad = sum(not each.good for each in found)
    output.document(lambda: InspectDocument(files=found, good=len(found) - bad, bad=bad))
    for number, each in enumerate(seen):
        if number:
            output.line("")
        output.line(styled(each.document.path, "head"), "  ", each.title)
        output.facts(each.facts)
        for line in each.lines:
            output.line(line)
        if display.quiet and not each.document.good:
            output.problem(styled(f"{each.document.path}: {each.problem}", "bad"))
    if len(found) > 1:
        output.line("")
        output.line(f"{plural(len(found), 'file')}: {len(found) - bad} good, {bad} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK
