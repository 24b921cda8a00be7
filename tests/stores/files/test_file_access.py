"""Every file operation of the stores goes through one shim: no suite could fail a call beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

import orchestrator.stores

FOLDER = Path(orchestrator.stores.__file__).parent
SHIM = FOLDER / "files" / "atomic_file.py"
# What of it makes the calls; the rest of the module goes through these, like every other one.
REAL = {"FileOperations", "_owned", "_status"}

# SQLite makes its own calls, which no shim can fail: there the real file is damaged, filled and read-only,
# and processes are killed (test_binary_store.py, faults/test_state_faults.py).
OF_SQLITE = {FOLDER / "binary_store.py", FOLDER / "state.py"}

MODULES = {"shutil", "tempfile", "io", "fcntl", "msvcrt", "mmap", "glob", "subprocess", "socket"}
# What is left of os: nothing of a file.
OS_NAMES = {"strerror", "getpid", "urandom", "PathLike", "fsencode", "fsdecode"}
# What has methods of these names and is no path: the shim itself, a copy of a struct, the store of
# binaries, a pack, which is read through the shim.
NO_PATHS = {*("files()", "super()", "structs", "BinaryStore", "Pack", "State", "content")}
# Methods of Path that go to the file system.
METHODS = {each for each in set(dir(Path)) - set(dir(PurePath)) if not each.startswith("_")}


def definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}


def accesses(tree: ast.AST) -> Iterator[str]:
    """What in a tree touches files without the shim."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES | {"os"}:
            yield str(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open()"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr not in OS_NAMES:
                yield f"os.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in METHODS and owner.rpartition(".")[2] not in NO_PATHS:
                yield f"{owner}.{node.func.attr}()"


@pytest.mark.parametrize(
    "path",
    sorted({*FOLDER.rglob("*.py")} - OF_SQLITE),
    ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")),
)
def test_only_the_shim_touches_files(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    if path == SHIM:
        real = [each for name, each in definitions(tree).items() if name in REAL]
        assert all(list(accesses(each)) for each in real), "the search finds nothing where everything is"
        tree.body = [each for each in tree.body if each not in real and not isinstance(each, ast.Import)]
    assert list(accesses(tree)) == []


@pytest.mark.parametrize(
    "source",
    [
        "open(p)",
        "import shutil",
        "from os import path",
        "os.path.exists(p)",
        "p.read_bytes()",
        "Path(p).stat()",
    ],
)
def test_an_access_beside_the_shim_is_found(source: str) -> None:
    assert list(accesses(ast.parse(source)))
