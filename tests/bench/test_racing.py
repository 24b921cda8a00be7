"""Who falls behind, with noise as it was recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import asdict

from orchestrator.bench.rows import Sample, Start
from orchestrator.bench.sample_table import Contender, SampleTable, fallen_behind
from orchestrator.devices.modes import CacheMode
from tests.bench.recorded_noise import WALLS_US
from tests.bench.support import sample

NVIDIA_MS = (128, 104, 215, 50, 40, 176, 150, 161, 163, 81)
"""One warm pass with 16 workers on one cache of NVIDIA 580.159, again and again."""
BASELINE, *OTHERS = (
    Contender(Start.COLD, mode, 16, 1024)
    for mode in (CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL, CacheMode.TWO_LEVEL)
)
ROUNDS, CALIBRATIONS = 5, 25


def raced(noise: Sequence[int], factor: float, random: random.Random) -> tuple[bool, bool, int]:
    """A calibration in which the last contender takes so many times as long.

    Returns:
        Whether another one was ever held to be behind, whether the last one is in the end, and its samples.
    """
    rows, wrong, slow = list[Sample](), False, OTHERS[-1]
    for number in range(ROUNDS):
        behind = fallen_behind(SampleTable(rows), [BASELINE, *OTHERS])
        wrong |= any(each is not slow for each in behind)
        arms = [(each, False) for each in (BASELINE, *OTHERS) if each not in behind]
        for contender, control in (*arms, (BASELINE, True)):
            took = random.choice(noise) * (factor if contender is slow else 1.0)
            rows.append(sample(**asdict(contender), control=control, round=number, wall_ns=round(took * 1e6)))
    table = SampleTable(rows)
    return wrong, slow in fallen_behind(table, [BASELINE, *OTHERS]), len(table.of(slow))


@pytest.mark.parametrize(
    ("noise", "factor", "least_dropped", "samples"), [(WALLS_US, 1.0, 0, 5.0), (WALLS_US, 2.0, 20, 2.8)]
)
def test_with_recorded_noise_what_is_far_behind_is_dropped_and_nothing_else(
    noise: Sequence[int], factor: float, least_dropped: int, samples: float
) -> None:
    generator = random.Random(1)
    found = [raced(noise, factor, generator) for _ in range(CALIBRATIONS)]
    assert not any(wrong for wrong, _, _ in found)
    assert sum(behind for _, behind, _ in found) >= least_dropped
    if factor == 1.0:
        assert not any(behind for _, behind, _ in found)
    assert sum(count for _, _, count in found) / CALIBRATIONS <= samples


def test_where_one_thing_takes_from_40_to_215_ms_hardly_anything_is_said_to_be_behind() -> None:
    generator = random.Random(2)
    found = [raced(NVIDIA_MS, 1.0, generator) for _ in range(CALIBRATIONS)]
    assert sum(behind for _, behind, _ in found) <= CALIBRATIONS // 12


def test_the_baseline_and_what_was_not_measured_are_never_behind() -> None:
    assert fallen_behind(SampleTable([]), [BASELINE, *OTHERS]) == {}
    rows = [
        sample(**asdict(each), control=control, round=number, wall_ns=took * 10**9)
        for number in range(5)
        for each, control, took in ((BASELINE, False, 50), (BASELINE, True, 50), (OTHERS[0], False, 1))
    ]
    assert fallen_behind(SampleTable(rows), [BASELINE, *OTHERS]) == {}


def test_without_a_control_nothing_is_behind() -> None:
    rows = [
        sample(**asdict(each), control=False, round=number, wall_ns=took * 10**9)
        for number in range(5)
        for each, took in ((BASELINE, 1), (OTHERS[0], 50))
    ]
    assert fallen_behind(SampleTable(rows), [BASELINE, *OTHERS]) == {}
