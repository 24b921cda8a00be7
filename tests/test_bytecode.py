"""Byte code that is kept: taken where the interpreter would use the same, and never trusted beyond that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator import bytecode
from orchestrator.bytecode import GeneratedCode, ModuleCode, _read
from orchestrator.sets.sample import sample_path
from tests.drivers import REPOSITORY

PROGRAM = """
import builtins, sys
real, compiled = builtins.compile, []
def counting(text, name, *more, **options):
    compiled.append(str(name))
    return real(text, name, *more, **options)
builtins.compile = counting
from orchestrator.process import end_process, own_interpreter
own_interpreter()
from orchestrator.run.options import CompileOptions, TrialLimits
from attrs import evolve
assert evolve(CompileOptions(), workers=3) == CompileOptions(workers=3) != CompileOptions()
assert "workers=3" in repr(CompileOptions(workers=3))
try:
    CompileOptions(workers=0)
except ValueError:
    print(sum(each.startswith("<attrs") and "orchestrator" in each for each in compiled))
assert len({CompileOptions(), CompileOptions(), evolve(CompileOptions(), workers=3)}) == 2
end_process(0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where an interpreter keeps byte code."""
    return tmp_path / "code"


def output_of(*arguments: str, **variables: str) -> str:
    """What an interpreter prints that may write byte code; it must end well and say nothing else."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment | variables,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def compiled(folder: Path, **variables: str) -> int:
    """How many classes of attrs a process compiles methods for."""
    return int(output_of("-c", PROGRAM, PYTHONPYCACHEPREFIX=str(folder), **variables))


def kept(folder: Path) -> Path:
    (found,) = folder.rglob("attrs_classes.*")
    return found


def damage(path: Path, how: str) -> None:
    """Make a file of kept byte code empty, or cut it, or change one bit or its first bytes."""
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    bad = {"empty": b"", "cut": data[:300], "bit": flipped, "other": bytes(4) + data[4:]}
    path.write_bytes(bad[how])


def test_the_second_process_compiles_nothing(folder: Path) -> None:
    assert compiled(folder) > 10
    assert compiled(folder) == 0


@pytest.mark.parametrize("how", ["empty", "cut", "bit", "other"])
def test_a_damaged_file_costs_time_alone(folder: Path, how: str) -> None:
    first = compiled(folder)
    damage(kept(folder), how)
    assert compiled(folder) == first
    assert compiled(folder) == 0


def test_nothing_is_written_where_no_byte_code_is(folder: Path) -> None:
    assert compiled(folder, PYTHONDONTWRITEBYTECODE="1") > 10
    assert not list(folder.rglob("attrs_classes.*"))


def test_a_place_that_cannot_be_written_is_none(folder: Path) -> None:
    folder.write_text("no folder")
    assert compiled(folder) > 10


def test_what_cannot_be_kept_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, where each process would leave another file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "kept").mkdir()
    code = GeneratedCode(str(tmp_path / "kept"))
    code.compile("x = 1", "<one>", "exec")
    code.save()
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_other_text_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = str(tmp_path / "kept")
    first = GeneratedCode(path)
    scope: dict[str, int] = {}
    exec(first.compile("x = 1", "<one>", "exec"), scope)
    first.save()
    again = GeneratedCode(path)
    exec(again.compile("x = 2", "<one>", "exec"), scope)
    assert scope["x"] == 2
    again.save()
    exec(GeneratedCode(path).compile("x = 2", "<one>", "exec"), scope)
    assert scope["x"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_what_several_processes_compile_is_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    one, other = (GeneratedCode(str(tmp_path / "kept")) for _ in range(2))
    for each, number in ((one, 1), (other, 2)):
        each.compile(f"x = {number}", f"<{number}>", "exec")
        each.save()
    monkeypatch.setattr("builtins.compile", None)
    again = GeneratedCode(str(tmp_path / "kept"))
    for number in (1, 2):
        scope: dict[str, int] = {}
        exec(again.compile(f"x = {number}", f"<{number}>", "exec"), scope)
        assert scope["x"] == number


def test_the_process_that_compiles_pipelines_keeps_its_own(folder: Path, tmp_path: Path) -> None:
    """It is a fork, and is ended without the interpreter's end."""
    command = ["-m", "orchestrator", "compile", str(sample_path()), "-d", "simulated", "--json"]
    output_of(*command, "--cache-dir", str(tmp_path / "cache"), PYTHONPYCACHEPREFIX=str(folder))
    names = _read(str(kept(folder)))
    for module in ("run.supervisor", "run.execution", "run.keeping", "run.caches", "cli.compile_arguments"):
        assert any(f"orchestrator.{module}." in name for name in names), module
    modules = {
        file.name.partition(".")[0].removeprefix("modules_"): set(_read(str(file)))
        for file in folder.rglob("modules_*")
    }
    assert {"attr", "orchestrator.cli.program", "inspect"} <= modules["start"]
    assert {"numpy", "trio", "orchestrator.supervise.supervisor", "orchestrator.run.execution"} <= modules[
        "compile"
    ]
    names_of_all = modules["start"] | modules["compile"]
    assert modules["start"].isdisjoint(modules["compile"])
    assert not {"cyclopts", "rich", "orchestrator.cli.application", "orchestrator.cli.compile_report"} & (
        names_of_all
    )


IMPORTS = """
import sys
from orchestrator.bytecode import ModuleCode
sys.path[:0] = {path}
code = ModuleCode({file})
code.install()
import one, some, some.inner
code.remove()
import late
code.save()
for each in (one, some, some.inner, late):
    spec = each.__spec__
    print(each.__name__, type(spec.loader).__name__, each.value)
    assert each.__file__ == spec.origin and spec.loader.get_filename(each.__name__) == spec.origin
    assert each.__cached__.endswith(".pyc") and spec.has_location
    assert bool(spec.submodule_search_locations) == hasattr(each, "__path__") == (each is some)
"""
READ, KEPT = "SourceFileLoader", "_KeptLoader"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with modules."""
    made = tmp_path / "sources"
    (made / "some").mkdir(parents=True)
    for name in ("one", "some/__init__", "some/inner", "late"):
        (made / f"{name}.py").write_text(f"value = {name!r}\n")
    return made


def imported(tmp_path: Path, *path: Path, **variables: str) -> list[tuple[str, str]]:
    """By what a process imported `one`, `some`, `some.inner` and `late`, and their values."""
    source = IMPORTS.format(path=[str(each) for each in path], file=repr(str(tmp_path / "kept")))
    rows = [line.split() for line in output_of("-c", source, **variables).splitlines()]
    assert [name for name, _, _ in rows] == ["one", "some", "some.inner", "late"]
    return [(loader, value) for _, loader, value in rows]


def loaders(rows: list[tuple[str, str]]) -> list[str]:
    return [loader for loader, _ in rows]


def test_modules_that_were_imported_are_given_to_the_next_process(sources: Path, tmp_path: Path) -> None:
    first = imported(tmp_path, sources)
    assert loaders(first) == [READ, READ, READ, READ]
    again = imported(tmp_path, sources)
    assert loaders(again) == [KEPT, KEPT, KEPT, READ]
    assert [value for _, value in again] == ["one", "some/__init__", "some/inner", "late"]


def test_a_module_whose_source_changed_is_read(sources: Path, tmp_path: Path) -> None:
    imported(tmp_path, sources)
    (sources / "some/inner.py").write_text("value = 'changed'\n")
    assert imported(tmp_path, sources)[1:3] == [(KEPT, "some/__init__"), (READ, "changed")]
    assert imported(tmp_path, sources)[1:3] == [(KEPT, "some/__init__"), (KEPT, "changed")]


@pytest.mark.parametrize("name", ["one.py", "some/__init__.py"])
def test_a_module_of_an_earlier_folder_comes_first(name: str, sources: Path, tmp_path: Path) -> None:
    imported(tmp_path, sources)
    earlier = tmp_path / "earlier"
    (earlier / name).parent.mkdir(parents=True)
    (earlier / name).write_text("value = 'other'\n")
    if name.startswith("some"):
        (earlier / "some/inner.py").write_text("value = 'other'\n")
    (earlier / "late").write_text("no module")
    rows = imported(tmp_path, earlier, sources)
    others = [1, 2] if name.startswith("some") else [0]
    assert [place for place, row in enumerate(rows) if row == (READ, "other")] == others
    assert [place for place, row in enumerate(rows) if row[0] == KEPT] == [
        place for place in range(3) if place not in others
    ]


def test_a_module_of_an_earlier_zip_file_comes_first(sources: Path, tmp_path: Path) -> None:
    archive = tmp_path / "earlier.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("another.py", "value = 'other'")
    imported(tmp_path, sources)
    assert loaders(imported(tmp_path, sources, archive)) == [KEPT] * 3 + [READ]
    assert loaders(imported(tmp_path, archive, sources)) == [READ] * 4


def test_modules_of_a_folder_that_is_not_searched_are_not_given(sources: Path, tmp_path: Path) -> None:
    imported(tmp_path, sources)
    moved = sources.rename(tmp_path / "moved")
    shutil.copytree(moved, sources)  # with the times of the files
    assert loaders(imported(tmp_path, moved)) == [READ] * 4


@pytest.mark.parametrize("how", ["empty", "cut", "bit", "other"])
def test_a_damaged_file_of_modules_costs_time_alone(how: str, sources: Path, tmp_path: Path) -> None:
    imported(tmp_path, sources)
    damage(tmp_path / "kept", how)
    assert loaders(imported(tmp_path, sources)) == [READ] * 4
    assert loaders(imported(tmp_path, sources)) == [KEPT] * 3 + [READ]


def test_modules_are_not_kept_where_no_byte_code_is(sources: Path, tmp_path: Path) -> None:
    assert loaders(imported(tmp_path, sources, PYTHONDONTWRITEBYTECODE="1")) == [READ] * 4
    assert not (tmp_path / "kept").exists()
    imported(tmp_path, sources)
    (tmp_path / "kept").chmod(0o400)
    assert loaders(imported(tmp_path, sources, PYTHONDONTWRITEBYTECODE="1")) == [KEPT] * 3 + [READ]


def test_a_fork_keeps_what_it_imported_itself(sources: Path, tmp_path: Path) -> None:
    source = f"""
import os, sys
from orchestrator.bytecode import ModuleCode
sys.path.insert(0, {str(sources)!r})
code = ModuleCode({str(tmp_path / "kept")!r})
code.install()
import one
if os.fork() == 0:
    import some
    code.save()
    os._exit(0)
os.wait()
"""
    output_of("-c", source)
    assert set(_read(str(tmp_path / "kept"))) == {"some"}


def test_modules_are_not_gathered_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    gathered: list[str] = []
    monkeypatch.setattr("orchestrator.bytecode._module", gathered.append)
    (tmp_path / "file").touch()
    for folder, expected in (("file", []), ("folder", ["some"])):
        code = ModuleCode(str(tmp_path / folder / "kept"))
        code.find_spec("some")
        code.save()
        assert gathered == expected
    assert not list((tmp_path / "folder").iterdir())


def test_a_file_of_another_format_is_none(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(tmp_path, sources)
    assert _read(str(tmp_path / "kept"))
    monkeypatch.setattr("orchestrator.bytecode._HEAD", b"0" + bytecode._HEAD[1:])
    assert _read(str(tmp_path / "kept")) == {}
