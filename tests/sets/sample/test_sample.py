"""The sample set is up to date, complete and as varied as it says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.image.documents import decode_document, stages_of
from orchestrator.sets.records import KIND_OF_TAG, RecordTag
from orchestrator.sets.sample import sample_manifest_path, sample_path
from orchestrator.sets.sample.__main__ import check, main, shader_sources


@pytest.fixture
def sample() -> Iterator[Archive]:
    with Archive.open(sample_path()) as archive:
        yield archive


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample's files, and the manifest in it that the command finds."""
    manifest = sample_manifest_path()
    shutil.copytree(manifest.parent / "shaders", tmp_path / "shaders")
    for name in ("sample.toml", "sample.foz"):
        shutil.copy(manifest.with_name(name), tmp_path / name)
    monkeypatch.setattr(
        "orchestrator.sets.sample.__main__.sample_manifest_path", lambda: tmp_path / "sample.toml"
    )
    return tmp_path


def test_it_is_small_and_varied(sample: Archive) -> None:
    assert sample_path().stat().st_size < 1 << 20
    counts = {tag: len(sample.keys(tag)) for tag in RecordTag}
    assert 150 <= counts[RecordTag.GRAPHICS_PIPELINE] + counts[RecordTag.COMPUTE_PIPELINE] <= 250
    assert counts[RecordTag.RAY_TRACING_PIPELINE] >= 8
    assert counts[RecordTag.APPLICATION_INFO] == 1
    assert not sample.damage


def test_every_stage_is_in_it(sample: Archive) -> None:
    stages = 0
    for tag in KIND_OF_TAG:
        for key in sample.keys(tag):
            for each in stages_of(decode_document(tag, key, sample.payload(tag, key))):
                stages |= each.stage
    assert stages == 0x3FFF


def test_every_shader_source_is_compiled_and_packed(sample: Archive) -> None:
    folder = sample_manifest_path().parent / "shaders"
    sources = shader_sources(folder)
    assert len(sources) > 40
    assert {f"{each.name}.spv" for each in sources} == {each.name for each in folder.glob("*.spv")}
    assert len(sample.keys(RecordTag.SHADER_MODULE)) == len(sources)


def test_check_finds_a_changed_manifest(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = copied / "sample.toml"
    manifest.write_text(
        manifest.read_text("utf-8").replace("max_anisotropy = 8.0", "max_anisotropy = 4.0"), "utf-8"
    )
    before = (copied / "sample.foz").read_bytes()
    assert main(["--check"]) == 1
    assert "SAMPLER" in capsys.readouterr().out
    assert (copied / "sample.foz").read_bytes() == before


def test_rebuilding_without_a_compiler_packs_the_committed_spirv(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    (copied / "sample.foz").unlink()
    assert main([]) == 0
    assert "SPIR-V left as it is" in capsys.readouterr().out
    assert check(copied / "sample.toml") is None
