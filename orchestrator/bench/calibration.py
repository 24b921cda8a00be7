"""Verdicts of a calibration.

From the samples of a calibration to answers in words, and to what to do.

samples ─> contenders (start, mode, workers, batch) ─> pairs by round ─> ratio against the baseline,
and the baseline's own A/A control ─> finding ─> choice

Guarantees: pure. A difference that the control could show as well is no difference; with fewer than
LEAST_PAIRS pairs nothing is. Where the interval is so wide that a difference could hide in it, the answer
is "undecided" and not "no difference". Every word of an answer has its figure beside it.

What a sample is worth: the caches made + one pass over the set + the merge. A warm run passes over the set
several times so that it can be measured; its caches are made and merged once, so the passes are divided and
the rest is not.

How a choice is made: among the topologies the one that is faster than the shared cache beyond noise; where
all others are slower than it or the same, the shared cache, which needs no merge and holds everything once;
else, undecided, what a run without a calibration does. Then the fewest workers that are as fast as all
processors: workers that do not help are better left to others. What could not be told never takes workers
away.

Verdicts about caches.

What single processes found out about a driver's caches, beside the samples of a calibration: do they keep
anything, does merging work, do they grow whenever they are loaded and read.

Guarantees: pure; "not measured" where something was not, with the reason.

Taking the samples of a calibration.

Calibrating a device: which topology, how many workers, which batch, and whether its caches can be trusted
to be worth it. Takes the samples, asks the probes, has `measure` judge them, and makes the profile.

probes        compile shared ─ look up ─ grow;  compile per-worker ─ look up rounds 0..n   cold: A B C D A'
warm: A B C D E A'     turned by one a round, each sample in a process of its own batches       warm, with
the mode and workers that were found best: 1024 1 64 256 1024'

Guarantees: a sample that fails leaves its contender out and is noted; nothing else suffers. With a time
limit the rounds that are there are judged, and with too few of them the answer is "not measured", not a
guess. Caches for warm runs are in a temporary directory, never the user's.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attrs import define, field, frozen

from orchestrator.bench.jobs import (
    Answer,
    Job,
    Probed,
    ProbeJob,
    ProbeStep,
    Refused,
    SampleJob,
    run_in_process,
)
from orchestrator.bench.rows import FailedSample, Sample, Start
from orchestrator.bench.runner import WARM_PIPELINES_MOST, BenchError
from orchestrator.bench.statistics import LEAST_PAIRS, Difference, by_round, estimate, noise_of, paired_ratio
from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.errors import NoDeviceError
from orchestrator.run import available_workers
from orchestrator.stores.profile_file import CalibrationProfile, Choice, Figure, Finding, ProfileIdentity

SAME_WITHIN = 1.1
"""Two things are the same where the whole interval of their ratio lies within this factor."""


class Contender(NamedTuple):
    """What a sample of a calibration is a sample of."""

    start: Start
    mode: CacheMode
    workers: int
    batch: int


def contender_of(sample: Sample) -> Contender:
    """Which."""
    return Contender(sample.start, sample.mode, sample.workers, sample.batch)


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
            if controlled.start != baseline.start:
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
                    start=contender.start,
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


def topology_findings(samples: Samples, start: Start, workers: int, batch: int) -> tuple[Finding, ...]:
    """What the lock costs, what the worker caches cost or bring, and whether workers help."""

    def contender(mode: CacheMode, count: int = workers) -> Contender:
        return Contender(start, mode, count, batch)

    findings = []
    if workers > 1:
        findings = [
            compare(
                samples,
                f"shared cache, {start}",
                contender(CacheMode.SHARED),
                contender(CacheMode.PER_WORKER),
                slower=f"with {workers} workers one shared cache is slower than a cache for each, merged at the end",
                faster=f"with {workers} workers one shared cache is faster than a cache for each, merged at the end",
                same=f"with {workers} workers one shared cache and a cache for each take the same time within noise",
            ),
            compare(
                samples,
                f"locking, {start}",
                contender(CacheMode.PER_WORKER_INTERNAL),
                contender(CacheMode.PER_WORKER),
                slower="locks that nobody else wants cost time, so the externally synchronized flag is worth it",
                faster="worker caches are faster without the externally synchronized flag",
                same="the lock of a cache costs nothing that can be measured while nobody else wants it",
            ),
        ]
        findings += [
            compare(
                samples,
                f"more workers, {start}, {mode}",
                contender(mode),
                contender(mode, 1),
                slower=f"{workers} workers are slower than one",
                faster=f"{workers} workers are faster than one",
                same=f"{workers} workers and one take the same time within noise",
            )
            for mode in (CacheMode.SHARED, CacheMode.PER_WORKER)
        ]
    if samples.of(contender(CacheMode.TWO_LEVEL)):
        findings.append(
            compare(
                samples,
                f"two levels, {start}",
                contender(CacheMode.TWO_LEVEL),
                contender(CacheMode.SHARED),
                slower="looking up in the primary and compiling elsewhere is slower than one shared cache",
                faster="looking up in the primary and compiling elsewhere is faster than one shared cache",
                same="looking up in the primary and compiling elsewhere takes the time of one shared cache within noise",
            )
        )
    return tuple(findings)


def choose(
    samples: Samples, start: Start, worker_counts: Sequence[int], batch: int, *, merge_works: bool | None
) -> Choice | None:
    """What to do at a start; None where it was not measured.

    Args:
        samples: The samples.
        start: Which.
        worker_counts: The numbers of workers that were tried.
        batch: Largest number of pipelines in a call.
        merge_works: A driver that does not merge leaves the shared cache only; None where it is not known.
    """
    most = max(worker_counts)
    shared = Contender(start, CacheMode.SHARED, most, batch)
    rivals = [] if merge_works is False else [CacheMode.PER_WORKER, CacheMode.TWO_LEVEL]
    tried = [shared._replace(mode=mode) for mode in rivals if samples.of(shared._replace(mode=mode))]
    compared = {each: found for each in tried if (found := samples.difference(each, shared)) is not None}
    enough = [found for found in compared.values() if found_enough(found)]
    if not samples.of(shared) or (tried and not enough):
        return None
    mode, why = CacheMode.SHARED, "one shared cache: a cache for each worker is not faster, and needs a merge"
    if merge_works is False:
        why = "one shared cache: this driver does not merge caches"
    elif better := {each: found for each, found in compared.items() if found.lower}:
        best = min(better, key=lambda each: better[each].ratio.median)
        mode = best.mode
        why = f"{mode}: x{better[best].ratio.median:.3f} the time of one shared cache"
    elif undecided := [each.mode for each, found in compared.items() if not (found.higher or is_same(found))]:
        if CacheMode.PER_WORKER in undecided or shared._replace(mode=CacheMode.PER_WORKER) not in compared:
            mode, why = (
                CacheMode.PER_WORKER,
                "undecided, so a cache for each worker, as without a calibration",
            )
        else:
            why = f"{why}; whether {', '.join(undecided)} would be faster is undecided"
    count, workers_why = _fewest(samples, Contender(start, mode, most, batch), worker_counts)
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


GROWTH_A_ROUND = 0.002
"""A cache that gains this share of itself whenever it is loaded and read grows without bound; bytes of bookkeeping do not."""

_WARM_HITS = 0.99


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


ROUNDS = 7
"""Rounds where the time allows: two more than the least from which a difference can be told."""

BATCHES = (1, 64, 256, 1024)
BATCH = {Start.COLD: 64, Start.WARM: 1024}
"""Largest batch. A hit takes a microsecond: in small calls it would be the interpreter that is compared."""
_WARM_SECONDS = 0.5
_WARM_SECONDS_MOST = 2.0
_TRIAL_PASSES = 8
_PROBES = 5


@frozen
class CalibrationProgress:
    """How far a calibration is.

    Attributes:
        done: Processes that have ended.
        total: Processes of the plan as it is known now.
        now: What is measured now, in words.
    """

    done: int
    total: int
    now: str


@frozen
class Calibrated:
    """What a calibration found.

    Attributes:
        identity: The device.
        profile: The profile.
        stopped: Why it ended early, or "".
    """

    identity: DeviceIdentity
    profile: CalibrationProfile
    stopped: str


def calibrate(
    set_paths: Sequence[str],
    device: str,
    *,
    rounds: int = ROUNDS,
    workers: int | None = None,
    time_limit_s: float | None = None,
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
) -> Calibrated:
    """Calibrate a device. Takes minutes; blocking.

    Args:
        set_paths: The archives, or one manifest.
        device: The selector.
        rounds: Samples of each contender.
        workers: The most workers to try; None for one a processor.
        time_limit_s: Start nothing after this time.
        on_progress: Called before each process.
        run_job: Does one job; a process of its own by default.

    Raises:
        NoDeviceError: The device is not there.
        BenchError: The set cannot be compiled on it.
    """
    with tempfile.TemporaryDirectory(prefix="orchestrator-calibrate-") as directory:
        job = _Calibration(
            set_paths=tuple(set_paths),
            device=device,
            rounds=rounds,
            most=available_workers() if workers is None else workers,
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            directory=Path(directory),
            on_progress=on_progress,
            run_job=run_job,
        )
        return job.run()


@define(eq=False)
class _Calibration:
    """One calibration."""

    set_paths: tuple[str, ...]
    device: str
    rounds: int
    most: int
    deadline: float | None
    directory: Path
    on_progress: Callable[[CalibrationProgress], None]
    run_job: Callable[[Job], Answer]
    done: int = 0
    total: int = 0
    passes: int = 1
    stopped: str = ""
    rows: list[Sample] = field(factory=list)
    batch_rows: list[Sample] = field(factory=list)
    left_out: dict[Contender, str] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def run(self) -> Calibrated:
        """All of it."""
        self.total = _PROBES + self.rounds * (
            len(self._contenders(Start.COLD)) + len(self._contenders(Start.WARM)) + 2
        )
        found, probe = self._probe()
        starts = [Start.COLD, Start.WARM] if probe.cache_keeps else [Start.COLD]
        self.total = self.done + self.rounds * sum(len(self._contenders(each)) + 1 for each in starts)
        if Start.WARM in starts:
            self.total += self.rounds * (len(BATCHES) + 1) + 1
            self._keep_runs_short()
        self._rounds(starts)
        samples = Samples(self.rows)
        findings = list(probe_findings(probe))
        for start in starts:
            findings += topology_findings(samples, start, self.most, BATCH[start])
        cold, warm = (
            choose(samples, each, self._worker_counts, BATCH[each], merge_works=probe.merge_works)
            for each in (Start.COLD, Start.WARM)
        )
        batch = None
        if Start.WARM in starts:
            mode, workers = (
                (CacheMode(warm.mode), warm.workers) if warm is not None else (CacheMode.SHARED, self.most)
            )
            batch, finding = self._batches(Contender(Start.WARM, mode, workers, BATCH[Start.WARM]))
            findings.append(finding)
        return self._profile(found, findings, cold, warm, batch, probe)

    @property
    def _worker_counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.most, *([self.most // 2] if self.most >= 4 else [])}))

    def _contenders(self, start: Start) -> list[Contender]:
        """The baseline first."""
        most = self.most
        made = [
            Contender(start, CacheMode.SHARED, most, BATCH[start]),
            Contender(start, CacheMode.PER_WORKER, most, BATCH[start]),
        ]
        if most > 1:
            made.append(Contender(start, CacheMode.PER_WORKER_INTERNAL, most, BATCH[start]))
        if start == Start.WARM:
            made.append(Contender(start, CacheMode.TWO_LEVEL, most, BATCH[start]))
        for count in self._worker_counts[:-1]:
            made += [
                Contender(start, mode, count, BATCH[start])
                for mode in (CacheMode.SHARED, CacheMode.PER_WORKER)
            ]
        return made

    # --- single questions

    def _probe(self) -> tuple[Probed, ProbeResult]:
        shared, merged = str(self.directory / "shared"), str(self.directory / "merged")
        first = self._ask("compiling with one shared cache", ProbeStep.COMPILE, shared, CacheMode.SHARED)
        if isinstance(first, Refused):
            if first.kind == NoDeviceError.__name__:
                raise NoDeviceError(first.reason)
            raise BenchError(f"{self.device} cannot be calibrated: {first.reason}")
        result = ProbeResult(set_pipelines=first.pipelines, cold_hits=first.hits)
        looked_up = self._ask("looking up in a new process", ProbeStep.LOOK_UP, shared)
        if isinstance(looked_up, Refused):
            return first, ProbeResult(set_pipelines=first.pipelines, problem=looked_up.reason)
        rate = looked_up.rate
        self.passes = max(1, round(min(rate * _WARM_SECONDS, WARM_PIPELINES_MOST) / max(1, first.pipelines)))
        problems, merged_hits = [], None
        warnings: tuple[str, ...] = ()
        keeps = looked_up.hits > first.hits
        if keeps:
            compiled = self._ask(
                "compiling with a cache for each worker", ProbeStep.COMPILE, merged, CacheMode.PER_WORKER
            )
            again = self._ask("looking up what was merged", ProbeStep.LOOK_UP, merged)
            if isinstance(compiled, Probed) and isinstance(again, Probed):
                merged_hits, warnings = again.hits, compiled.warnings
            problems += [each.reason for each in (compiled, again) if isinstance(each, Refused)]
        grown = self._ask("loading and reading over and over", ProbeStep.GROW, shared) if keeps else None
        if isinstance(grown, Refused):
            problems.append(grown.reason)
        return first, ProbeResult(
            set_pipelines=result.set_pipelines,
            cold_hits=result.cold_hits,
            shared_hits=looked_up.hits,
            merged_hits=merged_hits,
            merge_warnings=warnings,
            sizes=grown.sizes if isinstance(grown, Probed) else (),
            problem="; ".join(problems),
        )

    def _ask(
        self, what: str, step: ProbeStep, directory: str, mode: CacheMode = CacheMode.SHARED
    ) -> Probed | Refused:
        self._tell(what)
        # Merging takes two caches, also where there is one processor.
        answer = self.run_job(
            ProbeJob(
                step=step,
                set_paths=self.set_paths,
                device=self.device,
                cache_directory=directory,
                workers=max(2, self.most),
                mode=mode,
            )
        )
        self.done += 1
        if isinstance(answer, Probed | Refused):
            return answer
        return Refused(kind="answer", reason="an unexpected answer")

    # --- rounds

    def _keep_runs_short(self) -> None:
        """On some drivers many workers take hits a hundred times slower than one, by whose rate runs were made to last."""
        passes, self.passes = self.passes, min(self.passes, _TRIAL_PASSES)
        tried: list[Sample] = []
        self._take(self._contenders(Start.WARM)[0], control=False, number=-1, rows=tried)
        self.passes = passes
        for each in tried:
            a_pass_s = each.wall_ns / 1e9 / each.passes
            self.passes = max(1, min(passes, round(_WARM_SECONDS_MOST / max(a_pass_s, 1e-9))))

    def _rounds(self, starts: Sequence[Start]) -> None:
        for number in range(self.rounds):
            for start in starts:
                arms = self._arms(self._contenders(start))
                if not self._round(arms, number, self.rows):
                    return

    def _arms(self, contenders: list[Contender]) -> list[tuple[Contender, bool]]:
        """All contenders, and the first one again."""
        return [*((each, False) for each in contenders), (contenders[0], True)]

    def _batches(self, contender: Contender) -> tuple[int | None, Finding]:
        contenders = [
            contender,
            *(contender._replace(batch=batch) for batch in BATCHES if batch != contender.batch),
        ]
        for number in range(self.rounds):
            if not self._round(self._arms(contenders), number, self.batch_rows):
                break
        return choose_batch(Samples(self.batch_rows), contender, BATCHES)

    def _round(self, arms: Sequence[tuple[Contender, bool]], number: int, rows: list[Sample]) -> bool:
        """One sample of each, in turned order; whether there is time for more."""
        turn = number % len(arms)
        for contender, control in (*arms[turn:], *arms[:turn]):
            if contender in self.left_out:
                self.done += 1
                continue
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.stopped = (
                    f"the time limit: {max(0, self.total - self.done)} of {self.total} samples are missing"
                )
                return False
            self._take(contender, control=control, number=number, rows=rows)
        return True

    def _take(self, contender: Contender, *, control: bool, number: int, rows: list[Sample]) -> None:
        start, mode, workers, batch = contender
        count = f"{workers} worker" if workers == 1 else f"{workers} workers"
        self._tell(
            f"{'trial' if number < 0 else f'round {number + 1} of {self.rounds}'}: {start}, {mode}, {count}"
            + (f", calls of {batch}" if rows is self.batch_rows else "")
            + (" (control)" if control else "")
        )
        warm = start == Start.WARM
        answer = self.run_job(
            SampleJob(
                set_paths=self.set_paths,
                device=self.device,
                start=start,
                duplicates=0.0,
                workers=workers,
                mode=mode,
                control=control,
                round=number,
                batch=batch,
                passes=self.passes if warm else 1,
                cache_directory=str(self.directory / "shared") if warm else "",
            )
        )
        self.done += 1
        if isinstance(answer, Sample):
            rows.append(answer)
            return
        reason = answer.reason if isinstance(answer, Refused | FailedSample) else "an unexpected answer"
        self.left_out[contender] = reason
        self.notes.append(f"{start}, {mode}, {count}: left out, because a sample failed: {reason}")

    def _tell(self, what: str) -> None:
        self.on_progress(CalibrationProgress(self.done, self.total, what))

    # --- the profile

    def _profile(
        self,
        found: Probed,
        findings: list[Finding],
        cold: Choice | None,
        warm: Choice | None,
        batch: int | None,
        probe: ProbeResult,
    ) -> Calibrated:
        identity, rows = found.identity, [*self.rows, *self.batch_rows]
        environment = rows[0].environment if rows else None
        load = max((each.environment.load_average for each in rows), default=0.0)
        cores = available_workers()
        notes = list(self.notes)
        if load > cores + 1:
            notes.append(
                f"the machine was busy: a load of up to {load:.1f} on {cores} processors; what is said here may be noise, and "
                "differences that are there may not have been seen"
            )
        notes += sorted({note for each in rows for note in each.notes if note not in notes})
        if self.stopped:
            notes.append(f"ended early by {self.stopped}")
        return Calibrated(
            identity,
            CalibrationProfile(
                identity=ProfileIdentity.of(identity),
                device_name=identity.device_name,
                driver=f"{identity.driver_name} {identity.driver_info}".strip(),
                made_at=time.time(),
                cores=cores,
                processor=environment.processor if environment is not None else "",
                load_average=load,
                driver_caches=environment.driver_caches if environment is not None else "",
                set_name=found.set_name,
                set_hash=found.set_hash,
                pipelines=found.pipelines,
                orchestrator=environment.orchestrator if environment is not None else "",
                python=platform.python_version(),
                rounds=min(
                    (len(Samples(self.rows).of(each)) for each in self._contenders(Start.COLD)), default=0
                ),
                figures=(*Samples(self.rows).figures(), *Samples(self.batch_rows).figures()),
                findings=tuple(findings),
                cold=cold,
                warm=warm,
                batch=batch,
                merge_works=probe.merge_works,
                cache_keeps=probe.cache_keeps,
                read_back_grows=probe.read_back_grows,
                notes=tuple(notes),
            ),
            self.stopped,
        )
