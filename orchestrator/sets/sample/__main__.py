"""Rebuild or check the sample set: ``python -m orchestrator.sets.sample [--check]``.

The SPIR-V is rebuilt only where glslangValidator is present, and another version of it may give other code;
so the check does not compile: it packs the committed SPIR-V and compares the records. Records are compared
and not the file, because the deflated bytes depend on the zlib of the machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.authoring.manifest import ManifestReport, load_manifest, pack_manifest
from orchestrator.sets.records import RecordSource, RecordTag
from orchestrator.sets.sample import sample_manifest_path

#: Extensions that glslangValidator knows a stage by.
STAGES = (
    "comp", "vert", "frag", "geom", "tesc", "tese", "task", "mesh",
    "rgen", "rmiss", "rchit", "rahit", "rint", "rcall",
)  # fmt: skip
TARGET = "vulkan1.2"


def shader_sources(folder: Path) -> list[Path]:
    """The GLSL files of a folder that are compiled, sorted; those that are only included are left out."""
    return sorted(each for each in folder.iterdir() if each.suffix[1:] in STAGES)


def compile_shaders(folder: Path, compiler: str) -> int:
    """Compile every shader of a folder by glslangValidator to its name with ``.spv``; returns how many."""
    sources = shader_sources(folder)
    for source in sources:
        output = source.with_name(f"{source.name}.spv")
        command = [compiler, "-V", "--quiet", "--target-env", TARGET, "-o", output.name, source.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OrchestratorError(f"{source}: {(done.stdout + done.stderr).strip()}")
    return len(sources)


def difference(packed: RecordSource, committed: RecordSource) -> str | None:
    """The first difference between two sets, or None where they hold the same records in the same order."""
    for tag in RecordTag:
        ours, theirs = list(packed.keys(tag)), list(committed.keys(tag))
        if ours != theirs:
            return f"{len(ours)} {tag.name} records are packed, {len(theirs)} others are committed"
        for key in ours:
            if packed.payload(tag, key) != committed.payload(tag, key):
                return f"the payload of {tag.name} {key:016x} differs"
    return None


def check(manifest: Path) -> str | None:
    """What differs between a manifest and the archive beside it, or None."""
    with Archive.open(manifest.with_suffix(".foz")) as committed:
        return difference(load_manifest(manifest).records, committed)


def rebuild(manifest: Path) -> tuple[int, ManifestReport]:
    """Compile the shaders beside a manifest, where the compiler is there, and pack it."""
    compiler = shutil.which("glslangValidator")
    compiled = compile_shaders(manifest.parent / "shaders", compiler) if compiler else 0
    return compiled, pack_manifest(manifest, manifest.with_suffix(".foz"))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 good, 1 not up to date, 2 cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.sets.sample", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is committed; write nothing")
    chosen = parser.parse_args(arguments)
    manifest = sample_manifest_path()
    archive = manifest.with_suffix(".foz")
    try:
        if chosen.check:
            found = check(manifest)
            if found is not None:
                print(f"{archive.name} is not what {manifest.name} gives: {found}", file=sys.stderr)
                print("Run python -m orchestrator.sets.sample and commit the result.", file=sys.stderr)
                return 1
            print(f"{archive.name} is what {manifest.name} gives")
            return 0
        compiled, report = rebuild(manifest)
    except (OrchestratorError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    shaders = f"{compiled} shaders compiled" if compiled else "no glslangValidator: SPIR-V left as it is"
    kinds = ", ".join(f"{count} {kind.value}" for kind, count in report.counts().items())
    print(f"{shaders}; {report.unique} pipelines ({kinds}), {archive.stat().st_size} bytes in {archive.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
