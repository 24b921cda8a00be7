# Purpose: what to measure next where time may be short: many cells with too few pairs say nothing, a few with enough do.
#
#   no limit          the rounds of the plan, in its order
#   a limit           groups with the most workers first: as many of them as can get the pairs that a verdict needs,
#                     round by round; then what brings others nearer to that; then more pairs for all
#
# Guarantees: pure. What is handed out is one round of one group, all of it that has no row yet, so that the legs of a pair
# are taken side by side. Under a limit a round is handed out only where, by all that is known, it ends in time; a
# group of which nothing is known gets one, its warm-up as a rule, to learn what it costs.
"""What to measure next."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.bench.jobs import SampleJob
from orchestrator.bench.plan import eta_of, leg_of
from orchestrator.measure.samples import Group, Row
from orchestrator.measure.statistics import LEAST_PAIRS

Round = tuple[SampleJob, ...]


def next_round(waiting: Sequence[SampleJob], rows: Sequence[Row], left_s: float | None) -> Round:
    """The samples to take next: one round of one group; none where nothing ends in time.

    Args:
        waiting: What has no row yet, in the order of the plan.
        rows: What is there.
        left_s: Time left, s; None for as long as it takes.
    """
    rounds = _rounds(waiting)
    if left_s is None or not rounds:
        return rounds[0] if rounds else ()
    if left_s <= 0:
        return ()
    groups = sorted(dict.fromkeys(map(_group, rounds)), key=lambda each: -each.workers)
    budget, chosen, short = left_s, set(), []
    for group in groups:
        missing = [each for each in rounds if _group(each) == group and each[0].round < LEAST_PAIRS]
        eta = eta_of([job for each in missing for job in each], rows)
        if eta.unknown:
            return missing[0]
        if missing and eta.seconds <= budget:
            budget -= eta.seconds
            chosen.add(group)
        elif missing:
            short.append((eta.seconds, missing[0]))
    # In the order of the plan the chosen groups take turns. Of the others the one that lacks least comes first.
    wanted = [each for each in rounds if _group(each) in chosen and each[0].round < LEAST_PAIRS]
    wanted += [each for _, each in sorted(short, key=lambda item: item[0])]
    wanted += [each for each in rounds if each[0].round >= LEAST_PAIRS]
    return next((each for each in wanted if eta_of(each, rows).seconds <= left_s), ())


def _rounds(waiting: Sequence[SampleJob]) -> list[Round]:
    """The jobs by round and group, in the order of the plan."""
    found: dict[tuple[int, Group], list[SampleJob]] = {}
    for job in waiting:
        found.setdefault((job.round, _group((job,))), []).append(job)
    return [tuple(each) for each in found.values()]


def _group(jobs: Round) -> Group:
    return Group(*leg_of(jobs[0]).cell[:4])
