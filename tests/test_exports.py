"""What `import orchestrator` promises: names that exist, a quick import, and no need of a Vulkan loader."""

from __future__ import annotations

import ast
import enum
import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import attrs
import msgspec
import pytest

import orchestrator
import orchestrator.testing
from orchestrator.version import DISTRIBUTION, VERSION
from tests.drivers import REPOSITORY, run_on_device

# Heavy, or useless without a driver or a terminal: nothing that a library user pays for at import.
KEPT_OUT = (
    "cffi",
    "_cffi_backend",
    "rich",
    "cyclopts",
    "orchestrator.cli",
    "orchestrator.devices.vulkan.context",
)

_LOADED_AFTER_IMPORT = """
import sys
def main():
    import orchestrator
    alone = sorted(sys.modules)
    for name in dir(orchestrator):
        getattr(orchestrator, name)
    return alone, sorted(sys.modules)
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
def test_public_names_come_from_the_package(module: types.ModuleType) -> None:
    strangers = [
        name
        for name in public_names(module)
        if inspect.isclass(value := getattr(module, name)) or inspect.isroutine(value)
        if value.__module__.partition(".")[0] != "orchestrator"
    ]
    assert strangers == []


def public_functions(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType, str]]:
    """Functions, and public methods with what their class says: name, function, words of its surroundings."""
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value, inspect.getdoc(inspect.getmodule(value)) or ""
        elif inspect.isclass(value):
            around = f"{inspect.getdoc(value)}\n{inspect.getdoc(inspect.getmodule(value))}"
            for member, found in vars(value).items():
                function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", function, around


def raised_by_itself(function: types.FunctionType) -> set[str]:
    """Exceptions that a function names behind `raise`, but for those that it may catch itself."""
    names: set[str] = set()

    def walk(node: ast.AST) -> None:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(each, ast.Raise):
                called = each.exc.func if isinstance(each.exc, ast.Call) else each.exc
                if isinstance(called, ast.Name) and called.id.endswith(("Error", "Exception")):
                    names.add(called.id)
            if isinstance(each, ast.Try) and each.handlers:
                for part in (*each.handlers, *each.orelse, *each.finalbody):
                    walk(part)
            else:
                walk(each)

    walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0])
    return names


@PUBLIC
def test_what_a_public_function_raises_is_described(module: types.ModuleType) -> None:
    unsaid = {
        f"{name}: {error}"
        for name, function, around in public_functions(module)
        for error in raised_by_itself(function)
        if not (inspect.getdoc(function) or "").startswith("See `")  # what it implements says it
        and error not in f"{inspect.getdoc(function)}\n{around}"
    }
    assert unsaid == set()


def is_plain(kind: type) -> bool:
    """Whether values of a type are safe by nature: they cannot change, or are raised."""
    if issubclass(kind, Exception | enum.Enum) or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return attrs.has(kind) and kind.__setattr__ is not object.__setattr__


@PUBLIC
def test_from_which_threads_a_public_name_may_be_used_is_said(module: types.ModuleType) -> None:
    unsaid = []
    for name in public_names(module):
        value = getattr(module, name)
        if (inspect.isclass(value) and not is_plain(value)) or inspect.isfunction(value):
            words = f"{inspect.getdoc(value)}\n{inspect.getdoc(inspect.getmodule(value))}"
            if "thread" not in words.lower():
                unsaid.append(name)
    assert unsaid == []


def test_import_loads_neither_bindings_nor_command_line() -> None:
    alone, with_all_names = map(set, run_on_device(None, _LOADED_AFTER_IMPORT))
    assert "orchestrator" in alone
    assert alone.isdisjoint({*KEPT_OUT, "numpy", "trio", "msgspec"})
    assert with_all_names.isdisjoint(KEPT_OUT)


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


def page_examples() -> dict[str, str]:
    """The examples in Python of all pages, and the programs beside them, by a name for each."""
    found = {}
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        for name, code in re.findall(r"```python example=(\w+)\n(.*?)```", page.read_text("utf-8"), re.S):
            found[f"{page.stem.lower().replace('-', '_')}_{name}"] = code
    for program in sorted((REPOSITORY / "docs" / "examples").glob("*.py")):
        found[program.stem] = program.read_text("utf-8")
    return found


def test_at_most_40_names_each_in_an_example_and_none_from_inside() -> None:
    examples = page_examples()
    assert len(orchestrator.__all__) <= 40
    modules, names = set[str](), set[str]()
    for code in examples.values():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator"):
                modules.add(node.module or "")
                names.update(each.name for each in node.names)
    assert modules == {"orchestrator", "orchestrator.testing"}
    assert set(orchestrator.__all__) - names == set()


def test_examples_are_typed(tmp_path: Path) -> None:
    """`mypy --strict` finds nothing in any of them."""
    for name, code in page_examples().items():
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(
        [*command, *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_help_describes_the_package_and_its_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(orchestrator))
    for words in (
        "while the program goes on",
        "class PipelineSetBuilder",
        "Compile Vulkan pipelines before they are needed",
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


def test_nothing_tells_to_install_the_other_project_of_that_name() -> None:
    named = re.compile(r"(?:pipx?|uv pip) install[^\n`]*(?<![\w/.-])orchestrator\b(?![/.])")
    assert named.search("pip install 'orchestrator[report]'")
    assert not named.search(f"pip install '{DISTRIBUTION}[report]'")
    files = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "Makefile"]
    for folder, pattern in (("docs", "*.md"), ("orchestrator", "*.py"), ("benchmarks", "*.py"), (".ci", "*")):
        files += [each for each in (REPOSITORY / folder).rglob(pattern) if each.is_file()]
    assert len(files) > 100
    assert [each for each in files if named.search(each.read_text("utf-8", "replace"))] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        orchestrator.nothing  # noqa: B018 - the access is the test
