from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import progress
from orchestrator.cli.errors import ExitCode
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.groups import Application, encode_application
from orchestrator.sets.image.documents import TABLES
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path, sample_path
from tests.cli.conftest import Call, run_python
from tests.run.small_sets import add_sample, compute_keys


def test_the_sample(call: Call) -> None:
    done = call("list", "sample", "--json")
    assert done.code == ExitCode.OK
    assert done.err == ""
    document = done.document
    with Archive.open(sample_path()) as archive:
        for tag in RecordTag:
            assert document["records"][tag.name.lower()]["count"] == len(archive.keys(tag))
        assert document["set"]["files"] == [
            {"path": str(sample_path()), "bytes": archive.size, "records": len(archive)}
        ]
        assert 0 < sum(each.get("stored_bytes", 0) for each in document["records"].values()) < archive.size
    assert document["set"]["unique"] == sum(document["set"]["pipelines"].values())
    assert document["damage"] == []
    assert document["verified"] is True
    assert document["unusable_records"] == 0
    manifest = call("list", sample_manifest_path(), "--json").document
    assert manifest["set"]["pipelines"] == document["set"]["pipelines"]
    assert manifest["set"]["content_hash"] == document["set"]["content_hash"]
    assert manifest["set"]["files"] == []


def test_bucket_records_are_shown(call: Call, small_set: Path, tmp_path: Path) -> None:
    path, bucket = tmp_path / "bucket.foz", b'{\n  "bucket": {"vendorID": 4318}\n}'
    with Archive.open(small_set) as archive, ArchiveWriter(path) as writer:
        copy_records(archive, writer)
        writer.add(RecordTag.BUCKET_INFO, 7, bucket)
    assert call("list", path, "--json").document["buckets"] == [bucket.decode()]
    assert '{ "bucket": {"vendorID": 4318} }' in call("list", path).out


def test_pipelines_by_key(call: Call, small_set: Path) -> None:
    whole = call("list", "sample", "--json").document
    both = call("list", "sample", small_set, "--json").document  # several archives are one set
    assert both["set"]["unique"] == whole["set"]["unique"]
    assert len(both["set"]["files"]) == 2
    document = call("list", small_set, "--pipelines", "--json").document
    with Archive.open(small_set) as archive:
        expected = [f"{key:016x}" for key in archive.keys(RecordTag.COMPUTE_PIPELINE)]
    assert document["pipelines"] == {"graphics": [], "compute": expected, "ray_tracing": []}
    shown = call("list", small_set, "--pipelines").out.splitlines()
    assert shown[-len(expected) :] == [f"{key}  compute" for key in expected]


def test_for_people(call: Call) -> None:
    done = call("list", "sample")
    assert done.code == ExitCode.OK
    assert "graphics pipeline" in done.out
    assert "MeshShaderFeaturesEXT::taskShader" in done.out  # as every verb names features
    assert "no damage" in done.out
    assert "\x1b" not in done.out + done.err


def test_a_name_of_any_length_is_cut_for_people(call: Call, small_set: Path, tmp_path: Path) -> None:
    name = "x" * 100_000
    said = Application(0, name, name, 1, 1, 1 << 22 | 3 << 12, robust_buffer_access=False, features=())
    named = tmp_path / "named.foz"
    with Archive.open(small_set) as archive, ArchiveWriter(named) as writer:
        writer.add(RecordTag.APPLICATION_INFO, *encode_application(said))
        for tag in (*TABLES, RecordTag.SHADER_MODULE):
            for key in archive.keys(tag):
                writer.add(tag, key, archive.payload(tag, key))
    assert call("list", named, "--json").document["applications"][-1]["name"] == name
    caches = tmp_path / "caches"
    compiled = call("compile", named, "--device", "simulated", "--in-process", "--cache-dir", caches)
    for each in (call("list", named), call("inspect", *caches.glob("*.pipeline-cache"))):
        assert "x" * 50 in each.out
        assert "x" * 100 not in each.out
    assert "x" * 100 not in compiled.out


def test_damage_is_shown_with_offset_and_reason(call: Call, damaged_set: tuple[Path, int]) -> None:
    path, key = damaged_set
    done = call("list", path, "--json")
    assert done.code == ExitCode.OK
    (damage,) = done.document["damage"]
    assert damage["key"] == f"{key:016x}"
    assert damage["tag"] == "compute_pipeline"
    assert damage["offset"] > 16
    assert "crc32" in damage["reason"]
    assert done.document["unusable_records"] == 1
    shown = call("list", path).out
    assert f"at byte {damage['offset']} compute pipeline {key:016x}" in shown.replace("_", " ")


def test_without_verification_only_headers_are_read(call: Call, damaged_set: tuple[Path, int]) -> None:
    done = call("list", damaged_set[0], "--no-verify", "--json")
    assert done.document["damage"] == []
    assert done.document["verified"] is False
    assert done.document["unusable_records"] is None
    assert "payloads were not read" in call("list", damaged_set[0], "--no-verify").out


def test_a_key_that_is_not_of_the_rules_of_today_is_not_checked(call: Call, tmp_path: Path) -> None:
    path, key = tmp_path / "renamed.foz", 0x0123456789ABCDEF
    with Archive.open(sample_path()) as archive, ArchiveWriter(path) as writer:
        old = archive.keys(RecordTag.SAMPLER)[0]
        payload = archive.payload(RecordTag.SAMPLER, old)
        writer.add(RecordTag.SAMPLER, key, payload.replace(b"%016x" % old, b"%016x" % key))
    document = call("list", path, "--json").document
    assert (document["unusable_records"], document["unchecked_records"]) == (0, 1)
    assert "1 key not checked: sampler 0123456789abcdef" in call("list", path).out
    done = call("verify", path)
    assert done.code == ExitCode.OK
    assert "1 key not checked: sampler 0123456789abcdef" in done.out


def test_a_set_that_takes_long_says_how_far_it_is(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_S", 0.0)
    total = sum(each["count"] for each in call("list", "sample", "--json").document["records"].values())
    assert f"1 of {total}: reading" in call("list", sample_path()).err
    assert f"1 of {total}: reading" in call("verify", sample_path()).err
    assert call("list", sample_path(), "--no-progress").err == ""


_INTERRUPTED_WHILE_READING = """
import os, signal, sys
from orchestrator.cli import main
from orchestrator.sets.archive import record_proof
state_hash = record_proof.state_hash
def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return state_hash(*arguments)
record_proof.state_hash = interrupt
sys.exit(main())
"""


def test_a_signal_ends_the_reading_with_a_document() -> None:
    done = run_python("-c", _INTERRUPTED_WHILE_READING, "list", "sample", "--json")
    assert done.code == ExitCode.INTERRUPTED
    assert done.document["error"]["kind"] == "interrupted"
    assert "Traceback" not in done.err


def _altered(path: Path, whole: Path, changes: dict[int, tuple[bytes, bytes]]) -> None:
    """Write a set, of whose compute pipelines some are changed, by their places."""
    tag = RecordTag.COMPUTE_PIPELINE
    with Archive.open(whole) as archive, ArchiveWriter(path) as writer:
        for place, key in enumerate(archive.keys(tag)):
            old, new = changes.get(place, (b"", b""))
            payload = archive.payload(tag, key)
            assert old in payload
            writer.add(tag, key, payload.replace(old, new, 1) if old else payload)
        copy_records(archive, writer)


def test_pipelines_that_are_given_to_no_device(call: Call, small_set: Path, tmp_path: Path) -> None:
    """Those of a newer recorder are skipped and not damaged; what an application made invalid is said so."""
    newer = b'"specializationInfo"', b'"isFuture":[1],"specializationInfo"'
    chained = b'"stage":{', b'"pNext":[{"sType":1999999999}],"stage":{'
    version = b'"version":6', b'"version":7'
    wild = b'"offset":8,"size":4', b'"offset":8,"size":2020836711169377632'
    path = tmp_path / "altered.foz"
    _altered(path, small_set, {0: newer, 1: newer, 2: chained, 3: version, 4: wild})
    document = call("list", path, "--json").document
    assert document["damage"] == []
    problems = document["problems"]
    assert [(each["outcome"], len(each["pipelines"])) for each in problems] == [
        ("skipped", 2), ("skipped", 1), ("skipped", 1), ("failed", 1)
    ]  # fmt: skip
    reasons = [each["reason"] for each in problems]
    assert all("the recorder is newer" in each for each in reasons[:3])
    assert "member `isFuture` at `$.computePipelines[...].stage`" in reasons[0]
    assert "sType 1999999999" in reasons[1]
    assert "version 7" in reasons[2]
    assert reasons[3].startswith("invalid as recorded, by a fault of the application or the recorder: ")
    assert "2 more reasons" not in (shown := call("list", path).out)
    assert "given to no device: 5 pipelines" in shown
    compiled = call("compile", path, "-d", "simulated", "--in-process", "--cache-dir", tmp_path)
    assert compiled.code == ExitCode.PIPELINES_FAILED
    (row,) = (each for each in compiled.out.splitlines() if each.startswith("compute"))
    assert row.split()[-2:] == ["4", "1"]  # skipped, failed


@pytest.mark.parametrize("left", [RecordTag.SHADER_MODULE, RecordTag.DESCRIPTOR_SET_LAYOUT])
def test_a_set_that_refers_into_another_archive(call: Call, tmp_path: Path, left: RecordTag) -> None:
    part, common = tmp_path / "part.foz", tmp_path / "common.foz"
    keys = compute_keys()[:2]
    with ArchiveWriter(part) as writer:
        add_sample(writer, keys, left_out={left})
    with ArchiveWriter(common) as writer:
        add_sample(writer, ())
    problems = call("list", part, "--json").document["problems"]
    assert sum(len(each["pipelines"]) for each in problems) == 2
    what = left.name.lower().replace("_", " ")
    assert all(f"refers to {what} " in each["reason"] for each in problems)
    assert all("not in the set: give the archive that has it, too" in each["reason"] for each in problems)
    assert call("list", part, common, "--json").document["problems"] == []
