"""Calibrates a device: measures topologies, workers, batches and binaries, and what its caches are worth.

    fill and look up   one shared cache; worker caches, merged; cache sizes over rounds of load and read
    cold and warm      A B C D A', rotated by one per round, each sample in its own process
    binaries           warm, one pass, against the chosen mode and workers: A binaries A'
    batches            warm, with the chosen mode and workers: 1024 1 64 256 1024'

Guarantees: every answer comes with its figures (findings.py). A failed sample excludes its contender, with a
note. To meet a time limit the least informative contenders are left out; binaries and batches take precedence
over rounds beyond LEAST_PAIRS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from attrs import asdict, define, evolve, field, frozen

from orchestrator.bench.findings import (
    ProbeResult,
    choose,
    choose_batch,
    probe_findings,
    topology_findings,
    weigh_binaries,
)
from orchestrator.bench.jobs import (
    Answer,
    BenchError,
    Filled,
    FillJob,
    Job,
    Probed,
    ProbeJob,
    ProbeStep,
    SampleJob,
    cannot,
    other_than,
    reason_of,
    run_in_process,
)
from orchestrator.bench.matrix import in_turn
from orchestrator.bench.rows import Sample, Start, device_text
from orchestrator.bench.sample_table import Contender, SampleTable, fallen_behind, seconds_of, use_of
from orchestrator.bench.statistics import CLEAR_AFTER_ONE, LEAST_PAIRS
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT, available_workers
from orchestrator.stores.profile_file import CalibrationProfile, Choice, Dropped, Finding

BATCHES = (1, 64, 256, BATCH_LIMIT)
_WARM_SECONDS = 0.5  # short, because times vary between processes and not between passes
_FILL_PASSES = 8
_PROBES = 5
_FAR = 1.5 * CLEAR_AFTER_ONE
"""A contender that takes so many times as long is expected to fall behind after one pair."""

_Arm = tuple[Contender, bool]


@frozen
class CalibrationProgress:
    """The progress of a calibration."""

    done: int  # Number of processes that have ended.
    total: int  # Expected number of processes.
    now: str  # The current measurement, in words.
    left_s: float | None = None  # Upper bound of the time to go, s; None while it is unknown.


@frozen
class Calibrated:
    """The result of a calibration: the device, its profile, and why it ended early, or ""."""

    identity: DeviceIdentity
    profile: CalibrationProfile
    stopped: str


def calibrate(
    set_paths: Sequence[str],
    device: str,
    *,
    rounds: int,
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
        return _Calibration(
            set_paths=tuple(set_paths),
            device=device,
            rounds=rounds,
            most=available_workers() if workers is None else workers,
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            directory=Path(directory),
            profiles="" if profiles is None else str(profiles),
            on_progress=on_progress,
            run_job=run_job,
        ).run()


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
    to_go: int = 0
    probe_s: float = 0.0
    passes: int = 1
    stopped: str = ""
    took: dict[Contender, list[float]] = field(factory=dict)
    rows: list[Sample] = field(factory=list)
    binary_rows: list[Sample] = field(factory=list)
    batch_rows: list[Sample] = field(factory=list)
    left_out: set[Contender] = field(factory=set)
    squeezed: list[Contender] = field(factory=list)
    dropped: list[Dropped] = field(factory=list)
    notes: list[str] = field(factory=list)
    filled: Filled = field(init=False)

    def run(self) -> Calibrated:
        self.to_go = _PROBES + sum(self.rounds * (len(self._contenders(start)) + 1) for start in Start)
        filled = self._fill("compiling with one shared cache", "shared", CacheMode.SHARED)
        if not isinstance(filled, Filled):
            cannot(f"{device_text(self.device)} cannot be calibrated", filled)
        self.filled, self.passes = filled, filled.passes(_WARM_SECONDS, _WARM_SECONDS)
        probed = self._probe()
        starts = list(Start) if probed.cache_keeps else [Start.COLD]
        warm_too = Start.WARM in starts
        later = (len(BATCHES) + 1 + 3 * filled.binaries) * warm_too
        samples = self._race([self._contenders(each) for each in starts], self.rows, later=later)
        findings = [*probe_findings(probed)]
        for start in starts:
            findings += topology_findings(samples, start, self.most)
        cold, warm = (
            choose(samples, start, self._worker_counts, merge_works=probed.merge_works) for start in Start
        )
        binaries = batch = None
        if warm_too:
            if filled.binaries and cold is not None and warm is not None:
                binaries, weighed = self._weigh_binaries(samples, cold, warm)
                findings += weighed
            batch, finding = self._choose_batch(warm)
            findings.append(finding)
        conclusions = {"cold": cold, "warm": warm, "batch": batch, "binaries": binaries}
        profile = self._profile(probed, findings=tuple(findings), **conclusions)
        return Calibrated(filled.identity, profile, self.stopped)

    def _weigh_binaries(
        self, samples: SampleTable, cold: Choice, warm: Choice
    ) -> tuple[Choice | None, tuple[Finding, ...]]:
        cached = Contender(Start.WARM, CacheMode(warm.mode), warm.workers)
        binaries = evolve(cached, mode=CacheMode.BINARIES)
        uses = SampleTable([], use_of)
        if self._has_time_for("warm binaries", 3):
            self.to_go += 1
            self._take((binaries, False), -1, self.binary_rows, None)  # fills the store
            uses = self._race([[cached, binaries]], self.binary_rows, use_of, later=len(BATCHES) + 1)
        return weigh_binaries(samples, uses, cold, cached, self.most)

    def _choose_batch(self, warm: Choice | None) -> tuple[int | None, Finding]:
        mode, workers = (warm.mode, warm.workers) if warm is not None else (CacheMode.SHARED, self.most)
        usual, found = Contender(Start.WARM, CacheMode(mode), workers), SampleTable([])
        group = [usual, *(evolve(usual, batch=each) for each in BATCHES if each != usual.batch)]
        if usual not in self.left_out and self._has_time_for("batches", len(group) + 1):
            found = self._race([group], self.batch_rows)
        return choose_batch(found, usual, BATCHES)

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
        elif self.done and self.filled.binaries:
            more.append(CacheMode.BINARIES)
        made = [Contender(start, mode, self.most) for mode in (*modes, *more)]
        return made + [Contender(start, mode, count) for count in self._worker_counts[:-1] for mode in modes]

    def _rank(self, contender: Contender) -> int:
        """How soon a contender is left out if time is short: the larger, the sooner."""
        if contender.workers == self.most:
            ranks = {CacheMode.TWO_LEVEL: 2, CacheMode.PER_WORKER_INTERNAL: 4, CacheMode.BINARIES: 6}
            return ranks.get(contender.mode, 0)
        if contender.workers == 1:
            return 1 if contender.start == Start.WARM else 3
        return 5

    # --- processes

    def _do(self, what: str, job: Job, left_s: float | None = None) -> Answer:
        self.on_progress(CalibrationProgress(self.done, self.done + self.to_go, what, left_s))
        answer = self.run_job(job)
        self.done += 1
        self.to_go -= 1
        return answer

    def _fill(self, what: str, directory: str, mode: CacheMode) -> Answer:
        workers = max(2, self.most)  # a merge needs two caches, even with one processor
        passes = _FILL_PASSES if mode == CacheMode.SHARED else 0
        return self._do(what, FillJob(**self._set(directory), workers=workers, mode=mode, passes=passes))

    def _ask(self, what: str, step: ProbeStep, directory: str) -> Answer:
        return self._do(what, ProbeJob(**self._set(directory), step=step))

    def _set(self, directory: str) -> dict[str, Any]:
        return {
            "set_paths": self.set_paths,
            "device": self.device,
            "cache_directory": str(self.directory / directory) if directory else "",
            "profiles": self.profiles,
        }

    def _probe(self) -> ProbeResult:
        result = ProbeResult(set_pipelines=self.filled.pipelines, cold_hits=self.filled.hits)
        began = time.monotonic()
        looked_up = self._ask("looking up in a new process", ProbeStep.LOOK_UP, "shared")
        self.probe_s = time.monotonic() - began
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

    # --- time

    def _expected_s(self, contenders: Iterable[Contender]) -> float:
        """The time of a sample of each: as its own ones took, or else as filling a cache took."""
        begun = [
            max(0.0, seconds - self._run_s(each)) for each, times in self.took.items() for seconds in times
        ]
        start_s = median(begun) if begun else self.probe_s
        return sum(
            median(self.took[each]) if each in self.took else start_s + self._run_s(each)
            for each in contenders
        )

    def _run_s(self, contender: Contender) -> float:
        filled = self.filled
        if contender.start == Start.COLD:
            return max(filled.cold_wall_ns, filled.cold_driver_ns / contender.workers) / 1e9
        rate = filled.warm_rate if contender.workers == 1 else filled.warm_rate_most
        return self.passes * filled.pipelines / rate if rate else 0.0

    def _warm_s(self, samples: int) -> float:
        return samples * self._expected_s([Contender(Start.WARM, CacheMode.SHARED, self.most)])

    def _fits(self, seconds: float) -> bool:
        return self.deadline is None or time.monotonic() + seconds <= self.deadline

    def _has_time_for(self, what: str, arms: int) -> bool:
        if self._fits(self._warm_s(arms * self._pairs)):
            return True
        self.notes.append(f"{what}: left out, because {self._pairs} pairs do not fit the time limit")
        return False

    def _squeeze(self, groups: Sequence[Sequence[Contender]], number: int) -> None:
        """Leave out what tells least, so that the others get their pairs in time; from round 1 on a start."""
        chosen, rest = list[Contender](), list[Contender]()
        baselines = {group[0] for group in groups}

        def needed_s(contender: Contender) -> float:
            samples = self._pairs * (2 if contender in baselines else 1)
            far = (
                contender.start == Start.COLD
                and self._run_s(contender) > _FAR * self.filled.cold_wall_ns / 1e9
            )
            taken = len(self.took.get(contender, ()))
            return max(0, (1 if far else samples) - taken) * self._expected_s([contender])

        def fits(more: Sequence[Contender]) -> bool:
            return self._fits(sum(map(needed_s, (*chosen, *more))))

        for group in groups:
            there = [each for each in group if each not in self.left_out]
            core = [each for each in there if not self._rank(each)]
            if number == 0 or fits(core):
                chosen += core
                rest += [each for each in there if self._rank(each)]
        for each in sorted(rest, key=self._rank):
            if fits([each]):
                chosen.append(each)
        if chosen:
            out = [each for group in groups for each in group if each not in {*chosen, *self.left_out}]
            self.squeezed += out
            self.left_out.update(out)

    # --- samples

    def _race(
        self,
        groups: Sequence[Sequence[Contender]],
        rows: list[Sample],
        figure: Callable[[Sample], float] = seconds_of,
        *,
        later: int = 0,
    ) -> SampleTable:
        """Take all rounds of contenders, each group with its baseline first, as far as time allows.

        `later` warm samples a round will follow.
        """
        begun = 0
        for number in range(self.rounds):
            limited = self.deadline is not None and rows is self.rows
            if limited and number == 1:
                self._squeeze(groups, number)
            arms = self._arms(groups, number, SampleTable(rows, figure))
            if number == 0:
                arms.sort(key=lambda arm: self._rank(arm[0]))
            round_s = self._expected_s(each for each, _ in arms)
            if (
                number >= LEAST_PAIRS
                and later
                and not self._fits(round_s + self._warm_s(later * LEAST_PAIRS))
            ):
                self.notes.append(f"{number} of {self.rounds} rounds: the rest of the time was reserved")
                break
            begun, rest = number + 1, self.rounds - number - 1
            rest_s = rest * round_s + self._warm_s(later * self.rounds)
            for place, arm in enumerate(arms):
                if limited and number == 0 and self._rank(arm[0]) > 0 == self._rank(arms[place - 1][0]):
                    self._squeeze(groups, number)  # the times of samples are known now
                self.to_go = len(arms) - place + rest * len(arms) + later * self.rounds
                if self.deadline is not None and time.monotonic() > self.deadline:
                    missing = f"{self.to_go} of {self.done + self.to_go} samples are missing"
                    self.stopped = self.stopped or f"the time limit: {missing}"
                elif arm[0] not in self.left_out:  # as after a failure
                    self._take(arm, number, rows, rest_s + self._expected_s(each for each, _ in arms[place:]))
            if self.stopped:
                break
        table, out = SampleTable(rows, figure), dict[Contender, str]()
        for each, words in (item for group in groups for item in fallen_behind(table, group).items()):
            samples = len(table.of(each))
            if samples < begun and each not in self.left_out:
                out[each] = "fell behind"
                self.dropped.append(Dropped(**asdict(each), samples=samples, rounds=begun, words=words))
        return SampleTable(rows, figure, out | dict.fromkeys(self.squeezed, "did not fit the time limit"))

    def _arms(self, groups: Sequence[Sequence[Contender]], number: int, table: SampleTable) -> list[_Arm]:
        """The arms of a round, the first one in the order of their rank."""
        arms = list[_Arm]()
        for group in groups:
            out = self.left_out | fallen_behind(table, group).keys()
            whole = [*((each, False) for each in group), (group[0], True)]
            taken = [arm for arm in in_turn(whole, number) if arm[0] not in out]
            if {each for each, _ in taken} != {group[0]}:  # else nothing is left to compare it with
                arms += taken
        return arms

    def _take(self, arm: _Arm, number: int, rows: list[Sample], left_s: float | None) -> None:
        contender, control = arm
        warm, binaries = contender.start == Start.WARM, contender.mode is CacheMode.BINARIES
        job = SampleJob(
            **self._set(("binaries" if binaries else "shared") if warm else ""),
            start=contender.start,
            duplicates=0.0,
            workers=contender.workers,
            mode=contender.mode,
            control=control,
            round=number,
            batch=contender.batch,
            passes=self.passes if warm and rows is not self.binary_rows else 1,
        )
        words = f"round {number + 1} of {self.rounds}: {contender.words}" + (" (control)" if control else "")
        answer = self._do(words, job, left_s)
        if not isinstance(answer, Sample):
            self.left_out.add(contender)
            self.notes.append(f"{contender.words}: left out, because a sample failed: {reason_of(answer)}")
            return
        if what := other_than(answer, self.filled):
            raise BenchError(
                f"{device_text(self.device)} cannot be calibrated: what is measured changed: a sample is of "
                f"{what}",
                "begin again, and leave set, driver and machine as they are meanwhile",
            )
        rows.append(answer)
        self.took.setdefault(contender, []).append(answer.process_s)

    def _profile(self, probed: ProbeResult, **conclusions: object) -> CalibrationProfile:
        filled, samples = self.filled, SampleTable(self.rows)
        rows = [*self.rows, *self.binary_rows, *self.batch_rows]
        machine, cores = filled.environment, available_workers()
        load = max((each.environment.load_average for each in rows), default=0.0)
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
            processor=machine.processor,
            load_average=load,
            driver_caches=machine.driver_caches,
            order=rows[0].order if rows else "",
            set_name=filled.set_name,
            set_hash=filled.set_hash,
            pipelines=filled.pipelines,
            python=machine.python,
            rounds=len(samples.of(self._contenders(Start.COLD)[0])),
            figures=(
                *samples.figures(),
                *SampleTable(self.binary_rows, use_of).figures(),
                *SampleTable(self.batch_rows).figures(),
            ),
            merge_works=probed.merge_works,
            cache_keeps=probed.cache_keeps,
            read_back_grows=probed.read_back_grows,
            dropped=tuple(self.dropped),
            notes=tuple(notes),
            **conclusions,
        )
