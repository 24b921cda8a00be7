"""From what was looked up to what a driver's keys depend on. Pure.

A pipeline can tell by one way of looking where the same baseline finds it in a new process and an empty cache
does not; by both, they must agree, and where they do not the look counts as a miss and the disagreement is
told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from orchestrator.devices.request import Feature
from orchestrator.key_dependence.messages import Look, Looked, ProbeGroup, ProbeKind, Untried, Variation


@frozen
class Usable:
    """Which pipelines of a group can tell: with compiling forbidden, and by creation feedback."""

    forbidden: tuple[bool, ...]
    feedback: tuple[bool, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the pipelines that can tell by either."""
        return tuple(
            place for place, both in enumerate(zip(self.forbidden, self.feedback, strict=True)) if any(both)
        )

    def looks(self, answer: Looked, place: int) -> list[Look]:
        """What an answer says of a pipeline by the ways that can tell."""
        ways = ((answer.forbidden, self.forbidden), (answer.feedback, self.feedback))
        return [look[place] for look, counts in ways if counts[place]]


@frozen
class Verdict:
    """What became of one variation.

    Attributes:
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

    `empty` is what looks in an empty cache said, `baseline` what the look of the same baseline in a new
    process said: None where it could not be had.
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
    """What a variation did to the keys; groups and their pipelines that can tell are by name."""
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
            said = set(ways.looks(answer, place)) - {Look.UNKNOWN}
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
