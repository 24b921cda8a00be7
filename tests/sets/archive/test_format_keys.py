"""A set that we pack has the format's own keys: it merges with a capture, and Fossilize keeps every key."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.registry import registry, structs_by_type
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.archive.modules import decode_module
from orchestrator.sets.archive.reader import Archive, MemoryRecords
from orchestrator.sets.archive.state_hashes import SubpassUse, state_hash, subpass_uses
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.sets.authoring.structures import encode_structure
from orchestrator.sets.image.documents import BARE_ARRAYS, TABLES, decode_document, json_members, json_name
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from tests.drivers import unsupported
from tests.sets.authoring.test_manifest import SHADERS, examples

TOOL = "ORCHESTRATOR_FOSSILIZE_REHASH"


def members_of(structure: str, document: dict[str, Any]) -> dict[str, Any]:
    """A captured structure as somebody would describe it: handles as keys, chains by structures' names."""
    struct = registry().struct(structure)
    found: dict[str, Any] = {}
    for member in json_members(struct):
        name = json_name(struct.name, member)
        if member.name == "pNext":
            found["p_next"] = [
                {"structure": chained.name, **members_of(chained.name, each)}
                for each in document.get("pNext", ())
                for chained in (structs_by_type()[each["sType"]],)
            ]
        elif name in document and member.name != "sType":
            found[name] = value_of(struct, member, document[name])
    return found


def value_of(struct: Struct, member: Member, value: Any) -> Any:
    if isinstance(value, list) and member.type not in BARE_ARRAYS:
        return [value_of(struct, member, each) for each in value]
    if member.category == "handle":
        return int(value, 16)
    if member.category == "struct" and isinstance(value, dict):
        return members_of(member.type, value)
    return value


def encode(structure: str, document: dict[str, Any]) -> dict[str, object]:
    """A captured structure, written anew by our encoder."""
    stages = document.get(
        "stages", [document["stage"]] if "stage" in document and "name" not in document else []
    )
    data = [
        each.pop("specializationInfo", None) for each in stages
    ]  # the encoder of stages packs it from values
    encoded: Any = encode_structure(structure, members_of(structure, document), structure)
    for stage, each in zip(encoded.get("stages", [encoded.get("stage")]), data, strict=False):
        if each is not None:
            stage["specializationInfo"] = each
    return dict(encoded)


def pack_again(capture: Archive) -> MemoryRecords:
    """Everything in a capture, packed by us from what it describes."""
    packed = MemoryRecords("packed")
    builder = PipelineSetBuilder(packed)
    subpasses: dict[int, tuple[SubpassUse, ...]] = {}
    for key in capture.keys(RecordTag.SHADER_MODULE):
        module = decode_module(key, capture.payload(RecordTag.SHADER_MODULE, key))
        builder.shader_module(module.code, module.flags)
    for tag, tables in TABLES.items():
        for key in capture.keys(tag):
            document = msgspec.json.decode(capture.payload(tag, key))
            for table, structure in tables:
                if table in document:
                    entry = document[table][f"{key:016x}"]
                    encoded = encode(structure, entry)
                    unnamed = {"version": 6, table: {f"{0:016x}": encoded}}
                    value = decode_document(tag, 0, msgspec.json.encode(unnamed))
                    own = state_hash(value, subpasses.__getitem__)
                    if tag is RecordTag.RENDER_PASS:
                        subpasses[own] = subpass_uses(value)
                    packed.add(tag, own, msgspec.json.encode({"version": 6, table: {f"{own:016x}": encoded}}))
    return packed


@pytest.mark.parametrize("name", ["vkcube", "supertuxkart", "wgpu", "sascha_rt"])
def test_a_capture_and_a_pack_of_the_same_are_one_set(name: str, corpora: Path, tmp_path: Path) -> None:
    with Archive.open(corpora / f"{name}.foz") as capture:
        packed = pack_again(capture)
        merged = tmp_path / "merged.foz"
        with ArchiveWriter(merged) as writer:
            copy_records(capture, writer)
            copy_records(packed, writer)
        with Archive.open(merged) as both:
            for tag in (RecordTag.SHADER_MODULE, *TABLES):
                assert sorted(packed.keys(tag)) == sorted(capture.keys(tag)), tag.name
                assert both.keys(tag) == capture.keys(tag), tag.name
            assert len(both) == len(capture)
        assert len(packed) > 5


def rehashed(path: Path, output: Path) -> Archive:
    """What the format's own tool makes of an archive: what it reads, under the keys that it computes.

    It passes over ray-tracing pipelines, and knows no structure that recorders do not know.
    """
    program = os.environ.get(TOOL)
    if not program:
        unsupported(f"{TOOL} does not name fossilize-rehash, which no package has")
    done = subprocess.run(
        [program, "--input-db", str(path), "--output-db", str(output)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Failed" not in done.stderr, done.stderr
    return Archive.open(output)


def check_keys_are_kept(path: Path, output: Path) -> None:
    """Check that the format's tool gives every record of an archive the key that it has."""
    with Archive.open(path) as packed, rehashed(path, output) as again:
        assert len(packed) > 2
        for tag in (RecordTag.SHADER_MODULE, *TABLES):
            if tag is not RecordTag.RAY_TRACING_PIPELINE:
                assert sorted(again.keys(tag)) == sorted(packed.keys(tag)), tag.name
        # Where there is no application, it writes one that says nothing.
        application = RecordTag.APPLICATION_INFO
        assert len(again.keys(application)) == 1
        assert set(packed.keys(application)) <= set(again.keys(application))
        assert PipelineSet.from_records(again).verify().unusable == 0


def test_the_tool_of_the_format_keeps_the_keys_of_the_sample_set(tmp_path: Path) -> None:
    check_keys_are_kept(sample_path(), tmp_path / "again.foz")


@pytest.mark.parametrize("name", ["shortest", "whole"])
def test_the_tool_of_the_format_keeps_the_keys_of_manifests(name: str, tmp_path: Path) -> None:
    (tmp_path / "shaders").symlink_to(SHADERS, target_is_directory=True)
    manifest = tmp_path / "set.toml"
    manifest.write_text(examples(name), encoding="utf-8")
    pack_manifest(manifest, tmp_path / "set.foz")
    check_keys_are_kept(tmp_path / "set.foz", tmp_path / "again.foz")
