"""What a calibration concludes from its samples: whom to sample further, answers, choices.

Pure. A verdict follows the rule of statistics.py: differences compare samples pair by pair, with the A/A
control of the same start. Where one is undecided, the choice is what `compile` does without a calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from attrs import asdict, evolve, frozen

from orchestrator.bench.contention import ratio_text
from orchestrator.bench.rows import Sample, Start, busy_share, counted
from orchestrator.bench.statistics import (
    BUSY_SHARE,
    LEAST_CLEAR_PAIRS,
    LEAST_PAIRS,
    Difference,
    Judgement,
    estimate,
    ratio_by_round,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT
from orchestrator.stores.profile_file import Choice, Figure, Finding

GROWTH_A_ROUND = 0.002
"""A cache that grows by more than this share in every round grows without bound."""
_WARM_HITS = 0.99
_ANSWERS = {
    Judgement.HIGHER: ("slower", "slower than"),
    Judgement.LOWER: ("faster", "faster than"),
    Judgement.EQUAL: ("no difference", "equal within 5 % to"),
    Judgement.UNDECIDED: ("undecided", "undecided against"),
}
"""The answer, and its words before the rival."""


@frozen
class Contender:
    """One configuration that a calibration measures."""

    start: Start
    mode: CacheMode
    workers: int
    batch: int = BATCH_LIMIT

    @property
    def words(self) -> str:
        """The contender in words."""
        calls = "" if self.batch == BATCH_LIMIT else f", calls of {self.batch}"
        return f"{self.start}, {self.mode}, {counted(self.workers, 'worker')}{calls}"


def seconds_of(sample: Sample) -> float:
    """The time of using the set once, s: querying keys, creating the caches, one pass, the merge."""
    return sample.open_ns / 1e9 + sample.once_s


def use_of(sample: Sample) -> float:
    """The same with preparing included: a cache needs shader modules, and binaries do not."""
    return sample.prepare_ns / 1e9 + seconds_of(sample)


class SampleTable:
    """Samples of a calibration, by contender and round; of warm-ups only the rows are kept.

    `figure` is the time to compare, s; `late` has the contenders that the time limit left undecided.
    """

    def __init__(self, rows: Iterable[Sample] = (), figure: Callable[[Sample], float] = seconds_of) -> None:
        self.figure = figure
        self.late: Collection[Contender] = ()
        self.rows: list[Sample] = []
        self._rounds: dict[tuple[Contender, bool], dict[int, Sample]] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Sample) -> None:
        """Add a sample."""
        self.rows.append(row)
        if row.round >= 0:
            contender = Contender(row.start, row.mode, row.workers, row.batch)
            self._rounds.setdefault((contender, row.control), {})[row.round] = row

    def of(self, contender: Contender, *, control: bool = False) -> Mapping[int, Sample]:
        """The samples of a contender by round."""
        return self._rounds.get((contender, control), {})

    def median(self, contender: Contender) -> float:
        """Median time of a contender that has samples, s."""
        return estimate([self.figure(each) for each in self.of(contender).values()]).median

    def difference(self, contender: Contender, baseline: Contender) -> Difference | None:
        """Time of a contender over a baseline's, with the noise of that start; None without pairs."""
        figure = use_of if CacheMode.BINARIES in (contender.mode, baseline.mode) else self.figure
        ratio = ratio_by_round(self.of(contender), self.of(baseline), figure)
        if ratio is None:
            return None
        controlled = dict.fromkeys((baseline, contender, *(each for each, _ in self._rounds)))
        controls = (
            ratio_by_round(self.of(each, control=True), self.of(each), figure)
            for each in controlled
            if each.start == baseline.start
        )
        control = next((each for each in controls if each is not None), None)
        busy = max(busy_share(self.of(each).values()) for each in (contender, baseline))
        return Difference(ratio, control, busy)

    def figures(self) -> tuple[Figure, ...]:
        """The time of each contender, controls last."""
        figures = []
        for (contender, control), rounds in sorted(self._rounds.items(), key=lambda item: item[0][1]):
            samples = list(rounds.values())
            seconds = estimate([self.figure(each) for each in samples])
            once = samples[0].created / samples[0].passes
            figures.append(
                Figure(
                    **asdict(contender),
                    control=control,
                    samples=seconds.count,
                    seconds=seconds.median,
                    low=seconds.low,
                    high=seconds.high,
                    pipelines_per_s=once / seconds.median if seconds.median > 0 else 0.0,
                    whole_use=self.figure is use_of,
                )
            )
        return tuple(figures)


def undecided(samples: SampleTable, contenders: Sequence[Contender]) -> set[Contender]:
    """Of the contenders of one start, the baseline first, those that need further samples, and their rivals.

    With all workers the rival is the baseline, with fewer all workers of the same topology, of binaries the
    fastest cache so far. Worker caches with locks are also compared with those without.
    """
    baseline, found, slower = contenders[0], set[Contender](), set[Contender]()
    whole = [each for each in contenders if each.workers == baseline.workers]
    caches = [each for each in whole if each.mode is not CacheMode.BINARIES and samples.of(each)]
    fastest = min(caches, key=samples.median, default=baseline)
    for each in contenders[1:]:
        if each.workers != baseline.workers:
            rivals = [evolve(each, workers=baseline.workers)]
        elif each.mode is CacheMode.PER_WORKER_INTERNAL:
            rivals = [baseline, evolve(each, mode=CacheMode.PER_WORKER)]
        else:
            rivals = [fastest if each.mode is CacheMode.BINARIES else baseline]
        if rivals[0] in slower:
            continue  # the topology is slower than the baseline, so its number of workers does not matter
        for rival in rivals:
            difference = samples.difference(each, rival)
            if difference is None or not difference.decided:
                found.update((each, rival))
            elif difference.higher and each.workers == baseline.workers and rival == baseline:
                slower.add(each)
    return {baseline, *found} if found else found


def compare(
    samples: SampleTable, question: str, contender: Contender, baseline: Contender, against: str
) -> Finding:
    """Judge whether the times of a contender and a baseline, `against` in words, differ."""
    found = samples.difference(contender, baseline)
    if found is None or found.judgement is Judgement.NOT_MEASURED:
        pairs = found.ratio.count if found is not None else 0
        out = [each.words for each in (contender, baseline) if each in samples.late]
        why = f", since {' and '.join(out)} did not fit the time limit" if out else ""
        words = f"{question}: not measured{why} ({counted(pairs, 'pair')} of the {LEAST_PAIRS} needed)."
        return Finding(question=question, answer="not measured", words=words, pairs=pairs)
    ratio, (answer, meaning) = found.ratio, _ANSWERS[found.judgement]
    busy = (
        f"; threads waited for a processor for {found.busy:.0%} of the time"
        if found.busy > BUSY_SHARE
        else ""
    )
    words = (
        f"{question}: {meaning} {against} ({ratio_text(ratio)} the time, "
        f"{counted(ratio.count, 'pair')}, noise ×{found.noise:.3g}{busy})."
    )
    return _finding(question, answer, words, found)


def _finding(question: str, answer: str, words: str, found: Difference | None) -> Finding:
    if found is None:
        return Finding(question=question, answer=answer, words=words)
    return Finding(
        question=question,
        answer=answer,
        words=words,
        ratio=found.ratio.median,
        low=found.ratio.low,
        high=found.ratio.high,
        pairs=found.ratio.count,
        noise=found.noise if found.control is not None else None,
    )


def topology_findings(samples: SampleTable, start: Start, workers: int) -> tuple[Finding, ...]:
    """The findings about one start: the lock, worker caches, two levels, and more workers."""
    shared, own = (Contender(start, mode, workers) for mode in (CacheMode.SHARED, CacheMode.PER_WORKER))
    internal, two_level = (
        evolve(shared, mode=mode) for mode in (CacheMode.PER_WORKER_INTERNAL, CacheMode.TWO_LEVEL)
    )
    one, name = "one worker", f"more workers, {start}"
    questions = []
    if workers > 1:
        private = f"a cache for each of {workers} workers, merged at the end"
        questions = [
            (f"shared cache, {start}", shared, own, private),
            (f"locking, {start}", internal, own, "worker caches without locks"),
            (f"{name}, {shared.mode}", shared, evolve(shared, workers=1), one),
            (f"{name}, {own.mode}", own, evolve(own, workers=1), one),
        ]
    if samples.of(two_level):
        questions.append((f"two levels, {start}", two_level, shared, "one shared cache"))
    return tuple(compare(samples, *each) for each in questions)


def choose(
    samples: SampleTable, start: Start, worker_counts: Sequence[int], *, merge_works: bool | None
) -> Choice | None:
    """The mode and workers to use for a start; None if it was not measured.

    Without a merge that works the shared cache is the choice; None if that is unknown.
    """
    shared = Contender(start, CacheMode.SHARED, max(worker_counts))
    rivals = [] if merge_works is False else [CacheMode.PER_WORKER, CacheMode.TWO_LEVEL]
    tried = [each for mode in rivals if samples.of(each := evolve(shared, mode=mode))]
    compared = {each.mode: found for each in tried if (found := samples.difference(each, shared)) is not None}
    measured = any(found.judgement is not Judgement.NOT_MEASURED for found in compared.values())
    if not samples.of(shared) or (rivals and not measured):
        return None
    mode, why = CacheMode.SHARED, "one shared cache: a cache for each worker is not faster, and needs a merge"
    faster = {mode: found.ratio.median for mode, found in compared.items() if found.lower}
    undecided = [mode for mode, found in compared.items() if not found.decided]
    if merge_works is False:
        why = "one shared cache: this driver does not merge caches"
    elif faster:
        mode = min(faster, key=lambda each: faster[each])
        why = f"{mode}: x{faster[mode]:.3f} the time of one shared cache"
    elif CacheMode.PER_WORKER in undecided or (undecided and CacheMode.PER_WORKER not in compared):
        mode = CacheMode.PER_WORKER
        why = "undecided, so a cache for each worker, as without a calibration"
    elif undecided:
        why = f"{why}; whether {', '.join(undecided)} would be faster is undecided"
    count, workers_why = _fewest(samples, evolve(shared, mode=mode), worker_counts)
    return Choice(mode=mode, workers=count, words=f"{why}; {workers_why}")


def _fewest(samples: SampleTable, most: Contender, worker_counts: Sequence[int]) -> tuple[int, str]:
    """The smallest number of workers that is as fast as any, and why."""

    def against(count: int, fastest: Contender) -> Difference | None:
        found = samples.difference(evolve(most, workers=count), fastest)
        return found if found is not None and found.judgement is not Judgement.NOT_MEASURED else None

    fastest, counts = most, sorted(worker_counts)
    for count in counts:
        if (found := against(count, fastest)) is not None and found.lower:
            fastest = evolve(most, workers=count)
    fewer = [
        (count, found) for count in counts if count < fastest.workers and (found := against(count, fastest))
    ]
    for count, found in fewer:
        if found.lower or found.judgement is Judgement.EQUAL:
            return count, f"{counted(count, 'worker')}: {fastest.workers} are not faster"
    why = "fewer take longer" if fewer else "fewer were not measured"
    if fastest != most:
        why = f"{most.workers} take longer"
    elif any(not found.higher for _, found in fewer):
        why = "whether fewer are as fast is undecided"
    elif len(counts) == 1:
        why = "nothing else was tried"
    return fastest.workers, f"{counted(fastest.workers, 'worker')}: {why}"


def weigh_binaries(
    samples: SampleTable, uses: SampleTable, cold: Choice, cached: Contender, most: int
) -> tuple[Choice | None, tuple[Finding, ...]]:
    """Compare mode binaries with the driver's cache: the choice, if binaries are faster, and the findings.

    Cold by `samples` at `most` workers; warm by `uses`, samples of one pass each with preparing included.
    """
    empty = Contender(Start.COLD, CacheMode(cold.mode), most)
    at_cold, at_warm = (
        compare(
            table,
            f"binaries, {baseline.start}",
            evolve(baseline, mode=CacheMode.BINARIES),
            baseline,
            f"mode {baseline.mode}",
        )
        for table, baseline in ((samples, empty), (uses, cached))
    )
    if at_warm.answer != "faster" or at_cold.answer not in ("faster", "no difference"):
        return None, (at_cold, at_warm)
    why = f"binaries: x{at_warm.ratio:.3f} the time of mode {cached.mode} warm, and cold {at_cold.answer}"
    return Choice(mode=CacheMode.BINARIES, workers=cached.workers, words=why), (at_cold, at_warm)


def choose_batch(
    samples: SampleTable, contender: Contender, batches: Sequence[int]
) -> tuple[int | None, Finding]:
    """The fastest batch that beats the contender's beyond noise, else that one; None if not measured."""
    question = "batch size, warm"
    tried = {batch: evolve(contender, batch=batch) for batch in batches}
    measured = {
        batch: samples.median(each)
        for batch, each in tried.items()
        if len(samples.of(each)) >= LEAST_CLEAR_PAIRS
    }
    if contender.batch not in measured or len(measured) < 2:
        return None, Finding(question=question, answer="not measured", words=f"{question}: not measured.")
    faster = {
        batch: found.ratio.median
        for batch in measured
        if (found := samples.difference(tried[batch], contender)) is not None and found.lower
    }
    chosen = min(faster, key=lambda batch: faster[batch]) if faster else contender.batch
    smallest = min(measured)
    found = samples.difference(tried[smallest], tried[chosen]) if smallest != chosen else None
    why = "faster than the others beyond noise" if faster else "nothing else is faster beyond noise"
    cost = f"; calls of {smallest} take x{found.ratio.median:.2f} the time" if found is not None else ""
    listed = ", ".join(f"{batch}: {seconds * 1e3:.2f} ms" for batch, seconds in sorted(measured.items()))
    words = f"{question}: calls of up to {chosen} pipelines, {why}{cost} (one pass by batch: {listed})."
    return chosen, _finding(question, str(chosen), words, found)


@frozen
class ProbeResult:
    """The answers of the probes, which are single processes besides the samples."""

    set_pipelines: int = 0  # Pipelines that were handed to the driver.
    # Hits with an initially empty cache: pipelines that the driver considers equal to others.
    cold_hits: int = 0
    # Hits in a new process with the data of one shared cache; None if not tried.
    shared_hits: int | None = None
    # Hits in a new process with the data of merged worker caches; None if not tried.
    merged_hits: int | None = None
    merge_warnings: tuple[str, ...] = ()  # Warnings of the merge.
    sizes: tuple[int, ...] = ()  # Size of the cache after each round of load, use and read-back, bytes.
    problem: str = ""  # Why the probes failed, or "".
    # Description of the pipelines that the driver compiled although they were in the shared cache.
    missed: str = ""

    @property
    def cache_keeps(self) -> bool | None:
        """Whether a saved cache keeps anything; None if unknown."""
        return None if self.shared_hits is None else self.shared_hits > self.cold_hits

    @property
    def merge_works(self) -> bool | None:
        """Whether merged caches hold as much as one shared cache, and not for a second compile; or None."""
        if self.shared_hits is None or self.merged_hits is None or not self.cache_keeps:
            return None
        return self.merged_hits >= self.shared_hits * _WARM_HITS and not self.merge_warnings

    @property
    def read_back_grows(self) -> bool | None:
        """Whether the cache grew in every round, by more than GROWTH_A_ROUND; None if unknown."""
        if len(self.sizes) < 3 or not self.cache_keeps:
            return None
        steps = zip(self.sizes, self.sizes[1:], strict=False)
        return all(after - before > GROWTH_A_ROUND * before for before, after in steps)


def probe_findings(probe: ProbeResult) -> tuple[Finding, ...]:
    """The findings of the probes."""
    unknown = f"not measured ({probe.problem})" if probe.problem else "not measured"

    def finding(question: str, known: bool | None, yes: str, no: str) -> Finding:
        answer = {None: "not measured", True: "yes", False: "no"}[known]
        words = f"{question}: {unknown if known is None else yes if known else no}."
        return Finding(question=question, answer=answer, words=words)

    sizes = f"{probe.sizes[0]:,} to {probe.sizes[-1]:,} bytes" if probe.sizes else ""
    sizes += f" over {len(probe.sizes)} rounds of loading, using and reading"
    missed = f". This driver does not keep {probe.missed}" if probe.missed else ""
    merged = f"{probe.merged_hits} pipelines are found in merged worker caches"
    warnings = f". Warnings of the merge: {'; '.join(probe.merge_warnings)}" if probe.merge_warnings else ""
    of = f"of {probe.set_pipelines} pipelines a new process finds"
    return (
        finding(
            "keeping",
            probe.cache_keeps,
            f"{of} {probe.shared_hits} in a saved cache{missed}",
            f"the driver's cache keeps nothing: {of} none in a saved cache, so warm runs were not measured",
        ),
        finding(
            "merging",
            probe.merge_works,
            f"{merged}{warnings}",
            f"it loses pipelines: {merged}, and {probe.shared_hits} in one shared cache; use that{warnings}",
        ),
        finding(
            "read-back growth",
            probe.read_back_grows,
            f"the cache grows with every round: {sizes}; do not save it when nothing is new",
            f"the cache does not grow without bound: {sizes}",
        ),
    )
