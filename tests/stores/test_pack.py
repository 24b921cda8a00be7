"""Packs: what is proven, and what is refused by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from attrs import evolve
from msgspec.structs import replace

from orchestrator.stores.cache_file import (
    PREFIX_HEADER_SIZE,
    PipelineCachePrefixHeader,
    cache_path,
    stored_data_hash,
)
from orchestrator.stores.pack import (
    MANIFEST,
    LeftOut,
    Pack,
    PackError,
    PackManifest,
    PackNotes,
    PackTarget,
    PackWriter,
    Part,
    is_pack,
    joined_parts,
    missing_shards,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import add_contents, add_durations
from orchestrator.stores.signing import SigningKey
from tests.stores.faults.sets import IDENTITY, OLD, OURS, data_of, file_of
from tests.stores.packs import KEY, SET_HASH, TRUST, data_for, make_pack, part


def rewritten(pack: Pack, change: Callable[[dict[str, Any]], object]) -> Path:
    """The pack's manifest, changed as somebody without the key would."""
    path = pack.directory / MANIFEST
    document = msgspec.json.decode(path.read_bytes())
    change(document)
    path.write_bytes(msgspec.json.encode(document))
    return pack.directory


def test_what_was_written_is_read(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    assert is_pack(pack.directory)
    assert not pack.signed
    (found,) = pack.manifest.targets
    assert pack.manifest.target_of(ProfileIdentity.of(IDENTITY)) is found
    assert pack.read_cache(found)[PREFIX_HEADER_SIZE:] == data_of(OLD)
    assert found.count("created") == 12
    assert found.count("failed") == 1
    assert list(pack.problems()) == []
    assert (pack.directory / MANIFEST).stat().st_mode & 0o777 == 0o600
    assert pack.directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_of_a_file_is_found(tmp_path: Path, place: int) -> None:
    pack = make_pack(tmp_path / "pack")
    file = pack.directory / pack.manifest.targets[0].files[0].name
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    ((path, reason),) = pack.problems()
    assert path == file
    assert "its hash is" in reason
    with pytest.raises(PackError, match="it is damaged"):
        pack.read_cache(pack.manifest.targets[0])


def test_links_are_not_followed(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    file = pack.directory / pack.manifest.targets[0].files[0].name
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    ((_, reason),) = pack.problems()
    assert "symbolic link" in reason
    file.unlink()
    os.mkfifo(file)
    ((_, reason),) = pack.problems()
    assert "not a regular file" in reason
    manifest = pack.directory / MANIFEST
    manifest.rename(outside)
    manifest.symlink_to(outside)
    with pytest.raises(PackError, match="symbolic link"):
        Pack.open(pack.directory)


@pytest.mark.parametrize(
    "name",
    [
        "../x.pipeline-cache",
        "sub/x.pipeline-cache",
        "..\\x.pipeline-cache",
        ".hidden.pipeline-cache",
        "manifest.json",
        "x.exe",
        "x\n.pipeline-cache",
        "X.pipeline-cache",
        "",
    ],
)
def test_names_that_a_pack_may_not_have_are_refused(tmp_path: Path, name: str) -> None:
    pack = make_pack(tmp_path / "pack")

    def change(document: dict[str, Any]) -> None:
        document["targets"][0]["files"][0]["name"] = name

    with pytest.raises(PackError, match="the file") as caught:
        Pack.open(rewritten(pack, change))
    assert repr(name) in str(caught.value)
    with pytest.raises(PackError):
        PackWriter(tmp_path / "other").add(name, b"content")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("what", "something", "something else"),
        ("format", 2, "format 2, and this version reads 3"),
        ("targets.0.identity", None, "has files and no identity"),
        ("targets.0.files.0.size", -1, "damaged: Expected `int` >= 0"),
        ("targets.0.files.0.sha256", "x", r"damaged: .*sha256"),
        ("targets.0.parts.0.shard", 0, r"damaged: .*shard"),
        ("targets.0.selector", "x" * 5000, r"damaged: .*length <= 4096"),
        ("targets", [{"selector": "x"}] * 4097, r"damaged: .*length <= 4096"),
    ],
)
def test_manifests_that_cannot_be_meant_are_refused(
    tmp_path: Path, where: str, value: object, said: str
) -> None:
    def change(document: Any) -> None:
        *path, last = (int(each) if each.isdigit() else each for each in where.split("."))
        for each in path:
            document = document[each]
        document[last] = value

    with pytest.raises(PackError, match=said):
        Pack.open(rewritten(make_pack(tmp_path / "pack"), change))


def test_no_two_files_have_a_name_and_no_two_targets_a_device(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    (one,) = pack.manifest.targets
    for other, said in ((one, "there twice"), (replace(one, files=()), "identity of another")):
        with pytest.raises(PackError, match=said):
            PackWriter(pack.directory).finish(PackManifest(targets=(one, other)))
    assert Pack.open(pack.directory).manifest == pack.manifest


def test_what_is_no_pack_says_so(tmp_path: Path) -> None:
    assert not is_pack(tmp_path)
    with pytest.raises(PackError, match="no pack: it has no manifest"):
        Pack.open(tmp_path)
    for content in (b"{", b"[" * 100_000):
        (tmp_path / MANIFEST).write_bytes(content)
        with pytest.raises(PackError, match="damaged"):
            Pack.open(tmp_path)
    os.truncate(tmp_path / MANIFEST, (64 << 20) + 1)
    with pytest.raises(PackError, match="more than the"):
        Pack.open(tmp_path)


def test_a_cache_of_another_device_than_its_target_is_refused(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    foreign = evolve(IDENTITY, device_id=IDENTITY.device_id + 1)
    data = data_for(foreign, OLD)
    content = PipelineCachePrefixHeader.describe(foreign, data).pack() + data
    file = pack.manifest.targets[0].files[0]
    (pack.directory / file.name).write_bytes(content)

    def change(document: dict[str, Any]) -> None:
        document["targets"][0]["files"][0]["sha256"] = hashlib.sha256(content).hexdigest()

    changed = Pack.open(rewritten(pack, change))
    ((path, reason),) = changed.problems()
    assert path.name == file.name
    assert f"deviceID is {foreign.device_id:#x}, not {IDENTITY.device_id:#x}" in reason


def test_only_who_has_the_key_can_change_a_signed_pack(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", key=KEY)
    assert pack.signed
    assert list(pack.problems()) == []
    with pytest.raises(PackError, match="not signed by the trusted key"):
        Pack.open(pack.directory, SigningKey().public)
    with pytest.raises(PackError, match="it is not signed"):
        Pack.open(make_pack(tmp_path / "bare").directory, TRUST)
    # A file and its hash in the manifest, changed together.
    file = pack.manifest.targets[0].files[0]
    (pack.directory / file.name).write_bytes(file_of(OURS))

    def change(document: dict[str, Any]) -> None:
        entry = document["targets"][0]["files"][0]
        entry |= {"size": len(file_of(OURS)), "sha256": hashlib.sha256(file_of(OURS)).hexdigest()}

    rewritten(pack, change)
    assert list(Pack.open(pack.directory).problems()) == []
    with pytest.raises(PackError, match="not signed by the trusted key, or was changed since"):
        Pack.open(pack.directory, TRUST)


def test_a_pack_of_the_time_before_signatures_says_what_to_do(tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        file = document["targets"][0]["files"][0]
        del file["sha256"]
        file |= {"xxh3_128": "0" * 32, "mac": "0" * 64}
        document |= {"format": 2, "mac": "0" * 64}

    directory = rewritten(make_pack(tmp_path / "pack"), change)
    with pytest.raises(PackError, match="format 2, and this version reads 3") as refused:
        Pack.open(directory, TRUST)
    assert refused.value.next_step == "make it again with this version, and sign it again"


def test_notes_come_along_and_strays_are_named(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    cache_file = cache_path(pack.directory, IDENTITY)
    keys = np.array([3, 5], np.uint64)
    add_durations(cache_file, keys, np.array([30, 50], np.int64))
    add_contents(cache_file, keys, stored_data_hash(cache_file) or b"")
    (pack.directory / "stray.txt").write_text("")
    assert "stray.txt" in pack.strays()
    writer, (one,) = PackWriter(tmp_path / "copy"), pack.manifest.targets
    cache, notes = writer.files_at(cache_file)
    assert (cache.name, cache.pipelines) == (cache_file.name, 2)
    writer.finish(PackManifest(targets=(replace(one, files=(cache, notes)),)))
    copied = Pack.open(tmp_path / "copy")
    assert list(copied.problems()) == []
    copied.read_notes(copied.manifest.targets[0]).add_to(tmp_path / "copy" / cache_file.name)
    known = PackNotes.of(tmp_path / "copy" / cache_file.name)
    assert known.held.tolist() == known.timed.tolist() == keys.tolist()
    assert writer.files_at(tmp_path / "none.pipeline-cache") == ()


def test_parts_of_several_packs_add_up() -> None:
    one, two = part(shard=1, shards=3, created=5), part(shard=2, shards=3, created=7)
    better, half = part(shard=1, shards=3, created=6), part(shard=1, shards=2, created=7)
    parts = joined_parts([one, two, better])
    assert parts == (better, two)
    assert PackTarget(selector="x", parts=parts).count("created") == 13
    assert missing_shards(parts) == ["game.foz: shard 3 of 3"]
    assert missing_shards(parts[:1]) == ["game.foz: shards 2 and 3 of 3"]
    # A set and its shards are one set; what was chosen of a set that is all there is in it already.
    whole, chosen = part(created=13), part(shard=1, shards=2, created=1, chosen="0" * 32)
    assert missing_shards([whole, chosen]) == []
    assert joined_parts([whole, one, two, half, chosen]) == (whole,)
    assert joined_parts([part(created=11), one, two]) == (one, two)
    assert chosen in joined_parts([one, two, chosen])
    assert chosen not in joined_parts([one, two, part(shard=3, shards=3), chosen])
    assert chosen.text == "game.foz, shard 1/2, chosen by key"


def test_what_either_of_two_compiles_created_is_there() -> None:
    keys = tuple(f"{each:016x}" for each in range(5))

    def left(*lacked: str, created: int) -> Part:
        left_out = (LeftOut(status="not_run", reason="stopped", keys=lacked),)
        return Part(set_name="game.foz", set_hash=SET_HASH, pipelines=5, created=created, left_out=left_out)

    one, two = left(*keys[:3], created=2), left(*keys[2:4], created=3)
    for parts in ([one, two], [two, one]):
        (joined,) = joined_parts(parts)
        assert (joined.created, joined.left_out[0].keys) == (4, keys[2:3])
    # One that does not say what became of each may not have created what it does not name.
    assert joined_parts([left(keys[0], created=1), two]) == (two,)


def test_what_two_sets_leave_out_counts_once() -> None:
    one = LeftOut(status="failed", reason="one", keys=("0" * 16, "1" * 16))
    two = LeftOut(status="failed", reason="two", keys=("1" * 16, "2" * 16))
    parts = tuple(replace(part(), left_out=(each,)) for each in (one, two))
    both = PackTarget(selector="simulated", parts=parts)
    assert (both.count("failed"), both.count("skipped")) == (3, 0)
