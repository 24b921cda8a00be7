"""The database under damage and on a read-only disk: an old value, a new one, or a word why."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.inspection import inspect_state
from orchestrator.stores.run_notes import (
    PlanIdentity,
    add_contents,
    add_durations,
    read_contents,
    read_durations,
    read_plan,
    save_plan,
)
from orchestrator.stores.state import Kind, State, state_path
from tests.campaigns import tries
from tests.stores.children import forked
from tests.stores.faults.conftest import CountCases
from tests.stores.stored import lines_on

FLIPS = tries(300, 1200)
PAGE = 4096
NUMBER = Kind("number", int)
NUMBERS = Kind("numbers", list[int])
KEYS = np.arange(1, 400, dtype=np.uint64)
PLAN = PlanIdentity("set", "device")
CODE = random.Random(1).randbytes(9000)


@pytest.fixture
def cache_file(fast_path: Path) -> Path:
    """A cache file with times, contents and a plan, more than one page of each."""
    path = fast_path / "caches" / "device.pipeline-cache"
    add_durations(path, KEYS, KEYS.astype(np.int64))
    add_contents(path, KEYS, bytes(16))
    save_plan(path, PLAN, [CODE])
    return path


def check_values(cache_file: Path) -> tuple[int, int]:
    """How many values were refused with a word, and how many are not found; none may be wrong."""
    times, held = read_durations(cache_file), read_contents(cache_file)
    plan, problem = read_plan(cache_file.parent, PLAN)
    problems = (times.problem, held.problem, problem)
    there = (len(times) > 0, len(held) > 0, plan is not None)
    assert not len(times) or (times.of(KEYS) == KEYS).all()
    assert not len(held) or (held.held(KEYS).all() and held.data_hash == bytes(16))
    assert plan in (None, CODE)
    assert not any(said and found for said, found in zip(problems, there, strict=True))
    refused = sum(map(bool, problems))
    return refused, 3 - sum(there) - refused


def flips(content: bytes, most: int, seed: int) -> Iterator[bytes]:
    """Content with one wrong bit: each of the header's, and as many elsewhere."""
    places = [*range(800), *random.Random(seed).sample(range(800, 8 * len(content)), most)]
    for bit in places:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def replaced(path: Path, content: bytes) -> None:
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    path.write_bytes(content)


def test_no_flipped_bit_gives_a_wrong_value(cache_file: Path, count_cases: CountCases) -> None:
    path = state_path(cache_file.parent)
    good = path.read_bytes()
    refused = missing = 0
    for number, content in enumerate(flips(good, FLIPS, seed=3)):
        replaced(path, content)
        said, absent = check_values(cache_file)
        refused += said > 0
        missing += absent > 0
        if number % 25 == 0:  # whatever it is: the next writer has a database that works
            with suppress(SaveError):  # a header that forbids to write is found by writing
                add_durations(cache_file, KEYS, KEYS.astype(np.int64))
            add_durations(cache_file, KEYS, KEYS.astype(np.int64))
            assert (read_durations(cache_file).of(KEYS) == KEYS).all()
    for size in range(0, len(good), 97):
        replaced(path, good[:size])
        assert check_values(cache_file) != (0, 0)
    assert refused > 250
    count_cases("database, flipped bits", f"{800 + FLIPS}: {refused} refused by a word, {missing} not found")


@pytest.fixture
def logged(cache_file: Path) -> tuple[Path, Path, bytes]:
    """The database and its log, in which a killed process left 2 in place of 1; and the file's content."""
    NUMBERS.update(cache_file, lambda _: [1] * 5000)
    path = state_path(cache_file.parent)

    def write_and_die() -> None:
        state = State.open_to_write(path.parent)
        with state.writing() as sql:
            NUMBERS.store(sql, cache_file.name, [2] * 5000)
        os._exit(0)

    os.waitpid(forked(write_and_die), 0)
    return path, path.with_name(path.name + "-wal"), path.read_bytes()


def sealed(log: bytes) -> bytes:
    """A log whose checksums agree with it, so that SQLite takes what it says."""
    made = bytearray(log[:24])
    sums = (0, 0)

    def seal(covered: bytes) -> bytes:
        nonlocal sums
        first, second = sums
        words = struct.unpack(f"{'<' if log[3] & 1 == 0 else '>'}{len(covered) // 4}I", covered)
        for one, other in zip(words[::2], words[1::2], strict=True):
            first = first + one + second & 0xFFFFFFFF
            second = second + other + first & 0xFFFFFFFF
        sums = first, second
        return struct.pack(">2I", first, second)

    made += seal(bytes(made))
    for at in range(32, len(log), 24 + PAGE):
        header, content = log[at : at + 16], log[at + 24 : at + 24 + PAGE]
        made += header + seal(header[:8] + content) + content
    return bytes(made)


def flipped_logs(logged: tuple[Path, Path, bytes], *, seals: bool) -> Counter[str]:
    """What a reader finds behind a log with a wrong bit: the new value, the old one, none, or a wrong one."""
    path, log, content = logged
    written = log.read_bytes()
    assert sealed(written) == written
    found: Counter[str] = Counter()
    for damaged in islice(flips(written, 200, seed=4), 800 if seals else 0, None):
        replaced(path, content)
        log.write_bytes(sealed(damaged) if seals else damaged)
        value, problem = NUMBERS.read(path.with_name("device.pipeline-cache"))
        known = {(2,) * 5000: "new", (1,) * 5000: "old", (): "refused" if problem else "missing"}
        found[known.get(tuple(value or ()), "wrong")] += 1
    return found


@pytest.mark.parametrize("seals", [False, True], ids=["a flip", "a flip with its checksum"])
def test_no_flipped_bit_of_the_log_gives_a_wrong_value(
    logged: tuple[Path, Path, bytes], seals: bool, count_cases: CountCases
) -> None:
    found = flipped_logs(logged, seals=seals)
    assert not found["wrong"]
    assert found["old"] > 100 or seals
    assert found["refused"] > 10 or not seals
    count_cases(f"database, flipped bits of the log, {'sealed' if seals else 'plain'}", f"{dict(found)}")


def test_a_log_that_is_believed_without_the_hash_gives_wrong_values(
    logged: tuple[Path, Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test of the test."""
    monkeypatch.setattr(Kind, "_proof", lambda *_: ANY)
    assert flipped_logs(logged, seals=True)["wrong"]


ON_READ_ONLY_DISK = """
import sys
from pathlib import Path
import numpy as np
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.run_notes import add_durations, read_durations
file = Path(sys.argv[1]) / "device.pipeline-cache"
print(len(read_durations(file)), read_durations(file).problem)
try:
    add_durations(file, np.ones(1, np.uint64), np.ones(1, np.int64))
except SaveError as error:
    print(error)
"""


def test_a_read_only_disk_is_read_and_not_written(cache_file: Path) -> None:
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    read, refused = lines_on(cache_file.parent, mount, ON_READ_ONLY_DISK)
    assert read == f"{len(KEYS)} "
    assert "what was there before is unchanged" in refused


def test_a_database_that_moves_away_takes_no_writer_along(cache_file: Path) -> None:
    with State.open_to_write(cache_file.parent) as state:
        aside = cache_file.parent / "aside"
        shutil.move(state.path, aside)
        for each in ("-wal", "-shm"):
            state.path.with_name(state.path.name + each).unlink(missing_ok=True)
        NUMBER.update(cache_file, lambda _: 7)
        with state.writing() as sql:
            NUMBER.store(sql, cache_file.name, 8)
    assert NUMBER.read(cache_file) == (7, "")
    assert inspect_state(cache_file.parent).problem == ""
