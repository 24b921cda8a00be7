"""Rolling merges and two levels on real drivers: the primary ends with what the barrier gives it."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.device import DriverObserver, DriverStep
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.run.caches import CacheMerge
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import BARRIER, MergePolicy, RunOptions
from orchestrator.run.records import RunReport
from orchestrator.schedule.options import Order, ScheduleOptions
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import run_on_device, unsupported

NAVI21 = "radv:navi21"
SMALL_BATCHES = ScheduleOptions(order=Order.GIVEN, batch_limit=4, hit_share=1.0, target_ns=10**9)
OFTEN = MergePolicy(rolling=True, age_ns=1)


class Paced(DriverObserver):
    """Lets the third call that creates pipelines, and each second one after it, wait for one more merge."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._calls = self._merges = 0

    def entering(self, step: DriverStep, image: CreateInfoImage | None = None, numbers: Any = ()) -> int:
        """See `DriverObserver.entering`."""
        if step is DriverStep.CREATE:
            with self._turn:
                self._calls += 1
                due = min(4, (self._calls - 1) // 2)
                self._turn.wait_for(lambda: self._merges >= due, timeout=20)
        return super().entering(step, image, numbers)

    def merged(self) -> None:
        """A merge has ended."""
        with self._turn:
            self._merges += 1
            self._turn.notify_all()


def run_sample(selector: str, mode: str, rolling: bool, keep: str, start: str = "") -> dict[str, Any]:
    """In a process of its own: run a sixth of the sample from data in one file, and keep it in another."""
    data = Path(start).read_bytes() if start else b""

    async def main() -> dict[str, Any]:
        with PipelineSet.open(sample_path()) as source:
            device = open_device(selector)
            try:
                if CacheMode(mode) is CacheMode.TWO_LEVEL and not device.features.compile_required:
                    return {"unsupported": "it cannot fail instead of compiling"}
                some = source.pipelines[::6]
                prepared = device.prepare(build_image(source, some, device.capabilities).image)
                read: list[int] = []
                paced = Paced()
                if rolling and not start:  # else there is nothing to merge
                    device.observer = paced

                def on_merged(primary: Any, merge: CacheMerge) -> None:
                    read.append(len(device.pipeline_cache_data(primary).data))
                    if merge.pipelines:
                        paced.merged()

                report: RunReport = await run_pipelines(
                    device,
                    prepared,
                    RunOptions(
                        workers=2,
                        mode=CacheMode(mode),
                        merge=OFTEN if rolling else BARRIER,
                        schedule=SMALL_BATCHES,
                    ),
                    on_merged=on_merged,
                    primary=data,
                )
                prepared.close()
            finally:
                device.close()
        Path(keep).write_bytes(report.cache_data or b"")
        merge = report.merge
        folded = merge.rolling if merge is not None else None
        return {
            "compiled": report.compiled,
            "hits": report.cache_hits,
            "failed": len(report.failed),
            "bytes": len(report.cache_data or b""),
            "folds": folded.folds if folded is not None else 0,
            "read": read,
            "warnings": list(merge.warnings) if merge is not None else [],
        }

    return trio.run(main)


def sample_on(
    selector: str, mode: str, keep: Path, *, rolling: bool, start: Path | None = None
) -> dict[str, Any]:
    arguments = (selector, mode, rolling, str(keep), "" if start is None else str(start))
    found: dict[str, Any] = run_on_device(selector, f"{__name__}:run_sample", *arguments)
    if "unsupported" in found:
        unsupported(found["unsupported"])
    assert found["failed"] == 0
    return found


@pytest.mark.driver(NAVI21)
def test_a_rolling_merge_leaves_what_the_barrier_leaves(tmp_path: Path) -> None:
    at_barrier = sample_on(NAVI21, "per-worker", tmp_path / "barrier", rolling=False)
    created = at_barrier["compiled"] + at_barrier["hits"]
    for mode in ("per-worker", "two-level"):
        rolling = sample_on(NAVI21, mode, tmp_path / mode, rolling=True)
        assert rolling["warnings"] == []
        assert rolling["folds"] > 3
        # The primary only grows; what counts entries in it may take some bytes more or less.
        assert all(later > earlier - 64 for earlier, later in pairwise(rolling["read"]))
        assert rolling["compiled"] + rolling["hits"] == created
        assert abs(rolling["bytes"] - at_barrier["bytes"]) < 1024
    # Another process finds everything in each, by a look-up of both levels, too.
    for data, mode in (("per-worker", "shared"), ("two-level", "two-level")):
        again = tmp_path / "again"
        found = sample_on(NAVI21, mode, again, rolling=mode == "two-level", start=tmp_path / data)
        assert (found["compiled"], found["hits"]) == (0, created)
        assert found["folds"] == 0, "nothing new, nothing to merge"


@pytest.mark.driver("lavapipe")
def test_two_levels_on_a_driver_whose_cache_keeps_nothing(tmp_path: Path) -> None:
    found = sample_on("lavapipe", "two-level", tmp_path / "data", rolling=True)
    assert found["compiled"] > 30
    assert any("keeps nothing" in warning for warning in found["warnings"])
