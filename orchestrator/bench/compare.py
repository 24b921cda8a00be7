"""Compares two benchmarks: what changed beyond noise.

Cells match by start, duplicates, workers and mode, and by device unless each file has just one. Samples of
two files are not pairs: the interval is that of a ratio of medians, wide enough for all cells together, and
the noise is the larger one of both A/A controls. Time decides where neither run waited for a processor; where
it doesn't, CPU time per pipeline does. An A/A control covers one run, so drift is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from statistics import median
from typing import Final

from attrs import evolve, frozen
from msgspec import structs

from orchestrator.bench.rows import (
    ENVIRONMENT_WORDS,
    Cell,
    FailedSample,
    Pairs,
    Row,
    Sample,
    Start,
    busy_share,
    cells_of,
    control_of,
    counted,
    counted_samples,
    failed_arms,
)
from orchestrator.bench.statistics import (
    BUSY_SHARE,
    CONFIDENCE,
    Difference,
    Estimate,
    noise_factor,
    ratio_by_round,
    unpaired_ratio,
)


@frozen
class CellChange:
    """One cell in both files."""

    before: Cell
    after: Cell
    seconds_before: float  # Median time of one pass over the set, keys and merge included, in the first file.
    seconds_after: float
    # Time in the second file over time in the first; no verdict where one waited for processors.
    time: Difference
    cpu: Difference  # The same for CPU time per pipeline.
    memory: Difference  # The same for peak memory; no verdict if the numbers of passes differ.
    refused_added: int  # Increase of the number of pipelines that the driver refuses in one pass.
    skipped_added: int  # Increase of the number of pipelines that are skipped, such as those in quarantine.

    @property
    def decisive(self) -> Difference:
        """The figure that decides: time if it is decided, else CPU time."""
        return self.time if self.time.decided or not self.cpu.decided else self.cpu


@frozen
class ChangeReport:
    """The changes from one file to another."""

    changes: tuple[CellChange, ...]  # The cells that both files have.
    only_before: tuple[Cell, ...]
    only_after: tuple[Cell, ...]
    # The last attempt of each arm that the first file measures and the second one could not.
    failed: tuple[FailedSample, ...]
    differences: tuple[str, ...]  # Other differences, such as the driver's version, in words.
    pipelines_added: int | None  # Increase of the number of pipelines; None if a file has several sets.

    @property
    def slower(self) -> tuple[CellChange, ...]:
        """Cells that are slower beyond noise."""
        return tuple(each for each in self.changes if each.decisive.higher)

    @property
    def faster(self) -> tuple[CellChange, ...]:
        """Cells that are faster beyond noise."""
        return tuple(each for each in self.changes if each.decisive.lower)

    @property
    def undecided(self) -> tuple[CellChange, ...]:
        """Cells without a verdict."""
        return tuple(each for each in self.changes if not each.decisive.decided)

    @property
    def refused_added(self) -> int:
        """Largest increase of the number of pipelines that the driver refuses, over the cells."""
        return max(each.refused_added for each in self.changes)

    @property
    def skipped_added(self) -> int:
        """Largest increase of the number of pipelines that are skipped, over the cells."""
        return max(each.skipped_added for each in self.changes)

    @property
    def missing(self) -> str:
        """What the second file lacks of the first one's measurements, in words; "" if nothing."""
        counts = {
            "pipelines refused": self.refused_added,
            "pipelines skipped": self.skipped_added,
            "cells only before": len(self.only_before),
            "failed after": len(self.failed),
        }
        return ", ".join(f"{count} more {words}" for words, count in counts.items() if count > 0)

    @property
    def summary(self) -> str:
        """One sentence, such as "adds 312 pipelines, +41 s cold; of 12 cells 3 slower, 8 equal"."""
        slower, faster = self.slower, self.faster
        parts = []
        if self.pipelines_added:
            verb = "adds" if self.pipelines_added > 0 else "removes"
            parts.append(f"{verb} {abs(self.pipelines_added):,} pipelines")
        if cold := [each for each in slower + faster if each.after.start == Start.COLD]:
            most = max(cold, key=lambda each: abs(each.seconds_after - each.seconds_before))
            added_s = most.seconds_after - most.seconds_before
            parts.append(
                f"{added_s:+.3g} s cold ({most.after.mode}, {counted(most.after.workers, 'worker')})"
            )
        counts = {"slower beyond noise": len(slower), "faster": len(faster), "undecided": len(self.undecided)}
        counts["the same"] = len(self.changes) - sum(counts.values())
        found = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
        return "; ".join(filter(None, [", ".join(parts), f"of {counted(len(self.changes), 'cell')} {found}"]))


def compare_samples(
    before: Iterable[Row], after: Iterable[Row], devices: Sequence[tuple[str, str]] = ()
) -> ChangeReport:
    """Compare two benchmarks.

    Args:
        before: Rows of the first.
        after: Rows of the second.
        devices: Pairs of selectors, the first file's and the second's; only these are compared. None pairs
            equal selectors, or the two devices if each file has just one.

    Raises:
        ValueError: A file has no samples, or the files have no cell in common. The message names the
            difference.
    """
    after = list(after)
    first, second = counted_samples(before), counted_samples(after)
    first_cells, second_cells = cells_of(first), cells_of(second)
    for place, (side, cells) in enumerate((("first", first_cells), ("second", second_cells))):
        if not cells:
            raise ValueError(f"the {side} holds no samples (warm-ups and failures do not count)")
        there = {cell.device for cell in cells}
        for pair in devices:
            if pair[place] not in there:
                raise ValueError(
                    f"the {side} has no device {pair[place]!r}; it has {', '.join(sorted(there))}"
                )
    if devices:
        others = {other for _, other in devices}
        second_cells = {cell: rows for cell, rows in second_cells.items() if cell.device in others}
    named = sorted(
        (cell, structs.replace(cell, device=other))
        for device, other in dict.fromkeys(devices or _paired(first_cells, second_cells))
        for cell in first_cells
        if cell.device == device
    )
    wanted = {other for _, other in named}
    matched = [pair for pair in named if pair[1] in second_cells]
    if not matched:
        raise ValueError(_nothing_in_common([other for _, other in named], list(second_cells)))
    given, taken = ({pair[place] for pair in matched} for place in (0, 1))
    compared = [each for each in first if each.cell in given], [each for each in second if each.cell in taken]
    # So many cells are so many chances of a false verdict (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(matched)
    counts = [{each.set_pipelines for each in samples} for samples in compared]
    one_set = all(len(each) == 1 for each in counts)
    return ChangeReport(
        changes=tuple(
            _change(
                pair,
                (first_cells[pair[0]], second_cells[pair[1]]),
                (control_of(first, pair[0].conditions), control_of(second, pair[1].conditions)),
                confidence,
            )
            for pair in matched
        ),
        only_before=tuple(dict.fromkeys(cell for cell, other in named if other not in second_cells)),
        only_after=tuple(sorted(set(second_cells) - taken)),
        failed=tuple(each for each in failed_arms(after) if each.cell in wanted),
        differences=tuple(_differences(*compared)),
        pipelines_added=counts[1].pop() - counts[0].pop() if one_set else None,
    )


def _nothing_in_common(first: Sequence[Cell], second: Sequence[Cell]) -> str:
    apart = []
    for name in Cell.__struct_fields__:
        sides = [sorted({getattr(cell, name) for cell in cells}) for cells in (first, second)]
        if not set(sides[0]) & set(sides[1]):
            apart.append(f"{name}: {' and '.join(', '.join(map(str, side)) for side in sides)}")
    differs = "; ".join(apart) or "no cell has the same device, start, duplicates, workers and mode"
    hint = "; --device A=B pairs a device of the first with one of the second"
    return f"the two have no cell in common: {differs}" + (hint if differs.startswith("device") else "")


def _paired(first: Iterable[Cell], second: Iterable[Cell]) -> list[tuple[str, str]]:
    devices, others = ({cell.device for cell in cells} for cells in (first, second))
    return list(zip(devices, others if len(devices) == len(others) == 1 else devices, strict=True))


def _larger(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    if first is None or second is None:
        return None
    return evolve(max(first, second, key=noise_factor), count=min(first.count, second.count))


def _change(
    cells: tuple[Cell, Cell],
    samples: tuple[Sequence[Sample], Sequence[Sample]],
    controls: tuple[tuple[Pairs, Pairs], tuple[Pairs, Pairs]],
    confidence: float,
) -> CellChange:
    first, second = samples

    def difference(
        value: Callable[[Sample], float], *, comparable: bool = True, busy: float = 0.0
    ) -> Difference:
        above, below = ([max(value(each), 1e-9) for each in side] for side in (second, first))
        noise = [ratio_by_round(control, baseline, value) for baseline, control in controls]
        ratio = unpaired_ratio(above, below, confidence)
        return Difference(ratio, _larger(*noise) if comparable else None, busy)

    passes = {each.passes for each in (*first, *second)}
    seconds = [median(each.once_s for each in side) for side in samples]
    return CellChange(
        before=cells[0],
        after=cells[1],
        seconds_before=seconds[0],
        seconds_after=seconds[1],
        time=difference(lambda each: each.once_s, busy=max(map(busy_share, samples))),
        cpu=difference(lambda each: each.cpu_per_pipeline_ns),
        memory=difference(lambda each: each.peak_memory_bytes, comparable=len(passes) == 1),
        refused_added=max(each.refused for each in second) - max(each.refused for each in first),
        skipped_added=max(each.skipped for each in second) - max(each.skipped for each in first),
    )


_NAMED: Final = {
    "set_name": "set",
    "set_hash": "hash of the set",
    "skipped": "pipelines skipped",
    "refused": "pipelines refused in a pass",
    "batch": "batch",
    "passes": "passes over the set in a run",
    "order": "order of pipelines",
} | {f"environment.{name}": words for name, words in ENVIRONMENT_WORDS.items()}


def _differences(first: Sequence[Sample], second: Sequence[Sample]) -> list[str]:
    found = []
    for name, words in _NAMED.items():
        before, after = (sorted({_text(attrgetter(name)(each)) for each in of}) for of in (first, second))
        if before != after:
            found.append(f"{words}: {', '.join(before)} -> {', '.join(after)}")
    delays = [busy_share(of) for of in (first, second)]
    if max(delays) > BUSY_SHARE:
        found.append(f"time without a processor: {delays[0]:.0%} -> {delays[1]:.0%}")
    return found


def _text(value: object) -> str:
    return ("; ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
