# Purpose: from what a user calls a set to the set.
"""Sets by name: archives, a manifest, or the sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.errors import UsageError
from orchestrator.sets.authoring.manifest import load_manifest
from orchestrator.sets.pipeline_set import PipelineSet

SAMPLE = "sample"


def open_set(names: Sequence[str]) -> PipelineSet:
    """Open a set; the caller closes it.

    Args:
        names: Paths of archives, or the word ``sample`` for the set that ships with the package; or one path of a
            manifest.

    Raises:
        UsageError: A manifest stands beside something else, or the package came without its sample.
        ArchiveError: An archive cannot be read as a whole.
        ManifestError: The manifest cannot be understood.
    """
    manifests = [name for name in names if Path(name).suffix.lower() == ".toml"]
    if manifests and len(names) > 1:
        raise UsageError(
            f"{manifests[0]}: a manifest cannot be combined with other sets",
            f"pack it (`orchestrator pack {manifests[0]} -o OUT.foz`) and name the archive instead",
        )
    if manifests:
        return PipelineSet.from_records(load_manifest(Path(manifests[0])).records)
    return PipelineSet.open([_archive(name) for name in names])


def set_paths(names: Sequence[str]) -> tuple[str, ...]:
    """The files of a set, absolute, for a process that opens it by its paths.

    Raises:
        UsageError: The package came without its sample.
    """
    return tuple(str(Path(_archive(name)).absolute()) for name in names)


def _archive(name: str) -> str:
    if name != SAMPLE:
        return name
    from orchestrator.sets.sample import sample_path

    try:
        return str(sample_path())
    except FileNotFoundError as error:
        raise UsageError(f"the sample set is not there: {error}") from error
