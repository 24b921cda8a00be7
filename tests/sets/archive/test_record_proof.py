"""Every record is proved by its key: what is altered or misnamed is named, what nobody can judge stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.hashes import (
    application_hash,
    features_hash,
    hash_u64,
    hash_values,
    hash_words,
    link_hash,
)
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import Archive, MemoryRecords
from orchestrator.sets.archive.state_hashes import Era, state_hash
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordSource, RecordTag
from orchestrator.sets.sample import sample_path
from tests.sets.archive.small_archives import application, spirv

OTHER = 0x0123456789ABCDEF
PROVED = [tag for tag in RecordTag if tag not in (RecordTag.SHADER_MODULE, RecordTag.BUCKET_INFO)]


def verified(source: RecordSource) -> list[tuple[int | None, str]]:
    """Key and reason of what is damaged; as many as `verify` counts."""
    pipelines = PipelineSet.from_records(source)
    assert pipelines.verify() == len(pipelines.damage)
    return [(each.key, each.reason) for each in pipelines.damage]


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
    assert verified(sample) == []


@pytest.mark.parametrize("tag", PROVED)
def test_a_record_under_another_name_is_found(tag: RecordTag, sample: MemoryRecords) -> None:
    key = sample.keys(tag)[0]
    payload = sample.payload(tag, key).replace(f'"{key:016x}":'.encode(), f'"{OTHER:016x}":'.encode())
    sample.add(tag, OTHER, payload)
    ((found, reason),) = verified(sample)
    assert found == OTHER
    assert f"its content has the key {key:016x}" in reason


def test_a_byte_order_mark_before_a_document_changes_nothing(sample: MemoryRecords) -> None:
    """The format's own parser passes over it."""
    marked = MemoryRecords("marked")
    for tag in RecordTag:
        for key in sample.keys(tag):
            marked.add(tag, key, b"\xef\xbb\xbf" + sample.payload(tag, key))
    assert verified(marked) == []
    sets = [PipelineSet.from_records(each) for each in (sample, marked)]
    assert sets[0].applications == sets[1].applications
    plain, same = [build_image(each, each.pipelines, AnyDevice()) for each in sets]
    assert plain.image.buffer.tobytes() == same.image.buffer.tobytes()
    assert not same.problems


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
    assert [key for key, _ in verified(altered)] == [changed]


def test_a_document_that_is_none_is_found() -> None:
    ((_, reason),) = verified(named(RecordTag.SAMPLER, 7, b"{"))
    assert reason.startswith("not a valid document")
    ((_, reason),) = verified(named(RecordTag.APPLICATION_INFO, 7, b"[]"))
    assert reason.startswith("application_info: ")


@pytest.mark.parametrize("era", Era)
def test_a_key_of_an_older_recorder_is_good(era: Era) -> None:
    document: dict[str, Any] = {
        "flags": 0x40,
        "rasterizationState": {"cullMode": 1, "depthClampEnable": 1},
        "dynamicState": {"dynamicState": [1000267000, 1000455003]},
    }
    tag = RecordTag.GRAPHICS_PIPELINE
    key = state_hash(value_of(tag, document), dict[int, Any]().__getitem__, era=era)
    assert verified(one(tag, document, key)) == []
    document["rasterizationState"]["cullMode"] = 2
    assert bool(verified(one(tag, document, key))) is (era < Era.IGNORED_STATE)


def test_keys_of_format_5_continue_from_the_application() -> None:
    memory = MemoryRecords("format 5")
    app = 0xAAAABBBBCCCCDDDD
    layout = state_hash(value_of(RecordTag.PIPELINE_LAYOUT, {}), dict[int, Any]().__getitem__, start=app)
    document = {"version": 5, "application": f"{app:016x}", "pipelineLayouts": {f"{layout:016x}": {}}}
    memory.add(RecordTag.PIPELINE_LAYOUT, layout, msgspec.json.encode(document))
    code = spirv(1, 2)
    module = hash_values((0,), hash_words(code, app))
    payload = encode_module(code, 0, module)
    old = payload.replace(b'{"version":6,', b'{"version":5,"application":"%016x",' % app)
    memory.add(RecordTag.SHADER_MODULE, module, old)
    assert verified(memory) == []
    # The same in format 6, which does not know the application, is misnamed.
    assert [key for key, _ in verified(named(RecordTag.SHADER_MODULE, module, payload))] == [module]
    document |= {"version": 6}
    renamed = named(RecordTag.PIPELINE_LAYOUT, layout, msgspec.json.encode(document))
    assert [key for key, _ in verified(renamed)] == [layout]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"renderPass": f"{OTHER:016x}"}, id="render pass that is not there"),
        pytest.param({"pNext": [{"sType": 1000183000}]}, id="structure of ours"),
        pytest.param({"pNext": [{"sType": 1999999999}]}, id="structure of the future"),
        pytest.param(
            {
                "colorBlendState": {"attachments": [{}], "blendConstants": [0.0] * 4},
                "dynamicState": {"dynamicState": [1000455011]},
            },
            id="blend constants that were not written",
        ),
    ],
)
def test_what_cannot_be_judged_is_not(document: dict[str, Any]) -> None:
    assert verified(one(RecordTag.GRAPHICS_PIPELINE, document, 5)) == []


def test_links_are_proved() -> None:
    payload = msgspec.json.encode(
        {"version": 6, "link": {"application": f"{1:016x}", "tag": 6, "hash": f"{2:016x}"}}
    )
    good = link_hash(1, 6, 2)
    assert verified(named(RecordTag.APPLICATION_BLOB_LINK, good, payload)) == []
    assert len(verified(named(RecordTag.APPLICATION_BLOB_LINK, good ^ 1, payload))) == 1


def test_applications_are_proved_whatever_was_recorded() -> None:
    def key(name: Any) -> int:
        return application_hash((1, 2, 4206592), (name, None), 1)

    tag = RecordTag.APPLICATION_INFO
    assert verified(named(tag, key("one"), application("one", 1))) == []
    assert len(verified(named(tag, key("two"), application("one", 1)))) == 1
    latin = application("one", 1).replace(b"one", b"caf\xe9")
    assert verified(named(tag, key(b"caf\xe9"), latin)) == []
    assert len(verified(named(tag, key("café"), latin))) == 1
    nothing = b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{}}'
    assert verified(named(tag, hash_u64(0, hash_u64(0)), nothing)) == []
    features = b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{"robustBufferAccess":1}}'
    assert verified(named(tag, hash_u64(features_hash(1, ()), hash_u64(0)), features)) == []
    assert len(verified(named(tag, hash_u64(0, hash_u64(0)), features))) == 1
    future = application("one", 1, '{"sType":1999999999,"on":1}')
    assert verified(named(tag, 9, future)) == []


def test_captured_sets_are_whole(corpora: Path) -> None:
    records = 0
    for path in sorted(corpora.glob("*.foz")):
        with PipelineSet.open(path) as captured:
            assert captured.verify() == 0, path.name
            assert captured.damage == (), path.name
            records += sum(captured.tag_counts.values())
    assert records >= 9000
