# Purpose: the import directions of the package, as a table that has to be edited, in view of a reviewer,
# before a new edge between two rooms can exist.
# Guarantees: every import statement counts: inside functions, under TYPE_CHECKING, relative, and
# importlib.import_module with a literal name. A module that belongs to no room fails, so does a row of the
# table that names a room which is gone.
"""Import directions: which room may import which, and which room may use which library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

from tests.drivers import REPOSITORY

PACKAGE = "orchestrator"

# The longest prefix that matches names the room of a module. "seam" is what crosses between rooms: the Device
# Protocol and its values; "devices" is the one place that opens a device.
ROOMS = {
    "orchestrator.errors": "errors",
    "orchestrator.version": "errors",
    "orchestrator.children": "children",
    "orchestrator.registry": "registry",
    "orchestrator.devices": "devices",
    "orchestrator.devices.device": "seam",
    "orchestrator.devices.image": "seam",
    "orchestrator.devices.request": "seam",
    "orchestrator.devices.sources": "seam",
    "orchestrator.devices.simulated": "simulated",
    "orchestrator.devices.vulkan": "vulkan",
    "orchestrator.sets": "sets",
    "orchestrator.schedule": "schedule",
    "orchestrator.run": "run",
    "orchestrator.stores": "stores",
    "orchestrator.stores.files": "files",
    "orchestrator.bench": "bench",
    "orchestrator.key_dependence": "key_dependence",
    "orchestrator.cli": "cli",
    "orchestrator.testing": "testing",
}

# What each room may import. The root package, which only re-exports, may import any but the command line and
# the bindings.
ALLOWED = {
    "errors": set[str](),
    # It names the services that a child may run, and imports none of them.
    "children": {"errors"},
    "registry": {"errors"},
    # What a request enables is said in the registry's names.
    "seam": {"errors", "registry"},
    "simulated": {"errors", "registry", "seam"},
    "vulkan": {"errors", "registry", "seam"},
    "devices": {"errors", "seam", "simulated", "vulkan"},
    "sets": {"errors", "children", "registry", "seam"},
    "schedule": {"errors", "seam"},
    # Nothing of Vulkan, and nothing of what the files are for.
    "files": {"errors"},
    "stores": {"errors", "seam", "files"},
    # "devices" is the one place that opens a device; the main job opens one for each group of features.
    "run": {"errors", "children", "registry", "seam", "devices", "sets", "schedule", "stores", "files"},
    # Takes samples: opens devices and runs sets; then judges and reports.
    "bench": {
        "errors",
        "children",
        "registry",
        "seam",
        "devices",
        "sets",
        "schedule",
        "stores",
        "run",
    },
    # Opens devices in processes of its own, with pipelines of the sample set.
    "key_dependence": {"errors", "children", "registry", "seam", "devices", "sets", "stores"},
    "cli": {
        "errors",
        "registry",
        "seam",
        "devices",
        "sets",
        "schedule",
        "stores",
        "files",
        "run",
        "bench",
        "key_dependence",
    },
    # What users test with, in one place.
    "testing": {"seam", "simulated", "files"},
    "root": {"errors", "seam", "devices", "simulated", "sets", "schedule", "stores", "files", "run"},
}

# Libraries with a place of their own: module prefixes that may import them.
LIBRARIES = {
    "cffi": ("orchestrator.devices.vulkan",),
    "_cffi_backend": ("orchestrator.devices.vulkan",),
    # A sample's process starts a run.
    "trio": ("orchestrator.run", "orchestrator.bench", "orchestrator.cli"),
    "xxhash": ("orchestrator.stores.files.atomic_file",),
    "rich": ("orchestrator.cli",),
    "plotly": ("orchestrator.bench.html_report",),
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
    if module == f"{PACKAGE}.__main__":
        return "cli"
    prefixes = [prefix for prefix in ROOMS if module == prefix or module.startswith(prefix + ".")]
    return ROOMS[max(prefixes, key=len)] if prefixes else None


def violations(root: Path) -> list[str]:
    """Everything in a source tree that the tables above do not allow."""
    known = modules(root)
    wrong = [f"{name} belongs to no room" for name in known if room_of(name) is None]
    for name, path in known.items():
        room = room_of(name)
        if room is None:
            continue
        for each in imports_of(name, path, set(known)):
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
    found = modules(root)
    imports = {
        name: {each.imported for each in imports_of(name, path, set(found)) if each.imported in found}
        - {name}
        for name, path in found.items()
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


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    for name, imported in (("__init__", ""), ("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        text = f"from {PACKAGE} import {imported}\n" if imported else ""
        (package / f"{name}.py").write_text(text)
    assert circles(package) == [[f"{PACKAGE}.{name}" for name in "abc"]]


def test_imports_follow_the_table() -> None:
    assert violations(REPOSITORY / PACKAGE) == []


def test_every_row_names_something_that_exists() -> None:
    known = modules(REPOSITORY / PACKAGE)
    assert [prefix for prefix in ROOMS if prefix not in known] == []
    assert set(ALLOWED) == {*ROOMS.values(), "root"}


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
        ("sets/jobs.py", "def f():\n    import orchestrator.run.merge", "'run'"),
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
