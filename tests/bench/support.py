"""Samples with known figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from orchestrator.bench.jobs import Answer, Filled, FillJob, Job, SampleJob
from orchestrator.bench.rows import Environment, FailedSample, Latencies, Sample, Start, Turn, fields_of
from orchestrator.bench.take import fill, probe, take_sample
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_identity

ENVIRONMENT = Environment(
    driver_name="test driver",
    driver_info="1.0",
    driver_version=1,
    driver_id=0,
    device_name="test device",
    vendor_id=1,
    device_id=2,
    pipeline_cache_uuid="00" * 16,
    driver_caches="disabled: test",
    cores=16,
    processor="test processor",
    load_average=0.0,
    python="3.11",
    orchestrator="0",
)

SIMULATED = msgspec.structs.replace(
    ENVIRONMENT, pipeline_cache_uuid=simulated_identity().pipeline_cache_uuid.hex()
)
"""The environment of a sample of the simulated device."""
_DEFAULTS = Sample(
    device="test",
    start=Start.COLD,
    duplicates=0.0,
    workers=1,
    mode=CacheMode.SHARED,
    control=False,
    round=0,
    batch=64,
    passes=1,
    set_name="set",
    set_hash="0" * 16,
    set_pipelines=1000,
    environment=ENVIRONMENT,
    started_at=0.0,
    process_s=2.0,
    pipelines=1000,
    created=1000,
    hits=0,
    failed=0,
    skipped=0,
    calls=20,
    open_ns=0,
    wall_ns=1_000_000_000,
    merge_ns=0,
    read_back_ns=0,
    call_ns=1_000_000_000,
    driver_ns=1_000_000_000,
    cpu_ns=1_000_000_000,
    run_delay_ns=0,
    blocked_ns=0,
    barrier_wait_ns=0,
    duplicate_keys=0,
    duplicate_ns=0,
    primary_bytes=0,
    peak_memory_bytes=100_000_000,
    compiled_latency=Latencies(),
    hit_latency=Latencies(),
)


def sample(**figures: Any) -> Sample:
    """A sample in which only some figures are given."""
    changed: Sample = msgspec.structs.replace(_DEFAULTS, **figures)
    return changed


def sample_of(job: SampleJob, **figures: Any) -> Sample:
    """The sample that a job asks for."""
    return sample(**fields_of(Turn, job), batch=job.batch, passes=job.passes, **figures)


def failure(**changes: Any) -> FailedSample:
    """A failed sample instead of the one without figures."""
    return FailedSample(**{**fields_of(Turn, _DEFAULTS), "reason": "it broke", **changes})


def filled(**changes: Any) -> Filled:
    """A filled cache of the simulated device, on the machine of the samples."""
    usual = {"set_name": "set", "set_hash": "0" * 16, "identity": simulated_identity(), "pipelines": 1000}
    return Filled(**{**usual, "environment": SIMULATED, **changes})


def series(walls_s: Iterable[float], **figures: Any) -> list[Sample]:
    """Samples of one cell, one a round, with their times."""
    return [sample(round=number, wall_ns=round(wall * 1e9), **figures) for number, wall in enumerate(walls_s)]


def done_here(job: Job) -> Answer:
    """Do a job in this process, which is as good on the simulated device and starts no interpreter."""
    if isinstance(job, SampleJob):
        return take_sample(job)
    return fill(job) if isinstance(job, FillJob) else probe(job)
