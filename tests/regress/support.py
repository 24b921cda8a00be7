"""Results for the tests of regress: CSV of made-up executables, and Mesa's arithmetic in plain loops."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from orchestrator.regress.comparison import SideComparison
from orchestrator.regress.directions import statistic_of
from orchestrator.regress.results import Results

Row = tuple[str, int, str, Mapping[str, int]]
"""Application, key, name of the executable, statistics."""


def write_csv(path: Path, rows: Iterable[Row]) -> Path:
    """A CSV with a heading of its own for each row whose statistics are others than those before."""
    head: list[str] = []
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        for application, key, name, statistics in rows:
            wanted = ["Database", "Pipeline type", "Pipeline hash", "Executable name", *statistics]
            if wanted != head:
                writer.writerow(wanted)
                head = wanted
            writer.writerow([application, "GRAPHICS", f"{key:016x}", name, *statistics.values()])
    return path


def recomputed(before: Results, after: Results) -> dict[str, object]:
    """Totals, affected executables and split, as report-fossil.py defines them, one row after the other."""

    def rows_of(results: Results) -> dict[tuple[str, int, int], dict[str, float]]:
        found = {}
        for row in range(len(results)):
            place = (
                Path(results.applications[results.application[row]]).stem,
                int(results.key[row]),
                int(results.number[row]),
            )
            values = {name: each[row].item() for name, each in results.statistics.items()}
            found[place] = {
                name: value
                for name, value in values.items()
                if value == value and not (isinstance(value, int) and value == 0)
            }
        return found

    first, second = rows_of(before), rows_of(after)
    affected = 0
    sums: dict[str, list[float]] = {}
    for place in sorted(first.keys() & second.keys()):
        common = {
            name: (first[place][name], second[place][name])
            for name in first[place].keys() & second[place].keys()
            if statistic_of(name, after.side.driver).direction != "ignored"
        }
        is_affected = any(one != other for one, other in common.values())
        affected += is_affected
        for name, (one, other) in common.items():
            known = statistic_of(name, after.side.driver)
            if known.direction == "hash" or isinstance(one, int):
                continue
            of = sums.setdefault(name, [0.0] * 6)
            of[0] += one
            of[1] += other
            if is_affected:
                of[2] += one
                of[3] += other
            if one != other:
                better = (other > one) == (known.direction == "better")
                of[4 if better else 5] += other - one
    return {
        "executables": len(first.keys() & second.keys()),
        "affected": affected,
        "changes": {name: tuple(of) for name, of in sums.items() if of[4] or of[5]},
    }


def computed(found: SideComparison) -> dict[str, object]:
    """The same from a comparison."""
    pairs = zip(found.total.changes, found.total.affected_changes, strict=True)
    return {
        "executables": found.total.executables,
        "affected": found.total.affected,
        "changes": {
            whole.statistic.name: (
                *(whole.before, whole.after, part.before, part.after),
                *(whole.gain, whole.loss),
            )
            for whole, part in pairs
        },
    }


def random_rows(seed: int, share: float) -> list[Row]:
    """Executables of two applications, of which a share differs from those of seed 0."""
    plain, other = np.random.default_rng(0), np.random.default_rng(seed)
    names = ("SGPRs", "Spilled SGPRs", "Code size", "Subgroups per SIMD", "Hash", "Made up")
    rows: list[Row] = []
    for number in range(400):
        values = plain.integers(0, 50, len(names))
        values = values + other.integers(-3, 4, len(names)) * (other.random(len(names)) < share)
        had = names if number % 7 else names[2:]
        statistics = {name: abs(int(value)) for name, value in zip(names, values, strict=True) if name in had}
        rows.append((f"games/{number % 2}.foz", number // 2 + 1, "vertex", statistics))
    return rows
