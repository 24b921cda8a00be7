"""The store of binaries: its promises, against a model, a bound, other processes, and a file that lies."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores import binary_store
from orchestrator.stores.binary_store import (
    COLLIDES,
    DAMAGED,
    DEFAULT_BOUND,
    FOUND,
    KEY_DIFFERS,
    LEAST_BOUND,
    MISSING,
    STAMP_NAME,
    STORE_NAME,
    BinaryStore,
    Generation,
    PutReport,
    StoredPipeline,
    StoreError,
    StoreVerification,
)
from orchestrator.stores.files.atomic_file import content_hash128
from orchestrator.stores.lmdb_file import LmdbFileChangedError, check_lmdb_file
from tests.drivers import REPOSITORY, unsupported

GENERATION = Generation.of(simulated_identity(), b"global key")
OTHER = Generation.of(simulated_identity(), b"another global key")

KILLS = int(os.environ.get("ORCHESTRATOR_STORE_KILLS", "6"))
COMPACTIONS = max(2, KILLS // 3)
FLIPS = int(os.environ.get("ORCHESTRATOR_STORE_FLIPS", "90"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BinaryStore]:
    with BinaryStore.open(tmp_path / "cache") as opened:
        yield opened


def pipeline(
    state: int,
    *contents: bytes,
    driver_key: bytes | None = None,
    cost_ns: int = 1_000_000,
    identifiers: bytes = b"",
) -> StoredPipeline:
    key = b"key %d" % state if driver_key is None else driver_key
    binaries = tuple(PipelineBinary(b"binary " + each[:20], each) for each in contents)
    return StoredPipeline(b"state %d" % state, key, binaries, cost_ns, identifiers)


def named(state: int, content: bytes, identifiers: bytes, driver_key: bytes = b"key") -> StoredPipeline:
    """A pipeline that can be looked up by identifiers of its modules."""
    return pipeline(state, content, driver_key=driver_key, identifiers=identifiers)


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that is told by lines what to do, and answers by lines."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def killed(process: subprocess.Popen[str]) -> list[int]:
    """Kill a process; the numbers that it wrote in whole lines and nobody read yet."""
    with process:
        process.kill()
        assert process.stdout is not None
        lines = process.stdout.read().splitlines(keepends=True)
    return [int(line) for line in lines if line.endswith("\n")]


def output_of(*command: str) -> str:
    """What a command prints, which must end well."""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def found(store: BinaryStore, state: int, driver_key: bytes | None = None) -> tuple[str, list[bytes]]:
    with store.reading(GENERATION) as reader:
        outcome, pipeline = reader.find(b"state %d" % state, driver_key)
        return outcome, [bytes(each.data) for each in pipeline.binaries] if pipeline else []


def test_number_and_order_of_binaries_stay(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"b" * 5000, b"a" * 10, b"b" * 5000)])
    assert found(store, 1) == (FOUND, [b"b" * 5000, b"a" * 10, b"b" * 5000])
    assert found(store, 1, b"key 1")[0] == FOUND


def test_a_pipeline_is_found_by_both_keys(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    assert found(store, 2, b"key 1") == (MISSING, [])
    assert found(store, 1, b"another") == (KEY_DIFFERS, [])


def test_one_key_for_different_pipelines_is_told_and_gives_nobody_a_wrong_one(store: BinaryStore) -> None:
    one = store.put(GENERATION, [pipeline(1, b"one", driver_key=b"same")])
    assert (one.collisions, one.shared_keys) == (0, 0)
    assert store.put(GENERATION, [pipeline(2, b"two", driver_key=b"same")]).collisions == 1
    assert store.put(GENERATION, [pipeline(3, b"one", driver_key=b"same")]).collisions == 1
    assert found(store, 1, b"same") == (FOUND, [b"one"])
    assert found(store, 2, b"same") == (FOUND, [b"two"])
    assert found(store, 4, b"same") == (MISSING, [])
    assert store.statistics().generations[0].shared_driver_keys == 1


def test_one_key_for_equal_pipelines_is_shared(store: BinaryStore) -> None:
    both = [pipeline(1, b"one", driver_key=b"same"), pipeline(2, b"one", driver_key=b"same")]
    report = store.put(GENERATION, both)
    assert (report.collisions, report.shared_keys) == (0, 1)


def test_identifiers_and_the_drivers_key_name_a_pipeline_together(store: BinaryStore) -> None:
    def look(identifiers: bytes, driver_key: bytes = b"key") -> tuple[str, bytes]:
        with store.reading(GENERATION) as reader:
            outcome, pipeline = reader.find_identified(identifiers, driver_key)
            return outcome, pipeline.state_key if pipeline is not None else b""

    store.put(GENERATION, [named(1, b"one", b"a"), named(2, b"two", b"b"), named(3, b"three", b"ab")])
    assert look(b"a") == (FOUND, b"state 1")
    assert look(b"b") == (FOUND, b"state 2")
    assert look(b"a", b"another") == look(b"c") == look(b"") == look(b"a", b"") == (MISSING, b"")
    store.put(GENERATION, [named(4, b"one", b"a")])  # the same to the driver, and so for whoever asks
    assert look(b"a") == (FOUND, b"state 1")
    store.put(GENERATION, [named(5, b"other", b"a")])
    assert look(b"a") == (COLLIDES, b"")
    assert store.remove(GENERATION, [b"state 5"]) == 1
    assert look(b"a") == (FOUND, b"state 1")
    assert store.verify().problems == ()
    store.put(GENERATION, [named(1, b"one", b"z")])  # a name that it has no more
    store.remove(GENERATION, [b"state 4"])
    assert look(b"a") == (MISSING, b"")
    assert look(b"z") == (FOUND, b"state 1")
    # Without a key of the driver, identifiers alone prove nothing.
    store.put(GENERATION, [named(6, b"six", b"six", driver_key=b"")])
    assert look(b"six", b"") == (MISSING, b"")
    assert store.verify().problems == ()


def test_equal_binaries_are_stored_once_whatever_their_keys(store: BinaryStore) -> None:
    report = store.put(GENERATION, [pipeline(1, b"x" * 4000), pipeline(2, b"x" * 4000, b"y" * 100)])
    assert report == PutReport(pipelines=2, captured_bytes=8100, stored_bytes=4100)
    assert store.statistics().payload_bytes == 4100
    # One binary key that names two contents: each pipeline has its own.
    liar = StoredPipeline(b"state 9", b"k", (PipelineBinary(b"binary " + b"x" * 20, b"other"),))
    store.put(GENERATION, [liar])
    assert found(store, 1)[1] == [b"x" * 4000]
    assert found(store, 9)[1] == [b"other"]


def test_the_same_again_writes_no_bytes(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    again = store.put(GENERATION, [pipeline(1, b"one")])
    assert (again.known, again.stored_bytes) == (1, 0)
    assert store.verify().problems == ()


def test_a_cost_that_became_known_is_kept(store: BinaryStore) -> None:
    for told, kept in ((0, 0), (5, 5), (0, 5), (7, 7)):
        store.put(GENERATION, [pipeline(1, b"one", cost_ns=told)])
        assert [each.cost_ns for each in store.pipelines(GENERATION)] == [kept]
    assert store.verify().problems == ()


def test_another_generation_has_nothing(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    assert store.generation(OTHER) is None
    with store.reading(OTHER) as reader:
        assert reader.find(b"state 1") == (MISSING, None)
    other_driver = evolve_identity()
    with store.reading(other_driver) as reader:
        assert reader.find(b"state 1") == (MISSING, None)


def evolve_identity() -> Generation:
    """The same global key from another version of the driver."""
    return Generation.of(evolve(simulated_identity(), driver_version=2), b"global key")


def test_generations_are_pruned_and_take_their_binaries_with_them(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"mine", b"shared" * 100)])
    store.put(OTHER, [pipeline(1, b"theirs", b"shared" * 100)])
    assert store.prune(lambda about, _: about == OTHER) == (OTHER,)
    assert [each.about for each in store.statistics().generations] == [GENERATION]
    assert found(store, 1)[1] == [b"mine", b"shared" * 100]
    assert store.statistics().payload_bytes == 604
    assert store.verify().problems == ()


def test_what_is_read_is_the_stores_own_memory(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"x" * 10_000)])
    with store.reading(GENERATION) as reader:
        _, one = reader.find(b"state 1")
        _, two = reader.find(b"state 1")
        assert one is not None
        assert two is not None
        data = one.binaries[0].data
        assert isinstance(data, memoryview)
        assert data is two.binaries[0].data


def test_access_times_are_written_in_one_commit_and_not_for_every_hit(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(number, b"%d" % number) for number in range(50)])
    states = [b"state %d" % number for number in range(50)]
    before = check_lmdb_file(store.path).transaction
    assert store.touch(GENERATION, states) == 0  # just stored
    assert check_lmdb_file(store.path).transaction == before
    assert store.touch(GENERATION, states, grain_s=0) == 50
    assert check_lmdb_file(store.path).transaction - before <= 2
    assert store.touch(GENERATION, [b"unknown"], grain_s=0) == 0
    assert store.touch(OTHER, states, grain_s=0) == 0


def test_access_times_are_written_where_they_change_who_goes_first(
    store: BinaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("orchestrator.stores.binary_store.time.time", lambda: now[0])
    store.put(GENERATION, [pipeline(number, b"%d" % number * 5000) for number in range(50)])
    states = [b"state %d" % number for number in range(50)]
    now[0] += 600
    assert store.touch(GENERATION, states) == 0  # nothing went since, so the row is as it was
    gone = store.shrink(store.statistics().used_bytes // 2)
    now[0] += 600
    assert store.touch(GENERATION, states) == 50 - gone > 0
    now[0] += 30
    assert store.touch(GENERATION, states) == 0
    now[0] += 86_400
    assert store.touch(GENERATION, states) == 50 - gone  # for `prune --older-than`


def test_times_of_a_clock_that_was_ahead_are_written_again(
    store: BinaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [2_000_000.0]
    monkeypatch.setattr("orchestrator.stores.binary_store.time.time", lambda: now[0])
    store.put(GENERATION, [pipeline(1, b"one")])
    now[0] = 1_000_000.0
    assert store.touch(GENERATION, [b"state 1"]) == 1
    assert [each.used_s for each in store.statistics().generations] == [1_000_000]
    assert store.touch(GENERATION, [b"state 1"]) == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("put"),
                st.integers(0, 9),
                st.lists(st.integers(0, 5), min_size=1, max_size=4),
                st.integers(0, 2),
            ),
            st.tuples(st.just("remove"), st.integers(0, 9), st.just([0]), st.just(0)),
            st.tuples(st.just("touch"), st.integers(0, 9), st.just([0]), st.just(0)),
        ),
        max_size=25,
    )
)
def test_it_does_what_a_dictionary_does(
    store: BinaryStore, steps: list[tuple[str, int, list[int], int]]
) -> None:
    contents = [b"%d" % number * size for number, size in enumerate((1, 10, 700, 3000, 9000, 40))]
    model: dict[int, list[bytes]] = {}
    store.remove(GENERATION, [b"state %d" % number for number in range(10)])
    for what, state, numbers, driver_key in steps:
        if what == "put":
            model[state] = [contents[each] for each in numbers]
            store.put(GENERATION, [pipeline(state, *model[state], driver_key=b"k%d" % driver_key)])
        elif what == "remove":
            assert store.remove(GENERATION, [b"state %d" % state]) == (model.pop(state, None) is not None)
        else:
            store.touch(GENERATION, [b"state %d" % state], grain_s=0)
    for state in range(10):
        assert found(store, state) == ((FOUND, model[state]) if state in model else (MISSING, []))
    assert store.verify().problems == ()
    assert store.statistics().payload_bytes == sum(map(len, {each for row in model.values() for each in row}))


# --- the bound


def test_the_bound_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    bound = 8 << 20
    noise = random.Random(7)
    with BinaryStore.open(tmp_path, bound_bytes=bound) as store:
        largest = 0
        report = PutReport()
        favourite = [pipeline(state, noise.randbytes(9000)) for state in range(20)]  # 180 KB
        store.put(GENERATION, favourite)
        for start in range(100, 2900, 100):  # ten times the bound
            some = [
                pipeline(state, noise.randbytes(noise.choice((300, 15_000, 80_000))))
                for state in range(start, start + 100)
            ]
            report += store.put(GENERATION, some)
            store.touch(GENERATION, [each.state_key for each in favourite], grain_s=0)
            largest = max(largest, store.path.stat().st_size)
        assert report.stored_bytes > 9 * bound
        assert report.evicted > 1000
        assert largest <= 1.1 * bound
        assert store.statistics().used_bytes <= bound
        assert [found(store, state)[0] for state in range(20)] == [FOUND] * 20
        assert found(store, 2899)[0] == FOUND
        assert store.verify().problems == ()


def test_a_bound_is_remembered(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path) as store:
        assert store.bound_bytes == DEFAULT_BOUND
    for said, remembered in ((600 << 20, 600 << 20), (None, 600 << 20), (8 << 20, 8 << 20), (None, 8 << 20)):
        with BinaryStore.open(tmp_path, bound_bytes=said) as store:
            assert store.bound_bytes == store.statistics().bound_bytes == remembered
            # It is the bound that LMDB has too.
            report = store.put(GENERATION, [pipeline(said or 0, bytes(3 << 20))])
            assert (report.pipelines, report.too_large) == ((1, 0) if remembered > 100 << 20 else (0, 1))


def test_a_lower_bound_shrinks_the_file(tmp_path: Path) -> None:
    noise = random.Random(4)
    with BinaryStore.open(tmp_path, bound_bytes=32 << 20) as store:
        for start in range(0, 1000, 100):
            store.put(GENERATION, [pipeline(start + each, noise.randbytes(15_000)) for each in range(100)])
        before = store.path.stat().st_size

        def look() -> str:
            # Who is not alone leaves the file as it is.
            with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as other:
                return str(other.path.stat().st_size)

        assert in_a_child(look) == (0, str(before))
    assert before > 3 * LEAST_BOUND
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        assert store.set_aside == ""
        assert store.path.stat().st_size <= 1.1 * LEAST_BOUND
        assert 100 < store.statistics().generations[0].pipelines < 400
        assert store.verify().problems == ()


def test_a_bound_stays_while_another_process_has_the_store_open(tmp_path: Path) -> None:
    noise = random.Random(9)
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        store.put(GENERATION, [pipeline(0, b"first")])

        def write() -> str:
            with BinaryStore.open(tmp_path, bound_bytes=64 << 20) as other:
                other.put(GENERATION, [pipeline(each, noise.randbytes(15_000)) for each in range(1, 900)])
                return str(other.bound_bytes)

        assert in_a_child(write) == (0, str(LEAST_BOUND))
        # Its map holds what the other process wrote.
        assert found(store, 899)[0] == FOUND
        assert store.put(GENERATION, [pipeline(1000, b"last")]).pipelines == 1
        assert store.verify().problems == ()
    with BinaryStore.open(tmp_path, bound_bytes=64 << 20) as store:
        assert store.bound_bytes == 64 << 20


_GROWING = """
import sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore
from tests.stores.test_binary_store import GENERATION, pipeline
with BinaryStore.open(Path(sys.argv[1]), bound_bytes=64 << 20) as store:
    print("open", flush=True)
    input()
    store.put(GENERATION, [pipeline(each, each.to_bytes(8, "big") * 2000) for each in range(600)])
    print("written", flush=True)
    input()
"""


def test_a_store_may_grow_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = started(_GROWING, tmp_path)
    assert writer.stdin is not None
    assert writer.stdout is not None
    tell, answer, open_it = writer.stdin.write, writer.stdout.readline, lmdb.open

    def open_and_let_it_grow(*arguments: Any, **options: Any) -> Any:
        environment = open_it(*arguments, **options)
        tell("\n")
        assert answer() == "written\n"
        return environment

    try:
        assert answer() == "open\n"
        # As where the store is larger than the bound by default.
        monkeypatch.setattr("orchestrator.stores.binary_store.DEFAULT_BOUND", LEAST_BOUND)
        monkeypatch.setattr("orchestrator.stores.binary_store.lmdb.open", open_and_let_it_grow)
        with BinaryStore.open(tmp_path) as store:
            assert store.bound_bytes == 64 << 20
            assert store.path.stat().st_size > 1.1 * LEAST_BOUND
            assert store.statistics().generations[0].pipelines == 600
    finally:
        writer.kill()
        writer.communicate()


def test_compacting_loses_nothing_and_gives_the_disk_back(tmp_path: Path) -> None:
    noise = random.Random(6)
    contents = [noise.randbytes(20_000) for _ in range(60)]
    with BinaryStore.open(tmp_path) as store:
        store.put(GENERATION, [pipeline(state, content) for state, content in enumerate(contents)])
        store.remove(GENERATION, [b"state %d" % state for state in range(50)])
        assert BinaryStore.compact(tmp_path) is None  # it is open
    # A process that died while it copied.
    half = tmp_path / f"{STORE_NAME}.compact"
    half.write_bytes(b"half a copy")
    before = (tmp_path / STORE_NAME).stat().st_size
    assert (BinaryStore.compact(tmp_path) or 0) > before / 2
    assert not half.exists()
    assert (tmp_path / STORE_NAME).stat().st_mode & 0o777 == 0o600
    with BinaryStore.open(tmp_path) as store:
        assert store.set_aside == ""
        assert [found(store, state) for state in range(49, 60)] == [
            (MISSING, []),
            *((FOUND, [each]) for each in contents[50:]),
        ]
        assert store.verify().problems == ()
        store.put(GENERATION, [pipeline(1, b"again")])
        assert found(store, 1)[0] == FOUND
    with pytest.raises(StoreError, match="no store"):
        BinaryStore.compact(tmp_path / "none")


def test_what_is_dear_to_compile_stays_longer(tmp_path: Path) -> None:
    noise = random.Random(8)
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        dear = [pipeline(state, noise.randbytes(4000), cost_ns=10**9) for state in range(20)]
        cheap = [pipeline(state, noise.randbytes(16_000), cost_ns=10**6) for state in range(100, 500)]
        store.put(GENERATION, dear)  # before all others, and never used again
        assert store.put(GENERATION, cheap).evicted > 100
        assert [found(store, state)[0] for state in range(20)] == [FOUND] * 20


def test_a_pipeline_that_would_take_most_of_the_bound_is_not_stored(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        report = store.put(GENERATION, [pipeline(1, bytes(LEAST_BOUND // 2 + 1)), pipeline(2, b"small")])
        assert (report.pipelines, report.too_large) == (1, 1)
        assert found(store, 2)[0] == FOUND
    with pytest.raises(ValueError, match="least"):
        BinaryStore.open(tmp_path, bound_bytes=1000)


def test_bad_keys_are_refused(store: BinaryStore) -> None:
    for bad in (
        replace(pipeline(1, b"x"), state_key=b""),
        replace(pipeline(1, b"x"), state_key=bytes(65)),
        replace(pipeline(1, b"x"), driver_key=bytes(33)),
        replace(pipeline(1, b"x"), binaries=()),
        replace(pipeline(1, b"x"), cost_ns=-1),  # which would have no place in the order of eviction
    ):
        with pytest.raises(ValueError, match=r"bytes|-1"):
            store.put(GENERATION, [bad])


# --- files that are not what they should be


def filled(directory: Path, count: int = 60) -> Path:
    noise = random.Random(1)
    with BinaryStore.open(directory) as store:
        for start in range(0, count, 20):
            store.put(
                GENERATION,
                [
                    pipeline(state, noise.randbytes(noise.choice((40, 900, 3000, 9000))))
                    for state in range(start, start + 20)
                ],
            )
        store.remove(GENERATION, [b"state %d" % state for state in range(0, count, 7)])
        return store.path


def test_a_truncated_file_is_never_opened(tmp_path: Path) -> None:
    path = filled(tmp_path / "good")
    whole = path.read_bytes()
    used = check_lmdb_file(path)
    for size in sorted({0, 1, 100, 4096, 5000, 8192, len(whole) // 3, (used.pages // 2) * 4096}):
        directory = tmp_path / f"cut {size}"
        shutil.copytree(path.parent, directory)
        os.truncate(directory / STORE_NAME, size)
        with BinaryStore.open(directory) as store:
            assert store.set_aside
            assert "quarantine" in store.set_aside
            assert found(store, 1) == (MISSING, [])
            store.put(GENERATION, [pipeline(1, b"again")])
            assert found(store, 1)[0] == FOUND
        assert list((directory / "quarantine").iterdir())


def test_a_file_of_another_making_is_never_opened(tmp_path: Path) -> None:
    # LMDB's own, without our mark.
    code = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], subdir=False) as it, it.begin(write=True) as t: t.put(b'a', b'b')\n"
    )
    foreign = tmp_path / "foreign"
    foreign.mkdir(0o700)
    subprocess.run([sys.executable, "-c", code, str(foreign / STORE_NAME)], check=True)
    with BinaryStore.open(foreign) as store:
        assert "another program" in store.set_aside
    # Ours, from elsewhere: with its mark, without its stamp.
    path = filled(tmp_path / "theirs")
    mine = tmp_path / "mine"
    filled(mine)
    shutil.copyfile(path, mine / STORE_NAME)
    with BinaryStore.open(mine) as store:
        assert "export" in store.set_aside
    link = tmp_path / "link"
    link.mkdir(0o700)
    (link / STORE_NAME).symlink_to(path)
    with BinaryStore.open(link) as store:
        assert store.set_aside
    assert check_lmdb_file(path)


def test_others_must_not_be_able_to_write_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "cache")
    path.chmod(0o666)
    with pytest.raises(StoreError, match="chmod go-w"):
        BinaryStore.open(path.parent)
    path.chmod(0o600)
    path.parent.chmod(0o777)
    with pytest.raises(StoreError, match="chmod go-w"):
        BinaryStore.open(path.parent)


def in_a_child(work: Callable[[], str]) -> tuple[int, str]:
    """Do something in a process of its own, and say how it ended and what it answered."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.write(writing, work().encode())
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
            os.write(writing, repr(error).encode())
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def read_all(directory: Path, expected: dict[int, tuple[str, list[bytes]]]) -> str:
    """Read and write a store; what was found is what was stored, or nothing."""
    with BinaryStore.open(directory) as store:
        for state, what in expected.items():
            outcome, data = found(store, state)
            assert (outcome, data) == what or outcome in (MISSING, DAMAGED), state
        problems = store.verify().problems
        store.put(GENERATION, [pipeline(1000, b"new")])
        store.remove(GENERATION, [b"state %d" % state for state in range(30)])
        return "set aside" if store.set_aside else "problems" if problems else "clean"


def test_a_flipped_bit_is_found_or_harmless(fast_path: Path) -> None:
    # Each is tried in a process of its own, which must not die of it.
    path = filled(fast_path / "good")
    whole = path.read_bytes()
    expected = {state: found_in(path.parent, state) for state in range(60)}
    noise = random.Random(os.environ.get("ORCHESTRATOR_STORE_SEED", "3"))
    structure = [page for page in range(len(whole) // 4096) if whole[page * 4096 + 10] in (1, 2, 8)]
    outcomes = []
    for number in range(FLIPS):
        page = noise.choice(structure) if number % 3 else noise.randrange(len(whole) // 4096)
        at = page * 4096 + (noise.randrange(64) if number % 2 else noise.randrange(4096))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << noise.randrange(8)
        directory = fast_path / "flipped"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(path.parent, directory)
        (directory / STORE_NAME).write_bytes(damaged)
        ended, said = in_a_child(partial(read_all, directory, expected))
        assert ended == 0, (at, said)
        outcomes.append(said)
    assert {"set aside", "problems"} <= set(outcomes)


def found_in(directory: Path, state: int) -> tuple[str, list[bytes]]:
    with BinaryStore.open(directory) as store:
        return found(store, state)


def test_a_store_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path)
    monkeypatch.setattr(os, "access", lambda where, mode: not mode & os.W_OK)  # as for who is not root
    with BinaryStore.open(tmp_path) as store:
        assert store.read_only
        assert found(store, 1)[0] == FOUND
        with pytest.raises(StoreError, match="only be read"):
            store.put(GENERATION, [pipeline(1, b"x")])
        assert store.verify().problems == ()
    with pytest.raises(StoreError, match="none can be made"):
        BinaryStore.open(tmp_path / ".." / tmp_path.name / "nowhere")
    assert path.exists()


def test_a_store_made_under_any_umask_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        with BinaryStore.open(tmp_path / "cache") as store:
            store.put(GENERATION, [pipeline(1, b"one")])
    finally:
        os.umask(before)
    made = list((tmp_path / "cache").iterdir())
    assert tmp_path / "cache" / STORE_NAME in made
    assert {stat.S_IMODE(each.stat().st_mode) for each in made} == {0o600}


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    # A limit on the size of files stands for the end of the disk.
    code = """
import resource, signal, sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore, StoreError
from tests.stores.test_binary_store import GENERATION, found, pipeline
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with BinaryStore.open(Path(sys.argv[1])) as store:
    store.put(GENERATION, [pipeline(1, b"x" * 9000)])
    size = store.path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, resource.RLIM_INFINITY))
    try:
        store.put(GENERATION, [pipeline(2, b"y" * 400_000)])
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert found(store, 1)[1] == [b"x" * 9000]
    store.put(GENERATION, [pipeline(3, b"z")])
    assert found(store, 3)[0] == "found"
    assert store.verify().problems == ()
"""
    assert "cannot be written" in output_of(sys.executable, "-c", code, str(tmp_path))


def test_a_copy_that_does_not_fit_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = filled(tmp_path)
    code = """
import resource, signal, sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore, StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))  # LMDB's lock file fits
try:
    BinaryStore.compact(Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""
    before = sorted(tmp_path.iterdir())
    assert str(path) in output_of(sys.executable, "-c", code, str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before
    with BinaryStore.open(tmp_path) as store:
        assert store.verify().problems == ()


_FULL = """
import os, sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore, StoreError, StoreFullError
from tests.stores.test_binary_store import GENERATION, found, pipeline

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
    store.put(GENERATION, [pipeline(state, os.urandom(5000)) for state in range(100)])
    try:
        for first in range(1000, 3000, 10):
            store.put(GENERATION, [pipeline(first + each, os.urandom(50_000)) for each in range(10)])
    except StoreFullError as error:
        print("put:", error)
    fill()
    assert [found(store, state)[0] for state in range(100)] == ["found"] * 100
    assert store.verify().problems == ()
# LMDB maps its lock file: a page that the disk does not have would be a signal, and no error.
(folder / "pipeline-binaries.lmdb-lock").unlink()
fill()
for what in (BinaryStore.open, BinaryStore.compact):
    try:
        what(folder)
    except StoreError as error:
        print("open:", error)
ballast.unlink()
with BinaryStore.open(folder) as store:
    assert store.set_aside == ""
    assert found(store, 7)[0] == "found"
    store.put(GENERATION, [pipeline(1, b"again")])
    assert found(store, 1)[1] == [b"again"]
    assert store.verify().problems == ()
"""


def test_a_file_system_that_is_full_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """A file system of 6 MiB, in a namespace of its own."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=6m tmpfs "$1" && shift'
    if subprocess.run([*enter, mount, "sh", str(tmp_path)], capture_output=True).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    program = (sys.executable, "-c", _FULL, str(tmp_path))
    said = output_of(*enter, f'{mount} && exec "$@"', "sh", str(tmp_path), *program)
    assert "cannot be written: No space left on device" in said
    assert said.count("open:") == 2


def test_the_same_store_once_a_process(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path) as one, BinaryStore.open(tmp_path) as two:
        assert one is two
    with pytest.raises(StoreError, match="closed"):
        one.statistics()
    with pytest.raises(StoreError, match="no store"):
        BinaryStore.open(tmp_path / "none", create=False)


def test_a_store_is_opened_again_after_a_fork(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path) as store:
        store.put(GENERATION, [pipeline(1, b"one")])

        def use_it() -> str:
            with pytest.raises(StoreError, match="fork"):
                store.statistics()
            with BinaryStore.open(tmp_path) as own:
                assert own is not store
                return found(own, 1)[0]

        assert in_a_child(use_it) == (0, FOUND)
        store.put(GENERATION, [pipeline(2, b"two")])
        assert found(store, 2)[0] == FOUND


# --- processes that are killed

_WRITER = """
import random, sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore
from tests.stores.test_binary_store import GENERATION, content, pipeline
first = int(sys.argv[2])
with BinaryStore.open(Path(sys.argv[1]), bound_bytes=4 << 30) as store:
    for number in range(first, first + 100_000, 4):
        states = range(number, number + 4)
        store.put(GENERATION, [pipeline(state, content(state), b"common" * 200) for state in states])
        if number % 3 == 0:
            store.touch(GENERATION, [b"state %d" % number], grain_s=0)
        print(number, flush=True)
"""


def content(state: int) -> bytes:
    return random.Random(state).randbytes(200 + state * 37 % 6000)


def test_killed_writers_lose_nothing_that_they_acknowledged(tmp_path: Path) -> None:
    """Two processes write; one of them is killed at a random moment and begins again; a third one looks."""
    noise = random.Random(5)
    acknowledged: list[int] = []
    firsts = iter(range(0, 10**9, 10**5))

    writers = [started(_WRITER, tmp_path, next(firsts)) for _ in range(2)]
    try:
        for number in range(KILLS):
            victim = writers[number % 2]
            assert victim.stdout is not None
            acknowledged.append(int(victim.stdout.readline()))  # it is at work
            time.sleep(noise.random() * 0.15)
            acknowledged += killed(victim)
            writers[number % 2] = started(_WRITER, tmp_path, next(firsts))
    finally:
        for writer in writers:
            acknowledged += killed(writer)
    with BinaryStore.open(tmp_path) as store:
        assert store.set_aside == ""
        assert store.verify().problems == ()
        # All that was written fits: what is not there was lost, and not evicted.
        assert store.statistics().used_bytes < store.bound_bytes / 2
        for state in (first + within for first in acknowledged for within in range(4)):
            assert found(store, state) == (FOUND, [content(state), b"common" * 200])
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged")
    assert len(acknowledged) >= KILLS


_COMPACTOR = """
import sys
from pathlib import Path
from orchestrator.stores.binary_store import BinaryStore
from tests.stores.test_binary_store import GENERATION, content, pipeline
folder, first = Path(sys.argv[1]), int(sys.argv[2])
for number in range(first, first + 100_000, 4):
    with BinaryStore.open(folder) as store:
        store.put(GENERATION, [pipeline(state, content(state)) for state in range(number, number + 4)])
        store.remove(GENERATION, [b"state %d" % (number - 4 + each) for each in (1, 2, 3)])
    print(number, flush=True)
    BinaryStore.compact(folder)
"""


def test_killed_compactions_lose_nothing(tmp_path: Path) -> None:
    noise = random.Random(9)
    acknowledged: list[int] = []
    for number in range(COMPACTIONS):
        victim = started(_COMPACTOR, tmp_path, number * 10**5 + 4)
        assert victim.stdout is not None
        acknowledged.append(int(victim.stdout.readline()))
        time.sleep(noise.random() * 0.05)
        acknowledged += killed(victim)
        with BinaryStore.open(tmp_path) as store:
            assert store.set_aside == ""
            assert store.verify().problems == ()
            assert [found(store, each) for each in acknowledged] == [
                (FOUND, [content(each)]) for each in acknowledged
            ]
    print(f"{COMPACTIONS} kills, {len(acknowledged)} acknowledged")
    assert len(acknowledged) >= COMPACTIONS


def test_a_check_beside_a_writer_finds_nothing_wrong(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path, bound_bytes=64 << 20):
        pass
    writer = started(_WRITER, tmp_path, 0)
    try:
        assert writer.stdout is not None
        for _ in range(40):
            writer.stdout.readline()
            with suppress(LmdbFileChangedError):
                check_lmdb_file(tmp_path / STORE_NAME)
    finally:
        writer.kill()
        writer.communicate()


def test_the_stamp_is_there_before_the_store(tmp_path: Path) -> None:
    filled(tmp_path)
    assert (tmp_path / STAMP_NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / STORE_NAME).stat().st_mode & 0o777 == 0o600
    # A process that died between the two left a stamp alone.
    (tmp_path / STORE_NAME).unlink()
    with BinaryStore.open(tmp_path) as store:
        assert store.set_aside == ""


def test_a_payload_that_is_damaged_is_stored_again(tmp_path: Path) -> None:
    data = b"x" * 9000
    with BinaryStore.open(tmp_path) as store:
        store.put(GENERATION, [pipeline(1, data)])
        with store._environment.begin(write=True) as transaction:
            transaction.put(content_hash128(data), b"y" * 9000, db=store._tables["payloads"])
        assert found(store, 1)[0] == DAMAGED
        report = store.put(GENERATION, [pipeline(1, data)])
        assert (report.known, report.stored_bytes) == (1, 9000)
        assert found(store, 1) == (FOUND, [data])
        assert store.put(GENERATION, [pipeline(1, data)]).stored_bytes == 0
        assert store.verify().problems == ()


@pytest.mark.parametrize("bit", [26, 30, 39, 62])
def test_a_last_page_beyond_the_map_sets_the_file_aside(tmp_path: Path, bit: int) -> None:
    with BinaryStore.open(tmp_path) as store:
        store.put(GENERATION, [pipeline(1, b"x" * 9000)])
    path = tmp_path / STORE_NAME
    content = bytearray(path.read_bytes())
    # mm_last_pg and mm_txnid, behind the page's header, four words, and two trees
    places = [page + 16 + 24 + 2 * 48 for page in (0, 4096)]
    at = max(places, key=lambda place: struct.unpack_from("<Q", content, place + 8))
    content[at + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with BinaryStore.open(tmp_path) as store:
        assert "beyond the map" in store.set_aside
        assert store.put(GENERATION, [pipeline(2, b"z" * 9000)]).stored_bytes == 9000


# --- entries that are damaged within a file whose structure is whole


@contextmanager
def damaging(store: BinaryStore) -> Iterator[Callable[[str, bytes, bytes | None], None]]:
    """Replace entries by what they should not be; None removes one."""
    with store._environment.begin(write=True) as transaction:

        def replace_it(table: str, key: bytes, value: bytes | None) -> None:
            database = store._tables[table]
            if value is None:
                assert transaction.delete(key, db=database)
            else:
                transaction.put(key, value, db=database)

        yield replace_it


def entries(store: BinaryStore, table: str) -> dict[bytes, bytes]:
    with store._environment.begin() as transaction:
        return {bytes(key): bytes(value) for key, value in transaction.cursor(db=store._tables[table])}


@pytest.mark.parametrize("noted", [b"\1\0\0\0", b"\xff\xff\xff\xff", b"\xff" * 12, b""])
def test_a_damaged_number_gives_no_generation_what_is_anothers(store: BinaryStore, noted: bytes) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    store.put(OTHER, [pipeline(1, b"other")])
    with damaging(store) as put:
        put("about", b"next", noted)
    third = evolve_identity()
    with store.reading(third) as reader:
        assert reader.find(b"state 1") == (MISSING, None)
    store.put(third, [pipeline(2, b"two")])
    with store.reading(third) as reader:
        assert reader.find(b"state 1") == (MISSING, None)
    assert len({store.generation(each) for each in (GENERATION, OTHER, third)}) == 3
    store.put(Generation.of(simulated_identity(), b"a fourth"), [pipeline(3, b"three")])
    assert found(store, 1) == (FOUND, [b"one"])
    assert store.verify().problems == ()


def test_an_entry_under_another_key_is_damaged(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one"), pipeline(2, b"two")])
    store.put(OTHER, [pipeline(3, b"three")])
    kept = entries(store, "pipelines")
    one, two, three = kept
    with damaging(store) as put:
        put("pipelines", two, kept[one])
        put("pipelines", one[:4] + three[4:], kept[three])
    assert found(store, 1) == (FOUND, [b"one"])
    assert found(store, 2) == found(store, 3) == (DAMAGED, [])
    assert sum("its entry is damaged" in each for each in store.verify().problems) == 2


def test_verify_tells_of_generations_that_are_one_too_many_or_gone(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    store.put(OTHER, [pipeline(1, b"other")])
    known = decode_generation(store, GENERATION)
    with damaging(store) as put:
        encoded = msgspec.msgpack.encode(replace(known, about=OTHER))
        put("generations", OTHER.digest, content_hash128(OTHER.digest + encoded) + encoded)
    problems = store.verify().problems
    assert "2 generations have the number 1" in problems
    assert any("are of the generation 00000002, which is not there" in each for each in problems)


def decode_generation(store: BinaryStore, generation: Generation) -> binary_store._KnownGeneration:
    with store._reading() as transaction:
        known = store._known(transaction, generation.digest)
        assert known is not None
        return known


def test_an_index_that_names_another_pipeline_gives_nobody_its_binaries(store: BinaryStore) -> None:
    store.put(GENERATION, [named(1, b"one", b"a"), named(2, b"two", b"b")])
    with damaging(store) as put:
        wrong, right = sorted(entries(store, "identified"))
        put("identified", wrong, None)
        put("identified", wrong[:-1] + right[-1:], b"")
    with store.reading(GENERATION) as reader:
        assert reader.find_identified(b"a", b"key") == (DAMAGED, None)


def test_an_index_key_that_ends_early_is_told_by_verify_alone(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    (name,) = entries(store, "keys")
    with damaging(store) as put:
        put("keys", name[:4], b"")
    assert store.statistics().generations[0].pipelines == 1
    assert any("wrongly so" in each for each in store.verify().problems)


def test_a_file_of_another_version_is_set_aside(tmp_path: Path) -> None:
    path = filled(tmp_path)
    content = path.read_bytes()
    assert content.count(b"ORCHBIN2") == 1
    path.write_bytes(content.replace(b"ORCHBIN2", b"ORCHBIN1"))
    with pytest.raises(StoreError, match="another version of this one"):
        BinaryStore.open(tmp_path, create=False)
    with BinaryStore.open(tmp_path) as store:
        assert "another version of this one" in store.set_aside
        assert found(store, 1) == (MISSING, [])


def shared(count: int) -> list[StoredPipeline]:
    """Pipelines that share one binary, and have one of their own."""
    return [pipeline(state, b"common" * 500, b"own %d" % state) for state in range(count)]


def test_a_count_of_uses_of_a_wrong_length_is_told_and_mended(store: BinaryStore) -> None:
    store.put(GENERATION, shared(4))
    with damaging(store) as put:
        put("references", content_hash128(b"common" * 500), b"\4\0\0\0")
    (problem,) = store.verify().problems
    assert "the note of its 4 pipelines is damaged" in problem
    assert store.statistics().payloads == 4
    # Whoever writes it, or takes a use away, finds it and counts anew.
    store.remove(GENERATION, [b"state 0"])
    assert store.verify().problems == ()
    assert found(store, 1) == (FOUND, [b"common" * 500, b"own 1"])
    with damaging(store) as put:
        put("references", content_hash128(b"common" * 500), b"")
    store.put(GENERATION, [pipeline(9, b"common" * 500)])
    assert store.verify().problems == ()
    with damaging(store) as put:
        put("references", content_hash128(b"common" * 500), bytes(40))
    assert store.prune(lambda about, used: False) == ()
    assert store.verify().problems == ()
    assert [found(store, state)[0] for state in (1, 2, 3, 9)] == [FOUND] * 4


def test_what_a_damaged_entry_referred_to_is_counted_anew(store: BinaryStore) -> None:
    def damage(state: int) -> None:
        (key,) = (each for each in entries(store, "pipelines") if each[4:] == b"state %d" % state)
        with damaging(store) as put:
            put("pipelines", key, entries(store, "pipelines")[key][:-1] + b"?")

    store.put(GENERATION, shared(5))
    damage(1)
    assert found(store, 1) == (DAMAGED, [])
    assert store.verify().problems
    store.put(GENERATION, [pipeline(1, b"other")])  # as a compile does, with what it came to
    assert store.verify().problems == ()
    damage(2)
    store.remove(GENERATION, [b"state 2"])
    assert store.verify().problems == ()
    damage(3)
    store.shrink(0)
    assert store.verify().problems == ()
    assert store.statistics().payloads == 0


def test_prune_drops_all_that_is_no_use(store: BinaryStore) -> None:
    store.put(GENERATION, [*shared(6), pipeline(7, b"alone" * 900)])
    one, two, *_ = kept = entries(store, "pipelines")
    with damaging(store) as put:
        put("pipelines", one, kept[one][:-1] + b"?")
        put("use", two, b"short")
        put("payloads", content_hash128(b"alone" * 900), b"other" * 900)
        put("payloads", content_hash128(b"nobody's"), b"nobody's")
        put("keys", next(iter(entries(store, "keys"))), None)
        put("references", content_hash128(b"own 3"), binary_store._REFERENCE.pack(9, 5))
    problems = store.verify().problems
    for each in ("entry is damaged", "when it was used", "not what was stored", "no pipeline uses", "9 are"):
        assert any(each in problem for problem in problems), (each, problems)
    store.prune(lambda about, used: False)
    assert store.verify().problems == ()
    outcomes = [found(store, state)[0] for state in (0, 1, 2, 3, 4, 5, 7)]
    assert outcomes == [MISSING, FOUND, FOUND, FOUND, FOUND, FOUND, MISSING]


def test_much_damage_is_mended_in_several_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def noted(content: bytes | memoryview) -> bytes:
        read.append(bytes(content))
        return content_hash128(content)

    with BinaryStore.open(tmp_path, bound_bytes=LEAST_BOUND) as store:
        store.put(GENERATION, shared(200))
        store.put(OTHER, [pipeline(1, b"other")])
        assert store._victims_a_commit < 50
        with damaging(store) as put:
            put("generations", GENERATION.digest, None)
        before = check_lmdb_file(store.path).transaction
        payloads = set(entries(store, "payloads").values())
        with monkeypatch.context() as patched:
            patched.setattr(binary_store, "content_hash128", noted)
            store.prune(lambda about, used: False)
        assert [read.count(each) for each in payloads] == [1] * len(payloads)  # however many commits
        assert check_lmdb_file(store.path).transaction > before + 5
        assert store.verify() == StoreVerification(1, 1, 5, ())


def test_pipelines_of_a_damaged_generation_are_told_and_dropped(store: BinaryStore) -> None:
    store.put(GENERATION, shared(5))
    store.put(OTHER, [pipeline(1, b"other")])
    with damaging(store) as put:
        put("generations", GENERATION.digest, entries(store, "generations")[GENERATION.digest][:-1] + b"?")
    assert found(store, 1) == (DAMAGED, [])
    problems = store.verify().problems
    assert any("none of its pipelines is found" in each for each in problems)
    assert any(each.startswith("5 pipelines are of the generation") for each in problems)
    # It is made anew by whoever stores into it, and nothing is left of what it was.
    store.put(GENERATION, [pipeline(9, b"new")])
    assert store.verify() == StoreVerification(2, 2, 8, ())
    assert (found(store, 1), found(store, 9)) == ((MISSING, []), (FOUND, [b"new"]))
    with damaging(store) as put:
        put("generations", OTHER.digest, b"")
    store.prune(lambda about, used: False)
    assert store.verify() == StoreVerification(1, 1, 3, ())


def test_a_key_that_is_out_of_order_is_taken_out(tmp_path: Path) -> None:
    with BinaryStore.open(tmp_path) as store:
        store.put(GENERATION, shared(6))
        path = store.path
    content = path.read_bytes()
    moved = content.replace(b"\0\0\0\1state 2", b"\0\0\0\1stzte 2")
    assert moved != content
    path.write_bytes(moved)
    with BinaryStore.open(tmp_path) as store:
        assert any("its entry is damaged" in each for each in store.verify().problems)
        store.prune(lambda about, used: False)
        assert store.verify() == StoreVerification(5, 6, 3025, ())
        assert [found(store, state)[0] for state in (1, 2, 3)] == [FOUND, MISSING, FOUND]


# --- opening


def refused(directory: Path, *, create: bool = True) -> str:
    """Why a store cannot be opened."""
    with pytest.raises(StoreError) as error:
        BinaryStore.open(directory, create=create)
    return str(error.value)


@pytest.mark.parametrize("what", ["removed", "cut", "another"])
def test_a_file_that_is_not_what_others_have_open_is_not_opened(tmp_path: Path, what: str) -> None:
    theirs = filled(tmp_path / "theirs")
    path = filled(tmp_path / "mine")
    with BinaryStore.open(path.parent):
        assert in_a_child(partial(found_in_words, path.parent, 1)) == (0, FOUND)
        whole = path.read_bytes()
        path.unlink()
        if what != "removed":
            path.write_bytes(theirs.read_bytes() if what == "another" else whole[: len(whole) // 3])
            path.chmod(0o600)
        there = path.read_bytes() if path.exists() else None
        for _ in range(2):
            ended, said = in_a_child(partial(refused, path.parent))
            assert (ended, "another process has it open" in said) == (0, True), said
        assert (path.read_bytes() if path.exists() else None) == there
    with BinaryStore.open(path.parent) as store:
        assert bool(store.set_aside) is (what != "removed")
        store.put(GENERATION, [pipeline(1, b"new")])
        assert in_a_child(partial(found_in_words, path.parent, 1)) == (0, FOUND)


def found_in_words(directory: Path, state: int) -> str:
    return found_in(directory, state)[0]


def test_a_store_that_could_not_be_made_is_made_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(binary_store, "mark_file", full)
        assert "No space left" in refused(tmp_path)
    left = {each.name for each in tmp_path.iterdir()}
    assert left <= {f"{STORE_NAME}.lock", f"{STORE_NAME}.users", STAMP_NAME}
    with BinaryStore.open(tmp_path) as store:
        assert store.set_aside == ""


def test_the_figures_of_a_store_that_was_removed_are_an_error_of_the_store(store: BinaryStore) -> None:
    store.put(GENERATION, [pipeline(1, b"one")])
    store.path.unlink()
    with pytest.raises(StoreError, match="No such file"):
        store.statistics()


def test_what_is_wrong_beside_a_store_is_named(tmp_path: Path) -> None:
    for name in (f"{STORE_NAME}-lock", f"{STORE_NAME}.users"):
        directory = tmp_path / name
        (directory / name).mkdir(parents=True)
        directory.chmod(0o700)
        assert refused(directory).startswith(f"{directory / name}: Is a directory")


def test_a_link_to_nothing_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / STORE_NAME).symlink_to("nowhere")
    assert "it is a symbolic link" in refused(tmp_path, create=False)
    with BinaryStore.open(tmp_path) as store:
        assert "it is a symbolic link" in store.set_aside
        store.put(GENERATION, [pipeline(1, b"one")])


def test_a_bound_beyond_the_address_space_names_the_option(tmp_path: Path) -> None:
    for bound in (200 << 40, 1 << 70):
        with pytest.raises(StoreError, match=f"its {bound} bytes .*--binaries-disk"):
            BinaryStore.open(tmp_path, bound_bytes=bound)
    with BinaryStore.open(tmp_path, bound_bytes=8 << 20) as store, damaging(store) as put:
        put("about", b"bound", (200 << 40).to_bytes(8, "little"))
    assert "--binaries-disk" in refused(tmp_path)
    with BinaryStore.open(tmp_path, bound_bytes=8 << 20) as store:
        assert store.bound_bytes == 8 << 20
