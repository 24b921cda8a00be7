"""What a cache topology costs: figures of cells, modes against the baseline, and a verdict in a sentence.

Of the calls of a run, summed up over all workers:

    blocked      driver - cpu - run delay: asleep inside the driver, at a lock
    inflation    CPU per pipeline / the same with one worker: spinning, cache misses, memory bandwidth
    overhead     wall of the calls - driver: building create infos, waiting for the interpreter
    efficiency   throughput / (workers x throughput with one worker)
    topology     per-worker / shared, the merge included
    locking      per-worker-internal / per-worker: what a lock costs that nobody else wants
    contention   per-worker-internal / shared: what is left when nobody else wants it

Guarantees: pure. Ratios are of samples of the same round; a mode differs only beyond the A/A control under
its own conditions (see statistics.py). Waiting for a processor is never called blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import evolve, field, frozen

from orchestrator.bench.rows import (
    Arm,
    CacheSize,
    Cell,
    Conditions,
    FailedSample,
    Row,
    Sample,
    Start,
    cells_of,
    control_of,
    failed_arms,
)
from orchestrator.bench.statistics import (
    LEAST_PAIRS,
    Difference,
    Estimate,
    Noise,
    estimate,
    noise_by_round,
    ratio_by_round,
)
from orchestrator.devices.device import CacheMode

NOISY_SHARE = 0.1
"""Noise of the A/A control from which on a report warns about what it hides."""
BLOCKED_SHARE = 0.1
"""Share of the driver's time asleep from which on a report says at what."""
FEW_FAULTS = 0.1
"""Page faults a sleep below which the kernel's memory lock cannot be what threads sleep at."""
MOSTLY_WITHOUT_FAULTS = 0.9
"""Share of the time asleep in calls without a page fault above which it is not."""
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
        cache_sizes: Of its warm-up; see `Sample`.
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
    cache_sizes: tuple[CacheSize, ...] = field(default=(), repr=False)

    def of(self, value: Callable[[Sample], float]) -> Estimate:
        """Median of any figure of its samples, with its interval."""
        return estimate([value(each) for each in self.samples])

    def median(self, value: Callable[[Sample], float]) -> float:
        """Median of any figure of its samples."""
        return self.of(value).median


@frozen
class Comparison:
    """The modes under the same conditions against their baseline.

    Attributes:
        conditions: Which.
        baseline: The mode that the others are compared with: shared where it was measured.
        noise: The A/A control; None where there was none.
        throughput: Each other mode's throughput over the baseline's, the merge included.
        creation_rate: The same without the merge.
        locking: per-worker-internal over per-worker; None where one was not measured.
    """

    conditions: Conditions
    baseline: CacheMode
    noise: Noise | None
    throughput: Mapping[CacheMode, Difference]
    creation_rate: Mapping[CacheMode, Difference]
    locking: Difference | None

    @property
    def topology(self) -> Difference | None:
        """per-worker over shared, the merge included; None where one was not measured."""
        return self.throughput.get(CacheMode.PER_WORKER) if self.baseline == CacheMode.SHARED else None


@frozen
class ContentionReport:
    """What shared and private caches cost.

    Attributes:
        cells: Every cell, in the order of its key.
        comparisons: Every comparison, in the order of its conditions.
        verdicts: One sentence for each device and share of duplicates.
        advice: Which mode to use on each device, and why.
        warnings: What weakens the figures.
        failed: Arms that could not be measured: the last attempt of each.
    """

    cells: tuple[CellReport, ...]
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[str, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...]
    failed: tuple[FailedSample, ...] = ()


def contention_report(rows: Iterable[Row]) -> ContentionReport:
    """Sum up the rows of a benchmark; of warm-ups only the sizes of caches are taken.

    Raises:
        ValueError: There is no sample that counts.
    """
    rows = list(rows)
    counted = [each for each in rows if isinstance(each, Sample) and each.counts]
    if not counted:
        raise ValueError("there are no samples to report on")
    cells = cells_of(counted)
    warm_ups = [each for each in rows if isinstance(each, Sample) and not each.counts and not each.control]
    sizes = {each.cell: each.cache_sizes for each in warm_ups}
    reports = tuple(
        evolve(_cell_report(cell, cells), cache_sizes=sizes.get(cell, ())) for cell in sorted(cells)
    )
    conditions = sorted({cell.conditions for cell in cells})
    comparisons = tuple(_comparison(each, cells, counted) for each in conditions)
    return ContentionReport(
        reports,
        comparisons,
        tuple(verdicts(comparisons)),
        tuple(advice(comparisons)),
        tuple(_warnings(reports, comparisons)),
        failed_arms(rows),
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


def _against(
    baseline: Sequence[Sample] | None, samples: Sequence[Sample] | None, value: Callable[[Sample], float]
) -> Estimate | None:
    """Ratio of samples over a baseline, pair by pair."""
    above, below = ({each.round: each for each in series or ()} for series in (samples, baseline))
    return ratio_by_round(above, below, value)


def _comparison(
    conditions: Conditions, cells: Mapping[Cell, Sequence[Sample]], counted: Sequence[Sample]
) -> Comparison:
    modes = {cell.mode: samples for cell, samples in sorted(cells.items()) if cell.conditions == conditions}
    first, control = control_of(counted, conditions)
    controlled = [each.mode for each in control.values()]
    baseline = CacheMode.SHARED if CacheMode.SHARED in modes else controlled[0] if controlled else min(modes)
    noise = None
    if set(controlled) == {baseline}:
        noise = noise_by_round(first, control, lambda each: each.creation_rate)

    def against(
        below: CacheMode, above: CacheMode, value: Callable[[Sample], float]
    ) -> dict[CacheMode, Difference]:
        ratio = _against(modes.get(below), modes.get(above), value)
        return {} if ratio is None else {above: Difference(ratio, noise)}

    throughput: dict[CacheMode, Difference] = {}
    creation_rate: dict[CacheMode, Difference] = {}
    for mode in (each for each in modes if each != baseline):
        throughput |= against(baseline, mode, lambda each: each.throughput)
        creation_rate |= against(baseline, mode, lambda each: each.creation_rate)
    internal = CacheMode.PER_WORKER_INTERNAL
    locking = against(CacheMode.PER_WORKER, internal, lambda each: each.creation_rate).get(internal)
    return Comparison(conditions, baseline, noise, throughput, creation_rate, locking)


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
    """A number of so many significant digits; whole where it has more before the point."""
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


def verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """One sentence for each device and share of duplicates, about its largest number of workers.

    Such as: on radv:navi21, warm, 16 workers: private caches 2.2× [2.1, 2.3] faster; cold: no difference
    beyond noise.
    """
    by_place: dict[tuple[str, float], list[Comparison]] = {}
    for each in comparisons:
        by_place.setdefault((each.conditions.device, each.conditions.duplicates), []).append(each)
    sentences = []
    for (device, duplicates), found in sorted(by_place.items()):
        workers = max(each.conditions.workers for each in found)
        at_most = [each for each in found if each.conditions.workers == workers]
        at_most.sort(key=lambda each: each.conditions.start == Start.COLD)
        parts = []
        for number, each in enumerate(at_most):
            words = verdict_words(each.topology)
            alone = (
                each.creation_rate.get(CacheMode.PER_WORKER) if each.baseline == CacheMode.SHARED else None
            )
            if alone is not None and alone.beyond_noise and verdict_words(alone) != words:
                words += f" (before the merge: {verdict_words(alone)})"
            count = f", {workers} workers" if number == 0 else ""
            parts.append(f"{each.conditions.start}{count}: {words}")
        copies = f", {duplicates:.0%} duplicates" if duplicates else ""
        sentences.append(f"on {device}{copies}, " + "; ".join(parts))
    return sentences


def advice(comparisons: Sequence[Comparison]) -> list[str]:
    """Which --mode to use on each device, and why, in a sentence; nothing where it was not measured."""
    sentences = []
    for device in sorted({each.conditions.device for each in comparisons}):
        measured = [each for each in comparisons if each.conditions.device == device and each.topology]
        most = max((each.conditions.workers for each in measured), default=0)
        least = min((each.conditions.duplicates for each in measured), default=0)
        modes, reasons = {}, []
        for each in sorted(measured, key=lambda one: one.conditions.start == Start.COLD):
            start, found = each.conditions.start, each.topology
            if found is None or (each.conditions.workers, each.conditions.duplicates) != (most, least):
                continue
            mode, words = _choice(found)
            if mode is not None:
                modes[start] = mode
            reasons.append(f"{start} {words}")
        chosen = set(modes.values())
        if chosen:
            several = " and ".join(f"--mode {mode} {start}" for start, mode in modes.items())
            use = several if len(chosen) > 1 else f"--mode {chosen.pop()}"
            count = f"{most} workers" if most > 1 else "one worker"
            sentences.append(f"On {device} with {count} use {use}: {'; '.join(reasons)}.")
    return sentences


def _choice(difference: Difference) -> tuple[CacheMode | None, str]:
    """The mode to use by private caches against the shared one, and why."""
    if not difference.enough:
        return None, "too little was measured"
    if difference.higher:
        return (
            CacheMode.PER_WORKER,
            f"private caches are {ratio_text(difference.ratio)} as fast as a shared one",
        )
    words = (
        f"are only {ratio_text(difference.ratio)} as fast"
        if difference.lower
        else "are no faster beyond noise"
    )
    return CacheMode.SHARED, f"private caches {words}, and a shared one needs no merge"


def _sleep_words(cell: CellReport) -> str:
    """What threads that sleep in the driver may sleep at, by what the kernel counted; "" if they hardly do.

    A thread sleeps at the kernel's lock of a process's memory when it faults a page in or maps memory while
    another one does, about once a fault at most; at a lock of the driver it sleeps without faults.
    """
    sleeps, faults = cell.median(lambda each: each.sleeps), cell.median(lambda each: each.minor_faults)
    if cell.blocked_share.median < BLOCKED_SHARE or not sleeps:
        return ""
    without = cell.median(lambda each: each.blocked_without_faults_ns / max(1, each.blocked_ns))
    counted = (
        f"{sleeps:,.0f} sleeps and {faults:,.0f} page faults of {cell.cell.workers} threads in a run; "
        f"{without:.0%} of that time in calls without a page fault"
    )
    if faults < sleeps * FEW_FAULTS or without >= MOSTLY_WITHOUT_FAULTS:
        why = "at a lock of the driver: page faults are too few for the kernel's lock of the process's memory"
    else:
        why = (
            "at a lock of the driver or at the kernel's lock of the process's memory, of which page faults "
            "are enough: an allocator that keeps memory tells the two apart"
        )
    share = f"{cell.blocked_share.median:.0%} of the driver's time asleep"
    return f"{Arm(cell.cell, False).words}: {share}, {why} ({counted})"


def _warnings(cells: Sequence[CellReport], comparisons: Sequence[Comparison]) -> list[str]:
    found = []
    few = [each for each in cells if len(each.samples) < LEAST_PAIRS]
    if few:
        found.append(
            f"{len(few)} of {len(cells)} cells have fewer than {LEAST_PAIRS} samples, the least "
            f"{min(len(each.samples) for each in few)}: of these no verdict is given"
        )
    factors = [each.noise.factor for each in comparisons if each.noise is not None]
    if len(factors) < len(comparisons):
        found.append("some groups have no A/A control, so nothing is known about noise there")
    noisy = [each for each in factors if each > 1 + NOISY_SHARE]
    if noisy:
        found.append(
            f"in {len(noisy)} of {len(comparisons)} groups the same thing measured twice differs by more "
            f"than {NOISY_SHARE:.0%} (at most {max(noisy) - 1:.0%}): what is smaller cannot be seen there"
        )
    busy = [each for each in cells if each.run_delay_share.median > BUSY_SHARE]
    if busy:
        worst = max(busy, key=lambda each: each.run_delay_share.median)
        found.append(
            f"in {len(busy)} of {len(cells)} cells threads waited more than {BUSY_SHARE:.0%} of their "
            f"time for a processor (at most {worst.run_delay_share.median:.0%}, {worst.cell.workers} workers "
            f"on {worst.samples[0].environment.cores} cores): that is the machine, not the cache"
        )
    found += [words for each in cells if (words := _sleep_words(each))]
    notes = sorted({note for each in cells for sample in each.samples for note in sample.notes})
    return found + notes
