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
from orchestrator.sets.archive.reader import Archive, ArchiveLimits, build_index
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from tests.sets.archive.small_archives import MAGIC, record, small_archive, small_records

DATA = small_archive()
UNCHECKED = small_archive(crc=0)
RECORDS = {(tag, key): payload for tag, key, payload in small_records()}
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def spans() -> Iterator[tuple[tuple[int, int], int, int]]:
    """Name, first and last byte (exclusive) of each record of DATA."""
    index = build_index(DATA, "small", ArchiveLimits())
    for tag, key, offset, stored in zip(index.tags, index.keys, index.offsets, index.stored, strict=True):
        yield (int(tag), int(key)), int(offset), int(offset) + 56 + int(stored)


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
    # Nothing is made up either: a search behind a break finds headers that are there.
    assert loaded.keys() <= names


@FUZZ
@given(bit=st.integers(16 * 8, len(DATA) * 8 - 1))
def test_one_flipped_bit_costs_at_most_the_record_it_is_in(path: Path, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    loaded = use_everything(path)
    # A flipped name may be that of another record, which it then hides if it comes
    # first; its bytes stay its own.
    in_a_name = any(begin <= bit // 8 < begin + 40 for _, begin, _ in SPANS)
    for name, begin, end in SPANS:
        if not begin <= bit // 8 < end:
            assert loaded[name] == RECORDS[name] or (in_a_name and loaded[name] in RECORDS.values())
        elif bit // 8 >= begin + 56:
            assert name not in loaded


@FUZZ
@given(data=st.data())
def test_one_flipped_bit_in_a_header_of_an_unchecked_archive_costs_its_record(
    path: Path, data: st.DataObject
) -> None:
    hit, begin, _ = data.draw(st.sampled_from(SPANS))
    bit = data.draw(st.integers(begin * 8, (begin + 56) * 8 - 1))
    damaged = bytearray(UNCHECKED)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    loaded = use_everything(path)
    # As above: nothing but the check of the name says that it is another record's.
    in_a_name = begin <= bit // 8 < begin + 40
    for name in RECORDS:
        assert name == hit or loaded[name] == RECORDS[name] or (in_a_name and loaded[name] == RECORDS[hit])


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
def test_an_overwritten_stretch_costs_what_it_covers(path: Path, begin: int, size: int, value: int) -> None:
    end = min(begin + size, len(DATA))
    path.write_bytes(DATA[:begin] + bytes([value]) * (end - begin) + DATA[end:])
    loaded = use_everything(path)
    for name, first, last in SPANS:
        if last <= begin or first >= end:
            assert loaded[name] == RECORDS[name]


def test_a_byte_too_many_or_too_few_in_a_header_costs_its_record_and_no_later_one(path: Path) -> None:
    """Whatever sizes the shifted header then declares, the search for the next one has means left."""
    for hit, begin, _ in SPANS:
        for at in range(begin, begin + 56):
            for damaged in (DATA[:at] + b"\x08" + DATA[at:], DATA[:at] + DATA[at + 1 :]):
                index = build_index(damaged, "small", ArchiveLimits())
                there = set(zip(map(int, index.tags), map(int, index.keys), strict=True))
                assert RECORDS.keys() - there <= {hit}, (hit, at - begin)
