"""Verdicts on answers that are not of all groups."""

from __future__ import annotations

import pytest

from orchestrator.devices.request import ApplicationInfo
from orchestrator.key_dependence.judging import judge
from orchestrator.key_dependence.messages import (
    NEEDED,
    Aspect,
    Look,
    Looked,
    LookJob,
    ProbeGroup,
    ProbeKind,
    ProbePipeline,
    Variation,
)

GRAPHICS, RAY_TRACING = ProbeKind.GRAPHICS, ProbeKind.RAY_TRACING
KINDS = {"first": (ProbeKind.COMPUTE, GRAPHICS), "second": (GRAPHICS, RAY_TRACING)}
DIED = "the process ended with signal 11"
NO_RESULT = "the device gives no result for its pipelines of kind ray tracing"
HITS = Looked(looks=(Look.HIT, Look.HIT))


def job(name: str) -> LookJob:
    pipelines = tuple(ProbePipeline(place, kind.value, kind) for place, kind in enumerate(KINDS[name]))
    return LookJob(
        device="",
        opener="",
        group=ProbeGroup(name=name, features=frozenset(), extensions=frozenset(), pipelines=pipelines),
        application=ApplicationInfo(),
        directory="",
        pipeline_cache_uuid="",
        cache_control=True,
        usable=(0, 1),
    )


@pytest.mark.parametrize(
    ("answers", "missed", "untried", "obstacles"),
    [
        ([Looked(looks=(Look.HIT, Look.MISS)), Looked(reason=DIED)], {GRAPHICS}, {RAY_TRACING}, [DIED]),
        ([HITS], set(), set(), []),
        ([HITS, Looked(reason=NEEDED)], set(), {RAY_TRACING}, []),
        ([HITS, Looked(looks=(Look.HIT, Look.UNKNOWN))], set(), {RAY_TRACING}, [NO_RESULT]),
        ([HITS, Looked(looks=(Look.HIT, Look.HIT), identity=False)], {GRAPHICS, RAY_TRACING}, set(), []),
    ],
    ids=["died", "not asked", "needed", "no result", "another identity"],
)
def test_a_verdict_by_kind(
    answers: list[Looked], missed: set[ProbeKind], untried: set[ProbeKind], obstacles: list[str]
) -> None:
    variation = Variation(aspect=Aspect.EXTENSION, name="VK_A")
    verdict = judge(variation, zip(map(job, KINDS), answers, strict=False))
    assert verdict.missed == missed
    assert verdict.untried == untried
    assert verdict.obstacles == {reason: ["second"] for reason in obstacles}
