"""What becomes of a cluster whose machines change, fill up, fall silent, come and leave: the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.cli.errors import ExitCode
from orchestrator.cluster.connection import connected
from orchestrator.cluster.worker import DIRECTORY_VARIABLE, about
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport
from tests.cluster.clusters import PATIENCE_S, kill_session, processes_of, until
from tests.cluster.device import DRIVER
from tests.cluster.place import WORKERS, Compiled, Place
from tests.cluster.telling import TellingCompiler, set_variables, set_versions
from tests.drivers import require_tool, unsupported


def notes_of(target: dict[str, Any]) -> str:
    return "\n".join(target["report"]["notes"])


def place_of(place: Place, name: str) -> str:
    """How a message names a worker."""
    return place.address(name).partition("://")[2]


def test_a_machine_whose_driver_changes_gets_nothing_more(
    place: Place, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.names

    class Changing(TellingCompiler):
        async def compile(self, archives: Any, options: CompileOptions, **given: Any) -> CompileReport:
            def on_stage(name: str) -> None:
                if name == "run":  # once it is known who has what
                    place.do(first, set_variables, {DRIVER: "2"})

            return await super().compile(archives, options, **given | {"on_stage": on_stage})

    monkeypatch.setattr("orchestrator.cluster.compile.ClusterCompiler", Changing)
    try:
        notes = notes_of(compiled())
        assert f"({place_of(place, first)}) compiled nothing more: its driver is another one now" in notes
        assert "driverVersion is 0x2, not 0x1" in notes
        assert place.compiles(second).keys() == place.keys
    finally:
        place.do(first, set_variables, {DRIVER: "1"})


def test_a_machine_with_another_driver_than_most_gets_nothing_and_is_named(
    place: Place, compiled: Compiled
) -> None:
    foreign = place.add(**{DRIVER: "2"})
    place.cluster.wait_for(WORKERS + 1)
    try:
        notes = notes_of(compiled())
        named = f"({place_of(place, foreign)}) has another driver for simulated and compiled nothing of it"
        assert f"{named}: driverVersion is 0x2, not 0x1" in notes
        assert not place.compiles(foreign)
    finally:
        kill_session(place.cluster.workers.pop(foreign))


def test_a_machine_of_another_version_gets_nothing_and_is_named(place: Place, compiled: Compiled) -> None:
    first, second = place.names
    here = about().versions
    place.do(first, set_versions, {"Python": "3.9", "orchestrator": "0.0.1"})
    try:
        notes = notes_of(compiled())
        assert f"({place_of(place, first)}) gets nothing: it has orchestrator 0.0.1, and this has" in notes
        assert f"it has Python 3.9, and this has {here['Python']}" in notes
        assert not place.compiles(first)
        place.do(second, set_versions, {"Python": "3.9"})
        place.pack = place.pack.with_name("other")
        assert "it has Python 3.9" in compiled(ExitCode.NO_DEVICE)["problem"]
    finally:
        for each in place.names:
            place.do(each, set_versions, here)


def test_a_machine_with_a_full_disk_is_named(place: Place, compiled: Compiled, tmp_path: Path) -> None:
    require_tool("mount")
    if os.geteuid():
        unsupported("a small file system, which only root mounts")
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", full], check=True)
    try:
        first, second = (f"({place_of(place, each)})" for each in place.names)
        place.do(place.names[0], set_variables, {DIRECTORY_VARIABLE: str(full)})
        assert f"{first} compiled nothing more: " in notes_of(compiled())
        place.do(place.names[1], set_variables, {DIRECTORY_VARIABLE: str(full)})
        place.pack = tmp_path / "other"
        problem = compiled(ExitCode.BAD_INPUT)["problem"]
        assert f"{first}: " in problem or f"{second}: " in problem
        assert "No space left" in problem
    finally:
        for name in place.names:
            usual = str(place.folder / name / "worker")
            place.do(name, set_variables, {DIRECTORY_VARIABLE: usual})
        subprocess.run(["umount", full], check=True)


def test_the_run_goes_on_without_a_machine_that_falls_silent(
    place: Place, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.worker.SILENCE_S", 6.0)
    name = place.names[0]
    session = place.cluster.workers[name].pid
    named = f"({place_of(place, name)}) was silent for 6 s"

    def send(number: int) -> None:
        for each in processes_of(session):
            os.kill(each, number)

    stopped = place.once_compiling(name, lambda: send(signal.SIGSTOP))
    try:
        target = compiled()
        stopped.result()
        assert named in notes_of(target)
    finally:
        send(signal.SIGCONT)
    # When it goes on, what it had is no longer asked for.
    until(lambda: not [line for line in processes_of(session).values() if "orchestrator.children" in line])
    assert max(place.compiles().values()) <= 2
    place.forget_compiles()
    assert compiled()["report"]["outcomes"]["cache_hits"] == len(place.keys)
    assert not place.compiles()


def test_machines_leave_and_come_during_a_run(place: Place, compiled: Compiled) -> None:
    first, second = place.names
    left = place.cluster.workers[first]
    address = place.address(second)

    def retire() -> str:
        """A cluster that adapts has Dask end a worker; another one comes once all have left."""
        with place.cluster.client() as client:
            client.retire_workers(workers=[address])
        left.wait(PATIENCE_S)
        return place.add()

    handed_back = place.once_compiling(first, left.terminate)
    came = place.once_compiling(second, retire)
    compiled()
    handed_back.result()
    assert left.returncode == 0
    assert place.compiles(came.result())
    until(lambda: not processes_of(left.pid))
    others = place.compiles(second) + place.compiles(came.result())
    assert not place.compiles(first) & others, "what it had is used"


def test_the_scheduler_of_local_workers_decides_nothing(tmp_path: Path) -> None:
    """The coordinator does: who may fail, who gets what, and for how long it waits."""

    async def ask() -> dict[str, Any]:
        async with connected("local:1", tmp_path) as cluster:
            found = cluster.client.run_on_scheduler(settings_of)
            assert isinstance(found, dict)
            return found

    found = trio.run(ask)
    assert found["allowed_failures"] == 0, "Dask blames who was there when a worker died, here nobody is"
    assert not found["steals"], "it knows neither drivers nor how long a task takes"


def settings_of(dask_scheduler: Any) -> dict[str, Any]:
    return {
        "allowed_failures": dask_scheduler.allowed_failures,
        "steals": "stealing" in dask_scheduler.extensions,
    }
