"""Byte code of generated methods: kept, taken where the text is the same, and never trusted beyond that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.process import GeneratedCode
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


def compiled(folder: Path, **variables: str) -> int:
    """How many classes of attrs a process compiles methods for."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment | {"PYTHONPYCACHEPREFIX": str(folder)} | variables,
        check=True,
    )
    assert not done.stderr
    return int(done.stdout)


def kept(folder: Path) -> Path:
    (found,) = folder.rglob("attrs_classes.*")
    return found


def test_the_second_process_compiles_nothing(folder: Path) -> None:
    assert compiled(folder) > 10
    assert compiled(folder) == 0


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "other"])
def test_a_damaged_file_costs_time_alone(folder: Path, damage: str) -> None:
    first = compiled(folder)
    path = kept(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    bad = {"empty": b"", "cut": bytes(data[:1000]), "bit": bytes(data), "other": bytes(4) + bytes(data[4:])}
    path.write_bytes(bad[damage])
    assert compiled(folder) == first
    assert compiled(folder) == 0


def test_nothing_is_written_where_no_byte_code_is(folder: Path) -> None:
    assert compiled(folder, PYTHONDONTWRITEBYTECODE="1") > 10
    assert not list(folder.rglob("attrs_classes.*"))


def test_a_place_that_cannot_be_written_is_none(folder: Path) -> None:
    folder.write_text("no folder")
    assert compiled(folder) > 10


def test_other_text_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "kept"
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
    one, other = (GeneratedCode(tmp_path / "kept") for _ in range(2))
    for each, number in ((one, 1), (other, 2)):
        each.compile(f"x = {number}", f"<{number}>", "exec")
        each.save()
    monkeypatch.setattr("builtins.compile", None)
    again = GeneratedCode(tmp_path / "kept")
    for number in (1, 2):
        scope: dict[str, int] = {}
        exec(again.compile(f"x = {number}", f"<{number}>", "exec"), scope)
        assert scope["x"] == number


def test_the_process_that_compiles_pipelines_keeps_its_own(folder: Path, tmp_path: Path) -> None:
    """It is a fork, and is ended without the interpreter's end."""
    command = [sys.executable, "-m", "orchestrator", "compile", str(sample_path()), "-d", "simulated"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), "--json"],
        capture_output=True,
        cwd=REPOSITORY,
        env=environment | {"PYTHONPYCACHEPREFIX": str(folder)},
        check=True,
    )
    names = GeneratedCode(kept(folder))._known
    for module in ("run.supervisor", "run.execution", "run.keeping", "run.caches", "cli.compile_arguments"):
        assert any(f"orchestrator.{module}." in name for name in names), module
