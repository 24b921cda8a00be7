"""Opens sets by the words of the command line: archives, one manifest, `sample`; and sets made in code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.errors import ManifestError, unexpected
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import SAMPLE, sample_path

if TYPE_CHECKING:
    from orchestrator.sets.authoring.builder import PipelineSetBuilder

SetWords: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A set as the command line names it: archives, or one manifest, or `sample`."""

AnySet: TypeAlias = "SetWords | PipelineSet | PipelineSetBuilder"
"""A set by its words, opened by the caller, or described in code."""


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a manifest and not of an archive, by its name."""
    return Path(path).suffix.lower() == ".toml"


def paths_of(words: AnySet) -> tuple[str, ...]:
    """The paths that words stand for.

    Raises:
        ManifestError: A manifest is named beside other sets.
        TypeError: They are no words, or the set is in memory.
        ValueError: None is named.
    """
    several = [words] if isinstance(words, str | os.PathLike) else words
    if not isinstance(several, Sequence):
        raise unexpected(words, "a set: a path or several, `sample`, a PipelineSet or a PipelineSetBuilder")
    paths = tuple(os.fspath(each) for each in several)
    if not paths:
        raise ValueError("no set is named")
    if len(paths) > 1 and (manifests := [each for each in paths if is_manifest(each)]):
        raise ManifestError(f"{manifests[0]}: a manifest cannot be combined with other sets; pack it first")
    return tuple(str(sample_path()) if each == SAMPLE else each for each in paths)


def open_paths(paths: Sequence[str]) -> PipelineSet:
    """Open a set by its paths: archives, or one manifest. The caller closes it.

    Raises:
        ArchiveError: An archive cannot be read as a whole.
        ManifestError: The manifest cannot be understood.
    """
    if len(paths) == 1 and is_manifest(paths[0]):
        from orchestrator.sets.authoring.manifest import load_manifest  # most sets are archives

        return load_manifest(Path(paths[0])).source
    return PipelineSet.open(paths)


def in_memory(given: AnySet) -> PipelineSet | None:
    """A set that the caller made or opened, and closes; None for one that words name."""
    if isinstance(given, PipelineSet):
        return given
    if hasattr(given, "pipeline_set"):  # a builder, whose module few programs need
        return given.pipeline_set()
    return None
