"""Captured sets on RADV and lavapipe, end to end, twice: at least the counts that other replayers reach."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
from attrs import evolve

from orchestrator.devices.binary_data import HeldBinaries
from orchestrator.devices.device import (
    NO_SOURCE,
    Device,
)
from orchestrator.devices.identified import IdentifiedModules, of_image
from orchestrator.devices.image import KINDS
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError
from orchestrator.run.binaries import HeldPipelines, binary_device
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.sample import sample_path
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file
from tests.drivers import Corpus, each_good_corpus, run_on_device
from tests.run import small_sets

NAVI21, NAVI31 = "radv:navi21", "radv:navi31"
# What a reason may name: a thing that a device can lack.
NAMES_A_LACK = ("capability", "extension", "feature", "format", "property", "version")


def compiled(
    path: Path, selector: str, folder: Path | None, mode: CacheMode = CacheMode.PER_WORKER, workers: int = 2
) -> CompileReport:
    """Compile a set with its cache kept in a folder."""
    return trio.run(partial(small_sets.compiled, path, folder, selector=selector, mode=mode, workers=workers))


def counts_of(path: str, selector: str, places: list[list[str]]) -> list[dict[str, int]]:
    """For a process of its own: compile in each folder and mode, and give the counts."""
    reports = [compiled(Path(path), selector, Path(folder), CacheMode(mode)) for folder, mode in places]
    return [{status.value: count for status, count in each.counts().items()} for each in reports]


def check(report: CompileReport, corpus: Corpus, least: int | None) -> None:
    """What holds for every report on a set without faults."""
    counts = report.counts()
    assert sum(counts.values()) == corpus.pipelines == report.set.unique
    assert counts[OutcomeStatus.FAILED] == counts[OutcomeStatus.NOT_RUN] == 0
    created = counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT]
    assert least is not None
    assert created >= least
    for each in report.of_status(OutcomeStatus.SKIPPED):
        assert any(word in each.reason for word in NAMES_A_LACK), each.reason


@pytest.mark.driver(NAVI21)
@each_good_corpus
def test_radv_creates_what_others_create_and_then_hits_everything(corpus: Corpus, tmp_path: Path) -> None:
    first = compiled(corpus.path, NAVI21, tmp_path)
    check(first, corpus, corpus.created_radv)
    assert first.cache_file.saved_bytes > 0
    second = compiled(corpus.path, NAVI21, tmp_path)
    check(second, corpus, corpus.created_radv)
    assert second.cache_file.load_status is LoadStatus.LOADED
    assert second.counts()[OutcomeStatus.COMPILED] == 0
    assert second.cache_file.saved_bytes == 0
    assert "nothing new" in (second.cache_file.not_saved or "")
    assert second.counts()[OutcomeStatus.CACHE_HIT] == corpus.pipelines - len(
        first.of_status(OutcomeStatus.SKIPPED)
    )


@pytest.mark.driver("lavapipe")
@each_good_corpus
def test_lavapipe_creates_what_others_create_and_keeps_nothing(corpus: Corpus, tmp_path: Path) -> None:
    report = compiled(corpus.path, "lavapipe", tmp_path)
    check(report, corpus, corpus.created_lavapipe)
    assert report.counts()[OutcomeStatus.CACHE_HIT] == 0
    assert report.cache_file.saved_bytes == 0
    assert report.cache_file.not_saved
    assert list(tmp_path.glob("*.pipeline-cache")) == []


@pytest.mark.driver(NAVI31)
def test_another_family_hits_its_own_cache_and_refuses_the_other(corpora: Path, tmp_path: Path) -> None:
    path = corpora / "supertuxkart.foz"
    first = compiled(path, NAVI31, tmp_path)
    assert first.counts()[OutcomeStatus.COMPILED] > 0
    second = compiled(path, NAVI31, tmp_path)
    assert second.counts()[OutcomeStatus.CACHE_HIT] == 28

    other = tmp_path / "other"
    run_on_device(NAVI21, f"{__name__}:counts_of", str(path), NAVI21, [[str(other), "per-worker"]])
    (foreign,) = [each for each in other.iterdir() if each.is_file() and each.suffix == ".pipeline-cache"]
    refused = read_cache_file(foreign, second.device.identity)
    assert refused.status is LoadStatus.OTHER_DEVICE
    assert refused.field == "deviceID"

    # Offered under the name that this family looks for, it is refused too, named, and replaced.
    taken = cache_path(tmp_path / "taken", second.device.identity)
    taken.parent.mkdir(mode=0o700)
    shutil.copyfile(foreign, taken)
    taken.chmod(0o600)
    report = compiled(path, NAVI31, taken.parent)
    assert report.cache_file.load_field == "deviceID"
    assert report.counts()[OutcomeStatus.CACHE_HIT] <= first.counts()[OutcomeStatus.CACHE_HIT]
    assert any("deviceID" in note for note in report.notes)


@pytest.mark.driver(NAVI21)
def test_all_topologies_end_with_the_same_keys(corpora: Path, tmp_path: Path) -> None:
    """What each leaves in the primary, offered to a new process, is everything."""
    path = corpora / "supertuxkart.foz"
    expected = {"compiled": 0, "cache_hit": 28, "skipped": 0, "failed": 0, "not_run": 0}
    modes = (CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL)
    for mode in modes:
        compiled(path, NAVI21, tmp_path / mode.value, mode)
    places = [[str(tmp_path / mode.value), again.value] for mode in modes for again in modes[:2]]
    found = run_on_device(NAVI21, f"{__name__}:counts_of", str(path), NAVI21, places)
    assert found == [expected] * len(places)


@pytest.mark.driver(NAVI21)
@pytest.mark.parametrize("name", ["supertuxkart", "sascha_rt"])
def test_binaries_make_a_set_again_without_compiling(corpora: Path, tmp_path: Path, name: str) -> None:
    first = compiled(corpora / f"{name}.foz", NAVI21, tmp_path, CacheMode.BINARIES)
    assert first.binaries is not None
    created = first.counts()[OutcomeStatus.COMPILED]
    assert created == first.binaries.stored > 0
    assert first.counts()[OutcomeStatus.FAILED] == 0
    assert first.binaries.stored_bytes < first.binaries.captured_bytes
    second = compiled(corpora / f"{name}.foz", NAVI21, tmp_path, CacheMode.BINARIES)
    assert second.binaries is not None
    assert second.binaries.created == second.counts()[OutcomeStatus.CACHE_HIT] == created
    assert second.counts()[OutcomeStatus.COMPILED] == second.binaries.captured == 0
    with BinaryStore.open(tmp_path) as store:
        assert store.verify() == []
        assert store.statistics().payload_bytes == first.binaries.stored_bytes


def binaries_of(path: str, selector: str, folder: str) -> list[list[int]]:
    """For a process of its own: created, pulled in and compiled, of two runs in mode BINARIES."""
    found = []
    for _ in range(2):
        report = compiled(Path(path), selector, Path(folder), CacheMode.BINARIES)
        assert report.binaries is not None
        counts = report.counts()
        found.append([report.binaries.created, report.binaries.pulled_in, counts[OutcomeStatus.COMPILED]])
    return found


@pytest.mark.driver(NAVI21)
def test_another_family_is_offered_no_binaries(corpora: Path, tmp_path: Path) -> None:
    path = corpora / "supertuxkart.foz"
    compiled(path, NAVI21, tmp_path, CacheMode.BINARIES)
    found = run_on_device(NAVI31, f"{__name__}:binaries_of", str(path), NAVI31, str(tmp_path))
    assert found == [[0, 0, 28], [28, 28, 0]]
    with BinaryStore.open(tmp_path) as store:
        keys = {each.about.global_key for each in store.statistics().generations}
        assert len(keys) == 2


def asked_of_own_cache(path: str, fills: str) -> dict[str, int]:
    """For a process of its own, whose driver has its own cache on: ask it by identifiers of modules alone."""

    def opener(request: DeviceRequest) -> Device:
        return open_device(NAVI21, request=request, driver_caches=True)

    with PipelineSet.open(path) as source, closing(opened_groups(source, opener)) as groups:
        group = next(each for each in groups if len(each.built.image))
        device = binary_device(group.device)
        indices = np.arange(len(group.built.image), dtype=np.int32)
        image = group.built.image
        known = IdentifiedModules(image, of_image(image), {})
        with closing(device.prepare(image)) as prepared, closing(device.prepare(known)) as bare:
            if fills:
                assert not device.create_pipelines(prepared, indices, NO_SOURCE).results.any()
            for module in range(len(image.modules)):
                known.learn(module, device.code_identifier(prepared, module))
            found = device.probe_internal_cache(bare, indices)
            handles = [each for each in found if each is not None]
            created = 0
            if handles:
                held = HeldBinaries(np.array(list(map(len, handles)), np.uint32), np.concatenate(handles))
                created = int((device.create_from_binaries(bare, indices, held).results == 0).sum())
            prefers = device.binary_properties.prefers_internal_cache
    return {"asked": len(found), "found": len(handles), "created": created, "prefers": int(prefers)}


@pytest.mark.driver(NAVI21)
def test_radvs_own_cache_is_asked_by_identifiers_alone(corpora: Path, tmp_path: Path) -> None:
    path = str(corpora / "supertuxkart.foz")
    own_cache = {"MESA_SHADER_CACHE_DISABLE": "false", "MESA_SHADER_CACHE_DIR": str(tmp_path)}
    empty, filled, again = (
        run_on_device(NAVI21, f"{__name__}:asked_of_own_cache", path, fills, environment=own_cache)
        for fills in ("", "fills", "")
    )
    assert (empty["found"], empty["created"]) == (0, 0)  # PIPELINE_BINARY_MISSING
    # In the process that compiled, and in one that did not.
    assert filled == again
    assert again["asked"] == again["found"] == again["created"] == 28
    assert again["prefers"] == 0


def found_by_identifiers(folder: str) -> dict[str, int]:
    """For a process of its own: of each kind, how many stored pipelines are found under another state."""

    def opener(request: DeviceRequest) -> Device:
        return open_device(NAVI21, request=request)

    with (
        PipelineSet.open(sample_path()) as sample,
        closing(opened_groups(sample, opener)) as groups,
        BinaryStore.open(Path(folder)) as store,
    ):
        group = next(each for each in groups if len(each.built.image))
        image, device = group.built.image, binary_device(group.device)
        indices = np.arange(len(image), dtype=np.int32)
        unknown = evolve(image, keys=image.keys + np.uint64(1))
        known = IdentifiedModules(unknown, of_image(unknown), {})
        with closing(device.prepare(image)) as prepared, closing(device.prepare(known)) as bare:
            filling = HeldPipelines.of(device, store)
            filling.take(prepared, device.create_captured(prepared, indices)[1])
            filling.destroy()
            for module in range(len(image.modules)):
                known.learn(module, device.code_identifier(prepared, module))
            source = HeldPipelines.of(device, store)
            held = source.hold(bare, indices).counts > 0
            counts = {kind: int(held[image.kinds[indices] == n].sum()) for n, kind in enumerate(KINDS)}
            source.destroy()
    return {kind.value: count for kind, count in counts.items()}


@pytest.mark.driver(NAVI21)
def test_radvs_pipelines_are_found_by_identifiers_unless_they_trace_rays(tmp_path: Path) -> None:
    found = run_on_device(NAVI21, f"{__name__}:found_by_identifiers", str(tmp_path))
    assert found["ray_tracing"] == 0
    assert found["compute"] == 71
    assert found["graphics"] > 0


@pytest.mark.driver("lavapipe")
def test_a_driver_without_binaries_is_told(corpora: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no VK_KHR_pipeline_binary; use another --mode"):
        compiled(corpora / "supertuxkart.foz", "lavapipe", tmp_path, CacheMode.BINARIES)


@pytest.mark.parametrize(
    "device", [pytest.param(each, marks=pytest.mark.driver(each)) for each in (NAVI21, "lavapipe")]
)
def test_an_application_of_vulkan_1_0_cannot_have_binaries(
    device: str, corpora: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        report = compiled(corpora / "vkcube.foz", device, tmp_path, CacheMode.BINARIES)
        assert report.counts()[OutcomeStatus.COMPILED] == 1
        # lavapipe has them for no version, which a device of version 1.0 cannot show.
        assert any("it needs 1.1, and a driver with it" in each for each in report.notes)


@pytest.mark.driver(NAVI21)
def test_without_a_cache_nothing_hits_and_nothing_is_kept(corpora: Path, tmp_path: Path) -> None:
    for _ in range(2):
        report = compiled(corpora / "vkcube.foz", NAVI21, tmp_path, CacheMode.NONE)
        assert report.counts()[OutcomeStatus.COMPILED] == 1
        assert report.cache_file.path is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.driver(NAVI21)
async def test_an_archive_of_several_applications_is_compiled_with_the_features_of_each(
    corpora: Path, tmp_path: Path
) -> None:
    """One set recorded with robust access and one without: two groups, every pipeline counted once."""
    paths = [corpora / "supertuxkart.foz", corpora / "wgpu.foz"]
    with PipelineSet.open(paths) as source:
        assert len(source.groups) == 2
    report = await small_sets.compiled(paths, tmp_path, selector=NAVI21)
    assert len(report.set.groups) == len(report.runs) == 2
    counts = report.counts()
    assert sum(counts.values()) == 28 + 476
    assert counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT] == 28 + 316
    again = await small_sets.compiled(paths, tmp_path, selector=NAVI21)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 28 + 316
