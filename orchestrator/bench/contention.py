"""What a cache topology costs: figures of each cell, each mode against the baseline, and a verdict.

Sums over all workers and calls of a run, and ratios between modes:

    blocked      driver - CPU - run delay, at least; call - CPU - run delay, at most: threads were asleep
    inflation    CPU per pipeline / the same with one worker: spinning, cache misses, memory bandwidth
    efficiency   throughput / (workers x throughput with one worker)
    topology     per-worker / shared, the merge included
    locking      per-worker-internal / per-worker: cost of an uncontended lock

Guarantees: pure. Ratios compare samples of the same round, by the rule of statistics.py. Verdicts and advice
are about the largest number of workers that has processors, if any has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Final

import numpy as np
from attrs import field, frozen
from msgspec import structs

from orchestrator.bench.rows import (
    Cell,
    Conditions,
    FailedSample,
    Latencies,
    Row,
    Sample,
    Start,
    busy_share,
    cells_of,
    control_of,
    counted,
    counted_samples,
    device_text,
    failed_arms,
)
from orchestrator.bench.statistics import (
    BUSY_SHARE,
    LEAST_PAIRS,
    Difference,
    Estimate,
    Judgement,
    Numbers,
    estimate,
    noise_factor,
    ratio_by_round,
)
from orchestrator.devices.modes import CacheMode

NOISY_SHARE = 0.1
"""A report warns if the A/A control shows more noise than this."""
ASLEEP_SHARE, INFLATED = 0.1, 1.25
"""A report says whose lock it may be if threads slept for more than this share of the calls' time, or if CPU
time per pipeline is more than this factor of that with one worker."""
CLOCK_CHANGED = 1.2
"""A report says so if CPU time per pipeline changes in mid-run by more than this factor."""

FIGURES: Final = (
    *("throughput", "creation_rate", "seconds", "blocked_share", "asleep_share"),
    *("run_delay_share", "overhead_share"),
)
"""Properties of `Sample` that a `CellReport` has an interval of."""


@frozen
class CellReport:
    """Figures of one cell: its samples, and medians with intervals."""

    cell: Cell
    samples: tuple[Sample, ...] = field(repr=False)
    figures: Mapping[str, Estimate]  # Those of `FIGURES`, by name.
    # Throughput per worker against one worker; None if one worker was not measured.
    efficiency: Estimate | None
    # CPU time per pipeline against one worker; None if one worker was not measured.
    inflation: Estimate | None

    def of(self, value: Callable[[Sample], float]) -> Estimate:
        """Median of a figure over its samples, with its interval."""
        return estimate([value(each) for each in self.samples])

    def median(self, value: Callable[[Sample], float]) -> float:
        """Median of a figure over its samples."""
        return self.of(value).median


@frozen
class Comparison:
    """All modes under the same conditions against their baseline."""

    conditions: Conditions
    baseline: CacheMode  # The mode to compare with: shared if it was measured.
    # Throughput of the A/A control, A'/A; None without one. Each figure has its own.
    control: Estimate | None
    # Throughput of each other mode over the baseline's, the merge included.
    throughput: Mapping[CacheMode, Difference]
    creation_rate: Mapping[CacheMode, Difference]  # The same up to the barrier, over all passes.
    locking: Difference | None  # per-worker-internal over per-worker; None if one was not measured.

    @property
    def topology(self) -> Difference | None:
        """per-worker over shared, the merge included; None if one was not measured."""
        return self.throughput.get(CacheMode.PER_WORKER) if self.baseline == CacheMode.SHARED else None


@frozen
class ContentionReport:
    """What shared and private caches cost."""

    cells: tuple[CellReport, ...]  # All cells, sorted.
    comparisons: tuple[Comparison, ...]  # All comparisons, sorted by conditions.
    verdicts: tuple[str, ...]  # One sentence for each device and share of duplicates.
    advice: tuple[str, ...]  # Which mode to use on each device, and why.
    warnings: tuple[str, ...]  # What weakens the figures.
    failed: tuple[FailedSample, ...] = ()  # The last attempt of each arm that could not be measured.

    @property
    def sample_of_devices(self) -> tuple[Sample, ...]:
        """One sample of each device."""
        return tuple({each.cell.device: each.samples[0] for each in self.cells}.values())

    def cells_of(self, group: Comparison) -> list[CellReport]:
        """The cells of a comparison."""
        return [each for each in self.cells if each.cell.conditions == group.conditions]


def contention_report(rows: Iterable[Row]) -> ContentionReport:
    """Summarize the rows of a benchmark. Warm-ups do not count.

    Raises:
        ValueError: There are no samples besides warm-ups.
    """
    rows = list(rows)
    samples = counted_samples(rows)
    if not samples:
        raise ValueError("there are no samples to report on")
    cells = cells_of(samples)
    reports = tuple(_cell_report(cell, cells) for cell in sorted(cells))
    comparisons = comparisons_of(samples)
    judged = _judged(comparisons, {each.device: each.environment.cores for each in samples})
    return ContentionReport(
        reports,
        comparisons,
        tuple(_verdicts(judged)),
        tuple(_advice(judged)),
        tuple(_warnings(reports, comparisons)),
        failed_arms(rows),
    )


def comparisons_of(samples: Sequence[Sample]) -> tuple[Comparison, ...]:
    """All modes against their baselines, sorted by conditions. The samples are without warm-ups."""
    cells = cells_of(samples)
    conditions = sorted({cell.conditions for cell in cells})
    return tuple(_comparison(each, cells, samples) for each in conditions)


def _judged(comparisons: Sequence[Comparison], cores: Mapping[str, int]) -> list[Comparison]:
    """Those of each device, start and share of duplicates with the most workers that have processors."""
    chosen: dict[tuple[str, Start, float], Comparison] = {}
    for each in comparisons:  # by workers, ascending
        key = each.conditions
        if key.section not in chosen or key.workers <= cores[key.device]:
            chosen[key.section] = each
    return sorted(chosen.values(), key=lambda each: each.conditions.start == Start.COLD)  # warm first


def _cell_report(cell: Cell, cells: Mapping[Cell, Sequence[Sample]]) -> CellReport:
    samples = cells[cell]
    # Groups are not taken side by side, so any run's sample of the round will do.
    own = {each.round: each for each in samples}
    alone = {each.round: each for each in cells.get(structs.replace(cell, workers=1), ())}
    return CellReport(
        cell,
        tuple(samples),
        {name: estimate([getattr(each, name) for each in samples]) for name in FIGURES},
        ratio_by_round(own, alone, lambda each: each.throughput / each.workers),
        ratio_by_round(own, alone, lambda each: each.cpu_per_pipeline_ns),
    )


def _comparison(
    conditions: Conditions, cells: Mapping[Cell, Sequence[Sample]], samples: Sequence[Sample]
) -> Comparison:
    modes = {
        cell.mode: {each.pair: each for each in of}
        for cell, of in sorted(cells.items())
        if cell.conditions == conditions
    }
    first, control = control_of(samples, conditions)
    controlled = [each.mode for each in control.values()]
    baseline = CacheMode.SHARED if CacheMode.SHARED in modes else controlled[0] if controlled else min(modes)
    if set(controlled) != {baseline}:
        control = {}

    def against(below: CacheMode, value: Callable[[Sample], float]) -> dict[CacheMode, Difference]:
        found = {}
        for mode, pairs in modes.items():
            ratio = ratio_by_round(pairs, modes.get(below, {}), value) if mode != below else None
            if ratio is not None:
                beside = {pair: each for pair, each in first.items() if pair in pairs}
                busy = max(map(busy_share, (pairs.values(), modes[below].values())))
                found[mode] = Difference(ratio, ratio_by_round(control, beside, value), busy)
        return found

    internal = against(CacheMode.PER_WORKER, lambda each: each.creation_rate)
    return Comparison(
        conditions,
        baseline,
        ratio_by_round(control, first, lambda each: each.throughput),
        against(baseline, lambda each: each.throughput),
        against(baseline, lambda each: each.creation_rate),
        internal.get(CacheMode.PER_WORKER_INTERNAL),
    )


def cell_texts(cell: CellReport, comparison: Comparison) -> dict[str, str]:
    """The figures of a cell as text, by the heading of their column."""
    difference, mode = comparison.throughput.get(cell.cell.mode), cell.cell.mode
    ratio = "" if difference is None else ratio_text(difference.ratio) + difference.mark
    figures = cell.figures
    least, most = (100 * figures[name].median for name in ("blocked_share", "asleep_share"))
    return {
        "workers": str(cell.cell.workers),
        "mode": mode,
        "n": str(len(cell.samples)),
        "pipelines/s": rate_text(figures["throughput"]),
        "ratio": "baseline" if mode == comparison.baseline else ratio,
        "blocked": f"{least:.0f}-{most:.0f}%",
        "no CPU": f"{figures['run_delay_share'].median:.1%}",
        "efficiency": "" if cell.efficiency is None else f"{cell.efficiency.median:.0%}",
        "CPU": "" if cell.inflation is None else f"{cell.inflation.median:.2f}×",
        "merge": f"{cell.median(lambda each: each.merge_cost_ns / 1e6):.2f} ms",
        "memory": f"{cell.median(lambda each: each.peak_memory_bytes) / 2**20:,.0f} MiB",
    }


def ratio_text(ratio: Estimate) -> str:
    """A ratio as text, such as ``2.2× [2.1, 2.3]``."""
    return f"{ratio.median:.3g}× [{ratio.low:.3g}, {ratio.high:.3g}]"


def noise_text(control: Estimate | None) -> str:
    """The noise of an A/A control as text, such as ``A/A within 1.2%``."""
    return "no A/A control" if control is None else f"A/A within {noise_factor(control) - 1:.1%}"


def rate_text(rate: Estimate) -> str:
    """A rate as text, such as ``28.2k [28k, 28.6k]``."""
    return f"{_short(rate.median)} [{_short(rate.low)}, {_short(rate.high)}]"


def _short(value: float) -> str:
    # "g" writes 999.6 with three digits as 1e+03.
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def verdict_text(found: Difference | None) -> str:
    """The verdict on private caches against the shared one."""
    if found is None:
        return "not measured with both topologies side by side"
    if found.control is None:
        return "no verdict without an A/A control"
    if found.busy > BUSY_SHARE and found.judgement is Judgement.UNDECIDED:
        return f"no verdict, since threads waited for a processor for {found.busy:.0%} of the time"
    ratio = found.ratio
    inverse = Estimate(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.count)
    return {
        Judgement.HIGHER: f"private caches {ratio_text(ratio)} faster",
        Judgement.LOWER: f"private caches {ratio_text(inverse)} slower",
        Judgement.EQUAL: "equal within 5%",
        Judgement.UNDECIDED: f"undecided, private caches {ratio_text(ratio)} as fast",
        Judgement.NOT_MEASURED: f"no verdict yet, {found.pairs} of the {LEAST_PAIRS} pairs that one needs",
    }[found.judgement]


def _verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """One sentence for each device and share of duplicates.

    Example: on radv:navi21, warm, 16 workers: private caches 2.2× [2.1, 2.3] faster; cold: equal within 5%.
    """
    places: dict[tuple[str, float], list[Comparison]] = {}
    for each in comparisons:
        places.setdefault((each.conditions.device, each.conditions.duplicates), []).append(each)
    sentences = []
    for (device, _), found in sorted(places.items()):
        parts, workers = list[str](), 0
        for each in found:
            words = verdict_text(each.topology)
            alone = each.creation_rate.get(CacheMode.PER_WORKER) if each.topology else None
            if alone is not None and (alone.higher or alone.lower) and verdict_text(alone) != words:
                words += f" (before the merge: {verdict_text(alone)})"
            same, workers = each.conditions.workers == workers, each.conditions.workers
            parts.append(
                f"{each.conditions.start}{'' if same else ', ' + counted(workers, 'worker')}: {words}"
            )
        sentences.append(f"on {device_text(device)}{found[0].conditions.copies}, " + "; ".join(parts))
    return sentences


def _advice(comparisons: Sequence[Comparison]) -> list[str]:
    """One sentence per measured device: which --mode to use, and why."""
    sentences = []
    for device in sorted({each.conditions.device for each in comparisons}):
        measured = [each for each in comparisons if each.conditions.device == device and each.topology]
        least = min((each.conditions.duplicates for each in measured), default=0)
        modes, reasons = dict[Start, CacheMode](), []
        for each in measured:
            found, key = each.topology, each.conditions
            if found is None or key.duplicates != least:
                continue
            if found.decided:
                modes[key.start] = CacheMode.PER_WORKER if found.higher else CacheMode.SHARED
            simpler = found.decided and not found.higher
            merge = ", and a shared one needs no merge" if simpler else ""
            reasons.append(f"{key.start}: {verdict_text(found)}{merge}")
        most = max((each.conditions.workers for each in measured), default=0)
        where = f"On {device_text(device)} with {counted(most, 'worker')}"
        if modes:
            each_start = [f"--mode {mode} {start}" for start, mode in modes.items()]
            one = f"--mode {next(iter(modes.values()))}"
            use = one if len(set(modes.values())) == 1 else " and ".join(each_start)
            sentences.append(f"{where} use {use} ({'; '.join(reasons)}).")
        elif reasons:
            why = "; ".join(reasons)
            sentences.append(f"{where} nothing is decided: more samples, or a quiet machine ({why}).")
    return sentences


def _warnings(cells: Sequence[CellReport], comparisons: Sequence[Comparison]) -> list[str]:
    found = []
    few = [len(each.samples) for each in cells if len(each.samples) < LEAST_PAIRS]
    if few:
        found.append(
            f"{len(few)} of {counted(len(cells), 'cell')} have fewer than {LEAST_PAIRS} samples (the "
            f"smallest {min(few)}): only a clear difference gets a verdict there"
        )
    factors = [noise_factor(each.control) for each in comparisons if each.control is not None]
    if len(factors) < len(comparisons):
        found.append("some groups have no A/A control, so their noise is unknown")
    noisy = [each for each in factors if each > 1 + NOISY_SHARE]
    if noisy:
        found.append(
            f"in {len(noisy)} of {counted(len(comparisons), 'group')} the noise exceeds {NOISY_SHARE:.0%} "
            f"(at most {max(noisy) - 1:.0%}): smaller differences cannot be seen there"
        )
    busy = [each for each in cells if each.figures["run_delay_share"].median > BUSY_SHARE]
    if busy:
        worst = max(busy, key=lambda each: each.figures["run_delay_share"].median)
        found.append(
            f"in {len(busy)} of {counted(len(cells), 'cell')} threads waited for a processor for more than "
            f"{BUSY_SHARE:.0%} of their time (at most {worst.figures['run_delay_share'].median:.0%}, "
            f"{counted(worst.cell.workers, 'worker')} on "
            f"{counted(worst.samples[0].environment.cores, 'core')}): that is the machine, not the cache"
        )
    found += _lock_words(cells, "threads slept for {:.0%} of the calls' time", asleep=True)
    found += _lock_words(cells, "CPU time per pipeline is {:.2f} times that of one worker", asleep=False)
    found += _refused_words(cells)
    samples = [sample for each in cells for sample in each.samples]
    found += _feedback_words(samples)
    found += clock_words(samples)
    return found + sorted({note for sample in samples for note in sample.notes})


def _lock_words(cells: Sequence[CellReport], words: str, *, asleep: bool) -> Iterable[str]:
    """Whether a lock, and whose, may cause sleep, or spin. One worker and private caches are the evidence.

    A line for each conclusion, about the worst place.
    """
    every = {each.cell: each for each in cells}
    value: Callable[[Sample], float] = attrgetter(f"{'asleep' if asleep else 'cpu'}_per_pipeline_ns")
    concluded: dict[str, list[tuple[float, str]]] = {}
    for cell in (each for each in cells if each.cell.mode is CacheMode.SHARED):
        key = cell.cell
        alone, own = (
            every.get(structs.replace(key, workers=1)),
            every.get(structs.replace(key, mode=CacheMode.PER_WORKER)),
        )
        inflation = cell.inflation.median if cell.inflation is not None else 0.0
        symptom = cell.figures["asleep_share"].median if asleep else inflation
        if symptom < (ASLEEP_SHARE if asleep else INFLATED) or busy_share(cell.samples) > BUSY_SHARE:
            continue
        here = cell.of(value)
        if key.workers == 1:
            why = ": one worker waits for no lock"
        elif alone is not None and here.low <= INFLATED * alone.median(value):
            why = ": one worker does so as long, so no lock is the reason"
        elif own is None:
            why = ": mode per-worker shows whether the lock of the cache is the reason"
        elif own.of(value).high < here.low:
            why = ", less with private caches: the lock of the cache is the reason"
        else:
            why = (
                ", as with private caches: a lock of the driver may be, none of the cache; try fewer workers"
            )
        where = f"{device_text(key.device)}, {key.start}, {counted(key.workers, 'worker')}{key.copies}"
        concluded.setdefault(why, []).append((symptom, where))
    for why, places in concluded.items():
        most, where = max(places)
        others = f" and {counted(len(places) - 1, 'other group')}" if len(places) > 1 else ""
        yield f"with a shared cache {words.format(most)} ({where}{others}){why}"


def _refused_words(cells: Sequence[CellReport]) -> list[str]:
    refused: dict[str, int] = {}
    for each in cells:
        most = max(sample.refused for sample in each.samples)
        refused[each.cell.device] = max(most, refused.get(each.cell.device, 0))
    found = [
        f"the driver refused {counted(count, 'pipeline')} in a pass on {device_text(device)}: rates do not "
        "count them, and the times lack their compiles; `compile` names them"
        for device, count in refused.items()
        if count
    ]
    warm = [each for each in cells if each.cell.start == Start.WARM]
    coldest = [max(each.samples, key=lambda one: one.created - one.hits) for each in warm]
    if missing := [each for each in coldest if each.created > each.hits]:
        worst = max(missing, key=lambda each: (each.created - each.hits) / each.created)
        found.append(
            f"in {len(missing)} of {counted(len(warm), 'warm cell')} the driver did not find all pipelines "
            f"in a cache (missing up to {worst.created - worst.hits:,} of {worst.created:,}): their figures "
            "include compiles, unless this driver does not report hits"
        )
    return found


def _feedback_words(samples: Sequence[Sample]) -> list[str]:
    """What is wrong with the driver's creation feedback, by which blocked and hits are known."""
    made = [each for each in samples if each.created]
    latencies = [(each.compiled_latency, each.hit_latency) for each in made]
    wrong = {
        "the driver's own time is longer than the calls": [not each.feedback_fits for each in made],
        "the driver's own time is 0": [not each.driver_ns for each in made],
        "all pipelines take the same time": [any(map(Latencies.is_constant, each)) for each in latencies],
        "every pipeline is a hit in an empty cache": [
            each.start == Start.COLD and each.hits == each.created > 1 for each in made
        ],
    }
    return [
        f"creation feedback of this driver cannot be believed: {words} ({sum(each)} of {len(each)} samples)"
        for words, each in wrong.items()
        if any(each)
    ]


def clock_words(samples: Sequence[Sample]) -> list[str]:
    """Says if CPU time per pipeline changed in mid-run in all cells, as where a processor throttles."""
    cells: dict[tuple[Cell, int], list[Sample]] = {}
    for each in samples:
        if each.cpu_per_pipeline_ns:
            cells.setdefault((each.cell, each.batch), []).append(each)
    shares = []
    for of in cells.values():
        usual = median(each.cpu_per_pipeline_ns for each in of)
        shares += [(each.started_at, each.cpu_per_pipeline_ns / usual) for each in of]
    values = np.array([share for _, share in sorted(shares)])
    splits = range(LEAST_PAIRS, len(values) - LEAST_PAIRS + 1)
    # Where two medians leave the least between them and the samples of their sides.
    at = min(splits, key=lambda at: sum(_spread(each) for each in np.split(values, [at])), default=0)
    if not at:
        return []
    factor = float(np.median(values[at:]) / np.median(values[:at]))
    if max(factor, 1 / factor) <= CLOCK_CHANGED:
        return []
    return [
        f"from sample {at + 1} of {len(values)} on, CPU time per pipeline is {factor:.2f} times what it was: "
        "the processor's clock changed (throttled?), or other programs took its caches"
    ]


def _spread(values: Numbers) -> float:
    return float(np.abs(values - np.median(values)).sum())
