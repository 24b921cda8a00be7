"""Pipelines in columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sets.records import PipelineJobs


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_their_order_is_that_of_kind_and_key(rows: list[tuple[int, int]]) -> None:
    jobs = PipelineJobs(
        np.array([key for key, _ in rows], np.uint64), np.array([k for _, k in rows], np.uint8)
    )
    order = jobs.in_order()
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert [(kind, key) for key, kind in (rows[each] for each in order)] == sorted(
        (k, key) for key, k in rows
    )
