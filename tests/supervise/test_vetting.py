"""Policies on modules that may be invalid.

Each policy on modules leaves out what it says, with the reason; and on a real driver that crashes, the job
ends with a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import frozen

from orchestrator.devices.request import DeviceRequest
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.options import ModulePolicy
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.steering import Steering
from orchestrator.run.vetting import Trials
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.sample import sample_path
from orchestrator.sets.spirv import validation
from orchestrator.sets.spirv.validation import SpirvJudgement, SpirvVerdict
from orchestrator.supervise.trial import try_pipelines
from tests.drivers import corpora_folder, require_tool
from tests.run.small_sets import Opener, add_sample, compiled, compute_keys, write_small_set

COUNT = 40
Modules = list[tuple[int, bytes]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    write_small_set(path, 0, COUNT)
    return path


def validator(monkeypatch: pytest.MonkeyPatch, judge: Callable[[Modules], dict[int, SpirvJudgement]]) -> None:
    monkeypatch.setattr(validation, "validate_modules", lambda modules, *_, **__: judge(modules))
    monkeypatch.setattr(validation, "find_spirv_val", lambda: "spirv-val")


@pytest.fixture
def refuses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator that refuses the first module of an image, and does not know the last."""

    def judge(modules: Modules) -> dict[int, SpirvJudgement]:
        verdicts = {index: SpirvJudgement(SpirvVerdict.VALID) for index, _ in modules}
        verdicts[len(modules) - 1] = SpirvJudgement(SpirvVerdict.UNKNOWN, "spirv-val: too old")
        return verdicts | {0: SpirvJudgement(SpirvVerdict.INVALID, "spirv-val: error: broken")}

    validator(monkeypatch, judge)


def uses_of_first(archive: Path) -> set[int]:
    """Keys of the pipelines that use the first module of the image."""
    with PipelineSet.open(archive) as source:
        image = build_image(source, source.pipelines, Opener()(DeviceRequest()).capabilities).image
        return {int(image.keys[index]) for index in range(len(image)) if 0 in image.modules_of(index)}


@pytest.mark.usefixtures("refuses_first")
async def test_warn_compiles_all_the_same(archive: Path) -> None:
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.WARN)
    assert report.counts()[OutcomeStatus.COMPILED] == COUNT
    (refused,) = [each for each in report.notes if "spirv-val refuses 1 of" in each]
    assert "compiled all the same" in refused
    assert any("no answer for 1 of" in each for each in report.notes)


async def test_nothing_to_refuse_is_said(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valid = SpirvJudgement(SpirvVerdict.VALID)
    validator(monkeypatch, lambda modules: {at: valid for at, _ in modules})
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.WARN)
    assert any(each.startswith("spirv-val refuses none of ") for each in report.notes)


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
    monkeypatch.setattr(validation, "find_spirv_val", lambda: None)
    report = await compiled(archive, None, Opener(), spirv_val=ModulePolicy.SKIP)
    assert report.counts()[OutcomeStatus.COMPILED] == COUNT
    assert any("spirv-val was not found" in each for each in report.notes)


async def test_isolate_gives_the_driver_nothing_that_was_not_tried(archive: Path) -> None:
    opener, stop = Opener(), Steering(try_pipelines=try_pipelines)
    stop.stop.set()
    report = await compiled(
        archive, None, opener, spirv_val=ModulePolicy.ISOLATE, selector="simulated", stop=stop
    )
    assert report.stopped
    assert report.counts()[OutcomeStatus.NOT_RUN] == COUNT
    assert not opener.device.compile_counts


@frozen
class LinkedSet:
    """A small set with libraries, by keys of pipelines."""

    path: Path
    library: int
    code: bytes  # of the library's module, which what links it does not have itself
    linker: int  # of that library
    other: int  # links other libraries
    keys: frozenset[int]


@pytest.fixture
def linked(tmp_path: Path) -> LinkedSet:
    """Two linkers of the sample that have all libraries but one in common, and a compute pipeline."""
    with PipelineSet.open(sample_path()) as source:
        image = build_image(source, source.pipelines, AnyDevice()).image
        codes = [each.load() for each in image.modules]
    libraries = {index: set(image.libraries_of(index)) for index in range(len(image))}
    linkers = [index for index in libraries if libraries[index]]
    linker, other, library = next(
        (one, two, next(iter(libraries[one] - libraries[two])))
        for one in linkers
        for two in linkers
        if len(libraries[one] - libraries[two]) == 1
        and any(image.modules_of(each) for each in libraries[one] - libraries[two])
    )
    (module,) = image.modules_of(library)
    chosen = {linker, other, *libraries[linker], *libraries[other]}
    keys = frozenset(int(image.keys[index]) for index in chosen) | {compute_keys()[0]}
    path = tmp_path / "linked.foz"
    with ArchiveWriter(path) as writer:
        add_sample(writer, keys)
    return LinkedSet(
        path, int(image.keys[library]), codes[module], int(image.keys[linker]), int(image.keys[other]), keys
    )


async def test_what_links_a_library_of_a_refused_module_is_skipped(
    linked: LinkedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = SpirvJudgement(SpirvVerdict.VALID)
    refused = SpirvJudgement(SpirvVerdict.INVALID, "spirv-val: error: broken")
    validator(
        monkeypatch, lambda modules: {at: refused if code == linked.code else valid for at, code in modules}
    )
    opener = Opener()
    report = await compiled(linked.path, None, opener, spirv_val=ModulePolicy.SKIP)
    skipped = {each.job.key: each.reason for each in report.of_status(OutcomeStatus.SKIPPED)}
    assert "spirv-val: error: broken" in skipped[linked.library]
    assert skipped[linked.linker] == f"library {linked.library:016x}: {skipped[linked.library]}"
    # The driver was asked for neither, and for all that nothing refused is in.
    assert opener.device.compile_counts.keys() == linked.keys - skipped.keys()


async def test_what_links_a_library_that_killed_the_driver_is_failed(
    linked: LinkedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_together: list[set[int]] = []

    async def tried(archives: Sequence[str], jobs: Sequence[PipelineJob], *_: object) -> Trials:
        tried_together.append({job.key for job in jobs})
        died = {job: "the driver crashed on it: SIGSEGV" for job in jobs if job.key == linked.library}
        return Trials(frozenset(jobs) - died.keys(), died, 1)

    monkeypatch.setattr(validation, "find_spirv_val", lambda: None)
    opener = Opener()
    report = await compiled(
        linked.path,
        None,
        opener,
        spirv_val=ModulePolicy.ISOLATE,
        stop=Steering(try_pipelines=tried),
    )
    failed = {each.job.key: each.reason for each in report.of_status(OutcomeStatus.FAILED)}
    assert failed == {
        linked.library: "the driver crashed on it: SIGSEGV",
        linked.linker: f"library {linked.library:016x}: the driver crashed on it: SIGSEGV",
    }
    first, then = tried_together
    assert linked.library in first
    assert then == {linked.other}  # what links the library would die of it, and be blamed itself
    assert any(f"the driver survived {len(linked.keys) - 2}, and not 1 (2" in each for each in report.notes)
    assert not report.stopped
    assert opener.device.compile_counts.keys() == linked.keys - failed.keys()
    assert linked.other in opener.device.compile_counts


@pytest.mark.driver("radv:navi21")
async def test_pipelines_that_crash_radv_are_named_and_the_others_compiled() -> None:
    require_tool("spirv-val")
    archive = corpora_folder() / "sascha_mixed_faults.foz"
    report = await compiled(
        archive,
        selector="radv:navi21",
        spirv_val=ModulePolicy.ISOLATE,
        stop=Steering(try_pipelines=try_pipelines),
    )
    counts = report.counts()
    assert sum(counts.values()) == 214
    assert counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT] >= 199
    failed = report.of_status(OutcomeStatus.FAILED)
    assert len(failed) == 14
    assert all("SIGSEGV" in each.reason or "SIGABRT" in each.reason for each in failed)
    assert sum("spirv-val: error" in each.reason for each in failed) == 12
