"""The public names, and what importing them costs.

What `import orchestrator` promises: names that exist and are described, and a quick import that works on a
machine without a Vulkan loader.
"""

from __future__ import annotations

import ast
import inspect
import pydoc
import tomllib
import types
from pathlib import Path

import pytest

import orchestrator
import orchestrator.testing
from orchestrator.version import DISTRIBUTION, VERSION
from tests.drivers import REPOSITORY, run_on_device

# Heavy, or useless without a driver or a terminal: nothing that a library user pays for at import.
KEPT_OUT = ("cffi", "_cffi_backend", "rich", "cyclopts", "orchestrator.cli", "orchestrator.devices.vulkan")

_LOADED_AFTER_IMPORT = """
import sys
def main():
    import orchestrator
    for name in dir(orchestrator):
        getattr(orchestrator, name)
    return sorted(sys.modules)
"""


def public_names(module: types.ModuleType) -> list[str]:
    """Names that a user may rely on: no submodules, nor what testing.py imports for itself."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    own = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    passed_on = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and name in own | passed_on
        and not isinstance(getattr(module, name), types.ModuleType)
    ]


PUBLIC = pytest.mark.parametrize(
    "module", [orchestrator, orchestrator.testing], ids=lambda each: each.__name__
)


@PUBLIC
def test_public_names_are_described(module: types.ModuleType) -> None:
    names = public_names(module)
    assert len(names) > 20
    undescribed = [
        name
        for name in names
        if (inspect.isclass(value := getattr(module, name)) or inspect.isroutine(value))
        and not (value.__doc__ or "").strip()
    ]
    assert undescribed == []


@PUBLIC
def test_public_names_come_from_the_package(module: types.ModuleType) -> None:
    strangers = [
        name
        for name in public_names(module)
        if inspect.isclass(value := getattr(module, name)) or inspect.isroutine(value)
        if value.__module__.partition(".")[0] != "orchestrator"
    ]
    assert strangers == []


@PUBLIC
def test_public_classes_describe_their_public_methods(module: types.ModuleType) -> None:
    undescribed = [
        f"{name}.{member}"
        for name in public_names(module)
        if inspect.isclass(value := getattr(module, name))
        for member, function in vars(value).items()
        if not member.startswith("_")
        and inspect.isfunction(function)
        and not (function.__doc__ or "").strip()
    ]
    assert undescribed == []


def test_import_loads_neither_bindings_nor_command_line() -> None:
    loaded = set(run_on_device(None, _LOADED_AFTER_IMPORT))
    assert "orchestrator" in loaded
    assert sorted(loaded & set(KEPT_OUT)) == []


def test_checkers_and_the_interpreter_see_the_same_names() -> None:
    """What is imported for checkers alone is what loads when it is used, from the same module."""
    tree = ast.parse(Path(orchestrator.__file__).read_text("utf-8"))
    imported = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == orchestrator._HOME_OF
    assert sorted(map(str, imported)) == orchestrator.__all__
    assert set(orchestrator.__all__) <= set(dir(orchestrator))


def test_a_star_brings_every_public_name() -> None:
    scope: dict[str, object] = {}
    exec("from orchestrator import *", scope)
    assert set(orchestrator.__all__) == scope.keys() - {"__builtins__"}


def test_help_describes_the_package_and_its_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(orchestrator))
    for words in (
        "compile_set",
        "class PipelineSetBuilder",
        "Compile Vulkan pipeline sets",
        orchestrator.__version__,
    ):
        assert words in text
    for name in orchestrator.__all__:
        assert name in text


def test_the_version_is_the_distributions() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    assert declared["project"]["name"] == DISTRIBUTION
    assert declared["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "orchestrator.version.VERSION"
    assert orchestrator.__version__ == VERSION
    assert f"\n## {VERSION}" in (REPOSITORY / "CHANGELOG.md").read_text("utf-8")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        orchestrator.nothing  # noqa: B018 - the access is the test


def test_import_alone_loads_no_library() -> None:
    source = "import sys\ndef main():\n    import orchestrator\n    return sorted(sys.modules)\n"
    loaded = set(run_on_device(None, source))
    assert sorted(loaded & {*KEPT_OUT, "numpy", "trio", "msgspec"}) == []
