"""A calibration profile for tests to change."""

from __future__ import annotations

import msgspec

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.calibration_profile import CalibrationProfile, Choice, ProfileIdentity

IDENTITY = simulated_identity()


def profile(**changes: object) -> CalibrationProfile:
    """A profile of the simulated device."""
    made = CalibrationProfile(
        identity=ProfileIdentity.of(IDENTITY),
        device_name="simulated device",
        driver="simulated driver",
        made_at=1_000_000_000.0,
        cores=2,
        processor="",
        load_average=0.0,
        driver_caches="",
        set_name="sample",
        set_hash="0" * 16,
        pipelines=10,
        orchestrator="0",
        python="3.11",
        rounds=7,
        figures=(),
        findings=(),
        cold=Choice(mode="per-worker", workers=2, words="because"),
        warm=Choice(mode="shared", workers=1, words="because"),
        batch=64,
        merge_works=True,
        cache_keeps=True,
        read_back_grows=False,
    )
    return msgspec.structs.replace(made, **changes)
