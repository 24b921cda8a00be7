"""Lists the modules that a warm compile runs through: what a newcomer must read to follow one.

Compiles the set twice through the command line. During the second compile, every process and its forks record
the modules that they import, and the modules of which they run a function.

Guarantees: the counts cover all processes. *Imported* counts every imported module; *run through* only
modules with a function that ran, including methods that attrs generates. Load does not affect the counts.

Command: python benchmarks/warm_modules.py --device radv:navi21
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "orchestrator"


class _Notes:
    """Notes modules of the package in a file that all processes append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[CodeType] = set()

    def _note(self, what: str, module: str) -> None:
        # Opened anew each time: a fork closes what it does not know.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{what} {module}\n".encode())
        os.close(file)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Note what is imported; find nothing."""
        if f"{name}.".startswith(f"{PACKAGE}."):
            self._note("imported", name)
        return None

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note in which modules functions run."""
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith("<"):
            return  # the body of a module, class or comprehension
        if (name := _module_of(code)) is not None:
            self._note("run", name)


def _module_of(code: CodeType) -> str | None:
    if code.co_filename.startswith("<attrs generated"):
        words = code.co_filename.strip("<>").split()
        owner = words[-1].rpartition(".")[0]
        return owner if owner.partition(".")[0] == PACKAGE else None
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT / PACKAGE):
        return None
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def traced(notes: Path, arguments: Sequence[str]) -> None:
    """Be the command line, and note what is imported and run."""
    found = _Notes(notes)
    sys.meta_path.insert(0, found)
    sys.argv[1:] = arguments
    threading.setprofile(found.profile)
    sys.setprofile(found.profile)
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)


def modules_of_warm_compile(pipelines: str, device: str) -> tuple[set[str], set[str]]:
    """The modules that the second compile of a set imports, and those that it runs through.

    Raises:
        subprocess.CalledProcessError: A compile failed.
    """
    with TemporaryDirectory() as folder:
        arguments = ["compile", pipelines, "--device", device, "--cache-dir", folder, "--json"]
        notes = Path(folder, "notes")
        for command in (["-m", PACKAGE], [__file__, "--traced", str(notes)]):
            subprocess.run([sys.executable, *command, *arguments], check=True, capture_output=True)
        pairs = {tuple(line.split()) for line in notes.read_text("utf-8").splitlines()}
    imported, run = ({name for what, name in pairs if what == each} for each in ("imported", "run"))
    return imported, run


def _is_empty(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."), "__init__.py")
    return path.is_file() and all(
        isinstance(each, ast.Expr) for each in ast.parse(path.read_text("utf-8")).body
    )


def main() -> None:
    """Count, and list."""
    if sys.argv[1:2] == ["--traced"]:
        traced(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description="Which modules does a warm compile run through?")
    parser.add_argument("--device", default="simulated", help="as in `orchestrator compile --device`")
    parser.add_argument("--set", default="sample", help="an archive; default: the sample")
    options = parser.parse_args()
    imported, run = modules_of_warm_compile(options.set, options.device)
    for name in sorted(imported):
        print("run through" if name in run else "imported   ", name)
    empty = sum(_is_empty(name) for name in imported)
    print(f"{len(imported)} imported, of which {empty} packages have no code; {len(run)} run through")


if __name__ == "__main__":
    main()
