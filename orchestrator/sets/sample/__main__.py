"""Rebuild or check the sample set: ``python -m orchestrator.sets.sample [--check]``.

The SPIR-V is rebuilt only where glslangValidator is present, and another version of it may give other code;
so the check does not compile: it packs the committed SPIR-V and compares the records. Records are compared
and not the file, because the deflated bytes depend on the zlib of the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.authoring.manifest import load_manifest, pack_manifest
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path

#: Extensions that glslangValidator knows a stage by.
STAGES = (
    "comp", "vert", "frag", "geom", "tesc", "tese", "task", "mesh",
    "rgen", "rmiss", "rchit", "rahit", "rint", "rcall",
)  # fmt: skip


def shader_sources(folder: Path) -> list[Path]:
    """The GLSL files of a folder that are compiled, sorted; those that are only included are left out."""
    return sorted(each for each in folder.iterdir() if each.suffix[1:] in STAGES)


def check(manifest: Path) -> str | None:
    """What differs between a manifest and the archive beside it, or None."""
    packed = load_manifest(manifest).source.records
    with Archive.open(manifest.with_suffix(".foz")) as committed:
        for tag in RecordTag:
            if list(packed.keys(tag)) != list(committed.keys(tag)):
                return f"the keys of {tag.name} records differ"
            for key in packed.keys(tag):
                if packed.payload(tag, key) != committed.payload(tag, key):
                    return f"the payload of {tag.name} {key:016x} differs"
    return None


def _compile(folder: Path) -> None:
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        print("no glslangValidator: SPIR-V left as it is")
        return
    for source in shader_sources(folder):
        command = [compiler, "-V", "--quiet", "--target-env", "vulkan1.2", "-o", f"{source.name}.spv"]
        subprocess.run([*command, source.name], cwd=folder, check=True)


def main(arguments: list[str]) -> int:
    """Run the command; 0 good, 1 not up to date, 2 cannot be made."""
    manifest = sample_manifest_path()
    archive = manifest.with_suffix(".foz")
    try:
        if arguments == ["--check"]:
            found = check(manifest)
            print(f"{archive.name} is what {manifest.name} gives" if found is None else found)
            return 0 if found is None else 1
        _compile(manifest.parent / "shaders")
        print(f"{len(pack_manifest(manifest, archive).source)} pipelines in {archive.name}")
    except (OrchestratorError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
