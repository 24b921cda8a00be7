"""A compile that expects hits: what is missing is named, nothing is compiled, nothing is saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.devices.simulated import DriverBugs, simulated_features
from orchestrator.errors import DeviceError
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.subset import Subset
from tests.run.small_sets import Opener, compiled, write_applications, write_small_set


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix != ".previous"}


@pytest.mark.parametrize("mode", ["shared", "binaries"])
async def test_what_a_cache_lacks_fails_with_its_application(folder: Path, tmp_path: Path, mode: str) -> None:
    whole = write_applications(tmp_path / "whole.foz", same=False)
    with PipelineSet.open(whole) as source:
        keys = [each.key for each in source.pipelines]
    missing = keys[-1]
    await compiled(whole, folder, Opener(), mode=mode, subset=Subset(keys=frozenset(keys[:-1])))
    before = contents(folder)
    opener = Opener()
    report = await compiled(whole, folder, opener, mode=mode, expect_hits=True)
    assert (report.outcomes.compiled, report.outcomes.cache_hits) == (0, len(keys) - 1)
    (failed,) = report.failed
    assert int(failed.key) == missing
    assert "the cache does not hold it: an application would compile it (" in failed.reason
    assert not any(each.compile_counts for each in opener.opened)
    if mode == "shared":
        assert contents(folder) == before


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    write_small_set(tmp_path / "set.foz", 0, 4)
    return tmp_path / "set.foz"


async def test_a_driver_that_compiles_all_the_same_is_said_to(folder: Path, small_set: Path) -> None:
    opener = Opener(DriverBugs(compile_required_ignored=True))
    report = await compiled(small_set, folder, opener, mode=None, expect_hits=True)
    assert len(report.failed) == report.outcomes.failed > 0
    assert all("it ignores FAIL_ON_PIPELINE_COMPILE_REQUIRED" in each.reason for each in report.failed)
    assert not [*folder.glob("*.pipeline-cache")]


async def test_a_device_that_cannot_forbid_compiling_is_refused(folder: Path, small_set: Path) -> None:
    opener = Opener(options={"features": simulated_features(compile_required=False)})
    with pytest.raises(DeviceError, match="cannot forbid compiling"):
        await compiled(small_set, folder, opener, mode=None, expect_hits=True)
