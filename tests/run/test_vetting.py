# Purpose: each policy on modules leaves out what it says, with the reason; and on a real driver that crashes, the job ends with
# a report.
"""Policies on modules that may be invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.request import DeviceRequest
from orchestrator.run import vetting
from orchestrator.run.compile import compile_set
from orchestrator.run.compile_report import CompileReport
from orchestrator.run.outcomes import OutcomeStatus
from orchestrator.run.vetting import ModulePolicy, Vetter
from orchestrator.sets.image_builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.spirv_validation import Judgement, Verdict
from tests.drivers import corpora_folder, require_tool
from tests.run.small_sets import Opener, compiled, write_small_set

COUNT = 40


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    write_small_set(path, 0, COUNT)
    return path


@pytest.fixture
def refuses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator that refuses the first module of an image, and does not know the last."""

    def judge(modules: list[tuple[int, bytes]], program: str, *, processes: int) -> dict[int, Judgement]:
        verdicts = {index: Judgement(Verdict.VALID) for index, _ in modules}
        verdicts[len(modules) - 1] = Judgement(Verdict.UNKNOWN, "spirv-val: too old")
        return verdicts | {0: Judgement(Verdict.INVALID, "spirv-val: error: broken")}

    monkeypatch.setattr(vetting, "validate_modules", judge)
    monkeypatch.setattr(vetting, "find_spirv_val", lambda: "spirv-val")


def uses_of_first(archive: Path) -> set[int]:
    """Keys of the pipelines that use the first module of the image."""
    with PipelineSet.open(archive) as source:
        image = build_image(source, source.pipelines, Opener()(DeviceRequest()).capabilities).image
        return {int(image.keys[index]) for index in range(len(image)) if 0 in image.modules_of(index)}


async def test_off_asks_nobody(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vetter, "vet", None)
    assert (await compiled(archive, None, Opener())).counts()[OutcomeStatus.COMPILED] == COUNT


@pytest.mark.usefixtures("refuses_first")
async def test_warn_compiles_all_the_same(archive: Path) -> None:
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.WARN)
    assert report.counts()[OutcomeStatus.COMPILED] == COUNT
    (refused,) = [each for each in report.notes if "spirv-val refuses 1 of" in each]
    assert "compiled all the same" in refused
    assert any("no answer for 1 of" in each for each in report.notes)


@pytest.mark.usefixtures("refuses_first")
async def test_skip_leaves_out_the_pipelines_of_refused_modules(archive: Path) -> None:
    expected = uses_of_first(archive)
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.SKIP)
    skipped = report.of_status(OutcomeStatus.SKIPPED)
    assert {each.job.key for each in skipped} == expected
    assert all("spirv-val: error: broken" in each.reason for each in skipped)
    assert report.counts()[OutcomeStatus.COMPILED] == COUNT - len(expected) > 0
    assert not report.stopped


async def test_without_spirv_val_it_says_so(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vetting, "find_spirv_val", lambda: None)
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.SKIP)
    assert report.counts()[OutcomeStatus.COMPILED] == COUNT
    assert any("spirv-val was not found" in each for each in report.notes)


async def test_isolate_gives_the_driver_nothing_that_was_not_tried(archive: Path) -> None:
    stop = trio.Event()
    stop.set()
    opener = Opener()
    report = await compiled(
        archive, None, opener, spirv_val=ModulePolicy.ISOLATE, selector="simulated", stop=stop
    )
    assert report.stopped
    assert report.counts()[OutcomeStatus.NOT_RUN] == COUNT
    assert not opener.device.compile_counts


def compiled_on_radv(name: str) -> CompileReport:
    async def main() -> CompileReport:
        with PipelineSet.open(corpora_folder() / name) as source:
            options: dict[str, Any] = {"selector": "radv:navi21", "workers": 2}
            return await compile_set(source, spirv_val=ModulePolicy.ISOLATE, **options)

    return trio.run(main)


@pytest.mark.driver("radv:navi21")
def test_pipelines_that_crash_radv_are_named_and_the_others_compiled() -> None:
    require_tool("spirv-val")
    report = compiled_on_radv("sascha_mixed_faults.foz")
    counts = report.counts()
    assert sum(counts.values()) == 214
    assert counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT] >= 199
    failed = report.of_status(OutcomeStatus.FAILED)
    assert len(failed) == 14
    assert all("SIGSEGV" in each.reason or "SIGABRT" in each.reason for each in failed)
    assert sum("spirv-val: error" in each.reason for each in failed) == 12
