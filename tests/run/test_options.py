"""Options are values: what cannot be meant is refused, and they survive the way to another process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.devices.selectors import environment_of
from orchestrator.errors import NoDeviceError
from orchestrator.run.compile import compile_set
from orchestrator.run.identification import Identification
from orchestrator.run.limits import MemoryLimitError, has_memory, limit_memory
from orchestrator.run.options import (
    ROLLING,
    CompileOptions,
    MergePolicy,
    ModulePolicy,
    PipelineKeyUse,
    RunOptions,
    SavePolicy,
    TrialLimits,
    available_workers,
)
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import opened_groups
from orchestrator.sets.sample import sample_path
from orchestrator.stores.cache_file import cache_path
from orchestrator.testing import SimulatedDevice, simulated_opener


@pytest.mark.parametrize(
    ("cgroup", "files", "workers"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 3),  # of the outer one
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/a\n", {}, 64),
    ],
)
def test_the_workers_follow_the_quota(
    cgroup: str, files: dict[str, str], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_workers(tmp_path / "cgroup", tmp_path) == workers
    assert available_workers(tmp_path / "none", tmp_path) == 64


@pytest.mark.parametrize("kind", [RunOptions, CompileOptions])
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"workers": 0}, "'workers' must be >= 1: 0"),
        ({"workers": -3}, "'workers' must be >= 1: -3"),
        ({"mode": "fast"}, "'fast' is not a valid CacheMode"),
        ({"time_limit_s": -1.0}, "'time_limit_s' must be >= 0 and <= 1e[+]09: -1.0"),
        ({"time_limit_s": float("nan")}, "'time_limit_s' must be >= 0"),
        ({"time_limit_s": float("inf")}, "'time_limit_s' must be >= 0"),
        ({"mode": CacheMode.SHARED, "merge": ROLLING}, "mode shared has no worker caches"),
        ({"mode": CacheMode.NONE, "merge": ROLLING}, "mode none has no worker caches"),
    ],
)
def test_what_cannot_be_meant_is_refused(kind: Any, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        kind(**given)


def test_a_selector_that_no_device_can_have_is_refused_before_a_process_is_asked() -> None:
    with pytest.raises(NoDeviceError, match=r"answers to 'radv:\\udcff': it is not UTF-8"):
        CompileOptions(selector="radv:\udcff")


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(),
        RunOptions(
            workers=3,
            mode=CacheMode.TWO_LEVEL,
            merge=MergePolicy(rolling=True, age_ns=7),
            schedule=ScheduleOptions(unites=False, batch_limit=9),
            time_limit_s=0.5,
        ),
        CompileOptions(mode=None),
        CompileOptions(
            selector="simulated",
            driver_caches=True,
            workers=2,
            mode=CacheMode.PER_WORKER_INTERNAL,
            merge=ROLLING,
            save_policy=SavePolicy(quiet_ns=1),
            relax_driver_version=True,
            spirv_val=ModulePolicy.SKIP,
            trial_limits=TrialLimits(pipeline_s=1.0, memory_bytes=1 << 30, opener="a.b:c"),
            pipeline_keys=PipelineKeyUse.OFF,
            time_limit_s=3.0,
        ),
    ],
)
@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_they_survive_the_way_to_another_process(options: Any, codec: Any) -> None:
    there = codec.decode(codec.encode(options), type=type(options))
    assert there == options
    assert type(there) is type(options)


async def test_a_function_names_what_it_was_given_in_place_of_what_it_takes() -> None:
    anything: Any = "game.foz"
    keys: Any = [0x43210C2D62F9536C]
    device = SimulatedDevice()
    with PipelineSet.open(sample_path()) as pipelines:
        calls: dict[str, Callable[[], object]] = {
            "a set, such as": lambda: list(opened_groups(anything, simulated_opener())),
            "Subset is": lambda: list(opened_groups(pipelines, simulated_opener(), subset=anything)),
            r"a set, .* not str": lambda: build_image(anything, [], device.capabilities),
            "a pipeline of the set": lambda: build_image(pipelines, keys, device.capabilities),
            "device.capabilities are": lambda: build_image(pipelines, [], device),  # type: ignore[arg-type]
            "'provider' must be": lambda: Identification(anything, None),
            "records are": lambda: PipelineSet.from_records(anything),
            "SpirvProvider is": lambda: pipelines.supplied_by(anything),
            "DeviceRequest or None is": lambda: open_device("simulated", request=anything),
            "HostWishes is": lambda: open_device("simulated", wishes=anything),
            "a mapping of": lambda: environment_of("lavapipe", base=anything),
            "DeviceIdentity, such as device.identity,": lambda: cache_path("", device),  # type: ignore[arg-type]
        }
        for words, call in calls.items():
            with pytest.raises(TypeError, match=words):
                call()
        with pytest.raises(TypeError, match="CompileOptions is expected here, not RunOptions"):
            await compile_set(pipelines, RunOptions())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'cache_directory' is empty"):
            await compile_set(pipelines, cache_directory="", opener=simulated_opener())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:  524288 kB\n", True),
        ("MemAvailable:  524287 kB\n", False),
        ("MemTotal: 1 kB\n", True),
        ("MemAvailable: much\n", True),
        (None, True),
    ],
)
def test_whether_there_is_memory_for_more_work(tmp_path: Path, text: str | None, expected: bool) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert has_memory(512 << 20, tmp_path) is expected


def test_a_limit_that_leaves_no_room_for_a_thread_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match="the 1 MiB that a process may have"):
        limit_memory(1 << 20)
