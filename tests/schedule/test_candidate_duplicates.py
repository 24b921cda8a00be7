"""Who is worth asking the driver about: pipelines of one code, and nobody else."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from orchestrator.schedule.costs import candidate_duplicates
from tests.schedule.machine import image_of


def test_all_modules_must_be_the_same() -> None:
    found = candidate_duplicates(image_of([[0, 1], [1, 0], [0], [0, 1, 1], [0, 2], [2]]))
    assert found.tolist() == [True, True, False, False, False, False]


def test_libraries_count_as_code() -> None:
    found = candidate_duplicates(image_of([[5], [6], [0], [0], [0], []], [[], [], [0], [0], [1], [0]]))
    assert found.tolist() == [False, False, True, True, False, False]
    # A library is no module of the same number.
    assert not candidate_duplicates(image_of([[7], [8], [0], []], [[], [], [], [0]])).any()


def test_another_kind_is_other_work() -> None:
    image = image_of([[0], [0]])
    assert candidate_duplicates(image).all()
    assert not candidate_duplicates(evolve(image, kinds=np.array([0, 1], np.uint8))).any()


def test_as_many_as_a_large_set_has_are_told_apart() -> None:
    count = 50_000
    rows = [[number, number % 97] for number in range(count)]
    found = candidate_duplicates(image_of([*rows, [3, 3], [count - 1, (count - 1) % 97]]))
    # 3 % 97 is 3, so the first of the two is the work of pipeline 3.
    assert np.flatnonzero(found).tolist() == [3, count - 1, count, count + 1]
