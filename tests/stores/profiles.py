"""Profiles for tests to change."""

from __future__ import annotations

import msgspec

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.profile_file import (
    CalibrationProfile,
    Choice,
    KeyProfile,
    ProbedKind,
    ProfileIdentity,
    Tried,
)

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


def key_profile(**changes: object) -> KeyProfile:
    """A key profile of the simulated device, whose keys depend on nothing."""
    kinds = ("compute", "graphics", "pipeline library", "ray tracing")
    made = KeyProfile(
        identity=ProfileIdentity.of(IDENTITY),
        device_name="simulated device",
        driver="simulated driver",
        made_at=1_000_000_000.0,
        took_s=10.0,
        orchestrator="0",
        api_version=1 << 22 | 4 << 12,
        method="creation feedback",
        kinds=tuple(ProbedKind(kind=kind, pipelines=2, usable=2) for kind in kinds),
        depends=(),
        independent=(),
        not_tried=(),
    )
    return msgspec.structs.replace(made, **changes)


def tried(name: str, aspect: str = "feature", **changes: object) -> Tried:
    """Something that was tried with all kinds of pipelines; a feature by "structure::member"."""
    struct, _, member = name.partition("::")
    made = Tried(
        aspect=aspect,
        name=name,
        kinds=("compute", "graphics", "pipeline library", "ray tracing"),
        features=((struct, member),) if aspect == "feature" else (),
    )
    return msgspec.structs.replace(made, **changes)
