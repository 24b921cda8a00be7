"""Compares two benchmarks: what changed beyond noise.

Cells match by start, duplicates, workers and mode, and by device unless each file has just one. The figures
are those of one pass over the set, so the number of passes need not match. Only peak memory gets no verdict
then, since a run keeps the pipelines of all its passes. Samples of two files are not pairs: the interval is
that of a ratio of medians. The noise is the larger one of both files' A/A controls, separately for each
figure. Cells with fewer than 5 samples get no verdict.

Limits: an A/A control covers one run, so it cannot show drift between the runs, such as a cooler machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from attrs import evolve, frozen

from orchestrator.bench.rows import (
    Cell,
    FailedSample,
    Row,
    Sample,
    Start,
    cells_of,
    control_of,
    counted,
    counted_samples,
    failed_arms,
)
from orchestrator.bench.statistics import (
    LEAST_PAIRS,
    Difference,
    Noise,
    estimate,
    noise_by_round,
    unpaired_ratio,
)


@frozen
class CellChange:
    """One cell in both files.

    Attributes:
        before: The cell in the first file.
        after: The cell in the second file.
        seconds_before: Median time of one pass over the set, keys and merge included, in the first file.
        seconds_after: The same in the second file.
        time: Time in the second file over time in the first.
        cpu: The same for CPU time per pipeline.
        memory: The same for peak memory; without noise if the numbers of passes differ.
        refused_added: Increase of the number of pipelines that the driver refuses in one pass.
        skipped_added: Increase of the number of pipelines that are skipped, such as those in quarantine.
    """

    before: Cell
    after: Cell
    seconds_before: float
    seconds_after: float
    time: Difference
    cpu: Difference
    memory: Difference
    refused_added: int
    skipped_added: int

    @property
    def added_s(self) -> float:
        """Increase of the time of one pass, s."""
        return self.seconds_after - self.seconds_before


@frozen
class ChangeReport:
    """The changes from one file to another.

    Attributes:
        changes: The cells that both files have.
        only_before: Cells that only the first file has.
        only_after: Cells that only the second file has.
        failed: The last attempt of each arm that the first file measures and the second one could not.
        differences: Other differences, such as the driver's version, in words.
        pipelines_added: Increase of the number of pipelines; None if a file has several sets.
    """

    changes: tuple[CellChange, ...]
    only_before: tuple[Cell, ...]
    only_after: tuple[Cell, ...]
    failed: tuple[FailedSample, ...]
    differences: tuple[str, ...]
    pipelines_added: int | None

    def slower(self, threshold: float = 0.0) -> tuple[CellChange, ...]:
        """Cells that are slower beyond noise, by more than the threshold, a share of their time."""
        return tuple(
            each for each in self.changes if each.time.higher and each.time.ratio.median > 1 + threshold
        )

    def faster(self, threshold: float = 0.0) -> tuple[CellChange, ...]:
        """Cells that are faster beyond noise, by more than the threshold."""
        return tuple(
            each for each in self.changes if each.time.lower and 1 / each.time.ratio.median > 1 + threshold
        )

    @property
    def undecided(self) -> tuple[CellChange, ...]:
        """Cells without a verdict: too few samples in one of the files, or no control."""
        return tuple(each for each in self.changes if not each.time.enough)

    @property
    def refused_added(self) -> int:
        """Largest increase of the number of pipelines that the driver refuses, over the cells."""
        return max(each.refused_added for each in self.changes)

    @property
    def skipped_added(self) -> int:
        """Largest increase of the number of pipelines that are skipped, over the cells."""
        return max(each.skipped_added for each in self.changes)

    @property
    def is_complete(self) -> bool:
        """Whether the second file measures all that the first one does, and no more pipelines are missing."""
        missing_added = max(self.refused_added, self.skipped_added)
        return not self.only_before and not self.failed and missing_added <= 0

    def summary(self, threshold: float = 0.0) -> str:
        """One sentence, such as "adds 312 pipelines, +41.0 s cold; 3 of 12 cells slower beyond noise"."""
        parts = []
        if self.pipelines_added:
            verb = "adds" if self.pipelines_added > 0 else "removes"
            parts.append(f"{verb} {abs(self.pipelines_added):,} pipelines")
        cold = [
            each for each in self.slower(threshold) + self.faster(threshold) if each.after.start == Start.COLD
        ]
        if cold:
            most = max(cold, key=lambda each: abs(each.added_s))
            parts.append(
                f"{most.added_s:+.3g} s cold ({most.after.mode}, {counted(most.after.workers, 'worker')})"
            )
        slower, faster = len(self.slower(threshold)), len(self.faster(threshold))
        count, undecided = len(self.changes), len(self.undecided)
        if slower or faster:
            told = f"{slower} of {count} cells slower beyond noise, {faster} faster"
        elif undecided < count:
            told = f"no difference beyond noise in {count - undecided} cells"
        else:
            told = "no verdict"
        if undecided:
            told += f"; {undecided} of {count} cells have fewer than {LEAST_PAIRS} samples or control pairs"
        if self.refused_added > 0:
            told += (
                f"; the driver refuses {counted(self.refused_added, 'pipeline')} more, whose time is missing"
            )
        if self.skipped_added > 0:
            told += f"; {counted(self.skipped_added, 'pipeline')} more skipped, whose time is missing"
        if self.only_before or self.failed:
            told += f"; {counted(len(self.only_before), 'cell')} only before, {len(self.failed)} failed after"
        return "; ".join([", ".join(parts), told] if parts else [told])


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
        (cell, cell._replace(device=other))
        for device, other in dict.fromkeys(devices or _paired(first_cells, second_cells))
        for cell in first_cells
        if cell.device == device
    )
    wanted = {other for _, other in named}
    failed = tuple(each for each in failed_arms(after) if each.cell in wanted)
    matched = [pair for pair in named if pair[1] in second_cells]
    if not matched:
        raise ValueError(_nothing_in_common([other for _, other in named], list(second_cells)))
    changes = tuple(
        _change(
            cell,
            other,
            first_cells[cell],
            second_cells[other],
            (control_of(first, cell.conditions), control_of(second, other.conditions)),
        )
        for cell, other in matched
    )
    given, taken = ({pair[place] for pair in matched} for place in (0, 1))
    compared = [each for each in first if each.cell in given], [each for each in second if each.cell in taken]
    return ChangeReport(
        changes=changes,
        only_before=tuple(dict.fromkeys(cell for cell, other in named if other not in second_cells)),
        only_after=tuple(sorted(set(second_cells) - taken)),
        failed=failed,
        differences=tuple(_differences(*compared)),
        pipelines_added=_pipelines_added(*compared),
    )


def _nothing_in_common(first: Sequence[Cell], second: Sequence[Cell]) -> str:
    apart = []
    for name in Cell._fields:
        sides = [sorted({getattr(cell, name) for cell in cells}) for cells in (first, second)]
        if not set(sides[0]) & set(sides[1]):
            apart.append(f"{name}: {' and '.join(', '.join(map(str, side)) for side in sides)}")
    if not apart:
        return (
            "the two have no cell in common: no cell has the same device, start, duplicates, workers and mode"
        )
    hint = "; --device A=B pairs a device of the first with one of the second"
    differs = "; ".join(apart)
    return f"the two have no cell in common: {differs}" + (hint if differs.startswith("device") else "")


def _paired(first: Iterable[Cell], second: Iterable[Cell]) -> list[tuple[str, str]]:
    devices, others = ({cell.device for cell in cells} for cells in (first, second))
    return list(zip(devices, others if len(devices) == len(others) == 1 else devices, strict=True))


_Pairs = tuple[dict[tuple[str, int], Sample], dict[tuple[str, int], Sample]]


def _larger(first: Noise | None, second: Noise | None) -> Noise | None:
    if first is None or second is None:
        return None
    larger = max(first, second, key=lambda each: each.factor).control
    return Noise(evolve(larger, count=min(first.control.count, second.control.count)))


def _change(
    before: Cell,
    after: Cell,
    first: Sequence[Sample],
    second: Sequence[Sample],
    controls: tuple[_Pairs, _Pairs],
) -> CellChange:
    seconds = attrgetter("once_s")
    same_passes = len({each.passes for each in (*first, *second)}) == 1

    def difference(value: Callable[[Sample], float], *, comparable: bool = True) -> Difference:
        above, below = [value(each) for each in second], [value(each) for each in first]
        noise = _larger(*(noise_by_round(*each, value) for each in controls)) if comparable else None
        return Difference(unpaired_ratio(above, below), noise)

    return CellChange(
        before=before,
        after=after,
        seconds_before=estimate([seconds(each) for each in first]).median,
        seconds_after=estimate([seconds(each) for each in second]).median,
        time=difference(seconds),
        cpu=difference(lambda each: max(each.cpu_per_pipeline_ns, 1e-9)),
        memory=difference(lambda each: float(max(each.peak_memory_bytes, 1)), comparable=same_passes),
        refused_added=max(each.refused for each in second) - max(each.refused for each in first),
        skipped_added=max(each.skipped for each in second) - max(each.skipped for each in first),
    )


_TOLD = {
    "set_name": "set",
    "set_hash": "hash of the set",
    "skipped": "pipelines skipped",
    "refused": "pipelines refused in a pass",
    "batch": "batch",
    "passes": "passes over the set in a run",
    "order": "order of pipelines",
    "environment.driver_name": "driver",
    "environment.driver_info": "driver's version",
    "environment.device_name": "device",
    "environment.pipeline_cache_uuid": "pipeline cache UUID",
    "environment.driver_caches": "driver's caches",
    "environment.opened_as": "device opened as",
    "environment.processor": "processor",
    "environment.cores": "cores",
    "environment.python": "Python",
    "environment.orchestrator": "orchestrator",
}


def _differences(first: Sequence[Sample], second: Sequence[Sample]) -> list[str]:
    told = []
    for name, words in _TOLD.items():
        before, after = (sorted({_text(attrgetter(name)(each)) for each in of}) for of in (first, second))
        if before != after:
            told.append(f"{words}: {', '.join(before)} -> {', '.join(after)}")
    return told


def _text(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _pipelines_added(first: Sequence[Sample], second: Sequence[Sample]) -> int | None:
    before, after = {each.set_pipelines for each in first}, {each.set_pipelines for each in second}
    return after.pop() - before.pop() if len(before) == len(after) == 1 else None
