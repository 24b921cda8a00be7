"""From what was looked up to what a driver's keys depend on.

A pipeline can tell by one way of looking where the same baseline finds it in a new process and an empty cache
does not; by both, they must agree, and where they do not the look counts as a miss and the disagreement is
told.

Guarantees: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from orchestrator.devices.request import Feature
from orchestrator.key_dependence.messages import Look, Looked, ProbeGroup, ProbeKind, Untried, Variation


@frozen
class Usable:
    """Which pipelines of a group can tell, by each way of looking.

    Attributes:
        forbidden: With compiling forbidden.
        feedback: By creation feedback.
    """

    forbidden: tuple[bool, ...]
    feedback: tuple[bool, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the pipelines that can tell by either."""
        return tuple(
            place for place, both in enumerate(zip(self.forbidden, self.feedback, strict=True)) if any(both)
        )


@frozen
class Verdict:
    """What became of one variation.

    Attributes:
        variation: Which.
        tried: The kinds of pipelines that were looked up.
        missed: Those that were not found.
        identity: Whether the device got another identity.
        reasons: Why it could not be tried, by group.
        disagreements: Where the two ways of looking differ.
        prerequisites: Features that were in the baseline too.
    """

    variation: Variation
    tried: frozenset[ProbeKind] = frozenset()
    missed: frozenset[ProbeKind] = frozenset()
    identity: bool = False
    reasons: Mapping[str, str] = field(factory=dict)
    disagreements: tuple[str, ...] = ()
    prerequisites: tuple[Feature, ...] = ()


def usable(group: ProbeGroup, empty: Iterable[Looked], baseline: Looked | None) -> Usable:
    """Which pipelines of a group can tell.

    Args:
        group: The group.
        empty: What looks in an empty cache said.
        baseline: What the look of the same baseline in a new process said; None where it could not be had.
    """
    count = len(group.pipelines)
    if baseline is None:
        return Usable((False,) * count, (False,) * count)
    looks = tuple(empty)

    def ways(found: tuple[Look, ...], lacking: list[tuple[Look, ...]]) -> tuple[bool, ...]:
        return tuple(
            found[place] is Look.HIT and bool(lacking) and all(each[place] is Look.MISS for each in lacking)
            for place in range(count)
        )

    return Usable(
        ways(baseline.forbidden, [each.forbidden for each in looks]),
        ways(baseline.feedback, [each.feedback for each in looks]),
    )


def judge(
    variation: Variation,
    answers: Iterable[Looked | Untried],
    groups: Mapping[str, ProbeGroup],
    can_tell: Mapping[str, Usable],
) -> Verdict:
    """What a variation did to the keys.

    Args:
        variation: Which.
        answers: What was looked up, group by group.
        groups: The groups, by name.
        can_tell: Their pipelines that can tell, by name.
    """
    tried: set[ProbeKind] = set()
    missed: set[ProbeKind] = set()
    reasons: dict[str, str] = {}
    disagreements: list[str] = []
    prerequisites: tuple[Feature, ...] = ()
    same_identity = True
    for answer in answers:
        if isinstance(answer, Untried):
            reasons[answer.group] = answer.reason
            continue
        same_identity &= answer.identity
        prerequisites = prerequisites or answer.prerequisites
        ways = can_tell[answer.group]
        for place, pipeline in enumerate(groups[answer.group].pipelines):
            said = {
                look
                for look, counts in (
                    (answer.forbidden[place], ways.forbidden[place]),
                    (answer.feedback[place], ways.feedback[place]),
                )
                if counts and look is not Look.UNKNOWN
            }
            if not said:
                continue
            tried.add(pipeline.probe)
            if Look.MISS in said or not answer.identity:
                missed.add(pipeline.probe)
            if len(said) > 1:
                forbidden = "found" if answer.forbidden[place] is Look.HIT else "not found"
                disagreements.append(
                    f"{variation.text}: {pipeline.kind} pipeline {pipeline.key:016x} is {forbidden} with "
                    "compiling forbidden, and feedback says the contrary"
                )
    return Verdict(
        variation,
        frozenset(tried),
        frozenset(missed),
        not same_identity,
        reasons,
        tuple(disagreements),
        prerequisites,
    )
