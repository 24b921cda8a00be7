# Purpose: what a run learns about costs is what the next one is scheduled by, and no trouble with the file is an error.
"""Recorded costs of pipelines."""

from __future__ import annotations

from pathlib import Path

import trio

from orchestrator.devices.device import CacheMode
from orchestrator.devices.simulated import CostModel, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.orchestrator import run_pipelines
from orchestrator.run.outcomes import RunReport
from orchestrator.run.recorded_costs import RecordedCosts
from orchestrator.schedule import CostScheduler, FifoScheduler, JobGraph

COSTS = {key: (key % 7 + 1) * 1_000_000 for key in range(60)}


def run(costs: RecordedCosts, device: SimulatedDevice) -> RunReport:
    prepared = device.prepare(simulated_image(range(60)))

    async def main() -> RunReport:
        return await run_pipelines(
            device,
            prepared,
            workers=1,
            scheduler=costs.scheduler(prepared.image, CacheMode.PER_WORKER),
        )

    return trio.run(main)


def device() -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(cost=CostModel.mapped(COSTS)))


def opened(directory: Path | None) -> RecordedCosts:
    return RecordedCosts.open(directory, device().identity)


def test_the_next_run_starts_the_longest_first(tmp_path: Path) -> None:
    first = opened(tmp_path)
    report = run(first, device())
    first.learn(report)
    assert first.notes == []
    order = [int(index) for call in run(opened(tmp_path), device()).calls for index in call.indices]
    costs = [COSTS[index] for index in order]
    assert sorted(order) == list(range(60))
    assert costs[0] == max(costs)
    assert costs[-1] < max(costs)
    assert sum(costs[:30]) > sum(costs[30:])


def test_without_recorded_costs_the_order_is_that_of_the_set(tmp_path: Path) -> None:
    image = simulated_image(range(60))
    graph = JobGraph(image.kinds, image.library_slot_start, image.library_slot_pipeline, {})
    unknown = opened(tmp_path).scheduler(image, CacheMode.PER_WORKER)(graph, 2)
    assert isinstance(unknown, FifoScheduler)
    known = opened(tmp_path)
    known.learn(run(known, device()))
    assert isinstance(known.scheduler(image, CacheMode.SHARED)(graph, 2), CostScheduler)


def test_a_run_of_hits_records_nothing(tmp_path: Path) -> None:
    simulated = device()
    data = run(opened(None), simulated).cache_data
    prepared = simulated.prepare(simulated_image(range(60)))

    async def warm() -> RunReport:
        return await run_pipelines(simulated, prepared, workers=1, primary_data=data or b"")

    costs = opened(tmp_path)
    costs.learn(trio.run(warm))
    assert list(tmp_path.iterdir()) == []


def test_trouble_with_the_file_is_a_note(tmp_path: Path) -> None:
    costs = opened(tmp_path)
    assert costs.path is not None
    costs.path.write_bytes(b"not compile times")
    damaged = opened(tmp_path)
    assert any("were not used" in note for note in damaged.notes)
    damaged.learn(run(damaged, device()))
    assert opened(tmp_path).notes == []
    costs.path.unlink()
    costs.path.mkdir()
    blocked = opened(tmp_path)
    blocked.learn(run(blocked, device()))
    assert any("were not recorded" in note for note in blocked.notes)
