"""Judges a variation by what was looked up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from orchestrator.devices.request import Feature
from orchestrator.key_dependence.messages import NEEDED, Look, Looked, LookJob, ProbeKind, Variation


@frozen
class Verdict:
    """The result of one variation, by kind of pipeline."""

    variation: Variation
    tried: frozenset[ProbeKind]  # Those that were looked up.
    missed: frozenset[ProbeKind]  # Those with a miss.
    untried: frozenset[ProbeKind]  # Those that gave no result, although they should have.
    identity: bool  # Whether the device has another identity.
    reasons: Mapping[str, str]  # Why it could not be tried, by group.
    prerequisites: tuple[Feature, ...]  # What the variation needs, and was also in the baseline.

    @property
    def obstacles(self) -> dict[str, list[str]]:
        """The groups that it could not be tried with, by reason; without those that always have it."""
        found: dict[str, list[str]] = {}
        for group, reason in self.reasons.items():
            if reason != NEEDED:
                found.setdefault(reason, []).append(group)
        return found


def judge(variation: Variation, answers: Iterable[tuple[LookJob, Looked]]) -> Verdict:
    """Judge a variation by the jobs of its groups."""
    tried: set[ProbeKind] = set()
    missed: set[ProbeKind] = set()
    kinds: dict[str, set[ProbeKind]] = {}
    reasons: dict[str, str] = {}
    looked: list[Looked] = []
    for job, answer in answers:
        probes = {place: job.group.pipelines[place].probe for place in job.usable}
        kinds[job.group.name] = set(probes.values())
        if answer.reason:
            reasons[job.group.name] = answer.reason
            continue
        looked.append(answer)
        for place, kind in probes.items():
            if answer.looks[place] is not Look.UNKNOWN:
                tried.add(kind)
                if answer.looks[place] is Look.MISS or not answer.identity:
                    missed.add(kind)
    for name, of_group in sorted(kinds.items()):
        silent = sorted(of_group - tried)
        if silent and name not in reasons:
            reasons[name] = f"the device gives no result for its pipelines of kind {', '.join(silent)}"
    return Verdict(
        variation,
        frozenset(tried),
        frozenset(missed),
        frozenset[ProbeKind]().union(*kinds.values()) - tried,
        not all(each.identity for each in looked),
        reasons,
        next((each.prerequisites for each in looked if each.prerequisites), ()),
    )
