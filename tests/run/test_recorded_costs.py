"""Recorded costs of pipelines.

What a run learns about costs is what the next one is told, and no trouble with the file is an error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.devices.simulated import simulated_identity, simulated_image
from orchestrator.run.keeping import RecordedCosts
from orchestrator.stores.run_notes import DURATIONS
from orchestrator.stores.state import state_path
from tests.stores.stored import damage

KEYS = np.arange(60, dtype=np.uint64)
TIMES = (KEYS % 7 + 1).astype(np.int64) * 1_000_000
IMAGE = simulated_image(range(60))


def opened(directory: Path | None, driver_version: int = 1) -> RecordedCosts:
    return RecordedCosts.open(directory, simulated_identity(driver_version=driver_version))


def test_the_next_run_is_told_and_another_driver_is_not(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert not first.of(IMAGE).any()
    first.learn(KEYS, TIMES)
    assert first.notes == []
    assert opened(tmp_path).of(IMAGE).tolist() == TIMES.tolist()
    assert opened(tmp_path).of(simulated_image([59, 1000])).tolist() == [TIMES[59], 0]
    assert not opened(tmp_path, driver_version=2).of(IMAGE).any()


def test_a_run_of_hits_records_nothing(tmp_path: Path) -> None:
    opened(tmp_path).learn(KEYS, np.zeros(60, np.int64))
    assert list(tmp_path.iterdir()) == []
    nowhere = opened(None)
    nowhere.learn(KEYS, TIMES)
    assert not nowhere.of(IMAGE).any()


def test_what_is_assumed_is_not_recorded(tmp_path: Path) -> None:
    costs = opened(tmp_path)
    costs.assume({5: 7_000, 59: 9_000})
    assert costs.of(simulated_image([59, 5, 6])).tolist() == [9_000, 7_000, 0]
    assert list(tmp_path.iterdir()) == []


def test_trouble_with_the_file_is_a_note(tmp_path: Path) -> None:
    opened(tmp_path).learn(KEYS, TIMES)
    damage(tmp_path, DURATIONS)
    damaged = opened(tmp_path)
    assert any("were not used" in note for note in damaged.notes)
    damaged.learn(KEYS, TIMES)
    assert opened(tmp_path).notes == []
    state_path(tmp_path).unlink()
    state_path(tmp_path).mkdir()
    blocked = opened(tmp_path)
    blocked.learn(KEYS, TIMES)
    assert any("were not recorded" in note for note in blocked.notes)
