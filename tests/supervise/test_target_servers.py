"""Children for several targets: one process imports and reads, its forks compile, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.options import CompileOptions
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.supervise.targets import target_servers
from tests.drivers import REPOSITORY, driver_manifest
from tests.processors import one_processor

PARENT = """
import json, os, signal, sys, trio
from orchestrator.process import own_interpreter
own_interpreter()
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.supervise.targets import target_servers
from orchestrator.sets.opening import open_paths

path, kind = sys.argv[1:]
limits = TrialLimits(opener="tests.supervise.test_target_servers:open_simulated")
options = [CompileOptions(selector=each, workers=1, trial_limits=limits) for each in "abcd"]
before = os.listdir("/proc/self/fd")
made = []

async def compiled(servers):
    for each in options[:3]:
        report = await servers.compile((path,), each, cache_directory=None)
        made.append(report.outcomes.compiled + report.outcomes.cache_hits)

with open_paths((path,)) as source:
    with target_servers(source, (path,), options) as servers:
        forks = len(servers._waiting)
        if kind == "read once":
            os.rename(path, path + ".away")
        if kind == "one is gone":
            gone = servers._waiting["b"].child.process_id
            os.kill(gone, signal.SIGKILL)
            os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
        trio.run(compiled, servers)
try:
    os.waitpid(-1, os.WNOHANG)
    left = True
except ChildProcessError:
    left = False
after = os.listdir("/proc/self/fd")
print(json.dumps([forks, made, left, len(after) - len(before)]))
"""


def open_simulated(request: DeviceRequest) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(request=request))


@pytest.mark.parametrize("kind", ["read once", "one is gone"])
def test_targets_are_compiled_by_forks_that_have_the_set(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "set.foz"
    path.write_bytes(sample_path().read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(path), kind],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    with open_paths([str(path) + (".away" if kind == "read once" else "")]) as source:
        assert json.loads(done.stdout) == [4, [len(source)] * 3, False, 0]


TOGETHER = """
import json, sys, trio
from pathlib import Path
from orchestrator.process import own_interpreter
own_interpreter()
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.supervise.targets import target_servers
from orchestrator.sets.opening import open_paths

path, folder, opener = sys.argv[1:]
limits = TrialLimits(opener=f"tests.supervise.test_target_servers:{opener}")
options = [CompileOptions(selector=each, workers=1, trial_limits=limits) for each in "abcd"]
told = []

async def one(servers, each):
    report = await servers.compile((path,), each, cache_directory=Path(folder))
    stages = [stage.name for stage in report.stages]
    made = report.outcomes.compiled + report.outcomes.cache_hits
    told.append(["read" in stages, made, report.outcomes.skipped])

async def all_together(servers):
    async with trio.open_nursery() as nursery:
        for each in options:
            nursery.start_soon(one, servers, each)

with open_paths((path,)) as source, target_servers(source, (path,), options) as servers:
    trio.run(all_together, servers)
print(json.dumps(told))
"""


def open_alternating(request: DeviceRequest) -> SimulatedDevice:
    """Every other process has a device without geometry shaders."""
    missing = frozenset({("VkPhysicalDeviceFeatures", "geometryShader")}) if os.getppid() % 2 else frozenset()
    has = AnyDevice(missing_features=missing)
    return SimulatedDevice(SimulatedOptions(request=request, capabilities=has))


def together(path: Path, folder: Path, opener: str) -> list[tuple[bool, int, int]]:
    """Whether each of four targets read the set, and how many pipelines were created and skipped."""
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, str(path), str(folder), opener],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    return [(read, made, skipped) for read, made, skipped in json.loads(done.stdout)]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The sample, and of no pipeline so much that several processes decode it."""
    path = tmp_path / "large.foz"
    with PipelineSet.open(sample_path()) as sample, ArchiveWriter(path) as writer:
        sample.copy_to(writer)
        writer.add(RecordTag.SHADER_MODULE, 1, random.Random(1).randbytes(1 << 20))
    return path


def test_of_targets_that_begin_together_one_decodes_the_set(large: Path, tmp_path: Path) -> None:
    told = together(large, tmp_path / "cache", "open_simulated")
    assert sorted(read for read, _, _ in told) == [False, False, False, True]
    assert {made for _, made, _ in told} == {238}
    again = together(large, tmp_path / "cache", "open_simulated")
    assert not any(read for read, _, _ in again)


def test_where_targets_differ_one_of_each_kind_decodes_the_set(large: Path, tmp_path: Path) -> None:
    told = together(large, tmp_path / "cache", "open_alternating")
    kinds = {(made, skipped) for _, made, skipped in told}
    assert {made + skipped for made, skipped in kinds} == {238}
    for kind in kinds:
        assert sum(read for read, *each in told if tuple(each) == kind) == 1


def test_a_process_that_is_not_ours_is_not_forked() -> None:
    paths = (str(sample_path()),)
    with open_paths(paths) as source, target_servers(source, paths, [CompileOptions()]) as servers:
        assert not servers._waiting


def test_the_second_target_takes_the_plan_of_the_first(tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    command = ["compile", "sample", "-d", "radv:navi21", "-d", "radv:navi31", "-j", "2", "--json"]
    with one_processor():  # one target at a time
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *command, "--cache-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
        )
    first, second = (each["report"] for each in json.loads(done.stdout)["targets"])
    assert len(list(tmp_path.glob("*.plan"))) == 1
    assert len(list(tmp_path.glob("*.pipeline-cache"))) == 2
    assert "read" in [each["name"] for each in first["stages"]]
    assert "read" not in [each["name"] for each in second["stages"]]
    assert {**second["set"], "groups": ()} == {**first["set"], "groups": ()}
    assert second["skipped"] == first["skipped"]
    # Whether what is alike is compiled by two workers or found by one is chance.
    created = [each["outcomes"]["compiled"] + each["outcomes"]["cache_hits"] for each in (first, second)]
    assert created[0] == created[1] > 0
