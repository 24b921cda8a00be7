"""Options are values: what cannot be meant is refused, and they survive the way to another process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator import (
    BARRIER,
    ROLLING,
    CacheMode,
    CompileOptions,
    Followers,
    MergePolicy,
    ModulePolicy,
    PipelineKeyUse,
    RunOptions,
    SavePolicy,
    ScheduleOptions,
    TrialLimits,
)


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
