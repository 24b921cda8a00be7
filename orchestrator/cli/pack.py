"""The verb `pack`: writes the pipelines of a manifest as an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.documents import PackDocument, PackedName
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural
from orchestrator.cli.values import require_writable
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import shell_text
from orchestrator.run.records import Hash
from orchestrator.sets.authoring.manifest import pack_manifest


def pack_verb(
    manifest: Path,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    json: JsonFlag = False,
) -> int:
    """Write the pipelines that a manifest describes as a `.foz` archive.

    A manifest names `.spv` files and pipeline state, and permutes them over specialization constants and
    fixed-function state. An existing archive is replaced only if the whole manifest is valid.

    **EXAMPLES**

        orchestrator pack game.toml -o game.foz
        orchestrator pack game.toml -o game.foz --json

    Args:
        manifest: The manifest, a TOML file; paths of shaders are relative to it.
        output: The archive to write, such as `set.foz`.
    """
    require_writable(output, inputs=[manifest])
    out = Output(json=json)
    report = pack_manifest(manifest, output)
    size, described, counts = output.stat().st_size, report.pipelines, report.counts()
    out.document(
        lambda: PackDocument(
            manifest=path_text(manifest),
            output=path_text(output),
            bytes=size,
            records=len(report.records),
            modules=report.modules,
            described=len(described),
            pipelines=dict.fromkeys(PipelineKind, 0) | counts,
            unique=report.unique,
            names=tuple(PackedName(name=each.name, kind=each.kind, key=Hash(each.key)) for each in described),
        )
    )
    kinds = ", ".join(f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in counts.items() if count)
    same = len(described) - report.unique
    out.line(
        f"{path_text(manifest)}: {plural(len(described), 'pipeline')} described, {report.unique:,} "
        f"different ({kinds})" + (f"; {same:,} equal another" if same else "")
    )
    out.line(
        f"{path_text(output)}: {plural(len(report.records), 'record')}, "
        f"{plural(report.modules, 'shader module')}, {byte_text(size)}"
    )
    out.line(f"next: orchestrator compile {shell_text(output)}")
    return ExitCode.OK
