"""Which pipelines a cache file holds: noted of one state of it, kept while it grows, forgotten with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.stores.run_notes import CacheContents, Durations, add_contents, read_contents

FIRST, SECOND, OTHER = (bytes([number] * 16) for number in range(1, 4))


def keys(*numbers: int) -> npt.NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    """A cache file beside which FIRST is noted to hold pipelines 3 and 7."""
    path = tmp_path / "device.pipeline-cache"
    add_contents(path, keys(7, 3), FIRST)
    return path


def test_what_is_noted_is_read(cache_file: Path) -> None:
    known = read_contents(cache_file)
    assert (known.data_hash, known.problem, len(known)) == (FIRST, "", 2)
    assert known.held(keys(7, 4, 2**63, 3)).tolist() == [True, False, False, True]
    assert known.held(keys()).tolist() == []
    nothing = read_contents(cache_file.with_name("other.pipeline-cache"))
    assert (nothing.data_hash, nothing.problem, nothing.held(keys(1)).tolist()) == (b"", "", [False])


@pytest.mark.parametrize(
    ("data_hash", "before", "kept"),
    [
        (FIRST, (), [3, 7, 9]),
        (SECOND, (OTHER, FIRST), [3, 7, 9]),
        (SECOND, (OTHER,), [9]),
        (SECOND, (), [9]),
    ],
)
def test_a_file_that_was_begun_anew_holds_what_is_noted_since(
    cache_file: Path, data_hash: bytes, before: tuple[bytes, ...], kept: list[int]
) -> None:
    add_contents(cache_file, keys(9), data_hash, before)
    known = read_contents(cache_file)
    assert (known.data_hash, known.keys.tolist()) == (data_hash, kept)


def test_the_newest_are_kept_when_there_are_too_many(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.stores.run_notes.MOST_ENTRIES", 3)
    add_contents(cache_file, keys(8, 9), FIRST)
    assert read_contents(cache_file).keys.tolist() == [3, 8, 9]


@given(st.lists(st.integers(0, 9), max_size=8), st.sets(st.integers(0, 9)))
def test_what_is_noted_is_found_in_any_order(asked: list[int], noted: set[int]) -> None:
    wanted, known = keys(*asked), keys(*sorted(noted))
    assert CacheContents(known).held(wanted).tolist() == [each in noted for each in asked]
    times = Durations(known, known.astype(np.int64) + 1)
    assert times.of(wanted).tolist() == [each + 1 if each in noted else 0 for each in asked]
