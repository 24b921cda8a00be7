"""Packs of binaries: what comes out is what went in, and nothing of a pack that lies is ever stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.stores.binary_pack import BinaryPackError, export_binaries, import_binaries
from orchestrator.stores.binary_store import FOUND, BinaryStore, StoredPipeline
from orchestrator.stores.files.mac import MacKey
from tests.stores.test_binary_store import GENERATION, OTHER, pipeline

KEY = MacKey.of(bytes(range(32)))
WRONG = MacKey.of(bytes(32))


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
    """All pipelines, with their data copied."""
    return {
        (each.about.global_key, found.state_key): replace(
            found, binaries=tuple(replace(binary, data=bytes(binary.data)) for binary in found.binaries)
        )
        for each in store.statistics().generations
        for found in store.pipelines(each.about)
    }


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_pack_carries_everything(
    store: BinaryStore, other: BinaryStore, tmp_path: Path, key: MacKey | None
) -> None:
    path = tmp_path / "game.binaries"
    made = export_binaries(store, path, key)
    assert (made.generations, made.pipelines, made.binaries) == (2, 21, 23)
    assert made.signed is (key is not None)
    assert path.stat().st_mode & 0o777 == 0o600
    taken = import_binaries(other, path, key, unsigned=key is None)
    assert taken.put.pipelines == 21
    assert taken.signed is (key is not None)
    assert held(other) == held(store)
    assert other.verify().problems == ()
    assert import_binaries(other, path, key, unsigned=key is None).put.stored_bytes == 0


def test_binaries_that_the_driver_compresses_are_not_compressed_twice(
    other: BinaryStore, tmp_path: Path
) -> None:
    sizes = {}
    for compressed in (False, True):
        generation = replace(GENERATION, compressed=compressed)
        with BinaryStore.open(tmp_path / f"{compressed}") as store:
            store.put(generation, [pipeline(1, b"a" * 100_000)])
            sizes[compressed] = export_binaries(store, tmp_path / "pack").bytes
            import_binaries(other, tmp_path / "pack", unsigned=True)
            with other.reading(generation) as reader:
                assert reader.find(b"state 1")[0] == FOUND
    assert sizes[False] < 5000 < 100_000 < sizes[True]


def test_who_signed_it_is_checked(store: BinaryStore, other: BinaryStore, tmp_path: Path) -> None:
    signed, bare = tmp_path / "signed", tmp_path / "bare"
    export_binaries(store, signed, KEY)
    export_binaries(store, bare)
    for path, key, why in (
        (signed, WRONG, "not of this key"),
        (signed, None, "no key was given"),
        (bare, KEY, "nobody signed it"),
        (bare, None, "nobody signed it"),
    ):
        with pytest.raises(BinaryPackError, match=why):
            import_binaries(other, path, key)
    # A key that is wrong is never excused.
    with pytest.raises(BinaryPackError, match="not of this key"):
        import_binaries(other, signed, WRONG, unsigned=True)
    assert held(other) == {}
    assert not import_binaries(other, signed, unsigned=True).signed


def test_every_cut_and_every_flip_is_refused(store: BinaryStore, other: BinaryStore, tmp_path: Path) -> None:
    path = tmp_path / "pack"
    export_binaries(store, path, KEY)
    whole = path.read_bytes()
    noise = random.Random(3)
    cuts = {*range(60), *(noise.randrange(len(whole)) for _ in range(60)), len(whole) - 1}
    flips = {*range(60), *(noise.randrange(len(whole)) for _ in range(120)), len(whole) - 1}
    lies = [whole[:size] for size in cuts] + [whole + b"x", whole * 2]
    for at in flips:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << noise.randrange(8)
        lies.append(bytes(flipped))
    for lie in lies:
        path.write_bytes(lie)
        with pytest.raises(BinaryPackError, match="at byte"):
            import_binaries(other, path, KEY)
    assert held(other) == {}


def test_an_unsigned_pack_that_lies_is_refused_by_its_hashes(
    store: BinaryStore, other: BinaryStore, tmp_path: Path
) -> None:
    path = tmp_path / "pack"
    export_binaries(store, path)
    whole = path.read_bytes()
    noise = random.Random(4)
    before = held(store)
    refused = 0
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[noise.randrange(len(whole))] ^= 1 << noise.randrange(8)
        path.write_bytes(flipped)
        try:
            import_binaries(other, path, unsigned=True)
        except BinaryPackError:
            refused += 1
    assert refused > 150
    # No hash is over states and keys, so those may be others; a binary is what was packed.
    contents = {bytes(each.data) for found in before.values() for each in found.binaries}
    assert {bytes(each.data) for found in held(other).values() for each in found.binaries} <= contents
    assert other.verify().problems == ()
