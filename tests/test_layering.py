"""Import directions: which room may import which, and which room may use which library.

The table of rooms is the one in docs/design.md, so a new edge between two rooms has to be written down there,
in view of a reviewer. Every import statement counts: inside functions, under TYPE_CHECKING, relative, and
importlib.import_module with a literal name. A module that belongs to no room fails, and so does a row that
names a module which is gone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen

from tests.drivers import REPOSITORY

PACKAGE = "orchestrator"


def table_of_rooms() -> dict[str, tuple[list[str], set[str]]]:
    """The rooms of docs/design.md: the modules of each, and the rooms that it may import."""
    page = (REPOSITORY / "docs" / "design.md").read_text("utf-8")
    _, table = page.split("| room | modules | holds | may import |\n|---|---|---|---|\n")
    rooms = {}
    for row in table.split("\n\n")[0].splitlines():
        room, modules_of, _, imported = (re.findall(r"`([\w.]+)`", cell) for cell in row.split("|")[1:-1])
        rooms[room[0]] = ([f"{PACKAGE}.{each}" for each in modules_of], set(imported))
    return rooms


TABLE = table_of_rooms()
# The longest prefix that matches names the room of a module.
ROOMS = {module: room for room, (modules_of, _) in TABLE.items() for module in modules_of}
ALLOWED = {room: allowed for room, (_, allowed) in TABLE.items()}

# Libraries with a place of their own: module prefixes that may import them.
LIBRARIES = {
    "cffi": ("orchestrator.devices.vulkan",),
    "_cffi_backend": ("orchestrator.devices.vulkan",),
    # A sample's process starts a run.
    "trio": (
        "orchestrator.run",
        "orchestrator.supervise",
        "orchestrator.cluster",
        "orchestrator.bench",
        "orchestrator.cli",
    ),
    "dask": ("orchestrator.cluster",),
    "distributed": ("orchestrator.cluster",),
    "xxhash": ("orchestrator.stores.files.atomic_file",),
    "cryptography": ("orchestrator.stores.signing",),
    "urllib3": ("orchestrator.packs.http_source",),
    "rich": ("orchestrator.cli",),
    "plotly": ("orchestrator.bench.page",),
    "cyclopts": ("orchestrator.cli",),
    "vulkan_object": ("orchestrator.registry.codegen", "orchestrator.devices.vulkan.codegen"),
    "pickle": (),
    "_pickle": (),
    "marshal": (),
    "shelve": (),
    "dill": (),
    "cloudpickle": (),
}

# The schedule is pure: events in, assignments out.
IMPURE_IN_SCHEDULE = {"asyncio", "concurrent", "os", "random", "socket", "subprocess", "threading", "time"}


@frozen
class Import:
    """One import statement: which module imports which, and where."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def modules(root: Path) -> dict[str, Path]:
    """Every module below a folder that holds a package, by dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports_in(root: Path) -> dict[str, tuple[Import, ...]]:
    """Every import of each module below a folder."""
    found = modules(root)
    return {name: tuple(imports_of(name, path, set(found))) for name, path in found.items()}


def imports_of(name: str, path: Path, known: set[str]) -> Iterator[Import]:
    """Every import of one module; `from package import x` names the submodule where x is one."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield Import(name, submodule if submodule in known else base, node.lineno)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (
                Import(name, argument.value, node.lineno)
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def room_of(module: str) -> str | None:
    """The room of a module of the package, or None where it has none."""
    if module == PACKAGE:
        return "root"
    prefixes = [prefix for prefix in ROOMS if module == prefix or module.startswith(prefix + ".")]
    return ROOMS[max(prefixes, key=len)] if prefixes else None


def violations(root: Path) -> list[str]:
    """Everything in a source tree that the tables above do not allow."""
    imports = imports_in(root)
    wrong = [f"{name} belongs to no room" for name in imports if room_of(name) is None]
    for name, of_module in imports.items():
        room = room_of(name)
        if room is None:
            continue
        for each in of_module:
            top = each.imported.partition(".")[0]
            if top == PACKAGE:
                target = room_of(each.imported)
                if target != room and target not in ALLOWED[room]:
                    wrong.append(f"{each}: room {room!r} may not import room {target!r}")
            elif top in LIBRARIES:
                if not any(name == prefix or name.startswith(prefix + ".") for prefix in LIBRARIES[top]):
                    wrong.append(f"{each}: {top} belongs to {', '.join(LIBRARIES[top]) or 'nobody'}")
            elif room == "schedule" and top in IMPURE_IN_SCHEDULE:
                wrong.append(f"{each}: the schedule is pure")
    return wrong


def circles(root: Path) -> list[list[str]]:
    """Modules that import each other, by whatever way round; every import statement counts."""
    found = imports_in(root)
    imports = {
        name: {each.imported for each in of_module if each.imported in found} - {name}
        for name, of_module in found.items()
    }
    # What nothing left imports, or imports nothing left, is in no circle.
    left = set(imports)
    while True:
        free = {name for name in left if not imports[name] & left}
        free |= {name for name in left if not any(name in imports[other] for other in left)}
        if not free:
            return [sorted(left)] if left else []
        left -= free


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circles(REPOSITORY / PACKAGE) == []


def budgets() -> dict[str, int]:
    """The most lines of each room, by the table of docs/design.md."""
    page = (REPOSITORY / "docs" / "design.md").read_text("utf-8")
    _, table = page.split("| room | lines at most | aim |\n|---|---|---|\n")
    return {
        room: int(most) for room, most in re.findall(r"^\| `(\w+)` \| (\d+) \|", table.split("\n\n")[0], re.M)
    }


def test_no_room_grows_beyond_its_lines() -> None:
    lines = dict.fromkeys(ALLOWED, 0)
    for name, path in modules(REPOSITORY / PACKAGE).items():
        if "_generated" not in path.name:
            lines[room_of(name) or ""] += len(path.read_text("utf-8").splitlines())
    assert budgets().keys() == lines.keys()
    assert {room: count for room, count in lines.items() if count > budgets()[room]} == {}


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    for name, imported in (("__init__", ""), ("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        text = f"from {PACKAGE} import {imported}\n" if imported else ""
        (package / f"{name}.py").write_text(text)
    assert circles(package) == [[f"{PACKAGE}.{name}" for name in "abc"]]


def test_imports_follow_the_table() -> None:
    assert violations(REPOSITORY / PACKAGE) == []


def test_every_allowed_edge_is_used() -> None:
    used: dict[str | None, set[str | None]] = {room: set() for room in ALLOWED}
    for name, of_module in imports_in(REPOSITORY / PACKAGE).items():
        for each in of_module:
            if each.imported.partition(".")[0] == PACKAGE:
                used[room_of(name)].add(room_of(each.imported))
    assert {room: allowed - used[room] for room, allowed in ALLOWED.items() if allowed - used[room]} == {}


def test_every_row_names_something_that_exists() -> None:
    known = modules(REPOSITORY / PACKAGE)
    assert [prefix for prefix in ROOMS if prefix not in known] == []
    assert set(ALLOWED) == {*ROOMS.values(), "root"}
    assert [room for room, allowed in ALLOWED.items() if not allowed <= set(ALLOWED)] == []


def test_rooms_form_no_cycle() -> None:
    def reachable(room: str, seen: frozenset[str]) -> Iterator[str]:
        for target in ALLOWED[room] - seen:
            yield target
            yield from reachable(target, seen | {target})

    assert [room for room in ALLOWED if room in set(reachable(room, frozenset()))] == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("sets/jobs.py", "from orchestrator.devices.vulkan.instance import load", "'vulkan'"),
        ("sets/jobs.py", "def f():\n    import orchestrator.run.caches", "'run'"),
        ("sets/jobs.py", "from ..devices import vulkan", "'vulkan'"),
        ("sets/jobs.py", "from .. import cli", "'cli'"),
        ("stores/cache_file.py", "import xxhash", "stores.files.atomic_file"),
        ("stores/report.py", "import trio.lowlevel", "trio"),
        ("sets/archive.py", "from pickle import loads", "nobody"),
        ("sets/archive.py", "import importlib\nimportlib.import_module('pickle')", "nobody"),
        ("schedule/scheduler.py", "import time", "pure"),
        ("cli/compile.py", "from cffi import FFI", "cffi"),
        ("attic/old.py", "", "no room"),
    ],
)
def test_the_walk_sees(tmp_path: Path, module: str, source: str, complaint: str) -> None:
    root = tmp_path / PACKAGE
    for name, text in {
        "devices/vulkan/__init__.py": "",
        "cli/__init__.py": "",
        "stores/files/atomic_file.py": "import xxhash",
        module: source,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", "utf-8")
    (found,) = violations(root)
    assert complaint in found
