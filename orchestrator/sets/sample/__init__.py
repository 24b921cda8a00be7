"""The sample set that ships with the package.

Everything can be tried with it without a capture: shaders of a small game engine (particles, post-processing,
forward and deferred lighting, shadows, terrain, user interface, mesh shaders, pipeline libraries, ray
tracing) and their permutations. The GLSL lies in shaders/ with its SPIR-V beside it; sample.toml names the
pipelines; sample.foz is the packed set. `python -m orchestrator.sets.sample` makes the latter two steps again
and `--check` proves that they are up to date.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

SAMPLE: Final = "sample"
"""The word for the set where sets are named by paths."""


def sample_path() -> Path:
    """Path of the packed sample set, ``sample.foz``."""
    return _file("sample.foz")


def sample_manifest_path() -> Path:
    """Path of the manifest of the sample set, ``sample.toml``; its shaders lie beside it."""
    return _file("sample.toml")


def _file(name: str) -> Path:
    path = resources.files("orchestrator.sets.sample").joinpath(name)
    if not isinstance(path, Path) or not path.is_file():
        raise FileNotFoundError(
            f"{name} is not among the files of orchestrator.sets.sample; install the package unpacked, with "
            "its data"
        )
    return path
