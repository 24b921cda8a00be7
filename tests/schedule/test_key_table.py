"""The key table against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedule.jobs import KeyTable

# Few distinct keys, so that they meet; zero and the ends of the range among them.
KEYS = st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.lists(st.lists(KEYS, max_size=60), max_size=8))
def test_it_is_a_dictionary(calls: list[list[int]]) -> None:
    table, expected, job = KeyTable(), dict[int, int](), 0
    for keys in calls:
        jobs = list(range(job, job + len(keys)))
        job += len(keys)
        owners = table.claim(np.array(keys, np.uint64), np.array(jobs, np.int32))
        assert owners.tolist() == [
            expected.setdefault(key, each) for key, each in zip(keys, jobs, strict=True)
        ]
        assert len(table) == len(expected)


def test_it_stays_small_and_exact_when_it_grows() -> None:
    table = KeyTable()
    keys = np.arange(50_000, dtype=np.uint64) << np.uint64(32)
    for part in np.array_split(np.arange(50_000, dtype=np.int32), 7):
        assert (table.claim(keys[part], part) == part).all()
    late = np.arange(50_000, 100_000, dtype=np.int32)
    assert (table.claim(keys, late) == late - 50_000).all()
    assert table.nbytes <= 64 * len(table)
