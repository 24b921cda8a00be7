"""F2: the power goes off anywhere in a series of saves and merges.

Whatever lasts of what was not synced, the next start has the last state that was acknowledged, or the one
that was on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from attrs import define, field, frozen

from orchestrator.stores.cache_file import load_into_cache, save_cache_file, save_merged, sweep_directory
from orchestrator.stores.files.atomic_file import files_through
from tests.campaigns import STRIDE
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.model_disk import Files, ModelDisk, crash_states
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    Keys,
    data_of,
    file_of,
    keys_in,
    path_in,
    strict_device,
)

DIRECTORY = Path("/caches")
PATH = path_in(DIRECTORY)
# Files of 3 to 15 KB: torn at several boundaries of 512 bytes, and of 4,096.
OLD: Keys = frozenset({1, 2})
OURS: Keys = frozenset({2, 3, 4})
UNION = OLD | OURS
MANY: Keys = frozenset(range(100, 109))
FEW: Keys = frozenset({300})


def save(keys: Keys) -> None:
    assert save_cache_file(PATH, IDENTITY, data_of(keys), lock_wait_s=0).saved_bytes


def merge(keys: Keys) -> None:
    device = strict_device()
    assert save_merged(device, PATH, data_of(keys), lock_wait_s=0).saved_bytes
    device.close()


def load() -> None:
    device = strict_device()
    load_into_cache(device, PATH)
    device.close()


@frozen
class Series:
    """Steps, and what a load gives after each."""

    name: str
    start: Files
    before: Keys
    steps: tuple[tuple[Callable[[], None], Keys], ...]


SERIES = (
    Series("the first save", {DIRECTORY / "notes": b""}, NOTHING, ((partial(save, OLD), OLD),)),
    Series(
        "three saves",
        {PATH: file_of(OLD)},
        OLD,
        ((partial(save, MANY), MANY), (partial(save, OURS), OURS), (partial(save, OLD), OLD)),
    ),
    Series(
        "saves, loads and merges",
        {PATH: file_of(OLD)},
        OLD,
        (
            (partial(merge, OURS), UNION),
            (load, UNION),
            (load, UNION),
            (partial(merge, FEW), UNION | FEW),
            (load, UNION | FEW),
            (partial(merge, MANY), UNION | FEW | MANY),
            (partial(save, OURS), OURS),
        ),
    ),
)


@define
class Found:
    """What the suite went through, and what went wrong."""

    wrong: list[str] = field(factory=list)
    states: Counter[str] = field(factory=Counter)


def run_suite(series: Iterable[Series] = SERIES, *, stop_at_first: bool = False) -> Found:
    found = Found()
    for one in series:
        disk = ModelDisk.holding(one.start)
        # (length of the record when it was acknowledged, what a load gives from then on)
        acknowledged = [(0, one.before)]
        for act, gives in one.steps:
            with files_through(disk):
                act()
            acknowledged.append((len(disk.events), gives))
        assert disk.open_descriptors == frozenset()
        judged: dict[frozenset[tuple[Path, bytes]], tuple[Keys, list[str]]] = {}
        for length, state in islice(crash_states(one.start, disk.events), 0, None, STRIDE):
            if stop_at_first and found.wrong:
                return found
            found.states[one.name] += 1
            key = frozenset(state.items())
            if key not in judged:
                judged[key] = _next_start(state)
            keys, wrong = judged[key]
            last = max(number for number, (at, _) in enumerate(acknowledged) if at <= length)
            allowed = [gives for _, gives in acknowledged[last : last + 2]]
            if keys not in allowed:
                found.wrong.append(f"{one.name}: after {length} events a load gives {sorted(keys)}")
            found.wrong += [f"{one.name}: after {length} events: {each}" for each in wrong]
    return found


def _next_start(state: Files) -> tuple[Keys, list[str]]:
    """What the next process finds: what a load gives, and what is wrong after a sweep and a save."""
    disk = ModelDisk.holding(state)
    if disk.files.keys() != state.keys() or not any(path.parent == DIRECTORY for path in state):
        return NOTHING, []
    device = strict_device()
    with files_through(disk):
        cache, _ = load_into_cache(device, PATH)
        keys = keys_in(device.pipeline_cache_data(cache).data)
        device.close()
        wrong = []
        sweep_directory(DIRECTORY)
        if left := [path.name for path in disk.files if path.name.startswith(".")]:
            wrong.append(f"left after a sweep: {left}")
        if not save_cache_file(PATH, IDENTITY, data_of(OURS), lock_wait_s=0).saved_bytes:
            wrong.append("a later save does not work")
    return keys, wrong


def test_every_crash_state_gives_the_old_or_the_new(count_cases: CountCases) -> None:
    found = run_suite()
    assert not found.wrong, "\n".join(found.wrong[:20])
    assert found.states.total() >= 2000 // STRIDE
    count_cases("F2 crash states", f"{found.states.total()} states of {len(SERIES)} series")


class NoFileSync(ModelDisk):
    """Test of the test: fsync is left out."""

    def fsync(self, descriptor: int) -> None:
        assert descriptor in self.open_descriptors


class NoDirectorySync(ModelDisk):
    """Test of the test: names are never made to last."""

    def sync_directory(self, directory: Path) -> None:
        assert directory == DIRECTORY


@pytest.mark.parametrize("broken", [NoFileSync, NoDirectorySync])
def test_a_sync_that_is_left_out_is_found(broken: type[ModelDisk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stores.faults.test_f2_crash_states.ModelDisk", broken)
    assert run_suite(SERIES[1:2], stop_at_first=True).wrong
