"""Every record is proved by its key; one whose key today's rules do not give is not checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.sets.archive.hashes import (
    hash_values,
    hash_words,
)
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import Archive, MemoryRecords
from orchestrator.sets.archive.record_proof import Verified
from orchestrator.sets.archive.state_hashes import state_hash
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordSource, RecordTag
from orchestrator.sets.sample import sample_path
from tests.sets.archive.small_archives import spirv

OTHER = 0x0123456789ABCDEF
PROVED = [tag for tag in RecordTag if tag not in (RecordTag.SHADER_MODULE, RecordTag.BUCKET_INFO)]


def damaged(source: RecordSource) -> list[tuple[int | None, str]]:
    """Key and reason of what is damaged; as many as `verify` counts."""
    pipelines = PipelineSet.from_records(source)
    assert pipelines.verify().unusable == len(pipelines.damage)
    return [(each.key, each.reason) for each in pipelines.damage]


def not_checked(source: RecordSource) -> list[int]:
    """Keys of records that are not checked; nothing else is wrong."""
    pipelines = PipelineSet.from_records(source)
    found = pipelines.verify()
    assert (found.unusable, pipelines.damage) == (0, ())
    return [key for _, key in found.not_checked]


def one(tag: RecordTag, document: dict[str, Any], key: int | None = None) -> MemoryRecords:
    """A set of one record; under its own key where none is given."""
    table = TABLES[tag][0][0]
    if key is None:
        key = state_hash(value_of(tag, document), dict[int, Any]().__getitem__)
    return named(tag, key, msgspec.json.encode({"version": 6, table: {f"{key:016x}": document}}))


def value_of(tag: RecordTag, document: dict[str, Any]) -> Any:
    payload = msgspec.json.encode({"version": 6, TABLES[tag][0][0]: {f"{0:016x}": document}})
    return decode_document(tag, 0, payload)


def named(tag: RecordTag, key: int, payload: bytes) -> MemoryRecords:
    memory = MemoryRecords("test")
    memory.add(tag, key, payload)
    return memory


@pytest.fixture
def sample() -> MemoryRecords:
    memory = MemoryRecords("sample")
    with Archive.open(sample_path()) as archive:
        for tag in RecordTag:
            for key in archive.keys(tag):
                memory.add(tag, key, archive.payload(tag, key))
    return memory


def test_the_sample_set_is_what_its_names_say(sample: MemoryRecords) -> None:
    assert all(sample.keys(tag) for tag in PROVED)
    assert not_checked(sample) == []


@pytest.mark.parametrize("tag", PROVED)
def test_a_record_under_another_name_is_found(tag: RecordTag, sample: MemoryRecords) -> None:
    key = sample.keys(tag)[0]
    payload = sample.payload(tag, key).replace(f'"{key:016x}":'.encode(), f'"{OTHER:016x}":'.encode())
    sample.add(tag, OTHER, payload)
    assert not_checked(sample) == [OTHER]


@pytest.mark.parametrize(
    ("tag", "old", "new"),
    [
        (RecordTag.SAMPLER, b'"maxLod":1000.0', b'"maxLod":1000.5'),
        (RecordTag.RENDER_PASS, b'"loadOp":1', b'"loadOp":2'),
        (RecordTag.GRAPHICS_PIPELINE, b'"topology":3', b'"topology":4'),
        (RecordTag.COMPUTE_PIPELINE, b'"name":"main"', b'"name":"fain"'),
        (RecordTag.APPLICATION_BLOB_LINK, b'"tag":6', b'"tag":7'),
        (RecordTag.APPLICATION_INFO, b'"robustBufferAccess":0', b'"robustBufferAccess":1'),
    ],
)
def test_an_altered_record_is_found(tag: RecordTag, old: bytes, new: bytes, sample: MemoryRecords) -> None:
    altered = MemoryRecords("altered")
    changed = None
    for each in RecordTag:
        for key in sample.keys(each):
            payload = sample.payload(each, key)
            if each is tag and changed is None and old in payload:
                payload, changed = payload.replace(old, new, 1), key
            altered.add(each, key, payload)
    assert changed is not None
    assert not_checked(altered) == [changed]


def test_a_document_that_is_none_is_found() -> None:
    ((_, reason),) = damaged(named(RecordTag.SAMPLER, 7, b"{"))
    assert reason.startswith("not a valid document")
    ((_, reason),) = damaged(named(RecordTag.APPLICATION_INFO, 7, b"[]"))
    assert reason.startswith("application_info: ")


def test_modules_of_format_5_are_not_checked() -> None:
    """Their keys continue from the application's."""
    app, code = 0xAAAABBBBCCCCDDDD, spirv(1, 2)
    module = hash_values((0,), hash_words(code, app))
    payload = encode_module(code, 0, module)
    old = payload.replace(b'{"version":6,', b'{"version":5,"application":"%016x",' % app)
    assert not_checked(named(RecordTag.SHADER_MODULE, module, old)) == [module]
    assert [key for key, _ in damaged(named(RecordTag.SHADER_MODULE, module, payload))] == [module]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"renderPass": f"{OTHER:016x}"}, id="render pass that is not there"),
        pytest.param({"pNext": [{"sType": 1000183000}]}, id="structure of ours"),
        pytest.param({"pNext": [{"sType": 1999999999}]}, id="structure of the future"),
    ],
)
def test_what_cannot_be_judged_is_not_checked(document: dict[str, Any]) -> None:
    assert not_checked(one(RecordTag.GRAPHICS_PIPELINE, document, 5)) == [5]


def test_captured_sets_are_whole(corpora: Path) -> None:
    records = 0
    for path in sorted(corpora.glob("*.foz")):
        with PipelineSet.open(path) as captured:
            assert captured.verify() == Verified(0, ()), path.name
            assert captured.damage == (), path.name
            records += sum(captured.tag_counts.values())
    assert records >= 9000
