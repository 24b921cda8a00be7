"""Fuzz: whatever is done to an archive, only typed errors come out, and what is untouched still loads."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from tests.sets.archive.small_archives import MAGIC, record, small_archive, small_records

DATA = small_archive()
RECORDS = {(tag, key): payload for tag, key, payload in small_records()}
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def spans() -> Iterator[tuple[tuple[int, int], int, int]]:
    """Name, first and last byte (exclusive) of each record of DATA."""
    begin = 16
    for index, (tag, key, payload) in enumerate(small_records()):
        end = begin + len(record(tag, key, payload, flags=1 + (index % 2 if payload else 0)))
        yield (tag, key), begin, end
        begin = end


SPANS = list(spans())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.foz"


def use_everything(path: Path) -> dict[tuple[int, int], bytes]:
    """Everything that can be done with a set; what could be read. Catches typed errors, and no others."""
    loaded = {}
    with PipelineSet.open(path) as pipelines:
        for tag in RecordTag:
            for key in pipelines.records.keys(tag):
                with contextlib.suppress(RecordError):
                    loaded[tag, key] = pipelines.records.payload(tag, key)
        assert len(pipelines.groups) >= 1
        assert len(pipelines.applications) <= len(pipelines.records.keys(RecordTag.APPLICATION_INFO))
        pipelines.verify()
        pipelines.content_hash()
        for damage in pipelines.damage:
            assert damage.reason
            assert damage.offset is None or 0 < damage.offset <= path.stat().st_size
        assert isinstance(pipelines.records, Archive)
        assert len(loaded) + len(pipelines.damage) >= len(pipelines.records)
    return {(int(tag), key): payload for (tag, key), payload in loaded.items()}


def test_the_archive_itself_is_sound(path: Path) -> None:
    path.write_bytes(DATA)
    assert use_everything(path) == RECORDS
    assert [name for name, _, _ in SPANS] == list(RECORDS)


@FUZZ
@given(data=st.binary(max_size=400))
def test_random_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ArchiveError):
        use_everything(path)
    path.write_bytes(MAGIC + b"\6" + data)
    use_everything(path)


@FUZZ
@given(data=st.data())
def test_random_headers_cost_no_good_record_before_the_first_wrong_length(
    path: Path, data: st.DataObject
) -> None:
    number = st.one_of(st.integers(0, 300), st.integers(0, 0xFFFFFFFF))
    content = MAGIC + b"\6"
    names: set[tuple[int, int]] = set()
    expected: dict[tuple[int, int], bytes] = {}
    chained = True
    for _ in range(data.draw(st.integers(0, 8))):
        name = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3))
        payload = data.draw(st.binary(max_size=30))
        flags = data.draw(st.integers(0, 3))
        crc = data.draw(st.sampled_from([None, 0, 1]))
        stored_size = data.draw(st.none() | number)
        size = data.draw(st.none() | number)
        content += record(*name, payload, flags=flags, crc=crc, stored_size=stored_size, size=size)
        stored = len(zlib.compress(payload) if flags == 2 else payload)
        chained = chained and stored_size in (None, stored)
        good = flags in (1, 2) and size in (None, len(payload)) and crc != 1
        if chained and good and name not in names and name[0] <= max(RecordTag):
            expected[name] = payload
        names.add(name)
    path.write_bytes(content)
    loaded = use_everything(path)
    assert {name: loaded.get(name) for name in expected} == expected
    assert loaded.keys() <= names or not chained


@FUZZ
@given(bit=st.integers(16 * 8, len(DATA) * 8 - 1))
def test_one_flipped_bit_costs_its_record_and_in_a_header_those_after_it(path: Path, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    loaded = use_everything(path)
    # A flipped name may be that of another record, which it then hides if it comes first.
    assert set(loaded.values()) <= set(RECORDS.values())
    (hit,) = [each for each in SPANS if each[1] <= bit // 8 < each[2]]
    in_a_name, in_a_header = bit // 8 < hit[1] + 40, bit // 8 < hit[1] + 56
    for name, begin, end in SPANS:
        if end <= bit // 8 or (begin > bit // 8 and not in_a_header):
            assert loaded[name] == RECORDS[name] or in_a_name
        elif begin <= bit // 8 and not in_a_name:
            assert name not in loaded or bit // 8 < begin + 56


@FUZZ
@given(bits=st.lists(st.integers(0, len(DATA) * 8 - 1), min_size=2, max_size=40))
def test_many_flipped_bits_give_nothing_wrong_and_leave_what_comes_before_them(
    path: Path, bits: list[int]
) -> None:
    damaged = bytearray(DATA)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    first = next((at for at, byte in enumerate(DATA) if damaged[at] != byte), len(DATA))
    try:
        loaded = use_everything(path)
    except ArchiveError:
        assert first < 16, "only the file's own header makes it no archive"
        return
    assert set(loaded.values()) <= set(RECORDS.values())
    for name, _, end in SPANS:
        if end <= first:
            assert loaded[name] == RECORDS[name]


@FUZZ
@given(size=st.integers(0, len(DATA) - 1))
def test_a_truncated_archive_gives_its_whole_records(path: Path, size: int) -> None:
    path.write_bytes(DATA[:size])
    if size < 16:
        with pytest.raises(ArchiveError):
            use_everything(path)
        return
    assert use_everything(path) == {name: RECORDS[name] for name, _, end in SPANS if end <= size}


@FUZZ
@given(tail=st.binary(min_size=1, max_size=200))
def test_an_extended_archive_gives_its_records(path: Path, tail: bytes) -> None:
    path.write_bytes(DATA + tail)
    loaded = use_everything(path)
    assert {name: loaded[name] for name in RECORDS} == RECORDS


@FUZZ
@given(begin=st.integers(16, len(DATA)), size=st.integers(1, 300), value=st.sampled_from([0, 0x30, 0xFF]))
def test_an_overwritten_stretch_leaves_what_comes_before_it(
    path: Path, begin: int, size: int, value: int
) -> None:
    end = min(begin + size, len(DATA))
    path.write_bytes(DATA[:begin] + bytes([value]) * (end - begin) + DATA[end:])
    loaded = use_everything(path)
    for name, _, last in SPANS:
        if last <= begin:
            assert loaded[name] == RECORDS[name]
