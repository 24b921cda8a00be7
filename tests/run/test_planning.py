"""A compile takes the set from its plan: it says the same, reads no archive, and tells what is stale."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import DriverError
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image import builder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from orchestrator.stores.culprits import QUARANTINE, Cause, Culprit, add_culprits
from tests.run.small_sets import BLUR
from tests.stores.stored import damage_plan, forget, plan_bytes, plans

NAVI21 = "radv:navi21"
ANEW = "the plan of the set was made anew"
GEOMETRY = ("VkPhysicalDeviceFeatures", "geometryShader")


def opener(*missing: tuple[str, str]) -> Any:
    def opened(request: DeviceRequest) -> SimulatedDevice:
        has = AnyDevice(missing_features=frozenset(missing))
        return SimulatedDevice(SimulatedOptions(request=request, capabilities=has))

    return opened


def compiled(path: Path, folder: Path, *missing: tuple[str, str], **options: Any) -> CompileReport:
    async def main() -> CompileReport:
        with PipelineSet.open(path) as source:
            return await compile_set(
                source,
                CompileOptions(workers=1, **dict[str, Any](mode="per-worker") | options),
                cache_directory=folder,
                opener=opener(*missing),
            )

    return trio.run(main)


def told(report: CompileReport) -> list[str]:
    return [each for each in report.notes if "the plan" in each]


def assert_same_but_hits(cold: CompileReport, warm: CompileReport) -> None:
    """The second run finds what the first compiled; beside that and the times, they say the same."""
    assert warm.set == cold.set
    assert warm.skipped == cold.skipped
    assert warm.failed == cold.failed
    assert (warm.pipelines.keys == cold.pipelines.keys).all()
    assert warm.counts()[OutcomeStatus.COMPILED] == 0
    assert warm.counts()[OutcomeStatus.CACHE_HIT] == len(cold.pipelines) - len(cold.skipped) - len(
        cold.failed
    )


@pytest.mark.parametrize("left_out", [{}, {1: "it ended the driver"}], ids=["first", "after a crash"])
async def test_a_plan_is_saved_once_workers_have_begun(left_out: dict[int, str], tmp_path: Path) -> None:
    """Before they begin, where the driver may crash again."""
    there: list[int] = []
    with PipelineSet.open(sample_path()) as whole:
        source, options = whole.leaving_out(left_out), CompileOptions(mode="per-worker", workers=2)
        await compile_set(
            source,
            options,
            cache_directory=tmp_path,
            opener=opener(),
            on_progress=lambda _: there.append(plans(tmp_path)),
        )
    assert there[0] == len(left_out)
    assert plans(tmp_path) == 1


async def test_a_plan_is_saved_where_the_first_run_does_not_begin(tmp_path: Path) -> None:
    class Refusing(SimulatedDevice):
        def prepare(self, *_: Any, **__: Any) -> Any:
            raise DriverError("vkCreatePipelineLayout", -1, "VK_ERROR_OUT_OF_HOST_MEMORY")

    def refusing(request: DeviceRequest) -> SimulatedDevice:
        return Refusing(SimulatedOptions(request=request, capabilities=AnyDevice()))

    with PipelineSet.open(sample_path()) as source, pytest.raises(DriverError):
        await compile_set(source, cache_directory=tmp_path, opener=refusing)
    assert plans(tmp_path) == 1


async def test_a_plan_is_saved_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    """A set without a pipeline, whose workers find nothing to do."""
    with ArchiveWriter(tmp_path / "empty.foz"):
        pass
    with PipelineSet.open(tmp_path / "empty.foz") as source:
        report = await compile_set(source, cache_directory=tmp_path, opener=opener())
    assert len(report.pipelines) == 0
    assert plans(tmp_path) == 1


@pytest.mark.parametrize("missing", [(), (GEOMETRY,)], ids=["all", "less"])
def test_the_second_run_reads_nothing_of_the_set(
    missing: tuple[tuple[str, str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = compiled(sample_path(), tmp_path, *missing)
    assert plans(tmp_path) == 1
    assert bool(cold.skipped) == bool(missing)
    monkeypatch.setattr(builder, "build_image", None)
    warm = compiled(sample_path(), tmp_path, *missing)
    assert_same_but_hits(cold, warm)
    assert told(warm) == told(cold) == []
    assert "read" in [each.name for each in cold.stages]
    assert "read" not in [each.name for each in warm.stages]


def test_what_is_in_quarantine_is_left_out_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PipelineSet.open(sample_path()) as source:
        jobs = [job for job in source.pipelines if job.kind is PipelineKind.COMPUTE][:3]
    for job in jobs:
        key, kind = f"{job.key:016x}", job.kind.value
        culprit = Culprit(key=key, kind=kind, cause=Cause.SIGNAL, reason="SIGSEGV", seen_at=1.0)
        add_culprits(tmp_path, opener()(DeviceRequest()).identity, [culprit])
    cold = compiled(sample_path(), tmp_path)
    assert {each.key for each in cold.failed} >= {job.key for job in jobs}
    assert any("3 pipelines are in quarantine" in each for each in cold.notes)
    monkeypatch.setattr(builder, "build_image", None)
    warm = compiled(sample_path(), tmp_path)
    assert_same_but_hits(cold, warm)
    assert warm.notes == cold.notes
    # The plan has them, so it serves a run that tries them again.
    forget(tmp_path, QUARANTINE)
    again = compiled(sample_path(), tmp_path)
    assert told(again) == []
    assert again.failed == ()
    assert again.counts()[OutcomeStatus.COMPILED] == len(cold.failed)


def several_applications(path: Path) -> Path:
    """Two applications, and a pipeline that needs more than either is recorded to have."""
    parts = []
    robust = {"structure": "VkPipelineRobustnessCreateInfo", "storage_buffers": "robust_buffer_access"}
    for name, access in (("one", False), ("two", True)):
        records = MemoryRecords("part")
        builder = PipelineSetBuilder(records)
        builder.application(name=name, robust_buffer_access=access)
        shader = builder.shader_module(BLUR.read_bytes())
        builder.compute_pipeline("auto", shader, specialization={0: 64, 1: 4, 2: False})
        builder.compute_pipeline("auto", shader, specialization={0: 32, 1: 4, 2: False}, p_next=[robust])
        parts.append(records)
    with ArchiveWriter(path) as writer:
        for part in parts:
            for tag in RecordTag:
                for key in part.keys(tag):
                    payload = part.payload(tag, key).replace(b',"othersAsNeeded":true', b"")
                    writer.add(tag, key, payload)
    return path


def test_groups_and_what_was_split_off_are_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = several_applications(tmp_path / "set.foz")
    cold = compiled(path, tmp_path / "cache")
    assert len(cold.set.groups) > 2
    monkeypatch.setattr(builder, "build_image", None)
    warm = compiled(path, tmp_path / "cache")
    assert_same_but_hits(cold, warm)
    assert sorted(warm.notes) == sorted(cold.notes)


def test_a_subset_has_a_plan_of_its_own(tmp_path: Path) -> None:
    reports = [compiled(sample_path(), tmp_path, subset=Subset(shard, 2)) for shard in (1, 2, 1, 2)]
    assert plans(tmp_path) == 2
    for cold, warm in zip(reports[:2], reports[2:], strict=True):
        assert_same_but_hits(cold, warm)
    with PipelineSet.open(sample_path()) as source:
        assert sum(each.set.unique for each in reports[:2]) == len(source)


def test_a_device_that_answers_otherwise_is_decoded_for(tmp_path: Path) -> None:
    compiled(sample_path(), tmp_path)
    assert told(compiled(sample_path(), tmp_path, GEOMETRY, selector="another")) == []  # it had none
    less = compiled(sample_path(), tmp_path, GEOMETRY)
    (note,) = told(less)
    assert note.startswith(f"{ANEW}: the device answers otherwise: feature")
    expected = compiled(sample_path(), tmp_path / "other", GEOMETRY)
    assert [each.key for each in less.skipped] == [each.key for each in expected.skipped]
    assert less.skipped
    assert told(compiled(sample_path(), tmp_path, GEOMETRY)) == []
    assert plans(tmp_path) == 2


@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_plan_is_made_anew(at: int, archive: Path, tmp_path: Path) -> None:
    cold = compiled(archive, tmp_path)
    whole = plan_bytes(tmp_path)
    damage_plan(tmp_path, at)
    warm = compiled(archive, tmp_path)
    (note,) = told(warm)
    assert note.startswith(f"{ANEW}: it is damaged")
    assert_same_but_hits(cold, warm)
    assert plan_bytes(tmp_path) == whole


def test_another_version_makes_another_one(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(archive, tmp_path)
    monkeypatch.setattr("orchestrator.run.planning.VERSION", "another")
    report = compiled(archive, tmp_path)
    assert "read" in [each.name for each in report.stages]
    assert plans(tmp_path) == 2


def test_no_plan_is_kept_where_the_disk_is_nearly_full(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    report = compiled(archive, tmp_path)
    (note,) = told(report)
    assert "the file system is nearly full" in note
    assert report.cache_file.saved_bytes
    assert plans(tmp_path) == 0


def test_a_set_that_changed_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "set.foz"
    path.write_bytes(sample_path().read_bytes())
    compiled(path, tmp_path / "cache")
    with PipelineSet.open(sample_path()) as source, ArchiveWriter(path) as writer:
        for tag in RecordTag:
            keys = source.records.keys(tag)
            for key in keys[: len(keys) - (tag is RecordTag.COMPUTE_PIPELINE)]:
                writer.add(tag, key, source.records.payload(tag, key))
    report = compiled(path, tmp_path / "cache")
    assert report.set.unique == len(PipelineSet.open(path))
    assert told(report) == []
    assert plans(tmp_path / "cache") == 2


def test_no_plan_is_kept_of_a_set_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set.foz"
    path.write_bytes(sample_path().read_bytes())
    hash_files = PipelineSet.hash_files

    def hash_and_change(source: PipelineSet, hash_bytes: Callable[[bytes | memoryview], bytes]) -> bytes:
        found = hash_files(source, hash_bytes)
        with path.open("ab") as file:
            file.write(b"x")
        return found

    monkeypatch.setattr(PipelineSet, "hash_files", hash_and_change)
    report = compiled(path, tmp_path / "cache")
    (note,) = told(report)
    assert note.startswith("the plan of the set was not kept: a file of the set was changed")
    assert plans(tmp_path / "cache") == 0


def test_a_plan_that_cannot_be_kept_is_a_note(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    report = compiled(archive, tmp_path / "cache")
    (note,) = told(report)
    assert note.startswith("the plan of the set was not kept: ")
    assert "chmod go-w" in note
    assert plans(tmp_path / "cache") == 0


def test_no_plan_where_none_is_wanted_or_nothing_is_kept(archive: Path, tmp_path: Path) -> None:
    compiled(archive, tmp_path, plan=False)
    assert plans(tmp_path) == 0
    compiled(archive, tmp_path)
    assert plans(tmp_path) == 1
    assert "read" in [each.name for each in compiled(archive, tmp_path, plan=False).stages]
    compiled(archive, tmp_path / "none", mode=CacheMode.NONE)
    assert not (tmp_path / "none").exists()


def test_a_set_in_memory_has_no_plan(tmp_path: Path) -> None:
    records = MemoryRecords("set")
    builder = PipelineSetBuilder(records)
    shader = builder.shader_module(BLUR.read_bytes())
    builder.compute_pipeline("auto", shader, specialization={0: 64, 1: 4, 2: False})

    async def main() -> CompileReport:
        return await compile_set(
            PipelineSet.from_records(records),
            CompileOptions(mode="per-worker", workers=1),
            cache_directory=tmp_path,
            opener=opener(),
        )

    report = trio.run(main)
    assert report.counts()[OutcomeStatus.COMPILED] == 1
    assert plans(tmp_path) == 0
    assert told(report) == []
