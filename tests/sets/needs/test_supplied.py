"""Code that is supplied later is judged as a set's own modules are, pipeline by pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.devices.identified import SpirvProvider
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.needs.supplied import SuppliedJudge
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.spirv.interface import shader_interface
from tests.sets.needs.fake_capabilities import Everything
from tests.sets.spirv.shader_words import assemble, words_of

LIMITS = "VkPhysicalDeviceLimits"
SUBGROUPS = "VkPhysicalDeviceSubgroupSizeControlProperties"
DEVICE = Everything(
    properties={
        (LIMITS, "maxComputeWorkGroupSize"): (128, 128, 64),
        (LIMITS, "maxComputeWorkGroupInvocations"): 128,
        (SUBGROUPS, "maxComputeWorkgroupSubgroups"): 2,
    }
)
# A workgroup as wide as specialization constant 3 says.
SHADER = assemble(
    (17, 1),
    (14, 0, 1),
    (15, 5, 2, *words_of("main")),
    (71, 10, 1, 3),
    (71, 12, 11, 25),
    (19, 3),
    (33, 4, 3),
    (21, 5, 32, 0),
    (23, 6, 5, 3),
    (50, 5, 10, 8),
    (43, 5, 11, 1),
    (51, 6, 12, 10, 11, 11),
    (54, 3, 2, 0, 4),
    (248, 7),
    (253,),
    (56,),
)
KEY = 7
PIPELINES: tuple[dict[str, Any], ...] = (
    {},
    {"specialization": {3: 128}},
    {"specialization": {3: 129}},
    {"specialization": {3: 0}},
    {"specialization": {3: 64}, "required_subgroup_size": 32},
    {"specialization": {3: 65}, "required_subgroup_size": 32},
    {"required_subgroup_size": 16, "stage_flags": "require_full_subgroups"},
)


def described(*, supplied: bool) -> PipelineSet:
    """Compute pipelines of one shader, whose code is there or supplied later."""
    records = MemoryRecords()
    builder = PipelineSetBuilder(records)
    layout = builder.pipeline_layout([])
    if supplied:
        key = builder.supplied_module(KEY, "compute", interface=shader_interface(SHADER, "shader"))
    else:
        key = builder.shader_module(SHADER)
    for each in PIPELINES:
        builder.compute_pipeline(layout, key, **each)
    return PipelineSet.from_records(records).supplied_by(SpirvProvider(lambda _: SHADER))


def test_limits_are_those_of_each_pipeline() -> None:
    own, supplied = described(supplied=False), described(supplied=True)
    problems = {each.job: each for each in build_image(own, own.pipelines, DEVICE).problems}
    expected = [
        None if (found := problems.get(job)) is None else (found.reason, found.unsupported)
        for job in own.pipelines
    ]
    assert [each is None for each in expected] == [True, True, False, False, True, False, False]

    image = build_image(supplied, supplied.pipelines, DEVICE).image
    assert image.keys.tolist() == supplied.pipelines.keys.tolist()
    judge = SuppliedJudge(image, DEVICE)
    assert judge.refusal(0, SHADER) is None
    refusals = map(judge.pipeline_refusal, range(len(image)))
    start = f"shader module {KEY:016x}: "
    assert [
        None if each is None else (each.reason.removeprefix(start), each.unsupported) for each in refusals
    ] == expected


def test_a_provider_translates_by_a_function() -> None:
    with pytest.raises(TypeError, match="must be callable"):
        SpirvProvider(3, revision="1")  # type: ignore[arg-type]
