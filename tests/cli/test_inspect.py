from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.sets.sample import sample_manifest_path, sample_path
from orchestrator.stores.run_notes import DURATIONS
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call, damage, inspected
from tests.stores.stored import damage as spoil

HEADER_BYTES = 128


def test_a_cache_file(call: Call, cache_file: Path) -> None:
    done = call("inspect", cache_file, "--json")
    assert done.code == ExitCode.OK
    document = inspected(done)
    assert document["kind"] == "cache file"
    assert document["status"] == "LOADED"
    assert document["data_hash_matches"] is True
    assert document["bytes"] == cache_file.stat().st_size
    assert document["header"]["data_size"] == document["bytes"] - HEADER_BYTES
    assert document["header"]["pipeline_cache_uuid"] == document["vulkan_header"]["pipeline_cache_uuid"]
    assert "whole" in call("inspect", cache_file).out


def test_a_device_that_takes_it(call: Call, cache_file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache_file)
    done = call("inspect", link, "--device", "simulated", "--json")
    assert done.code == ExitCode.OK
    assert inspected(done)["offered"]["accepted"] is True
    assert inspected(done)["device"]["device_name"] == "simulated device"
    assert "would be taken" in call("inspect", cache_file, "--device", "simulated").out


def test_a_damaged_cache_file(call: Call, cache_file: Path) -> None:
    damage(cache_file)
    done = call("inspect", cache_file, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert (inspected(done)["kind"], inspected(done)["status"]) == ("cache file", "HASH_MISMATCH")
    assert "HASH_MISMATCH" in call("inspect", cache_file).out
    cache_file.write_bytes(cache_file.read_bytes()[:40])
    stump = inspected(call("inspect", cache_file, "--json"))
    assert (stump["kind"], stump["status"]) == ("cache file", "TRUNCATED")


def test_bare_driver_data(call: Call, cache_file: Path, tmp_path: Path) -> None:
    bare = tmp_path / "pipeline_cache.bin"
    bare.write_bytes(cache_file.read_bytes()[HEADER_BYTES:])
    done = call("inspect", bare, "-d", "simulated", "--json")
    assert done.code == ExitCode.OK
    assert inspected(done)["kind"] == "driver data without our header"
    assert inspected(done)["header"] is None
    assert inspected(done)["offered"]["accepted"] is True


def test_quiet_says_of_each_bad_file_what_is_wrong(call: Call, cache_file: Path, small_set: Path) -> None:
    def said(path: Path) -> str:
        done = call("inspect", sample_path(), path, "-d", "simulated", "-q")
        assert (done.code, done.out) == (ExitCode.BAD_INPUT, "")
        (line,) = done.err.splitlines()
        assert line.startswith(f"{path}: ")
        document = call("inspect", path, "-d", "simulated", "-q", "--json")
        assert (document.err, inspected(document)["good"]) == ("", False)
        return line

    content = cache_file.read_bytes()
    bare = bytearray(content[HEADER_BYTES:])
    bare[12] ^= 0xFF  # deviceID
    cache_file.write_bytes(bare)
    assert "refused, VULKAN_HEADER_MISMATCH: deviceID: expected" in said(cache_file)
    cache_file.write_bytes(content[:-1])
    assert f"{len(content) - 1} bytes" in said(cache_file)
    small_set.write_bytes(small_set.read_bytes()[:-1])
    assert "damage in the headers: 1 place" in said(small_set)


def test_an_archive(call: Call) -> None:
    done = call("inspect", sample_path(), "--json")
    assert done.code == ExitCode.OK
    assert inspected(done)["kind"] == "archive"
    assert inspected(done)["format_version"] == 6
    assert inspected(done)["records"]["compute_pipeline"] > 0
    assert f"orchestrator list {sample_path()}" in call("inspect", sample_path()).out


@pytest.mark.parametrize(
    ("content", "seems"),
    [
        (b"\x7fELF" + bytes(60), "ELF"),
        (b"\x03\x02\x23\x07" + bytes(16), "SPIR-V"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"hello\n", "text"),
        (bytes(200), "zeros"),
        (b"\xfe\xff\x00\x01", "unknown"),
    ],
)
def test_something_else_is_named(call: Call, tmp_path: Path, content: bytes, seems: str) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    done = call("inspect", path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert seems in inspected(done)["seems"]
    assert inspected(done)["good"] is False
    assert seems in call("inspect", path).out


def test_what_cannot_be_read(call: Call, tmp_path: Path) -> None:
    assert "manifest" in call("inspect", sample_manifest_path()).out
    assert call("inspect", tmp_path / "missing").code == ExitCode.BAD_INPUT
    assert "directory" in inspected(call("inspect", tmp_path, "--json"))["seems"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert call("inspect", fifo).code == ExitCode.BAD_INPUT
    empty = tmp_path / "empty"
    empty.touch()
    assert inspected(call("inspect", empty, "--json"))["status"] == "EMPTY"


def test_everything_in_a_cache_directory(call: Call, cache_file: Path) -> None:
    files = sorted(cache_file.parent.iterdir())
    done = call("inspect", *files, "--json")
    assert done.code == ExitCode.OK, done.err
    assert [each["path"] for each in done.document["files"]] == list(map(str, files))
    kinds = {each["kind"] for each in done.document["files"]}
    assert kinds == {"cache file", "database", "file of the database", "lock"}
    assert (done.document["good"], done.document["bad"]) == (len(files), 0)
    assert f"{len(files)} files: {len(files)} good, 0 bad" in call("inspect", *files).out


def test_one_bad_file_among_good_ones(call: Call, cache_file: Path) -> None:
    database = state_path(cache_file.parent)
    spoil(cache_file.parent, DURATIONS)
    done = call("inspect", cache_file, database, sample_path(), "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert [each["good"] for each in done.document["files"]] == [True, False, True]
    assert "compile times" in done.document["files"][1]["reason"]
    assert "damaged" in call("inspect", database).out
