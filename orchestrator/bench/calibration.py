"""Calibrates a device: chooses topology, workers and batch, and checks whether its caches can be trusted.

    fill and look up   one shared cache; worker caches, merged; cache sizes over rounds of load and read
    cold and warm      A B C D A', rotated by one per round, each sample in its own process
    binaries           warm, one pass, against the chosen mode and workers: A binaries A'
    batches            warm, with the chosen mode and workers: 1024 1 64 256 1024'

The figure to compare is one use of the set: creating the caches, one pass over the set, the merge. The
choice:

- The topology that is faster than the shared cache beyond noise. If all others are slower or equal, the
  shared cache, which needs no merge and holds everything once. If that is undecided, the default of
  `compile`.
- The smallest number of workers that is as fast as all processors. An undecided comparison keeps the workers.
- Mode binaries if it is faster beyond noise warm and not slower cold, preparing included.

Guarantees: a difference counts only beyond the A/A control and with at least LEAST_PAIRS pairs, unless a
contender is far behind (see `racing`); the profile lists what was dropped. If an interval is too wide, the
answer is "undecided". Every answer comes with its figures. A failed sample excludes its contender, with a
note. To meet a time limit, the least informative contenders are left out first, then one start; binaries and
batches are measured only if they fit, and take precedence over rounds beyond LEAST_PAIRS. Caches for warm
runs lie in a temporary directory.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from attrs import define, evolve, field, frozen

from orchestrator.bench.expected_time import ExpectedTime
from orchestrator.bench.jobs import (
    Answer,
    Filled,
    FillJob,
    Job,
    Probed,
    ProbeJob,
    ProbeStep,
    SampleJob,
    run_in_process,
)
from orchestrator.bench.matrix import in_turn
from orchestrator.bench.racing import fallen_behind
from orchestrator.bench.rows import Sample, Start, counted, device_text
from orchestrator.bench.runner import BenchError, cannot, other_than, passes_for, reason_of
from orchestrator.bench.sample_table import Contender, SampleTable, seconds_of, use_of
from orchestrator.bench.statistics import LEAST_PAIRS, Difference, estimate
from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.run.options import BATCH_LIMIT, available_workers
from orchestrator.stores.profile_file import (
    CalibrationProfile,
    Choice,
    Dropped,
    Finding,
)

ROUNDS = 7
"""Rounds without a time limit: two more than a verdict needs."""
BATCHES = (1, 64, 256, BATCH_LIMIT)
SAME_WITHIN = 1.1
"""Two times are the same if the whole interval of their ratio lies within this factor."""
GROWTH_A_ROUND = 0.002
"""A cache that grows by more than this share in every round grows without bound."""

# Short, because times vary between processes and not between passes.
_WARM_SECONDS = 0.5
_WARM_HITS = 0.99
_FILL_PASSES = 8
_PROBES = 5


@frozen
class CalibrationProgress:
    """The progress of a calibration.

    Attributes:
        done: Number of processes that have ended.
        total: Expected number of processes.
        now: The current measurement, in words.
        left_s: Upper bound of the time to go, s; None while it is unknown.
    """

    done: int
    total: int
    now: str
    left_s: float | None = None


@frozen
class Calibrated:
    """The result of a calibration.

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
    profiles: Path | None = None,
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
) -> Calibrated:
    """Calibrate a device. Takes minutes; blocking.

    Args:
        set_paths: The archives, or one manifest.
        device: The selector.
        rounds: Samples of each contender.
        workers: Largest number of workers to try; None for one per processor.
        time_limit_s: Start no sample after this time.
        profiles: The directory of key profiles and quarantines, as for `compile`; None for none.
        on_progress: Called before each process.
        run_job: Does one job; by default in its own process.

    Raises:
        NoDeviceError: There is no such device.
        BenchError: The set cannot be compiled on it; or set, driver or machine changed meanwhile.
    """
    with TemporaryDirectory(prefix="orchestrator-calibrate-") as directory:
        calibration = _Calibration(
            set_paths=tuple(set_paths),
            device=device,
            rounds=rounds,
            most=available_workers() if workers is None else workers,
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            directory=Path(directory),
            profiles="" if profiles is None else str(profiles),
            on_progress=on_progress,
            run_job=run_job,
        )
        return calibration.run()


@define(eq=False)
class _Calibration:
    set_paths: tuple[str, ...]
    device: str
    rounds: int
    most: int
    deadline: float | None
    directory: Path
    profiles: str
    on_progress: Callable[[CalibrationProgress], None]
    run_job: Callable[[Job], Answer]
    done: int = 0
    total: int = 0
    passes: int = 1
    stopped: str = ""
    rows: list[Sample] = field(factory=list)
    batch_rows: list[Sample] = field(factory=list)
    binary_rows: list[Sample] = field(factory=list)
    weighs_binaries: bool = False
    left_out: set[Contender] = field(factory=set)
    squeezed: list[Contender] = field(factory=list)
    dropped: list[Dropped] = field(factory=list)
    notes: list[str] = field(factory=list)
    filled: Filled = field(init=False)
    expected: ExpectedTime = field(init=False)

    def run(self) -> Calibrated:
        samples_of = {start: self.rounds * (len(self._contenders(start)) + 1) for start in Start}
        self.total = _PROBES + sum(samples_of.values())
        filled = self._fill("compiling with one shared cache", "shared", CacheMode.SHARED)
        if not isinstance(filled, Filled):
            cannot(f"{device_text(self.device)} cannot be calibrated", filled)
        self.filled, self.weighs_binaries = filled, filled.binaries
        self.passes = passes_for(filled, _WARM_SECONDS, _WARM_SECONDS)
        self.expected = ExpectedTime(filled, 0.0, self.passes)
        probed = self._probe()
        starts = list(Start) if probed.cache_keeps else [Start.COLD]
        self.total = self.done + sum(self.rounds * (len(self._contenders(each)) + 1) for each in starts)
        warm_too = Start.WARM in starts
        if warm_too:
            self.total += self.rounds * (len(BATCHES) + 1) + self.weighs_binaries * (3 * self.rounds + 1)
        samples = self._race(
            [self._contenders(each) for each in starts],
            self.rows,
            seconds_of,
            lambda rounds: self._binaries_s(rounds) + self._batches_s(rounds) if warm_too else 0.0,
        )
        findings = list(probe_findings(probed))
        for start in starts:
            findings += topology_findings(samples, start, self.most)
        cold, warm = (
            choose(samples, each, self._worker_counts, merge_works=probed.merge_works) for each in Start
        )
        batch = binaries = None
        if warm_too:
            if self.weighs_binaries and cold is not None and warm is not None:
                binaries, weighed = self._weigh_binaries(samples, cold, warm)
                findings += weighed
            mode, workers = (warm.mode, warm.workers) if warm is not None else (CacheMode.SHARED, self.most)
            usual = Contender(Start.WARM, CacheMode(mode), workers)
            others = [usual._replace(batch=each) for each in BATCHES if each != usual.batch]
            if usual not in self.left_out and self._has_time_for("batches", self._batches_s):
                by_batch = self._race([[usual, *others]], self.batch_rows, seconds_of)
            else:
                by_batch = SampleTable([])
            batch, finding = choose_batch(by_batch, usual, BATCHES)
            findings.append(finding)
        profile = self._profile(probed)
        profile = msgspec.structs.replace(
            profile, findings=tuple(findings), cold=cold, warm=warm, batch=batch, binaries=binaries
        )
        return Calibrated(filled.identity, profile, self.stopped)

    def _weigh_binaries(
        self, samples: SampleTable, cold: Choice, warm: Choice
    ) -> tuple[Choice | None, tuple[Finding, ...]]:
        cached = Contender(Start.WARM, CacheMode(warm.mode), warm.workers)
        others = cached._replace(mode=CacheMode.BINARIES)
        uses = SampleTable([], use_of)
        if self._has_time_for("warm binaries", self._binaries_s):
            self._take(
                (others, False), -1, self.binary_rows, self._binaries_s(self.rounds)
            )  # fills the store
            uses = self._race([[cached, others]], self.binary_rows, use_of, self._batches_s)
        return weigh_binaries(samples, uses, cold, cached, self.most)

    def _binaries_s(self, rounds: int) -> float:
        return self.weighs_binaries * self._warm_samples_s(3 * rounds + 1)

    def _batches_s(self, rounds: int) -> float:
        return self._warm_samples_s(rounds * (len(BATCHES) + 1))

    def _warm_samples_s(self, count: int) -> float:
        return count * self.expected.of([Contender(Start.WARM, CacheMode.SHARED, self.most)])

    def _has_time_for(self, what: str, seconds_of_rounds: Callable[[int], float]) -> bool:
        if self._fits(seconds_of_rounds(self._pairs)):
            return True
        self.notes.append(f"{what}: left out, because {self._pairs} pairs do not fit the time limit")
        return False

    @property
    def _pairs(self) -> int:
        return min(self.rounds, LEAST_PAIRS)

    @property
    def _worker_counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.most, *([self.most // 2] if self.most >= 4 else [])}))

    def _contenders(self, start: Start) -> list[Contender]:
        modes = [CacheMode.SHARED, CacheMode.PER_WORKER]
        more = [CacheMode.PER_WORKER_INTERNAL] if self.most > 1 else []
        if start == Start.WARM:
            more.append(CacheMode.TWO_LEVEL)
        elif self.weighs_binaries:
            more.append(CacheMode.BINARIES)
        made = [Contender(start, mode, self.most) for mode in (*modes, *more)]
        fewer = self._worker_counts[:-1]
        return made + [Contender(start, mode, count) for count in fewer for mode in modes]

    def _do(self, what: str, job: Job, left_s: float | None = None) -> Answer:
        self.on_progress(CalibrationProgress(self.done, self.total, what, left_s))
        answer = self.run_job(job)
        self.done += 1
        return answer

    def _fill(self, what: str, directory: str, mode: CacheMode) -> Answer:
        return self._do(
            what,
            FillJob(
                set_paths=self.set_paths,
                device=self.device,
                workers=max(2, self.most),  # a merge needs two caches, even with one processor
                cache_directory=str(self.directory / directory),
                mode=mode,
                passes=_FILL_PASSES if mode == CacheMode.SHARED else 0,
                profiles=self.profiles,
            ),
        )

    def _ask(self, what: str, step: ProbeStep, directory: str) -> Answer:
        return self._do(
            what,
            ProbeJob(
                step=step,
                set_paths=self.set_paths,
                device=self.device,
                cache_directory=str(self.directory / directory),
                profiles=self.profiles,
            ),
        )

    def _probe(self) -> ProbeResult:
        result = ProbeResult(set_pipelines=self.filled.pipelines, cold_hits=self.filled.hits)
        began = time.monotonic()
        looked_up = self._ask("looking up in a new process", ProbeStep.LOOK_UP, "shared")
        self.expected.probe_s = time.monotonic() - began
        if not isinstance(looked_up, Probed):
            return evolve(result, problem=reason_of(looked_up))
        result = evolve(result, shared_hits=looked_up.hits, missed=looked_up.missed)
        if not result.cache_keeps:
            return result
        compiled = self._fill("compiling with a cache for each worker", "merged", CacheMode.PER_WORKER)
        again = self._ask("looking up what was merged", ProbeStep.LOOK_UP, "merged")
        if isinstance(compiled, Filled) and isinstance(again, Probed):
            result = evolve(result, merged_hits=again.hits, merge_warnings=compiled.warnings)
        grown = self._ask("loading and reading over and over", ProbeStep.GROW, "shared")
        if isinstance(grown, Probed):
            result = evolve(result, sizes=grown.sizes)
        failed = [each for each in (compiled, again, grown) if not isinstance(each, Filled | Probed)]
        return evolve(result, problem="; ".join(map(reason_of, failed)))

    def _race(
        self,
        groups: Sequence[Sequence[Contender]],
        rows: list[Sample],
        figure: Callable[[Sample], float],
        after_s: Callable[[int], float] = lambda _: 0.0,
    ) -> SampleTable:
        """Take all rounds of all groups.

        Args:
            groups: Contenders that race within their group, each group with its baseline first.
            rows: Receives the samples.
            figure: The time to compare, s.
            after_s: Expected time of later measurements by number of rounds, s.
        """
        begun = 0
        for number in range(self.rounds):
            if number == 1:
                self._choose_start(groups)
            arms = self._arms(groups, number, SampleTable(rows, figure))
            round_s, later_s = self.expected.of(each for each, _ in arms), after_s(LEAST_PAIRS)
            if number >= LEAST_PAIRS and later_s and not self._fits(round_s + later_s):
                self.total -= (self.rounds - number) * len(arms)
                self.notes.append(f"{number} of {self.rounds} rounds: the rest of the time was reserved")
                break
            if number == 0:
                arms.sort(key=lambda arm: self._rank(arm[0]))
            rest_s = after_s(self.rounds) + (self.rounds - number - 1) * round_s
            begun = number + 1
            if not self._round(arms, number, rows, rest_s):
                break
        table, dropped = SampleTable(rows, figure), set[Contender]()
        for group in groups:
            for contender, lag in fallen_behind(table, group).items():
                samples = len(table.of(contender))
                if samples < begun and contender not in self.left_out:
                    dropped.add(contender)
                    self.dropped.append(
                        Dropped(**contender._asdict(), samples=samples, rounds=begun, words=lag.words)
                    )
        squeezed = dict.fromkeys(self.squeezed, "did not fit the time limit")
        return SampleTable(rows, figure, {**dict.fromkeys(dropped, "fell behind"), **squeezed})

    def _choose_start(self, groups: Sequence[Sequence[Contender]]) -> None:
        """Leave out one start if the pairs of both do not fit the time limit.

        One verdict is better than none. Called after the first round, when the times of samples are known.
        """
        needed = [
            (self._pairs - 1)
            * self.expected.of([group[0], *(each for each in group if not self._rank(each))])
            for group in groups
        ]
        kept = [group for group, seconds in zip(groups, needed, strict=True) if self._fits(seconds)][:1]
        if kept and not self._fits(sum(needed)):
            out = [each for group in groups if group is not kept[0] for each in group]
            self.squeezed += [each for each in out if each not in self.left_out]
            self.left_out.update(out)

    def _fits(self, seconds: float) -> bool:
        return self.deadline is None or time.monotonic() + seconds <= self.deadline

    def _arms(
        self, groups: Sequence[Sequence[Contender]], number: int, table: SampleTable
    ) -> list[tuple[Contender, bool]]:
        arms = list[tuple[Contender, bool]]()
        for group in groups:
            out = self.left_out | fallen_behind(table, group).keys()
            whole = [*((each, False) for each in group), (group[0], True)]
            taken = [arm for arm in in_turn(whole, number) if arm[0] not in out]
            if {each for each, _ in taken} == {group[0]}:
                taken = []  # nothing is left to compare the baseline with
            self.total -= len(whole) - len(taken)
            arms += taken
        return arms

    def _round(
        self, arms: Sequence[tuple[Contender, bool]], number: int, rows: list[Sample], rest_s: float
    ) -> bool:
        for place, arm in enumerate(arms):
            if number == 0 and not self._affords(arms, place):
                self.left_out.add(arm[0])
                self.squeezed.append(arm[0])
            if arm[0] in self.left_out:
                self.total -= 1
                continue
            if self.deadline is not None and time.monotonic() > self.deadline:
                missing = max(0, self.total - self.done)
                self.stopped = f"the time limit: {missing} of {self.total} samples are missing"
                return False
            self._take(arm, number, rows, rest_s + self.expected.of(each for each, _ in arms[place:]))
        return True

    def _rank(self, contender: Contender) -> int:
        start, mode, workers, _ = contender
        if workers == self.most:
            ranks = {CacheMode.TWO_LEVEL: 2, CacheMode.PER_WORKER_INTERNAL: 4, CacheMode.BINARIES: 6}
            return ranks.get(mode, 0)
        if workers == 1:
            return 1 if start == Start.WARM else 3
        return 5

    def _affords(self, arms: Sequence[tuple[Contender, bool]], place: int) -> bool:
        contender, taken = arms[place][0], [each for each, _ in arms[:place]]
        if self.deadline is None or self._rank(contender) == 0 or (contender, True) in arms:
            return True

        def rounds_of(each: Contender) -> int:
            return 1 if self.expected.is_far_behind(each) else self._pairs

        ahead = sum(
            (rounds_of(each) - 1) * self.expected.of([each]) for each in taken if each not in self.left_out
        )
        return self._fits(ahead + rounds_of(contender) * self.expected.of([contender]))

    def _take(self, arm: tuple[Contender, bool], number: int, rows: list[Sample], left_s: float) -> None:
        contender, control = arm
        start, mode, workers, batch = contender
        warm = start == Start.WARM
        answer = self._do(
            f"round {number + 1} of {self.rounds}: {contender.words}"
            + (f", calls of {batch}" if rows is self.batch_rows else "")
            + (" (control)" if control else ""),
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
                passes=self.passes if warm and rows is not self.binary_rows else 1,
                cache_directory=str(
                    self.directory / ("binaries" if mode is CacheMode.BINARIES else "shared") if warm else ""
                ),
                profiles=self.profiles,
            ),
            left_s,
        )
        if isinstance(answer, Sample):
            if what := other_than(answer, self.filled):
                raise BenchError(
                    f"{device_text(self.device)} cannot be calibrated: what is measured changed: a sample is "
                    f"of {what}",
                    "begin again, and leave set, driver and machine as they are meanwhile",
                )
            rows.append(answer)
            self.expected.learn(contender, answer.process_s)
            return
        self.left_out.add(contender)
        self.notes.append(f"{contender.words}: left out, because a sample failed: {reason_of(answer)}")

    def _profile(self, probed: ProbeResult) -> CalibrationProfile:
        filled, samples = self.filled, SampleTable(self.rows)
        rows = [*self.rows, *self.binary_rows, *self.batch_rows]
        environment = rows[0].environment if rows else None
        load = max((each.environment.load_average for each in rows), default=0.0)
        cores = available_workers()
        notes = list(self.notes)
        if load > cores + 1:
            notes.append(
                f"the machine was busy: a load of up to {load:.1f} on {cores} processors; differences may be "
                "noise, and noise may hide differences"
            )
        notes += sorted({note for each in rows for note in each.notes if note not in notes})
        if self.squeezed:
            words = "; ".join(each.words for each in self.squeezed)
            notes.append(f"left out, so that the others get {self._pairs} pairs in time: {words}")
        if self.stopped:
            notes.append(f"ended early by {self.stopped}")
        return CalibrationProfile.of(
            filled.identity,
            cores=cores,
            processor=environment.processor if environment is not None else "",
            load_average=load,
            driver_caches=environment.driver_caches if environment is not None else "",
            order=rows[0].order if rows else "",
            set_name=filled.set_name,
            set_hash=filled.set_hash,
            pipelines=filled.pipelines,
            orchestrator=environment.orchestrator if environment is not None else "",
            python=platform.python_version(),
            rounds=len(samples.of(self._contenders(Start.COLD)[0])),
            figures=(
                *samples.figures(),
                *SampleTable(self.binary_rows, use_of).figures(),
                *SampleTable(self.batch_rows).figures(),
            ),
            findings=(),
            cold=None,
            warm=None,
            batch=None,
            merge_works=probed.merge_works,
            cache_keeps=probed.cache_keeps,
            read_back_grows=probed.read_back_grows,
            dropped=tuple(self.dropped),
            notes=tuple(notes),
        )


class Words(NamedTuple):
    """The clause for each answer to a question."""

    slower: str
    faster: str
    same: str

    @classmethod
    def of(cls, contender: str, baseline: str, suffix: str = "", verb: str = "is") -> Words:
        """The clauses that compare a contender with a baseline, both in words."""
        return cls(
            f"{contender} {verb} slower than {baseline}{suffix}",
            f"{contender} {verb} faster than {baseline}{suffix}",
            f"{contender} and {baseline}{suffix} take the same time within noise",
        )


def compare(
    samples: SampleTable, question: str, contender: Contender, baseline: Contender, words: Words
) -> Finding:
    """Judge whether the times of a contender and a baseline differ."""
    found = samples.difference(contender, baseline)
    if found is None or not found.enough:
        pairs = found.ratio.count if found is not None else 0
        dropped = samples.dropped
        out = [f"{each.words} {dropped[each]}" for each in (contender, baseline) if each in dropped]
        why = f", since {' and '.join(out)}" if out else ""
        told = f"{question}: not measured{why} ({counted(pairs, 'pair')} of the {LEAST_PAIRS} needed)."
        return Finding(question=question, answer="not measured", words=told, pairs=pairs)
    ratio = found.ratio
    factor = found.noise.factor if found.noise is not None else 1.0
    answer, meaning = "undecided", "undecided, the samples differ too much between rounds"
    if is_same(found):
        answer, meaning = "no difference", words.same
    elif found.higher:
        answer, meaning = "slower", words.slower
    elif found.lower:
        answer, meaning = "faster", words.faster
    far = ", too far apart to need more" if found.pairs < LEAST_PAIRS else ""
    told = (
        f"{question}: {meaning} (x{ratio.median:.3f} the time, {ratio.low:.3f} to {ratio.high:.3f} over "
        f"{counted(ratio.count, 'pair')}{far}; noise is up to x{factor:.3f})."
    )
    return _finding(question, answer, told, found)


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
        noise=found.noise.factor if found.noise is not None else None,
    )


def is_same(found: Difference) -> bool:
    """Whether the times are the same: no difference beyond noise, and an interval within SAME_WITHIN."""
    tight = found.ratio.low > 1 / SAME_WITHIN and found.ratio.high < SAME_WITHIN
    return found.enough and tight and not found.beyond_noise


def topology_findings(samples: SampleTable, start: Start, workers: int) -> tuple[Finding, ...]:
    """The findings about one start: the lock, worker caches, two levels, and more workers."""

    def contender(mode: CacheMode, count: int = workers) -> Contender:
        return Contender(start, mode, count)

    shared, own = contender(CacheMode.SHARED), contender(CacheMode.PER_WORKER)
    questions = []
    if workers > 1:
        lock = Words(
            "uncontended locks cost time, so the externally synchronized flag is worth it",
            "worker caches are faster without the externally synchronized flag",
            "uncontended locks cost no measurable time",
        )
        one, each = f"with {workers} workers one shared cache", "a cache for each"
        topology = Words.of(one, each, ", merged at the end")
        count = Words.of(f"{workers} workers", "one", verb="are")
        questions = [
            ("shared cache", shared, own, topology),
            ("locking", contender(CacheMode.PER_WORKER_INTERNAL), own, lock),
            ("more workers", shared, contender(CacheMode.SHARED, 1), count),
            ("more workers", own, contender(CacheMode.PER_WORKER, 1), count),
        ]
    two_level = contender(CacheMode.TWO_LEVEL)
    if samples.of(two_level):
        words = Words.of("looking up in the primary and compiling elsewhere", "one shared cache")
        questions.append(("two levels", two_level, shared, words))
    return tuple(
        compare(
            samples,
            f"{name}, {start}" + (f", {asked.mode}" if name == "more workers" else ""),
            asked,
            baseline,
            words,
        )
        for name, asked, baseline, words in questions
    )


def choose(
    samples: SampleTable, start: Start, worker_counts: Sequence[int], *, merge_works: bool | None
) -> Choice | None:
    """The mode and workers to use for a start; None if it was not measured.

    Args:
        samples: The samples.
        start: The start.
        worker_counts: The numbers of workers that were tried.
        merge_works: False restricts the choice to the shared cache; None if unknown.
    """
    most = max(worker_counts)
    shared = Contender(start, CacheMode.SHARED, most)
    rivals = [] if merge_works is False else [CacheMode.PER_WORKER, CacheMode.TWO_LEVEL]
    tried = [shared._replace(mode=mode) for mode in rivals if samples.of(shared._replace(mode=mode))]
    compared = {each: found for each in tried if (found := samples.difference(each, shared)) is not None}
    enough = [found for found in compared.values() if found.enough]
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
            mode = CacheMode.PER_WORKER
            why = "undecided, so a cache for each worker, as without a calibration"
        else:
            why = f"{why}; whether {', '.join(undecided)} would be faster is undecided"
    count, workers_why = _fewest(samples, Contender(start, mode, most), worker_counts)
    return Choice(mode=mode, workers=count, words=f"{why}; {workers_why}")


def weigh_binaries(
    samples: SampleTable, uses: SampleTable, cold: Choice, cached: Contender, most: int
) -> tuple[Choice | None, tuple[Finding, ...]]:
    """Compare mode binaries with the driver's cache: the choice, if binaries are faster, and the findings.

    Args:
        samples: Cold samples, among others.
        uses: Warm samples of one pass each, compared by `use_of`.
        cold: The choice for cold runs.
        cached: The choice for warm runs, as measured in `uses`.
        most: Number of workers at which cold samples are compared.
    """
    findings = []
    empty = Contender(Start.COLD, CacheMode(cold.mode), most)
    for table, baseline in ((SampleTable(samples.rows, use_of, samples.dropped), empty), (uses, cached)):
        words = Words.of("a store of binaries", f"mode {baseline.mode}")
        contender = baseline._replace(mode=CacheMode.BINARIES)
        findings.append(compare(table, f"binaries, {baseline.start}", contender, baseline, words))
    at_cold, at_warm = findings
    if (
        at_warm.answer != "faster"
        or at_cold.answer not in ("faster", "no difference")
        or at_warm.ratio is None
    ):
        return None, tuple(findings)
    why = f"binaries: x{at_warm.ratio:.3f} the time of mode {cached.mode} warm, and cold {at_cold.answer}"
    return Choice(mode=CacheMode.BINARIES, workers=cached.workers, words=why), tuple(findings)


def _fewest(samples: SampleTable, most: Contender, worker_counts: Sequence[int]) -> tuple[int, str]:
    fastest = most
    for count in sorted(set(worker_counts) - {most.workers}):
        other = most._replace(workers=count)
        found = samples.difference(other, fastest)
        if found is not None and found.enough and found.lower:
            fastest = other
    slower = undecided = 0
    for count in sorted(each for each in worker_counts if each < fastest.workers):
        found = samples.difference(most._replace(workers=count), fastest)
        if found is None or not found.enough:
            continue
        if found.lower or is_same(found):
            return count, f"{counted(count, 'worker')}: {fastest.workers} are not faster"
        slower += found.higher
        undecided += not found.higher
    if fastest != most:
        return fastest.workers, f"{counted(fastest.workers, 'worker')}: {most.workers} take longer"
    why = "fewer take longer" if slower else "fewer were not measured"
    if undecided:
        why = "whether fewer are as fast is undecided"
    if len(worker_counts) == 1:
        why = "nothing else was tried"
    return most.workers, f"{counted(most.workers, 'worker')}: {why}"


def choose_batch(
    samples: SampleTable, contender: Contender, batches: Sequence[int]
) -> tuple[int | None, Finding]:
    """The fastest batch that beats the default beyond noise, else the default; None if not measured.

    Args:
        samples: The samples.
        contender: Start, mode, workers and the default batch.
        batches: The batches that were tried.
    """
    question = "batch size, warm"
    medians = {}
    for batch in batches:
        rounds = samples.of(contender._replace(batch=batch))
        if len(rounds) >= LEAST_PAIRS or (rounds and contender._replace(batch=batch) in samples.dropped):
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
    told = f"{question}: calls of up to {chosen} pipelines, {why}{compared} (one pass by batch: {listed})."
    return chosen, _finding(question, str(chosen), told, found)


@frozen
class ProbeResult:
    """The answers of the probes, which are single processes besides the samples.

    Attributes:
        set_pipelines: Pipelines that were handed to the driver.
        cold_hits: Hits with an initially empty cache: pipelines that the driver considers equal to others.
        shared_hits: Hits in a new process with the data of one shared cache; None if not tried.
        merged_hits: Hits in a new process with the data of merged worker caches; None if not tried.
        merge_warnings: Warnings of the merge.
        sizes: Size of the cache after each round of load, use and read-back, bytes.
        problem: Why the probes failed, or "".
        missed: Description of the pipelines that the driver compiled although they were in the shared cache.
    """

    set_pipelines: int = 0
    cold_hits: int = 0
    shared_hits: int | None = None
    merged_hits: int | None = None
    merge_warnings: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    problem: str = ""
    missed: str = ""

    @property
    def cache_keeps(self) -> bool | None:
        """Whether a saved cache keeps anything; None if unknown."""
        return None if self.shared_hits is None else self.shared_hits > self.cold_hits

    @property
    def merge_works(self) -> bool | None:
        """Whether merged caches hold as much as one shared cache; None if unknown."""
        if self.shared_hits is None or self.merged_hits is None or not self.cache_keeps:
            return None
        return self.merged_hits >= self.shared_hits * _WARM_HITS

    @property
    def read_back_grows(self) -> bool | None:
        """Whether the cache grew in every round, by more than GROWTH_A_ROUND; None if unknown."""
        if len(self.sizes) < 3 or not self.cache_keeps:
            return None
        steps = zip(self.sizes, self.sizes[1:], strict=False)
        return all(after - before > GROWTH_A_ROUND * before for before, after in steps)


def probe_findings(probe: ProbeResult) -> tuple[Finding, ...]:
    """The findings of the probes."""
    unknown = f" ({probe.problem})" if probe.problem else ""
    keeps, works, grows = probe.cache_keeps, probe.merge_works, probe.read_back_grows
    keeping = f"not measured{unknown}."
    if keeps:
        keeping = (
            f"of {probe.set_pipelines} pipelines a new process finds {probe.shared_hits} in a saved cache."
            + (f" This driver does not keep {probe.missed}." if probe.missed else "")
        )
    elif keeps is False:
        keeping = (
            f"the driver's cache keeps nothing: a new process finds none of {probe.set_pipelines} pipelines "
            "in a saved cache. Warm runs were not measured."
        )
    merging = "merging: not measured" + (unknown or ": there is nothing to merge") + "."
    if works:
        merging = f"merging works: {probe.merged_hits} pipelines are found in merged worker caches."
    elif works is False:
        merging = (
            f"merging does not work: {probe.merged_hits} pipelines are found in merged worker caches, and "
            f"{probe.shared_hits} in one shared cache. Use the shared cache: a merge loses pipelines."
        )
    if probe.merge_warnings:
        merging += " Warnings of the merge: " + "; ".join(probe.merge_warnings) + "."
    growing = f"not measured{unknown}."
    if grows is not None:
        rounds = f"{len(probe.sizes)} rounds of loading, using and reading"
        sizes = f"{probe.sizes[0]:,} to {probe.sizes[-1]:,} bytes over {rounds}"
        growing = f"the cache does not grow without bound: {sizes}."
        if grows:
            growing = f"the cache grows with every round: {sizes}; do not save it when nothing is new."
    return tuple(
        Finding(
            question=question, answer={None: "not measured", True: "yes", False: "no"}[known], words=words
        )
        for question, known, words in (
            ("keeping", keeps, f"keeping: {keeping}"),
            ("merging", works, merging),
            ("read-back growth", grows, f"read-back: {growing}"),
        )
    )
