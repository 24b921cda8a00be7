"""Packs of binaries: what comes out is what went in, and nothing of a pack that lies is ever stored."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.stores import binary_pack
from orchestrator.stores.binary_pack import (
    BinaryPackError,
    export_binaries,
    import_binaries,
    join_binaries,
    prove_binaries,
)
from orchestrator.stores.binary_store import FOUND, BinaryStore, StoredPipeline
from orchestrator.stores.files.atomic_file import content_hash128
from orchestrator.stores.files.mac import MacKey
from orchestrator.stores.kinds import BINARY_PACK_MAGIC
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


def packed_by(path: Path, pipelines: list[StoredPipeline]) -> Path:
    """A pack of pipelines that a store need not take."""
    path.write_bytes(b"".join(binary_pack._parts([(GENERATION, pipelines)], None)))
    return path


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes that some work held at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_pack_that_inflates_to_much_takes_little_memory(other: BinaryStore, tmp_path: Path) -> None:
    mib = 1 << 20
    same = packed_by(tmp_path / "same", [pipeline(state, *[bytes(mib)] * 8) for state in range(12)])
    different = packed_by(
        tmp_path / "different", [pipeline(state, bytes(mib) + b"%d" % state) for state in range(96)]
    )
    assert same.stat().st_size + different.stat().st_size < mib
    for path, in_a_batch in ((same, 8 * mib), (different, 24 * mib)):
        assert peak_of(partial(prove_binaries, path)) < 8 * mib
        assert peak_of(partial(import_binaries, other, path, unsigned=True)) < in_a_batch
        assert peak_of(partial(join_binaries, [(path, path.read_bytes())])) < 8 * mib
    assert len(held(other)) == 96
    assert held(other)[b"global key", b"state 95"].binaries[0].data == bytes(mib) + b"95"


@pytest.mark.parametrize("ends", [False, True])
def test_a_pack_of_many_empty_frames_takes_little_memory(tmp_path: Path, ends: bool) -> None:
    count = 10_000
    head = binary_pack._HEAD.pack(BINARY_PACK_MAGIC, 1, 0)
    end = msgspec.msgpack.encode([0, 0, count])
    tail = binary_pack._FRAME.pack(4, len(end)) + end + binary_pack._FRAME.pack(5, 0)
    content = head + binary_pack._FRAME.pack(3, 0) * count + tail * ends

    def prove() -> None:
        with pytest.raises(BinaryPackError, match="does not belong" if ends else "is cut"):
            prove_binaries(tmp_path, content)

    assert peak_of(prove) < 10 * count  # bytes


def test_a_pipeline_has_so_many_binaries_and_bytes_at_most(
    other: BinaryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = packed_by(tmp_path / "many", [pipeline(1, *[b"x"] * 4097)])
    with pytest.raises(BinaryPackError, match="4097 binaries"):
        prove_binaries(many)
    monkeypatch.setattr(binary_pack, "_MOST_PIPELINE", 1000)
    large = packed_by(tmp_path / "large", [pipeline(1, b"a" * 600, b"b" * 600)])
    with pytest.raises(BinaryPackError, match="1200 bytes"):
        import_binaries(other, large, unsigned=True)
    assert held(other) == {}


def test_a_cost_below_zero_is_refused(other: BinaryStore, tmp_path: Path) -> None:
    path = packed_by(tmp_path / "pack", [replace(pipeline(1, b"one"), cost_ns=-5)])
    with pytest.raises(BinaryPackError, match="-5"):
        import_binaries(other, path, unsigned=True)
    assert held(other) == {}


def test_a_binary_that_stands_twice_is_refused(other: BinaryStore, tmp_path: Path) -> None:
    path = packed_by(tmp_path / "pack", [pipeline(1, b"one"), pipeline(2, b"two")])
    content = path.read_bytes()
    one, two = content_hash128(b"one"), content_hash128(b"two")
    at = content.index(two)  # its frame, which then names what the other one names
    path.write_bytes(content[:at] + one + content[at + 16 :])
    with pytest.raises(BinaryPackError, match="stands twice"):
        prove_binaries(path)
