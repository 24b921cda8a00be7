# Purpose: from the samples of a calibration to answers in words, and to what to do.
#
#   samples ─> contenders (temperature, mode, workers, batch) ─> pairs by round ─> ratio against the baseline, and the
#   baseline's own A/A control ─> finding ─> choice
#
# Guarantees: pure. A difference that the control could show as well is no difference; with fewer than LEAST_PAIRS pairs nothing
# is. Where the interval is so wide that a difference could hide in it, the answer is "undecided" and not "no difference".
# Every word of an answer has its figure beside it.
#
# What a sample is worth: the caches made + one pass over the set + the merge. A warm run passes over the set several
# times so that it can be measured; its caches are made and merged once, so the passes are divided and the rest is not.
#
# How a choice is made: among the topologies the one that is faster than the shared cache beyond noise; where all others are
# slower than it or the same, the shared cache, which needs no merge and holds everything once; else, undecided, what a run
# without a calibration does. Then the fewest workers that are as fast as all processors: workers that do not help are
# better left to others. What could not be told never takes workers away.
"""Verdicts of a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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

SAME_WITHIN = 1.1
"""Two things are the same where the whole interval of their ratio lies within this factor."""


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
    answer, meaning = "undecided", "cannot be told here, the samples differ too much from round to round"
    if is_same(found):
        answer, meaning = "no difference", same
    elif found.higher:
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


def is_same(found: Difference) -> bool:
    """Whether there is no difference, as far as matters: not beyond noise, and none that could hide in the interval."""
    tight = found.ratio.low > 1 / SAME_WITHIN and found.ratio.high < SAME_WITHIN
    return found_enough(found) and tight and not found.beyond_noise


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
    mode, why = SHARED, "one shared cache: a cache for each worker is not faster, and needs a merge"
    if merge_works is False:
        why = "one shared cache: this driver does not merge caches"
    elif better := {each: found for each, found in compared.items() if found.lower}:
        best = min(better, key=lambda each: better[each].ratio.median)
        mode = best.mode
        why = f"{mode}: x{better[best].ratio.median:.3f} the time of one shared cache"
    elif undecided := [each.mode for each, found in compared.items() if not (found.higher or is_same(found))]:
        if PER_WORKER in undecided or shared._replace(mode=PER_WORKER) not in compared:
            mode, why = PER_WORKER, "undecided, so a cache for each worker, as without a calibration"
        else:
            why = f"{why}; whether {', '.join(undecided)} would be faster is undecided"
    count, workers_why = _fewest(samples, Contender(temperature, mode, most, batch), worker_counts)
    return Choice(mode=mode, workers=count, words=f"{why}; {workers_why}")


def _fewest(samples: Samples, most: Contender, worker_counts: Sequence[int]) -> tuple[int, str]:
    """The fewest workers that are not slower beyond noise than the fastest, and why."""
    slower = undecided = 0
    for count in sorted(worker_counts):
        if count == most.workers:
            break
        fewer = most._replace(workers=count)
        found = samples.difference(fewer, most)
        if found is None or not found_enough(found):
            continue
        if found.lower:
            return count, f"{_workers(count)}: {most.workers} take longer"
        if is_same(found):
            return count, f"{_workers(count)}: {most.workers} are not faster"
        slower += found.higher
        undecided += not found.higher
    why = "fewer take longer" if slower else "fewer were not measured"
    if undecided:
        why = "whether fewer would do is undecided"
    if len(worker_counts) == 1:
        why = "there is no more than that"
    return most.workers, f"{_workers(most.workers)}: {why}"


def choose_batch(
    samples: Samples, contender: Contender, batches: Sequence[int]
) -> tuple[int | None, Finding]:
    """The usual batch, or the fastest one where the usual is slower than it beyond noise.

    Args:
        samples: The samples.
        contender: Temperature, mode and workers; its batch is the usual one.
        batches: What was tried.
    """
    question = "batch size, warm"
    medians = {}
    for batch in batches:
        rounds = samples.of(contender._replace(batch=batch))
        if len(rounds) >= LEAST_PAIRS:
            medians[batch] = estimate([seconds_of(each) for each in rounds.values()]).median
    if contender.batch not in medians or len(medians) < 2:
        return None, Finding(question=question, answer="not measured", words=f"{question}: not measured.")

    def against(batch: int, other: int) -> Difference | None:
        return samples.difference(contender._replace(batch=batch), contender._replace(batch=other))

    faster = {
        batch: found.ratio.median
        for batch in medians
        if batch != contender.batch and (found := against(batch, contender.batch)) is not None and found.lower
    }
    chosen = min(faster, key=lambda batch: faster[batch]) if faster else contender.batch
    smallest = min(medians)
    found = against(smallest, chosen) if smallest != chosen else None
    why = "faster than the others beyond noise" if faster else "nothing else is faster beyond noise"
    compared = f"; calls of {smallest} take x{found.ratio.median:.2f} the time" if found is not None else ""
    listed = ", ".join(f"{batch}: {seconds * 1e3:.2f} ms" for batch, seconds in sorted(medians.items()))
    return chosen, Finding(
        question=question,
        answer=str(chosen),
        words=f"{question}: calls of up to {chosen} pipelines, {why}{compared} (one pass by batch: {listed}).",
        ratio=found.ratio.median if found is not None else None,
        low=found.ratio.low if found is not None else None,
        high=found.ratio.high if found is not None else None,
        pairs=found.ratio.count if found is not None else 0,
        noise=found.noise.factor if found is not None and found.noise is not None else None,
    )


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
