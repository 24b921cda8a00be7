"""The code in docs/embedding.md runs, and does what the page says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import orchestrator
from orchestrator import PipelineSet, Progress
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.records import OutcomeStatus
from orchestrator.sets.sample import sample_path
from tests.drivers import REPOSITORY
from tests.hosts.python_host import HostSettings, PythonHost
from tests.run.small_sets import write_small_set

PAGE = (REPOSITORY / "docs" / "embedding.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```python example=(\w+)\n(.*?)```", PAGE, re.DOTALL))
CORE = "VkPhysicalDeviceFeatures"


def example(name: str, function: str) -> Callable[..., Any]:
    """A function that an example defines; it sees the public names."""
    scope: dict[str, Any] = {each: getattr(orchestrator, each) for each in dir(orchestrator)}
    scope |= {"asyncio": asyncio, "trio": trio}
    exec(EXAMPLES[name], scope)
    found: Callable[..., Any] = scope[function]
    return found


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


def test_every_example_is_run() -> None:
    run = re.findall(r'(?:example\(|EXAMPLES\[)"(\w+)"', Path(__file__).read_text("utf-8"))
    assert set(EXAMPLES) == set(run)
    assert PAGE.count("```python") == len(EXAMPLES)


def test_the_shortest_session_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES["shortest"]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OutcomeStatus.NOT_RUN: 'not_run'>: 0" in done.stdout


@pytest.mark.driver("radv:navi21")
def test_a_device_of_ones_own() -> None:
    settings = HostSettings(device_extensions=("VK_KHR_swapchain",), features={CORE: ("tessellationShader",)})
    with PipelineSet.open(sample_path()) as source, PythonHost(settings) as host:
        said = host.arguments
        mine = types.SimpleNamespace(
            **said, extensions=said.pop("enabled_extensions"), features=said.pop("enabled_features")
        )
        device, prepared, lacking = example("adopted", "prepared_on_mine")(source, mine)
        assert "SPIR-V capability Geometry (2): needs VkPhysicalDeviceFeatures::geometryShader" in set(
            lacking.values()
        )
        assert len(prepared.image) + len(lacking) == len(source.pipelines)
        prepared.close()
        device.close()


def test_a_loop(device: SimulatedDevice) -> None:
    drawn: list[Progress] = []
    report, handles, door = example("loop", "loading_screen")(
        lambda: (device, device.prepare(simulated_image(range(50)))),
        drawn.append,
        lambda _: time.sleep(0.001),
    )
    assert report.compiled == np.count_nonzero(handles) == 50
    assert door.created
    assert (drawn[0].share, drawn[-1].share, drawn[-1].cost_share) == (0.0, 1.0, 1.0)
    shares = [each.cost_share for each in drawn if each.total]
    assert shares == sorted(shares)


def test_an_opener() -> None:
    with PipelineSet.open(sample_path()) as pipelines:
        opener, groups = example("opener", "opener_of")(pipelines)
        session = orchestrator.start_session(opener)
        _, prepared = session.opened.result()
        session.submit(range(len(prepared.image)))
        assert session.finish().result().compiled == len(pipelines)
        prepared.close()
        groups.close()


def test_a_level_that_is_loaded_later(device: SimulatedDevice) -> None:
    with orchestrator.start_session((device, device.prepare(simulated_image(range(50))))) as session:
        ticket = example("later", "next_level")(
            session, lambda on: on.prepare(simulated_image(range(90, 99)))
        )
        assert [each.index for each in ticket.result()] == list(range(50, 59))
    assert session.ended.result().compiled == 9


def test_asyncio(device: SimulatedDevice) -> None:
    run = example("asyncio", "fill")
    prepared = device.prepare(simulated_image(range(50)))
    outcomes, handles, report = asyncio.run(run(lambda: (device, prepared), range(10, 20)))
    assert [each.created for each in outcomes] == [True] * 10
    assert np.count_nonzero(handles) == report.compiled == 10


async def test_frames(device: SimulatedDevice) -> None:
    drawn: list[Progress] = []
    report = await example("frames", "loading_screen")(
        device, device.prepare(simulated_image(range(50))), drawn.append
    )
    assert report.compiled == 50
    assert drawn[0].done == 0


async def test_what_is_needed_first(device: SimulatedDevice) -> None:
    created, reasons = await example("urgent", "enter_level")(
        device, device.prepare(simulated_image(range(50))), range(10), range(10, 50), 40
    )
    assert created
    assert reasons == []
    assert len(device.compile_counts) == 50


async def test_a_supervised_compile(tmp_path: Path) -> None:
    archive = tmp_path / "set.foz"
    keys = write_small_set(archive, 0, 4)
    counts, failed = await example("supervised", "precompile")([str(archive)], tmp_path / "cache")
    assert counts[OutcomeStatus.COMPILED] == len(keys)
    assert failed == []


async def test_producers(device: SimulatedDevice) -> None:
    report = await example("producers", "stream")(
        device, device.prepare(simulated_image(range(300))), [range(150), range(100, 300)]
    )
    assert report.compiled == 300


async def test_a_change_of_level(device: SimulatedDevice) -> None:
    cancelled = await example("level_change", "change_level")(
        device, device.prepare(simulated_image(range(300))), range(150), range(150, 300)
    )
    assert len(device.compile_counts) == 300 - cancelled


async def test_pipelines_to_draw_with(device: SimulatedDevice) -> None:
    prepared = device.prepare(simulated_image(range(50), libraries={20: [3]}))
    handles = await example("handles", "for_drawing")(device, prepared, [20, 30])
    assert np.count_nonzero(handles) == 2
    device.destroy_pipelines(handles)
    prepared.close()
    assert device.live_pipelines == 0


async def test_at_most_so_long(device: SimulatedDevice) -> None:
    prepared = device.prepare(simulated_image(range(50)))
    run = example("time_budget", "at_most")
    stopped, left, data = await run(device, prepared, 0, b"")
    assert (stopped, left) == (True, 50)
    stopped, left, _ = await run(device, prepared, 3600, data)
    assert (stopped, left) == (False, 0)
