"""Judges variations by the results of look-ups. Pure.

A pipeline can tell if its baseline hits in a new process, and misses in an empty cache.
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

Places = tuple[int, ...]


@frozen
class Judged:
    """The result of one variation."""

    variation: Variation
    tried: frozenset[ProbeKind] = frozenset()  # The kinds of pipelines that were looked up.
    missed: frozenset[ProbeKind] = frozenset()  # The kinds with a miss.
    untried: frozenset[ProbeKind] = frozenset()  # The kinds that gave no result, although they should have.
    identity: bool = False  # Whether the device has another identity.
    # Why it could not be tried, by group: for all groups that gave no result.
    reasons: Mapping[str, str] = field(factory=dict)
    # Features that the variation needs, and that were also in the baseline.
    prerequisites: tuple[Feature, ...] = ()

    @property
    def obstacles(self) -> dict[str, list[str]]:
        """The groups that it could not be tried with, by reason; without those that always have it."""
        found: dict[str, list[str]] = {}
        for group, reason in self.reasons.items():
            if reason != NEEDED:
                found.setdefault(reason, []).append(group)
        return found


def usable(warm: Looked | None, empty: Iterable[Looked]) -> Places:
    """The places of the pipelines that can tell.

    Args:
        warm: The look-up of the same baseline in a new process, None if there is none.
        empty: Look-ups of it in an empty cache.
    """
    lacking = [each.looks for each in empty]
    if warm is None or not warm.identity or not lacking:
        return ()
    return tuple(
        place
        for place, look in enumerate(warm.looks)
        if look is Look.HIT and all(each[place] is Look.MISS for each in lacking)
    )


def judge(
    variation: Variation,
    answers: Collection[Looked | Untried],
    groups: Mapping[str, ProbeGroup],
    places: Mapping[str, Places],
) -> Judged:
    """Judge a variation by its answers; `groups` and `places` (the pipelines that can tell) are by name."""
    asked = variation.groups or tuple(groups)
    could = {name: {groups[name].pipelines[each].probe for each in places[name]} for name in asked}
    looked = [each for each in answers if isinstance(each, Looked)]
    # A process that dies at one group leaves the answers of others.
    reasons = {
        each.group: each.reason for each in answers if isinstance(each, Untried) and each.group in could
    }
    for each in looked:
        reasons.pop(each.group, None)
    tried: set[ProbeKind] = set()
    missed: set[ProbeKind] = set()
    for each in looked:
        for place in places[each.group]:
            if each.looks[place] is not Look.UNKNOWN:
                kind = groups[each.group].pipelines[place].probe
                tried.add(kind)
                if each.looks[place] is Look.MISS or not each.identity:
                    missed.add(kind)
    untried = frozenset(kind for probes in could.values() for kind in probes) - tried
    for name in sorted(each.group for each in looked):
        if silent := could[name] & untried:
            reasons[name] = (
                f"the device gives no result for its pipelines of kind {', '.join(sorted(silent))}"
            )
    return Judged(
        variation,
        frozenset(tried),
        frozenset(missed),
        untried,
        not all(each.identity for each in looked),
        reasons,
        next((each.prerequisites for each in looked if each.prerequisites), ()),
    )
