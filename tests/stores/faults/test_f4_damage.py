"""F4: a file that is damaged in any way is refused, never reaches a driver, and never ends the process.

With a previous generation, that one is loaded instead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from orchestrator.devices.device import CACHE_HEADER_SIZE
from orchestrator.stores.cache_file import (
    PREFIX_HEADER_SIZE,
    LoadStatus,
    load_into_cache,
)
from orchestrator.stores.files.atomic_file import files_through
from orchestrator.stores.files.recovery import previous_path
from orchestrator.stores.inspection import inspect_cache_file
from tests.campaigns import STRIDE
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.model_disk import ModelDisk
from tests.stores.faults.sets import NOTHING, OLDER, POISON, Keys, file_of, keys_in, path_in, strict_device
from tests.stores.samples import flipped_bits

PATH = path_in(Path("/caches"))
CONTENT = file_of(frozenset({1, 2}))
SEED = 4
FLIPS = 1500


def flipped_bits_of_headers() -> Iterator[bytes]:
    yield from islice(flipped_bits(CONTENT), (PREFIX_HEADER_SIZE + CACHE_HEADER_SIZE) * 8)


def truncated() -> Iterator[bytes]:
    for length in range(len(CONTENT)):
        yield CONTENT[:length]


def extended() -> Iterator[bytes]:
    for tail in (b"\0", b"\n", *(bytes(1 << power) for power in range(1, 15)), CONTENT, file_of(OLDER)):
        yield CONTENT + tail


def zero_tails() -> Iterator[bytes]:
    for kept in range(len(CONTENT)):
        yield CONTENT[:kept] + bytes(len(CONTENT) - kept)


def random_flips() -> Iterator[bytes]:
    """One to eight bytes of the payload changed."""
    chance = random.Random(SEED)
    for _ in range(FLIPS):
        damaged = bytearray(CONTENT)
        for _ in range(chance.randrange(1, 9)):
            damaged[chance.randrange(PREFIX_HEADER_SIZE, len(damaged))] ^= chance.randrange(1, 256)
        yield bytes(damaged)


def shuffled_parts() -> Iterator[bytes]:
    """Blocks of another good file in this one, as a file system that mixes up blocks would give."""
    other = file_of(frozenset({3, 4}))
    assert len(other) == len(CONTENT)
    for block in (16, 64, 512):
        for start in range(0, len(CONTENT), block):
            yield CONTENT[:start] + other[start : start + block] + CONTENT[start + block :]


DAMAGES = (flipped_bits_of_headers, truncated, extended, zero_tails, random_flips, shuffled_parts)


def accepted(content: bytes, *, with_previous: bool) -> Keys:
    """What a driver is given of a damaged file; fails if that is an error, or blames the driver."""
    disk = ModelDisk.holding({PATH: content})
    if with_previous:
        disk = ModelDisk.holding({PATH: content, previous_path(PATH): file_of(OLDER)})
    device = strict_device()
    with files_through(disk):
        cache, result = load_into_cache(device, PATH)
    found = keys_in(device.pipeline_cache_data(cache).data)
    device.close()
    assert disk.open_descriptors == frozenset()
    assert result.status is not LoadStatus.REJECTED_BY_DRIVER
    if with_previous:
        assert result.instead_of is not None or result.path == PATH
    return found


def run_suite() -> tuple[int, list[str]]:
    """Every damage, with and without a previous generation; how many, and those that a driver was given."""
    cases = 0
    wrong = []
    for damage in DAMAGES:
        for number, content in enumerate(islice(damage(), 0, None, STRIDE)):
            if content == CONTENT:
                continue
            with_previous = number % 2 == 1
            cases += 1
            found = accepted(content, with_previous=with_previous)
            if found != (OLDER if with_previous else NOTHING):
                wrong.append(f"{damage.__name__} {number}: {'poison' if found == POISON else sorted(found)}")
    return cases, wrong


def test_no_damage_is_accepted_and_none_crashes(count_cases: CountCases) -> None:
    cases, wrong = run_suite()
    assert not wrong, "\n".join(wrong[:20])
    count_cases(
        "F4 damage",
        f"{cases} damaged files, none accepted, one in {STRIDE} of: every bit of both headers, every "
        f"truncation and zero tail of {len(CONTENT)} bytes, {FLIPS} random flips (seed {SEED})",
    )


def test_inspection_takes_no_damaged_file_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for damage in (flipped_bits_of_headers, extended, random_flips):
        for content in list(damage())[::7]:
            path.write_bytes(content)
            assert inspect_cache_file(path).status is not LoadStatus.LOADED


def test_a_check_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: without the hash, damage reaches the driver."""
    monkeypatch.setattr("orchestrator.stores.cache_file._check_data", lambda header, data: None)
    monkeypatch.setattr("tests.stores.faults.test_f4_damage.DAMAGES", (random_flips,))
    with pytest.raises(AssertionError):
        assert run_suite()[1] == []
