"""Groups of a set, compiled: what devices were opened as, where pipelines are kept, what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.device import CacheMode
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, OutcomeStatus, Progress
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.authoring.builder import PipelineSetBuilder, Rendering
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import Subset
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path
from orchestrator.stores.run_notes import read_feature_groups
from tests.run.small_sets import Opener

NAVI21 = "radv:navi21"
SHADER = sample_manifest_path().parent / "shaders" / "blur.comp.spv"


def archive(path: Path, applications: Sequence[dict[str, Any]]) -> Path:
    """One set of several applications, each with the same compute pipelines."""
    parts = []
    for each in applications:
        records = MemoryRecords("part")
        builder = PipelineSetBuilder(records)
        builder.application(**each)
        module = builder.shader_module(SHADER.read_bytes())
        for group in (64, 128):
            builder.compute_pipeline("auto", module, specialization={0: group, 1: 4, 2: False})
        parts.append(records)
    with ArchiveWriter(path) as writer:
        for part in parts:
            for tag in RecordTag:
                for key in part.keys(tag):
                    writer.add(tag, key, part.payload(tag, key))
    return path


def compiled(path: Path, folder: Path, opener: Opener | None = None, selector: str = "") -> CompileReport:
    async def main() -> CompileReport:
        with PipelineSet.open(path) as source:
            return await compile_set(
                source, CompileOptions(workers=1, selector=selector), cache_directory=folder, opener=opener
            )

    return trio.run(main)


def test_each_group_says_what_its_device_was_opened_as(tmp_path: Path) -> None:
    path = archive(tmp_path / "set.foz", [{"name": "one"}, {"name": "two", "robust_buffer_access": True}])
    opener = Opener(options={"keys_depend_on": frozenset({"VkPhysicalDeviceFeatures::robustBufferAccess"})})
    report = compiled(path, tmp_path / "cache", opener=opener)
    # Each application's own: to this driver the same pipeline is another one with robust access.
    assert report.counts()[OutcomeStatus.COMPILED] == 2
    assert sum(len(run) for run in report.runs) == 4
    assert sum(each.cache_hits for each in report.runs) == 0
    names = [each.opened_as.application for each in report.set.groups]
    assert names == ["one", "two"]
    (file,) = {each.cache_file for each in report.set.groups}
    assert file is not None
    noted, problem = read_feature_groups(file)
    assert problem == ""
    assert [each.request for each in noted] == [each.opened_as.request for each in report.set.groups]
    assert [each.pipelines for each in noted] == [2, 2]
    again = compiled(path, tmp_path / "cache", opener=opener)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 2
    assert read_feature_groups(file) == (noted, "")


def test_what_is_added_to_the_record_is_told(tmp_path: Path) -> None:
    records = MemoryRecords("set")
    builder = PipelineSetBuilder(records)
    builder.application(name="game")
    module = builder.shader_module(SHADER.read_bytes())
    robust = {"structure": "VkPipelineRobustnessCreateInfo", "storage_buffers": "robust_buffer_access"}
    builder.compute_pipeline("auto", module, specialization={0: 64, 1: 4, 2: False})
    builder.compute_pipeline("auto", module, specialization={0: 64, 1: 4, 2: False}, p_next=[robust])

    async def main() -> CompileReport:
        source = PipelineSet.from_records(records)
        return await compile_set(source, CompileOptions(workers=1, mode=CacheMode.SHARED), opener=Opener())

    report = trio.run(main)
    assert report.counts()[OutcomeStatus.COMPILED] == 2
    (note,) = [each for each in report.notes if "no application is recorded to have enabled" in each]
    assert note.startswith("1 pipeline needs")
    assert "finds it only if" in note
    assert "VkPhysicalDevicePipelineRobustnessFeatures::pipelineRobustness" in note
    builder.compute_pipeline("auto", module, specialization={0: 32, 1: 4, 2: False}, p_next=[robust])
    (note,) = [each for each in trio.run(main).notes if "no application is recorded" in each]
    assert note.startswith("2 pipelines need what")
    assert "finds them only if" in note


def test_a_library_of_another_shard_is_compiled_and_not_counted() -> None:
    records = MemoryRecords("set")
    builder = PipelineSetBuilder(records)
    rendering = Rendering(["r8g8b8a8_unorm"])
    output = builder.graphics_pipeline(library_flags="fragment_output_interface", rendering=rendering)
    link = builder.graphics_pipeline(
        libraries=[output], library_flags="vertex_input_interface", state={"vertex_input": {}}
    )
    seen: list[Progress] = []

    def compiled_part(*keys: int) -> CompileReport:
        async def main() -> CompileReport:
            return await compile_set(
                PipelineSet.from_records(records),
                CompileOptions(workers=1, mode=CacheMode.SHARED, subset=Subset(keys=frozenset(keys))),
                opener=Opener(),
                on_progress=seen.append,
            )

        return trio.run(main)

    report = compiled_part(link)
    assert report.pipelines.keys.tolist() == [link]
    assert report.counts()[OutcomeStatus.COMPILED] == report.set.unique == 1
    assert report.set.subset is not None
    assert report.set.subset.of == 2
    assert [set(each.pipelines.keys.tolist()) for each in report.runs] == [{output, link}]
    assert (seen[-1].done, seen[-1].total) == (1, 1)
    other = compiled_part(output)
    assert other.pipelines.keys.tolist() == [output]


@pytest.mark.driver(NAVI21)
def test_applications_for_which_the_driver_has_another_identity_have_a_file_each(tmp_path: Path) -> None:
    """RADV gives some games, by their names, options that change pipelineCacheUUID."""
    path = archive(tmp_path / "set.foz", [{"name": "a game of no renown"}, {"name": "DOOM"}])
    report = compiled(path, tmp_path / "cache", selector=NAVI21)
    files = [each.cache_file for each in report.set.groups]
    assert len(set(files)) == 2
    for each in report.set.groups:
        assert each.cache_file is not None
        assert each.cache_file.stat().st_size > 128
        noted, _ = read_feature_groups(each.cache_file)
        assert [one.request for one in noted] == [each.opened_as.request]
    assert any("another pipelineCacheUUID" in each for each in report.notes)
    again = compiled(path, tmp_path / "cache", selector=NAVI21)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 2
