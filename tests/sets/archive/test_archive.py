"""Contract: reading and writing archives, by the rules of the format."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.archive.reader import Archive, ArchiveLimits, open_archives
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.records import RecordTag
from tests.sets.archive.small_archives import MAGIC, archive, read_all, record, small_archive, small_records

SAMPLER, LAYOUT, MODULE = RecordTag.SAMPLER, RecordTag.PIPELINE_LAYOUT, RecordTag.SHADER_MODULE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.foz"


def opened(path: Path, data: bytes, limits: ArchiveLimits | None = None) -> Archive:
    path.write_bytes(data)
    return Archive.open(path, limits)


@pytest.mark.parametrize("version", [5, 6])
def test_records_are_indexed_in_file_order(path: Path, version: int) -> None:
    records = small_records()
    data = archive(*(record(*each, flags=2) for each in records), version=version)
    with opened(path, data) as source:
        assert source.name == str(path)
        assert source.size == len(data)
        assert len(source) == len(records)
        assert [(each.tag, each.key) for each in source.records()] == [each[:2] for each in records]
        for tag in RecordTag:
            assert list(source.keys(tag)) == [key for each, key, _ in records if each == tag]
        assert read_all(source) == {(tag, key): payload for tag, key, payload in records}
        assert source.damage == ()
        assert source.duplicates == 0


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"", 0, "empty"),
        (MAGIC, 0, "15 bytes"),
        (b"PK\3\4" + bytes(100), 0, "magic"),
        (MAGIC + b"\x04", 15, "version 4"),
        (MAGIC + b"\x07", 15, "version 7"),
    ],
)
def test_what_is_no_archive_is_refused(path: Path, data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason) as error:
        opened(path, data)
    assert error.value.offset == offset
    assert error.value.path == str(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.foz", tmp_path, Path("nul\0byte")):
        with pytest.raises(ArchiveError):
            Archive.open(missing)


def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ArchiveError, match="regular file"):
        Archive.open(path)


def test_the_first_of_equal_records_wins(path: Path) -> None:
    data = archive(record(1, 5, b"first"), record(1, 5, b"second"), record(3, 5, b"other tag"))
    with opened(path, data) as source:
        assert source.payload(SAMPLER, 5) == b"first"
        assert source.payload(LAYOUT, 5) == b"other tag"
        assert source.duplicates == 1
        assert len(source) == 2


GOOD = record(3, 0x33, b"good")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(1, 5, b"abc", crc=1), "crc32"),
        (record(1, 5, b"abc", flags=2, crc=1), "crc32"),
        (record(1, 5, b"abc", flags=0), "flags 0"),
        (record(1, 5, b"abc", flags=4), "flags 4"),
        (record(1, 5, b"abc", size=4), "stored size 3 is not the declared size 4"),
        (record(1, 5, b"abc" * 99, flags=2, size=298), "more than|holds 297 bytes, 298"),
        (record(1, 5, b"abc" * 99, flags=2, size=296), "more than the declared 296"),
        (record(1, 5, b"abc" * 99, flags=2, size=0), "more than the declared 0"),
        (record(1, 5, b"", flags=2, size=0xFFFFFFF), "over the cap"),
        (record(1, 5, b"", flags=2, size=8 * 1032 + 65), "cannot come out of 8 deflated bytes"),
        (
            record(1, 5, b"abc" * 99, flags=2, stored=zlib.compress(b"abc" * 99)[:-3]),
            "truncated: 297 of 297 bytes, and no end",
        ),
        (record(1, 5, b"x", flags=2, stored=b"no zlib stream at all", crc=0), "damaged zlib stream"),
    ],
)
def test_a_bad_payload_is_named_and_the_good_ones_load(path: Path, bad: bytes, reason: str) -> None:
    before = record(4, 0x44, b"before")
    with opened(path, archive(before, bad, GOOD)) as source:
        with pytest.raises(RecordError, match=reason) as error:
            source.payload(SAMPLER, 5)
        assert (error.value.tag, error.value.key, error.value.offset) == (1, 5, 16 + len(before))
        with pytest.raises(RecordError, match=reason):
            source.payload(SAMPLER, 5)
        (damage,) = source.damage
        assert (damage.tag, damage.key, damage.offset) == (1, 5, 16 + len(before))
        assert source.payload(MODULE, 0x44) == b"before"
        assert source.payload(LAYOUT, 0x33) == b"good"


def test_foreign_tags_are_left_out(path: Path) -> None:
    sha1 = record(0, 0, b"a shader of Mesa's", name=b"0123456789abcdef0123456789abcdef01234567")
    with opened(path, archive(record(11, 1, b"x"), sha1, GOOD)) as source:
        assert len(source) == 1
        assert [each.tag for each in source.damage] == [11, 0x89ABCDEF01234567]
        assert [each.offset for each in source.damage] == [16, 16 + 57]


@pytest.mark.parametrize("cut", [1, 4, 5, 20, 56, 59])
def test_a_last_record_that_does_not_fit_is_not_read(path: Path, cut: int) -> None:
    first = record(1, 5, b"first")
    with opened(path, archive(first, GOOD[:-cut])) as source:
        assert read_all(source) == {(1, 5): b"first"}
        (damage,) = source.damage
        assert damage.offset == 16 + len(first)
        assert f"the last {len(GOOD) - cut} bytes of the file are not read" in damage.reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(1, 5, b"hidden", name=b"0" * 30 + b"xy" + b"0" * 8), "the record's name is not hexadecimal"),
        (record(1, 5, b"x" * 20, stored_size=0xFFFFFFFF), "the record does not fit into the file"),
        (b"\xff" * 70, "does not fit"),
        (bytes(80), "not hexadecimal"),
    ],
)
def test_nothing_behind_a_break_is_read(path: Path, bad: bytes, reason: str) -> None:
    first = record(1, 6, b"a")
    with opened(path, archive(first, bad, GOOD)) as source:
        assert read_all(source) == {(1, 6): b"a"}
        (damage,) = source.damage
        assert (damage.offset, damage.tag, damage.key) == (16 + len(first), None, None)
        assert reason in damage.reason
        assert f"the last {len(bad) + len(GOOD)} bytes of the file are not read" in damage.reason


def test_caps(path: Path) -> None:
    data = archive(record(1, 5, b"abcd"), record(1, 6, b"abcde"), record(1, 7, b"ab", flags=2))
    with opened(path, data, ArchiveLimits(entry_bytes=4)) as source:
        assert source.payload(SAMPLER, 5) == b"abcd"
        with pytest.raises(RecordError, match="over the cap of 4 bytes"):
            source.payload(SAMPLER, 6)
    both = archive(record(1, 5, b"abcd"), record(1, 6, b"abcde"), record(4, 7, b"abcde"))
    with opened(path, both, ArchiveLimits(document_bytes=4)) as source:
        assert source.payload(SAMPLER, 5) == b"abcd"
        assert source.payload(RecordTag.SHADER_MODULE, 7) == b"abcde"
        with pytest.raises(RecordError, match="size 5: over the cap of 4 bytes of a JSON document"):
            source.payload(SAMPLER, 6)
    with pytest.raises(ArchiveError, match="more than 2 records"):
        opened(path, data, ArchiveLimits(entries=2))
    with pytest.raises(ArchiveError, match="more than 10 bytes in total") as error:
        opened(path, data, ArchiveLimits(total_bytes=10))
    assert error.value.offset == 16 + 60 + 61
    opened(path, data, ArchiveLimits(entries=3, total_bytes=11)).close()
    opened(path, both, ArchiveLimits(free_document_bytes=9, expansion=0)).close()
    with pytest.raises(ArchiveError, match="more than 8 bytes of JSON in total") as error:
        opened(path, both, ArchiveLimits(free_document_bytes=8, expansion=0))
    assert error.value.offset == 16 + 60


_READS_A_FILE_THAT_SHRANK = """
import os, sys
from orchestrator.errors import ArchiveError, OrchestratorError
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.records import RecordTag

path = sys.argv[1]
size = os.path.getsize(path)
source = Archive.open(path)
os.truncate(path, 76)
try:
    source.content_hash(bytes)
except ArchiveError as error:
    print(error.offset, error.reason)
try:
    source.payload(RecordTag.SAMPLER, 6)
except OrchestratorError as error:
    print(error)
"""


def test_a_file_that_shrinks_before_it_is_read_is_an_error_and_no_crash(path: Path) -> None:
    path.write_bytes(archive(record(1, 5, b"x" * 10_000), record(1, 6, b"x" * 10)))
    size = path.stat().st_size
    # In a process of its own, which the system would end.
    done = subprocess.run(
        [sys.executable, "-c", _READS_A_FILE_THAT_SHRANK, path], capture_output=True, text=True, check=True
    )
    hashed, read = done.stdout.splitlines()
    assert hashed == f"76 the file was shortened after it was opened: it had {size} bytes"
    assert "the file was shortened after it was opened" in read


def test_close_is_idempotent_and_later_reads_are_misuse(path: Path) -> None:
    source = opened(path, small_archive())
    source.close()
    source.close()
    assert "closed" in repr(source)
    with pytest.raises(ValueError, match="closed"):
        source.payload(RecordTag.COMPUTE_PIPELINE, 0x7000)


def test_read_write_read_is_stable(path: Path, tmp_path: Path) -> None:
    data = small_archive()
    with opened(path, data) as source:
        copies = [tmp_path / "a.foz", tmp_path / "b.foz"]
        for copy in copies:
            with ArchiveWriter(copy) as writer:
                assert copy_records(source, writer) == 0
                assert len(writer) == len(source)
        assert [copy.read_bytes() for copy in copies] == [data, data]
        recoded = [tmp_path / "c.foz", tmp_path / "d.foz"]
        for copy in recoded:
            with ArchiveWriter(copy) as writer:
                for each in source.records():
                    assert writer.add(each.tag, each.key, source.payload(each.tag, each.key))
        assert recoded[0].read_bytes() == recoded[1].read_bytes()
        with Archive.open(recoded[0]) as again:
            names = [(each.tag, each.key) for each in source.records()]
            assert [(each.tag, each.key) for each in again.records()] == names
            assert read_all(again) == read_all(source)
            assert {each.flags for each in again.records()} == {1, 2}


def test_a_copy_takes_the_record_that_can_be_read(path: Path, tmp_path: Path) -> None:
    lies = record(1, 5, b"a" * 99, flags=2, size=98), record(4, 6, b"b" * 99, flags=2, crc=0, size=100)
    whole = record(1, 5, b"a" * 99, flags=2), record(4, 6, b"b" * 99, flags=2)
    path.write_bytes(archive(*lies, GOOD))
    (tmp_path / "whole.foz").write_bytes(archive(*whole))
    for paths, damaged, copied in (([path], 2, (GOOD,)), ([path, tmp_path / "whole.foz"], 0, (GOOD, *whole))):
        with open_archives(paths) as source, ArchiveWriter(tmp_path / "copy.foz") as writer:
            assert copy_records(source, writer) == damaged
        assert (tmp_path / "copy.foz").read_bytes() == archive(*copied)


def test_a_block_that_raises_leaves_the_old_archive(path: Path) -> None:
    path.write_bytes(b"old")
    writer = ArchiveWriter(path)

    def write() -> None:
        with writer:
            writer.add(SAMPLER, 1, b"one")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="closed"):
        writer.add(SAMPLER, 2, b"two")


def test_a_failed_sync_leaves_the_old_archive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    path.write_bytes(b"old")
    writer = ArchiveWriter(path)
    writer.add(SAMPLER, 1, b"one")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match="Input/output error"):
        writer.commit()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_corpora_are_read_whole_and_copied_identically(corpora: Path, tmp_path: Path) -> None:
    checked = 0
    for path in sorted(corpora.glob("*.foz")):
        with Archive.open(path) as source:
            with ArchiveWriter(tmp_path / "copy.foz") as writer:
                assert copy_records(source, writer) == 0
            for each in source.records():
                assert len(source.payload(each.tag, each.key)) == each.size
                checked += each.crc != 0
            assert source.damage == ()
        assert (tmp_path / "copy.foz").read_bytes() == path.read_bytes()
    assert checked > 2000  # recorders may leave the rest unchecked


def test_a_small_file_that_decodes_to_very_much_is_refused_at_once(tmp_path: Path) -> None:
    """Two hundred modules of zeros, 64 MiB each: nothing of them is decoded."""
    size = 64 << 20
    stored = zlib.compress(bytes(size), 9)
    path = tmp_path / "bomb.foz"
    path.write_bytes(archive(*(record(4, key, b"", flags=2, stored=stored, size=size) for key in range(200))))
    with pytest.raises(ArchiveError, match=f"more than {1 << 30} bytes in total"):
        Archive.open(path)
    Archive.open(path, ArchiveLimits(expansion=2000)).close()
