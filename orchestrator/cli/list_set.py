"""The verb `list`: shows the contents of a set and its damage, without a device. It reads only."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import Flag, JsonFlag, SetNames
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output
from orchestrator.cli.values import open_set


def list_verb(
    sets: SetNames,
    /,
    *,
    pipelines: Flag = False,
    verify: Annotated[bool, Parameter(negative="--no-verify")] = True,
    json: JsonFlag = False,
) -> int:
    """Show the contents of a set and its damage, without a device.

    A damaged set is shown as far as it can be read. The exit code is 0 despite damage, and 2 if there is no
    set.

    **EXAMPLES**

        orchestrator list sample
        orchestrator list capture.foz capture.1.foz --pipelines
        orchestrator list capture.foz --json

    Args:
        pipelines: Also list the key of every pipeline.
        verify: Read every record and recompute its key; with `--no-verify` read only headers.
    """
    from orchestrator.cli.listed import show_set

    with open_set(sets) as opened:
        show_set(opened, Output(json=json), pipelines=pipelines, verify=verify, json=json)
    return ExitCode.OK
