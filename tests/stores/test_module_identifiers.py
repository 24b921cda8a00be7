"""The store of shader-module identifiers: what it finds, what it drops, and what damage it sees."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.identified import MOST_IDENTIFIER_BYTES
from orchestrator.stores.inspection import inspect_beside
from orchestrator.stores.kinds import MODULE_IDENTIFIERS
from orchestrator.stores.module_identifiers import (
    MOST_ENTRIES,
    KnownIdentifiers,
    ShaderModuleIdentifierStore,
    decode_identifiers,
    encode_identifiers,
)

MESA = b"MESA-BLAKE3".ljust(16, b"\0")
OTHER = bytes(range(16))


def store(directory: Path, algorithm: bytes = MESA, **more: object) -> ShaderModuleIdentifierStore:
    return ShaderModuleIdentifierStore.of(directory, algorithm, **more)  # type: ignore[arg-type]


def keys(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(numbers, np.uint64)


def identifiers(*numbers: int, size: int = 32) -> dict[int, bytes]:
    return {each: random.Random(each).randbytes(size) for each in numbers}


def test_what_is_added_is_found_beside_what_was_there(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.read().of(keys(1, 2)) == [b"", b""]
    kept.add(identifiers(2, 1 << 63))
    kept.add(identifiers(1, size=20) | {2: b"newer"})
    assert len(kept.read()) == 3
    assert kept.read().of(keys(1 << 63, 7, 2, 1)) == [
        identifiers(1 << 63)[1 << 63],
        b"",
        b"newer",
        identifiers(1, size=20)[1],
    ]


def test_another_algorithm_knows_nothing_of_it(tmp_path: Path) -> None:
    store(tmp_path).add(identifiers(1))
    assert store(tmp_path, OTHER).read().of(keys(1)) == [b""]
    # Nor where a file has the other's name.
    store(tmp_path).path.rename(store(tmp_path, OTHER).path)
    known = store(tmp_path, OTHER).read()
    assert len(known) == 0
    assert f"it is of another algorithm: {MESA.hex()}, and the device has {OTHER.hex()}" in known.problem
    # What it has learned replaces it.
    store(tmp_path, OTHER).add(identifiers(2))
    assert store(tmp_path, OTHER).read().of(keys(1, 2)) == [b"", identifiers(2)[2]]


def test_keys_of_another_revision_mean_something_else(tmp_path: Path) -> None:
    store(tmp_path, revision="translator 1").add(identifiers(1))
    assert store(tmp_path, revision="translator 2").read().of(keys(1)) == [b""]
    assert store(tmp_path, revision="translator 1").read().of(keys(1)) == [identifiers(1)[1]]


def test_beyond_the_bound_what_was_not_used_for_longest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("orchestrator.stores.module_identifiers.time.time", lambda: now)
    kept = ShaderModuleIdentifierStore(store(tmp_path).cache_file, MESA, most=4)
    for number in range(4):
        kept.add(identifiers(number))
        now += 3600
    kept.add(identifiers(4), used=keys(0))
    assert [bool(each) for each in kept.read().of(keys(0, 1, 2, 3, 4))] == [True, False, True, True, True]
    kept.add(identifiers(*range(100, 110)))
    assert len(kept.read()) == 4


def test_the_bound_is_what_the_file_may_have() -> None:
    assert MOST_ENTRIES == 1_000_000
    known = KnownIdentifiers(MESA).updated(identifiers(*range(100)), keys(), 1, MOST_ENTRIES)
    size = sum(map(len, encode_identifiers(known)))
    assert (size - 48) % 100 == 0
    assert 48 + (size - 48) // 100 * MOST_ENTRIES == MODULE_IDENTIFIERS.cap


@pytest.mark.parametrize("wrong", [b"", bytes(MOST_IDENTIFIER_BYTES + 1)])
def test_what_is_no_identifier_is_refused(wrong: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 to 32 bytes"):
        store(tmp_path).add({1: wrong})
    assert not store(tmp_path).path.exists()


def test_the_algorithm_and_the_size_are_proven(tmp_path: Path) -> None:
    store(tmp_path).add(identifiers(1, 2))
    content = store(tmp_path).path.read_bytes()
    with pytest.raises(ValueError, match="at byte 32: the content does not have the hash"):
        decode_identifiers(content.replace(MESA, OTHER))
    with pytest.raises(ValueError, match="at byte 8: 2 entries need 90 bytes, 91 are there"):
        decode_identifiers(content + b"\0")


@pytest.mark.parametrize("order", [[1, 0], [0, 0]])
def test_keys_out_of_order_are_refused(order: list[int], tmp_path: Path) -> None:
    # Looking a key up relies on the order, so a file that another program wrote must have it too.
    known = store(tmp_path).add(identifiers(1, 2))
    columns = known.keys[order], known.used[order], known.sizes[order], known.identifiers[order]
    data = b"".join(encode_identifiers(KnownIdentifiers(known.algorithm, *columns)))
    with pytest.raises(ValueError, match="sizes or keys are not as they are written"):
        decode_identifiers(data)


def test_it_is_known_to_inspect(tmp_path: Path) -> None:
    store(tmp_path).add(identifiers(1))
    found = inspect_beside(store(tmp_path).path)
    assert found is not None
    assert (found.name, found.problem) == ("shader-module identifiers", "")
    store(tmp_path).path.write_bytes(b"junk")
    found = inspect_beside(store(tmp_path).path)
    assert found is not None
    assert "less than the header" in found.problem
