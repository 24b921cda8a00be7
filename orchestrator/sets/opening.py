"""Opens sets by path: archives, or one manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.sets.pipeline_set import PipelineSet


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a manifest and not of an archive, by its name."""
    return Path(path).suffix.lower() == ".toml"


def open_paths(paths: Sequence[str], *, indexed: bool = True) -> PipelineSet:
    """Open a set by its paths: archives, or one manifest. The caller closes it.

    Raises:
        ArchiveError: An archive cannot be read as a whole.
        ManifestError: The manifest cannot be understood.
    """
    if len(paths) == 1 and is_manifest(paths[0]):
        from orchestrator.sets.authoring.manifest import load_manifest  # most sets are archives

        return PipelineSet.from_records(load_manifest(Path(paths[0])).records)
    return PipelineSet.open(paths, indexed=indexed)
