"""Exports of binaries: what comes out is what went in, and nothing of an export that lies is ever stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.stores.binary_export import (
    BinaryExportError,
    device_export,
    export_binaries,
    import_binaries,
    join_exports,
    prove_export,
)
from orchestrator.stores.binary_store import BinaryStore, StoredPipeline
from orchestrator.stores.signing import SigningKey
from tests.stores.binaries import GENERATION, OTHER, pipeline

KEY = SigningKey()
WRONG = SigningKey().public


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BinaryStore]:
    noise = random.Random(2)
    with BinaryStore.open(tmp_path / "mine") as opened:
        shared = noise.randbytes(3000)
        opened.put(GENERATION, [pipeline(state, shared, b"z" * 5000, b"%d" % state) for state in range(20)])
        opened.put(OTHER, [pipeline(1, b"other", driver_key=b"")])
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BinaryStore]:
    with BinaryStore.open(tmp_path / "theirs") as opened:
        yield opened


def held(store: BinaryStore) -> dict[tuple[bytes, bytes], StoredPipeline]:
    return {
        (each.about.global_key, found.state_key): found
        for each in store.statistics().generations
        for found in store.pipelines(each.about)
    }


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_an_export_carries_everything(
    store: BinaryStore, other: BinaryStore, tmp_path: Path, key: SigningKey | None
) -> None:
    path = tmp_path / "game.binaries"
    trust = None if key is None else key.public
    made = export_binaries(store, path, key)
    assert (made.pipelines, made.binaries, made.signed) == (21, 23, key is not None)
    assert path.stat().st_mode & 0o777 == 0o600
    taken = import_binaries(other, path, trust, unsigned=key is None)
    assert (taken.put.pipelines, taken.signed) == (21, key is not None)
    assert held(other) == held(store)
    assert other.verify() == []
    assert import_binaries(other, path, trust, unsigned=key is None).put.stored_bytes == 0


def test_binaries_that_the_driver_compresses_are_not_compressed_twice(
    other: BinaryStore, tmp_path: Path
) -> None:
    sizes = {}
    for compressed in (False, True):
        generation = replace(GENERATION, compressed=compressed)
        with BinaryStore.open(tmp_path / f"{compressed}") as store:
            store.put(generation, [pipeline(1, b"a" * 100_000)])
            sizes[compressed] = export_binaries(store, tmp_path / "export").bytes
            import_binaries(other, tmp_path / "export", unsigned=True)
            assert len(list(other.pipelines(generation))) == 1
    assert sizes[False] < 5000 < 100_000 < sizes[True]


def test_exports_are_joined_and_the_last_one_counts(tmp_path: Path) -> None:
    exports = []
    for name, pipelines in (
        ("one", [pipeline(1, b"old"), pipeline(2, b"two")]),
        ("two", [pipeline(1, b"new")]),
    ):
        with BinaryStore.open(tmp_path / name) as store:
            store.put(GENERATION, pipelines)
            exports.append((tmp_path / name, device_export(store, GENERATION.identity)))
            foreign = replace(GENERATION.identity, device_id=0)
            assert device_export(store, foreign) == b""
    joined = join_exports(exports)
    proven = prove_export(tmp_path, joined)
    assert proven.states() == {b"state 1", b"state 2"}
    assert (proven.pipelines, proven.binaries, proven.generations) == (2, 2, (GENERATION,))
    data = {state: make().binaries[0].data for _, state, make in proven.stored()}
    assert data == {b"state 1": b"new", b"state 2": b"two"}


def test_who_signed_it_is_checked(store: BinaryStore, other: BinaryStore, tmp_path: Path) -> None:
    signed, bare = tmp_path / "signed", tmp_path / "bare"
    export_binaries(store, signed, KEY)
    export_binaries(store, bare)
    for path, key, unsigned, why in (
        (signed, WRONG, False, "not signed by the trusted key"),
        (signed, WRONG, True, "not signed by the trusted key"),  # a key that is wrong is never excused
        (signed, None, False, "no public key was given"),
        (bare, KEY.public, False, "nobody signed it"),
        (bare, None, False, "nobody signed it"),
    ):
        with pytest.raises(BinaryExportError, match=why):
            import_binaries(other, path, key, unsigned=unsigned)
    assert held(other) == {}
    assert not import_binaries(other, signed, unsigned=True).signed


def test_every_cut_and_every_flip_is_refused(store: BinaryStore, other: BinaryStore, tmp_path: Path) -> None:
    path = tmp_path / "export"
    export_binaries(store, path, KEY)
    whole = path.read_bytes()
    noise = random.Random(3)
    cuts = {*range(40), *(noise.randrange(len(whole)) for _ in range(40)), len(whole) - 1}
    flips = {*range(40), *(noise.randrange(len(whole)) for _ in range(80)), len(whole) - 1}
    lies = [whole[:size] for size in cuts] + [whole + b"x", whole * 2]
    for at in flips:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << noise.randrange(8)
        lies.append(bytes(flipped))
    for lie in lies:
        path.write_bytes(lie)
        with pytest.raises(BinaryExportError, match="at byte"):
            import_binaries(other, path, KEY.public)
    assert held(other) == {}


def test_an_unsigned_export_that_lies_is_refused_by_its_hashes(
    store: BinaryStore, other: BinaryStore, tmp_path: Path
) -> None:
    path = tmp_path / "export"
    export_binaries(store, path)
    whole = path.read_bytes()
    noise = random.Random(4)
    refused = 0
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[noise.randrange(len(whole))] ^= 1 << noise.randrange(8)
        path.write_bytes(flipped)
        try:
            import_binaries(other, path, unsigned=True)
        except BinaryExportError:
            refused += 1
    assert refused > 150
    # No hash is over states and keys, so those may be others; a binary is what was exported.
    contents = {each.data for found in held(store).values() for each in found.binaries}
    assert {each.data for found in held(other).values() for each in found.binaries} <= contents
    assert other.verify() == []


def test_an_export_of_an_earlier_version_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BinaryExportError, match="it has version 1; this program reads 3"):
        prove_export(tmp_path, b"\x89OPCB\r\n\x1a\x01\0\0\0\0\0\0\0")
