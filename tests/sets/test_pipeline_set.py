"""Contract: the public face of a set, over files, several files, and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.errors import RecordError
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import (
    Archive,
    MemoryRecords,
    record_offset,
)
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import (
    Damage,
    PipelineJob,
    RecordTag,
)
from tests.sets.archive.small_archives import archive, read_all, record, small_archive, small_records, spirv

GRAPHICS, COMPUTE, MODULE = (
    RecordTag.GRAPHICS_PIPELINE,
    RecordTag.COMPUTE_PIPELINE,
    RecordTag.SHADER_MODULE,
)
LISTED = {  # modules; graphics, compute, ray tracing: as the corpora's own list says
    "vkcube": (2, 1, 0, 0),
    "supertuxkart": (12, 28, 0, 0),
    "placebo": (256, 168, 16, 0),
    "wgpu": (94, 427, 49, 0),
    "sascha": (781, 652, 30, 0),
    "sascha_rt": (82, 0, 0, 114),
    "sascha_mismatch": (234, 178, 0, 0),
    "sascha_crashers": (192, 92, 2, 6),
    "sascha_mixed_faults": (343, 201, 11, 2),
    "slow": (36, 0, 36, 0),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    path.write_bytes(small_archive())
    return path


def in_memory() -> MemoryRecords:
    memory = MemoryRecords("made here")
    for tag, key, payload in small_records():
        assert memory.add(RecordTag(tag), key, payload)
    return memory


def test_a_set_from_a_file(path: Path) -> None:
    with PipelineSet.open(path) as pipelines:
        assert pipelines.name == str(path)
        assert len(pipelines) == 7
        assert pipelines.counts == {
            PipelineKind.GRAPHICS: 6,
            PipelineKind.COMPUTE: 1,
            PipelineKind.RAY_TRACING: 0,
        }
        assert pipelines.tag_counts[MODULE] == 6
        assert sum(pipelines.tag_counts.values()) == len(small_records())
        assert pipelines.pipelines[0] == PipelineJob(0x6000, PipelineKind.GRAPHICS)
        assert pipelines.pipelines[-1] == PipelineJob(0x7000, PipelineKind.COMPUTE)
        assert [each.name for each in pipelines.applications] == ["one"]
        assert [len(group.pipelines) for group in pipelines.groups] == [7]
        assert pipelines.module(0x4001).code == spirv(*range(1, 41), 0xDEADBEEF)
        assert pipelines.damage == ()
        assert "6 graphics, 1 compute" in repr(pipelines)
        with pytest.raises(KeyError):
            pipelines.module(1)


def test_opening_closes_and_records_of_the_caller_stay_open(path: Path) -> None:
    with PipelineSet.open(path) as pipelines:
        pass
    with pytest.raises(ValueError, match="closed"):
        pipelines.module(0x4001)
    with Archive.open(path) as source:
        PipelineSet.from_records(source).close()
        assert source.payload(COMPUTE, 0x7000)


def test_the_same_records_are_the_same_set(path: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.foz"
    turned.write_bytes(small_archive(reversed(small_records())))
    less = tmp_path / "less.foz"
    less.write_bytes(small_archive(small_records()[1:]))
    with PipelineSet.open(path) as one, PipelineSet.open(turned) as two, PipelineSet.open(less) as three:
        memory = PipelineSet.from_records(in_memory())
        assert one.content_hash() == two.content_hash() == memory.content_hash()
        assert one.content_hash() != three.content_hash()
        assert one.content_hash().bit_length() <= 64


def test_several_archives_are_one_set(tmp_path: Path) -> None:
    base, part = tmp_path / "base.foz", tmp_path / "base.1.foz"
    base.write_bytes(archive(record(7, 1, b"base"), record(7, 2, b"x", crc=1), record(7, 3, b"y", crc=1)))
    part.write_bytes(
        archive(record(6, 9, b"g"), record(7, 1, b"part"), record(7, 2, b"two"), record(7, 4, b"4"))
    )
    with PipelineSet.open([base, part]) as pipelines:
        assert pipelines.name == f"{base} + {part}"
        assert [each.key for each in pipelines.pipelines] == [9, 1, 2, 3, 4]
        source = pipelines.records
        assert source.payload(COMPUTE, 1) == b"base"
        assert source.payload(COMPUTE, 2) == b"two"
        with pytest.raises(RecordError, match="crc32"):
            source.payload(COMPUTE, 3)
        with pytest.raises(KeyError):
            source.payload(COMPUTE, 5)
        assert [(each.key, each.offset) for each in pipelines.damage] == [(2, 16 + 60), (3, 16 + 60 + 57)]
        assert all(str(base) in each.reason for each in pipelines.damage)
        assert record_offset(source, COMPUTE, 4) == 16 + 57 + 60 + 59
        assert record_offset(source, COMPUTE, 5) is None
        with ArchiveWriter(tmp_path / "merged.foz") as writer:
            assert pipelines.copy_to(writer) == 1
    with Archive.open(tmp_path / "merged.foz") as merged:
        assert read_all(merged) == {(6, 9): b"g", (7, 1): b"base", (7, 2): b"two", (7, 4): b"4"}


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    good = encode_module(spirv(1))
    key = int(good.split(b'"')[5], 16)
    path = tmp_path / "set.foz"
    records = [
        record(4, key, good),
        record(4, 0x99, encode_module(spirv(2), 0, 0x99)),  # decodes, under a name that is not its own
        record(4, 0x98, b"{"),
        record(7, 0x70, b"x", crc=5),
    ]
    path.write_bytes(archive(*records))
    with PipelineSet.open(path) as pipelines:
        assert list(pipelines.damage) == []
        assert pipelines.verify().unusable == 3
        found: dict[int | None, Damage] = {each.key: each for each in pipelines.damage}
        assert set(found) == {0x99, 0x98, 0x70}
        assert "not the module that was recorded" in found[0x99].reason
        assert found[0x99].offset == 16 + len(records[0])
        assert pipelines.verify().unusable == 3
        assert len(pipelines.damage) == 3
        with pytest.raises(RecordError) as error:
            pipelines.module(0x98)
        assert error.value.offset == 16 + len(records[0]) + len(records[1])


@pytest.mark.parametrize("several", [False, True])
def test_a_module_without_a_crc_is_read_only_under_its_own_hash(tmp_path: Path, several: bool) -> None:
    good = encode_module(spirv(1))
    key = int(good.split(b'"')[5], 16)
    altered = encode_module(spirv(2), 0, 0x99)  # as a flipped bit leaves it: it decodes
    paths = [tmp_path / "set.foz", tmp_path / "other.foz"]
    records = [record(4, key, good, crc=0), record(4, 0x99, altered, crc=0)]
    paths[0].write_bytes(archive(*records, record(4, 0x97, encode_module(spirv(2), 0, 0x97))))
    paths[1].write_bytes(archive())
    with PipelineSet.open(paths[: 1 + several]) as pipelines:
        # What a crc proves may have a name by a program's own rule.
        assert pipelines.module(key).code == spirv(1)
        assert pipelines.module(0x97).code == spirv(2)
        with pytest.raises(RecordError, match="not the module that was recorded") as error:
            pipelines.module(0x99)
        assert error.value.offset == 16 + len(records[0])
        assert [each.key for each in pipelines.damage] == [0x99]


def test_corpora_hold_what_their_list_says(corpora: Path) -> None:
    found = {path.stem: path for path in corpora.glob("*.foz")}
    assert set(LISTED) <= set(found)
    for name, (modules, *pipelines) in LISTED.items():
        with PipelineSet.open(found[name]) as each:
            assert each.tag_counts[MODULE] == modules
            assert list(each.counts.values()) == pipelines
            assert {job for group in each.groups for job in group.pipelines} == set(each.pipelines)
            assert each.damage == ()
