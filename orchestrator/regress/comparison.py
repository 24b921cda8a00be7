"""What changed from one side to the other: executables joined one to one, and sums over them.

The arithmetic is that of Mesa's report-fossil.py: only what both sides have is counted; a shader is affected
if any statistic or hash that both sides have differs; totals of affected shaders have all their statistics;
the split is the sum over those that got better, and over those that got worse, of the sum before.

Guarantees: pure, and no loop over executables. Statistics are equal by their exact names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.regress.directions import Statistic, place_of, statistic_of
from orchestrator.regress.results import Column, Floats, Lost, Results
from orchestrator.run.records import Hash, Record

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


class StatisticChange(Record, frozen=True):
    """A statistic over a number of executables that have it on both sides."""

    statistic: Statistic  # The statistic.
    before: float  # Its sum.
    after: float
    better: int  # Executables that got better; without a direction, that have less of it.
    worse: int
    gain: float  # Change of the sum by those that got better.
    loss: float  # Change of the sum by those that got worse.

    @property
    def share(self) -> float:
        """After over before, less 1; infinite where there was none before."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1.0 if self.before else float("inf")


class ExecutableTotals(Record, frozen=True):
    """Executables, and the statistics that differ somewhere among them."""

    executables: int  # Executables that both sides have.
    affected: int  # Of these, with a difference.
    changes: tuple[StatisticChange, ...]  # Over all of them.
    affected_changes: tuple[StatisticChange, ...]  # Over the affected ones, as Mesa's block has it.

    def of(self, name: str) -> StatisticChange | None:
        """The change of a statistic over all, by its name or its short name in any case."""
        return next((each for each in self.changes if each.statistic.is_called(name)), None)


class OnlyOne(Record, frozen=True):
    """Pipelines that one side has, or none, by why the other one does not."""

    side: str  # The side that has them: before or after; "" for neither.
    status: str  # On the other one: skipped, failed, crashed, not run, untold, or absent.
    reason: str
    pipelines: tuple[tuple[str, Hash], ...]  # Application and key of each.


@frozen(eq=False)
class SideComparison:
    """The comparison of two sides."""

    before: Results
    after: Results
    first: Rows  # Rows of `before` that both sides have, shape (n,).
    second: Rows  # Their rows of `after`.
    application: npt.NDArray[np.int64]  # Place of each in `applications`.
    applications: tuple[str, ...]  # Names, as short as both sides allow.
    deltas: Mapping[Statistic, Floats]  # After less before, shape (n,); NaN where one side lacks it.
    affected: Mask  # Which of the n are affected.
    total: ExecutableTotals  # Over all of them.
    by_application: Mapping[str, ExecutableTotals]  # The same for each application that has any.
    only_one: tuple[OnlyOne, ...]  # Pipelines that one side lacks.
    unlike: int  # Pipelines that differ in their number of executables.
    neither: tuple[OnlyOne, ...]  # Pipelines that both sides lack, with the reason of the side after.

    @property
    def is_identical(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.affected.any() and not self.only_one and not self.unlike and not self.waves.size

    @property
    def waves(self) -> Rows:
        """Which of the n changed their subgroup size."""
        sizes = self.before.subgroup[self.first], self.after.subgroup[self.second]
        return np.flatnonzero((sizes[0] != sizes[1]) & (sizes[0] > 0) & (sizes[1] > 0))

    def new_of(self, role: str) -> Rows:
        """Which of the n spill where none did before, or lost occupancy, by the role of the statistics."""
        found = np.zeros(len(self.first), np.bool_)
        for statistic, delta in self.deltas.items():
            if statistic.role == role:
                was_none = self.before.statistics[statistic.name][self.first] == 0
                found |= (was_none & (delta > 0)) if role == "spill" else (delta < 0)
        return np.flatnonzero(found)

    def values(self, statistic: Statistic, places: Rows) -> tuple[Column, Column]:
        """Values before and after at places among the n."""
        sides = (self.before, self.first), (self.after, self.second)
        before, after = (side.statistics[statistic.name][rows[places]] for side, rows in sides)
        return before, after

    def worst(self, statistic: Statistic, order: str, most: int) -> Rows:
        """Where it got worse, or changed if its direction is not known.

        Args:
            statistic: One of `deltas`.
            order: "absolute", "relative", or "smallest": by the size of the code, the least first, which is
                what one debugs.
            most: So many at most.
        """
        delta = self.deltas[statistic]
        harm = -delta if statistic.direction == "better" else delta
        has = ~np.isnan(delta) & ((harm > 0) if statistic.direction in ("better", "worse") else (delta != 0))
        places = np.flatnonzero(has)
        change = np.abs(delta[places])
        if order == "relative":
            change = change / np.maximum(np.abs(self.values(statistic, places)[0]), 1e-4)
        elif order == "smallest":
            change = -self._size()[places]
        return places[np.argsort(-change, kind="stable")[:most]]

    def _size(self) -> Floats:
        sizes = [each for each in self.deltas if each.role == "size"]
        if not sizes:
            return np.zeros(len(self.first))
        return np.nan_to_num(self.before.statistics[sizes[0].name][self.first].astype(np.float64))


def compare_results(before: Results, after: Results) -> SideComparison:
    """Compare two sides."""
    applications, places = _applications(before, after)
    own = [places[0][before.application], places[1][after.application]]
    first, second, unlike = _joined(before, after, own)
    driver = after.side.driver or before.side.driver
    known = [statistic_of(name, driver) for name in before.statistics if name in after.statistics]
    known = sorted(
        (each for each in known if each.direction != "ignored"), key=lambda each: place_of(each.name)
    )
    deltas: dict[Statistic, Floats] = {}
    affected = np.zeros(len(first), np.bool_)
    for each in known:
        values = before.statistics[each.name][first], after.statistics[each.name][second]
        if values[0].dtype == np.uint64:
            affected |= (values[0] != values[1]) & (values[0] != 0) & (values[1] != 0)
            continue
        deltas[each] = values[1].astype(np.float64) - values[0].astype(np.float64)
        affected |= np.nan_to_num(deltas[each]) != 0
    where = own[0][first]
    totals = _totals(before, after, (first, second), deltas, affected, np.zeros(len(first), np.int64), 1)
    by_place = _totals(before, after, (first, second), deltas, affected, where, len(applications))
    named = {name: each for name, each in zip(applications, by_place, strict=True) if each.executables}
    lacking = _lacking(before, after, own, applications, places)
    return SideComparison(
        before=before,
        after=after,
        first=first,
        second=second,
        application=where,
        applications=applications,
        deltas=deltas,
        affected=affected,
        total=totals[0],
        by_application=named,
        only_one=tuple(each for each in lacking if each.side),
        unlike=unlike,
        neither=tuple(each for each in lacking if not each.side),
    )


def _applications(
    before: Results, after: Results
) -> tuple[tuple[str, ...], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    # Two files name the same set by different paths: the fewest last parts of a path that tell them apart.
    sides = [[PurePath(each) for each in of.applications] for of in (before, after)]
    deepest = max((len(each.parts) for side in sides for each in side), default=1)
    for parts in range(1, deepest + 1):
        short = [["/".join(each.parts[-parts:]).removesuffix(".foz") for each in side] for side in sides]
        if all(len(set(side)) == len(side) for side in short):
            break
    else:
        short = [list(each.applications) for each in (before, after)]
    names = {name: place for place, name in enumerate(sorted({*short[0], *short[1]}))}
    first, second = (np.array([names[each] for each in side], np.int64) for side in short)
    return tuple(names), (first, second)


def _joined(before: Results, after: Results, own: Sequence[npt.NDArray[np.int64]]) -> tuple[Rows, Rows, int]:
    # Both sides in one order: what is equal beside its neighbour is on both.
    count = len(before)
    application = np.concatenate(own)
    key = np.concatenate([before.key, after.key])
    number = np.concatenate([before.number, after.number])
    order = np.lexsort((number, key, application))
    application, key, number = application[order], key[order], number[order]
    same = (application[1:] == application[:-1]) & (key[1:] == key[:-1])
    pairs = np.flatnonzero(same & (number[1:] == number[:-1]))
    # lexsort is stable, so the side before comes first.
    first, second = order[pairs], order[pairs + 1] - count
    alone = np.ones(len(order), np.bool_)
    alone[pairs], alone[pairs + 1] = False, False
    # Of a pipeline that both have, an executable that one has: its first one is paired.
    starts = np.concatenate([[True], ~same]) if len(order) else np.zeros(0, np.bool_)
    run = np.cumsum(starts) - 1
    runs = int(run[-1]) + 1 if len(run) else 0
    has_pair, has_alone = np.zeros(runs, np.bool_), np.zeros(runs, np.bool_)
    has_pair[run[pairs]] = True
    has_alone[run[alone]] = True
    by_row = np.argsort(first, kind="stable")
    return first[by_row], second[by_row], int(np.count_nonzero(has_pair & has_alone))


def _totals(
    before: Results,
    after: Results,
    rows: tuple[Rows, Rows],
    deltas: Mapping[Statistic, Floats],
    affected: Mask,
    group: npt.NDArray[np.int64],
    groups: int,
) -> list[ExecutableTotals]:
    def summed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.bincount(group, values, groups)

    found: list[list[tuple[StatisticChange, StatisticChange]]] = [[] for _ in range(groups)]
    for statistic, delta in deltas.items():
        has = ~np.isnan(delta)
        delta = np.where(has, delta, 0.0)
        less, more = delta < 0, delta > 0
        good, bad = (more, less) if statistic.direction == "better" else (less, more)
        sides = zip((before, after), rows, strict=True)
        values = [np.where(has, side.statistics[statistic.name][of], 0.0) for side, of in sides]
        sums = [summed(each) for each in values] + [summed(each * affected) for each in values]
        told = [summed(each) for each in (good, bad, delta * good, delta * bad)]
        for place in np.flatnonzero(told[0] + told[1]).tolist():
            split = int(told[0][place]), int(told[1][place]), float(told[2][place]), float(told[3][place])
            whole, part = (
                StatisticChange(statistic, float(sums[at][place]), float(sums[at + 1][place]), *split)
                for at in (0, 2)
            )
            found[place].append((whole, part))
    counts, hit = np.bincount(group, minlength=groups), np.bincount(group[affected], minlength=groups)
    return [
        ExecutableTotals(
            int(counts[place]),
            int(hit[place]),
            tuple(whole for whole, _ in each),
            tuple(part for _, part in each),
        )
        for place, each in enumerate(found)
    ]


def _lacking(
    before: Results,
    after: Results,
    own: Sequence[npt.NDArray[np.int64]],
    applications: tuple[str, ...],
    places: Sequence[npt.NDArray[np.int64]],
) -> list[OnlyOne]:
    sides = before, after
    have = [
        set(zip(of.tolist(), each.key.tolist(), strict=True)) for of, each in zip(own, sides, strict=True)
    ]
    why = list[dict[tuple[int, int], Lost]]()
    for side, at in zip(sides, places, strict=True):
        place_of = dict(zip(side.applications, at.tolist(), strict=True))
        why.append({(place_of[each.application], each.key): each for each in side.lost})
    found: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for name, here, other in (("before", 0, 1), ("after", 1, 0)):
        absent = Lost("", 0, "absent", f"not in {sides[other].side.name}")
        for each in sorted(have[here] - have[other]):
            lost = why[other].get(each, absent)
            found.setdefault((name, lost.status, lost.reason), []).append(each)
    for each in sorted(why[0].keys() & why[1].keys()):
        found.setdefault(("", why[1][each].status, why[1][each].reason), []).append(each)
    return [
        OnlyOne(*told, tuple((applications[place], Hash(key)) for place, key in pipelines))
        for told, pipelines in found.items()
    ]
