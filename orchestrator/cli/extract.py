"""The verb `extract`: chosen pipelines of a set as an archive of their own, such as for a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag, SetNames, UsedList
from orchestrator.cli.documents import ExtractDocument
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, path_text, plural
from orchestrator.cli.values import archive_paths, hash_number, require_writable, used_keys
from orchestrator.errors import shell_text
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.extraction import extract
from orchestrator.sets.opening import open_paths
from orchestrator.sets.records import KIND_OF_TAG


def extract_verb(
    sets: SetNames,
    /,
    *,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    used: UsedList = None,
    output: Annotated[Path, Parameter(alias="-o")],
    json: JsonFlag = False,
) -> int:
    """Write some pipelines of a set, and what they need, as an archive of their own.

    **EXAMPLES**

        orchestrator extract game.foz --only ea3ccf0ff2f242eb -o small.foz
        orchestrator extract base.foz more.foz --only ea3ccf0ff2f242eb --only 597276ab99162928 -o two.foz
        orchestrator extract game.foz --used bound.foz -o used.foz

    Args:
        only: Key of a pipeline, 16 hex digits as reports show them. May be given several times.
        used: Those that this list names: an archive whose payloads may be empty, as Fossilize's layer writes
            of the pipelines that a program bound. What it names and the set lacks is left out.
        output: The archive to write; an existing one is replaced.
    """
    paths = archive_paths(sets)
    require_writable(output, inputs=[*paths, *([used] if used else [])])
    with open_paths(paths) as source, ArchiveWriter(output) as writer:
        keys = {*map(hash_number, only or ()), *used_keys(used, source)}
        if not keys:
            raise UsageError("extract: no pipeline is named", "name some by --only KEY or --used LIST")
        names = extract(source.records, keys, writer)
    out, size = Output(json=json), output.stat().st_size
    pipelines = sum(tag in KIND_OF_TAG for tag, _ in names)
    out.document(
        lambda: ExtractDocument(output=path_text(output), bytes=size, records=len(names), pipelines=pipelines)
    )
    show_written(out, output, pipelines, len(names))
    return ExitCode.OK


def show_written(out: Output, path: Path, pipelines: int, records: int) -> None:
    """Say what an archive that was written holds, and what can be done with it."""
    holds = f"{plural(pipelines, 'pipeline')}, {plural(records, 'record')}"
    out.line(f"{path_text(path)}: {holds}, {byte_text(path.stat().st_size)}")
    out.line(f"next: orchestrator compile {shell_text(path)}")
