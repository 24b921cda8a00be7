"""A driver's own cache in a pack serves an application without a VkPipelineCache (tests/hosts/host.c)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, run_program
from tests.drivers import driver_environment, require_header, require_tool
from tests.hosts.run_host import Host, device_name, quiet_environment, recorded_application
from tests.packs.web import served

RADV = "radv:navi31"
OTHER = "radv:navi21"
READ_ONLY = "MESA_DISK_CACHE_READ_ONLY_FOZ_DBS"
Orchestrator = Callable[..., Done]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    variables = quiet_environment(driver_environment(RADV))
    places = {"MESA_SHADER_CACHE_DIR": str(tmp_path / "own"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return variables | places


@pytest.fixture
def orchestrator(tmp_path: Path, environment: dict[str, str]) -> Orchestrator:
    def run(*arguments: object, code: int = 0) -> Done:
        done = run_program(*map(str, arguments), cwd=tmp_path, environment=environment)
        assert done.code == code, done.err
        return done

    return run


def targets_of(done: Done) -> list[dict[str, Any]]:
    return list(done.document["targets"])


def test_an_application_without_a_cache_compiles_nothing(
    tmp_path: Path, environment: dict[str, str], orchestrator: Orchestrator
) -> None:
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    host = Host.build(tmp_path, require_tool("gcc"))
    application = host.application(recorded_application("sample"))
    without = host.run(application, environment, device=device_name(RADV), forbid=True)
    assert (without.exit_code, without.compiled & without.hits) == (1, frozenset())
    assert len(without.misses) > 15

    orchestrator("key", "new", "team.key")
    fill = ("compile", "sample", "-d", RADV, "--driver-cache", "--sign", "team.key", "--out", "ship")
    orchestrator(*fill)
    orchestrator("verify", "ship", "--complete", "--trust", "team.pub")
    orchestrator("coverage", "sample", "ship", code=1)  # only a run can tell
    (target,) = targets_of(orchestrator("coverage", "sample", "ship", "--run", "--json"))
    assert (target["proven"], target["missing"]) == (True, [])

    # A player has only what a web server has.
    orchestrator("compile", "sample", "-d", RADV, "--sign", "team.key", "--out", "base")
    orchestrator("publish", "base", "ship", "--out", "site", "--sign", "team.key")
    for each in ("base", "ship"):
        shutil.rmtree(tmp_path / each)
    with served(tmp_path / "site") as web:
        release = ("--trust", "team.pub", "-d", RADV, "--cache-dir", "player")
        assert "orchestrator run" in orchestrator("install", web.address, *release).out
    orchestrator("compile", "sample", "-d", RADV, "--cache-dir", "player", "--expect-hits")
    delivered = ("run", "player/delivered/release", "--trust", "team.pub", "-d")
    variables = orchestrator(*delivered, RADV, "--json").document["variables"]
    found = host.run(application, environment | variables, device=device_name(RADV), forbid=True)
    assert (found.exit_code, found.misses, found.tried) == (0, frozenset(), without.tried)

    program = (sys.executable, "-c", f"import os; exit(len(os.environ[{READ_ONLY!r}]) > 9)")
    orchestrator(*delivered, RADV, "--", *program, code=1)
    none = orchestrator(*delivered, RADV, "--", tmp_path / "nope", code=2)
    assert "cannot be started: No such file" in none.err
    other = orchestrator(*delivered, OTHER, "--", *program, code=2)
    assert "no driver cache for Null hardware (RADV NAVI21)" in other.err
    (file,) = (tmp_path / "player/delivered/release/ship").glob("*_idx.foz")
    file.write_bytes(file.read_bytes()[:-1])
    assert f"{file.name}: it is damaged" in orchestrator(*delivered, RADV, "--", *program, code=2).err


def test_a_pack_grows_where_it_was_filled(tmp_path: Path, orchestrator: Orchestrator) -> None:
    fill = ("compile", "-d", RADV, "--driver-cache", "--cache-dir", "place", "--out", "ship", "--shard")
    orchestrator(*fill, "1/2", "sample")
    (half,) = targets_of(orchestrator("coverage", "sample", "ship", "--run", "--json", code=1))
    assert 50 < half["held"] < half["pipelines"] - 50
    assert len([*(tmp_path / "place/driver-caches").iterdir()]) == 1
    shutil.copytree(tmp_path / "ship", tmp_path / "copy")
    orchestrator(*fill, "2/2", "sample")
    (whole,) = targets_of(orchestrator("coverage", "sample", "ship", "--run", "--json"))
    assert (whole["missing"], whole["proven"]) == ([], True)

    def is_refused(said: str, *arguments: str) -> None:
        assert said in orchestrator(*arguments, code=2).err

    is_refused("nothing can be added to it", *fill[:7], "copy", "sample")
    is_refused("never both", "compile", "sample", "-d", RADV, "--out", "ship")
    is_refused("no driver joins", "merge", "ship", "copy", "-o", "both")
    orchestrator("verify", "ship", "--complete")
    orchestrator("verify", "copy")
    (tmp_path / "copy").chmod(0o777)
    is_refused("--trust", "run", "copy", "-d", RADV)


def test_a_release_serves_without_a_pack_that_is_damaged(
    tmp_path: Path, environment: dict[str, str], orchestrator: Orchestrator
) -> None:
    fill = ("compile", "sample", "-d", RADV, "--driver-cache", "--shard", "1/30", "--out")
    orchestrator(*fill, "one")
    for at in range(9):
        shutil.copytree(tmp_path / "one", tmp_path / "all" / str(at))
    is_listed = ("run", "all", "-d", RADV, "--json")
    assert "reads 8 caches" in orchestrator(*is_listed, code=2).err
    (file,) = (tmp_path / "all/3").glob("*_idx.foz")
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "all/4").chmod(0o777)
    shown = orchestrator(*is_listed)
    assert [each in shown.err for each in ("it is damaged", "all/4")] == [True, True]
    assert len(shown.document["variables"][READ_ONLY].split(",")) == 7
    environment[READ_ONLY] = "mine"
    shown = orchestrator(*is_listed)
    assert shown.document["variables"][READ_ONLY].startswith("mine,")
    # What the driver finds elsewhere is in the pack all the same.
    environment.update(shown.document["variables"])
    orchestrator(*fill, "another")
    environment.pop(READ_ONLY)
    (target,) = targets_of(orchestrator("coverage", "sample", "another", "--run", "--json", code=1))
    assert target["held"] > 0
    program = (
        "import os, signal; signal.signal(2, lambda *_: exit(7)); os.kill(os.getpid(), 2); signal.pause()"
    )
    orchestrator("run", "one", "-d", RADV, "--", sys.executable, "-c", program, code=7)
    killed = "import os; os.kill(os.getpid(), 15)"
    orchestrator("run", "one", "-d", RADV, "--", sys.executable, "-c", killed, code=-15)
    environment["MESA_SHADER_CACHE_DIR"] = "/proc/none"
    assert "Mesa reads no cache" in orchestrator("run", "one", "-d", RADV, code=2).err


def test_a_driver_that_writes_no_cache_is_named(orchestrator: Orchestrator) -> None:
    done = orchestrator(
        "compile", "sample", "-d", "simulated", "--driver-cache", "--out", "ship", "--json", code=2
    )
    assert "wrote no cache of its own" in done.out
