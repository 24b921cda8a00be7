"""What is decided before the program is imported: whether it starts again for its work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import malloc
from orchestrator.cli.early import compiles_much
from orchestrator.malloc import compiling_environment, restart_for_compiling
from orchestrator.stores.kinds import PLAN
from tests.cli.conftest import run_program, run_python
from tests.drivers import REPOSITORY, unsupported

LARGE = 8 << 20  # with any number of processors
DAY_S = 86_400


def file_of(path: Path, size: int, age_s: float = 0.0) -> str:
    """A sparse file, last written so long before a fixed day."""
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return str(path)


@pytest.mark.parametrize(("processors", "mebibytes"), [(1, 4), (2, 2), (8, 1), (64, 1)])
def test_from_some_mebibytes_on_sets_together_are_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int, mebibytes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    half, rest = (file_of(tmp_path / name, mebibytes << 19) for name in ("a.foz", "b.foz"))
    empty = ["--cache-dir", str(tmp_path / "nothing")]
    assert compiles_much(["compile", half, rest, *empty])
    assert not compiles_much(["compile", half, *empty])
    assert not compiles_much(["list", half, rest, *empty])
    assert not compiles_much([])
    assert compiles_much(["calibrate"])


def test_what_is_no_file_counts_nothing(tmp_path: Path) -> None:
    large = file_of(tmp_path / "a.foz", LARGE)
    odd = ["sample", "no\0file", str(tmp_path), str(tmp_path / "absent"), "--device"]
    assert not compiles_much(["compile", *odd])
    assert compiles_much(["compile", *odd, large, f"--cache-dir={tmp_path / 'nothing'}"])


@pytest.mark.parametrize("spelling", ["--cache-dir {}", "--cache-dir={}"])
def test_a_set_with_a_newer_plan_was_compiled_before(tmp_path: Path, spelling: str) -> None:
    large = file_of(tmp_path / "a.foz", LARGE, age_s=DAY_S)
    caches = tmp_path / "caches"
    caches.mkdir()
    command = ["compile", large, *spelling.format(caches).split(" ")]
    file_of(caches / "radv.pipeline-cache", 10)
    assert compiles_much(command)
    plan = caches / f"radv.1234{PLAN.suffix}"
    file_of(plan, 10, age_s=2 * DAY_S)
    assert compiles_much(command), "the plan is of another set, or of an older version of it"
    file_of(plan, 10)
    assert not compiles_much(command)


def test_the_directory_is_the_default_one_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    large = file_of(tmp_path / "a.foz", LARGE, age_s=DAY_S)
    assert compiles_much(["compile", large])
    (tmp_path / "orchestrator").mkdir()
    file_of(tmp_path / "orchestrator" / f"a{PLAN.suffix}", 10)
    assert not compiles_much(["compile", large])


def test_what_decides_early_imports_next_to_nothing() -> None:
    """Each import would be made twice by a program that starts again."""
    code = "import sys; before = {*sys.modules}; import orchestrator.cli; print(*{*sys.modules} - before)"
    done = run_python("-c", code)
    own = {"orchestrator", "orchestrator.version", "orchestrator.malloc"}
    assert {*done.out.split()} - {"__future__"} == {*own, "orchestrator.cli", "orchestrator.cli.early"}


def test_a_setting_of_the_user_stays() -> None:
    ours = compiling_environment({"A": "b"})
    assert ours == {"A": "b", "GLIBC_TUNABLES": ours["GLIBC_TUNABLES"]}
    assert ours["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=4000:glibc.malloc.tcache_max=256"
    assert compiling_environment(ours) == ours
    for each in ("glibc.malloc.tcache_count=3", "glibc.malloc.arena_max=2:glibc.malloc.tcache_max=64"):
        assert compiling_environment({"GLIBC_TUNABLES": each}) == {"GLIBC_TUNABLES": each}
    other = compiling_environment({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert other["GLIBC_TUNABLES"] == f"glibc.malloc.arena_max=2:{ours['GLIBC_TUNABLES']}"


ALLOCATES = """
import ctypes
from orchestrator.malloc import keep_freed_memory
class Counts(ctypes.Structure):  # of mallinfo2(3)
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks".split()]
    _fields_ += [(name, ctypes.c_size_t) for name in "fsmblks uordblks fordblks keepcost".split()]
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.mallinfo2.restype = Counts
def grown():
    before, _ = library.mallinfo2(), library.malloc(4_000_000)
    after = library.mallinfo2()
    return after.hblks - before.hblks, after.arena > before.arena + 4_000_000
print(grown())
keep_freed_memory()
print(grown())
"""


@pytest.mark.parametrize(
    "setting", [{}, {"MALLOC_TOP_PAD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=0"}]
)
def test_what_a_compiler_frees_is_kept(setting: dict[str, str]) -> None:
    """A large block comes from memory that the library keeps, and not from the system alone."""
    if not malloc._is_gnu():
        unsupported("another C library has other settings")
    names = ("GLIBC_TUNABLES", "MALLOC_TOP_PAD_")
    unset = tuple(name for name in names if name not in setting)
    done = run_python("-c", ALLOCATES, environment=setting, unset=unset)
    alone, kept = "(1, False)", "(0, True)"
    assert done.out.splitlines() == [alone, alone if setting else kept]


def test_a_program_that_cannot_start_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*arguments: object) -> None:
        tried.append(arguments)
        raise OSError(7, "Argument list too long")

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(malloc, "_is_gnu", lambda: True)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    restart_for_compiling()
    assert len(tried) == 1
    monkeypatch.setattr(malloc, "_is_gnu", lambda: False)
    restart_for_compiling()
    monkeypatch.setattr(malloc, "_is_gnu", lambda: True)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")
    restart_for_compiling()
    assert len(tried) == 1


def test_only_the_program_itself_starts_again(tmp_path: Path) -> None:
    """A program that calls `main` may have done what must not be done twice."""
    for name in ("orchestrator", "wrapper.py"):
        (tmp_path / name).write_text("from orchestrator.cli.early import is_program\nprint(is_program())")

    def said(*words: str) -> str:
        return run_python(*words, environment={"PYTHONPATH": str(REPOSITORY)}).out.strip()

    assert said(str(tmp_path / "orchestrator"), "compile", "game.foz") == "True"
    assert said(str(tmp_path / "orchestrator")) == "True"
    assert said(str(tmp_path / "wrapper.py"), "compile", "game.foz") == "False"
    changed = "import sys; sys.argv = ['orchestrator', 'compile', 'game.foz']; "
    assert (
        said("-c", f"{changed}from orchestrator.cli.early import is_program; print(is_program())") == "False"
    )


def test_a_large_set_is_compiled_in_that_environment(tmp_path: Path) -> None:
    """Each interpreter that starts notes its environment; the last is the one that reads the set."""
    starts = tmp_path / "starts"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nwith open({str(starts)!r}, 'a') as file:\n"
        "    print(os.getpid(), os.environ.get('GLIBC_TUNABLES', ''), file=file)\n"
    )
    broken = file_of(tmp_path / "zeros.foz", LARGE)
    path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    command = ("compile", broken, "--device", "simulated", "--cache-dir", tmp_path / "caches")
    done = run_program(*command, environment={"PYTHONPATH": path}, unset=("GLIBC_TUNABLES",), cwd=tmp_path)
    assert done.code == 2, done.err
    assert "zeros.foz" in done.err
    noted = [line.split(" ") for line in starts.read_text().splitlines()]
    wanted = compiling_environment({})["GLIBC_TUNABLES"] if malloc._is_gnu() else ""
    assert [each[1] for each in noted] == (["", wanted] if wanted else [""])
    assert len({each[0] for each in noted}) == 1, "the same process"
