"""A session on a real driver: steered in every way, it leaves what a run leaves."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import open_session
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.run.support import cancelled, queued, required

NAVI21 = "radv:navi21"


@pytest.mark.driver(NAVI21)
@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.TWO_LEVEL])
async def test_a_steered_session_leaves_a_cache_in_which_all_hits(mode: CacheMode) -> None:
    with PipelineSet.open(sample_path()) as source:
        device = open_device(NAVI21)
        image = build_image(source, source.pipelines[::3], device.capabilities).image
        prepared = device.prepare(image)
        everything = range(len(image))
        linker = int(np.flatnonzero(np.diff(image.library_slot_start))[0])
        options = ScheduleOptions(hit_share=0.0)
        async with open_session(
            device, prepared, RunOptions(workers=2, mode=mode, keep=True, time_limit_s=0, schedule=options)
        ) as session:
            await session.submit(everything, priority=Priority.BACKGROUND)
            count = queued(session)
            assert count == len(image)
            assert (await required(session, linker)).created
            libraries = image.libraries_of(linker)
            assert all(each.created for each in await session.wait(libraries))
            # Only they passed the budget.
            assert queued(session) == count - 1 - len(libraries)
            # Nothing is in flight, for the budget is used up: all the rest goes.
            taken_back = await cancelled(session)
            assert taken_back == count - 1 - len(libraries)
            assert session.is_idle
            assert session.progress.done == count - taken_back
            await session.submit(everything, priority=Priority.BACKGROUND)
            assert queued(session) == taken_back, "what was created is not queued again"
            # How many of them fit into a frame is the machine's affair; each is created or
            # cancelled, and none is lost.
            session.limit_time(0.004)
            await trio.sleep(0.004)
            taken_back = await cancelled(session)
            assert session.is_idle
            assert session.progress.done == count - taken_back
            session.limit_time(None)
            await session.submit(everything)
            assert all(each.created for each in await session.wait(everything))
            taken = session.take(everything)
        report = session.report
        assert report is not None
        assert not report.failed
        assert report.counts()[OutcomeStatus.NOT_RUN] == 0
        # Libraries stay with the prepared pipelines, which link them.
        assert ((taken != 0) == ~image.is_library).all()
        assert report.pipelines.handles is not None
        assert not report.pipelines.handles.any()
        created = np.concatenate([call.indices for call in report.calls])
        assert sorted(created.tolist()) == list(everything)
        device.destroy_pipelines(taken)
        again = await run_pipelines(device, prepared, RunOptions(workers=2), primary=report.cache_data or b"")
        assert again.cache_hits == len(image)
        prepared.close()
        device.close()
