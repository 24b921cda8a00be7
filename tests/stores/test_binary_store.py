"""The store of binaries: its promises, against a model, a bound, other processes, and damage."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.stores.binary_store import (
    COLLIDES,
    DAMAGED,
    DEFAULT_BOUND,
    FOUND,
    LEAST_BOUND,
    MISSING,
    BinaryStore,
    Generation,
    PutReport,
    StoredPipeline,
)
from orchestrator.stores.files.atomic_file import MissingFileError, ReadError, SaveError
from orchestrator.stores.state import STATE_NAME
from tests.campaigns import tries
from tests.stores.binaries import GENERATION, OTHER, OTHER_DRIVER, content, found, pipeline
from tests.stores.children import forked
from tests.stores.stored import lines_on

KILLS, FLIPS = tries(10, 100), tries(60, 2000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BinaryStore]:
    with BinaryStore.open(tmp_path / "cache") as opened:
        yield opened


def test_number_and_order_of_binaries_stay(store: BinaryStore) -> None:
    one = pipeline(1, b"b" * 5000, b"a" * 10, b"b" * 5000, identifiers=b"its modules")
    many = [pipeline(state, b"%d" % state) for state in range(2, 1300)]
    store.put(GENERATION, [one, *many])
    assert found(store, 1) == (FOUND, [b"b" * 5000, b"a" * 10, b"b" * 5000])
    with store.reading(GENERATION) as reader:
        states = [b"unknown", *(each.state_key for each in (*many, one))]
        assert [each[1:] for each in reader.find_all(states)] == [
            (MISSING, None),
            *((FOUND, each) for each in (*many, one)),
        ]
    assert found(store, 5000) == (MISSING, [])


@pytest.mark.parametrize("other", [OTHER, OTHER_DRIVER], ids=["global key", "driver"])
def test_another_generation_has_nothing(store: BinaryStore, other: Generation) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    assert (store.has(GENERATION), store.has(other)) == (True, False)
    with store.reading(other) as reader:
        assert reader.is_empty
        assert list(reader.find_all([b"state 1"])) == [(b"state 1", MISSING, None)]
    store.put(other, [pipeline(1, b"other")])
    assert found(store, 1) == (FOUND, [b"one"])


def test_one_key_for_different_pipelines_is_told_and_gives_nobody_a_wrong_one(store: BinaryStore) -> None:
    one = store.put(GENERATION, [pipeline(1, b"one", driver_key=b"same")])
    assert (one.collisions, one.shared_keys) == (0, 0)
    assert store.put(GENERATION, [pipeline(2, b"two", driver_key=b"same")]).collisions == 1
    assert store.put(GENERATION, [pipeline(3, b"one", driver_key=b"same")]).collisions == 1
    assert [found(store, state)[1] for state in (1, 2, 3, 4)] == [[b"one"], [b"two"], [b"one"], []]
    assert store.statistics().generations[0].shared_driver_keys == 1
    equal = [pipeline(state, b"equal", driver_key=b"shared") for state in (5, 6)]
    report = store.put(GENERATION, equal)
    assert (report.collisions, report.shared_keys) == (0, 1)


def test_identifiers_and_the_drivers_key_name_a_pipeline_together(store: BinaryStore) -> None:
    def named(state: int, content: bytes, identifiers: bytes, driver_key: bytes = b"key") -> None:
        store.put(GENERATION, [pipeline(state, content, driver_key=driver_key, identifiers=identifiers)])

    def look(identifiers: bytes, driver_key: bytes = b"key") -> tuple[str, bytes]:
        with store.reading(GENERATION) as reader:
            outcome, pipeline = reader.find_identified(identifiers, driver_key)
            return outcome, pipeline.state_key if pipeline is not None else b""

    named(1, b"one", b"a")
    named(2, b"two", b"b")
    assert (look(b"a"), look(b"b")) == ((FOUND, b"state 1"), (FOUND, b"state 2"))
    assert look(b"a", b"another") == look(b"c") == look(b"") == look(b"a", b"") == (MISSING, b"")
    named(4, b"one", b"a")  # the same to the driver, and so for whoever asks
    assert look(b"a") == (FOUND, b"state 1")
    named(5, b"other", b"a")
    assert look(b"a") == (COLLIDES, b"")
    named(5, b"other", b"z")  # a name that it has no more
    assert (look(b"a"), look(b"z")) == ((FOUND, b"state 1"), (FOUND, b"state 5"))
    # Without a key of the driver, identifiers alone prove nothing.
    named(6, b"six", b"six", driver_key=b"")
    assert look(b"six", b"") == (MISSING, b"")
    assert store.verify() == []


def test_equal_binaries_are_stored_once_whatever_their_keys(store: BinaryStore) -> None:
    both = [pipeline(1, b"x" * 4000), pipeline(2, b"x" * 4000, b"y" * 100)]
    report = store.put(GENERATION, both)
    assert report == PutReport(pipelines=2, captured_bytes=8100, stored_bytes=4100)
    again = store.put(GENERATION, both)
    assert (again.known, again.stored_bytes) == (2, 0)
    assert store.statistics().payload_bytes == 4100
    # One binary key that names two contents: each pipeline has its own.
    liar = StoredPipeline(b"state 9", b"k", (PipelineBinary(b"binary " + b"x" * 20, b"other"),))
    store.put(GENERATION, [liar])
    assert (found(store, 1)[1], found(store, 9)[1]) == ([b"x" * 4000], [b"other"])


def test_generations_are_pruned_and_take_their_binaries_with_them(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"mine", b"shared" * 100)])
    store.put(OTHER, [pipeline(1, b"theirs", b"shared" * 100)])
    assert [each.payload_bytes for each in store.statistics().generations] == [604, 606]
    store.prune([OTHER])
    (held,) = store.statistics().generations
    assert (held.about, held.pipelines, held.binaries, held.bytes) == (GENERATION, 1, 2, 604)
    assert found(store, 1)[1] == [b"mine", b"shared" * 100]
    assert store.statistics().payload_bytes == 604
    assert store.verify() == []


def test_uses_are_noted_once_an_hour(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("orchestrator.stores.binary_store.time.time", lambda: now[0])
    states = [b"state %d" % number for number in range(50)]
    store.put(GENERATION, [pipeline(number, b"%d" % number) for number in range(50)])
    assert store.touch(GENERATION, states) == 0  # just stored
    now[0] += 3600
    assert [store.touch(GENERATION, [*states, b"unknown"]) for _ in range(2)] == [50, 0]
    assert [each.used_s for each in store.statistics().generations] == [1_003_600]
    assert store.touch(OTHER, states) == 0
    now[0] = 500_000.0  # a clock that was ahead
    assert [store.touch(GENERATION, states) for _ in range(2)] == [50, 0]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, 9),
            st.lists(st.integers(0, 5), min_size=1, max_size=4),
            st.integers(0, 2),
        ),
        max_size=25,
    )
)
def test_it_does_what_a_dictionary_does(
    store: BinaryStore, steps: list[tuple[bool, int, list[int], int]]
) -> None:
    contents = [b"%d" % number * size for number, size in enumerate((1, 10, 700, 3000, 9000, 40))]
    model: dict[int, list[bytes]] = {}
    store.prune([GENERATION])
    for puts, state, numbers, driver_key in steps:
        if puts:
            model[state] = [contents[each] for each in numbers]
            store.put(GENERATION, [pipeline(state, *model[state], driver_key=b"k%d" % driver_key)])
        else:
            store.touch(GENERATION, [b"state %d" % state])
    for state in range(10):
        assert found(store, state) == ((FOUND, model[state]) if state in model else (MISSING, []))
    assert store.verify() == []
    assert store.statistics().payload_bytes == sum(map(len, {each for row in model.values() for each in row}))


# --- the bound


def test_the_bound_holds_and_what_was_used_last_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, noise, now = LEAST_BOUND, random.Random(7), [1_000_000.0]
    monkeypatch.setattr("orchestrator.stores.binary_store.time.time", lambda: now[0])
    with BinaryStore.open(tmp_path, bound_bytes=bound) as store:
        largest, report = 0, PutReport()
        favourite = [pipeline(state, noise.randbytes(9000)) for state in range(20)]  # 180 KB
        store.put(GENERATION, favourite)
        for start in range(100, 1000, 50):  # six times the bound
            now[0] += 3600
            some = [
                pipeline(state, noise.randbytes(noise.choice((300, 15_000, 80_000))))
                for state in range(start, start + 50)
            ]
            report += store.put(GENERATION, some)
            now[0] += 3600
            store.touch(GENERATION, [each.state_key for each in favourite])
            largest = max(largest, store.path.stat().st_size)
        assert report.stored_bytes > 6 * bound
        assert report.evicted > 350
        assert "not all pipelines fit" in report.lost
        assert largest <= 1.1 * bound
        assert store.statistics().used_bytes <= bound
        assert [found(store, state)[0] for state in range(20)] == [FOUND] * 20
        assert found(store, 999)[0] == FOUND
        assert store.verify() == []


def test_a_bound_is_remembered_and_a_lower_one_shrinks_the_file(tmp_path: Path) -> None:
    noise = random.Random(4)
    with BinaryStore.open(tmp_path) as store:
        assert store.bound_bytes == DEFAULT_BOUND
    with BinaryStore.open(tmp_path, bound_bytes=32 << 20) as store:
        store.put(GENERATION, [pipeline(each, noise.randbytes(15_000)) for each in range(900)])
    with BinaryStore.open(tmp_path) as store:
        assert store.bound_bytes == store.statistics().bound_bytes == 32 << 20
        before = store.path.stat().st_size
    assert before > 3 * LEAST_BOUND
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        assert store.set_aside == ""
        assert store.path.stat().st_size <= 1.1 * LEAST_BOUND
        assert 100 < store.statistics().generations[0].pipelines < 400
        assert store.verify() == []
    with pytest.raises(ValueError, match="least"):
        BinaryStore.open(tmp_path, bound_bytes=1000)


def test_pages_that_are_not_used_are_given_back(tmp_path: Path) -> None:
    noise = random.Random(6)
    with BinaryStore.open(tmp_path) as store:
        store.put(OTHER, [pipeline(state, noise.randbytes(20_000)) for state in range(60)])
        store.put(GENERATION, [pipeline(1, b"one")])
        store.prune([OTHER])
        assert store.compact() > 1_000_000
        assert store.path.stat().st_size < 200_000
        assert store.path.stat().st_mode & 0o777 == 0o600
        assert found(store, 1) == (FOUND, [b"one"])
        assert store.verify() == []


def test_what_cannot_be_stored_is_refused_or_left_out(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        report = store.put(GENERATION, [pipeline(1, bytes(LEAST_BOUND // 2 + 1)), pipeline(2, b"small")])
        assert (report.pipelines, report.too_large) == (1, 1)
        assert found(store, 2)[0] == FOUND
        for name, bad in (("state_key", b""), ("state_key", bytes(65)), ("driver_key", bytes(33))):
            with pytest.raises(ValueError, match="bytes"):
                store.put(GENERATION, [replace(pipeline(1, b"x"), **{name: bad})])
        with pytest.raises(ValueError, match="binaries"):
            store.put(GENERATION, [replace(pipeline(1, b"x"), binaries=())])


# --- databases that are not what they should be


def filled(directory: Path, count: int = 60) -> Path:
    noise = random.Random(1)
    with BinaryStore.open(directory) as store:
        for start in range(0, count, 20):
            some = range(start, start + 20)
            contents = [noise.randbytes(noise.choice((40, 900, 3000, 9000))) for _ in some]
            store.put(GENERATION, list(map(pipeline, some, contents)))
        return store.path


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE binary_payload SET data = zeroblob(length(data)) WHERE id = 3", "are not what was stored"),
        ("UPDATE binary_payload SET data = 'text' WHERE id = 3", "are not what was stored"),
        ("DELETE FROM binary_payload WHERE id = 3", "it is damaged"),
        ("UPDATE binary_use SET payload = 5 WHERE payload = 3", "it is damaged"),
        ("UPDATE binary_use SET key = x'00' WHERE payload = 3", "it is damaged"),
        ("DELETE FROM binary_use WHERE payload = 3", "it is damaged"),
        ("UPDATE binary_pipeline SET driver_key = x'00' WHERE id = 3", "it is damaged"),
        ("UPDATE binary_pipeline SET state = x'00' WHERE id = 3", "it is damaged"),
        ("DELETE FROM binary_pipeline WHERE id = 3", "are of no pipeline"),
        ("UPDATE binary_pipeline SET generation = x'00' WHERE id = 3", "it is damaged"),
    ],
)
def test_what_is_damaged_is_a_miss_and_is_mended(tmp_path: Path, statement: str, problem: str) -> None:
    path = filled(tmp_path, 20)
    with BinaryStore.open(tmp_path) as store:
        _, [same] = found(store, 2)
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute(statement)
    with BinaryStore.open(tmp_path) as store:
        assert problem in " ".join(store.verify())
        outcome, _ = found(store, 2)  # number 3
        assert outcome in (DAMAGED, MISSING)
        stored = [store.put(GENERATION, [pipeline(2, same)]).stored_bytes for _ in range(2)]
        assert stored[1] == 0
        assert found(store, 2) == (FOUND, [same])
        store.prune([])
        assert store.verify() == []
        assert found(store, 2) == (FOUND, [same])


def in_a_child(work: Callable[[], str]) -> tuple[int, str]:
    """Do something in a process of its own, and say how it ended and what it answered."""
    reading, writing = os.pipe()
    child = forked(lambda: os.write(writing, work().encode()))
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def read_all(directory: Path, expected: dict[int, tuple[str, list[bytes]]]) -> str:
    """Read and write a store; what was found is what was stored, or nothing."""
    said = "clean"
    with BinaryStore.open(directory) as store:
        try:
            for state, what in expected.items():
                outcome, data = found(store, state)
                assert (outcome, data) == what or outcome in (MISSING, DAMAGED), state
            said = "set aside" if store.set_aside else "problems" if store.verify() else "clean"
            store.put(GENERATION, [pipeline(1000, b"new")])
        except (SaveError, ReadError):
            said = "error"
    return said


def test_a_flipped_bit_is_found_or_harmless(fast_path: Path) -> None:
    # Each is tried in a process of its own, which must not die of it.
    path = filled(fast_path / "good")
    whole = path.read_bytes()
    with BinaryStore.open(path.parent) as store:
        expected = {state: found(store, state) for state in range(60)}
    noise = random.Random(3)
    outcomes = []
    for number in range(FLIPS):
        at = noise.randrange(len(whole) // 4096) * 4096
        at += noise.randrange(64) if number % 2 else noise.randrange(4096)
        damaged = bytearray(whole)
        damaged[at] ^= 1 << noise.randrange(8)
        directory = fast_path / "flipped"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(path.parent, directory)
        (directory / STATE_NAME).write_bytes(damaged)
        ended, said = in_a_child(partial(read_all, directory, expected))
        assert ended == 0, (at, said)
        outcomes.append(said)
    assert {"set aside", "problems"} <= set(outcomes)


def test_a_store_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(os, "access", lambda where, mode: not mode & os.W_OK)  # as for who is not root
    with BinaryStore.open(tmp_path) as store:
        assert store.read_only
        assert found(store, 1)[0] == FOUND
        with pytest.raises(SaveError, match="only be read"):
            store.put(GENERATION, [pipeline(1, b"x")])
        assert store.verify() == []
    with pytest.raises(MissingFileError, match="no store"):
        BinaryStore.open(tmp_path / "none", create=False)


_FULL = """
import os, sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.files.atomic_file import ReadError, SaveError
from tests.stores.binaries import GENERATION, found, pipeline

disk = Path(sys.argv[1])
folder, ballast = disk / "cache", disk / "ballast"

def fill():
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass

with BinaryStore.open(folder) as store:
    for first in range(0, 300, 10):  # more than the disk has
        try:
            report = store.put(GENERATION, [pipeline(first + each, os.urandom(50_000)) for each in range(10)])
        except (SaveError, ReadError) as error:
            print("put:", error)
        else:
            if report.evicted:
                print("made room")
    fill()
    assert store.verify() == []
    there = [state for state in range(300) if found(store, state)[0] == "found"]
    print(len(there), "there")
    try:
        store.put(GENERATION, [pipeline(1000, os.urandom(900_000))])
    except (SaveError, ReadError) as error:
        print("put:", error)
try:
    BinaryStore.open(folder).close()
except (SaveError, ReadError) as error:
    print("open:", error)
ballast.unlink()
with BinaryStore.open(folder) as store:
    assert store.set_aside == ""
    store.put(GENERATION, [pipeline(1, b"again")])
    assert found(store, 1)[1] == [b"again"]
    assert store.verify() == []
"""


def test_a_file_system_that_is_full_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    said = "\n".join(lines_on(tmp_path, 'mount -t tmpfs -o size=6m tmpfs "$1"', _FULL))
    assert "made room" in said
    assert "put: " in said
    assert "full" in said


# --- processes that are killed


def write_forever(folder: Path, first: int, compacts: bool, acknowledge: int) -> None:
    with BinaryStore.open(folder, bound_bytes=4 << 30) as store:
        for number in range(first, first + 100_000, 4):
            states = range(number, number + 4)
            store.put(GENERATION, [pipeline(state, content(state), b"common" * 200) for state in states])
            if number % 3 == 0:
                store.touch(GENERATION, [b"state %d" % number])
            if compacts:
                store.put(OTHER, [pipeline(number, content(number + 1))])
                store.prune([OTHER])
                store.compact()
            os.write(acknowledge, number.to_bytes(4, "little"))


@pytest.mark.parametrize("compacts", [False, True])
def test_killed_writers_lose_nothing_that_they_acknowledged(tmp_path: Path, compacts: bool) -> None:
    noise, acknowledged = random.Random(5), bytearray()
    firsts = iter(range(0, 10**9, 10**5))

    def begun() -> tuple[int, int]:
        first, (reading, writing) = next(firsts), os.pipe()
        child = forked(partial(write_forever, tmp_path, first, compacts, writing))
        os.close(writing)
        return child, reading

    def killed(child: int, reading: int) -> bytes:
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])  # it did not end before
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read()

    # Two processes write; one of them is killed at a random moment and begins again; a third one looks.
    writers = [begun() for _ in range(2)]
    try:
        for number in range(KILLS):
            acknowledged += os.read(writers[number % 2][1], 4)  # it is at work
            time.sleep(noise.random() * 0.15)
            acknowledged += killed(*writers[number % 2])
            writers[number % 2] = begun()
    finally:
        for writer in writers:
            acknowledged += killed(*writer)
    starts = [number for (number,) in struct.iter_unpack("<I", acknowledged)]
    with BinaryStore.open(tmp_path) as store:
        assert store.set_aside == ""
        assert store.verify() == []
        for state in (first + within for first in starts for within in range(4)):
            assert found(store, state) == (FOUND, [content(state), b"common" * 200])
    print(f"{KILLS} kills, {len(starts)} acknowledged")
    assert len(starts) >= KILLS
