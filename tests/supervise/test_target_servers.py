"""Several targets of one set: one of them decodes it, and the others take its plan."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.supervise.targets import Expected, compile_targets
from tests.drivers import REPOSITORY, driver_manifest
from tests.processors import one_processor
from tests.stores.stored import plans

OPENERS = "tests.supervise.test_target_servers"


class Listener:
    """Hears nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def open_alternating(request: DeviceRequest) -> SimulatedDevice:
    """Of about every other target the device has no geometry shaders."""
    missing = frozenset({("VkPhysicalDeviceFeatures", "geometryShader")}) if os.getppid() % 2 else frozenset()
    has = AnyDevice(missing_features=missing)
    return SimulatedDevice(SimulatedOptions(request=request, capabilities=has))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The sample, and of no pipeline so much that it is decoded in turn."""
    path = tmp_path / "large.foz"
    with PipelineSet.open(sample_path()) as sample, ArchiveWriter(path) as writer:
        sample.copy_to(writer)
        writer.add(RecordTag.SHADER_MODULE, 1, random.Random(1).randbytes(1 << 20))
    return path


@pytest.fixture
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.supervise.targets.available_workers", lambda: 4)


@pytest.mark.usefixtures("_room")
async def test_of_targets_that_begin_together_one_of_each_kind_decodes_the_set(
    large: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    limits = TrialLimits(opener=f"{OPENERS}:open_alternating")
    results = await compile_targets(
        (str(large),),
        [CompileOptions(mode="per-worker", selector=each, workers=1, trial_limits=limits) for each in "abcd"],
        expected=Expected(238),
        cache_directory=tmp_path / "cache",
        listener=Listener(),
    )
    reports = [each.report for each in results if each.report is not None]
    assert len(reports) == 4
    reads: dict[int, int] = defaultdict(int)
    for report in reports:
        outcomes = report.outcomes
        assert outcomes.compiled + outcomes.cache_hits + outcomes.skipped == 238
        reads[outcomes.skipped] += "read" in [stage.name for stage in report.stages]
    assert set(reads.values()) == {1}


def test_the_second_target_takes_the_plan_of_the_first(tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    devices = ["-d", "radv:navi21", "-d", "radv:navi31"]
    command = ["compile", "sample", "--shard", "1/3", *devices, "-j", "2", "--json"]
    with one_processor():  # one target at a time
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *command, "--cache-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
        )
    first, second = (each["report"] for each in json.loads(done.stdout)["targets"])
    assert plans(tmp_path) == 1
    assert len(list(tmp_path.glob("*.pipeline-cache"))) == 2
    assert "read" in [each["name"] for each in first["stages"]]
    assert "read" not in [each["name"] for each in second["stages"]]
    assert {**second["set"], "groups": ()} == {**first["set"], "groups": ()}
    assert second["skipped"] == first["skipped"]
    # Whether what is alike is compiled by two workers or found by one is chance.
    created = [each["outcomes"]["compiled"] + each["outcomes"]["cache_hits"] for each in (first, second)]
    assert created[0] == created[1] > 0
