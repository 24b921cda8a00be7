"""Real sets without their SPIR-V, on real drivers: what is created, what falls back, what it takes on disk.

RADV's creation feedback says what it found in the cache; that no SPIR-V was there is sure, because the
archive has none and the provider fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
from attrs import evolve

from orchestrator.devices.identified import SpirvProvider
from orchestrator.devices.modes import CacheMode
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, IdentifiersRecord, OutcomeStatus
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from tests.drivers import run_on_device
from tests.run.support import refuse

NAVI21 = "radv:navi21"
MESA = b"MESA-BLAKE3".ljust(16, b"\0")
OPTIONS = CompileOptions(mode="per-worker", selector=NAVI21, workers=2, identifiers=True)
SETS = ("sample", "supertuxkart", "sascha_rt")


def set_path(name: str, request: pytest.FixtureRequest) -> Path:
    """The sample, or a captured set; the test is skipped where it is absent."""
    if name == "sample":
        return sample_path()
    folder: Path = request.getfixturevalue("corpora")
    return folder / f"{name}.foz"


def compiled(source: PipelineSet, folder: Path, options: CompileOptions = OPTIONS) -> CompileReport:
    async def main() -> CompileReport:
        return await compile_set(source, options, cache_directory=folder)

    return trio.run(main)


def without_code(path: Path, folder: Path) -> Path:
    target = folder / "without-code.foz"
    with PipelineSet.open(path) as source, ArchiveWriter(target) as writer:
        for tag in RecordTag:
            if tag is not RecordTag.SHADER_MODULE:
                for key in source.records.keys(tag):
                    writer.add(tag, key, source.records.payload(tag, key))
    return target


def identifiers(report: CompileReport) -> IdentifiersRecord:
    assert report.identifiers is not None
    return report.identifiers


def created(report: CompileReport) -> int:
    counts = report.counts()
    return counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT]


@pytest.mark.driver(NAVI21)
@pytest.mark.parametrize("name", SETS)
def test_a_primed_set_needs_no_spirv(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = set_path(name, request)
    with PipelineSet.open(path) as source:
        first = compiled(source, tmp_path)
    assert identifiers(first).known == 0

    # What the device can take: what it cannot, only the code says.
    can = Subset(keys=frozenset(int(each.key) for each in first.pipelines if each.created))
    with PipelineSet.open(without_code(path, tmp_path)) as bare:
        assert bare.tag_counts[RecordTag.SHADER_MODULE] == 0
        report = compiled(bare.supplied_by(SpirvProvider(refuse)), tmp_path, evolve(OPTIONS, subset=can))
    assert report.failed == report.skipped == ()
    # What links libraries has no feedback of its own and counts as its libraries do; those that only say how
    # vertices are read, or how colours are written, hold no code, and are never in a cache.
    codeless = 4 if name == "sample" else 0
    assert created(report) == created(first) == len(report.pipelines)
    assert report.counts()[OutcomeStatus.COMPILED] <= codeless + 28 * (name == "sample")
    record = identifiers(report)
    assert (record.missed, record.asked) == (0, 0)
    assert record.created >= created(first) - codeless


@pytest.mark.driver(NAVI21)
def test_the_next_run_of_an_archive_reads_no_module(tmp_path: Path, corpora: Path) -> None:
    """With its plan a set is not decoded, and with identifiers its code is not read either."""
    path = corpora / "supertuxkart.foz"
    with PipelineSet.open(path) as source:
        first = compiled(source, tmp_path)
    with PipelineSet.open(path) as source:

        def module(key: int, place: object = None) -> bytes:
            raise AssertionError(f"module {key:016x} was read")

        source.module = module  # type: ignore[method-assign, assignment]
        second = compiled(source, tmp_path)
    assert second.counts()[OutcomeStatus.CACHE_HIT] == created(first)
    assert identifiers(second).created == created(first)


@pytest.mark.driver(NAVI21)
def test_binaries_need_no_spirv(tmp_path: Path) -> None:
    options = evolve(OPTIONS, mode=CacheMode.BINARIES)
    path = sample_path()
    with PipelineSet.open(path) as source:
        first = compiled(source, tmp_path, options)
    can = Subset(keys=frozenset(int(each.key) for each in first.pipelines if each.created))
    with PipelineSet.open(without_code(path, tmp_path)) as bare:
        report = compiled(bare.supplied_by(SpirvProvider(refuse)), tmp_path, evolve(options, subset=can))
    assert created(report) == created(first)
    # Libraries without code have no binaries; links are made of what is there, and compile nothing.
    codeless, links = 4, 32
    assert report.counts()[OutcomeStatus.COMPILED] == codeless
    assert report.binaries is not None
    assert report.binaries.created == created(first) - codeless - links


def users_of(source: PipelineSet, module: int) -> list[int]:
    """Pipelines that have a stage of a module, by the text of their records."""
    tags = (RecordTag.GRAPHICS_PIPELINE, RecordTag.COMPUTE_PIPELINE)
    name = f"{module:016x}".encode()
    return [
        key
        for tag in tags
        for key in source.records.keys(tag)
        if name in bytes(source.records.payload(tag, key))
    ]


def wrong_code(how: str, path: str, folder: str) -> dict[str, object]:
    """Compile a set whose provider gives wrong code for one shader."""
    with PipelineSet.open(path) as source:
        shaders = sorted(source.records.keys(RecordTag.SHADER_MODULE))
        victim = shaders[0]
        others: dict[str, Callable[[], bytes]] = {
            "another stage's": lambda: next(
                code
                for each in shaders
                if (code := source.module(each).code)
                and entry_of(code) != entry_of(source.module(victim).code)
            ),
            "cut short": lambda: source.module(victim).code[:400],
            "cut in its last function": lambda: source.module(victim).code[:-4],
        }

        def translate(key: int) -> bytes:
            return others[how]() if key == victim else source.module(key).code

        with PipelineSet.open(without_code(Path(path), Path(folder))) as bare:
            report = compiled(bare.supplied_by(SpirvProvider(translate)), Path(folder))
        users = users_of(source, victim)
    return {
        "created": created(report),
        "failed": sorted(int(each.key) for each in report.failed),
        "reasons": sorted({each.reason for each in report.failed}),
        "users": sorted(users),
    }


def entry_of(code: bytes) -> int:
    words = np.frombuffer(code, "<u4")
    at = 5
    while words[at] & 0xFFFF != 15:
        at += int(words[at] >> 16)
    return int(words[at + 1])


WRONG = {
    "another stage's": "without the entry point 'main'",
    "cut short": "what is no SPIR-V",
    "cut in its last function": "it ends within a function",
}


def all_wrong_code(path: str, folder: str) -> dict[str, dict[str, object]]:
    """For a process of its own: `wrong_code` of each sort."""
    found = {}
    for number, how in enumerate(WRONG):
        own = Path(folder, str(number))
        own.mkdir(mode=0o700)
        found[how] = wrong_code(how, path, str(own))
    return found


def test_wrong_code_never_reaches_the_driver(tmp_path: Path, corpora: Path) -> None:
    path = str(corpora / "supertuxkart.foz")
    results = run_on_device(NAVI21, f"{__name__}:all_wrong_code", path, str(tmp_path))
    for how, reason in WRONG.items():
        found = results[how]
        assert found["failed"] == found["users"], how
        assert found["created"] == 28 - len(found["users"])
        assert all(reason in each for each in found["reasons"]), found["reasons"]


def test_a_set_without_code_has_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a set that nobody supplies does not take, though its files are the same."""
    options = evolve(OPTIONS, selector="simulated", subset=Subset(2, 16))
    path = without_code(sample_path(), tmp_path)
    with PipelineSet.open(sample_path()) as source, PipelineSet.open(path) as bare:
        supplied = bare.supplied_by(SpirvProvider(lambda key: source.module(key).code))
        first = compiled(supplied, tmp_path, options)
        assert created(first) > 0
        assert identifiers(first).asked > 0
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.sets.image.builder.build_image", refuse)
            second = compiled(bare.supplied_by(SpirvProvider(refuse)), tmp_path, options)
        assert second.counts()[OutcomeStatus.CACHE_HIT] == created(first)
        assert not any("plan" in note for note in second.notes)
    with PipelineSet.open(path) as bare:
        alone = compiled(bare, tmp_path, evolve(options, identifiers=False))
    assert any("which is not in the set" in each.reason for each in alone.failed)
