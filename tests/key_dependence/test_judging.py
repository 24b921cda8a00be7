"""Verdicts on answers that are not of all groups."""

from __future__ import annotations

from orchestrator.key_dependence.judging import Judged, judge
from orchestrator.key_dependence.messages import (
    NEEDED,
    Aspect,
    Look,
    Looked,
    ProbeGroup,
    ProbeKind,
    ProbePipeline,
    Untried,
    Variation,
)

FIRST, SECOND = "first", "second"
GROUPS = {
    name: ProbeGroup(
        name=name,
        features=frozenset(),
        extensions=frozenset(),
        pipelines=tuple(ProbePipeline(place, kind.value, kind) for place, kind in enumerate(kinds)),
    )
    for name, kinds in (
        (FIRST, (ProbeKind.COMPUTE, ProbeKind.GRAPHICS)),
        (SECOND, (ProbeKind.GRAPHICS, ProbeKind.RAY_TRACING)),
    )
}
CAN_TELL = dict.fromkeys(GROUPS, (0, 1))
DIED = "the process ended with signal 11"


def judged(*answers: Looked | Untried, groups: tuple[str, ...] = ()) -> Judged:
    variation = Variation(aspect=Aspect.EXTENSION, name="VK_A", groups=groups)
    return judge(variation, answers, GROUPS, CAN_TELL)


def looked(group: str, *looks: Look) -> Looked:
    return Looked(number=0, group=group, looks=looks)


def untried(group: str, reason: str = DIED) -> Untried:
    return Untried(number=0, group=group, reason=reason)


def test_a_group_that_was_not_tried_is_named_with_its_kinds() -> None:
    verdict = judged(looked(FIRST, Look.HIT, Look.MISS), untried(SECOND))
    assert verdict.missed == {ProbeKind.GRAPHICS}
    assert verdict.untried == {ProbeKind.RAY_TRACING}
    assert verdict.obstacles == {DIED: [SECOND]}


def test_an_answer_before_the_death_of_its_process_counts() -> None:
    verdict = judged(looked(FIRST, Look.HIT, Look.HIT), untried(FIRST), untried(SECOND))
    assert verdict.obstacles == {DIED: [SECOND]}


def test_groups_that_were_not_asked_are_no_obstacle() -> None:
    verdict = judged(looked(FIRST, Look.HIT, Look.HIT), untried(SECOND), groups=(FIRST,))
    assert verdict.untried == set()
    assert verdict.obstacles == {}


def test_what_pipelines_always_have_is_no_obstacle() -> None:
    verdict = judged(looked(FIRST, Look.HIT, Look.HIT), untried(SECOND, NEEDED))
    assert verdict.untried == {ProbeKind.RAY_TRACING}
    assert verdict.obstacles == {}


def test_a_kind_without_a_result_is_an_obstacle() -> None:
    verdict = judged(looked(FIRST, Look.HIT, Look.HIT), looked(SECOND, Look.HIT, Look.UNKNOWN))
    assert verdict.untried == {ProbeKind.RAY_TRACING}
    assert verdict.obstacles == {"the device gives no result for its pipelines of kind ray tracing": [SECOND]}
