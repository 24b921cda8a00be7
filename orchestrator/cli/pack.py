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
from orchestrator.errors import shell_text
from orchestrator.run.records import Hash
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.records import RecordTag


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
    size, described, source = output.stat().st_size, report.pipelines, report.source
    records, modules = sum(source.tag_counts.values()), source.tag_counts[RecordTag.SHADER_MODULE]
    out.document(
        lambda: PackDocument(
            manifest=path_text(manifest),
            output=path_text(output),
            bytes=size,
            records=records,
            modules=modules,
            described=len(described),
            pipelines=source.counts,
            unique=len(source),
            names=tuple(PackedName(name=each.name, kind=each.kind, key=Hash(each.key)) for each in described),
        )
    )
    kinds = ", ".join(f"{n:,} {kind.value.replace('_', ' ')}" for kind, n in source.counts.items() if n)
    same = len(described) - len(source)
    out.line(
        f"{path_text(manifest)}: {plural(len(described), 'pipeline')} described, {len(source):,} "
        f"different ({kinds})" + (f"; {same:,} equal another" if same else "")
    )
    written = plural(records, "record"), plural(modules, "shader module"), byte_text(size)
    out.line(f"{path_text(output)}: {', '.join(written)}")
    out.line(f"next: orchestrator compile {shell_text(output)}")
    return ExitCode.OK
