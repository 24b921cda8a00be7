"""Rows of pipelines, which nobody has to look at to know them."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.image import row, span_of


def test_a_row_is_its_numbers_and_nobody_may_change_it() -> None:
    many = row(7, 3000)
    assert many.tolist() == list(range(7, 3000))
    with pytest.raises(ValueError, match="read-only"):
        many[0] = 1


def test_a_row_stays_one_when_longer_ones_are_asked_for() -> None:
    before = row(2, 10)
    row(0, 1_000_000)
    assert before.tolist() == list(range(2, 10))
    assert span_of(before) == slice(2, 10)


@pytest.mark.parametrize(
    ("numbers", "span"),
    [
        (row(3, 4), slice(3, 4)),
        (row(3, 2000), slice(3, 2000)),
        (row(3, 2000)[5:9], slice(8, 12)),
        (row(3, 2000)[::2], None),
        (row(3, 2000)[::-1], None),
        (np.arange(3, 2000, dtype=np.int32), slice(3, 2000)),
        (np.arange(2_000_000, 2_000_700, dtype=np.int32), slice(2_000_000, 2_000_700)),
        (np.array([4, 6, 5, 7], np.int32), None),
        (np.array([4, 4, 6], np.int32), None),
        (np.array([9], np.int32), slice(9, 10)),
    ],
)
def test_what_follows_one_another_is_a_span(numbers: np.ndarray, span: slice | None) -> None:
    assert span_of(numbers) == span
