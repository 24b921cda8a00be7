# Purpose: from the samples of a calibration to answers in words, and to what to do.
#
#   samples ─> contenders (temperature, mode, workers, batch) ─> pairs by round ─> ratio against the baseline, and the
#   baseline's own A/A control ─> finding ─> choice
#
# Guarantees: pure. A difference that the control could show as well is no difference; with fewer than LEAST_PAIRS pairs nothing
# is. Every word of an answer has its figure beside it.
#
# What a sample is worth: the caches made + one pass over the set + the merge. A warm run passes over the set several
# times so that it can be measured; its caches are made and merged once, so the passes are divided and the rest is not.
#
# How a choice is made: among the topologies the one that is faster than the shared cache beyond noise; where none is, the
# shared cache, which needs no merge and holds everything once. Then the fewest workers that are not slower beyond noise than
# all processors: workers that do not help are better left to others.
"""Verdicts of a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attrs import frozen

from orchestrator.measure.samples import Sample
from orchestrator.measure.statistics import (
    LEAST_PAIRS,
    Difference,
    by_round,
    estimate,
    noise_of,
    paired_ratio,
)
from orchestrator.stores.calibration_profile import Choice, Figure, Finding

SHARED, PER_WORKER, INTERNAL, TWO_LEVEL = "shared", "per-worker", "per-worker-internal", "two-level"
COLD, WARM = "cold", "warm"

GROWTH_A_ROUND = 0.002
"""A cache that gains this share of itself whenever it is loaded and read grows without bound; bytes of bookkeeping do not."""

_WARM_HITS = 0.99


class Contender(NamedTuple):
    """What a sample of a calibration is a sample of."""

    temperature: str
    mode: str
    workers: int
    batch: int


def contender_of(sample: Sample) -> Contender:
    """Which."""
    return Contender(sample.temperature, sample.mode, sample.workers, sample.batch)


def seconds_of(sample: Sample) -> float:
    """What one use of the set takes: caches, one pass, merge."""
    return (sample.open_ns + sample.wall_ns / max(1, sample.passes) + sample.merge_ns) / 1e9


@frozen
class ProbeResult:
    """What single processes found out beside the samples.

    Attributes:
        set_pipelines: Pipelines that were handed to the driver.
        cold_hits: Hits that the set has in itself, with an empty cache: pipelines that are the same to the driver.
        shared_hits: Hits in a new process with the data of one shared cache; None where it was not tried.
        merged_hits: Hits in a new process with the data of merged worker caches; None where it was not tried.
        merge_warnings: What the merge said.
        sizes: Size of the cache after each round of load, use and read-back, from the first on.
        problem: Why nothing could be found out, or "".
    """

    set_pipelines: int = 0
    cold_hits: int = 0
    shared_hits: int | None = None
    merged_hits: int | None = None
    merge_warnings: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    problem: str = ""

    @property
    def cache_keeps(self) -> bool | None:
        """Whether a cache keeps anything at all."""
        return None if self.shared_hits is None else self.shared_hits > self.cold_hits

    @property
    def merge_works(self) -> bool | None:
        """Whether merged caches hold what one cache would have held."""
        if self.shared_hits is None or self.merged_hits is None or not self.cache_keeps:
            return None
        return self.merged_hits >= self.shared_hits * _WARM_HITS

    @property
    def read_back_grows(self) -> bool | None:
        """Whether it grew in every round, by more than bookkeeping."""
        if len(self.sizes) < 3 or not self.cache_keeps:
            return None
        steps = zip(self.sizes, self.sizes[1:], strict=False)
        return all(after - before > GROWTH_A_ROUND * before for before, after in steps)


class Samples:
    """The samples of a calibration, by contender and round.

    Args:
        rows: Samples; warm-ups count for nothing.
    """

    def __init__(self, rows: Iterable[Sample]) -> None:
        self._rounds: dict[tuple[Contender, bool], dict[int, Sample]] = {}
        for row in rows:
            if row.counts:
                self._rounds.setdefault((contender_of(row), row.control), {})[row.round] = row

    @property
    def contenders(self) -> list[Contender]:
        """All of them, in the order of their first sample."""
        return list(dict.fromkeys(contender for contender, _ in self._rounds))

    def of(self, contender: Contender, *, control: bool = False) -> Mapping[int, Sample]:
        """Samples of a contender by round."""
        return self._rounds.get((contender, control), {})

    def difference(self, contender: Contender, baseline: Contender) -> Difference | None:
        """The time of a contender over that of a baseline, beside the control of the same rounds; None without pairs."""
        above, below = by_round(self.of(contender), self.of(baseline), seconds_of)
        if not above:
            return None
        for controlled in (baseline, contender, *self.contenders):
            if controlled.temperature != baseline.temperature:
                continue
            first, second = by_round(self.of(controlled), self.of(controlled, control=True), seconds_of)
            if first:
                return Difference(paired_ratio(above, below), noise_of(first, second))
        return Difference(paired_ratio(above, below), None)

    def figures(self) -> tuple[Figure, ...]:
        """What each contender took, controls after all others."""
        figures = []
        for (contender, control), rounds in sorted(self._rounds.items(), key=lambda item: item[0][1]):
            samples = list(rounds.values())
            seconds = estimate([seconds_of(each) for each in samples])
            once = samples[0].created / max(1, samples[0].passes)
            figures.append(
                Figure(
                    temperature=contender.temperature,
                    mode=contender.mode,
                    workers=contender.workers,
                    batch=contender.batch,
                    control=control,
                    samples=seconds.count,
                    seconds=seconds.median,
                    low=seconds.low,
                    high=seconds.high,
                    pipelines_per_s=once / seconds.median if seconds.median > 0 else 0.0,
                )
            )
        return tuple(figures)


def compare(
    samples: Samples,
    question: str,
    contender: Contender,
    baseline: Contender,
    *,
    slower: str,
    faster: str,
    same: str,
) -> Finding:
    """Ask whether a contender takes another time than a baseline.

    Args:
        samples: The samples.
        question: Its name.
        contender: Which.
        baseline: Against which.
        slower: What it means that the contender takes longer; a sentence without its end.
        faster: What it means that it takes less time.
        same: What it means that there is no difference.
    """
    found = samples.difference(contender, baseline)
    if found is None or not found_enough(found):
        pairs = found.ratio.count if found is not None else 0
        return Finding(
            question=question,
            answer="not measured",
            words=f"{question}: not measured ({pairs} pairs, and {LEAST_PAIRS} are needed).",
            pairs=pairs,
        )
    ratio, noise = found.ratio, found.noise
    factor = noise.factor if noise is not None else 1.0
    answer, meaning = "no difference", same
    if found.higher:
        answer, meaning = "slower", slower
    elif found.lower:
        answer, meaning = "faster", faster
    words = (
        f"{question}: {meaning} (x{ratio.median:.3f} the time, {ratio.low:.3f} to {ratio.high:.3f} over {ratio.count} "
        f"pairs; the same thing twice differs by up to x{factor:.3f})."
    )
    return Finding(
        question=question,
        answer=answer,
        words=words,
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        pairs=ratio.count,
        noise=factor,
    )


def found_enough(found: Difference) -> bool:
    """Whether there were enough pairs, and a control, to say anything."""
    control = found.noise.control.count if found.noise is not None else 0
    return min(found.ratio.count, control) >= LEAST_PAIRS


def topology_findings(samples: Samples, temperature: str, workers: int, batch: int) -> tuple[Finding, ...]:
    """What the lock costs, what the worker caches cost or bring, and whether workers help."""

    def contender(mode: str, count: int = workers) -> Contender:
        return Contender(temperature, mode, count, batch)

    findings = []
    if workers > 1:
        findings = [
            compare(
                samples,
                f"shared cache, {temperature}",
                contender(SHARED),
                contender(PER_WORKER),
                slower=f"with {workers} workers one shared cache is slower than a cache for each, merged at the end",
                faster=f"with {workers} workers one shared cache is faster than a cache for each, merged at the end",
                same=f"with {workers} workers one shared cache and a cache for each take the same time within noise",
            ),
            compare(
                samples,
                f"locking, {temperature}",
                contender(INTERNAL),
                contender(PER_WORKER),
                slower="locks that nobody else wants cost time, so the externally synchronized flag is worth it",
                faster="worker caches are faster without the externally synchronized flag",
                same="the lock of a cache costs nothing that can be measured while nobody else wants it",
            ),
        ]
        findings += [
            compare(
                samples,
                f"more workers, {temperature}, {mode}",
                contender(mode),
                contender(mode, 1),
                slower=f"{workers} workers are slower than one",
                faster=f"{workers} workers are faster than one",
                same=f"{workers} workers and one take the same time within noise",
            )
            for mode in (SHARED, PER_WORKER)
        ]
    if samples.of(contender(TWO_LEVEL)):
        findings.append(
            compare(
                samples,
                f"two levels, {temperature}",
                contender(TWO_LEVEL),
                contender(SHARED),
                slower="looking up in the primary and compiling elsewhere is slower than one shared cache",
                faster="looking up in the primary and compiling elsewhere is faster than one shared cache",
                same="looking up in the primary and compiling elsewhere takes the time of one shared cache within noise",
            )
        )
    return tuple(findings)


def choose(
    samples: Samples, temperature: str, worker_counts: Sequence[int], batch: int, *, merge_works: bool | None
) -> Choice | None:
    """What to do at a temperature; None where it was not measured.

    Args:
        samples: The samples.
        temperature: Which.
        worker_counts: The numbers of workers that were tried.
        batch: Largest number of pipelines in a call.
        merge_works: A driver that does not merge leaves the shared cache only; None where it is not known.
    """
    most = max(worker_counts)
    shared = Contender(temperature, SHARED, most, batch)
    rivals = [] if merge_works is False else [PER_WORKER, TWO_LEVEL]
    tried = [shared._replace(mode=mode) for mode in rivals if samples.of(shared._replace(mode=mode))]
    compared = {each: found for each in tried if (found := samples.difference(each, shared)) is not None}
    enough = [found for found in compared.values() if found_enough(found)]
    if not samples.of(shared) or (tried and not enough):
        return None
    better = {each: found for each, found in compared.items() if found.lower}
    mode, why = SHARED, "one shared cache: nothing else is faster beyond noise, and it needs no merge"
    if merge_works is False:
        why = "one shared cache: this driver does not merge caches"
    if better:
        best = min(better, key=lambda each: better[each].ratio.median)
        mode = best.mode
        why = f"{mode}: x{better[best].ratio.median:.3f} the time of one shared cache"
    count, workers_why = _fewest(samples, Contender(temperature, mode, most, batch), worker_counts)
    return Choice(mode=mode, workers=count, words=f"{why}; {workers_why}")


def _fewest(samples: Samples, most: Contender, worker_counts: Sequence[int]) -> tuple[int, str]:
    """The fewest workers that are not slower beyond noise than the fastest, and why."""
    compared = 0
    for count in sorted(worker_counts):
        if count == most.workers:
            break
        fewer = most._replace(workers=count)
        found = samples.difference(fewer, most)
        if found is None or not found_enough(found):
            continue
        compared += 1
        if found.lower:
            return count, f"{_workers(count)}: {most.workers} take longer"
        if not found.higher:
            return count, f"{_workers(count)}: {most.workers} are not faster beyond noise"
    if len(worker_counts) == 1:
        return most.workers, f"{_workers(most.workers)}: there is no more than that"
    why = "fewer take longer" if compared else "fewer were not measured"
    return most.workers, f"{_workers(most.workers)}: {why}"


def choose_batch(
    samples: Samples, contender: Contender, batches: Sequence[int]
) -> tuple[int | None, Finding]:
    """The smallest batch that is not slower beyond noise than the fastest one.

    Args:
        samples: The samples.
        contender: Temperature, mode and workers; its batch is the baseline.
        batches: What was tried.
    """
    question = "batch size, warm"
    medians = {}
    for batch in batches:
        rounds = samples.of(contender._replace(batch=batch))
        if len(rounds) >= LEAST_PAIRS:
            medians[batch] = estimate([seconds_of(each) for each in rounds.values()]).median
    if len(medians) < 2:
        return None, Finding(question=question, answer="not measured", words=f"{question}: not measured.")
    fastest = contender._replace(batch=min(medians, key=lambda each: medians[each]))
    chosen, difference = fastest.batch, None
    for batch in sorted(medians):
        found = samples.difference(contender._replace(batch=batch), fastest)
        if batch == fastest.batch or (found is not None and found_enough(found) and not found.higher):
            chosen = batch
            break
    smallest = min(medians)
    if chosen != smallest:
        difference = samples.difference(contender._replace(batch=smallest), contender._replace(batch=chosen))
    listed = ", ".join(f"{batch}: {seconds * 1e3:.2f} ms" for batch, seconds in sorted(medians.items()))
    factor = (
        f"; calls of {smallest} take x{difference.ratio.median:.2f} that time"
        if difference is not None
        else ""
    )
    words = f"{question}: calls of up to {chosen} pipelines are enough{factor} (one pass by batch: {listed})."
    return chosen, Finding(
        question=question,
        answer=str(chosen),
        words=words,
        ratio=difference.ratio.median if difference is not None else None,
        low=difference.ratio.low if difference is not None else None,
        high=difference.ratio.high if difference is not None else None,
        pairs=difference.ratio.count if difference is not None else 0,
        noise=difference.noise.factor if difference is not None and difference.noise is not None else None,
    )


def probe_findings(probe: ProbeResult) -> tuple[Finding, ...]:
    """What single processes found out, in words."""
    unknown = f" ({probe.problem})" if probe.problem else ""
    findings = []
    keeps, works, grows = probe.cache_keeps, probe.merge_works, probe.read_back_grows
    if keeps is False:
        words = (
            f"keeping: the driver's cache keeps nothing: of {probe.set_pipelines} pipelines a new process finds none in a saved cache. "
            "A saved cache makes nothing faster, so warm runs were not measured."
        )
    elif keeps:
        words = f"keeping: of {probe.set_pipelines} pipelines a new process finds {probe.shared_hits} in a saved shared cache."
    else:
        words = f"keeping: not measured{unknown}."
    findings.append(Finding(question="keeping", answer=_answer(keeps), words=words))
    if works is None:
        words = "merging: not measured" + (unknown or ": there is nothing to merge") + "."
    elif works:
        words = f"merging works: {probe.merged_hits} pipelines are found in merged worker caches."
    else:
        words = (
            f"merging does not work: {probe.merged_hits} pipelines are found in merged worker caches, and {probe.shared_hits} in "
            "one shared cache. Use the shared cache, or lose what workers compiled."
        )
    if probe.merge_warnings:
        words += " The driver's merge was noted: " + "; ".join(probe.merge_warnings) + "."
    findings.append(Finding(question="merging", answer=_answer(works), words=words))
    if grows is None:
        words = f"read-back: not measured{unknown}."
    else:
        sizes = f"{probe.sizes[0]:,} to {probe.sizes[-1]:,} bytes over {len(probe.sizes)} rounds of loading, using and reading"
        words = (
            f"read-back: the cache grows with every round: {sizes}; keep the file from being saved when nothing is new."
            if grows
            else (f"read-back: the cache does not grow without bound: {sizes}.")
        )
    findings.append(Finding(question="read-back growth", answer=_answer(grows), words=words))
    return tuple(findings)


def _answer(known: bool | None) -> str:
    return "not measured" if known is None else "yes" if known else "no"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
