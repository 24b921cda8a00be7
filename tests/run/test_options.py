"""Options are values: what cannot be meant is refused, and they survive the way to another process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest

from orchestrator import (
    BARRIER,
    ROLLING,
    ApplicationInfo,
    CacheMode,
    CompileOptions,
    DeviceRequest,
    Followers,
    HostWishes,
    Identification,
    LoadPolicy,
    MergePolicy,
    ModulePolicy,
    PipelineKeyUse,
    PipelineSet,
    RunOptions,
    SavePolicy,
    ScheduleOptions,
    SpirvProvider,
    Subset,
    TrialLimits,
    build_image,
    cache_path,
    compile_set,
    compile_supervised,
    environment_of,
    open_device,
    opened_groups,
    run_pipelines,
)
from orchestrator.devices.device import Device
from orchestrator.errors import NoDeviceError
from orchestrator.sets.sample import sample_path
from orchestrator.testing import SimulatedDevice, simulated_image, simulated_opener


@pytest.mark.parametrize("kind", [RunOptions, CompileOptions])
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"workers": 0}, "'workers' must be >= 1: 0"),
        ({"workers": -3}, "'workers' must be >= 1: -3"),
        ({"mode": "fast"}, "'fast' is not a valid CacheMode"),
        ({"time_limit_s": -1.0}, r"a time limit of -1.0 s: 0 or more is expected"),
        ({"time_limit_s": float("nan")}, "a time limit of nan s"),
        ({"time_limit_s": float("inf")}, "None for no limit"),
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


def test_what_can_be_meant_is_not() -> None:
    assert RunOptions(mode=CacheMode.SHARED, merge=BARRIER, time_limit_s=0).time_limit_s == 0
    assert RunOptions(mode=CacheMode.TWO_LEVEL, merge=ROLLING).merge is ROLLING
    # Which mode it will be is not known yet.
    assert CompileOptions(mode=None, merge=ROLLING).mode is None
    assert CompileOptions(spirv_val="isolate").spirv_val is ModulePolicy.ISOLATE


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(),
        RunOptions(
            workers=3,
            mode=CacheMode.TWO_LEVEL,
            merge=MergePolicy(rolling=True, batches=None, gained_bytes=5, age_ns=7),
            seed_workers_from_primary=False,
            schedule=ScheduleOptions(followers=Followers.SHARE, capacity=9),
            skipped={4: "feature geometryShader"},
            count_duplicate_pipeline_keys=True,
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
            inspect_executables=True,
            time_limit_s=3.0,
        ),
    ],
)
@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_they_survive_the_way_to_another_process(options: Any, codec: Any) -> None:
    there = codec.decode(codec.encode(options), type=type(options))
    assert there == options
    assert type(there) is type(options)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_what_comes_from_another_process_is_checked(codec: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="workers"):
        codec.decode(codec.encode({"workers": 0}), type=RunOptions)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": "2"}, "'workers' must be a whole number, not '2'"),
        ({"workers": 1.5}, "'workers' must be a whole number, not 1.5"),
        ({"skipped": [1]}, "'skipped' gives a reason by pipeline"),
        ({"skipped": {1: 2}}, "'skipped' gives a reason by pipeline"),
        ({"merge": "rolling"}, "'merge' must be .*MergePolicy"),
        ({"schedule": "x"}, "'schedule' must be .*ScheduleOptions"),
    ],
)
def test_an_option_of_a_wrong_type_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        RunOptions(**options)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        # A text would switch it on.
        *(
            (kind, each.name, "off")
            for kind in (CompileOptions, RunOptions, MergePolicy, ScheduleOptions)
            for each in attrs.fields(kind)
            if each.type == "bool"
        ),
        (partial(SpirvProvider, lambda key: b""), "trusted", "off"),
        (LoadPolicy, "relax_driver_version", "no"),
        (LoadPolicy, "cap", "1G"),
        (LoadPolicy, "tolerated_crashes", None),
        (CompileOptions, "selector", None),
        (CompileOptions, "binary_memory_bytes", 1e8),
        (SavePolicy, "quiet_ns", 1.5),
        (TrialLimits, "pipeline_s", "5s"),
        (TrialLimits, "memory_bytes", 4e9),
        (TrialLimits, "opener", len),
        (Subset, "shard", "1"),
        (Subset, "keys", "43210c2d62f9536c"),
        (Subset, "keys", ["43210c2d62f9536c"]),
        (ApplicationInfo, "api_version", "1.3"),
        (ApplicationInfo, "application_name", b"game"),
        (DeviceRequest, "application", "game"),
        (DeviceRequest, "features", [("VkPhysicalDeviceFeatures", "geometryShader")]),
        (DeviceRequest, "extensions", "VK_KHR_ray_query"),
        (DeviceRequest, "orchestrator_features", "off"),
        (HostWishes, "queue_family", "0"),
        (partial(SpirvProvider, lambda key: b""), "revision", 7),
        (partial(SpirvProvider, lambda key: b""), "timeout_s", "2s"),
    ],
)
def test_no_value_takes_what_means_something_else(kind: Any, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"'{name}'"):
        kind(**{name: value})


def test_numbers_of_an_application_fit_vulkan() -> None:
    with pytest.raises(ValueError, match="'api_version' must be < 4294967296"):
        ApplicationInfo(api_version=1 << 32)
    with pytest.raises(ValueError, match="'queue_family' must be >= 0"):
        HostWishes(queue_family=-1)


def test_what_stands_for_a_value_becomes_it() -> None:
    share: Any = "share"
    assert ScheduleOptions(followers=share).followers is Followers.SHARE
    with pytest.raises(ValueError, match="'some' is not a valid Followers"):
        ScheduleOptions(followers="some")
    keys: Any = [5, np.uint64(7)]
    assert Subset(keys=keys).keys == frozenset({5, 7})
    three: Any = np.int64(3)
    options = CompileOptions(workers=three)
    assert msgspec.json.decode(msgspec.json.encode(options), type=CompileOptions).workers == 3


async def test_an_argument_of_a_wrong_type_is_named_and_leaves_nothing() -> None:
    device = SimulatedDevice()
    image = simulated_image(range(20))
    prepared: Any = device.prepare(image)
    run: Any = run_pipelines
    for arguments, more, words in (
        ((None, prepared), {}, "a device, .* not NoneType"),
        ((prepared, device), {}, "a device, .* not SimulatedPipelines"),
        ((device, image), {}, r"device\.prepare\(image\) gave .* not CreateInfoImage"),
        ((device, prepared, {"workers": 2}), {}, "RunOptions is expected here, not dict"),
        ((device, prepared), {"primary": Path("cache")}, "its data as bytes, .* not "),
        # trio would wait for it in its own thread, and nothing would ever go on.
        ((device, prepared), {"stop": threading.Event()}, "stop is a trio.Event or a Steering, not Event"),
    ):
        with pytest.raises(TypeError, match=words):
            await run(*arguments, **more)
    for index in (-1, 20):
        with pytest.raises(ValueError, match=f"names pipeline {index}; the image has 0 to 19"):
            await run(device, prepared, RunOptions(skipped={index: "why"}))
    with pytest.raises(TypeError, match="by text, such as '0'"):
        open_device(0)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"a set, such as PipelineSet.open\(path\) gives, is expected here, not str"
    ):
        await compile_set("game.foz", opener=simulated_opener())  # type: ignore[arg-type]
    assert device.live_caches == 0


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


async def test_a_run_does_not_ask_what_its_device_supports() -> None:
    class Slow(SimulatedDevice):
        """In the place of one that takes milliseconds."""

        was_asked = False

        def __getattribute__(self, name: str) -> Any:
            if name == "supported":
                Slow.was_asked = True
            return super().__getattribute__(name)

    device = Slow()
    prepared = device.prepare(simulated_image(range(3)))
    Slow.was_asked = False
    assert (await run_pipelines(device, prepared)).compiled == 3
    assert not Slow.was_asked
    assert not isinstance(prepared, Device)


async def test_paths_may_be_text_or_paths(archive: Path, tmp_path: Path) -> None:
    with PipelineSet.open(archive) as pipelines:
        report = await compile_set(pipelines, opener=simulated_opener(), cache_directory=str(tmp_path))
    assert list(tmp_path.glob("*.pipeline-cache"))
    options = CompileOptions(selector="simulated", workers=1)
    for archives in ([archive], str(archive)):
        again = await compile_supervised(archives, options, cache_directory=str(tmp_path / "supervised"))
        assert sum(again.counts().values()) == sum(report.counts().values())
