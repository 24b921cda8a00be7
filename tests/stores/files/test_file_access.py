"""Every file operation of the stores goes through one shim: a call beside it would be one that no suite can fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator.stores

FOLDER = Path(orchestrator.stores.__file__).parent
SHIM = "file_operations.py"

MODULES = {"shutil", "tempfile", "io", "fcntl", "msvcrt", "mmap", "glob", "subprocess", "socket"}
# What is left of os: nothing of a file.
OS_NAMES = {"strerror", "getpid"}
# Methods of Path that go to the file system.
METHODS = {
    *("absolute", "chmod", "cwd", "exists", "expanduser", "glob", "group", "hardlink_to", "home", "is_dir"),
    *(
        "is_fifo",
        "is_file",
        "is_mount",
        "is_socket",
        "is_symlink",
        "iterdir",
        "lchmod",
        "link",
        "lstat",
        "mkdir",
    ),
    *(
        "open",
        "owner",
        "read_bytes",
        "read_text",
        "readlink",
        "rename",
        "replace",
        "resolve",
        "rglob",
        "rmdir",
    ),
    *("samefile", "stat", "symlink_to", "touch", "truncate", "unlink", "walk", "write_bytes", "write_text"),
}


def accesses(source: str) -> Iterator[str]:
    """What in a module touches files without the shim."""
    for node in ast.walk(ast.parse(source)):
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
            if node.func.attr in METHODS and owner.rpartition(".")[2] not in {"operations", "inner"}:
                yield f"{owner}.{node.func.attr}()"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_only_the_shim_touches_files(path: Path) -> None:
    found = list(accesses(path.read_text("utf-8")))
    if path.name == SHIM:
        assert found, "the search finds nothing where everything is"
    else:
        assert found == []


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
    assert list(accesses(source))


@pytest.mark.parametrize(
    "source", ["operations.stat(p)", "self.operations.unlink(p)", "os.strerror(5)", "p.name"]
)
def test_what_is_no_access_is_not_found(source: str) -> None:
    assert not list(accesses(source))
