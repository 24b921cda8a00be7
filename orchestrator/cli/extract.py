"""The verb `extract`: chosen pipelines of a set as an archive of their own, such as for a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag, SetNames
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural
from orchestrator.cli.values import archive_paths, hash_number, require_writable
from orchestrator.errors import shell_text


def extract_verb(
    sets: SetNames,
    /,
    *,
    only: Annotated[list[str], Parameter(negative="")],
    output: Annotated[Path, Parameter(alias="-o")],
    json: JsonFlag = False,
) -> int:
    """Write some pipelines of a set, and what they need, as an archive of their own.

    **EXAMPLES**

        orchestrator extract game.foz --only ea3ccf0ff2f242eb -o small.foz
        orchestrator extract base.foz more.foz --only ea3ccf0ff2f242eb --only 597276ab99162928 -o two.foz

    Args:
        only: Key of a pipeline, 16 hex digits as reports show them. May be given several times.
        output: The archive to write; an existing one is replaced.
    """
    from orchestrator.cli.documents import ExtractDocument
    from orchestrator.sets.archive.writer import ArchiveWriter
    from orchestrator.sets.extraction import extract
    from orchestrator.sets.opening import open_paths
    from orchestrator.sets.records import KIND_OF_TAG

    paths = archive_paths(sets)
    require_writable(output, inputs=paths)
    with open_paths(paths) as source, ArchiveWriter(output) as writer:
        names = extract(source.records, map(hash_number, only), writer)
    out, size = Output(json=json), output.stat().st_size
    pipelines = sum(tag in KIND_OF_TAG for tag, _ in names)
    out.document(
        lambda: ExtractDocument(output=path_text(output), bytes=size, records=len(names), pipelines=pipelines)
    )
    out.line(
        f"{path_text(output)}: {plural(pipelines, 'pipeline')}, {plural(len(names), 'record')}, "
        f"{byte_text(size)}"
    )
    out.line(f"next: orchestrator compile {shell_text(output)}")
    return ExitCode.OK
