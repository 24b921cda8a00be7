"""What a cache topology costs: figures of each cell, each mode against the baseline, and a verdict.

Sums over all workers and calls of a run, and ratios between modes:

    blocked      driver - CPU - run delay: asleep inside the driver, on a lock
    inflation    CPU per pipeline / the same with one worker: spinning, cache misses, memory bandwidth
    overhead     elapsed time of the calls - driver: building create infos, waiting for the interpreter
    efficiency   throughput / (workers x throughput with one worker)
    topology     per-worker / shared, the merge included
    locking      per-worker-internal / per-worker: cost of an uncontended lock
    contention   per-worker-internal / shared: cost of contention for the lock

Guarantees: pure. Ratios compare samples of the same round. A mode differs only beyond the A/A control of its
own conditions (see statistics.py). Time spent waiting for a processor never counts as blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import field, frozen

from orchestrator.bench.rows import (
    Arm,
    Cell,
    Conditions,
    FailedSample,
    Row,
    Sample,
    Start,
    cells_of,
    control_of,
    counted,
    counted_samples,
    device_text,
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
"""A report warns if the A/A control shows more noise than this."""
BLOCKED_SHARE = 0.1
"""A report names the likely lock if threads slept for more than this share of the driver's time."""
FEW_FAULTS = 0.1
"""With fewer page faults per sleep than this, threads do not sleep on the kernel's memory lock."""
MOSTLY_WITHOUT_FAULTS = 0.9
"""The same holds if calls without a page fault contain more than this share of the time asleep."""
BUSY_SHARE = 0.1
"""A report warns if threads waited for a processor for more than this share of the calls' time."""


@frozen
class CellReport:
    """Figures of one cell: medians with intervals.

    Attributes:
        cell: The cell.
        samples: Its samples.
        throughput: Pipelines per second of one pass over the set, keys and merge included.
        creation_rate: Pipelines per second up to the barrier, over all passes.
        seconds: From the first job to the end of the merge.
        blocked_share: Share of the driver's time in which threads slept.
        run_delay_share: Share of the calls' time in which threads waited for a processor.
        overhead_share: Share of the calls' time outside the driver.
        efficiency: Throughput per worker against one worker; None if one worker was not measured.
        inflation: CPU time per pipeline against one worker; None if one worker was not measured.
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

    def of(self, value: Callable[[Sample], float]) -> Estimate:
        """Median of a figure over its samples, with its interval."""
        return estimate([value(each) for each in self.samples])

    def median(self, value: Callable[[Sample], float]) -> float:
        """Median of a figure over its samples."""
        return self.of(value).median


@frozen
class Comparison:
    """All modes under the same conditions against their baseline.

    Attributes:
        conditions: The conditions.
        baseline: The mode to compare with: shared if it was measured.
        noise: The noise of throughput by the A/A control; None without one. Each figure has its own.
        throughput: Throughput of each other mode over the baseline's, the merge included.
        creation_rate: The same up to the barrier, over all passes.
        locking: per-worker-internal over per-worker; None if one was not measured.
    """

    conditions: Conditions
    baseline: CacheMode
    noise: Noise | None
    throughput: Mapping[CacheMode, Difference]
    creation_rate: Mapping[CacheMode, Difference]
    locking: Difference | None

    @property
    def topology(self) -> Difference | None:
        """per-worker over shared, the merge included; None if one was not measured."""
        return self.throughput.get(CacheMode.PER_WORKER) if self.baseline == CacheMode.SHARED else None


@frozen
class ContentionReport:
    """What shared and private caches cost.

    Attributes:
        cells: All cells, sorted.
        comparisons: All comparisons, sorted by conditions.
        verdicts: One sentence for each device and share of duplicates.
        advice: Which mode to use on each device, and why.
        warnings: What weakens the figures.
        failed: The last attempt of each arm that could not be measured.
    """

    cells: tuple[CellReport, ...]
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[str, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...]
    failed: tuple[FailedSample, ...] = ()

    @property
    def sample_of_devices(self) -> tuple[Sample, ...]:
        """One sample of each device."""
        return tuple({each.cell.device: each.samples[0] for each in self.cells}.values())


def contention_report(rows: Iterable[Row]) -> ContentionReport:
    """Summarize the rows of a benchmark. Warm-ups do not count.

    Raises:
        ValueError: There are no samples besides warm-ups.
    """
    rows = list(rows)
    counted = counted_samples(rows)
    if not counted:
        raise ValueError("there are no samples to report on")
    cells = cells_of(counted)
    reports = tuple(_cell_report(cell, cells) for cell in sorted(cells))
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
        # Groups are not taken side by side, so any run's sample of the round will do.
        efficiency=_against(alone, samples, lambda each: each.throughput / each.workers, by_run=False),
        inflation=_against(alone, samples, lambda each: each.cpu_per_pipeline_ns, by_run=False),
    )


def _against(
    baseline: Sequence[Sample] | None,
    samples: Sequence[Sample] | None,
    value: Callable[[Sample], float],
    *,
    by_run: bool = True,
) -> Estimate | None:
    above, below = (
        {each.pair if by_run else ("", each.round): each for each in series or ()}
        for series in (samples, baseline)
    )
    return ratio_by_round(above, below, value)


def _comparison(
    conditions: Conditions, cells: Mapping[Cell, Sequence[Sample]], counted: Sequence[Sample]
) -> Comparison:
    modes = {cell.mode: samples for cell, samples in sorted(cells.items()) if cell.conditions == conditions}
    first, control = control_of(counted, conditions)
    controlled = [each.mode for each in control.values()]
    baseline = CacheMode.SHARED if CacheMode.SHARED in modes else controlled[0] if controlled else min(modes)
    is_controlled = set(controlled) == {baseline}

    def against(
        below: CacheMode, above: CacheMode, value: Callable[[Sample], float]
    ) -> dict[CacheMode, Difference]:
        ratio = _against(modes.get(below), modes.get(above), value)
        taken = {each.pair for each in modes.get(above, ())}
        beside = {pair: each for pair, each in first.items() if pair in taken}
        noise = noise_by_round(beside, control, value) if is_controlled else None
        return {} if ratio is None else {above: Difference(ratio, noise)}

    throughput: dict[CacheMode, Difference] = {}
    creation_rate: dict[CacheMode, Difference] = {}
    for mode in (each for each in modes if each != baseline):
        throughput |= against(baseline, mode, lambda each: each.throughput)
        creation_rate |= against(baseline, mode, lambda each: each.creation_rate)
    internal = CacheMode.PER_WORKER_INTERNAL
    locking = against(CacheMode.PER_WORKER, internal, lambda each: each.creation_rate).get(internal)
    noise = noise_by_round(first, control, lambda each: each.throughput) if is_controlled else None
    return Comparison(conditions, baseline, noise, throughput, creation_rate, locking)


def cell_texts(cell: CellReport, comparison: Comparison) -> dict[str, str]:
    """The figures of a cell as text, by the heading of their column."""
    difference, mode = comparison.throughput.get(cell.cell.mode), cell.cell.mode
    ratio = "" if difference is None else ratio_text(difference.ratio) + difference.mark
    return {
        "workers": str(cell.cell.workers),
        "mode": mode,
        "n": str(len(cell.samples)),
        "pipelines/s": rate_text(cell.throughput),
        "ratio": "baseline" if mode == comparison.baseline else ratio,
        "blocked": f"{cell.blocked_share.median:.1%}",
        "no CPU": f"{cell.run_delay_share.median:.1%}",
        "efficiency": "" if cell.efficiency is None else f"{cell.efficiency.median:.0%}",
        "CPU": "" if cell.inflation is None else f"{cell.inflation.median:.2f}×",
        "merge": f"{cell.median(lambda each: each.merge_ns / 1e6):.2f} ms",
        "memory": f"{cell.median(lambda each: each.peak_memory_bytes) / 2**20:,.0f} MiB",
    }


def ratio_text(ratio: Estimate) -> str:
    """A ratio as text, such as ``2.2× [2.1, 2.3]``.

    It has as many digits, up to 4, as tell the interval's ends apart and those that are not 1 from 1.
    """

    def ends(digits: int) -> list[str]:
        return [f"{each:.{digits}f}" for each in (ratio.low, ratio.high)]

    one = [each == 1 for each in (ratio.low, ratio.high)]
    enough = [each for each in range(1, 5) if [float(text) == 1 for text in ends(each)] == one] or [4]
    digits = next((each for each in enough if len(set(ends(each))) > 1), enough[0])
    return f"{ratio.median:.{digits}f}× [{', '.join(ends(digits))}]"


def noise_text(noise: Noise | None) -> str:
    """The noise of an A/A control as text, such as ``A/A within 1.2%``."""
    return "no A/A control" if noise is None else f"A/A within {noise.factor - 1:.1%}"


def rate_text(rate: Estimate) -> str:
    """A rate as text, such as ``28.2k [28k, 29k]``."""
    return f"{_short(rate.median, 3)} [{_short(rate.low)}, {_short(rate.high)}]"


def _short(value: float, digits: int = 2) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            return f"{_rounded(value / size, digits)}{unit}"
    return _rounded(value, digits)


def _rounded(value: float, digits: int) -> str:
    # "g" writes 99.6 with two digits as 1e+02.
    whole = float(f"{value:.{digits}g}") >= 10**digits
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def _inverse(ratio: Estimate) -> Estimate:
    return Estimate(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.count)


def verdict_words(difference: Difference | None) -> str:
    """The verdict on private caches against the shared one."""
    if difference is None:
        return "not measured with both topologies side by side"
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
    """One sentence for each device and share of duplicates, about the largest number of workers.

    Example: on radv:navi21, warm, 16 workers: private caches 2.2× [2.1, 2.3] faster; cold: no difference
    beyond noise.
    """
    by_place: dict[tuple[str, float], list[Comparison]] = {}
    for each in comparisons:
        by_place.setdefault((each.conditions.device, each.conditions.duplicates), []).append(each)
    sentences = []
    for (device, _), found in sorted(by_place.items()):
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
            count = f", {counted(workers, 'worker')}" if number == 0 else ""
            parts.append(f"{each.conditions.start}{count}: {words}")
        sentences.append(f"on {device_text(device)}{found[0].conditions.copies}, " + "; ".join(parts))
    return sentences


def advice(comparisons: Sequence[Comparison]) -> list[str]:
    """One sentence per measured device: which --mode to use, and why."""
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
            count = counted(most, "worker")
            where = f"On {device_text(device)} with {count}"
            sentences.append(f"{where} use {use}: {'; '.join(reasons)}.")
    return sentences


def _choice(difference: Difference) -> tuple[CacheMode | None, str]:
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
    """The lock that threads in the driver may sleep on, by the kernel's counters; "" if they hardly sleep.

    A thread sleeps on the kernel's lock of the process's memory when it faults in a page or maps memory while
    another thread does, at most about once per fault. On a lock of the driver it sleeps without faults.
    """
    sleeps, faults = cell.median(lambda each: each.sleeps), cell.median(lambda each: each.minor_faults)
    if cell.blocked_share.median < BLOCKED_SHARE or not sleeps:
        return ""
    without = cell.median(lambda each: each.blocked_without_faults_ns / max(1, each.blocked_ns))
    counted = (
        f"{cell.cell.workers} threads slept {sleeps:,.0f} times and had {faults:,.0f} page faults in a run; "
        f"{without:.0%} of that time was in calls without a page fault"
    )
    if faults < sleeps * FEW_FAULTS or without >= MOSTLY_WITHOUT_FAULTS:
        why = "on a lock of the driver: there are too few page faults for the kernel's memory lock"
    else:
        why = (
            "on a lock of the driver or on the kernel's memory lock; there are enough page faults for the "
            "latter. A run with an allocator that keeps memory shows which"
        )
    share = f"threads slept for {cell.blocked_share.median:.0%} of the driver's time"
    return f"{Arm(cell.cell, False).words}: {share}, {why} ({counted})"


def _warnings(cells: Sequence[CellReport], comparisons: Sequence[Comparison]) -> list[str]:
    found = []
    few = [each for each in cells if len(each.samples) < LEAST_PAIRS]
    if few:
        found.append(
            f"{len(few)} of {len(cells)} cells have fewer than {LEAST_PAIRS} samples (the smallest "
            f"{min(len(each.samples) for each in few)}) and get no verdict"
        )
    factors = [each.noise.factor for each in comparisons if each.noise is not None]
    if len(factors) < len(comparisons):
        found.append("some groups have no A/A control, so their noise is unknown")
    noisy = [each for each in factors if each > 1 + NOISY_SHARE]
    if noisy:
        found.append(
            f"in {len(noisy)} of {len(comparisons)} groups the noise exceeds {NOISY_SHARE:.0%} (at most "
            f"{max(noisy) - 1:.0%}): smaller differences cannot be seen there"
        )
    busy = [each for each in cells if each.run_delay_share.median > BUSY_SHARE]
    if busy:
        worst = max(busy, key=lambda each: each.run_delay_share.median)
        found.append(
            f"in {len(busy)} of {len(cells)} cells threads waited for a processor for more than "
            f"{BUSY_SHARE:.0%} of their time (at most {worst.run_delay_share.median:.0%}, "
            f"{counted(worst.cell.workers, 'worker')} on "
            f"{counted(worst.samples[0].environment.cores, 'core')}): that is the machine, not the cache"
        )
    refused: dict[str, int] = {}
    for each in cells:
        device, most = each.cell.device, max(sample.refused for sample in each.samples)
        refused[device] = max(most, refused.get(device, 0))
    found += [
        f"the driver refused {counted(count, 'pipeline')} in a pass on {device_text(device)}: rates do not "
        "count them, and the times lack their compiles; `compile` names them"
        for device, count in refused.items()
        if count
    ]
    warm = [each for each in cells if each.cell.start == Start.WARM]
    coldest = [max(each.samples, key=lambda one: one.created - one.hits) for each in warm]
    if missing := [each for each in coldest if each.created > each.hits]:
        least_warm = max(missing, key=lambda each: (each.created - each.hits) / each.created)
        found.append(
            f"in {len(missing)} of {len(warm)} warm cells the driver did not find all pipelines in a cache "
            f"(missing up to {least_warm.created - least_warm.hits:,} of {least_warm.created:,}): their "
            "figures include compiles, unless this driver does not report hits"
        )
    found += [words for each in cells if (words := _sleep_words(each))]
    notes = sorted({note for each in cells for sample in each.samples for note in sample.notes})
    return found + notes
