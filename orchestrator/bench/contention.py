"""`ContentionReport`: what shared and private caches cost.

From samples to what a cache topology costs: figures of each cell of the matrix, each mode against the
baseline pair by pair, and a verdict in one sentence.

Definitions, from the calls of a run (sums over all workers): blocked      driver - cpu - run delay
asleep inside the driver: a lock inflation    CPU per pipeline / the same with one worker      spinning,
cache misses, memory bandwidth overhead     wall of the calls - driver      building create infos,
destroying pipelines, waiting for the interpreter efficiency   throughput / (workers x throughput with one
worker) topology     throughput of per-worker / throughput of shared, the merge included locking      per-
worker-internal / per-worker     what a lock costs that nobody else wants contention   per-worker-internal /
shared         what is left when nobody else wants it

Guarantees: pure. Ratios are of samples of the same round; a mode differs only where the whole interval of
its ratio is beyond the A/A control of its own group (see statistics.py). Waiting for a processor is never
called blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import field, frozen

from orchestrator.bench.samples import Cell, FailedSample, Group, Row, Sample, cells_of, failed_legs
from orchestrator.bench.statistics import (
    LEAST_PAIRS,
    Difference,
    Estimate,
    Noise,
    by_round,
    estimate,
    noise_of,
    paired_ratio,
)

SHARED, PER_WORKER, INTERNAL = "shared", "per-worker", "per-worker-internal"
NOISY_SHARE = 0.1
"""Noise of the A/A control from which on a report warns about what it hides."""
BUSY_SHARE = 0.1
"""Share of the calls' time spent waiting for a processor from which on a report warns about it."""


@frozen
class CellReport:
    """Figures of one cell: medians with intervals; times are those of a run, summed up over its workers.

    Attributes:
        cell: Which.
        samples: Its samples.
        throughput: Pipelines a second, the merge included.
        creation_rate: Pipelines a second up to the barrier.
        seconds: From the first job to the end of the merge.
        blocked_share: Share of the driver's time asleep in it.
        run_delay_share: Share of the calls' time waiting for a processor.
        overhead_share: Share of the calls' time outside the driver.
        efficiency: Against the same with one worker; None where that was not measured.
        inflation: CPU per pipeline against the same with one worker; None where that was not measured.
    """

    cell: Cell
    samples: tuple[Sample, ...] = field(repr=False)
    throughput: Estimate
    creation_rate: Estimate
    seconds: Estimate
    blocked_share: Estimate
    run_delay_share: Estimate
    overhead_share: Estimate
    efficiency: Estimate | None
    inflation: Estimate | None

    def median(self, value: Callable[[Sample], float]) -> float:
        """Median of any figure of its samples."""
        return estimate([value(each) for each in self.samples]).median


@frozen
class GroupReport:
    """The modes of one group against its baseline.

    Attributes:
        group: Which.
        baseline: The mode that the others are compared with: shared where it was measured.
        noise: The A/A control; None where there was none.
        throughput: Each other mode's throughput over the baseline's, the merge included.
        creation_rate: The same without the merge.
        locking: per-worker-internal over per-worker; None where one was not measured.
    """

    group: Group
    baseline: str
    noise: Noise | None
    throughput: Mapping[str, Difference]
    creation_rate: Mapping[str, Difference]
    locking: Difference | None

    @property
    def topology(self) -> Difference | None:
        """per-worker over shared, the merge included; None where one was not measured."""
        return self.throughput.get(PER_WORKER) if self.baseline == SHARED else None


@frozen
class ContentionReport:
    """What shared and private caches cost.

    Attributes:
        cells: Every cell, in the order of its key.
        groups: Every group, in the order of its key.
        verdicts: One sentence for each device and share of duplicates.
        warnings: What weakens the figures.
        failed: Legs that could not be measured: the last attempt of each.
    """

    cells: tuple[CellReport, ...]
    groups: tuple[GroupReport, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    failed: tuple[FailedSample, ...] = ()


def contention_report(rows: Iterable[Row]) -> ContentionReport:
    """Sum up the rows of a benchmark; warm-ups are left out.

    Raises:
        ValueError: There is no sample that counts.
    """
    rows = list(rows)
    counted = [each for each in rows if isinstance(each, Sample) and each.counts]
    if not counted:
        raise ValueError("there are no samples to report on")
    cells = cells_of(counted)
    reports = tuple(_cell_report(cell, cells) for cell in sorted(cells))
    groups = tuple(_group_report(group, cells, counted) for group in sorted({cell[:4] for cell in cells}))
    return ContentionReport(
        reports, groups, tuple(verdicts(groups)), tuple(_warnings(reports, groups)), failed_legs(rows)
    )


def _cell_report(cell: Cell, cells: Mapping[Cell, Sequence[Sample]]) -> CellReport:
    samples = cells[cell]
    alone = cells.get(cell._replace(workers=1))

    def of(value: Callable[[Sample], float]) -> Estimate:
        return estimate([value(each) for each in samples])

    return CellReport(
        cell=cell,
        samples=tuple(samples),
        throughput=of(lambda each: each.throughput),
        creation_rate=of(lambda each: each.creation_rate),
        seconds=of(lambda each: each.seconds),
        blocked_share=of(lambda each: each.blocked_share),
        run_delay_share=of(lambda each: each.run_delay_share),
        overhead_share=of(lambda each: each.binding_overhead_ns / each.call_ns if each.call_ns else 0.0),
        efficiency=_against(alone, samples, lambda each: each.throughput / each.workers),
        inflation=_against(alone, samples, lambda each: each.cpu_per_pipeline_ns),
    )


def _rounds(samples: Sequence[Sample]) -> dict[int, Sample]:
    return {each.round: each for each in samples}


def _against(
    baseline: Sequence[Sample] | None, samples: Sequence[Sample] | None, value: Callable[[Sample], float]
) -> Estimate | None:
    """Ratio of samples over a baseline, pair by pair."""
    if not baseline or not samples:
        return None
    below, above = by_round(_rounds(baseline), _rounds(samples), value)
    return paired_ratio(above, below) if below else None


def _group_report(
    key: tuple[str, str, float, int], cells: Mapping[Cell, Sequence[Sample]], counted: Sequence[Sample]
) -> GroupReport:
    group = Group(*key)
    modes = {cell.mode: samples for cell, samples in cells.items() if cell[:4] == group}
    controls = [each for each in counted if each.control and each.group == group]
    baseline = SHARED if SHARED in modes else controls[0].mode if controls else min(modes)
    base = modes.get(baseline, ())
    noise = None
    first, second = by_round(_rounds(base), _rounds(controls), lambda each: each.creation_rate)
    if first and all(each.mode == baseline for each in controls):
        noise = noise_of(first, second)

    def differences(value: Callable[[Sample], float]) -> dict[str, Difference]:
        ratios = {mode: _against(base, of, value) for mode, of in sorted(modes.items()) if mode != baseline}
        return {mode: Difference(ratio, noise) for mode, ratio in ratios.items() if ratio is not None}

    locking = _against(modes.get(PER_WORKER), modes.get(INTERNAL), lambda each: each.creation_rate)
    return GroupReport(
        group=group,
        baseline=baseline,
        noise=noise,
        throughput=differences(lambda each: each.throughput),
        creation_rate=differences(lambda each: each.creation_rate),
        locking=None if locking is None else Difference(locking, noise),
    )


def ratio_text(ratio: Estimate) -> str:
    """A ratio for people, such as ``2.2× [2.1, 2.3]``; as many digits as tell its ends apart."""
    told_apart = (each for each in (1, 2, 3) if f"{ratio.low:.{each}f}" != f"{ratio.high:.{each}f}")
    digits = next(told_apart, 1)
    return f"{ratio.median:.{digits}f}× [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def rate_text(rate: Estimate) -> str:
    """A rate for people, such as ``28.2k [28k, 29k]``."""
    return f"{_short(rate.median, 3)} [{_short(rate.low)}, {_short(rate.high)}]"


def _short(value: float, digits: int = 2) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            return f"{_rounded(value / size, digits)}{unit}"
    return _rounded(value, digits)


def _rounded(value: float, digits: int) -> str:
    """A number of so many significant digits; whole where it has more before the point, never a power of ten."""
    # What rounds up to one digit more would be written as 1e+02.
    whole = float(f"{value:.{digits}g}") >= 10**digits
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def _inverse(ratio: Estimate) -> Estimate:
    return Estimate(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.count)


def verdict_words(difference: Difference | None) -> str:
    """What is said about private caches against the shared one."""
    if difference is None:
        return "not measured with both topologies"
    if difference.noise is None:
        return "no verdict without an A/A control"
    if not difference.enough:
        return f"no verdict yet, {difference.pairs} of the {LEAST_PAIRS} pairs that one needs"
    if difference.higher:
        return f"private caches {ratio_text(difference.ratio)} faster"
    if difference.lower:
        return f"private caches {ratio_text(_inverse(difference.ratio))} slower"
    return "no difference beyond noise"


def verdicts(groups: Sequence[GroupReport]) -> list[str]:
    """One sentence for each device and share of duplicates, about its largest number of workers.

    Such as: on radv:navi21, warm, 16 workers: private caches 2.2× [2.1, 2.3] faster; cold: no difference beyond noise.
    """
    sentences = []
    for device, duplicates in sorted({(each.group.device, each.group.duplicates) for each in groups}):
        of = [each for each in groups if (each.group.device, each.group.duplicates) == (device, duplicates)]
        workers = max(each.group.workers for each in of)
        at_most = sorted(
            (each for each in of if each.group.workers == workers),
            key=lambda each: each.group.temperature,
            reverse=True,  # warm before cold
        )
        parts = []
        for number, each in enumerate(at_most):
            where = f"{each.group.temperature}, {workers} workers" if number == 0 else each.group.temperature
            words = verdict_words(each.topology)
            alone = each.creation_rate.get(PER_WORKER) if each.baseline == SHARED else None
            if alone is not None and alone.beyond_noise and verdict_words(alone) != words:
                words += f" (before the merge: {verdict_words(alone)})"
            parts.append(f"{where}: {words}")
        copies = f", {duplicates:.0%} duplicates" if duplicates else ""
        sentences.append(f"on {device}{copies}, " + "; ".join(parts))
    return sentences


def _warnings(cells: Sequence[CellReport], groups: Sequence[GroupReport]) -> list[str]:
    found = []
    few = [each for each in cells if len(each.samples) < LEAST_PAIRS]
    if few:
        least = min(len(each.samples) for each in few)
        found.append(
            f"{len(few)} of {len(cells)} cells have fewer than {LEAST_PAIRS} samples, the least {least}: of these no verdict is given"
        )
    if any(each.noise is None for each in groups):
        found.append("some groups have no A/A control, so nothing is known about noise there")
    noisy = [each for each in groups if each.noise is not None and each.noise.factor > 1 + NOISY_SHARE]
    if noisy:
        worst_noise = max(each.noise.factor for each in noisy if each.noise is not None) - 1
        found.append(
            f"in {len(noisy)} of {len(groups)} groups the same thing measured twice differs by more than {NOISY_SHARE:.0%} (at most "
            f"{worst_noise:.0%}): what is smaller than that cannot be seen there"
        )
    busy = [each for each in cells if each.run_delay_share.median > BUSY_SHARE]
    if busy:
        worst = max(busy, key=lambda each: each.run_delay_share.median)
        found.append(
            f"in {len(busy)} of {len(cells)} cells threads waited more than {BUSY_SHARE:.0%} of their time for a processor "
            f"(at most {worst.run_delay_share.median:.0%}, {worst.cell.workers} workers on "
            f"{worst.samples[0].environment.cores} cores): that is the machine, not the cache"
        )
    notes = sorted({note for each in cells for sample in each.samples for note in sample.notes})
    return found + notes
