"""The database under damage, kills, a full and a read-only disk: an old value, a new one, or a word why not.

ORCHESTRATOR_STATE_KILLS says how many kills, for a longer run.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.inspection import inspect_state
from orchestrator.stores.plan_file import PlanIdentity, read_plan, save_plan
from orchestrator.stores.run_notes import add_contents, add_durations, read_contents, read_durations
from orchestrator.stores.state import Kind, State, state_path
from tests.drivers import unsupported
from tests.stores.faults.conftest import CountCases

KILLS = int(os.environ.get("ORCHESTRATOR_STATE_KILLS", "100"))
NUMBER = Kind("number", int)
KEYS = np.arange(1, 400, dtype=np.uint64)
PLAN = PlanIdentity(bytes(16), bytes(16), bytes(16))
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
    """A file that is another one than that which was checked before."""
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    path.write_bytes(content)


def test_no_flipped_bit_gives_a_wrong_value(cache_file: Path, count_cases: CountCases) -> None:
    path = state_path(cache_file.parent)
    good = path.read_bytes()
    refused = missing = 0
    for number, content in enumerate(flips(good, 1200, seed=3)):
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
    assert refused > 500
    count_cases("database, flipped bits", f"2000 flips: {refused} refused by a word, {missing} not found")


def test_no_flipped_bit_of_the_log_gives_a_wrong_value(cache_file: Path, count_cases: CountCases) -> None:
    """What a killed process left in it, on top of the file."""
    path = state_path(cache_file.parent)
    log = path.with_name(path.name + "-wal")
    child = os.fork()
    if not child:
        state = State.open_to_write(path.parent)
        with state.writing() as sql:
            sql.execute("UPDATE value SET used_s = used_s + 1")
            NUMBER.store(sql, cache_file.name, b"1" * 5000)
        os._exit(0)
    os.waitpid(child, 0)
    content, written = path.read_bytes(), log.read_bytes()
    assert len(written) > 4096
    for damaged in flips(written, 200, seed=4):
        replaced(path, content)
        log.write_bytes(damaged)
        check_values(cache_file)
        found, _ = NUMBER.read(cache_file)
        assert found in (None, int("1" * 5000) if sys.get_int_max_str_digits() == 0 else found)
    count_cases("database, flipped bits of the log", "1000 flips, no wrong value")


def count_up(cache_file: Path, acknowledge: int) -> None:
    """Write the next number and acknowledge it, until killed."""
    while True:
        number = 0

        def make(old: int | None) -> bytes:
            nonlocal number
            number = 1 if old is None else old + 1
            return b"%d" % number

        NUMBER.update(cache_file, make)
        os.write(acknowledge, number.to_bytes(4, "little"))


def test_what_was_acknowledged_survives_kills(fast_path: Path, count_cases: CountCases) -> None:
    cache_file = fast_path / "caches" / "device.pipeline-cache"
    random_ = random.Random(5)
    reading, writing = os.pipe()
    acknowledged = kills = 0
    running: dict[int, int] = {}
    while kills < KILLS:
        while len(running) < 2:
            child = os.fork()
            if not child:
                try:
                    count_up(cache_file, writing)
                finally:
                    os._exit(1)
            running[os.pidfd_open(child)] = child
        select.select([reading], [], [], random_.uniform(0.0, 0.1))
        descriptor, child = running.popitem()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(descriptor)
        kills += 1
        while select.select([reading], [], [], 0)[0]:
            data = os.read(reading, 4096)
            acknowledged = max(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))
        found, problem = NUMBER.read(cache_file)
        assert problem == ""
        assert (found or 0) >= acknowledged
    for descriptor, child in running.items():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(descriptor)
    os.close(reading)
    os.close(writing)
    assert acknowledged > KILLS // 10
    assert inspect_state(cache_file.parent).problems == ()
    assert not (cache_file.parent / "quarantine").exists()
    count_cases(
        "database, kills", f"{KILLS} kills of 2 writers, {acknowledged} acknowledged writes all there"
    )


ON_FULL_DISK = """
import sys
from pathlib import Path
import numpy as np
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.run_notes import add_durations, read_durations
file = Path(sys.argv[1]) / "caches" / "device.pipeline-cache"
add_durations(file, np.ones(1, np.uint64), np.ones(1, np.int64))
filler = Path(sys.argv[1]) / "filler"
with filler.open("wb", buffering=0) as stream:
    try:
        while True:
            stream.write(bytes(4096))
    except OSError:
        pass
keys = np.arange(1, 100000, dtype=np.uint64)
try:
    add_durations(file, keys, np.full(len(keys), 7))
    print("written")
except SaveError as error:
    print(error.is_out_of_space, error)
print(read_durations(file).of(np.ones(1, np.uint64)), read_durations(file).problem)
filler.unlink()
add_durations(file, keys[:9], np.full(9, 7))
print(len(read_durations(file)))
"""


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=2m,mode=700 tmpfs "$1" && shift'
    if subprocess.run([*enter, mount, "sh", str(tmp_path)], capture_output=True, check=False).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    program = [sys.executable, "-c", ON_FULL_DISK, str(tmp_path)]
    command = [*enter, f'{mount} && exec "$@"', "sh", str(tmp_path), *program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, kept, after = done.stdout.splitlines()
    assert refused.startswith("True ")
    assert "the file system is full" in refused
    assert kept == "[1] "
    assert after == "9"


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
    folder = str(cache_file.parent)
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift'
    if subprocess.run([*enter, mount, "sh", folder], capture_output=True, check=False).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    program = [sys.executable, "-c", ON_READ_ONLY_DISK, folder]
    command = [*enter, f'{mount} && exec "$@"', "sh", folder, *program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, refused = done.stdout.splitlines()
    assert read == f"{len(KEYS)} "
    assert "what was there before is unchanged" in refused


def test_a_database_that_moves_away_takes_no_writer_along(cache_file: Path) -> None:
    """A process that has it open while another one puts it aside does not write to the new one."""
    with State.open_to_write(cache_file.parent) as state:
        aside = cache_file.parent / "aside"
        shutil.move(state.path, aside)
        for each in ("-wal", "-shm"):
            state.path.with_name(state.path.name + each).unlink(missing_ok=True)
        NUMBER.update(cache_file, lambda _: b"7")
        with state.writing() as sql:
            NUMBER.store(sql, cache_file.name, b"8")
    assert NUMBER.read(cache_file) == (7, "")
    assert inspect_state(cache_file.parent).problems == ()
