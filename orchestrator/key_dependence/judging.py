"""Judges variations by the results of look-ups. Pure.

There are two ways to detect a hit: with compiling forbidden, and by creation feedback. A way is usable for a
pipeline if the same baseline hits in a new process, and misses in an empty cache. If both are usable and
disagree, the look-up counts as a miss, and the disagreement is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attrs import field, frozen

from orchestrator.devices.request import Feature
from orchestrator.key_dependence.messages import (
    NEEDED,
    Look,
    Looked,
    ProbeGroup,
    ProbeKind,
    Untried,
    Variation,
)


@frozen
class Usable:
    """Which pipelines of a group are usable, with compiling forbidden and by creation feedback."""

    forbidden: tuple[bool, ...]
    feedback: tuple[bool, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the pipelines that are usable in either way."""
        return tuple(
            place for place, both in enumerate(zip(self.forbidden, self.feedback, strict=True)) if any(both)
        )

    def looks(self, answer: Looked, place: int) -> list[Look]:
        """The results for a pipeline, in the usable ways."""
        ways = ((answer.forbidden, self.forbidden), (answer.feedback, self.feedback))
        return [look[place] for look, counts in ways if counts[place]]


@frozen
class Verdict:
    """The result of one variation.

    Attributes:
        tried: The kinds of pipelines that were looked up.
        missed: The kinds with a miss.
        untried: The kinds that it should have been tried with, but gave no result.
        identity: Whether the device has another identity.
        reasons: Why it could not be tried, by group: for all groups that gave no result.
        disagreements: Pipelines for which the two ways disagree, in words.
        prerequisites: Features that the variation needs, and that were also in the baseline.
    """

    variation: Variation
    tried: frozenset[ProbeKind] = frozenset()
    missed: frozenset[ProbeKind] = frozenset()
    untried: frozenset[ProbeKind] = frozenset()
    identity: bool = False
    reasons: Mapping[str, str] = field(factory=dict)
    disagreements: tuple[str, ...] = ()
    prerequisites: tuple[Feature, ...] = ()

    @property
    def obstacles(self) -> dict[str, list[str]]:
        """The groups that it could not be tried with, by reason; without those that always have it."""
        found: dict[str, list[str]] = {}
        for group, reason in self.reasons.items():
            if reason != NEEDED:
                found.setdefault(reason, []).append(group)
        return found


def usable(group: ProbeGroup, empty: Iterable[Looked], baseline: Looked | None) -> Usable:
    """Determine the usable pipelines of a group.

    `empty` are look-ups in an empty cache; `baseline` is the look-up of the same baseline in a new process,
    or None if that failed.
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
    answers: Collection[Looked | Untried],
    groups: Mapping[str, ProbeGroup],
    can_tell: Mapping[str, Usable],
) -> Verdict:
    """Judge a variation by its answers; `groups` and `can_tell` (the usable pipelines) are by group name."""
    asked = variation.groups or tuple(groups)
    could = {name: {groups[name].pipelines[each].probe for each in can_tell[name].places} for name in asked}
    looked = {each.group for each in answers if isinstance(each, Looked)}
    tried: set[ProbeKind] = set()
    missed: set[ProbeKind] = set()
    reasons: dict[str, str] = {}
    disagreements: list[str] = []
    prerequisites: tuple[Feature, ...] = ()
    same_identity = True
    for answer in answers:
        if isinstance(answer, Untried):
            # A process that dies at one group answers so for groups of which it has told, or was not asked.
            if answer.group in could.keys() - looked:
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
                    "compiling forbidden, but feedback disagrees"
                )
    untried = frozenset(kind for kinds in could.values() for kind in kinds) - tried
    for group in sorted(looked):
        if silent := could[group] & untried:
            reasons[group] = (
                f"the device gives no result for its pipelines of kind {', '.join(sorted(silent))}"
            )
    return Verdict(
        variation,
        frozenset(tried),
        frozenset(missed),
        untried,
        not same_identity,
        reasons,
        tuple(disagreements),
        prerequisites,
    )
